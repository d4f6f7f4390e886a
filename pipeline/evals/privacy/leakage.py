"""What evaluations of gradient leakage share: on which images a client trains, and how recovered ones are compared.

The settings of MJP Table 5, for an image x and its shuffled version x~: (a) the client trains on x, (b) on x~, and the
recovered image is compared with what the client saw; (c) it trains on x~, and the recovered image is compared with x.
Two more: `kept` is (b) with every position embedding kept (Table 5 (3)), `hidden` is (a) with the unknown position at
the patches that (b) would shuffle. `own` is the setting in which the method of a run trains.

Similarity is measured on images of 256 levels, as the authors do on PNG files; `psnr_raw` before they are rounded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pipeline.engine.run import RunConfig
from pipeline.evals.base import Evaluation, Outcome
from pipeline.evals.pictures import as_shown, first_of_each_class, labelled_grid, note
from pipeline.methods.base import Batch
from pipeline.privacy.lpips import LPIPS, lpips_reason
from pipeline.privacy.similarity import METRICS, as_png, similarity
from pipeline.results.records import ImageSet
from pipeline.site import site_file
from pipeline.tasks.metrics import standard_error

SettingName = Literal["a", "b", "c", "kept", "hidden", "own"]
COMPARED = (*METRICS, "psnr_raw", "lpips")
NOTHING = Outcome()


@dataclass(frozen=True)
class Setting:
    """What a client does with its image, and what the recovered one is compared with."""

    moved: bool = False  # patches are shuffled
    hidden: bool = False  # the chosen patches get the unknown position, if the method has one
    original: bool = False  # compared with the image before the shuffle

    @property
    def seen(self) -> tuple[bool, bool]:
        """Settings with the same value differ in the comparison alone."""
        return self.moved, self.hidden

    def inputs(self, images: Tensor, moved: Tensor, shuffled: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the model is given, of images and their shuffled versions: images, and which patches are hidden."""
        return moved if self.moved else images, shuffled if self.hidden else None


SETTINGS: dict[str, Setting] = {
    "a": Setting(),
    "b": Setting(moved=True, hidden=True),
    "c": Setting(moved=True, hidden=True, original=True),
    "kept": Setting(moved=True),
    "hidden": Setting(hidden=True),
}


def setting_of(name: str, run: RunConfig) -> Setting:
    """By its name; `own` is what the method of the run does with its training images."""
    if name == "own":
        shuffle = getattr(run.method, "shuffle", "none")
        name = {"patches": "b", "positions": "hidden"}.get(shuffle, "a")
    return SETTINGS[name]


class LeakageEvaluation(Evaluation):
    """Attacks on the gradients of single images, one of each class as long as there are classes."""

    site_files = ("lpips",)
    needs_pixels = True

    def precision_name(self) -> str:
        """That of the client's gradients."""
        cfg: Any = self.cfg
        return cfg.gradients if hasattr(cfg, "gradients") else cfg.assumptions.gradients

    @cached_property
    def lpips(self) -> LPIPS:
        file = site_file(self.site, "lpips")
        assert file is not None  # there is a reason against it otherwise
        return LPIPS(file, self.world.device)

    def client_batches(self, data: Any, count: int, batch: int) -> Iterator[Batch]:
        """Validation images, as the model sees them."""
        return self.batches(data, indices=first_of_each_class(self.open(data).labels, count), batch=batch)

    def compared(self, recovered: Tensor, wanted: Tensor, data: Any) -> dict[str, Tensor]:
        """COMPARED for each image (B,); without LPIPS where it cannot be computed."""
        return compared(recovered, wanted, data, None if lpips_reason(self.site, data.image_size) else self.lpips)

    def outcome(
        self,
        values: Mapping[str, list[Tensor]],
        data: Any,
        files: dict[str, bytes] | None = None,
        others: Outcome = NOTHING,
    ) -> Outcome:
        """Means over the attacked images of what was measured batch by batch; `others` are over images of their own."""
        per_image = {name: torch.cat(parts).double().cpu().numpy() for name, parts in values.items()}
        count = len(next(iter(per_image.values())))
        lacking = [name for name in self.cfg.metrics if name.startswith("lpips")]
        reason = lpips_reason(self.site, data.image_size)
        return Outcome(
            others.metrics | {name: float(np.mean(each)) for name, each in per_image.items()},
            others.errors | {name: standard_error(each) for name, each in per_image.items()},
            count,
            others.per_image | per_image,
            reasons=dict.fromkeys(lacking, reason) if reason else {},
            images=f"{self.manifest(data).splits['val'].fingerprint}: {count}, class by class",
            other_images=dict.fromkeys(others.metrics, ImageSet(count=others.count, images=others.images)),
            files=files or {},
        )


def compared(recovered: Tensor, wanted: Tensor, data: Any, lpips: LPIPS | None = None) -> dict[str, Tensor]:
    """COMPARED for each image (B,), of images (B, C, H, W) as the model sees them; LPIPS only if it is given."""
    raw = [pixels_of(images, data) for images in (recovered, wanted)]
    rounded = [as_png(pixels) for pixels in raw]
    found = {**similarity(*rounded), "psnr_raw": raw_psnr(*raw)}
    return {**found, "lpips": lpips.distance(*rounded)} if lpips else found


def pixels_of(images: Tensor, data: Any) -> Tensor:
    """Images (..., C, H, W) as a model sees them -> float64 in [0, 1]."""
    mean, std = (torch.tensor(v, dtype=torch.float64, device=images.device) for v in (data.mean, data.std))
    return (images.double() * std[:, None, None] + mean[:, None, None]).clamp(0, 1)


def raw_psnr(one: Tensor, other: Tensor) -> Tensor:
    """In dB, of images that are not rounded to 256 levels; at most 300, the precision of float64."""
    return -10 * (one - other).square().mean(dim=(1, 2, 3)).clamp(min=1e-30).log10()


@dataclass(frozen=True)
class PictureColumn:
    """A column of a picture: images (B, C, H, W) as the model sees them, and those with which they are compared."""

    heading: str
    images: Tensor
    wanted: Tensor | None = None


def draw_columns(columns: Sequence[PictureColumn], data: Any, which: slice, text: str) -> bytes:
    """A PNG with a row for each of these images, and the PSNR below those that are compared."""
    pictures, captions = [], []
    for column in columns:
        pixels = as_png(pixels_of(column.images[which], data))
        pictures.append(as_shown((255 * pixels).round().to(torch.uint8).cpu()))
        captions.append([""] * len(pixels))
        if column.wanted is not None:
            wanted = as_png(pixels_of(column.wanted[which], data))
            captions[-1] = [f"{value:.1f} dB" for value in similarity(pixels, wanted)["psnr"].tolist()]
    rows = [(f"image {number + 1}", [column[number] for column in pictures]) for number in range(len(pictures[0]))]
    below = [[column[number] for column in captions] for number in range(len(rows))]
    headings = [column.heading for column in columns]
    return labelled_grid(rows, headings, below, lambda width: note(f"PSNR below each. {text}", width))
