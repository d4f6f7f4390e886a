"""Tables from result files: where a number comes from, how it is judged, and what is said where there is none."""

import json

import pytest
from result_files import ORIGIN, write_evaluation, write_training
from toy_study import COLUMNS, A, B, C, cell, draw, name_of, result_of, write_eval

from pipeline.core import source
from pipeline.core.config import shown
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.files import digest
from pipeline.report.tables.fill import fill_table, judge_study
from pipeline.study.resolve.fingerprints import claims_fingerprint

# Numbers


def test_fill__every_number__is_the_one_in_the_result_file(measured):
    rows = fill_table(measured, "toy.t1", "all").model_dump()["rows"]

    numbers = [[row["cells"][key]["ours"] for key in ("params_m", "top1", "diff_norm")] for row in rows]
    assert numbers == [[22.05, 79.84, 17.456], [22.2, 80.16, 8.0], [22.2, 77.0, 9.0]]


def test_fill__result_file_changed__changes_the_cell(measured):
    write_eval(measured, A, classify={"top1": 12.5})

    assert cell(measured, "a", "top1")["ours"] == 12.5


def test_fill__papers_number_and_difference__stand_next_to_ours(measured):
    found = cell(measured, "b", "top1")

    assert (found["paper"], found["tolerance"]) == (80.5, 0.3)
    assert found["difference"] == pytest.approx(-0.34)


def test_fill__cell__says_where_its_number_comes_from(measured):
    assert cell(measured, "a", "top1")["provenance"] == {
        "file": f"results/toy/evals/{name_of('classify', A)}/result.json",
        "metric": "classify: top1",
        "run": A,
        "weights": {"model": digest(measured.results.run(A).encoder)},
        **ORIGIN,
    }


def test_fill__cell_of_training__comes_from_train_json(measured):
    provenance = cell(measured, "a", "params_m")["provenance"]

    assert (provenance["file"], provenance["metric"]) == (f"results/toy/runs/{A}/train.json", "params_m")


def curve_of(graph, run, *values):
    """A column of the mean over the curve of a run, which has these validations and other lines."""
    graph.tables["toy.t1"].rows["toy.t1.a"].cells["params_m"].metric = "mean_val_top1"
    lines = [{"epoch": 1, "loss": 2.0}, *({"epoch": at, "val_top1": value} for at, value in enumerate(values, 1))]
    graph.results.run(run).metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_fill__mean_over_epochs__is_that_of_the_recorded_curve(measured):
    curve_of(measured, A, 10.0, 40.0, 70.0)

    found = cell(measured, "a", "params_m")
    assert (found["ours"], found["error"]) == (40.0, None)
    assert found["provenance"]["metric"] == "mean_val_top1" and found["run"] == A


def test_fill__mean_over_epochs_of_a_run_without_a_curve__says_why_not(measured):
    curve_of(measured, A)

    found = cell(measured, "a", "params_m")
    assert found["ours"] is None
    assert found["reason"] == f"mean_val_top1 is n/a: results/toy/runs/{A}/metrics.jsonl has no val_top1"


def test_fill__header__carries_titles_notes_scale_and_columns(measured):
    filled = fill_table(measured, "toy.t1", "all").model_dump()

    assert (filled["id"], filled["study"], filled["label"], filled["title"]) == ("toy.t1", "toy", "Table 1", "Toys")
    assert (filled["scale"], filled["comparable"]) == ("toy", True)
    assert (filled["scale_note"], filled["note"]) == ("The scale's note.", "Its note.")
    assert [entry["id"] for entry in filled["columns"]] == list(COLUMNS)
    assert {row["fidelity"] for row in filled["rows"]} == {"paper"}


def test_fill__unknown_table__names_the_nearest(toy):
    with pytest.raises(ConfigError, match=r"'toy\.t2' is not among the tables at scale toy; did you mean 'toy\.t1'\?"):
        fill_table(toy, "toy.t2", "all")


# Verdicts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (79.8, "match"),
        (79.46, "match"),  # prints as 79.5, and 0.3 is the tolerance
        (79.44, "differs"),  # prints as 79.4
        (80.1, "match"),
        (80.14, "match"),
        (80.16, "differs"),
        (12.0, "differs"),
    ],
)
def test_verdict__tolerance__is_taken_at_the_printed_precision(measured, ours, verdict):
    write_eval(measured, A, classify={"top1": ours})

    assert cell(measured, "a", "top1")["verdict"] == verdict


