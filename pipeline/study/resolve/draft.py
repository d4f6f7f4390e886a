"""A study on its way into the graph: what its files say at one scale, and the names of the runs resolved so far."""

from collections.abc import Set as AbstractSet
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.core.config import CONFIGS, Layers, names, nearest, read_yaml_once, shown
from pipeline.core.errors import ConfigError
from pipeline.study.claims.formula import matching_names
from pipeline.study.resolve.entries import Graph
from pipeline.study.spec import Expected, Scale, Study, Table

if TYPE_CHECKING:
    from pipeline.engine.run import RunConfig
    from pipeline.study.resolve.buildable import ModelBuilder


@dataclass
class Draft:
    graph: Graph
    scale: Scale
    name: str
    study: Study
    expected: Expected
    builder: "ModelBuilder | None" = None  # builds each model, if it is to be checked
    runs: dict[str, list[str]] = field(default_factory=dict)  # key in the study -> run names, one per seed
    parsed: "dict[str, RunConfig]" = field(default_factory=dict)  # by run name
    sources: dict[str, Any] = field(default_factory=dict)  # what stands behind columns, by the evaluation they name
    layers: dict[str, Layers] = field(default_factory=dict)  # what each run was merged from, by its name
    checked: set[str] = field(default_factory=set)  # what the scale replaces, and was looked at

    @cached_property
    def headline_runs(self) -> AbstractSet[str]:
        """Keys of the runs behind headline rows; `study` must be the one at this scale."""
        return self.study.headline_runs(self.graph.scale)

    @cached_property
    def file(self) -> str:
        return shown(CONFIGS / "study" / f"{self.name}.yaml")

    def file_of_eval(self, name: str) -> str:
        """The file of configs/eval behind an evaluation that a column names."""
        own = self.study.evals.get(name)
        return own.eval if own else name

    @cached_property
    def expected_file(self) -> str:
        return shown(CONFIGS / "expected" / f"{self.name}.yaml")

    @cached_property
    def scale_file(self) -> str:
        return shown(CONFIGS / "scale" / f"{self.graph.scale}.yaml")


def check_names(study: Study, file: str) -> None:
    """Every scale, table and row that a study names must exist; a mistyped one would silently run nothing."""
    scales = fragment_names("scale")
    named = [*((f"scales.{at}", scale) for at, scale in enumerate(study.scales))]
    named += [(f"headline_at.{scale}", scale) for scale in study.headline_at]
    unknown = [(place, scale) for place, scale in named if scale not in scales]
    lines = [f"{file}: {place}: no scale {scale!r}; {nearest(scale, scales)}" for place, scale in unknown]
    headlines = {f"headline_at.{scale}": headline for scale, headline in study.headline_at.items()}
    for place, headline in {"headline": study.headline or {}, **headlines}.items():
        lines += _headline_problems(study, headline, f"{file}: {place}")
    if study.overview and study.overview not in study.tables:
        lines.append(f"{file}: overview: no table {study.overview!r}; {nearest(study.overview, study.tables)}")
    if lines:
        raise ConfigError("\n".join(lines))


def _headline_problems(study: Study, headline: dict[str, list[str]], where: str) -> list[str]:
    lines = []
    for key, rows in headline.items():
        if key not in study.all_tables:
            lines.append(f"{where}.{key}: no table or figure {key!r}; {nearest(key, study.all_tables)}")
            continue
        table = study.all_tables[key]
        for row, _, columns in (entry.partition(":") for entry in rows):
            if row not in table.rows:
                lines.append(f"{where}.{key}: no row {row!r}; {nearest(row, table.rows)}")
            elif columns:
                lines += _column_problems(columns, table, f"{where}.{key}: {row}")
    return lines


def _column_problems(pattern: str, table: Table, where: str) -> list[str]:
    try:
        matching_names(pattern, [*table.columns], f"{where}: no column")
    except ConfigError as error:
        return [str(error)]
    return []


def fragment_names(kind: str) -> list[str]:
    return names(CONFIGS / kind)


def fragment(kind: str, name: str, where: str) -> tuple[str, dict[str, Any]]:
    """A file of configs/<kind> and its content; `where` is the key that names it."""
    path = CONFIGS / kind / f"{name}.yaml"
    if not path.exists():
        raise ConfigError(f"{where}: no {kind} {name!r}; {nearest(name, fragment_names(kind))}")
    content = deepcopy(read_yaml_once(path))
    if kind in ("method", "model", "data") and kind not in content:
        raise ConfigError(f"{shown(path)}: {kind}: required, not given; the keys of a {kind} are below it")
    return shown(path), content
