"""What a drawing depends on beside the results that it shows."""

import functools

from pipeline.config import fingerprint
from pipeline.source import PACKAGE, digest_of
from pipeline.study.entries import Graph

DRAWING = PACKAGE / "report"


def table_fingerprint(graph: Graph, table_id: str) -> str:
    """Columns, rows, expected values, tolerances, the scale's note, and the code that draws."""
    table = graph.table(table_id).model_dump(mode="json")
    return fingerprint([table, graph.note, graph.comparable, _drawing_code()], 12)


def claims_fingerprint(graph: Graph, study: str) -> str:
    """The claims of a study, what seeds do at this scale, and the code that judges them."""
    claims = {key: claim.model_dump(mode="json") for key, claim in graph.claims.get(study, {}).items()}
    judging = [PACKAGE / "study" / f"{name}.py" for name in ("claims", "formula", "noise")]
    code = digest_of([*judging, DRAWING / "tables.py", DRAWING / "seed_noise.py"])
    return fingerprint([claims, _noise(graph), code], 12)


def report_fingerprint(graph: Graph, rows: str) -> str:
    """The runs' labels and studies, which the page shows beside what its input files hold, and code and templates."""
    labels = {name: [run.label, run.studies] for name, run in graph.runs.items()}
    return fingerprint([labels, graph.selected(rows), len(graph.tables), _noise(graph), _drawing_code()], 12)


def _noise(graph: Graph) -> dict[str, list[dict]]:
    return {kind: [each.model_dump() for each in values] for kind, values in graph.noise.items()}


@functools.cache
def _drawing_code() -> str:
    """Modules, templates and style sheets of the report."""
    return digest_of(path for path in DRAWING.iterdir() if path.suffix in (".py", ".j2", ".css"))
