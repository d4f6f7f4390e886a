"""The device's part of views: from what loader workers hand over (`staging.py`) to whole batches of images.

Everything runs on batches, and nothing waits for the device: what decides about sizes comes from the host.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pipeline.data.operation_draws import Operations
from pipeline.data.resizing import resize_batch
from pipeline.data.staging import Staged
from pipeline.data.view_operations import Colouring, operate
from pipeline.recording import Recording, cause_of
from pipeline.sizes import pair
from pipeline.trees import to_device

if TYPE_CHECKING:
    from pipeline.data.classified import DataConfig

log = logging.getLogger(__name__)

CALLED, MAX_RECORDINGS = 2, 12  # batches of the same sizes that are not yet recorded; sizes that ever are
AT_ONCE = 2**24  # pixels on their way to the device: a set may be larger than the host's memory


class DeviceViews:
    """Completes the views of one data set on one device."""

    def __init__(self, data: "DataConfig", device: torch.device) -> None:
        self.device, self.size = device, pair(data.image_size)
        fill = torch.tensor([min(255, round(255 * value)) for value in data.mean], dtype=torch.uint8)
        self.how = Colouring(data.augment.interpolation, fill.to(device))
        self.store = torch.empty(0, data.channels, dtype=torch.uint8)
        # On a GPU, batches whose sizes come again are recorded as CUDA graphs, if the site wishes it.
        self.records, self.num_seen, self.pool = False, Counter[str](), None
        self.recordings: dict[str, Recording] = {}

    def keep(self, num_pixels: int, parts: Iterable[np.ndarray]) -> None:
        """Pixels (N, C) of a set that lives on the device, one part after the other: batches name places in these."""
        self.store, begin = torch.empty(num_pixels, self.store.shape[1], dtype=torch.uint8, device=self.device), 0
        for part in parts:
            for first in range(0, len(part), AT_ONCE):
                some = torch.from_numpy(np.array(part[first : first + AT_ONCE]))  # a copy: a cache is not to be written
                self.store[begin : begin + len(some)] = some.to(self.device)
                begin += len(some)

    def apply(self, staged: Staged) -> Tensor:
        """A batch as it comes out of a loader, in host memory -> uint8 (B, C, H, W) on the device."""
        complete = partial(self._completed, staged.extents.tolist(), staged.operations.counts.tolist())
        arguments = staged.cuts, staged.operations
        if len(staged.pixels):
            return complete(*to_device((*arguments, staged.pixels), self.device))
        recording = self._recording(complete, staged) if self.records else None
        return recording.run(arguments).clone() if recording else complete(*to_device(arguments, self.device))

    def _completed(
        self, extents: list[int], counts: list[list[int]], cuts: Tensor, operations: Operations, pixels: Any = None
    ) -> Tensor:
        """All but the first two is on the device."""
        outer, inner = extents
        pixels = self.store if pixels is None else pixels
        images = resize_batch(pixels, cuts, (outer, inner), self.size, self.how.interpolation)
        return operate(images, operations, counts, self.how)

    def _recording(self, complete: Any, staged: Staged) -> Recording | None:
        """Of batches with these sizes, of a set that lives on the device, as soon as such batches have come often."""
        sizes = str((staged.extents.tolist(), staged.operations.counts.tolist(), staged.cuts.shape))
        self.num_seen[sizes] += 1
        if sizes not in self.recordings and self.num_seen[sizes] > CALLED and len(self.recordings) < MAX_RECORDINGS:
            arguments = to_device((staged.cuts, staged.operations), self.device)
            recording = Recording(complete, arguments, torch.cuda.Stream(self.device))
            try:
                self.pool = recording.record(self.pool)
            except RuntimeError as error:
                log.warning("views are not recorded as CUDA graphs: %s", cause_of(error))
                self.records = False
                return None
            self.recordings[sizes] = recording
        return self.recordings.get(sizes)


class Ahead:
    """Batches of a loader, each with its views completed while the step before it runs, on a stream of its own.

    Nothing in it is random, so that a step's own draws stay as they are.
    """

    def __init__(self, batches: Iterable[tuple[Staged, Any]], views: DeviceViews) -> None:
        self.batches, self.views = batches, views

    def __iter__(self) -> Iterator[tuple[Tensor, Any]]:
        batches = iter(self.batches)
        waiting = self._begun(batches)
        while waiting:
            following = self._begun(batches)
            images, targets, is_done = waiting
            if is_done:
                torch.cuda.current_stream(self.views.device).wait_event(is_done)
                images.record_stream(torch.cuda.current_stream(self.views.device))  # its memory is the step's now
            yield images, targets
            waiting = following

    def _begun(self, batches: Iterator[tuple[Staged, Any]]) -> tuple[Tensor, Any, Any] | None:
        """The next batch, not waited for; none at the end."""
        found = next(batches, None)
        if found is None:
            return None
        staged, targets = found
        if self.stream is None:
            return self.views.apply(staged), targets, None
        with torch.cuda.stream(self.stream):
            images = self.views.apply(staged)
            return images, targets, self.stream.record_event()

    @cached_property
    def stream(self) -> Any:
        if self.views.device.type != "cuda":
            return None
        stream = torch.cuda.Stream(self.views.device)
        stream.wait_stream(torch.cuda.current_stream(self.views.device))  # a set that lives there has arrived
        return stream
