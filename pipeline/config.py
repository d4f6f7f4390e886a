"""Typed configs: the strict base class, reading YAML, merging fragments, and errors that name file and key.

Fragments merge left to right: maps deep, lists replaced. No interpolation, no code in YAML, no inheritance.
"""

import difflib
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
CONFIGS = Path(__file__).resolve().parent.parent / "configs"


class Strict(BaseModel):
    """Base of every config class: unknown keys are errors and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _UniqueKeyLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice, which plain YAML would silently let win."""


def _unique_map(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    twice = sorted({str(key) for key in keys if keys.count(key) > 1})
    if twice:
        raise ConfigError(
            f"{shown(Path(node.start_mark.name))}: key {', '.join(twice)} is written twice; keep one of them"
        )
    return loader.construct_mapping(node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_map)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        with path.open(encoding="utf-8") as file:
            content = yaml.load(file, Loader=_UniqueKeyLoader)  # a SafeLoader
    except FileNotFoundError:
        raise ConfigError(f"{shown(path)}: no such file; {nearest(path.stem, names(path.parent))}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{shown(path)}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{shown(path)}: expected a mapping of keys to values, found {type(content).__name__}")
    return content


def names(folder: Path) -> list[str]:
    """Names of the YAML files in a folder of fragments."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint for a wrong name: the closest valid one first, then all of them."""
    valid = sorted(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}valid: {', '.join(valid) or '(none)'}"


def merge(*maps: dict[str, Any]) -> dict[str, Any]:
    """Merge mappings left to right: maps deep, everything else replaced."""
    result: dict[str, Any] = {}
    for current in maps:
        for key, value in current.items():
            both_maps = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merge(result[key], value) if both_maps else value
    return result


class Layers:
    """Mappings that are merged left to right, each with the file it comes from, so that errors can name the file."""

    def __init__(self, *layers: tuple[str, dict[str, Any]]) -> None:
        self.layers = layers

    def merged(self) -> dict[str, Any]:
        return merge(*[content for _, content in self.layers])

    def origin(self, path: tuple[Any, ...]) -> str:
        """The last file that says something at this key path, or at the nearest key above it."""
        for length in range(len(path), 0, -1):
            for file, content in reversed(self.layers):
                if _has(content, path[:length]):
                    return file
        return self.layers[-1][0]

    def below(self, key: str) -> "Layers":
        """The layers of one key."""
        return Layers(*[(file, c[key]) for file, c in self.layers if isinstance(c.get(key), dict)] or self.layers[-1:])


def _has(content: Any, path: tuple[Any, ...]) -> bool:
    for part in path:
        if not isinstance(content, dict) or part not in content:
            return False
        content = content[part]
    return True


def problems(error: ValidationError, model: type[BaseModel], layers: Layers, prefix: str = "") -> list[str]:
    """One line per problem: file, key path, value found, what is allowed, nearest valid name."""
    lines = []
    for item in error.errors(include_url=False):
        loc = item["loc"]
        where = f"{layers.origin(loc)}: {prefix}{'.'.join(str(part) for part in loc) or '(top)'}"
        if item["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown key; {nearest(str(loc[-1]), _fields_at(model, loc[:-1]))}")
        elif item["type"] == "missing":
            lines.append(f"{where}: required, not given")
        else:
            message = item["msg"].removeprefix("Value error, ")
            found = "" if isinstance(item["input"], (dict, BaseModel)) else f"found {item['input']!r}; "
            lines.append(f"{where}: {found}{message[:1].lower()}{message[1:]}")
    return lines


def _fields_at(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Field names of the model that sits at a location inside `model`."""
    for part in loc:
        field = model.model_fields.get(str(part))
        candidate = field.annotation if field else None
        options = [candidate, *getattr(candidate, "__args__", ())]
        models = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)


def parse(model: type[Model], layers: Layers, prefix: str = "") -> Model:
    """Validate merged layers, or raise one ConfigError that lists every problem."""
    try:
        return model.model_validate(layers.merged())
    except ValidationError as error:
        raise ConfigError("\n".join(problems(error, model, layers, prefix))) from None


def parse_file(model: type[Model], path: Path) -> Model:
    return parse(model, Layers((shown(path), read_yaml(path))))


def shown(path: Path) -> str:
    """A path as people read it: relative to the repository where it is inside."""
    root = CONFIGS.parent
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def fingerprint(content: Any, length: int = 6) -> str:
    """A short stable name for JSON-able content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
