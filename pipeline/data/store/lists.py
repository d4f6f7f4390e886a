"""Lists of files that `prepare` writes beside a manifest: CSV with a header, two columns."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from pipeline.core.errors import DataError
from pipeline.results import prepare_command

Value = TypeVar("Value")


def read_list(path: Path, header: Sequence[str], second: Callable[[str], Value]) -> list[tuple[str, Value]]:
    """The rows of a list that `prepare` wrote, or an error that says to run it; `second` reads the second column."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            found, *rows = csv.reader(file)
        pairs = [(name, second(value)) for name, value in rows]
        if found != list(header):
            raise ValueError(f"header {found}")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: found {error}, expected a list of {','.join(header)}; run `{prepare_command(path)}` again"
        ) from None
    return pairs


def written_list(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return "".join(map(_line, (header, *rows)))


def _line(row: Sequence[object]) -> str:
    """Names with \\r or \\n in quotes: csv's own end of a line, \\r\\n, makes its writer quote both."""
    text = io.StringIO()
    csv.writer(text).writerow(row)
    return text.getvalue().removesuffix("\r\n") + "\n"
