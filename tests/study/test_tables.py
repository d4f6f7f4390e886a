"""Tables from result files: where a number comes from, how it is judged, and what is said where there is none."""

import json

import pytest
from result_files import ORIGIN, write_evaluation, write_training

from pipeline import source
from pipeline.cli import main
from pipeline.errors import ConfigError, DataError
from pipeline.files import digest, write_text
from pipeline.records import write_record
from pipeline.report.collect import collect
from pipeline.report.freshness import claims_fingerprint
from pipeline.report.summary import summarise, summarise_targets
from pipeline.report.tables import fill_table, judge_study
from pipeline.study.entries import Graph
from pipeline.study.graph import load_graph

A, B, C = "supervised-vit-toy-e1-s0-aaaaaa", "mjp-vit-toy-e1-s0-bbbbbb", "mjp-vit-toy-e1-s0-cccccc"


def column(label, eval=None, metric=None, delta=None, against=None, decimals=1, tolerance=None, run=None):
    source = {"eval": eval, "metric": metric, "run": run, "delta": delta, "against": against}
    return {"label": label, **source, "direction": "up", "decimals": decimals, "tolerance": tolerance}


COLUMNS = {
    "params_m": column("Parameters (M)", "train", "params_m", tolerance=0.5),
    "top1": column("Top-1 (%)", "classify", "top1", tolerance=0.3),
    "delta": column("Against A", delta="top1", against="a", tolerance=0.4),
    "diff_norm": column("Diff. Norm.", "consistency", "diff_norm", decimals=2),
}
ROWS = {
    "toy.t1.a": (A, True, {"params_m": 22, "top1": 79.8, "delta": None, "diff_norm": 16.21}),
    "toy.t1.b": (B, True, {"params_m": 22, "top1": 80.5, "delta": 0.7, "diff_norm": 8.96}),
    "toy.t1.c": (C, False, {"params_m": 22, "top1": 77.5, "delta": -2.3, "diff_norm": None}),
}


def name_of(evaluation: str, run: str) -> str:
    return f"{evaluation}-{run[-6:]}"


def cells_of(run: str) -> dict[str, dict]:
    sources = {
        "params_m": f"runs/{run}/train.json",
        "top1": f"evals/{name_of('classify', run)}/result.json",
        "diff_norm": f"evals/{name_of('consistency', run)}/result.json",
    }
    return {key: {"sources": [source], "metric": key} for key, source in sources.items()}


@pytest.fixture
def graph(project) -> Graph:
    """Three runs, one table, one study; the paper's numbers can be expected."""
    about = {"config": {"method": {"fidelity": "paper"}}, "data": "toy", "init": None, "studies": ["toy"]}
    runs = {name: {**about, "label": f"Run {name[-6:]}"} for name in (A, B, C)}
    rows = {
        key: {
            "label": f"Row {key[-1].upper()}",
            "runs": {"": [run]},
            "cells": cells_of(run),
            "headline": headline,
            "expected": numbers,
        }
        for key, (run, headline, numbers) in ROWS.items()
    }
    table = {
        "study": "toy",
        "study_title": "Toy study",
        "label": "Table 1",
        "title": "Toys",
        "note": "Its note.",
        "columns": dict(COLUMNS),
        "rows": rows,
    }
    claims = {
        "toy.c1": {"statement": "B beats A", "type": "directional", "holds": ["toy.t1.b:top1 > toy.t1.a:top1"]},
        "toy.c2": {"statement": "C beats A", "type": "directional", "holds": ["toy.t1.c:top1 > toy.t1.a:top1"]},
        "toy.c3": {"statement": "A beats all", "type": "exact", "holds": ["toy.t1.b:delta < 0", "toy.t1.c:delta < 0"]},
    }
    evals = {
        name_of(key, run): {
            "fragment": key,
            "config": {},
            "subjects": {"model": run},
            "data": {},
            "job": f"{run}-quick",
        }
        for key in ("classify", "consistency")
        for run in (A, B, C)
    }
    return Graph.model_validate(
        {
            "scale": "toy",
            "note": "The scale's note.",
            "comparable": True,
            "runs": runs,
            "evals": evals,
            "tables": {"toy.t1": table},
            "claims": {"toy": claims},
        }
    )


