"""The reference of what notebooks import, from docstrings."""

import inspect
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pipeline import frame, results

INTERFACE: dict[ModuleType, list[str]] = {
    frame: ["frame"],
    results: [
        "load_encoder",
        "find_run",
        "results_of",
        "scales_with_results",
        "ScaleFolder",
        "RunFolder",
        "EvalFolder",
    ],
}


def page() -> str:
    text = (
        "# Python interface\n\nWhat a notebook needs: every metric as one frame, trained encoders, and where each "
        "result lies. It runs in the project's own `.venv`.\n\n"
    )
    for module, names in INTERFACE.items():
        text += f"## {module.__name__}\n\n{inspect.getdoc(module)}\n\n"
        text += "".join(_entry(name, getattr(module, name)) for name in names)
    return text


def _entry(name: str, entry: Any) -> str:
    head = f"### {name}\n\n```python\n{name}{_signature(entry)}\n```\n\n{inspect.getdoc(entry)}\n\n"
    return head + (_members(entry) if inspect.isclass(entry) else "")


def _members(entry: type) -> str:
    """Public methods and properties of a class that have a docstring, in the order of the file."""
    lines = ["| | |", "|---|---|"]
    for name, member in vars(entry).items():
        function = member.fget if isinstance(member, property) else member
        if name.startswith("_") or not callable(function) or not (doc := inspect.getdoc(function)):
            continue
        signature = "" if isinstance(member, property) else _signature(function)
        lines.append(f"| `{name}{signature}` | {' '.join(doc.split())} |".replace(" | None", " \\| None"))
    return "\n".join(lines) + "\n\n"


def _signature(entry: Callable) -> str:
    """Without `self`, and without the quotes of types that are not imported."""
    text = str(inspect.signature(entry)).replace("(self, ", "(").replace("(self)", "()")
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)
