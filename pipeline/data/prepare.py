"""Verify a data set once: every image is decoded, every count compared, every problem reported at once.

The manifest is written last and only for a set without problems: where it is, the set was good.
It holds no times, so the same data gives the same bytes; fingerprints do not depend on the folder.
"""

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, get_args

from PIL import Image
from tqdm import tqdm

from pipeline.data.images import FileImages, ImageSet, Split, shortened
from pipeline.data.sources import LIST_HEADER, SOURCES, DataConfig, SplitName, count_problems, data_error
from pipeline.errors import DataError
from pipeline.files import write_json, write_text

MANIFEST = "manifest.json"
CHUNK = 64


class Inspection(NamedTuple):
    """What decoding one image showed; `problem` is empty for a good one."""

    size: tuple[int, int]
    mode: str
    num_bytes: int
    digest: str
    problem: str = ""


def prepare(cfg: DataConfig, folder: Path, out: Path, workers: int = 0, progress: bool = True) -> dict[str, Any]:
    """Verify the set in `folder`; write manifest.json and the file lists to `out`; return the manifest."""
    # First of all: a run that is killed or finds problems must not leave an older proof behind.
    (out / MANIFEST).unlink(missing_ok=True)
    if not folder.is_dir():
        raise data_error(cfg, folder, [f"found no folder {folder}"])
    splits = {split: SOURCES[cfg.source].read(folder, split) for split in get_args(SplitName)}
    problems = _layout_problems(cfg, splits)
    inspections = {}
    with _mapper(workers) as run:
        for name, split in splits.items():
            found = _inspect(split.images, run)
            bar = tqdm(found, f"{cfg.name} {name}", len(split.images), unit="img", disable=not progress)
            inspections[name] = list(bar)
            problems += _image_problems(cfg, split.images, inspections[name])
    if problems:
        raise data_error(cfg, folder, problems)
    manifest = _manifest(cfg, folder, splits, inspections)
    _write(cfg, out, splits, manifest)
    return manifest


def _layout_problems(cfg: DataConfig, splits: dict[str, Split]) -> list[str]:
    problems = [problem for split in splits.values() for problem in split.problems]
    for name, split in splits.items():
        problems += count_problems(cfg, name, split)
    train, val = (set(split.classes) for split in splits.values())
    for there, here, extra in (("train", "val", train - val), ("val", "train", val - train)):
        if train and val and extra:
            problems.append(f"found {len(extra)} classes in {there} but not in {here}: {shortened(sorted(extra))}")
    return list(dict.fromkeys(problems))


@contextmanager
def _mapper(workers: int) -> Iterator[Any]:
    """`map`, in this process or in a pool."""
    if workers == 0:
        yield map
        return
    # Forked, because a fresh interpreter would import torch again in every worker.
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        try:
            yield lambda function, items: pool.map(function, items, chunksize=CHUNK)
        except BrokenProcessPool:
            raise DataError(
                f"one of {workers} decoding processes was killed, most likely for memory; use fewer workers"
            ) from None
        finally:
            # After Ctrl-C, a million images that wait are not decoded first.
            pool.shutdown(cancel_futures=True)


def _inspect(images: ImageSet, run: Any) -> Iterable[Inspection]:
    if isinstance(images, FileImages):
        return run(_inspect_file, [str(images.path(index)) for index in range(len(images))])
    return (_inspect_array(images, index) for index in range(len(images)))


def _inspect_file(path: str) -> Inspection:
    try:
        content = Path(path).read_bytes()
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            return Inspection(image.size, image.mode, len(content), hashlib.sha256(content).hexdigest())
    except Exception as error:  # decoders raise almost any kind for a damaged file
        reason = str(error).replace(path, "").split("<_io.BytesIO")[0].strip()
        return Inspection((0, 0), "", 0, "", f"found an image that cannot be decoded ({reason})")


def _inspect_array(images: ImageSet, index: int) -> Inspection:
    image, content = images.image(index), images.content(index)
    return Inspection(image.size, image.mode, len(content), hashlib.sha256(content).hexdigest())


def _image_problems(cfg: DataConfig, images: ImageSet, inspections: list[Inspection]) -> list[str]:
    side = SOURCES[cfg.source].side
    problems = []
    for index, found in enumerate(inspections):
        if found.problem:
            problems.append(f"{images.name(index)}: {found.problem}")
        elif side and found.size != (side, side):
            width, height = found.size
            problems.append(f"{images.name(index)}: found {width}x{height} pixels, expected {side}x{side}")
    return problems


def _manifest(
    cfg: DataConfig, folder: Path, splits: dict[str, Split], inspections: dict[str, list[Inspection]]
) -> dict[str, Any]:
    described = {name: _describe(split.images, inspections[name]) for name, split in splits.items()}
    both = "".join(f"{name} {described[name]['fingerprint']}\n" for name in sorted(described))
    return {
        "name": cfg.name,
        "source": cfg.source,
        "folder": str(folder),
        "fingerprint": hashlib.sha256(both.encode()).hexdigest(),
        "splits": described,
        "config": cfg.model_dump(mode="json"),
    }


def _describe(images: ImageSet, inspections: list[Inspection]) -> dict[str, Any]:
    per_class = Counter(images.labels)
    widths, heights = zip(*(found.size for found in inspections), strict=True)
    return {
        "count": len(images),
        "classes": len(per_class),
        "per_class_min": min(per_class.values()),
        "per_class_max": max(per_class.values()),
        # (width, height), each over all images.
        "min_size": [min(widths), min(heights)],
        "max_size": [max(widths), max(heights)],
        "modes": dict(sorted(Counter(found.mode for found in inspections).items())),
        "bytes": sum(found.num_bytes for found in inspections),
        "fingerprint": _fingerprint(images, inspections),
    }


def _fingerprint(images: ImageSet, inspections: list[Inspection]) -> str:
    lines = sorted(
        f"{images.name(index)}\t{images.labels[index]}\t{found.digest}\n" for index, found in enumerate(inspections)
    )
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _write(cfg: DataConfig, out: Path, splits: dict[str, Split], manifest: dict[str, Any]) -> None:
    if SOURCES[cfg.source].has_files:
        for name, split in splits.items():
            write_text(out / f"{name}.csv", _list_of_files(split.images))
    write_json(out / MANIFEST, manifest)


def _list_of_files(images: ImageSet) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(LIST_HEADER)
    writer.writerows((images.name(index), label) for index, label in enumerate(images.labels))
    return text.getvalue()
