"""Images, their true classes and those that a model names, side by side; below them what the colours mean."""

import colorsys
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from pydantic import Field
from torch import Tensor

from pipeline.core.registry import TASKS
from pipeline.data.kind import kind_of
from pipeline.dense.iou import IGNORED
from pipeline.engine.validate import evaluating
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Subject, only_for_task, spread
from pipeline.evals.pictures import FRAME, GAP, MARGIN, SMALL_FONT_PX, labelled_grid
from pipeline.methods.upernet import named_classes

FILE = "segmented.png"
SIDE = 224  # px of the longer side of an image on the page
UNLABELLED = (235, 235, 235)


@EVALS.register("segmentation_pictures")
class SegmentationPictures(Evaluation):
    class Config(EvalConfig):
        name: Literal["segmentation_pictures"] = "segmentation_pictures"
        images: int = Field(6, ge=1)
        """Rows of the picture, spread evenly over the validation set."""

        files: ClassVar[tuple[str, ...]] = (FILE,)

    reason_against = only_for_task("segment", "segment")
    cfg: Config

    @torch.no_grad()
    def compute(self, model: Subject) -> Outcome:
        data, method = model.run.data, model.method
        names = self.manifest(data).classes or []
        colours = palette(len(names))
        rows, captions, seen = [], [], set()
        for index, image, labels, answers in self._predict(method, data):
            shown = shown_image(image), shown_classes(labels, colours), shown_classes(answers, colours)
            rows.append((f"{index + 1}", [*shown]))
            counted = labels != IGNORED
            captions.append(["", "", f"{100 * (answers == labels)[counted].mean():.0f} % right"])
            seen |= {*np.unique(labels[counted]).tolist(), *np.unique(answers).tolist()}
        # ADE20K gives several names to a class, such as "building, edifice".
        entries = [(names[label].split(",")[0], tuple(colours[label].tolist())) for label in sorted(seen)]
        entries.append(("no class", UNLABELLED))
        page = labelled_grid(rows, ["image", "truth", "answer"], captions, lambda width: legend(entries, width))
        return Outcome(files={FILE: page})

    def _predict(self, method: Any, data: Any) -> Any:
        """Index, image uint8 (C, H, W), true classes (h, w) and named ones (h, w) of some images."""
        samples, view = self.open(data), kind_of(data).eval_view()
        task = TASKS.get("segment")(data, self.world.device)
        for index in spread(len(samples), self.cfg.images).tolist():
            collated = task.collate([view(samples[index])])
            (image,), (target,) = task.eval_batch(*collated)
            with evaluating(method), self.precision():
                answers = named_classes(method.segment(image), target["labels"].shape)
            yield index, collated[0][0], target["labels"].cpu().numpy(), answers.cpu().numpy()


def palette(count: int) -> np.ndarray:
    """uint8 (256, 3): colours far apart for classes that are near, white smoke for what has no class."""
    found = np.full((256, 3), UNLABELLED, dtype=np.uint8)
    for label in range(count):
        # Steps of the golden ratio never come back to a hue; three tones tell apart hues that are close.
        tone = ((0.75, 0.9), (0.55, 0.65), (0.95, 0.75))[label % 3]
        found[label] = [round(255 * part) for part in colorsys.hsv_to_rgb(label * 0.618034 % 1, *tone)]
    return found


def shown_image(image: Tensor) -> Tensor:
    pixels = image.expand(3, -1, -1).permute(1, 2, 0).numpy()
    is_small = max(pixels.shape[:2]) < SIDE
    return on_page(pixels, Image.Resampling.NEAREST if is_small else Image.Resampling.BILINEAR)


def shown_classes(labels: np.ndarray, colours: np.ndarray) -> Tensor:
    return on_page(colours[labels], Image.Resampling.NEAREST)


def on_page(pixels: np.ndarray, resampling: Image.Resampling) -> Tensor:
    """(H, W, 3) -> uint8 (3, SIDE, SIDE): as large as fits, in the middle of a white square."""
    height, width = pixels.shape[:2]
    size = [max(1, round(side * SIDE / max(height, width))) for side in (width, height)]
    square = Image.new("RGB", (SIDE, SIDE), "white")
    picture = Image.fromarray(np.ascontiguousarray(pixels)).resize((size[0], size[1]), resampling)
    square.paste(picture, ((SIDE - size[0]) // 2, (SIDE - size[1]) // 2))
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)


def legend(entries: list[tuple[str, tuple[int, ...]]], width: int) -> Image.Image:
    """A square of each colour and its name, in as many columns as fit."""
    font, line = ImageFont.load_default(SMALL_FONT_PX), SMALL_FONT_PX + GAP
    widest = max(font.getlength(name) for name, _ in entries)
    column = round(widest) + 2 * SMALL_FONT_PX + GAP
    num_columns = max(1, (width - MARGIN) // column)
    canvas = Image.new("RGB", (width, -(-len(entries) // num_columns) * line + 2 * MARGIN), "white")
    pen = ImageDraw.Draw(canvas)
    for number, (name, colour) in enumerate(entries):
        x, y = MARGIN + number % num_columns * column, MARGIN + number // num_columns * line
        pen.rectangle((x, y, x + SMALL_FONT_PX, y + SMALL_FONT_PX), fill=colour, outline=FRAME)
        pen.text((x + SMALL_FONT_PX + GAP, y + SMALL_FONT_PX / 2), name, "black", font, anchor="lm")
    return canvas
