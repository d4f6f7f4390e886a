"""Snakemake as people call it: what they type is understood, refused with a reason, or completed by a profile."""

import json
import logging
import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest
import snakemake_executor_plugin_slurm as slurm
from disks import read_only
from project import ROOT, Project, copy_project
from small import LEFT_OUT
from snakemake.cli import parse_args
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry
from snakemake_interface_executor_plugins.settings import ExecMode
from snakemake_interface_logger_plugins.common import LogEvent
from warm_python import with_executable

from pipeline.core.errors import ConfigError
from pipeline.core.files import held
from pipeline.site import Site, Slurm
from pipeline.study.overrides import Override
from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.graph import load_graph
from workflow import invocation
from workflow.console import NUM_LISTED, Console

MANIFEST = "results/demo/data/fashion_mnist/manifest.json"


# What a call means, without Snakemake


class MainProcess:
    """What the rules know of Snakemake, as far as it is asked here."""

    exec_mode = ExecMode.DEFAULT


def call(monkeypatch, *words: str) -> invocation.Invocation:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["snakemake", *words])
    return invocation.read_invocation(MainProcess())


@pytest.mark.slow
def test_call__options_with_values__are_no_targets(monkeypatch):
    found = call(monkeypatch, "mjp_table4", "--config", "scale=tiny", "site=local", "--cores", "2")
    assert (found.targets, found.executor) == (["mjp_table4"], "local")
    assert found.command == "snakemake mjp_table4 --config scale=tiny site=local --cores 2"


def test_interrupts__two_in_quick_succession__are_one_and_a_later_one_counts(monkeypatch):
    monkeypatch.setattr(invocation, "ONE_INTERRUPT_S", 0.03)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        invocation.ignore_repeated_interrupts()
        counted = [is_interrupted(after_s) for after_s in (0, 0, 0.05)]  # two at once: `timeout --signal=INT`
    finally:
        signal.signal(signal.SIGINT, before)
    assert counted == [True, False, True]


def is_interrupted(after_s: float) -> bool:
    time.sleep(after_s)
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.slow
def test_call__slurm_profile__has_its_executor(monkeypatch):
    assert call(monkeypatch, "--profile", "slurm", "all").executor == "slurm"


@pytest.mark.slow
def test_slurm_profile__executor_that_ends__leaves_the_empty_log_folders_of_other_snakemakes(monkeypatch, tmp_path):
    """A job that waits has an empty one, without which it could not start."""
    monkeypatch.chdir(ROOT)
    options = parse_args(["--profile", "slurm"])[1]
    settings = ExecutorPluginRegistry().get_plugin("slurm").get_settings(options)
    (tmp_path / "rule_evaluate/waits").mkdir(parents=True)
    executor = SimpleNamespace(
        workflow=SimpleNamespace(executor_settings=settings), slurm_logdir=tmp_path, logger=logging.getLogger()
    )
    slurm.Executor.clean_old_logs(executor)
    assert (tmp_path / "rule_evaluate/waits").exists()


def test_config__mistyped_key__is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="--config sclae=tiny: unknown key; did you mean 'scale'"):
        invocation.check_config({"sclae": "tiny"})
    invocation.check_config({"scale": "tiny", "site": "local"})


@pytest.mark.parametrize(
    ("typed", "profile", "targets", "scale"),
    [
        ({}, {}, ["mine"], "own"),
        ({}, {}, ["mjp"], "demo"),
        ({}, {}, [], "demo"),
        ({"scale": "tiny"}, {}, ["mine"], "tiny"),
        ({"scale": "tiny"}, {"scale": "paper"}, ["mine"], "tiny"),
        ({}, {"scale": "paper"}, ["mine"], "own"),
        ({}, {"scale": "paper"}, ["mjp"], "paper"),
        ({}, {"scale": "paper"}, [], "paper"),
    ],
)
def test_scale__not_typed__is_that_of_the_profile_or_of_the_targets_and_is_passed_to_the_processes_of_jobs(
    monkeypatch, tmp_path, typed, profile, targets, scale
):
    (tmp_path / "study").mkdir()
    (tmp_path / "study/mine.yaml").write_text("title: Mine")
    for name in ("study/mjp.yaml", "scale", "expected"):
        (tmp_path / name).symlink_to(ROOT / "configs" / name)
    monkeypatch.setattr("pipeline.study.scales.CONFIGS", tmp_path)
    workflow = SimpleNamespace(config_settings=SimpleNamespace(config=typed, config_args=["site='local'"]))
    assert invocation.choose_scale(workflow, profile | typed, targets) == scale  # Snakemake merges both
    assert workflow.config_settings.config_args == ["site='local'", *([] if typed else [f"scale={scale}"])]


