"""Pictures with objects, as the views of the kind `detection` take them."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from pipeline.core.files import digest_by_stat
from pipeline.data.dense.objects import Objects, ObjectTable
from pipeline.data.images.images import decoded
from pipeline.data.samples import Files


class Picture(NamedTuple):
    """One sample: the picture and what is known of its objects; `place` is its index in the split."""

    image: Image.Image
    objects: Objects
    place: int
    image_id: int


class CocoSamples(Files):
    """Pictures in files below a folder, and a table of their objects; `annotations` is the list it was read from."""

    mode: str = "RGB"

    def __init__(self, folder: Path, images: str, annotations: str, table: ObjectTable) -> None:
        super().__init__(folder, [f"{images}/{name}" for name in table.file_names()])
        self.annotations, self.table = annotations, table

    def __getitem__(self, index: int) -> Picture:
        return Picture(decoded(self, index, self.mode), self.table.objects(index), index, self.image_id(index))

    @property
    def category_ids(self) -> list[int]:
        """The set's own numbers: label k is the k-th of them, from 1 on."""
        return self.table.category_ids.tolist()

    def image_id(self, index: int) -> int:
        return int(self.table.image_ids[index])

    def identity(self) -> Iterable[bytes]:
        """The whole list of annotations among them: reading it takes a second where parsing it takes a minute."""
        yield (digest_by_stat(self.folder / self.annotations) or "missing").encode()
        yield self.listing()
        yield self.table.starts.tobytes()
        yield self.table.labels.tobytes()

    def line(self, index: int) -> str:
        return f"{self.name(index)}\t{self.image_id(index)}\t{self._digest(index)}"

    def _digest(self, index: int) -> str:
        """Digest everything that is known about the objects of a picture."""
        objects, known = self.table.objects(index), hashlib.sha256()
        for column in (objects.ids, objects.labels, objects.boxes, objects.areas, objects.crowds):
            known.update(column.tobytes())
        for outline in objects.outlines:
            parts = outline if isinstance(outline, list) else [outline]
            for part in parts:
                known.update(f"{part.dtype} {len(part)}\n".encode())
                known.update(part.tobytes())
        return known.hexdigest()


def listed_files(folder: Path) -> list[str]:
    """Names of the files in a folder that hides nothing."""
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith("."))
