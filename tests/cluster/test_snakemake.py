"""The whole workflow through `--profile slurm`: killed, started twice, started again, and equal to the local one."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench import Trial, copy_for, files_of
from patience import PATIENCE_S, wait_until
from project import Project
from warm_python import with_programs

from pipeline.report.records import FilledTable
from pipeline.report.tables.draw import to_csv
from pipeline.results.records import read_record

pytestmark = pytest.mark.slow


@dataclass
class Story:
    """What happened to the workflow, and to the two runs of its headline."""

    project: Project
    trials: list[Trial]
    second: subprocess.CompletedProcess
    third: subprocess.CompletedProcess


@pytest.fixture(scope="module")
def story(cluster, template, tmp_path_factory) -> Story:
    """A first Snakemake dies while both runs train; a second one was refused before; a third one takes over."""
    project = copy_for(cluster, template, tmp_path_factory.mktemp("workflow") / "clone")
    runs = [name for name, run in project.graph("demo").runs.items() if run.label < "seed 2"]
    trials = [Trial(project, cluster, run) for run in runs]
    trials[0].pace(0)
    trials[0].hold(after_step=3)  # both: they share the folder
    command = ["snakemake", "demo", "--profile", "slurm", "--config", "scale=demo", f"site={trials[0].write_site()}"]
    command += ["--slurm-init-seconds-before-status-checks", "3"]
    with subprocess.Popen(real(command), **where(project), stderr=subprocess.DEVNULL) as first:
        for trial in trials:
            trial.wait_for_step(3)
        second = project.run(*command)
        first.kill()
    with ThreadPoolExecutor() as pool:
        third = pool.submit(project.run, *command)
        wait_until(lambda: all("submitted earlier" in train_log(trial) for trial in trials) or third.done(), str)
        trials[0].let_go()
    return Story(project, trials, second, third.result())


def real(command: list[str]) -> list[str]:
    """Snakemake in an interpreter of its own, to be killed or interrupted."""
    return [str(Path(sys.executable).with_name(command[0])), *command[1:]]


def where(project: Project) -> dict:
    """Its folder, and an environment in which all that it starts are forks."""
    return {"cwd": project.root, "env": with_programs(project.env)}


def train_log(trial: Trial) -> str:
    path = trial.paths.results / "logs/train_run" / f"{trial.paths.name}.log"
    return path.read_text() if path.exists() else ""


def test_second_snakemake__in_the_same_folder__is_refused_in_one_line(story):
    said = story.second.stdout + story.second.stderr
    assert story.second.returncode == 1
    assert [line for line in said.splitlines() if "another process is working on scale demo" in line], said
    # The executor would have removed folders when it ended.
    assert "Traceback" not in said and "SLURM run ID" not in said


def test_snakemake__killed_and_started_again__goes_on_with_the_jobs_that_run(story):
    assert story.third.returncode == 0, story.third.stdout + story.third.stderr
    assert [len(trial.jobs()) for trial in story.trials] == [1, 1], "\n".join(map(train_log, story.trials))
    assert [trial.paths.name for trial in story.trials if "submitted earlier" not in train_log(trial)] == []


def test_tables__through_slurm__equal_the_local_ones(story, undisturbed):
    for table in ("tiny.t1", "tiny_dense.t1"):
        ours, theirs = (to_csv(read_table(project, table)) for project in (story.project, undisturbed))
        assert ours == theirs
    assert all(cell.ours is not None for cell in read_table(undisturbed, "tiny_dense.t1").rows[0].cells.values())
    for trial in story.trials:
        assert trial.files() == files_of(undisturbed, trial.paths.name)


def test_ctrl_c__while_eight_runs_are_in_the_queue__cancels_all_of_them(cluster, template, tmp_path):
    project = copy_for(cluster, template, tmp_path / "clone")
    runs = [name for name, run in project.graph("demo").runs.items() if run.studies == ["tiny"]]
    trials = [Trial(project, cluster, run) for run in runs]
    site = trials[0].write_site(options={"begin": "now+1hour"})
    command = ["snakemake", "tiny", "--profile", "slurm", "--config", "scale=demo", f"site={site}"]
    log = tmp_path / "log"
    with log.open("w") as file:
        snakemake = subprocess.Popen(real(command), **where(project), stdout=file, stderr=file, start_new_session=True)
    wait_until(lambda: states(trials) == [["PENDING"]] * 8, log.read_text, every_s=1)
    os.killpg(snakemake.pid, signal.SIGINT)
    assert snakemake.wait(PATIENCE_S) != 0
    wait_until(lambda: states(trials) == [["CANCELLED"]] * 8, log.read_text, every_s=1)


def states(trials: list[Trial]) -> list[list[str]]:
    """Of all jobs of each run."""
    return [list(trial.jobs().values()) for trial in trials]


def read_table(project: Project, table: str) -> FilledTable:
    return read_record(project.root / f"results/demo/tables/headline/{table}.json", FilledTable)