def test_overrides__of_studies_that_no_target_is_of__are_not_told(monkeypatch):
    monkeypatch.setattr(invocation, "study_of", lambda target: target.partition("_")[0])
    change = Override(key="optim.epochs", stated=300, here=4)
    graph = Graph(scale="demo", note="", comparable=False, overrides={"mjp": [change], "mp3": [change, change]})
    told = "scale demo replaces {} values of {} (configs/scale/demo.yaml); scale paper keeps them"
    assert invocation.overrides_of(graph, ["mjp_table1"]) == [told.format(1, "mjp")]
    assert invocation.overrides_of(graph, []) == [told.format(3, "mjp, mp3")]


def test_site__queue_for_jobs_and_a_site_without_one__is_refused():
    with pytest.raises(ConfigError, match="site 'local' has no `slurm` section: training would run on this machine"):
        invocation.check_site(Site(), "local", "slurm")
    invocation.check_site(Site(), "local", "local")
    invocation.check_site(Site(slurm=Slurm()), "slurm", "slurm")


@pytest.mark.parametrize(
    ("typed", "environment", "profile", "chosen"),
    [
        ("mine", "theirs", "slurm", "mine"),
        (None, "theirs", "slurm", "theirs"),
        (None, None, "slurm", "slurm"),
        ("mine", None, None, "mine"),
        (None, None, None, "local"),
    ],
)
def test_site__named_in_several_places__is_the_one_typed_then_the_environments_then_the_profiles(
    monkeypatch, typed, environment, profile, chosen
):
    monkeypatch.delenv("PATCHWORK_SITE", raising=False)
    if environment:
        monkeypatch.setenv("PATCHWORK_SITE", environment)
    on_command_line = {"site": typed} if typed else {}
    workflow = SimpleNamespace(config_settings=SimpleNamespace(config=on_command_line))
    config = ({"site": profile} if profile else {}) | on_command_line  # Snakemake merges both
    assert invocation.choose_site_name(workflow, config) == chosen


@pytest.mark.parametrize(("cores", "nodes"), [(None, None), (3, None), (None, 5)])
def test_cores__of_this_machine__are_taken_where_neither_cores_nor_jobs_are_given(cores, nodes):
    workflow = SimpleNamespace(resource_settings=SimpleNamespace(cores=cores, nodes=nodes), global_resources={})
    invocation.take_all_cores(workflow)
    found = len(os.sched_getaffinity(0)) if (cores, nodes) == (None, None) else cores
    assert workflow.resource_settings.cores == found
    assert workflow.global_resources == ({"_cores": found} if found != cores else {})


def test_gpus__of_the_site__limit_jobs_unless_the_command_line_does(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for site, given, limit in [
        (Site(gpus=[0, 1, 2], runs_per_gpu=2), {}, {"gpu": 6}),
        (Site(gpus=[0, 1, 2]), {"gpu": 1}, {"gpu": 1}),
        (Site(device="cpu"), {}, {}),
        (Site(gpus=[0], slurm=Slurm()), {}, {}),
    ]:
        workflow = SimpleNamespace(global_resources=given)
        invocation.limit_gpus(workflow, site)
        assert workflow.global_resources == limit


LIMITED = """
from pipeline.site import Site
from workflow.invocation import limit_gpus
limit_gpus(workflow, Site(gpus=[0, 1]))
rule all:
    input: expand("{n}.txt", n=range(6))
rule job:
    output: "{n}.txt"
    resources: gpu=1
    shell: "touch {wildcards.n}.busy; echo *.busy > {output}; sleep 0.2; rm {wildcards.n}.busy"
"""


@pytest.mark.slow
def test_snakemake__six_jobs_and_two_gpus__runs_two_at_a_time(tmp_path):
    (tmp_path / "Snakefile").write_text(LIMITED)
    project = Project(tmp_path)
    project.env = {**project.env, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "0,1"}
    result = project.snakemake("--cores", "6", "--quiet")
    assert result.returncode == 0, result.stderr
    assert max(len(path.read_text().split()) for path in tmp_path.glob("*.txt")) <= 2


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_graph("demo")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["mjp_table4", "all", "results/demo/report/all.html", "train_run", "README.md"])
def test_targets__of_rules_and_files__are_unchanged(graph, target):
    invocation.check_targets([target], ["train_run", "all", "mjp_table4"], graph)


