"""A cheap stamp of a split: does a folder still hold the samples that were verified?

It covers what opening a split reads anyway: all labels, and all names of files or all pixels of arrays. Of files it
also has the sizes of a sample spread over the list, and the contents of a few of them. A million files cost as much as
a hundred.
"""

import hashlib

import numpy as np

from pipeline.config import Strict
from pipeline.data.samples import Samples

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


def take_stamp(samples: Samples) -> Stamp:
    """The stamp of samples that were just verified."""
    sample = [_look(samples, *chosen) for chosen in _chosen(samples)] if samples.has_files else []
    return Stamp(listing=_digest_of_listing(samples), sample=tuple(sample))


def differences(samples: Samples, stamp: Stamp) -> list[str]:
    """How these samples differ from those of the stamp; one line for each file of the sample that does."""
    if _digest_of_listing(samples) != stamp.listing:
        what = "file names" if samples.has_files else samples.contents
        return [f"found other {what} or labels than were verified"]
    if not samples.has_files:
        return []
    pairs = zip(_chosen(samples), stamp.sample, strict=True)
    return [line for chosen, known in pairs if (line := _difference(samples, *chosen, known))]


def _chosen(samples: Samples) -> list[tuple[int, bool]]:
    """Indices of the sample, spread evenly from the first file to the last, and whether the content is read."""
    spread = np.linspace(0, len(samples) - 1, min(NUM_SAMPLED, len(samples))).round().astype(int).tolist()
    return [(index, place % CONTENT_EVERY == 0) for place, index in enumerate(spread)]


def _look(samples: Samples, index: int, reads_content: bool) -> SampledFile:
    paths = samples.paths(index)
    sha256 = hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest() if reads_content else ""
    num_bytes = sum(path.stat().st_size for path in paths)
    return SampledFile(name=samples.name(index), num_bytes=num_bytes, sha256=sha256)


def _difference(samples: Samples, index: int, reads_content: bool, known: SampledFile) -> str:
    """What is wrong with one file; empty if nothing is."""
    try:
        found = _look(samples, index, reads_content)
    except OSError as error:
        return f"{known.name}: {error.strerror}"
    if found.num_bytes != known.num_bytes:
        return f"{known.name}: found {found.num_bytes} bytes, expected {known.num_bytes}"
    return "" if found == known else f"{known.name}: found other content than was verified"


def _digest_of_listing(samples: Samples) -> str:
    digest = hashlib.sha256()
    for part in samples.identity():
        digest.update(part)
    return digest.hexdigest()
