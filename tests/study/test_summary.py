"""The terminal summary: only what ran, with its error, the same runs once, figures by name."""

from types import SimpleNamespace

import pytest
from report_content import make_claims, make_figures, make_tables
from result_files import write_training

from pipeline.cli import main
from pipeline.report import summary
from pipeline.report.records import FilledTable, JudgedStudy
from pipeline.results import ScaleFolder
from pipeline.study.graph import build_graph


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
    assert said[0] == "claims of mjp at scale demo: 3 true, 1 false, 1 within noise, 2 undecided"


@pytest.mark.parametrize(("kind", "suffix"), [("lines", ".svg"), ("pictures", ".html")])
def test_summary__figure__is_named_with_its_file(tmp_path, kind, suffix):
    graph = SimpleNamespace(results=ScaleFolder(tmp_path / "demo"))
    figure = FilledTable(**next(made for made in make_figures() if made["figure"]["kind"] == kind))
    waiting = summary._figures(graph, [figure], "headline")
    path = graph.results.table(figure.id, "headline").with_suffix(suffix)
    path.parent.mkdir(parents=True)
    path.touch()
    name = f"{figure.study}, Figure 3, A figure of {kind}"
    assert waiting == [f"{name}: not drawn yet"]
    assert summary._figures(graph, [figure], "headline") == [f"{name}: {path}"]


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
    project.write("study/mine.yaml", {"title": "mine", **mine})
    graph = build_graph("demo")
    write_training(graph, *graph.runs, {"params_m": 22.0}, errors={"params_m": 0.0})
    return graph


def test_summary__claim_across_studies__is_decided_as_the_claims_file_has_it(two_studies):
    text = summary.summarise_targets(two_studies, ["mine"])
    assert "claims of mine at scale demo: 1 true, 0 false, 0 within noise, 0 undecided" in text


def test_summary__training_curves_that_are_drawn__have_results(two_studies):
    assert "no results yet for: mine_figure1" in summary.summarise_targets(two_studies, ["mine"])
    path = two_studies.results.table("mine.f1", "all")
    path.parent.mkdir(parents=True)
    path.touch()
    text = summary.summarise_targets(two_studies, ["mine"])
    assert "no results yet" not in text and "mine.f1.md, .csv and .svg" in text


def test_claims__mistyped_study__is_refused_and_no_file_is_written(two_studies, capsys):
    assert main(["claims", "--study", "mien"]) == 1
    assert "no study 'mien' at scale demo; did you mean 'mine'?" in capsys.readouterr().err
    assert not two_studies.results.claims("mien", "all").exists()
