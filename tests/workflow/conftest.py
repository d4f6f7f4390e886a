"""A copy of the whole project that a test may run Snakemake in: five runs of two studies on a few hundred images."""

import gzip
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from pipeline.study.graph import Graph

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = [".venv", ".git", ".snakemake", "results", "tests", "__pycache__", "*.egg-info", ".*_cache"]
NUM_TRAIN, NUM_VAL, EPOCHS, PRETRAIN_EPOCHS = 600, 100, 3, 2


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
        return subprocess.run(
            command, cwd=self.root, env={**self.env, **env}, capture_output=True, text=True, timeout=600, check=False
        )

    def snakemake(self, *arguments: str) -> subprocess.CompletedProcess:
        return self.run("snakemake", *arguments)

    def jobs(self, *arguments: str) -> dict[str, int]:
        """Rule -> number of jobs that a dry run would start."""
        result = self.snakemake("-n", *arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        stats = re.search(r"^job +count\n[- ]+\n(.*?)^total", result.stdout + result.stderr, re.M | re.S)
        return {} if stats is None else {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+)", stats[1], re.M)}

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.root / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file} has {old!r} {text.count(old)} times"
        path.write_text(text.replace(old, new))

    @contextmanager
    def changed(self, file: str, old: str, new: str) -> Iterator[None]:
        """The file with `new` in place of `old`, for a while."""
        before = (self.root / file).read_text()
        self.edit(file, old, new)
        try:
            yield
        finally:
            (self.root / file).write_text(before)

    def graph(self, scale: str) -> Graph:
        """What the configs as they are now say."""
        result = self.run("python", "-m", "pipeline", "check", "--scale", scale)
        assert result.returncode == 0, result.stderr
        content = self.read(f"results/{scale}/graph.json")
        del content["key"]
        return Graph(**content)

    def read(self, file: str) -> dict:
        return json.loads((self.root / file).read_text())


def copy_project(root: Path) -> Project:
    shutil.copytree(ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    return Project(root)


@pytest.fixture
def clean_project(tmp_path) -> Project:
    """As cloned: no data, nothing run."""
    return copy_project(tmp_path / "clone")


@pytest.fixture(scope="module")
def small_project(tmp_path_factory) -> Project:
    """Some runs of MJP and MP3 at scale demo, cut to three epochs (two of pretraining) of 600 images."""
    project = copy_project(tmp_path_factory.mktemp("small") / "clone")
    studies = project.root / "configs/study"
    shrink_study(studies / "mjp.yaml", {"a", "d", "j"}, headline={"t1", "t3", "t4"})
    shrink_study(studies / "mp3.yaml", {"c_abs", "c_mp3", "c_mp3_abs"}, headline={"t3", "tf3"})
    (studies / "droppos.yaml").unlink()
    shrink_images(project.root / "pipeline/data/fashion_mnist")
    project.edit("configs/data/fashion_mnist.yaml", "num_train: 5000", f"num_train: {NUM_TRAIN}")
    project.edit("configs/data/fashion_mnist.yaml", "num_val: 1000", f"num_val: {NUM_VAL}")
    scale = "configs/scale/demo.yaml"
    project.edit(scale, "    epochs: 4\n", f"    epochs: {EPOCHS}\n")
    project.edit(scale, "epochs: 10, warmup_epochs: 1}", f"epochs: {PRETRAIN_EPOCHS}, warmup_epochs: 0.5}}")
    return project


def shrink_study(path: Path, runs: set[str], headline: set[str]) -> None:
    """Keep these runs and the rows that show one of them; all rows of the `headline` tables are headline rows."""
    study = yaml.safe_load(path.read_text())
    study["runs"] = {key: run for key, run in study["runs"].items() if key in runs}
    for name, table in study["tables"].items():
        rows = {key: shrink_row(row, runs) for key, row in table["rows"].items()}
        table["rows"] = {key: row | {"headline": name in headline} for key, row in rows.items() if row["run"]}
    study["tables"] = {name: table for name, table in study["tables"].items() if table["rows"]}
    path.write_text(yaml.safe_dump(study, sort_keys=False))


def shrink_row(row: dict, runs: set[str]) -> dict:
    if isinstance(row.get("run"), str):
        return row | {"run": row["run"] if row["run"] in runs else None}
    kept = {role: run for role, run in row.get("run", {}).items() if run in runs}
    return row | {"run": kept, "why": "left out of the small project"}


def shrink_images(folder: Path) -> None:
    """Keep the first images of each idx file, in the same format."""
    for prefix, count in (("train", NUM_TRAIN), ("t10k", NUM_VAL)):
        for kind, header, size in (("images-idx3", 16, 28 * 28), ("labels-idx1", 8, 1)):
            path = folder / f"{prefix}-{kind}-ubyte.gz"
            content = gzip.decompress(path.read_bytes())
            # Classes come in turn in the file, so the first images have all of them.
            cut = content[:4] + struct.pack(">i", count) + content[8:header] + content[header : header + count * size]
            path.write_bytes(gzip.compress(cut))
