"""What targets ask for, and what of it is still to do: a result whose run is trained again is not finished."""

import pytest
from result_files import SITE, finish

from pipeline.core.errors import ConfigError
from pipeline.freshness.outputs import files_of_targets, job_file
from pipeline.freshness.remake import Freshness
from pipeline.plan.estimate import images_left
from pipeline.plan.work import needed_work, pending_work
from pipeline.study.resolve import graph as graphs


@pytest.fixture
def graph(tmp_path, monkeypatch) -> graphs.Graph:
    """Scale demo, of which nothing has run."""
    found = graphs.load_graph("demo")
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path)
    return found


def put(path, content="{}") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def finish_all(graph, target) -> None:
    """Every file that a target waits for."""
    finish(graph, files_of_targets(graph)[target])


def finetuned_in(graph, target) -> tuple[str, str]:
    """A run behind a target that starts from another, and that other one."""
    return next(
        (name, init) for name in needed_work(Freshness(graph, SITE), [target]).runs if (init := graph.runs[name].init)
    )


@pytest.mark.slow
def test_work__of_a_finetuned_run__has_the_one_it_starts_from(graph):
    name, run = next((name, run) for name, run in graph.runs.items() if run.init)
    work = needed_work(Freshness(graph, SITE), [name])
    assert work.runs.keys() == {name, run.init} and not work.evaluations and not work.tables


def test_work__of_all__is_every_run_once_and_every_subject_of_an_evaluation(graph):
    work = needed_work(Freshness(graph, SITE), [])
    assert needed_work(Freshness(graph, SITE), ["mp3", "all", "mjp_table4"]).runs.keys() == work.runs.keys()
    seconds = {entry.subjects["second"] for entry in graph.evals.values() if "second" in entry.subjects}
    assert seconds and seconds <= work.runs.keys() <= graph.runs.keys()


@pytest.mark.slow
def test_target__mistyped__names_the_nearest(graph):
    name = next(iter(graph.runs))
    for target, near in (("mjp_tabel4", "mjp_table4"), (f"{name}x", name)):
        with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
            pending_work(Freshness(graph, SITE), [target])


def test_pending_work__what_is_finished__is_left_out_and_counted(graph):
    first = pending_work(Freshness(graph, SITE), ["mjp_table4"])
    job = next(iter(first.evaluations))
    (name,) = graph.eval_jobs[job].runs
    finish(graph, [job_file(job)])
    left = pending_work(Freshness(graph, SITE), ["mjp_table4"])
    assert first.runs.keys() - left.runs.keys() == {name} == left.finished.runs.keys()
    assert first.evaluations.keys() - left.evaluations.keys() == {job} == left.finished.evaluations.keys()
    assert left.tables == first.tables


@pytest.mark.slow
def test_pending_work__run_to_train_again__takes_its_evaluations_and_tables_along(graph):
    target = "mjp_table4"
    finish_all(graph, target)
    assert not pending_work(Freshness(graph, SITE), [target]).studies
    job = next(iter(needed_work(Freshness(graph, SITE), [target]).evaluations))
    (name,) = graph.eval_jobs[job].runs
    graph.results.run(name).done.unlink()
    left = pending_work(Freshness(graph, SITE), [target])
    assert left.runs.keys() == {name} and left.tables.keys() == {("mjp.t4", "all")}
    assert left.evaluations.keys() == {job for job, each in graph.eval_jobs.items() if name in each.runs} & (
        needed_work(Freshness(graph, SITE), [target]).evaluations.keys()
    )
    assert not left.finished.tables and name not in left.finished.runs


@pytest.mark.slow
def test_pending_work__pretraining_to_repeat__takes_along_what_starts_from_it(graph):
    target = "droppos_table1"
    finish_all(graph, target)
    name, init = finetuned_in(graph, target)
    graph.results.run(init).done.unlink()
    left = pending_work(Freshness(graph, SITE), [target])
    assert {name, init} <= left.runs.keys() and name not in left.finished.runs
    assert all(init in graph.with_inits([other]) for other in left.runs)
    assert any(name in graph.eval_jobs[job].runs for job in left.evaluations) and left.tables


def test_images_left__finished_run_that_starts_from_other_weights__are_all_of_them(graph):
    name, _ = finetuned_in(graph, "droppos_table1")
    optim = graph.runs[name].config["optim"]
    steps = graph.runs[name].config["data"]["num_train"] // optim["global_batch"] * optim["epochs"]
    put(graph.results.run(name).done)
    put(graph.results.run(name).state / f"step-{steps:09d}-0123456789abcdef.pt")
    assert name in pending_work(Freshness(graph, SITE), [name]).runs  # its pretraining is not finished
    assert images_left(graph, name) == steps * optim["global_batch"]
    graph.results.run(name).done.unlink()  # Snakemake deletes it, and the checkpoint still counts
    assert images_left(graph, name) == 0


@pytest.mark.slow
def test_pending_work__table_drawn__is_done_only_with_the_files_it_was_drawn_from(graph):
    table = "mjp.t4"
    put(graph.results.table(table, "all"))
    assert (table, "all") in pending_work(Freshness(graph, SITE), ["mjp_table4"]).tables
    finish_all(graph, "mjp_table4")
    left = pending_work(Freshness(graph, SITE), ["mjp_table4"])
    assert not left.tables and (table, "all") in left.finished.tables
    (graph.results.folder / graph.files(table, "all")[0]).unlink()
    assert (table, "all") in pending_work(Freshness(graph, SITE), ["mjp_table4"]).tables
