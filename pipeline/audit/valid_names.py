"""Every name and key that configs may use, for the errors that show only the nearest of many."""

import textwrap
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pydantic import BaseModel

from pipeline.core.config import CONFIGS, names, nearest
from pipeline.core.errors import ConfigError
from pipeline.core.registry import EVALS, KINDS, METHODS, TASKS, Registry
from pipeline.study.spec import Claim, Column, Figure, Row, RunSpec, Scale, Study, Table
from pipeline.study.study_file import read_study
from pipeline.study.targets import target_name

FOLDERS = ("study", "scale", "method", "model", "data", "eval", "recipe", "site")
ENTRIES: dict[str, type[BaseModel]] = {
    **{"study": Study, "run": RunSpec, "table": Table, "figure": Figure, "column": Column, "row": Row},
    **{"claim": Claim, "scale": Scale},
}
WIDTH = 120


def valid_names(word: str = "") -> str:
    """Names under their headings; with a word, only under headings that have it."""
    found = [(heading, known) for heading, known in _sections() if word in heading and known]
    if not found:
        headings = [heading for heading, _ in _sections()]
        raise ConfigError(f"--names {word}: no heading contains this word; {nearest(word, headings)}")
    return "\n".join(_paragraph(heading, known) for heading, known in found)


def _paragraph(heading: str, known: list[str]) -> str:
    text = ", ".join(known)
    return textwrap.fill(
        f"{heading}: {text}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _sections() -> Iterator[tuple[str, list[str]]]:
    for folder in FOLDERS:
        yield f"configs/{folder}", names(CONFIGS / folder)
    yield "tasks", TASKS.names()
    yield "kinds of data", KINDS.names()
    yield from _keys()
    for study in names(CONFIGS / "study"):
        with suppress(ConfigError):  # `check` reports it
            yield from _of_study(study, read_study(CONFIGS / "study" / f"{study}.yaml").expanded.content)


def _keys() -> Iterator[tuple[str, list[str]]]:
    from pipeline.engine.optim import OptimConfig
    from pipeline.models.encoder import ModelConfig

    yield "keys of optim", _fields(OptimConfig)
    yield "keys of model", _fields(ModelConfig)
    yield from _keys_of("method", METHODS)
    yield from _keys_of("data of kind", KINDS)
    yield from _keys_of("evaluation", EVALS)
    for what, model in ENTRIES.items():
        yield f"keys of a {what}", _fields(model)


def _keys_of(what: str, registry: Registry) -> Iterator[tuple[str, list[str]]]:
    for name in registry.names():
        with suppress(ConfigError):  # `check` reports it
            yield f"keys of {what} {name}", _fields(registry.get(name).Config)


def _fields(model: type[BaseModel]) -> list[str]:
    return sorted([*model.model_fields, *getattr(model, "short_forms", ())])


def _of_study(study: str, content: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Runs, targets, rows and columns of a study, as far as its file has them."""
    yield f"runs of {study}", _keys_in(content.get("runs"))
    tables = {key: table for part in ("tables", "figures") for key, table in _map(content.get(part)).items()}
    yield f"targets of {study}", [study, *(target_name(f"{study}.{key}") for key in tables if key[:1] in "tf")]
    for key, table in tables.items():
        yield f"rows of {study}.{key}", _keys_in(_map(table).get("rows"))
        yield f"columns of {study}.{key}", _keys_in(_map(table).get("columns"))


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _keys_in(value: Any) -> list[str]:
    return [str(key) for key in _map(value)]
