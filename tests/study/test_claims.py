"""Claims as comparisons of cells: their logic, their arithmetic, and that they are never executed."""

import pytest

from pipeline.core.errors import ConfigError
from pipeline.study.claims.decide import JudgedClaim, Predicate, ResolvedClaim, judge, resolve
from pipeline.study.claims.formula import parse
from pipeline.study.claims.reading import Reading, Unavailable
from pipeline.study.spec import Claim

READINGS = {
    ("s.t1.low", "top1"): Reading(70.0, error=0.0),
    ("s.t1.mid", "top1"): Reading(75.0, error=0.0),
    ("s.t1.high", "top1"): Reading(80.0, error=0.0),
    ("s.t1.zero", "top1"): Reading(0.0, error=0.0),
    ("s.t1.noisy", "top1"): Reading(75.0, error=5.0),
    ("s.t1.absent", "top1"): None,
    ("other.t1.never", "top1"): Unavailable("computed only at scale paper"),
}
KNOWN = {row: ["top1"] for row, _ in READINGS} | {
    "s.t2.eta-0.0": ["top1", "top5"],
    "s.t2.eta-0.5": ["top1", "top5"],
    "s.t2.eta-1.0": ["top1", "top5"],
    "s.t2.base": ["top1", "top5"],
    "other.t1.x": ["top1"],
}
TRUE, FALSE, OPEN = "s.t1.low:top1 < 75", "s.t1.low:top1 > 75", "s.t1.absent:top1 < 75"
NOISY, NEVER = "s.t1.noisy:top1 > 74", "other.t1.never:top1 < s.t1.absent:top1"


def judged(*holds: str) -> JudgedClaim:
    claim = ResolvedClaim(statement="It is so", type="directional", holds=list(holds))
    return judge({"s.c1": claim}, READINGS)[0]


def decide(text: str) -> str:
    return judged(text).verdict


def cells_of(text: str) -> list[tuple[str, str]]:
    return parse(text, {}).cells


@pytest.mark.parametrize(
    ("holds", "verdict"),
    [
        ([TRUE], "true"),
        ([FALSE], "false"),
        ([OPEN], "not run yet"),
        ([TRUE, TRUE], "true"),
        ([TRUE, OPEN], "not run yet"),
        ([OPEN, FALSE], "false"),
        ([TRUE, FALSE], "false"),
        ([TRUE, OPEN, FALSE], "false"),
        ([TRUE, NOISY], "within noise"),
        ([NOISY, OPEN], "not run yet"),
        ([NOISY, FALSE], "false"),
        ([NOISY, NEVER], "not testable"),
        ([NEVER, OPEN], "not run yet"),
        ([NEVER, FALSE], "false"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_judge__several_comparisons__false_beats_not_run_beats_noise_beats_true(holds, verdict):
    assert judged(*holds).verdict == verdict


def test_judge__every_comparison__is_shown_with_its_verdict_and_numbers():
    assert judged(TRUE, OPEN).predicates == [
        Predicate(
            text=TRUE,
            verdict="true",
            cells={"s.t1.low:top1": 70.0},
            reason="70 against 75",
        ),
        Predicate(
            text=OPEN,
            verdict="not run yet",
            cells={"s.t1.absent:top1": None},
            reason="no number for s.t1.absent:top1",
        ),
    ]


def test_judge__cells_without_number__are_the_reason():
    claim = judged(TRUE, OPEN, "s.t1.other:top1 < 1")

    assert claim.reason == "no number for s.t1.absent:top1, s.t1.other:top1"


def test_judge__several_comparisons__counts_those_that_decide():
    found = judged(TRUE, FALSE, "s.t1.low:top1 > 71").reason

    assert found == "2 of 3 comparisons do not hold (1 holds); the clearest: 70 against 75"


def test_judge__cell_that_cannot_have_a_number__is_the_reason():
    claim = judged(TRUE, NEVER)

    assert claim.reason == "computed only at scale paper: other.t1.never:top1"


def test_judge__division_by_zero__is_not_testable_and_says_so():
    claim = judged("s.t1.low:top1 / s.t1.zero:top1 > 1")

    assert (claim.verdict, claim.reason) == ("not testable", "its numbers lead to a division by 0")


def test_judge__statement_type_and_id__are_kept():
    claim = judged(TRUE)

    assert (claim.id, claim.statement, claim.type) == ("s.c1", "It is so", "directional")


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("s.t1.low:top1 < s.t1.mid:top1 < s.t1.high:top1", "true"),
        ("s.t1.low:top1 < s.t1.high:top1 < s.t1.mid:top1", "false"),
        ("s.t1.mid:top1 < s.t1.low:top1 < s.t1.high:top1", "false"),
        ("s.t1.high:top1 >= s.t1.high:top1 > s.t1.low:top1 == 70", "true"),
        ("s.t1.low:top1 < s.t1.absent:top1 < s.t1.high:top1", "not run yet"),
    ],
)
def test_decide__chain__holds_if_every_link_does(text, verdict):
    assert decide(text) == verdict


@pytest.mark.parametrize(
    ("operator", "equal", "less"),
    [
        ("<", "false", "true"),
        ("<=", "true", "true"),
        ("==", "true", "false"),
        (">=", "true", "false"),
        (">", "false", "false"),
    ],
)
def test_decide__every_comparison__at_equal_and_at_less(operator, equal, less):
    assert decide(f"s.t1.low:top1 {operator} 70") == equal
    assert decide(f"s.t1.low:top1 {operator} 71") == less


@pytest.mark.parametrize(
    "text",
    [
        "abs(s.t1.low:top1 - s.t1.high:top1) == 10",
        "min(s.t1.mid:top1, s.t1.low:top1, s.t1.high:top1) == 70",
        "max(s.t1.mid:top1, s.t1.low:top1, s.t1.high:top1) == 80",
        "max(s.t1.low:top1, 72.5) - min(s.t1.high:top1, 71) == 1.5",
        "s.t1.low:top1 + 2 * (s.t1.mid:top1 - 70) == 80",
        "s.t1.high:top1 / 4 == 20",
        "-s.t1.low:top1 == -70",
        "70 + -s.t1.low:top1 == 0",
        "s.t1.high:top1-s.t1.low:top1 == 10",
    ],
)
def test_decide__arithmetic__is_what_it_says(text):
    assert decide(text) == "true"


def test_decide__row_with_hyphens__is_one_cell():
    assert cells_of("s.t1.a-b-c:top1 == 1") == [("s.t1.a-b-c", "top1")]


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true') == 0",
        "open('/etc/passwd').read() == 0",
        "s.t1.low:top1.__class__ == 0",
        "(lambda: 1)() < s.t1.low:top1",
        "[x for x in (1, 2)] == s.t1.low:top1",
        "exec('x') < s.t1.low:top1",
        "sum(s.t1.low:top1, 1) < 3",
        "abs(x=s.t1.low:top1) < 3",
        "max(*s.t1.low:top1) < 3",
        "s.t1.low:top1 ** 9 < 3",
        "s.t1.low:top1 != 3",
        "s.t1.low:top1 is 3",
        "'a' < 'b'",
        "top1 < s.t1.low:top1",
        "cell0 <= s.t1.low:top1",
    ],
)
def test_cells_of__code_or_unknown_words__are_refused(text):
    with pytest.raises(ConfigError, match="is not allowed"):
        cells_of(text)


