"""Memory in which loader workers hand over pixels, mapped by all processes before workers start.

A tensor that a worker sends otherwise lies in memory of its own, which the receiver has to ask for, map, and read page
by page for the first time: 16 ms for the 32 MB of a batch of 256 photographs, and 6 ms to copy them; here 1 and 3 ms.
"""

import logging
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_start_method
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

log = logging.getLogger(__name__)

_numbers = count()
_memories: WeakValueDictionary[int, "Handover"] = WeakValueDictionary()  # of this process, by their numbers


@dataclass
class _WorkerPlaces:
    """The places of this process, which is a worker; it fills them in turn."""

    number: int
    places: np.ndarray  # uint8 (places, bytes)
    first: int  # byte of the memory
    num_filled: int = 0


_mine: list[_WorkerPlaces] = []  # one at the most


class Handover:
    """For each worker a place for every batch that it may have ready, and one for the batch that is being read.

    A worker begins a batch when its loader has been asked for the one after that which lay in the same place.
    """

    def __init__(self, workers: int, places: int, num_bytes: int) -> None:
        # Pages that are never written take no memory.
        self.bytes = np.frombuffer(mmap.mmap(-1, workers * places * num_bytes), dtype=np.uint8)
        self.places = self.bytes.reshape(workers, places, num_bytes)
        self.number = next(_numbers)
        _memories[self.number] = self

    def begin(self, worker: int) -> None:
        """To be called in a worker."""
        places = self.places[worker]
        _mine[:] = [_WorkerPlaces(self.number, places, worker * places.size)]

    def reduce(self, tensor: Tensor) -> Any:
        """How a worker sends a tensor that lies in one of its places: where it is. None for any other tensor."""
        mine = _mine[0]
        begin = tensor.data_ptr() - mine.places.ctypes.data
        if not (0 <= begin < mine.places.size and tensor.dtype == torch.uint8 and tensor.is_contiguous()):
            return None
        return _received, (mine.number, mine.first + begin, tuple(tensor.shape))


def handover_for(workers: int, ahead: int, num_bytes: int) -> Handover | None:
    """Where pixels go to a GPU, from workers that are forks of this process; none where memory cannot be had."""
    if not (workers and num_bytes and is_wanted() and get_start_method() == "fork"):
        return None
    try:
        return Handover(workers, ahead + 1, num_bytes)
    except OSError as error:
        log.warning("loader workers hand over pixels one batch at a time, which is slower: %s", error)
        return None


def is_wanted() -> bool:
    return torch.cuda.is_available()


def concatenate(parts: Sequence[np.ndarray]) -> Tensor:
    """Arrays (n, C), one after the other; in a worker that hands over, in its next place."""
    length, channels = sum(map(len, parts)), parts[0].shape[1]
    if not (length and _mine and length * channels <= _mine[0].places.shape[1]):
        return torch.from_numpy(np.concatenate(parts))
    mine = _mine[0]
    place = mine.places[mine.num_filled % len(mine.places)]
    mine.num_filled += 1
    found = place[: length * channels].reshape(length, channels)
    np.concatenate(parts, out=found)
    return torch.from_numpy(found)


def _received(number: int, begin: int, shape: tuple[int, ...]) -> Tensor:
    memory = _memories[number].bytes
    return torch.from_numpy(memory[begin : begin + int(np.prod(shape))].reshape(shape))
