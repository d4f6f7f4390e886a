"""A folder of images without labels: what is assumed of it, left out of it and refused of it."""

import os

import numpy as np
import pytest
from describing import described, reread
from layouts import message_of
from photographs import SIZE, pixels_of, write_photo, write_photos
from PIL import Image

from pipeline.cli import main
from pipeline.core.config import Layers, parse, read_yaml, science
from pipeline.core.errors import ConfigError
from pipeline.core.image_files import open_image
from pipeline.data.describe import describe
from pipeline.data.describe.guess_labels import guess_labels
from pipeline.data.images.classified import DataConfig
from pipeline.data.readers.any_depth import OTHERS, look_below, read_any_depth
from pipeline.data.store.manifest import read_manifest
from pipeline.data.store.opening import compare_folder, open_for_evaluation, open_split
from pipeline.data.store.prepare import fill_cache, prepare, reason_to_prepare
from pipeline.study import starter

pytestmark = pytest.mark.usefixtures("configs")
SPLITS = ("train", "val")
CLASSES = ["cat/{}.png", "dog/{}.png"]


def names(samples):
    return [samples.name(index) for index in range(len(samples))]


def of(folder, **choices):
    return described(folder, **{"image_size": 24, **choices})


def note_of(description, begin):
    (note,) = [note for note in description.notes if note.startswith(begin)]
    return note


# Reading


def test_read__any_depth_and_ending__finds_images_and_counts_the_rest_by_reason(tmp_path):
    folder = tmp_path / "mine"
    for name in ("a.JPG", "x/b.Png", "x/y/z/c.webp", "x/d.jpeg"):
        write_photo(folder / name, 1)
    for name in (".hidden/e.png", "x/._d.jpeg", "Thumbs.db", "x/film.mov", "README"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"something")
    content = look_below(folder)
    assert content.images == ["a.JPG", "x/b.Png", "x/d.jpeg", "x/y/z/c.webp"]
    assert {reason: sorted(found) for reason, found in content.skipped.items()} == {
        "hidden or system files": [".hidden/", "Thumbs.db", "x/._d.jpeg"],
        OTHERS: ["README", "x/film.mov"],
    }


def test_read__links_to_folders__are_followed_once(tmp_path):
    folder = write_photos(tmp_path / "mine", names=["a/{}.png"], count=2)
    (folder / "a" / "around").symlink_to(folder, target_is_directory=True)
    write_photo(tmp_path / "elsewhere" / "far.png", 9)
    (folder / "disk").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert look_below(folder).images == ["a/0.png", "a/1.png", "disk/far.png"]


def test_read__share__splits_all_images_and_a_new_one_moves_hardly_any_other(tmp_path):
    folder = write_photos(tmp_path / "mine", count=30)
    train, val = (names(read_any_depth(folder, split, 0.2).samples) for split in SPLITS)
    assert len(val) == 6 and sorted(train + val) == look_below(folder).images
    write_photo(folder / "new.png", 99)
    assert len({*val} ^ {*names(read_any_depth(folder, "val", 0.2).samples)}) <= 2


# What is assumed


@pytest.mark.parametrize(
    ("files", "is_labelled", "why"),
    [
        (["a.png", "b.png"], False, "in no folders"),
        (["2023/a.png", "2024/b.png"], False, "named like dates or by cameras (2023, 2024)"),
        (["2023-05 Rome/a.png", "20240101/x/b.png", "c.png"], False, "named like dates"),
        (["100CANON/a.png", "101_PANA/b.png"], False, "by cameras"),
        (["pictures/a.png", "pictures/b.png"], False, "all images are in one folder (pictures)"),
        (["home/2023/a.png", "work/x/b.png"], False, "deeper than in one folder each (home/2023/a.png)"),
        (["train/a.png", "val/b.png"], False, "in no folders"),
        (["cat/a.png", "dog/b.png"], True, ""),
        (["0/a.png", "1/b.png"], True, ""),
        (["train/cat/a.png", "train/dog/a.png", "val/cat/b.png", "val/dog/b.png"], True, ""),
        (["cat/a.png", "dog/b.png", "loose.png"], True, ""),  # refused, with the image that is in no class
        (["cat/images/a.png", "dog/images/b.png"], True, ""),  # refused, with the folders inside classes
        (["train/a.png", "train/b.png"], True, ""),  # refused, because val/ is missing
        (["notes.txt"], True, ""),
    ],
)
def test_guess__layout__is_classes_only_where_folders_may_be_some(tmp_path, files, is_labelled, why):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    guess = guess_labels(tmp_path)
    assert guess.is_labelled == is_labelled and why in guess.reason


