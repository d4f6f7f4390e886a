"""ImageNet-A's layout, and sets that are filtered with a reference model and written in it."""

import json
import os

import numpy as np
import pytest
from layouts import WNIDS, config, message_of, write_fashion_mnist, write_jpeg

from pipeline.core.config import Layers
from pipeline.data.derived import filtering
from pipeline.data.kind import kind_of, parse_data
from pipeline.data.readers.folder import read_class_folders
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare

NATURAL = {"num_train": 0, "num_val": 4}


# The published layout


def write_natural(folder, wnids=WNIDS):
    for number, wnid in enumerate(wnids):
        write_jpeg(folder / wnid / f"0.00{number}_fox _ fox_0.9.jpg", (80 * number, 0, 0), (90, 70))
    write_jpeg(folder / wnids[0] / "another.jpg", (10, 0, 0))
    (folder / "README.txt").write_text("a list of classes")
    return folder


@pytest.mark.parametrize("source", ["imagenet_a", "imagenet_o"])
def test_class_folders__published_layout__is_one_split_in_the_order_of_wnids(tmp_path, source):
    folder, cfg = write_natural(tmp_path / "set"), config(source, **NATURAL)
    manifest = prepare(cfg, folder, tmp_path / "out", progress=False)
    found = open_split(cfg, folder, "val", tmp_path / "out")
    assert manifest.classes == WNIDS and [*manifest.splits] == ["val"]
    assert found.labels == [0, 0, 1, 2]
    assert found.name(3) == f"{WNIDS[2]}/0.002_fox _ fox_0.9.jpg"


def test_class_folders__names_quoted_as_in_a_url__are_in_the_order_of_the_names(tmp_path):
    for name in ("a%2Fb", "a-b"):  # a slash comes after a hyphen, a percent sign before it
        write_jpeg(tmp_path / name / "0.jpg", 0)
    assert read_class_folders(tmp_path, "val").classes == ["a-b", "a/b"]


def test_class_folders__wrong_counts__are_reported_with_where_to_get_the_set(tmp_path):
    folder = write_natural(tmp_path / "set", WNIDS[:2])
    (folder / "loose.jpg").write_bytes(b"")
    message = message_of(prepare, config("imagenet_a", **NATURAL), folder, tmp_path / "out", progress=False)
    assert "val: found 3 images, expected 4" in message
    assert "found images of 2 classes, expected 3" in message
    assert "found 1 images outside class folders: loose.jpg" in message
    assert "imagenet-a.tar" in message


# Sets that are made


class Reference:
    """A set and a run whose answers are given: for each image a class and its probability."""

    def __init__(self, folder, answers, weights="a"):
        self.folder, self.answers, self.of_weights, self.asked = folder, answers, weights, 0

    def open(self, name):
        return open_split(config("fashion_mnist"), self.folder, "val")

    def fingerprint(self, name):
        return "images of " + name

    def classes(self, name):
        return ["T-shirt/top", "Trouser", "Pullover"]

    def weights(self, run):
        return self.of_weights

    def predict(self, run):
        self.asked += 1
        rows = np.zeros((len(self.answers), 3), dtype=np.float32)
        for row, (label, sure) in zip(rows, self.answers, strict=True):
            row[:] = (1 - sure) / 2
            row[label] = sure
        return rows


WRONG_TWICE = [(1, 0.9), (1, 0.9), (0, 0.6)]  # the labels are 0, 1, 2


def filtered(**changes):
    values = {
        **{"name": "small_a", "kind": "filtered", "made_from": "fashion", "reference": "resnet"},
        **{"min_confidence": 0.5, "min_images": 1, "image_size": 28, "channels": 1, "num_classes": 3},
        **{"mean": [0.5], "std": [0.25]},
    }
    return parse_data(Layers(("test", values | changes)))


@pytest.fixture
def images(tmp_path):
    return write_fashion_mnist(tmp_path / "set")


def made(tmp_path, sources, **changes):
    cfg, folder = filtered(**changes), tmp_path / "made" / "small_a"
    manifest = prepare(cfg, folder, tmp_path / "out", progress=False, sources=sources)
    return manifest, open_split(cfg, folder, "val", tmp_path / "out"), folder


def test_filtered__images_the_reference_gets_wrong__are_kept_to_the_last_pixel(tmp_path, images):
    manifest, found, folder = made(tmp_path, Reference(images, WRONG_TWICE))
    assert manifest.classes == ["Pullover", "T-shirt/top"]
    assert manifest.splits["val"].count == 2 and found.labels == [0, 1]
    assert sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*")) == [
        "Pullover/000002.png",
        "T-shirt%2Ftop/000000.png",
    ]
    original = open_split(config("fashion_mnist"), images, "val")
    for index, source in enumerate((2, 0)):
        assert np.array_equal(np.asarray(found[index][0]), np.asarray(original[source][0]))


def test_filtered__answer_less_sure_than_asked__is_left_out(tmp_path, images):
    manifest, *_ = made(tmp_path, Reference(images, WRONG_TWICE), min_confidence=0.7)
    assert manifest.classes == ["T-shirt/top"]


def test_filtered__answer_exactly_as_sure_as_asked__is_kept(tmp_path, images):
    manifest, *_ = made(tmp_path, Reference(images, [(1, 0.75), (1, 0.9), (2, 0.9)]), min_confidence=0.75)
    assert manifest.classes == ["T-shirt/top"]


