"""What the page says in words: which numbers it opens with, and what it says of a claim; and which rows it shows."""

import pytest
from report_content import DIFF_NORM, TOP1, cell, make_table, row

from pipeline.report.collect import Content
from pipeline.report.records import Drawing, FilledTable
from pipeline.report.site.findings import claim_sentence, in_words, key_numbers, key_sentences, opening, surprises
from pipeline.report.tables.view import view
from pipeline.report.words import error, number, signed
from pipeline.study.claims.decide import JudgedClaim, Predicate

TIME = {"id": "time", "label": "Time (s)", "direction": "none", "decimals": 2}


def table(name: str, columns: list[dict], *rows: list[float | None]) -> FilledTable:
    """Numbers by row and column; None: not run."""
    lines = [
        row(name, index, {c["id"]: cell(index, c["id"], n, 50.0) for c, n in zip(columns, numbers, strict=True)})
        for index, numbers in enumerate(rows)
    ]
    return FilledTable(**make_table(name, "Toys", columns, lines, ""))


# The numbers that say most


def test_key_sentences__study_of_a_method__begin_with_that_method_though_another_row_is_better():
    keys = key_numbers([table("mjp.t1", [TOP1], [72.0], [74.5], [70.25])], [])
    assert key_sentences(keys, "JP: shuffled patches") == [
        "Top-1 (%) in Table 1: 70.2 \u00b1 1.2 for DeiT-S + JP, 72.0 \u00b1 1.2 for DeiT-S.",
        "The best is 74.5 \u00b1 1.2 for DeiT-S, no position embedding.",
    ]


def test_key_sentences__of_a_table_of_which_rows_were_not_run__count_those_that_were():
    made = table("mjp.t1", [TOP1], [72.0], [None], [None], [70.0])
    assert key_sentences(key_numbers([made], []), "MJP")[-1] == "2 of 4 rows of Table 1 were run here."
    made.rows[1].runs = {}  # quoted: nothing can run it
    assert key_sentences(key_numbers([made], []), "MJP")[-1] == "2 of 3 rows of Table 1 were run here."


def test_key_sentences__no_row_of_the_studys_name__begin_with_the_best():
    keys = key_numbers([table("mjp.t1", [DIFF_NORM], [3.0], [2.0])], [])  # lower is better
    assert key_sentences(keys, "ST: permutations") == [
        "Diff. norm in Table 1: 2.00 \u00b1 1.25 for DeiT-S, no position embedding; 3.00 \u00b1 1.25 for DeiT-S."
    ]


def judged(claim_id: str, verdict: str, doubt: float | None) -> JudgedClaim:
    made = claim("mjp.t1.0:top1")
    return made.model_copy(update={"id": claim_id, "verdict": verdict, "doubt": doubt})


def test_surprises__are_the_clearest_refuted_claims_of_each_study_then_what_noise_leaves_open():
    claims = [
        judged("mjp.c1", "false", 0.4),
        judged("mjp.c2", "false", 0.1),
        judged("mp3.c1", "false", 0.9),
        judged("mp3.c2", "within noise", 2.0),
        judged("mp3.c3", "true", 0.1),
    ]
    found = surprises(in_words(claims, [table("mjp.t1", [TOP1], [70.0])], "demo"), most=4)
    assert [one.claim.id for one in found] == ["mjp.c2", "mp3.c1", "mjp.c1", "mp3.c2"]


def test_key_numbers__column_without_a_direction__says_nothing_and_the_next_is_taken():
    both = table("mjp.t1", [TIME, DIFF_NORM], [1.0, 3.5], [2.0, 4.5])
    assert key_numbers([both], []).column.label == "Diff. norm"
    assert key_numbers([table("mjp.t1", [TIME], [1.0])], []) is None


def test_key_numbers__of_several_tables__are_those_of_most_rows_that_ran():
    short, long = table("mjp.t1", [TOP1], [1.0], [None], [None], [None]), table("mjp.t2", [TOP1], [1.0], [2.0])
    found = key_numbers([short, long], [])
    assert (found.table.id, len(found.rows)) == ("mjp.t2", 2)


def test_key_numbers__claims_compare_a_column__is_that_one_though_others_have_more_rows():
    short = table("mjp.t1", [TOP1, DIFF_NORM], [70.0, 3.0], [71.0, 4.0])
    long = table("mjp.t2", [TOP1], [1.0], [2.0], [3.0])
    once, twice = claim("mjp.t2.0:top1", "mjp.t2.1:top1"), claim("mjp.t1.0:diff_norm", "mjp.t1.1:diff_norm")
    found = key_numbers([long, short], [once, twice, twice])
    assert (found.table.id, found.column.first.id) == ("mjp.t1", "diff_norm")


def test_opening__comparable_numbers__counts_those_that_match():
    made = table("mjp.t1", [TOP1], [50.0], [50.1], [70.0]).model_copy(update={"comparable": True})
    for line, verdict in zip(made.rows, ("match", "match", "differs"), strict=True):
        line.cells["top1"].verdict = verdict
    assert "Of 3 numbers that can be compared with the papers', 2 match." in opening(Content([made], [], []), "demo")


# Claims


def claim(*cells: str) -> JudgedClaim:
    about = {"id": "mjp.c1", "statement": "", "type": "directional", "verdict": "not run yet", "reason": ""}
    return JudgedClaim(**about, predicates=[Predicate(text="", verdict="not run yet", cells=dict.fromkeys(cells))])


