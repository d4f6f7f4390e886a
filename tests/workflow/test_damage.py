"""Any file of the results deleted or damaged: it is named, and the command that the message names brings it back."""

import re
import shutil
from pathlib import Path

import pytest
from project import Project
from result_files import SITE
from small import LOCAL, NO_HOOKS

from pipeline.audit.verify import problems_of
from pipeline.freshness.remake import Freshness

# What nothing depends on: how long steps took, and what is kept to be quicker.
WITHOUT_LOSS = {"timing.jsonl"}
FOLDERS = ("data", "runs", "evals", "tables", "figures", "report")

pytestmark = pytest.mark.slow


@pytest.fixture
def copied(done, tmp_path) -> Project:
    """A copy of the finished project for a test that changes its results."""
    return done.copy_to(tmp_path / "clone")


@pytest.fixture
def results(copied) -> Path:
    return copied.root / "results/demo"


def digits(results: Path) -> dict[str, bytes]:
    """All numbers of the report, and the weights that they are of."""
    files = [results / "report/headline.json", *sorted(results.glob("runs/*/encoder.safetensors"))]
    return {path.name + path.parent.name: path.read_bytes() for path in files}


def remedy(project: Project) -> str:
    """The one command that `verify` names."""
    said = project.run("python", "-m", "pipeline", "verify")
    assert said.returncode == 1, said.stdout
    (command,) = set(re.findall(r"`snakemake (.*?)` makes it again", said.stdout))
    return command


def repair(project: Project) -> None:
    done = project.snakemake(*remedy(project).split(), *NO_HOOKS)
    assert done.returncode == 0, done.stdout + done.stderr
    said = project.run("python", "-m", "pipeline", "verify")
    assert said.returncode == 0, said.stdout
    assert project.jobs("demo", *LOCAL) == {}


def test_any_file__deleted_or_cut_short__is_noticed(copied, results, monkeypatch):
    monkeypatch.setattr("pipeline.results.RESULTS", copied.root / "results")
    graph = copied.graph("demo")
    assert problems_of(Freshness(graph, SITE)) == []
    found = [path for folder in FOLDERS for path in sorted((results / folder).rglob("*")) if path.is_file()]
    files = [path for path in found if not path.name.startswith(".")]  # locks
    assert len(files) > 60
    unnoticed = []
    for path in files:
        content = path.read_bytes()
        for damage in (None, content[: len(content) // 2]):
            path.unlink() if damage is None else path.write_bytes(damage)
            if not problems_of(Freshness(graph, SITE)):
                unnoticed.append(path)
        path.write_bytes(content)
    assert {path.name for path in unnoticed} == WITHOUT_LOSS


def test_drawings__deleted_and_damaged__are_drawn_again_by_the_command_that_verify_names(copied, results):
    before, drawn = digits(results), results / "tables/headline"
    (drawn / "mjp.t1.csv").unlink()
    (drawn / "mjp.t3.json").write_text((drawn / "mjp.t3.json").read_text().replace('"ours": ', '"ours": 1', 1))
    (drawn / "mp3.claims.json").unlink()
    (drawn / "mjp.t4.made.json").write_text("{")
    (results / "figures/headline/mp3.f3.svg").write_text("<svg>")
    (results / "report/headline.json").write_text("{}")
    assert remedy(copied) == "demo"
    jobs = {"draw_table": 3, "draw_figure": 1, "judge_claims": 2, "write_report": 1, "demo": 1}
    assert copied.jobs("demo", *LOCAL) == jobs
    repair(copied)
    assert digits(results) == before


def test_results__deleted_and_damaged__are_made_again_with_all_that_is_drawn_from_them(copied, results):
    before, graph = digits(results), copied.graph("demo")
    weights, record, heads, *whole = sorted(results.glob("runs/*/"))
    trained = {path: (path / "train.json").read_text() for path in whole}
    for path in whole:  # as results come from elsewhere: their records say that they are finished
        shutil.rmtree(results / "state" / path.name)
    (weights / "encoder.safetensors").write_bytes(b"other")
    (record / "train.json").unlink()
    (heads / "heads.safetensors").unlink()
    evaluations = [graph.results.evaluation(name).name for name in graph.evals]
    (results / "evals" / evaluations[0] / "result.json").unlink()
    (results / "evals" / evaluations[-1] / "result.json").write_text("{")
    next(results.glob("evals/*/per_image.npz")).write_bytes(b"other")
    (results / "data/fashion_mnist/manifest.json").unlink()
    (results / "graph.json").write_text("{")
    (results / "digests.json").write_text("{")
    shutil.rmtree(copied.root / ".snakemake")
    # They are links to `state`.
    logs = {path: path.read_text() for path in results.glob("logs/train_run/*.log") if path.exists()}
    assert len(logs) == 3 and all("epoch" in text for text in logs.values())
    repair(copied)
    assert digits(results) == before
    assert all(path.read_text().startswith(text) for path, text in logs.items())
    assert {path: (path / "train.json").read_text() for path in whole} == trained, "trained again without a reason"


def test_results__copied_with_other_times_into_a_clone_without_notes__are_finished(copied, results):
    shutil.rmtree(copied.root / ".snakemake")
    for path in sorted(results.rglob("*"), reverse=True):
        path.touch()
    assert copied.jobs("demo", *LOCAL) == {}
    with copied.changed("configs/study/mjp.yaml", "tolerance: 0.4", "tolerance: 0.6"):
        assert copied.jobs("demo", *LOCAL) == {"draw_table": 1, "judge_claims": 1, "write_report": 1, "demo": 1}
