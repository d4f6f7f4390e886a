"""Which data sets there are, what a config says about one, and how a split of it is opened.

A published set is read in its published layout, your own images as a folder of class folders. `prepare` verifies a set
once and lists its files; opening a split afterwards reads that list and does not walk a million files again.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from pipeline.config import Strict, nearest, shown
from pipeline.data import cifar, fashion, tiny_imagenet
from pipeline.data.augment import Augment
from pipeline.data.folder import KINDS, read_folder
from pipeline.data.imagenet import read_imagenet
from pipeline.data.images import FileImages, ImageSet, Split, SplitName, shortened
from pipeline.data.manifest import MANIFEST, Manifest, read_manifest
from pipeline.data.stamp import differences
from pipeline.data.stanford_cars import read_stanford_cars
from pipeline.errors import DataError
from pipeline.results import prepare_command

DataName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
MODES = {1: "L", 3: "RGB"}
MAX_PROBLEMS = 20
LIST_HEADER = ["path", "label"]


@dataclass(frozen=True)
class Source:
    """A kind of data set: how it is read, what its folder holds, where people get it."""

    read: Callable[..., Split]  # (folder, split, **options)
    layout: str
    obtained: str
    # Side of every image as published; None where it varies.
    side: int | None = None
    # Images are files, which `prepare` lists.
    has_files: bool = False
    # Keys of the config that `read` needs too.
    options: tuple[str, ...] = ()


SOURCES = {
    "fashion_mnist": Source(
        read=fashion.read_fashion_mnist,
        layout="{train,t10k}-images-idx3-ubyte.gz and {train,t10k}-labels-idx1-ubyte.gz",
        obtained="https://github.com/zalandoresearch/fashion-mnist (a subset is part of this project)",
        side=fashion.SIDE,
    ),
    "imagenet": Source(
        read=read_imagenet,
        layout="train/<wnid>/*.JPEG; val/<wnid>/*.JPEG, or val/ILSVRC2012_val_*.JPEG with the devkit's "
        "meta.mat and ILSVRC2012_validation_ground_truth.txt",
        obtained="https://image-net.org/download.php (account needed): ILSVRC2012_img_train.tar (one tar "
        "per class in it), ILSVRC2012_img_val.tar, ILSVRC2012_devkit_t12.tar.gz",
        has_files=True,
    ),
    "tiny_imagenet": Source(
        read=tiny_imagenet.read_tiny_imagenet,
        layout="wnids.txt, train/<wnid>/images/*.JPEG, val/images/*.JPEG, val/val_annotations.txt",
        obtained="http://cs231n.stanford.edu/tiny-imagenet-200.zip; the folder is tiny-imagenet-200/ in it",
        side=tiny_imagenet.SIDE,
        has_files=True,
    ),
    "cifar10": Source(
        read=cifar.read_cifar10,
        layout="cifar-10-batches-bin/ or cifar-10-binary.tar.gz",
        obtained="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        side=cifar.SIDE,
    ),
    "cifar100": Source(
        read=cifar.read_cifar100,
        layout="cifar-100-binary/ or cifar-100-binary.tar.gz",
        obtained="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        side=cifar.SIDE,
    ),
    "stanford_cars": Source(
        read=read_stanford_cars,
        layout="cars_train/*.jpg, cars_test/*.jpg, devkit/cars_train_annos.mat, devkit/cars_meta.mat, and "
        "cars_test_annos_withlabels.mat beside or in devkit/",
        obtained="https://ai.stanford.edu/~jkrause/cars/car_dataset.html, which is no longer served; mirrors are "
        "listed in https://github.com/pytorch/vision/issues/7545",
        has_files=True,
    ),
    "folder": Source(
        read=read_folder,
        layout=f"train/<class>/ and val/<class>/, or <class>/ alone and `val_share` in the config; {KINDS} images "
        "directly in each class folder",
        obtained="these are your own images; if they changed on purpose, "
        "`python -m pipeline describe FOLDER --name NAME --force` writes the config again",
        has_files=True,
        options=("val_share",),
    ),
}


class DataConfig(Strict):
    """A data set as a run sees it. The counts are what `prepare` insists on."""

    # Also the key of its folder in the site file, and a folder name below results/<scale>/data.
    name: DataName
    source: str
    image_size: int = Field(gt=0)
    channels: Literal[1, 3]
    num_classes: int = Field(gt=0)
    num_train: int = Field(gt=0)
    num_val: int = Field(gt=0)
    val_share: float | None = Field(
        None, gt=0, lt=1, description="source folder: share of each class that is val; null: val is a separate folder"
    )
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment = Augment()
    # Evaluation resizes to image_size / eval_crop and crops the centre; 1.0 resizes only.
    eval_crop: float = Field(default=0.875, gt=0, le=1)

    @field_validator("source")
    @classmethod
    def _is_known(cls, source: str) -> str:
        if source not in SOURCES:
            raise ValueError(f"unknown source; {nearest(source, SOURCES)}")
        return source

    @model_validator(mode="after")
    def _share_fits_the_source(self) -> "DataConfig":
        if self.val_share is not None and "val_share" not in SOURCES[self.source].options:
            raise ValueError(
                f"val_share is {self.val_share}, but source {self.source} has a published split; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _one_statistic_per_channel(self) -> "DataConfig":
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.channels:
                raise ValueError(f"{key} has {len(values)} values, channels is {self.channels}; give one per channel")
        if min(self.std) <= 0:
            raise ValueError(f"std is {self.std}; pixels are divided by it, so each must be above 0")
        return self

    def count(self, split: SplitName) -> int:
        """Number of images the split must have."""
        return self.num_train if split == "train" else self.num_val


def default_folder(cfg: DataConfig) -> Path | None:
    """The folder of a set that is part of this project, else None."""
    return Path(__file__).parent / "fashion_mnist" if cfg.source == "fashion_mnist" else None


def open_split(cfg: DataConfig, folder: Path, split: SplitName, index: Path | None = None) -> ImageSet:
    """The images of a split, ready to be decoded; `index` is the folder that `prepare` wrote to, None looks for files.

    With an index the images are those that were verified, or there is an error.
    """
    images = find_images(cfg, folder, split, index)
    images.mode = MODES[cfg.channels]
    images.preload()
    return images


def find_images(cfg: DataConfig, folder: Path, split: SplitName, index: Path | None = None) -> ImageSet:
    """The images of a split, none of them read yet."""
    if not folder.is_dir():
        raise data_error(cfg, folder, [f"folder {folder} not found"])
    manifest = read_manifest(index / MANIFEST) if index else None
    if index and SOURCES[cfg.source].has_files:
        found = Split(_read_list(folder, index / f"{split}.csv"))
    else:
        found = read_split(cfg, folder, split)
    problems = found.problems + count_problems(cfg, split, found)
    if problems:
        raise data_error(cfg, folder, problems)
    if index and manifest:
        _check_stamp(found.images, manifest, split, folder, index / MANIFEST)
    return found.images


def read_split(cfg: DataConfig, folder: Path, split: SplitName) -> Split:
    """One split as found in the folder, with everything that is wrong with it."""
    source = SOURCES[cfg.source]
    return source.read(folder, split, **{key: getattr(cfg, key) for key in source.options})


def prepared_from(cfg: DataConfig, folder: Path | None, index: Path) -> str | None:
    """The folder that the data is prepared from: the verified one, unless `folder` holds other images now."""
    named = shown(folder) if folder else None
    try:
        verified = read_manifest(index / MANIFEST).folder
    except DataError:
        return named
    # Finished results need no data: a machine without the folder, or with a moved one, has nothing to prepare.
    if folder is None or not folder.is_dir() or named == verified:
        return verified
    try:
        for split in get_args(SplitName):
            find_images(cfg, folder, split, index)
    except DataError:
        return named
    return verified


def _check_stamp(images: ImageSet, manifest: Manifest, split: SplitName, folder: Path, path: Path) -> None:
    """Refuse images that are not those of the manifest."""
    found = differences(images, manifest.splits[split].stamp)
    if not found:
        return
    raise DataError(
        f"data set {manifest.name!r}: the folder does not hold the {split} images that were verified\n"
        + "\n".join(f"  - {split}: {line}" for line in listed(found))
        + f"\nfolder that the site names: {folder}\n"
        f"folder that was verified: {manifest.folder} ({shown(path)})\n"
        f"what to do: if the site names the right folder, run `{prepare_command(path)}`; "
        f"if not, fix `data: {manifest.name}:` in the site file"
    )


def listed(problems: list[str]) -> list[str]:
    """The first problems and how many more there are."""
    more = [f"and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
    return [*problems[:MAX_PROBLEMS], *more]


def _read_list(folder: Path, path: Path) -> FileImages:
    """The images that a list of `prepare` names."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        files, labels = [name for name, _ in rows], [int(label) for _, label in rows]
        if header != LIST_HEADER:
            raise ValueError(f"header {header}")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: found {error}, expected a list of {','.join(LIST_HEADER)}; run `{prepare_command(path)}` again"
        ) from None
    return FileImages(folder, files, labels)


