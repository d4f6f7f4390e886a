"""JSON Schemas of config classes, of draft 7, which editors know: types, ranges, defaults, and what each key means."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticOmit, core_schema, to_jsonable_python

from pipeline.core.config import BEFORE
from pipeline.core.sizes import MOST
from pipeline.schema.meaning import meaning_of

Schema = dict[str, Any]
SIDE: Schema = {"type": "integer", "minimum": 1, "maximum": MOST}
# What only a function checks has no schema of its own; in configs, that is a size.
SIZE: Schema = {"anyOf": [SIDE, {"type": "array", "items": SIDE, "minItems": 1, "maxItems": 2}]}


class _Generator(GenerateJsonSchema):
    """Adds what the fields of a class mean, and where they come from needs no titles."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        for name, below in found.get("properties", {}).items():
            below["description"] = meaning_of(schema["cls"], name)
        return found

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        return {**SIZE}

    def encode_default(self, dft: Any) -> Any:
        try:
            return to_jsonable_python(dft)
        except Exception as error:
            raise PydanticOmit from error


def schemas_of(models: Iterable[type[BaseModel]]) -> tuple[dict[type[BaseModel], Schema], dict[str, Schema]]:
    """The schema of each class, and what they refer to by name."""
    models = [*models]
    generator = _Generator(ref_template="#/definitions/{model}")
    found, definitions = generator.generate_definitions(
        [(model, "validation", model.__pydantic_core_schema__) for model in models]
    )
    return {model: found[model, "validation"] for model in models}, {
        name: _plainer(each) for name, each in sorted(definitions.items())
    }


def _plainer(part: Any) -> Any:
    """Without titles and what only this project knows, and with arrays as draft 7 writes them."""
    if isinstance(part, list):
        return [_plainer(each) for each in part]
    if not isinstance(part, dict):
        return part
    kept = {key: _plainer(value) for key, value in part.items() if key != BEFORE and not _is_title(key, value)}
    if "prefixItems" in kept:
        kept |= {"items": kept.pop("prefixItems"), "additionalItems": False}
    return kept


def _is_title(key: str, value: Any) -> bool:
    """Not a key of that name: those have a schema, not a text."""
    return key == "title" and isinstance(value, str)


def keys_of(schemas: Iterable[Schema]) -> dict[str, list[Schema]]:
    """Every key that one of the schemas has, with the different schemas of the key."""
    found: dict[str, list[Schema]] = {}
    for schema in schemas:
        for key, below in schema["properties"].items():
            if below not in found.setdefault(key, []):
                found[key].append(below)
    return found


def partial(schema: Mapping[str, Any]) -> Schema:
    """The same for a fragment, which need not have all keys."""
    return {key: value for key, value in schema.items() if key != "required"}