def test_verdict__column_with_more_decimals__is_taken_at_those(measured):
    columns = measured.tables["toy.t1"].columns
    columns["diff_norm"] = columns["diff_norm"].model_copy(update={"tolerance": 0.01})

    write_eval(measured, A, consistency={"diff_norm": 16.224})
    near = cell(measured, "a", "diff_norm")["verdict"]
    write_eval(measured, A, consistency={"diff_norm": 16.226})
    far = cell(measured, "a", "diff_norm")["verdict"]

    assert (near, far) == ("match", "differs")


def test_verdict__scale_that_is_not_the_papers__is_not_comparable(measured):
    measured.comparable = False

    found = cell(measured, "a", "top1")

    assert (found["verdict"], found["paper"], found["ours"]) == ("not comparable", 79.8, 79.84)


def test_verdict__column_without_tolerance__is_not_comparable_and_says_why(measured):
    found = cell(measured, "a", "diff_norm")

    assert (found["verdict"], found["reason"]) == ("not comparable", "no tolerance is set for this column")


def test_verdict__paper_prints_no_number__is_no_paper_value(measured):
    found = cell(measured, "c", "diff_norm")

    assert (found["verdict"], found["difference"]) == ("no paper value", None)


# Cells without a number


def test_missing__evaluation_not_done__names_the_file(measured):
    result_of(measured, A).unlink()

    found = cell(measured, "a", "top1")

    assert (found["ours"], found["difference"], found["provenance"]) == (None, None, None)
    assert (found["verdict"], found["paper"]) == ("not run", 79.8)
    assert found["reason"] == f"results/toy/evals/{name_of('classify', A)}/result.json has not been written"
    assert not found["is_final"]


def test_missing__metric_is_null__gives_the_reason_that_was_recorded(measured):
    write_evaluation(measured, name_of("classify", A), {"top1": None}, reasons={"top1": "no labels"})

    found = cell(measured, "a", "top1")

    assert (found["verdict"], found["reason"]) == ("not run", "top1 is n/a: no labels")
    assert found["is_final"] and cell(measured, "a", "delta")["is_final"] and cell(measured, "b", "delta")["is_final"]


@pytest.mark.slow
def test_judge_study__metric_that_is_null__makes_its_claims_not_testable(measured):
    write_evaluation(measured, name_of("classify", A), {"top1": None}, reasons={"top1": "no labels"})
    draw(measured, "all")

    assert verdicts(measured)["toy.c1"] == "not testable"


@pytest.mark.slow
def test_missing__metric_of_a_training_is_null__gives_the_reason_that_was_recorded(measured):
    why = {"params_m": "validation loss is nan at step 900"}
    write_training(measured, A, {"params_m": None}, reasons=why)

    found = cell(measured, "a", "params_m")

    assert (found["verdict"], found["reason"]) == ("not run", "params_m is n/a: validation loss is nan at step 900")


def test_missing__metric_without_a_recorded_reason__still_has_one(measured):
    write_eval(measured, A, classify={"top5": 95.0})

    assert cell(measured, "a", "top1")["reason"].startswith("top1 is n/a: results/toy/evals/")


def test_missing__result_file_damaged__is_an_error_that_names_it(measured):
    path = result_of(measured, A)
    path.write_text('{"classify": {"metr')

    with pytest.raises(DataError, match=rf"{shown(path)} is damaged .*; run the workflow to compute it again"):
        fill_table(measured, "toy.t1", "all")


def test_missing__nothing_has_run__every_cell_says_why(toy):
    rows = fill_table(toy, "toy.t1", "all").model_dump()["rows"]

    cells = [found for row in rows for found in row["cells"].values()]
    assert {found["verdict"] for found in cells} == {"not run"}
    assert all("has not been written" in found["reason"] for found in cells)


# Selections


def test_headline__other_rows__are_left_out_with_a_reason_though_they_ran(measured):
    found = [cell(measured, "c", key, "headline") for key in COLUMNS]

    assert [entry["ours"] for entry in found] == [None] * 4
    assert {entry["verdict"] for entry in found} == {"not run"}
    assert {entry["reason"] for entry in found} == {"`snakemake toy_table1 --config scale=toy` runs it"}