@pytest.mark.slow
def test_targets__demo_at_another_scale__is_refused(graph):
    graph = graph.model_copy(update={"scale": "paper"})
    with pytest.raises(ConfigError, match=r"target demo belongs to scale demo, .* add --config scale=demo"):
        invocation.check_targets(["demo"], ["demo"], graph)


@pytest.mark.slow
def test_targets__file_of_another_scale__is_refused(graph):
    with pytest.raises(ConfigError, match=r"tiny/report/all.html belongs to scale tiny, .* add --config scale=tiny"):
        invocation.check_targets(["results/tiny/report/all.html"], [], graph)


# What the terminal shows


def record(text: str, level: int = logging.INFO, event: LogEvent | None = None) -> logging.LogRecord:
    found = logging.LogRecord("snakemake", level, "", 0, text, None, None)
    found.event = event
    return found


def test_console__long_dry_run__lists_the_first_jobs_and_counts_the_others():
    console = Console(is_dry_run=True, lists_all=False, when_idle=lambda: None)
    shown = [console.filter(record("job", event=LogEvent.JOB_INFO)) for _ in range(NUM_LISTED + 7)]
    end = record("This was a dry-run (flag -n).")
    assert console.filter(end) and sum(shown) == NUM_LISTED
    assert end.msg.startswith("7 more jobs; -n -p lists all of them")


@pytest.mark.parametrize(("is_dry_run", "lists_all"), [(True, True), (False, False)])
def test_console__real_run_or_all_asked_for__lists_every_job(is_dry_run, lists_all):
    console = Console(is_dry_run, lists_all, when_idle=lambda: None)
    assert all(console.filter(record("job", event=LogEvent.JOB_INFO)) for _ in range(100))


def test_console__failure__is_shown_and_after_ctrl_c_it_is_not():
    console = Console(is_dry_run=False, lists_all=False, when_idle=lambda: None)
    failure = record("Error in rule train_run", logging.ERROR, LogEvent.JOB_ERROR)
    assert console.filter(failure)
    assert console.filter(record("Terminating processes on user request, this might take some time."))
    assert console.was_interrupted and not console.filter(failure)
    assert console.filter(record("interrupted; the same command continues"))


# Snakemake itself


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    """As cloned, with two of the studies."""
    project = copy_project(tmp_path_factory.mktemp("calls") / "clone")
    for name in LEFT_OUT:
        (project.root / f"configs/study/{name}.yaml").unlink()
    project.env = with_executable(project.env)
    return project


@pytest.mark.slow
def test_plain_snakemake__without_cores_after_a_killed_one__runs_with_the_default_profile(project):
    # What Snakemake leaves behind when it is killed: without `nolock` this is a LockException.
    locks = project.root / ".snakemake/locks"
    locks.mkdir(parents=True, exist_ok=True)
    (locks / "0.output.lock").write_text(f"{MANIFEST}\n")
    result = project.snakemake(MANIFEST)
    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    assert "Reason: " not in said and "LockException" not in said
    assert project.read(MANIFEST)["splits"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "env", "line"),
    [
        ("site=mine.yaml", {}, "scale paper, site mine.yaml, executor slurm"),
        ("scale=demo", {"PATCHWORK_SITE": "mine.yaml"}, "scale demo, site mine.yaml, executor slurm"),
    ],
)
def test_slurm_profile__with_command_line_and_environment__keeps_what_they_do_not_set(project, config, env, line):
    (project.root / "mine.yaml").write_text((project.root / "configs/site/slurm.yaml").read_text())
    result = project.run("snakemake", "-n", "mp3_table3", "--profile", "slurm", "--config", config, **env)
    assert line in result.stdout, result.stdout + result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mjp_tabel4"], "no target 'mjp_tabel4' at scale demo; did you mean 'mjp_table4'?"),
        (["mjp", "--config", "sclae=tiny"], "--config sclae=tiny: unknown key; did you mean 'scale'?"),
        (["mjp", "--config", "scale=tyni"], "configs/scale/tyni.yaml: no such file; did you mean 'tiny'?"),
        (["mjp", "--executor", "slurm", "--jobs", "2"], "site 'local' has no `slurm` section"),
    ],
    ids=["target", "key", "scale", "site"],
)
def test_snakemake__a_slip_of_the_finger__is_one_message(project, arguments, message):
    result = project.snakemake("-n", *arguments)
    said = result.stdout + result.stderr
    assert result.returncode == 1 and message in said
    assert "Traceback" not in said and "Building DAG" not in said


