"""Schemas of run configs and of their fragments: what a method, a kind of data or an evaluation is decides its keys.

Fragments are merged, so that none of them needs all keys. Where a fragment names its method, or its kind of data, it
has the keys of that one; where it does not, such as in a recipe, it may have the keys of any.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from pipeline.core.registry import EVALS, KINDS, METHODS, Registry
from pipeline.data.kind import BaseDataConfig
from pipeline.engine.run import RunConfig
from pipeline.evals.base import EvalConfig
from pipeline.methods.base import MethodConfig
from pipeline.schema.classes import Schema, keys_of, partial, schemas_of
from pipeline.schema.meaning import meaning_of

NOT_IN_FRAGMENTS = ("init", "train")  # a run of a study says them
DEFAULT_KIND = BaseDataConfig.model_fields["kind"].default
BASES: dict[Registry, type[BaseModel]] = {METHODS: MethodConfig, KINDS: BaseDataConfig, EVALS: EvalConfig}
RUN = {"$ref": "#/definitions/run"}


def definitions() -> dict[str, Schema]:
    """What schemas of files refer to: classes of run configs and evaluations, as fragments have them."""
    found = {name: partial(each) for name, each in _pool()[1].items()}
    found |= {"method": _fragment("name", METHODS), "data": _fragment("kind", KINDS), "run": run()}
    return found | {"any_method": _any_config(METHODS), "any_eval": _any_config(EVALS)}


def run(**instead: Schema) -> Schema:
    """A fragment of a run config, with another schema for some of its keys."""
    keys = _definition(RunConfig)["properties"]
    keys = {key: below for key, below in keys.items() if key not in NOT_IN_FRAGMENTS}
    own = {key: {"$ref": f"#/definitions/{key}"} for key in ("method", "data")} | instead
    described = {key: {**schema, "description": keys[key]["description"]} for key, schema in own.items()}
    return {"type": "object", "additionalProperties": False, "properties": keys | described}


def method_file() -> Schema:
    return run(method=_choice("name", METHODS)) | {"required": ["method"]}


def model_file() -> Schema:
    return run() | {"required": ["model"]}


def data_file() -> Schema:
    return run(data=_choice("kind", KINDS, DEFAULT_KIND)) | {"required": ["data"]}


def eval_file() -> Schema:
    return _choice("name", EVALS)


def _choice(key: str, registry: Registry, default: str = "") -> Schema:
    """A mapping with all keys of what `key` names."""
    return {
        **_head(key, registry, default),
        **({} if default else {"required": [key]}),
        "allOf": [_branch(key, name, registry, is_default=name == default) for name in registry.names()],
    }


def _fragment(key: str, registry: Registry) -> Schema:
    """A mapping with some keys of what `key` names or, where it names none, of any."""
    return {
        **_head(key, registry),
        "if": {"required": [key]},
        "then": {"allOf": [_branch(key, name, registry, needed=False) for name in registry.names()]},
        "else": _any_config(registry),
    }


def _head(key: str, registry: Registry, default: str = "") -> Schema:
    chooses = {"enum": registry.names(), "description": meaning_of(BASES[registry], key)}
    return {"type": "object", "properties": {key: chooses | ({"default": default} if default else {})}}


def _branch(key: str, name: str, registry: Registry, is_default: bool = False, needed: bool = True) -> Schema:
    """The keys of one method, kind or evaluation; those of the default count where `key` is left out, too."""
    config = _config(registry, name)
    required = _definition(config).get("required", []) if needed and registry is not METHODS else []
    named: Schema = {"properties": {key: {"const": name}}} | ({} if is_default else {"required": [key]})
    return {"if": named, "then": {"allOf": [_pool()[0][config]], **({"required": required} if required else {})}}


def _any_config(registry: Registry) -> Schema:
    """Keys of all that a registry has: what one of them allows is allowed."""
    keys = keys_of(_definition(_config(registry, name)) for name in registry.names())
    merged = {key: each[0] if len(each) == 1 else _either(each) for key, each in keys.items()}
    return {"type": "object", "additionalProperties": False, "properties": merged}


def _either(schemas: list[Schema]) -> Schema:
    meanings = dict.fromkeys(each.get("description", "") for each in schemas)
    bare = [{key: value for key, value in each.items() if key not in ("description", "default")} for each in schemas]
    distinct = [each for at, each in enumerate(bare) if each not in bare[:at]]
    return {"anyOf": distinct, "description": "; or: ".join(filter(None, meanings))}


@cache
def _config(registry: Registry, name: str) -> Any:
    return registry.get(name).Config


@cache
def _pool() -> tuple[Mapping[Any, Schema], Mapping[str, Schema]]:
    """Schema of each class by reference, and what the references lead to."""
    configs = [_config(registry, name) for registry in (METHODS, KINDS, EVALS) for name in registry.names()]
    return schemas_of(dict.fromkeys([RunConfig, *configs]))


def _definition(model: Any) -> Schema:
    found, definitions = _pool()
    return definitions[found[model]["$ref"].rpartition("/")[2]]
