"""What people see of a scale while it runs."""

import subprocess
import sys
from contextlib import nullcontext

import pytest
from begun_runs import SUBMITTED, begin, finish, held, put
from result_files import SITE
from result_files import finish as finish_files

from pipeline.audit.status import read_status
from pipeline.cli import main
from pipeline.freshness.outputs import job_file, report_file, run_file, table_file
from pipeline.freshness.remake import Freshness
from pipeline.launch import gpus
from pipeline.launch.gpus import hold_gpus
from pipeline.launch.job import Outcome
from pipeline.plan.text import _patience
from pipeline.plan.work import Work
from pipeline.results import scales_with_results
from pipeline.results.records import write_record
from pipeline.site import Site

pytestmark = pytest.mark.slow


def num_needed(graph, kind: str) -> int:
    """Jobs of a kind that the report needs; the graph may have others."""
    return sum(file.startswith(kind) for file in Freshness(graph, SITE).needed_for([report_file("all")]))


def states(graph) -> dict[str, str]:
    return {job.name: f"{job.state} {job.detail}".strip() for job in read_status(Freshness(graph, SITE)).jobs}


def test_status__nothing_has_run__everything_waits(graph):
    said = str(read_status(Freshness(graph, SITE))).splitlines()
    assert said[0] == "scale demo: Snakemake is not running"
    num_runs = num_needed(graph, "runs/")
    assert said[2] == f"  runs          0 of {num_runs} finished, {num_runs} waiting"
    assert said[-1] == "  report        not written yet"


def test_status__of_each_run__is_finished_running_queued_stopped_or_failed(graph):
    done, trains, queued, stopped, broken = list(graph.runs)[:5]
    finish(graph, done)
    put(begin(graph, queued, 60).job, SUBMITTED)
    put(begin(graph, stopped, 120).state / f"step-{100:09d}-0123456789abcdef.pt")
    put(
        graph.results.log("train_run", stopped),
        "12:00:00 epoch 1\ninterrupted: checkpoint; the same command continues\n",
    )
    log = graph.results.log("train_run", broken)
    put(log, "12:00:00 epoch 1\nDataError: the images are gone\n  expected them elsewhere\n")
    with held(begin(graph, trains, 50).lock), held(graph.results.workflow_lock):
        found = states(graph)
    assert found[done] == "finished"
    assert found[trains] == "running step 50 of 200 (25 %)"
    assert found[queued] == "queued SLURM job 77; step 60 of 200 (30 %)"
    assert found[stopped] == "stopped continues after step 100 of 200 (50 %)"
    assert found[broken].split("\n")[1:] == [
        "      DataError: the images are gone",
        "        expected them elsewhere",
        f"      log: {log}",
    ]


def test_status__run_that_stopped_early__shows_where_and_why(graph):
    early, full = list(graph.runs)[:2]
    for name in (early, full):
        finish(graph, name)
        graph.runs[name] = with_patience(graph.runs[name])
    folder = graph.results.run(early)
    record = folder.record()
    facts = {"stopped_early": "after step 12 of 36", "stopped_because": "val_top1 has not improved"}
    record = record.model_copy(update={"provenance": {**record.provenance, **facts}})
    for path in (folder.done, folder.finished):
        write_record(path, record)

    said = str(read_status(Freshness(graph, SITE)))

    assert f"\nstopped early\n  train_run     {early}  after step 12 of 36: val_top1 has not improved" in said
    assert full not in said
    work = Work(dict.fromkeys(list(graph.runs)[2:3], "mjp"), finished=Work({early: "mjp", full: "mjp"}))
    assert _patience(graph, work).replace("\n", " ") == (
        f"Stopped early: {early} after step 12 of 36: val_top1 has not improved."
    )
    assert _patience(graph, Work({full: "mjp"})).endswith(f"the full length is counted: {full}.")


def with_patience(entry):
    optim = {**entry.config["optim"], "patience": 3}
    return entry.model_copy(update={"config": {**entry.config, "optim": optim}})


