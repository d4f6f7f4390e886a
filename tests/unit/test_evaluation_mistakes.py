"""Mistakes in what a new evaluation returns, planted one by one: each is one sentence that says what to do."""

import re
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from evaluation_contract import check_outcome, compare_closely, compare_outcomes

from pipeline.evals.base import EvalConfig, Evaluation, Outcome
from pipeline.method_checks.declared import check_config


class Mine(Evaluation):
    class Config(EvalConfig):
        name: Literal["mine"] = "mine"

        @property
        def metrics(self):
            return ("top1", "bytes")

        @property
        def files(self):
            return ("grid.png",)

    without_error = {"bytes": "it is counted, not sampled"}


class Silent(Mine):
    class Config(EvalConfig):
        name: Literal["silent"] = "silent"
        k: int = 3


GOOD = Outcome(
    metrics={"top1": 70.0, "bytes": 12.0},
    errors={"top1": 1.5},
    per_image={"top1": np.zeros(4)},
    files={"grid.png": b"png"},
)
MISTAKES = {
    "metric missing": (
        {"metrics": {"top1": 70.0}},
        "returned no bytes, which Config.metrics names; compute it, or say in",
    ),
    "metric unnamed": (
        {"metrics": {**GOOD.metrics, "top5": 90.0}, "errors": {"top1": 1.0, "top5": 1.0}},
        "returned top5, which Config.metrics does not name; add it there",
    ),
    "file missing": ({"files": {}}, "returned no grid.png, which Config.files names; compute it"),
    "file empty": ({"files": {"grid.png": b""}}, "returned grid.png without content; a file is the bytes"),
    "no float": ({"metrics": {"top1": 70, "bytes": 12.0}}, "returned top1 as int, expected a float: call .item() once"),
    "not finite": ({"metrics": {"top1": float("nan"), "bytes": 1.0}}, "returned top1 = nan, expected a finite number;"),
    "no error": ({"errors": {}, "per_image": {}}, 'returned top1 without a standard error;.*{"top1": "it is counted'),
    "error twice": ({"errors": {"top1": 1.0, "bytes": 1.0}}, "returned an error of bytes, which its without_error"),
    "error unknown": ({"errors": {"top1": 1.0, "top": 1.0}}, "returned errors of top, which are no metrics of it"),
    "error negative": ({"errors": {"top1": -1.0}}, "returned an error of top1 that is negative or not finite"),
    "values unknown": (
        {"per_image": {"top1": np.zeros(4), "top": np.zeros(4)}},
        "returned values per image of top without an error",
    ),
}


def test_check__outcome_without_a_mistake__has_nothing_to_say():
    assert check_outcome(Mine, Mine.Config(), GOOD) == []


@pytest.mark.parametrize("name", MISTAKES)
def test_check__outcome_with_a_mistake__is_one_sentence(name):
    changes, text = MISTAKES[name]
    (sentence,) = check_outcome(Mine, Mine.Config(), replace(GOOD, **changes))
    assert sentence.startswith("Mine.compute returned ")
    assert re.search(re.escape(text).replace(r"\.\*", ".*"), sentence), sentence


def test_check__config_that_names_nothing__says_so():
    found = check_outcome(Silent, Silent.Config(), replace(GOOD, metrics={}, errors={}, files={}, per_image={}))
    assert found == ["Silent.Config names no metrics and no files; it needs the property `metrics` or `files`"]
    assert "Silent.Config.k is a number without a range" in check_config("silent", Silent)[0]


@pytest.mark.parametrize("compare", [compare_outcomes, compare_closely])
def test_compare__another_number__names_it_with_both_values(compare):
    other = replace(GOOD, metrics={"top1": 70.5, "bytes": 12.0})
    assert compare(Mine, GOOD, GOOD, "again") == []
    (sentence,) = compare(Mine, GOOD, other, "in batches of another size")
    assert sentence.startswith(
        "Mine.compute found another top1 (70, then 70.5) in batches of another size; a result must"
    )
    assert "draw from batch.generator" in sentence


def test_compare__another_file_or_value_of_an_image__names_it():
    other = replace(GOOD, files={"grid.png": b"gnp"}, per_image={"top1": np.ones(4)})
    (sentence,) = compare_outcomes(Mine, GOOD, other, "again")
    assert sentence.startswith("Mine.compute found another grid.png, top1")
