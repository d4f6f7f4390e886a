"""A publication in words: its README, and the part of the project's README that shows it."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pipeline.publishing.from_metrics import OUTSIDE
from pipeline.publishing.provenance import provenance_sentences
from pipeline.report.records import Cell, FilledRow, FilledTable
from pipeline.report.site.findings import VERDICTS, ClaimInWords, in_words, value_of, verdict_counts
from pipeline.report.site.here import stand_ins_in
from pipeline.report.tables.draw import few_seeds
from pipeline.report.words import MISSING, PLUS_MINUS, counted, in_list, number
from pipeline.study.claims.decide import JudgedClaim, Verdict
from pipeline.study.resolve.entries import Graph
from pipeline.study.targets import full_command

PICTURE = "verdicts.svg"
ARROWS = {"up": "\u2191", "down": "\u2193", "none": ""}
NOT_RUN, NOT_APPLICABLE = "\u2014", MISSING
LEGEND = f"In tables, {NOT_RUN} means not run yet, and {NOT_APPLICABLE} that an evaluation does not apply."
NOT_EXAMINED = "not examined yet (`remarks` of the claim)"
PARTS: dict[str, tuple[Verdict, ...]] = {
    "Claims that do not hold": ("false",),
    "Claims within noise": ("within noise",),
    "Claims that hold": ("true",),
    "Claims without a verdict": ("not run yet", "not testable"),
}


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
    def has_unequal_seeds(self) -> bool:
        """Whether some of its numbers are over more seeds than others."""
        return len({cell.n for table in self.tables for _, _, cell in table.cells() if cell.ours is not None}) > 1

    @property
    def in_words(self) -> dict[str, list[ClaimInWords]]:
        """The claims of each study; commands name their scale whatever the configs say, now or later."""
        tables, scale = self.tables, self.graph.scale
        return {study: in_words(found, tables, scale, full_command) for study, found in self.claims.items() if found}


def folder_text(publication: Publication, others: Iterable[str]) -> str:
    """README.md of a published folder; `others` are sentences about its files."""
    graph, in_words = publication.graph, publication.in_words
    lines = [f"# Results at scale {graph.scale}", "", *_paragraphs(graph.note)]
    lines += [" ".join(provenance_sentences(publication.provenance)), ""]
    lines += [f"![{alt_text(publication)}]({PICTURE})", "", *verdict_table(publication), ""]
    lines += [*overview_tables(publication), *number_table(publication), ""]
    lines += [f"{errors_in_words(publication)} {LEGEND} {_missing(publication.tables)}", ""]
    for heading, verdicts in PARTS.items():
        parts = [_part(publication, study, found, verdicts) for study, found in in_words.items()]
        lines += [f"## {heading}", "", *itertools.chain(*parts)] if any(parts) else []
    lines += ["## Files", "", *others, ""]
    return "\n".join(lines)


def _paragraphs(note: str) -> Iterator[str]:
    for paragraph in filter(None, note.splitlines()):
        yield paragraph
        yield ""


def _part(publication: Publication, study: str, found: list[ClaimInWords], verdicts: tuple[Verdict, ...]) -> list[str]:
    """Claims of a study that have one of some verdicts: those with numbers in full, of the others a line each."""
    chosen = [one for one in found if one.claim.verdict in verdicts]
    measured = [one for one in chosen if one.numbers]
    others = [f"- {one.claim.id}: {one.claim.statement} ({_why_not(one)})" for one in chosen if not one.numbers]
    lines = [f"### {full_title(publication.graph, study)}", ""] if chosen else []
    for one in measured:
        lines += [*_claim(publication.graph, one), ""]
    return lines + (["No row of these was run here:", "", *others, ""] if others else [])


def _why_not(one: ClaimInWords) -> str:
    """What runs a claim without numbers, or why nothing does."""
    if one.claim.verdict == "not testable":
        return f"{one.verdict}, {one.claim.reason.partition(':')[0]}"
    return ", ".join(f"`{command}`" for command in one.commands) or one.claim.reason


def full_title(graph: Graph, study: str) -> str:
    return graph.stories[study].title if study in graph.stories else study


def title_of(graph: Graph, study: str) -> str:
    """The short one, such as MJP."""
    return full_title(graph, study).partition(":")[0]


def _missing(tables: list[FilledTable]) -> str:
    cells = [cell for table in tables for row, _, cell in table.cells() if row.selected]
    asked = [cell for cell in cells if cell.reason != OUTSIDE]
    empty = sum(cell.ours is None for cell in asked)
    found = f"{len(asked) - empty} of {len(asked)} cells of the headline have a number"
    return f"{found}; `tables.md` says of each other one why not. {few_seeds(tables)}".rstrip()


def _claim(graph: Graph, one: ClaimInWords) -> Iterator[str]:
    claim = one.claim
    yield f"**{claim.id}: {one.verdict}**"
    yield ""
    yield f"- Expected: {full_statement(graph, one)}."
    missing = [f"no number yet in {'; '.join(one.missing)}"] * bool(one.missing)
    is_final = claim.verdict != "not run yet"
    outcome = [claim.reason, *missing] if is_final else [one.so_far] if one.so_far else missing or [claim.reason]
    yield f"- Found: {'; '.join([*one.numbers, *outcome]).removesuffix('.').replace('+/-', PLUS_MINUS)}."
    if claim.verdict == "not run yet":
        yield f"- Needed: {', '.join(f'`{command}`' for command in one.commands) or claim.reason}."
    elif claim.verdict in ("false", "within noise"):
        yield f"- May come from: {claim.remark or NOT_EXAMINED}"
    elif claim.verdict == "true" and claim.remark:
        yield f"- Remark: {claim.remark}"


def here(graph: Graph, statement: str) -> str:
    """What ran instead of models and data that a claim of a paper names: ` (here: small ViT for ViT-B and ViT-L)`."""
    found = {} if graph.comparable else stand_ins_in(graph, statement)
    names: dict[str, list[str]] = {}
    for paper, ran in found.items():
        names.setdefault(ran, []).append(paper)
    parts = [f"{ran} for {in_list(papers)}" for ran, papers in names.items()]
    return f" (here: {', '.join(parts)})" if parts else ""


def counts_of(publication: Publication) -> list[str]:
    """Such as "7 hold" and "79 not run yet"; of all claims."""
    return verdict_counts(claim for found in publication.claims.values() for claim in found)


def alt_text(publication: Publication) -> str:
    return f"Claims at scale {publication.graph.scale}: {', '.join(counts_of(publication))}"


def verdict_table(publication: Publication) -> list[str]:
    """One line a study: how many claims have which verdict, and its main claim."""
    occurring = {claim.verdict for found in publication.claims.values() for claim in found}
    verdicts = {verdict: word for verdict, word in VERDICTS.items() if verdict in occurring}
    lines = [f"| study | {' | '.join(verdicts.values())} | main claim |", "|---" * (len(verdicts) + 2) + "|"]
    for study, found in publication.in_words.items():
        counts = [sum(one.claim.verdict == verdict for one in found) for verdict in verdicts]
        main = next((one for one in found if one.claim.id == publication.graph.stories[study].main_claim), None)
        words = f"{full_statement(publication.graph, main)}: **{main.verdict}**" if main else ""
        lines.append(
            f"| {full_title(publication.graph, study)} | {' | '.join(map(str, counts))} | {plain_cell(words)} |"
        )
    return lines


def full_statement(graph: Graph, one: ClaimInWords) -> str:
    return f"{one.claim.statement}{here(graph, one.claim.statement)}"


def overview(publication: Publication) -> list[FilledTable]:
    """The tables that studies call their overview."""
    chosen = {story.overview for story in publication.graph.stories.values()}
    return [table for table in publication.tables if table.id in chosen]


def overview_tables(publication: Publication, mostly_filled: bool = False, most: int | None = None) -> list[str]:
    """The overview: a column for each row of the study, a line for each number; of each table `most` lines.

    `mostly_filled` leaves out lines in which half of the rows or fewer have a number.
    """
    with_seeds = publication.has_unequal_seeds
    return [line for table in overview(publication) for line in _turned(table, mostly_filled, most, with_seeds)]


def _turned(table: FilledTable, mostly_filled: bool, most: int | None, with_seeds: bool) -> Iterator[str]:
    """The table with its columns as lines, without rows and columns that have no number."""
    cells = {(row.id, column.id): cell for row, column, cell in table.cells()}
    rows = measured_rows(table)
    lines = []
    for column in table.columns:
        found = [cells.get((row.id, column.id), Cell()) for row in rows]
        num_measured = sum(cell.ours is not None for cell in found)
        if num_measured > (len(rows) / 2 if mostly_filled else 0):
            texts = [_cell_text(cell, column.decimals, with_seeds) for cell in found]
            lines.append(f"| {plain_cell(column.name)} {ARROWS[column.direction]} | {' | '.join(texts)} |")
    if lines:
        yield f"| {plain_cell(table.name)} | {' | '.join(plain_cell(row.name) for row in rows)} |"
        yield "|---" * (len(rows) + 1) + "|"
        yield from lines[:most]
        yield ""
        if most is not None and len(lines) > most:
            yield f"The published folder has {counted(len(lines) - most, 'more line')} of this table."
            yield ""


def errors_in_words(publication: Publication) -> str:
    """What the errors of its numbers are."""
    cells = [cell for table in publication.tables for _, _, cell in table.cells() if cell.ours is not None]
    if any(cell.n > 1 for cell in cells):
        several = "over seeds where there are several"
        if publication.has_unequal_seeds:
            several += " (tables have their number in brackets; lines may be of different seeds)"
        pooled = " The noise of two or three seeds is that of all runs of this scale, as in verdicts."
        return f"{PLUS_MINUS} is one standard error: {several}, else over validation images.{pooled}"
    return f"{PLUS_MINUS} is one standard error over validation images; it does not contain differences between seeds."


def measured_rows(table: FilledTable) -> list[FilledRow]:
    return [row for row in table.rows if row.selected and any(cell.ours is not None for cell in row.cells.values())]


def _cell_text(cell: Cell, decimals: int, with_seeds: bool) -> str:
    if cell.ours is None:
        return NOT_APPLICABLE if cell.is_final else NOT_RUN
    return value_of(cell, decimals) + f" ({cell.n})" * (with_seeds and cell.n > 1)


def number_table(publication: Publication) -> list[str]:
    """The numbers of one claim of each study: its main one, or else the first that has any."""
    lines: dict[str, str] = {}  # what is the same run at this scale is shown once
    with_seeds = publication.has_unequal_seeds
    for study, found in publication.in_words.items():
        named = {*_cells(found, publication.graph.stories[study].main_claim)}
        title = title_of(publication.graph, study)
        for table in publication.tables:
            for row, column, cell in table.cells():
                if f"{row.id}:{column.id}" in named and cell.ours is not None:
                    what = f"{table.label}, {row.name}: {column.name}"
                    ours = f"| {title} | {plain_cell(what)} | {_cell_text(cell, column.decimals, with_seeds)} |"
                    lines.setdefault(ours, number(cell.paper, column.decimals) if cell.paper is not None else "")
    head = ["| study | what | ours | the paper's |", "|---|---|---|---|"]
    return [*head, *(f"{ours} {paper} |" for ours, paper in lines.items())] if lines else []


def _cells(found: list[ClaimInWords], main: str) -> Iterator[str]:
    """Cells of the main claim, or else of the first claim that has numbers, whatever its verdict."""
    order = sorted((one.claim for one in found if one.numbers), key=lambda claim: (claim.id != main, claim.id))
    return (cell for claim in order[:1] for predicate in claim.predicates for cell in predicate.cells)


def plain_cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