def test_status__jobs_that_hold_gpus_of_this_machine__say_which(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(gpus, "_found_gpus", dict)
    monkeypatch.setenv(gpus.VISIBLE, "0,1,2")
    (trains, other, *_), job = graph.runs, next(iter(graph.eval_jobs))
    evaluation = graph.results.evaluation(graph.eval_jobs[job].evaluations[0])
    site, log_of = Site(gpus=[0, 1, 2]), graph.results.log
    with (
        hold_gpus(site, 2, log_of("train_run", trains)),
        held(begin(graph, trains, 50).lock),
        held(begin(graph, other, 50).lock),
        held(evaluation.lock),
    ):
        monkeypatch.setenv(gpus.VISIBLE, "0,1,2")
        with hold_gpus(site, 1, log_of("evaluate", job)):
            found = states(graph)
    assert found[trains] == "running step 50 of 200 (25 %) on GPUs 0, 1"
    assert found[other] == "running step 50 of 200 (25 %)" and found[job] == "running on GPU 2"


def test_status__drawings_of_results_that_changed__are_outdated_with_the_reason(graph):
    shown = table_file("mjp.t1", "all")
    finish_files(graph, [shown])
    for name in ("all", "mjp"):  # the report of everything, and that of one study
        put(graph.results.report(name))
    name = graph.tables["mjp.t1"].rows["mjp.t1.deit-s"].runs[""][0]
    graph.results.run(name).encoder.write_text("other")
    said = str(read_status(Freshness(graph, SITE)))
    why = Freshness(graph, SITE).why(shown)
    assert f"  draw_table    all-mjp.t1  {why}" in said and why.endswith("is made again")
    assert f"0 of {len(graph.tables)} with all rows (1 outdated) drawn" in said
    for name in ("all", "mjp"):
        report = Freshness(graph, SITE).why(report_file(name))
        assert f"{graph.results.report(name)}, must be made again: {report}" in said


def test_status__run_that_failed_and_was_then_continued_and_stopped__has_not_failed(graph):
    name = next(iter(graph.runs))
    begin(graph, name, 60)
    put(
        graph.results.log("train_run", name),
        "DataError: gone\n12:00:00 epoch 1\ninterrupted; the same command continues\n",
    )
    assert states(graph)[name].startswith("stopped")


def test_status__run_that_failed_twice__shows_the_beginning_of_the_last_error(graph):
    name = next(iter(graph.runs))
    log = graph.results.log("train_run", name)
    put(log, "DataError: gone\n12:00:00 epoch 1\nLaunchError: 3 jobs failed\n" + "".join(f"{n}\n" for n in range(9)))
    assert states(graph)[name].split() == [
        "failed",
        "LaunchError:",
        "3",
        "jobs",
        "failed",
        "0",
        "1",
        "2",
        "log:",
        str(log),
    ]


def test_status__of_a_scale__counts_tables_and_lists_what_is_on_its_way(graph):
    done, queued, *_ = graph.runs
    finish(graph, done)
    put(begin(graph, queued, 60).job, SUBMITTED)
    headline, num_runs, num_jobs = graph.selected("headline"), num_needed(graph, "runs/"), num_needed(graph, "evals/")
    put(graph.results.report("all"))
    with held(graph.results.workflow_lock):
        said = str(read_status(Freshness(graph, SITE))).splitlines()
    why = Freshness(graph, SITE).why(report_file("all"))  # it has no record of what it was made from
    assert said[2:6] == [
        f"  runs          1 of {num_runs} finished, 1 queued, {num_runs - 2} waiting",
        f"  evaluations   0 of {num_jobs} finished, {num_jobs} waiting",
        f"  tables        0 of {len(headline)} with headline rows, 0 of {len(graph.tables)} with all rows drawn",
        f"  report        {graph.results.report('all')}, must be made again: {why}",
    ]
    assert said[6:] == ["", "queued", f"  train_run     {queued}  SLURM job 77; step 60 of 200 (30 %)"]


def test_status__slurm_job_without_a_snakemake__may_have_ended_unseen(graph):
    name = next(iter(graph.runs))
    put(begin(graph, name, 60).job, SUBMITTED)
    assert states(graph)[name] == (
        "submitted SLURM job 77, not watched by any Snakemake: `squeue --job 77` shows whether it is still there; "
        "step 60 of 200 (30 %)"
    )


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("12:00:00 classify\nDataError: gone\n", "failed DataError: gone"),
        ("12:00:00 classify\ntorch.OutOfMemoryError: CUDA\n", "failed torch.OutOfMemoryError: CUDA"),
        ("could not use results/a: No space left on device; free\n", "failed could not use results/a: No space left"),
        ("/bin/python has no package 'timm', expected\n", "failed /bin/python has no package 'timm', expected"),
        ("12:00:00 classify\n", "failed ended without an error message (killed?) 12:00:00 classify"),
        ("", "failed ended without an error message (killed?) log:"),
        ("interrupted; the same command continues\n", "stopped interrupted"),
    ],
)
def test_status__evaluation_that_left_a_log_and_no_result__has_failed_unless_it_was_interrupted(graph, said, shown):
    job = next(iter(graph.eval_jobs))
    put(graph.results.log("evaluate", job), said)
    assert " ".join(states(graph)[job].split()).startswith(shown)


