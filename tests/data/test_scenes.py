"""Scenes composed of garments: what the files of both layouts say is exactly what was composed."""

import json
import shutil

import numpy as np
import pytest
from dense_sets import Garments, data_config, list_path
from faster_coco_eval.core import mask
from layouts import message_of
from PIL import Image

from pipeline.data.derived.scenes import CROWDED, EMPTY, SIDE, VISIBLE, compose
from pipeline.data.kind import kind_of
from pipeline.data.readers.fashion import CLASSES
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare

NAMES = ["fashion_scenes_coco", "fashion_scenes_ade"]
FEW = {"num_train": 12, "num_val": 6}
SPLITS = ("train", "val")


@pytest.fixture(scope="module")
def garments(tmp_path_factory):
    return Garments(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def made(garments, tmp_path_factory):
    """Both sets, small: name -> config, folder, manifest."""
    found, root = {}, tmp_path_factory.mktemp("made")
    for name in NAMES:
        cfg = data_config(name, **FEW)
        manifest = prepare(cfg, root / name, root / "out" / name, progress=False, sources=garments)
        found[name] = cfg, root / name, manifest
    return found


@pytest.fixture(scope="module")
def scenes(garments):
    images = {split: garments.open("fashion_mnist", split) for split in SPLITS}
    return {split: [compose(found, split, number) for number in range(60)] for split, found in images.items()}


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# The scenes


@pytest.mark.slow
def test_compose__scenes__have_two_to_five_garments_none_of_them_hidden(scenes):
    ordinary = [scene for found in scenes.values() for scene in found[2:]]
    counts = [len(scene.labels) for scene in ordinary]
    assert min(counts) >= 2 and max(counts) == 5 and 3 < np.mean(counts) < 4
    assert {label for scene in ordinary for label in scene.labels} == set(range(10))
    hidden = 0
    for scene in ordinary:
        assert not any(scene.crowds)
        for number, whole in enumerate(scene.whole):
            seen = int(scene.mask(number).sum())
            hidden += seen < whole
            assert VISIBLE * whole <= seen <= whole
    assert hidden > 50  # parts of garments are, or the masks would be no task


@pytest.mark.slow
def test_compose__masks_of_a_scene__share_no_pixel(scenes):
    for scene in scenes["train"]:
        masks = [scene.mask(number) for number in range(len(scene.labels))]
        assert np.sum(masks, axis=0).max() <= 1 and all(found.any() for found in masks)


@pytest.mark.slow
def test_compose__first_two_scenes__are_empty_and_crowded(scenes):
    for found in scenes.values():
        assert found[EMPTY].labels == [] and not found[EMPTY].owners.any()
        assert found[CROWDED].crowds[0] and not any(found[CROWDED].crowds[1:]) and len(found[CROWDED].crowds) > 1


@pytest.mark.slow
def test_compose__pixels_of_a_garment__are_those_of_its_image(garments):
    """The last garment of a scene hides others and is hidden by none: its pixels are those of one image, resized."""
    images = garments.open("fashion_mnist", "val")
    scene = compose(images, "val", 7)
    last = scene.mask(len(scene.labels) - 1).astype(bool)
    rows, columns = np.nonzero(last)
    top, left = rows.min(), columns.min()
    wanted = scene.pixels[last]
    matches = 0
    for index in [index for index, label in enumerate(images.labels) if label == scene.labels[-1]]:
        for side in range(18, 45):
            pixels = np.asarray(images.image(index).resize((side, side), Image.Resampling.BILINEAR))
            height, width = rows.max() - top + 1, columns.max() - left + 1
            shape = last[top : top + height, left : left + width]
            for y in range(side - height + 1):
                for x in range(side - width + 1):
                    matches += np.array_equal(pixels[y : y + height, x : x + width][shape], wanted)
        if matches:
            break
    assert matches


# The files


@pytest.mark.slow
def test_make__coco__lists_exactly_the_visible_masks_with_tight_boxes(made, garments):
    _, folder, _ = made["fashion_scenes_coco"]
    for split in SPLITS:
        content = json.loads(list_path(folder, split).read_text())
        ids = [entry["id"] for entry in content["categories"]]
        assert [entry["name"] for entry in content["categories"]] == CLASSES and ids == [1, 2, 3, 4, 5, *range(7, 12)]
        images = garments.open("fashion_mnist", split)
        for place, image in enumerate(content["images"]):
            scene = compose(images, split, place)
            entries = [entry for entry in content["annotations"] if entry["image_id"] == image["id"]]
            assert [ids.index(entry["category_id"]) for entry in entries] == scene.labels
            assert [bool(entry["iscrowd"]) for entry in entries] == scene.crowds
            for number, entry in enumerate(entries):
                pixels = mask.decode(mask.segmToRle(entry["segmentation"], SIDE, SIDE)).reshape(SIDE, SIDE)
                assert np.array_equal(pixels, scene.mask(number)) and entry["area"] == pixels.sum()
                x, y, width, height = entry["bbox"]
                inside = pixels[y : y + height, x : x + width]
                assert inside.sum() == pixels.sum()
                assert all(edge.any() for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))
    assert len(list((folder / "train2017").iterdir())) == 13 and len(list((folder / "val2017").iterdir())) == 6


