"""What was found, in words: sentences made of counts and numbers, and claims with the names that their cells have."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pipeline.report.collect import Content
from pipeline.report.records import Cell, FilledColumn, FilledRow, FilledTable
from pipeline.report.tables.view import ShownColumn, ShownRow, TableView, join_labels, view
from pipeline.report.words import counted, error, in_list, number, sentences
from pipeline.study.claims.decide import JudgedClaim, Verdict, all_of, verb_of
from pipeline.study.targets import command_for, target_name

# In the order in which the page shows them.
VERDICTS: dict[Verdict, str] = {
    "true": "holds",
    "false": "does not hold",
    "within noise": "within noise",
    "not run yet": "not run yet",
    "not testable": "not testable here",
}
DECIDED: tuple[Verdict, ...] = ("true", "false", "within noise")

Command = Callable[[str, str], str]  # what to type for a target of a scale


class Place(NamedTuple):
    """The cell that a claim names."""

    table: FilledTable
    row: FilledRow
    column: FilledColumn
    cell: Cell


class ClaimInWords(NamedTuple):
    claim: JudgedClaim
    verdict: str
    numbers: list[str]  # such as "Top-1 (%): 71.3 for DeiT-S, 70.3 for DeiT-S + MJP"
    missing: list[str]  # such as "Table 3: 0.09, 0.15"
    commands: list[str]  # that run what is missing

    @property
    def is_decided(self) -> bool:
        return self.claim.verdict in DECIDED

    @property
    def short_remark(self) -> str:
        """Why a claim may not hold, in two sentences at most; the page of its study has all of it."""
        return " ".join(sentences(self.claim.remark)[:2]) if self.claim.verdict == "false" else ""

    @property
    def so_far(self) -> str:
        """How far a claim without a verdict is decided: what its other comparisons say."""
        found = Counter(predicate.verdict for predicate in self.claim.predicates)
        made, rest = sum(found[word] for word in DECIDED), found["not run yet"]
        if self.claim.verdict != "not run yet" or not made:
            return ""
        only = _only(found)
        outcome = f"{'it' if made == 1 else all_of(made)} {verb_of(only, made)}" if only else _outcomes(found)
        more = f"{rest} {'needs' if rest == 1 else 'need'} rows that were not run"
        return f"{made} of {made + rest} comparisons could be made here; {outcome}; {more}."


class KeyNumbers(NamedTuple):
    """The numbers that say most of a study: one column of one table."""

    table: FilledTable
    column: ShownColumn
    rows: list[ShownRow]


def opening(content: Content, scale: str) -> list[str]:
    """The first sentences of the page."""
    studies = {table.study for table in content.tables}
    runs = counted(len(content.runs), "training run")
    sentences = [f"{runs.capitalize()} at scale {scale}, from {counted(len(studies), 'study', 'studies')}."]
    sentences += claim_sentence([claim for study in content.claims for claim in study.claims])
    compared = [table for table in content.tables if table.comparable]
    verdicts = Counter(cell.verdict for table in compared for _, _, cell in table.cells())
    both = verdicts["match"] + verdicts["differs"]
    if both:
        sentences.append(f"Of {both} numbers that can be compared with the papers', {verdicts['match']} match.")
    return sentences


def claim_sentence(claims: list[JudgedClaim]) -> list[str]:
    """How many claims hold; nothing without claims."""
    found = Counter(claim.verdict for claim in claims)
    decided, rest = sum(found[word] for word in DECIDED), found["not run yet"]
    if not claims:
        return []
    if not decided:
        which = "The one claim cannot" if len(claims) == 1 else f"None of {len(claims)} claims can"
        return [f"{which} be decided by these runs."]
    more = f"; {rest} more {'needs' if rest == 1 else 'need'} rows that were not run" if rest else ""
    never = found["not testable"]
    more += f"; {never} {verb_of('not testable', never)}" if never else ""
    only = _only(found)
    if not only:
        return [f"Of {decided} claims that these runs can decide, {_outcomes(found)}{more}."]
    which = "The one claim" if decided == 1 else f"{all_of(decided).capitalize()} claims"
    return [f"{which} that these runs can decide {verb_of(only, decided)}{more}."]


def _only(found: Counter[Verdict]) -> Verdict | None:
    """The verdict of all that are decided; None where there are several."""
    words = [word for word in DECIDED if found[word]]
    return words[0] if len(words) == 1 else None


def _outcomes(found: Counter[Verdict]) -> str:
    """Such as "4 hold and 1 is within noise"; of what is decided."""
    return in_list([f"{count} {verb_of(word, count)}" for word in DECIDED if (count := found[word])])


def verdict_counts(claims: Iterable[JudgedClaim]) -> list[str]:
    """Such as "3 hold" and "1 within noise"; of each verdict that occurs."""
    found = Counter(claim.verdict for claim in claims)
    words = {word: verb_of(word, found[word]).removeprefix("is ").removeprefix("are ") for word in VERDICTS}
    return [f"{found[word]} {words[word]}" for word in VERDICTS if found[word]]


def _in_a_row(texts: list[str]) -> str:
    """Texts one after the other; a comma cannot part those that have one, such as "MP3, no PE"."""
    return ("; " if any(", " in text for text in texts) else ", ").join(texts)


def key_numbers(tables: Iterable[FilledTable], claims: list[JudgedClaim]) -> KeyNumbers | None:
    """The column with a direction that most claims compare; of several, that of most rows. None where nothing ran."""
    compared = Counter(column for claim in claims for column in _compared(claim))
    found = [keys for table in tables if table.figure is None for keys in _key_columns(view(table))]

    def weight(keys: KeyNumbers) -> tuple[int, int]:
        return sum(compared[keys.table.id, column.id] for column in keys.column.sides), len(keys.rows)

    return max(found, key=weight, default=None)


def _compared(claim: JudgedClaim) -> set[tuple[str, str]]:
    """The table and the column of each cell that a claim names: of "mjp.t4.a-deit-s:top1", mjp.t4 and top1."""
    named = {name for predicate in claim.predicates for name in predicate.cells}
    return {(_table_of(name), name.partition(":")[2]) for name in named}


def _table_of(cell: str) -> str:
    return ".".join(cell.split(".")[:2])


def _key_columns(shown: TableView) -> Iterator[KeyNumbers]:
    for column in shown.columns:
        rows = [row for row in shown.rows if _ours(shown, row, column) is not None]
        if column.first.direction != "none" and rows:
            yield KeyNumbers(shown.table, column, rows)


def _ours(shown: TableView, row: ShownRow, column: ShownColumn) -> float | None:
    cell = shown.cell(row, column)
    return None if cell is None else cell.ours


def key_sentences(keys: KeyNumbers, study_title: str) -> list[str]:
    """What the study's own method reaches, and what its first other row; then the best of all, if that is another, and
    how many rows there are to compare.

    Whether they differ by more than noise is for the claims to say.
    """
    column, name = keys.column.first, study_title.partition(":")[0]
    own = [row for row in keys.rows if re.search(rf"\b{re.escape(name)}\b", row.label)]
    best = _best(own or keys.rows, column)
    others = [row for row in keys.rows if row not in own and row is not best][:1]
    numbers = [_reaches(row, column) for row in (best, *others)]
    sentences = [f"{keys.column.label} in {keys.table.label}: {_in_a_row(numbers)}."]
    winner = _best(keys.rows, column)
    sentences += [f"The best is {_reaches(winner, column)}."] * (winner not in (best, *others))
    return [*sentences, *_rows_run(keys.table)]


def _rows_run(table: FilledTable) -> list[str]:
    """How many rows of a table were run, where not all of those that can run were."""
    shown = view(table)
    left = sum(bool(row.runs) for row in shown.folded)
    ran = len(table.rows) - len(shown.folded)
    were = "was" if ran == 1 else "were"
    return [f"{ran} of {ran + left} rows of {table.label} {were} run here."] * bool(left)


def _best(rows: list[ShownRow], column: FilledColumn) -> ShownRow:
    sign = -1 if column.direction == "down" else 1
    return max(rows, key=lambda row: sign * (row.first.cells[column.id].ours or 0.0))


def _reaches(row: ShownRow, column: FilledColumn) -> str:
    return f"{value_of(row.first.cells[column.id], column.decimals)} for {row.label}"


def surprises(claims: list[ClaimInWords], most: int = 3) -> list[ClaimInWords]:
    """What the papers would not have expected: claims that do not hold, the clearest of each study first.

    Where fewer fail, claims follow that the noise leaves open, the closest to a decision first; then those that hold
    most clearly.
    """
    wanted: tuple[Verdict, ...] = ("false", "within noise", "true")
    found = sorted(
        (one for one in claims if one.claim.verdict in wanted and one.numbers),
        key=lambda one: (wanted.index(one.claim.verdict), _doubt(one.claim)),
    )
    seen: Counter[str] = Counter()
    ranked = []
    for place, one in enumerate(found):
        study = one.claim.id.split(".")[0]
        ranked.append((wanted.index(one.claim.verdict), seen[study], place, one))
        seen[study] += 1
    return [one for *_, one in sorted(ranked, key=lambda each: each[:3])][:most]


def _doubt(claim: JudgedClaim) -> float:
    return math.inf if claim.doubt is None else claim.doubt


def value_of(cell: Cell, decimals: int) -> str:
    """Our number with its error."""
    return f"{number(cell.ours, decimals)} {error(cell.error, decimals)}".strip()


def in_words(
    claims: list[JudgedClaim], tables: list[FilledTable], scale: str, command: Command = command_for
) -> list[ClaimInWords]:
    places = {
        f"{row.id}:{column.id}": Place(table, row, column, cell)
        for table in tables
        for row, column, cell in table.cells()
    }
    order = list(VERDICTS)
    return sorted(
        (_in_words(claim, places, scale, command) for claim in claims), key=lambda one: order.index(one.claim.verdict)
    )


def _in_words(claim: JudgedClaim, places: dict[str, Place], scale: str, command: Command) -> ClaimInWords:
    names = list(dict.fromkeys(name for predicate in claim.predicates for name in predicate.cells))
    known = [places[name] for name in names if name in places]
    can_run = [place for place in known if place.cell.ours is None and not place.cell.is_final]
    numbers = _grouped((_column_name(place), _number(place)) for place in known if place.cell.ours is not None)
    begun = {place.row.id for place in known if place.cell.ours is not None}
    missing = _grouped(
        (place.table.label, place.row.label + f" ({place.column.label})" * (place.row.id in begun)) for place in can_run
    )
    tables = [*(place.table.id for place in can_run), *(_table_of(name) for name in names if name not in places)]
    targets = dict.fromkeys(map(target_name, tables))
    return ClaimInWords(
        claim, VERDICTS[claim.verdict], numbers, missing, [command(target, scale) for target in targets]
    )


def _column_name(place: Place) -> str:
    """The column's name; on the axis of a figure, such as 0.27, with what both axes are."""
    figure = place.table.figure
    is_place = figure is not None and figure.kind == "lines" and figure.x_label and figure.y_label
    return f"{figure.y_label} at {figure.x_label} {place.column.name}" if figure and is_place else place.column.name


def _number(place: Place) -> str:
    return f"{value_of(place.cell, place.column.decimals)} for {place.row.name}"


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Texts under their headings, each once: "Table 3: 0.09, 0.15"; headings with the same texts share them."""
    groups: dict[str, dict[str, None]] = {}
    for heading, text in pairs:
        groups.setdefault(heading, {})[text] = None
    headings: dict[str, list[str]] = {}
    for heading, texts in groups.items():
        headings.setdefault(_in_a_row([*texts]), []).append(heading)
    return [f"{join_labels(names)}: {text}" for text, names in headings.items()]
