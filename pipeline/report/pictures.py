"""Pictures and sounds that evaluations wrote, embedded in the page so that it can be mailed."""

import base64
import io
import wave
from pathlib import PurePath
from typing import NamedTuple

from PIL import Image

from pipeline.errors import DataError
from pipeline.report.records import Cell, Read
from pipeline.report.view import TableView

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
SMALL = 160  # px; below it, a picture is enlarged with sharp pixels rather than blurred
SHEET = 360  # px; above it, a picture is a whole sheet of them and stands alone


class Picture(NamedTuple):
    source: str  # data URI
    width: int
    height: int

    @property
    def kind(self) -> str:
        if self.width > SHEET:
            return "sheet"
        return "small" if max(self.width, self.height) < SMALL else "medium"


class Sound(NamedTuple):
    source: str  # data URI
    seconds: float


class Shot(NamedTuple):
    """One place of the grid: a picture, a sound, or the reason why there is none."""

    column: str
    cell: Cell
    picture: Picture | None
    sound: Sound | None


def grid(shown: TableView, read: Read) -> list[tuple[str, list[Shot]]]:
    """Rows of pictures and sounds, each with its label."""
    rows = []
    for row in shown.rows:
        cells = [(column.label, row.first.cells[column.first.id]) for column in shown.columns]
        rows.append((row.label, [_shot(label, cell, read) for label, cell in cells]))
    return rows


def _shot(label: str, cell: Cell, read: Read) -> Shot:
    file = cell.picture
    if PurePath(file).suffix == ".wav":
        return Shot(label, cell, None, embed_sound(read(file), file))
    return Shot(label, cell, embed(read(file), file) if file else None, None)


def embed(content: bytes, name: str) -> Picture:
    """The picture as part of a page; `name` is for the error."""
    try:
        with Image.open(io.BytesIO(content), formats=list(FORMATS)) as image:
            kind, (width, height) = FORMATS[str(image.format)], image.size
            image.load()  # a picture that was cut short still has a size
    except (OSError, SyntaxError):
        raise DataError(
            f"{name}: found no whole picture, expected PNG, JPEG or WebP; delete its folder and run the workflow again"
        ) from None
    return Picture(_data_uri(kind, content), width, height)


def embed_sound(content: bytes, name: str) -> Sound:
    """The sound as part of a page; `name` is for the error."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            count, frame = file.getnframes(), file.getnchannels() * file.getsampwidth()
            # A file that was cut short still says how long it was.
            if not count or len(file.readframes(count)) < count * frame:
                raise EOFError
            seconds = count / file.getframerate()
    except (wave.Error, EOFError, ZeroDivisionError):
        raise DataError(
            f"{name}: found no whole sound, expected WAV with PCM samples; delete its folder and run the workflow again"
        ) from None
    return Sound(_data_uri("audio/wav", content), seconds)


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
