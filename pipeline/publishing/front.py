"""A published scale as the project's README shows it: what was run, its numbers, its verdicts, and their origin."""

import re
from collections import Counter

from pipeline.publishing.provenance import amount, cost, num_from_changes, versions_outside
from pipeline.publishing.words import (
    LEGEND,
    PICTURE,
    Publication,
    alt_text,
    errors_in_words,
    full_statement,
    measured_rows,
    number_table,
    overview,
    overview_tables,
    plain_cell,
    title_of,
)
from pipeline.report.records import FilledTable
from pipeline.report.site.findings import VERDICTS, ClaimInWords
from pipeline.report.site.here import epochs_of
from pipeline.report.words import PLUS_MINUS, counted, in_list, sentences
from pipeline.study.claims.decide import verb_of
from pipeline.study.resolve.entries import Graph

MOST_CLAIMS = 3  # that README shows; those that do not hold, and main claims, are shown in any case
MOST_NUMBERS = 250  # characters; the numbers of larger claims are in the published folder
GAP = re.compile(r"a difference of [^;]*")  # in the reason of a verdict, with how many seeds it is from
NOT_COMPARABLE = "Models and most data are not the papers', so the numbers cannot be compared with theirs."


def section(publication: Publication, folder: str, lock: str, is_short: bool = False) -> list[str]:
    """A scale under its own heading; a short one has the first line of each table and main claims, and no picture."""
    lines = [f"### Scale {publication.graph.scale}", "", about(publication) + f" {LEGEND}" * (not is_short), ""]
    lines += numbers(publication, most=1 if is_short else None)
    lines += [f"![{alt_text(publication)}]({folder}/{PICTURE})", ""] * (not is_short)
    return [*lines, *verdicts(publication, is_short), "", origin(publication, folder, lock), ""]


def about(publication: Publication) -> str:
    """What was run, and how its numbers are to be read."""
    graph = publication.graph
    texts = [f"**{amount(publication.provenance)}**", *sentences(graph.note)[:1]]
    texts += [NOT_COMPARABLE] * (not graph.comparable)
    texts += filter(None, (_compute(graph, table) for table in overview(publication)))
    return " ".join([*texts, errors_in_words(publication)])


def _compute(graph: Graph, table: FilledTable) -> str:
    """A sentence where the models of a table were trained for different numbers of epochs."""
    groups: dict[str, list[str]] = {}
    for row in measured_rows(table):
        if epochs := epochs_of(graph, [name for names in row.runs.values() for name in names]):
            groups.setdefault(epochs, []).append(plain_cell(row.name))
    parts = [f"{epochs} for {in_list(names)}" for epochs, names in groups.items()]
    meaning = " (pretraining + finetuning)" if any("+" in epochs for epochs in groups) else ""
    return f"The columns have unequal compute: {', '.join(parts)}{meaning}." if len(groups) > 1 else ""


def numbers(publication: Publication, most: int | None = None) -> list[str]:
    """The numbers that README shows, of a table at most so many lines; of partial results, those most models have."""
    shown = overview_tables(publication, publication.is_partial, most)
    return shown or [*number_table(publication), ""]


def verdicts(publication: Publication, is_short: bool = False) -> list[str]:
    """How many claims have which verdict, and some decided ones: main claims, all that do not hold, and a few more."""
    found = [(study, one) for study, claims in publication.in_words.items() for one in claims]
    if not found:
        return ["Its studies state no claims."]
    main = {story.main_claim for story in publication.graph.stories.values()}
    decided = [each for each in found if each[1].is_decided]
    decided.sort(key=lambda each: (each[1].claim.id not in main, each[1].claim.verdict != "false"))
    most = 0 if is_short else MOST_CLAIMS

    def is_shown(place: int, one: ClaimInWords) -> bool:
        return place < most or one.claim.id in main or (one.claim.verdict == "false" and not is_short)

    shown = [(study, one) for place, (study, one) in enumerate(decided) if is_shown(place, one)]
    is_part = len(shown) < len(decided)
    failed = "" if is_short or len(shown) <= MOST_CLAIMS else ": main claims, and all that do not hold"
    selection = f" The table shows {len(shown)} of the {len(decided)} that have a verdict{failed}." * is_part
    lines = [f"Of {counted(len(found), 'claim')}, {_counts(found)}.{_open(publication, main)}{selection}", ""]
    if shown:
        lines += ["| claim | verdict | found |", "|---|---|---|"]
        lines += [_line(publication.graph, study, one, one.claim.id in main) for study, one in shown]
    for study, one in shown:
        lines += _why(publication.graph, study, one) if one.claim.id in main else []
    return lines


