"""What a drawing depends on beside the results that it shows."""

import functools

from pipeline.core.config import fingerprint
from pipeline.core.source import PACKAGE, digest_of
from pipeline.study.resolve.entries import Graph
from pipeline.study.targets import rows_and_study

DRAWING = PACKAGE / "report"


def table_fingerprint(graph: Graph, table_id: str) -> str:
    """Columns, rows, expected values, tolerances, the scale's note, what seeds do at it, and the code that draws."""
    table = graph.table(table_id).model_dump(mode="json")
    return fingerprint([table, graph.note, graph.comparable, graph.stand_ins, _noise(graph), _drawing_code()], 12)


def claims_fingerprint(graph: Graph, study: str) -> str:
    """The claims of a study, what seeds do at this scale, and the code that judges them."""
    claims = {key: claim.model_dump(mode="json") for key, claim in graph.claims.get(study, {}).items()}
    judging = [PACKAGE / "study/claims" / f"{name}.py" for name in ("decide", "formula", "noise")]
    code = digest_of([*judging, DRAWING / "tables/fill.py", DRAWING / "tables/seed_noise.py"])
    return fingerprint([claims, _noise(graph), code], 12)


def report_fingerprint(graph: Graph, report: str) -> str:
    """The runs' labels and studies, which the page shows beside what its input files hold, and code and templates."""
    rows, study = rows_and_study(report)
    runs = {name: run for name, run in graph.runs.items() if not study or study in run.studies}
    labels = {name: [run.label, "" if study else run.studies] for name, run in runs.items()}
    stories = {name: each.model_dump() for name, each in graph.stories.items() if study in ("", name)}
    shown = [labels, stories, graph.stand_ins, graph.selected(rows, study), "" if study else len(graph.tables)]
    return fingerprint([*shown, _noise(graph), _drawing_code()], 12)


def _noise(graph: Graph) -> dict[str, list[dict]]:
    return {kind: [each.model_dump() for each in values] for kind, values in graph.noise.items()}


@functools.cache
def _drawing_code() -> str:
    """Modules, templates and style sheets of the report."""
    return digest_of(path for path in DRAWING.rglob("*") if path.suffix in (".py", ".j2", ".css", ".js"))