def test_claim__numbers__have_their_columns_decimals_and_their_rows_names_and_missing_ones_are_apart():
    made = table("mjp.t1", [TOP1, DIFF_NORM], [70.0, 3.14159], [71.0, None])
    (found,) = in_words([claim("mjp.t1.0:diff_norm", "mjp.t1.1:top1", "mjp.t1.1:diff_norm")], [made], "demo")
    assert found.numbers == [
        "Diff. norm: 3.14 \u00b1 1.25 for DeiT-S",
        "Top-1 (%): 71.0 \u00b1 1.2 for DeiT-S, no position embedding",
    ]
    assert found.missing == ["Table 1: DeiT-S, no position embedding (Diff. norm)"]
    assert found.commands == ["snakemake mjp_table1"]


def test_claim__cell_of_a_figure_of_lines__says_what_its_axes_are():
    made = table("mjp.t1", [TOP1], [70.0])
    made = made.model_copy(update={"figure": Drawing(kind="lines", x_label="shuffle ratio", y_label="accuracy (%)")})
    (found,) = in_words([claim("mjp.t1.0:top1")], [made], "demo")
    assert found.numbers == ["accuracy (%) at shuffle ratio Top-1 (%): 70.0 \u00b1 1.2 for DeiT-S"]


def test_claim__partly_decided__says_how_far():
    made = claim("mjp.t1.0:top1").model_copy(
        update={"predicates": [Predicate(text="", verdict=word, cells={}) for word in ("true", "not run yet", "true")]}
    )
    (found,) = in_words([made], [], "demo")
    assert found.so_far == "2 of 3 comparisons could be made here; both hold; 1 needs rows that were not run."
    assert in_words([claim("mjp.t1.0:top1")], [], "demo")[0].so_far == ""
    assert in_words([made.model_copy(update={"verdict": "false"})], [], "demo")[0].so_far == ""


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        (["true"], "The one claim that these runs can decide holds."),
        (["false"], "The one claim that these runs can decide does not hold."),
        (["within noise"] * 2, "Both claims that these runs can decide are within noise."),
        (
            ["true"] * 3 + ["not run yet"],
            "All 3 claims that these runs can decide hold; 1 more needs rows that were not run.",
        ),
        (["false", "true", "true"], "Of 3 claims that these runs can decide, 2 hold and 1 does not hold."),
        (["not run yet"], "The one claim cannot be decided by these runs."),
        (["not run yet", "not testable"], "None of 2 claims can be decided by these runs."),
        (["true", "not testable"], "The one claim that these runs can decide holds; 1 is not testable here."),
    ],
)
def test_claims__few_or_of_one_verdict__are_counted_in_natural_words(verdicts, outcome):
    assert claim_sentence([claim().model_copy(update={"verdict": verdict}) for verdict in verdicts]) == [outcome]


def test_claim__cell_that_cannot_have_a_number__names_no_command_for_it():
    made = table("mjp.t1", [TOP1], [None], [None])
    made.rows[0].cells["top1"].is_final = True
    (found,) = in_words([claim("mjp.t1.0:top1")], [made], "demo")
    assert (found.missing, found.commands) == ([], [])
    (found,) = in_words([claim("mjp.t1.0:top1", "mjp.t1.1:top1")], [made], "demo")
    assert (found.missing, found.commands) == ([f"Table 1: {made.rows[1].label}"], ["snakemake mjp_table1"])


def test_claim__all_cells_measured__names_no_command():
    made = table("mjp.t1", [TOP1], [70.0])
    assert in_words([claim("mjp.t1.0:top1")], [made], "demo")[0].commands == []


# Which rows


def test_view__two_rows_like_one_that_did_not_run__are_one_row():
    made = table("mjp.t1", [TOP1], [None], [70.0], [70.0])
    made.rows[1].same_as = made.rows[2].same_as = made.rows[0].label
    assert [[shown.first.label, *[other.label for other in shown.others]] for shown in view(made).rows] == [
        ["DeiT-S, no position embedding", "DeiT-S + JP"]
    ]


# Numbers as text


@pytest.mark.parametrize(
    ("value", "text"), [(1.25, "+/- 1.2"), (0.04, "+/- 0.04"), (0.0123, "+/- 0.01"), (0.0, ""), (None, "")]
)
def test_error__smaller_than_its_column_prints__gets_the_digits_that_it_needs(value, text):
    assert error(value, 1, "+/-") == text


@pytest.mark.parametrize(("value", "text"), [(-0.04, "0.0"), (-0.06, "-0.1"), (None, "n/a")])
def test_number__that_rounds_to_zero__has_no_sign(value, text):
    assert number(value, 1) == text


@pytest.mark.parametrize(("value", "text"), [(0.0, "0.0000"), (3e-15, "3e-15"), (-2e-06, "-2e-06"), (0.0001, "0.0001")])
def test_number__that_would_round_to_zero_with_many_decimals__is_written_in_full(value, text):
    assert number(value, 4) == text
    assert error(abs(value), 4, "+/-") == ("" if abs(value) < 1e-9 else f"+/- {text.lstrip('-')}")


@pytest.mark.parametrize(("value", "text"), [(0.31, "+0.3"), (-0.31, "-0.3"), (-0.01, "+0.0")])
def test_signed__difference__has_its_sign(value, text):
    assert signed(value, 1) == text


def test_claim__rows_whose_names_have_commas__are_parted_by_semicolons():
    made = table("mjp.t1", [TOP1], [None], [None])
    (found,) = in_words([claim("mjp.t1.0:top1", "mjp.t1.1:top1")], [made], "demo")
    assert found.missing == ["Table 1: DeiT-S; DeiT-S, no position embedding"]
