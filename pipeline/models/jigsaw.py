"""Block-wise random jigsaw shuffle (MJP Alg. 1): choose blocks of patches, permute the chosen ones among themselves.

The block generator follows the released code: at most int(N * ratio) patches are chosen, often fewer, because a
block that does not fit ends the draw. The caller (`methods/mjp.py`) therefore logs the realised ratio. Two differences:
every draw comes from one seeded generator (the released blocks used an unseeded one), and ratio 0 chooses nothing
(the released code then falls back to 0.1). `exact` tops the blocks up to exactly int(N * ratio) patches.
"""

import math
import random
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from pipeline.models.patches import Grid, to_images, to_patches

MIN_BLOCK, MAX_BLOCK = 8, 75  # patches; the released values
LOG_ASPECTS = math.log(0.3), math.log(1 / 0.3)
TRIES = 10


def block_mask(grid: Grid, ratio: float, rng: random.Random, exact: bool = False) -> Tensor:
    """(N,) bool: the patches chosen for shuffling."""
    chosen = torch.zeros(grid.size, dtype=torch.bool)
    chosen[chosen_patches(grid, ratio, rng, exact)] = True
    return chosen


def chosen_patches(grid: Grid, ratio: float, rng: random.Random, exact: bool = False) -> list[int]:
    """Sorted indices of the patches chosen for shuffling."""
    chosen, target = chosen_set(grid, ratio, rng), int(grid.size * ratio)
    patches = _bits(chosen)
    if exact and len(patches) < target:
        free = _bits((1 << grid.size) - 1 - chosen)
        patches = sorted(patches + rng.sample(free, target - len(patches)))
    return patches


def chosen_set(grid: Grid, ratio: float, rng: random.Random) -> int:
    """A bit mask of the chosen patches; an integer is faster than a set, and this runs once per image."""
    chosen, target = 0, int(grid.size * ratio)
    while (room := target - chosen.bit_count()) > 0:
        block = _block(chosen, min(room, MAX_BLOCK), grid, rng)
        if block == 0:
            break
        chosen |= block
    return chosen


def _bits(number: int) -> list[int]:
    """Indices of the set bits of a number, ascending."""
    found = []
    while number:
        found.append((number & -number).bit_length() - 1)
        number &= number - 1
    return found


def _block(chosen: int, room: int, grid: Grid, rng: random.Random) -> int:
    """One rectangle with 1 to `room` new patches; 0 if ten tries found none."""
    height, width = grid
    for _ in range(TRIES):
        # With room < MIN_BLOCK the bounds are reversed, as released: the area is then drawn from [room, MIN_BLOCK].
        area = rng.uniform(MIN_BLOCK, room)
        aspect = math.exp(rng.uniform(*LOG_ASPECTS))
        rows, cols = _sides(area, aspect, grid)
        if rows >= height > 1 or cols >= width > 1:
            continue
        top, left = _below(height - rows + 1, rng), _below(width - cols + 1, rng)
        block = _rectangle(rows, cols, width) << (top * width + left)
        if 0 < (block & ~chosen).bit_count() <= room:
            return block
    return 0


def _below(count: int, rng: random.Random) -> int:
    """What `rng.randrange(count)` draws, without its checks: an image needs about twenty of these."""
    num_bits = count.bit_length()
    while (found := rng.getrandbits(num_bits)) >= count:
        pass
    return found


@cache
def _rectangle(rows: int, cols: int, width: int) -> int:
    """A bit mask of the patches of a rectangle in the top-left corner of a grid of this width."""
    return sum(((1 << cols) - 1) << number * width for number in range(rows))


def _sides(area: float, aspect: float, grid: Grid) -> tuple[int, int]:
    """Rows and columns of a block; on a grid of one row or column the block is a run of cells."""
    if 1 in grid:
        return min(grid.rows, round(area)), min(grid.cols, round(area))
    return round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))


def jigsaw_order(chosen: Tensor, rng: random.Random) -> Tensor:
    """(N,) for each slot, the patch that is put there: chosen patches permuted uniformly, others in place."""
    order = torch.arange(len(chosen))
    slots = chosen.nonzero().flatten().tolist()
    order[slots] = torch.tensor(permuted(slots, rng), dtype=torch.long)
    return order


def permuted(slots: Iterable[int], rng: random.Random) -> list[int]:
    """For each of these slots, the patch that is put there: what `rng.sample(slots, len(slots))` draws, but faster."""
    left, found = list(slots), []
    while left:
        place = _below(len(left), rng)
        found.append(left[place])
        left[place] = left[-1]
        left.pop()
    return found


def shuffle_patches(images: Tensor, order: Tensor, grid: Grid) -> Tensor:
    """Move whole patches of pixels: images (B, C, H, W), order (B or 1, N) -> (B, C, H, W)."""
    patches = to_patches(images, grid)
    index = order[:, :, None, None].expand(len(images), -1, *patches.shape[2:])
    return to_images(patches.gather(1, index), images.shape[2:], grid)


def shuffle_pixels(images: Tensor, order: Tensor, grid: Grid) -> Tensor:
    """Move pixels inside every patch alike: order (pixels of a patch,) for each place the pixel that is put there."""
    return to_images(to_patches(images, grid)[..., order], images.shape[2:], grid)
