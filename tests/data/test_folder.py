"""A plain folder of class folders: read, split, described and prepared, with a clear message for each thing amiss."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from describing import described
from layouts import message_of
from PIL import Image

from pipeline.cli import main
from pipeline.core.config import Layers, parse, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.core.image_files import open_image
from pipeline.data.images.classified import DataConfig
from pipeline.data.readers.folder import read_folder
from pipeline.data.store.archives import extract
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare

pytestmark = pytest.mark.usefixtures("configs")

# A class index is the position among these, sorted.
CLASSES = ["a cat", "dog, hound", "\u00fcber"]
COLOURS = {name: (60 * place + 40, 200, 90) for place, name in enumerate(CLASSES)}


def write(path, colour=(1, 2, 3), size=(8, 8), mode="RGB"):
    """The right half in this colour, the left half black."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new(mode, size, colour)
    image.paste(0, (0, 0, size[0] // 2, size[1]))
    image.save(path)


def write_classes(folder, count=10, classes=CLASSES, suffix="png", **options):
    for name in classes:
        for number in range(count):
            write(folder / name / f"{number}.{suffix}", COLOURS[name], **options)
    return folder


def write_splits(folder, **options):
    write_classes(folder / "train", count=4, **options)
    write_classes(folder / "val", count=2, **options)
    return folder


def config_of(folder, **choices):
    return described(folder, **choices).config


def refusal(folder, **choices):
    return message_of(described, folder, **choices)


def names(images):
    return [images.name(index) for index in range(len(images))]


# Reading


@pytest.mark.parametrize("suffix", ["png", "jpg", "JPEG", "bmp", "webp", "tiff", "ppm"])
def test_folder__any_kind_of_image_and_class_names__labels_follow_sorted_names(tmp_path, suffix):
    folder = write_splits(tmp_path / "mine", suffix=suffix)
    cfg = config_of(folder)
    val = open_split(cfg, folder, "val")
    assert val.labels == [0, 0, 1, 1, 2, 2]
    assert val.name(2) == f"val/dog, hound/0.{suffix}"
    reds = [val.image(index).getpixel((7, 4))[0] for index in (0, 2, 4)]
    assert reds == pytest.approx([40, 100, 160], abs=6)


def test_folder__prepared__lists_open_it_and_the_stamp_guards_it(tmp_path):
    folder = write_classes(tmp_path / "mine")
    cfg = config_of(folder)
    prepare(cfg, folder, tmp_path / "out", progress=False)
    for split in ("train", "val"):
        listed, scanned = open_split(cfg, folder, split, tmp_path / "out"), open_split(cfg, folder, split)
        assert names(listed) == names(scanned) and listed.labels == scanned.labels
    write(folder / names(listed)[0], (200, 1, 1))
    assert "than was verified" in message_of(open_split, cfg, folder, "val", tmp_path / "out")


def test_folder__class_missing_in_train__does_not_shift_the_labels_of_val(tmp_path):
    folder = write_splits(tmp_path / "mine")
    shutil.rmtree(folder / "train" / CLASSES[0])
    assert set(read_folder(folder, "train").samples.labels) == {1, 2}
    assert set(read_folder(folder, "val").samples.labels) == {0, 1, 2}


# The split by share


def test_share__of_each_class__is_val_and_the_rest_is_train(tmp_path):
    folder = write_classes(tmp_path / "mine", count=10)
    cfg = config_of(folder, val_share=0.28)  # 2.8 of ten: rounded, not cut off
    train, val = (open_split(cfg, folder, split) for split in ("train", "val"))
    assert np.bincount(train.labels).tolist() == [7, 7, 7] and np.bincount(val.labels).tolist() == [3, 3, 3]
    assert sorted(names(train) + names(val)) == sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))
    first_of_each = [names(val)[place].split("/")[1] for place in (0, 3, 6)]
    assert len(set(first_of_each)) > 1  # the classes are not cut at the same place


@pytest.mark.slow
def test_share__same_names_elsewhere_or_a_new_image__keep_their_side(tmp_path):
    folder = write_classes(tmp_path / "mine", count=40)
    before = set(names(read_folder(folder, "val", 0.25).samples))
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")
    assert set(names(read_folder(elsewhere, "val", 0.25).samples)) == before
    write(elsewhere / CLASSES[0] / "new.png")
    after = set(names(read_folder(elsewhere, "val", 0.25).samples))
    assert len(before ^ after) <= 2


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_share__small_classes__have_an_image_on_both_sides(tmp_path, share):
    folder = write_classes(tmp_path / "mine", count=2)
    cfg = config_of(folder, val_share=share)
    assert (cfg.num_train, cfg.num_val) == (3, 3)


