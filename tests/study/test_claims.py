"""Claims as comparisons of cells: their logic, their arithmetic, and that they are never executed."""

import pytest

from pipeline.errors import ConfigError
from pipeline.study.claims import JudgedClaim, Predicate, cells_of, decide, judge
from pipeline.study.spec import Claim

VALUES = {
    ("s.t1.low", "top1"): 70.0,
    ("s.t1.mid", "top1"): 75.0,
    ("s.t1.high", "top1"): 80.0,
    ("s.t1.zero", "top1"): 0.0,
    ("s.t1.absent", "top1"): None,
}
TRUE, FALSE, OPEN = "s.t1.low:top1 < 75", "s.t1.low:top1 > 75", "s.t1.absent:top1 < 75"


def judged(*holds: str) -> JudgedClaim:
    (claim,) = judge({"s.c1": Claim(statement="It is so", type="directional", holds=list(holds))}, VALUES)
    return claim


@pytest.mark.parametrize(
    ("holds", "verdict"),
    [
        ([TRUE], "true"),
        ([FALSE], "false"),
        ([OPEN], "undecided"),
        ([TRUE, TRUE], "true"),
        ([TRUE, OPEN], "undecided"),
        ([OPEN, FALSE], "false"),
        ([TRUE, FALSE], "false"),
        ([TRUE, OPEN, FALSE], "false"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_judge__several_comparisons__false_beats_undecided_beats_true(holds, verdict):
    assert judged(*holds).verdict == verdict


def test_judge__every_comparison__is_shown_with_its_verdict_and_numbers():
    assert judged(TRUE, OPEN).predicates == [
        Predicate(text=TRUE, verdict="true", cells={"s.t1.low:top1": 70.0}),
        Predicate(text=OPEN, verdict="undecided", cells={"s.t1.absent:top1": None}),
    ]


def test_judge__cells_without_number__are_the_reason():
    claim = judged(TRUE, OPEN, "s.t1.other:top1 < 1")

    assert claim.reason == "no number for s.t1.absent:top1, s.t1.other:top1"


def test_judge__all_numbers_there__needs_no_reason():
    assert judged(TRUE, FALSE).reason == ""


def test_judge__division_by_zero__is_undecided_and_says_so():
    claim = judged("s.t1.low:top1 / s.t1.zero:top1 > 1")

    assert (claim.verdict, claim.reason) == ("undecided", "its numbers lead to a division by 0")


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
        ("s.t1.low:top1 < s.t1.absent:top1 < s.t1.high:top1", "undecided"),
    ],
)
def test_decide__chain__holds_if_every_link_does(text, verdict):
    assert decide(text, VALUES) == verdict


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
    assert decide(f"s.t1.low:top1 {operator} 70", VALUES) == equal
    assert decide(f"s.t1.low:top1 {operator} 71", VALUES) == less


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
        "s.t1.high:top1-s.t1.low:top1 == 10",
    ],
)
def test_decide__arithmetic__is_what_it_says(text):
    assert decide(text, VALUES) == "true"


def test_decide__row_with_hyphens__is_one_cell():
    assert decide("s.t1.a-b-c:top1 == 1", {("s.t1.a-b-c", "top1"): 1.0}) == "true"


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
