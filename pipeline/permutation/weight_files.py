"""Safetensors files read and written tensor by tensor: a checkpoint of any size takes the memory of two tensors.

The order of the tensors and the text of the header stay, so a file that goes there and back is the same byte for byte.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from pipeline.core.errors import CheckpointError
from pipeline.core.files import explained, require_space
from pipeline.permutation.new_files import new_file, refuse_existing

METADATA = "__metadata__"
CHUNK = 1 << 24  # bytes of a tensor that is only copied
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # permuting looks at no number, only at its size
Indices = Sequence[np.ndarray | None]
INDEX = ".safetensors.index.json"
PICKLES = (b"PK\x03\x04", b"\x80")


@dataclass(frozen=True)
class Entry:
    """One tensor: where it lies, counted from the first byte of data."""

    name: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class WeightFile:
    """The header of a safetensors file; `header` has its JSON in its own order."""

    path: Path
    header: dict[str, Any]
    data_start: int

    @property
    def metadata(self) -> dict[str, str]:
        return self.header.get(METADATA) or {}

    @property
    def entries(self) -> list[Entry]:
        """In the order in which they lie in the file."""
        found = [
            Entry(name, tuple(each["shape"]), *each["data_offsets"])
            for name, each in self.header.items()
            if name != METADATA
        ]
        return sorted(found, key=lambda entry: (entry.start, entry.end))

    def with_metadata(self, metadata: dict[str, str]) -> "WeightFile":
        """The same tensors under other metadata."""
        rest = {name: each for name, each in self.header.items() if name != METADATA}
        return replace(self, header={METADATA: metadata, **rest} if metadata else rest)

    def digest(self) -> str:
        """SHA-256 of the data, without the header."""
        found = hashlib.sha256()
        with self.path.open("rb") as file:
            file.seek(self.data_start)
            while piece := file.read(CHUNK):
                found.update(piece)
        return found.hexdigest()

    def array(self, entry: Entry, file: IO[bytes]) -> np.ndarray:
        """A tensor, as unsigned numbers of the size of its own."""
        size = (entry.end - entry.start) // max(math.prod(entry.shape), 1)
        if size not in WORDS:
            raise CheckpointError(f"{self.path}: numbers of {entry.name} are not whole bytes; expected a plain dtype")
        file.seek(self.data_start + entry.start)
        return np.frombuffer(file.read(entry.end - entry.start), WORDS[size]).reshape(entry.shape)

    def pieces(self, entry: Entry, file: IO[bytes], indices: Indices) -> Iterator[memoryview | bytes]:
        """The bytes of a tensor after its permutation."""
        if any(index is not None for index in indices):
            found = self.array(entry, file)
            for side, index in enumerate(indices):
                found = found if index is None else found.take(index, axis=side)
            yield np.ascontiguousarray(found).reshape(-1).view(np.uint8).data
            return
        file.seek(self.data_start + entry.start)
        for place in range(entry.start, entry.end, CHUNK):
            yield file.read(min(CHUNK, entry.end - place))


def open_weights(path: Path) -> WeightFile:
    """The header of a whole safetensors file; anything else is refused, and pickles are not opened."""
    try:
        with path.open("rb") as file:
            start, first = file.read(8), file.read(1)
            if first != b"{" and start.startswith(PICKLES):  # the length of a header may begin like a pickle
                raise CheckpointError(
                    f"{path} is a pickle, as torch.save writes it; expected safetensors: load its state dict elsewhere "
                    "and write it with safetensors.torch.save_file"
                )
            with safe_open(path, "np"):
                pass  # checks that names, shapes and places of tensors fit each other and the file
            (length,) = struct.unpack("<Q", start)
            header = json.loads(first + file.read(length - 1))
    except FileNotFoundError:
        raise CheckpointError(f"{path} not found; expected the weights of a model as safetensors") from None
    except (SafetensorError, ValueError, struct.error) as error:
        raise CheckpointError(f"{path} is damaged, or not safetensors ({error}); download or write it again") from None
    except IsADirectoryError:
        raise CheckpointError(f"{path} is a folder; expected a file, such as model.safetensors in it") from None
    return WeightFile(path, header, 8 + length)


def open_parts(path: Path) -> list[WeightFile]:
    """The one file, or all those that a `*.safetensors.index.json` of transformers names."""
    if not path.name.endswith(INDEX):
        return [open_weights(path)]
    try:
        found = json.loads(path.read_text())["weight_map"]
        names = sorted({*map(str, found.values())})
    except FileNotFoundError:
        raise CheckpointError(f"{path} not found; expected the index of a model in several files") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{path} is damaged, or no index of weights; download it again") from None
    # An index from somewhere else must not lead out of its folder.
    if outside := [name for name in names if Path(name).name != name]:
        raise CheckpointError(f"{path} names {outside[0]}; expected names of files in its own folder")
    parts = [open_weights(path.parent / name) for name in names]
    if {*found} != {entry.name for part in parts for entry in part.entries}:
        raise CheckpointError(f"{path} does not name the tensors of its files; download all of them again")
    return parts


def write_permuted(
    source: WeightFile,
    path: Path,
    indices: Mapping[str, Indices],
    metadata: dict[str, str],
    digest_as: str = "",
    mode: int = 0o666,
) -> None:
    """Write a file of the same tensors, each permuted by an index per side; None: the side stays.

    With `digest_as`, the metadata get the SHA-256 of the written data under this name.
    """
    refuse_existing(path)
    require_space(path.parent, source.path.stat().st_size, path.name)
    digest, unknown = hashlib.sha256(), {digest_as: "0" * 64} if digest_as else {}
    with source.path.open("rb") as origin, new_file(path, mode) as file, explained(path):
        file.write(encoded_header(source.with_metadata(metadata | unknown)))
        for entry in source.entries:
            for piece in source.pieces(entry, origin, indices[entry.name]):
                digest.update(piece)
                file.write(piece)
        if digest_as:
            file.seek(0)
            file.write(encoded_header(source.with_metadata(metadata | {digest_as: digest.hexdigest()})))


def encoded_header(weights: WeightFile) -> bytes:
    """As the library writes it: its length, compact JSON, spaces up to a multiple of eight."""
    text = json.dumps(weights.header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
