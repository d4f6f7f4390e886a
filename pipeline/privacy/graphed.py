"""A function of one tensor, recorded as a CUDA graph: an attack repeats the same step thousands of times.

Launched one by one, the small kernels of a step leave the GPU waiting for the host most of the time.
"""

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UPS = 3
Step = Callable[[Tensor], tuple[Tensor, ...]]


def graphed(step: Step, example: Tensor) -> Step:
    """The same function of tensors like the example; on a CPU, the function itself."""
    if example.device.type != "cuda":
        return step
    static = example.detach().clone()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # libraries set themselves up in their first calls, which a graph must not record
        for _ in range(WARM_UPS):
            step(static)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(static)

    def replay(values: Tensor) -> tuple[Tensor, ...]:
        static.copy_(values)
        graph.replay()
        return tuple(each.clone() for each in found)

    return replay
