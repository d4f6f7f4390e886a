"""Running a transformer on permuted tokens (ST Eqs 2, 5 and 8).

Z_(P) = P_R Z P_C enters the first block, and what leaves the last one is put back before the final norm (ViT, GPT-2) or
the pooler (BERT). Columns need the locked weights of `rules.py`; rows need nothing. Rows include CLS, one permutation
serves a whole batch, and masks are permuted with them. Dropout would draw other masks: off, or no two runs are equal.
Hidden states that a model hands out on the way are permuted ones, but for those of blocks that are named as taps: they
are put back, and permuted again in the same way before the next block.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pipeline.core.errors import ConfigError
from pipeline.models.places import rotary_of
from pipeline.permutation.keys import Family, Key, Shape, inverse
from pipeline.permutation.structure import reason_not_exact

Rows = Tensor | torch.Generator
# product: by permutation matrices, as the paper does; it costs more, and in bf16 and fp16 it rounds the tokens.
Means = Literal["index", "product"]
RECOMPUTES = ("grad_checkpointing", "gradient_checkpointing")  # names of timm and of transformers


@contextmanager
def permuted(
    model: nn.Module,
    key: Key | None = None,
    rows: Rows | None = None,
    by: Means = "index",
    taps: Sequence[int] = (),
) -> Iterator[nn.Module]:
    """Within the block, the model permutes columns by the key and rows by an index (N,), or by a new one each call.

    A generator draws on its own device: one on the GPU does not make the GPU wait. `taps` are the blocks whose tokens
    leave the model, as those of the last one do.
    """
    tokens, hooks = install(model, key, rows is not None, by, taps)
    tokens.rows = rows
    with ExitStack() as stack:
        for hook in hooks:
            stack.callback(hook.remove)
        yield model


def install(
    model: nn.Module, key: Key | None = None, has_rows: bool = False, by: Means = "index", taps: Sequence[int] = ()
) -> tuple["Tokens", list[RemovableHandle]]:
    """Hooks that permute in every pass, on the device where the model is now: columns, and rows where there are any.

    Within another permutation of the same model: what is permuted last is put back first.
    """
    family, blocks = blocks_of(model)
    if key is not None and key.family != family:
        raise ConfigError(f"the key is for the family {key.family}, the model is of the family {family}")
    if has_rows:
        _refuse_ordered_rows(model, family, blocks)
    tokens = Tokens(family, key.residual if key else None, None, by).to(next(model.parameters()).device)
    tokens.rotary = rotary_of(core_of(model))
    hooks = [blocks[0].register_forward_pre_hook(tokens.permute, with_kwargs=True)]
    for tap in {*taps} - {len(blocks) - 1}:
        hooks += [blocks[tap].register_forward_hook(tokens.restore, prepend=True)]
        hooks += [blocks[tap + 1].register_forward_pre_hook(tokens.permute_again, with_kwargs=True)]
    if has_rows:
        hooks += [block.register_forward_pre_hook(tokens.permute_masks, with_kwargs=True) for block in blocks]
    return tokens, [*hooks, blocks[-1].register_forward_hook(tokens.restore, prepend=True)]


def blocks_of(model: nn.Module) -> tuple[Family, Any]:
    """The family of a model and its blocks; a head around it (`bert`, `transformer`) or a method is looked into."""
    core = core_of(model)
    if hasattr(core, "blocks"):
        return "vit", core.blocks
    if hasattr(getattr(core, "encoder", None), "layer"):
        return "bert", core.encoder.layer
    return "gpt2", core.h


def core_of(model: nn.Module) -> Any:
    """The part of a model that has the blocks."""
    inside: list[Any] = [getattr(model, name, None) for name in ("bert", "transformer", "encoder")]
    for core in (model, *inside):
        is_bert = hasattr(getattr(core, "encoder", None), "layer")
        if hasattr(core, "blocks") or is_bert or (hasattr(core, "wte") and hasattr(core, "h")):
            return core
    raise ConfigError(f"{type(model).__name__} is not a ViT of timm, nor a BERT or GPT-2 of transformers")


def shape_of(model: nn.Module) -> Shape:
    """The rules by which keys permute a model; a model that permuted columns would change is refused."""
    family, blocks = blocks_of(model)
    first = blocks[0]
    if family == "vit" and (reason := reason_not_exact(core_of(model))):
        raise ConfigError(f"a key cannot lock this model: {reason}")
    if family == "bert":
        inside = first.attention.self
        return Shape(
            family, inside.query.in_features, len(blocks), inside.num_attention_heads, inside.query.out_features
        )
    if family == "gpt2":
        width, columns = first.attn.c_attn.weight.shape  # of queries, keys and values
        return Shape(family, width, len(blocks), first.attn.num_heads, columns // 3)
    attention = first.attn
    return Shape(family, attention.proj.out_features, len(blocks), attention.num_heads, attention.proj.in_features)


class _IndexSelect(torch.autograd.Function):
    """`index_select` whose backward pass is one, too; torch's own adds up, which takes longer."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, side: int, index: Tensor) -> Tensor:
        ctx.side = side
        ctx.save_for_backward(index)
        return tokens.index_select(side, index)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return _IndexSelect.apply(gradients, ctx.side, inverse(index)), None, None