# What is worked out


def test_describe__folder__has_counts_and_statistics_of_train(tmp_path):
    folder = tmp_path / "mine"
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        write(folder / "train" / "ab"[number % 2] / f"{number}.png")
        Image.fromarray(image).save(folder / "train" / "ab"[number % 2] / f"{number}.png")
    for name in "ab":
        write(folder / "val" / name / "0.png", (255, 255, 255))
    cfg = config_of(folder)
    assert (cfg.num_classes, cfg.num_train, cfg.num_val, cfg.val_share) == (2, 6, 2, None)
    assert (cfg.image_size, cfg.channels, cfg.eval_crop) == (8, 3, 1.0)
    assert cfg.mean == pytest.approx(pixels.mean((0, 1, 2)) / 255, abs=6e-5)
    assert cfg.std == pytest.approx(pixels.std((0, 1, 2)) / 255, abs=6e-5)


def test_describe__grey_images__are_one_channel_and_colour_can_be_read_as_grey(tmp_path):
    grey, colour = tmp_path / "grey", tmp_path / "colour"
    for folder, mode, values in ((grey, "L", (10, 90)), (colour, "RGB", ((200, 0, 0), (0, 0, 200)))):
        for number in range(4):
            write(folder / "a" / f"{number}.png", values[number % 2], mode=mode)
            write(folder / "b" / f"{number}.png", values[number % 2], mode=mode)
    cfg = config_of(grey, val_share=0.5)
    assert cfg.channels == 1 and 5 / 255 <= cfg.mean[0] <= 45 / 255
    cfg = config_of(colour, val_share=0.5, channels=1)
    # Half the luma of these two colours.
    assert 11 / 255 <= cfg.mean[0] <= 30 / 255 and len(cfg.std) == 1


def test_describe__sizes_that_differ__asks_for_one_and_takes_it(tmp_path):
    folder = write_classes(tmp_path / "mine", size=(9, 8))
    write(folder / CLASSES[0] / "other.png", size=(30, 20))
    with pytest.raises(ConfigError, match=r"9x8 to 30x20 pixels, not one square size; .* --image-size 224"):
        config_of(folder)
    cfg = config_of(folder, image_size=16)
    assert (cfg.image_size, cfg.eval_crop) == (16, 0.875)


@pytest.mark.parametrize(("image_size", "crop"), [(None, 1.0), (8, 1.0), (16, 0.875)])
def test_describe__squares_of_8_pixels__are_seen_whole_at_that_size_only(tmp_path, image_size, crop):
    assert config_of(write_splits(tmp_path / "mine"), image_size=image_size).eval_crop == crop


# What is wrong


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("train/a cat/sub/1.png", "train: found 1 folders inside class folders: a cat/sub; expected images directly"),
        ("train/a cat/notes.txt", "train: found 1 files that are not images (PNG, JPEG"),
        ("train/loose.png", "train: found 1 images outside class folders: loose.png; move them into one"),
        ("train/empty/.gitkeep", "train: found 1 classes with fewer than 1 images: empty"),
        ("val/only here/1.png", "found 1 classes in val but not in train: only here"),
        ("train/only here/1.png", "found 1 classes in train but not in val: only here"),
    ],
)
def test_describe__something_amiss__is_named(tmp_path, file, text):
    folder = write_splits(tmp_path / "mine")
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path) if path.suffix == ".png" else path.touch()
    assert text in refusal(folder)


@pytest.mark.parametrize("left", [".DS_Store", "._0.png", "Thumbs.db", ".ipynb_checkpoints/0.png", "__MACOSX/0.png"])
def test_describe__leftovers_of_operating_systems__are_left_out(tmp_path, left):
    folder = write_splits(tmp_path / "mine")
    for path in (folder / "train" / CLASSES[0] / left, folder / "train" / left):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no image")
    assert config_of(folder).num_train == 12
    (folder / "README.txt").write_text("may lie beside the splits")
    (folder / "train" / "labels.csv").write_text("and beside the classes")
    assert config_of(folder).num_classes == 3


def test_describe__images_that_cannot_be_used__are_all_named(tmp_path):
    folder = write_splits(tmp_path / "mine")
    damaged = folder / "val" / CLASSES[0] / "0.png"
    damaged.write_bytes(damaged.read_bytes()[:50])
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(folder / "train" / CLASSES[0] / "1.png")
    message = refusal(folder)
    assert "number of problems: 2" in message
    assert "val/a cat/0.png: found an image that cannot be decoded" in message
    assert "train/a cat/1.png: found pixels of more than 8 bits (mode I;16)" in message


