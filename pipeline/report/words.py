"""Numbers and durations as text, the same on the page, in a drawing and on the terminal."""

import json
import math
import re

from markupsafe import Markup, escape

MISSING = "n/a"
MANY_DECIMALS = 4  # with so many, a number that reads zero is wanted in full
ROUNDING = 1e-9  # what is below it is the noise of arithmetic
PLUS_MINUS = "\u00b1"
SENTENCE_END = re.compile(r"(?<=[.?!])(?<!Eq\.)(?<!Sec\.)(?<!Fig\.)(?<!Norm\.)\s+(?=[A-Z0-9`\"(+])")


def number(value: float | None, decimals: int) -> str:
    if value is None:
        return MISSING
    if decimals >= MANY_DECIMALS and value and abs(value) < 0.5 * 10**-decimals:
        return f"{value:.0e}"  # not 0.0000: it was measured
    # Adding 0.0 turns the -0.0 that rounding leaves behind into 0.0.
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def signed(value: float | None, decimals: int) -> str:
    if value is None:
        return MISSING
    return f"{round(value, decimals) + 0.0:+.{decimals}f}"


def plain(value: object) -> str:
    """Any JSON value as one line of text."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict) and not any(isinstance(part, dict | list) for part in value.values()):
        return ", ".join(f"{name} {plain(part)}" for name, part in value.items())
    return json.dumps(value) if isinstance(value, bool | dict | list) else str(value)


def with_code(text: str) -> Markup:
    """Text as HTML, with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def sentences(text: str) -> list[str]:
    """The sentences of a note; an abbreviation ends none."""
    return SENTENCE_END.split(text.strip()) if text.strip() else []


def short(text: str, most: int = 12) -> str:
    """The beginning of a digest; any other text as it is."""
    is_digest = len(text) > most and set(text) <= set("0123456789abcdef")
    return text[:most] if is_digest else text


def duration(seconds: float | None) -> str:
    if seconds is None:
        return MISSING
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def size(num_bytes: float) -> str:
    """Decimal units, as disks are sold."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:,.1f} {unit}"
    return f"{num_bytes / 1e6:,.1f} MB"


def aligned(rows: list[tuple[str, ...]]) -> str:
    """Columns of a table on the terminal: text to the left at both ends, numbers to the right between."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *middle, last in rows:
        cells = [cell.rjust(width) for cell, width in zip(middle, widths[1:-1], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells, last]))
    return "\n".join(lines)


def error(value: float | None, decimals: int, mark: str = PLUS_MINUS) -> str:
    """A standard error such as "+/- 1.3"; nothing where it is unknown or the number is exact."""
    if not value or value < ROUNDING:
        return ""
    # One that would read 0.0 gets the digits that it needs.
    digits = decimals if round(value, decimals) else -math.floor(math.log10(value))
    most_digits = decimals if decimals >= MANY_DECIMALS else decimals + 2
    is_tiny = digits > most_digits
    return f"{mark} {value:.0e}" if is_tiny else f"{mark} {value:.{digits}f}"


def in_list(parts: list[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


AGAIN = "must be made again"
MARK = "*"  # of a number that is stale
MARKED = f"their numbers are marked {MARK}"


def shown_again(count: int, command: str) -> str:
    """That some of the results on a page or a terminal are stale, and what makes them again."""
    return f"{count} of the results shown here {AGAIN}: `{command}`"


def counted(count: int, word: str, plural: str = "") -> str:
    """ "1 run", "2 runs", "no runs"."""
    return f"{count or 'no'} {word if count == 1 else plural or word + 's'}"
