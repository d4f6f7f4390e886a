"""The terminal summary: only what ran, with its error, the same runs once, figures by name."""

import json
from types import SimpleNamespace

import pytest
from report_content import make_claims, make_figures, make_tables
from result_files import SITE, finish, write_training
from toy_study import A, B, C, draw, result_of

from pipeline.cli import main
from pipeline.core.files import write_text
from pipeline.freshness.outputs import table_file
from pipeline.freshness.remake import Freshness
from pipeline.report import summary
from pipeline.report.collect import collect
from pipeline.report.records import FilledTable, JudgedStudy
from pipeline.report.summary import summarise, summarise_targets
from pipeline.results import ScaleFolder
from pipeline.results.records import EvalResult, read_record, write_record
from pipeline.study.resolve.graph import build_graph, load_graph


class Current(Freshness):
    """Nothing is stale; the toy study has no data sets."""

    def why(self, file: str) -> str:
        return ""

    def why_number(self, source: str) -> str:
        return ""


def lines_of(*tables: dict) -> list[str]:
    return "\n".join(summary._tables([FilledTable(**table) for table in tables])).splitlines()


def test_summary__table__has_the_rows_that_ran_with_their_errors_and_the_papers_numbers():
    table = make_tables()[0] | {"columns": make_tables()[0]["columns"][:2]}
    table["rows"] = [table["rows"][0], table["rows"][5] | {"selected": False}]
    assert lines_of(table) == [
        "scale demo: ours +/- its standard error, and the paper's in brackets",
        "Accuracy and consistency under patch shuffling",
        "mjp, Table 1            Top-1 (%)      Consistency (%)",
        "DeiT-S        74.1 +/- 1.2 (79.8)  60.2 +/- 1.2 (64.3)",
        "1 more row: snakemake mjp_table1",
    ]


def test_summary__row_that_nothing_can_run__is_left_out_without_a_command():
    table = make_tables()[0]
    table["rows"][5]["runs"] = {}
    lines = lines_of(table)
    assert not any("snakemake" in line or line.startswith("Swin-T  ") for line in lines)
    assert any(line.startswith("Swin-T + MJP") for line in lines)


def test_summary__same_runs__are_one_row_with_both_papers_numbers():
    table = make_tables()[2]
    table["rows"][1]["same_as"] = table["rows"][0]["label"]
    assert any(
        line.startswith("DropPos, sigma 0, DropPos, sigma 1") and "(82.7, 82.8)" in line for line in lines_of(table)
    )


def test_summary__exact_number__has_no_error():
    table = make_tables()[2] | {"rows": make_tables()[2]["rows"][:1]}
    table["rows"][0]["cells"]["top1"]["error"] = 0.0
    assert lines_of(table)[-1].endswith("72.0 (82.7)")


def test_summary__claims__are_counted_with_those_within_noise():
    said = [summary._claims(JudgedStudy(**study)) for study in make_claims()]
    assert said[0] == "claims of mjp at scale demo: 3 hold, 1 does not hold, 1 within noise, 2 not run yet"


@pytest.mark.parametrize(("kind", "suffix"), [("lines", ".svg"), ("pictures", ".html")])
def test_summary__figure__is_named_with_its_file(tmp_path, kind, suffix):
    current = SimpleNamespace(results=ScaleFolder(tmp_path / "demo"), why=lambda file: "")
    figure = FilledTable(**next(made for made in make_figures() if made["figure"]["kind"] == kind))
    waiting = summary._figures(current, [figure], "headline")
    path = current.results.table(figure.id, "headline").with_suffix(suffix)
    path.parent.mkdir(parents=True)
    path.touch()
    name = f"{figure.study}, Figure 3, A figure of {kind}"
    assert waiting == [f"{name}: not drawn yet"]
    assert summary._figures(current, [figure], "headline") == [f"{name}: {path}"]


RUN = {"label": "a", "method": "supervised", "model": "vit_demo", "data": "fashion_mnist"}


@pytest.fixture
def two_studies(project):
    """A claim of one study on a table of another; and training curves, which are drawn from no cell."""
    columns = {"params": {"label": "Parameters", "eval": "train", "metric": "params_m"}}
    table = {"label": "Table 1", "title": "T", "columns": columns, "rows": {"a": {"label": "a", "run": "a"}}}
    curves = {"label": "Figure 1", "title": "F", "kind": "curves", "curve": "val_top1", "rows": table["rows"]}
    holds = ["mine.t1.a:params == other.t1.a:params"]
    claims = {"c": {"statement": "S", "type": "exact", "holds": holds}}
    project.only_study("other", {"runs": {"a": RUN}, "tables": {"t1": table}}, {})
    mine = {"runs": {"a": RUN}, "tables": {"t1": table}, "figures": {"f1": curves}, "claims": claims}
    project.write("study/mine.yaml", {"title": "mine", "scales": ["demo"], **mine})
    graph = build_graph("demo")
    write_training(graph, *graph.runs, {"params_m": 22.0}, errors={"params_m": 0.0})
    return graph


