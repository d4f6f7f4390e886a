"""The house: what imports what. Dependencies point one way, and what imports inside functions counts too."""

import ast
from pathlib import Path

import pytest

import pipeline

pytestmark = pytest.mark.slow

ROOT = Path(pipeline.__file__).parent
# From the ground up: a package imports only those before it.
ORDER = [
    *("core", "published_sets", "models", "results", "permutation", "dense", "data", "methods", "download", "site"),
    *(
        "tasks",
        "engine",
        "privacy",
        "evals",
        "study",
        "launch",
        "standalone",
        "method_checks",
        "schema",
        "freshness",
        "frame",
    ),
    *(
        "report",
        "export",
        "publishing",
        "sweep",
        "tracking",
        "audit",
        "plan",
        "doctor",
        "commands",
        "cli",
        "__main__",
    ),
]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in ROOT.rglob("*.py")}


class Imports(ast.NodeVisitor):
    """What a file imports, anywhere in it: when it runs, and only for type checkers."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: set[str] = set()
        self.for_types: set[str] = set()
        self.visit(tree)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            body = Imports(ast.Module(node.body, []))
            self.for_types |= body.found | body.for_types
            for other in node.orelse:
                self.visit(other)
        else:
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self.found |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            self.found |= below or {node.module}


@pytest.fixture(scope="module")
def imports() -> dict[str, Imports]:
    return {name: Imports(ast.parse(path.read_text())) for name, path in MODULES.items()}


@pytest.fixture(scope="module")
def graph(imports) -> dict[str, set[str]]:
    return {name: found.found & MODULES.keys() for name, found in imports.items()}


def circle_from(start: str, graph: dict[str, set[str]]) -> list[str]:
    """A way from a module back to itself, if there is one."""
    ways = [[start]]
    seen = set()
    while ways:
        way = ways.pop()
        for name in graph[way[-1]]:
            if name == start:
                return [*way, name]
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []


def place_of(module: str) -> int:
    return ORDER.index(module.split(".")[1])


def test_imports__of_all_modules__have_no_circle(graph):
    assert [" -> ".join(way) for name in graph if (way := circle_from(name, graph))] == []


def test_imports__of_every_module__are_of_packages_below_its_own(imports, graph):
    """Those for type checkers, too. A package that is not in the order fails as well."""
    modules = graph.keys() - {"pipeline"}
    for_types = {name: each.for_types & MODULES.keys() for name, each in imports.items()}
    pairs = [(name, other) for name in modules for other in (graph[name] | for_types[name]) - {"pipeline"}]
    assert [f"{name} -> {other}" for name, other in sorted(pairs) if place_of(other) > place_of(name)] == []
    assert {name.split(".")[1] for name in modules} == {*ORDER}


# Packages of which everything outside imports one module, and everything works without the rest.
FENCED = {"pipeline.data.images.gpu": "pipeline.data.images.gpu.interface"}


@pytest.mark.parametrize("package", FENCED)
def test_package_with_an_interface__is_imported_by_others_through_it(imports, package):
    """Imports for type checkers count, too, and those of benchmarks and of the workflow."""
    others = [path for folder in ("benchmarks", "workflow") for path in (ROOT.parent / folder).rglob("*.py")]
    files = imports | {path.name: Imports(ast.parse(path.read_text())) for path in others}
    used = {
        (name, other)
        for name, each in files.items()
        for other in each.found | each.for_types
        if f"{other}.".startswith(f"{package}.") and not f"{name}.".startswith(f"{package}.")
    }
    assert sorted(f"{name} -> {other}" for name, other in used if other != FENCED[package]) == []
    assert used, f"nothing imports {FENCED[package]}"


@pytest.mark.parametrize("package", ["snakemake", "workflow"])
def test_pipeline__knows_nothing_of(imports, package):
    """For a type checker neither."""
    named = {name: each.found | each.for_types for name, each in imports.items()}
    assert [name for name, modules in named.items() if package in {module.split(".")[0] for module in modules}] == []