def test_cells_of__code_behind_a_division_by_a_difference__is_still_found():
    with pytest.raises(ConfigError, match=r"exec\(.* is not allowed"):
        cells_of("1 / (s.t1.low:top1 - s.t1.mid:top1) < exec('x')")


@pytest.mark.parametrize("text", ["s.t1.low:top1", "s.t1.low:top1 + 1", "s.t1.low:top1 and 1 < 2", "1 if 2 > 1 else 0"])
def test_cells_of__no_comparison__says_that_it_compares_nothing(text):
    with pytest.raises(ConfigError, match="compares nothing"):
        cells_of(text)


@pytest.mark.parametrize("text", ["", "s.t1.low:top1 <", "< 3", "import os", "a = 1", "1 < 2; 3 < 4", "1 < 2\x00"])
def test_cells_of__not_an_expression__says_how_to_write_one(text):
    with pytest.raises(ConfigError, match="is not a comparison; write it like"):
        cells_of(text)


@pytest.mark.parametrize("text", ["min() < 1", "min(s.t1.low:top1) < 1", "abs(1, s.t1.low:top1) < 1", "abs() < 1"])
def test_cells_of__wrong_number_of_arguments__is_refused(text):
    with pytest.raises(ConfigError, match="is not allowed"):
        cells_of(text)


def test_cells_of__division_by_zero_whatever_the_numbers__is_refused():
    with pytest.raises(ConfigError, match="divides by 0"):
        cells_of("s.t1.low:top1 / 0 > 1")


def test_cells_of__division_by_a_difference__is_allowed():
    assert cells_of("1 / (s.t1.low:top1 - 1) < 100") == [("s.t1.low", "top1")]


def test_cells_of__cells__come_once_in_the_order_of_the_text():
    text = "max(s.t1.b:top1, s.t1.a-x:diff_norm) - s.t1.b:top1 < s.t1.c:top1"

    assert cells_of(text) == [("s.t1.b", "top1"), ("s.t1.a-x", "diff_norm"), ("s.t1.c", "top1")]


# Sets of cells


def resolved(text: str) -> ResolvedClaim:
    return resolve(Claim(statement="", type="directional", holds=[text]), KNOWN, "file: claims.c1.holds")