def count_problems(cfg: DataConfig, split: SplitName, found: Split) -> list[str]:
    """How the numbers of images and classes differ from those of the config."""
    labels = found.images.labels
    # A split that could not be read has reported that already.
    if found.problems and not labels:
        return []
    problems = []
    if len(labels) != cfg.count(split):
        problems.append(f"{split}: found {len(labels)} images, expected {cfg.count(split)}")
    present = set(labels)
    if len(present) != cfg.num_classes:
        problems.append(f"{split}: found images of {len(present)} classes, expected {cfg.num_classes}")
    outside = sorted(label for label in present if not 0 <= label < cfg.num_classes)
    if outside:
        problems.append(f"{split}: found labels {shortened(outside)}, expected 0 to {cfg.num_classes - 1}")
    return problems


def data_error(cfg: DataConfig, folder: Path, problems: list[str]) -> DataError:
    """One error for all problems of a set: what was found, what is expected, where to get it."""
    source = SOURCES[cfg.source]
    return DataError(
        f"data set {cfg.name!r} in {folder} cannot be used, number of problems: {len(problems)}\n"
        + "".join(f"  - {line}\n" for line in listed(problems))
        + f"expected: {cfg.num_train} train and {cfg.num_val} val images of {cfg.num_classes} classes\n"
        f"in this layout: {source.layout}\n"
        f"to get it: {source.obtained}\n"
        f"what to do: fix or download the data set, or set its folder under `data: {cfg.name}:` in the site file"
    )
