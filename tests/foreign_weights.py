"""Small models of three families, and checkpoint files in the layouts of MAE, DropPos and MoCo v3."""

import argparse

import timm
import torch

WIDTH = 32


def vit(seed=0, **changes):
    """A plain timm ViT: 28 px, 7x7 patches, 10 classes."""
    torch.manual_seed(seed)
    values = {"img_size": 28, "patch_size": 4, "in_chans": 1, "embed_dim": WIDTH, "depth": 2, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", **values | {"num_classes": 10} | changes)
    for value in model.state_dict().values():  # timm starts norms and biases equal in every model
        value.copy_(torch.randn(value.shape))
    return model.eval()


def swin(seed=0, **changes):
    torch.manual_seed(seed)
    values = {"img_size": 56, "embed_dim": 16, "depths": (2, 2), "num_heads": (1, 2), "window_size": 7}
    model = timm.create_model("swin_tiny_patch4_window7_224", **values | {"num_classes": 10} | changes)
    for value in model.state_dict().values():
        value.copy_(torch.randn(value.shape))
    return model.eval()


def resnet(seed=0, **changes):
    torch.manual_seed(seed)
    return timm.create_model("resnet18", in_chans=1, **{"num_classes": 10} | changes).eval()


def without(state, *starts):
    return {name: value for name, value in state.items() if not name.startswith(starts)}


def decoder(width=16):
    names = ["decoder_embed.weight", "decoder_embed.bias", "decoder_norm.weight", "decoder_pred.weight"]
    names += [
        f"decoder_blocks.{i}.{part}" for i in range(2) for part in ("norm1.weight", "attn.qkv.weight", "mlp.fc1.bias")
    ]
    return {name: torch.randn(width) for name in names}


def mae_file(encoder):
    state = without(encoder.state_dict(), "head")
    beside = {"mask_token": torch.randn(1, 1, 16), "decoder_pos_embed": torch.randn(1, 50, 16)}
    return {"model": state | beside | decoder(), "epoch": 399, "args": argparse.Namespace(mask_ratio=0.75)}


def droppos_file(encoder):
    state = without(encoder.state_dict(), "head")
    beside = {"mask_pos_token": torch.randn(1, 1, WIDTH), "mask_token": torch.randn(1, 1, 16)}
    beside |= {"mask_tokens": torch.randn(1, 1, 16), "aux_decoder_pos_embed": torch.randn(1, 50, 16)}
    return {"model": state | beside | decoder() | {"aux_decoder_pred.weight": torch.randn(16, 16)}}


def moco_file(encoder, head="head"):
    state = without(encoder.state_dict(), f"{head}.")
    projector = {f"{head}.0.weight": torch.randn(64, WIDTH), f"{head}.1.weight": torch.randn(64)}
    both = {f"module.base_encoder.{name}": value for name, value in (state | projector).items()}
    both |= {f"module.momentum_encoder.{name}": value + 1 for name, value in (state | projector).items()}
    both |= {"module.predictor.0.weight": torch.randn(64, 64)}
    return {"epoch": 300, "arch": "vit_small", "state_dict": both, "optimizer": {"state": {}}, "scaler": {}}
