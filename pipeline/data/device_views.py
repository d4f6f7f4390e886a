"""The device's part of views: from what loader workers hand over (`staging.py`) to whole batches of images.

Everything runs on batches, and nothing waits for the device: what decides about sizes comes from the host.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pipeline.data.resizing import resize_batch
from pipeline.data.staging import Staged
from pipeline.data.view_operations import Colouring, operate
from pipeline.sizes import pair

if TYPE_CHECKING:
    from pipeline.data.classified import DataConfig

AT_ONCE = 2**24  # pixels on their way to the device: a set may be larger than the host's memory


class DeviceViews:
    """Completes the views of one data set on one device."""

    def __init__(self, data: "DataConfig", device: torch.device) -> None:
        self.device, self.size = device, pair(data.image_size)
        fill = torch.tensor([min(255, round(255 * value)) for value in data.mean], dtype=torch.uint8)
        self.how = Colouring(data.augment.interpolation, fill.to(device))
        self.store = torch.empty(0, data.channels, dtype=torch.uint8)

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
        cuts = staged.cuts.to(self.device, non_blocking=True)
        pixels = staged.pixels.to(self.device, non_blocking=True) if len(staged.pixels) else self.store
        outer, inner = staged.extents.tolist()
        images = resize_batch(pixels, cuts, (outer, inner), self.size, self.how.interpolation)
        return operate(images, staged.operations, self.how)


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
