"""Pictures that evaluations write: images of a data set, patches put together, and labelled grids of them as PNG.

Images are uint8 tensors (3, H, W); a grey image is shown in three equal channels, so that outlines can be coloured.
"""

import io
from collections.abc import Callable, Sequence

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from pipeline.data.images.images import ImageSet
from pipeline.data.images.transforms import View
from pipeline.models.patches import Grid, to_images, to_patches

BLACK, WHITE = 0, 255
GREEN = (20, 150, 50)
EMPTY = (214, 224, 242)  # a pale blue that no grey image has
FRAME = (170, 170, 170)
MUTED = (89, 96, 105)
MIN_SIDE, GAP, MARGIN, FONT_PX, SMALL_FONT_PX = 112, 6, 8, 14, 12


def one_per_class(images: ImageSet, view: View, count: int) -> Tensor:
    """uint8 (count, C, H, W): the first image of each of the first classes, then the second ones, and so on."""
    chosen = first_of_each_class(images.labels, count)
    return torch.stack([torch.as_tensor(view(images.image(index))) for index in chosen])


def first_of_each_class(labels: Sequence[int], count: int) -> list[int]:
    """Indices of the first image of each of the first classes, then of the second ones, and so on."""
    seen: dict[int, int] = {}
    ranks = []
    for index, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        ranks.append((seen[label], label, index))
    return [index for _, _, index in sorted(ranks)[:count]]


def as_shown(images: Tensor, side: int = MIN_SIDE) -> Tensor:
    """(B, C, H, W) -> (B, 3, H', W'): in colour, those smaller than `side` enlarged pixel by pixel."""
    zoom = max(1, -(-side // min(images.shape[2:])))
    return images.expand(-1, 3, -1, -1).repeat_interleave(zoom, dim=2).repeat_interleave(zoom, dim=3)


def place_patches(image: Tensor, grid: Grid, patches: Tensor, slots: Tensor) -> Tensor:
    """Patches of an image at the slots given for them, the mean where several meet, pale blue where none is.

    image (3, H, W) uint8, patches (n,) and slots (n,) -> (3, H, W) uint8.
    """
    pixels = to_patches(image[None].double(), grid)[0]  # (N, 3, pixels)
    total = torch.zeros_like(pixels).index_add_(0, slots, pixels[patches])
    count = torch.bincount(slots, minlength=grid.size)[:, None, None]
    empty = torch.tensor(EMPTY, dtype=total.dtype)[:, None]
    mean = torch.where(count > 0, total / count.clamp(min=1), empty)
    return to_images(mean[None], image.shape[1:], grid)[0].round().to(torch.uint8)


def outlined(image: Tensor, grid: Grid, slots: Tensor, width: int = 2) -> Tensor:
    """The patches at these slots with a green border."""
    result = image.clone()
    rows, cols = image.shape[1] // grid.rows, image.shape[2] // grid.cols
    colour = torch.tensor(GREEN, dtype=torch.uint8)[:, None, None]
    for slot in slots.tolist():
        top, left = slot // grid.cols * rows, slot % grid.cols * cols
        patch = result[:, top : top + rows, left : left + cols]
        inner = patch[:, width:-width, width:-width].clone()
        patch[:] = colour
        patch[:, width:-width, width:-width] = inner
    return result


def labelled_grid(
    rows: Sequence[tuple[str, Sequence[Tensor | None]]],
    columns: Sequence[str],
    captions: Sequence[Sequence[str]] = (),
    foot: Callable[[int], Image.Image] | None = None,
) -> bytes:
    """A PNG of labelled rows of images under labelled columns.

    `captions` has a line for below each image; `foot` draws what stands below everything, as wide as the page.
    """
    height, width = next(image for _, images in rows for image in images if image is not None).shape[1:]
    font, small = ImageFont.load_default(FONT_PX), ImageFont.load_default(SMALL_FONT_PX)
    left = max(round(font.getlength(label)) for label, _ in rows) + 2 * MARGIN
    top = FONT_PX + 2 * MARGIN
    below = SMALL_FONT_PX + GAP if captions else 0
    size = left + len(columns) * (width + GAP), top + len(rows) * (height + below + GAP)
    under = foot(size[0]) if foot else None
    page = max(size[0], under.width if under else 0), size[1] + (under.height if under else 0)
    canvas = Image.new("RGB", page, "white")
    pen = ImageDraw.Draw(canvas)
    for number, label in enumerate(columns):
        pen.text((left + number * (width + GAP) + width / 2, top / 2), label, "black", font, anchor="mm")
    for line, (label, images) in enumerate(rows):
        y = top + line * (height + below + GAP)
        pen.text((MARGIN, y + height / 2), label, "black", font, anchor="lm")
        for number, image in enumerate(images):
            if image is not None:
                x = left + number * (width + GAP)
                canvas.paste(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()), (x, y))
                pen.rectangle((x - 1, y - 1, x + width, y + height), outline=FRAME)
                if captions:
                    pen.text((x + width / 2, y + height + 3), captions[line][number], MUTED, small, anchor="ma")
    if under:
        canvas.paste(under, (0, size[1]))
    return as_png(canvas)


def grid_of_grids(maps: Tensor, grid: Grid, zoom: int, foot: Callable[[int], Image.Image]) -> bytes:
    """A PNG with map i of (N, 3, rows, cols) uint8 at the place of patch i, that patch framed in it."""
    height, width = grid.rows * zoom, grid.cols * zoom
    size = 2 * MARGIN + grid.cols * (width + GAP) - GAP, 2 * MARGIN + grid.rows * (height + GAP) - GAP
    under = foot(size[0])
    canvas = Image.new("RGB", (max(size[0], under.width), size[1] + under.height), "white")
    pen = ImageDraw.Draw(canvas)
    for number, image in enumerate(maps):
        row, col = divmod(number, grid.cols)
        x, y = MARGIN + col * (width + GAP), MARGIN + row * (height + GAP)
        pixels = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        canvas.paste(pixels.resize((width, height), Image.Resampling.NEAREST), (x, y))
        pen.rectangle((x - 1, y - 1, x + width, y + height), outline=FRAME)
        left, top = x + col * zoom, y + row * zoom
        pen.rectangle((left, top, left + zoom - 1, top + zoom - 1), outline=GREEN)
    canvas.paste(under, (0, size[1]))
    return as_png(canvas)


def note(text: str, width: int) -> Image.Image:
    """Small text in lines of whole words that fit the width."""
    font = ImageFont.load_default(SMALL_FONT_PX)
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width - 2 * MARGIN:
            lines[-1] = longer
        else:
            lines.append(word)
    canvas = Image.new("RGB", (width, len(lines) * (SMALL_FONT_PX + 4) + MARGIN), "white")
    pen = ImageDraw.Draw(canvas)
    for number, line in enumerate(lines):
        pen.text((MARGIN, MARGIN / 2 + number * (SMALL_FONT_PX + 4)), line, MUTED, font, anchor="la")
    return canvas


def as_png(canvas: Image.Image) -> bytes:
    buffer = io.BytesIO()
    canvas.save(buffer, "PNG")
    return buffer.getvalue()
