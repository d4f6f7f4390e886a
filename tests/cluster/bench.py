"""A project with a tiny study for experiments on a cluster: copies of it, launchers in them, what became of their jobs.

Every run has twenty steps with a checkpoint after each. A file in the copy slows the steps down, so that a fault meets
a run half-way on any machine; nothing else differs from an undisturbed run. What commands in a copy start are forks of
the tests' server (see warm_python.py); another file makes them interpreters, where something is to happen to them.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import yaml
from patience import PATIENCE_S, wait_until
from project import Project, copy_project, shrink_images
from warm_python import server_of_session

from pipeline.core.files import write_text
from pipeline.results import RunFolder
from slurm import Cluster

ENDED = {"COMPLETED", "FAILED", "CANCELLED"}
SITE = {"device": "cpu", "checkpoint_s": 0}
SLURM = {"partition": "main", "gres": None, "cpus": 1, "memory_gb": 1, "hours": 1, "warning_s": 20, "poll_s": 1}
COMMON = {
    "model": {"patch_size": 7, "embed_dim": 16, "drop_path": 0.2},
    "data": {"augment": {"mixup": 0.8, "cutmix": 1.0, "erasing": 0.5, "repeats": 3}},
    "optim": {
        **{"epochs": 4, "global_batch": 24, "micro_batch": 6, "base_lr": 3e-3, "lr_batch": 24, "warmup_epochs": 1},
        **{"log_every": 4, "ema_decay": 0.9, "clip_norm": 1.0, "smoothing": 0.1},
    },
}
COLUMNS = {
    "val": {"label": "Top-1 after training", "eval": "train", "metric": "val_top1"},
    "top1": {"label": "Top-1", "eval": "classify", "metric": "top1"},
}
# A detector and a segmenter, for six updates of four scenes each.
DETECTOR = {"width": 8, "fc_width": 8, "box_convs": 0, "mask_convs": 1, "roi_samples": 64, "after_nms": [100, 100]}
DENSE = {
    "detect": ("mask_rcnn", "fashion_scenes_coco", DETECTOR),
    "segment": ("upernet", "fashion_scenes_ade", {"width": 8, "aux_width": 4}),
}
DENSE_COMMON = {
    "model": {"embed_dim": 16},
    "optim": {"iterations": 6, "global_batch": 4, "micro_batch": 2, "base_lr": 1e-3, "lr_batch": 4, "log_every": 4},
}
# Every Python that starts in a copy loads this: it slows a run down, holds it where it is, or ends it where only bad
# luck would. What it then starts as `sys.executable`, in a job or beside it, is the program below.
SITECUSTOMIZE = """
import os, pathlib, signal, sys, time

folder, rename = pathlib.Path(__file__).parent, os.replace
sys.executable = str(folder / "bin/python")

def faulty_rename(source, target, **options):
    if pathlib.Path(target).name.startswith("step-"):
        if (folder / "die_once").exists():
            (folder / "die_once").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if (folder / "pace_s").exists():
            time.sleep(float((folder / "pace_s").read_text()))
        while is_held(int(pathlib.Path(target).name.split("-")[1])):
            time.sleep(0.05)
    rename(source, target, **options)

def is_held(step):
    try:
        return step > int((folder / "held_after").read_text())
    except FileNotFoundError:
        return False

