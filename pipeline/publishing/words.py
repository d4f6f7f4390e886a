"""A publication in words: its README, and the part of the project's README that shows it."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pipeline.publishing.from_metrics import OUTSIDE
from pipeline.publishing.provenance import provenance_sentences
from pipeline.report.records import FilledTable
from pipeline.report.site.findings import VERDICTS, ClaimInWords, in_words, value_of
from pipeline.report.tables.draw import few_seeds
from pipeline.report.words import number, sentences
from pipeline.study.claims.decide import JudgedClaim
from pipeline.study.resolve.entries import Graph
from pipeline.study.targets import full_command

PICTURE = "verdicts.svg"
ARROWS = {"up": "\u2191", "down": "\u2193", "none": ""}
NOT_EXAMINED = "Nothing is written down about it yet (`remarks` of the claim)."


class Publication(NamedTuple):
    """What both texts are made of."""

    graph: Graph
    tables: list[FilledTable]
    claims: dict[str, list[JudgedClaim]]
    provenance: dict[str, Any]

    @property
    def is_partial(self) -> bool:
        """Whether results of the headline are missing."""
        return bool(self.provenance["num_missing"])

    @property
    def in_words(self) -> dict[str, list[ClaimInWords]]:
        """The claims of each study; commands name their scale whatever the configs say, now or later."""
        tables, scale = self.tables, self.graph.scale
        return {study: in_words(found, tables, scale, full_command) for study, found in self.claims.items() if found}


def folder_text(publication: Publication, others: Iterable[str]) -> str:
    """README.md of a published folder; `others` are sentences about its files."""
    graph = publication.graph
    lines = [f"# Results at scale {graph.scale}", "", graph.note, "", *provenance_sentences(publication.provenance), ""]
    lines += [f"![Claims, and our numbers against the papers']({PICTURE})", "", *verdict_table(publication), ""]
    lines += [*overview_tables(publication), *number_table(publication), ""]
    lines += [_missing(publication.tables), "", "## Claims that do not hold, or have no verdict yet", ""]
    for study, found in publication.in_words.items():
        doubtful = [one for one in found if one.claim.verdict != "true"]
        not_run = [one for one in doubtful if not one.numbers]
        lines += [f"### {_title(graph, study)}", ""] if doubtful else []
        for one in [one for one in doubtful if one.numbers]:
            lines += [*_claim(graph, study, one), ""]
        lines += ["Of these, no row was run here:", "", *map(_not_run, not_run), ""] if not_run else []
    lines += ["## Files", "", *others, ""]
    return "\n".join(lines)


def _not_run(one: ClaimInWords) -> str:
    return f"- {one.claim.id}: {one.claim.statement} ({', '.join(f'`{command}`' for command in one.commands)})"


def _title(graph: Graph, study: str) -> str:
    return graph.stories[study].title if study in graph.stories else study


def _missing(tables: list[FilledTable]) -> str:
    cells = [cell for table in tables for row, _, cell in table.cells() if row.selected]
    asked = [cell for cell in cells if cell.reason != OUTSIDE]
    empty = sum(cell.ours is None for cell in asked)
    found = f"{len(asked) - empty} of {len(asked)} cells of the headline have a number"
    return f"{found}; `tables.md` says of each other one why not. {few_seeds(tables)}".rstrip()


def _claim(graph: Graph, study: str, one: ClaimInWords) -> Iterator[str]:
    claim = one.claim
    remark = graph.claims[study][claim.id].remarks.get(graph.scale, NOT_EXAMINED)
    yield f"**{claim.id}: {one.verdict}**"
    yield ""
    yield f"- Expected: {claim.statement}."
    no_number = f"no number yet in {'; '.join(one.missing)}" if one.missing else claim.reason
    yield f"- Found: {'; '.join([*one.numbers, (one.so_far or no_number).removesuffix('.')])}."
    if claim.verdict == "not run yet":
        yield f"- Needed: {', '.join(f'`{command}`' for command in one.commands) or claim.reason}."
    else:
        yield f"- May come from: {remark}"


def verdict_table(publication: Publication) -> list[str]:
    """One line a study: how many claims have which verdict, and its main claim."""
    lines = [f"| study | {' | '.join(VERDICTS.values())} | main claim |", "|---" * (len(VERDICTS) + 2) + "|"]
    for study, found in publication.in_words.items():
        counts = [sum(one.claim.verdict == verdict for one in found) for verdict in VERDICTS]
        main = next((one for one in found if one.claim.id == publication.graph.stories[study].main_claim), None)
        words = f"{main.claim.statement}: **{main.verdict}**" if main else ""
        lines.append(f"| {_title(publication.graph, study)} | {' | '.join(map(str, counts))} | {_plain(words)} |")
    return lines


def overview_tables(publication: Publication, mostly_filled: bool = False) -> list[str]:
    """The tables that studies call their overview: a column for each row of the study, a line for each number.

    `mostly_filled` leaves out lines in which half of the rows or fewer have a number.
    """
    chosen = {story.overview for story in publication.graph.stories.values()}
    tables = [table for table in publication.tables if table.id in chosen]
    return [line for table in tables for line in _turned(table, mostly_filled)]


def _turned(table: FilledTable, mostly_filled: bool) -> Iterator[str]:
    """The table with its columns as lines, without rows and columns that have no number."""
    cells = {(row.id, column.id): cell for row, column, cell in table.cells() if row.selected and cell.ours is not None}
    rows = [row for row in table.rows if row.id in {row_id for row_id, _ in cells}]
    if not rows:
        return
    yield f"| {_plain(table.name)} | {' | '.join(_plain(row.name) for row in rows)} |"
    yield "|---" * (len(rows) + 1) + "|"
    for column in [column for column in table.columns if column.id in {key for _, key in cells}]:
        found = [cells.get((row.id, column.id)) for row in rows]
        if not mostly_filled or sum(cell is not None for cell in found) > len(rows) / 2:
            texts = [value_of(cell, column.decimals) if cell else "n/a" for cell in found]
            yield f"| {_plain(column.name)} {ARROWS[column.direction]} | {' | '.join(texts)} |"
    yield ""


def number_table(publication: Publication) -> list[str]:
    """The numbers of one claim of each study: its main one, or else the first that has any."""
    lines: dict[str, str] = {}  # what is the same run at this scale is shown once
    for study, found in publication.in_words.items():
        named = {*_cells(found, publication.graph.stories[study].main_claim)}
        title = _title(publication.graph, study).partition(":")[0]
        for table in publication.tables:
            for row, column, cell in table.cells():
                if f"{row.id}:{column.id}" in named and cell.ours is not None:
                    what = f"{table.label}, {row.name}: {column.name}"
                    ours = f"| {title} | {_plain(what)} | {value_of(cell, column.decimals)} |"
                    lines.setdefault(ours, number(cell.paper, column.decimals) if cell.paper is not None else "")
    head = ["| study | what | ours | the paper's |", "|---|---|---|---|"]
    return [*head, *(f"{ours} {paper} |" for ours, paper in lines.items())] if lines else []


def _cells(found: list[ClaimInWords], main: str) -> Iterator[str]:
    """Cells of the main claim, or else of the first claim that has numbers, whatever its verdict."""
    order = sorted((one.claim for one in found if one.numbers), key=lambda claim: (claim.id != main, claim.id))
    return (cell for claim in order[:1] for predicate in claim.predicates for cell in predicate.cells)


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def about(publication: Publication, folder: str) -> str:
    """What a published scale is, as one paragraph of the project's README."""
    graph = publication.graph
    texts = [f"**Scale {graph.scale}.**", *sentences(graph.note)[:1]]
    texts += ["Its numbers cannot be compared with the papers', which are shown for orientation."] * (
        not graph.comparable
    )
    texts += provenance_sentences(publication.provenance)[:2]
    texts.append(f"[{folder}]({folder}/README.md) lists every claim, with the reason for its verdict.")
    return " ".join(texts)


def numbers(publication: Publication) -> list[str]:
    """The numbers that the project's README shows; while results are missing, only those that most models have."""
    return overview_tables(publication, publication.is_partial) or [*number_table(publication), ""]


def verdicts(publication: Publication, folder: str) -> list[str]:
    """The picture of all claims, and their number by verdict."""
    name = publication.graph.scale
    return [
        f"![Claims at scale {name}, and our numbers against the papers']({folder}/{PICTURE})",
        "",
        *verdict_table(publication),
    ]
