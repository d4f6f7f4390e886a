"""The stamp of a split: does a folder still hold the samples that were verified?

Whoever opens a split compares what is cheap: all labels, and all names of files or all pixels of arrays; of files also
the sizes of a sample spread over the list, and the content of one file in each folder, so that swapped folders are
noticed. `Freshness` compares the contents of all files, unless there are too many, when one of them was touched.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from pipeline.core.config import Strict
from pipeline.core.files import stat_stamp
from pipeline.data.samples import Samples

NUM_SAMPLED = 64
CONTENT_EVERY = 8
MOST_FOLDERS = 2000  # of which a file is read; of more folders, that many spread over all of them
MOST_FILES = 150_000  # of a set whose files are all looked at: Tiny ImageNet has 110,000, ImageNet 1.3 million


class SampledFile(Strict):
    """One file of the sample; `sha256` is empty where only its size is compared."""

    name: str
    num_bytes: int
    sha256: str


class Stamp(Strict):
    """`listing` is a digest of labels and names, or of labels and pixels; `sample` is empty without files.

    `contents` is a digest of all files; it is empty without files, for too many of them, and in older manifests.
    """

    listing: str
    sample: tuple[SampledFile, ...]
    contents: str = ""


def take_stamp(samples: Samples) -> Stamp:
    """The stamp of samples that were just verified."""
    sample = [_look(samples, *chosen) for chosen in _choose(samples)] if samples.has_files else []
    contents = _digest_of_contents(samples) if is_read_whole(samples) else ""
    return Stamp(listing=_digest_of_listing(samples), sample=tuple(sample), contents=contents)


def is_read_whole(samples: Samples) -> bool:
    """Whether these are files that can all be looked at."""
    return samples.has_files and len(samples) <= MOST_FILES


def state_of(samples: Samples) -> str:
    """A digest of sizes, times and inodes of all files: another one if any of them was written or replaced."""
    stamps = []
    for index in range(len(samples)):
        for path in samples.paths(index):
            with suppress(FileNotFoundError):  # which is another state, too
                stamps.append([index, *stat_stamp(path)])
    return hashlib.sha256(repr(stamps).encode()).hexdigest()


def differences(samples: Samples, stamp: Stamp) -> list[str]:
    """How these samples differ from those of the stamp; one line for each file of the sample that does."""
    if _digest_of_listing(samples) != stamp.listing:
        what = "file names" if samples.has_files else samples.contents
        return [f"found other {what} or labels than were verified"]
    if not samples.has_files:
        return []
    known = {file.name: file for file in stamp.sample}  # a manifest from before has fewer
    found = [(index, known[name]) for index, _ in _choose(samples) if (name := samples.name(index)) in known]
    return [line for index, file in found if (line := _difference(samples, index, bool(file.sha256), file))]


def content_differences(samples: Samples, stamp: Stamp) -> list[str]:
    """Whether any file has another content than was verified: all of them are read."""
    try:
        is_same = stamp.contents in ("", _digest_of_contents(samples))
    except OSError as error:
        return [f"{error.filename}: {error.strerror}"]
    return [] if is_same else ["found a file with another content than was verified"]


def _choose(samples: Samples) -> list[tuple[int, bool]]:
    """Indices of the sample and whether the content is read: some from the first file to the last, one of a folder."""
    spread = _spread(range(len(samples)), NUM_SAMPLED)
    reads_content = {index: place % CONTENT_EVERY == 0 for place, index in enumerate(spread)}
    reads_content |= dict.fromkeys(_spread(samples.first_of_folders(), MOST_FOLDERS), True)
    return sorted(reads_content.items())


def _spread(items: Sequence[int], most: int) -> list[int]:
    places = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[place] for place in places.tolist()]


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


def _digest_of_contents(samples: Samples) -> str:
    digest = hashlib.sha256()
    for index in range(len(samples)):
        for path in samples.paths(index):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _digest_of_listing(samples: Samples) -> str:
    digest = hashlib.sha256()
    for part in samples.identity():
        digest.update(part)
    return digest.hexdigest()
