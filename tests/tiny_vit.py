"""The small ViT that tests of methods, evaluations and numerics share: 28 px, one channel, 7x7 patches, 10 classes."""

import torch

from pipeline.methods.base import Batch
from pipeline.models.encoder import ModelConfig, build_encoder

# Tensors this small gain nothing from a second thread, and lose much where other tests run beside.
torch.set_num_threads(1)

IMAGE_SIZE, CHANNELS, NUM_CLASSES = 28, 1, 10


def tiny_model(**changes):
    values = {"patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return ModelConfig(name="tiny", arch="vit_tiny_patch16_224", **values | changes)


def tiny_encoder(seed=0, **changes):
    torch.manual_seed(seed)
    return build_encoder(tiny_model(**changes), IMAGE_SIZE, CHANNELS, NUM_CLASSES)


def tiny_batch(size=8, seed=0):
    """Noise images with one-hot targets, every class in turn."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, CHANNELS, IMAGE_SIZE, IMAGE_SIZE, generator=generator)
    targets = torch.eye(NUM_CLASSES)[torch.arange(size) % NUM_CLASSES]
    return Batch(images, targets, generator)
