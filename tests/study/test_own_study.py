"""A study of one's own: a file of its own, with no paper, beside the papers' files or without them."""

import csv
import io

import pytest
from result_files import finish, write_training
from test_summary import SITE, Current
from toy_study import draw

from pipeline.core.errors import ConfigError
from pipeline.freshness.outputs import claims_file, drawings, files_of_targets, is_output, report_file
from pipeline.freshness.remake import Freshness
from pipeline.report.drawing import draw_report
from pipeline.report.summary import summarise_targets
from pipeline.report.tables.draw import scale_line, to_csv, to_html, to_markdown
from pipeline.report.tables.fill import fill_table
from pipeline.report.tables.view import view
from pipeline.study.resolve.fingerprints import claims_fingerprint, report_fingerprint, table_fingerprint
from pipeline.study.resolve.graph import build_graph

RUN = {"label": "Mine", "method": "supervised", "model": "deit_s", "data": "imagenet1k"}
RECIPE = {"optim": {"epochs": 4, "global_batch": 50, "micro_batch": 50, "base_lr": 0.003}}
STUDY = {
    "title": "Mine",
    "scales": ["own", "demo"],
    "common": RECIPE,
    "runs": {"a": RUN, "b": {**RUN, "label": "Other", "set": {"model": {"pos_embed": "none"}}}},
    "tables": {
        "t1": {
            "label": "Table 1",
            "title": "With and without positions",
            "columns": {"top1": {"label": "Top-1 (%)", "eval": "classify", "metric": "top1"}},
            "rows": {"a": {"label": "A", "run": "a"}, "b": {"label": "B", "run": "b"}},
        }
    },
    "claims": {"c1": {"statement": "A wins", "type": "directional", "holds": ["mine.t1.a:top1 > mine.t1.b:top1"]}},
}


@pytest.fixture
def mine(project):
    project.write("study/mine.yaml", STUDY)
    return project


@pytest.mark.slow
def test_study__without_a_file_of_expected_values__resolves_together_with_the_papers(mine):
    graph = build_graph("demo")
    assert graph.studies() == ["mine", "mjp"]
    assert [row.expected for row in graph.tables["mine.t1"].rows.values()] == [{}, {}]
    filled = fill_table(graph, "mine.t1", "all")
    assert {cell.paper for _, _, cell in filled.cells()} == {None}


@pytest.mark.slow
def test_study__without_a_paper__still_refuses_a_claim_about_no_cell(mine):
    mine.write(
        "study/mine.yaml", {**STUDY, "claims": {"c1": {**STUDY["claims"]["c1"], "holds": ["mine.t1.c:top1 > 1"]}}}
    )
    (line,) = mine.problems()
    assert "no row 'mine.t1.c'" in line and "did you mean 'mine.t1." in line


@pytest.mark.slow
def test_row__of_ones_own_in_a_papers_table__says_that_the_paper_has_none(project):
    row = "      swin-t: {label: Swin-T, run: swin}\n      swin-t-mjp: {label: Swin-T + MJP, run: swin_mjp}\n  t2:\n"
    project.edit("study/mjp.yaml", row, "      mine: {label: Mine, run: b}\n" + row)
    (line,) = project.problems()
    assert "mjp.yaml has no row 'mjp.t1.mine'" in line and "`paper: false`" in line

    project.edit("study/mjp.yaml", "{label: Mine, run: b}", "{label: Mine, run: b, paper: false}")
    assert build_graph("demo").tables["mjp.t1"].rows["mjp.t1.mine"].expected == {}


def prints(graph) -> tuple:
    tables = {key: table_fingerprint(graph, key) for key in graph.tables}
    return tables, claims_fingerprint(graph, "mine"), report_fingerprint(graph, "all")


@pytest.mark.slow
def test_report__label_of_a_run_changed__is_written_again_and_no_table_is(mine):
    before = prints(build_graph("demo"))
    mine.edit("study/mjp.yaml", "a: {label: DeiT-S, method", "a: {label: Renamed, method")  # it is a paper's run, too
    after = prints(build_graph("demo"))
    assert after[:2] == before[:2] and after[2] != before[2]


