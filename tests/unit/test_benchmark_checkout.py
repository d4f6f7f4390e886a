"""Benchmarks run from a plain checkout: the project need not be installed."""

import ast
import os
import subprocess
import sys
import sysconfig

import pytest
from benchmark_script import FOLDER
from patience import PATIENCE_S


def imported(node: ast.stmt) -> str:
    """The first name of an import."""
    return (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_benchmark__that_imports_the_project__finds_its_checkout_first(path):
    body = ast.parse(path.read_text()).body
    names = [imported(node).split(".")[0] for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert "pipeline" not in names or "checkout" in names[: names.index("pipeline")]


@pytest.mark.slow
def test_benchmark__where_nothing_is_installed_but_other_packages__runs(tmp_path):
    """Without `site`, the installed project is not found: packages that are unpacked in a folder still are."""
    env = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    command = [sys.executable, "-S", FOLDER / "graph.py", "--help"]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == 0 and result.stdout.startswith("usage: graph.py"), result.stderr
