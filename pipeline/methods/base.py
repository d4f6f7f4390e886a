"""What a training method is. One file, one config class, `@METHODS.register("name")`, nothing else to edit.

A method never touches files, ranks or MLflow; the engine never names a method. Randomness and everything that
depends on time is drawn in `draw`, as tensors; `loss` is then a pure function of tensors, so it compiles into one
graph, runs under DDP, and gives the same numbers for any number of processes.

One word per idea, and the papers' symbols for it:

| word            | symbol              | meaning                                                       |
|-----------------|---------------------|---------------------------------------------------------------|
| shuffle_ratio   | gamma (MJP)         | share of patches chosen for the jigsaw shuffle                |
| shuffled        | m~ (MJP)            | (B, N) bool: the patches that were chosen                     |
| unknown         | E_unk (MJP)         | the position embedding shared by all shuffled patches         |
| mask_ratio      | eta (MP3), gamma    | share of patches that give no keys (MP3), or are removed      |
| position_ratio  | gamma_pos (DropPos) | share of visible patches whose positions are dropped          |
| known           | -                   | (B, N) bool: the slots whose positions are told (MP3, speech) |
| order           | Alg. 1              | (B, N) for each slot the patch that is put there              |
| progress        | -                   | share of the training done, in [0, 1]                         |
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.config import Strict
from pipeline.core.registry import METHODS as METHODS
from pipeline.core.sizes import Size
from pipeline.core.trees import Tree
from pipeline.models.encoder import ModelConfig
from pipeline.models.patches import Encoder
from pipeline.models.position import encode

# Relative positions and frequencies of rotary ones, by their names in timm.
RELATIVE = re.compile(r"relative_position_bias_table|\brel_pos_[hw]$|^rope\.freqs$")
Fidelity = Literal["paper", "released", "corrected"]


class MethodConfig(Strict):
    """Fields every method has. `code_epoch` is raised by hand when a change of code invalidates old runs."""

    task: ClassVar[str] = "classify"  # a file of pipeline/tasks

    name: str
    """The method, by its name in the registry."""
    fidelity: Fidelity = "corrected"
    """paper: as the paper says. released: as the authors' code does. corrected: the released code without deviations
    that disturb a comparison. The docstring of each method lists the differences.
    """
    code_epoch: int = Field(1, ge=1)
    """Raised by hand when a change of code makes earlier runs wrong."""

    def check(self, model: ModelConfig, image_size: Size) -> None:
        """Raise ValueError where this method cannot work on such a model."""

    def encoder_size(self, image_size: Size) -> Size:
        """Pixels of what the encoder sees of an image of this size."""
        return image_size


class PretrainConfig(MethodConfig):
    """Fields every pretraining method has: it needs no classes, and masks patches of a ViT."""

    task: ClassVar[str] = "pretrain"

    mask_ratio: float = Field(0.75, ge=0, lt=1)
    """Share of the patches that are masked (eta of MP3, gamma of DropPos)."""

    def check(self, model: ModelConfig, image_size: Size) -> None:
        if model.family != "vit":
            raise ValueError(f"method {self.name} works on a ViT, found model.arch {model.arch}")
        if model.pool == "avg":
            raise ValueError(f"method {self.name} trains the CLS token and the last norm; set model.pool to cls")


class DecoderConfig(PretrainConfig):
    """What MAE and DropPos share: positions that a patch takes with it, and a decoder."""

    decoder_width: int = Field(512, ge=4, multiple_of=4)
    """Width of the decoder."""
    decoder_depth: int = Field(8, ge=1, le=1000)
    """Blocks of the decoder."""
    decoder_heads: int = Field(16, ge=1)
    """Attention heads of each block of the decoder."""

    def check(self, model: ModelConfig, image_size: Size) -> None:
        super().check(model, image_size)
        if model.table == "none" and not model.is_rotary:
            raise ValueError(
                f"method {self.name} needs absolute positions, found model.pos_embed: {model.positions}; rotary ones "
                "will do, too"
            )
        self.check_decoder()

    def check_decoder(self) -> None:
        if self.decoder_width % self.decoder_heads:
            raise ValueError(
                f"method.decoder_heads {self.decoder_heads} does not divide method.decoder_width {self.decoder_width}"
            )


@dataclass(frozen=True)
class Batch:
    """One micro-batch on its device, as its task makes it, and a seeded CPU generator.

    Of classified images: inputs (B, C, H, W); targets (B, classes) in training, class indices (B,) in `measure`.
    """

    inputs: Tree
    targets: Tree
    generator: torch.Generator

    @property
    def images(self) -> Tensor:
        """The inputs of a task whose inputs are images and nothing else."""
        return self.inputs


class Output(NamedTuple):
    """The loss to descend and scalars to log, all 0-d tensors on the device.

    `weight` is the number of targets that the loss is a mean over: micro-batches and processes then count by it, so
    that a step is the mean over all targets of the global batch. None: each micro-batch counts the same.
    """

    loss: Tensor
    scalars: dict[str, Tensor]
    weight: Tensor | None = None


class Prediction(NamedTuple):
    """Pooled features (B, D) and class logits (B, classes)."""

    features: Tensor
    logits: Tensor


class Primary(NamedTuple):
    """The metric by which a training is judged."""

    name: str
    is_lower_better: bool = False

    def better(self, one: float, other: float) -> float:
        return one if self.beats(one, other) else other

    def beats(self, one: float, other: float | None) -> bool:
        """Whether it is better and not as good; the first one, without another, is, and a number is better than NaN."""
        if other is None:
            return True
        if math.isnan(other):
            return not math.isnan(one)
        return one < other if self.is_lower_better else one > other


class PerImage(NamedTuple):
    """A number for each image (B,), and their sum where the order of its operations decides the last digits."""

    values: Tensor
    total: Tensor


class PerToken(NamedTuple):
    """For each text (B,), the sum of a number over the tokens that count, and their number."""

    totals: Tensor
    counts: Tensor


Measured: TypeAlias = Tensor | PerImage | PerToken  # a plain tensor (B,) is summed as it is


class Method(nn.Module):
    """A way to train an encoder; the encoder is given, heads are the method's own."""

    Config: type[MethodConfig] = MethodConfig
    primary: ClassVar[Primary | None] = None  # null: its task's
    # Parts that are compiled, each into a graph of its own; None: the whole loss is one graph.
    compiled: ClassVar[tuple[str, ...] | None] = None
    encoder: Encoder

    def __init__(self, cfg: MethodConfig, encoder: Encoder) -> None:
        super().__init__()
        self.cfg = cfg
        self.encoder = encoder

    def begin(self) -> None:
        """Called once, when the encoder has the weights that a training starts from, or those of a file to evaluate."""

    def draw(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        """Everything random or time-dependent that `loss` needs, as tensors on the batch's device."""
        return {}

    def draw_to_count(self, batch: Batch) -> dict[str, Tensor]:
        """A draw with which `loss` looks at no value, so that its operations can be counted from shapes alone."""
        return self.draw(batch, 0.5)

    def loss(self, inputs: Tree, targets: Tree, draw: Mapping[str, Tensor], /) -> Output:
        """Return the loss of a batch as its task makes it; methods for images name the first argument `images`."""
        raise NotImplementedError

    def forward(self, inputs: Tree, targets: Tree, draw: Mapping[str, Tensor]) -> Output:
        return self.loss(inputs, targets, draw)

    def predict(self, images: Tensor, shuffled: Tensor | None = None) -> Prediction:
        """Features and logits; `shuffled` (B, N) tells a method that knows the word which patches were moved."""
        return self.classify(encode(self.encoder, images, self.slot_positions(shuffled), self.slot_places(shuffled)))

    def slot_positions(self, shuffled: Tensor | None = None) -> Tensor | None:
        """(B or 1, P+N, D): what is added to the tokens; none where the encoder has no absolute positions."""
        return getattr(self.encoder, "pos_embed", None)

    def slot_places(self, shuffled: Tensor | None = None) -> Tensor | None:
        """(B or 1, N): where the patch in each slot stands, for rotary positions; none: each in its own place."""
        return None

    def classify(self, tokens: Tensor) -> Prediction:
        features = self.encoder.forward_head(tokens, pre_logits=True)
        return Prediction(features, self.encoder.get_classifier()(features))

    def measure(self, batch: Batch) -> dict[str, Measured]:
        """What validation reports, one value for each image of a batch."""
        return accuracy(self.predict(batch.images), batch.targets)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that the optimiser must not decay (vectors and biases are never decayed)."""
        spared = getattr(self.encoder, "no_weight_decay", set)() | {"pos_embed"}
        spared |= {name for name, _ in self.encoder.named_parameters() if RELATIVE.search(name)}
        return {f"encoder.{name}" for name in spared}

    def export(self) -> nn.Module:
        """The encoder others load: its state dict has plain timm keys."""
        return self.encoder


def accuracy(prediction: Prediction, labels: Tensor) -> dict[str, Measured]:
    """Top-1 and top-5 in per cent and cross-entropy of each image."""
    logits = prediction.logits.float()
    ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    right = {"top1": ranked[:, 0], "top5": ranked.any(dim=1)}
    return {**{name: percent(hits) for name, hits in right.items()}, "loss": cross_entropies(logits, labels)}


def percent(shares: Tensor) -> PerImage:
    """Shares (B,), or whether each image is right, in per cent."""
    shares = shares.float()
    return PerImage(100 * shares, 100 * shares.sum())


def cross_entropies(logits: Tensor, labels: Tensor) -> PerImage:
    """Mean over the labels of each image: logits (B, K) or (B, n, K), labels (B,) or (B, n)."""
    flat, wanted = logits.flatten(0, -2), labels.flatten()
    each = F.cross_entropy(flat, wanted, reduction="none").view(len(labels), -1)
    return PerImage(each.mean(dim=1), F.cross_entropy(flat, wanted, reduction="sum") / each.shape[1])