@pytest.mark.slow
def test_results__that_cannot_be_written__are_one_message(project):
    table = ["python", "-m", "pipeline", "table", "--table", "mjp.t4"]
    with read_only(project.root / "results"):
        for command, message in ((["snakemake", "mjp"], "cannot be written"), (table, "could not write")):
            result = project.run(*command)
            assert result.returncode == 1 and message in result.stderr
            assert "Traceback" not in result.stderr
        for reading in ("check", "status", "summary"):
            result = project.run("python", "-m", "pipeline", reading, "--scale", "demo")
            assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_scale_that_another_process_works_on__is_refused_before_the_executor_exists_and_may_be_looked_at(project):
    with held(project.root / "results/demo/workflow.lock", "scale demo"):
        refused, looked = (project.snakemake(MANIFEST, option) for option in ("--no-hooks", "--summary"))
    said = refused.stdout + refused.stderr
    assert refused.returncode == 1 and "another process is working on scale demo (process " in said
    assert "Traceback" not in said and "Building DAG" not in said
    assert looked.returncode == 0, looked.stderr


@pytest.mark.parametrize(
    ("mode", "is_dry_run", "expected"),
    [
        (ExecMode.DEFAULT, False, ["action", "execute"]),
        (ExecMode.DEFAULT, True, ["execute"]),
        (ExecMode.REMOTE, False, ["execute"]),
    ],
    ids=["call", "dry run", "process of a job"],
)
def test_before_execution__of_anything_but_a_real_call__nothing_is_done(mode, is_dry_run, expected):
    done = []
    workflow = SimpleNamespace(
        exec_mode=mode,
        output_settings=SimpleNamespace(dryrun=is_dry_run),
        execute=lambda executor: done.append(executor),
    )
    invocation.before_execution(workflow, lambda: done.append("action"))
    assert done == []
    workflow.execute(executor="execute")
    assert done == expected


def test_results__link_to_a_folder_that_is_gone__is_one_message(tmp_path):
    (tmp_path / "results").symlink_to(tmp_path / "unmounted")
    with pytest.raises(ConfigError, match="results cannot be written; fix its permissions, or make results a link"):
        invocation.check_writable(tmp_path / "results" / "demo")
    invocation.check_writable(tmp_path / "elsewhere" / "demo")


@pytest.mark.slow
def test_target__when_it_ends_and_when_there_is_nothing_to_do__prints_its_table(done):
    for _ in range(2):
        result = done.snakemake("mjp_table4")
        assert result.returncode == 0, result.stderr
        lines = result.stdout.splitlines()
        (at,) = [number for number, line in enumerate(lines) if line.startswith("mjp, Table 4 ")]
        assert [line.split(":")[0] for line in lines[at + 1 : at + 4]] == ["A", "D", "J"]
        assert "files: results/demo/tables/all/mjp.t4.md, .csv and .html" in lines
    assert "Nothing to be done" in result.stderr


@pytest.mark.slow
def test_ctrl_c__while_a_run_trains__ends_with_what_to_do_and_without_errors(finished):
    assert json.loads((finished / "interrupted.json").read_text()), "no run was cut short"
    said = (finished / "interrupted.log").read_text()
    assert "RuleException" not in said and "Error in rule" not in said and "WorkflowError" not in said
    assert "interrupted; the same command continues: snakemake demo" in said
