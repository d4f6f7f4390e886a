"""The same image more than once in a folder that is described."""

import shutil

import pytest
from describing import described
from photographs import pixels_of, write_photo
from PIL import Image

pytestmark = pytest.mark.usefixtures("configs")


def write_classes(folder):
    for number in range(12):
        write_photo(folder / ("train", "val")[number % 3 == 0] / "ab"[number % 2] / f"{number}.png", number)
    return folder


def duplicates(folder, **choices):
    return [note for note in described(folder, image_size=24, **choices).notes if note.startswith("duplicates")]


def test_duplicates__none__are_not_spoken_of(tmp_path):
    assert duplicates(write_classes(tmp_path)) == []


def test_duplicates__same_pixels_in_another_format__are_found_with_their_names(tmp_path):
    folder = write_classes(tmp_path)
    Image.fromarray(pixels_of(1)).save(folder / "train" / "b" / "again.bmp")
    shutil.copy(folder / "train" / "b" / "1.png", folder / "train" / "b" / "third.png")
    (line,) = duplicates(folder)
    names = "train/b/1.png = train/b/again.bmp = train/b/third.png"
    assert line == f"duplicates: found 1 image more than once, in 3 files: {names}"


def test_duplicates__in_train_and_val__make_validation_too_good(tmp_path):
    folder = write_classes(tmp_path)
    shutil.copy(folder / "train" / "b" / "1.png", folder / "val" / "b" / "copy.png")
    _, line = duplicates(folder)
    assert "1 of 1 in train and in val: train/b/1.png (train) = val/b/copy.png (val);" in line
    assert "validation will be too good; delete one of each" in line


def test_duplicates__in_two_classes__contradict_each_other(tmp_path):
    folder = write_classes(tmp_path)
    shutil.copy(folder / "train" / "b" / "1.png", folder / "train" / "a" / "copy.png")
    _, line = duplicates(folder)
    assert "1 of 1 in several classes: train/a/copy.png = train/b/1.png; the labels contradict" in line


def test_duplicates__very_many__are_counted_and_a_few_named(tmp_path):
    folder = tmp_path / "2024"
    for number in range(10):
        for copy in "xy":
            write_photo(folder / f"{number}{copy}.png", number)
    first = duplicates(tmp_path, val_share=0.05)[0]
    assert "found 10 images more than once, in 20 files" in first and first.endswith(" and 7 more")
