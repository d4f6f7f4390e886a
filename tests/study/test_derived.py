"""`--config set=...`: a copy of a study with other keys in each run, which leaves the study and its results alone."""

import pytest
from result_files import SITE, finish, finish_one
from swept_study import STUDY, files, swept

from pipeline.core.config import merge
from pipeline.core.errors import ConfigError
from pipeline.freshness.outputs import claims_file, files_of_targets, report_file, table_file
from pipeline.freshness.remake import Freshness
from pipeline.report.tables.fill import fill_table
from pipeline.study.resolve.fingerprints import claims_fingerprint, table_fingerprint
from pipeline.study.resolve.graph import load_graph, noise_file
from pipeline.sweep.derived import changed_study, typed

pytestmark = pytest.mark.slow
CHANGE = {"optim": {"epochs": "2"}}  # Snakemake hands over text


@pytest.fixture
def mine(project):
    project.only_study("mine", {**STUDY, "overview": "t1"}, {})
    return project


def changed(targets=("mine",), change=CHANGE):
    return changed_study(load_graph("demo"), [*targets], change)


def drawn(graph) -> list[str]:
    """The table of the study itself, and its claims."""
    return [table_file("mine.t1", "all"), claims_file("mine", "all")]


def test_change__every_run_has_it_and_every_name_is_another(mine):
    study = changed()
    before = load_graph("demo")
    study.write("demo")
    graph = load_graph("demo")
    own = {name: run for name, run in graph.runs.items() if study.name in run.studies}
    assert len(own) == 3 and not own.keys() & before.runs.keys()
    assert {run.config["optim"]["epochs"] for run in own.values()} == {2}
    assert graph.stories["mine"].overview == "mine.t1" and not graph.stories[study.name].overview
    assert study.name.startswith("mine_epochs_2_") and f"{study.name}.t1" in graph.tables
    title = graph.tables[f"{study.name}.t1"].study_title
    assert title == "mine, with optim.epochs 2"


def test_change__wins_over_the_run_the_scale_and_an_earlier_change(mine):
    content = merge(STUDY, {"title": "mine", "set": {"optim": {"epochs": 3, "eps": 1e-7}}})
    mine.write("study/mine.yaml", content)
    study = changed(change={"optim": {"weight_decay": "0.7", "epochs": "2"}})
    runs = [run.config["optim"] for run in study.graph("demo").runs.values() if study.name in run.studies]
    assert {(optim["weight_decay"], optim["epochs"], optim["eps"]) for optim in runs} == {(0.7, 2, 1e-7)}


def test_change__the_study_itself__keeps_names_tables_claims_and_verdicts(mine):
    before = load_graph("demo")
    changed().write("demo")
    swept("mine.plain", "optim.epochs=4,2", metric="consistency:consistency").write("demo")
    after = load_graph("demo")
    assert len(after.studies()) == 3
    assert {name: after.runs[name].label for name in before.runs} == {
        name: run.label for name, run in before.runs.items()
    }
    assert before.evals.items() <= after.evals.items()
    assert {name: after.eval_jobs[name] for name in before.eval_jobs} == before.eval_jobs
    assert table_fingerprint(after, "mine.t1") == table_fingerprint(before, "mine.t1")
    assert claims_fingerprint(after, "mine") == claims_fingerprint(before, "mine")


def test_change__finished_study__is_still_fresh_and_shows_its_own_numbers(mine):
    """Also beside a sweep that computes another evaluation of the same run, finished or not."""
    graph = load_graph("demo")
    finish(graph, drawn(graph), {"top1": 70.0, "val_top1": 71.0})
    numbers = fill_table(graph, "mine.t1", "all")
    study, sweep = changed(), swept("mine.plain", "optim.epochs=4,2", metric="consistency:consistency")
    for each in (study, sweep):
        each.write("demo")
    graph = load_graph("demo")
    assert Freshness(graph, SITE).stale(drawn(graph)) == {}

    finish_new(
        graph, [table_file(f"{each.name}.t1", "all") for each in (study, sweep)], {"top1": 10.0, "val_top1": 9.0}
    )
    after = Freshness(graph, SITE)
    assert after.stale(drawn(graph)) == {} and after.stale([table_file(f"{study.name}.t1", "all")]) == {}
    assert fill_table(graph, "mine.t1", "all", after) == numbers
    assert {cell.ours for _, _, cell in fill_table(graph, f"{study.name}.t1", "all").cells()} == {10.0, 9.0}


