"""Running a transformer on permuted tokens (ST Eqs 2, 5 and 8).

Z_(P) = P_R Z P_C enters the first block, and what leaves the last one is put back before the final norm (ViT, GPT-2) or
the pooler (BERT). Columns need the locked weights of `rules.py`; rows need nothing. Rows include CLS, one permutation
serves a whole batch, and masks are permuted with them. Dropout would draw other masks: off, or no two runs are equal.
Hidden states that a model hands out on the way are permuted ones.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.permutation.keys import Family, Key, inverse

Rows = Tensor | torch.Generator
# product: by permutation matrices, as the paper does; it costs more, and in bf16 and fp16 it rounds the tokens.
Means = Literal["index", "product"]
RECOMPUTES = ("grad_checkpointing", "gradient_checkpointing")  # names of timm and of transformers


@contextmanager
def permuted(
    model: nn.Module, key: Key | None = None, rows: Rows | None = None, by: Means = "index"
) -> Iterator[nn.Module]:
    """Within the block, the model permutes columns by the key and rows by an index (N,), or by a new one each call.

    A generator draws on its own device: one on the GPU does not make the GPU wait.
    """
    family, blocks = blocks_of(model)
    if key is not None and key.family != family:
        raise ConfigError(f"the key is for the family {key.family}, the model is of the family {family}")
    if rows is not None:
        _refuse_ordered_rows(model, family, blocks)
    tokens = Tokens(family, key.residual if key else None, rows, by)
    with ExitStack() as stack:
        hooks = [blocks[0].register_forward_pre_hook(tokens.permute, with_kwargs=True)]
        if rows is not None:
            hooks += [block.register_forward_pre_hook(tokens.permute_masks, with_kwargs=True) for block in blocks]
        hooks.append(blocks[-1].register_forward_hook(tokens.restore))
        for hook in hooks:
            stack.callback(hook.remove)
        yield model


def blocks_of(model: nn.Module) -> tuple[Family, Any]:
    """The family of a model and its blocks; a head around it (`bert`, `transformer`) or a method is looked into."""
    inside: list[Any] = [getattr(model, name, None) for name in ("bert", "transformer", "encoder")]
    for core in (model, *inside):
        if hasattr(core, "blocks"):
            return "vit", core.blocks
        if hasattr(getattr(core, "encoder", None), "layer"):
            return "bert", core.encoder.layer
        if hasattr(core, "wte") and hasattr(core, "h"):
            return "gpt2", core.h
    raise ConfigError(f"{type(model).__name__} is not a ViT of timm, nor a BERT or GPT-2 of transformers")


class Tokens:
    """What the hooks do to the tokens (B, N, D) of a forward pass."""

    def __init__(self, family: Family, columns: Tensor | None, rows: Rows | None, by: Means) -> None:
        self.family, self.rows, self.by = family, rows, by
        self.columns = None if columns is None else (columns, inverse(columns))
        self.order: Tensor | None = None  # of the rows in the pass that runs

    def permute(self, block: nn.Module, inputs: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Before the first block."""
        name = "x" if self.family == "vit" else "hidden_states"
        tokens = inputs[0] if inputs else kwargs[name]
        if self.rows is not None:
            self.order = self._draw(tokens.shape[1]).to(tokens.device)
            tokens = self._moved(tokens, 1, self.order)
        if self.columns is not None:
            there, back = self.columns
            self.columns = there.to(tokens.device), back.to(tokens.device)  # copied in the first pass alone
            tokens = self._moved(tokens, 2, self.columns[0])
        return ((tokens, *inputs[1:]), kwargs) if inputs else (inputs, kwargs | {name: tokens})

    def permute_masks(self, block: nn.Module, inputs: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Before every block: whom a token may look at moves with the tokens."""
        if kwargs.get("is_causal"):
            raise ConfigError("rows of a causal model have an order; permute its columns alone")
        kwargs = {name: self._mask(value) if "mask" in name else value for name, value in kwargs.items()}
        return (inputs[:1] + tuple(map(self._mask, inputs[1:])), kwargs)

    def restore(self, block: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        """After the last block."""
        if self.columns is not None:
            output = self._moved(output, 2, self.columns[1].to(output.device))
        if self.order is not None:
            output = self._moved(output, 1, inverse(self.order))
        return output

    def _moved(self, tokens: Tensor, side: int, index: Tensor) -> Tensor:
        if self.by == "index":
            return tokens.index_select(side, index)
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
        raise ConfigError("rows of a causal model have an order; permute its columns alone")
    if any(hasattr(getattr(block, "attn", None), "rel_pos") for block in blocks):
        raise ConfigError(
            "the model has relative positions in its blocks, which know the order of rows; permute columns"
        )
    if any(getattr(part, name, False) for part in model.modules() for name in RECOMPUTES):
        raise ConfigError("gradient checkpointing would draw other rows in the backward pass; turn it off")