def test_status__result_that_was_deleted_after_its_job_succeeded__waits(graph):
    job = next(iter(graph.eval_jobs))
    put(graph.results.log("evaluate", job), "12:00:00 classify\n")
    put(graph.results.benchmark("evaluate", job))
    assert states(graph)[job] == "waiting"


def test_status__table_that_was_not_drawn__is_listed_with_what_failed(graph):
    table = next(iter(graph.tables))
    put(graph.results.log("draw_table", f"all-{table}"), "ConfigError: no such column\n")
    assert states(graph)[f"all-{table}"].startswith("failed \n      ConfigError: no such column")


@pytest.mark.parametrize(
    ("code", "has_snakemake", "state"), [(1, True, "stopped"), (75, True, "queued"), (75, False, "submitted")]
)
def test_status__slurm_job_that_was_told_to_stop__may_be_back_in_the_queue(graph, code, has_snakemake, state):
    """It requeues itself before a time limit, and SLURM does when it preempts it; a launcher records the end."""
    name = next(iter(graph.runs))
    folder = begin(graph, name, 60)
    put(folder.job, SUBMITTED)
    outcome = Outcome(job="77", start=0, rank=0, code=code, why="the time limit is near", step=50)
    put(folder.outcome, outcome.model_dump_json())
    with held(graph.results.workflow_lock) if has_snakemake else nullcontext():
        assert states(graph)[name].split()[0] == state


def test_status__data_set_that_a_process_prepares__is_running(graph):
    assert states(graph)["fashion_mnist"] == "waiting"
    with held(graph.results.data_lock("fashion_mnist")):
        assert states(graph)["fashion_mnist"] == "running"


def test_status__evaluation__runs_or_fails_or_is_finished(graph):
    job = next(iter(graph.eval_jobs))
    log = graph.results.log("evaluate", job)
    put(log, "")
    with held(graph.results.evaluation(graph.eval_jobs[job].evaluations[0]).lock):
        assert states(graph)[job] == "running"
    with held(graph.results.workflow_lock):
        assert states(graph)[job] == "running"
        put(log, 'Traceback (most recent call last):\n  File "a.py"\nValueError: no\n')
        assert states(graph)[job].startswith("failed \n      ValueError: no")
        assert str(read_status(Freshness(graph, SITE))).startswith("scale demo: Snakemake is running\n")
    finish_files(graph, [job_file(job)])
    assert states(graph)[job] == "finished"
    (name,) = graph.eval_jobs[job].runs
    graph.results.run(name).encoder.write_text("other")
    log.write_text("")
    assert states(graph)[job] == f"outdated {graph.results.folder / run_file(name)} is made again"
    assert states(graph)[name].startswith("outdated encoder.safetensors has SHA-256 ")


def test_status__without_a_scale__shows_those_with_results(graph, capsys):
    assert main(["status"]) == 0
    assert capsys.readouterr().out.startswith("nothing has run yet; ")
    finish(graph, next(iter(graph.runs)))
    assert scales_with_results() == ["demo"]
    assert main(["status"]) == 0
    assert capsys.readouterr().out.startswith("scale demo: ")


def test_status__weight_file__is_no_run_that_waits(graph):
    name = next(name for name in graph.runs if name not in {run.init for run in graph.runs.values()})
    graph.runs[name].trained, graph.runs[name].config["init"] = False, "file:weights.pth"
    assert name not in states(graph)


def test_status__needs_no_torch(graph):
    code = "import sys; from pipeline.cli import main; main(['status', '--scale', 'demo']); print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "timm", "mlflow"} & set(said.split())
