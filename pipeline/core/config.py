"""Typed configs: the strict base class, reading YAML, merging fragments, and errors that name file and key.

Fragments merge left to right: maps deep, lists replaced. No interpolation, no code in YAML, no inheritance.
"""

import difflib
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from pipeline.core.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FILE = "file:"  # begins an `init` that names weights from elsewhere
BEFORE = "before"  # in a field's schema: the value of runs from before there was the field
NAME_DIGITS = 8  # of the fingerprint in the name of a run or an evaluation: of a million, two share them rarely
MOST_LISTED, NUM_NEAREST = 15, 6  # valid names in an error: all of them, or the nearest
PLAIN = (str, int, float, bool, type(None))  # what is the same in JSON
UNKNOWN_KEY, REQUIRED = "unknown key", "required, not given"  # in errors
_ABSENT = object()
_PARSED: dict[bytes, dict[str, Any]] = {}  # content of a YAML file -> its mapping


class Strict(BaseModel):
    """Base of every config class: unknown keys are errors and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Record(BaseModel):
    """Base of what the program itself writes as JSON and reads back."""

    model_config = ConfigDict(extra="forbid")


# libyaml's loader, where it is installed, reads several times as fast.
SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueKeyLoader(SafeLoader):
    """SafeLoader that refuses a key written twice, which plain YAML would silently let win."""


def _unique_map(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for at, key in enumerate(keys):
        if key in keys[:at]:
            mark = node.value[at][0].start_mark
            raise ConfigError(
                f"{shown(Path(mark.name))}: {key}: written again in line {mark.line + 1}; keep one of them"
            )
    return loader.construct_mapping(node, deep=True)


def _without_colon(tag: str, pattern: re.Pattern) -> tuple[str, re.Pattern]:
    """YAML 1.1 reads 24:00:00 as a number to the base 60, 86400; here it is text."""
    is_number = tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
    return tag, re.compile(rf"(?!.*:)(?:{pattern.pattern})", pattern.flags) if is_number else pattern


_UniqueKeyLoader.yaml_implicit_resolvers = {
    first: [_without_colon(*resolver) for resolver in resolvers]
    for first, resolvers in SafeLoader.yaml_implicit_resolvers.items()
}
_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_map)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    return deepcopy(read_yaml_once(path))


def read_yaml_once(path: Path) -> dict[str, Any]:
    """The same for a file that is read often. Not to be changed: equal files share the mapping that was parsed once."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{shown(path)}: no such file; {nearest(path.stem, names(path.parent))}") from None
    if content not in _PARSED:
        _PARSED[content] = _parsed(path, content)
    return _PARSED[content]


def _parsed(path: Path, written: bytes) -> dict[str, Any]:
    try:
        text = io.StringIO(written.decode(), newline=None)
        text.name = str(path)  # for the messages of yaml
        content = yaml.load(text, Loader=_UniqueKeyLoader)  # a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        message = " ".join(str(error).replace(f'in "{path}", line', "at line").split())
        raise ConfigError(f"{shown(path)}: not valid YAML: {message}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{shown(path)}: expected a mapping of keys to values, found {type(content).__name__}")
    return content


def names(folder: Path) -> list[str]:
    """Names of the YAML files in a folder of fragments."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def nearest(name: str, valid: Iterable[str], listed_by: str = "python -m pipeline check --names") -> str:
    """A hint for a wrong name: the closest valid one, then all of them; of many the nearest, and what lists all."""
    valid = sorted(valid)
    close = _closest(name, valid)
    hint = f"did you mean {close!r}? " if close else ""
    if len(valid) <= MOST_LISTED:
        return f"{hint}valid: {', '.join(valid) or '(none)'}"
    near = difflib.get_close_matches(name, valid, n=NUM_NEAREST, cutoff=0)
    return f"{hint}nearest: {', '.join(near)}; {len(valid) - len(near)} others: `{listed_by}`"


def _closest(name: str, valid: Iterable[str]) -> str:
    """The valid name that a wrong one may stand for; empty if none is near."""
    return next(iter(difflib.get_close_matches(name, sorted(valid), n=1, cutoff=0.5)), "")


def merge(*maps: dict[str, Any]) -> dict[str, Any]:
    """Merge mappings left to right: maps deep, everything else replaced."""
    result: dict[str, Any] = {}
    for current in maps:
        for key, value in current.items():
            both_maps = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merge(result[key], value) if both_maps else value
    return result


def leaves(content: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The place of every value, and the value: {optim: {epochs: 2}} -> (optim, epochs) 2. An empty map is a value."""
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


