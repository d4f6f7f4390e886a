"""What a training step of a run takes: operations and bytes, counted without computing anything."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pipeline.core.registry import TASKS
from pipeline.core.trees import Tree, device_of, map_tree
from pipeline.engine.checkpoint import KEPT
from pipeline.methods.base import Batch, Method

if TYPE_CHECKING:
    from pipeline.engine.run import RunConfig

BATCH = 2  # the fewest images that mixup can pair; operations are per image
BYTES = 4  # weights and the two moments of AdamW are fp32


def count_operations(method: Method, inputs: Tree, targets: Tree, draw: Mapping[str, Tensor]) -> float:
    """Floating-point operations of the matrix products of a forward and a backward pass."""
    # The counter does not know the fused attention of a CPU, and would take it for nothing.
    attention = sdpa_kernel(SDPBackend.MATH) if device_of(inputs).type == "cpu" else nullcontext()
    with FlopCounterMode(display=False) as counter, attention:
        method(inputs, targets, draw).loss.backward()
    return float(counter.get_total_flops())


def step_cost(run: "RunConfig") -> dict[str, Any]:
    """Operations per image and the bytes that a run leaves on disk, by kind."""
    from pipeline.engine.loop import build_method

    with torch.device("meta"):
        method = build_method(run).train()
    weights, checkpoints = stored_bytes(run, method)
    gflop = _operations(run, method) / BATCH / 1e9
    return {"gflop_per_image": gflop, "weights_bytes": weights, "checkpoints_bytes": checkpoints}


def stored_bytes(run: "RunConfig", method: Method) -> tuple[int, int]:
    """What a run leaves on disk: weights, and checkpoints."""
    weights = BYTES * sum(value.numel() for value in method.state_dict().values())
    moments = 2 * BYTES * sum(p.numel() for p in method.parameters() if p.requires_grad)
    copies = 1 + bool(run.optim.ema_decay) + (run.optim.keep == "best")
    return weights, KEPT * (copies * weights + moments)


def _operations(run: "RunConfig", method: Method) -> float:
    """Count the operations of a step of BATCH images. All blocks of a ViT are alike, so two of them are enough.

    Not where maps are taken from the middle of it, or most blocks have windows: there all are counted.
    """
    encoder, is_dense = method.encoder, hasattr(method.encoder, "num_labels")
    blocks = () if is_dense else getattr(encoder, "blocks", ())
    inputs, targets = TASKS.get(run.task).example(run.data, BATCH)
    draw = method.draw_to_count(Batch(inputs, targets, torch.Generator()))
    if len(blocks) > 2:
        encoder.blocks = blocks[:2]
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        method.to_empty(device="cpu")
        batch = map_tree(fake.from_tensor, inputs), map_tree(fake.from_tensor, targets), draw
        counted = count_operations(method, *batch)
        if len(blocks) <= 2:
            return counted
        encoder.blocks = blocks[:1]
        return counted + (len(blocks) - 2) * (counted - count_operations(method, *batch))