def finish_new(graph, wanted, metrics):
    """As a workflow does it: what is fresh stays as it is."""
    freshness = Freshness(graph, SITE)
    for file in freshness.stale(wanted):
        finish_one(graph, file, metrics)


def test_change__noise_that_was_measured_on_its_runs__is_not_that_of_other_studies(mine):
    study = changed()
    run = next(name for name, run in study.graph("demo").runs.items() if study.name in run.studies)
    mine.write(f"noise/{noise_file('demo').name}", {"metrics": {"any": [{"run": run, "values": [1.0, 9.0]}]}})
    study.write("demo")
    assert load_graph("demo").noise == {}


def test_change__that_changes_nothing__shares_the_runs_and_adds_nothing_to_them(mine):
    before = load_graph("demo")
    study = changed(change={"optim": {"epochs": "4"}})
    graph = study.graph("demo")
    shared = [name for name, run in graph.runs.items() if run.studies == ["mine", study.name]]
    assert len(shared) == 1  # pretraining has ten epochs at this scale
    assert {name: graph.eval_jobs[name] for name in before.eval_jobs} == before.eval_jobs


def test_targets__of_the_study__stand_for_those_of_the_changed_one(mine):
    study = changed(["mine_table1"])
    graph = study.graph("demo")
    found = study.redirect(files_of_targets(graph), graph)
    assert found["mine_table1"] == [table_file(f"{study.name}.t1", "all")]
    drawn = [table_file(f"{study.name}.t1", "all"), claims_file(study.name, "all"), report_file(study.name)]
    assert found["mine"] == drawn
    assert study.target("mine_table1") == f"{study.name}_table1" and study.target("mine") == study.name


def test_change__of_one_table__has_the_runs_behind_it_alone(mine):
    """The change need not fit the runs of other tables."""
    short = {
        **STUDY["runs"]["plain"],
        "label": "Short",
        "set": {"optim": {"epochs": None, "iterations": 10, "warmup_epochs": 0}},
    }
    other = {**STUDY["tables"]["t1"], "rows": {"short": {"label": "Short", "run": "short"}}}
    mine.write("study/mine.yaml", merge(STUDY, {"title": "mine", "runs": {"short": short}, "tables": {"t2": other}}))
    with pytest.raises(ConfigError, match="epochs is 2 and iterations 10"):
        changed(["mine"]).graph("demo")
    study = changed(["mine_table1"])
    graph = study.graph("demo")
    assert {run.label for run in graph.runs.values() if study.name in run.studies} == {"Plain", "Pretraining", "Tuned"}
    assert study.redirect(files_of_targets(graph), graph)["mine_table1"] == [table_file(f"{study.name}.t1", "all")]


@pytest.mark.parametrize("target", ["mjp_table4", "mjp_table2"], ids=["of the guide", "of a set made with a run"])
def test_change__of_a_papers_table__is_measured_on_the_same_sets(project, target):
    before = load_graph("demo")
    study = changed([target])
    graph = study.graph("demo")
    assert [entry.study for entry in graph.tables.values()].count(study.name) == 1
    assert {name: graph.data[name] for name in before.data} == before.data


def test_change__of_an_edited_study__is_another_study(mine):
    first = changed()
    first.write("demo")
    mine.edit("study/mine.yaml", "weight_decay: 0.3", "weight_decay: 0.4")
    second = changed()
    assert second.name != first.name
    second.write("demo")
    assert {first.path.name, second.path.name} < {*files(mine)}


