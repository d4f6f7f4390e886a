"""Which code made a result: digests of source files that change with what the code does, not with how it is written.

Comments, docstrings and layout do not count. Nothing is imported, so a half-written file elsewhere does no harm.
"""

import ast
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
# What a method or an evaluation computes with; the loop and the loader are the same for all of them.
COUNTED = ("methods", "models", "evals")


def digest_of(files: Iterable[Path]) -> str:
    """One digest of several files, whatever their order."""
    parts = "".join(f"{path.parent.name}/{path.name} {_file_digest(path)}\n" for path in sorted(files))
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def code_behind(path: Path) -> list[Path]:
    """A file of the package and those of methods, models and evaluations that it imports, directly or not."""
    found, waiting = set(), [path]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += [file for name in _imported(current) if (file := _counted_file(name))]
    return sorted(found)


@functools.cache
def _file_digest(path: Path) -> str:
    content = path.read_bytes()
    if path.suffix == ".py":
        content = ast.unparse(_without_docstrings(ast.parse(content))).encode()
    return hashlib.sha256(content).hexdigest()


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            has_docstring = ast.get_docstring(node, clean=False) is not None
            node.body = node.body[1:] if has_docstring else node.body
    return tree


@functools.cache
def _imported(path: Path) -> list[str]:
    """Names of modules that a file imports anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


def _counted_file(module: str) -> Path | None:
    parts = module.split(".")
    if len(parts) != 3 or parts[0] != PACKAGE.name or parts[1] not in COUNTED:
        return None
    file = PACKAGE / parts[1] / f"{parts[2]}.py"
    return file if file.exists() else None
