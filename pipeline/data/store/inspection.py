"""Decode every sample of a set once, in this process or in several."""

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageStat
from tqdm import tqdm

from pipeline.core.errors import DataError
from pipeline.core.image_files import depth_problem, is_turned, turned
from pipeline.core.processes import end_with_parent
from pipeline.data.samples import Samples, Split, SplitName

CHUNK = 64
Map = Callable[[Callable, Iterable], Iterable]


class ImageInspection(NamedTuple):
    """What decoding one image showed; `problem` is empty for a good one."""

    size: tuple[int, int]
    mode: str
    num_bytes: int
    digest: str
    problem: str = ""
    # Means of the pixels and of their squares, one per channel, from 0 to 255; empty unless asked for.
    mean: tuple[float, ...] = ()
    mean_square: tuple[float, ...] = ()
    pixels: str = ""  # a digest of size and pixels, as they were averaged
    is_turned: bool = False  # by EXIF; `size` is then that of the upright image if the set is read so


def inspect_samples(
    name: str, splits: Mapping[SplitName, Split], workers: int, progress: bool
) -> dict[SplitName, list[Any]]:
    """Decode the samples of all splits, of any kind."""
    found = {}
    for split, content in splits.items():
        with mapper(workers, content.samples) as run:
            looks = run(_look, range(len(content.samples)))
            bar = tqdm(looks, f"{name} {split}", len(content.samples), unit="sample", disable=not progress)
            found[split] = list(bar)
    return found


_forked: list[Samples] = []  # what processes of a pool look at; they are forked, so nothing is copied to them


def forked_samples() -> Samples:
    """In a process of a pool: what it looks at."""
    return _forked[0]


def _look(index: int) -> Any:
    return forked_samples().look(index)


def inspect_images(
    name: str, splits: Mapping[SplitName, Split], workers: int, progress: bool, measured_in: str = ""
) -> dict[SplitName, list[ImageInspection]]:
    """Decode the images of all splits; `measured_in` is the mode in which their pixels are averaged, if at all."""
    found = {}
    with mapper(workers) as run:
        for split, content in splits.items():
            images = _inspections(content.samples, run, measured_in)
            bar = tqdm(images, f"{name} {split}", len(content.samples), unit="img", disable=not progress)
            found[split] = list(bar)
    return found


@contextmanager
def mapper(workers: int, samples: Samples | None = None) -> Iterator[Map]:
    """`map`, in this process or in a pool; `samples` are what `_look` looks at."""
    _forked[:] = [samples] if samples is not None else []
    if workers == 0:
        yield map
        return
    # Forked, because a fresh interpreter would import torch again in every worker.
    with ProcessPoolExecutor(workers, get_context("fork"), end_with_parent) as pool:
        try:
            yield lambda function, items: pool.map(function, items, chunksize=CHUNK)
        except BrokenProcessPool:
            raise DataError(
                f"one of {workers} processes was killed, most likely for memory; use fewer workers"
            ) from None
        finally:
            # After Ctrl-C, a million images that wait are not decoded first.
            pool.shutdown(cancel_futures=True)


def _inspections(images: Any, run: Map, measured_in: str) -> Iterable[ImageInspection]:
    if images.has_files:
        paths = [str(images.path(index)) for index in range(len(images))]
        return run(partial(inspect_file, measured_in=measured_in, upright=images.upright), paths)
    return (_inspection(images.image(index), images.content(index), measured_in) for index in range(len(images)))


def inspect_file(path: str, measured_in: str = "", upright: bool = False) -> ImageInspection:
    try:
        content = Path(path).read_bytes()
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            return _inspection(turned(image) if upright else image, content, measured_in)._replace(
                is_turned=upright and is_turned(image)
            )
    except Exception as error:  # decoders raise almost any kind for a damaged file
        reason = str(error).replace(path, "").split("<_io.BytesIO")[0].strip()
        return ImageInspection((0, 0), "", 0, "", f"found an image that cannot be decoded ({reason})")


def _inspection(image: Image.Image, content: bytes, measured_in: str) -> ImageInspection:
    problem = depth_problem(image)
    measured = _measure(image.convert(measured_in)) if measured_in and not problem else {}
    digest = hashlib.sha256(content).hexdigest()
    return ImageInspection(image.size, image.mode, len(content), digest, problem, **measured)


def _measure(image: Image.Image) -> dict[str, Any]:
    found = ImageStat.Stat(image)
    both = zip(found.sum2, found.count, strict=True)
    pixels = hashlib.sha256(repr((image.size, image.mode)).encode() + image.tobytes()).hexdigest()
    return {
        "mean": tuple(found.mean),
        "mean_square": tuple(square / count for square, count in both),
        "pixels": pixels,
    }


def image_problems(images: Samples, inspections: Sequence[ImageInspection], side: int | None = None) -> list[str]:
    """One line for each image that cannot be used; `side` is that of every image, None where it varies."""
    problems = []
    for index, found in enumerate(inspections):
        if found.problem:
            problems.append(f"{images.name(index)}: {found.problem}")
        elif side and found.size != (side, side):
            width, height = found.size
            problems.append(f"{images.name(index)}: found {width}x{height} pixels, expected {side}x{side}")
    return problems
