"""Split learning of a ViT: the client has images, labels, embedding and head, the server has the blocks (ST Sec. 5.3).

They are two objects without a tensor in common. Four kinds of tensors cross, and nothing else: features and the
gradients of outputs go up to the server; outputs and the gradients of features come down. Each side updates its own
weights: the client when its backward pass is over, the server when it has the gradients.

The recipe is the released one (SGD, a hundredth of the rate for the blocks). What the release leaves out is a switch:
it trains neither CLS nor the last norm, and its fresh positions have mean 0.02 and standard deviation 1, not 0.02.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pipeline.core.config import Strict
from pipeline.core.errors import ConfigError, PatchworkError
from pipeline.models.patches import Encoder
from pipeline.models.places import rotary_of
from pipeline.models.position import embed, num_prefix_tokens, refuse_other_than_plain
from pipeline.permutation.protections import FeatureProtection, SentTokens

Kind = Literal["features", "test_features", "output_gradients", "outputs", "feature_gradients"]
# What a client may send, and what the server answers with. Of `test_features` no gradients follow.
ANSWERS: dict[str, Kind] = {
    "features": "outputs",
    "test_features": "outputs",
    "output_gradients": "feature_gradients",
}
PLAIN = FeatureProtection()
OMITTED = ("cls_token", "norm.")  # of the client; the released optimiser has no group for them


class ProtocolError(PatchworkError):
    """One side of split learning sent what the protocol does not allow, or not now."""


class AnsweringServer(Protocol):
    """A server as its client knows it, in this process or in another."""

    def answer(self, kind: Kind, tensor: Tensor) -> Tensor:
        """A tensor (B, P+N, D) for a tensor of the same shape."""


class SplitRecipe(Strict):
    """How both sides train; the defaults are the released ones (ViT-B/16 on CelebA)."""

    epochs: int = Field(60, ge=1)
    """Passes over the train images."""
    batch: int = Field(128, ge=1)
    """Images of a step."""
    lr: float = Field(0.05, gt=0)
    """Learning rate of SGD at the start."""
    min_lr: float = Field(2e-4, ge=0, description="end of the cosine, of all groups")
    block_ratio: float = Field(0.01, gt=0, description="rate of the blocks over that of the client")
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of SGD."""
    weight_decay: float = Field(5e-4, ge=0)
    """Weight decay of SGD."""
    trained: Literal["all", "released"] = "all"
    """What is trained; released: CLS and the last norm stay as they are."""
    positions: Literal["given", "fresh", "released"] = "fresh"
    """Positions of the client at the start: given ones, fresh ones with standard deviation 0.02, or as released, with
    mean 0.02 and standard deviation 1.
    """

    def rate(self, start: float, epoch: int) -> float:
        """On a cosine that moves once an epoch."""
        return self.min_lr + (start - self.min_lr) * (1 + math.cos(math.pi * epoch / self.epochs)) / 2