def test_filtered__made_before__is_not_made_again(tmp_path, images):
    sources = Reference(images, WRONG_TWICE)
    *_, folder = made(tmp_path, sources)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    made(tmp_path, sources)
    assert sources.asked == 1
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "change", ["reference", "confidence", "lost file", "cut file", "other bytes", "own file", "code", "version"]
)
def test_filtered__made_from_something_else__is_made_again_without_old_files(tmp_path, images, monkeypatch, change):
    *_, folder = made(tmp_path, Reference(images, WRONG_TWICE))
    answers, weights, options = WRONG_TWICE, "a", {}
    image = folder / "Pullover" / "000002.png"
    content = image.read_bytes()
    if change == "reference":
        answers, weights = [(0, 0.9), (0, 0.9), (2, 0.9)], "b"
    elif change == "confidence":
        options = {"min_confidence": 0.7}
    elif change == "lost file":
        image.unlink()
    elif change == "cut file":
        image.write_bytes(content[:-9])
    elif change == "other bytes":
        image.write_bytes(content[:-1] + b"x")
    elif change == "own file":
        (folder / "Pullover" / "own.png").write_bytes(content)
    elif change == "code":
        monkeypatch.setattr(filtering, "maker_code", lambda cfg: "other code")
    else:
        monkeypatch.setattr(filtering, "VERSION", 2)
    sources = Reference(images, answers, weights)
    made(tmp_path, sources, **options)
    assert sources.asked == 1
    expected = {"reference": ["000001.png"], "confidence": ["000000.png"]}
    found = sorted(path.name for path in folder.glob("*/*.png"))
    assert found == expected.get(change, ["000000.png", "000002.png"])
    assert change in expected or image.read_bytes() == content


def test_filtered__killed_while_it_is_made__starts_again(tmp_path, images):
    draft = tmp_path / "made" / ".small_a.0123abcd.tmp" / "Coat"
    draft.mkdir(parents=True)
    (draft / "000007.png").write_bytes(b"half")
    _, found, folder = made(tmp_path, Reference(images, WRONG_TWICE))
    assert len(found) == 2 and [name for name in os.listdir(folder.parent) if ".lock" not in name] == ["small_a"]


def test_filtered__too_few_images__says_how_many_and_what_to_lower(tmp_path, images):
    message = message_of(made, tmp_path, Reference(images, WRONG_TWICE), min_images=5, min_confidence=0.7)
    assert "1 of 3 images wrongly with confidence 0.7 or more (2 with any), expected 5 (min_images)" in message
    assert "lower min_confidence or min_images" in message


def test_filtered__reference_of_another_set__is_refused(tmp_path, images):
    message = message_of(made, tmp_path, Reference(images, WRONG_TWICE[:2]))
    assert "run resnet gave 2 predictions for the 3 images of fashion" in message


def test_filtered__folder_of_somebody_else__is_read_as_it_is(tmp_path, images):
    folder = tmp_path / "made" / "small_a"
    write_jpeg(folder / "Coat" / "own.jpg", 3, (28, 28), "L")
    sources = Reference(images, WRONG_TWICE)
    manifest, _, _ = made(tmp_path, sources)
    assert manifest.classes == ["Coat"] and sources.asked == 0 and kind_of(filtered()).is_there(folder)
    assert not (folder / "made.json").exists()


def test_filtered__folder_with_loose_files_of_somebody__is_left_alone(tmp_path, images):
    folder = tmp_path / "made" / "small_a"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("all of it")
    message = message_of(made, tmp_path, Reference(images, WRONG_TWICE))
    assert "holds files that were not made here" in message
    assert (folder / "thesis.txt").read_text() == "all of it"


def test_recipe__beside_the_images__says_what_they_were_made_from(tmp_path, images):
    *_, folder = made(tmp_path, Reference(images, WRONG_TWICE))
    recipe = json.loads((folder / "made.json").read_text())
    assert [*recipe.pop("files")] == ["Pullover/000002.png", "T-shirt%2Ftop/000000.png"] and recipe.pop("code")
    assert recipe == {"version": 1, "images": "images of fashion", "reference": "a", "min_confidence": 0.5}


def test_filtered__fewer_images_than_were_made__are_refused(tmp_path, images):
    """The config allows any number: what a process saw of a set that another one was replacing must not count."""
    *_, folder = made(tmp_path, Reference(images, WRONG_TWICE))
    (folder / "Pullover" / "000002.png").unlink()
    message = message_of(prepare, filtered(), folder, tmp_path / "out", progress=False)
    assert f"val: found 1 images, but {folder / 'made.json'} says that 2 were made" in message
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_filtered__manifest_of_fewer_images_than_were_made__is_not_opened(tmp_path, images):
    *_, folder = made(tmp_path, Reference(images, WRONG_TWICE))
    recipe = json.loads((folder / "made.json").read_text())
    (folder / "made.json").write_text(json.dumps(recipe | {"files": dict.fromkeys(map(str, range(400)))}))
    message = message_of(open_split, filtered(), folder, "val", tmp_path / "out")
    assert "val: found 2 images" in message and "says that 400 were made" in message
