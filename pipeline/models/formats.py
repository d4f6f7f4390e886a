"""Reads checkpoint files of other projects without executing code in them, and renames tensors to the models' names.

A layout is recognised by its keys, not by its file name: DeiT and MAE wrap the state dict in `model`, MoCo v3 keeps its
encoder under `base_encoder`, DropPos has a decoder without positions, Swin's release counts its downsampling one stage
lower than timm, and timm's rotary models (RoPE-ViT) have another name for the scales of their blocks. BERT and GPT-2 of
transformers come with and without the prefix that a head gives them, and old files call the weights of norms gamma and
beta. Everything else is taken for timm's own names, those of our exports.
"""

import argparse
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.core.errors import CheckpointError

# Tensors that are not the encoder's: what pretraining leaves, and buffers that timm computes itself: MAE's decoder and
# mask token, DropPos's `mask_pos_token` and `aux_decoder_*`, MoCo v3's other networks, Swin's index and mask; of text
# models the heads that name words, the pooler, which no language model here has, and old buffers.
BESIDE = re.compile(
    r"(aux_)?decoder|momentum_encoder\.|predictor\.|.*mask_(pos_)?token|.*\b(relative_position_index|attn_mask)$"
    r"|(cls|lm_head|bert\.pooler)\.|.*\.(position_ids|attn\.bias|attn\.masked_bias)$"
)
# Of each text family: a name that every file of it has, and the prefix of the body, beside which there are HEADS.
TEXTS = {
    "bert": (re.compile(r"(bert\.)?encoder\.layer\.0\.attention\.self\.query\.weight"), "bert."),
    "gpt2": (re.compile(r"(transformer\.)?h\.0\.attn\.c_attn\.weight"), "transformer."),
}
HEADS = ("cls.", "lm_head.", "classifier.")
STATE_KEYS = ("model", "state_dict")
WRAPPED = re.compile(r"^((module|_orig_mod)\.)+")  # by DDP, by torch.compile
OLD_SWIN = "layers.0.downsample.reduction.weight"
ROTARY_SCALE = "blocks.0.gamma_1"


def normalised(content: Any, path: Path, own: Collection[str] = ()) -> tuple[str, dict[str, Tensor]]:
    """Return the layout's name and the tensors under timm's names, including those that are not the encoder's.

    `own`: the names of the model that takes them. If they are those of a timm RoPE model, the file's names are kept.
    """
    wrapper, tensors = _unwrapped(content, path)
    tensors = {WRAPPED.sub("", name): value for name, value in tensors.items()}
    layout = _layout(set(tensors), wrapper)
    if layout == "moco_v3":
        tensors = {name.removeprefix("base_encoder."): value for name, value in tensors.items()}
    if layout in TEXTS:
        tensors = {_new_text_name(name, layout): value for name, value in tensors.items()}
    if layout == "swin":
        tensors = {_new_swin_name(name): value for name, value in tensors.items()}
    if layout == "rope" and ROTARY_SCALE not in own:
        tensors = _rope_as_vit(tensors)
    return layout, tensors


def _rope_as_vit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a rotary model of timm under the names of a plain ViT."""
    renamed = {re.sub(r"\.gamma_([12])$", r".ls\1.gamma", name): value for name, value in tensors.items()}
    if "pos_embed" in renamed:  # its CLS has no position; here it has one, of zeros
        renamed["pos_embed"] = F.pad(renamed["pos_embed"], (0, 0, 1, 0))
    return renamed


def vit_as_rope(tensors: dict[str, Tensor], has_cls_position: bool = True) -> dict[str, Tensor]:
    """The reverse: the tensors of a plain ViT with rotations under the names of timm's.

    The position embedding of CLS is added to the CLS token. In a DeiT III, as in timm's models, CLS has none.
    """
    renamed = {re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", name): value for name, value in tensors.items()}
    if has_cls_position and (positions := renamed.get("pos_embed")) is not None:
        renamed |= {"cls_token": renamed["cls_token"] + positions[:, :1], "pos_embed": positions[:, 1:]}
    return renamed


def read_pickle(path: Path) -> Any:
    """What torch.save wrote; only tensors and plain values are built, whatever else the file asks for."""
    try:
        # Official checkpoints carry their command line in `args`; a Namespace holds values and runs nothing.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a file cut short fails in as many ways as there are places to cut it
        raise _unreadable(path, str(error)) from None


def _unreadable(path: Path, reason: str) -> CheckpointError:
    refused = re.search(r"GLOBAL (\S+)", reason)
    if refused:
        return CheckpointError(
            f"{path} asks for {refused[1]} when it is opened; expected only tensors, numbers and text; nothing was "
            "run. If you trust the file, open it elsewhere and save only its state dict: torch.save(state_dict, path)"
        )
    # torch goes on to advise loading without weights_only, which would run whatever the file says.
    detail = reason.rpartition("WeightsUnpickler error:")[2].strip().partition("\n")[0].partition(". ")[0]
    return CheckpointError(
        f"{path} could not be read ({detail or 'it ends too early'}); expected a whole file that torch.save wrote. "
        "It may be cut short: compare its size with the source and download it again"
    )


def _unwrapped(content: Any, path: Path) -> tuple[str | None, dict[str, Tensor]]:
    wrapper = None
    for key in STATE_KEYS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            wrapper, content = key, content[key]
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}; expected a state dict, or one in {STATE_KEYS}")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        found = ", ".join(map(str, list(content)[:10])) or "nothing"
        raise CheckpointError(f"{path} holds no tensors but {found}; expected a state dict, or one in {STATE_KEYS}")
    return wrapper, tensors


def _layout(names: set[str], wrapper: str | None) -> str:
    for family, (known, _) in TEXTS.items():
        if any(map(known.fullmatch, names)):
            return family
    if any(name.startswith("base_encoder.") for name in names):
        return "moco_v3"
    if "decoder_embed.weight" in names:
        return "mae" if "decoder_pos_embed" in names else "droppos"
    if OLD_SWIN in names:
        return "swin"
    if ROTARY_SCALE in names and "blocks.0.attn.q_bias" not in names and "blocks.0.attn.qkv.bias" in names:
        return "rope"
    if wrapper == "model" and "cls_token" in names:
        # MAE publishes its encoders without decoder and head, and fine-tunes with fc_norm.
        return "deit" if "head.weight" in names and "fc_norm.weight" not in names else "mae"
    return "timm"


def _new_swin_name(name: str) -> str:
    name = re.sub(r"^layers\.(\d+)\.downsample", lambda found: f"layers.{int(found[1]) + 1}.downsample", name)
    return re.sub(r"^head\.(?!fc\.)", "head.fc.", name)


def _new_text_name(name: str, family: str) -> str:
    _, prefix = TEXTS[family]
    name = re.sub(r"^score\.", "classifier.", name)
    name = re.sub(r"\bLayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"\bLayerNorm\.beta$", "LayerNorm.bias", name))
    return name if name.startswith((prefix, *HEADS)) else prefix + name
