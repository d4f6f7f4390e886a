"""Stanford Cars is read in its published layout, and every way in which a copy of it is incomplete is named."""

import shutil

import pytest
from layouts import CAR_CLASSES, config, message_of, write_cars_annotations, write_jpeg, write_stanford_cars

from pipeline.data.readers.stanford_cars import read_stanford_cars
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare

CFG = config("stanford_cars")


def refusal(folder):
    """The message of `prepare`, which looks at both splits."""
    return message_of(prepare, CFG, folder, folder / "out", progress=False)


@pytest.mark.parametrize("test_labels", [".", "devkit"])
def test_stanford_cars__published_layout__labels_are_classes_counted_from_zero(tmp_path, test_labels):
    write_stanford_cars(tmp_path, test_labels)
    train, val = open_split(CFG, tmp_path, "train"), open_split(CFG, tmp_path, "val")
    assert (train.labels, val.labels) == ([1, 0, 2, 2, 0, 1], [2, 0, 1])
    assert (train.name(0), val.name(2)) == ("cars_train/00001.jpg", "cars_test/00003.jpg")
    assert [val.image(index).getpixel((9, 9))[0] for index in range(3)] == pytest.approx([160, 0, 80], abs=3)
    assert read_stanford_cars(tmp_path, "val").classes == CAR_CLASSES


def test_stanford_cars__unpacked_one_level_deeper__lists_of_prepare_open_it(tmp_path):
    write_stanford_cars(tmp_path / "data" / "stanford_cars")
    prepare(CFG, tmp_path / "data", tmp_path / "out", progress=False)
    val = open_split(CFG, tmp_path / "data", "val", index=tmp_path / "out")
    assert (val.name(0), val.labels) == ("stanford_cars/cars_test/00001.jpg", [2, 0, 1])


def test_stanford_cars__doubled_image_folder__is_found(tmp_path):
    write_stanford_cars(tmp_path)
    (tmp_path / "cars_test").rename(tmp_path / "inner")
    (tmp_path / "cars_test").mkdir()
    (tmp_path / "inner").rename(tmp_path / "cars_test" / "cars_test")
    assert open_split(CFG, tmp_path, "val").name(1) == "cars_test/cars_test/00002.jpg"


def test_stanford_cars__test_labels_missing__one_message_says_the_devkit_has_none(tmp_path):
    write_stanford_cars(tmp_path)
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    message = refusal(tmp_path)
    assert "number of problems: 1\n" in message
    assert "val: cars_test_annos_withlabels.mat not found" in message
    assert "the devkit alone has no test labels" in message


def test_stanford_cars__unlabelled_annotations_renamed__names_the_missing_field(tmp_path):
    write_stanford_cars(tmp_path)
    shutil.copy(tmp_path / "devkit" / "cars_test_annos.mat", tmp_path / "cars_test_annos_withlabels.mat")
    message = message_of(open_split, CFG, tmp_path, "val")
    assert "cars_test_annos_withlabels.mat: found" in message
    assert "expected a struct array annotations with the fields class and fname" in message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cars_train", "train: no images found in cars_train, stanford_cars/cars_train"),
        ("cars_test", "val: no images found in cars_test, stanford_cars/cars_test"),
        ("devkit/cars_meta.mat", "cars_meta.mat not found in devkit, ., "),
        ("devkit/cars_train_annos.mat", "cars_train_annos.mat not found in devkit, ., "),
    ],
)
def test_stanford_cars__part_missing__is_named_once(tmp_path, name, text):
    write_stanford_cars(tmp_path)
    (tmp_path / name).rename(tmp_path / "elsewhere")
    message = refusal(tmp_path)
    assert "number of problems: 1\n" in message
    assert text in message


@pytest.mark.parametrize("name", ["cars_meta.mat", "cars_train_annos.mat"])
@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", b"MATLAB 5.0 MAT-file, but no more than that"])
def test_stanford_cars__damaged_mat_file__is_named(tmp_path, name, content):
    write_stanford_cars(tmp_path)
    (tmp_path / "devkit" / name).write_bytes(content)
    assert f"{name}: found" in message_of(open_split, CFG, tmp_path, "train")


def test_stanford_cars__truncated_mat_file__is_named(tmp_path):
    path = write_stanford_cars(tmp_path) / "devkit" / "cars_train_annos.mat"
    path.write_bytes(path.read_bytes()[:-200])
    assert "cars_train_annos.mat: found" in message_of(open_split, CFG, tmp_path, "train")


def test_stanford_cars__annotations_do_not_fit__every_kind_is_reported(tmp_path):
    write_stanford_cars(tmp_path)
    (tmp_path / "cars_test" / "00002.jpg").unlink()
    write_jpeg(tmp_path / "cars_test" / "00077.jpg", 0)
    names = ["00001.jpg", "00002.jpg", "00003.jpg"]
    write_cars_annotations(tmp_path / "cars_test_annos_withlabels.mat", names, [3, 1, 4])
    message = message_of(open_split, CFG, tmp_path, "val")
    assert "whose class is not one of the 3 in cars_meta.mat: 00003.jpg (4)" in message
    assert "1 entries of cars_test_annos_withlabels.mat without an image in cars_test: 00002.jpg" in message
    assert "1 images in cars_test that cars_test_annos_withlabels.mat does not list: 00077.jpg" in message
    assert "val: found 1 images, expected 3" in message


def test_stanford_cars__damaged_image__prepare_names_it(tmp_path):
    path = write_stanford_cars(tmp_path) / "cars_test" / "00003.jpg"
    path.write_bytes(path.read_bytes()[:-40])
    assert "cars_test/00003.jpg: found an image that cannot be decoded" in refusal(tmp_path)


def test_stanford_cars__nothing_there__names_every_part_and_where_to_get_it(tmp_path):
    message = refusal(tmp_path)
    assert "number of problems: 5\n" in message
    for text in (
        "no images found in cars_train,",
        "no images found in cars_test,",
        "cars_meta.mat not found",
        "cars_train_annos.mat not found",
    ):
        assert message.count(text) == 1
    assert "https://ai.stanford.edu/~jkrause/cars/car_dataset.html" in message