@pytest.mark.slow
def test_claims__one_edited__are_judged_again_and_no_table_is_drawn(mine):
    before = prints(build_graph("demo"))
    mine.edit("study/mine.yaml", "mine.t1.a:top1 > mine.t1.b:top1", "mine.t1.a:top1 < mine.t1.b:top1")
    after = prints(build_graph("demo"))
    assert after[0] == before[0] and after[1] != before[1]


@pytest.mark.slow
def test_claims__any_code_that_judges_changed__are_judged_again(mine, monkeypatch, tmp_path):
    import shutil

    from pipeline.core import source
    from pipeline.study.resolve import fingerprints

    graph = build_graph("demo")
    shutil.copytree(fingerprints.PACKAGE / "study", tmp_path / "study", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fingerprints, "PACKAGE", tmp_path)
    found = {claims_fingerprint(graph, "mine")}
    for name in ("decide", "formula", "noise"):
        path = tmp_path / "study/claims" / f"{name}.py"
        path.write_text(path.read_text() + "\nCHANGED = 1\n")
        source._file_digest.cache_clear()
        found.add(claims_fingerprint(graph, "mine"))
    assert len(found) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["templates/page.css", "templates/macros.html.j2", "tables/draw.py"])
def test_drawing__code_or_template_changed__draws_tables_and_report_again(mine, monkeypatch, tmp_path, name):
    import shutil

    from pipeline.core import source
    from pipeline.study.resolve import fingerprints

    graph = build_graph("demo")
    folder = tmp_path / "report"
    shutil.copytree(fingerprints.DRAWING, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fingerprints, "DRAWING", folder)
    fingerprints._drawing_code.cache_clear()
    before = prints(graph)
    path = folder / name
    path.write_text(path.read_text() + ("\nCHANGED = 1\n" if name.endswith(".py") else "changed"))
    fingerprints._drawing_code.cache_clear()
    source._file_digest.cache_clear()
    after = prints(graph)
    fingerprints._drawing_code.cache_clear()
    assert all(after[0][key] != before[0][key] for key in graph.tables) and after[2] != before[2]


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["own", "demo", "tiny", "paper"])
def test_template__copied_and_given_a_scale__is_a_study(project, scale):
    template = (project.configs / "template/study.yaml").read_text()
    (project.configs / "study/mine.yaml").write_text(f"{template}\nscales: [{scale}]\n")

    graph = build_graph(scale)

    assert sorted(key for key in graph.tables if key.startswith("mine.")) == ["mine.fratio", "mine.t1"]
    assert len([run for run in graph.runs.values() if "mine" in run.studies]) == 4
    assert len(graph.claims["mine"]["mine.order"].comparisons()[0].cells) == 4


@pytest.fixture
def without_paper(measured):
    """The toy study with everything measured, and no numbers of a paper; next to it the same study of a paper."""
    for name, run in measured.runs.items():
        run.config["method"]["fidelity"] = "corrected"
        config = measured.results.run(name).config
        config.write_text(config.read_text().replace("paper", "corrected"))
    table = measured.tables["toy.t1"]
    rows = {key: row.model_copy(update={"expected": {}}) for key, row in table.rows.items()}
    measured.tables["toy.t1"] = table.model_copy(update={"rows": rows})
    rows = {key.replace("toy", "other"): row for key, row in table.rows.items()}
    measured.tables["other.t1"] = table.model_copy(update={"study": "other", "study_title": "Other", "rows": rows})
    return measured


class Drawn(Current):
    """The toy study has no jobs behind its results."""

    def needed_for(self, files, known=()):
        return []


def speaks_of_a_paper(text: str) -> bool:
    words = text.rpartition("</style>")[2]
    return "paper" in words or "comparable" in words