def test_describe__either_way__says_what_was_assumed_and_the_option_for_the_other(tmp_path):
    photos, classes = write_photos(tmp_path / "photos"), write_photos(tmp_path / "classes", names=CLASSES)
    note = note_of(of(photos), "assumed: no labels, because the folders are named like dates")
    assert note.endswith("if each folder is a class, use --class-folders")
    assert note_of(of(classes), "assumed: 2 folders are classes (cat, dog)").endswith("if not, use --unlabelled")
    chosen = of(classes, unlabelled=True)
    assert chosen.config.kind == "unlabelled" and not [note for note in chosen.notes if "assumed" in note]
    assert "found 6 images outside class folders" in message_of(of, photos, unlabelled=False)
    assert "--min-side is for images without labels" in message_of(of, classes, min_side=9)


@pytest.mark.parametrize("files", [["cat/1.png", "dog/2.png", "loose.png"], ["train/1.png", "train/2.png"]])
def test_describe__folder_that_may_be_either__is_refused_with_the_option(tmp_path, files):
    for number, name in enumerate(files):
        write_photo(tmp_path / name, number)
    message = message_of(of, tmp_path)
    assert "--unlabelled" in message and "fix the folder, then" not in message
    assert of(tmp_path, unlabelled=True).config.num_train >= 1


# What is described


def test_describe__photographs__are_a_set_without_labels_that_prepare_accepts(tmp_path, configs):
    folder = write_photos(tmp_path / "mine")
    description = of(folder, val_share=0.25)
    cfg = reread(configs, description)
    assert (cfg.kind, cfg.num_train, cfg.num_val, cfg.channels, cfg.image_size) == ("unlabelled", 15, 5, 3, 24)
    assert cfg == description.config and not cfg.has_labels
    assert "without labels, 40x30 pixels, seen as 3 x 24 x 24" in description.summary
    assert "No labels" in (configs / "mine.yaml").read_text()
    manifest = prepare(cfg, folder, tmp_path / "out", progress=False)
    assert manifest.classes == [] and manifest.splits["val"].count == 5
    for split in SPLITS:
        listed = open_split(cfg, folder, split, tmp_path / "out")
        assert names(listed) == names(open_split(cfg, folder, split)) and {*listed.labels} == {0}


def test_describe__train_and_val_folders__are_the_split(tmp_path):
    write_photos(tmp_path / "train", count=6)
    write_photos(tmp_path / "val", count=2)
    cfg = of(tmp_path).config
    assert (cfg.num_train, cfg.num_val, cfg.val_share) == (6, 2, None)
    assert "has train/ and val/ already" in message_of(of, tmp_path, val_share=0.2)


def test_describe__images_that_cannot_be_used__are_left_out_by_name_and_stay_so(tmp_path, configs):
    folder = write_photos(tmp_path / "mine")
    write_photo(folder / "2023" / "icon.png", 5, size=(5, 5))
    (folder / "2023" / "cut.jpg").write_bytes((folder / "2023" / "0.jpg").read_bytes()[:300])
    (folder / "a\nb.png").write_text("no image")
    Image.fromarray(np.full((30, 30), 40_000, np.uint16)).save(folder / "deep.png")
    description = of(folder)
    assert (
        note_of(description, "left out, cannot be decoded")
        == r"left out, cannot be decoded: 2 (2023/cut.jpg, a\nb.png)"
    )
    assert note_of(description, "left out, more than 8 bits").endswith(": 1 (deep.png)")
    assert note_of(description, "left out, a side below 6 pixels").endswith(": 1 (2023/icon.png)")
    cfg = reread(configs, description)
    assert cfg.left_out == ("2023/cut.jpg", "2023/icon.png", "a\nb.png", "deep.png")
    assert (cfg.num_train, cfg.num_val) == (18, 2)
    prepare(cfg, folder, tmp_path / "out", progress=False)
    assert "side below" not in " ".join(of(folder, min_side=5).notes)


def test_describe__nothing_usable__says_what_was_left_out(tmp_path):
    for name in ("a.jpg", "b.jpg", "film.mov"):
        (tmp_path / name).write_text("no image")
    message = message_of(of, tmp_path)
    assert "found 0 usable images" in message and "cannot be decoded: 2 (a.jpg, b.jpg)" in message
    assert "left out, not PNG, JPEG, BMP, WebP, TIFF or PPM: 1 (.mov 1)" in message


