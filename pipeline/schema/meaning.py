"""What the fields of config classes mean: the text below a field in the source, or else its `description`.

A text below a field does not count in the digests of code (`source.py`), so it may be added, or worded better, without
a word about results that other code made. Fields of a base class need no second text where a class overrides them.
"""

import ast
import inspect
from functools import cache
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel


def meaning_of(model: type[BaseModel], field: str) -> str:
    """What a field means, in one line; empty where nothing says it."""
    owners = [owner for owner in model.__mro__ if issubclass(owner, BaseModel)]
    found = (_own_meaning(owner, field) for owner in owners if field in inspect.get_annotations(owner))
    return next(filter(None, found), "").rstrip(".")


def _own_meaning(model: type[BaseModel], field: str) -> str:
    return _texts(model).get(field) or model.model_fields[field].description or ""


@cache
def _texts(model: type[BaseModel]) -> dict[str, str]:
    """Field -> the text below it."""
    return {
        above.target.id: " ".join(text.split())
        for above, below in pairwise(_body(model))
        if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name) and (text := _text(below))
    }


def _text(statement: ast.stmt) -> str:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _body(model: type[BaseModel]) -> list[ast.stmt]:
    """The statements of a class; none of one that is defined in a function."""
    body = _module(Path(inspect.getfile(model))).body
    for part in model.__qualname__.split("."):
        found = next((each for each in body if isinstance(each, ast.ClassDef) and each.name == part), None)
        if found is None:
            return []
        body = found.body
    return body


@cache
def _module(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())