def test_file__of_a_changed_study__edited_by_hand__is_never_overwritten(mine):
    study = changed()
    study.write("demo")
    study.path.write_text(study.path.read_text().replace("epochs: 2", "epochs: 3"))
    with pytest.raises(ConfigError, match="exists with different content"):
        study.graph("demo")


@pytest.mark.parametrize(
    ("targets", "change", "message"),
    [
        (["mine"], {"optim": {"epochz": "2"}}, "--config set: optim.epochz: unknown key; did you mean 'epochs'?"),
        (["mine"], {"optim": {"epochs": "two"}}, "--config set: optim.epochs: found 'two'; input should be"),
        (["mine"], {"optim": {"micro_batch": "7"}}, "--config set: configs/scale/demo.yaml: run: optim.global_batch: "),
        (["mine"], {"init": "plain"}, "--config set: init: not allowed here; write it next to a run's method"),
        (["mine"], "epochs", "--config set=epochs: expected keys of a run, such as set='{optim: {epochs: 2}}'"),
        (["mien"], CHANGE, "no target 'mien' at scale demo; did you mean 'mine'?"),
        ([], CHANGE, "--config set=... changes the runs of one study, and the targets are all; name one study"),
        (["results/demo/x.json"], CHANGE, "--config set=... changes the runs of one study"),
    ],
    ids=["key", "value", "rule", "init", "no map", "target", "all", "file"],
)
def test_mistake__names_the_option_and_leaves_no_file(mine, targets, change, message):
    before = files(mine)
    with pytest.raises(ConfigError) as caught:
        changed(targets, change).graph("demo")
    assert str(caught.value).startswith(message) and len(str(caught.value).splitlines()) == 1
    assert files(mine) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            CHANGE,
            "--config set: optim.warmup_epochs: warmup_epochs 3.0 must be below epochs 2; "
            "change that, too (configs/study/mine.yaml: common)",
        ),
        (
            {"optim": {"warmup_epochs": "9"}},
            "--config set: optim.warmup_epochs: warmup_epochs 9.0 must be below epochs 4; "
            "optim.epochs is in configs/study/mine.yaml: common",
        ),
    ],
    ids=["changed by the option", "stated by the study"],
)
def test_mistake__with_a_key_that_the_study_states__names_both_places(mine, change, message):
    """The derived study is no file yet, so nobody could look into it."""
    mine.write(
        "study/mine.yaml", merge(STUDY, {"title": "mine", "scales": ["own"], "common": {"optim": {"warmup_epochs": 3}}})
    )
    study = changed_study(load_graph("own"), ["mine"], change)
    with pytest.raises(ConfigError) as caught:
        study.graph("own")
    assert str(caught.value) == message


def test_typed__texts_of_a_command_line__are_values_of_yaml():
    told = {"a": "2", "b": ["0.9", "1e-4"], "c": "none", "d": "null", "e": {"f": "true"}, "g": 3}
    assert typed(told) == {"a": 2, "b": [0.9, 1e-4], "c": "none", "d": None, "e": {"f": True}, "g": 3}


def test_derived__ordinary_study_of_the_same_name__keeps_the_first_label_of_a_run(mine):
    """A sweep sorts after its study, whatever their names."""
    (mine.configs / "study/mine.yaml").unlink()
    content = {"title": "Zoo", "scales": ["demo"], **STUDY}
    mine.write("study/zoo.yaml", {key: value for key, value in content.items() if key != "claims"})
    study = swept("zoo.plain", "optim.base_lr=3e-3,1e-3")
    study.write("demo")
    graph = load_graph("demo")
    (run,) = graph.tables[f"{study.name}.t1"].rows[f"{study.name}.t1.plain_v1-3e-3"].runs[""]
    assert (graph.runs[run].label, graph.runs[run].studies) == ("Plain", ["zoo", study.name])
