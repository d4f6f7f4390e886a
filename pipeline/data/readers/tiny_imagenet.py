"""Tiny ImageNet as published: wnids.txt, train/<wnid>/images/, val/images/ with val_annotations.txt.

The test images have no public labels and are not read.
"""

from pathlib import Path

from pipeline.data.images.images import FileImages
from pipeline.data.readers.imagenet import class_folders, image_names
from pipeline.data.samples import Split, shortened

SIDE = 64


def read_tiny_imagenet(folder: Path, split: str) -> Split:
    """The files of one split; nothing is decoded. A class index is the position among the sorted wnids."""
    missing = [name for name in ("wnids.txt", split) if not (folder / name).exists()]
    if missing:
        return Split(FileImages(folder, [], []), problems=[f"{split}: {name} not found" for name in missing])
    classes = sorted(set((folder / "wnids.txt").read_text(encoding="utf-8").split()))
    read = _read_train if split == "train" else _read_val
    files, problems = read(folder, classes)
    label_of_wnid = {wnid: label for label, wnid in enumerate(classes)}
    images = FileImages(folder, [file for file, _ in files], [label_of_wnid[wnid] for _, wnid in files])
    return Split(images, classes, problems)


def _read_train(folder: Path, classes: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """(file, wnid) of every image, and problems."""
    found = set(class_folders(folder / "train"))
    lacking, unknown = sorted(set(classes) - found), sorted(found - set(classes))
    problems = []
    if lacking:
        problems.append(f"train: no folder found for {len(lacking)} ids of wnids.txt: {shortened(lacking)}")
    if unknown:
        problems.append(f"train: found {len(unknown)} class folders not in wnids.txt: {shortened(unknown)}")
    files = []
    for wnid in sorted(found & set(classes)):
        images = folder / "train" / wnid / "images"
        if not images.is_dir():
            problems.append(f"train: folder train/{wnid}/images not found")
            continue
        files += [(f"train/{wnid}/images/{name}", wnid) for name in image_names(images)]
    return files, problems


def _read_val(folder: Path, classes: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """(file, wnid) of every image, and problems."""
    annotations, images = folder / "val" / "val_annotations.txt", folder / "val" / "images"
    problems = [f"val: val/{path.name} not found" for path in (annotations, images) if not path.exists()]
    if problems:
        return [], problems
    # Name, wnid, then the bounding box, separated by tabs.
    rows = [line.split("\t") for line in annotations.read_text(encoding="utf-8").splitlines() if line.strip()]
    bad = [row[0] for row in rows if len(row) < 2 or row[1] not in classes]
    wnid_of_name = {row[0]: row[1] for row in rows if row[0] not in bad}
    present = image_names(images)
    lacking = sorted(set(wnid_of_name) - set(present))
    unlisted = sorted(set(present) - {row[0] for row in rows})
    for names, what in (
        (bad, "lines of val_annotations.txt without a class of wnids.txt"),
        (lacking, "images of val_annotations.txt that are not in val/images"),
        (unlisted, "images that val_annotations.txt does not list"),
    ):
        if names:
            problems.append(f"val: found {len(names)} {what}: {shortened(names)}")
    return [(f"val/images/{name}", wnid_of_name[name]) for name in present if name in wnid_of_name], problems
