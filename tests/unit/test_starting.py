"""What a verb imports before it does anything: a workflow starts dozens of them, and torch alone takes seconds."""

import re
from subprocess import CompletedProcess

import pytest
from project import Project, copy_project

pytestmark = pytest.mark.slow

HEAVY = {"torch", "timm", "torchvision", "mlflow", "snakemake", "submitit", "pandas", "scipy", "matplotlib", "jinja2"}
COMPILER = {"torch._dynamo", "sympy", "triton"}
TABLE = "mp3.tf3"


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Project:
    """Configs read, operations of the planned step counted, and every table that the demo shows drawn, still empty."""
    project = copy_project(tmp_path_factory.mktemp("starting") / "clone")
    graph = project.graph("demo")
    tables = [("table", "--table", table) for table in graph.selected("headline")]
    claims = [("claims", "--study", study) for study in graph.studies()]
    for verb in (*tables, *claims, ("report",)):
        done(pipeline(project, *verb, "--rows", "headline"))
    done(pipeline(project, "plan", "mp3_tablef3"))
    return project


def pipeline(project: Project, *arguments: str) -> CompletedProcess:
    return project.run("python", "-X", "importtime", "-m", "pipeline", *arguments)


def done(result: CompletedProcess) -> set[str]:
    """Every module that the process imported."""
    said = [line for line in result.stderr.splitlines() if not line.startswith("import time:")]
    assert result.returncode == 0, result.stdout + "\n".join(said)
    return set(re.findall(r"^import time:.*\| +(\S+)$", result.stderr, re.M))


@pytest.mark.parametrize(
    ("verb", "needed"),
    [
        (("check",), set()),
        (("table", "--table", TABLE, "--rows", "headline"), {"jinja2"}),
        (("claims", "--study", "mp3", "--rows", "headline"), set()),
        (("report", "--rows", "headline"), {"jinja2", "matplotlib"}),
        (("summary", "--rows", "headline"), {"jinja2"}),
        (("verify",), {"jinja2"}),
        (("plan", "mp3_tablef3"), set()),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_verb__when_the_configs_are_unchanged__imports_only_what_it_needs(project, verb, needed):
    assert done(pipeline(project, *verb)) & (HEAVY | COMPILER) <= needed


def test_snakemake__reading_the_workflow__imports_no_torch(project):
    result = project.run("python", "-X", "importtime", "-m", "snakemake", "-n", "demo", "--cores", "1")
    assert not done(result) & ({"torch", "timm", "torchvision", "mlflow", "submitit", "scipy", "matplotlib"} | COMPILER)


def test_check__when_a_config_changed__needs_torch_but_neither_timm_nor_the_compiler(project):
    project.edit("configs/scale/demo.yaml", "    epochs: 4\n", "    epochs: 5\n")
    imported = done(pipeline(project, "check"))
    assert "torch" in imported
    assert not imported & ((HEAVY | COMPILER) - {"torch"})
