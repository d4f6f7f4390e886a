"""Small, randomly initialised models of timm of every kind that evaluations and locking must get right or refuse."""

import timm
import torch

IMAGE_SIZE = 32
VIT = {"img_size": IMAGE_SIZE, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
# Kind -> architecture of timm and what makes it small.
KINDS = {
    "class token": ("vit_tiny_patch16_224", VIT),
    "mean pooling": ("vit_small_patch16_224", VIT | {"global_pool": "avg"}),
    "no class position, layer scale": ("deit3_small_patch16_224", VIT),
    "registers": ("vit_small_patch14_reg4_dinov2", VIT),
    "registers, no class token": ("vit_little_patch16_reg4_gap_256", VIT),
    "distilled": ("deit_tiny_distilled_patch16_224", VIT),
    "norm before": ("vit_base_patch16_clip_224", VIT),
    "relative, no position table": ("vit_relpos_small_patch16_224", VIT),
    "rotary": ("vit_small_patch16_rope_224", VIT),
    "rotary, known names": ("vit_pe_core_tiny_patch16_384", VIT),
    "two attentions in one": ("vit_dlittle_patch16_reg1_gap_256", VIT),
    "hybrid": ("vit_tiny_r_s16_p8_224", {"img_size": IMAGE_SIZE, "embed_dim": 32, "depth": 2, "num_heads": 2}),
    "BEiT": ("beit_base_patch16_224", VIT),
    "Swin": (
        "swin_tiny_patch4_window7_224",
        {"img_size": IMAGE_SIZE, "patch_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2)},
    ),
    "ConvNeXt": ("test_convnext", {}),
    "ResNet": ("test_resnet", {}),
}


def build_kind(kind, channels=1, num_classes=10):
    """With weights large enough for patches and positions to matter, and nothing left at 0 or 1."""
    arch, sizes = KINDS[kind]
    torch.manual_seed(0)
    encoder = timm.create_model(arch, in_chans=channels, num_classes=num_classes, **sizes).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return encoder
