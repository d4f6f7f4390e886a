"""Which published sets of images there are: how each is read, and what its folder holds.

A published set is read in its published layout, your own images as a folder of class folders.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pipeline.data.readers import cifar, fashion, tiny_imagenet
from pipeline.data.readers.any_depth import read_any_depth
from pipeline.data.readers.celeba import read_celeba
from pipeline.data.readers.folder import FORMATS, read_class_folders, read_folder
from pipeline.data.readers.imagenet import read_imagenet
from pipeline.data.readers.stanford_cars import read_stanford_cars
from pipeline.data.samples import Split


@dataclass(frozen=True)
class Source:
    """A published set, or a layout of one's own."""

    read: Callable[..., Split]  # (folder, split, **options)
    layout: str
    # Where configs/published_sets.yaml does not have the set.
    obtained: str = ""
    # Side of every image as published; None where it varies.
    side: int | None = None
    # Images are files, which `prepare` lists.
    has_files: bool = False
    # An image has any number of attributes, and no class.
    has_attributes: bool = False
    # Images have classes or attributes.
    has_labels: bool = True
    # Part of this project: a folder beside this file.
    embedded: str = ""
    # Keys of the config that `read` needs too.
    options: tuple[str, ...] = ()


SOURCES = {
    "fashion_mnist": Source(
        read=fashion.read_fashion_mnist,
        layout="{train,t10k}-images-idx3-ubyte.gz and {train,t10k}-labels-idx1-ubyte.gz",
        obtained="https://github.com/zalandoresearch/fashion-mnist (a subset is part of this project)",
        side=fashion.SIDE,
        embedded="fashion_mnist",
    ),
    "fashion_attributes": Source(
        read=fashion.read_fashion_attributes,
        layout="as fashion_mnist",
        obtained="it is part of this project: fashion_mnist with attributes that follow from the classes",
        side=fashion.SIDE,
        embedded="fashion_mnist",
        has_attributes=True,
    ),
    "imagenet": Source(
        read=read_imagenet,
        layout="train/<wnid>/*.JPEG; val/<wnid>/*.JPEG, or val/ILSVRC2012_val_*.JPEG with the devkit's "
        "meta.mat and ILSVRC2012_validation_ground_truth.txt",
        has_files=True,
    ),
    "imagenet_a": Source(
        read=read_class_folders,
        layout="<wnid>/*.jpg, 200 class folders",
        has_files=True,
    ),
    "imagenet_o": Source(
        read=read_class_folders,
        layout="<wnid>/*.JPEG, 200 class folders",
        has_files=True,
    ),
    "class_folders": Source(
        read=read_class_folders,
        layout="<class>/*.png; special characters of a class name are quoted as in a URL",
        obtained="`python -m pipeline prepare` makes it from another set",
        has_files=True,
    ),
    "tiny_imagenet": Source(
        read=tiny_imagenet.read_tiny_imagenet,
        layout="wnids.txt, train/<wnid>/images/*.JPEG, val/images/*.JPEG, val/val_annotations.txt",
        side=tiny_imagenet.SIDE,
        has_files=True,
    ),
    "cifar10": Source(
        read=cifar.read_cifar10,
        layout="cifar-10-batches-bin/ or cifar-10-binary.tar.gz",
        side=cifar.SIDE,
    ),
    "cifar100": Source(
        read=cifar.read_cifar100,
        layout="cifar-100-binary/ or cifar-100-binary.tar.gz",
        side=cifar.SIDE,
    ),
    "stanford_cars": Source(
        read=read_stanford_cars,
        layout="cars_train/*.jpg, cars_test/*.jpg, devkit/cars_train_annos.mat, devkit/cars_meta.mat, and "
        "cars_test_annos_withlabels.mat beside or in devkit/",
        has_files=True,
    ),
    "celeba": Source(
        read=read_celeba,
        layout="img_align_celeba/*.jpg, list_attr_celeba.txt, list_eval_partition.txt; in one folder, or in "
        "Img/, Anno/ and Eval/ of it",
        has_files=True,
        has_attributes=True,
    ),
    "folder": Source(
        read=read_folder,
        layout=f"train/<class>/ and val/<class>/, or <class>/ alone and `val_share` in the config; {FORMATS} images "
        "directly in each class folder",
        obtained="these are your own images; if they changed on purpose, "
        "`python -m pipeline describe FOLDER --name NAME --force` writes the config again",
        has_files=True,
        options=("val_share",),
    ),
    "any_depth": Source(
        read=read_any_depth,
        layout=f"{FORMATS} images at any depth of train/ and val/, or of the folder and `val_share` in the config",
        obtained="these are your own images; if they changed on purpose, "
        "`python -m pipeline describe FOLDER --name NAME --unlabelled --force` writes the config again",
        has_files=True,
        has_labels=False,
        options=("val_share", "left_out"),
    ),
}
