"""CUDA graphs: parts of a training step are recorded once and replayed, one launch instead of thousands.

A small model's step is otherwise bound by the host. A recording (`pipeline/core/cuda_graph.py`) holds addresses, so
all that it reads and writes keeps its place: weights, moments, averages, sums and meters are changed in place, and
gradients are those that the recording itself has allocated. Seeded before, a replay draws what the part would draw if
it were called.

The first updates of a process are called as they are: they compile the model and fill the optimiser's state. They are
ordinary steps of the training, as is the one in which a part is recorded. Where a recording is not possible the parts
are called as they are to the end, and one line of the log says why.
"""

import logging
import platform
from typing import Any

import torch

from pipeline.core.cuda_graph import Part, Recording, cause_of, shapes_of
from pipeline.core.trees import Tree
from pipeline.engine.parallel.batchnorm import norms_of_heads
from pipeline.engine.parallel.distributed import World
from pipeline.methods.base import Method
from pipeline.site import Site

log = logging.getLogger(__name__)

WARM_UP = 3  # updates that are called as they are


def recorder_for(site: Site, method: Method, world: World) -> "Recorder":
    """What the site asks for, where the method allows it."""
    is_gpu = world.device.type == "cuda"
    is_wanted = site.graphs == "on" or (site.graphs == "auto" and is_gpu and site.compile)
    why = _obstacle(site, method, world) if is_wanted else None
    if why:
        log.info("steps are not recorded as CUDA graphs: %s", why)
    return Recorder(is_wanted and why is None, is_gpu)


def _obstacle(site: Site, method: Method, world: World) -> str | None:
    name = method.cfg.name
    if method.compiled is not None:
        return f"shapes inside the loss of method {name} depend on values"
    if site.recompute:
        return "the site has recompute: true, and what is computed twice looks at the state of the generators"
    if world.size > 1 and norms_of_heads(method):
        return f"BatchNorm of method {name} talks to other processes within the forward pass"
    if site.graphs == "auto" and len({*world.gather(platform.node())}) > 1:
        return "the processes are on several nodes, and there DDP sends gradients during the backward pass"
    return None


class Recorder:
    """Calls the parts of a step, or replays what was recorded of them. On a CPU nothing is ever recorded."""

    def __init__(self, is_on: bool, is_gpu: bool) -> None:
        self.is_on, self.is_gpu = is_on, is_gpu
        # The same to the end, even if recording is given up: how gradients meet, and where rates are read from.
        self.replaces_ddp, self.reads_rates = is_on, is_on and is_gpu
        self.recordings: dict[Part, Recording] = {}
        self.num_updates = 0
        self.stream: torch.cuda.Stream | None = None
        self.pool: Any = None

    def run(self, part: Part, *arguments: Tree) -> None:
        """The effect of `part(*arguments)`."""
        if self.is_on and part not in self.recordings:
            self.stream = self.stream or (torch.cuda.Stream() if self.is_gpu else None)
            self.recordings[part] = Recording(part, arguments, self.stream)
        if self.is_on:
            self._prepare(self.recordings[part], arguments)
        # Asked again: it may have been given up just now.
        if self.is_on:
            self.recordings[part].run(arguments)
        else:
            part(*arguments)

    @property
    def num_recorded(self) -> int:
        """CUDA graphs that a step consists of now."""
        return sum(recording.graph is not None for recording in self.recordings.values())

    def updated(self) -> None:
        """An update is over."""
        self.num_updates += 1

    def _prepare(self, recording: "Recording", arguments: tuple[Tree, ...]) -> None:
        found = shapes_of(arguments)
        if found != recording.shapes:
            self._give_up(f"a batch has other shapes than the first one: {found}, not {recording.shapes}")
        elif self.is_gpu and recording.graph is None and self.num_updates >= WARM_UP:
            try:
                self.pool = recording.record(self.pool)
                log.info("%s is recorded as a CUDA graph", getattr(recording.part, "__qualname__", "the update"))
            except RuntimeError as error:  # such as a part that waits for the device
                self._give_up(cause_of(error))

    def _give_up(self, why: str) -> None:
        log.warning("steps are no longer recorded as CUDA graphs: %s", why)
        self.is_on = False
        self.recordings.clear()
