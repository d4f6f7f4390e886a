"""ADE20K in its published layout: pairs, numbers of classes, every mistake, and the views after mmsegmentation."""

import re
import shutil

import numpy as np
import pytest
import torch
from dense_sets import config, data_config, write_ade20k, write_classes
from layouts import message_of, write_jpeg
from PIL import Image

from pipeline.core.errors import ConfigError
from pipeline.core.seeds import seed_everything
from pipeline.data.dense.segmentation_views import _coloured, _linear, distorted, is_mixed, resized
from pipeline.data.kind import kind_of
from pipeline.data.readers.ade20k import Scene
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare

MASK = "annotations/training/ADE_train_00000002.png"
PLAIN = {"scale": [1.0, 1.0], "hflip": 0.0, "photometric": False, "max_class_share": 1.0}


def refusal(folder, **changes):
    return message_of(prepare, config("ade20k", **changes), folder, folder / "out", progress=False)


# What is read


@pytest.mark.parametrize("inside", ["", "ADEChallengeData2016"])
def test_ade20k__published_layout__has_pairs_and_names(tmp_path, inside):
    cfg, out = config("ade20k"), tmp_path / "results" / "data" / "ade20k"
    manifest = prepare(cfg, write_ade20k(tmp_path, inside), out, progress=False)
    assert manifest.classes == [f"thing {number}" for number in range(1, 5)]
    assert manifest.splits["train"].classes == 4 and manifest.splits["train"].images_with_ignored_pixels == 3
    for index in (None, out):
        samples = open_split(cfg, tmp_path, "train", index)
        image, labels = samples[2]
        assert image.size == (22, 16) and labels.shape == (16, 22) and labels[0, :6].tolist() == [0, 1, 2, 3, 4, 0]


def test_ade20k__palette__is_how_numbers_are_shown(tmp_path):
    write_ade20k(tmp_path)
    shown = Image.open(tmp_path / MASK)
    labels = np.asarray(shown)
    shown.putpalette([200, 10, 10] * 256)
    shown.save(tmp_path / MASK)
    assert Image.open(tmp_path / MASK).mode == "P"
    prepare(config("ade20k"), tmp_path, tmp_path / "out", progress=False)
    assert np.array_equal(open_split(config("ade20k"), tmp_path, "train")[1].labels, labels)


def test_ade20k__without_names__classes_have_numbers(tmp_path):
    (write_ade20k(tmp_path) / "objectInfo150.txt").unlink()
    found = prepare(config("ade20k"), tmp_path, tmp_path / "out", progress=False)
    assert found.classes == ["class 1", "class 2", "class 3", "class 4"]


@pytest.mark.slow
def test_ade20k__real_pairs__have_all_numbers_as_published(ade_mini, tmp_path):
    cfg = data_config("ade20k", num_train=12, num_val=8)
    manifest = prepare(cfg, ade_mini, tmp_path, progress=False)
    assert len(manifest.classes) == 150 and manifest.classes[0] == "wall" and manifest.classes[149] == "flag"
    samples = open_split(cfg, ade_mini, "val", tmp_path)
    view = kind_of(cfg).eval_view()
    for index in range(8):
        path = ade_mini / samples.name(index).replace("images", "annotations").replace(".jpg", ".png")
        numbers = np.asarray(Image.open(path)).astype(int)
        inputs, targets = view(samples[index])
        wanted = np.where(numbers == 0, 255, numbers - 1)
        assert np.array_equal(targets["labels"], wanted) and targets["labels"].dtype == torch.uint8
        assert min(inputs.shape[1:]) == 512 or max(inputs.shape[1:]) == 2048


# What is refused


def lose(name):
    return lambda folder: (folder / name).unlink()


def classes(labels):
    return lambda folder: write_classes(folder / MASK, labels)


