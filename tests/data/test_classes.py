"""Names of classes in manifests, sets for evaluation alone, and mappings between sets by name."""

import json
import shutil

import pytest
from layouts import (
    CAR_CLASSES,
    CIFAR_COUNTS,
    WNIDS,
    config,
    message_of,
    write_cifar,
    write_fashion_mnist,
    write_imagenet,
    write_jpeg,
    write_loose_val,
    write_stanford_cars,
    write_tiny_imagenet,
)

from pipeline.data.kind import kind_of
from pipeline.data.readers.classes import class_names, labels_in
from pipeline.data.store.manifest import read_manifest, write_manifest
from pipeline.data.store.opening import find_samples, open_split
from pipeline.data.store.prepare import prepare

COUNTS = {"num_train": 0, "num_val": 2, "num_classes": 2}


def write_two_wnids(folder, wnids=WNIDS[1:]):
    """Val alone, of two of the classes."""
    for number, wnid in enumerate(wnids):
        write_jpeg(folder / "val" / wnid / f"a{number}.JPEG", (200, 0, 0))
    return folder


def prepared(tmp_path, name, cfg, folder):
    """The manifest's path."""
    out = tmp_path / "results" / "demo" / "data" / name
    prepare(cfg, folder, out, progress=False)
    return out / "manifest.json"


def write_named_cifar(folder):
    write_cifar(folder, "cifar100")
    (folder / "cifar-100-binary" / "fine_label_names.txt").write_text("apple\nbear\ncloud\n\n")
    return folder


def write_folder(folder):
    for split in ("train", "val"):
        for number in range(3):
            for copy in range(2 if split == "train" else 1):
                write_jpeg(folder / split / f"class {number}" / f"{copy}.jpg", (80 * number, 0, 0))
    return folder


CLASSES = {
    "imagenet": (write_imagenet, {}, WNIDS),
    "tiny_imagenet": (write_tiny_imagenet, {}, WNIDS),
    "fashion_mnist": (write_fashion_mnist, {}, ["T-shirt/top", "Trouser", "Pullover"]),
    "cifar100": (write_named_cifar, CIFAR_COUNTS, ["apple", "bear", "cloud"]),
    "folder": (write_folder, {}, ["class 0", "class 1", "class 2"]),
    "stanford_cars": (write_stanford_cars, {}, CAR_CLASSES),
}


@pytest.mark.parametrize("source", CLASSES)
def test_manifest__every_source__names_its_classes_in_the_order_of_labels(tmp_path, source):
    write, counts, expected = CLASSES[source]
    path = prepared(tmp_path, source, config(source, **counts), write(tmp_path / "data"))
    assert class_names(path) == expected


def test_manifest__loose_val__names_the_wnids(tmp_path):
    path = prepared(tmp_path, "imagenet", config("imagenet"), write_loose_val(tmp_path / "data"))
    assert class_names(path) == WNIDS


def test_class_names__files_name_none__says_so(tmp_path):
    folder = write_cifar(tmp_path / "data", "cifar10")
    path = prepared(tmp_path, "cifar10", config("cifar10", **CIFAR_COUNTS), folder)
    assert (
        message_of(class_names, path)
        == "data set 'small_cifar10' (source cifar10) has no names of classes in its files"
    )


def test_old_manifest__without_classes__is_read_and_asks_for_prepare_where_they_are_needed(tmp_path):
    path = prepared(tmp_path, "imagenet", config("imagenet"), write_imagenet(tmp_path / "data"))
    content = json.loads(path.read_text())
    del content["classes"], content["digest"]
    path.write_text(json.dumps(content))
    assert len(open_split(config("imagenet"), tmp_path / "data", "val", path.parent)) == 3
    message = message_of(class_names, path)
    assert message.endswith("run `python -m pipeline prepare --scale demo --data imagenet` again")


def test_prepare__old_manifest_without_classes__keeps_the_fingerprint(tmp_path):
    cfg, folder = config("imagenet"), write_imagenet(tmp_path / "data")
    path = prepared(tmp_path, "imagenet", cfg, folder)
    before = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in before.items() if key not in ("classes", "digest")}))
    prepare(cfg, folder, path.parent, progress=False)
    assert json.loads(path.read_text()) == before


def test_evaluation_set__only_val_with_two_of_the_classes__is_prepared_and_opened(tmp_path):
    cfg, folder = config("imagenet", **COUNTS), write_two_wnids(tmp_path / "data")
    path = prepared(tmp_path, "subset", cfg, folder)
    assert list(read_manifest(path).splits) == ["val"]
    assert open_split(cfg, folder, "val", path.parent).labels == [0, 1]
    assert kind_of(cfg).expected() == "2 val images of 2 classes"


def test_evaluation_set__train_split_asked_for__says_that_there_is_none(tmp_path):
    cfg, folder = config("imagenet", **COUNTS), write_two_wnids(tmp_path / "data")
    message = message_of(find_samples, cfg, folder, "train")
    assert message == "data set 'small_imagenet' has no train split (num_train is 0): it is only for evaluations"


def test_labels_in__subset_of_the_classes__finds_each_by_its_name(tmp_path):
    whole = prepared(tmp_path, "imagenet", config("imagenet"), write_imagenet(tmp_path / "whole"))
    part = prepared(tmp_path, "part", config("imagenet", **COUNTS), write_two_wnids(tmp_path / "part"))
    assert labels_in(part, whole) == [1, 2]


def test_labels_in__class_that_the_other_set_lacks__lists_it(tmp_path):
    whole = prepared(tmp_path, "imagenet", config("imagenet"), write_imagenet(tmp_path / "whole"))
    other = write_two_wnids(tmp_path / "part", [WNIDS[2], "n99999999"])
    part = prepared(tmp_path, "part", config("imagenet", **COUNTS), other)
    message = message_of(labels_in, part, whole)
    assert "found 1 of 2 classes of part that imagenet does not have: n99999999" in message
    assert f"expected names such as {', '.join(WNIDS)}" in message
    assert "rename the classes of part and run `python -m pipeline prepare --scale " in message


def test_labels_in__two_classes_of_one_name__is_refused(tmp_path):
    path = prepared(tmp_path, "imagenet", config("imagenet"), write_imagenet(tmp_path / "data"))
    other = tmp_path / "results" / "demo" / "data" / "other"
    shutil.copytree(path.parent, other)
    twice = [WNIDS[1] if name == WNIDS[0] else name for name in read_manifest(path).classes]
    write_manifest(other / "manifest.json", read_manifest(path).model_copy(update={"classes": twice}))
    assert f"other has {WNIDS[1]} twice" in message_of(labels_in, path, other / "manifest.json")
