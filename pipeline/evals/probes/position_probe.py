"""Can a linear head read a patch's position from a frozen encoder? (DropPos Table 7.)

A share `position_ratio` of each image's position embeddings is masked at random; one linear layer names the position of
every patch from its token after the last norm, trained by cross-entropy over all patches. `position_top1` is the
accuracy over the patches whose positions were masked, `position_top1_visible` over the others, in per cent; chance is
100 / N. All patches are in view, and the images are seen as in validation, also those of the train split.

The paper does not say what takes the place of a masked position, nor how the head is trained. Chosen here:
- `own`: the token that the method itself puts there (DropPos's mask token, MJP's unknown position), else zeros;
  `zero`; or `learned`, one token that is trained with the head through the frozen blocks.
- AdamW without decay, the head's inputs standardised (BatchNorm without weights: a linear map like the head).

Without position embeddings there is nothing to mask: all patches count as masked, and content alone is probed. With
`shuffle_tokens` every image's patches change places first, and the head is asked for the new ones, of which content
says nothing: what is above chance then comes from position embeddings.

Rotary positions are masked by taking the rotation away; beside a table, both are masked. Without a table nothing stands
in place of a masked one, and `masked` changes nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.dynamo import AdamW
from pipeline.core.seeds import seed_everything
from pipeline.engine.run import RunConfig
from pipeline.evals.base import BATCH, EVALS, EvalConfig, Outcome, Subject, spread
from pipeline.evals.probes.features import Probe, ProbeConfig
from pipeline.evals.probes.heads import Fitting, LinearHead, fit
from pipeline.methods.base import Batch, Measured, Method, percent
from pipeline.methods.droppos import DropPos
from pipeline.methods.mjp import MJP
from pipeline.models.jigsaw import shuffle_patches
from pipeline.models.patches import grid_of, random_order
from pipeline.models.places import all_places, hidden_at, rotary_of
from pipeline.models.position import encode, patch_tokens, with_unknown

VISIBLE = "position_top1_visible"


@EVALS.register("position_probe")
class PositionProbe(Probe):
    class Config(ProbeConfig):
        name: Literal["position_probe"] = "position_probe"
        position_ratio: float = Field(0.75, gt=0, le=1, description="share of position embeddings that are masked")
        masked: Literal["own", "zero", "learned"] = Field("own", description="what takes the place of a masked one")
        shuffle_tokens: bool = Field(False, description="a control: patches change places, and content tells nothing")
        epochs: int = Field(10, ge=1)
        """Passes over the train images."""
        batch: int = Field(1024, ge=1, description="images; at most all train images")
        lr: float = Field(1e-3, gt=0)
        """Learning rate of AdamW at the start; it falls to 0 along a cosine."""
        train_limit: int | None = Field(None, ge=1, description="so many train images, spread evenly; null: all")

        metrics: ClassVar[tuple[str, ...]] = ("position_top1", VISIBLE)

    cfg: Config

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        for run in subjects.values():
            if run.model.family != "vit":
                return f"the last layer of {run.model.arch} has no token for each patch"
            if run.model.positions == "relative":
                return "relative positions belong to pairs of patches, so those of a share of patches cannot be masked"
        return super().reason_against(cfg, subjects)

    def compute(self, model: Subject) -> Outcome:
        with self.frozen(model) as method:
            reader = PositionReader(self.cfg, method).to(self.world.device)
            self._fit(reader, model.run)
            found = self.over_images(method, model.run.data, lambda _, batch: reader.measure(batch))
        if reader.num_masked < reader.grid.size:
            return found
        why = "every position is masked" if reader.has_positions else "the encoder has no position embeddings"
        return replace(found, reasons={VISIBLE: why})

    def _fit(self, reader: "PositionReader", run: RunConfig) -> None:
        cfg, chosen = self.cfg, spread(run.data.num_train, self.cfg.train_limit)
        batch = min(cfg.batch, len(chosen))
        num_batches = len(chosen) // batch
        fitting = Fitting(reader, AdamW(reader.parameters(), weight_decay=0.0), cfg.lr, cfg.epochs * num_batches)

        def train(epoch: int) -> None:
            generator = torch.Generator().manual_seed(seed_everything("position_probe", cfg.seed, epoch))
            order = torch.randperm(len(chosen), generator=generator).numpy()[: num_batches * batch]
            for seen in self.batches(run.data, "train", chosen[order], batch):
                for some in seen.images.split(BATCH):  # so that memory does not depend on the batch
                    with self.precision():
                        tokens, _ = reader.tokens(some, generator)
                    (position_loss(reader.head(tokens)) * len(some) / len(seen.images)).backward()
                fitting.descend()

        fit(fitting, cfg.epochs, train, self.parts)
        reader.eval()


class PositionReader(nn.Module):
    """The head, and the token in place of masked positions where it is learned; the encoder is not a part of it."""

    def __init__(self, cfg: PositionProbe.Config, method: Method) -> None:
        super().__init__()
        self.cfg, self.grid = cfg, grid_of(method.encoder)
        self.frozen = (method,)  # in a tuple, so that torch does not take its weights for this module's
        self.has_table = getattr(method.encoder, "pos_embed", None) is not None
        self.has_positions = self.has_table or rotary_of(method.encoder) is not None
        num_visible = int(self.grid.size * (1 - cfg.position_ratio))  # rounded as DropPos does
        self.num_masked = self.grid.size - num_visible if self.has_positions else self.grid.size
        seed_everything("position_probe", cfg.seed)
        self.head = LinearHead(method.encoder.embed_dim, self.grid.size)
        if cfg.masked == "learned" and self.has_table:
            self.token = nn.Parameter(torch.zeros(1, method.encoder.embed_dim))

    def tokens(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Patch tokens (B, N, D) in float32, and which positions were masked (B, N) bool."""
        encoder = self.frozen[0].encoder
        order = random_order(len(images), self.grid.size, generator, images.device)
        masked = torch.zeros_like(order, dtype=torch.bool).scatter_(1, order[:, : self.num_masked], True)
        if self.cfg.shuffle_tokens:
            places = random_order(len(images), self.grid.size, generator, images.device)
            images = shuffle_patches(images, places, self.grid)
        positions = with_unknown(encoder.pos_embed, self._mask(), masked) if self.has_table else None
        places = hidden_at(all_places(self.grid, masked.device), masked)
        return patch_tokens(encoder, encode(encoder, images, positions, places)).float(), masked

    def _mask(self) -> Tensor:
        """(1, D): what takes the place of a masked position."""
        method = self.frozen[0]
        if self.cfg.masked == "learned":
            return self.token
        if self.cfg.masked == "own" and isinstance(method, DropPos):
            return method.mask_token.flatten(0, 1)
        if self.cfg.masked == "own" and isinstance(method, MJP) and method.cfg.unknown:
            return method.unknown
        return torch.zeros_like(method.encoder.pos_embed[0, :1])

    def measure(self, batch: Batch) -> dict[str, Measured]:
        """Of each image, the shares of masked and of visible positions that are named."""
        tokens, masked = self.tokens(batch.images, batch.generator)
        with torch.autocast(tokens.device.type, enabled=False):
            named = self.head(tokens).argmax(dim=2)
        right = (named == torch.arange(self.grid.size, device=named.device)).float()
        found = {"position_top1": (right * masked).sum(dim=1) / self.num_masked}
        if self.num_masked < self.grid.size:
            found[VISIBLE] = (right * ~masked).sum(dim=1) / (self.grid.size - self.num_masked)
        return {name: percent(shares) for name, shares in found.items()}


def position_loss(logits: Tensor) -> Tensor:
    """Cross-entropy of logits (B, N, N): patch i of every image belongs to position i."""
    count = logits.shape[1]
    wanted = torch.arange(count, device=logits.device).repeat(len(logits))
    return F.cross_entropy(logits.flatten(0, 1), wanted)
