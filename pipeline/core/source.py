"""Which code made a result: digests of source that change with what the code does, not with how it is written.

Comments, docstrings, texts below fields, layout, type hints of functions and the place of a definition do not count.
What counts is every definition (function, class, constant) that a file of the package uses, in it or imported, directly
or not, and where names of other packages come from. Nothing is imported, so a half-written file elsewhere does no harm.

Followed are `from pipeline.x import y`, `TASKS.get("name")` and `globals()`; a test refuses other forms of imports.
What a registry finds by a name of a config is in `code.py`.
"""

import ast
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[1]
# Where results lie, how files are read and written, and what is said to the user: it changes no number, and if it
# counted, every result would be said to be made by other code after every release.
PLUMBING = (
    *(f"core.{name}" for name in ("code", "config", "errors", "files", "logs", "processes", "provenance", "registry")),
    *("core.source", "published_sets", "results", "site"),
)

NOTHING_COMPUTED = ("typing", "typing_extensions", "collections.abc")  # where a name of these comes from does not count
REGISTRIES = {"METHODS": "methods", "EVALS": "evals", "TASKS": "tasks", "KINDS": "data"}  # name -> folder
REGISTERED = re.compile(r"""^@[A-Z_]+\.register\(["']([\w-]+)["']\)""", re.M)


def digest_of(files: Iterable[Path]) -> str:
    """One digest of several files, whatever their order."""
    parts = "".join(f"{path.name} {_file_digest(path)}\n" for path in sorted(files))
    return _short(parts)


def digest_behind(*paths: Path) -> str:
    """One digest of all definitions behind files. Moving a file, or a definition elsewhere, does not change it."""
    return _short("\n".join(sorted({_read(used.path).digest(used.name) for used in code_behind(*paths)})))


class Definition(NamedTuple):
    """A name at the top level of a module; an empty one stands for what else the module does when it is imported."""

    path: Path
    name: str


def code_behind(*paths: Path) -> set[Definition]:
    """Everything that files define, and whatever else of the package that uses, directly or not."""
    found: set[Definition] = set()
    waiting = [definition for path in paths for definition in _whole(path)]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting += [Definition(current.path, ""), *_read(current.path).used_by(current.name)]
    return found


@dataclass
class _Module:
    """A parsed file: statements by the name they define, and what its imports stand for."""

    path: Path
    statements: dict[str, list[ast.stmt]] = field(default_factory=lambda: {"": []})
    imports: dict[str, Definition] = field(default_factory=dict)  # with "*" for a module
    elsewhere: dict[str, str] = field(default_factory=dict)  # names of other packages -> where they come from
    known: dict[str, tuple[str, list[Definition]]] = field(default_factory=dict)

    def digest(self, name: str) -> str:
        return self._look_at(name)[0]

    def used_by(self, name: str) -> list[Definition]:
        """Definitions that the statements behind a name use, here and in other files."""
        return self._look_at(name)[1]

    def _look_at(self, name: str) -> tuple[str, list[Definition]]:
        if name not in self.known:
            nodes: list[ast.AST] = []
            texts = [_written(statement, nodes) for statement in self.statements[name]]
            names = {node.id for node in nodes if isinstance(node, ast.Name)} & self.elsewhere.keys()
            texts += [f"{each} is {self.elsewhere[each]}" for each in sorted(names)]
            self.known[name] = _short("\n".join(texts)), list(dict.fromkeys(self._used_in(nodes)))
        return self.known[name]

    def _used_in(self, nodes: list[ast.AST]) -> Iterator[Definition]:
        imports = self.imports | {key: what for node in nodes for key, what in _imported(node)}
        # `module.name` uses one definition of the module; the module by itself might be used as a whole.
        members = {id(node.value): node.attr for node in nodes if isinstance(node, ast.Attribute)}
        for node in nodes:
            if isinstance(node, ast.Name) and node.id == "globals":
                yield from _whole(self.path)
            elif isinstance(node, ast.Call) and (path := _looked_up(node)):
                yield from _whole(path)
            elif isinstance(node, ast.Name) and node.id in self.statements:
                yield Definition(self.path, node.id)
            elif isinstance(node, ast.Name) and (what := imports.get(node.id)):
                yield from _chosen(what, members.get(id(node)))


def _chosen(what: Definition, member: str | None) -> list[Definition]:
    """The definitions that an import stands for: one, or those of a module, or the one that is asked of the module."""
    if what.name != "*":
        return _found_in(what.path, what.name)
    return _found_in(what.path, member) if member else _whole(what.path)


def _found_in(path: Path, name: str) -> list[Definition]:
    """A name of a module: defined there, or imported there from elsewhere."""
    module = _read(path)
    if name in module.statements:
        return [Definition(path, name)]
    return _chosen(module.imports[name], None) if name in module.imports else []


def _whole(path: Path) -> list[Definition]:
    return [Definition(path, name) for name in _read(path).statements]


@functools.cache
def _read(path: Path) -> _Module:
    module, tree = _Module(path), ast.parse(path.read_bytes())
    for statement in tree.body[ast.get_docstring(tree, clean=False) is not None :]:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            module.imports.update(_imported(statement))
            module.elsewhere.update(_imported_from_elsewhere(statement))
        elif not _is_for_type_checkers(statement):
            for name in _defined(statement) or [""]:
                module.statements.setdefault(name, []).append(statement)
    return module


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return []


