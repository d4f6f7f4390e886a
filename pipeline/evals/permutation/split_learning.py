"""Split learning under one protection: what it costs in accuracy, and what the server recovers (ST Table 6, Figs 3, 7).

A model is split, trained on with the protection, and tested with it. Then the server attacks the validation images: an
inverter, which starts from the same model, learns from features of the train images. Images are seen as in validation;
the release crops and flips them in training.

`acc` is top-1, or the share of attributes that are right (with threshold 0; `acc_released`: 0.5). `fsim` compares the
features of the model before it was split, in place of the paper's face recogniser. `blind_psnr` is that of the mean of
the attacked images, which is known without any feature. `bytes_up` and `bytes_down` cross for each image of a step.
"""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from pipeline.core.seeds import generator_for, seed_everything
from pipeline.engine.run import RunConfig
from pipeline.evals.base import COUNTED, EVALS, EvalConfig, Indices, Outcome, Subject, spread
from pipeline.evals.parts import Arrays
from pipeline.evals.privacy.leakage import LeakageEvaluation, PictureColumn, draw_columns, pixels_of
from pipeline.methods.base import Batch
from pipeline.methods.multilabel import attribute_accuracy
from pipeline.models.patches import Encoder
from pipeline.permutation.protections import FeatureProtection
from pipeline.permutation.split import Client, Server, SplitRecipe, split, start_positions, train_step
from pipeline.privacy.inversion import METRICS, Attacker, InversionConfig, Inverter, compared
from pipeline.tasks.attributes import decoded

FILE = "inverted.png"
UP, DOWN = ("features", "output_gradients"), ("outputs", "feature_gradients")