def test_summary__claim_across_studies__is_decided_as_the_claims_file_has_it(two_studies):
    text = summary.summarise_targets(Current(two_studies, SITE), ["mine"])
    assert "claims of mine at scale demo: 1 holds" in text


@pytest.mark.slow
def test_summary__training_curves_that_are_drawn__have_results(two_studies):
    assert "no results yet for: mine_figure1" in summary.summarise_targets(Current(two_studies, SITE), ["mine"])
    path = two_studies.results.table("mine.f1", "all")
    path.parent.mkdir(parents=True)
    path.touch()
    text = summary.summarise_targets(Current(two_studies, SITE), ["mine"])
    assert "no results yet" not in text and "mine.f1.md, .csv and .svg" in text


@pytest.mark.slow
def test_claims__mistyped_study__is_refused_and_no_file_is_written(two_studies, capsys):
    assert main(["claims", "--study", "mien"]) == 1
    assert "no study 'mien' at scale demo; did you mean 'mine'?" in capsys.readouterr().err
    assert not two_studies.results.claims("mien", "all").exists()


# The summary of a study with results


@pytest.mark.slow
def test_collect__headline__has_its_runs_only(measured):
    draw(measured, "headline")

    tables, claims, runs, evaluations, _ = collect(measured, "headline")

    assert [table.id for table in tables] == ["toy.t1"]
    assert [study.study for study in claims] == ["toy"]
    assert [run.name for run in runs] == [A, B]
    assert runs[0].summary == {"params_m": 22.05, "wall_s": 1.5}
    assert {run for each in evaluations for run in each.subjects.values()} == {A, B}
    assert evaluations[0].file == f"results/toy/evals/{evaluations[0].name}/result.json"


@pytest.mark.slow
def test_collect__run_not_finished__is_left_out(measured):
    draw(measured, "all")
    measured.results.run(B).done.unlink()

    assert [run.name for run in collect(measured, "all").runs] == [A, C]


def write_benchmark(graph, rule, job, seconds):
    path = graph.results.folder / "benchmarks" / rule / f"{job}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"s\th:m:s\tmax_rss\tcpu_time\n{seconds}\t0:00:00\t800.1\t12.5\n")


@pytest.fixture
def shown(measured) -> list[str]:
    draw(measured, "headline")
    write_benchmark(measured, "train_run", A, 52.7901)
    write_benchmark(measured, "train_run", B, 50.33)
    write_benchmark(measured, "draw_table", "headline-toy.t1", 0.61)
    write_text(measured.results.report("headline"), "")
    return summarise(Current(measured, SITE), "headline").splitlines()


@pytest.mark.slow
def test_summary__table__has_our_numbers_with_the_papers_in_brackets(shown):
    assert shown[:8] == [
        "scale toy: ours +/- its standard error, and the paper's in brackets",
        "",
        "Toys",
        "toy, Table 1  Parameters (M)    Top-1 (%)  Against A    Diff. Norm.",
        "Row A            22.1 (22.0)  79.8 (79.8)        0.0  17.46 (16.21)",
        "Row B            22.2 (22.0)  80.2 (80.5)  0.3 (0.7)    8.00 (8.96)",
        "1 more row: snakemake toy_table1 --config scale=toy",
        "",
    ]


def test_summary__claims__are_counted(shown):
    assert "claims of toy at scale toy: 1 holds, 1 does not hold, 1 not run yet" in shown


def test_summary__times__are_summed_by_rule_longest_first(shown):
    assert "time, summed over jobs: train_run 103 s in 2 jobs; draw_table 1 s in 1 job" in shown


def test_summary__last_line__is_the_path_of_the_report(shown):
    assert shown[-1] == "report: results/toy/report/headline.html"


