"""One key of a config as a part of a page: a heading, what it means, its values, its default, and who uses which."""

import json
from collections.abc import Callable, Collection

from pydantic import BaseModel
from usage import shown

from pipeline.schema.classes import Schema, schemas_of
from pipeline.schema.meaning import meaning_of

Used = Callable[[str], str]  # a key -> the values that studies have, in words
ENTRY = "KEY."  # in a name: the key that the author of a study chooses
TYPES = {
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "string": "text",
    "null": "`null`",
}
LIMITS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
PAGES_OF_THEIR_OWN = (
    "Augment",
    "ModelConfig",
    "OptimConfig",
    "Slurm",
)  # a key with one of these has no table of its keys


def keys_of(model: type[BaseModel], prefix: str, used: Used, without: Collection[str] = (), anchor: str = "") -> str:
    """A heading for each key of a class, and what is said of it."""
    found, definitions = schemas_of([model])
    schema = definitions[found[model]["$ref"].rpartition("/")[2]]
    text = ""
    for key, below in schema["properties"].items():
        if key in without:
            continue
        name, place = f"{prefix}{key}", f"{anchor}{prefix}{key}".replace(ENTRY, "")
        text += f'### `{name}` {{ #{place} data-toc-label="{name}" }}\n\n{sentence(meaning_of(model, key))}\n\n'
        text += _facts(below, definitions, used(key))
        text += "" if ENTRY in prefix else _nested(below, definitions)
    return text or "It has no keys of its own.\n\n"


def _facts(schema: Schema, definitions: dict[str, Schema], used: str) -> str:
    facts = {"Values": _values(schema, definitions)}
    facts |= {"Default": f"`{shown(schema['default'])}`"} if "default" in schema else {}
    facts |= {"Used": used} if used else {}
    return "".join(f"- **{name}**: {fact}\n" for name, fact in facts.items()) + "\n"


def sentence(text: str) -> str:
    """A meaning that begins with a plain word begins with a capital letter."""
    text = text[:1].upper() + text[1:] if text.split(" ")[0].isalpha() else text
    text = text.replace("<", "&lt;")
    return text if text.endswith((".", "?", ")")) else f"{text}."


def _values(schema: Schema, definitions: dict[str, Schema]) -> str:
    """Types and ranges in words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_values(each, definitions) for each in schema["anyOf"]))
    if "$ref" in schema:
        return "a map"
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{shown(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = str(schema.get("type", "any value"))
    if kind == "array":
        return _list(schema, definitions)
    if kind == "object":
        below = schema.get("additionalProperties")
        return f"a map to {_values(below, definitions)}" if isinstance(below, dict) and below else "a map"
    return TYPES.get(kind, kind) + _range(schema)


def _list(schema: Schema, definitions: dict[str, Schema]) -> str:
    items, least = schema.get("items", {}), schema.get("minItems")
    if isinstance(items, list):
        return f"{len(items)} values: " + "; ".join(_values(each, definitions) for each in items)
    return f"a list{f' of {least} or more' if least else ''}: {_values(items, definitions)}"


def _range(schema: Schema) -> str:
    found = [f"{words} {schema[key]:g}" for key, words in LIMITS.items() if key in schema]
    found += [f"a multiple of {schema['multipleOf']}"] if "multipleOf" in schema else []
    found += [f"like `{schema['pattern']}`"] if "pattern" in schema else []
    return f", {', '.join(found)}" if found else ""


def _nested(schema: Schema, definitions: dict[str, Schema]) -> str:
    """The keys of a map that has a class of its own, as a table."""
    name = json.dumps(schema).partition("#/definitions/")[2].partition('"')[0]
    keys = definitions.get(name, {}).get("properties", {})
    if not keys or name in PAGES_OF_THEIR_OWN or "additionalProperties" in schema:
        return ""
    lines = ["| key | values | default | meaning |", "|---|---|---|---|"]
    for key, below in keys.items():
        default = f"`{shown(below['default'])}`" if "default" in below else ""
        cells = [f"`{key}`", _values(below, definitions), default, sentence(below["description"])]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n\n"
