"""Training with permuted tokens and with a key (ST Sec. 4.2, Eqs 5 to 8, Tables 3, 5 and 7, Figs 4 to 6).

Rows: each micro-batch has a permutation of all its tokens, CLS included, which is undone before the final norm. Key:
the weights that a training starts from are locked (Eq. 6); `used`, the authorised training, permutes the columns of the
tokens by the key, in training and in validation, and learns what plain training does; `missing`, the unauthorised one,
runs the locked weights as they are. What is exported stays locked, and a run with `used` carries its key in its config.

With rotary positions, a token takes its coordinates with it when rows are permuted, so rows change nothing. A key
permutes all columns inside a head, and a rotation turns pairs of them, each pair at a frequency of its own. Only those
keys survive that leave the columns inside every head in place; those of the residual stream, and without learned
frequencies the heads, may have any order. No kind of key here is like that, so keys are refused.

Keys are drawn from a seed, so that a study can draw them again. They protect nothing: for a key that does, see
`python -m pipeline key new`. Dropout draws masks for the permuted tokens, so that with it no two trainings are equal.
"""

from collections.abc import Mapping
from random import Random
from typing import Literal, get_args

import torch
from pydantic import Field
from torch import Tensor

from pipeline.core.config import Strict, added
from pipeline.core.sizes import Size
from pipeline.core.trees import Tree, device_of
from pipeline.methods.base import Batch, Method, MethodConfig, Output
from pipeline.models.encoder import ModelConfig
from pipeline.models.patches import Encoder, grid_of, send
from pipeline.models.position import num_prefix_tokens
from pipeline.permutation.forward import Tokens, install, shape_of
from pipeline.permutation.keys import Family, Key, Kind, new_key
from pipeline.permutation.rules import permute_state


class Permutation(Strict):
    """What is permuted in a training; nothing by default."""

    rows: bool = False
    """Whether the tokens of each micro-batch have an order of their own."""
    key: Literal["none", "used", "missing"] = "none"
    """none: no key. used: the start is locked, and training uses the key. missing: the start is locked, and training
    lacks the key.
    """
    kind: Kind = "independent"
    """How the key is drawn. independent: everything by itself. shared: heads of a block have one order of columns.
    released: as the authors' code does.
    """
    seed: int = Field(0, ge=0)
    """Seed of the key."""

    @property
    def is_on(self) -> bool:
        return self.rows or self.key != "none"


class PermutableConfig(MethodConfig):
    """Fields of every method whose tokens may be permuted."""

    permutation: Permutation = added(Permutation(), before=Permutation())
    """Permuted tokens or a locked model (ST)."""

    def check(self, model: ModelConfig, image_size: Size) -> None:
        super().check(model, image_size)
        asked = self.permutation
        is_locked = asked.key != "none" or not model.is_rotary  # rows alone need no key
        if asked.is_on and is_locked and (reason := permutable_reason(model)):
            raise ValueError(f"method.permutation: {reason}; remove it")
        if asked.rows and (reason := rows_reason(model)):
            raise ValueError(f"method.permutation.rows: {reason}; set it to false")


def permutable_reason(model: ModelConfig) -> str:
    """Why a key cannot lock such a model; empty if it can."""
    if model.is_windowed:
        return f"{model.arch} has windows, whose tokens have places"
    if model.is_rotary:
        return f"pos_embed: {model.positions} turns pairs of columns inside each head, which a key would tear apart"
    return "" if model.family in get_args(Family) else f"{model.arch} is not a ViT, a BERT or a GPT-2"


def rows_reason(model: ModelConfig) -> str:
    """Why the tokens of such a model cannot come in another order; empty if they can."""
    family: str = model.family
    if family == "gpt2":
        return "a causal mask knows the order of the tokens"
    is_relative = model.positions == "relative" or model.add_relative
    return "relative positions in the blocks know the order of the tokens" if is_relative else ""


class Permutable(Method):
    """A method whose tokens may be permuted; `draw` of a subclass extends the one here."""

    Config = PermutableConfig
    cfg: PermutableConfig

    def __init__(self, cfg: PermutableConfig, encoder: Encoder) -> None:
        super().__init__(cfg, encoder)
        asked = cfg.permutation
        self.key: Key | None = None
        if asked.key != "none":
            self.key = new_key(shape_of(encoder), asked.kind, Random(asked.seed))
        used = self.key if asked.key == "used" else None
        # Once, and not in every pass: a compiled model, a moving average and DDP know the hooks from the start.
        self.tokens: Tokens | None = install(encoder, used, asked.rows)[0] if asked.rows or used else None

    def begin(self) -> None:
        super().begin()
        if self.key is not None:
            self.encoder.load_state_dict(permute_state(self.encoder.state_dict(), self.key))

    def draw(self, batch: Batch, progress: float) -> dict[str, Tensor]:
        """rows (P+N,): for each place the token that is put there, the same for all images."""
        if not self.cfg.permutation.rows:
            return {}
        order = torch.randperm(_num_tokens(self.encoder, batch.inputs), generator=batch.generator)
        return {"rows": send(order, device_of(batch.inputs))}

    def forward(self, inputs: Tree, targets: Tree, draw: Mapping[str, Tensor]) -> Output:
        if "rows" not in draw:
            return super().forward(inputs, targets, draw)
        assert self.tokens is not None
        self.tokens.rows = draw["rows"]
        try:
            return super().forward(inputs, targets, draw)
        finally:
            self.tokens.rows = None  # validation permutes no rows


def _num_tokens(encoder: Encoder, inputs: Tree) -> int:
    """That enter the first block: of a text, or of an image with CLS."""
    return inputs["ids"].shape[1] if isinstance(inputs, dict) else num_prefix_tokens(encoder) + grid_of(encoder).size
