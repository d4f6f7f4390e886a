"""Pictures for a page that goes by mail: large ones are stored again, as small as the eye allows."""

import io

from PIL import Image

from pipeline.report.figures.pictures import WAV, embed

LARGE = 20_000  # bytes; smaller files are kept as they are
WIDEST = 1200  # px
QUALITY = 70  # of WebP


def embed_small(content: bytes, kind: str) -> str:
    """As part of the page; a large picture as WebP."""
    if kind == WAV or len(content) <= LARGE:
        return embed(content, kind)
    with Image.open(io.BytesIO(content)) as image:
        picture = image.convert("RGB")
    picture.thumbnail((WIDEST, 20 * WIDEST))
    target = io.BytesIO()
    picture.save(target, "WEBP", quality=QUALITY, method=4)
    smaller = target.getvalue()
    return embed(smaller, "image/webp") if len(smaller) < len(content) else embed(content, kind)
