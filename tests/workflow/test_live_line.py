"""The line that says how far the whole workflow is, with a real Snakemake in a pseudo-terminal."""

import os
import re
import subprocess
import sys
import time

import pytest
from patience import PATIENCE_S
from project import ROOT
from terminal import Terminal
from warm_python import with_programs

from workflow.progress import PlannedJob, Progress, Running, Step, in_time

SNAKEFILE = """
import json
from pathlib import Path
from types import SimpleNamespace

from pipeline.results import ScaleFolder
from workflow import live_line
from workflow.console import Console

live_line.REDRAW_S, live_line.LOOK_S, live_line.FIRST_MESSAGE_S = 0.1, 0.2, 1.0
CONFIG = {
    "method": {"name": "mjp"}, "model": {"name": "vit"},
    "optim": {"epochs": 4, "global_batch": 10}, "data": {"num_train": 100},
}
RUNS = {f"mjp-{name}": SimpleNamespace(config=CONFIG) for name in "ab"}
GRAPH = SimpleNamespace(runs=RUNS, results=ScaleFolder(Path("results/demo")))
LINE = live_line.LiveLine(workflow, lambda: GRAPH)
if workflow.exec_mode == workflow.exec_mode.DEFAULT:
    Console(False, False, lambda: None).install()
    LINE.install()


onsuccess:
    LINE.stop()
    print("the tables")


onerror:
    LINE.stop()


rule all:
    input: expand("results/demo/evals/{job}.json", job=["mjp-a", "mjp-b"])


rule evaluate:
    input: "results/demo/runs/{job}/train.json"
    output: "results/demo/evals/{job}.json"
    shell: "touch {output}"


rule train_run:
    output: "results/demo/runs/{run}/train.json"
    log: "{run}.log"
    shell: "python train.py results/demo/runs/{wildcards.run} > {log} 2>&1"
"""
TRAIN = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
(folder / "started.json").write_text(json.dumps({"steps": 40}))
for step in range(1, 41):
    time.sleep(SECONDS / 40)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step}) + "\\n")
if FAILS:
    sys.exit("out of luck")
