"""Numbers as colours, and the bar below a picture that says what the colours mean.

One colour map, blue over white to orange: white is 0 of what may be negative, and the usual amount of what may not.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from pipeline.evals.pictures import FRAME, MARGIN, SMALL_FONT_PX, note

Colours = Sequence[tuple[int, int, int]]
SIGNED: Colours = (
    (8, 48, 96),
    (10, 92, 168),
    (130, 178, 222),
    (252, 252, 252),
    (240, 168, 104),
    (176, 74, 6),
    (92, 34, 0),
)
BAR_WIDTH, BAR_HEIGHT = 260, 10
MAX_TIMES = 16


def coloured(values: np.ndarray, colours: Colours) -> Tensor:
    """(rows, cols) in [0, 1] -> uint8 (3, rows, cols); what is outside is drawn as the nearest end."""
    stops = np.linspace(0, 1, len(colours))
    channels = [np.interp(values, stops, [colour[channel] for colour in colours]) for channel in range(3)]
    return torch.as_tensor(np.rint(np.stack(channels)).astype(np.uint8))


def enlarged(image: Tensor, zoom: int) -> Tensor:
    """Each pixel as a square of `zoom` pixels."""
    return image.repeat_interleave(zoom, dim=1).repeat_interleave(zoom, dim=2)


def zoom_to(side: int, count: int) -> int:
    """Pixels for each of `count` cells, so that together they come near a side, from below where possible."""
    return max(1, side // count)


def limit_of(times: np.ndarray) -> float:
    """2, 4, 8 or 16: the least for which all but a hundredth of these multiples lie between its inverse and it."""
    size = np.quantile(np.abs(np.log2(np.clip(times, 1 / MAX_TIMES, MAX_TIMES))), 0.99)
    return 2.0 ** max(1, math.ceil(size - 1e-6))


def of_multiples(times: np.ndarray, limit: float) -> Tensor:
    """Multiples of a usual amount in `SIGNED` colours on a log scale: white is 1, the ends are 1 / limit and limit."""
    return coloured(0.5 + 0.5 * np.log(np.clip(times, 1 / limit, limit)) / math.log(limit), SIGNED)


def bar_of_multiples(limit: float, text: str, width: int) -> Image.Image:
    half = math.sqrt(limit)
    ticks = [(0.0, f"1/{limit:g}"), (0.5, "1"), (0.75, f"{half:.3g}"), (1.0, f"{limit:g}x")]
    return bar(SIGNED, ticks, text, width)


def bar(colours: Colours, ticks: Sequence[tuple[float, str]], text: str, width: int) -> Image.Image:
    """The colours from left to right with numbers below, and beside or below them what they are."""
    font = ImageFont.load_default(SMALL_FONT_PX)
    left, top, under = 3 * MARGIN, MARGIN, BAR_HEIGHT + SMALL_FONT_PX + 2 * MARGIN
    is_wide = width >= 2 * (BAR_WIDTH + 2 * left)
    words = note(text, width - BAR_WIDTH - 2 * left if is_wide else max(width, BAR_WIDTH + 2 * left))
    place = (BAR_WIDTH + 2 * left, 0) if is_wide else (0, under)
    canvas = Image.new("RGB", (place[0] + words.width, max(place[1] + words.height, under)), "white")
    canvas.paste(words, place)
    pen = ImageDraw.Draw(canvas)
    shades = coloured(np.linspace(0, 1, BAR_WIDTH)[None].repeat(BAR_HEIGHT, 0), colours)
    canvas.paste(Image.fromarray(shades.permute(1, 2, 0).contiguous().numpy()), (left, top))
    pen.rectangle((left - 1, top - 1, left + BAR_WIDTH, top + BAR_HEIGHT), outline=FRAME)
    for share, label in ticks:
        x = left + share * (BAR_WIDTH - 1)
        pen.line((x, top + BAR_HEIGHT, x, top + BAR_HEIGHT + 3), FRAME)
        pen.text((x, top + BAR_HEIGHT + 4), label, "black", font, anchor="ma")
    return canvas
