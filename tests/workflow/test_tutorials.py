"""The tutorials of the manual, done as they are written, in the finished small project."""

import ast
import json
import re
import shlex
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml
from project import ROOT, Project
from small import NO_HOOKS

TUTORIALS = sorted(path.stem for path in (ROOT / "docs/tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
FILE = re.compile(r"# ([\w./-]+\.(?:py|yaml))\n")  # a first line that names a file
SHOWN = "console"  # commands that only a cluster can carry out


def blocks(name: str) -> list[tuple[str, str]]:
    """Language and text of each block of a tutorial."""
    return BLOCK.findall((ROOT / f"docs/tutorials/{name}.md").read_text())


def follow(project: Project, name: str, may_fail: str = "") -> dict[str, str]:
    """Write the files of a tutorial and carry out its commands; returns what each of them printed."""
    printed: dict[str, str] = {}
    for language, text in blocks(name):
        if found := FILE.match(text):
            path = project.root / found[1]
            assert not path.exists(), f"{found[1]} is there already"
            path.write_text(text.removeprefix(found[0]))
        elif language == "python":
            (project.root / "lines.py").write_text(text)
            printed["python"] = checked(project.run("python", "lines.py"))
        elif language == "bash":
            for line in text.splitlines():
                printed[line] = carry_out(project, shlex.split(line, comments=True), may_fail)
        else:
            assert language == SHOWN, f"{name}: a block of {language} that nothing carries out"
    return printed


def carry_out(project: Project, command: list[str], may_fail: str) -> str:
    if command[0] == "export":
        project.env.update([command[1].split("=")])
        return ""
    if command[0] == "snakemake" and "-n" not in command:
        command += NO_HOOKS
    done = project.run(*command)
    return done.stdout + done.stderr if may_fail in command else checked(done)


def checked(done: CompletedProcess) -> str:
    assert done.returncode == 0, f"{done.args}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def project(done):
    """With environment and configs as they were, for each tutorial."""
    before, kept = dict(done.env), configs_and_methods(done)
    yield done
    done.env = before
    for path in configs_and_methods(done).keys() - kept.keys():
        path.unlink()
    for path, text in kept.items():
        path.write_bytes(text)


def configs_and_methods(project: Project) -> dict[Path, bytes]:
    paths = [*project.root.glob("configs/*/*"), *project.root.glob("pipeline/methods/*.py")]
    return {path: path.read_bytes() for path in paths}


def test_tutorials__files_that_they_write__are_named_in_the_first_line():
    """Else a block that should be a file would be carried out, or not be looked at."""
    texts = [text for name in TUTORIALS for language, text in blocks(name) if language == "yaml"]
    assert len(texts) >= 4 and all(FILE.match(text) and yaml.safe_load(text) for text in texts)


def numbers(project: Project, table: str) -> dict[str, float]:
    """Row -> the number in its first column."""
    rows = project.read(f"results/own/tables/all/{table}.json")["rows"]
    return {row["id"]: next(iter(row["cells"].values()))["ours"] for row in rows}


@pytest.mark.slow
def test_tutorial__run_a_paper__shows_the_table_and_where_a_number_comes_from(project):
    printed = follow(project, "paper")
    assert "DeiT-S" in printed["python -m pipeline summary mjp_table4"]
    assert "configs/study/mjp.yaml" in printed["python -m pipeline explain mjp.t4.a-deit-s:top1"]
    assert len(printed["python"].splitlines()) == 4


@pytest.mark.slow
def test_tutorial__my_images__trains_on_the_folder(project):
    follow(project, "images")
    assert all(10 < number <= 100 for number in numbers(project, "garments.t1").values())
    manifest = project.read("results/own/data/garments/manifest.json")
    assert manifest["classes"] == ["Bag", "Sneaker", "Trouser"]


@pytest.mark.slow
def test_tutorial__my_method__is_compared_and_its_key_is_explained_to_editors(project):
    follow(project, "method")
    assert len(numbers(project, "blanks.t1")) == 2
    schema = json.dumps(project.read("configs/schema/run.json"))
    assert "share of the squares of an image that are blank" in schema
    assert (project.root / "configs/method/blanks.yaml").read_text().startswith("# yaml-language-server: $schema=")


@pytest.mark.slow
def test_tutorial__my_cluster__names_what_is_missing_and_what_it_costs(project):
    printed = follow(project, "cluster", may_fail="doctor")
    assert "/data/tiny-imagenet-200" in printed["python -m pipeline doctor --scale tiny --site lab"]
    assert "GPU" in printed["python -m pipeline plan --scale tiny --site lab mjp_table4"]


@pytest.mark.slow
def test_tutorial__lock_a_model__gives_the_same_answers_with_the_key(project):
    printed = follow(project, "lock")
    plain, locked = (ast.literal_eval(line.partition(" ")[2]) for line in printed["python"].splitlines())
    (found,) = [text for line, text in printed.items() if " infer " in line]
    best = max(range(10), key=plain.__getitem__)
    assert plain != locked and re.search(rf"% .*\b{best}$", found.splitlines()[0]), found


@pytest.mark.slow
def test_tutorial__attack_a_gradient__writes_pictures_and_numbers(project):
    follow(project, "attack")
    folder = project.root / "results/attacks/tutorial"
    assert project.read("results/attacks/tutorial/numbers.json") and [*folder.glob("*.png")]
