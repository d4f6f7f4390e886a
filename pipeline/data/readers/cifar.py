"""CIFAR-10 and CIFAR-100 in the published binary version: its folder, or its archive, which is extracted.

The python version is not read: it is a pickle, which can run any code when opened. Checksums are not compared, so that
subsets in the same format work.
"""

import os
import shutil
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.core.errors import DataError
from pipeline.data.images.images import ArrayImages
from pipeline.data.samples import Split
from pipeline.data.store.archives import extract

SIDE = 32
PIXELS = 3 * SIDE * SIDE


@dataclass(frozen=True)
class Release:
    """The binary version of one set, and the names by which its python version is recognised."""

    folder: str
    archive: str
    files: dict[str, list[str]]  # by split
    label_bytes: int  # of each record; the last one is the label
    names: str  # the file of class names, one in a line
    python: tuple[str, str]  # folder, archive


CIFAR10 = Release(
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    files={"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "val": ["test_batch.bin"]},
    label_bytes=1,
    names="batches.meta.txt",
    python=("cifar-10-batches-py", "cifar-10-python.tar.gz"),
)
CIFAR100 = Release(
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    files={"train": ["train.bin"], "val": ["test.bin"]},
    label_bytes=2,  # the coarse label, then the fine one
    names="fine_label_names.txt",
    python=("cifar-100-python", "cifar-100-python.tar.gz"),
)


def read_cifar10(folder: Path, split: str) -> Split:
    """CIFAR-10; val is the published test set."""
    return _read(folder, split, CIFAR10)


def read_cifar100(folder: Path, split: str) -> Split:
    """CIFAR-100 with fine labels; val is the published test set."""
    return _read(folder, split, CIFAR100)


def _read(folder: Path, split: str, release: Release) -> Split:
    pixels, labels, problems = [np.zeros((0, PIXELS), np.uint8)], [], []
    try:
        _find(folder, release)
        files = release.files[split]
    except DataError as error:
        problems, files = [str(error)], []
    for name in files:
        try:
            batch_pixels, batch_labels = _read_records(folder / release.folder / name, release.label_bytes)
            pixels.append(batch_pixels)
            labels.extend(batch_labels)
        except DataError as error:
            problems.append(f"{release.folder}/{name}: {error}")
    # Stored as three planes; Pillow expects the channels last.
    images = np.concatenate(pixels).reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return Split(ArrayImages(images, labels, split), _class_names(folder, release), problems)


def _class_names(folder: Path, release: Release) -> list[str]:
    """In the order of labels; a subset may come without the file."""
    path = folder / release.folder / release.names
    return path.read_text(encoding="utf-8").split() if path.is_file() else []


def _find(folder: Path, release: Release) -> None:
    """Make sure that the folder of the set exists, from its archive where that is all there is."""
    if (folder / release.folder).is_dir():
        return
    if (folder / release.archive).is_file():
        _extract(folder / release.archive, release.folder)
        return
    found = [name for name in release.python if (folder / name).exists()]
    if found:
        raise DataError(
            f"found {found[0]}, the python version, which is a pickle and is not read because it can run code; "
            f"expected the binary version: download {release.archive} into {folder}"
        )
    raise DataError(f"neither {release.folder} nor {release.archive} found")


def _extract(archive: Path, name: str) -> None:
    """Extract beside the archive; the folder appears under its name only when it is complete."""
    target = archive.parent / name
    scratch = None
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".extract-", dir=archive.parent))
        extract(archive, scratch)
        if not (scratch / name).is_dir():
            raise DataError(f"{archive.name}: folder {name} not found in it")
        _move(scratch / name, target)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive.name}: damaged or unsafe archive ({error}); download it again") from None
    except OSError as error:
        raise DataError(f"{archive.name}: cannot be extracted here ({error}); extract it by hand") from None
    finally:
        if scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except OSError:
        # Another process was faster: its folder is as complete as ours.
        if not target.is_dir():
            raise


def _read_records(path: Path, label_bytes: int) -> tuple[np.ndarray, list[int]]:
    """Records of `label_bytes` labels, the last of which counts, and the pixels."""
    if not path.is_file():
        raise DataError("not found")
    content = np.fromfile(path, dtype=np.uint8)
    record = label_bytes + PIXELS
    if content.size % record:
        raise DataError(f"found {content.size} bytes, expected a multiple of {record}: truncated")
    records = content.reshape(-1, record)
    return records[:, label_bytes:], records[:, label_bytes - 1].tolist()
