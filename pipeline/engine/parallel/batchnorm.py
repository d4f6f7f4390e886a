"""BatchNorm in several processes, which must agree on the statistics that validation and the exported model use.

Norms of heads see one micro-batch of each process together, all of the same size (`SharedBatchNorm`). torch has this
only for GPUs: `nn.SyncBatchNorm` refuses tensors on a CPU. Here one piece of code serves both, so tests can run it.

Norms of an encoder see one micro-batch, as is usual where a CNN classifies: so they normalise the same for any number
of processes. Their running statistics are those of one process that sees all micro-batches in order
(`RunningStatistics`).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pipeline.core.dynamo import never_compiled
from pipeline.engine.parallel.distributed import World


def synchronised(method: nn.Module) -> nn.Module:
    """Let every BatchNorm2d of the heads see the images of all processes in training; tensors and names stay."""
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


class RunningStatistics:
    """Running means and variances of an encoder's norms, kept equal in all processes; one process leaves it to torch.

    A running value r becomes (1 - a) r + a s with the statistic s of each micro-batch and the momentum a. That is a
    sum, to which every process adds the terms of its own micro-batches: after each, the norms' buffers hold its s.
    A method calls its encoder once for a micro-batch.
    """

    def __init__(self, encoder: nn.Module, num_micro: int, world: World) -> None:
        """Before the model is compiled: it changes the momentum that is used in forward passes."""
        self.num_micro, self.world = num_micro, world
        found: list[Any] = [module for module in encoder.modules() if isinstance(module, _BatchNorm)]
        self.norms = [norm for norm in found if norm.track_running_stats] if world.size > 1 else []
        self.buffers = [value for norm in self.norms for value in (norm.running_mean, norm.running_var)]
        momenta = [norm.momentum for norm in self.norms for _ in range(2 * norm.num_features)]
        self.momentum = torch.tensor(momenta, device=world.device)  # of each value in the buffers
        for norm in self.norms:
            norm.momentum = 1.0  # its buffers then hold the statistics of the last micro-batch

    def begin(self) -> None:
        """Before the first micro-batch of an update."""
        if self.norms:
            self.total = (1 - self.momentum) ** self.num_micro * torch.cat(self.buffers) / self.world.size

    def add(self, micro: int) -> None:
        """After the forward pass of a micro-batch."""
        if self.norms:
            weight = self.momentum * (1 - self.momentum) ** (self.num_micro - 1 - micro)
            self.total += weight * torch.cat(self.buffers)

    def share(self) -> None:
        """After the last one: the buffers are those of all micro-batches."""
        if not self.norms:
            return
        total = self.world.sum(self.total)
        for buffer, value in zip(self.buffers, total.split([buffer.numel() for buffer in self.buffers]), strict=True):
            buffer.copy_(value)
        others = self.num_micro - self.num_micro // self.world.size
        for norm in self.norms:
            norm.num_batches_tracked.add_(others)
