"""Spoken clips of one split: recordings of a second or less, and silent clips that are no recording.

A recording is a WAV file as Speech Commands has them: 16 kHz, one channel, 16 bits. A shorter one is followed by zeros.
Samples of a train split also have background noise, which their views are mixed with.
"""

import hashlib
import io
import wave
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.core.errors import DataError
from pipeline.data.samples import Files, Labelled, Samples

RATE = 16_000  # samples in a second
LENGTH = RATE  # of a clip
WIDTH = 2  # bytes of a sample
FULL_SCALE = 32768  # waves are int16, a model sees values from -1 to 1
SILENT = "_silence_"


class Clip(NamedTuple):
    """A decoded sample: int16 (LENGTH,), its label, and the noise that a training view may add; none in val."""

    wave: np.ndarray
    label: int
    noise: tuple[np.ndarray, ...]


class ClipInspection(NamedTuple):
    """What decoding one clip showed; `length` is that of the recording, a silent clip has none."""

    num_bytes: int
    digest: str
    problem: str = ""
    length: int | None = None


class Recordings(Samples):
    """WAV files by name, of any length: the clips of a set, or its noise."""

    contents = "sounds"

    def __getitem__(self, index: int) -> np.ndarray:
        return decoded_wav(self.content(index))


class RecordedFiles(Files, Recordings):
    """Files below a folder."""

    def identity(self) -> Iterable[bytes]:
        return [self.listing()]


class PackedRecordings(Recordings):
    """In memory."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._names, self._contents = [*files], [*files.values()]

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        return self._names[index]

    def content(self, index: int) -> bytes:
        return self._contents[index]

    def identity(self) -> Iterable[bytes]:
        return "\n".join(self._names).encode(), *self._contents


class Clips(Labelled):
    """`recorded` clips first, then silent ones up to the number of labels."""

    contents = "sounds"

    def __init__(self, recorded: Recordings, labels: Sequence[int], noise: Recordings) -> None:
        self.recorded, self.labels, self.noise = recorded, [*labels], noise

    def __getitem__(self, index: int) -> Clip:
        return Clip(self.wave(index), self.labels[index], self.noises)

    def wave(self, index: int) -> np.ndarray:
        """int16 (LENGTH,)."""
        if self._is_silent(index):
            return np.zeros(LENGTH, dtype=np.int16)
        try:
            return padded(decoded_clip(self.content(index)))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self.name(index)}: {error}; run `python -m pipeline prepare` on the data set again: it lists every "
                "damaged file"
            ) from None

    @cached_property
    def noises(self) -> tuple[np.ndarray, ...]:
        return tuple(self.noise[index] for index in range(len(self.noise)))

    def name(self, index: int) -> str:
        if self._is_silent(index):
            return f"{SILENT}/{index - len(self.recorded):05d}"
        return self.recorded.name(index)

    def content(self, index: int) -> bytes:
        return b"" if self._is_silent(index) else self.recorded.content(index)

    def listing(self) -> bytes:
        return b"".join(self.recorded.identity())

    def identity(self) -> Iterable[bytes | memoryview]:
        """Whole noise files: there are few, and every training view may have a part of any."""
        yield from super().identity()
        yield self.noise_digest.encode()

    @cached_property
    def noise_digest(self) -> str:
        files = ((self.noise.name(index), self.noise.content(index)) for index in range(len(self.noise)))
        lines = [f"{name}\t{hashlib.sha256(content).hexdigest()}\n" for name, content in files]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def look(self, index: int) -> ClipInspection:
        if self._is_silent(index):
            return ClipInspection(0, hashlib.sha256(b"").hexdigest())
        try:
            content = self.content(index)
            length = len(decoded_clip(content))
        except (OSError, ValueError) as error:
            return ClipInspection(0, "", str(error))
        return ClipInspection(len(content), hashlib.sha256(content).hexdigest(), length=length)

    def noise_problems(self) -> list[str]:
        """One line for each noise file that cannot be used."""
        problems = []
        for index in range(len(self.noise)):
            try:
                length = len(self.noise[index])
                found = f"found {length / RATE:.4g} s, expected {LENGTH / RATE:g} s or more" if length < LENGTH else ""
            except (OSError, ValueError) as error:
                found = str(error)
            problems += [f"{self.noise.name(index)}: {found}"] if found else []
        return problems

    def preload(self) -> None:
        self.recorded.preload()
        _ = self.noises

    def _is_silent(self, index: int) -> bool:
        return index >= len(self.recorded)


class ClipFiles(Clips):
    """The same, of files; a silent clip has none."""

    has_files = True

    def paths(self, index: int) -> tuple[Path, ...]:
        return () if self._is_silent(index) else self.recorded.paths(index)

    def first_of_folders(self) -> list[int]:
        return self.recorded.first_of_folders()


def decoded_wav(content: bytes) -> np.ndarray:
    """The samples of a WAV file, int16; ValueError where it is not what Speech Commands has."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            found = file.getframerate(), file.getnchannels(), 8 * file.getsampwidth()
            promised, data = file.getnframes(), file.readframes(file.getnframes())
    except (wave.Error, EOFError, RuntimeError) as error:  # the last is for sizes of chunks that cannot be
        raise ValueError(f"found no readable WAV file ({str(error) or 'it ends too early'})") from None
    if found != (RATE, 1, 8 * WIDTH):
        rate, channels, bits = found
        raise ValueError(
            f"found {rate} Hz, {channels} channels, {bits} bits, expected {RATE} Hz, 1 channel, {8 * WIDTH} bits"
        )
    if len(data) != promised * WIDTH:
        raise ValueError(f"found {len(data) // WIDTH} samples, its header promises {promised}: the file is truncated")
    if not promised:
        raise ValueError("found no samples in it")
    return np.frombuffer(data, dtype="<i2").astype(np.int16)


def decoded_clip(content: bytes) -> np.ndarray:
    """The same, of one second at most."""
    samples = decoded_wav(content)
    if len(samples) > LENGTH:
        raise ValueError(f"found {len(samples) / RATE:.4g} s, expected {LENGTH / RATE:g} s at most; cut it")
    return samples


def padded(samples: np.ndarray) -> np.ndarray:
    """Zeros at the end."""
    return np.pad(samples, (0, LENGTH - len(samples)))


def as_wav(samples: np.ndarray) -> bytes:
    """A WAV file of int16 samples."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(WIDTH)
        file.setframerate(RATE)
        file.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()
