"""Small sets in the layouts of COCO and ADE20K, their configs, and what sets are made from."""

import json

import numpy as np
from layouts import write_jpeg
from PIL import Image

from pipeline.core.config import CONFIGS, Layers, merge, read_yaml
from pipeline.data.kind import kind_of, parse_data
from pipeline.data.store.manifest import read_manifest
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare

COUNTS = {"coco": {"num_train": 2, "num_val": 2, "num_classes": 3}, "ade20k": {"num_train": 3, "num_val": 2}}


def data_config(name, /, **changes):
    """A config of this project with changes, such as small counts."""
    return parse_data(Layers(("test", merge(read_yaml(CONFIGS / "data" / f"{name}.yaml")["data"], changes))))


def config(name, /, **changes):
    """Of a small set as it is written here."""
    small = {"image_size": 32, **COUNTS[name]} | ({"num_classes": 4} if name == "ade20k" else {})
    return data_config(name, **small | changes)


# COCO

SQUARE = [10.0, 5.0, 30.0, 5.0, 30.0, 25.0, 10.0, 25.0]
CATEGORIES = [(90, "toothbrush"), (1, "person"), (3, "car")]  # not in the order of their ids


def annotation(number, image, category, **changes):
    values = {"segmentation": [SQUARE], "bbox": [10.0, 5.0, 20.0, 20.0], "area": 400.0, "iscrowd": 0}
    return {"id": number, "image_id": image, "category_id": category, **values, **changes}


def coco_content():
    """Train: image 7 with two objects and a crowd, image 9 with one, image 8 with none. Val: images 1 and 2."""
    two = [SQUARE, [40.0, 30.0, 50.0, 30.0, 45.0, 38.0]]
    runs = {"size": [40, 60], "counts": [0, 40, 2360]}
    return {
        "train": [
            annotation(11, 9, 90),
            annotation(12, 7, 3, segmentation=two, bbox=[10.0, 5.0, 40.0, 33.0], area=440.0),
            annotation(13, 7, 1, segmentation={"size": [40, 60], "counts": "T18X1Xa1"}, bbox=[1.0, 4.0, 2.0, 8.0]),
            annotation(14, 7, 1, iscrowd=1, segmentation=runs, bbox=[0.0, 0.0, 1.0, 40.0], area=40.0),
        ],
        "val": [annotation(1, 2, 3)],
    }


def write_coco(folder, names=("train2017", "val2017")):
    """Pictures of 60 x 40; the compressed runs are made by the library that reads them."""
    from faster_coco_eval.core import mask

    content, images = coco_content(), {"train": [9, 7, 8], "val": [2, 1]}
    bitmap = np.zeros((40, 60), dtype=np.uint8, order="F")
    bitmap[4:12, 1:3] = 1
    content["train"][2]["segmentation"]["counts"] = mask.encode(bitmap)["counts"].decode()
    content["train"][2]["area"] = 16.0
    for split, name in zip(("train", "val"), names, strict=True):
        for number in images[split]:
            write_jpeg(folder / name / f"{number:012d}.jpg", (20 * number, 0, 0), (60, 40))
        listed = [
            {"id": number, "file_name": f"{number:012d}.jpg", "width": 60, "height": 40} for number in images[split]
        ]
        categories = [{"id": number, "name": name, "supercategory": "x"} for number, name in CATEGORIES]
        write_list(folder, split, {"images": listed, "annotations": content[split], "categories": categories})
    return folder


def list_path(folder, split="train"):
    return folder / "annotations" / f"instances_{split}2017.json"


def write_list(folder, split, content):
    path = list_path(folder, split)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def edit_list(folder, change, split="train"):
    """Change the content of a list in place."""
    content = json.loads(list_path(folder, split).read_text())
    change(content)
    write_list(folder, split, content)


# ADE20K


def write_ade20k(folder, inside=""):
    """Pictures of different sizes; class k of the first ones covers column k."""
    for split, part, count in (("train", "training", 3), ("val", "validation", 2)):
        for number in range(count):
            name, size = f"{part}/ADE_{split}_{number + 1:08d}", (20 + number, 16)
            write_jpeg(folder / inside / "images" / f"{name}.jpg", (80 * number, 0, 0), size)
            labels = np.zeros(size[::-1], dtype=np.uint8)
            labels[:, :5] = np.arange(5)
            write_classes(folder / inside / "annotations" / f"{name}.png", labels)
    rows = [("Idx", "Ratio", "Train", "Val", "Name"), *((str(k), "0.1", "3", "2", f"thing {k}") for k in range(1, 5))]
    (folder / inside / "objectInfo150.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    return folder


def write_classes(path, labels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(labels).save(path)


# Sets that are made


class Garments:
    """What scenes are made of: the garments that are part of the project, as prepared."""

    def __init__(self, results):
        self.data, self.results = data_config("fashion_mnist"), results
        self.folder = kind_of(self.data).default_folder()
        prepare(self.data, self.folder, results / "data" / "fashion_mnist", progress=False)
        self.manifest = read_manifest(results / "data" / "fashion_mnist" / "manifest.json")

    def open(self, name, split="val"):
        return open_split(self.data, self.folder, split, self.results / "data" / name)

    def fingerprint(self, name, split="val"):
        return self.manifest.splits[split].fingerprint

    def classes(self, name):
        return self.manifest.classes