def test_summary__results_outside_the_repository__gives_the_whole_path(measured, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.setattr("pipeline.results.RESULTS", elsewhere)
    said = summarise(Current(measured, SITE), "headline")

    assert said.endswith(f"report: {elsewhere}/toy/report/headline.html, not written yet")


@pytest.mark.slow
def test_summary__nothing_measured_by_snakemake__says_so(measured):
    draw(measured, "headline")

    assert "time, summed over jobs: none measured" in summarise(Current(measured, SITE), "headline")


def test_summary__half_of_the_runs_finished_and_nothing_drawn__shows_what_there_is(measured):
    measured.results.run(B).done.unlink()
    result_of(measured, B).unlink()

    lines = summarise_targets(Current(measured, SITE), ["toy_table1"]).splitlines()

    assert [line.split("  ")[0] for line in lines[4:7]] == ["Row A", "Row B", "Row C"]
    assert "79.8 (79.8)" in lines[4] and "n/a (80.5)" in lines[5]
    assert not any("files:" in line or "claims" in line for line in lines)


def test_summary__results_that_changed_after_the_table_was_drawn__shows_what_they_say_now(measured):
    draw(measured, "all")
    path = result_of(measured, A)
    result = read_record(path, EvalResult)
    write_record(path, result.model_copy(update={"metrics": {**result.metrics, "top1": 55.5}}))

    assert "55.5 (79.8)" in summarise_targets(Current(measured, SITE), ["toy_table1"])


@pytest.mark.slow
def test_summary__of_a_study__has_its_claims_and_names_its_files(measured):
    draw(measured, "all")

    lines = summarise_targets(Current(measured, SITE), ["toy"]).splitlines()

    assert any(line.startswith("claims of toy at scale toy: ") for line in lines)
    assert "files: results/toy/tables/all/toy.t1.md, .csv and .html" in lines


def test_summary__claim_on_cells_of_another_study__is_decided_by_their_results(measured):
    table = measured.tables["toy.t1"]
    rows = {key.replace("toy", "own"): row for key, row in table.rows.items()}
    measured.tables["own.t1"] = table.model_copy(update={"study": "own", "rows": rows})
    claim = measured.claims["toy"]["toy.c1"].model_copy(update={"holds": ["own.t1.b:top1 > toy.t1.a:top1"]})
    measured.claims["own"] = {"own.c1": claim}

    assert "claims of own at scale toy: 1 holds" in summarise_targets(Current(measured, SITE), ["own"])


@pytest.fixture
def finished(project):
    """One table of the demo, and all that it needs."""
    graph = load_graph("demo")
    finish(graph, [table_file("mjp.t1", "all")], {"top1": 70.0, "params_m": 1.0})
    return graph


def row_of(text: str, label: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"{label}  "))


@pytest.mark.slow
def test_summary__results_as_recorded__marks_nothing(finished):
    text = summarise_targets(Freshness(finished, SITE), ["mjp_table1"])
    assert "must be made again" not in text and "*" not in text


@pytest.mark.slow
def test_summary__stale_result__says_so_above_and_marks_its_cells_only(finished):
    row = finished.tables["mjp.t1"].rows["mjp.t1.deit-s"]
    finished.results.run(row.runs[""][0]).encoder.write_text("other")
    lines = summarise_targets(Freshness(finished, SITE), ["mjp_table1"]).splitlines()
    assert lines[0].split(" ", 1)[1].startswith("of the results shown here must be made again: `snakemake mjp_table1`")
    assert "70.0*" in row_of("\n".join(lines), "DeiT-S")
    assert any("70.0 " in line and "70.0*" not in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["result.json", "per_image.npz"])
def test_summary__damaged_result__is_marked_and_no_error(finished, file):
    (source,) = finished.tables["mjp.t1"].rows["mjp.t1.deit-s"].cells["top1"].sources
    path = (finished.results.folder / source).with_name(file)
    path.write_text(path.read_text()[:-20] if path.exists() else "")
    text = summarise_targets(Freshness(finished, SITE), ["mjp_table1"])
    assert ("n/a*" in row_of(text, "DeiT-S")) == (file == "result.json")


@pytest.mark.slow
def test_summary__every_result_of_a_table_damaged__shows_it_all_the_same(finished):
    cells = [cell for row in finished.tables["mjp.t1"].rows.values() for cell in row.cells.values()]
    for source in {source for cell in cells for source in cell.sources}:
        (finished.results.folder / source).write_text("{")
    text = summarise_targets(Freshness(finished, SITE), ["mjp_table1"])
    assert "n/a*" in row_of(text, "DeiT-S") and "must be made again" in text.splitlines()[0]


@pytest.mark.slow
def test_summary__table_drawn_before_its_results_changed__says_that_its_files_must_be_made_again(finished):
    row = finished.tables["mjp.t1"].rows["mjp.t1.deit-s"]
    files = "mjp.t1.md, .csv and .html"
    assert summarise_targets(Freshness(finished, SITE), ["mjp_table1"]).endswith(files)
    finished.results.run(row.runs[""][0]).encoder.write_text("other")
    assert summarise_targets(Freshness(finished, SITE), ["mjp_table1"]).endswith(f"{files}, must be made again")


def test_summary__mistyped_target__is_one_message_with_near_names(project, capsys):
    assert main(["summary", "mjp_tabel4"]) == 1

    assert "no target 'mjp_tabel4' at scale demo; did you mean 'mjp_table4'?" in capsys.readouterr().err


@pytest.mark.slow
def test_summary__nothing_finished__names_the_tables_without_results(project, capsys):
    assert main(["summary", "--rows", "all"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("no results yet for: mjp_table1, mjp_table2, mjp_table3, mjp_table4, ")
    assert lines[-1] == "report: results/demo/report/all.html, not written yet"


@pytest.mark.slow
def test_report__before_anything_is_finished__is_a_page_that_says_so(project, capsys):
    assert main(["report", "--rows", "all"]) == 0

    page = project.results / "demo/report/all/study-mjp.html"
    assert "has not been written" in page.read_text()


@pytest.mark.slow
def test_claims__asked_before_the_tables_are_drawn__is_one_message(project, capsys):
    assert main(["claims", "--study", "mjp"]) == 1

    error = capsys.readouterr().err
    assert error.startswith("DataError: ")
    assert error.count("\n") == 1


@pytest.mark.slow
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