@pytest.fixture
def measured(graph) -> Graph:
    """The same with everything trained and evaluated."""
    for run, params, top1, diff_norm in ((A, 22.05, 79.84, 17.456), (B, 22.2, 80.16, 8.0), (C, 22.2, 77.0, 9.0)):
        write_training(graph, run, {"params_m": params})
        write_eval(graph, run, classify={"top1": top1, "top5": 95.0}, consistency={"diff_norm": diff_norm})
    return graph


def write_eval(graph, run, **evals):
    for key, metrics in evals.items():
        write_evaluation(graph, name_of(key, run), metrics)


def result_of(graph, run, evaluation="classify"):
    return graph.results.evaluation(name_of(evaluation, run)).result


def cell(graph, row, key, selection="all"):
    filled = fill_table(graph, "toy.t1", selection).model_dump()
    return next(r for r in filled["rows"] if r["id"] == f"toy.t1.{row}")["cells"][key]


def draw(graph, selection):
    for key in graph.tables:
        write_record(graph.results.table(key, selection), fill_table(graph, key, selection))
    for study in graph.studies():
        write_record(graph.results.claims(study, selection), judge_study(graph, study, selection))


# Numbers


def test_fill__every_number__is_the_one_in_the_result_file(measured):
    rows = fill_table(measured, "toy.t1", "all").model_dump()["rows"]

    numbers = [[row["cells"][key]["ours"] for key in ("params_m", "top1", "diff_norm")] for row in rows]
    assert numbers == [[22.05, 79.84, 17.456], [22.2, 80.16, 8.0], [22.2, 77.0, 9.0]]


def test_fill__result_file_changed__changes_the_cell(measured):
    write_eval(measured, A, classify={"top1": 12.5})

    assert cell(measured, "a", "top1")["ours"] == 12.5


def test_fill__papers_number_and_difference__stand_beside_ours(measured):
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


def test_fill__header__carries_titles_notes_scale_and_columns(measured):
    filled = fill_table(measured, "toy.t1", "all").model_dump()

    assert (filled["id"], filled["study"], filled["label"], filled["title"]) == ("toy.t1", "toy", "Table 1", "Toys")
    assert (filled["scale"], filled["comparable"]) == ("toy", True)
    assert (filled["scale_note"], filled["note"]) == ("The scale's note.", "Its note.")
    assert [entry["id"] for entry in filled["columns"]] == list(COLUMNS)
    assert {row["fidelity"] for row in filled["rows"]} == {"paper"}


def test_fill__unknown_table__names_the_nearest(graph):
    with pytest.raises(ConfigError, match=r"'toy\.t2' is not among the tables at scale toy; did you mean 'toy\.t1'\?"):
        fill_table(graph, "toy.t2", "all")


# Verdicts


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


def test_missing__metric_is_null__gives_the_reason_that_was_recorded(measured):
    write_evaluation(measured, name_of("classify", A), {"top1": None}, reasons={"top1": "no labels"})

    found = cell(measured, "a", "top1")

    assert (found["verdict"], found["reason"]) == ("not run", "top1 is n/a: no labels")


def test_missing__metric_without_a_recorded_reason__still_has_one(measured):
    write_eval(measured, A, classify={"top5": 95.0})

    assert cell(measured, "a", "top1")["reason"].startswith("top1 is n/a: results/toy/evals/")


def test_missing__result_file_damaged__is_an_error_that_names_it(measured):
    path = result_of(measured, A)
    path.write_text('{"classify": {"metr')

    with pytest.raises(DataError, match=rf"{path} is damaged .*; delete it and run the workflow again"):
        fill_table(measured, "toy.t1", "all")


