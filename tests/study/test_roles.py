"""Rows with several runs, or with none: which run a column takes its numbers from, and evaluations of two runs."""

import csv
import io
from pathlib import Path

import pytest
from result_files import write_evaluation, write_training

from pipeline.freshness.outputs import job_file
from pipeline.freshness.remake import Freshness
from pipeline.report.collect import collect
from pipeline.report.tables.draw import to_csv, to_html
from pipeline.report.tables.fill import fill_table, judge_study
from pipeline.results.records import write_record
from pipeline.site import Site
from pipeline.study.resolve.graph import build_graph

STUDY = "study/toy.yaml"
WHY = "quoted by the paper from its source"


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
        "top1": {"label": "Top-1", "eval": "classify", "metric": "top1", "run": "finetuned", "tolerance": 0.5},
        "gain": {"label": "Gain", "delta": "top1", "against": "quoted"},
    }
    rows = {
        "g0.75": {"label": "One", "run": {"pretrained": "encoder1", "finetuned": "tuned1"}},
        "g0.5": {"label": "Two", "run": {"pretrained": "encoder2", "finetuned": "tuned2"}},
        "tuned": {"label": "Tuned alone", "run": {"finetuned": "tuned1"}, "why": "its encoder was not kept"},
        "scratch": {"label": "Scratch", "run": "scratch"},
        "quoted": {"label": "Quoted", "why": WHY},
    }
    tables = {"t1": {"label": "Table 1", "title": "Toys", "columns": columns, "rows": rows}}
    claim = {"statement": "One beats two", "type": "directional", "holds": ["toy.t1.g0.75:top1 > toy.t1.g0.5:top1"]}
    headline = {"t1": ["g0.75", "tuned", "scratch"], "tpairs": ["with2"]}
    return {"runs": runs, "tables": tables, "claims": {"c1": claim}, "headline": headline}


def ensemble_table() -> dict:
    columns = {
        "top1": {"label": "Top-1", "eval": "classify", "metric": "top1", "run": "first"},
        "both": {"label": "Both", "eval": "ensemble", "metric": "top1", "run": {"first": "first", "second": "second"}},
    }
    rows = {
        "with2": {"label": "With 2", "run": {"first": "tuned1", "second": "tuned2"}},
        "with0": {"label": "With scratch", "run": {"first": "tuned1", "second": "scratch"}},
    }
    return {"label": "Section 4", "title": "Ensembles", "columns": columns, "rows": rows}


class Toy:
    """The study above in a project of its own; a test may change it before it is resolved."""

    def __init__(self, project) -> None:
        self.project, self.study = project, study()

    def resolve(self, resolved=True):
        tables = self.study["tables"].items()
        rows = {f"toy.{key}.{row}": dict.fromkeys(t["columns"], 80.0) for key, t in tables for row in t["rows"]}
        headline = {key: rows for key, rows in self.study["headline"].items() if key in self.study["tables"]}
        self.project.only_study("toy", {**self.study, "headline": headline}, rows)
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
    places = {name: at for at, name in enumerate(graph.runs)}
    for name, at in places.items():
        write_training(graph, name, {"val_position_top1": 10.0 + at})
    for name, entry in graph.evals.items():
        first, *others = (places[run] for run in entry.subjects.values())
        write_evaluation(graph, name, {"top1": 20.0 + first + sum(100.0 * (other + 1) for other in others)})


def cells(graph, selection="all", table="toy.t1") -> dict[str, dict]:
    rows = fill_table(graph, table, selection).model_dump()["rows"]
    return {f"{row['id'].removeprefix(table + '.')}:{key}": cell for row in rows for key, cell in row["cells"].items()}


# Roles


@pytest.mark.slow
def test_row__with_roles__each_column_takes_its_own_run(toy):
    graph = toy.resolve()
    finish(graph)

    found, names = cells(graph), by_label(graph)

    assert found["g0.75:positions"]["provenance"]["run"] == names["encoder1"]
    assert found["g0.75:top1"]["provenance"]["run"] == names["tuned1"]
    assert found["g0.75:positions"]["ours"] == 10.0 + list(graph.runs).index(names["encoder1"])
    assert found["g0.5:positions"]["provenance"]["run"] == names["encoder2"]


@pytest.mark.slow
def test_row__with_one_run__serves_every_role(toy):
    graph = toy.resolve()
    finish(graph)

    found, name = cells(graph), by_label(graph)["scratch"]

    assert found["scratch:positions"]["run"] == found["scratch:top1"]["run"] == name


