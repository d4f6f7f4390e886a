"""The language of claims: comparisons of table cells, parsed and never executed.

A comparison is written with cells `row:column`, numbers, + - * /, abs, min, max, mean and chains of < <= == >= >; for
example `mjp.t3.g027:top1 - mjp.t3.g000:top1 <= 0.3`. min, max and mean take several values, or sets of cells:

    mp3.t3.mp3-*:cifar100_top1      every row of the table whose key begins with mp3-
    mjp.t3.{g003,g009}:top1         these two rows
    mjp.t4.*!c-spp:top1             every row but c-spp
    droppos.ts3.pre-g0.00:g75_*     every column that begins with g75_; braces and ! work in columns too
"""

import ast
import itertools
import operator
import random
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.core.config import nearest
from pipeline.core.errors import ConfigError

_ROW, _COLUMN = r"(?:[\w.*-]|\{[\w.,*-]+\})+", r"(?:[\w*]|\{[\w,*]+\})+"
_CELL = re.compile(rf"(?<![\w.])([a-z]\w*\.\w+)\.({_ROW}(?:!{_ROW})*):({_COLUMN}(?:!{_COLUMN})*)")
Operator = Callable[[Any, Any], Any]
_OPERATIONS: dict[type, Operator] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.GtE: operator.ge,
    ast.Gt: operator.gt,
}

Cell = tuple[str, str]  # full row id, column
Sides = tuple[list[Cell], list[Cell]]  # what stands left and right of an operator
Sets = Mapping[str, list[str]]  # a set as it is written -> its cells, written row:column
Functions = Mapping[str, Callable[[list[Any]], Any]]
FUNCTIONS: Functions = {"min": min, "max": max, "mean": lambda values: sum(values) / len(values)}