def test_missing__nothing_has_run__every_cell_says_why(graph):
    rows = fill_table(graph, "toy.t1", "all").model_dump()["rows"]

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


def test_judge_study__all_rows_measured__decides_every_claim(measured):
    draw(measured, "all")

    assert verdicts(measured) == {"toy.c1": "true", "toy.c2": "false", "toy.c3": "false"}


def test_judge_study__row_left_out__leaves_its_claims_undecided_unless_already_false(measured):
    draw(measured, "headline")

    assert verdicts(measured, "headline") == {"toy.c1": "true", "toy.c2": "undecided", "toy.c3": "false"}


def test_judge_study__numbers__are_those_of_the_table_as_drawn(measured):
    draw(measured, "all")
    write_eval(measured, B, classify={"top1": 1.0})

    assert verdicts(measured)["toy.c1"] == "true"


def test_judge_study__table_not_drawn__is_an_error_that_names_it(measured):
    with pytest.raises(DataError, match=r"toy\.t1\.json not found; run the workflow"):
        judge_study(measured, "toy", "all")


@pytest.mark.parametrize(
    ("file", "is_another"), [("claims", True), ("formula", True), ("noise", True), ("tables", True), ("page", False)]
)
def test_claims_fingerprint__code_that_judges_changed__is_another(graph, monkeypatch, file, is_another):
    before, digest_of_file = claims_fingerprint(graph, "toy"), source._file_digest
    monkeypatch.setattr(source, "_file_digest", lambda path: "other" if path.stem == file else digest_of_file(path))

    assert (claims_fingerprint(graph, "toy") != before) is is_another


# The report's content, and the summary


def test_collect__headline__has_its_runs_alone(measured):
    draw(measured, "headline")

    tables, claims, runs = collect(measured, "headline")

    assert [table.id for table in tables] == ["toy.t1"]
    assert [study.study for study in claims] == ["toy"]
    assert [run.name for run in runs] == [A, B]
    assert runs[0].summary == {"params_m": 22.05, "wall_s": 1.5}


def test_collect__run_not_finished__is_left_out(measured):
    draw(measured, "all")
    measured.results.run(B).done.unlink()

    assert [run.name for run in collect(measured, "all").runs] == [A, C]


def write_benchmark(graph, rule, job, seconds):
    path = graph.results.folder / "benchmarks" / rule / f"{job}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"s\th:m:s\tmax_rss\tcpu_time\n{seconds}\t0:00:00\t800.1\t12.5\n")


@pytest.fixture
def summary(measured) -> list[str]:
    draw(measured, "headline")
    write_benchmark(measured, "train_run", A, 52.7901)
    write_benchmark(measured, "train_run", B, 50.33)
    write_benchmark(measured, "draw_table", "headline-toy.t1", 0.61)
    write_text(measured.results.report("headline"), "")
    return summarise(measured, "headline").splitlines()


def test_summary__table__has_our_numbers_with_the_papers_in_brackets(summary):
    assert summary[:8] == [
        "scale toy: ours +/- its standard error, and the paper's in brackets",
        "",
        "Toys",
        "toy, Table 1  Parameters (M)    Top-1 (%)  Against A    Diff. Norm.",
        "Row A            22.1 (22.0)  79.8 (79.8)        0.0  17.46 (16.21)",
        "Row B            22.2 (22.0)  80.2 (80.5)  0.3 (0.7)    8.00 (8.96)",
        "1 more row: snakemake toy_table1 --config scale=toy",
        "",
    ]


def test_summary__claims__are_counted(summary):
    assert "claims of toy at scale toy: 1 true, 1 false, 0 within noise, 1 undecided" in summary


def test_summary__times__are_summed_by_rule_longest_first(summary):
    assert "time, summed over jobs: train_run 103 s in 2 jobs; draw_table 1 s in 1 job" in summary