(folder / "train.json").write_text("{}")
"""
ENV = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
}
CALL = ["snakemake", "--cores", "1"]


def lay_out(folder, seconds=2.0, fails=False):
    (folder / "Snakefile").write_text(SNAKEFILE)
    (folder / "train.py").write_text(TRAIN.replace("SECONDS", str(seconds)).replace("FAILS", str(fails)))
    return folder


def run_in_terminal(folder, columns=100, options=()):
    terminal = Terminal([*CALL, *options], folder, with_programs(ENV), columns, is_fork=True)
    return terminal, terminal.exit_code(PATIENCE_S)


def run_into_a_file(folder, *options):
    command = [*CALL, *options]
    return subprocess.run(command, cwd=folder, env=with_programs(ENV), capture_output=True, text=True, check=False)


def is_live(line):
    return " of 5 jobs" in line


@pytest.fixture(scope="module")
def whole_workflow(tmp_path_factory):
    """What a terminal shows of it, from its start to its end."""
    terminal, code = run_in_terminal(lay_out(tmp_path_factory.mktemp("whole")))
    assert code == 0, terminal.written
    return terminal


@pytest.mark.slow
def test_terminal__whole_workflow__line_has_jobs_epochs_and_time_left_and_disappears(whole_workflow):
    terminal = whole_workflow
    drawn = terminal.drawn()
    assert any(line.startswith("0 of 5 jobs | mjp epoch 2 of 4 | ") for line in drawn), drawn
    assert any(re.match(r"[12] of 5 jobs \| mjp epoch 3 of 4 \| .* left", line) for line in drawn), drawn
    assert not [line for line in terminal.screen() if is_live(line)]


@pytest.mark.slow
def test_terminal__messages_of_snakemake_and_the_hooks__are_as_without_a_line(whole_workflow):
    screen = whole_workflow.screen()
    assert screen.count("Finished jobid: 1 (Rule: evaluate)") == 1 and screen.count("5 of 5 steps (100%) done") == 1
    assert "the tables" in screen
    rest = [line for line in screen if "\x1b" in line or "| " in line]
    assert not rest, rest


@pytest.mark.slow
def test_terminal__narrow__no_line_is_wider(tmp_path):
    terminal, _ = run_in_terminal(lay_out(tmp_path, seconds=0.6), columns=30)
    drawn = [line for line in terminal.drawn() if is_live(line)]
    assert drawn and max(map(len, drawn)) < 30, drawn


@pytest.mark.slow
def test_terminal__job_that_fails__error_stays_readable_and_is_counted(tmp_path):
    folder = lay_out(tmp_path, seconds=0.6, fails=True)
    terminal, code = run_in_terminal(folder, options=["--keep-going", "--show-failed-logs"])
    assert code == 1
    screen = terminal.screen()
    assert screen.count("Error in rule train_run:") == 2 and screen.count("out of luck") == 2, terminal.written
    assert any("0 of 5 jobs, 1 failed" in line for line in terminal.drawn())
    assert not [line for line in screen if is_live(line)]


@pytest.mark.slow
def test_terminal__ctrl_c__line_disappears_and_the_message_stays(tmp_path):
    """Processes of their own, as the terminal sends the signal to all that it has in front."""
    terminal = Terminal(CALL, lay_out(tmp_path, seconds=120), ENV, 100)
    terminal.read_until("of 5 jobs .* epoch 1", PATIENCE_S)
    terminal.press_ctrl_c()
    assert terminal.exit_code(PATIENCE_S) == 1
    screen = terminal.screen()
    assert any("Terminating processes on user request" in line for line in screen)
    assert not [line for line in screen if is_live(line)], screen


@pytest.mark.slow
def test_log_file__whole_workflow__has_a_message_now_and_then_and_nothing_of_a_terminal(tmp_path):
    found = run_into_a_file(lay_out(tmp_path))
    assert found.returncode == 0, found.stderr
    lines = [line for line in found.stderr.splitlines() if line.startswith("progress: ")]
    assert lines and len(lines) < 8 and all(map(is_live, lines)) and "\x1b" not in found.stderr
    (log,) = (tmp_path / ".snakemake/log").glob("*.log")
    assert lines[0] in log.read_text()


@pytest.mark.slow
def test_terminal__something_wrong_with_the_line__jobs_go_on(tmp_path):
    folder = lay_out(tmp_path, seconds=0.6)
    path = folder / "Snakefile"
    path.write_text(path.read_text().replace('"data": {"num_train": 100}', '"data": {}'))
    terminal, code = run_in_terminal(folder)
    assert code == 0 and "the line with the progress has ended: KeyError: 'num_train'" in terminal.written


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--quiet", "progress"], ["-n"]])
def test_log_file__dry_run_or_quiet__has_no_line(tmp_path, options):
    found = run_into_a_file(lay_out(tmp_path, seconds=1.5), *options)
    assert found.returncode == 0 and "progress: " not in found.stderr


# The arithmetic


def chain(count, rule="train_run", kind="train_run mjp", size=100.0):
    """So many jobs, each after the one before."""
    return {i: PlannedJob(i, rule, f"mjp-{i}", kind, size, (i - 1,) if i else ()) for i in range(count)}


def test_time_left__nothing_known_of_trainings__is_not_told():
    progress = Progress(chain(3), start=0.0)
    progress.begin([0], 0.0)
    assert progress.seconds_left(5.0) is None
    assert progress.line(5.0, None) == "0 of 3 jobs | mjp starting | 5 s"


def test_time_left__training_that_started_slowly__counts_from_its_first_step():
    progress = Progress(chain(1), start=0.0)
    progress.begin([0], 0.0)
    progress.running[0].see(Step(10, 100), now=20.0)
    progress.running[0].see(Step(30, 100), now=22.0)
    assert progress.seconds_left(22.0) == pytest.approx(7.0)  # 70 steps at 0.1 s


def test_time_left__chain_of_jobs__is_their_sum_however_many_run_at_a_time():
    progress = Progress(chain(4), start=0.0, earlier={"train_run mjp": 0.5})
    assert progress.seconds_left(0.0) == 200.0
    progress.begin([0], 0.0)
    progress.finish(0, 30.0)
    assert progress.seconds_left(30.0) == 90.0  # what this call measures counts, not earlier ones


def test_time_left__two_at_a_time__is_half_of_the_sum():
    jobs = {i: PlannedJob(i, "train_run", f"mjp-{i}", "train_run mjp") for i in range(10)}
    progress = Progress(jobs, start=0.0)
    progress.begin([0, 1], 0.0)
    progress.finish(0, 10.0)
    progress.finish(1, 10.0)
    assert progress.seconds_left(10.0) == pytest.approx(40.0)


def test_time_left__job_that_failed__what_waits_for_it_is_not_counted():
    progress = Progress(chain(3), start=0.0, earlier={"train_run mjp": 1.0})
    progress.begin([0], 0.0)
    progress.fail(0, 5.0)
    assert progress.seconds_left(5.0) == 0.0
    progress.begin([0], 6.0)  # Snakemake tries it again
    assert progress.seconds_left(6.0) > 200.0


def test_time_left__training_of_another_kind__is_estimated_from_the_others():
    jobs = {0: PlannedJob(0, "train_run", "mjp-a", "train_run mjp", 100.0)}
    assert Progress(jobs, 0.0, earlier={"train_run mae": 0.2}).seconds_left(0.0) == pytest.approx(20.0)


def test_line__many_trainings__as_many_as_fit():
    jobs = {i: PlannedJob(i, "train_run", f"mjp-{i}", "train_run mjp") for i in range(200)}
    progress = Progress(jobs, 0.0, running={i: Running(0.0, step=Step(5, 10, 4)) for i in range(100)})
    line = progress.line(60.0, 600.0, width=80)
    assert line == "0 of 200 jobs | mjp epoch 3 of 4, 99 more | 1 min, about 10 min left" and len(line) <= 80
    assert progress.line(60.0, 600.0, width=45) == "0 of 200 jobs | 1 min, about 10 min left"
    assert progress.line(60.0, 600.0, width=20) == "0 of 200 jobs"


def test_steps__in_words__are_epochs_or_a_share():
    assert [str(Step(step, 40, 4)) for step in (0, 10, 39, 40)] == [f"epoch {n} of 4" for n in (1, 2, 4, 4)]
    assert str(Step(5, 40)) == "12 %"


def test_time__in_words__has_two_units_at_most():
    assert [in_time(s) for s in (7.4, 59.4, 540, 7800, 273_000)] == ["7 s", "59 s", "9 min", "2 h 10 min", "3 d 3 h"]


def test_time_left__ten_thousand_jobs__takes_a_fraction_of_a_second():
    jobs = chain(5_000) | {
        5_000 + i: PlannedJob(5_000 + i, "evaluate", "", "evaluate", after=(i,)) for i in range(5_000)
    }
    progress = Progress(jobs, 0.0, earlier={"train_run mjp": 1.0})
    start = time.process_time()
    assert progress.seconds_left(1.0) > 0
    assert time.process_time() - start < 0.5
