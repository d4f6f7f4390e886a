"""The small project: five runs of two studies on a few hundred images, and its demo run by Snakemake to the end."""

import json
import os
import signal
from contextlib import closing
from pathlib import Path

import psutil
import yaml
from patience import PATIENCE_S, wait_until
from project import Project, copy_project, shrink_images
from warm_python import ask_with_forks, with_executable

from pipeline.core.errors import ConfigError
from pipeline.study.claims.formula import find_sets
from pipeline.study.study_file import read_study

LOCAL = ("--profile", "workflow/profiles/default")
NO_HOOKS = (*LOCAL, "--no-hooks")  # for tests that are not about MLflow, which takes seconds
EPOCHS, PRETRAIN_EPOCHS = 3, 2
LEFT_OUT = ("droppos", "crossing", "permequiv", "positions")  # studies


def finish_small_project(folder: Path) -> None:
    """`snakemake demo`, stopped once in the middle of training."""
    project = small_project(folder / "clone")
    project.env = with_executable(project.env)
    interrupted = interrupt_training(project, folder / "interrupted.log")
    result = project.snakemake("demo", *LOCAL)
    assert result.returncode == 0, result.stdout + result.stderr
    (folder / "interrupted.json").write_text(json.dumps(sorted(interrupted)))


def small_project(root: Path) -> Project:
    """Some runs of MJP and MP3 at scale demo, cut to three epochs (two of pretraining) of 400 images."""
    project = copy_project(root)
    studies = project.root / "configs/study"
    shrink_study(studies / "mjp.yaml", {"a", "d", "j"}, headline={"t1", "t3", "t4"})
    shrink_study(studies / "mp3.yaml", {"c_abs", "c_mp3", "c_mp3_abs"}, headline={"t3", "f3"})
    for name in LEFT_OUT:
        (studies / f"{name}.yaml").unlink()
    shrink_images(project, 400, 100)
    scale = "configs/scale/demo.yaml"
    project.edit(scale, "    epochs: 4\n", f"    epochs: {EPOCHS}\n")
    project.edit(scale, "epochs: 10, warmup_epochs: 1}", f"epochs: {PRETRAIN_EPOCHS}, warmup_epochs: 0.5}}")
    return project


def interrupt_training(project: Project, log: Path) -> set[str]:
    """Ctrl-C, as a terminal sends it, once a checkpoint is there; returns the runs that were cut short.

    Snakemake leads a group of processes with all that it starts; the signal goes to each of them.
    """
    project.edit("configs/site/local.yaml", "checkpoint_s: 15", "checkpoint_s: 0.2")
    state = project.root / "results/demo/state"
    with log.open("w") as file:
        asked = ask_with_forks("snakemake", ["demo"], project.root, project.env, file)
    with closing(asked):
        snakemake = psutil.Process(asked.pid)
        wait_until(lambda: not snakemake.is_running() or list(state.glob("*/step-*.pt")), log.read_text)
        assert snakemake.is_running(), "Snakemake has ended before a run wrote a checkpoint"
        os.killpg(asked.pid, signal.SIGINT)
        assert asked.exit_code(PATIENCE_S) == 1
    folders = [path.parent for path in state.glob("*/step-*.pt")]
    return {
        path.name for path in folders if not (project.root / "results/demo/runs" / path.name / "train.json").exists()
    }


def shrink_study(path: Path, runs: set[str], headline: set[str]) -> None:
    """Keep these runs and the rows that show one of them; all rows of the `headline` tables are headline rows."""
    study = read_study(path).expanded.content
    study["runs"] = {key: run for key, run in study["runs"].items() if key in runs}
    for section in ("tables", "figures"):
        for table in study[section].values():
            rows = {key: shrink_row(row, runs) for key, row in table["rows"].items()}
            table["rows"] = {key: row for key, row in rows.items() if row["run"]}
            if "levels" in table:
                table["levels"] = [key for key in table["levels"] if key in table["rows"]]
        study[section] = {name: table for name, table in study[section].items() if table["rows"]}
    # Evaluations that no headline table asks for would have to be computed by the tests of `snakemake mjp`.
    if path.stem == "mjp":
        study["figures"] = {key: figure for key, figure in study["figures"].items() if figure["kind"] == "curves"}
        study["tables"] = {key: table for key, table in study["tables"].items() if key in headline}
    for claim in study["claims"].values():
        claim["holds"] = [text for text in claim["holds"] if names_only_kept_cells(text, path.stem, study)]
    study["claims"] = {key: claim for key, claim in study["claims"].items() if claim["holds"]}
    tables = {**study["tables"], **study["figures"]}
    study["headline"] = {name: list(tables[name]["rows"]) for name in sorted(headline)}
    study.pop("headline_at", None)  # names rows that are gone
    path.write_text(yaml.safe_dump(study, sort_keys=False))


def names_only_kept_cells(text: str, name: str, study: dict) -> bool:
    """Whether every cell that a comparison names is still there."""
    tables = {**study["tables"], **study["figures"]}.items()
    known = {f"{name}.{key}.{row}": list(table.get("columns", {})) for key, table in tables for row in table["rows"]}
    try:
        find_sets(text, known)
    except ConfigError:
        return False
    return True


def shrink_row(row: dict, runs: set[str]) -> dict:
    if isinstance(row.get("run"), str):
        return row | {"run": row["run"] if row["run"] in runs else None}
    kept = {role: run for role, run in row.get("run", {}).items() if run in runs}
    return row | {"run": kept, "why": "left out of the small project"}