os.replace = faulty_rename
"""
PYTHON = """#!/bin/sh
if test -e "${{0%/*}}/../cold"; then exec {interpreter} "$@"; fi
exec {fork} "$@"
"""


def tiny_project(root: Path) -> Project:
    """The project with one study of eight runs that differ in their seed; two of them are in the headline."""
    project = copy_project(root)
    shrink_images(project, 120, 40)
    configs = project.root / "configs"
    for path in [*configs.glob("study/*.yaml"), *configs.glob("expected/*.yaml")]:
        path.unlink()
    fragments = {"method": "mjp", "model": "vit_demo", "data": "fashion_mnist"}
    runs = {f"s{seed}": {"label": f"seed {seed}", **fragments, "set": {"seed": seed}} for seed in range(8)}
    rows = {key: {"label": key, "run": key} for key in runs}
    table = {"label": "Table 1", "title": "Seeds", "columns": COLUMNS, "rows": rows}
    study = {"title": "Tiny", "common": COMMON, "runs": runs, "tables": {"t1": table}, "headline": {"t1": ["s0", "s1"]}}
    expected = {f"tiny.t1.{key}": dict.fromkeys(COLUMNS) for key in rows}
    write_yaml(configs / "study/tiny.yaml", study)
    write_yaml(configs / "expected/tiny.yaml", {"source": "nobody", "rows": expected})
    write_yaml(configs / "study/tiny_dense.yaml", dense_study(configs))
    write_yaml(configs / "scale/demo.yaml", {"note": "tiny", "comparable": False})
    write_yaml(configs / "site/local.yaml", SITE)
    (project.root / "sitecustomize.py").write_text(SITECUSTOMIZE)
    python = project.root / "bin/python"
    python.parent.mkdir()
    python.write_text(PYTHON.format(interpreter=sys.executable, fork=server_of_session().parent / "python"))
    python.chmod(0o755)
    return project


def dense_study(configs: Path) -> dict:
    """A study of both dense tasks, on fewer scenes."""
    runs = {}
    for task, (method, data, keys) in DENSE.items():
        path = configs / "data" / f"{data}.yaml"
        write_yaml(path, {"data": {**yaml.safe_load(path.read_text())["data"], "num_train": 12, "num_val": 8}})
        fragments = {"method": method, "model": "vit_demo", "data": data, "set": {"method": keys}}
        runs[task] = {"label": f"task {task}", **fragments}
    columns = {
        "ap_b": {"label": "Box AP", "eval": "detection", "metric": "ap_b", "run": "detect"},
        "miou": {"label": "mIoU", "eval": "segmentation", "metric": "miou", "run": "segment"},
    }
    rows = {"both": {"label": "both", "run": {task: task for task in runs}, "paper": False}}
    table = {"label": "Table 1", "title": "Dense tasks", "columns": columns, "rows": rows}
    return {"title": "Dense", "scales": ["demo"], "common": DENSE_COMMON, "runs": runs, "tables": {"t1": table}}


def write_yaml(path: Path, content: dict) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def files_of(project: Project, run: str) -> dict[str, str]:
    """Digests of what must not depend on what happened to a run; pytest compares the bytes themselves for minutes."""
    paths = RunFolder(project.root / "results/demo", run)
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in (paths.encoder, paths.heads, paths.metrics)}


def copy_for(cluster: Cluster, template: Project, folder: Path) -> Project:
    """A copy of a project whose commands find the cluster."""
    project = Project(shutil.copytree(template.root, folder, symlinks=True))
    project.env["PATH"] = f"{cluster.files.bin}:{project.env['PATH']}"
    return project


class Trial:
    """One run of a project, its launchers and its jobs."""

    def __init__(self, project: Project, cluster: Cluster, run: str) -> None:
        self.project, self.cluster = project, cluster
        self.paths = RunFolder(project.root / "results/demo", run)
        self.log = project.root / f"{run}.log"  # what all its launchers have said
        self.launchers: list[subprocess.Popen] = []
        self.pace(1.0)

    def pace(self, seconds: float) -> None:
        (self.project.root / "pace_s").write_text(str(seconds))

    def hold(self, after_step: int = 0) -> None:
        """Let no run in this copy write a checkpoint of a later step, so that none ends on a slow machine either."""
        write_text(self.project.root / "held_after", str(after_step))

    def let_go(self) -> None:
        (self.project.root / "held_after").unlink(missing_ok=True)

    def cool(self) -> None:
        """Until the trial is to finish, every job is an interpreter of its own, which SLURM tracks and kills."""
        (self.project.root / "cold").touch()

    def write_site(self, processes: int = 1, **slurm: object) -> Path:
        """A site file; what is not given is as in SLURM."""
        path = self.project.root / f"{self.paths.name}.yaml"
        write_yaml(path, {**SITE, "processes": processes, "slurm": {**SLURM, **slurm}})
        return path

    def start(self, **slurm: object) -> subprocess.Popen:
        """The launcher, as a shell would start it: in a process group of its own."""
        site = self.write_site(**slurm)
        with self.log.open("ab") as log:
            launcher = subprocess.Popen(
                ["python", "-m", "pipeline", "train", "--scale", "demo", "--run", self.paths.name],
                cwd=self.project.root,
                env={**self.project.env, "PATCHWORK_SITE": str(site)},
                stderr=log,
                start_new_session=True,
            )
        self.launchers.append(launcher)
        return launcher

    def end(self) -> None:
        """No launcher survives a failed test: it would submit for ever."""
        for launcher in [launcher for launcher in self.launchers if launcher.poll() is None]:
            self.interrupt(launcher, signal.SIGKILL)

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def wait_for_words(self, words: str, times: int = 1) -> None:
        wait_until(lambda: self.said().count(words) >= times, lambda: f"{words!r} is not in:\n{self.evidence()}")

    def wait_for_step(self, step: int) -> None:
        wait_until(lambda: self.paths.last_step() >= step, lambda: f"step {step} is not reached:\n{self.evidence()}")

    def wait_for_steps(self, count: int = 3) -> None:
        """Until a job has done some steps from where the last one left."""
        self.wait_for_step(self.paths.last_step() + count)

    @property
    def job(self) -> str:
        return json.loads(self.paths.job.read_text())["job"]

    def jobs(self) -> dict[str, str]:
        """Id -> state of every job of this run that was ever submitted from this copy."""
        lines = self.cluster.run("squeue", "--noheader", "--states=all", "--format=%i|%T|%j|%Z").splitlines()
        found = [line.split("|") for line in lines]
        ours = [f"demo-{self.paths.name}", str(self.project.root)]
        return {job: state for job, state, *where in found if where == ours}

    def release_when_queued(self) -> None:
        """Wait for the job's way back into the queue and let it start at once."""
        job = self.job
        wait_until(
            lambda: self.jobs().get(job) == "PENDING", lambda: f"job {job} is not back:\n{self.evidence()}", every_s=0.2
        )
        self.cluster.release(job)

    def finish(self, launcher: subprocess.Popen) -> None:
        """To the end at full speed; a job that comes back into the queue does not wait there, and starts as a fork."""
        self.pace(0)
        self.let_go()
        (self.project.root / "cold").unlink(missing_ok=True)
        wait_until(lambda: self._has_ended(launcher), self.evidence, every_s=1)
        assert launcher.returncode == 0, f"exit code {launcher.returncode}:\n{self.evidence()}"
        wait_until(lambda: set(self.jobs().values()) <= ENDED, self.evidence, every_s=1)

    def _has_ended(self, launcher: subprocess.Popen) -> bool:
        for job in [job for job, state in self.jobs().items() if state == "PENDING"]:
            self.cluster.release(job)
        return launcher.poll() is not None

    def interrupt(self, launcher: subprocess.Popen, number: int = signal.SIGINT) -> int:
        os.killpg(launcher.pid, number)
        return launcher.wait(PATIENCE_S)

    def files(self) -> dict[str, str]:
        return files_of(self.project, self.paths.name)

    def evidence(self) -> str:
        """Everything a person would look at when a trial goes wrong."""
        logs = sorted(self.paths.jobs.glob("*_log.out")) if self.paths.jobs.exists() else []
        texts = [f"--- {path.name}\n{path.read_text()}" for path in logs]
        return "\n".join([self.said(), f"jobs: {self.jobs()}", f"step {self.paths.last_step()}", *texts])