def test_evaluations__of_a_column__are_registered_for_its_own_runs_only(toy):
    graph = toy.resolve()

    evaluated = {graph.runs[run].label for entry in graph.evals.values() for run in entry.subjects.values()}

    assert evaluated == {"tuned1", "tuned2", "scratch"}


@pytest.mark.slow
def test_files__of_a_selection__are_those_its_cells_read(toy):
    graph = toy.resolve()

    names = by_label(graph)
    headline = {f"runs/{names[key]}/train.json" for key in ("encoder1", "scratch")}
    headline |= {f"evals/{names[key]}-quick.json" for key in ("tuned1", "scratch")}
    assert graph.files("toy.t1", "headline") == sorted(headline)
    rest = {f"runs/{names['encoder2']}/train.json", f"evals/{names['tuned2']}-quick.json"}
    assert set(graph.files("toy.t1", "all")) == headline | rest


@pytest.mark.slow
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


@pytest.mark.slow
def test_headline__row_that_no_selection_runs__says_why_and_not_that_all_runs_it(toy):
    graph = toy.resolve()

    found = cells(graph, "headline")

    assert found["quoted:top1"]["reason"] == WHY
    assert found["g0.5:top1"]["reason"] == "`snakemake toy_table1` runs it"


@pytest.mark.slow
def test_fidelity__of_a_row__is_that_of_its_runs_each_once(toy):
    rows = fill_table(toy.resolve(), "toy.t1", "all").model_dump()["rows"]

    assert [row["fidelity"] for row in rows] == ["corrected", "paper, corrected", "corrected", "corrected", ""]


@pytest.mark.slow
def test_csv__rows_with_roles__names_the_run_of_each_cell(toy):
    graph = toy.resolve()

    lines = list(csv.DictReader(io.StringIO(to_csv(fill_table(graph, "toy.t1", "all")))))

    names = by_label(graph)
    found = [(line["row"], line["column"], line["run"]) for line in lines]
    assert found[:2] == [("toy.t1.g0.75", "positions", names["encoder1"]), ("toy.t1.g0.75", "top1", names["tuned1"])]
    quoted = lines[-2]
    assert (quoted["row"], quoted["ours"], quoted["paper"]) == ("toy.t1.quoted", "n/a", "80.0")
    assert (quoted["verdict"], quoted["reason"], quoted["run"]) == ("not run", WHY, "")


@pytest.mark.slow
def test_html__row_with_roles__names_each(toy):
    graph = toy.resolve()
    finish(graph)

    page = to_html(fill_table(graph, "toy.t1", "all"), graph.results.read)

    assert "<small>pretrained</small>" in page and "<small>finetuned</small>" in page
    assert WHY in page


# Claims and the report


@pytest.mark.slow
def test_claim__on_rows_with_dots_in_their_ids__is_decided(toy):
    graph = toy.resolve()
    finish(graph)
    write_record(graph.results.table("toy.t1", "all"), fill_table(graph, "toy.t1", "all"))

    (claim,) = judge_study(graph, "toy", "all").claims

    assert claim.verdict == "false"
    assert set(claim.predicates[0].cells) == {"toy.t1.g0.75:top1", "toy.t1.g0.5:top1"}


@pytest.mark.slow
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


def ensembles(graph) -> dict[tuple[str, ...], str]:
    """Labels of the two runs -> name of the evaluation."""
    found = {name: entry.subjects for name, entry in graph.evals.items() if entry.fragment == "ensemble"}
    return {tuple(graph.runs[run].label for run in subjects.values()): name for name, subjects in found.items()}


@pytest.mark.slow
def test_ensemble__one_run_with_two_others__is_two_evaluations_with_results_of_their_own(toy):
    toy.study["tables"]["tpairs"] = ensemble_table()
    graph = toy.resolve()
    finish(graph)

    found, names, places = cells(graph, table="toy.tpairs"), ensembles(graph), [*by_label(graph)]

    assert set(names) == {("tuned1", "tuned2"), ("tuned1", "scratch")}
    assert graph.evals[names["tuned1", "scratch"]].subjects == {
        "first": by_label(graph)["tuned1"],
        "second": by_label(graph)["scratch"],
    }
    for row, second in (("with2", "tuned2"), ("with0", "scratch")):
        cell = found[f"{row}:both"]
        assert cell["provenance"]["metric"] == "ensemble: top1"
        assert cell["provenance"]["file"] == f"results/demo/evals/{names['tuned1', second]}/result.json"
        assert cell["run"] == by_label(graph)["tuned1"]
        assert cell["ours"] == found[f"{row}:top1"]["ours"] + 100.0 * (places.index(second) + 1)


