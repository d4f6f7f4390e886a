"""Fashion-MNIST as published: four gzipped idx files. The subset in `fashion_mnist/` has the same layout."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from pipeline.core.errors import DataError
from pipeline.data.images.images import ArrayImages
from pipeline.data.samples import Split

SIDE = 28
IMAGES_MAGIC, LABELS_MAGIC = 2051, 2049
PREFIX = {"train": "train", "val": "t10k"}
CLASSES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]


# What is true of every article of a class, in the order of CLASSES.
ATTRIBUTES = {
    "worn on the feet": (5, 7, 9),
    "worn on the upper body": (0, 2, 3, 4, 6),
    "covers the legs": (1, 3),
    "long sleeves": (2, 4),
    "open at the front": (4, 6),
    "carried": (8,),
}


def read_fashion_attributes(folder: Path, split: str) -> Split:
    """The same images with attributes, which follow from their classes: bit i of a label is attribute i."""
    found = read_fashion_mnist(folder, split)
    bits = [sum(1 << bit for bit, owners in enumerate(ATTRIBUTES.values()) if label in owners) for label in range(10)]
    found.samples.labels = [bits[label] if label in range(10) else label for label in found.samples.labels]
    return Split(found.samples, list(ATTRIBUTES), found.problems)


def read_fashion_mnist(folder: Path, split: str) -> Split:
    """Images and labels of one split; val is the published test set."""
    files = [
        (folder / f"{PREFIX[split]}-images-idx3-ubyte.gz", IMAGES_MAGIC, (SIDE, SIDE)),
        (folder / f"{PREFIX[split]}-labels-idx1-ubyte.gz", LABELS_MAGIC, ()),
    ]
    arrays, problems = [], []
    for path, magic, shape in files:
        try:
            arrays.append(_read_idx(path, magic, shape))
        except DataError as error:
            problems.append(str(error))
    if not problems and len(arrays[0]) != len(arrays[1]):
        problems.append(
            f"{split}: found {len(arrays[0])} images and {len(arrays[1])} labels, expected one label for each image"
        )
    if problems:
        arrays = [np.zeros((0, SIDE, SIDE)), np.zeros(0)]
    return Split(ArrayImages(arrays[0], arrays[1].tolist(), split), list(CLASSES), problems)


def _read_idx(path: Path, magic: int, shape: tuple[int, ...]) -> np.ndarray:
    """The array of an idx file: magic number, count and shape as big-endian 32-bit numbers, then bytes."""
    if not path.is_file():
        raise DataError(f"{path.name}: not found")
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path.name}: truncated or damaged gzip file ({error})") from None
    header = np.frombuffer(content[: 4 * (2 + len(shape))], dtype=">u4", count=min(len(content) // 4, 2 + len(shape)))
    expected = (magic, *shape)
    found = (*header[:1].tolist(), *header[2:].tolist())
    if found != expected or len(header) < 2:
        raise DataError(f"{path.name}: found magic number and image shape {found}, expected {expected}")
    pixels = np.frombuffer(content, dtype=np.uint8, offset=header.nbytes)
    count = int(header[1])
    if pixels.size != count * int(np.prod(shape, dtype=int)):
        raise DataError(f"{path.name}: header says {count} entries, found {pixels.size} bytes after it")
    return pixels.reshape(count, *shape)