@dataclass(frozen=True)
class Comparison:
    """A parsed comparison; names stand in its tree for what it names, one cell or a set of them."""

    text: str
    tree: ast.Compare
    named: dict[str, list[Cell]]
    sets: frozenset[str]  # names that stand for sets

    @property
    def cells(self) -> list[Cell]:
        return list(dict.fromkeys(cell for cells in self.named.values() for cell in cells))

    @property
    def operators(self) -> list[Operator]:
        return [_operation(op, self.text) for op in self.tree.ops]

    @property
    def sides(self) -> list[Sides]:
        """The cells left and right of each operator."""
        terms = [
            [cell for node in ast.walk(term) if isinstance(node, ast.Name) for cell in self.named.get(node.id, [])]
            for term in (self.tree.left, *self.tree.comparators)
        ]
        return list(itertools.pairwise(terms))

    def terms(self, values: Mapping[Cell, Any], functions: Functions = FUNCTIONS) -> list[Any]:
        """What stands left and right of each operator, for these values of the cells: numbers or arrays of them."""
        found = {name: [values[cell] for cell in cells] for name, cells in self.named.items()}
        return [self._value(term, found, functions) for term in (self.tree.left, *self.tree.comparators)]

    def _value(self, node: ast.AST, found: dict[str, list[Any]], functions: Functions) -> Any:
        match node:
            case ast.BinOp():
                sides = (self._value(side, found, functions) for side in (node.left, node.right))
                return _operation(node.op, self.text)(*sides)
            case ast.UnaryOp(op=ast.USub()):
                return -self._value(node.operand, found, functions)
            case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
                return abs(self._value(argument, found, functions))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in functions:
                if len(arguments) > 1 or any(map(self._is_set, arguments)):
                    return functions[name](self._values(arguments, found, functions))
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.Name(id=name) if name in self.sets:
                cells = len(self.named[name])
                raise ConfigError(f"{self.text!r}: {cells} cells are not one number; put them into mean, min or max")
            case ast.Name(id=name) if name in found:
                return found[name][0]
        raise ConfigError(
            f"{self.text!r}: {ast.unparse(node)!r} is not allowed; use cells, numbers, + - * /, abs(x), and min, max "
            "or mean of several values or of a set of cells"
        )

    def _values(self, arguments: list[ast.expr], found: dict[str, list[Any]], functions: Functions) -> list[Any]:
        values: list[Any] = []
        for argument in arguments:
            if self._is_set(argument):
                values += found[argument.id]  # type: ignore[attr-defined]
            else:
                values.append(self._value(argument, found, functions))
        return values

    def _is_set(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in self.sets


def parse(text: str, sets: Sets) -> Comparison:
    """A comparison whose sets are known; raises if it is none, or if it asks for anything that is not allowed."""
    named: dict[str, list[Cell]] = {}
    several: set[str] = set()
    prefix = "cell"
    while prefix in text:  # so that no word of the text passes for a cell
        prefix += "_"

    def name(match: re.Match[str]) -> str:
        key, written = f"{prefix}{len(named)}", match[0]
        if _is_set_text(written):
            several.add(key)
        named[key] = [as_cell(cell) for cell in sets[written]] if written in sets else [as_cell(written)]
        return key

    try:
        tree = ast.parse(_CELL.sub(name, text), mode="eval").body
    except (SyntaxError, ValueError):
        raise ConfigError(f"{text!r} is not a comparison; write it like `a.t1.x:top1 < a.t1.y:top1`") from None
    if not isinstance(tree, ast.Compare):
        raise ConfigError(f"{text!r} compares nothing; expected one of < <= == >= >")
    comparison = Comparison(text, tree, named, frozenset(several))
    _try_out(comparison)
    return comparison


def _try_out(comparison: Comparison) -> None:
    """Raise for what is not allowed anywhere in it, and for what has no value whatever its cells hold."""
    draw = random.Random(0)  # drawn numbers make no difference of two cells 0, as equal ones would
    try:
        comparison.operators  # noqa: B018 - raises for one that is not allowed
        comparison.terms({cell: draw.uniform(1, 2) for cell in comparison.cells})
    except ArithmeticError:
        raise ConfigError(f"{comparison.text!r} always divides by 0") from None


def _operation(op: ast.AST, text: str) -> Operator:
    if type(op) not in _OPERATIONS:
        raise ConfigError(f"{text!r}: {type(op).__name__} is not allowed; use + - * / and < <= == >= >")
    return _OPERATIONS[type(op)]


def as_cell(written: str) -> Cell:
    row, column = written.split(":")
    return row, column


def find_sets(text: str, known: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """The sets of a text with their cells; `known` is row -> columns. Raises for a cell or a set that is not there."""
    sets: dict[str, list[str]] = {}
    tables: dict[str, dict[str, str]] = {}  # table -> key of a row in it -> row
    for row in known:
        study, name, key = row.split(".", 2)
        tables.setdefault(f"{study}.{name}", {})[key] = row
    for match in _CELL.finditer(text):
        written, table, rows, columns = match[0], match[1], match[2], match[3]
        if table not in tables:
            raise ConfigError(f"no cell {written}: no table {table!r}; {nearest(table, tables)}")
        keys = tables[table]
        found = [keys[key] for key in matching_names(rows, list(keys), f"no cell {written}: no row", f"{table}.")]
        cells = []
        for row in found:
            if not known[row]:
                raise ConfigError(f"no cell {written}: {table} shows pictures or curves, which are no numbers")
            chosen = matching_names(columns, list(known[row]), f"no cell {written}: no column")
            cells += [f"{row}:{column}" for column in chosen]
        if _is_set_text(written):
            sets[written] = cells
    return sets


def _is_set_text(written: str) -> bool:
    return any(sign in written for sign in "*{!")


def matching_names(pattern: str, names: list[str], problem: str, prefix: str = "") -> list[str]:
    """The names that a pattern means, in their own order; each of its parts must match at least one."""
    wanted, *excluded = pattern.split("!")
    kept = _matching(wanted, names, problem, prefix)
    for part in excluded:
        left_out = _matching(part, kept, problem, prefix)
        kept = [name for name in kept if name not in left_out]
    if not kept:
        raise ConfigError(f"{problem} {prefix + pattern!r}: everything is excluded; leave out the last exclusion")
    return kept


def _matching(pattern: str, names: list[str], problem: str, prefix: str) -> list[str]:
    found: set[str] = set()
    for plain in _without_braces(pattern):
        expression = re.compile(re.escape(plain).replace(r"\*", ".*"))
        matched = {name for name in names if expression.fullmatch(name)}
        if not matched:
            hint = nearest(prefix + plain, [prefix + name for name in names])
            space = " (to multiply, put spaces around *)" if "*" in plain else ""
            raise ConfigError(f"{problem} {prefix + plain!r}; {hint}{space}")
        found |= matched
    return [name for name in names if name in found]


def _without_braces(pattern: str) -> list[str]:
    """`a{b,c}d` -> [`abd`, `acd`]."""
    braces = re.search(r"\{([^}]*)\}", pattern)
    if not braces:
        return [pattern]
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return [plain for choice in braces[1].split(",") for plain in _without_braces(before + choice + after)]