def test_describe__very_many_unusable_images__are_not_listed_in_a_config(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.data.describe.unlabelled.MOST_LEFT_OUT", 2)
    write_photos(tmp_path, count=4)
    for number in range(3):
        (tmp_path / f"bad{number}.jpg").touch()
    assert "found 3 images that cannot be used" in message_of(of, tmp_path)


def test_describe__images_of_several_sizes__asks_for_one_before_all_are_decoded(tmp_path, monkeypatch):
    folder = write_photos(tmp_path, count=4)
    write_photo(folder / "small.png", 9, size=(20, 25))
    monkeypatch.setattr("pipeline.data.describe.unlabelled.inspect_images", None)
    with pytest.raises(ConfigError, match="20x25 to 40x30 pixels, not one square size"):
        of(folder, image_size=None)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_describe__modes_of_pillow__are_read_as_those_of_class_folders(tmp_path, mode):
    folder = write_photos(tmp_path / "mine", count=4)
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.fromarray(pixels_of(9)).convert(mode).save(folder / f"other.{suffix}")
    cfg = of(folder).config
    assert (cfg.num_train + cfg.num_val, cfg.channels, cfg.left_out) == (5, 3, ())
    images = [open_split(cfg, folder, split) for split in SPLITS]
    assert {each.image(index).mode for each in images for index in range(len(each))} == {"RGB"}


# Freshness


def test_folder__changed_after_it_was_prepared__is_noticed(tmp_path):
    folder, out = write_photos(tmp_path / "mine"), tmp_path / "out"
    cfg = of(folder).config
    prepare(cfg, folder, out, progress=False)
    state = compare_folder(cfg, folder, out)
    (folder / "notes.txt").write_text("no image, so no other set")
    assert compare_folder(cfg, folder, out, state) == state
    write_photo(folder / "2023" / "0.jpg", 77)
    assert "2023/0.jpg" in message_of(compare_folder, cfg, folder, out, state)
    write_photo(folder / "new.png", 78)
    message = message_of(compare_folder, cfg, folder, out, state)
    assert "found 19 images, expected 18" in message and "--unlabelled --force" in message


def test_prepare__image_damaged_after_it_was_described__is_refused_by_name(tmp_path):
    folder = write_photos(tmp_path / "mine")
    cfg = of(folder).config
    (folder / "2023" / "0.jpg").write_bytes(b"gone")
    assert "2023/0.jpg: found an image that cannot be decoded" in message_of(prepare, cfg, folder, tmp_path / "out")


# EXIF


@pytest.mark.parametrize("folders", [("2023", "2024"), ("cat", "dog")])
def test_upright__photograph_that_was_turned__is_seen_as_it_was_taken(tmp_path, folders):
    for number in range(6):
        write_photo(tmp_path / "mine" / folders[number % 2] / f"{number}.png", number)
    for place, name in enumerate(folders):
        write_photo(tmp_path / "mine" / name / "turned.png", 50 + place, orientation=6)
    description = of(tmp_path / "mine")
    cfg = description.config
    assert (
        cfg.upright and "40x30 to 30x40 pixels" not in description.summary and "30x30 to 40x40" in description.summary
    )
    manifest = prepare(cfg, tmp_path / "mine", tmp_path / "out", progress=False)
    fill_cache(cfg, tmp_path / "mine", tmp_path / "out", tmp_path / "cache", progress=False)
    sizes = {manifest.splits[split].max_size for split in SPLITS}
    assert sizes == {(40, 40), SIZE} or sizes == {(40, 40)}
    for split in SPLITS:
        samples = open_split(cfg, tmp_path / "mine", split)
        for index, name in enumerate(names(samples)):
            stored = np.asarray(Image.open(tmp_path / "mine" / name))
            wanted = np.rot90(stored, -1) if "turned" in name else stored
            assert np.array_equal(np.asarray(samples.image(index)), wanted)


def test_open_image__photograph_that_was_turned__is_seen_as_it_was_taken(tmp_path):
    path = write_photo(tmp_path / "turned.jpg", 1, orientation=6)
    assert open_image(path, "RGB").size == SIZE[::-1] and open_image(path, "RGB", upright=False).size == SIZE


def test_upright__folder_without_turned_images__is_described_as_before(tmp_path):
    folder = write_photos(tmp_path / "mine", names=CLASSES)
    description = of(folder)
    assert "upright" not in description.content and "upright" not in science(description.config)


def test_upright__other_than_when_it_was_prepared__prepares_again_and_an_older_manifest_does_not(tmp_path):
    folder = write_photos(tmp_path / "mine", names=CLASSES)
    cfg = of(folder).config
    prepare(cfg, folder, tmp_path / "out", progress=False)
    manifest = read_manifest(tmp_path / "out" / "manifest.json")
    turned = cfg.model_copy(update={"upright": True})
    assert "upright False, expected True" in reason_to_prepare(manifest, turned, {})
    older = manifest.model_copy(update={"counted": {k: v for k, v in manifest.counted.items() if k != "upright"}})
    assert reason_to_prepare(older, cfg, {}) == "" and reason_to_prepare(older, turned, {})


def test_cache__of_images_that_were_not_turned__is_another_one(tmp_path):
    for number in range(8):
        write_photo(tmp_path / "mine" / f"{number}.png", number, orientation=6)
    cfg = of(tmp_path / "mine").config
    kept = {}
    for upright in (True, False):
        each = cfg.model_copy(update={"upright": upright})
        prepare(each, tmp_path / "mine", tmp_path / "out", progress=False, cache=tmp_path / "cache")
        samples = open_for_evaluation(each, tmp_path / "mine", "val", tmp_path / "out", tmp_path / "cache", False)
        kept[upright] = np.asarray(samples.image(0)).shape
    assert kept[True] == (*kept[False][1::-1], 3)


def test_upright__damaged_exif__is_none(tmp_path):
    for number in range(4):
        write_photo(tmp_path / "val" / f"{number}.png", number, orientation=6)
        write_photo(tmp_path / "train" / f"{number}.png", number + 4)
    Image.fromarray(pixels_of(9)).save(tmp_path / "val" / "9.png", exif=b"Exif\0\0no EXIF at all")
    cfg = of(tmp_path).config
    assert cfg.upright and cfg.left_out == ()
    sizes = [image.size for image, _ in open_split(cfg, tmp_path, "val")]
    assert sizes == [SIZE[::-1]] * 4 + [SIZE]


# Configs by hand


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kind": "images"}, "source any_depth is read by kind unlabelled, found kind images"),
        ({"only_classes": ["a"]}, "only_classes: for images with classes, these have none"),
        ({"num_classes": 3}, "num_classes: found 3"),
    ],
)
def test_config__of_a_labelled_set__is_refused(tmp_path, changes, text):
    content = of(write_photos(tmp_path / "mine")).content | {"source": "any_depth"} | changes
    model = type(of(tmp_path / "mine").config) if changes.get("kind") != "images" else DataConfig
    content = {key: value for key, value in content.items() if key != "left_out"}
    if model is DataConfig:
        content |= {"num_classes": 1}
    with pytest.raises(ConfigError, match=text):
        parse(model, Layers(("test", content)))


