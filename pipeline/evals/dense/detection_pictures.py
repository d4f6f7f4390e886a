"""Validation images with their objects as published, and beside them what was found: boxes, classes and masks.

A class has the same colour on both sides. Crowds are not shown.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from pydantic import Field
from torch import Tensor

from pipeline.core.registry import TASKS
from pipeline.data.kind import kind_of
from pipeline.dense.average_precision import ImageRecord, Objects, decoded, record_of
from pipeline.engine.validate import evaluating
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject, only_for_task, spread
from pipeline.evals.pictures import SMALL_FONT_PX, labelled_grid, note
from pipeline.methods.base import Batch
from pipeline.tasks.base import Task

SIDE = 400  # of a picture on the page
# Twelve colours that can be told apart on a photograph; a class takes the one of its number.
PALETTE = (
    *((230, 60, 60), (50, 130, 230), (40, 170, 70), (240, 150, 20), (150, 70, 200), (20, 180, 190)),
    *((235, 90, 170), (140, 110, 40), (110, 140, 20), (90, 90, 220), (200, 60, 110), (70, 110, 120)),
)
NOTE = (
    "Left: the objects as published, without crowds. Right: what was found, with its score, from a score of {least:g}. "
    "The colour is that of the class."
)


@EVALS.register("detection_pictures")
class DetectionPictures(Evaluation):
    class Config(EvalConfig):
        name: Literal["detection_pictures"] = "detection_pictures"
        images: int = Field(4, ge=1)
        """Rows of the picture."""
        min_score: float = Field(0.5, ge=0, lt=1)
        """Lowest score of a detection that is drawn."""

        files: ClassVar[tuple[str, ...]] = ("detections.png",)

    reason_against = only_for_task("detect", "detect objects")
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        names, rows = self.manifest(model.run.data).classes or [], []
        for number, (picture, record) in enumerate(self._looks(model), start=1):
            truth = [_label(names, label) for label in record.truth.labels]
            found = [
                f"{_label(names, label)} {score:.2f}"
                for label, score in zip(record.found.labels, record.scores, strict=True)
            ]
            shown_truth, shown_found = record.crowd == 0, record.scores >= self.cfg.min_score
            left = draw_objects(picture, record, record.truth, truth, np.flatnonzero(shown_truth))
            right = draw_objects(picture, record, record.found, found, np.flatnonzero(shown_found))
            rows.append((str(number), [left, right]))
        foot = NOTE.format(least=self.cfg.min_score)
        page = labelled_grid(rows, ["truth", "found"], foot=lambda width: note(foot, width))
        return Outcome(files={"detections.png": page})

    @torch.no_grad()
    def _looks(self, model: Subject) -> Iterator[tuple[Tensor, ImageRecord]]:
        """Images spread over the set, those with objects: what the model sees of each, and what it finds."""
        data = model.run.data
        task: Task = TASKS.get("detect")(data, self.world.device)
        view, samples = kind_of(data).eval_view(), self.open(data)
        seen = (task.collate([view(samples[int(index)])]) for index in spread(len(samples), 4 * self.cfg.images))
        with_objects = ((inputs, targets) for inputs, targets in seen if len(targets[0]["gt_labels"]))
        for inputs, targets in islice(with_objects, self.cfg.images):
            with evaluating(model.method), self.precision():
                batch = Batch(*task.eval_batch(inputs, targets), torch.Generator())
                (found,) = model.method.measure(batch)
            height, width = targets[0]["size"].tolist()
            yield inputs[0][:, :height, :width], record_of(*found)


def _label(names: Sequence[str], label: Any) -> str:
    return names[label - 1] if label <= len(names) else str(label)


def draw_objects(
    picture: Tensor, record: ImageRecord, objects: Objects, texts: Sequence[str], chosen: np.ndarray
) -> Tensor:
    """uint8 (3, SIDE, SIDE): the picture (C, h, w) as large as fits, and over it these of the objects."""
    height, width = record.size
    zoom = SIDE / max(height, width)
    size = max(1, round(width * zoom)), max(1, round(height * zoom))
    pixels = picture.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    image = Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)
    for number in chosen:  # all masks first, so that no box is hidden
        mask = Image.fromarray(decoded(objects.runs[number], record.size) * np.uint8(255)).resize(size)
        colour = Image.new("RGB", size, _colour(objects.labels[number]))
        image.paste(Image.blend(image, colour, 0.5), mask=mask.point(lambda value: 255 if value > 127 else 0))
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(SMALL_FONT_PX)
    for number in chosen[::-1]:  # the surest last
        _frame(pen, font, objects.boxes[number] * zoom, texts[number], _colour(objects.labels[number]), size[0])
    canvas = Image.new("RGB", (SIDE, SIDE), "white")
    canvas.paste(image, ((SIDE - size[0]) // 2, (SIDE - size[1]) // 2))
    return torch.from_numpy(np.asarray(canvas).copy()).permute(2, 0, 1)


def _frame(pen: Any, font: Any, box: np.ndarray, text: str, colour: tuple[int, ...], width: int) -> None:
    """A box with its text on a plate of the same colour, inside the picture."""
    x, y, w, h = box.tolist()
    pen.rectangle((x, y, x + max(w, 1), y + max(h, 1)), outline=colour, width=2)
    length = font.getlength(text) + 4
    left, top = max(0.0, min(x, width - length)), max(0.0, y - SMALL_FONT_PX - 3)
    pen.rectangle((left, top, left + length, top + SMALL_FONT_PX + 3), fill=colour)
    pen.text((left + 2, top + 1), text, "white", font)


def _colour(label: Any) -> tuple[int, ...]:
    return PALETTE[(int(label) - 1) % len(PALETTE)]
