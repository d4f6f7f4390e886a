"""Quick bounds instead of a plan, which counts operations for a minute: bytes on disk, and the least time on a CPU."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.core.config import Layers
from pipeline.core.sizes import pair
from pipeline.models.architectures import TEXT
from pipeline.plan.device import matmul_gflop_per_s
from pipeline.plan.estimate import images_left
from pipeline.study.resolve.entries import Graph, RunEntry

LEAST_SEEN = 0.25  # a method that masks may look at a quarter of the patches
CNN_STRIDE = 32  # a network without patches applies its last weights this often along an image, earlier ones more often


@dataclass(frozen=True)
class RoughCosts:
    """Rough bounds for several runs together."""

    num_bytes: float  # about, of weights and checkpoints
    least_gflop: float  # of training steps

    def least_cpu_hours(self) -> float:
        """No training step is faster than matrix products of the same number of operations."""
        return self.least_gflop / matmul_gflop_per_s() / 3600


@dataclass(frozen=True)
class _Step:
    """Rough cost of a step of one run."""

    num_bytes: int
    least_gflop_per_image: float


def rough(graph: Graph, names: Iterable[str]) -> RoughCosts:
    """Runs of one method and model count alike, whatever else differs."""
    steps: dict[tuple[str, str], _Step] = {}
    num_bytes = gflop = 0.0
    for name in names:
        run = graph.runs[name]
        kind = run.method, run.config["model"]["name"]
        if kind not in steps:
            steps[kind] = _step(run)
        num_bytes += steps[kind].num_bytes
        gflop += images_left(graph, name) * steps[kind].least_gflop_per_image
    return RoughCosts(num_bytes, gflop)


def _step(entry: RunEntry) -> _Step:
    """A model without numbers tells its size; each weight of a ViT meets each patch that is looked at, or each word."""
    import torch

    from pipeline.engine.loop import build_method
    from pipeline.engine.run import parse_run
    from pipeline.plan.operations import stored_bytes

    run = parse_run(Layers(("the plan", entry.config)))
    with torch.device("meta"):
        method = build_method(run)
    # Words are looked up in their tables.
    tables = sum(part.weight.numel() for part in method.encoder.modules() if isinstance(part, torch.nn.Embedding))
    num_weights = sum(parameter.numel() for parameter in method.encoder.parameters()) - tables
    patches = getattr(method.encoder, "patch_embed", None) if run.model.family == "vit" else None
    stride = 1 if run.model.family in TEXT else CNN_STRIDE
    places = patches.num_patches if patches else math.prod(pair(run.data.input_size)) / stride**2
    # Two operations a weight forward, four backward.
    return _Step(sum(stored_bytes(run, method)), 6 * num_weights * places * LEAST_SEEN / 1e9)