def test_summary__last_line__is_the_path_of_the_report(summary):
    assert summary[-1] == "report: results/toy/report/headline.html"


def test_summary__results_outside_the_repository__gives_the_whole_path(measured, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.setattr("pipeline.results.RESULTS", elsewhere)
    said = summarise(measured, "headline")

    assert said.endswith(f"report: {elsewhere}/toy/report/headline.html, not written yet")


def test_summary__nothing_measured_by_snakemake__says_so(measured):
    draw(measured, "headline")

    assert "time, summed over jobs: none measured" in summarise(measured, "headline")


def test_summary__half_of_the_runs_finished_and_nothing_drawn__shows_what_there_is(measured):
    measured.results.run(B).done.unlink()
    result_of(measured, B).unlink()

    lines = summarise_targets(measured, ["toy_table1"]).splitlines()

    assert [line.split("  ")[0] for line in lines[4:7]] == ["Row A", "Row B", "Row C"]
    assert "79.8 (79.8)" in lines[4] and "n/a (80.5)" in lines[5]
    assert not any("files:" in line or "claims" in line for line in lines)


def test_summary__results_that_changed_after_the_table_was_drawn__shows_what_they_say_now(measured):
    draw(measured, "all")
    path = result_of(measured, A)
    path.write_text(path.read_text().replace("79.84", "55.5"))

    assert "55.5 (79.8)" in summarise_targets(measured, ["toy_table1"])


def test_summary__of_a_study__has_its_claims_and_names_its_files(measured):
    draw(measured, "all")

    lines = summarise_targets(measured, ["toy"]).splitlines()

    assert any(line.startswith("claims of toy at scale toy: ") for line in lines)
    assert "files: results/toy/tables/all/toy.t1.md, .csv and .html" in lines


def test_summary__claim_on_cells_of_another_study__is_decided_by_their_results(measured):
    table = measured.tables["toy.t1"]
    rows = {key.replace("toy", "own"): row for key, row in table.rows.items()}
    measured.tables["own.t1"] = table.model_copy(update={"study": "own", "rows": rows})
    claim = measured.claims["toy"]["toy.c1"].model_copy(update={"holds": ["own.t1.b:top1 > toy.t1.a:top1"]})
    measured.claims["own"] = {"own.c1": claim}

    assert "claims of own at scale toy: 1 true, " in summarise_targets(measured, ["own"])


def test_summary__mistyped_target__is_one_message_with_near_names(project, capsys):
    assert main(["summary", "mjp_tabel4"]) == 1

    assert "no target 'mjp_tabel4' at scale demo; did you mean 'mjp_table4'?" in capsys.readouterr().err


def test_summary__nothing_finished__names_the_tables_without_results(project, capsys):
    assert main(["summary", "--rows", "all"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("no results yet for: mjp_table1, mjp_table2, mjp_table3, mjp_table4, ")
    assert lines[-1] == "report: results/demo/report/all.html, not written yet"


def test_report__before_anything_is_finished__is_a_page_that_says_so(project, capsys):
    assert main(["report", "--rows", "all"]) == 0

    page = (project.results / "demo/report/all.html").read_text()
    assert "has not been written" in page


def test_claims__asked_before_the_tables_are_drawn__is_one_message(project, capsys):
    assert main(["claims", "--study", "mjp"]) == 1

    error = capsys.readouterr().err
    assert error.startswith("DataError: ")
    assert error.count("\n") == 1


def test_cli__table_of_the_real_study_before_anything_ran__is_written_with_reasons(project):
    assert main(["table", "--table", "mjp.t4"]) == 0

    path = load_graph("demo").results.table("mjp.t4", "all")
    filled = json.loads(path.read_text())
    assert {found["verdict"] for row in filled["rows"] for found in row["cells"].values()} == {"not run"}
    assert {suffix for suffix in (".csv", ".md", ".html") if path.with_suffix(suffix).exists()} == {
        ".csv",
        ".md",
        ".html",
    }
