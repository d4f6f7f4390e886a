"""The device's part of views: from what loader workers hand over (`staging.py`) to whole batches of images.

Everything runs on batches, and nothing waits for the device: what decides about sizes comes from the host.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pipeline.data.resizing import resize_batch
from pipeline.data.staging import Staged
from pipeline.data.view_operations import Colouring, operate
from pipeline.sizes import pair

if TYPE_CHECKING:
    from pipeline.data.classified import DataConfig


class DeviceViews:
    """Completes the views of one data set on one device."""

    def __init__(self, data: "DataConfig", device: torch.device) -> None:
        self.device, self.size = device, pair(data.image_size)
        fill = torch.tensor([min(255, round(255 * value)) for value in data.mean], dtype=torch.uint8)
        self.how = Colouring(data.augment.interpolation, fill.to(device))

        self.store = torch.empty(0, data.channels, dtype=torch.uint8)

    def keep(self, pixels: Tensor) -> None:
        """Pixels (N, C) of a set that lives on the device: batches that have none name places in these."""
        self.store = pixels.to(self.device)

    def apply(self, staged: Staged) -> Tensor:
        """A batch as it comes out of a loader, in host memory -> uint8 (B, C, H, W) on the device."""
        cuts = staged.cuts.to(self.device, non_blocking=True)
        pixels = staged.pixels.to(self.device, non_blocking=True) if len(staged.pixels) else self.store
        outer, inner = staged.extents.tolist()
        images = resize_batch(pixels, cuts, (outer, inner), self.size, self.how.interpolation)
        return operate(images, staged.operations, self.how)
