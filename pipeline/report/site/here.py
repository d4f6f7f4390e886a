"""Names for what really ran, where a label is the name of a paper's model, data set, eta or number of epochs.

At small scales one small ViT stands in for every ViT of the papers. A bar that is labelled ViT-L would then be a lie,
so the report shows what ran and writes the paper's name next to it.
"""

import re
from typing import Any

from pipeline.report.records import FilledTable
from pipeline.study.resolve.entries import Graph

# The epochs of the paper at the end of a label: MAE 1600; MP3, 100 + 150; 2,000 epochs.
EPOCHS = re.compile(r"(?:(.*[A-Za-z]\w*)[ ,]+)?(?:[\d,]+ epochs|\d+ \+ \d+)|(.*[^\W\d])[ ,]+\d{3,4}")
FINETUNED = " finetuned"
ETA = re.compile(r"(?<=\beta )\d+(?:\.\d+)?")  # MP3's mask_ratio, as in "trained with eta 0.75"


def name_what_ran(graph: Graph, table: FilledTable) -> None:
    """Fill in `here` of the table and of its rows and columns; labels of a study without a paper are the user's own."""
    if graph.comparable or not (table.has_paper or _has_paper(graph, table.study)):
        return
    ran = [name for row in table.rows for names in row.runs.values() for name in names]
    table.here = _changed(table.title, _with_eta(graph, in_words_of_scale(graph, table.title), ran))
    for column in table.columns:
        column.here = _changed(column.label, in_words_of_scale(graph, column.label))
    for row in table.rows:
        runs = [name for names in row.runs.values() for name in names]
        row.here = _changed(row.label, _name_of(graph, row.label, runs)) if row.selected else ""


def run_here(graph: Graph, name: str) -> str:
    """What a run is, where its label is the paper's name for something else; else empty."""
    label, studies = graph.runs[name].label, graph.runs[name].studies
    if graph.comparable or not any(_has_paper(graph, study) for study in studies):
        return ""
    return _changed(label, _name_of(graph, label, [name]))


def _name_of(graph: Graph, label: str, runs: list[str]) -> str:
    return _with_epochs(graph, _with_eta(graph, in_words_of_scale(graph, label), runs), runs)


def _has_paper(graph: Graph, study: str) -> bool:
    """Whether a paper has any number of a study; figures of pictures have none, but their study may."""
    rows = (row for table in graph.tables.values() if table.study == study for row in table.rows.values())
    return any(number is not None for row in rows for number in row.expected.values())


def in_words_of_scale(graph: Graph, text: str) -> str:
    """A text with the names of what runs at this scale instead of the papers' names."""
    if not graph.stand_ins:
        return text
    words_here = re.sub(_papers_names(graph), lambda found: graph.stand_ins[found[0]], text)
    return words_here[:1].upper() + words_here[1:] if words_here != text else text


def stand_ins_in(graph: Graph, text: str) -> dict[str, str]:
    """The papers' names in a text, in its order -> what runs at this scale instead."""
    names = re.findall(_papers_names(graph), text) if graph.stand_ins else []
    return {name: graph.stand_ins[name] for name in names}


def _papers_names(graph: Graph) -> str:
    words = sorted(graph.stand_ins, key=len, reverse=True)
    return rf"(?<![\w-])({'|'.join(map(re.escape, words))})(?![\w-])"


def _with_epochs(graph: Graph, label: str, runs: list[str]) -> str:
    """The label with the epochs that were trained, pretraining first, where it ends with those of the paper."""
    start, end = (label.removesuffix(FINETUNED), FINETUNED) if label.endswith(FINETUNED) else (label, "")
    found = EPOCHS.fullmatch(start)
    epochs = epochs_of(graph, runs)
    if not found or not epochs or " + " in (found[1] or ""):
        return label
    return ", ".join(filter(None, [f"{found[1] or found[2] or ''}{end}", epochs]))


def epochs_of(graph: Graph, runs: list[str]) -> str:
    """Such as `50 + 30 epochs`: of the run with the most trainings before it; empty if iterations are counted."""
    trained = max((_epochs(graph, run) for run in runs), key=len, default=[])
    return f"{' + '.join(f'{count:g}' for count in trained)} epochs" if trained else ""


def _epochs(graph: Graph, run: str) -> list[float]:
    """Epochs of a run and of those that it starts from, the first training first; none if iterations are counted."""
    return [epochs for each in reversed(_chain(graph, run)) if (epochs := each.get("optim", {}).get("epochs"))]


def _with_eta(graph: Graph, label: str, runs: list[str]) -> str:
    """The label with the eta that was trained with, where all runs have the same one."""
    if not ETA.search(label):
        return label
    configs = (each for run in runs for each in _chain(graph, run))
    etas = {config["method"]["mask_ratio"] for config in configs if "mask_ratio" in config.get("method", {})}
    if len(etas) != 1:
        return label
    eta = etas.pop()
    return ETA.sub(lambda found: found[0] if float(found[0]) == eta else f"{eta:g}", label)


def _chain(graph: Graph, run: str) -> list[dict[str, Any]]:
    """Configs of a run and of those that it starts from, the last training first."""
    entry = graph.runs[run]
    return [entry.config, *(_chain(graph, entry.init) if entry.init else [])]


def _changed(label: str, name: str) -> str:
    return "" if name == label else name
