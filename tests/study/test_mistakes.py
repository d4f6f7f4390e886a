"""Every mistake a user can make in a config ends in one message that names the file and the key."""

import re
import shutil
from pathlib import Path

import pytest
from mistakes import DEMO, EXPECTED, FASHION, FIRST_HOLDS, MISTAKES, MJP, STUDY
from project import Project

from pipeline.cli import main
from pipeline.study.resolve.graph import load_graph

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("file", "old", "new", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_check__one_mistake__is_one_line_that_names_file_and_key(project, capsys, file, old, new, line):
    project.edit(file, old, new)

    code = main(["check", "--scale", "demo"])

    output = capsys.readouterr()
    assert (code, output.out) == (1, "")
    assert output.err.startswith(f"ConfigError: configs/{line}")
    # The set of known classes has the model, and nearly the images, of the whole one: some mistakes are made in both.
    _, *others = output.err.splitlines()
    assert [text for text in others if "fashion_mnist_known" not in text] == []


def test_check__mistyped_key_that_is_required__names_both_the_wrong_and_the_missing(project):
    project.edit(FASHION, "num_train", "num_trian")

    assert [line.split("; ")[0] for line in project.problems()] == [
        f"configs/{FASHION}: data.num_train: required, not given",
        f"configs/{FASHION}: data.num_trian: unknown key",
    ]


def test_check__several_names_of_a_run_mistyped__are_a_line_each(project):
    content = {"method": "supervisd", "model": "deit_ss", "data": "imagenet2k", "label": "Mine"}
    project.write("study/mine.yaml", {"title": "Mine", "scales": ["demo"], "runs": {"a": content}})

    assert [line.split("; ")[0] for line in project.problems()] == [
        f"configs/study/mine.yaml: runs.a.{kind}: no {kind} {content[kind]!r}" for kind in ("method", "model", "data")
    ]


def test_check__runs_that_start_from_each_other__are_one_line_with_the_cycle(project):
    project.edit(STUDY, "  e: {like: j,", "  e: {like: j, init: g,")
    project.edit(STUDY, "  g: {like: j,", "  g: {like: j, init: i,")
    project.edit(STUDY, "  i: {like: j,", "  i: {like: j, init: e,")

    (line,) = project.problems()

    assert line.startswith(f"configs/{STUDY}: runs.e.init: runs start from each other: e -> g -> i -> e;")


def test_check__mistakes_in_several_files__come_all_at_once(project):
    project.edit(MJP, "dal_weight", "dal_wait")
    project.edit(DEMO, "epochs: 4\n", "epochs: 0\n")
    project.edit(STUDY, "b: {like: a,", "b: {like: a, init: zz,")
    project.edit(STUDY, "metric: params_m", "metric: parms_m")
    project.edit(STUDY, FIRST_HOLDS, '"mjp.t4.b-no-pe:consistency"')
    project.edit(EXPECTED, "mjp.t3.g000: {", "mjp.t3.g000: {top5: 1, ")

    places = [": ".join(line.split(": ")[:2]) for line in project.problems()]
    assert sorted(places) == [
        f"configs/{EXPECTED}: rows.mjp.t3.g000.top5",
        f"configs/{MJP}: method.dal_wait",
        f"configs/{DEMO}: run",
        f"configs/{STUDY}: claims.c01.holds",
        f"configs/{STUDY}: column_sets.params_m.params_m.metric",
        f"configs/{STUDY}: runs.b.init",
    ]


def test_check__wrong_names_next_to_mistyped_keys__come_at_once(project):
    runs = {
        "a": {"lable": "A", "method": "supervised", "model": "vit_demo", "data": "fashion_mnist"},
        "b": {"label": "B", "method": "mjpp", "modle": "vit_dmo", "data": "fashion_mnist", "recipe": ["demmo"]},
        "c": {"label": "C", "method": "mjpp", "model": "vit_demo", "data": "fashion", "init": "b"},
    }
    wrong = {"grup": "x", "data": {"corrupted": "c"}}
    columns = {
        "one": {"label": "One", "eval": "clasify", "metric": "top1"},
        "two": {"label": "Two", "eval": "classify", "metric": "topp1", "set": {"shufle_ratio": 0.1}},
        "three": {"label": "Three", "eval": "classify", "metric": "top11", "run": {"first": "a"}},
        "four": {"label": "Four", "eval": "corruptions", "metric": "mce", "set": wrong},
    }
    table = {"label": "Table", "title": "T", "columns": columns, "rows": {"a": {"label": "A", "run": "aa"}}}
    project.write("study/mine.yaml", {"titel": "Mine", "scales": ["demo"], "runs": runs, "tables": {"t1": table}})
    project.edit(DEMO, "replace_data:", "replace_date:")
    project.edit(DEMO, "replace_model:\n", "replace_model:\n  deitt: vit_demo\n")

    found = [line.split("; ")[0].removeprefix("configs/") for line in project.problems()]

    assert sorted(re.sub(r" \(line \d+\)", "", line) for line in found) == sorted(
        [
            f"{DEMO}: replace_date: unknown key",
            f"{DEMO}: replace_model: no model 'deitt'",
            "study/mine.yaml: title: required, not given",
            "study/mine.yaml: titel: unknown key",
            "study/mine.yaml: runs.a.label: required, not given",
            "study/mine.yaml: runs.a.lable: unknown key",
            "study/mine.yaml: runs.b.model: required, not given",
            "study/mine.yaml: runs.b.modle: unknown key",
            "study/mine.yaml: runs.b.method: no method 'mjpp'",
            "study/mine.yaml: runs.b.model: no model 'vit_dmo'",
            "study/mine.yaml: runs.b.recipe: no recipe 'demmo'",
            "study/mine.yaml: runs.c.method: no method 'mjpp'",
            "study/mine.yaml: runs.c.data: no data 'fashion'",
            "study/mine.yaml: tables.t1.columns.one.eval: no eval 'clasify'",
            "study/mine.yaml: tables.t1.columns.two.set: shufle_ratio: unknown key",
            "study/mine.yaml: tables.t1.columns.two.metric: classify has no metric 'topp1'",
            "study/mine.yaml: tables.t1.columns.three.run: found the roles first",
            "study/mine.yaml: tables.t1.columns.three.metric: classify has no metric 'top11'",
            "study/mine.yaml: tables.t1.columns.four.set: grup: unknown key",
            "study/mine.yaml: tables.t1.columns.four.set: data.corrupted: no data 'c'",
            "study/mine.yaml: tables.t1.rows.a.run: no run 'aa'",
        ]
    )


def test_check__unknown_key_near_no_other__leaves_names_for_later(project):
    run = {"label": "A", "method": "mjpp", "model": "vit_demo", "data": "fashion_mnist"}
    project.write("study/mine.yaml", {"title": "Mine", "scales": ["demo"], "zzz": 1, "runs": {"a": run}})

    (line,) = project.problems()

    assert line.startswith("configs/study/mine.yaml: zzz: unknown key")


def test_check__files_that_do_not_parse__are_all_named(project):
    project.edit(DEMO, "comparable", "comparible")
    project.edit(STUDY, "\ntitle:", "\ntitel:")
    (project.configs / EXPECTED).write_text("rows: [")

    files = [line.split(": ")[0] for line in project.problems()]

    assert list(dict.fromkeys(files)) == [f"configs/{DEMO}", f"configs/{STUDY}", f"configs/{EXPECTED}"]


def test_check__run_that_starts_from_a_wrong_one__adds_no_line_of_its_own(project):
    project.edit(STUDY, "e: {like: j, label: DeiT-S + JP, ", "e: {like: j, init: b, label: DeiT-S + JP, ")
    project.edit(STUDY, "pos_embed: none", "pos_embd: none")

    (line,) = project.problems()

    assert line.startswith(f"configs/{STUDY}: runs.b.set: model.pos_embd: unknown key")


def test_check__no_such_scale__names_the_nearest(project, capsys):
    assert main(["check", "--scale", "dmo"]) == 1
    assert capsys.readouterr().err.startswith("ConfigError: configs/scale/dmo.yaml: no such file; did you mean 'demo'?")


def test_check__valid_configs__says_what_would_run(project, capsys):
    assert main(["check", "--scale", "demo"]) == 0

    graph = load_graph("demo")
    *runs, replaced, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in runs] == list(graph.runs)
    assert replaced.startswith("scale demo replaces ")
    assert last.startswith(f"scale demo: configs are valid: {len(graph.runs)} runs, ")


