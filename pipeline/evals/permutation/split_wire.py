"""Split learning in two processes, over a wire, against split learning in one (ST Sec. 5.3, Fig. 3).

The same few steps twice, with the released recipe; the server of the second time is a process of its own, which gets
nothing but what crosses the wire. `outputs_apart` and `weights_apart` are the largest difference over the largest
value, of the logits in training and of a test after it, and of the weights of both sides. `bytes_up` and `bytes_down`
are for each image of a step, headers included, as the wire counted them; `messages` are for a step. The precision is
stated here, and not the site's: it decides how many bytes there are. In float32, two processes may round differently.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.core.seeds import generator_for
from pipeline.engine.run import RunConfig
from pipeline.evals.base import COUNTED, EVALS, ROUNDING, EvalConfig, Evaluation, Outcome, Subject
from pipeline.evals.permutation.relative_difference import relative_difference
from pipeline.evals.permutation.split_learning import DOWN, UP, loss_on
from pipeline.methods.base import Batch
from pipeline.methods.permuted import PermutableConfig, rows_reason
from pipeline.permutation.protections import FeatureProtection
from pipeline.permutation.split import AnsweringServer, Client, SplitRecipe, split, train_step
from pipeline.permutation.wire import ServerPlan, Wire, server_process


@EVALS.register("split_wire")
class SplitWire(Evaluation):
    class Config(EvalConfig):
        name: Literal["split_wire"] = "split_wire"
        rows: bool = True
        """Whether the client permutes the rows of its tokens."""
        batch: int = Field(16, ge=1)
        """Images of a step."""
        steps: int = Field(4, ge=1)
        """Training steps."""
        precision: Literal["float32", "float64"] = "float64"
        """Precision of both sides and of the wire."""

        metrics: ClassVar[tuple[str, ...]] = (
            "outputs_apart",
            "weights_apart",
            "bytes_up",
            "bytes_down",
            "messages",
            "loss",
        )

    needs_pixels = True
    needs_train = True
    without_error = MappingProxyType(
        {
            "*_apart": ROUNDING,
            "bytes_*": COUNTED,
            "messages": COUNTED,
            "loss": "of the last step alone",
        }
    )
    cfg: Config

    def precision_name(self) -> str:
        return self.cfg.precision

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        run, method = subjects["model"], subjects["model"].method
        if run.task != "attributes" and (reason := super().reason_against(cfg, subjects)):
            return reason
        if run.model.family != "vit":
            return f"{run.model.arch} is not a ViT"
        if isinstance(method, PermutableConfig) and method.permutation.key == "used":
            return "its blocks are locked, and the server would need the key"
        return rows_reason(run.model) if isinstance(cfg, cls.Config) and cfg.rows else ""

    def compute(self, model: Subject) -> Outcome:
        data: Any = model.run.data
        encoder = copy.deepcopy(model.method.encoder).to(getattr(torch, self.cfg.precision)).eval()
        batches = self._train_batches(data)
        client, server = split(encoder, FeatureProtection(rows=self.cfg.rows))
        server.train_with(self._recipe, len(batches))
        outputs, _ = self._train(client, server, batches, data)
        outputs.append(self._test(client, server, batches[0]))
        weights = {**client.encoder.state_dict(), **server.state_dict()}

        client, blocks = split(encoder, FeatureProtection(rows=self.cfg.rows))
        with TemporaryDirectory() as folder:
            plan = self._plan(model.run, Path(folder), len(batches))
            save_file({name: value.cpu().contiguous() for name, value in blocks.state_dict().items()}, plan.weights)
            with server_process(plan) as remote:
                found, loss = self._train(client, remote, batches, data)
                crossed = _bytes_per_image(remote.wire, len(batches), sum(len(batch.images) for batch in batches))
                found.append(self._test(client, remote, batches[0]))
            learned = {**client.encoder.state_dict(), **load_file(plan.trained, str(self.world.device))}
        found_apart = {
            "outputs_apart": relative_difference(found, outputs),
            "weights_apart": relative_difference([learned[name] for name in weights], list(weights.values())),
        }
        return Outcome({**found_apart, **crossed, "loss": loss})

    def _train_batches(self, data: Any) -> list[Batch]:
        """Of the first train images, in the precision of the config."""
        count, dtype = min(self.cfg.steps * self.cfg.batch, data.num_train), getattr(torch, self.cfg.precision)
        found = self.batches(data, "train", range(count), self.cfg.batch)
        return [replace(batch, inputs=batch.images.to(dtype)) for batch in found]

    @property
    def _recipe(self) -> SplitRecipe:
        return SplitRecipe(epochs=1, batch=self.cfg.batch)

    def _plan(self, run: RunConfig, folder: Path, epoch_steps: int) -> ServerPlan:
        data: Any = run.data
        files = folder / "blocks.safetensors", folder / "trained.safetensors"
        return ServerPlan(run.model, data.image_size, *files, self._recipe, epoch_steps, str(self.world.device))

    def _train(
        self, client: Client, server: AnsweringServer, batches: list[Batch], data: Any
    ) -> tuple[list[Tensor], float]:
        """The logits of every step, and the loss of the last."""
        client.train_with(self._recipe, len(batches))
        generator, seen = generator_for("split_wire", self.cfg.seed), []

        def loss(logits: Tensor, targets: Tensor) -> Tensor:
            seen.append(logits.detach())
            return loss_on(data)(logits, targets)

        for batch in batches:
            value = train_step(client, server, batch.images, batch.targets, loss, generator)
        return seen, value.item()

    @torch.no_grad()
    def _test(self, client: Client, server: AnsweringServer, batch: Batch) -> Tensor:
        return client.eval()(batch.images, server, generator_for("split_wire", "tested", self.cfg.seed))


def _bytes_per_image(wire: Wire, num_steps: int, num_images: int) -> dict[str, float]:
    return {
        "bytes_up": sum(wire.num_bytes[kind] for kind in UP) / num_images,
        "bytes_down": sum(wire.num_bytes[kind] for kind in DOWN) / num_images,
        "messages": sum(wire.num_messages.values()) / num_steps,
    }