def test_describe__folder_that_may_not_be_opened__is_refused(tmp_path, monkeypatch):
    folder, scandir = write_photos(tmp_path / "mine", count=4), os.scandir

    def closed(path):
        if str(path).endswith("2023"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    assert "found 1 folders that cannot be opened: 2023" in message_of(of, folder, unlabelled=True)


# The command


def test_describe_command__site_and_study__writes_both_and_names_the_next_command(tmp_path, monkeypatch, capsys):
    for module in (describe, starter):
        monkeypatch.setattr(module, "CONFIGS", tmp_path / "configs")
    monkeypatch.setenv("PATCHWORK_SITE", "local")
    folder, site = write_photos(tmp_path / "mine", count=30), tmp_path / "lab.yaml"
    arguments = ["describe", str(folder), "--name", "mine", "--image-size", "32", "--site", str(site)]
    assert main([*arguments, "--study"]) == 0
    out = capsys.readouterr().out
    assert "assumed: no labels" in out and f"site: wrote data.mine in {site}" in out
    assert out.splitlines()[-1].endswith("`snakemake mine` runs it")
    assert read_yaml(site)["data"] == {"mine": str(folder)}
    assert "pre_mae" in read_yaml(tmp_path / "configs/study/mine.yaml")["runs"]
    # Mistakes are found before anything is decoded.
    arguments[1] = str(tmp_path / "nowhere")
    assert main([*arguments, "--labelled", "pets"]) == 1
    assert "give both" in capsys.readouterr().err
    site.write_text("data: {mine: /elsewhere}\n")
    assert main(arguments) == 1
    assert "data.mine is /elsewhere" in capsys.readouterr().err
