"""Describing folders in the format of COCO and in the layout of ADE20K: the config that is written opens the set."""

import json
import shutil

import numpy as np
import pytest
from dense_sets import edit_list, list_path, write_ade20k, write_classes, write_coco
from describing import described, reread
from layouts import message_of
from PIL import Image

from pipeline.core.errors import ConfigError
from pipeline.data.store.prepare import prepare


def noisy(folder):
    """The pictures of a small set with pixels that differ, so that they can be divided by their deviation."""
    draw = np.random.default_rng(0)
    for path in folder.rglob("*.jpg"):
        width, height = Image.open(path).size
        Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)
    return folder


# COCO


@pytest.mark.slow
def test_describe__real_coco__writes_a_config_that_prepares_it(coco_small, configs, tmp_path):
    found = described(coco_small, image_size=128)
    assert found.classes[0] == "person" and len(found.classes) == 80
    assert found.summary.startswith("mine: 50 train and 32 val images with objects of 80 classes, ")
    cfg = reread(configs, found)
    assert cfg == found.config and cfg.kind == "detection" and (cfg.num_train, cfg.num_val) == (50, 32)
    assert (cfg.train_images, cfg.val_annotations) == ("train2017", "annotations/instances_val2017.json")
    assert all(abs(mean - usual) < 0.05 for mean, usual in zip(cfg.mean, (0.47, 0.45, 0.41), strict=True))
    prepare(cfg, coco_small, tmp_path / "out", progress=False)
    assert "# Your own images in COCO's format" in (configs / "mine.yaml").read_text()


def test_describe__lists_next_to_the_pictures__are_found(tmp_path, configs):
    """As other tools export: train/_annotations.coco.json and valid/_annotations.coco.json."""
    noisy(write_coco(tmp_path / "set", names=("train", "valid")))
    for split, place in (("train", "train"), ("val", "valid")):
        list_path(tmp_path / "set", split).rename(tmp_path / "set" / place / "_annotations.coco.json")
    cfg = reread(configs, described(tmp_path / "set", image_size=64))
    assert (cfg.train_images, cfg.val_images) == ("train", "valid")
    assert cfg.val_annotations == "valid/_annotations.coco.json"
    prepare(cfg, tmp_path / "set", tmp_path / "out", progress=False)


def test_describe__all_pictures_in_one_folder__are_found(tmp_path, configs):
    noisy(write_coco(tmp_path / "set", names=("images", "images")))
    cfg = reread(configs, described(tmp_path / "set", image_size=64))
    assert cfg.train_images == cfg.val_images == "images"


def test_describe__folder_inside_of_one_named_after_a_split__is_described_by_the_names_in_it(tmp_path):
    noisy(write_coco(tmp_path / "trainval" / "set"))
    cfg = described(tmp_path / "trainval" / "set", image_size=64).config
    assert (cfg.train_annotations, cfg.val_annotations) == (
        "annotations/instances_train2017.json",
        "annotations/instances_val2017.json",
    )


def test_describe__captions_and_keypoints_next_to_instances__are_ignored(tmp_path):
    noisy(write_coco(tmp_path))
    for name in ("captions", "person_keypoints"):
        shutil.copy(list_path(tmp_path), tmp_path / "annotations" / f"{name}_train2017.json")
    assert described(tmp_path, image_size=64).config.train_annotations == "annotations/instances_train2017.json"


def test_describe__lists_without_train_and_val_in_their_names__are_refused(tmp_path):
    list_path(write_coco(tmp_path), "val").rename(tmp_path / "annotations" / "test.json")
    found = message_of(described, tmp_path)
    assert "found 0 lists of objects with 'val' in their name (annotations/instances_train2017.json" in found
    assert "or write the config by hand" in found


def test_describe__mistakes_in_a_list__are_listed(tmp_path):
    edit_list(write_coco(tmp_path), lambda content: content["annotations"][0].update(bbox=[1, 2, 3]))
    found = message_of(described, tmp_path, image_size=64)
    assert (
        "cannot be described, number of problems: 1" in found
        and "bbox is not four finite numbers: x, y, width, height: 11" in found
    )


