"""The small models that tests of methods, evaluations and numerics share: 28 px, one channel, 10 classes.

A ViT of 7x7 patches, a Swin of two stages (32 px, so that windows and stages divide it) and a residual network. And a
ViT of frames: 12 patches in one row, each a column of 8 numbers.
"""

import torch

from pipeline.core.sizes import pair
from pipeline.methods.base import Batch
from pipeline.models.encoder import ModelConfig, build_encoder

# Tensors this small gain nothing from a second thread, and lose much where other tests run beside.
torch.set_num_threads(1)

IMAGE_SIZE, SWIN_IMAGE_SIZE, CHANNELS, NUM_CLASSES = 28, 32, 1, 10
FRAMES_SIZE = (8, 12)


def tiny_model(**changes):
    values = {"arch": "vit_tiny_patch16_224", "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return ModelConfig(name="tiny", **values | changes)


def tiny_swin(**changes):
    """8x8 patches, then 4x4; the second block of a stage shifts its windows."""
    values = {"patch_size": 4, "embed_dim": 32, "depths": (2, 2), "num_heads": (2, 2), "window_size": 4}
    return ModelConfig(name="tiny_swin", arch="swin_tiny_patch4_window7_224", **values | changes)


def tiny_resnet(**changes):
    """patch_size is that of the squares a jigsaw moves."""
    return ModelConfig(name="tiny_resnet", arch="test_resnet", **{"patch_size": 4} | changes)


def frame_model(**changes):
    return tiny_model(**{"patch_size": (8, 1), **changes})


def image_size_of(model):
    if model.patch_size == (8, 1):
        return FRAMES_SIZE
    return SWIN_IMAGE_SIZE if model.family == "swin" else IMAGE_SIZE


def build_tiny(model, seed=0, num_classes=NUM_CLASSES, image_size=None):
    torch.manual_seed(seed)
    return build_encoder(model, image_size or image_size_of(model), CHANNELS, num_classes)


def tiny_encoder(seed=0, num_classes=NUM_CLASSES, **changes):
    return build_tiny(tiny_model(**changes), seed, num_classes)


def tiny_batch(size=8, seed=0, image_size=IMAGE_SIZE):
    """Noise images with one-hot targets, every class in turn."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, CHANNELS, *pair(image_size), generator=generator)
    targets = torch.eye(NUM_CLASSES)[torch.arange(size) % NUM_CLASSES]
    return Batch(images, targets, generator)
