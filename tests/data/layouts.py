"""Small data sets written in exactly the published layouts, and configs that fit them."""

import gzip
import struct

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from pipeline.core.config import Layers, parse
from pipeline.core.errors import DataError
from pipeline.data.images.classified import DataConfig

WNIDS = ["n01440764", "n01443537", "n02084071"]


def config(source, /, **changes):
    channels = 1 if source == "fashion_mnist" else 3
    values = {
        "name": f"small_{source}",
        "source": source,
        "image_size": 32,
        "channels": channels,
        "num_classes": 3,
        "num_train": 6,
        "num_val": 3,
        "mean": [0.5] * channels,
        "std": [0.25] * channels,
    }
    return parse(DataConfig, Layers(("test", values | changes)))


def write_jpeg(path, colour, size=(64, 64), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, "JPEG", quality=95)


def write_imagenet_train(folder, wnids=WNIDS):
    for number, wnid in enumerate(wnids):
        for copy in range(2):
            write_jpeg(folder / "train" / wnid / f"{wnid}_{copy}.JPEG", (80 * number, 0, 0), (50 + copy, 40))


def write_imagenet(folder, val_wnids=WNIDS):
    """Val in class folders."""
    write_imagenet_train(folder)
    for number, wnid in enumerate(val_wnids):
        write_jpeg(folder / "val" / wnid / f"ILSVRC2012_val_{number + 1:08d}.JPEG", (80 * number, 0, 0))
    return folder


def write_loose_val(folder, devkit="ILSVRC2012_devkit_t12/data"):
    """Val as its archive unpacks; ILSVRC2012 ids 1, 2, 3 are the sorted wnids 2, 0, 1."""
    write_imagenet_train(folder)
    for number, label in enumerate([1, 2, 0]):
        write_jpeg(folder / "val" / f"ILSVRC2012_val_{number + 1:08d}.JPEG", (80 * label, 0, 0))
    (folder / devkit).mkdir(parents=True, exist_ok=True)
    (folder / devkit / "ILSVRC2012_validation_ground_truth.txt").write_text("3\n1\n2\n")
    write_meta_mat(folder / devkit / "meta.mat")
    return folder


def write_meta_mat(path):
    """A struct array of leaves and one inner node, with the devkit's fields in the devkit's order."""
    rows = [(1, WNIDS[2], 0), (2, WNIDS[0], 0), (3, WNIDS[1], 0), (4, "n00001740", 3)]
    fields = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height"]
    synsets = np.zeros((len(rows), 1), dtype=[(name, object) for name in [*fields, "num_train_images"]])
    for row, (number, wnid, children) in enumerate(rows):
        synsets[row, 0] = (number, wnid, "dog, hound", "a dog", children, np.arange(children), 0, 1300)
    savemat(path, {"synsets": synsets})


def write_tiny_imagenet(folder):
    for number, wnid in enumerate(WNIDS):
        for copy in range(2):
            write_jpeg(folder / "train" / wnid / "images" / f"{wnid}_{copy}.JPEG", (80 * number, 0, 0))
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t10\t63\t58\n")
    annotations = ""
    for number, wnid in enumerate(reversed(WNIDS)):
        write_jpeg(folder / "val" / "images" / f"val_{number}.JPEG", (80 * WNIDS.index(wnid), 0, 0))
        annotations += f"val_{number}.JPEG\t{wnid}\t0\t32\t44\t62\n"
    (folder / "val" / "val_annotations.txt").write_text(annotations)
    # Not sorted, as published.
    (folder / "wnids.txt").write_text("\n".join([WNIDS[1], WNIDS[2], WNIDS[0]]) + "\n")
    return folder


CAR_CLASSES = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "smart fortwo Convertible 2012"]


