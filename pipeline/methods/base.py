"""What a training method is. One file, one config class, `@METHODS.register("name")`, nothing else to edit.

A method never touches files, ranks or MLflow; the engine never names a method. Randomness and everything that
depends on time is drawn in `draw`, as tensors; `loss` is then a pure function of tensors, so it compiles into one
graph, runs under DDP, and gives the same numbers for any number of processes.

One word per idea, and the papers' symbols for it:

| word            | MJP     | meaning                                                       |
|-----------------|---------|---------------------------------------------------------------|
| shuffle_ratio   | gamma   | share of patches chosen for the jigsaw shuffle                |
| shuffled        | m~      | (B, N) bool: the patches that were chosen                     |
| order           | Alg. 1  | (B, N) for each slot the patch that is put there              |
| unknown         | E_unk   | the position embedding shared by all shuffled patches         |
| progress        | -       | share of the training done, in [0, 1]                         |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.config import Strict
from pipeline.registry import Registry

METHODS = Registry("method", "pipeline.methods")

Fidelity = Literal["paper", "released", "corrected"]


class MethodConfig(Strict):
    """Fields every method has. `code_epoch` is raised by hand when a change of code invalidates old runs."""

    name: str
    fidelity: Fidelity = "corrected"
    code_epoch: int = Field(1, ge=1)


@dataclass(frozen=True)
class Batch:
    """One micro-batch on its device: images (B, C, H, W), targets (B, classes), and a seeded CPU generator."""

    images: Tensor
    targets: Tensor
    generator: torch.Generator


class Output(NamedTuple):
    """The loss to descend and scalars to log, all 0-d tensors on the device."""

    loss: Tensor
    scalars: dict[str, Tensor]


class Prediction(NamedTuple):
    """Pooled features (B, D) and class logits (B, classes)."""

    features: Tensor
    logits: Tensor


class Method(nn.Module):
    """A way to train an encoder; the encoder is given, heads are the method's own."""

    Config: type[MethodConfig] = MethodConfig

    def __init__(self, cfg: MethodConfig, encoder: nn.Module) -> None:
        super().__init__()
        self.cfg = cfg
        self.encoder = encoder

    def draw(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        """Everything random or time-dependent that `loss` needs, as tensors on the batch's device."""
        return {}

    def loss(self, images: Tensor, targets: Tensor, draw: Mapping[str, Tensor]) -> Output:
        raise NotImplementedError

    def forward(self, images: Tensor, targets: Tensor, draw: Mapping[str, Tensor]) -> Output:
        return self.loss(images, targets, draw)

    def predict(self, images: Tensor, shuffled: Tensor | None = None) -> Prediction:
        """Features and logits; `shuffled` (B, N) tells a method that knows the word which patches were moved."""
        return self.classify(self.encoder.forward_features(images))

    def classify(self, tokens: Tensor) -> Prediction:
        features = self.encoder.forward_head(tokens, pre_logits=True)
        return Prediction(features, self.encoder.head(features))

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that the optimiser must not decay (vectors and biases are never decayed)."""
        return {f"encoder.{name}" for name in self.encoder.no_weight_decay()}

    def export(self) -> nn.Module:
        """The encoder others load: its state dict has plain timm keys."""
        return self.encoder
