"""CIFAR-10 and CIFAR-100 as published: the binary version, the python version, or the archive of either.

The python version is a pickle, which can run any code when read: it is opened with an unpickler that knows
nothing but arrays of bytes. Checksums are not compared, so that subsets in the same format work.
"""

import os
import pickle
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.data.archives import extract
from pipeline.data.images import ArrayImages, Split
from pipeline.errors import DataError

SIDE = 32
PIXELS = 3 * SIDE * SIDE


@dataclass(frozen=True)
class Version:
    """One published form of the set: folder, archive, files of each split, and how to read a file."""

    folder: str
    archive: str
    files: dict[str, list[str]]
    read: Callable[[Path], tuple[np.ndarray, list[int]]]


def read_cifar10(folder: Path, split: str) -> Split:
    """CIFAR-10; val is the published test set."""
    return _read(folder, split, CIFAR10)


def read_cifar100(folder: Path, split: str) -> Split:
    """CIFAR-100 with fine labels; val is the published test set."""
    return _read(folder, split, CIFAR100)


def _read(folder: Path, split: str, versions: list[Version]) -> Split:
    pixels, labels, problems = [np.zeros((0, PIXELS), np.uint8)], [], []
    try:
        version = _find_version(folder, versions)
        files = version.files[split]
    except DataError as error:
        problems, files = [str(error)], []
    for name in files:
        try:
            batch_pixels, batch_labels = version.read(folder / version.folder / name)
            pixels.append(batch_pixels)
            labels.extend(batch_labels)
        except DataError as error:
            problems.append(f"{version.folder}/{name}: {error}")
    # Stored as three planes; Pillow wants the channels last.
    images = np.concatenate(pixels).reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return Split(ArrayImages(images, labels, split), problems=problems)


def _find_version(folder: Path, versions: list[Version]) -> Version:
    """The first version whose folder is there, else the first whose archive is, extracted."""
    for version in versions:
        if (folder / version.folder).is_dir():
            return version
    for version in versions:
        if (folder / version.archive).is_file():
            _extract(folder / version.archive, version.folder)
            return version
    wanted = ", ".join(name for version in versions for name in (version.folder, version.archive))
    raise DataError(f"found none of {wanted}")


def _extract(archive: Path, name: str) -> None:
    """Extract beside the archive; the folder appears under its name only when it is complete."""
    target = archive.parent / name
    scratch = None
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".extract-", dir=archive.parent))
        extract(archive, scratch)
        if not (scratch / name).is_dir():
            raise DataError(f"{archive.name}: found no folder {name} in it")
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


def _read_binary(path: Path, label_bytes: int) -> tuple[np.ndarray, list[int]]:
    """Records of `label_bytes` labels, the last of which counts, and the pixels."""
    if not path.is_file():
        raise DataError("found no such file")
    content = np.fromfile(path, dtype=np.uint8)
    record = label_bytes + PIXELS
    if content.size % record:
        raise DataError(f"found {content.size} bytes, expected a multiple of {record}: truncated")
    records = content.reshape(-1, record)
    return records[:, label_bytes:], records[:, label_bytes - 1].tolist()


def _read_python(path: Path, key: bytes) -> tuple[np.ndarray, list[int]]:
    """The published dict: b"data" is uint8 (count, 3072), `key` a list of labels."""
    batch = _unpickle(path)
    data, labels = (batch.get(b"data"), batch.get(key)) if isinstance(batch, dict) else (None, None)
    if not isinstance(data, _Array) or data.pixels.shape[1:] != (PIXELS,):
        raise DataError(f"found no b'data' that is a uint8 array of (count, {PIXELS})")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise DataError(f"found no {key!r} that is a list of whole numbers")
    if len(labels) != len(data.pixels):
        raise DataError(f"found {len(data.pixels)} images and {len(labels)} labels, expected as many")
    return data.pixels, labels


def _unpickle(path: Path) -> Any:
    if not path.is_file():
        raise DataError("found no such file")
    try:
        with path.open("rb") as file:
            return _ArrayUnpickler(file, encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle raises almost any kind
        raise DataError(f"truncated or damaged pickle ({error})") from None


class _Dtype:
    """Stands in for `numpy.dtype`: bytes, the only type of the published files."""

    def __init__(self, name: str | bytes, *_: object) -> None:
        if name not in ("u1", b"u1"):
            raise DataError(f"found an array of {name!r}, expected uint8")

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment mean nothing for bytes."""


class _Array:
    """Stands in for `numpy.ndarray` and what rebuilds it."""

    def __init__(self, *_: object) -> None:
        self.pixels = np.zeros(0, np.uint8)

    def __setstate__(self, state: tuple) -> None:
        _, shape, _, is_fortran, content = state
        self.pixels = np.frombuffer(content, np.uint8).reshape(shape, order="F" if is_fortran else "C")


def _from_buffer(content: bytes, dtype: _Dtype, shape: tuple[int, ...], order: str, *_: object) -> _Array:
    """Stands in for numpy's `_frombuffer`, by which protocol 5 spells arrays."""
    array = _Array()
    array.__setstate__((1, shape, dtype, order in ("F", b"F"), content))
    return array


def _latin1(text: str, encoding: str) -> bytes:
    """Stands in for `_codecs.encode`, by which protocol 2 spells bytes."""
    if encoding != "latin1":
        raise DataError(f"found bytes spelled in {encoding!r}, expected latin1")
    return text.encode("latin1")


class _ArrayUnpickler(pickle.Unpickler):
    """Looks names up in a fixed table: nothing is imported, and nothing outside this file is called."""

    STAND_INS = {
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy.core.numeric", "_frombuffer"): _from_buffer,
        ("numpy._core.numeric", "_frombuffer"): _from_buffer,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.STAND_INS:
            raise DataError(
                f"found the global {module}.{name}, expected numpy arrays only: this file could run code and "
                "was not read; delete it and download the set again, best in its binary version"
            )
        return self.STAND_INS[module, name]


BATCHES = [f"data_batch_{number}" for number in range(1, 6)]
CIFAR10 = [
    Version(
        folder="cifar-10-batches-bin",
        archive="cifar-10-binary.tar.gz",
        files={"train": [f"{batch}.bin" for batch in BATCHES], "val": ["test_batch.bin"]},
        read=lambda path: _read_binary(path, label_bytes=1),
    ),
    Version(
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        files={"train": BATCHES, "val": ["test_batch"]},
        read=lambda path: _read_python(path, key=b"labels"),
    ),
]
CIFAR100 = [
    Version(
        folder="cifar-100-binary",
        archive="cifar-100-binary.tar.gz",
        files={"train": ["train.bin"], "val": ["test.bin"]},
        # A coarse label, then the fine one.
        read=lambda path: _read_binary(path, label_bytes=2),
    ),
    Version(
        folder="cifar-100-python",
        archive="cifar-100-python.tar.gz",
        files={"train": ["train"], "val": ["test"]},
        read=lambda path: _read_python(path, key=b"fine_labels"),
    ),
]