@pytest.mark.parametrize("content", ['{"images": [', '{"images": []}', '{"images": [{"id": 1}]}'], ids=str)
def test_describe__list_without_a_first_picture__is_refused(tmp_path, content):
    list_path(write_coco(tmp_path)).write_text(content)
    assert "expected a JSON list of images and objects" in message_of(described, tmp_path)


def test_describe__pictures_elsewhere__are_asked_for(tmp_path):
    shutil.rmtree(write_coco(tmp_path) / "train2017")
    assert "its first image 000000000009.jpg is not in " in message_of(described, tmp_path)


def test_describe__val_share_of_a_set_with_splits__is_refused(tmp_path):
    assert "--val-share is for class folders" in message_of(described, write_coco(tmp_path), val_share=0.1)


def test_describe__least_side_of_a_set_of_objects__is_refused(tmp_path):
    assert "--min-side is for images without labels" in message_of(described, write_coco(tmp_path), min_side=9)


def test_describe__picture_in_train_and_val__is_reported(tmp_path):
    folder = noisy(write_coco(tmp_path))
    shutil.copy(folder / "train2017/000000000009.jpg", folder / "val2017/000000000002.jpg")
    lines = [note for note in described(folder, image_size=64).notes if "train and in val" in note]
    assert lines and "train2017/000000000009.jpg (train) = val2017/000000000002.jpg (val)" in lines[0]


def test_describe__sizes_that_differ__asks_for_one(tmp_path):
    with pytest.raises(ConfigError, match="say at which side a model sees them"):
        described(noisy(write_coco(tmp_path)))


def test_describe__other_json_next_to_class_folders__is_no_list(tmp_path):
    for split in ("train", "val"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            pixels = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / split / name / "1.png")
        (tmp_path / f"{split}.json").write_text(json.dumps({"note": "mine"}))
    assert described(tmp_path).config.kind == "images"


# ADE20K


@pytest.mark.slow
def test_describe__real_ade20k__writes_a_config_that_prepares_it(ade_mini, configs, tmp_path):
    cfg = reread(configs, described(ade_mini, image_size=128))
    assert (cfg.kind, cfg.num_classes, cfg.num_train, cfg.num_val, cfg.ignored) == ("segmentation", 150, 12, 8, 0)
    assert prepare(cfg, ade_mini, tmp_path / "out", progress=False).classes[149] == "flag"


def test_describe__numbers_from_0_to_255__have_255_for_no_class(tmp_path, configs):
    (noisy(write_ade20k(tmp_path / "set")) / "objectInfo150.txt").unlink()
    path = tmp_path / "set" / "annotations" / "training" / "ADE_train_00000001.png"
    labels = np.array(Image.open(path))
    labels[0] = 255
    write_classes(path, labels)
    found = described(tmp_path / "set", image_size=32)
    assert found.classes == [f"class {number}" for number in range(5)]
    cfg = reread(configs, found)
    assert (cfg.ignored, cfg.num_classes) == (255, 5)
    manifest = prepare(cfg, tmp_path / "set", tmp_path / "out", progress=False)
    assert manifest.classes == found.classes and manifest.splits["train"].images_with_ignored_pixels == 1


def test_describe__without_names__counts_the_classes_from_1_on(tmp_path):
    (noisy(write_ade20k(tmp_path)) / "objectInfo150.txt").unlink()
    found = described(tmp_path, image_size=32)
    assert found.classes == [f"class {number}" for number in range(1, 5)] and found.config.ignored == 0


def test_describe__mistakes_in_class_maps__are_listed(tmp_path):
    write_ade20k(tmp_path)
    write_classes(tmp_path / "annotations/training/ADE_train_00000002.png", np.zeros((3, 3), dtype=np.uint8))
    assert "found 21x16 pixels in the image and 3x3 in its classes" in message_of(described, tmp_path, image_size=32)
