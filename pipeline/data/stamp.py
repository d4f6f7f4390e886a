"""A cheap stamp of a split: does a folder still hold the images that were verified?

It covers what opening a split reads anyway: all labels, and all names of files or all pixels of arrays. Of files it
also has the sizes of a sample spread over the list, and the contents of a few of them. A million files cost as much as
a hundred.
"""

import hashlib

import numpy as np

from pipeline.config import Strict
from pipeline.data.images import FileImages, ImageSet

NUM_SAMPLED = 64
CONTENT_EVERY = 8


class SampledFile(Strict):
    """One file of the sample; `sha256` is empty where only its size is compared."""

    name: str
    num_bytes: int
    sha256: str


class Stamp(Strict):
    """`listing` is a digest of labels and names, or of labels and pixels; `sample` is empty without files."""

    listing: str
    sample: tuple[SampledFile, ...]


def take_stamp(images: ImageSet) -> Stamp:
    """The stamp of images that were just verified."""
    sample = [_look(images, *chosen) for chosen in _chosen(images)] if isinstance(images, FileImages) else []
    return Stamp(listing=_digest_of_listing(images), sample=tuple(sample))


def differences(images: ImageSet, stamp: Stamp) -> list[str]:
    """How these images differ from those of the stamp; one line for each file of the sample that does."""
    if _digest_of_listing(images) != stamp.listing:
        what = "file names or labels" if isinstance(images, FileImages) else "pixels or labels"
        return [f"found other {what} than were verified"]
    if not isinstance(images, FileImages):
        return []
    pairs = zip(_chosen(images), stamp.sample, strict=True)
    return [line for chosen, known in pairs if (line := _difference(images, *chosen, known))]


def _chosen(images: FileImages) -> list[tuple[int, bool]]:
    """Indices of the sample, spread evenly from the first file to the last, and whether the content is read."""
    spread = np.linspace(0, len(images) - 1, min(NUM_SAMPLED, len(images))).round().astype(int).tolist()
    return [(index, place % CONTENT_EVERY == 0) for place, index in enumerate(spread)]


def _look(images: FileImages, index: int, reads_content: bool) -> SampledFile:
    path = images.path(index)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest() if reads_content else ""
    return SampledFile(name=images.name(index), num_bytes=path.stat().st_size, sha256=sha256)


def _difference(images: FileImages, index: int, reads_content: bool, known: SampledFile) -> str:
    """What is wrong with one file; empty if nothing is."""
    try:
        found = _look(images, index, reads_content)
    except OSError as error:
        return f"{known.name}: {error.strerror}"
    if found.num_bytes != known.num_bytes:
        return f"{known.name}: found {found.num_bytes} bytes, expected {known.num_bytes}"
    return "" if found == known else f"{known.name}: found other content than was verified"


def _digest_of_listing(images: ImageSet) -> str:
    digest = hashlib.sha256(np.asarray(images.labels, dtype="<i8").tobytes())
    digest.update(images.listing())
    return digest.hexdigest()