GOOD = np.zeros((16, 21), dtype=np.uint8)
MISTAKES = {
    "no mask": (
        lose(MASK),
        "images/training: found 1 images without a PNG in annotations/training: ADE_train_00000002",
    ),
    "no image": (
        lose("images/validation/ADE_val_00000001.jpg"),
        "annotations/validation: found 1 PNG files without an image",
    ),
    "other size": (classes(GOOD[:, 1:]), "found 21x16 pixels in the image and 20x16 in its classes, expected equal"),
    "class too large": (classes(GOOD + 5), "ADE_train_00000002.jpg: found classes 5, expected 0 to 4"),
    "colours": (classes(np.zeros((16, 21, 3), np.uint8)), "found classes of mode RGB, expected one number of 8 bits"),
    "16 bits": (classes(np.zeros((16, 21), np.uint16)), "found classes of mode I;16, expected one number of 8 bits"),
    "damaged": (lambda folder: (folder / MASK).write_bytes(b"x"), "found classes that cannot be decoded"),
    "image": (
        lambda folder: (folder / "images/training/ADE_train_00000001.jpg").write_bytes(b"x"),
        "images/training/ADE_train_00000001.jpg: found an image that cannot be decoded",
    ),
    "two of a name": (
        lambda folder: write_jpeg(folder / "images/training/ADE_train_00000001.png", (0, 0, 0)),
        "images/training: found 1 files that are no images, or two of one name",
    ),
    "not PNG": (
        lambda folder: write_jpeg(folder / "annotations/training/x.jpg", (0, 0, 0)),
        "annotations/training: found 1 files that are not PNG: x.jpg",
    ),
    "no folder": (
        lambda folder: shutil.rmtree(folder / "annotations/validation"),
        "annotations/validation: folder not found",
    ),
    "names": (
        lambda folder: (folder / "objectInfo150.txt").write_text("1 wall\n"),
        "objectInfo150.txt: expected a table with tabs between columns, from Idx to Name",
    ),
    "numbers of names": (
        lambda folder: (folder / "objectInfo150.txt").write_text("Idx\tName\n2\twall\n"),
        "objectInfo150.txt: expected the classes 1, 2, 3 ... in the column Idx",
    ),
    "fewer names": (
        lambda folder: (folder / "objectInfo150.txt").write_text("Idx\tName\n1\twall\n"),
        "train: found names of 1 classes, expected 4",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_ade20k__mistake__is_refused_with_the_file(tmp_path, name):
    change, message = MISTAKES[name]
    change(write_ade20k(tmp_path))
    found = refusal(tmp_path)
    assert message in found and "what to do: " in found


def test_ade20k__other_count__is_refused(tmp_path):
    assert "train: found 3 images, expected 4" in refusal(write_ade20k(tmp_path), num_train=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"num_classes": 256}, "at most 255"), ({"scale": [0, 1]}, "above 0"), ({"max_class_share": 0}, "greater than 0")],
    ids=str,
)
def test_config__of_a_mistake__is_refused(changes, message):
    with pytest.raises(ConfigError) as caught:
        config("ade20k", **changes)
    assert message in str(caught.value)


def test_config__as_published__has_the_published_counts():
    cfg = data_config("ade20k")
    assert (cfg.num_train, cfg.num_val, cfg.num_classes) == (20210, 2000, 150)
    assert data_config("ade20k_128").model_dump(exclude={"image_size"}) == cfg.model_dump(exclude={"image_size"})


def test_stamp__classes_changed__are_noticed_though_images_are_the_same(tmp_path):
    cfg, out = config("ade20k"), tmp_path / "results" / "data" / "ade20k"
    before = prepare(cfg, write_ade20k(tmp_path), out, progress=False)
    path = tmp_path / "annotations/training/ADE_train_00000001.png"
    labels = np.array(Image.open(path))
    labels[3, 3] = 1
    write_classes(path, labels)
    message = message_of(open_split, cfg, tmp_path, "train", out)
    assert "training/ADE_train_00000001.jpg: found " in message and "the train images that were verified" in message
    after = prepare(cfg, tmp_path, out, progress=False)
    assert after.splits["train"].fingerprint != before.splits["train"].fingerprint


@pytest.mark.parametrize(
    "file", ["images/training/ADE_train_00000001.jpg", "annotations/training/ADE_train_00000001.png"]
)
@pytest.mark.parametrize(
    ("change", "words"),
    [(b"", "found other content than was verified"), (b"x", r"found \d+ bytes, expected \d+")],
    ids=["same size", "longer"],
)
def test_stamp__either_file_of_a_pair_changed__is_noticed(tmp_path, file, change, words):
    cfg, out = config("ade20k"), tmp_path / "results" / "data" / "ade20k"
    prepare(cfg, write_ade20k(tmp_path), out, progress=False)
    content = bytearray((tmp_path / file).read_bytes())
    content[-1] ^= 1
    (tmp_path / file).write_bytes(content + change)
    message = message_of(open_split, cfg, tmp_path, "train", out)
    assert re.search(rf"ADE_train_00000001.jpg: {words}", message)


# Views


def scene(height, width, seed=0, num=4):
    draw = np.random.default_rng(seed)
    pixels = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Scene(Image.fromarray(pixels), draw.integers(0, num + 1, (height, width), dtype=np.uint8))


def test_train_view__at_the_published_size__has_the_published_pixels_and_numbers():
    sample = scene(32, 32)
    inputs, labels = kind_of(config("ade20k", **PLAIN)).train_view()(sample)
    assert np.array_equal(inputs.permute(1, 2, 0), np.asarray(sample.image))
    assert np.array_equal(labels, np.where(sample.labels == 0, 255, sample.labels.astype(int) - 1))


def test_train_view__numbers_from_0_on__are_the_classes_and_255_is_none():
    cfg = config("ade20k", **PLAIN, ignored=255)
    labels = scene(32, 32, num=3).labels.copy()
    labels[0] = 255
    found = kind_of(cfg).train_view()(Scene(scene(32, 32).image, labels))[1]
    assert np.array_equal(found, labels) and cfg.allowed == {0, 1, 2, 3, 255}


