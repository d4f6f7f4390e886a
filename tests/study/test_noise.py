"""Claims with noise: verdicts against standard errors worked out here in a few lines, paired and unpaired."""

import math
from dataclasses import replace

import pytest
from noise_readings import SURE, A, B, accuracies, binomial, judged, one_run, paired, unpaired, verdict

from pipeline.study.claims.decide import ResolvedClaim, judge
from pipeline.study.claims.reading import Reading

# Two accuracies on the same images: only the images that one of the two alone gets right tell them apart


@pytest.mark.parametrize(
    ("only_a", "only_b"), [(60, 40), (80, 40), (70, 40), (62, 40), (40, 70), (12, 3), (8, 3), (5, 5)]
)
def test_paired__two_accuracies__are_decided_by_the_exact_standard_error(only_a, only_b):
    count = 1000
    a, b = accuracies(600, only_a, only_b, count - 600 - only_a - only_b)
    difference = 100 * (only_a - only_b) / count
    disagree = (only_a + only_b) / count
    error = 100 * math.sqrt((disagree - (difference / 100) ** 2) / (count - 1))

    expected = "within noise" if abs(difference) < SURE * error else "true" if difference > 0 else "false"

    assert verdict(" a > b ", a=paired(a), b=paired(b)) == expected


@pytest.mark.parametrize(
    ("a", "b"), [(74.0, 70.0), (75.0, 70.0), (76.0, 70.0), (70.0, 75.0), (70.0, 73.0), (70.0, 70.0)]
)
def test_unpaired__two_accuracies__are_decided_by_the_two_sample_binomial_error(a, b):
    error = math.hypot(binomial(a, 1000), binomial(b, 1000))

    expected = "within noise" if abs(a - b) < SURE * error else "true" if a > b else "false"

    assert verdict(" a > b ", a=unpaired(a), b=unpaired(b)) == expected


def test_same_numbers__paired_and_unpaired__have_different_verdicts():
    a, b = accuracies(690, 30, 5, 275)

    assert verdict(" a > b ", a=paired(a), b=paired(b)) == "true"
    assert verdict(" a > b ", a=unpaired(72.0), b=unpaired(69.5)) == "within noise"


def test_same_images_in_another_order__are_not_paired():
    a, b = accuracies(690, 30, 5, 275)
    other = Reading(69.5, error=1.4, per_image=(b,), images="val, shuffled")

    assert verdict(" a > b ", a=paired(a), b=other) == "within noise"


def test_one_accuracy_against_a_number__has_only_its_own_error():
    a, _ = accuracies(930, 0, 0, 70)

    assert verdict(" a > 91 ", a=paired(a)) == "true"
    assert verdict(" a > 92 ", a=paired(a)) == "within noise"
    assert verdict(" a > 95 ", a=paired(a)) == "false"


@pytest.mark.parametrize(
    ("text", "expected"), [(" a >= b ", "true"), (" a > b ", "false"), (" abs( a - b ) < 0.001", "true")]
)
def test_same_measurement_in_two_cells__is_equal_to_itself(text, expected):
    a, _ = accuracies(700, 0, 0, 300)

    assert verdict(text, a=paired(a), b=paired(a.copy())) == expected
    same = Reading(70.0, error=2.0, seed_error=1.0, dof=2, source="runs/x/train.json: top1")
    assert verdict(text, a=same, b=same) == expected


# Chains, min, max, abs


def test_chain__with_one_step_within_noise__is_within_noise():
    low, middle, high = unpaired(60.0), unpaired(70.0), unpaired(71.0)

    assert verdict(" a < b < c ", a=low, b=middle, c=high) == "within noise"
    assert verdict(" a < b < c ", a=low, b=middle, c=unpaired(80.0)) == "true"
    assert verdict(" a < b < c ", a=unpaired(69.0), b=middle, c=unpaired(80.0)) == "within noise"


def test_chain__with_one_step_refuted__is_false_though_another_is_within_noise():
    assert verdict(" a < b < c ", a=unpaired(70.0), b=unpaired(71.0), c=unpaired(60.0)) == "false"


def test_chain__of_equal_numbers__is_not_refuted_by_having_many_steps():
    # Any order of three equal things is unlikely; that is no evidence against one of the two steps.
    assert verdict(" a < b < c ", a=unpaired(70.0), b=unpaired(70.0), c=unpaired(70.0)) == "within noise"


def test_range__that_is_small_by_numbers_but_drawn_wide__is_not_called_false():
    text = "max( a , b , c ) - min( a , b , c ) <= 0.31"

    assert verdict(text, a=unpaired(70.0), b=unpaired(70.1), c=unpaired(70.2)) == "within noise"
    assert verdict(text, a=Reading(70.0, 0.01), b=Reading(70.1, 0.01), c=Reading(70.2, 0.01)) == "true"
    assert verdict(text, a=unpaired(60.0), b=unpaired(70.1), c=unpaired(70.2)) == "false"


