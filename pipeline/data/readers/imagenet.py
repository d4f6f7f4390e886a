"""ImageNet-1K as published: class folders for train; for val class folders or loose files with the devkit.

A class index is the position of its WordNet id among the sorted ids of the set.
"""

import os
import re
from pathlib import Path

from pipeline.core.errors import DataError
from pipeline.data.images.images import IMAGE_SUFFIXES, FileImages, read_mat
from pipeline.data.samples import Split, shortened

WNID = re.compile(r"n\d{8}")
VAL_FILE = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG", re.IGNORECASE)
TRUTH_FILE = "ILSVRC2012_validation_ground_truth.txt"
META_FILE = "meta.mat"
DEVKIT_FOLDERS = (".", "ILSVRC2012_devkit_t12/data", "devkit/data")


def read_imagenet(folder: Path, split: str) -> Split:
    """The files of one split; nothing is decoded."""
    if not (folder / split).is_dir():
        return Split(FileImages(folder, [], []), problems=[f"{split}: folder {split}/ not found"])
    classes = class_folders(folder / split)
    loose = image_names(folder / split)
    if classes and loose:
        problem = f"{split}: found both class folders and loose images ({shortened(loose)}), expected one of them"
        return Split(FileImages(folder, [], []), classes, [problem])
    if loose and split == "val":
        return _read_loose_val(folder, loose)
    if not classes:
        return Split(FileImages(folder, [], []), problems=[f"{split}: no class folders found in {split}/"])
    files = [
        (f"{split}/{wnid}/{name}", label)
        for label, wnid in enumerate(classes)
        for name in image_names(folder / split / wnid)
    ]
    return Split(FileImages(folder, [file for file, _ in files], [label for _, label in files]), classes)


def class_folders(folder: Path) -> list[str]:
    """WordNet ids of the class folders, sorted."""
    return sorted(entry.name for entry in os.scandir(folder) if WNID.fullmatch(entry.name) and entry.is_dir())


def image_names(folder: Path) -> list[str]:
    """Names of the images directly in a folder, sorted."""
    # Names only: asking a network disk about a million files takes minutes.
    return sorted(name for name in os.listdir(folder) if name.lower().endswith(IMAGE_SUFFIXES))


def _read_loose_val(folder: Path, names: list[str]) -> Split:
    """val/ as the archive unpacks: the devkit says which class the n-th image has."""
    try:
        wnid_of_id = _read_synsets(_find_in_devkit(folder, META_FILE))
        truth = _read_truth(_find_in_devkit(folder, TRUTH_FILE), wnid_of_id)
    except DataError as error:
        return Split(FileImages(folder, [], []), problems=[str(error)])
    classes = sorted(wnid_of_id.values())
    label_of_wnid = {wnid: label for label, wnid in enumerate(classes)}
    files, labels, unknown = [], [], []
    for name in names:
        match = VAL_FILE.fullmatch(name)
        number = int(match.group(1)) if match else 0
        if not 1 <= number <= len(truth):
            unknown.append(name)
            continue
        files.append(f"val/{name}")
        labels.append(label_of_wnid[truth[number - 1]])
    problems = []
    if unknown:
        problems.append(
            f"val: found {len(unknown)} images without a class: {shortened(unknown)}; "
            f"expected ILSVRC2012_val_00000001.JPEG to {len(truth):08d}, the lines of {TRUTH_FILE}"
        )
    return Split(FileImages(folder, files, labels), classes, problems)


def _find_in_devkit(folder: Path, name: str) -> Path:
    for place in DEVKIT_FOLDERS:
        if (folder / place / name).is_file():
            return folder / place / name
    raise DataError(
        f"val: found loose images but no {name} in {', '.join(DEVKIT_FOLDERS)}; "
        "expected the devkit (ILSVRC2012_devkit_t12.tar.gz, extracted) or val/<wnid>/ class folders"
    )


def _read_synsets(path: Path) -> dict[int, str]:
    """WordNet id by ILSVRC2012 id of the leaves; the inner nodes of the hierarchy follow them in the file."""
    try:
        synsets = read_mat(path, "synsets")
        leaves = [row for row in synsets if int(row["num_children"]) == 0]
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in leaves}
    except Exception as error:  # a damaged file makes the parser raise almost any kind
        raise DataError(f"{path}: found {error!r}, expected the devkit's table of synsets") from None


def _read_truth(path: Path, wnid_of_id: dict[int, str]) -> list[str]:
    """WordNet id of each validation image, in the order of their numbers."""
    lines = path.read_text(encoding="ascii", errors="replace").split()
    bad = [line for line in lines if not line.isdigit() or int(line) not in wnid_of_id]
    if bad:
        raise DataError(
            f"{path}: found {len(bad)} lines such as {shortened(bad)}, expected ids of the "
            f"{len(wnid_of_id)} leaves in {META_FILE}"
        )
    return [wnid_of_id[int(line)] for line in lines]