class Tokens(nn.Module):
    """What the hooks do to the tokens (B, N, D) of a forward pass; its key is in no state dict."""

    columns: Tensor | None
    columns_back: Tensor | None

    def __init__(self, family: Family, columns: Tensor | None, rows: Rows | None, by: Means) -> None:
        super().__init__()
        self.family, self.rows, self.by = family, rows, by
        self.argument = "x" if family == "vit" else "hidden_states"
        self.register_buffer("columns", columns, persistent=False)
        self.register_buffer("columns_back", None if columns is None else inverse(columns), persistent=False)
        self.order: Tensor | None = None  # of the rows in the pass that runs
        self.rotary: Any = None  # rotations, which move with the rows

    def permute(self, block: nn.Module, inputs: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Before the first block."""
        tokens = inputs[0] if inputs else kwargs[self.argument]
        self.order = None if self.rows is None else self._draw(tokens.shape[1]).to(tokens.device)
        return self.permute_again(block, inputs, kwargs)

    def permute_again(self, block: nn.Module, inputs: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Before a block after a tap: as before the first one."""
        tokens = inputs[0] if inputs else kwargs[self.argument]
        if self.order is not None:
            tokens = self._permute_side(tokens, 1, self.order)
        if self.columns is not None:
            tokens = self._permute_side(tokens, 2, self.columns)
        if self.rotary is not None:
            self.rotary.order = self.order
        return ((tokens, *inputs[1:]), kwargs) if inputs else (inputs, kwargs | {self.argument: tokens})

    def permute_masks(self, block: nn.Module, inputs: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Before every block: whom a token may look at moves with the tokens."""
        if kwargs.get("is_causal") and self.order is not None:
            raise ConfigError("rows of a causal model have an order; permute only its columns")
        kwargs = {name: self._mask(value) if "mask" in name else value for name, value in kwargs.items()}
        return (inputs[:1] + tuple(map(self._mask, inputs[1:])), kwargs)

    def restore(self, block: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        """After the last block, and after taps."""
        if self.columns_back is not None:
            output = self._permute_side(output, 2, self.columns_back)
        if self.order is not None:
            output = self._permute_side(output, 1, inverse(self.order))
        if self.rotary is not None:
            self.rotary.order = None
        return output

    def _permute_side(self, tokens: Tensor, side: int, index: Tensor) -> Tensor:
        if self.by == "index":
            return _IndexSelect.apply(tokens, side, index)
        matrix = torch.eye(len(index), dtype=tokens.dtype, device=tokens.device)[index]
        return matrix @ tokens if side == 1 else tokens @ matrix.T

    def _draw(self, count: int) -> Tensor:
        if isinstance(self.rows, Tensor):
            return self.rows
        assert self.rows is not None
        return torch.randperm(count, generator=self.rows, device=self.rows.device)

    def _mask(self, mask: Any) -> Any:
        """(..., N, N), (..., 1, N), or of a BERT also (B, N)."""
        if not isinstance(mask, Tensor) or self.order is None:
            return mask
        if mask.ndim > 2 or self.family == "vit":
            mask = mask if mask.shape[-2] == 1 else mask.index_select(-2, self.order)
        return mask.index_select(-1, self.order)


def _refuse_ordered_rows(model: nn.Module, family: Family, blocks: Any) -> None:
    """Where rows cannot be permuted, because something inside the blocks counts them."""
    config = getattr(model, "config", None)
    if family == "gpt2" or getattr(config, "is_decoder", False):
        raise ConfigError("rows of a causal model have an order; permute only its columns")
    if any(hasattr(getattr(block, "attn", None), "rel_pos") for block in blocks):
        raise ConfigError(
            "the model has relative positions in its blocks, which depend on the order of rows; permute columns"
        )
    if any(getattr(part, name, False) for part in model.modules() for name in RECOMPUTES):
        raise ConfigError("gradient checkpointing would draw other rows in the backward pass; turn it off")
