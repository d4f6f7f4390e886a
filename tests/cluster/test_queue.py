"""Launchers and the queue: restarts of SLURM, other numbers of processes, many launchers, accounting."""

import gzip
import signal
import time

import pytest
from bench import Trial, files_of
from project import Project

from pipeline.core.files import read_lines
from pipeline.results import RunFolder

pytestmark = pytest.mark.slow

NEVER = {"options": {"begin": "now+1hour"}}


def test_slurmctld__restarted_while_a_job_runs_and_another_waits__is_waited_for(cluster, new_trial, undisturbed):
    running, waiting = new_trial(), new_trial()
    launchers = running.start(), waiting.start(**NEVER)
    running.wait_for_steps()
    waiting.wait_for_words("submitted job")
    running.hold()  # or it would have finished before squeue gives up, which takes half a minute
    with cluster.without("slurmctld"):
        for trial in (running, waiting):
            trial.wait_for_words("the queue cannot be read")
    running.finish(launchers[0])
    assert waiting.interrupt(launchers[1]) == 75
    assert (list(running.jobs().values()), list(waiting.jobs().values())) == (["COMPLETED"], ["CANCELLED"])
    assert running.files() == files_of(undisturbed, running.paths.name)


def test_processes__four_on_two_nodes_then_one_then_two__keep_the_losses_of_one(new_trial, undisturbed):
    trial = new_trial()
    legs = [{"nodes": 2, "processes": 2}, {"processes": 1}, {"processes": 3}]  # three do not share a batch evenly
    for number, leg in enumerate(legs[:2], start=1):
        launcher = trial.start(**leg)
        trial.wait_for_words("submitted job", times=number)
        trial.wait_for_steps()
        assert trial.interrupt(launcher, signal.SIGINT) == 75, trial.evidence()
    trial.finish(trial.start(**legs[2]))
    shapes = ["2 nodes x 2 processes", "1 node x 1 process;", "1 node x 2 processes"]
    assert [shape for shape in shapes if shape not in trial.said()] == [], trial.said()
    assert trial.said().count("the same command continues") == 2
    assert "node n1 does not resolve; using 127.0.0.1" in trial.evidence()
    assert sorted(trial.jobs().values()) == ["CANCELLED", "CANCELLED", "COMPLETED"]
    assert_same_curve(trial.paths, RunFolder(undisturbed.root / "results/demo", trial.paths.name))


def assert_same_curve(ours: RunFolder, theirs: RunFolder) -> None:
    records = [read_lines(paths.metrics) for paths in (ours, theirs)]
    assert [record.keys() for record in records[0]] == [record.keys() for record in records[1]]
    for one, other in zip(*records, strict=True):
        assert one == pytest.approx(other, abs=1e-5), one["step"]


def test_launchers__eight_at_once__ask_the_queue_as_often_as_one(cluster, template, new_trial):
    project = new_trial().project
    runs = [name for name, run in template.graph("demo").runs.items() if run.studies == ["tiny"]]
    trials = [Trial(project, cluster, run) for run in runs]
    launchers = [trial.start(**NEVER, poll_s=2) for trial in trials]
    for trial in trials:
        trial.wait_for_words("submitted job")
    before, since = num_calls(cluster), time.monotonic()
    time.sleep(8)
    asked, seconds = num_calls(cluster) - before, time.monotonic() - since
    assert [trial.interrupt(launcher) for trial, launcher in zip(trials, launchers, strict=True)] == [75] * 8
    assert 2 <= asked <= seconds / 2 + 1
    assert [list(trial.jobs().values()) for trial in trials] == [["CANCELLED"]] * 8


def num_calls(cluster) -> int:
    return cluster.files.calls.read_text().count("\nsqueue ")


def test_launcher__data_prepared_again_while_a_job_waits__replaces_the_job(new_trial):
    trial = new_trial()
    launcher = trial.start(**NEVER)
    trial.wait_for_words("submitted job")
    assert trial.interrupt(launcher, signal.SIGTERM) == 75, trial.evidence()
    relabel(trial.project)
    trial.finish(trial.start())
    assert sorted(trial.jobs().values()) == ["CANCELLED", "COMPLETED"]
    (line,) = [line for line in trial.said().splitlines() if "cancelling it and submitting another" in line]
    assert "the data changed from" in line and "since job" in line
    manifest = trial.project.read("results/demo/data/fashion_mnist/manifest.json")
    assert trial.paths.record().inputs.data == manifest["fingerprint"]


def relabel(project: Project) -> None:
    """Prepare the data again, with another label for every image."""
    for path in (project.root / "pipeline/data/fashion_mnist").glob("*-labels-*.gz"):
        content = gzip.decompress(path.read_bytes())
        path.write_bytes(gzip.compress(content[:8] + bytes((label + 1) % 10 for label in content[8:])))
    result = project.run("python", "-m", "pipeline", "prepare", "--scale", "demo", "--data", "fashion_mnist")
    assert result.returncode == 0, result.stderr


def test_launcher__with_accounting__is_the_same(cluster_with_accounting, new_trial, undisturbed):
    trial = new_trial(cluster_with_accounting)
    trial.finish(trial.start(account="lab"))
    assert trial.files() == files_of(undisturbed, trial.paths.name)
    assert list(trial.jobs().values()) == ["COMPLETED"]
