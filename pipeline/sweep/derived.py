"""Studies that a command makes from another one, such as sweeps: ordinary files of configs/study, made for one scale.

The name ends in a fingerprint of the content, so another change is another study with tables of its own, and no file is
ever overwritten. A derived study has no part in `make demo`, no claims and no numbers of a paper.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from pipeline.core.config import CONFIGS, dotted, fingerprint, leaves, merge, names, nearest, read_yaml, shown
from pipeline.core.errors import ConfigError
from pipeline.core.files import write_text
from pipeline.study.expand import expand
from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.graph import build_graph, load_graph
from pipeline.study.study_file import LINE, StudyFile, read_study
from pipeline.study.targets import RowSelection, tables_of, target_name

ABOUT = "An ordinary study. To forget its results, delete this file, then run `python -m pipeline clean`."
NAME_LENGTH = 48  # of the part of a name that people read
NOT_COPIED = ("claims", "headline", "headline_at", "overview", "scales", "derived_from")  # what is of the parent alone
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True)
class DerivedStudy:
    """A study on its way into a file; `heading` becomes the comment above it."""

    name: str
    parent: str
    content: dict[str, Any]
    heading: str
    option_of: Callable[[str], tuple[str, str]]  # a place in the file, with a problem -> option that wrote it, problem

    @property
    def path(self) -> Path:
        return CONFIGS / "study" / f"{self.name}.yaml"

    @cached_property
    def text(self) -> str:
        comment = "".join(f"# {line}\n" for line in self.heading.splitlines())
        options: dict[str, Any] = {"sort_keys": False, "default_flow_style": None, "width": 120}
        return comment + yaml.dump(self.content, Dumper=_WithoutAliases, **options)

    @property
    def is_written(self) -> bool:
        """Whether its file is there; one of this name with another content is an error."""
        if not self.path.exists():
            return False
        if read_yaml(self.path) != self.content:
            raise ConfigError(
                f"{shown(self.path)} exists with different content; rename it, delete it, or choose another name"
            )
        return True

    def graph(self, scale: str) -> Graph:
        """The graph with this study, whether or not it is written yet; its mistakes are named by their options."""
        if self.is_written:
            return load_graph(scale)
        try:
            return build_graph(scale, unsaved=StudyFile(self.path, expand(self.content), self.text))
        except ConfigError as error:
            raise ConfigError("\n".join(dict.fromkeys(map(self._in_options, str(error).splitlines())))) from None

    def _in_options(self, line: str) -> str:
        """A line of an error that names the option of the command, because the study's file is not written yet."""
        before, file, rest = line.partition(f"{shown(self.path)}: ")
        if not file:
            return line
        of_parent = shown(CONFIGS / "study" / f"{self.parent}.yaml")
        rest = LINE.sub("", rest).replace(shown(self.path), of_parent)
        option, problem = self.option_of(rest)
        if option:
            # A rule between keys of several files begins with another file, and this one comes last.
            return f"{option}: {before.rpartition('; ')[0] if before else problem}"
        # A key that the parent states contradicts one of the option.
        if match := re.search(r"; [\w.]+ is in \S+: (\S+)$", rest):
            option, _ = self.option_of(f"{match[1]}: ")
            place, _, problem = rest[: match.start()].partition(": ")
        return f"{option}: {problem}; change that, too ({of_parent}: {place})" if option else line

    def write(self, scale: str) -> None:
        """Write its file and the graph with it, which every job reads."""
        if not self.is_written:
            write_text(self.path, self.text)
            load_graph(scale)

    @property
    def notice(self) -> str:
        return f"{self.content['title']}: study {self.name}, {shown(self.path)}"

    def target(self, typed: str) -> str:
        """What a target of its parent is called here: mjp_table4 -> mjp_epochs_2_3fa9c1d2_table4."""
        return f"{self.name}{typed.removeprefix(self.parent)}"

    def redirect(self, files: dict[str, list[str]], graph: Graph) -> dict[str, list[str]]:
        """What people type -> files, with those of this study behind the targets of its parent."""
        own = [target_name(table) for table, entry in graph.tables.items() if entry.study == self.parent]
        here = [name for name in [self.parent, *own] if self.target(name) in files]
        return {**files, **{name: files[self.target(name)] for name in here}}


