"""What the user typed after `snakemake`, with what profiles add to it, and whether it makes sense.

Snakemake tells a workflow neither its targets nor its executor before it plans the jobs, so the command line is read
here once more, by Snakemake's own parser.
"""

import io
import math
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from snakemake.cli import parse_args
from snakemake.utils import available_cpu_count
from snakemake.workflow import Workflow
from snakemake_interface_executor_plugins.settings import ExecMode

from pipeline.core.config import nearest, shown
from pipeline.core.errors import ConfigError
from pipeline.freshness.outputs import is_output
from pipeline.freshness.remake import Freshness
from pipeline.launch.gpus import gpus_of
from pipeline.report.words import counted
from pipeline.site import Site
from pipeline.study.overrides import override_notices
from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.graph import load_graph
from pipeline.study.scales import default_scale, run_at, study_of
from pipeline.study.targets import check_target, targets_of
from pipeline.sweep.derived import DerivedStudy, changed_study

KEYS = ("scale", "site", "set")  # of --config
ONE_INTERRUPT_S = 1.0  # SIGINT within this time of another one is part of it


@dataclass(frozen=True)
class Invocation:
    """How Snakemake was called."""

    targets: list[str] = field(default_factory=list)
    executor: str = "local"
    is_job: bool = False  # the process of a job reads the rules too

    @property
    def command(self) -> str:
        return shlex.join(["snakemake", *sys.argv[1:]])


def read_invocation(workflow: Workflow) -> Invocation:
    """From the command line; a program that uses Snakemake as a library has none."""
    if workflow.exec_mode != ExecMode.DEFAULT:
        return Invocation(is_job=True)
    if Path(sys.argv[0]).name not in ("snakemake", "__main__.py"):
        return Invocation()
    with redirect_stderr(io.StringIO()):  # it would say again which profiles it uses
        _, options = parse_args(None)
    return Invocation(options.targets, options.executor or "local")


def before_execution(workflow: Workflow, action: Callable[[], None]) -> None:
    """Call this before jobs are run, and before the executor exists, which cleans up when it ends.

    Snakemake's `onstart` comes later, and not at all with --no-hooks. Calls that only look, such as --summary, execute
    nothing; dry runs and the processes of jobs do, as Snakemake sees it, and are left alone.
    """
    execute = workflow.execute

    def begin(*arguments: Any, **options: Any) -> Any:
        action()
        return execute(*arguments, **options)

    if workflow.exec_mode == ExecMode.DEFAULT and not workflow.output_settings.dryrun:
        workflow.execute = begin


def ignore_repeated_interrupts() -> None:
    """Treat several SIGINT within a second as one.

    `timeout --signal=INT` sends one to Snakemake and one to its process group. The second one would interrupt
    Snakemake while it waits for its jobs to write their checkpoints, and end it with a traceback.
    """
    last = -math.inf

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if time.monotonic() - last > ONE_INTERRUPT_S:
            last = time.monotonic()
            signal.default_int_handler(number, frame)

    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)


def take_all_cores(workflow: Workflow) -> None:
    """Use this machine's cores where neither cores nor jobs are given.

    No profile can say so: the default one, which is always read, would win over that of a cluster.
    """
    given = workflow.resource_settings
    if given.cores is None and given.nodes is None:
        given.cores = available_cpu_count()
        workflow.global_resources["_cores"] = given.cores


def limit_gpus(workflow: Workflow, site: Site) -> None:
    """Start no more jobs at once than this machine has GPUs for, unless `--resources gpu=...` says how many."""
    if "gpu" not in workflow.global_resources and (found := gpus_of(site)):
        workflow.global_resources["gpu"] = len(found) * site.runs_per_gpu


def problems_of(freshness: Freshness, targets: Iterable[str], known: Mapping[str, list[str]]) -> list[str]:
    """What is wrong with results that the targets need, and what their jobs lack, a line each."""
    folder = f"results/{freshness.graph.scale}/"
    wanted = [file for name in [*targets] or ["all"] for file in known.get(name, [name.removeprefix(folder)])]
    files = [str(Path(file).with_suffix(".html")) if file.startswith("report/") else file for file in wanted]
    files = [file for file in files if is_output(file)]
    found = freshness.problems(files)
    return [
        *(f"{folder}{file}: {why}; it is made again" for file, why in found.items()),
        *_absent_weights(freshness, files),
    ]


