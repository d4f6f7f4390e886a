"""Small scenes for tests of dense tasks: images of 64 px with rectangles of three classes, and encoders that see them.

A rectangle's class is its brightness, so that a small model can learn to find it; a later one hides an earlier one.
"""

import json

import numpy as np
import torch
from PIL import Image

from pipeline.methods.base import Batch
from pipeline.models.encoder import ModelConfig, build_encoder

SCENE_SIZE, SCENE_CLASSES, SCENE_CHANNELS = 64, 3, 1


def scene_vit(**changes):
    values = {"arch": "vit_tiny_patch16_224", "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return ModelConfig(name="scene_vit", **values | changes)


def scene_swin(**changes):
    """Strides 2, 4, 8 and 16."""
    values = {"patch_size": 2, "embed_dim": 16, "depths": (1, 1, 1, 1), "num_heads": (2, 2, 2, 2), "window_size": 4}
    return ModelConfig(name="scene_swin", arch="swin_tiny_patch4_window7_224", **values | changes)


SCENE_MODELS = {
    "vit": scene_vit(),
    "windowed": scene_vit(window_size=4, global_blocks=1, add_relative=True),
    "swin": scene_swin(),
}


def build_scene_encoder(model, seed=0):
    torch.manual_seed(seed)
    encoder = build_encoder(model, SCENE_SIZE, SCENE_CHANNELS, 0)
    encoder.num_labels = SCENE_CLASSES
    return encoder


def scene(seed, num_objects=3, size=(64, 64)):
    """An image (1, S, S) and what is known of it, as a detection batch has it: the part inside `size` is picture."""
    generator = torch.Generator().manual_seed(seed)
    image, (height, width) = torch.zeros(SCENE_CHANNELS, SCENE_SIZE, SCENE_SIZE), size
    image[:, :height, :width] = 0.1 * torch.randn(SCENE_CHANNELS, height, width, generator=generator)
    masks, labels = torch.zeros(num_objects, SCENE_SIZE, SCENE_SIZE, dtype=torch.uint8), []
    for number in range(num_objects):
        h, w = torch.randint(14, 26, (2,), generator=generator).tolist()
        top, left = (int(torch.randint(0, n + 1, (), generator=generator)) for n in (height - h, width - w))
        label = int(torch.randint(1, SCENE_CLASSES + 1, (), generator=generator))
        masks[:number, top : top + h, left : left + w] = 0
        masks[number, top : top + h, left : left + w] = 1
        image[:, top : top + h, left : left + w] = 2.0 * label - 3
        labels.append(label)
    shown = masks.flatten(1).amax(dim=1) > 0
    boxes = torch.stack([bounds(mask) for mask in masks[shown]]) if shown.any() else torch.zeros(0, 4)
    return image, {
        "boxes": boxes,
        "labels": torch.tensor(labels, dtype=torch.long)[shown],
        "masks": masks[shown],
        "size": torch.tensor(size),
    }


def bounds(mask):
    rows, cols = mask.any(dim=1).nonzero()[:, 0], mask.any(dim=0).nonzero()[:, 0]
    return torch.tensor([cols[0], rows[0], cols[-1] + 1, rows[-1] + 1], dtype=torch.float32)


def detection_batch(size=4, seed=0, objects=(3, 1, 0, 2)):
    """Images with different numbers of objects, the last one with padding below and to the right."""
    numbers = [objects[place % len(objects)] for place in range(size)]
    scenes = [scene(100 * seed + place, count) for place, count in enumerate(numbers[:-1])]
    scenes.append(scene(100 * seed + size, numbers[-1], (48, 56)))
    images, targets = zip(*scenes, strict=True)
    return Batch(torch.stack(images), list(targets), torch.Generator().manual_seed(seed))


def write_objects(folder, num_train, num_val, size=(40, 44)):
    """Files in the layout of COCO: grey pictures with one or two bright rectangles of three classes, and one crowd."""
    draw = np.random.default_rng(0)
    categories = [{"id": 10 * label, "name": f"class {label}"} for label in range(1, SCENE_CLASSES + 1)]
    for split, count in (("train", num_train), ("val", num_val)):
        content = {"images": [], "annotations": [], "categories": categories}
        for number in range(1, count + 1):
            pixels = draw.integers(0, 60, size).astype(np.uint8)
            for place in range(1 + number % 2):
                label, (height, width) = 1 + (number + place) % SCENE_CLASSES, draw.integers(16, 36, 2).tolist()
                top, left = (
                    int(draw.integers(0, side - part)) for side, part in zip(size, (height, width), strict=True)
                )
                pixels[top : top + height, left : left + width] = 70 * label
                corners = [left, top, left + width, top, left + width, top + height, left, top + height]
                about = {"id": 2 * number + place, "image_id": number, "category_id": 10 * label}
                about |= {"area": 1.5 * height * width, "bbox": [left, top, width, height]}  # not that of the box
                about["iscrowd"] = int(number == 3 and place == 1)
                content["annotations"].append({**about, "segmentation": [[float(value) for value in corners]]})
            content["images"].append({"id": number, "file_name": f"{number}.jpg", "height": size[0], "width": size[1]})
            path = folder / f"{split}2017" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
        path = folder / "annotations" / f"instances_{split}2017.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