@pytest.mark.slow
def test_ensemble__its_job__waits_for_both_runs_and_is_no_other_evaluations(toy):
    toy.study["tables"]["tpairs"] = ensemble_table()
    graph, names = toy.resolve(), ensembles(toy.resolve())

    job = graph.eval_jobs[graph.evals[names["tuned1", "tuned2"]].job]

    assert job.runs == sorted(by_label(graph)[label] for label in ("tuned1", "tuned2"))
    assert job.evaluations == [names["tuned1", "tuned2"]]


@pytest.mark.slow
def test_files__of_an_evaluation_of_two__are_those_of_its_job(toy):
    toy.study["tables"]["tpairs"] = ensemble_table()
    graph = toy.resolve()

    name = ensembles(graph)["tuned1", "tuned2"]
    expected = {f"evals/{name}.json", f"evals/{by_label(graph)['tuned1']}-quick.json"}
    assert set(graph.files("toy.tpairs", "headline")) == expected


def test_dependencies__of_an_evaluation_of_two__are_both_runs_and_what_they_start_from(toy):
    toy.study["tables"]["tpairs"] = ensemble_table()
    graph = toy.resolve()
    needed = Freshness(graph, Site()).needed_for([job_file(ensembles(graph)["tuned1", "tuned2"])])
    found = {Path(file).parent.name for file in needed if file.startswith("runs/")}

    assert found == {name for label, name in by_label(graph).items() if label != "scratch"}


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
        "rows.tuned: no run for column positions; name one in `run`, or the reason in `why`",
    ),
    "no run without a reason": (
        lambda t: t["rows"]["quoted"].pop("why"),
        "rows.quoted: no run for columns positions, top1; name one in `run` for each of the roles pretrained,",
    ),
    "role of a difference": (
        lambda t: t["columns"]["gain"].update(run="finetuned"),
        "columns.gain.run: a difference uses the run of its column; leave out run",
    ),
    "evaluation of two without a second run": (
        lambda t: t["columns"]["top1"].update(eval="ensemble"),
        "columns.top1.run: ensemble compares several runs; name a role for each: {first: ..., second: ...}",
    ),
    "positions of a run that predicts none": (
        lambda t: t["columns"]["top1"].update(eval="mp3_positions", metric="at_0"),
        "columns.top1.eval: mp3_positions applies to no row of this table: it is for mp3, not for supervised",
    ),
    "roles that the evaluation does not have": (
        lambda t: t["columns"]["top1"].update(eval="ensemble", run={"first": "finetuned", "secnd": "pretrained"}),
        "columns.top1.run: found the roles first, secnd; ensemble has first, second",
    ),
    "one run where two are needed": (
        lambda t: t["columns"]["top1"].update(eval="ensemble", run={"first": "finetuned", "second": "pretrained"}),
        "rows.scratch: no run for column top1; name one in `run` for each of the roles finetuned, pretrained,",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("spoil", "line"), MISTAKES.values(), ids=MISTAKES.keys())
def test_check__mistake_in_roles__names_file_and_key(toy, spoil, line):
    spoil(toy.table)

    problems = toy.resolve(resolved=False)

    assert problems[0].startswith(f"configs/{STUDY}: tables.t1.{line}")


@pytest.mark.slow
def test_cell__class_accuracy_of_a_pretraining_run__has_the_reason_and_no_evaluation(toy):
    toy.study["runs"]["encoder1"].update(method="mp3", set={"model": {"pos_embed": "none"}})
    toy.table["columns"]["positions"].update(eval="classify", metric="top1")

    graph = toy.resolve()
    finish(graph)

    found, name = cells(graph), by_label(graph)["encoder1"]
    assert (found["g0.75:positions"]["ours"], found["g0.75:positions"]["verdict"]) == (None, "not run")
    assert found["g0.75:positions"]["reason"] == "method mp3 does not classify"
    assert graph.evaluations_of(name) == []
    assert found["g0.5:positions"]["ours"] is not None


@pytest.mark.slow
def test_check__evaluation_that_applies_to_no_run_of_its_column__is_refused(toy):
    for key in ("encoder1", "encoder2"):
        toy.study["runs"][key].update(method="mp3", set={"model": {"pos_embed": "none"}})
    toy.study["runs"]["encoder2"]["set"]["seed"] = 1
    toy.table["columns"]["positions"].update(eval="classify", metric="top1")
    toy.table["rows"]["scratch"].update(run={"finetuned": "scratch"}, why="it has no encoder of its own")

    problems = toy.resolve(resolved=False)

    line = "columns.positions.eval: classify applies to no row of this table: method mp3 does not classify"
    assert [problem.removesuffix(" (line 44)") for problem in problems] == [f"configs/{STUDY}: tables.t1.{line}"]