def _absent_weights(freshness: Freshness, files: Iterable[str]) -> list[str]:
    """One line for all finished runs that were merged without the weights which jobs need."""
    jobs = [file for file in freshness.stale(files) if file.startswith(("runs/", "evals/"))]
    needed = {job: {*filter(freshness.is_without_weights, freshness.inputs_of(job))} for job in jobs}
    if not (runs := sorted({Path(file).parent.name for found in needed.values() for file in found})):
        return []
    return [
        f"{counted(sum(map(bool, needed.values())), 'job')} will fail: merged runs whose weights are elsewhere are "
        f"needed; copy the weights, or delete the folders of these runs in {shown(freshness.results.runs)} to train "
        f"them again: {', '.join(runs)}"
    ]


def check_config(config: Mapping[str, Any]) -> None:
    """A mistyped key would change nothing, silently."""
    for key in config.keys() - set(KEYS):
        raise ConfigError(f"--config {key}={config[key]}: unknown key; {nearest(key, KEYS)}")


def derive_study(scale: str, targets: list[str], change: Any) -> DerivedStudy:
    """The study of the targets with other keys in each of its runs."""
    return changed_study(load_graph(scale), targets, change)


def choose_scale(workflow: Workflow, config: Mapping[str, Any], targets: Iterable[str]) -> str:
    """What --config says, else the profile's scale if the targets' studies run there, else the default of these.

    The processes of jobs get it, too.
    """
    if typed := workflow.config_settings.config.get("scale"):
        return typed
    targets, scale = [*targets], config.get("scale")
    if not (scale and run_at(targets, scale)):
        scale = default_scale(targets)
    workflow.config_settings.config_args = [*workflow.config_settings.config_args, f"scale={scale}"]
    return scale


def overrides_of(graph: Graph, targets: Iterable[str]) -> list[str]:
    """What the scale replaces in the studies that the targets are of; without any, in all of them."""
    named = {study for target in targets if (study := study_of(target))}
    found = {study: values for study, values in graph.overrides.items() if not named or study in named}
    return override_notices(found, graph.scale)


def choose_site_name(workflow: Workflow, config: Mapping[str, Any]) -> str:
    """What --config says, else the environment, else what a profile says."""
    typed = workflow.config_settings.config
    return typed.get("site") or os.environ.get("PATCHWORK_SITE") or config.get("site") or "local"


def check_site(site: Site, name: str, executor: str) -> None:
    """With jobs in a queue and a site that knows none, training would run on the login node."""
    if executor != "local" and site.slurm is None:
        raise ConfigError(
            f"jobs go to {executor}, but site {name!r} has no `slurm` section: training would run on this machine. "
            "Add --config site=slurm, or your own site with such a section; or leave out --profile"
        )


def check_writable(folder: Path) -> None:
    """Before anything is planned; a job that cannot write its log says nothing at all."""
    nearest_folder = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not (nearest_folder.is_dir() and os.access(nearest_folder, os.W_OK)):
        raise ConfigError(
            f"{shown(nearest_folder)} cannot be written; fix its permissions, or make results a link to a folder of "
            "yours. To look at results: `python -m pipeline status` and `summary`"
        )


def check_targets(targets: Iterable[str], rules: Iterable[str], graph: Graph) -> None:
    """Suggest a name for a mistyped target; paths of files are left to Snakemake."""
    known = targets_of(graph)
    if not graph.tables:
        raise ConfigError(
            f"no study runs at scale {graph.scale}; copy configs/template/study.yaml to configs/study/<name>.yaml"
        )
    for target in targets:
        if target == "demo" and graph.scale != "demo":
            raise ConfigError(
                f"target demo belongs to scale demo, and the scale is {graph.scale}; add --config scale=demo, or "
                "choose another target"
            )
        parts = Path(target).parts
        if parts[:1] == ("results",) and len(parts) > 2 and parts[1] != graph.scale:
            raise ConfigError(
                f"{target} belongs to scale {parts[1]}, and the scale is {graph.scale}; add --config scale={parts[1]}"
            )
        if target not in rules and "/" not in target and not Path(target).exists():
            check_target(target, known, graph.scale)