class _WithoutAliases(yaml.SafeDumper):
    """Writes a value out in each place where it is used."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def changed_study(graph: Graph, targets: list[str], change: Any) -> DerivedStudy:
    """A copy of the study of these targets in which every run has other keys, for `--config set=...`.

    Where the targets are tables, it has no others: a key may not fit the runs of all tables of a study.
    """
    parent = _only_study(graph, targets)
    if not isinstance(change, dict) or not change:
        raise ConfigError(f"--config set={change}: expected keys of a run, such as set='{{optim: {{epochs: 2}}}}'")
    change = typed(change)
    raw = read_study_file(parent) if parent in targets else _part_of(parent, tables_of(graph, targets))
    words = [f"{dotted(place)} {value}" for place, value in leaves(change)]
    kept = {key: value for key, value in raw.items() if key not in NOT_COPIED}
    content = {
        **kept,
        "title": f"{raw.get('title', parent)}, with {', '.join(words)}",
        "headline": {},
        "scales": [graph.scale],
        "derived_from": parent,
        "set": merge(raw.get("set", {}), change),
    }
    heading = f"{parent} with {', '.join(words)}, made by `snakemake {' '.join(targets)} --config set=...`.\n{ABOUT}"
    short = [f"{place[-1]}_{value}" for place, value in leaves(change)]
    return DerivedStudy(derived_name([parent, *short], content), parent, content, heading, _of_set)


def _part_of(parent: str, chosen: Iterable[RowSelection]) -> dict[str, Any]:
    """A study, written out, with these tables and figures alone and the runs behind them."""
    written = read_study(CONFIGS / "study" / f"{parent}.yaml")
    shown = {each.table.partition(".")[2] for each in chosen}
    kept = {"tables": shown, "figures": shown, "runs": written.parse().runs_behind(shown)}
    return {
        key: {name: entry for name, entry in value.items() if name in kept[key]} if key in kept else value
        for key, value in written.expanded.content.items()
    }


def _of_set(text: str) -> tuple[str, str]:
    return ("--config set", text.removeprefix("set").removeprefix(": ")) if re.match(r"set\b", text) else ("", "")


def _only_study(graph: Graph, targets: list[str]) -> str:
    """The study that all targets are of."""
    whole = [target for target in targets or ["all"] if target in ("all", "headline", "demo")]
    files = [target for target in targets if "/" in target]
    found = [] if whole or files else sorted({graph.tables[each.table].study for each in tables_of(graph, targets)})
    if len(found) != 1:
        raise ConfigError(
            f"--config set=... changes the runs of one study, and the targets are {', '.join(targets) or 'all'}; name "
            f"one study, or tables and figures of it: {', '.join(graph.studies())}"
        )
    return found[0]


def read_study_file(name: str) -> dict[str, Any]:
    known = names(CONFIGS / "study")
    if name not in known:
        raise ConfigError(f"no study {name!r}; {nearest(name, known)}")
    return read_yaml(CONFIGS / "study" / f"{name}.yaml")


def derived_name(parts: list[str], content: dict[str, Any]) -> str:
    """Words for people, then the fingerprint of the content."""
    words = re.sub(r"[^a-z0-9]+", "_", "_".join(parts).lower()).strip("_")[:NAME_LENGTH].rstrip("_")
    return f"{words}_{fingerprint(content)}"


def typed(value: Any) -> Any:
    """Texts from a command line as YAML reads them, and 1e-4, which YAML takes for text, as a number."""
    if isinstance(value, dict):
        return {key: typed(below) for key, below in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    if not isinstance(value, str):
        return value
    if NUMBER.fullmatch(value):
        return int(value) if re.fullmatch(r"[-+]?\d+", value) else float(value)
    try:
        found = yaml.safe_load(value)
    except yaml.YAMLError:
        return value
    return found if found is None or isinstance(found, bool) else value
