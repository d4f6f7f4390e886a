"""This machine: packages, device, the results folder, the space in it, the tracking server."""

import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement

from pipeline.core.config import CONFIGS, shown
from pipeline.core.files import LockFile
from pipeline.doctor.finding import Finding, Subject, failed, not_applicable, ok
from pipeline.launch.gpus import gpus_of, in_words
from pipeline.report.words import hours, size
from pipeline.tracking.store import tracking_uri, without_password

LONGEST_H = 7 * 24  # what somebody may want to wait for on a CPU
ANSWER_S = 5  # a tracking server that takes longer would slow everything down


def packages(subject: Subject) -> Iterator[Finding]:
    """Those of the lock file, in its versions."""
    lines = (CONFIGS.parent / "requirements.lock").read_text().splitlines()
    wanted = [Requirement(line.rstrip("\\ ")) for line in lines if line[:1].isalnum()]
    wanted = [package for package in wanted if package.marker is None or package.marker.evaluate()]
    wrong = [problem for package in wanted if (problem := _problem(package))]
    if not wrong:
        yield ok("packages", f"{len(wanted)} packages as in requirements.lock")
        return
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    remedy = "`make demo` or `make test` installs them into .venv; `. .venv/bin/activate` makes it this shell's Python"
    yield failed("packages", f"{'; '.join(wrong[:3])}{more}", remedy)


def _problem(package: Requirement) -> str:
    try:
        found = version(package.name)
    except PackageNotFoundError:
        return f"no {package.name}"
    return "" if package.specifier.contains(found.split("+")[0]) else f"{package.name} {found}, not {package.specifier}"


def device(subject: Subject) -> Iterator[Finding]:
    """What training on this machine would run on."""
    if subject.site.slurm:
        yield not_applicable("device", "jobs train; the test job below looks at theirs")
        return
    import torch

    wanted, there = subject.site.device, torch.cuda.device_count() if torch.cuda.is_available() else 0
    needed, gpus = subject.site.processes, [gpu.id for gpu in gpus_of(subject.site)]
    if gpus and not there:
        remedy = (
            f"install a driver that fits this torch ({torch.__version__}), or set `device: cpu` in {subject.site_file}"
        )
        yield failed("device", f"{in_words(gpus)} for jobs, of which torch can use none", remedy)
    elif wanted == "cuda" and not there:
        yield failed(
            "device", "no GPU for `device: cuda`", f"install the GPU's driver, or set device in {subject.site_file}"
        )
    elif there and wanted != "cpu" and (len(gpus) or there) < needed:
        found = in_words(gpus) if gpus else f"{there} GPUs"
        yield failed("device", f"{found} for `processes: {needed}`", f"lower processes in {subject.site_file}")
    elif there and wanted != "cpu":
        total = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
        shared = f"; jobs share {in_words(gpus)}, {subject.site.runs_per_gpu} at a time on each" if gpus else ""
        name = torch.cuda.get_device_name()
        yield ok("device", f"{name}; it multiplies matrices ({total[0, 0].item():.0f} = 64){shared}")
    else:
        yield _cpu(subject)


def _cpu(subject: Subject) -> Finding:
    """A CPU does for small scales; for others it would compute for months."""
    least, scale = subject.rough.least_cpu_hours(), subject.graph.scale
    text = f"no GPU; training at scale {scale} takes at least {hours(least)} hours on this CPU"
    if least <= LONGEST_H:
        return ok("device", text)
    remedy = (
        "use a machine with a GPU, or scale demo; `python -m pipeline plan --scale "
        f"{scale} TARGET` tells what a part of it takes"
    )
    return failed("device", text, remedy)


def results_folder(subject: Subject) -> Iterator[Finding]:
    """Writable, with locks and renames: training rests on all three."""
    folder = subject.graph.results.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as inner:
            problem = _lock_problem(Path(inner))
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
    if problem:
        remedy = (
            "make results a link to a folder of yours on a file system with locks (NFS 4, Lustre with -o flock, "
            f"local), or set locks in {subject.site_file} to a folder on one"
        )
        yield failed("results", f"{shown(folder)} {problem}", remedy)
    else:
        yield ok("results", f"{shown(folder)} can be written, locked and renamed in")


def _lock_problem(folder: Path) -> str:
    with closing(LockFile(folder / "lock")) as first, closing(LockFile(folder / "lock")) as second:
        if not first.take() or second.take():
            return "has no locks: two could hold one at once"
    old, new = folder / "old", folder / "new"
    old.touch()
    new.write_text("replaced")
    os.replace(old, new)
    return "" if new.read_text() == "" and not old.exists() else "does not replace a file by renaming"


def space(subject: Subject) -> Iterator[Finding]:
    """Against what is still to be trained at this scale."""
    graph = subject.graph
    needed = subject.rough.num_bytes
    folder = graph.results.folder  # missing if it could not be made: the check `results` reports that
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    text = f"{size(free)} free, about {size(needed)} needed for what is not trained yet"
    if free < needed:
        less = f"python -m pipeline plan --scale {graph.scale} TARGET"
        yield failed("space", text, f"make results a link to a larger disk, or ask for less: `{less}`")
    else:
        yield ok("space", text)


def tracking(subject: Subject) -> Iterator[Finding]:
    """MLflow's server answers, or its file can be written."""
    uri = tracking_uri(subject.site, subject.graph.results)
    safe = without_password(uri)
    if uri.startswith("http"):
        problem = _http_problem(safe)
        remedy = "start it, or fix MLFLOW_TRACKING_URI or tracking_uri; results are kept without it and follow later"
    else:
        folder = Path(uri.removeprefix("sqlite:///")).parent
        problem = "" if os.access(folder, os.W_OK) else f"{folder} cannot be written"
        remedy = "make the folder or fix its permissions"
    yield failed("tracking", f"{safe}: {problem}", remedy) if problem else ok("tracking", f"{safe} answers")


def _http_problem(uri: str) -> str:
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=ANSWER_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"it answers {error.code} to /health"
    except OSError as error:
        return f"no answer within {ANSWER_S} s ({getattr(error, 'reason', error)})"
