"""The schemas of config files in `configs/schema`, and the first line of each config that names its schema.

Editors with a YAML language server then complete keys, explain them, and mark what is not allowed.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.core.config import CONFIGS
from pipeline.core.files import write_text
from pipeline.schema import runs, studies
from pipeline.schema.classes import Schema, schemas_of
from pipeline.site import Site
from pipeline.study.spec import Expected, Noise

DRAFT = "http://json-schema.org/draft-07/schema#"
NAMED = re.compile(r"# yaml-language-server: \$schema=\S*\n")
SHARED = "run.json"
REFERENCE = re.compile(r'"#/definitions/([^"]+)"')
# Folder of configs -> the schema of its files. A template is a study.
FOLDERS = {
    **{kind: kind for kind in ("study", "scale", "site", "method", "model", "data", "eval", "recipe", "expected")},
    "template": "study",
    "noise": "noise",
}
MAKERS: dict[str, Callable[[], Any]] = {
    "study": studies.study,
    "scale": studies.scale,
    "method": runs.method_file,
    "model": runs.model_file,
    "data": runs.data_file,
    "recipe": runs.run,
    "eval": runs.eval_file,
    "site": lambda: _of_class(Site),
    "expected": lambda: _expected(),
    "noise": lambda: _of_class(Noise),
}


@cache
def schema(kind: str) -> Schema:
    """The JSON Schema of the files of one kind; the keys of run configs are in `SHARED`, next to it."""
    found = MAKERS[kind]()
    top, own = found if isinstance(found, tuple) else (found, {})
    return _with_shared({"$schema": DRAFT, **top, **({"definitions": own} if own else {})}, {*own})


@cache
def shared() -> Schema:
    """The keys of run configs and of evaluations, to which other schemas refer."""
    return {"$schema": DRAFT, "definitions": runs.definitions()}


def written_schemas() -> dict[Path, str]:
    """What each file of configs/schema holds."""
    schemas = {f"{kind}.json": schema(kind) for kind in MAKERS} | {SHARED: shared()}
    return {CONFIGS / "schema" / name: f"{json.dumps(found, indent=1)}\n" for name, found in schemas.items()}


def named_schemas() -> dict[Path, str]:
    """What each config file holds once its first line names its schema."""
    return {path: _with_name(path, kind) for path, kind in config_files()}


def config_files() -> Iterator[tuple[Path, str]]:
    """Every config file that has a schema, and the kind of it."""
    for folder, kind in FOLDERS.items():
        yield from ((path, kind) for path in sorted((CONFIGS / folder).glob("*.yaml")))


def write_schemas() -> list[Path]:
    """Bring schemas and first lines up to date; returns the files that were changed."""
    wanted = written_schemas() | named_schemas()
    changed = outdated(wanted)
    for path in changed:
        path.parent.mkdir(exist_ok=True)
        write_text(path, wanted[path])
    return changed


def outdated(wanted: dict[Path, str]) -> list[Path]:
    return [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def _with_name(path: Path, kind: str) -> str:
    text = NAMED.sub("", path.read_text(encoding="utf-8"), count=1)
    return f"# yaml-language-server: $schema=../schema/{kind}.json\n{text}"


def _of_class(model: Any) -> tuple[Schema, dict[str, Schema]]:
    found, definitions = schemas_of([model])
    return definitions.pop(found[model]["$ref"].rpartition("/")[2]), definitions


def _expected() -> tuple[Schema, dict[str, Schema]]:
    """A row may have no numbers: null."""
    top, definitions = _of_class(Expected)
    rows = top["properties"]["rows"]
    rows["additionalProperties"] = {"anyOf": [rows["additionalProperties"], {"type": "null"}]}
    return top, definitions


def _with_shared(found: Schema, own: set[str]) -> Schema:
    """With references to what is not in the schema itself leading to the file that has it."""

    def place(reference: re.Match) -> str:
        return reference[0] if reference[1] in own else reference[0].replace("#", f"{SHARED}#")

    return json.loads(REFERENCE.sub(place, json.dumps(found)))