class Layers:
    """Mappings that are merged left to right, each with the file it comes from, so that errors can name the file."""

    def __init__(self, *layers: tuple[str, dict[str, Any]]) -> None:
        self.layers = layers
        self.default = layers[-1][0]  # the file to name for what none of them speaks of

    def merged(self) -> dict[str, Any]:
        return merge(*[content for _, content in self.layers])

    def origin(self, path: tuple[Any, ...]) -> str:
        """The last file that gives this key; where none does, the first that has the nearest key above it."""
        for length in range(len(path), 0, -1):
            files = [file for file, content in self.layers if _at(content, path[:length]) is not _ABSENT]
            if files:
                return files[-1] if length == len(path) else files[0]
        return self.default

    def values(self, path: tuple[Any, ...]) -> list[tuple[str, Any]]:
        """Every file that gives this key, and what it says, in order: the last one wins."""
        found = [(file, _at(content, path)) for file, content in self.layers]
        return [(file, value) for file, value in found if value is not _ABSENT]

    def below(self, key: str) -> "Layers":
        """The layers of one key, which must be a mapping wherever it is given."""
        given = [(file, content[key]) for file, content in self.layers if key in content]
        wrong = [(file, value) for file, value in given if not isinstance(value, dict)]
        if wrong:
            lines = [f"{file}: {key}: found {value!r}, expected a mapping of keys to values" for file, value in wrong]
            raise ConfigError("\n".join(lines))
        below = Layers(*given or [(self.default, {})])
        below.default = below.layers[0][0]
        return below