def test_image__of_16_bits__is_refused_with_one_message_wherever_it_is_opened(tmp_path):
    folder = write_splits(tmp_path / "mine")
    cfg, file = config_of(folder), folder / "val" / CLASSES[0] / "0.png"
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(file)
    expected = "found pixels of more than 8 bits (mode I;16), expected 8 bits per channel; convert the image"
    assert message_of(open_image, file, "RGB") == f"--image {file}: {expected}"
    assert message_of(open_split(cfg, folder, "val").image, 0) == f"{file}: {expected}"


@pytest.mark.parametrize("name", ["a\rb.png", "a\r\nb.png", "\n.png", 'a"\r,b.png'])
def test_folder__file_names_with_line_ends__are_listed_and_found(tmp_path, name):
    folder = write_splits(tmp_path / "mine")
    write(folder / "val" / CLASSES[0] / name, size=(8, 8))
    cfg = config_of(folder)
    prepare(cfg, folder, tmp_path / "out", progress=False)
    assert f"val/{CLASSES[0]}/{name}" in names(open_split(cfg, folder, "val", tmp_path / "out"))


def test_describe__file_name_that_is_not_utf8__is_named(tmp_path):
    folder = write_splits(tmp_path / "mine")
    os.rename(folder / "train" / CLASSES[0] / "0.png", os.fsencode(folder / "train" / CLASSES[0]) + b"/caf\xe9.png")
    assert "train: found 1 file names that are not UTF-8: a cat/caf?.png; rename them" in refusal(folder)


@pytest.mark.parametrize(
    ("splits", "choices", "text"),
    [
        (["train", "test"], {}, "found train/ but not val/; add it (a folder of another name, such as test/"),
        (["val"], {}, "found val/ but not train/"),
        (["train", "val"], {"val_share": 0.2}, "has train/ and val/ already; leave out --val-share"),
    ],
)
def test_describe__split_that_is_not_clear__says_what_to_do(tmp_path, splits, choices, text):
    for split in splits:
        write_classes(tmp_path / "mine" / split, count=2)
    assert text in refusal(tmp_path / "mine", **choices)


def test_describe__no_classes_or_no_folder__says_so(tmp_path):
    write(tmp_path / "mine" / "0.png")
    message = refusal(tmp_path / "mine", unlabelled=False)
    assert "no class folders found" in message and "found 1 images outside class folders: 0.png" in message
    assert "number of problems: 2" in message
    assert "not found" in refusal(tmp_path / "nowhere")


def test_describe__one_image_of_a_class__cannot_be_split_by_share(tmp_path):
    folder = write_classes(tmp_path / "mine")
    write(folder / "lonely" / "0.png")
    assert "found 1 classes with fewer than 2 images: lonely" in refusal(folder)


def test_prepare__folder_changed_since_it_was_described__says_how_to_describe_it_again(tmp_path):
    folder = write_splits(tmp_path / "mine")
    cfg = config_of(folder)
    write(folder / "train" / CLASSES[0] / "new.png")
    message = message_of(prepare, cfg, folder, tmp_path / "out", progress=False)
    assert "train: found 13 images, expected 12" in message
    assert "python -m pipeline describe FOLDER --name NAME --force" in message


def test_val_share__of_a_published_set__is_refused():
    with pytest.raises(ConfigError, match=r"val_share is 0\.1, but source cifar10 has a published split"):
        content = yaml.safe_load(
            "{name: c, source: cifar10, image_size: 32, channels: 1, num_classes: 1, num_train: 1}"
        )
        parse(DataConfig, Layers(("test", content | {"num_val": 1, "mean": [0], "std": [1], "val_share": 0.1})))


# The command