@pytest.mark.parametrize(
    ("written", "cells"),
    [
        ("s.t2.eta-*:top1", ["s.t2.eta-0.0:top1", "s.t2.eta-0.5:top1", "s.t2.eta-1.0:top1"]),
        ("s.t2.eta-*!eta-0.5:top1", ["s.t2.eta-0.0:top1", "s.t2.eta-1.0:top1"]),
        ("s.t2.*!eta-0.5!base:top1", ["s.t2.eta-0.0:top1", "s.t2.eta-1.0:top1"]),
        ("s.t2.*!{eta-0.5,base}:top1", ["s.t2.eta-0.0:top1", "s.t2.eta-1.0:top1"]),
        ("s.t2.{base,eta-0.0}:top1", ["s.t2.eta-0.0:top1", "s.t2.base:top1"]),
        ("s.t2.eta-{0.0,1.*}:top5", ["s.t2.eta-0.0:top5", "s.t2.eta-1.0:top5"]),
        ("s.t2.base:*", ["s.t2.base:top1", "s.t2.base:top5"]),
        ("s.t2.base:top{1,5}", ["s.t2.base:top1", "s.t2.base:top5"]),
        ("s.t2.base:*!top1", ["s.t2.base:top5"]),
        ("s.t2.{eta-0.0,base}:*", ["s.t2.eta-0.0:top1", "s.t2.eta-0.0:top5", "s.t2.base:top1", "s.t2.base:top5"]),
    ],
)
def test_resolve__set_of_cells__is_these_in_the_order_of_the_table(written, cells):
    assert resolved(f"max({written}) > 3").sets == {written: cells}


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("mean(s.t1.{low,mid}:top1) == 72.5", "true"),
        ("max(s.t1.*!{zero,absent}:top1) == 80", "true"),
        ("min(s.t1.{low,mid}:top1, 60) == 60", "true"),
        ("max(s.t1.{low,mid}:top1) - min(s.t1.{low,mid}:top1) == 5", "true"),
        ("mean(s.t1.low:top1, s.t1.high:top1) == 75", "true"),
        ("mean(s.t1.{low,mid}:top1, s.t1.high:top1) == 75", "true"),
        ("mean(s.t1.*:top1) > 0", "not run yet"),
    ],
)
def test_judge__function_of_a_set__is_that_of_all_its_cells(text, verdict):
    (claim,) = judge({"s.c1": resolved(text)}, READINGS)

    assert claim.verdict == verdict


def test_resolve__cells_of_another_study__are_found_and_its_table_is_named():
    assert resolved("s.t1.low:top1 < other.t1.x:top1").tables() == ["s.t1", "other.t1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max(s.t2.etta-*:top1) > 1", "no row 's.t2.etta-*'; did you mean 's.t2.eta-"),
        ("max(s.t2.{eta-0.0,bas}:top1) > 1", "no row 's.t2.bas'; did you mean 's.t2.base'?"),
        ("max(s.t2.{eta-0.0,eta-0.6}:top1) > 1", "no row 's.t2.eta-0.6'; did you mean 's.t2.eta-"),
        ("max(s.t2.eta-*!eta-0.6:top1) > 1", "no row 's.t2.eta-0.6'; did you mean 's.t2.eta-"),
        ("max(s.t2.eta-*!base:top1) > 1", "no row 's.t2.base'; did you mean 's.t2.eta-"),
        ("max(s.t2.eta-*!*:top1) > 1", "everything is excluded"),
        ("min(s.t2.base:tap*) > 1", "no column 'tap*'; did you mean 'top"),
        ("s.t3.base:top1 > 1", "no table 's.t3'; did you mean 's.t"),
        ("stu.t3.base:top1 > 1", "no table 'stu.t3'; "),
        ("s.t2.bass:top1 > 1", "no cell s.t2.bass:top1: no row 's.t2.bass'; did you mean 's.t2.base'?"),
        ("s.t2.base:top2 > 1", "no cell s.t2.base:top2: no column 'top2'; did you mean 'top"),
        ("s.t2.base:top1*2 > 1", "no column 'top1*2'; did you mean 'top1'? valid: top1, top5 (to multiply, put spaces"),
        ("s.t2.eta-*:top1 > 1", "3 cells are not one number; put them into mean, min or max"),
        ("abs(s.t2.eta-*:top1) > 1", "3 cells are not one number; put them into mean, min or max"),
        ("mean(s.t2.base:top1) > 1", "is not allowed; use cells"),
    ],
)
def test_resolve__mistake_in_a_set__says_what_was_found_and_what_is_near(text, message):
    with pytest.raises(ConfigError) as caught:
        resolved(text)

    assert str(caught.value).startswith("file: claims.c1.holds: ")
    assert message in str(caught.value)
