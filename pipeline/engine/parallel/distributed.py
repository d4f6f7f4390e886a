"""One process or many from the same code: rank, device, and the few collective operations the loop needs."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

TIMEOUT_S = 600  # for a collective operation: after this, a process that does not come is taken for lost
PIECE_NUMEL = 2**24  # numbers that are sent at once: 64 MiB of gradients, which fills any network


@dataclass(frozen=True)
class World:
    """This process among its peers."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def mean(self, values: Tensor) -> Tensor:
        """Mean over processes."""
        return self.sum(values) / self.size

    def sum(self, values: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their means over processes, in a few large pieces."""
        if self.size == 1:
            return
        for piece in _pieces(tensors):
            flat = torch.cat([tensor.flatten() for tensor in piece]).div_(self.size)
            dist.all_reduce(flat)
            for tensor, mean in zip(piece, flat.split([tensor.numel() for tensor in piece]), strict=True):
                tensor.copy_(mean.view_as(tensor))

    def gather(self, value: Any) -> list[Any]:
        """The plain value of every process, in the order of ranks."""
        if self.size == 1:
            return [value]
        found = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def any(self, flag: bool) -> bool:
        """Whether the flag is raised in any process; all must ask at the same step."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=self.device)))

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


def _pieces(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """In order, as many together as PIECE_NUMEL allows, and at least one."""
    piece: list[Tensor] = []
    for tensor in tensors:
        if piece and sum(map(torch.numel, piece)) + tensor.numel() > PIECE_NUMEL:
            yield piece
            piece = []
        piece.append(tensor)
    if piece:
        yield piece


def join_world(device: str = "auto") -> World:
    """Join the peers that RANK, WORLD_SIZE and MASTER_ADDR (torchrun's variables) describe; alone without them."""
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    chosen = device_of(device)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if size > 1:
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S))
    return World(rank, size, chosen)


def device_of(device: str) -> torch.device:
    """The device that a site means for this process: auto, cpu or cuda."""
    has_gpu = torch.cuda.is_available() if device == "auto" else device == "cuda"
    if not has_gpu:
        return torch.device("cpu")
    # A cluster may show each process its own GPU alone.
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % max(1, torch.cuda.device_count()))


def is_lost_peer(error: Exception) -> bool:
    """Whether a process failed because another one is gone: the same may succeed with all of them."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def leave_world(world: World) -> None:
    if world.size > 1:
        dist.destroy_process_group()
