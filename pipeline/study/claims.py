"""Claims: sentences of a paper as comparisons of table cells, found true, false or undecided at any scale.

A comparison is written with cells `row:column`, numbers, + - * /, abs, min, max and chains of < <= == >= >; for example
`max(mjp.t3.g003:top1, mjp.t3.g009:top1) - mjp.t3.g000:top1 <= 0.3`. It is parsed, never executed. It is undecided while
one of its cells has no number; a claim is false if any comparison is false, else undecided if any is, else true.
"""

import ast
import operator
import random
import re
from collections.abc import Callable
from typing import Any, Literal

from pipeline.config import Record
from pipeline.errors import ConfigError
from pipeline.study.spec import Claim

_CELL = re.compile(r"(?<![\w.])([a-z]\w*(?:\.[\w-]+)+):(\w+)")
_OPERATIONS: dict[type, Callable[[float, float], Any]] = {
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

Cell = tuple[str, str]
Values = dict[Cell, float | None]
Verdict = Literal["true", "false", "undecided"]
WORST_FIRST: tuple[Verdict, ...] = ("false", "undecided", "true")  # a claim is as good as its worst comparison


class Predicate(Record):
    """One comparison, and the numbers that were put in for its cells, written row:column."""

    text: str
    verdict: Verdict
    cells: dict[str, float | None]


class JudgedClaim(Record):
    id: str
    statement: str
    type: str
    verdict: Verdict
    reason: str
    predicates: list[Predicate]


def cells_of(text: str) -> list[Cell]:
    """The cells that a comparison names; raises if it is not a comparison."""
    cells, tree = _parse(text)
    draw = random.Random(0)  # any numbers do; drawn ones make no difference of two cells 0, as equal ones would
    try:
        _evaluate(tree, {name: draw.uniform(1, 2) for name in cells}, text)
    except ArithmeticError:
        raise ConfigError(f"{text!r} divides by 0 for any numbers in its cells") from None
    return list(dict.fromkeys(cells.values()))


def decide(text: str, values: Values) -> Verdict:
    """`true`, `false`, or `undecided` where a cell has no number or a ratio has none."""
    cells, tree = _parse(text)
    found = {name: values.get(cell) for name, cell in cells.items()}
    numbers = {name: value for name, value in found.items() if value is not None}
    if len(numbers) < len(found):
        return "undecided"
    try:
        return "true" if _evaluate(tree, numbers, text) else "false"
    except ZeroDivisionError:
        return "undecided"


def judge(claims: dict[str, Claim], values: Values) -> list[JudgedClaim]:
    """Every claim with its verdict, and for each comparison the numbers that were put in."""
    return [_judge_one(claim_id, claim, values) for claim_id, claim in claims.items()]


def _judge_one(claim_id: str, claim: Claim, values: Values) -> JudgedClaim:
    predicates = []
    for text in claim.holds:
        found = {f"{row}:{column}": values.get((row, column)) for row, column in cells_of(text)}
        predicates.append(Predicate(text=text, verdict=decide(text, values), cells=found))
    verdict = next(word for word in WORST_FIRST if word in {predicate.verdict for predicate in predicates})
    missing = sorted({cell for predicate in predicates for cell, value in predicate.cells.items() if value is None})
    reason = f"no number for {', '.join(missing)}" if missing else ""
    if verdict == "undecided" and not missing:
        reason = "its numbers lead to a division by 0"
    about = {"id": claim_id, "statement": claim.statement, "type": claim.type}
    return JudgedClaim(**about, verdict=verdict, reason=reason, predicates=predicates)


def _parse(text: str) -> tuple[dict[str, Cell], ast.Compare]:
    """Names put in place of cells, and the comparison over those names."""
    cells: dict[str, Cell] = {}
    prefix = "cell"
    while prefix in text:  # so that no word of the text passes for a cell
        prefix += "_"

    def name(match: re.Match[str]) -> str:
        key = f"{prefix}{len(cells)}"
        cells[key] = (match[1], match[2])
        return key

    try:
        tree = ast.parse(_CELL.sub(name, text), mode="eval").body
    except (SyntaxError, ValueError):
        raise ConfigError(f"{text!r} is not a comparison; write it like `a.t1.x:top1 < a.t1.y:top1`") from None
    if not isinstance(tree, ast.Compare):
        raise ConfigError(f"{text!r} compares nothing; expected one of < <= == >= >")
    return cells, tree


def _evaluate(node: ast.AST, numbers: dict[str, float], text: str) -> Any:
    match node:
        case ast.Compare():
            terms = [_evaluate(term, numbers, text) for term in (node.left, *node.comparators)]
            steps = zip(terms, node.ops, terms[1:], strict=False)
            return all(_operation(op, text)(left, right) for left, op, right in steps)
        case ast.BinOp():
            return _operation(node.op, text)(_evaluate(node.left, numbers, text), _evaluate(node.right, numbers, text))
        case ast.UnaryOp(op=ast.USub()):
            return -_evaluate(node.operand, numbers, text)
        case ast.Call(func=ast.Name(id="abs"), args=[argument], keywords=[]):
            return abs(_evaluate(argument, numbers, text))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[_, _, *_], keywords=[]):
            return {"min": min, "max": max}[name](_evaluate(argument, numbers, text) for argument in node.args)
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name) if name in numbers:
            return numbers[name]
    raise ConfigError(
        f"{text!r}: {ast.unparse(node)!r} is not allowed; use cells, numbers, + - * /, abs(x), min(x, y), max(x, y)"
    )


def _operation(op: ast.AST, text: str) -> Callable[[float, float], Any]:
    if type(op) not in _OPERATIONS:
        raise ConfigError(f"{text!r}: {type(op).__name__} is not allowed; use + - * / and < <= == >= >")
    return _OPERATIONS[type(op)]
