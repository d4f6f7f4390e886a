"""Claims: sentences of a paper as comparisons of table cells, decided with the noise of their numbers at any scale.

A comparison (see formula.py) is true or false where the noise of its cells allows to say so, else `within noise`. It is
`not run yet` while one of its cells has no number, and `not testable` if a cell cannot have one at this scale or the
numbers lead to a division by 0. It is true if it holds in at least 97.5 % of the draws around the measured numbers (see
noise.py), false if one step of its chain holds in at most 2.5 % of them, divided by the number of steps of the claim:
of many, some would seem refuted by chance. Claims of type `exact` and comparisons with == are decided by the numbers
alone.

A claim is as good as its worst comparison: false, not run yet, not testable, within noise, true. One false comparison
refutes it whatever the others say. A number that is missing may still refute it, so `not run yet` comes before the
others; it also tells the reader what to do first: run the missing rows, then more seeds or images.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from pipeline.core.config import Record
from pipeline.core.errors import ConfigError, PatchworkError
from pipeline.study.claims.formula import Cell, Comparison, find_sets, parse
from pipeline.study.claims.reading import FEW_SEEDS, Reading, Readings, Unavailable
from pipeline.study.spec import Claim

if TYPE_CHECKING:
    from pipeline.study.claims.noise import Step

Verdict = Literal["true", "false", "within noise", "not run yet", "not testable"]
WORST_FIRST: tuple[Verdict, ...] = ("false", "not run yet", "not testable", "within noise", "true")
IN_WORDS: dict[Verdict, tuple[str, str]] = {  # of one, of several
    "true": ("holds", "hold"),
    "false": ("does not hold", "do not hold"),
    "within noise": ("is within noise", "are within noise"),
    "not run yet": ("is not run yet", "are not run yet"),
    "not testable": ("is not testable here", "are not testable here"),
}


class Predicate(Record):
    """One comparison, the numbers that were put in for its cells, written row:column, and why it was decided so."""

    text: str
    verdict: Verdict
    cells: dict[str, float | None]
    reason: str = ""


class JudgedClaim(Record):
    id: str
    statement: str
    type: str
    verdict: Verdict
    reason: str
    predicates: list[Predicate]
    doubt: float | None = Field(None, description="noise of what decided it, in units of the difference")
    remark: str = Field("", description="what an outcome at this scale may come from, if its study says so")


class ResolvedClaim(Claim):
    """A claim of the graph: all its cells exist, and its sets are known."""

    sets: dict[str, list[str]] = Field(default_factory=dict, description="a set as written -> its cells")

    def comparisons(self) -> list[Comparison]:
        return [parse(text, self.sets) for text in self.holds]

    def num_steps(self) -> int:
        """Any of which would refute it."""
        return sum(len(comparison.operators) for comparison in self.comparisons())

    def tables(self) -> list[str]:
        """Ids of the tables and figures whose cells it names; some may be of other studies."""
        cells = [cell for comparison in self.comparisons() for cell in comparison.cells]
        return list(dict.fromkeys(".".join(row.split(".", 2)[:2]) for row, _ in cells))


def resolve(claim: Claim, known: Mapping[str, Iterable[str]], where: str) -> ResolvedClaim:
    """The claim with its sets; `known` is row -> columns, of every study. Raises for a mistake, naming its place."""
    sets: dict[str, list[str]] = {}
    for text in claim.holds:
        try:
            sets |= find_sets(text, known)
            comparison = parse(text, sets)
        except PatchworkError as error:
            raise ConfigError(f"{where}: {error}") from None
        if not comparison.cells:
            raise ConfigError(f"{where}: {text!r} names no cell; write cells as row:column")
    return ResolvedClaim(**claim.model_dump(), sets=sets)


def judge(claims: Mapping[str, ResolvedClaim], readings: Readings, scale: str = "") -> list[JudgedClaim]:
    """Every claim with its verdict, for each comparison the numbers that were put in, and its remark for this scale."""
    return [_judge_one(claim_id, claim, readings, scale) for claim_id, claim in claims.items()]


def _judge_one(claim_id: str, claim: ResolvedClaim, readings: Readings, scale: str) -> JudgedClaim:
    decided = [_decide(comparison, readings, claim) for comparison in claim.comparisons()]
    verdict = next(word for word in WORST_FIRST if word in {entry.predicate.verdict for entry in decided})
    about: dict[str, Any] = {"id": claim_id, "statement": claim.statement, "type": claim.type}
    predicates = [entry.predicate for entry in decided]
    doubt = min((entry.doubt for entry in decided if entry.predicate.verdict == verdict), default=math.inf)
    about |= {"verdict": verdict, "reason": _summary(decided, verdict), "predicates": predicates}
    about["remark"] = claim.remarks.get(scale, "")
    return JudgedClaim(**about, doubt=doubt if math.isfinite(doubt) else None)


class _Decision(NamedTuple):
    predicate: Predicate
    doubt: float  # noise in units of the difference
    never: dict[str, str]  # cells that cannot have a number, and why


def _summary(decided: list[_Decision], verdict: Verdict) -> str:
    """Why the claim has its verdict: of several comparisons, how many made it so, and the most telling of them."""
    decisive = sorted((entry for entry in decided if entry.predicate.verdict == verdict), key=lambda entry: entry.doubt)
    if verdict == "not run yet":
        cells = [cell for entry in decisive for cell, value in entry.predicate.cells.items() if value is None]
        return f"no number for {', '.join(sorted({*cells}))}"
    if verdict == "not testable":
        never = {cell: why for entry in decisive for cell, why in entry.never.items()}
        return _impossible(never) if never else decisive[0].predicate.reason
    telling, words = (decisive[0], "the clearest") if verdict == "false" else (decisive[-1], "the least clear")
    if len(decided) == 1:
        return telling.predicate.reason
    count = len(decisive)
    which = all_of(count) if count == len(decided) else f"{count} of {len(decided)}"
    such = f"{words}: " if count > 1 else ""
    counts = Counter(entry.predicate.verdict for entry in decided if entry.predicate.verdict != verdict)
    others = ", ".join(f"{counts[word]} {verb_of(word, counts[word])}" for word in WORST_FIRST if counts[word])
    return f"{which} comparisons {verb_of(verdict, count)}{others and f' ({others})'}; {such}{telling.predicate.reason}"


def verb_of(verdict: Verdict, count: int) -> str:
    """The verb of a sentence about one claim or comparison, or about several."""
    return IN_WORDS[verdict][count != 1]


def all_of(count: int) -> str:
    return "both" if count == 2 else f"all {count}"


def _decide(comparison: Comparison, readings: Readings, claim: ResolvedClaim) -> _Decision:
    known = {cell: readings.get(cell) for cell in comparison.cells}
    found = {cell: reading for cell, reading in known.items() if isinstance(reading, Reading)}
    never = {f"{row}:{column}": each.why for (row, column), each in known.items() if isinstance(each, Unavailable)}
    shown: dict[str, float | None] = {f"{row}:{column}": None for row, column in comparison.cells}
    shown |= {f"{row}:{column}": reading.value for (row, column), reading in found.items()}
    verdict: Verdict = "not testable" if never else "not run yet"
    doubt, missing = 0.0, [cell for cell, value in shown.items() if value is None]
    reason = f"no number for {', '.join(missing)}"
    if never:
        reason = _impossible(never)
    elif not missing:
        try:
            verdict, reason, doubt = _verdict(comparison, found, claim)
        except ZeroDivisionError:
            verdict, reason = "not testable", "its numbers lead to a division by 0"
    return _Decision(Predicate(text=comparison.text, verdict=verdict, cells=shown, reason=reason), doubt, never)


def _impossible(never: dict[str, str]) -> str:
    """Such as `computed only at scale paper: droppos.t1.g0.00:ap_b, droppos.t1.g0.75:ap_b`."""
    cells = {why: [cell for cell, other in never.items() if other == why] for why in never.values()}
    return "; ".join(f"{why}: {', '.join(sorted(names))}" for why, names in cells.items())


def _verdict(comparison: Comparison, found: dict[Cell, Reading], claim: ResolvedClaim) -> tuple[Verdict, str, float]:
    from pipeline.study.claims.noise import draw_comparison  # needs numpy

    is_exact = claim.type == "exact"
    used = {key: Reading(cell.value, error=0.0) for key, cell in found.items()} if is_exact else found
    if claim.type == "cost":  # counted or timed: what is not known of its noise is small
        used = {key: replace(cell, error=cell.error or 0.0, is_one_run=False) for key, cell in found.items()}
    result = draw_comparison(comparison, used, claim.margin, claim.num_steps())
    wrong = [step for step in result.steps if step.is_false]
    verdict: Verdict = "false" if wrong else "true" if result.is_true else "within noise"
    telling = min(wrong, key=lambda step: step.doubt) if wrong else max(result.steps, key=lambda step: step.doubt)
    how = [f"allowing {_plain(telling.margin)}" if telling.margin else ""]
    if is_exact or telling.is_equality:
        how.append("compared without noise")
    else:
        how += [_conditions(used) if telling.noise else "", _unknown(used, telling)]
    return verdict, ", ".join(filter(None, [_difference(telling), *how])), telling.doubt


def _difference(step: "Step") -> str:
    """`71.3 against 69.0, a difference of 2.3 +/- 1.9 (95 %)`, with as many decimals as the noise leaves."""
    if not step.noise:
        return f"{_plain(step.left)} against {_plain(step.right)}"
    decimals = 1 if step.noise >= 1 else 2 if step.noise >= 0.1 else 3
    left, right, gap = (f"{value:.{decimals}f}" for value in (step.left, step.right, step.left - step.right))
    return f"{left} against {right}, a difference of {gap} +/- {step.noise:.{decimals}f} (95 %)"


def _plain(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.01 or not value else f"{value:.2g}"


def _conditions(found: dict[Cell, Reading]) -> str:
    """How its cells were measured: `paired over 1,000 images, one run each; standard deviation over seeds ...: 4.8`."""
    from pipeline.study.claims.noise import paired

    noisy = {cell: reading for cell, reading in found.items() if reading.has_noise}
    groups = paired(noisy)
    words = []
    if groups:
        one = noisy[groups[0][0]]
        words = [f"{len(one.per_image[0]):,} {one.unit}"]
        if len(noisy) > 1:
            words = [f"paired over {words[0]}" if groups == [list(noisy)] else f"not all on the same {one.unit}"]
    elif len(noisy) > 1:
        words = ["not paired by image"]
    seeds = sorted({reading.dof + 1 for reading in found.values()})
    count = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    words.append(("one run" if len(found) == 1 else "one run each") if seeds == [1] else f"{count} seeds")
    pooled = [reading for reading in found.values() if reading.is_pooled]
    words += ["pooled with others of this scale"] * bool(pooled)
    judged = [*pooled, *(reading for reading in found.values() if reading.is_one_run)]
    known = [reading.seeds for reading in judged if reading.seeds]
    if known:
        widest = max(known)
        few = ", known from few runs only" if widest.dof < FEW_SEEDS - 1 else ""
        words[-1] += f"; standard deviation over seeds at this scale: {_digits(widest.spread)}{few}"
    return ", ".join(words)


def _unknown(found: dict[Cell, Reading], step: "Step") -> str:
    """Which cells have a noise that is not known, and what is made of that."""
    unknown = {f"{row}:{column}": reading for (row, column), reading in found.items() if not reading.is_known}
    if not unknown:
        return ""
    what = "noise" if all(not reading.has_noise for reading in unknown.values()) else "noise of training"
    is_bounded = math.isfinite(step.unknown)
    made_of_it = f"it may be off by {_plain(step.unknown)} more" if is_bounded else "differences say nothing"
    return f"the {what} of {', '.join(unknown)} is not known, so {made_of_it}"


def _digits(value: float) -> str:
    return f"{value:.2g}" if value < 1 else f"{value:.1f}"
