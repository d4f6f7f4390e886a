"""Objects of the pictures of a split, in a few arrays: COCO has 860,000 of them.

`prepare` writes the arrays beside its manifest, so that a training job does not parse the published list again.
"""

from array import array
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pipeline.core.errors import DataError
from pipeline.data.dense.outlines import Outline
from pipeline.results import prepare_command


@dataclass(frozen=True)
class Objects:
    """The objects of one picture as published; crowds are among them."""

    ids: np.ndarray  # int64 (n,)
    labels: np.ndarray  # int64 (n,), from 1 on
    boxes: np.ndarray  # float64 (n, 4): x, y, width, height
    areas: np.ndarray  # float64 (n,)
    crowds: np.ndarray  # uint8 (n,)
    outlines: list[Outline]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class ObjectTable:
    """Everything known of the pictures of a split beside their pixels. Objects are in the order of pictures."""

    files: np.ndarray  # uint8: names of files, with a line break after each
    image_ids: np.ndarray  # int64 (pictures,)
    sizes: np.ndarray  # int64 (pictures, 2): height, width
    starts: np.ndarray  # int64 (pictures + 1,): the first object of each picture
    category_ids: np.ndarray  # int64 (classes,): label k is the k-th of them, from 1 on
    ids: np.ndarray
    labels: np.ndarray
    boxes: np.ndarray
    areas: np.ndarray
    crowds: np.ndarray
    polygon_starts: np.ndarray  # int64 (objects + 1,): the first polygon of each object
    point_starts: np.ndarray  # int64 (polygons + 1,): the first number of each polygon
    points: np.ndarray  # float64: x, y, x, y ...
    run_starts: np.ndarray  # int64 (objects + 1,): the first run of each object that has runs instead of polygons
    runs: np.ndarray  # int64

    def __len__(self) -> int:
        return len(self.image_ids)

    def objects(self, index: int) -> Objects:
        """Those of one picture."""
        first, end = self.starts[index : index + 2]
        outlines = [self._outline(number) for number in range(first, end)]
        part = slice(first, end)
        return Objects(
            self.ids[part], self.labels[part], self.boxes[part], self.areas[part], self.crowds[part], outlines
        )

    def _outline(self, number: int) -> Outline:
        first, end = self.polygon_starts[number : number + 2]
        if first == end:
            return self.runs[slice(*self.run_starts[number : number + 2])]
        edges = self.point_starts[first : end + 1]
        return [self.points[start:stop] for start, stop in pairwise(edges)]

    def file_names(self) -> list[str]:
        return self.files.tobytes().decode("utf-8", "surrogateescape").split("\n")[:-1]


class TableWriter:
    """Fills the arrays one object at a time."""

    def __init__(self) -> None:
        self.ids, self.labels, self.crowds = array("q"), array("q"), array("B")
        self.boxes, self.areas, self.points = array("d"), array("d"), array("d")
        self.polygon_starts, self.point_starts = array("q", [0]), array("q", [0])
        self.run_starts, self.runs = array("q", [0]), array("q")

    def add(self, number: int, label: int, box: list[float], area: float, crowd: int, outline: Outline) -> None:
        self.ids.append(number)
        self.labels.append(label)
        self.boxes.extend(box)
        self.areas.append(area)
        self.crowds.append(crowd)
        if isinstance(outline, list):
            for polygon in outline:
                self.points.extend(polygon.tolist())
                self.point_starts.append(len(self.points))
        else:
            self.runs.extend(outline.tolist())
        self.polygon_starts.append(len(self.point_starts) - 1)
        self.run_starts.append(len(self.runs))

    def table(
        self, files: list[str], image_ids: list[int], sizes: list[tuple[int, int]], counts: list[int], ids: list[int]
    ) -> ObjectTable:
        """`counts` are the objects of each picture, `ids` those of the categories."""
        names = "".join(f"{file}\n" for file in files).encode("utf-8", "surrogateescape")
        columns = {name: np.array(getattr(self, name)) for name in self.__dict__}
        columns["boxes"] = columns["boxes"].reshape(-1, 4)
        return ObjectTable(
            files=np.frombuffer(names, dtype=np.uint8),
            image_ids=np.array(image_ids, dtype=np.int64),
            sizes=np.array(sizes, dtype=np.int64).reshape(-1, 2),
            starts=np.cumsum([0, *counts], dtype=np.int64),
            category_ids=np.array(ids, dtype=np.int64),
            **columns,
        )


def written(table: ObjectTable) -> bytes:
    """The content of an index file."""
    return save({field.name: getattr(table, field.name) for field in fields(table)})


def read_table(path: Path) -> ObjectTable:
    """What `prepare` wrote, or an error that says to run it."""
    try:
        with safe_open(path, framework="numpy") as file:
            return ObjectTable(**{field.name: file.get_tensor(field.name) for field in fields(ObjectTable)})
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{path}: found {error}, expected an index of objects; run `{prepare_command(path)}` again"
        ) from None