def test_headline__its_own_rows__are_filled(measured):
    assert cell(measured, "b", "top1", "headline")["ours"] == 80.16


def test_headline__files_of_other_rows__are_not_needed(measured):
    result_of(measured, C).write_text("damaged")

    assert cell(measured, "b", "top1", "headline")["ours"] == 80.16


# Differences to a row


def test_delta__two_measured_rows__is_their_difference(measured):
    found = cell(measured, "b", "delta")

    assert found["ours"] == pytest.approx(80.16 - 79.84)
    assert (found["paper"], found["verdict"]) == (0.7, "match")


def test_delta__against_another_row_than_the_first__is_the_difference_to_that_one(measured):
    columns = measured.tables["toy.t1"].columns
    columns["delta"] = columns["delta"].model_copy(update={"against": "c"})

    assert cell(measured, "b", "delta")["ours"] == pytest.approx(80.16 - 77.0)


@pytest.mark.slow
def test_delta__minus_another_column__is_the_difference_within_the_row(measured):
    columns = measured.tables["toy.t1"].columns
    columns["delta"] = columns["delta"].model_copy(update={"against": None, "minus": "params_m"})
    row = fill_table(measured, "toy.t1", "all").rows[1].cells

    assert row["delta"].ours == pytest.approx(row["top1"].ours - row["params_m"].ours)
    assert row["delta"].provenance["metric"] == "top1 minus params_m"


def test_delta__exactly_at_its_tolerance__matches_in_spite_of_floating_point(measured):
    write_eval(measured, B, classify={"top1": 80.94})  # +1.1 where the paper has +0.7; 1.1 - 0.7 > 0.4

    assert cell(measured, "b", "delta")["verdict"] == "match"


def test_delta__beyond_its_tolerance__differs(measured):
    write_eval(measured, B, classify={"top1": 81.1})  # +1.3 where the paper has +0.7, tolerance 0.4

    assert cell(measured, "b", "delta")["verdict"] == "differs"


def test_delta__provenance__says_what_was_subtracted(measured):
    provenance = cell(measured, "b", "delta")["provenance"]

    assert provenance["metric"] == "top1 minus Row A"
    assert (provenance["run"], provenance["commit"]) == (B, "c0ffee")


def test_delta__base_row_not_measured__has_its_reason(measured):
    result_of(measured, A).unlink()

    found = cell(measured, "b", "delta")

    assert (found["ours"], found["verdict"]) == (None, "not run")
    assert found["reason"] == f"results/toy/evals/{name_of('classify', A)}/result.json has not been written"


# Claims


def verdicts(graph, selection="all"):
    return {claim.id: claim.verdict for claim in judge_study(graph, "toy", selection).claims}


@pytest.mark.slow
def test_judge_study__all_rows_measured__decides_every_claim(measured):
    draw(measured, "all")

    assert verdicts(measured) == {"toy.c1": "true", "toy.c2": "false", "toy.c3": "false"}


@pytest.mark.slow
def test_judge_study__row_left_out__leaves_its_claims_not_run_yet_unless_already_false(measured):
    draw(measured, "headline")

    assert verdicts(measured, "headline") == {"toy.c1": "true", "toy.c2": "not run yet", "toy.c3": "false"}


@pytest.mark.slow
def test_judge_study__numbers__are_those_of_the_table_as_drawn(measured):
    draw(measured, "all")
    write_eval(measured, B, classify={"top1": 1.0})

    assert verdicts(measured)["toy.c1"] == "true"


def test_judge_study__table_not_drawn__is_an_error_that_names_it(measured):
    with pytest.raises(DataError, match=r"toy\.t1\.json not found; run the workflow"):
        judge_study(measured, "toy", "all")


@pytest.mark.parametrize(
    ("file", "is_another"), [("decide", True), ("formula", True), ("noise", True), ("fill", True), ("page", False)]
)
def test_claims_fingerprint__code_that_judges_changed__is_another(toy, monkeypatch, file, is_another):
    before, digest_of_file = claims_fingerprint(toy, "toy"), source._file_digest
    monkeypatch.setattr(source, "_file_digest", lambda path: "other" if path.stem == file else digest_of_file(path))

    assert (claims_fingerprint(toy, "toy") != before) is is_another