def _is_for_type_checkers(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"


def _imported(node: ast.AST) -> Iterator[tuple[str, Definition]]:
    """What the names of an import statement stand for, as far as it lies in the package and is no plumbing."""
    if isinstance(node, ast.ImportFrom) and not node.level and node.module:
        for alias in node.names:
            name = alias.asname or alias.name
            if submodule := _file_of(f"{node.module}.{alias.name}"):
                yield name, Definition(submodule, "*")
            elif module := _file_of(node.module):
                yield name, Definition(module, alias.name)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname and (module := _file_of(alias.name)):
                yield alias.asname, Definition(module, "*")


def _imported_from_elsewhere(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Names of other packages, with their full names."""
    for alias in node.names:
        module = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
        if module.split(".")[0] == PACKAGE.name or module in NOTHING_COMPUTED:
            continue
        if isinstance(node, ast.ImportFrom):
            yield alias.asname or alias.name, f"{module}.{alias.name}"
        else:
            yield alias.asname or module.split(".")[0], module if alias.asname else module.split(".")[0]


def _looked_up(node: ast.Call) -> Path | None:
    """The file that `TASKS.get("classify")` means, where the name is written so."""
    function, name = node.func, node.args[0] if node.args else None
    if not (isinstance(function, ast.Attribute) and function.attr == "get" and isinstance(function.value, ast.Name)):
        return None
    folder = REGISTRIES.get(function.value.id)
    return _registered(PACKAGE / folder).get(name.value) if folder and isinstance(name, ast.Constant) else None


@functools.cache
def _registered(folder: Path) -> dict[object, Path]:
    """Name -> file of a folder of things that plug in."""
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.rglob("*.py"))}
    return {name: path for path, text in texts.items() for name in REGISTERED.findall(text)}


@functools.cache
def _file_of(module: str) -> Path | None:
    """The file of a module of the package that counts."""
    package, *parts = module.split(".")
    if package != PACKAGE.name or not parts or {parts[0], ".".join(parts[:2])} & {*PLUMBING}:
        return None
    place = PACKAGE.joinpath(*parts)
    candidates = place.with_suffix(".py"), place / "__init__.py"
    return next((path for path in candidates if path.exists()), None)


# What of a syntax tree may use other code, and what of it is a type hint or may begin with a docstring.
USES = {ast.Name, ast.Attribute, ast.Call, ast.Import, ast.ImportFrom}
HINTS = {(ast.FunctionDef, "returns"), (ast.AsyncFunctionDef, "returns"), (ast.arg, "annotation")}
DOCUMENTED = {ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef}


def _written(node: ast.AST, nodes: list[ast.AST]) -> str:
    """A syntax tree as text, the same in every version of Python; without docstrings, texts below fields and the type
    hints of functions. Its nodes that may use other code are added to `nodes`: every job looks at most of the package,
    and a pass for each question would take longer than some jobs.

    `ast.unparse` chooses other quotes in f-strings since 3.12, `ast.dump` shows fields that older versions lack, and in
    3.12 formats may end with an empty text.
    """
    kind, parts = node.__class__, []
    if kind in USES:
        nodes.append(node)
    for name in kind._fields:
        value = getattr(node, name, None)
        if value is None or (kind, name) in HINTS:
            continue
        if value.__class__ is list:
            if value := _counting(node, name, value):
                texts = [_written_part(each, nodes) for each in value]
                parts.append(f"{name}=[{','.join([text for text in texts if text is not None])}]")
        elif isinstance(value, ast.AST):
            parts.append(f"{name}={_written(value, nodes)}")
        else:
            parts.append(f"{name}={value!r}")
    return f"{kind.__name__}({','.join(parts)})"


def _written_part(part: object, nodes: list[ast.AST]) -> str | None:
    """None for an import of this package, as functions have them: a moved file rewrites it; what it leads to counts."""
    if not isinstance(part, ast.AST):
        return repr(part)
    text = _written(part, nodes)
    return None if isinstance(part, ast.ImportFrom) and (part.module or "").split(".")[0] == PACKAGE.name else text


def _counting(node: ast.AST, name: str, parts: list) -> list:
    """What counts of a list of parts."""
    if name == "body" and node.__class__ in DOCUMENTED:
        parts = parts[ast.get_docstring(node, clean=False) is not None :]  # type: ignore[arg-type]
        return [part for part in parts if not _is_text(part)] if isinstance(node, ast.ClassDef) else parts
    if isinstance(node, ast.JoinedStr):
        return [part for part in parts if not (isinstance(part, ast.Constant) and part.value == "")]
    return parts


def _is_text(statement: ast.stmt) -> bool:
    """A text that stands by itself, as below a field of a config: what the field means."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


@functools.cache
def _file_digest(path: Path) -> str:
    content = path.read_bytes()
    if path.suffix == ".py":
        content = _written(ast.parse(content), []).encode()
    return hashlib.sha256(content).hexdigest()


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