def test_check__run_that_no_table_shows__is_listed_and_not_counted(project, capsys, monkeypatch):
    graph = load_graph("demo")
    name = next(iter(graph.runs))
    for table in graph.tables.values():
        table.rows = {key: row for key, row in table.rows.items() if name not in row.run_names()}
    monkeypatch.setattr("pipeline.audit.check.load_graph", lambda scale, check: graph)
    assert main(["check", "--scale", "demo"]) == 0
    *runs, _, last = capsys.readouterr().out.splitlines()
    left_out = [line.split()[0] for line in runs if line.endswith(", will not be trained: no table uses it")]
    assert name in left_out and [line.split()[0] for line in runs] == list(graph.runs)
    assert last.startswith(f"scale demo: configs are valid: {len(graph.runs) - len(left_out)} runs, ")


def test_check__in_a_process_of_its_own__ends_in_one_message_without_traceback(tmp_path):
    for folder in ("configs", "pipeline"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.gz"))
    for study in ("crossing", "droppos", "mp3", "permequiv", "positions"):  # the message of one study is enough
        (tmp_path / "configs/study" / f"{study}.yaml").unlink()
    path = tmp_path / "configs" / MJP
    path.write_text(path.read_text().replace("dal_weight", "dal_wait"))

    result = Project(tmp_path).run("python", "-m", "pipeline", "check")

    assert (result.returncode, result.stdout) == (1, "")
    assert re.fullmatch(r"ConfigError: configs/method/mjp\.yaml: method\.dal_wait: unknown key; .*\n", result.stderr)
