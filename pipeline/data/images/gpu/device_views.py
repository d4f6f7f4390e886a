"""The device's part of views: from what loader workers hand over (`deferred.py`) to whole batches of images.

Everything runs on batches, and nothing waits for the device: what decides about sizes comes from the host.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pipeline.core.cuda_graph import Replayed
from pipeline.core.sizes import pair
from pipeline.core.trees import to_device
from pipeline.data.images.gpu.deferred import DeferredBatch
from pipeline.data.images.gpu.operation_draws import Counts, unpacked
from pipeline.data.images.gpu.resizing import resize_batch, taps_of
from pipeline.data.images.gpu.view_operations import Colouring, changes_for, operate

if TYPE_CHECKING:
    from pipeline.data.images.classified import DataConfig

AT_ONCE = 2**24  # pixels on their way to the device: a set may be larger than the host's memory


class DeviceViews:
    """Completes the views of one data set on one device."""

    def __init__(self, data: "DataConfig", device: torch.device) -> None:
        self.device, self.size = device, pair(data.image_size)
        fill = torch.tensor([min(255, round(255 * value)) for value in data.mean], dtype=torch.uint8)
        self.how = Colouring(data.augment.interpolation, fill.to(device))
        self.store = torch.empty(0, data.channels, dtype=torch.uint8)
        self.changes, self.taps_of, self.resize = changes_for(self.how, False), taps_of, resize_batch
        self.compiles = False
        self.replayed = Replayed("views", device)

    def keep(self, num_pixels: int, parts: Iterable[np.ndarray]) -> None:
        """Pixels (N, C) of a set that lives on the device, one part after the other: batches name places in these."""
        self.store, begin = torch.empty(num_pixels, self.store.shape[1], dtype=torch.uint8, device=self.device), 0
        for part in parts:
            for first in range(0, len(part), AT_ONCE):
                some = torch.from_numpy(np.array(part[first : first + AT_ONCE]))  # a copy: a cache is not to be written
                self.store[begin : begin + len(some)] = some.to(self.device)
                begin += len(some)

    @cached_property
    def stream(self) -> Any:
        """On which views run beside a step; one, because recordings share memory: validation's follow training's."""
        if self.device.type != "cuda":
            return None
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))  # a set that lives there has arrived
        return stream

    def prepare(self, records: bool, compiles: bool) -> None:
        """On a GPU, where a site wishes it."""
        self.replayed.is_on, self.compiles = records, compiles
        if compiles:
            self.changes = changes_for(self.how, True)
            self.taps_of, self.resize = torch.compile(taps_of), torch.compile(resize_batch)

    def complete(self, batch: DeferredBatch) -> Tensor:
        """A batch as it comes out of a loader, in host memory -> uint8 (B, C, H, W) on the device."""
        complete = partial(self._completed, batch.extent, batch.counts)
        if len(batch.pixels):
            return complete(*to_device((batch.cuts, batch.operations, batch.pixels), self.device))
        sizes = str((len(batch.cuts), batch.extent, batch.counts))
        return self.replayed.run(complete, sizes, batch.cuts, batch.operations)

    def _completed(
        self, extent: int, counts: Counts, cuts: Tensor, operations: Tensor, pixels: Tensor | None = None
    ) -> Tensor:
        """Tensors are on the device; without pixels they are those of a set that lives there."""
        lines = torch.arange(extent, device=self.device)
        if pixels is not None and self.compiles:
            for varying in (pixels, lines):  # else other lengths would be compiled when they first come
                torch._dynamo.maybe_mark_dynamic(varying, 0)
        taps = self.taps_of(cuts, max(self.size), self.how.interpolation)
        images = self.resize(self.store if pixels is None else pixels, cuts, taps, lines, self.size)
        return operate(images, unpacked(operations, counts), counts, self.changes)


class PrefetchToDevice:
    """Batches of a loader, each with its views completed while the step before it runs, on the views' own stream.

    Nothing in it is random, so that a step's own draws stay as they are.
    """

    def __init__(self, batches: Iterable[tuple[DeferredBatch, Any]], views: DeviceViews) -> None:
        self.batches, self.views = batches, views

    def __iter__(self) -> Iterator[tuple[Tensor, Any]]:
        batches = iter(self.batches)
        waiting = self._begin(batches)
        while waiting:
            following = self._begin(batches)
            images, targets, is_done = waiting
            if is_done:
                torch.cuda.current_stream(self.views.device).wait_event(is_done)
                images.record_stream(torch.cuda.current_stream(self.views.device))  # its memory is the step's now
            yield images, targets
            waiting = following

    def _begin(self, batches: Iterator[tuple[DeferredBatch, Any]]) -> tuple[Tensor, Any, Any] | None:
        """The next batch, not waited for; none at the end."""
        found = next(batches, None)
        if found is None:
            return None
        batch, targets = found
        stream = self.views.stream
        if stream is None:
            return self.views.complete(batch), targets, None
        with torch.cuda.stream(stream):
            images = self.views.complete(batch)
            return images, targets, stream.record_event()
