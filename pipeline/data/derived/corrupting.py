"""Making a set of corrupted images from the validation images of another one.

Each file is a function of the clean image, its name, the corruption and the severity: not of processes or their order.
A recipe beside the files says what they were made from, and a list has a digest of each. Making them again writes what
is missing or is not as it was made; files of another recipe are taken away first.
"""

import hashlib
import io
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from PIL import Image
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from pipeline.core.config import fingerprint
from pipeline.core.errors import DataError
from pipeline.core.files import digest, draft_of, explained, read_lines, remove_folder, write_json, write_text
from pipeline.data.derived.corruptions import corrupt_picture, seed_of
from pipeline.data.derived.severities import RECIPE, SEVERITIES
from pipeline.data.images.images import ImageSet
from pipeline.data.kind import Sources, kind_of, maker_code
from pipeline.data.samples import shortened
from pipeline.data.store.inspection import mapper

if TYPE_CHECKING:
    from pipeline.data.derived.corrupted import CorruptedImages
    from pipeline.data.images.transforms import View

log = logging.getLogger(__name__)
VERSION = 1  # raised to have sets made again for a reason that this code does not show, such as another SciPy
LIST = "files.jsonl"  # beside the recipe: one line for each clean image
Digests = dict[str, list[str]]  # name of a file -> SHA-256 at each severity


@dataclass(frozen=True)
class _PoolState:
    """What the processes of a pool need; they are forked, so nothing is copied to them."""

    cfg: "CorruptedImages.Config"
    samples: ImageSet
    chosen: list[int]
    names: list[str]
    folder: Path
    view: "View | None"  # none: clean images are as they are corrupted
    known: Digests


_forked: list[_PoolState] = []


def make_corrupted(cfg: "CorruptedImages.Config", folder: Path, sources: Sources, workers: int, progress: bool) -> None:
    """Write the files of a set, or of one of its corruptions, as far as they are absent or damaged."""
    assert cfg.made_from
    samples, classes = sources.open(cfg.made_from), sources.classes(cfg.made_from)
    chosen = _first_of_each_class(samples, cfg.per_class)
    names = _file_names(samples, classes, chosen, ".png" if cfg.quality is None else ".JPEG")
    recipe = _recipe(cfg, sources.fingerprint(cfg.made_from))
    view = _clean_view(cfg, sources.config(cfg.made_from))
    for corruption in cfg.corruptions:
        _begin(folder / corruption, recipe)
        known = _read_digests(folder / corruption / LIST)
        _forked[:] = [_PoolState(cfg, samples, chosen, names, folder / corruption, view, known)]
        # Several processes with many threads each would be in each other's way.
        with threadpool_limits(1), mapper(workers) as run:
            made = run(_make_severities, range(len(chosen)))
            label = f"{cfg.folder_name} {corruption}"
            bar = tqdm(made, label, len(chosen), unit="img", disable=not progress)
            _write_digests(folder / corruption / LIST, known, zip(names, bar, strict=True))


def _recipe(cfg: "CorruptedImages.Config", images: str) -> dict[str, Any]:
    """What the files depend on."""
    content = cfg.model_dump(mode="json", include={*cfg.made})
    content |= {"made_from": cfg.made_from, "images": images, "version": VERSION, "code": maker_code(cfg)}
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
        log.info("%s was made with another recipe; it is made again", folder)
        remove_folder(folder)
    elif folder.is_dir() and any(folder.iterdir()):
        raise DataError(
            f"{folder} holds files without {RECIPE}, so they were not made here, and they are not the whole set; "
            "complete the download, or move the folder away to have the set made"
        )
    write_json(path, recipe)


def _clean_view(cfg: "CorruptedImages.Config", clean: Any) -> "View | None":
    """Bilinear, as the script's `Resize` is; the training view of the clean set may be another."""
    kind: Any = kind_of(clean)
    if cfg.source_crop == 1.0 and kind.source.side == cfg.image_size:
        return None
    from pipeline.data.images.transforms import eval_view  # imports torch: seconds, which small sets are spared

    augment = cfg.augment.model_copy(update={"interpolation": "bilinear"})
    return eval_view(cfg.model_copy(update={"augment": augment}), cfg.source_crop)


def _read_digests(path: Path) -> Digests:
    """What was made so far. A file that a damaged list does not have is made again."""
    try:
        return {line["name"]: line["sha256"] for line in read_lines(path)}
    except (FileNotFoundError, DataError, KeyError, TypeError):
        return {}


def _write_digests(path: Path, known: Digests, made: Iterable[tuple[str, list[str]]]) -> None:
    """Add what is made while it is made: a process that is killed loses the last few lines."""
    write_text(path, "".join(_line(*entry) for entry in known.items()))
    with explained(path), path.open("a") as file:
        for name, digests in made:
            if known.get(name) != digests:
                file.write(_line(name, digests))


def _line(name: str, digests: list[str]) -> str:
    return json.dumps({"name": name, "sha256": digests}) + "\n"


def _make_severities(place: int) -> list[str]:
    """The files of one image, as far as they are not as they were made; returns the digest of each."""
    job = _forked[0]
    name, corruption = job.names[place], job.folder.name
    digests = dict(zip(SEVERITIES, job.known.get(name, ()), strict=False))
    paths = {severity: job.folder / str(severity) / name for severity in SEVERITIES}
    wrong = [severity for severity in SEVERITIES if digest(paths[severity]) != digests.get(severity, "not made yet")]
    if wrong:
        clean = job.samples.image(job.chosen[place])
        picture = _as_picture(np.asarray(job.view(clean))) if job.view else clean
        for severity in wrong:
            made = corrupt_picture(picture, corruption, severity, job.cfg.table, seed_of(name, corruption, severity))
            digests[severity] = _save(made, paths[severity], job.cfg.quality)
    return [digests[severity] for severity in SEVERITIES]


def _as_picture(pixels: np.ndarray) -> Image.Image:
    """uint8 (C, H, W) -> a picture, grey with one channel."""
    return Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))


def _save(picture: Image.Image, path: Path, quality: int | None) -> str:
    """Under its name only when it is complete; returns its digest.

    Not synced to the disk: millions of small files would take hours.
    """
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
    return hashlib.sha256(buffer.getvalue()).hexdigest()