def write_stanford_cars(folder, test_labels="."):
    """Classes count from 1 and are not in order; `test_labels` is the folder of cars_test_annos_withlabels.mat."""
    for split, classes in (("train", [2, 1, 3, 3, 1, 2]), ("test", [3, 1, 2])):
        names = [f"{number + 1:05d}.jpg" for number in range(len(classes))]
        for name, number in zip(names, classes, strict=True):
            write_jpeg(folder / f"cars_{split}" / name, (80 * (number - 1), 0, 0))
        write_cars_annotations(
            folder / "devkit" / f"cars_{split}_annos.mat", names, classes, has_class=split == "train"
        )
    write_cars_annotations(folder / test_labels / "cars_test_annos_withlabels.mat", names, classes)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array([CAR_CLASSES], dtype=object)})
    return folder


def write_cars_annotations(path, names, classes, has_class=True):
    """A struct array of shape (1, count), with the devkit's fields in the devkit's order and integer types."""
    fields = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", *(["class"] if has_class else []), "fname"]
    annotations = np.zeros((1, len(names)), dtype=[(field, object) for field in fields])
    for column, (name, number) in enumerate(zip(names, classes, strict=True)):
        box = tuple(np.uint16(value) for value in (3, 4, 60, 500))
        annotations[0, column] = (*box, *([np.uint8(number)] if has_class else []), name)
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"annotations": annotations})


def write_idx(path, array):
    magic = {1: 2049, 3: 2051}[array.ndim]
    header = struct.pack(f">{1 + array.ndim}I", magic, *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


def write_fashion_mnist(folder):
    for prefix, count in (("train", 6), ("t10k", 3)):
        pixels = np.arange(count * 784).reshape(count, 28, 28) % 251
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", pixels)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", np.arange(count) % 3)
    return folder


def cifar_batch(count, seed):
    """Pixels (count, 3072) as three planes, and labels 0, 1, 2, 0 ..."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)
    return pixels, [number % 3 for number in range(count)]


CIFAR_FILES = {
    "cifar10": [*((f"data_batch_{n}.bin", 3, n) for n in range(1, 6)), ("test_batch.bin", 3, 9)],
    "cifar100": [("train.bin", 15, 1), ("test.bin", 3, 9)],
}
CIFAR_COUNTS = {"num_train": 15, "num_val": 3}
CIFAR_FOLDER = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}


def write_cifar(folder, source):
    target = folder / CIFAR_FOLDER[source]
    target.mkdir(parents=True)
    for name, count, seed in CIFAR_FILES[source]:
        pixels, labels = cifar_batch(count, seed)
        columns = [np.array(labels, np.uint8)[:, None], pixels]
        if source == "cifar100":
            columns.insert(0, np.full((count, 1), 19, np.uint8))
        (target / name).write_bytes(np.concatenate(columns, axis=1).tobytes())
    return folder


def message_of(function, *args, **kwargs):
    with pytest.raises(DataError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


FACE_ATTRIBUTES = ["5_o_Clock_Shadow", "Bald", "Smiling"]
FACES = {"000001.jpg": (0, [1, 0, 1]), "000002.jpg": (0, [0, 0, 1]), "000003.jpg": (1, [1, 1, 1])}
FACES |= {"000004.jpg": (2, [0, 1, 0]), "000005.jpg": (0, [0, 0, 0]), "000006.jpg": (1, [0, 1, 0])}


def write_celeba(folder, images="img_align_celeba", attributes=".", partition=".", faces=FACES):
    """Values are 1 and -1, with two spaces before a 1, as published."""
    for number, name in enumerate(faces):
        write_jpeg(folder / images / name, (40 * number, 0, 0), (178, 218))
    rows = "".join(
        f"{name} {' '.join(' 1' if value else '-1' for value in values)}\n" for name, (_, values) in faces.items()
    )
    for place in (attributes, partition):
        (folder / place).mkdir(parents=True, exist_ok=True)
    header = f"{len(faces)}\n{' '.join(FACE_ATTRIBUTES)} \n"
    (folder / attributes / "list_attr_celeba.txt").write_text(header + rows)
    parts = "".join(f"{name} {part}\n" for name, (part, _) in faces.items())
    (folder / partition / "list_eval_partition.txt").write_text(parts)
    return folder