def _at(content: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        in_map = isinstance(content, dict) and part in content
        in_list = isinstance(content, list) and part in range(len(content))
        if not (in_map or in_list):
            return _ABSENT
        content = content[part]
    return content


def problems(
    error: ValidationError,
    model: type[BaseModel],
    layers: Layers,
    prefix: str = "",
    reported: Sequence[str] = (),
    among: Sequence[tuple[Any, ...]] = ((),),
) -> list[str]:
    """One line per problem: file, key path, value found, what is allowed, nearest valid name.

    `reported` are keys of which the problems are known already; `among`: only problems of these keys and below.
    """
    lines = []
    for item in error.errors(include_url=False):
        loc = item["loc"]
        if (loc and str(loc[0]) in reported) or not any(loc[: len(key)] == key for key in among):
            continue
        message = item["msg"].removeprefix("Value error, ")
        # A rule between several keys fails at the key above them all; people need the file of each key it names.
        named = _keys_named(message, loc, layers) if item["type"] == "value_error" else []
        key = named[0] if named else loc
        where = f"{layers.origin(key)}: {prefix}{dotted(key) or '(top)'}"
        if item["type"] == "extra_forbidden":
            lines.append(f"{where}: {UNKNOWN_KEY}; {nearest(str(loc[-1]), _fields_at(model, loc[:-1]))}")
        elif item["type"] == "missing":
            lines.append(f"{where}: {REQUIRED}")
        else:
            found = "" if isinstance(item["input"], (dict, BaseModel)) else f"found {item['input']!r}; "
            others = [other for other in named if layers.origin(other) != layers.origin(key)]
            sources = "".join(f"; {prefix}{dotted(other)} is in {layers.origin(other)}" for other in others)
            lines.append(f"{where}: {found}{message[:1].lower()}{message[1:]}{_meant(item)}{sources}")
    return lines


def _meant(item: Any) -> str:
    """The nearest of the words that a key may have, where another was found."""
    words = re.findall("'([^']*)'", item["ctx"]["expected"]) if item["type"] == "literal_error" else []
    close = _closest(str(item["input"]), words)
    return f"; did you mean {close!r}?" if close else ""


def dotted(key: tuple[Any, ...]) -> str:
    return ".".join(map(str, key))


def _keys_named(message: str, loc: tuple[Any, ...], layers: Layers) -> list[tuple[Any, ...]]:
    """The keys below a location that a message names and some file gives."""
    words = dict.fromkeys(re.findall(r"[a-z_]\w*(?:\.\w+)*", message))
    values = {(*loc, *word.split(".")): _at(layers.merged(), (*loc, *word.split("."))) for word in words}
    return [key for key, value in values.items() if value is not _ABSENT and not isinstance(value, dict)]


def _fields_at(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Keys that the model at a location inside `model` knows; none where no model does."""
    found: Any = model
    for part in loc:
        if _is_model(found):
            field = found.model_fields.get(str(part))
            found = field.annotation if field else None
        else:
            found = (get_args(found) or (None,))[-1]  # a key of a map, or an index of a list
        if isinstance(found, UnionType):
            found = next(filter(_is_model, get_args(found)), None)
    return [*found.model_fields, *getattr(found, "short_forms", ())] if _is_model(found) else []


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def parse(model: type[Model], layers: Layers, prefix: str = "") -> Model:
    """Validate merged layers, or raise one ConfigError that lists every problem."""
    try:
        return model.model_validate(layers.merged())
    except ValidationError as error:
        raise ConfigError("\n".join(problems(error, model, layers, prefix))) from None


def parse_file(model: type[Model], path: Path) -> Model:
    return parse(model, Layers((shown(path), read_yaml(path))))


def parse_as_meant(model: type[Model], layers: Layers) -> tuple[Model | None, list[str]]:
    """Merged layers and their problems, so that names in a file with mistyped keys can be checked, too.

    An unknown key is read as the valid one that its problem suggests. None if that does not make the layers valid.
    """
    content = deepcopy(layers.merged())
    try:
        return model.model_validate(content), []
    except ValidationError as error:
        lines = problems(error, model, layers)
        unknown = [item["loc"] for item in error.errors() if item["type"] == "extra_forbidden"]
    for *above, key in unknown:
        keys = _at(content, tuple(above))
        suggested = _closest(str(key), _fields_at(model, tuple(above)))
        if not suggested or not isinstance(keys, dict):
            return None, lines
        keys.setdefault(suggested, keys.pop(key))
    try:
        return model.model_validate(content), lines
    except ValidationError:
        return None, lines


def shown(path: Path) -> str:
    """A path as people read it: relative to the repository where it is inside."""
    return _below(path, CONFIGS.parent)


@cache
def _below(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def added(default: Any, *, before: Any, **options: Any) -> Any:
    """A field that a config class got later, with the value that describes what was done before there was one.

    Its default may be another: runs that state nothing then get a new name, and old runs keep theirs.
    """
    return Field(default, json_schema_extra={BEFORE: before}, **options)


def science(value: Any) -> Any:
    """What of a config goes into its fingerprint: every field, whether it equals its default or not.

    Only a field that was `added` later is left out, and only where it has the value of before.
    """
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {name: science(found) for name, found in value if not _is_as_before(fields[name], found)}
    if isinstance(value, dict):
        return {key: science(found) for key, found in value.items()}
    if isinstance(value, list | tuple):
        return [science(found) for found in value]
    return value if type(value) in PLAIN else to_jsonable_python(value)


def values_before(model: type[BaseModel]) -> dict[str, Any]:
    """The fields that a config class got later, with the values that describe what was done before."""
    found = {name: field.json_schema_extra for name, field in model.model_fields.items()}
    return {name: extra[BEFORE] for name, extra in found.items() if isinstance(extra, dict) and BEFORE in extra}


def _is_as_before(field: FieldInfo, value: Any) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and BEFORE in extra and extra[BEFORE] == value


def fingerprint(content: Any, length: int = NAME_DIGITS) -> str:
    """A short stable name for JSON-able content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
