"""Which permutation each parameter of a locked transformer gets on each of its sides (ST Eqs 6, 12, 13).

One table per family: timm's ViT (Linear, [out, in]), BERT (Linear) and GPT-2 (Conv1D, [in, out]). Parameters outside
the blocks belong to the client and stay. The columns inside the MLP stay, too, as in the paper. Everything is an index,
never a product of matrices, so any dtype comes back bit for bit. A name without a rule is an error: a parameter that
was skipped would make a model that looks locked and answers nonsense.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pipeline.core.errors import CheckpointError
from pipeline.permutation.keys import Family, Key, inverse

# residual: the residual stream. attention: columns inside attention. qkv: those of queries, keys, values, one after
# the other. heads: one entry per head. head: the columns of one head, for all heads. None: stays.
Side = Literal["residual", "attention", "qkv", "heads", "head"] | None
Rule = tuple[Side, ...]
STAYS: Rule = ()


@dataclass(frozen=True)
class Names:
    """The parameters of a family: those of a block by their name in it, and which others there may be."""

    blocks: re.Pattern[str]  # with the groups `block` and `name`
    rules: Mapping[str, Rule]
    outside: re.Pattern[str]
    queries: str  # the parameter that tells the width of attention, and how often it has it


VECTOR: Rule = ("residual",)
VIT = {
    "norm1.weight": VECTOR,
    "norm1.bias": VECTOR,
    "attn.qkv.weight": ("qkv", "residual"),
    "attn.qkv.bias": ("qkv",),
    "attn.q_norm.weight": ("head",),
    "attn.q_norm.bias": ("head",),
    "attn.k_norm.weight": ("head",),
    "attn.k_norm.bias": ("head",),
    "attn.norm.weight": ("attention",),
    "attn.norm.bias": ("attention",),
    "attn.gate.weight": ("attention", "residual"),
    "attn.gate.bias": ("attention",),
    "attn.rel_pos.relative_position_bias_table": (None, "heads"),
    "attn.rel_pos.relative_position_index": STAYS,
    "attn.proj.weight": ("residual", "attention"),
    "attn.proj.bias": VECTOR,
    "ls1.gamma": VECTOR,
    "norm2.weight": VECTOR,
    "norm2.bias": VECTOR,
    "mlp.fc1.weight": (None, "residual"),
    "mlp.fc1.bias": STAYS,
    "mlp.fc1_g.weight": (None, "residual"),
    "mlp.fc1_g.bias": STAYS,
    "mlp.fc1_x.weight": (None, "residual"),
    "mlp.fc1_x.bias": STAYS,
    "mlp.norm.weight": STAYS,
    "mlp.norm.bias": STAYS,
    "mlp.fc2.weight": ("residual", None),
    "mlp.fc2.bias": VECTOR,
    "ls2.gamma": VECTOR,
}
BERT = {
    "attention.self.query.weight": ("attention", "residual"),
    "attention.self.query.bias": ("attention",),
    "attention.self.key.weight": ("attention", "residual"),
    "attention.self.key.bias": ("attention",),
    "attention.self.value.weight": ("attention", "residual"),
    "attention.self.value.bias": ("attention",),
    "attention.output.dense.weight": ("residual", "attention"),
    "attention.output.dense.bias": VECTOR,
    "attention.output.LayerNorm.weight": VECTOR,
    "attention.output.LayerNorm.bias": VECTOR,
    "intermediate.dense.weight": (None, "residual"),
    "intermediate.dense.bias": STAYS,
    "output.dense.weight": ("residual", None),
    "output.dense.bias": VECTOR,
    "output.LayerNorm.weight": VECTOR,
    "output.LayerNorm.bias": VECTOR,
}
# Of a Conv1D the input comes first. Old files also have the causal mask, as `bias` and `masked_bias`.
GPT2 = {
    "ln_1.weight": VECTOR,
    "ln_1.bias": VECTOR,
    "attn.c_attn.weight": ("residual", "qkv"),
    "attn.c_attn.bias": ("qkv",),
    "attn.c_proj.weight": ("attention", "residual"),
    "attn.c_proj.bias": VECTOR,
    "attn.bias": STAYS,
    "attn.masked_bias": STAYS,
    "ln_2.weight": VECTOR,
    "ln_2.bias": VECTOR,
    "mlp.c_fc.weight": ("residual", None),
    "mlp.c_fc.bias": STAYS,
    "mlp.c_proj.weight": (None, "residual"),
    "mlp.c_proj.bias": VECTOR,
}
OPTIONAL = ("attn.bias", "attn.masked_bias")  # tensors of a block that a file may lack
FAMILIES: dict[Family, Names] = {
    "vit": Names(
        re.compile(r"blocks\.(?P<block>\d+)\.(?P<name>.+)"),
        VIT,
        re.compile(
            r"(patch_embed|norm_pre|norm|fc_norm|head|head_dist|attn_pool)\..+|(cls|dist|reg)_token|pos_embed|pre_logits.+"
        ),
        "attn.qkv.weight",
    ),
    "bert": Names(
        re.compile(r"(bert\.)?encoder\.layer\.(?P<block>\d+)\.(?P<name>.+)"),
        BERT,
        re.compile(r"(bert\.)?(embeddings|pooler)\..+|(cls|classifier|qa_outputs)\..+"),
        "attention.self.query.weight",
    ),
    "gpt2": Names(
        re.compile(r"(transformer\.)?h\.(?P<block>\d+)\.(?P<name>.+)"),
        GPT2,
        re.compile(
            r"(transformer\.)?(wte|wpe|ln_f)\..+|(lm_head|score|classifier|qa_outputs|multiple_choice_head)\..+"
        ),
        "attn.c_attn.weight",
    ),
}


def lacking_in_blocks(names: Iterable[str], family: Family) -> list[str]:
    """Which parameters of the family its blocks lack, in words; those of a ViT differ from model to model."""
    known = FAMILIES[family]
    found: dict[int, set[str]] = {}
    for name in names:
        if place := known.blocks.fullmatch(name):
            found.setdefault(int(place["block"]), set()).add(place["name"])
    required = [name for name in known.rules if name not in OPTIONAL]
    return [f"{name} in block {block}" for block in sorted(found) for name in required if name not in found[block]]


def family_of(names: Iterable[str]) -> Family:
    """The family whose blocks these parameters have."""
    every = list(names)
    for family, known in FAMILIES.items():
        if any((found := known.blocks.fullmatch(name)) and found["name"] == known.queries for name in every):
            return family
    shown = ", ".join(every[:5]) or "nothing"
    raise CheckpointError(
        f"found {shown}, and more of the kind; expected the weights of a ViT of timm, a BERT or a GPT-2 of transformers"
    )


def rule_of(name: str, family: Family) -> tuple[int, Rule] | None:
    """The block of a parameter and its rule; None for one outside the blocks, which stays."""
    known = FAMILIES[family]
    if found := known.blocks.fullmatch(name):
        if found["name"] in known.rules:
            return int(found["block"]), known.rules[found["name"]]
    elif known.outside.fullmatch(name):
        return None
    raise CheckpointError(
        f"{name} is not a known parameter of the family {family}, so there is no rule to permute it; "
        "expected a plain model: add its rule to pipeline/permutation/rules.py, with a test of equivariance"
    )


def index_of(side: Side, block: int, key: Key, is_inverse: bool) -> Tensor | None:
    """The index along one side of a parameter; None where it stays."""
    if side is None:
        return None
    if side == "head" and not _are_alike(key, block):
        raise CheckpointError(
            "the model normalises queries and keys with weights that all heads share, so the heads of a block must be "
            f"permuted alike; expected a key of kind shared or released, found {key.kind}: make one with `key new`"
        )
    attention = key.attention(block)
    index = {
        "residual": key.residual,
        "attention": attention,
        "qkv": (attention + len(attention) * torch.arange(3)[:, None]).flatten(),
        "heads": key.heads[block],
        "head": key.inner[block, 0],
    }[side]
    return inverse(index) if is_inverse else index


def indices_of(name: str, shape: Iterable[int], key: Key, is_inverse: bool = False) -> list[Tensor | None]:
    """One index for each dimension of a parameter; nothing but None where it stays as it is."""
    sizes = list(shape)
    found = rule_of(name, key.family)
    if found is None or not found[1]:
        return [None] * len(sizes)
    block, rule = found
    if block >= key.shape.depth:
        raise CheckpointError(f"{name}: the key is for {key.shape.depth} blocks, the model has more; use its own key")
    indices = [index_of(side, block, key, is_inverse) for side in rule]
    expected = [size if index is None else len(index) for size, index in zip(sizes, indices, strict=False)]
    if len(sizes) != len(rule) or sizes != expected:
        raise CheckpointError(f"{name} has the shape {sizes}, the key fits {expected}; use the key of this model")
    return indices


def permute_state(state: Mapping[str, Tensor], key: Key, is_inverse: bool = False) -> dict[str, Tensor]:
    """The weights of the locked model, T_(C) of ST Theorem 4.4; gradients of parameters are permuted alike (Eq. 7)."""
    permuted = {}
    for name, value in state.items():
        for side, index in enumerate(indices_of(name, value.shape, key, is_inverse)):
            if index is not None:
                value = value.index_select(side, index.to(value.device))
        permuted[name] = value
    return permuted


def unpermute_state(state: Mapping[str, Tensor], key: Key) -> dict[str, Tensor]:
    """What `permute_state` was given, bit for bit."""
    return permute_state(state, key, is_inverse=True)


def _are_alike(key: Key, block: int) -> bool:
    return bool((key.inner[block] == key.inner[block, :1]).all())
