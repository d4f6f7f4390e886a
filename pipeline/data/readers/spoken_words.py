"""Spoken words that are part of this project: clips of Speech Commands, packed into one file; `spoken_words/` has them.

The file is xz. Its first line is JSON, a row for each recording: name, samples, largest sample, and the published list
that names it, if any. Then come the samples, one byte each, so that the largest of a recording is 127. Read, they are
WAV files in the published layout, which is then read like any other.
"""

import json
import lzma
from functools import lru_cache
from pathlib import Path

import numpy as np

from pipeline.data.audio.clips import Clips, PackedRecordings, as_wav
from pipeline.data.readers.speech_commands import NOISE, Choice, ClipLists, chosen
from pipeline.data.samples import Split, SplitName

FILE = "clips.xz"
LARGEST = 127


def read_spoken_words(folder: Path, split: SplitName, choice: Choice) -> Split:
    path = folder / FILE
    try:
        files, lists = _unpacked(path, path.stat().st_mtime_ns)
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        reason = f"truncated or damaged ({error})" if path.is_file() else "not found"
        nothing = PackedRecordings({})
        return Split(Clips(nothing, [], nothing), problems=[f"{FILE}: {reason}"])
    noise = [name for name in files if name.startswith(NOISE)]
    found = ClipLists([name for name in files if not name.startswith(NOISE)], lists, noise)
    return chosen(found, split, choice, lambda names: PackedRecordings({name: files[name] for name in names}))


@lru_cache(maxsize=1)
def _unpacked(path: Path, changed: int) -> tuple[dict[str, bytes], dict[str, list[str]]]:
    """WAV files by name, and names by list; a second split of the set finds them in memory."""
    header, _, packed = lzma.decompress(path.read_bytes()).partition(b"\n")
    rows, levels = json.loads(header), np.frombuffer(packed, dtype=np.int8)
    if sum(length for _, length, _, _ in rows) != len(levels):
        raise ValueError(f"found {len(levels)} samples, its header promises {sum(row[1] for row in rows)}")
    files, start = {}, 0
    for name, length, peak, _ in rows:
        wave = np.rint(levels[start : start + length] * (peak / LARGEST))
        files[name] = as_wav(wave.clip(max=np.iinfo(np.int16).max))
        start += length
    lists = {part: [name for name, _, _, listed in rows if listed == part] for part in ("validation", "testing")}
    return files, lists