@pytest.mark.slow
def test_make__ade__has_the_class_of_every_pixel_and_no_class_on_the_rim(made, garments):
    _, folder, manifest = made["fashion_scenes_ade"]
    assert manifest.classes == [*CLASSES, "background"]
    rows = [line.split("\t") for line in (folder / "objectInfo11.txt").read_text().splitlines()[1:]]
    for column, part in ((2, "training"), (3, "validation")):
        maps = [np.asarray(Image.open(path)) for path in (folder / "annotations" / part).iterdir()]
        assert [int(row[column]) for row in rows] == [sum((each == k).any() for each in maps) for k in range(1, 12)]
    images = garments.open("fashion_mnist", "train")
    for place in range(12):
        scene = compose(images, "train", place)
        labels = np.asarray(Image.open(folder / "annotations" / "training" / f"ADE_train_{place + 1:08d}.png"))
        for number, label in enumerate(scene.labels):
            assert (labels[scene.mask(number) == 1] == label + 1).all()
        outside = scene.owners == 0
        assert set(np.unique(labels[outside])) <= {0, 11}
        for row, column in zip(*np.nonzero(outside), strict=True):
            near = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
            inside = [at for at in near if min(at) >= 0 and max(at) < SIDE]
            touches = any(scene.owners[at] for at in inside)
            assert labels[row, column] == (0 if touches else 11)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_make__twice__has_the_same_bytes(made, garments, tmp_path, name):
    cfg, folder, manifest = made[name]
    again = prepare(cfg, tmp_path / "again", tmp_path / "out", progress=False, sources=garments)
    assert files_of(tmp_path / "again") == files_of(folder)
    assert again.fingerprint == manifest.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_make__set_that_is_there__is_unchanged_and_a_damaged_one_is_made_again(made, garments, tmp_path, name):
    cfg, folder, _ = made[name]
    shutil.copytree(folder, tmp_path / "copy")
    kind = kind_of(cfg)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*.jpg")}
    kind.make(tmp_path / "copy", garments, 0, False)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "copy").rglob("*.jpg")}
    path = next(iter(before))
    for damage in (path.unlink, lambda: path.write_bytes(b"other bytes")):
        damage()
        kind.make(tmp_path / "copy", garments, 0, False)
        assert files_of(tmp_path / "copy") == files_of(folder)
    other = kind_of(data_config(name, **FEW | {"num_val": 5}))
    other.make(tmp_path / "copy", garments, 0, False)
    assert len(files_of(tmp_path / "copy")) < len(files_of(folder))


@pytest.mark.slow
def test_make__folder_of_somebody_else__is_read_and_not_touched(garments, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "note.txt").write_text("mine")
    cfg = data_config("fashion_scenes_coco", **FEW)
    assert kind_of(cfg).is_there(tmp_path / "own")
    found = message_of(prepare, cfg, tmp_path / "own", tmp_path / "out", progress=False, sources=garments)
    assert "annotations/instances_train2017.json: not found" in found
    assert files_of(tmp_path / "own") == {"note.txt": b"mine"}


@pytest.mark.slow
def test_views__of_both_sets__show_the_same_scene(made):
    (cfg, folder, _), (other, ade, _) = (made[name] for name in NAMES)
    picture = open_split(cfg, folder, "val")[3]
    scene = open_split(other, ade, "val")[3]
    assert np.array_equal(np.asarray(picture.image), np.asarray(scene.image)) and picture.image.mode == "L"
    _, targets = kind_of(cfg.model_copy(update={"scale": (1.0, 1.0), "hflip": 0.0})).train_view()(picture)
    _, truth = kind_of(other).eval_view()(scene)
    assert len(targets["masks"]) >= 2
    for pixels, label in zip(targets["masks"], targets["labels"], strict=True):
        assert (truth["labels"][pixels == 1] == label - 1).all()


@pytest.mark.parametrize("name", NAMES)
def test_config__of_a_made_set__lies_below_results_and_fits_the_garments(name):
    cfg = data_config(name)
    assert kind_of(cfg).default_folder().parts[-2:] == ("made", name)
    assert cfg.made_from == "fashion_mnist" and cfg.channels == 1 and cfg.image_size == SIDE
