"""What was found, in words: sentences made of counts and numbers, and claims with the names that their cells have."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pipeline.report.collect import Content
from pipeline.report.records import Cell, FilledColumn, FilledRow, FilledTable
from pipeline.report.view import ShownColumn, ShownRow, TableView, joined, view
from pipeline.report.words import counted, error, number
from pipeline.study.claims import JudgedClaim, Verdict
from pipeline.study.targets import command_for, target_name

# In the order in which the page shows them.
VERDICTS: dict[Verdict, str] = {
    "true": "holds",
    "false": "does not hold",
    "within noise": "within noise",
    "undecided": "not decided",
}
DECIDED: tuple[Verdict, ...] = ("true", "false", "within noise")


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
    decided, rest = sum(found[word] for word in DECIDED), found["undecided"]
    if not claims:
        return []
    if not decided:
        return [f"None of {counted(rest, 'claim')} can be decided by these runs."]
    parts = [f"{found['true'] or 'none'} {'hold' if found['true'] > 1 else 'holds'}"]
    parts += [f"{_agree(found['false'], 'does not', 'do not')}"] * bool(found["false"])
    parts += [f"{_agree(found['within noise'], 'is', 'are')} within noise"] * bool(found["within noise"])
    more = f"; {rest} more {'needs' if rest == 1 else 'need'} rows that were not run" if rest else ""
    return [f"Of {counted(decided, 'claim')} that these runs can decide, {_listed(parts)}{more}."]


def _agree(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _listed(parts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def key_numbers(tables: Iterable[FilledTable], claims: list[JudgedClaim]) -> KeyNumbers | None:
    """The column with a direction that most claims compare; of several, that of most rows. None where nothing ran."""
    compared = Counter(column for claim in claims for column in _compared(claim))
    found = [keys for table in tables if table.figure is None for keys in _key_columns(view(table))]

    def weight(keys: KeyNumbers) -> tuple[int, int]:
        columns = [keys.column.first, *keys.column.others]
        return sum(compared[keys.table.id, column.id] for column in columns), len(keys.rows)

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


def key_sentence(keys: KeyNumbers) -> str:
    """From which number to which the rows go; whether they differ by more than noise is for the claims to say."""
    column = keys.column.first
    name, _, unit = keys.column.label.removesuffix(")").partition(" (")
    cells = [(row.label, row.first.cells[column.id]) for row in keys.rows]
    ranked = sorted(cells, key=lambda pair: pair[1].ours or 0.0)
    texts = [f"{value_of(cell, column.decimals)} {unit}".strip() + f" ({label})" for label, cell in ranked]
    span = f"goes from {texts[0]} to {texts[-1]}" if len(texts) > 1 else f"is {texts[0]}"
    return f"{name} in {keys.table.label} {span}."


def value_of(cell: Cell, decimals: int, mark: str = "\u00b1") -> str:
    """Our number with its error."""
    return " ".join(filter(None, [number(cell.ours, decimals), error(cell.error, decimals, mark)]))


def in_words(claims: list[JudgedClaim], tables: list[FilledTable], scale: str) -> list[ClaimInWords]:
    places = {
        f"{row.id}:{column.id}": Place(table, row, column, cell)
        for table in tables
        for row, column, cell in table.cells()
    }
    order = list(VERDICTS)
    return sorted((_in_words(claim, places, scale) for claim in claims), key=lambda one: order.index(one.claim.verdict))


def _in_words(claim: JudgedClaim, places: dict[str, Place], scale: str) -> ClaimInWords:
    names = list(dict.fromkeys(name for predicate in claim.predicates for name in predicate.cells))
    known = [places[name] for name in names if name in places]
    numbers = _grouped((place.column.label, _number(place)) for place in known if place.cell.ours is not None)
    missing = _grouped((place.table.label, place.row.label) for place in known if place.cell.ours is None)
    absent = [name for name in names if name not in places or places[name].cell.ours is None]
    targets = dict.fromkeys(target_name(_table_of(name)) for name in absent)
    return ClaimInWords(
        claim, VERDICTS[claim.verdict], numbers, missing, [command_for(target, scale) for target in targets]
    )


def _number(place: Place) -> str:
    return f"{value_of(place.cell, place.column.decimals)} for {place.row.label}"


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Texts under their headings, each once: "Table 3: 0.09, 0.15"; headings with the same texts share them."""
    groups: dict[str, dict[str, None]] = {}
    for heading, text in pairs:
        groups.setdefault(heading, {})[text] = None
    headings: dict[str, list[str]] = {}
    for heading, texts in groups.items():
        headings.setdefault(", ".join(texts), []).append(heading)
    return [f"{joined(names)}: {text}" for text, names in headings.items()]