@EVALS.register("split_learning")
class SplitLearning(LeakageEvaluation):
    class Config(EvalConfig):
        name: Literal["split_learning"] = "split_learning"
        feature_protection: FeatureProtection = FeatureProtection()
        """What the client does to images and tokens before the server sees them."""
        recipe: SplitRecipe = SplitRecipe()
        """How client and server train."""
        inversion: InversionConfig = InversionConfig()
        """How the attacker trains."""
        train_images: int | None = Field(None, ge=1)
        """Images of both trainings, spread evenly over train; null: all."""
        images: int | None = Field(None, ge=1)
        """Images that are attacked, spread evenly over val; null: all."""
        pictures: int = Field(5, ge=1, description="rows of the picture")

        metrics: ClassVar[tuple[str, ...]] = (
            "acc",
            "acc_released",
            *METRICS,
            "fsim",
            "blind_psnr",
            "bytes_up",
            "bytes_down",
        )

        files: ClassVar[tuple[str, ...]] = (FILE,)

    needs_pixels = True
    needs_train = True
    without_error = MappingProxyType({"bytes_*": COUNTED})
    cfg: Config

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        run = subjects["model"]
        if run.task == "attributes" or not (reason := super().reason_against(cfg, subjects)):
            model = run.model
            reason = "" if model.family == "vit" else f"{model.arch} is not a ViT"
            if not reason and model.table == "none":
                reason = f"model.pos_embed is {model.positions}: an inverter would not know where a patch belongs"
        return reason

    def precision_name(self) -> str:
        """That of the site: the client sends features, and no gradients."""
        return self.model_precision

    def compute(self, model: Subject) -> Outcome:
        data: Any = model.run.data
        encoder = copy.deepcopy(model.method.encoder).eval()
        client, server = split(encoder, self.cfg.feature_protection)
        trained = self.parts.once("victim", lambda: self._train(client, server, data))
        _restore(client, {name: trained[f"client.{name}"] for name in client.state_dict()})
        _restore(server, {name: trained[f"server.{name}"] for name in server.state_dict()})
        attacker = self._attacker(client, encoder, data)
        _restore(attacker.inverter, self.parts.once("inverter", lambda: self._attack(attacker, data)))
        values, picture = self._attacked(attacker, encoder, data)
        attacked = self.outcome(values, data, {FILE: picture}, self.outcome(self._test(client, server, data), data))
        crossed = {name: float(trained[name]) for name in ("bytes_up", "bytes_down")}
        reasons = {} if data.has_attributes else {"acc_released": "images have one class each, and no threshold"}
        return replace(attacked, metrics={**attacked.metrics, **crossed}, reasons=reasons)

    # The client and its server

    def _train(self, client: Client, server: Server, data: Any) -> Arrays:
        """The weights of both sides after the recipe, and the bytes that crossed for an image."""
        recipe, seed = self.cfg.recipe, self.cfg.seed
        steps = self._epoch_steps(data, recipe.batch)
        start_positions(client, recipe, generator_for("split", "positions", seed))
        client.train_with(recipe, steps)
        server.train_with(recipe, steps)
        training = Training(client, server)
        for epoch in self.parts.epochs("victim", recipe.epochs, training):
            generator = generator_for("split", "protection", seed, epoch)
            for batch in self._epoch("split", data, epoch, recipe.batch):
                train_step(client, server, batch.images, batch.targets, loss_on(data), generator)
                training.num_images += len(batch.images)
        crossed = {"bytes_up": UP, "bytes_down": DOWN}
        arrays = {
            name: np.asarray(sum(client.traffic[kind] for kind in kinds) / training.num_images)
            for name, kinds in crossed.items()
        }
        return arrays | _arrays("client.", client) | _arrays("server.", server)

    @torch.no_grad()
    def _test(self, client: Client, server: Server, data: Any) -> dict[str, list[Tensor]]:
        """Accuracy (%) of every validation image, with the protection that it is sent with."""
        generator = generator_for("split", "tested", self.cfg.seed)
        values: dict[str, list[Tensor]] = {}
        for batch in self.batches(data, batch=self.cfg.recipe.batch):
            logits = client.eval()(batch.images, server, generator).float()
            for name, right in _accuracy(logits, batch.targets, data).items():
                values.setdefault(name, []).append(right)
        return values

    # The attacker

    def _attacker(self, client: Client, encoder: Encoder, data: Any) -> Attacker:
        seed_everything("inverter", self.cfg.seed)
        inverter = Inverter(encoder, data.channels).to(self.world.device)
        return Attacker(client, inverter, self.cfg.inversion, data.mean, data.std, self.cfg.seed)

    def _attack(self, attacker: Attacker, data: Any) -> Arrays:
        """The weights of the inverter of the best epoch."""
        batch = self.cfg.inversion.batch

        def epoch(number: int) -> Iterator[Tensor]:
            for each in self._epoch("inversion", data, number, batch):
                yield pixels_of(each.images, data).float()

        left = self.parts.epochs("inverter", self.cfg.inversion.epochs, attacker)
        attacker.train(epoch, self._epoch_steps(data, batch), list(self._attacked_pixels(data)), left)
        return _arrays("", attacker.inverter)

    def _attacked_pixels(self, data: Any) -> Iterator[Tensor]:
        indices = spread(data.num_val, self.cfg.images)
        for batch in self.batches(data, indices=indices, batch=self.cfg.inversion.batch):
            yield pixels_of(batch.images, data).float()

    @torch.no_grad()
    def _attacked(self, attacker: Attacker, encoder: Encoder, data: Any) -> tuple[dict[str, list[Tensor]], bytes]:
        """What was recovered of each attacked image, and a picture of the first ones."""
        values: dict[str, list[Tensor]] = {}
        wanted = list(self._attacked_pixels(data))
        blind = torch.cat(wanted).mean(dim=0)

        def features(images: Tensor) -> Tensor:
            return encoder.forward_head(encoder.forward_features(attacker.seen((images + 1) / 2)), pre_logits=True)

        shown: list[Tensor] = []
        for number, pixels in enumerate(wanted):
            recovered = attacker.recover(pixels, number)
            found = compared(recovered, pixels, features)
            found["blind_psnr"] = compared(blind.expand_as(pixels), pixels)["psnr"]
            for name, each in found.items():
                values.setdefault(name, []).append(each)
            shown += recovered[: self.cfg.pictures - len(shown)]
        original, recovered = map(attacker.seen, (torch.cat(wanted)[: len(shown)], torch.stack(shown)))
        columns = [PictureColumn("original", original), PictureColumn("recovered", recovered, original)]
        return values, draw_columns(
            columns, data, slice(self.cfg.pictures), f"Protection: {self.cfg.feature_protection.words()}."
        )

    # Images

    def _epoch_steps(self, data: Any, batch: int) -> int:
        return max(1, len(spread(data.num_train, self.cfg.train_images)) // batch)

    def _epoch(self, purpose: str, data: Any, epoch: int, batch: int) -> Iterator[Batch]:
        """Whole batches of train images in an order of the epoch; one smaller batch where there are fewer images."""
        chosen = spread(data.num_train, self.cfg.train_images)
        generator = generator_for(purpose, "order", self.cfg.seed, epoch)
        order: Indices = chosen[torch.randperm(len(chosen), generator=generator).numpy()]
        yield from self.batches(data, "train", order[: self._epoch_steps(data, batch) * batch], batch)


@dataclass
class Training:
    """Both sides of split learning, with what they need to go on after a kill."""

    client: Client
    server: Server
    num_images: int = 0  # that crossed so far

    def state_dict(self) -> dict[str, Any]:
        sides = [(side.state_dict(), side.updates.state_dict()) for side in self._sides()]
        return {"sides": sides, "traffic": dict(self.client.traffic), "num_images": self.num_images}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for side, (weights, updates) in zip(self._sides(), state["sides"], strict=True):
            side.load_state_dict(weights)
            side.updates.load_state_dict(updates)
        self.client.traffic = Counter(state["traffic"])
        self.num_images = state["num_images"]

    def _sides(self) -> list[Any]:
        return [self.client, self.server]


def loss_on(data: Any) -> Any:
    """Cross-entropy over classes, or of each attribute."""

    def of_attributes(logits: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, decoded(labels, data.num_classes).to(logits.dtype))

    return of_attributes if data.has_attributes else F.cross_entropy


def _accuracy(logits: Tensor, labels: Tensor, data: Any) -> dict[str, Tensor]:
    """(B,) in per cent."""
    if not data.has_attributes:
        return {"acc": 100.0 * (logits.argmax(dim=1) == labels).double()}
    found: Any = attribute_accuracy(logits, decoded(labels, data.num_classes))
    return {"acc": found["accuracy"].values, "acc_released": found["accuracy_released"].values}


def _arrays(prefix: str, module: torch.nn.Module) -> Arrays:
    return {f"{prefix}{name}": value.cpu().numpy() for name, value in module.state_dict().items()}


def _restore(module: torch.nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    module.load_state_dict({name: torch.from_numpy(np.asarray(value)) for name, value in arrays.items()})
