"""Names of the files that the rules make, as below results/<scale>, and of what people type for them.

  data/<data>/manifest.json, runs/<run>/train.json, evals/<job>.json, tables|figures/<rows>/<table>.json,
  tables/<rows>/<study>.claims.json, report/<rows>.html, report/<study>.html

Each drawing (table, figure, list of claims, report) has a record of what it was drawn from beside it: *.made.json.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.core.naming import PLAIN_NAME
from pipeline.data.store.manifest import MANIFEST
from pipeline.results import drawn_in
from pipeline.study.resolve.entries import Graph
from pipeline.study.scales import DEFAULT
from pipeline.study.targets import ROWS, rows_and_study, target_name


def data_file(name: str) -> str:
    return f"data/{name}/{MANIFEST}"


def run_file(name: str) -> str:
    return f"runs/{name}/train.json"


def job_file(name: str) -> str:
    return f"evals/{name}.json"


def table_file(table: str, rows: str) -> str:
    return f"{drawn_in(table)}/{rows}/{table}.json"


def claims_file(study: str, rows: str) -> str:
    return f"tables/{rows}/{study}.claims.json"


def report_file(name: str) -> str:
    """The report `headline` or `all` of every study, or a study's own, which has its name."""
    return f"report/{name}.html"


def report_inputs(graph: Graph, report: str) -> list[str]:
    """The tables and claims that a report is made from."""
    rows, of_study = rows_and_study(report)
    tables = [table_file(table, rows) for table in graph.selected(rows, of_study)]
    return [*tables, *(claims_file(study, rows) for study in ([of_study] if of_study else graph.studies(rows)))]


def drawing_record(drawing: str) -> str:
    """The record of a drawing, beside it."""
    path = Path(drawing)
    return str(path.with_name(f"{path.stem}.made.json"))


KINDS_OF_FILES = re.compile(
    rf"data/[^/]+/manifest\.json|runs/[^/]+/train\.json|evals/[^/]+\.json|report/{PLAIN_NAME}\.html"
    r"|tables/(headline|all)/[^/]+\.json|figures/(headline|all)/[^/]+\.json"
)


def is_output(file: str) -> bool:
    """Whether some rule makes a file of this name."""
    return KINDS_OF_FILES.fullmatch(file) is not None and not file.endswith(".made.json")


def files_of_targets(graph: Graph) -> dict[str, list[str]]:
    """What people type -> the files behind it."""
    found = {rows: [report_file(rows)] for rows in ROWS}
    if graph.scale == DEFAULT:
        found["demo"] = found["headline"]
    for table in graph.tables:
        found[target_name(table)] = [table_file(table, "all")]
    for study in graph.studies():
        tables = [table_file(table, "all") for table in graph.tables if graph.tables[table].study == study]
        found[study] = [*tables, claims_file(study, "all"), report_file(study)]
    return found


def drawings(graph: Graph) -> Iterator[str]:
    """Every table, figure, list of claims and report that this scale can have."""
    for rows in ROWS:
        yield from (table_file(table, rows) for table in graph.selected(rows))
        yield from (claims_file(study, rows) for study in graph.studies(rows))
        yield report_file(rows)
    yield from map(report_file, graph.studies())
