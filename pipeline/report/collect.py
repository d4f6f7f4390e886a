"""What the report and the summary are made of: tables, claims and runs, from the results of one scale as they are now.

Tables are filled here again, not read as they were drawn: whatever is finished shows. A stale number shows, too, with a
mark.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from pipeline.core.errors import DataError
from pipeline.freshness.remake import Freshness
from pipeline.report.records import EvaluationSummary, FilledTable, JudgedStudy, RunSummary
from pipeline.report.site.here import run_here
from pipeline.report.tables.fill import fill_table, judge_tables
from pipeline.results import RunFolder
from pipeline.results.records import EvalResult, TrainRecord, read_record
from pipeline.study.resolve.entries import Graph, StudyEntry


class Content(NamedTuple):
    tables: list[FilledTable]
    claims: list[JudgedStudy]
    runs: list[RunSummary]
    evaluations: Sequence[EvaluationSummary] = ()
    stories: Mapping[str, StudyEntry] = MappingProxyType({})


def collect(graph: Graph, selection: str, freshness: Freshness | None = None, study: str = "") -> Content:
    """Everything that a report shows of a selection of rows (of one study)."""
    tables, claims = collect_tables(graph, selection, freshness, study)
    rows = [row for key in graph.selected(selection, study) for row in graph.rows(key, selection).values()]
    sources = dict.fromkeys(source for row in rows for source in row.sources())
    evaluations = [source.split("/")[1] for source in sources if source.startswith("evals/")]
    wanted = graph.with_inits([*(run for row in rows for run in row.run_names()), *_chosen_with(graph, evaluations)])
    done = [name for name in graph.runs if name in wanted and graph.results.run(name).done.exists()]
    runs = [_run(graph, name, study) for name in done]
    finished = filter(None, (_evaluation(graph, name) for name in evaluations))
    return Content(tables, claims, runs, [*finished], graph.stories)


def for_others(content: Content) -> Content:
    """The same without facts of this machine, for readers elsewhere; `content` stays as it is."""
    tables = deepcopy(content.tables)
    for cell in [cell for table in tables for _, _, cell in table.cells() if cell.provenance]:
        cell.provenance = public_facts(cell.provenance or {})
    runs = [run.model_copy(update={"provenance": public_facts(run.provenance)}) for run in content.runs]
    evaluations = [
        each.model_copy(update={"provenance": public_facts(each.provenance)}) for each in content.evaluations
    ]
    return content._replace(tables=tables, runs=runs, evaluations=evaluations)


def public_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Provenance without what was typed, which the run's name says as well, and without folders of this machine."""
    return {name: _without_folders(value) for name, value in facts.items() if name != "command"}


def _without_folders(value: Any) -> Any:
    """Results from their folder on; of other files on this machine, the name."""
    if isinstance(value, dict):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    if isinstance(value, str) and value.startswith("/"):
        _, found, below = value.partition("/results/")
        return f"results/{below}" if found else Path(value).name
    return value


def collect_tables(
    graph: Graph, selection: str, freshness: Freshness | None = None, study: str = ""
) -> tuple[list[FilledTable], list[JudgedStudy]]:
    """Tables and claims (of one study); with `freshness`, cells say whether their results are stale (`fill_table`)."""
    judged_on = {each: graph.judged_on(each, selection) for each in ([study] if study else graph.studies(selection))}
    shown = graph.selected(selection, study)
    # Claims of a study may name tables of others, which its own report does not show.
    keys = dict.fromkeys([*shown, *(key for named in judged_on.values() for key in named)])
    filled = {key: fill_table(graph, key, selection, freshness) for key in keys}
    claims = [judge_tables(graph, each, [filled[key] for key in named]) for each, named in judged_on.items()]
    return [filled[key] for key in shown], claims


def _chosen_with(graph: Graph, evaluations: Iterable[str]) -> list[str]:
    """Runs that chose the samples of a data set that was made here."""
    data = dict.fromkeys(name for each in evaluations for name in graph.data_behind(each))
    return [run for name in data if (run := graph.data.get(name, {}).get("reference"))]


def _run(graph: Graph, name: str, study: str) -> RunSummary:
    """The report of one study says nothing of other studies that have the run, too."""
    folder = graph.results.run(name)
    record = read_record(folder.done, TrainRecord)
    return RunSummary(
        name=name,
        label=graph.runs[name].label,
        here=run_here(graph, name),
        studies=[study] if study else graph.runs[name].studies,
        metrics_file=str(folder.metrics) if folder.metrics.exists() else None,
        summary={**record.metrics, "wall_s": record.provenance["wall_s"]},
        provenance=record.provenance,
        config=_config(graph, folder),
        init=graph.runs[name].init,
        files={_below_results(graph, folder.folder / file): sha256 for file, sha256 in record.files.items()},
    )


def _config(graph: Graph, folder: RunFolder) -> str:
    """As training wrote it; of a run that was published without it, as the configs have it, with that fingerprint."""
    if folder.config.exists():
        return folder.config.read_text()
    return yaml.safe_dump(graph.runs[folder.name].config, sort_keys=False)


def _evaluation(graph: Graph, name: str) -> EvaluationSummary | None:
    """None while it is not finished; a damaged one is a reason in the cells that need it."""
    folder, entry = graph.results.evaluation(name), graph.evals[name]
    with suppress(DataError):
        result = read_record(folder.result, EvalResult)
        return EvaluationSummary(
            name=name,
            file=_below_results(graph, folder.result),
            label=entry.fragment,
            subjects=result.subjects,
            config=entry.config,
            metrics=result.metrics,
            errors=result.errors,
            reasons=result.reasons,
            files={_below_results(graph, folder.folder / file): sha256 for file, sha256 in result.files.items()},
            provenance={**result.inputs.model_dump(), **result.provenance},
        )
    return None


def _below_results(graph: Graph, path: Path) -> str:
    """A path as the report shows it, wherever the project lies."""
    return str(Path("results") / graph.scale / path.relative_to(graph.results.folder))