def test_max__of_several_noisy_numbers__is_not_sure_because_one_of_them_was_lucky():
    rest = {name: Reading(70.0, error=1.0) for name in ("b", "c")}

    # Alone, 2.1 errors above would be enough; the best of three is above that by chance far more often.
    assert verdict(" a > 70 ", a=Reading(72.1, error=1.0)) == "true"
    assert verdict("max( a , b , c ) > 71", a=Reading(72.1, error=1.0), **rest) == "within noise"


def test_mean__of_two_noisy_numbers__has_the_error_of_their_mean():
    # 1.96 * 1 / sqrt(2) = 1.39
    assert verdict("mean( a , b ) > 70", a=Reading(71.0, error=1.0), b=Reading(72.0, error=1.0)) == "true"
    assert verdict("mean( a , b ) > 70", a=Reading(70.8, error=1.0), b=Reading(71.8, error=1.0)) == "within noise"
    assert verdict("mean( a , b ) > 70", a=Reading(68.0, error=1.0), b=Reading(69.0, error=1.0)) == "false"


def test_abs__difference_below_a_bound__needs_noise_below_it_too():
    assert verdict("abs( a - b ) < 1.0", a=unpaired(70.0), b=unpaired(70.1)) == "within noise"
    assert verdict("abs( a - b ) < 1.0", a=Reading(70.0, 0.2), b=Reading(70.1, 0.2)) == "true"
    assert verdict("abs( a - b ) < 1.0", a=unpaired(70.0), b=unpaired(80.0)) == "false"


# Decided by the numbers alone


def test_exact_claim__is_decided_without_noise():
    assert judged(" a < 100 ", type="exact", a=Reading(99.9, error=1.0)).verdict == "true"
    assert judged(" a < 100 ", a=Reading(99.9, error=1.0)).verdict == "within noise"


def test_equality__is_decided_without_noise_also_in_a_chain():
    assert verdict(" a == 70 ", a=unpaired(70.0)) == "true"
    assert verdict(" a == 70 ", a=unpaired(70.001)) == "false"
    assert verdict("60 < a == 70 ", a=unpaired(70.0)) == "true"


def test_noise_not_known__without_a_tolerance__decides_nothing_and_says_so():
    claim = judged(" a > b ", a=Reading(71.0), b=unpaired(60.0))

    assert claim.verdict == "within noise"
    assert claim.reason.endswith("the noise of s.t1.a:top1 is not known, so differences say nothing")


def test_noise_not_known__of_a_cost__is_decided_by_the_numbers():
    assert judged(" a > b ", type="cost", a=Reading(71.0), b=Reading(60.0)).verdict == "true"


def test_noise_not_known__in_one_step_of_a_chain__does_not_hide_that_another_is_refuted():
    known = {"error": 0.1, "tolerance": 0.4}

    assert (
        verdict(" a < b < c ", a=Reading(70.0, tolerance=5), b=Reading(71.0, **known), c=Reading(69.0, **known))
        == "false"
    )


@pytest.mark.parametrize(
    ("value", "expected"), [(60.3, "within noise"), (59.7, "within noise"), (60.5, "true"), (59.4, "false")]
)
def test_noise_not_known__difference_below_the_tolerance__says_nothing(value, expected):
    claim = judged(" a > b ", a=Reading(value, tolerance=0.4), b=Reading(60.0, error=0.0, tolerance=0.4))

    assert claim.verdict == expected
    assert claim.reason.endswith("the noise of s.t1.a:top1 is not known, so it may be off by 0.4 more")


# Many comparisons


def test_refuted__one_of_many_comparisons__must_be_so_beyond_what_chance_does_to_some():
    # 1.96 errors refute one comparison, 2.81 one of ten.
    a, b = Reading(70.0, error=0.0), Reading(72.2, error=1.0)
    alone = ResolvedClaim(statement="", type="directional", holds=["s.t1.a:top1 > s.t1.b:top1"])
    among = alone.model_copy(update={"holds": [*alone.holds, *["s.t1.a:top1 > 60"] * 9]})

    assert [judge({"s.c1": claim}, {A: a, B: b})[0].verdict for claim in (alone, among)] == ["false", "within noise"]
    assert judge({"s.c1": among}, {A: a, B: replace(b, value=73.2)})[0].verdict == "false"


# Not worse


@pytest.mark.parametrize(
    ("value", "expected"), [(81.3, "true"), (81.2, "true"), (80.9, "within noise"), (80.6, "false"), (90.0, "true")]
)
def test_not_worse__equal_up_to_the_tolerance__holds_and_says_the_margin(value, expected):
    many = {"error": 0.02, "tolerance": 0.4}  # five million images

    claim = judged(" a >= b ", a=Reading(value, **many), b=Reading(81.3, **many))

    assert claim.verdict == expected
    assert "allowing 0.4" in claim.reason
    assert verdict(" b <= a ", a=Reading(value, **many), b=Reading(81.3, **many)) == expected


