"""A function of trees of tensors, recorded once as a CUDA graph and replayed: one launch instead of hundreds.

A recording holds addresses, so arguments are copied to where those of the first call were. torch registers the
generator of the device with every recording, and a replay draws from the state that the generator has by then.
"""

import gc
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pipeline.core.trees import Tree, map_tree, tensors_of, to_device

log = logging.getLogger(__name__)

CALLED, MAX_RECORDINGS = 2, 12  # calls with the same sizes that are not yet recorded; sizes that ever are

Part = Callable[..., Any]  # of trees of tensors
Shapes = list[tuple[tuple[int, ...], torch.dtype]]


class Recording:
    """A part of a step with places for its arguments, and its CUDA graph once there is one.

    Before that it is called on the stream that is recorded later: autograd and cuBLAS keep things for the stream on
    which they were first used, and a recording may wait for no other.
    """

    def __init__(self, part: Part, arguments: tuple[Tree, ...], stream: torch.cuda.Stream | None) -> None:
        self.part, self.places, self.shapes = part, map_tree(torch.clone, arguments), shapes_of(arguments)
        self.stream = stream
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Any = None  # lies in the pool: the next replay of any recording there may change it

    def record(self, pool: Any) -> Any:
        """What the part computes in between lies in the pool, which all recordings of a step share; returns it."""
        graph, generator = torch.cuda.CUDAGraph(), torch.cuda.default_generators[torch.cuda.current_device()]
        # The outer stream comes back even if the recording fails. Other threads (of the loader, of NCCL) may go on:
        # only what this one does is watched for calls that a recording cannot hold.
        try:
            with (
                no_garbage_collection(),
                torch.cuda.stream(torch.cuda.current_stream()),
                torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"),
            ):
                self.result = self.part(*self.places)
        except RuntimeError:
            # A recording that failed leaves the generator as if it were still recorded: the state goes on in a new one.
            generator.graphsafe_set_state(generator.clone_state())
            raise
        self.graph = graph
        return graph.pool()

    def run(self, arguments: tuple[Tree, ...]) -> Any:
        """What the part returns."""
        for place, value in zip(tensors_of(self.places), tensors_of(arguments), strict=True):
            place.copy_(value, non_blocking=True)
        if self.graph is not None:
            self.graph.replay()
            return self.result
        return self.part(*self.places) if self.stream is None else self._called_on(self.stream)

    def _called_on(self, stream: torch.cuda.Stream) -> Any:
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            result = self.part(*self.places)
        current.wait_stream(stream)
        return result


class Replayed:
    """Calls functions of tensors on a device; once `is_on`, those of sizes that come again are recorded and replayed.

    All run on one stream, and share the memory of what they compute in between.
    """

    def __init__(self, what: str, device: torch.device) -> None:
        self.what, self.device, self.is_on = what, device, False
        self.num_calls, self.pool = Counter[Hashable](), None
        self.recordings: dict[Hashable, Recording] = {}

    def run(self, function: Part, sizes: Hashable, *arguments: Tree) -> Any:
        """What the function returns for arguments that the loader has pinned, or that are on the device.

        `sizes` stands for all that it depends on beside the values of tensors.
        """
        recording = self._recording(function, sizes, arguments) if self.is_on else None
        if recording:
            return map_tree(torch.clone, recording.run(arguments))
        return function(*to_device(arguments, self.device))

    def _recording(self, function: Part, sizes: Hashable, arguments: tuple[Tree, ...]) -> Recording | None:
        self.num_calls[sizes] += 1
        is_due = self.num_calls[sizes] > CALLED and len(self.recordings) < MAX_RECORDINGS
        if sizes not in self.recordings and is_due:
            recording = Recording(function, to_device(arguments, self.device), torch.cuda.Stream(self.device))
            try:
                self.pool = recording.record(self.pool)
            except RuntimeError as error:
                log.warning("%s are not recorded as CUDA graphs: %s", self.what, cause_of(error))
                self.is_on = False
                return None
            self.recordings[sizes] = recording
        return self.recordings.get(sizes)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A CUDA graph that Python happens to free while another one is recorded would make that recording fail."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def shapes_of(tree: Tree) -> Shapes:
    return [(tuple(tensor.shape), tensor.dtype) for tensor in tensors_of(tree)]


def cause_of(error: BaseException) -> str:
    """What went wrong first: that the recording could not be ended is only what followed."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error).partition("\n")[0]
