"""Composes small scenes of garments, whose labels are exact by construction, without annotation.

Garments of 28 x 28 grey pixels, resized, lie on a canvas of 64 x 64 with a soft background; a later one may hide part
of an earlier one. Scene 0 is empty and scene 1 has a heap of small garments of one class, a crowd in COCO's words. A
scene is a function of only the garments, the split and the number of the scene.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from pipeline.data.images.images import ImageSet
from pipeline.data.samples import SplitName

SIDE = 64
EMPTY, CROWDED = 0, 1  # numbers of the scene without garments and of the one with a heap
MOST = 5  # garments in a scene, a heap counts as one
GREY = 24  # pixels from this grey level on count as garment; holes are filled
SIDES = (18, 44)  # of a garment on the canvas, least and most
VISIBLE = 0.4  # least share of a garment that stays visible under later ones
TRIES = 30
HEAP, HEAP_SIDE = 6, 14


@dataclass
class Composed:
    """A scene: grey pixels, and the owner of each: 0 for the background, k for the k-th garment or heap."""

    pixels: np.ndarray  # uint8 (SIDE, SIDE)
    owners: np.ndarray = field(default_factory=lambda: np.zeros((SIDE, SIDE), dtype=np.uint8))
    labels: list[int] = field(default_factory=list)
    crowds: list[bool] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)  # pixels of each garment, hidden ones included

    def mask(self, number: int) -> np.ndarray:
        """uint8 (SIDE, SIDE): the visible part of the garment at this place in `labels`."""
        return (self.owners == number + 1).astype(np.uint8)

    def put(self, garments: Sequence["PlacedGarment"], label: int) -> bool:
        """One garment, or several as a heap; False if they would hide too much of another one."""
        inside = np.zeros((SIDE, SIDE), dtype=bool)
        for garment in garments:
            inside[garment.place] |= garment.inside
        remaining = [((self.owners == number + 1) & ~inside).sum() for number in range(len(self.labels))]
        if any(left < VISIBLE * whole for left, whole in zip(remaining, self.whole, strict=True)):
            return False
        for garment in garments:
            self.pixels[garment.place][garment.inside] = garment.pixels[garment.inside]
        self.owners[inside] = len(self.labels) + 1
        self.labels.append(label)
        self.crowds.append(len(garments) > 1)
        self.whole.append(int(inside.sum()))
        return True


@dataclass(frozen=True)
class PlacedGarment:
    """A garment that is to lie at a place of the canvas: rows and columns."""

    pixels: np.ndarray
    inside: np.ndarray
    place: tuple[slice, slice]


def compose(garments: ImageSet, split: SplitName, number: int) -> Composed:
    """Compose scene `number` of a split, deterministically."""
    draw = random.Random(f"scene {split} {number}")  # the same on every machine
    scene = Composed(_background(draw))
    if number == CROWDED:
        _put_heap(scene, garments, draw)
    wanted = 0 if number == EMPTY else draw.randint(2, MOST - (number == CROWDED))
    for _ in range(wanted):
        index = draw.randrange(len(garments))
        side = draw.randint(*SIDES)
        for _ in range(TRIES):
            place = draw.randint(0, SIDE - side), draw.randint(0, SIDE - side)
            if scene.put([_place(garments.image(index), side, place)], garments.labels[index]):
                break
    return scene


def _background(draw: random.Random) -> np.ndarray:
    """Soft spots of grey."""
    coarse = np.array([[draw.randint(0, 96) for _ in range(6)] for _ in range(6)], dtype=np.uint8)
    return np.array(Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def _put_heap(scene: Composed, garments: ImageSet, draw: random.Random) -> None:
    """Small garments of one class, each over a part of the one before."""
    label = garments.labels[draw.randrange(len(garments))]
    same = [index for index, found in enumerate(garments.labels) if found == label]
    left, top = 2, draw.randint(0, SIDE - HEAP_SIDE)
    chosen = [same[draw.randrange(len(same))] for _ in range(HEAP)]
    places = [(left + number * (HEAP_SIDE - 5), top) for number in range(HEAP)]
    heap = [_place(garments.image(index), HEAP_SIDE, at) for index, at in zip(chosen, places, strict=True)]
    assert scene.put(heap, label)


def _place(image: Image.Image, side: int, corner: tuple[int, int]) -> PlacedGarment:
    from scipy.ndimage import binary_fill_holes  # slow to import, and only needed here

    pixels = np.asarray(image.convert("L").resize((side, side), Image.Resampling.BILINEAR))
    left, top = corner
    return PlacedGarment(pixels, binary_fill_holes(pixels >= GREY), np.s_[top : top + side, left : left + side])
