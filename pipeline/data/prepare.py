"""Verify a data set once: every image is decoded, every count compared, every problem reported at once.

The manifest is written last and only for a set without problems: where it exists, the set was good.
It holds no times, so the same data gives the same bytes; fingerprints do not depend on the folder.
"""

import csv
import hashlib
import io
from collections import Counter
from pathlib import Path
from typing import get_args

from pipeline.config import shown
from pipeline.data.images import ImageSet, Split, SplitName, class_problems
from pipeline.data.inspection import Inspection, image_problems, inspect
from pipeline.data.manifest import MANIFEST, Manifest, SplitSummary, read_manifest, write_manifest
from pipeline.data.sources import LIST_HEADER, SOURCES, DataConfig, count_problems, data_error, read_split
from pipeline.data.stamp import take_stamp
from pipeline.errors import DataError
from pipeline.files import write_text


def prepare(cfg: DataConfig, folder: Path, out: Path, workers: int = 0, progress: bool = True) -> Manifest:
    """Verify the set in `folder`; write manifest.json and the file lists to `out`; return the manifest."""
    before = _taken_away(out / MANIFEST)
    if not folder.is_dir():
        raise data_error(cfg, folder, [f"folder {folder} not found"])
    splits = {split: read_split(cfg, folder, split) for split in get_args(SplitName)}
    problems = _layout_problems(cfg, splits)
    inspections = inspect(cfg.name, splits, workers, progress)
    for name, found in inspections.items():
        problems += image_problems(splits[name].images, found, SOURCES[cfg.source].side)
    if problems:
        raise data_error(cfg, folder, problems)
    manifest = _manifest(cfg, folder, splits, inspections)
    # The same data elsewhere: unchanged bytes, and so nothing that depends on them is out of date.
    if before and before == manifest.model_copy(update={"folder": before.folder}):
        manifest = before
    _write(cfg, out, splits, manifest)
    return manifest


def _taken_away(path: Path) -> Manifest | None:
    """The old manifest, if it can be read; a `prepare` that is killed or fails must not leave an old proof behind."""
    try:
        return read_manifest(path)
    except DataError:
        return None
    finally:
        path.unlink(missing_ok=True)


def _layout_problems(cfg: DataConfig, splits: dict[SplitName, Split]) -> list[str]:
    problems = [problem for split in splits.values() for problem in split.problems]
    for name, split in splits.items():
        problems += count_problems(cfg, name, split)
    return list(dict.fromkeys(problems + class_problems(splits)))


def _manifest(
    cfg: DataConfig,
    folder: Path,
    splits: dict[SplitName, Split],
    inspections: dict[SplitName, list[Inspection]],
) -> Manifest:
    described = {name: _describe(split.images, inspections[name]) for name, split in splits.items()}
    both = "".join(f"{name} {described[name].fingerprint}\n" for name in sorted(described))
    fingerprint = hashlib.sha256(both.encode()).hexdigest()
    return Manifest(name=cfg.name, source=cfg.source, folder=shown(folder), fingerprint=fingerprint, splits=described)


def _describe(images: ImageSet, inspections: list[Inspection]) -> SplitSummary:
    per_class = Counter(images.labels)
    widths, heights = zip(*(found.size for found in inspections), strict=True)
    return SplitSummary(
        count=len(images),
        classes=len(per_class),
        per_class_min=min(per_class.values()),
        per_class_max=max(per_class.values()),
        min_size=(min(widths), min(heights)),
        max_size=(max(widths), max(heights)),
        modes=dict(sorted(Counter(found.mode for found in inspections).items())),
        bytes=sum(found.num_bytes for found in inspections),
        fingerprint=_fingerprint(images, inspections),
        stamp=take_stamp(images),
    )


def _fingerprint(images: ImageSet, inspections: list[Inspection]) -> str:
    lines = sorted(
        f"{images.name(index)}\t{images.labels[index]}\t{found.digest}\n" for index, found in enumerate(inspections)
    )
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _write(cfg: DataConfig, out: Path, splits: dict[SplitName, Split], manifest: Manifest) -> None:
    if SOURCES[cfg.source].has_files:
        for name, split in splits.items():
            write_text(out / f"{name}.csv", _list_of_files(split.images))
    write_manifest(out / MANIFEST, manifest)


def _list_of_files(images: ImageSet) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(LIST_HEADER)
    writer.writerows((images.name(index), label) for index, label in enumerate(images.labels))
    return text.getvalue()
