"""This machine: packages, device, the results folder, the space in it, the tracking server."""

import fcntl
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement

from pipeline.config import CONFIGS, shown
from pipeline.doctor.finding import Finding, Patient, failed, not_applicable, ok
from pipeline.plan.estimate import bytes_needed, estimate
from pipeline.plan.text import size
from pipeline.plan.work import pending_work
from pipeline.track.store import tracking_uri, without_password

ANSWER_S = 5  # a tracking server that takes longer would slow everything down


def packages(patient: Patient) -> Iterator[Finding]:
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


def device(patient: Patient) -> Iterator[Finding]:
    """What training on this machine would run on."""
    if patient.site.slurm:
        yield not_applicable("device", "jobs train; the test job below looks at theirs")
        return
    import torch

    wanted, there = patient.site.device, torch.cuda.device_count() if torch.cuda.is_available() else 0
    needed = patient.site.processes
    if wanted == "cuda" and not there:
        yield failed(
            "device", "no GPU for `device: cuda`", f"install the GPU's driver, or set device in {patient.site_file}"
        )
    elif there and wanted != "cpu" and there < needed:
        yield failed("device", f"{there} GPUs for `processes: {needed}`", f"lower processes in {patient.site_file}")
    else:
        place = "cuda" if there and wanted != "cpu" else "cpu"
        total = torch.ones(64, 64, device=place) @ torch.ones(64, 64, device=place)
        name = torch.cuda.get_device_name() if place == "cuda" else "this machine's CPU: fine for scale demo"
        yield ok("device", f"{name}; it multiplies matrices ({total[0, 0].item():.0f} = 64)")


def results_folder(patient: Patient) -> Iterator[Finding]:
    """Writable, with locks and renames: training rests on all three."""
    folder = patient.graph.results.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".doctor-") as inner:
            problem = _lock_problem(Path(inner))
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
    if problem:
        remedy = (
            "make results a link to a folder of yours on a file system with locks (NFS 4, Lustre with -o flock, local)"
        )
        yield failed("results", f"{shown(folder)} {problem}", remedy)
    else:
        yield ok("results", f"{shown(folder)} can be written, locked and renamed in")


def _lock_problem(folder: Path) -> str:
    old, new = folder / "old", folder / "new"
    with old.open("w") as first, old.open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return "has no locks: two could hold one at once"
        except BlockingIOError:
            pass
    new.write_text("replaced")
    os.replace(old, new)
    return "" if new.read_text() == "" and not old.exists() else "does not replace a file by renaming"


def space(patient: Patient) -> Iterator[Finding]:
    """Against what is still to be trained at this scale."""
    graph = patient.graph
    needed = bytes_needed(estimate(graph, patient.site, pending_work(graph, [])))
    free = shutil.disk_usage(graph.results.folder).free
    text = f"{size(free)} free, {size(needed)} needed for what is not trained yet"
    if free < needed:
        yield failed(
            "space", text, "make results a link to a larger disk, or ask for less: `python -m pipeline plan TARGET`"
        )
    else:
        yield ok("space", text)


def tracking(patient: Patient) -> Iterator[Finding]:
    """MLflow's server answers, or its file can be written."""
    uri = tracking_uri(patient.site, patient.graph.results)
    safe = without_password(uri)
    if uri.startswith("http"):
        problem = _http_problem(safe)
        remedy = "start it, or mend MLFLOW_TRACKING_URI or tracking_uri; results are kept without it and follow later"
    else:
        folder = Path(uri.removeprefix("sqlite:///")).parent
        problem = "" if os.access(folder, os.W_OK) else f"{folder} cannot be written"
        remedy = "make the folder or mend its permissions"
    yield failed("tracking", f"{safe}: {problem}", remedy) if problem else ok("tracking", f"{safe} answers")


def _http_problem(uri: str) -> str:
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=ANSWER_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"it answers {error.code} to /health"
    except OSError as error:
        return f"no answer within {ANSWER_S} s ({getattr(error, 'reason', error)})"
