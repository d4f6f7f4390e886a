"""Views of images completed on a GPU: all that the rest of the project uses of this package.

Without it everything works, with views that loader workers complete. `DataKind.deferred` defers the views of a kind
that can be, and `pipeline/engine/batches.py` decides where they are completed.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any, ClassVar

import torch

from pipeline.data.images.gpu.deferred import defer_view as defer_view
from pipeline.data.images.gpu.device_views import DeviceViews, PrefetchToDevice
from pipeline.data.images.gpu.residence import ResidentImages, move_if_small
from pipeline.data.samples import SplitName
from pipeline.data.store.cache import CachedImages
from pipeline.data.store.manifest import Manifest

Samples = Mapping[SplitName, Any]


class Completion:
    """Complete the deferred views of one data set on one device. Its splits share pixels, a stream and recordings."""

    # Share of the GPU's free memory that a set may take to live there.
    free_share: ClassVar[float] = 0.2

    def __init__(self, data: Any, device: torch.device) -> None:
        self.data, self.views = data, DeviceViews(data, device)
        self.is_resident = False  # whether its images live on the device

    def suited(self, samples: Any) -> Any:
        """Samples as deferred views take them."""
        if isinstance(samples, CachedImages):
            samples = copy(samples)  # others may show them as images
            samples.gives_arrays = True
        return samples

    def move_if_small(self, splits: Samples, manifest: Manifest, threads: int) -> Samples:
        """The samples of all splits of the set, on the device if they may live there."""
        found = move_if_small(self.data, splits, manifest, self.views, threads, self.free_share)
        self.is_resident = any(isinstance(samples, ResidentImages) for samples in found)
        return dict(zip(splits, found, strict=True))

    def prepare(self, records: bool, compiles: bool) -> None:
        """Record or compile what is done on a GPU, where a site asks for it."""
        self.views.prepare(records, compiles)

    def prefetch(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Batches of a loader, each completed on the device while the one before it is computed."""
        return PrefetchToDevice(batches, self.views)
