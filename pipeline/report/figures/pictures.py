"""Pictures and sounds that evaluations wrote: files beside the pages, or inside a page that is to be mailed."""

import base64
import hashlib
import io
import wave
from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple

from PIL import Image

from pipeline.core.errors import DataError
from pipeline.report.records import Cell, Read
from pipeline.report.tables.view import TableView

FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp"}
WAV = "audio/wav"
SUFFIXES = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", WAV: "wav"}
Place = Callable[[bytes, str], str]  # content and media type -> the address that a page names
SHEET = 160  # px; a larger one is a sheet with labels, shown in its own size; a smaller one may be enlarged


class Picture(NamedTuple):
    source: str  # address
    width: int
    height: int

    @property
    def kind(self) -> str:
        return "sheet" if max(self.width, self.height) > SHEET else "small"


class Sound(NamedTuple):
    source: str  # address
    seconds: float


class Shot(NamedTuple):
    """One place of the grid: a picture, a sound, or the reason why there is none."""

    column: str
    cell: Cell
    picture: Picture | None
    sound: Sound | None


class Media:
    """Files that pages of a site show; the same content is one file, whichever evaluations wrote it."""

    folder = "files"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}  # name below the folder of the pages

    def place(self, content: bytes, kind: str) -> str:
        name = f"{self.folder}/{hashlib.sha256(content).hexdigest()[:16]}.{SUFFIXES[kind]}"
        self.files[name] = content
        return name


def grid(shown: TableView, read: Read, place: Place) -> list[tuple[str, list[Shot]]]:
    """Rows of pictures and sounds, each with its label."""
    rows = []
    for row in shown.rows:
        cells = [(column.label, row.first.cells[column.first.id]) for column in shown.columns]
        rows.append((row.label, [_shot(label, cell, read, place) for label, cell in cells]))
    return rows


def _shot(label: str, cell: Cell, read: Read, place: Place) -> Shot:
    file = cell.picture
    if PurePath(file).suffix == ".wav":
        return Shot(label, cell, None, open_sound(read(file), file, place))
    return Shot(label, cell, open_picture(read(file), file, place) if file else None, None)


def open_picture(content: bytes, name: str, place: Place) -> Picture:
    """The picture, put where pages find it; `name` is for the error."""
    try:
        with Image.open(io.BytesIO(content), formats=list(FORMATS)) as image:
            kind, (width, height) = FORMATS[str(image.format)], image.size
            image.load()  # a picture that was cut short still has a size
    except (OSError, SyntaxError):
        raise DataError(
            f"{name}: found no complete picture, expected PNG, JPEG or WebP; delete its folder, run the workflow again"
        ) from None
    return Picture(place(content, kind), width, height)


def open_sound(content: bytes, name: str, place: Place) -> Sound:
    """The sound, put where pages find it; `name` is for the error."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            count, frame = file.getnframes(), file.getnchannels() * file.getsampwidth()
            # A file that was cut short still says how long it was.
            if not count or len(file.readframes(count)) < count * frame:
                raise EOFError
            seconds = count / file.getframerate()
    except (wave.Error, EOFError, ZeroDivisionError):
        raise DataError(
            f"{name}: found no complete sound, expected WAV with PCM samples; delete its folder, run the workflow again"
        ) from None
    return Sound(place(content, WAV), seconds)


def embed(content: bytes, kind: str) -> str:
    """As part of the page."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
