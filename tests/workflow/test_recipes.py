"""The recipes of CONTRIBUTING, done as they are written, in a copy of the project."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from project import ROOT, Project, copy_project

from pipeline.config import merge

BLOCK = re.compile(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", re.S)
STUDY = "configs/study/mjp.yaml"


def recipes() -> dict[str, str]:
    """File -> the text that CONTRIBUTING gives it."""
    return dict(BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text()))


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    """A copy after all recipes: what they add to a study is merged into it, every other file is new."""
    project = copy_project(tmp_path_factory.mktemp("recipes") / "clone")
    for file, text in recipes().items():
        path = project.root / file
        assert path.exists() == (file == STUDY), file
        if file == STUDY:
            text = yaml.safe_dump(merge(yaml.safe_load(path.read_text()), yaml.safe_load(text)), sort_keys=False)
        path.write_text(text)
    shutil.copy(project.root / "configs/template/study.yaml", project.root / "configs/study/mine.yaml")
    study = yaml.safe_load((project.root / "configs/study/mine.yaml").read_text())
    study["tables"]["t1"]["columns"]["bright"] = {"label": "Bright", "eval": "brightness", "metric": "top1"}
    (project.root / "configs/study/mine.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    return project


def test_recipes__are_found_in_contributing():
    assert set(recipes()) == {
        "pipeline/methods/mine.py",
        "configs/method/mine.yaml",
        "pipeline/evals/brightness.py",
        "configs/eval/brightness.yaml",
        STUDY,
    }


def test_recipes__as_written__pass_the_linters(project):
    files = [file for file in recipes() if file.endswith(".py")]
    for command in (["check", "-q"], ["format", "--check", "-q"]):
        done = project.run("ruff", *command, *files)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_recipes__as_written__make_a_run_a_row_and_a_table(project):
    graph = project.graph("demo")
    row = graph.tables["mjp.t1"].rows["mjp.t1.deit-s-mine"]
    assert graph.runs[row.runs[""]].config["method"]["strength"] == 0.3
    assert "brightness" in graph.runs[graph.tables["mine.t1"].rows["mine.t1.scratch"].runs[""]].groups["quick"]
    assert "train_run" in project.jobs("mine", "--config", "scale=demo")


@pytest.mark.slow
def test_recipes__new_method__is_covered_by_the_tests_of_every_method(project):
    tests = Path(ROOT / "tests/unit/test_methods.py")
    command = [sys.executable, "-m", "pytest", "-q", str(tests), "-k", "mine and not compile", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project.root, env=project.env, capture_output=True, text=True, check=False)
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0 and passed and int(passed[1]) >= 8, done.stdout[-3000:] + done.stderr
