"""A copy of the whole project that a test may run and change, and the commands a user would type in it."""

import gzip
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import BUILD_S
from warm_client import module_of
from warm_python import run_module

from pipeline.core.files import held
from pipeline.study.resolve.entries import Graph

ROOT = Path(__file__).resolve().parents[1]
# Bytecode comes along: where Python may not write any, each process in a copy would compile the project anew.
LEFT_OUT = [".venv", ".git", ".snakemake", "*.egg-info", ".*_cache", "cache", "tmp"]
LEFT_OUT_AT_THE_TOP = {"results", "tests"}


class Project:
    """The copy, and the commands a user would type in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {
            **{
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("PATCHWORK", "MLFLOW", "SNAKEMAKE"))
            },
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(root),
            "DVC_NO_ANALYTICS": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess:
        env = {**self.env, **env}
        if found := module_of(command):
            return subprocess.CompletedProcess(command, *run_module(found, self.root, env, BUILD_S))
        return subprocess.run(
            command, cwd=self.root, env=env, capture_output=True, text=True, timeout=BUILD_S, check=False
        )

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess:
        return self.run("snakemake", *arguments)

    def jobs(self, *arguments: str) -> dict[str, int]:
        """Rule -> number of jobs that a dry run would start."""
        result = self.snakemake("-n", *arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return counted_jobs(result.stdout + result.stderr)

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.root / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        path.write_text(text.replace(old, new))

    @contextmanager
    def changed(self, file: str, old: str, new: str) -> Iterator[None]:
        """The file with `new` instead of `old`, for a while."""
        before = (self.root / file).read_text()
        self.edit(file, old, new)
        try:
            yield
        finally:
            (self.root / file).write_text(before)

    def graph(self, scale: str) -> Graph:
        """What the configs as they are now say."""
        result = self.run("python", str(ROOT / "tests/print_graph.py"), scale)
        assert result.returncode == 0, result.stderr
        return Graph.model_validate_json(result.stdout)

    def read(self, file: str) -> dict:
        return json.loads((self.root / file).read_text())

    def copy_to(self, root: Path) -> "Project":
        """With all results and with Snakemake's notes on them, so that it finds nothing to do there either."""
        return Project(shutil.copytree(self.root, root, symlinks=True))


def counted_jobs(said: str) -> dict[str, int]:
    """Rule -> number of jobs, from Snakemake's table of them; without one there are none."""
    stats = re.search(r"^job +count\n[- ]+\n(.*?)^total", said, re.M | re.S)
    return {} if stats is None else {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+)", stats[1], re.M)}


def copy_project(root: Path) -> Project:
    by_pattern = shutil.ignore_patterns(*LEFT_OUT)

    def left_out(folder: str, names: list[str]) -> set[str]:
        return by_pattern(folder, names) | (LEFT_OUT_AT_THE_TOP if Path(folder) == ROOT else set())

    shutil.copytree(ROOT, root, symlinks=True, ignore=left_out)
    return Project(root)


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that is filled once in a test session, by the first process that needs it; not to be changed."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, is_made = shared / name, shared / f"{name}.made"
    with held(shared / f"{name}.lock", name, patience_s=BUILD_S):
        if not is_made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            is_made.touch()
    return folder


def shrink_images(project: Project, num_train: int, num_val: int) -> None:
    """Keep the first embedded images, in the same format."""
    folder = project.root / "pipeline/data/fashion_mnist"
    for prefix, count in (("train", num_train), ("t10k", num_val)):
        for kind, header, size in (("images-idx3", 16, 28 * 28), ("labels-idx1", 8, 1)):
            path = folder / f"{prefix}-{kind}-ubyte.gz"
            content = gzip.decompress(path.read_bytes())
            # Classes come in turn in the file, so the first images have all of them.
            cut = content[:4] + struct.pack(">i", count) + content[8:header] + content[header : header + count * size]
            path.write_bytes(gzip.compress(cut))
    project.edit("configs/data/fashion_mnist.yaml", "num_train: 5000", f"num_train: {num_train}")
    project.edit("configs/data/fashion_mnist.yaml", "num_val: 1000", f"num_val: {num_val}")
    for name, old, new in (
        # Two of ten classes are held out.
        ("known", "num_train: 4000", f"num_train: {num_train * 8 // 10}"),
        ("known", "num_val: 800", f"num_val: {num_val * 8 // 10}"),
        ("o", "num_val: 200", f"num_val: {num_val * 2 // 10}"),
        ("c", "per_class: 20", "per_class: 1"),
        ("c", "num_val: 200 ", "num_val: 10 "),
        # Hardly trained models are wrong about most images, and not sure of anything.
        ("a", "min_confidence: 0.5", "min_confidence: 0.1"),
        ("a", "min_images: 20", "min_images: 2"),
    ):
        project.edit(f"configs/data/fashion_mnist_{name}.yaml", old, new)
