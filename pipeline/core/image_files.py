"""Images that a user names on the command line, and which images nobody here can see as they are."""

from pathlib import Path

from PIL import ExifTags, Image, ImageOps

from pipeline.core.errors import DataError


def open_image(file: Path, mode: str, upright: bool = True) -> Image.Image:
    """The image that a user names on the command line, in a mode such as "RGB"; turned as its EXIF data say."""
    try:
        with Image.open(file) as stored:
            stored.load()
            image = turned(stored) if upright else stored
    except FileNotFoundError:
        raise DataError(f"--image {file} not found; expected the file of an image") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"--image {file} could not be read ({error}); expected an image, such as PNG or JPEG") from None
    if problem := depth_problem(image):
        raise DataError(f"--image {file}: {problem}")
    return image.convert(mode)


def is_turned(image: Image.Image) -> bool:
    """Whether the EXIF orientation asks for a turned or mirrored image."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1) in range(2, 9)
    except Exception:  # EXIF is damaged in any way, and the image is as it would be without
        return False


def turned(image: Image.Image) -> Image.Image:
    """The image as its camera was held."""
    return ImageOps.exif_transpose(image) if is_turned(image) else image


def depth_problem(image: Image.Image) -> str:
    """What is wrong with pixels that Pillow would cut off at 255 without a word; empty for 8 bits per channel."""
    if image.mode[0] not in "IF":
        return ""
    return f"found pixels of more than 8 bits (mode {image.mode}), expected 8 bits per channel; convert the image"
