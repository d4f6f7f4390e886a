"""A method whose loss, or gradient, is not a number at given steps, and two processes that train it together."""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from forked import ForkedProcess
from tiny_runs import prepare_in, weights_of
from torch import Tensor

from pipeline.core.config import Layers
from pipeline.engine.loop import Trainer
from pipeline.engine.parallel.distributed import join_world, leave_world
from pipeline.engine.run import parse_run
from pipeline.engine.signals import StopRequest
from pipeline.methods.base import METHODS, Batch, Output
from pipeline.methods.supervised import Supervised
from pipeline.results import RunFolder
from pipeline.site import Site

TOTAL_STEPS = 18


class Unstable(Supervised):
    class Config(Supervised.Config):
        name: Literal["unstable"] = "unstable"
        steps: tuple[int, ...]
        where: Literal["loss", "gradient"] = "loss"
        rank: int = 0

    def draw(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        is_here = self.cfg.rank == int(os.environ.get("RANK", 0))
        return {"is_bad": torch.tensor(is_here and round(progress * TOTAL_STEPS) in self.cfg.steps)}

    def loss(self, images: Tensor, targets: Tensor, draw: Mapping[str, Tensor]) -> Output:
        out = super().loss(images, targets, draw)
        if self.cfg.where == "gradient":
            # The square root's slope at 0 is infinite, its value is not.
            zero = self.encoder.head.bias.sum() * 0
            return Output(out.loss + torch.where(draw["is_bad"], zero, zero + 1).sqrt(), {})
        return Output(out.loss + torch.where(draw["is_bad"], torch.nan, 0.0), {})


def train_together(config: dict, images: Path, results: Path, count: int = 2, data: Any = None, **site: str) -> None:
    """Train in processes of their own; each leaves its weights in rank<rank>.pt. `data`: of texts, not of images."""
    prepare_in(results, images, data)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = (count, port, config, images, results, site)
    children = [ForkedProcess(target=_train_as_rank, args=(rank, *arguments)) for rank in range(count)]
    for child in children:
        child.start()
    for child in children:
        child.join(300)  # a start on a busy machine takes minutes
        child.kill()
    assert [child.exitcode for child in children] == [0] * count


def _train_as_rank(rank: int, size: int, port: int, config: dict, images: Path, results: Path, site: dict) -> None:
    METHODS.register("unstable")(Unstable)
    places = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in places.items()})
    torch.set_num_threads(1)
    run, world = parse_run(Layers(("test", config))), join_world("cpu")
    trainer = Trainer(run, RunFolder(results, run.name), images, Site(device="cpu", **site), world, StopRequest())
    trainer.fit()
    torch.save({"num_skips": trainer.num_skips, **weights_of(trainer)}, results / f"rank{rank}.pt")
    leave_world(world)