def test_table__of_which_no_paper_has_numbers__shows_no_columns_for_one(without_paper):
    own, papers = (fill_table(without_paper, key, "all") for key in ("toy.t1", "other.t1"))
    assert (own.has_paper, papers.has_paper) == (False, True)
    assert next(csv.reader(io.StringIO(to_csv(own))))[6:] == ["values", "reason", "run", "picture"]
    header = "|  | Fidelity | Parameters (M) | Top-1 (%) | Against A | Diff. Norm. |"
    assert header in to_markdown(own).splitlines()
    assert scale_line(own) == "Scale toy."
    for text in (to_csv(own), to_markdown(own), to_html(own, without_paper.results.read)):
        assert not speaks_of_a_paper(text)
    assert "verdict" in to_csv(papers) and "paper" in to_markdown(papers)


def test_summary__of_a_study_without_paper__speaks_of_none_and_ends_with_its_report(without_paper):
    text = summarise_targets(Current(without_paper, SITE), ["toy"])
    assert "scale toy: ours +/- its standard error\n" in text
    assert text.endswith("results/toy/report/toy.html, not written yet")


@pytest.mark.slow
def test_report__of_one_study__has_its_tables_and_runs_and_speaks_of_no_paper(without_paper):
    draw(without_paper, "all")
    first = draw_report(Drawn(without_paper, SITE), "toy")
    assert "<h1>Toy study, scale toy</h1>" in first.read_text()
    pages = {path.name: path.read_text() for path in [first, *first.with_suffix("").glob("*.html")]}
    assert 'id="toy.t1"' in pages["study-toy.html"] and not any("other.t1" in page for page in pages.values())
    assert [name for name, page in pages.items() if speaks_of_a_paper(page)] == []
    of_all = draw_report(Drawn(without_paper, SITE), "all").with_suffix("")
    assert 'id="toy.t1"' in (of_all / "study-toy.html").read_text()
    other = (of_all / "study-other.html").read_text()
    assert 'id="other.t1"' in other and "the paper's" in other


@pytest.mark.slow
def test_target__of_a_study__ends_with_its_own_report_which_is_made_from_its_tables_only(mine):
    graph = build_graph("demo")
    freshness = Freshness(graph, SITE)
    assert files_of_targets(graph)["mine"][-1] == report_file("mine") in [*drawings(graph)]
    assert is_output(report_file("mine"))
    of_mine = ["tables/all/mine.t1.json", claims_file("mine", "all")]
    assert freshness.inputs_of(report_file("mine")) == of_mine
    assert {*of_mine} < {*freshness.inputs_of(report_file("all"))}

    files = files_of_targets(graph)["mine"]
    finish(graph, files)
    assert Freshness(graph, SITE).stale(files) == {}
    before = report_fingerprint(graph, "mine")
    del graph.tables["mine.t1"]
    assert report_fingerprint(graph, "mine") != before


@pytest.mark.slow
def test_report__of_one_study__stays_as_it_is_when_another_study_with_its_runs_is_added(mine):
    before = report_fingerprint(build_graph("own"), "mine")
    mine.write("study/zoo.yaml", {key: value for key, value in STUDY.items() if key != "claims"} | {"title": "Zoo"})
    graph = build_graph("own")
    assert ["mine", "zoo"] in [run.studies for run in graph.runs.values()]
    assert report_fingerprint(graph, "mine") == before
    assert report_fingerprint(graph, "zoo") != before


@pytest.mark.slow
def test_figure__of_curves__folds_the_rows_away_that_were_not_trained(mine):
    rows = {key: {"label": key, "run": key} for key in "ab"}
    figure = {"label": "Figure 1", "title": "Loss", "kind": "curves", "curve": "val_loss", "rows": rows}
    mine.write("study/mine.yaml", STUDY | {"figures": {"f1": figure}})
    graph = build_graph("own")
    (run,) = graph.tables["mine.f1"].rows["mine.f1.a"].runs[""]
    write_training(graph, run, {"val_top1": 70.0})
    shown = view(fill_table(graph, "mine.f1", "all"))
    assert [row.first.label for row in shown.rows] == ["a"] and [row.label for row in shown.folded] == ["b"]


def test_report__of_no_study__is_one_message(without_paper):
    with pytest.raises(ConfigError, match="no target 'tyo' at scale toy; did you mean 'toy'"):
        draw_report(Current(without_paper, SITE), "tyo")
