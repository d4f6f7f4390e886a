"""Making a set of corrupted images from the validation images of another one.

Each file is a function of the clean image, its name, the corruption and the severity: not of processes or their order.
A recipe beside the files says what they were made from. Making them again writes what is missing; files of another
recipe are taken away first.
"""

import io
import logging
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from PIL import Image
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from pipeline.config import fingerprint
from pipeline.data.corruptions import corrupt_picture, seed_of
from pipeline.data.images import ImageSet
from pipeline.data.inspection import mapper
from pipeline.data.kind import Sources
from pipeline.data.samples import shortened
from pipeline.data.severities import RECIPE, SEVERITIES
from pipeline.data.sources import SOURCES
from pipeline.errors import DataError
from pipeline.files import draft_of, explained, remove_folder, write_json

if TYPE_CHECKING:
    from pipeline.data.corrupted import CorruptedImages
    from pipeline.data.transforms import View

log = logging.getLogger(__name__)
CODE_VERSION = 1  # raised when a change of code makes other pixels


@dataclass(frozen=True)
class _Making:
    """What the processes of a pool need; they are forked, so nothing is copied to them."""

    cfg: "CorruptedImages.Config"
    samples: ImageSet
    chosen: list[int]
    names: list[str]
    folder: Path
    view: "View | None"  # none: clean images are as they are corrupted


_forked: list[_Making] = []


def make_corrupted(cfg: "CorruptedImages.Config", folder: Path, sources: Sources, workers: int, progress: bool) -> None:
    """Write the files of a set, or of one of its corruptions, as far as they are absent."""
    assert cfg.made_from
    samples, classes = sources.open(cfg.made_from), sources.classes(cfg.made_from)
    chosen = _first_of_each_class(samples, cfg.per_class)
    names = _file_names(samples, classes, chosen, ".png" if cfg.quality is None else ".JPEG")
    recipe = _recipe(cfg, sources.fingerprint(cfg.made_from))
    for corruption in cfg.corruptions:
        _begin(folder / corruption, recipe)
        _forked[:] = [
            _Making(cfg, samples, chosen, names, folder / corruption, _clean_view(cfg, sources.config(cfg.made_from)))
        ]
        # Several processes with many threads each would be in each other's way.
        with threadpool_limits(1), mapper(workers) as run:
            made = run(_make_severities, range(len(chosen)))
            label = f"{cfg.folder_name} {corruption}"
            for _ in tqdm(made, label, len(chosen), unit="img", disable=not progress):
                pass


def _recipe(cfg: "CorruptedImages.Config", images: str) -> dict[str, Any]:
    """What the files depend on."""
    content = cfg.model_dump(mode="json", include={*cfg.made})
    content |= {"made_from": cfg.made_from, "images": images, "code_version": CODE_VERSION}
    return {**content, "fingerprint": fingerprint(content, 16)}


def _first_of_each_class(samples: ImageSet, per_class: int | None) -> list[int]:
    seen: Counter[int] = Counter()
    chosen = []
    for index, label in enumerate(samples.labels):
        seen[label] += 1
        if per_class is None or seen[label] <= per_class:
            chosen.append(index)
    return chosen


def _file_names(samples: ImageSet, classes: list[str], chosen: list[int], suffix: str) -> list[str]:
    """<class>/<file> of each image that is made; the file has the name of the clean one."""
    names = [
        f"{quote(classes[samples.labels[index]], safe=' ')}/{Path(samples.name(index)).stem}{suffix}"
        for index in chosen
    ]
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            f"found images that would be written to the same file: {shortened(repeated)}; expected names that differ "
            "in more than their folder and suffix; rename one of each in the set that this one is made from"
        )
    return names


def _begin(folder: Path, recipe: dict[str, Any]) -> None:
    """Take away what was made after another recipe; refuse files that were not made here."""
    path = folder / RECIPE
    if path.exists():
        if f'"{recipe["fingerprint"]}"' in path.read_text(errors="replace"):
            return
        log.info("%s was made after another recipe; it is made again", folder)
        remove_folder(folder)
    elif folder.is_dir() and any(folder.iterdir()):
        raise DataError(
            f"{folder} holds files without {RECIPE}, so they were not made here, and they are not the whole set; "
            "complete the download, or move the folder away to have the set made"
        )
    write_json(path, recipe)


def _clean_view(cfg: "CorruptedImages.Config", clean: Any) -> "View | None":
    """Bilinear, as the script's `Resize` is; the training view of the clean set may be another."""
    if cfg.source_crop == 1.0 and SOURCES[clean.source].side == cfg.image_size:
        return None
    from pipeline.data.transforms import eval_view  # imports torch: seconds, which small sets are spared

    augment = cfg.augment.model_copy(update={"interpolation": "bilinear"})
    return eval_view(cfg.model_copy(update={"augment": augment}), cfg.source_crop)


def _make_severities(place: int) -> None:
    """The files of one image, as far as they are absent."""
    job = _forked[0]
    name, corruption = job.names[place], job.folder.name
    paths = {severity: job.folder / str(severity) / name for severity in SEVERITIES}
    absent = {severity: path for severity, path in paths.items() if not _is_written(path)}
    if not absent:
        return
    clean = job.samples.image(job.chosen[place])
    picture = _as_picture(np.asarray(job.view(clean))) if job.view else clean
    for severity, path in absent.items():
        made = corrupt_picture(picture, corruption, severity, job.cfg.table, seed_of(name, corruption, severity))
        _save(made, path, job.cfg.quality)


def _as_picture(pixels: np.ndarray) -> Image.Image:
    """uint8 (C, H, W) -> a picture, grey with one channel."""
    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))


def _is_written(path: Path) -> bool:
    """Not so after a crash of the machine, which may leave an empty file."""
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def _save(picture: Image.Image, path: Path, quality: int | None) -> None:
    """Under its name only when it is complete. Not synced to the disk: millions of small files would take hours."""
    buffer = io.BytesIO()
    if quality is None:
        picture.save(buffer, "PNG")
    else:
        picture.save(buffer, "JPEG", quality=quality, optimize=True)
    temporary = draft_of(path)
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(buffer.getvalue())
        os.replace(temporary, path)
