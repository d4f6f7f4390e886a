"""Claims on runs that another seed would change: several seeds, two, one with measured noise, and one without."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from noise_readings import SURE, accuracies, judged, one_run, paired, verdict

from pipeline.study.claims.reading import Reading, SeedNoise

# Seeds


@pytest.mark.parametrize(("gap", "expected"), [(2.0, "within noise"), (2.6, "true"), (-2.6, "false")])
def test_seeds__of_one_cell__add_noise_with_their_degrees_of_freedom(gap, expected):
    t_975_with_9 = 2.262  # from a printed table
    assert (abs(gap) > t_975_with_9) == (expected != "within noise")

    assert verdict(" a > 70 ", a=Reading(70 + gap, error=0.0, seed_error=1.0, dof=9)) == expected


def test_two_seeds__far_apart_by_a_normal_distribution__are_still_within_noise():
    two = Reading(75.0, error=0.0, seed_error=1.0, dof=1)

    assert verdict(" a > 70 ", a=two) == "within noise"  # 12.7 errors are needed, not 2
    assert verdict(" a > 70 ", a=Reading(75.0, error=0.0, seed_error=1.0, dof=30)) == "true"


def test_seeds__of_both_sides__add_up():
    def reading(value: float) -> Reading:
        return Reading(value, error=0.0, seed_error=1.0, dof=1000)

    assert verdict(" a > b ", a=reading(72.4), b=reading(70.0)) == "within noise"  # 2.4 < 1.96 * sqrt(2)
    assert verdict(" a > b ", a=reading(73.1), b=reading(70.0)) == "true"


def test_seeds__values_by_image__are_averaged_before_they_are_paired():
    a, b = accuracies(690, 30, 5, 275)
    generator = np.random.default_rng(3)
    noise = [generator.permutation(np.repeat([300.0, -300.0], 500)).astype(np.float32) for _ in range(2)]

    assert verdict(" a > b ", a=paired(a + noise[0], a - noise[0]), b=paired(b + noise[1], b - noise[1])) == "true"


# One run


@pytest.mark.parametrize(
    ("gap", "expected"), [(2.7, "within noise"), (2.9, "true"), (-2.7, "within noise"), (-2.9, "false")]
)
def test_one_run_each__seeds_differ_by_one__is_decided_by_two_runs_noise(gap, expected):
    assert (abs(gap) > SURE * math.hypot(1, 1)) == (expected != "within noise")

    claim = judged(" a > b ", a=one_run(70 + gap, 1.0), b=one_run(70, 1.0))

    assert claim.verdict == expected
    assert claim.reason.endswith("one run each; standard deviation over seeds at this scale: 1.0")


def test_one_run__few_seeds_measured__is_judged_with_their_degrees_of_freedom():
    t_975_with_3 = 3.182  # from a printed table
    above, below = (Reading(70 + gap, error=0.0, is_one_run=True, seeds=SeedNoise(1.0, 3)) for gap in (3.4, 3.0))
    assert 3.0 < t_975_with_3 < 3.4

    assert [verdict(" a > 70 ", a=a) for a in (above, below)] == ["true", "within noise"]


def test_one_run__seeds_not_measured__small_differences_say_nothing():
    claim = judged(" a > b ", a=one_run(70.3, None), b=one_run(70.0, None))

    assert claim.verdict == "within noise"
    assert "the noise of training of s.t1.a:top1, s.t1.b:top1 is not known" in claim.reason
    assert verdict(" a > b ", a=one_run(70.5, None), b=one_run(70.0, None)) == "true"


def test_one_run__seeds_not_measured__difference_must_exceed_the_tolerance_and_the_noise_of_images():
    error, tolerance = 0.1, 0.4
    sure = tolerance + SURE * error

    above, below = (Reading(70 + gap, error=error, tolerance=tolerance, is_one_run=True) for gap in (sure + 0.02, 0.5))
    assert tolerance < 0.5 < sure

    assert [verdict(" a > 70 ", a=a) for a in (above, below)] == ["true", "within noise"]
    assert [verdict(" a < 70 ", a=a) for a in (above, below)] == ["false", "within noise"]


def test_one_run__two_cells_with_other_degrees_of_freedom__may_move_together():
    a, b = (Reading(71, error=0.0, is_one_run=True, seeds=SeedNoise(1.0, dof), run="run") for dof in (900, 901))
    text = " ( a + b ) / 2 > 69.3 "

    # The noise of their mean is that of one of them, 1.0; of two that have nothing in common it is 0.71.
    assert verdict(text, a=a, b=b) == "within noise"
    assert verdict(text, a=a, b=replace(b, run="another")) == "true"


def test_one_run__metric_without_images_and_measured_seeds__is_decided_by_the_noise_of_seeds():
    # Such as the variance of a position table: another seed moves it, other images cannot.
    a, b = (Reading(value, tolerance=0.4, is_one_run=True, seeds=SeedNoise(0.01, 1000)) for value in (70.2, 70.0))

    claim = judged(" a > b ", a=a, b=b)

    assert claim.verdict == "true"
    assert re.search(
        r" of 0\.200 \+/- 0\.02[78] \(95 %\), one run each; standard deviation over seeds at this scale: 0\.01$",
        claim.reason,
    )


def two_seeds(value: float, seeds: SeedNoise | None) -> Reading:
    return Reading(value, error=0.0, seed_error=1.0, dof=1, tolerance=0.4, seeds=seeds)


def test_two_seeds__others_measured_at_this_scale__are_judged_with_the_noise_of_all():
    error = 1.0 / math.sqrt(2)  # of the mean of two; seeds differ by 1.0

    above, below = (two_seeds(70 + gap * error, SeedNoise(1.0, 1000)) for gap in (2.1, 1.8))

    assert [verdict(" a > 70 ", a=a) for a in (above, below)] == ["true", "within noise"]
    assert verdict(" a > 70 ", a=two_seeds(70 + 2.1, None)) == "within noise"  # 12.7 errors


def test_two_seeds__judged_with_others__say_so():
    words = judged(" a > b ", a=two_seeds(75.0, SeedNoise(1.0, 9)), b=two_seeds(70.0, SeedNoise(1.0, 9))).reason

    assert words.endswith("2 seeds, pooled with others of this scale; standard deviation over seeds at this scale: 1.0")
    alone = judged(" a > b ", a=two_seeds(75.0, SeedNoise(1.0, 1)), b=two_seeds(70.0, SeedNoise(1.0, 1))).reason
    assert alone.endswith("2 seeds")


def test_several_seeds__have_their_own_noise_whatever_was_measured_elsewhere():
    a = Reading(72.0, seed_error=0.1, dof=3, seeds=SeedNoise(50.0, 9))

    assert verdict(" a > 70 ", a=a) == "true"


def test_one_run__mean_over_its_cells__has_all_noise_of_its_seed():
    cells = {name: Reading(71.5, error=0.0, is_one_run=True, seeds=SeedNoise(1.0, 1000), run="r") for name in "abc"}

    assert verdict("mean( a , b , c ) > 70", **cells) == "within noise"  # 1.5 < 1.96; of three runs it would be 1.13
    apart = {name: replace(reading, run=name) for name, reading in cells.items()}
    assert verdict("mean( a , b , c ) > 70", **apart) == "true"


def test_one_run__difference_of_its_cells__is_not_taken_for_sure():
    a, b = (Reading(value, error=0.0, is_one_run=True, seeds=SeedNoise(1.0, 1000), run="r") for value in (71.5, 70.0))

    assert verdict(" a > b ", a=a, b=b) == "within noise"
