"""The small text models that tests share (40 words, 12 tokens, two blocks), and texts of different lengths."""

import torch

from pipeline.methods.base import Batch
from pipeline.models.encoder import ModelConfig
from pipeline.models.text import build_text_encoder

VOCABULARY, LENGTH, TEXT_CLASSES, MASK_TOKEN = 40, 12, 3, 4


def tiny_text_model(arch, **changes):
    values = {"embed_dim": 32, "depth": 2, "num_heads": 2} | changes
    return ModelConfig(name=f"tiny_{arch}", arch=arch, **values)


def build_tiny_text(model, seed=0, num_classes=TEXT_CLASSES):
    torch.manual_seed(seed)
    encoder = build_text_encoder(model, VOCABULARY, LENGTH, num_classes)
    encoder.mask_token = MASK_TOKEN
    return encoder


def any_weights(encoder, seed=0):
    """Every parameter away from its start, also those that start as zeros and ones; float64."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return encoder.double().eval()


def tiny_texts(size=8, seed=0, length=LENGTH):
    """Words of texts of 3 to `length` tokens, and which are real; the second half of a text has type 1."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(3, length + 1, (size, 1), generator=generator)
    mask = torch.arange(length) < ends
    ids = torch.randint(5, VOCABULARY, (size, length), generator=generator) * mask
    return {"ids": ids, "mask": mask, "types": ((torch.arange(length) >= ends // 2) & mask).long()}


def text_batch(size=8, seed=0):
    targets = torch.eye(TEXT_CLASSES)[torch.arange(size) % TEXT_CLASSES]
    return Batch(tiny_texts(size, seed), targets, torch.Generator().manual_seed(seed))


def stream_batch(size=8, seed=0):
    """Whole windows, as in training: every token but the first is scored."""
    ids = torch.randint(5, VOCABULARY, (size, LENGTH), generator=torch.Generator().manual_seed(seed))
    inputs, scored = {"ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}, torch.arange(LENGTH) > 0
    return Batch(inputs, {"scored": scored.expand(size, -1)}, torch.Generator().manual_seed(seed))