def run(capsys, *arguments):
    code = main(["describe", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_describe_command__new_folder__writes_a_complete_config_and_says_what_comes_next(tmp_path, configs, capsys):
    folder = write_classes(tmp_path / "mine")
    code, out, _ = run(capsys, folder, "--name", "mine", "--val-share", 0.2)
    assert code == 0
    summary, assumed, *duplicates, first, second = out.splitlines()
    assert len(duplicates) == 2 and "3 of 3 in train and in val" in duplicates[1]
    assert summary.startswith("mine: 24 train and 6 val images (0.2 of each class is val) of 3 classes, 8x8 pixels")
    assert assumed == "assumed: 3 folders are classes (a cat, dog, hound, \\xfcber); if not, use --unlabelled"
    assert first == f"next: name the folder in the site file (`data: {{mine: {folder}}}`), or give it as --site"
    command = f"python -m pipeline describe {folder} --name mine --val-share 0.2 --study"
    assert second == f"next: `{command}` writes a study that is ready to run"
    content = read_yaml(configs / "mine.yaml")
    cfg = parse(DataConfig, Layers(("mine.yaml", content["data"])))
    assert cfg == config_of(folder, val_share=0.2)
    text = (configs / "mine.yaml").read_text()
    assert text.isascii() and "from label 0 on: a cat, dog, hound, \\xfcber." in text


@pytest.mark.slow
def test_describe_command__config_exists__is_kept_unless_it_is_the_same_or_forced(tmp_path, configs, capsys):
    folder = write_classes(tmp_path / "mine")
    run(capsys, folder, "--name", "mine")
    with (configs / "mine.yaml").open("a") as file:
        file.write("# a comment of mine\n")
    kept = (configs / "mine.yaml").read_text()
    code, out, _ = run(capsys, folder, "--name", "mine")
    assert code == 0 and "; unchanged: " in out
    write(folder / CLASSES[0] / "new.png", COLOURS[CLASSES[0]])
    code, _, err = run(capsys, folder, "--name", "mine")
    assert code == 1 and "exists with other values: num_train is 27, found 28" in err and "--force" in err
    assert (configs / "mine.yaml").read_text() == kept
    code, out, _ = run(capsys, folder, "--name", "mine", "--force")
    assert code == 0 and "; wrote " in out
    assert read_yaml(configs / "mine.yaml")["data"]["num_train"] == 28


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--name", "../mine"], "command line: name: found '../mine'"),
        (["--name", "mine", "--val-share", "1.5"], "command line: val_share: found 1.5"),
        (["--name", "mine", "--channels", "2"], "command line: channels: found 2"),
    ],
)
def test_describe_command__wrong_option__is_refused_before_anything_is_decoded(tmp_path, capsys, arguments, text):
    code, _, err = run(capsys, tmp_path / "nowhere", *arguments)
    assert code == 1 and text in err and "nowhere" not in err


# Real images


@pytest.mark.data
@pytest.mark.slow
def test_describe__tiny_imagenet_as_a_plain_folder__is_described_and_prepared(tmp_path):
    if "PATCHWORK_DATA" not in os.environ:
        pytest.skip("PATCHWORK_DATA is not set: it names the folder of the development data sets")
    extract(Path(os.environ["PATCHWORK_DATA"]) / "tiny-imagenet-25/tiny-imagenet-25.tar", tmp_path)
    published, folder = tmp_path / "tiny-imagenet-25", tmp_path / "mine"
    assert "folders inside class folders" in refusal(published / "train")
    for path in list((published / "train").iterdir())[:5]:
        (path / "images").rename(tmp_path / path.name)
        shutil.move(tmp_path / path.name, folder / path.name)
    cfg = config_of(folder)
    assert (cfg.num_train, cfg.num_val, cfg.num_classes, cfg.image_size) == (2250, 250, 5, 64)
    assert cfg.mean == pytest.approx((0.48, 0.45, 0.40), abs=0.1) and cfg.std == pytest.approx((0.28,) * 3, abs=0.05)
    manifest = prepare(cfg, folder, tmp_path / "out", workers=2, progress=False)
    assert (manifest.splits["val"].per_class_min, manifest.splits["val"].per_class_max) == (50, 50)


@pytest.mark.slow
@pytest.mark.data
def test_describe__one_image_of_each_imagenet_class__is_split_by_folder(tmp_path):
    if "PATCHWORK_DATA" not in os.environ:
        pytest.skip("PATCHWORK_DATA is not set: it names the folder of the development data sets")
    extract(Path(os.environ["PATCHWORK_DATA"]) / "imagenet-samples-256/imagenet-samples-256.tar", tmp_path)
    for split in ("train", "val"):
        (tmp_path / "mine" / split).parent.mkdir(exist_ok=True)
        (tmp_path / "mine" / split).symlink_to(tmp_path / "imagenet-samples-256", target_is_directory=True)
    cfg = config_of(tmp_path / "mine", image_size=224)
    assert (cfg.num_train, cfg.num_val, cfg.num_classes) == (1000, 1000, 1000)
    assert open_split(cfg, tmp_path / "mine", "val").labels == list(range(1000))
