"""What people may delete of a scale, and what `clean` leaves alone."""

import time

import pytest
from begun_runs import SUBMITTED, begin, finish, held, put
from result_files import SITE

from pipeline.audit.clean import delete, find_leftovers
from pipeline.cli import main
from pipeline.freshness.remake import Freshness
from pipeline.launch import queue
from pipeline.launch.job import Outcome
from pipeline.launch.queue import Answer, Job


@pytest.fixture
def squeue(monkeypatch):
    """Lets squeue say this of job 77."""

    def say(state="", problem=""):
        jobs = {"77": Job("77", state, "None", "", "", "")} if state else {}
        monkeypatch.setattr(queue, "ask", lambda stop: Answer(time.time(), jobs, problem, time.time()))

    return say


@pytest.mark.slow
def test_clean__abandoned_runs_and_checkpoints_of_finished_ones__are_listed_with_sizes(graph):
    finished, stopped = list(graph.runs)[:2]
    put(finish(graph, finished).state / "step-000000200-0123456789abcdef.pt", "x" * 3_000_000)
    put(begin(graph, stopped, 100).state / "step-000000100-0123456789abcdef.pt")
    put(graph.results.run("mjp-old-s0-000000").encoder, "x" * 1_000_000)
    put(graph.results.run("mjp-old-s0-000000").jobs / "7_0_log.out", "x" * 1_000_000)
    found = find_leftovers([Freshness(graph, SITE)])
    assert {item.kind: item.num_bytes for item in found.items} == {"abandoned": 2_000_000, "checkpoint": 3_000_000}
    assert len(found.items) == 2
    assert "2.0 MB" in str(found) and str(found).endswith("2 items may be deleted: 5.0 MB")


@pytest.mark.parametrize("record", ["done", "finished"])
def test_clean__checkpoints_of_a_run_that_may_be_trained_on__are_kept(graph, record):
    """Without either record, the workflow trains the run once more, and continues from them."""
    folder = finish(graph, next(iter(graph.runs)))
    put(folder.state / "step-000000200-0123456789abcdef.pt")
    getattr(folder, record).unlink()
    assert find_leftovers([Freshness(graph, SITE)]).items == []


def test_clean__checkpoints_of_a_run_whose_weights_are_damaged__are_kept(graph):
    folder = finish(graph, next(iter(graph.runs)))
    put(folder.state / "step-000000200-0123456789abcdef.pt")
    folder.encoder.write_text("other")
    assert find_leftovers([Freshness(graph, SITE)]).items == []


def test_clean__deletes__what_it_listed_and_no_result_of_a_current_run(graph):
    name = next(iter(graph.runs))
    folder, old = finish(graph, name), graph.results.run("mjp-old-s0-000000")
    put(folder.state / "step-000000200-0123456789abcdef.pt")
    put(folder.identity)
    put(old.encoder)
    before = {path for path in graph.results.folder.rglob("*") if path.is_file()}
    delete(find_leftovers([Freshness(graph, SITE)]))
    gone = before - {path for path in graph.results.folder.rglob("*") if path.is_file()}
    assert gone == {folder.state / "step-000000200-0123456789abcdef.pt", old.encoder}
    assert not old.folder.exists()


@pytest.mark.slow
def test_clean__evaluations_that_no_config_names_any_more__are_listed_and_deleted_and_no_others(graph):
    name, job = next(iter(graph.evals)), next(iter(graph.eval_jobs))
    current = [graph.results.evaluation(name).result, graph.results.eval_job(job)]
    old = [graph.results.evaluation("classify-00000000").per_image, graph.results.eval_job("mjp-old-s0-000000-quick")]
    for path in [*current, *old]:
        put(path, "x" * 1_000_000)
    found = find_leftovers([Freshness(graph, SITE)])
    assert [(item.kind, item.num_bytes) for item in found.items] == [("evaluation", 1_000_000)] * 2
    assert str(found).startswith("evaluations that no config names any more: 2.0 MB\n")
    delete(found)
    assert all(path.exists() for path in current)
    assert not old[0].parent.exists() and not old[1].exists()


def test_clean__evaluation_of_a_scale_without_runs__is_found(graph, capsys):
    put(graph.results.evaluation("cost-00000000").result)
    assert main(["clean", "--dry-run"]) == 0
    assert "evals/cost-00000000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "is_listed"),
    [({"state": "PENDING"}, False), ({"problem": "no controller"}, False), ({"state": "CANCELLED"}, True)],
    ids=["back in the queue", "nobody knows", "cancelled"],
)
def test_clean__abandoned_run_whose_job_was_told_to_stop__is_listed_once_the_queue_says_that_it_has_ended(
    graph, squeue, said, is_listed
):
    squeue(**said)
    folder = graph.results.run("mjp-old-s1-111111")
    put(folder.job, SUBMITTED)
    outcome = Outcome(job="77", start=0, rank=0, code=75, why="the time limit is near", step=50)
    put(folder.outcome, outcome.model_dump_json())
    found = find_leftovers([Freshness(graph, SITE)])
    assert [item.kind for item in found.items] == ["abandoned"] * is_listed
    assert ("SLURM job 77 may still run" in str(found)) == (not is_listed)


def test_clean__what_may_still_be_used__is_unchanged_with_a_reason(graph, squeue):
    squeue(state="RUNNING")
    trains, queued = graph.results.run("mjp-old-s0-000000"), graph.results.run("mjp-old-s1-111111")
    put(queued.job, SUBMITTED)
    with held(trains.lock):
        found = find_leftovers([Freshness(graph, SITE)])
        assert not found.items
        assert "mjp-old-s0-000000 is skipped: it is training" in str(found)
        assert "SLURM job 77 may still run; `scancel 77` first" in str(found)
    with held(graph.results.workflow_lock):
        said = str(find_leftovers([Freshness(graph, SITE)]))
        assert said.startswith("scale demo is skipped: Snakemake is working on it")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "answer", "is_deleted"),
    [
        ([], "n", False),
        ([], "", False),
        ([], None, False),
        ([], "y", True),
        (["--yes"], None, True),
        (["--dry-run"], "y", False),
    ],
)
def test_clean__deletes_only_after_a_yes(graph, monkeypatch, options, answer, is_deleted):
    def ask(question):
        if answer is None:
            raise EOFError
        return answer

    old = graph.results.run("mjp-old-s0-000000")
    put(old.encoder)
    monkeypatch.setattr("builtins.input", ask)
    assert main(["clean", *options]) == 0
    assert old.folder.exists() != is_deleted