def test_train_view__of_a_wide_picture__is_a_part_of_it_flipped_or_not():
    sample = scene(32, 70)
    seen = set()
    view = kind_of(config("ade20k", **PLAIN | {"hflip": 0.5})).train_view()
    whole = np.asarray(sample.image)
    for seed in range(12):
        seed_everything("test", seed)
        inputs, labels = view(sample)
        pixels = inputs.permute(1, 2, 0).numpy()
        for is_flipped in (False, True):
            pixels, labels = (pixels[:, ::-1], labels.flip(1)) if is_flipped else (pixels, labels)
            places = [left for left in range(39) if np.array_equal(whole[:, left : left + 32], pixels)]
            for left in places:
                wanted = sample.labels[:, left : left + 32].astype(int)
                assert np.array_equal(labels, np.where(wanted == 0, 255, wanted - 1))
                seen.add((left, is_flipped))
    assert len(seen) > 8 and {is_flipped for _, is_flipped in seen} == {False, True}


def test_train_view__of_a_picture_made_smaller__is_padded_with_the_mean_and_255():
    cfg = config("ade20k", **PLAIN | {"scale": [0.5, 0.5]})
    inputs, labels = kind_of(cfg).train_view()(scene(40, 60))
    assert labels[:16, :24].max() < 255 or (labels[:16, :24] != 255).any()
    assert (labels[16:] == 255).all() and (labels[:, 24:] == 255).all()
    normalised = (inputs[:, 16:] / 255 - torch.tensor(cfg.mean).view(3, 1, 1)) / torch.tensor(cfg.std).view(3, 1, 1)
    assert normalised.abs().max() < 0.5 / 255 / min(cfg.std) + 1e-6


def test_train_view__crops__avoid_those_of_one_class():
    """A picture that is one class but for its right end: most crops that are drawn at first lie in that class."""
    labels = np.ones((32, 120), dtype=np.uint8)
    labels[:, 100:] = 2
    sample = Scene(scene(32, 120).image, labels)
    shares = {}
    for most in (0.75, 1.0):
        view = kind_of(config("ade20k", **PLAIN | {"max_class_share": most})).train_view()
        seed_everything("test", 0)
        shares[most] = np.mean([(view(sample)[1] == 0).float().mean() < 0.75 for _ in range(100)])
    # 12 of 89 places are good; one draw and ten more find one with 1 - (77 / 89) ** 11 = 80 %.
    assert abs(shares[1.0] - 12 / 89) < 0.1 and abs(shares[0.75] - 0.8) < 0.12


def test_is_mixed__of_classes__is_as_defined():
    draw = np.random.default_rng(0)
    found = set()
    for _ in range(200):
        labels = draw.choice([0, 1, 7, 255], size=(4, 4), p=draw.dirichlet([0.6] * 4)).astype(np.uint8)
        values, counts = np.unique(labels[labels != 255], return_counts=True)
        wanted = len(values) > 1 and counts.max() / counts.sum() < 0.75
        assert is_mixed(labels, 0.75) == wanted
        found.add(wanted)
    assert found == {False, True}


@pytest.mark.parametrize(
    ("size", "wanted"),
    [((400, 300), (683, 512)), ((300, 400), (512, 683)), ((3000, 300), (2048, 205)), ((2, 4000), (1, 2048))],
    ids=str,
)
def test_resized__of_a_picture__has_a_shorter_side_of_512_and_a_longer_one_of_at_most_2048(size, wanted):
    assert resized(size, 512) == wanted


def test_linear__of_levels__is_cut_at_both_ends():
    levels = np.array([0, 100, 200], dtype=np.uint8)
    assert _linear(levels, 1.5).tolist() == [0, 150, 255] and _linear(levels, 1.0, -30.5).tolist() == [0, 69, 169]


def test_coloured__of_red__turns_to_cyan_at_half_a_circle_and_pales_with_half_the_saturation():
    red = np.full((1, 1, 3), [255, 0, 0], dtype=np.uint8)
    assert abs(_coloured(red, 1.0, 90).astype(int) - [0, 255, 255]).max() <= 3
    assert abs(_coloured(red, 0.5, 0).astype(int) - [255, 128, 128]).max() <= 1


def test_distorted__of_grey_pictures__changes_brightness_and_contrast_within_their_ranges():
    levels = np.array([[[0], [100], [200]]], dtype=np.uint8)
    seed_everything("test", 0)
    found = np.stack([distorted(levels) for _ in range(400)]).reshape(400, 3).astype(int)
    assert abs((found == levels.reshape(3)).all(axis=1).mean() - 0.25) < 0.07
    assert found[:, 0].max() <= 1.5 * 32 and found[:, 1].min() >= 0.5 * (100 - 32) - 1
    assert found[:, 1].max() <= 1.5 * (100 + 32) and found[:, 2].max() == 255


def test_train_view__same_seed__is_the_same():
    view, found = kind_of(config("ade20k")).train_view(), []
    for _ in range(2):
        seed_everything("view", 3)
        found.append(view(scene(60, 80)))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_views__of_grey_pictures__have_one_channel(tmp_path):
    cfg = config("ade20k", channels=1, mean=[0.5], std=[0.5])
    samples = open_split(cfg, write_ade20k(tmp_path), "train")
    assert kind_of(cfg).train_view()(samples[0])[0].shape == (1, 32, 32)
    assert kind_of(cfg).eval_view()(samples[0])[0].shape == (1, 32, 40)
