"""Assigns positions of the grid to the tokens of an encoder with rotary position embeddings, or no position at all.

A *place* is the position index that a rotation uses: the number of a patch of the grid, or NOWHERE for no rotation,
which CLS always has. Not rotating a token is the same as rotating it by an angle of 0: in `rope` and `rope_mixed` that
is the angle of the first patch, row 0 and column 0, in `rope_dinov3` that of the middle of the image.

Places hold for one pass: the blocks read them from what they share (`rotary.py`), so blocks and hooks of timm stay as
they are. Without `at_places`, every patch stands at its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pipeline.models.patches import Encoder, Grid

RotaryKind = Literal["rope", "rope_mixed", "rope_dinov3"]
ROTARY = get_args(RotaryKind)
NOWHERE = -1


def rotary_of(encoder: Encoder) -> Any:
    """The rotations that the blocks of an encoder share; None where it has none."""
    blocks = getattr(encoder, "blocks", None)
    return getattr(getattr(blocks[0], "attn", None), "rotary", None) if blocks else None


@contextmanager
def at_places(encoder: Encoder, places: Tensor | None, grid: Grid | None = None) -> Iterator[None]:
    """Inside the `with` statement, the transformer blocks see the patches at these places (B or 1, n) of this grid.

    None: every patch of the grid is there, at its own place, and the grid is the encoder's. Without rotations nothing
    changes.
    """
    rotary = rotary_of(encoder)
    if rotary is None:
        yield
        return
    if places is not None:
        places = torch.cat([places.new_full((len(places), rotary.num_prefix), NOWHERE), places], dim=1)
    rotary.places, rotary.grid = places, None if grid == rotary.own else grid
    try:
        yield
    finally:
        rotary.places = rotary.grid = None


def hidden_at(places: Tensor, hidden: Tensor) -> Tensor:
    """Replace the places (B or 1, N) of hidden patches, a mask (B or 1, N), by NOWHERE."""
    return places.masked_fill(hidden, NOWHERE)


def all_places(grid: Grid, device: torch.device) -> Tensor:
    """(1, N): each patch at its own place."""
    return torch.arange(grid.size, device=device)[None]
