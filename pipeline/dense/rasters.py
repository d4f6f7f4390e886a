"""Polygons as bitmaps inside boxes, as detectron2 makes the targets of masks, on the device of the boxes.

COCO's own rasteriser rounds points to fifths of a pixel, walks along each edge, and notes for each column the row at
which an edge crosses its middle. Here all edges of all boxes do so at once, with the same roundings. Polygons run in
one direction, so that an object's crossings add up to more than nothing inside any of its polygons.
"""

import torch
from torch import Tensor

FINE = 5  # steps in a pixel
LEAST_SIDE = 0.1  # of a box, so that nothing is divided by 0


def rasterised(edges: Tensor, objects: Tensor, boxes: Tensor, side: int) -> Tensor:
    """(R, side, side) of 0 and 1: for each box (R, 4) its object (R,), given the objects' edges (n, E, 4).

    An edge is x1 y1 x2 y2, in float64; one that has no length crosses nothing.
    """
    if not len(edges):
        return boxes.new_zeros(len(boxes), side, side)
    corner, size = boxes[:, :2].double(), (boxes[:, 2:] - boxes[:, :2]).double().clamp(min=LEAST_SIDE)
    points = (edges[objects] - corner.repeat(1, 2)[:, None]) * (side / size).repeat(1, 2)[:, None]
    x1, y1, x2, y2 = (FINE * points + 0.5).trunc()[:, None].unbind(dim=-1)  # (R, 1, E) each
    left = (FINE * torch.arange(side, device=boxes.device) + FINE // 2)[:, None]  # the step before a column's middle
    crosses = (torch.minimum(x1, x2) <= left) & (torch.maximum(x1, x2) > left)  # (R, side, E)
    rows = ((_lower_end(x1, y1, x2, y2, left) + 0.5) / FINE - 0.5).clamp(0, side).ceil().long()
    direction = torch.where(crosses, (x2 - x1).sign(), 0.0).to(torch.int32)
    changes = direction.new_zeros(len(boxes), side, side + 1).scatter_add_(2, rows, direction)
    return (changes.cumsum(dim=2)[..., :side] != 0).mT.to(boxes.dtype)


def _lower_end(x1: Tensor, y1: Tensor, x2: Tensor, y2: Tensor, left: Tensor) -> Tensor:
    """The smaller y of the two points at which an edge is when it steps over from `left` to the next x."""
    width, height = (x2 - x1).abs(), (y2 - y1).abs()
    is_flat = width >= height
    swaps = torch.where(is_flat, x1 > x2, y1 > y2)
    begin_x, end_x = torch.where(swaps, x2, x1), torch.where(swaps, x1, x2)
    begin_y, end_y = torch.where(swaps, y2, y1), torch.where(swaps, y1, y2)
    # A flat edge has one y for each x.
    slope = (end_y - begin_y) / width.clamp(min=1)
    flat = [(begin_y + slope * (left + step - begin_x) + 0.5).trunc() for step in (0, 1)]
    # A steep one has one x for each y; the first y after the step, less one.
    steps = (left + 0.5 - begin_x).abs() * height / (end_x - begin_x).abs().clamp(min=1)
    steep = begin_y + torch.where(end_x > begin_x, steps.ceil() - 1, steps.floor())
    return torch.where(is_flat, torch.minimum(*flat), steep)
