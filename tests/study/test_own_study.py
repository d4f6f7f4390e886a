"""A study of one's own: a file of its own, with no paper, beside the papers' files or without them."""

import pytest

from pipeline.report.tables import fill_table
from pipeline.study.fingerprints import claims_fingerprint, report_fingerprint, table_fingerprint
from pipeline.study.graph import build_graph

RUN = {"label": "Mine", "method": "supervised", "model": "deit_s", "data": "imagenet1k"}
RECIPE = {"optim": {"epochs": 4, "global_batch": 50, "micro_batch": 50, "base_lr": 0.003}}
STUDY = {
    "title": "Mine",
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
def test_study__without_a_file_of_expected_values__resolves_beside_the_papers(mine):
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

    from pipeline import source
    from pipeline.study import fingerprints

    graph = build_graph("demo")
    shutil.copytree(fingerprints.PACKAGE / "study", tmp_path / "study", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fingerprints, "PACKAGE", tmp_path)
    found = {claims_fingerprint(graph, "mine")}
    for name in ("claims", "formula", "noise"):
        path = tmp_path / "study" / f"{name}.py"
        path.write_text(path.read_text() + "\nCHANGED = 1\n")
        source._file_digest.cache_clear()
        found.add(claims_fingerprint(graph, "mine"))
    assert len(found) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["page.css", "macros.html.j2", "draw.py"])
def test_drawing__code_or_template_changed__draws_tables_and_report_again(mine, monkeypatch, tmp_path, name):
    import shutil

    from pipeline import source
    from pipeline.study import fingerprints

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
@pytest.mark.parametrize("scale", ["demo", "tiny", "paper"])
def test_template__copied_as_it_is__is_a_study(project, scale):
    template = (project.configs / "template/study.yaml").read_text()
    (project.configs / "study/mine.yaml").write_text(template)

    graph = build_graph(scale)

    assert sorted(key for key in graph.tables if key.startswith("mine.")) == ["mine.fratio", "mine.t1"]
    assert len([run for run in graph.runs.values() if "mine" in run.studies]) == 4
    assert len(graph.claims["mine"]["mine.order"].comparisons()[0].cells) == 4
