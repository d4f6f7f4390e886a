"""A copy of the whole project that a test may run Snakemake in: three runs on a few hundred images."""

import gzip
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = [".venv", ".git", ".snakemake", "results", "tests", "__pycache__", "*.egg-info", ".*_cache"]
NUM_TRAIN, NUM_VAL, EPOCHS = 600, 100, 3


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


def copy_project(root: Path) -> Project:
    shutil.copytree(ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    return Project(root)


@pytest.fixture
def clean_project(tmp_path) -> Project:
    """As cloned: no data, nothing run."""
    return copy_project(tmp_path / "clone")


@pytest.fixture(scope="module")
def small_project(tmp_path_factory) -> Project:
    """Runs a, d and j of the MJP study at scale demo, cut to three epochs of 600 images."""
    project = copy_project(tmp_path_factory.mktemp("small") / "clone")
    shrink_study(project.root / "configs/study/mjp.yaml", {"a", "d", "j"})
    shrink_images(project.root / "pipeline/data/fashion_mnist")
    project.edit("configs/data/fashion_mnist.yaml", "num_train: 5000", f"num_train: {NUM_TRAIN}")
    project.edit("configs/data/fashion_mnist.yaml", "num_val: 1000", f"num_val: {NUM_VAL}")
    project.edit("configs/scale/demo.yaml", "    epochs: 4\n", f"    epochs: {EPOCHS}\n")
    return project


def shrink_study(path: Path, kept: set[str]) -> None:
    study = yaml.safe_load(path.read_text())
    study["runs"] = {key: run for key, run in study["runs"].items() if key in kept}
    for table in study["tables"].values():
        table["rows"] = {key: row for key, row in table["rows"].items() if row["run"] in kept}
    path.write_text(yaml.safe_dump(study, sort_keys=False))


def shrink_images(folder: Path) -> None:
    """Keep the first images of each idx file, in the same format."""
    for prefix, count in (("train", NUM_TRAIN), ("t10k", NUM_VAL)):
        for kind, header, size in (("images-idx3", 16, 28 * 28), ("labels-idx1", 8, 1)):
            path = folder / f"{prefix}-{kind}-ubyte.gz"
            content = gzip.decompress(path.read_bytes())
            # Classes come in turn in the file, so the first images have all of them.
            cut = content[:4] + struct.pack(">i", count) + content[8:header] + content[header : header + count * size]
            path.write_bytes(gzip.compress(cut))