class Updates:
    """SGD of one side, which counts its own steps: no rate is ever sent."""

    def __init__(self, parameters: Iterable[nn.Parameter], start: float, recipe: SplitRecipe, epoch_steps: int) -> None:
        self.start, self.recipe, self.epoch_steps, self.taken = start, recipe, epoch_steps, 0
        chosen = [parameter for parameter in parameters if parameter.requires_grad]
        self.optimizer = torch.optim.SGD(chosen, lr=start, momentum=recipe.momentum, weight_decay=recipe.weight_decay)

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.rate(self.start, self.taken // self.epoch_steps)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.taken += 1

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.taken = state["taken"]


class Server(nn.Module):
    """The blocks T. It sees features and gradients of outputs, and keeps its weights to itself."""

    def __init__(self, blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = blocks
        self.updates: Updates | None = None  # none: gradients add up, and nobody uses them
        self._features: Tensor | None = None
        self._outputs: Tensor | None = None

    def train_with(self, recipe: SplitRecipe, epoch_steps: int) -> None:
        self.updates = Updates(self.blocks.parameters(), recipe.block_ratio * recipe.lr, recipe, epoch_steps)

    def answer(self, kind: Kind, tensor: Tensor) -> Tensor:
        if kind == "test_features":
            with torch.no_grad():
                return self.eval().blocks(tensor)
        if kind == "features":
            self._features = tensor.detach().requires_grad_()
            with torch.enable_grad():
                self._outputs = self.train().blocks(self._features)
            return self._outputs.detach()
        if kind == "output_gradients":
            return self._learn_from(tensor)
        raise ProtocolError(f"the server got {kind!r}; expected one of {', '.join(ANSWERS)}")

    def _learn_from(self, gradients: Tensor) -> Tensor:
        features, outputs = self._features, self._outputs
        self._features = self._outputs = None
        if features is None or outputs is None:
            raise ProtocolError("the server got gradients without features before them; send features first, each time")
        if gradients.shape != outputs.shape:
            raise ProtocolError(
                f"the server got gradients of shape {tuple(gradients.shape)} for outputs of {tuple(outputs.shape)}; "
                "send those of the last features"
            )
        outputs.backward(gradients)
        if self.updates:
            self.updates.step()
        assert features.grad is not None
        return features.grad


class Client(nn.Module):
    """Embedding F1 and head F2, under timm's names in `encoder`, and what hides its images from the server."""

    def __init__(self, encoder: Encoder, protection: FeatureProtection = PLAIN) -> None:
        super().__init__()
        self.encoder, self.protection = encoder, protection
        self.traffic: Counter[str] = Counter()  # bytes of the tensors that crossed, by kind
        self.updates: Updates | None = None

    def train_with(self, recipe: SplitRecipe, epoch_steps: int) -> None:
        if recipe.trained == "released":
            for name, parameter in self.encoder.named_parameters():
                if name.startswith(OMITTED):
                    parameter.requires_grad_(False)
        self.updates = Updates(self.encoder.parameters(), recipe.lr, recipe, epoch_steps)

    def forward(self, images: Tensor, server: AnsweringServer, generator: torch.Generator) -> Tensor:
        """Logits (B, classes); in training, the backward pass sends the gradients."""
        sent = self.features(images, generator)
        if self.training:
            outputs = _Exchange.apply(sent.tokens, self, server)
        else:
            outputs = self.ask(server, "test_features", sent.tokens)
        return self.encoder.forward_head(self.encoder.norm(sent.restored(outputs)))

    def features(
        self,
        images: Tensor,
        generator: torch.Generator,
        protection: FeatureProtection | None = None,
        has_positions: bool = True,
    ) -> SentTokens:
        """What the server sees of images (B, C, H, W); the last two are for attacks as they were released."""
        hiding = self.protection if protection is None else protection
        positions = getattr(self.encoder, "pos_embed", None) if has_positions else None
        tokens = embed(self.encoder, hiding.of_images(images, generator), positions)
        return hiding.of_tokens(tokens, num_prefix_tokens(self.encoder), generator)

    def ask(self, server: AnsweringServer, kind: Kind, tensor: Tensor) -> Tensor:
        """Send a tensor, and count it with its answer."""
        answer = server.answer(kind, tensor.detach())
        self.traffic[kind] += tensor.nbytes
        self.traffic[ANSWERS[kind]] += answer.nbytes
        return answer


class _Exchange(torch.autograd.Function):
    """The blocks as a function of features that is computed elsewhere, forward and backward."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, client: Client, server: AnsweringServer) -> Tensor:
        ctx.client, ctx.server = client, server
        return client.ask(server, "features", features)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.client.ask(ctx.server, "output_gradients", gradients), None, None


def split(encoder: Encoder, protection: FeatureProtection = PLAIN) -> tuple[Client, Server]:
    """Both sides of a copy of a ViT, whose blocks the server gets."""
    refuse_other_than_plain(encoder, "split learning, which cuts a model before and after its blocks,")
    if protection.rows and any(hasattr(block.attn, "rel_pos") for block in encoder.blocks):
        raise ConfigError("row permutation needs blocks without positions; this model has relative ones in them")
    if (rotary := rotary_of(encoder)) and (protection.rows or rotary.is_mixed):
        raise ConfigError(
            "split learning of rotary positions needs fixed frequencies and rows in order: the blocks, which the "
            "server has, turn each row by its place"
        )
    mine = copy.deepcopy(encoder)
    server = Server(mine.blocks)
    mine.blocks = nn.Sequential()
    return Client(mine, protection), server


def start_positions(client: Client, recipe: SplitRecipe, generator: torch.Generator) -> None:
    """The client's learned position embeddings as the recipe has them at the start."""
    positions = getattr(client.encoder, "pos_embed", None)
    if recipe.positions == "given" or positions is None or not positions.requires_grad:
        return
    # The released call gives 0.02 as the mean; the standard deviation is then 1, cut off at 2.
    mean, std = (0.0, 0.02) if recipe.positions == "fresh" else (0.02, 1.0)
    positions.data.copy_(nn.init.trunc_normal_(torch.empty(positions.shape), mean, std, generator=generator))


def train_step(
    client: Client,
    server: AnsweringServer,
    images: Tensor,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    generator: torch.Generator,
) -> Tensor:
    """One update of both sides; returns the loss."""
    value = loss(client.train()(images, server, generator), targets)
    value.backward()
    if client.updates:
        client.updates.step()
    return value.detach()
