"""What a verb imports before it does anything: a workflow starts dozens of them, and torch alone takes seconds."""

import json
import re
from itertools import pairwise
from subprocess import CompletedProcess

import pytest
from project import Project

pytestmark = pytest.mark.slow

HEAVY = {"torch", "timm", "torchvision", "mlflow", "snakemake", "submitit", "pandas", "scipy", "matplotlib", "jinja2"}
COMPILER = {"torch._dynamo", "sympy", "triton"}
TO_COMPUTE = {"torch", "timm", "torchvision"}


def pipeline(project: Project, *arguments: str) -> CompletedProcess:
    return project.run("python", "-X", "importtime", "-m", "pipeline", *arguments)


def imported(result: CompletedProcess) -> set[str]:
    """Which of the slow libraries a command imported that did what it should."""
    said = [line for line in result.stderr.splitlines() if not line.startswith("import time:")]
    assert result.returncode == 0, result.stdout + "\n".join(said)
    names = set(re.findall(r"^import time:.*\| +(\S+)$", result.stderr, re.M))
    assert "argparse" in names
    return names & (HEAVY | COMPILER)


# One after the other in one process, and what each may import that those before it have not.
VERBS = [
    (("check", "--scale", "demo"), set()),
    (("status",), set()),
    (("clean", "--dry-run"), set()),
    (("claims", "--study", "mp3", "--rows", "headline"), set()),
    (("table", "--table", "mp3.t3", "--rows", "headline"), {"jinja2"}),
    (("summary", "--rows", "headline"), set()),
    (("verify",), set()),
    (("table", "--table", "mp3.f3", "--rows", "headline"), {"matplotlib"}),
    (("report", "--rows", "headline"), set()),
    (("frame",), {"pandas"}),
]
ONE_BY_ONE = """
import json, sys
from pipeline.cli import main
for verb in json.loads(sys.argv[1]):
    assert main(verb) == 0
    print("modules", *sys.modules, file=sys.stderr)
"""


def imported_one_by_one(project: Project, *verbs: tuple[str, ...]) -> list[set[str]]:
    """Which of the slow libraries each of these imports in one process that those before it have not."""
    result = project.run("python", "-c", ONE_BY_ONE, json.dumps(verbs))
    assert result.returncode == 0, result.stderr
    loaded = [set(line.split()) for line in result.stderr.splitlines() if line.startswith("modules ")]
    assert len(loaded) == len(verbs)
    return [(after - before) & (HEAVY | COMPILER) for before, after in pairwise([set(), *loaded])]


def test_verbs__that_compute_nothing__import_no_torch_and_only_what_they_draw_with(done):
    finished = next(iter(done.graph("demo").runs))
    checked = done.run("python", "-m", "pipeline", "check", "--scale", "demo")  # for the first time: builds models
    assert checked.returncode == 0, checked.stderr
    verbs = [(("train", "--run", finished), set()), *VERBS]
    slow = imported_one_by_one(done, *[verb for verb, _ in verbs])
    assert [modules - needed for modules, (_, needed) in zip(slow, verbs, strict=True)] == [set()] * len(verbs)


def test_plan__of_what_was_counted_before__imports_no_torch(clean_project):
    command = "plan", "mp3_figure3"
    first = clean_project.run("python", "-m", "pipeline", *command)
    assert first.returncode == 0 and clean_project.read("results/demo/costs.json")["costs"], first.stderr
    assert imported(pipeline(clean_project, *command)) == set()


@pytest.fixture(scope="module")
def computing(done, tmp_path_factory) -> dict[str, set[str]]:
    """What verbs that need torch import, one after the other in one process: torch alone takes seconds to import."""
    done = done.copy_to(tmp_path_factory.mktemp("computing") / "clone")  # a result is computed again
    graph = done.graph("demo")
    job = next(path.stem for path in sorted(done.root.glob("results/demo/evals/*-quick.json")))
    (evaluation, *_) = graph.eval_jobs[job].evaluations
    (done.root / f"results/demo/evals/{evaluation}/result.json").unlink()
    name = next(name for name, run in graph.runs.items() if not run.init)
    config = (done.root / f"results/demo/runs/{name}/config.resolved.yaml").read_text()
    again = done.root / "again.yaml"
    again.write_text(config.replace("epochs: 3", "epochs: 1"))
    verbs = {
        "evaluate": ("evaluate", "--job", job),
        "train": ("train", "--config", str(again)),
        "check": ("check",),  # it builds models without memory, with parts of the compiler
    }
    with done.changed("configs/study/mjp.yaml", "tolerance: 0.4", "tolerance: 0.6"):
        found = imported_one_by_one(done, *verbs.values())
    assert (done.root / f"results/demo/evals/{evaluation}/result.json").exists()
    return dict(zip(verbs, found, strict=True))


def test_check__when_a_config_changed__imports_what_builds_models_and_nothing_else_that_is_slow(computing):
    assert computing["check"] <= COMPILER


def test_evaluate__of_a_finished_run__imports_what_it_computes_with_and_no_compiler(computing):
    assert computing["evaluate"] == TO_COMPUTE


def test_train__of_a_run_from_its_config__imports_what_it_computes_with_and_no_compiler(computing):
    assert computing["train"] == set()  # no more than to evaluate


def test_snakemake__reading_the_workflow__imports_no_torch(done):
    done.graph("demo")
    found = imported(done.run("python", "-X", "importtime", "-m", "snakemake", "-n", "demo", "--cores", "1"))
    assert not found & {*TO_COMPUTE, *COMPILER, "mlflow", "submitit", "scipy", "matplotlib"}
