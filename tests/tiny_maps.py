"""Small scenes for tests of segmentation: bands of classes that can be seen in their brightness."""

import numpy as np
import torch
from PIL import Image
from tiny_vit import CHANNELS, IMAGE_SIZE

from pipeline.methods.base import Batch

NUM_LABELS, IGNORED = 4, 255


def labelled_images(count, height, width, seed=0):
    """Images (count, C, H, W) and labels (count, H, W) uint8: bands of classes, brighter ones later; a seam without."""
    generator = torch.Generator().manual_seed(seed)
    bounds = torch.randint(1, width - 1, (count, NUM_LABELS - 1), generator=generator).sort(dim=1).values
    labels = (torch.arange(width) >= bounds[:, :, None]).sum(dim=1)[:, None].expand(-1, height, -1).clone()
    images = labels[:, None].float() - NUM_LABELS / 2
    images = images + 0.1 * torch.randn(count, CHANNELS, height, width, generator=generator)
    labels[:, : height // 8] = IGNORED
    return images, labels.to(torch.uint8)


def segmentation_batch(size=8, seed=0, image_size=IMAGE_SIZE):
    """As in training: crops of one size."""
    images, labels = labelled_images(size, image_size, image_size, seed)
    return Batch(images, labels, torch.Generator().manual_seed(seed))


def whole_images(sizes=((28, 40), (36, 28)), seed=0, zoom=2):
    """As in evaluation: images of their own sizes, and labels of larger ones."""
    made = [labelled_images(1, *size, seed + number) for number, size in enumerate(sizes)]
    targets = [{"labels": labels[0].repeat_interleave(zoom, 0).repeat_interleave(zoom, 1)} for _, labels in made]
    return Batch([images[0] for images, _ in made], targets, torch.Generator().manual_seed(seed))


def write_scenes(folder, num_train, num_val):
    """Files in the layout of ADE20K: three bands of classes, and one of none; class 3 of 4 is in none of them."""
    generator = np.random.default_rng(0)
    for part, count in (("training", num_train), ("validation", num_val)):
        for number in range(count):
            height, widths = 30 + 5 * (number % 5), np.roll([9, 12, 15, 5], number % 3)
            labels = np.repeat([[1, 2, 4, 0]], height, axis=0).repeat(widths, axis=1).astype(np.uint8)
            pixels = (50 * labels + generator.integers(0, 50, labels.shape)).astype(np.uint8)
            for kind, content in (("images", pixels), ("annotations", labels)):
                path = folder / kind / part / f"scene{number}.{'jpg' if kind == 'images' else 'png'}"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(content).save(path)
