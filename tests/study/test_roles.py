"""Rows with several runs, or with none: which run a column takes its numbers from, and evaluations of two runs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.files import write_json
from pipeline.records import write_record
from pipeline.report.collect import collect
from pipeline.report.draw import to_csv, to_html
from pipeline.report.tables import fill_table, judge_study
from pipeline.study.graph import build_graph

REPOSITORY = Path(__file__).resolve().parents[2]
STUDY = "study/toy.yaml"
WHY = "quoted by the paper from its source"
PROVENANCE = {"commit": "c0ffee", "seed": 0, "wall_s": 1.5}


def study() -> dict:
    """Two encoders, a run that starts from each, a supervised one, and a row that only the paper has."""
    about = {"method": "mjp", "model": "deit_s", "data": "imagenet1k"}
    tuned = {**about, "method": "supervised"}
    runs = {
        "tuned1": {"label": "tuned1", **tuned, "init": "encoder1"},
        "encoder1": {"label": "encoder1", **about},
        "encoder2": {"label": "encoder2", **about, "set": {"seed": 1, "method": {"fidelity": "paper"}}},
        "tuned2": {"label": "tuned2", **tuned, "init": "encoder2"},
        "scratch": {"label": "scratch", **tuned},
    }
    columns = {
        "positions": {"label": "Positions", "eval": "train", "metric": "val_position_top1", "run": "pretrained"},
        "top1": {"label": "Top-1", "eval": "classify", "metric": "top1", "run": "finetuned"},
        "gain": {"label": "Gain", "delta": "top1", "against": "quoted"},
    }
    rows = {
        "g0.75": {"label": "One", "run": {"pretrained": "encoder1", "finetuned": "tuned1"}},
        "g0.5": {"label": "Two", "run": {"pretrained": "encoder2", "finetuned": "tuned2"}, "headline": False},
        "tuned": {"label": "Tuned alone", "run": {"finetuned": "tuned1"}, "why": "its encoder was not kept"},
        "scratch": {"label": "Scratch", "run": "scratch"},
        "quoted": {"label": "Quoted", "why": WHY, "headline": False},
    }
    tables = {"t1": {"label": "Table 1", "title": "Toys", "columns": columns, "rows": rows}}
    claim = {"statement": "One beats two", "type": "directional", "holds": ["toy.t1.g0.75:top1 > toy.t1.g0.5:top1"]}
    return {"runs": runs, "tables": tables, "claims": {"c1": claim}}


def ensemble_table() -> dict:
    columns = {
        "top1": {"label": "Top-1", "eval": "classify", "metric": "top1", "run": "first"},
        "both": {"label": "Both", "eval": "ensemble", "metric": "top1", "run": "first", "partner": "second"},
    }
    rows = {
        "with2": {"label": "With 2", "run": {"first": "tuned1", "second": "tuned2"}},
        "with0": {"label": "With scratch", "run": {"first": "tuned1", "second": "scratch"}, "headline": False},
    }
    return {"label": "Section 4", "title": "Ensembles", "columns": columns, "rows": rows}


class Toy:
    """The study above in a project of its own; a test may change it before it is resolved."""

    def __init__(self, project) -> None:
        self.project, self.study = project, study()

    def resolve(self, resolved=True):
        tables = self.study["tables"].items()
        rows = {f"toy.{key}.{row}": dict.fromkeys(t["columns"], 80.0) for key, t in tables for row in t["rows"]}
        self.project.only_study("toy", self.study, rows)
        self.project.write("eval/ensemble.yaml", {"name": "ensemble", "group": "ensemble"})
        return build_graph("demo") if resolved else self.project.problems()

    @property
    def table(self) -> dict:
        return self.study["tables"]["t1"]


@pytest.fixture
def toy(project) -> Toy:
    return Toy(project)


def by_label(graph) -> dict[str, str]:
    return {run.label: name for name, run in graph.runs.items()}


def finish(graph) -> None:
    """Every run trained, every evaluation done, with numbers that tell them apart."""
    for at, (name, run) in enumerate(graph.runs.items()):
        folder = graph.results.run(name)
        metrics = {"val_position_top1": 10.0 + at}
        write_json(folder.done, {"run": name, "metrics": metrics, "provenance": PROVENANCE})
        folder.config.write_text("seed: 0\n")
        for group, keys in run.groups.items():
            top1 = {key: 20.0 + at + 100 * ("+" in key) for key in keys}
            about = {"run": name, "provenance": PROVENANCE}
            records = {key: {**about, "metrics": {"top1": value}} for key, value in top1.items()}
            write_json(folder.evaluation(group), records)


def cells(graph, selection="all", table="toy.t1") -> dict[str, dict]:
    rows = fill_table(graph, table, selection).model_dump()["rows"]
    return {f"{row['id'].removeprefix(table + '.')}:{key}": cell for row in rows for key, cell in row["cells"].items()}


# Roles


def test_row__with_roles__each_column_takes_its_own_run(toy):
    graph = toy.resolve()
    finish(graph)

    found, names = cells(graph), by_label(graph)

    assert found["g0.75:positions"]["provenance"]["run"] == names["encoder1"]
    assert found["g0.75:top1"]["provenance"]["run"] == names["tuned1"]
    assert found["g0.75:positions"]["ours"] == 10.0 + list(graph.runs).index(names["encoder1"])
    assert found["g0.5:positions"]["provenance"]["run"] == names["encoder2"]


def test_row__with_one_run__serves_every_role(toy):
    graph = toy.resolve()
    finish(graph)

    found, name = cells(graph), by_label(graph)["scratch"]

    assert found["scratch:positions"]["run"] == found["scratch:top1"]["run"] == name


def test_evaluations__of_a_column__are_registered_for_its_own_runs_alone(toy):
    graph = toy.resolve()

    evaluated = {run.label for run in graph.runs.values() if run.groups}

    assert evaluated == {"tuned1", "tuned2", "scratch"}


def test_files__of_a_selection__are_those_its_cells_read(toy):
    graph = toy.resolve()

    names = by_label(graph)
    headline = {f"runs/{names[key]}/train.json" for key in ("encoder1", "scratch")}
    headline |= {f"runs/{names[key]}/evals/quick.json" for key in ("tuned1", "scratch")}
    assert graph.files("toy.t1", "headline") == sorted(headline)
    rest = {f"runs/{names['encoder2']}/train.json", f"runs/{names['tuned2']}/evals/quick.json"}
    assert set(graph.files("toy.t1", "all")) == headline | rest


def test_row__without_a_run_for_a_column__shows_the_papers_number_and_why(toy):
    graph = toy.resolve()
    finish(graph)

    found = cells(graph)

    for key, why in {
        "quoted:top1": WHY,
        "quoted:positions": WHY,
        "tuned:positions": "its encoder was not kept",
    }.items():
        assert (found[key]["ours"], found[key]["paper"], found[key]["verdict"]) == (None, 80.0, "not run")
        assert (found[key]["reason"], found[key]["run"], found[key]["provenance"]) == (why, None, None)
    assert found["tuned:top1"]["ours"] is not None
    assert found["g0.75:gain"]["reason"] == WHY


def test_headline__row_that_no_selection_runs__says_why_and_not_that_all_runs_it(toy):
    graph = toy.resolve()

    found = cells(graph, "headline")

    assert found["quoted:top1"]["reason"] == WHY
    assert found["g0.5:top1"]["reason"] == "not a headline row; `snakemake all` runs it"


def test_fidelity__of_a_row__is_that_of_its_runs_each_once(toy):
    rows = fill_table(toy.resolve(), "toy.t1", "all").model_dump()["rows"]

    assert [row["fidelity"] for row in rows] == ["corrected", "paper, corrected", "corrected", "corrected", ""]


def test_csv__rows_with_roles__names_the_run_of_each_cell(toy):
    graph = toy.resolve()

    lines = to_csv(fill_table(graph, "toy.t1", "all")).splitlines()

    names = by_label(graph)
    assert lines[1].startswith("toy.t1.g0.75,positions,") and lines[1].endswith(names["encoder1"])
    assert lines[2].startswith("toy.t1.g0.75,top1,") and lines[2].endswith(names["tuned1"])
    assert lines[-2] == f"toy.t1.quoted,top1,n/a,80.0,n/a,n/a,not run,{WHY},"


def test_html__row_with_roles__names_each(toy):
    page = to_html(fill_table(toy.resolve(), "toy.t1", "all"))

    assert "<small>pretrained</small>" in page and "<small>finetuned</small>" in page
    assert WHY in page


# Claims and the report


def test_claim__on_rows_with_dots_in_their_ids__is_decided(toy):
    graph = toy.resolve()
    finish(graph)
    write_record(graph.results.table("toy.t1", "all"), fill_table(graph, "toy.t1", "all"))

    (claim,) = judge_study(graph, "toy", "all").claims

    assert claim.verdict == "false"
    assert set(claim.predicates[0].cells) == {"toy.t1.g0.75:top1", "toy.t1.g0.5:top1"}


def test_collect__runs_of_a_selection__come_with_those_they_start_from(toy):
    for row in toy.table["rows"].values():
        row["run"] = {"finetuned": row["run"]["finetuned"]} if isinstance(row.get("run"), dict) else row.get("run", {})
        row["why"] = WHY
    del toy.table["columns"]["positions"]
    graph = toy.resolve()
    finish(graph)
    write_record(graph.results.table("toy.t1", "headline"), fill_table(graph, "toy.t1", "headline"))
    write_record(graph.results.claims("toy", "headline"), judge_study(graph, "toy", "headline"))

    runs = collect(graph, "headline").runs

    assert [run.label for run in runs] == ["encoder1", "tuned1", "scratch"]
    assert {tuple(run.studies) for run in runs} == {("toy",)}


# Evaluations of two runs


def test_partner__two_of_them_for_one_run__are_two_evaluations_in_one_file(toy):
    toy.study["tables"]["tpairs"] = ensemble_table()
    graph = toy.resolve()
    finish(graph)

    names = by_label(graph)
    keys = [f"ensemble+{names[partner]}" for partner in ("tuned2", "scratch")]
    assert sorted(graph.runs[names["tuned1"]].groups["ensemble"]) == sorted(keys)
    assert [graph.evals[key]["partner"] for key in keys] == [names["tuned2"], names["scratch"]]
    assert "ensemble" not in graph.evals
    found = cells(graph, table="toy.tpairs")
    assert [found[f"{row}:both"]["provenance"]["metric"] for row in ("with2", "with0")] == [f"{k}: top1" for k in keys]
    assert found["with2:both"]["ours"] == found["with2:top1"]["ours"] + 100
    assert json.loads(json.dumps(graph.evals)) == graph.evals


def test_partners__of_a_group__are_all_the_runs_it_waits_for(toy):
    toy.study["tables"]["tpairs"] = ensemble_table()
    graph = toy.resolve()

    names = by_label(graph)
    assert graph.partners(names["tuned1"], "ensemble") == sorted([names["tuned2"], names["scratch"]])
    assert graph.partners(names["tuned1"], "quick") == []


def test_files__of_an_evaluation_of_two__are_with_the_first(toy):
    toy.study["tables"]["tpairs"] = ensemble_table()
    graph = toy.resolve()

    folder = f"runs/{by_label(graph)['tuned1']}/evals"
    assert graph.files("toy.tpairs", "headline") == [f"{folder}/ensemble.json", f"{folder}/quick.json"]


@pytest.mark.slow
def test_snakemake__evaluation_of_two__waits_for_the_partners_and_what_they_start_from(toy):
    toy.study["tables"]["tpairs"] = ensemble_table()
    graph, root = toy.resolve(), toy.project.root
    for part in ("pipeline", "workflow"):
        shutil.copytree(REPOSITORY / part, root / part, ignore=shutil.ignore_patterns("*.gz"))
    shutil.copy(REPOSITORY / "Snakefile", root)

    target = f"results/demo/runs/{by_label(graph)['tuned1']}/evals/ensemble.json"
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "1", target]
    env = {**os.environ, "PYTHONPATH": str(root)}
    result = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=300, check=False)

    assert result.returncode == 0, result.stdout + result.stderr
    trained = set(re.findall(r"^Job \d+: train (\S+)", result.stdout + result.stderr, re.MULTILINE))
    assert trained == set(graph.runs)


# Mistakes: what is wrong -> how the table is spoilt, and the beginning of the one line that must come out

MISTAKES = {
    "role of a row": (
        lambda t: t["rows"]["g0.75"].update(run={"pretrained": "encoder1", "finetund": "tuned1"}),
        "rows.g0.75.run.finetund: no column has this role; did you mean 'finetuned'?",
    ),
    "role of a column": (
        lambda t: t["columns"]["top1"].update(run="finetund"),
        "rows.g0.75.run.finetuned: no column has this role; did you mean 'finetund'?",
    ),
    "no role of a column": (
        lambda t: t["columns"]["top1"].update(run=None, eval="train", metric="val_top1"),
        "columns.top1.run: not given, and row 'g0.75' has its runs by role; choose from pretrained, finetuned",
    ),
    "run of a role": (
        lambda t: t["rows"]["g0.75"]["run"].update(finetuned="tuned3"),
        "rows.g0.75.run.finetuned: no run 'tuned3'; did you mean 'tuned",
    ),
    "role missing without a reason": (
        lambda t: t["rows"]["tuned"].pop("why"),
        "rows.tuned: no run for positions; name one in `run`, or the reason in `why`",
    ),
    "no run without a reason": (
        lambda t: t["rows"]["quoted"].pop("why"),
        "rows.quoted: no run for positions, top1; name one in `run`, or the reason in `why`",
    ),
    "role of a difference": (
        lambda t: t["columns"]["gain"].update(run="finetuned"),
        "columns.gain.run: a difference is of another column, whose run it takes",
    ),
    "evaluation of two without a partner": (
        lambda t: t["columns"]["top1"].update(eval="ensemble"),
        "columns.top1.partner: not given, and ensemble is of two runs; name the role of the second",
    ),
    "evaluation of one with a partner": (
        lambda t: (t["columns"]["top1"].update(partner="pretrained"), t["rows"].pop("scratch")),
        "columns.top1: partner: unknown key; ",
    ),
    "positions of a run that predicts none": (
        lambda t: t["columns"]["top1"].update(eval="mp3_positions", metric="at_0"),
        "columns.top1.eval: row toy.t1.g0.75: found a run of method supervised, expected mp3; give the column",
    ),
    "one run where two are needed": (
        lambda t: t["columns"]["top1"].update(eval="ensemble", partner="pretrained"),
        "rows.scratch: no run for top1; name one",
    ),
}


@pytest.mark.parametrize(("spoil", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_check__mistake_in_roles__names_file_and_key(toy, spoil, line):
    spoil(toy.table)

    problems = toy.resolve(resolved=False)

    assert problems[0].startswith(f"configs/{STUDY}: tables.t1.{line}")


def test_check__class_accuracy_of_a_pretraining_run__is_refused(toy):
    toy.study["runs"]["encoder1"].update(method="mp3", set={"model": {"pos_embed": "none"}})
    toy.table["columns"]["positions"].update(eval="classify", metric="top1")

    problems = toy.resolve(resolved=False)

    line = "columns.positions.eval: row toy.t1.g0.75: found a run of method mp3, expected a method that classifies; "
    assert problems == [f"configs/{STUDY}: tables.t1.{line}give the column another role"]