def _counts(found: list[tuple[str, ClaimInWords]]) -> str:
    """Such as `7 hold, 2 do not hold and 77 are not run yet`."""
    counts = Counter(one.claim.verdict for _, one in found)
    return in_list([f"{counts[word]} {verb_of(word, counts[word])}" for word in VERDICTS if counts[word]])


def _open(publication: Publication, main: set[str]) -> str:
    """The studies whose main claim compares what was not run, and why that was not run."""
    graph, found = publication.graph, publication.in_words.items()
    names = [
        title_of(graph, study)
        for study, claims in found
        for one in claims
        if one.claim.id in main and one.claim.verdict == "not run yet"
    ]
    claims, they = ("claim", "it compares") if len(names) == 1 else ("claims", "they compare")
    why = f"results that {they} are missing" if publication.is_partial else f"the headline leaves out rows that {they}"
    return f" The main {claims} of {in_list(names)} cannot be judged here: {why}." * bool(names)


def _line(graph: Graph, study: str, one: ClaimInWords, is_main: bool) -> str:
    kind = ", main claim" * is_main
    predicates = one.claim.predicates
    open_ = sum(predicate.verdict == "not run yet" for predicate in predicates)
    rest = [f"{open_} of {len(predicates)} comparisons are not run yet"] * bool(open_)
    is_of_all = len(predicates) == 1 or one.claim.verdict == "within noise"
    if is_of_all and (gap := GAP.search(one.claim.reason)):
        rest.append(gap.group().replace("+/-", PLUS_MINUS))
    found = "; ".join([*_first_numbers(one), *rest])
    if one.short_remark and not is_main:
        found += f". Possible reason: {one.short_remark}"
    statement = f"{title_of(graph, study)}{kind}: {plain_cell(full_statement(graph, one))}"
    return f"| {statement} | **{one.verdict}** | {plain_cell(found)} |"


def _first_numbers(one: ClaimInWords) -> list[str]:
    """All numbers of a claim; of many, what its comparisons say, and the numbers of the first ones."""
    if len("; ".join(one.numbers)) <= MOST_NUMBERS:
        return one.numbers
    shown = [text for place, text in enumerate(one.numbers) if len("; ".join(one.numbers[: place + 1])) <= MOST_NUMBERS]
    outcome = [one.claim.reason.split("; ")[0]] * (len(one.claim.predicates) > 1)
    return [*outcome, *shown, f"{len(one.numbers) - len(shown)} more like these in the published folder"]


def _why(graph: Graph, study: str, one: ClaimInWords) -> list[str]:
    """What may explain a main claim that does not hold."""
    why = f"A possible reason why {title_of(graph, study)}'s main claim does not hold here: "
    return ["", why + plain_cell(one.claim.remark)] * bool(one.short_remark)


def origin(publication: Publication, folder: str, lock: str) -> str:
    """Where the results come from, and the link to all claims."""
    facts = publication.provenance
    texts = [f"[{folder}]({folder}/README.md) lists every claim with its numbers, and the commits.", cost(facts)]
    if changed := num_from_changes(facts["commits"]):
        comes = "comes" if changed == 1 else "come"
        texts.append(f"{counted(changed, 'result')} {comes} from a clone with uncommitted changes.")
    if others := versions_outside(facts, lock):
        texts.append(f"Versions that are not those of `requirements.lock`: {others}.")
    return " ".join(texts)
