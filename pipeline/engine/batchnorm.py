"""BatchNorm over the images of all processes, so that several of them compute what one would with the whole batch.

torch has this for GPUs alone: `nn.SyncBatchNorm` refuses tensors on a CPU. Here one piece of code serves both, so tests
can run it. Statistics are those of one micro-batch in each process, all of the same size; micro-batches that are
accumulated have statistics of their own.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.dynamo import never_compiled


def synchronised(method: nn.Module) -> nn.Module:
    """Let every BatchNorm2d of the heads see the images of all processes in training; tensors and names stay.

    Those of an encoder keep to their micro-batch, as is usual where a CNN classifies: so they compute the same for any
    number of processes.
    """
    for norm in norms_of_heads(method):
        norm.__class__ = SharedBatchNorm  # in place: optimisers and averages hold its parameters
    return method


def norms_of_heads(method: nn.Module) -> list[nn.Module]:
    """Every BatchNorm2d that is no part of the encoder."""
    encoder = getattr(method, "encoder", None)
    own = set() if encoder is None else {*encoder.modules()}
    return [norm for norm in method.modules() if type(norm) is nn.BatchNorm2d and norm not in own]


class SharedBatchNorm(nn.BatchNorm2d):
    """nn.BatchNorm2d whose statistics in training are over all processes; its own where there is one."""

    def forward(self, input: Tensor) -> Tensor:
        num_processes = dist.get_world_size() if dist.is_initialized() else 1
        if not self.training or num_processes == 1:
            return super().forward(input)
        assert self.running_mean is not None and self.bias is not None
        values = input.to(self.running_mean.dtype)  # statistics of bf16 in bf16 would be wrong by a per cent
        mean = _summed(values.mean(dim=(0, 2, 3))) / num_processes
        centred = values - _per_channel(mean)
        variance = _summed(centred.square().mean(dim=(0, 2, 3))) / num_processes
        self._remember(mean.detach(), variance.detach(), num_processes * input[:, 0].numel())
        scale = _per_channel(self.weight * torch.rsqrt(variance + self.eps))
        return (centred * scale + _per_channel(self.bias)).to(input.dtype)

    def _remember(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """The running statistics of validation, as torch keeps them: of an unbiased variance."""
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)


@never_compiled
def _summed(values: Tensor) -> Tensor:
    """Over processes; a graph ends here, since what others send is not part of it."""
    return _Sum.apply(values)


class _Sum(torch.autograd.Function):
    """Sum over processes, of values and of their gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Tensor:
        total = gradients.clone()
        dist.all_reduce(total)
        return total


def _per_channel(values: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1)
