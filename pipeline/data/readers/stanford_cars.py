"""Stanford Cars as published: cars_train/, cars_test/ and MATLAB files that name the class of each image.

The published test set serves as val. Its labels are in cars_test_annos_withlabels.mat, which is not part of the devkit.
The bounding boxes are not used: as in the transfer papers, a model sees the whole image.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.core.errors import DataError
from pipeline.data.images.images import FileImages, read_mat
from pipeline.data.readers.imagenet import image_names
from pipeline.data.samples import Split, shortened

IMAGE_FOLDERS = {"train": "cars_train", "val": "cars_test"}
ANNOTATION_FILES = {"train": "cars_train_annos.mat", "val": "cars_test_annos_withlabels.mat"}
CLASS_FILE = "cars_meta.mat"
MAT_PLACES = ("devkit", ".", "stanford_cars/devkit", "stanford_cars")


def read_stanford_cars(folder: Path, split: str) -> Split:
    """The files of one split; nothing is decoded. Label 0 is the published class 1."""
    problems: list[str] = []
    file_of_name = dict(_attempt(problems, _find_images, folder, split))
    classes = _attempt(problems, _read_classes, folder)
    annotations = _attempt(problems, _read_annotations, folder, split)
    if problems:
        return Split(FileImages(folder, [], []), problems=problems)
    label_of_name = {name: number - 1 for name, number in annotations if 1 <= number <= len(classes)}
    known = [name for name in file_of_name if name in label_of_name]
    images = FileImages(folder, [file_of_name[name] for name in known], [label_of_name[name] for name in known])
    return Split(images, classes, _mismatches(split, set(file_of_name), annotations, len(classes)))


def _attempt(problems: list[str], read: Callable[..., list[Any]], *where: Any) -> list[Any]:
    """What `read` returns; if it fails, an empty list and one more problem, so that all are reported together."""
    try:
        return read(*where)
    except DataError as error:
        problems.append(str(error))
        return []


def _find_images(folder: Path, split: str) -> list[tuple[str, str]]:
    """(name, path relative to the set) of every image."""
    images = IMAGE_FOLDERS[split]
    # Some mirrors pack everything into stanford_cars/, some double the folder.
    places = [images, f"stanford_cars/{images}", f"{images}/{images}", f"stanford_cars/{images}/{images}"]
    for place in places:
        names = image_names(folder / place) if (folder / place).is_dir() else []
        if names:
            return [(name, f"{place}/{name}") for name in names]
    raise DataError(f"{split}: no images found in {', '.join(places)}; expected those of {images}.tgz in one of them")


def _read_classes(folder: Path) -> list[str]:
    path = _find_mat(folder, CLASS_FILE)
    try:
        return [str(name) for name in read_mat(path, "class_names")]
    except Exception as error:  # a damaged file makes the parser raise almost any kind
        raise DataError(f"{path}: found {error!r}, expected the devkit's cell array class_names") from None


def _read_annotations(folder: Path, split: str) -> list[tuple[str, int]]:
    """(name, class from 1) of every image."""
    path = _find_mat(folder, ANNOTATION_FILES[split])
    try:
        rows = read_mat(path, "annotations")
        return [(str(row["fname"]), int(row["class"])) for row in rows]
    except Exception as error:  # as above
        raise DataError(
            f"{path}: found {error!r}, expected a struct array annotations with the fields class and fname"
        ) from None


def _find_mat(folder: Path, name: str) -> Path:
    for place in MAT_PLACES:
        if (folder / place / name).is_file():
            return folder / place / name
    where = f"{name} not found in {', '.join(MAT_PLACES)}"
    if name == ANNOTATION_FILES["val"]:
        raise DataError(
            f"val: {where}; the devkit alone has no test labels: its cars_test_annos.mat leaves out the class. "
            "The file is published beside the devkit; put it into devkit/ or next to it"
        )
    raise DataError(f"{where}; expected the devkit (car_devkit.tgz, extracted)")


def _mismatches(split: str, names: set[str], annotations: list[tuple[str, int]], num_classes: int) -> list[str]:
    """How the images on disk and the annotations differ."""
    images, file = IMAGE_FOLDERS[split], ANNOTATION_FILES[split]
    annotated = {name for name, _ in annotations}
    bad = [f"{name} ({number})" for name, number in annotations if not 1 <= number <= num_classes]
    return [
        f"{split}: found {len(found)} {what}: {shortened(found)}"
        for found, what in (
            (bad, f"entries of {file} whose class is not one of the {num_classes} in {CLASS_FILE}"),
            (sorted(annotated - names), f"entries of {file} without an image in {images}"),
            (sorted(names - annotated), f"images in {images} that {file} does not list"),
        )
        if found
    ]
