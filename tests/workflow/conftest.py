"""A copy of the whole project that a test may run Snakemake in: five runs of two studies on a few hundred images."""

from pathlib import Path

import pytest
import yaml
from project import Project, copy_project, shrink_images

EPOCHS, PRETRAIN_EPOCHS = 3, 2


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
    shrink_images(project, 600, 100)
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
