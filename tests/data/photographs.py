"""A folder of photographs as people have them: at any depth, with any ending, some of them turned."""

from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

SIZE = (40, 30)  # width, height


def pixels_of(number: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """uint8 (height, width, 3): blocks of noise, which JPEG keeps roughly."""
    blocks = np.random.default_rng(number).integers(0, 256, (size[1] // 5, size[0] // 5, 3), dtype=np.uint8)
    return blocks.repeat(5, axis=0).repeat(5, axis=1)


def write_photo(path: Path, number: int, orientation: int = 1, **options) -> Path:
    """A photograph; with an orientation, stored as a camera stores one that was turned."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if orientation != 1:
        exif[ExifTags.Base.Orientation] = orientation
    Image.fromarray(pixels_of(number, **options)).save(path, exif=exif)
    return path


def write_photos(folder: Path, count: int = 20, names=("2023/{}.jpg", "2024/05/{}.PNG", "{}.WebP")) -> Path:
    for number in range(count):
        write_photo(folder / names[number % len(names)].format(number), number)
    return folder