def test_not_worse__margin_of_the_claim__stands_for_a_tolerance_that_is_missing():
    cells = {A: Reading(79.5, error=0.02), B: Reading(81.3, error=0.02)}
    claim = ResolvedClaim(statement="", type="directional", holds=["s.t1.a:top1 >= s.t1.b:top1"], margin=2.0)

    assert judge({"s.c1": claim}, cells)[0].verdict == "true"
    assert judge({"s.c1": claim.model_copy(update={"margin": None})}, cells)[0].verdict == "false"
    stricter = {cell: replace(reading, tolerance=0.4) for cell, reading in cells.items()}
    assert judge({"s.c1": claim}, stricter)[0].verdict == "false"


def test_equal_values_by_image__of_two_runs__are_two_measurements():
    a, _ = accuracies(700, 0, 0, 300)

    assert verdict(" a > b ", a=paired(a, source="one"), b=paired(a.copy(), source="other")) == "false"
    several = {"seed_error": 1.0, "dof": 1000}
    assert (
        verdict(" a > b ", a=paired(a, source="one", **several), b=paired(a, source="other", **several))
        == "within noise"
    )


def test_not_worse__than_a_number__has_no_margin():
    assert verdict(" a >= 81.3 ", a=Reading(81.2, error=0.02, tolerance=0.4)) == "false"


def test_better__has_no_margin():
    assert (
        verdict(" a > b ", a=Reading(81.2, error=0.01, tolerance=0.4), b=Reading(81.3, error=0.01, tolerance=0.4))
        == "false"
    )


def test_not_worse__of_runs_whose_noise_is_not_known__holds_at_equality_and_fails_beyond_twice_the_tolerance():
    found = [verdict(" a >= b ", a=one_run(value, None), b=one_run(81.3, None)) for value in (81.3, 81.0, 80.4)]

    assert found == ["true", "within noise", "false"]


def test_values_by_image__that_are_not_the_cells__are_refused():
    a, _ = accuracies(700, 0, 0, 300)

    with pytest.raises(ValueError, match="the mean over images is 70"):
        judged(" a > 1 ", a=Reading(0.7, error=0.1, per_image=(a,), images="val"))


def test_judge__twice__is_the_same():
    readings = {"a": unpaired(72.0), "b": unpaired(70.0)}

    assert judged(" a > b ", **readings) == judged(" a > b ", **readings)


# In words


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((80.0, 60.0, 55.0), "80.0 against 60.0"),
        ((60.0, 55.0, 35.0), "55.0 against 35.0"),
        ((60.0, 61.0, 80.0), "60.0 against 61.0"),
        ((40.0, 60.0, 70.0), "60.0 against 70.0"),
    ],
    ids=["first refuted", "second refuted", "first in doubt", "second nearer"],
)
def test_reason__of_a_chain__is_its_clearest_refutation_or_its_closest_step(values, words):
    a, b, c = (Reading(value, error=1.0) for value in values)

    assert judged(" a < b < c ", a=a, b=b, c=c).reason.startswith(f"{words}, a difference of ")


@pytest.mark.parametrize(("gaps", "words"), [((20, 5), "5.0"), ((5, 20), "5.0"), ((-20, -5), "-20.0")])
def test_reason__of_several_comparisons__is_of_the_closest_or_of_the_clearest_refutation(gaps, words):
    readings = {("s.t1.a", name): Reading(70.0 + gap, error=1.0) for name, gap in zip("xy", gaps, strict=True)}
    claim = ResolvedClaim(statement="", type="directional", holds=["s.t1.a:x > 70", "s.t1.a:y > 70"])

    assert f", a difference of {words} +/- " in judge({"s.c1": claim}, readings)[0].reason


@pytest.mark.parametrize(
    ("readings", "words"),
    [
        (
            {name: paired(values) for name, values in zip("ab", accuracies(690, 30, 5, 275), strict=True)},
            "72.0 against 69.5, a difference of 2.5 +/- 1.2 (95 %), paired over 1,000 images, one run each",
        ),
        (
            {
                name: paired(values, unit="texts")
                for name, values in zip("ab", accuracies(690, 30, 5, 275), strict=True)
            },
            "72.0 against 69.5, a difference of 2.5 +/- 1.2 (95 %), paired over 1,000 texts, one run each",
        ),
        (
            {"a": unpaired(72.0), "b": unpaired(69.5)},
            "72.0 against 69.5, a difference of 2.5 +/- 4.0 (95 %), not paired by image, one run each",
        ),
        (
            {"a": Reading(72.0, 0.0, 0.1, 2), "b": Reading(69.5, 0.0, 0.1, 4)},
            "72.00 against 69.50, a difference of 2.50 +/- 0.50 (95 %), not paired by image, 3 to 5 seeds",
        ),
        ({"a": Reading(22.0, 0.0), "b": Reading(21.0, 0.0)}, "22 against 21"),
    ],
)
def test_reason__says_the_difference_its_noise_and_how_it_was_measured(readings, words):
    numbers = judged(" a > b ", **readings).reason

    assert _without_last_digits(numbers) == _without_last_digits(words)


def _without_last_digits(text: str) -> str:
    """Draws move the last digit of the noise."""
    words = text.split(" ")
    return " ".join(word[:-2] if words[at - 1] == "+/-" else word for at, word in enumerate(words))
