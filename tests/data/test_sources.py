"""Sources read each set in its published form; the writers below build small sets in exactly that form."""

import gzip
import io
import os
import struct
import tarfile

import numpy as np
import pytest
from layouts import (
    CIFAR_COUNTS,
    WNIDS,
    cifar_batch,
    config,
    message_of,
    write_cifar,
    write_fashion_mnist,
    write_imagenet,
    write_jpeg,
    write_loose_val,
    write_tiny_imagenet,
)
from PIL import Image

from pipeline.core.config import CONFIGS, Layers, names, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.data import samples
from pipeline.data.kind import kind_of, parse_data
from pipeline.data.readers.fashion import read_fashion_attributes, read_fashion_mnist
from pipeline.data.readers.sources import SOURCES
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare

# Configs


def fragment(name):
    content = read_yaml(CONFIGS / "data" / f"{name}.yaml")
    assert list(content) == ["data"]
    return parse_data(Layers((name, content["data"])))


@pytest.mark.parametrize("name", names(CONFIGS / "data"))
def test_data_config__every_fragment__is_valid_and_named_after_its_file(name):
    cfg = fragment(name)
    # A set seen at another size, or as ST sees it, is still that set: one folder on the site, one manifest.
    assert name in (cfg.name, f"{cfg.name}_{getattr(cfg, 'image_size', '')}", f"{cfg.name}_known", f"{cfg.name}_st")


def test_data_config__of_known_classes_at_paper_scale__is_the_whole_set():
    assert fragment("imagenet1k_known") == fragment("imagenet1k")


@pytest.mark.parametrize("name", ["fashion_mnist", "tiny_imagenet"])
def test_data_configs__known_classes_and_outliers__are_the_whole_set_together(name):
    whole, known, outliers = (fragment(f"{name}{part}") for part in ("", "_known", "_o"))
    assert known.without_classes == outliers.only_classes
    for key in ("num_classes", "num_val"):
        assert getattr(known, key) + getattr(outliers, key) == getattr(whole, key)
    assert known.folder_name == outliers.folder_name == whole.folder_name
    assert known.num_train * whole.num_classes == whole.num_train * known.num_classes


@pytest.mark.parametrize("name", ["cifar10_224", "imagenet1k_256"])
def test_data_config__same_set_at_another_size__means_the_same_images(name):
    cfg = fragment(name)
    seen = {"augment", "eval_crop", "image_size", "mean", "std"}
    assert cfg.model_dump(exclude=seen) == fragment(cfg.name).model_dump(exclude=seen)


def test_data_config__unknown_source__lists_valid_names():
    with pytest.raises(ConfigError) as caught:
        config("cifar10", source="cifar-10")
    assert "did you mean 'cifar10'?" in str(caught.value)
    assert all(name in str(caught.value) for name in SOURCES)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mean": [0.5]}, "mean has 1 values, channels is 3"),
        ({"std": [0.1] * 4}, "std has 4 values, channels is 3"),
        ({"std": [0.1, 0.1, 0.0]}, "each must be above 0"),
        ({"eval_crop": 1.5}, "eval_crop"),
        ({"name": "../elsewhere"}, "name"),
        ({"image_sise": 3}, "did you mean 'image_size'?"),
    ],
)
def test_data_config__wrong_value__says_so(changes, text):
    with pytest.raises(ConfigError) as caught:
        config("cifar10", **changes)
    assert text in str(caught.value)


# Fashion-MNIST


@pytest.mark.slow
@pytest.mark.parametrize(("split", "count"), [("train", 5000), ("val", 1000)])
def test_fashion_mnist__embedded__has_its_counts_and_pixels(split, count):
    cfg = fragment("fashion_mnist")
    found = open_split(cfg, kind_of(cfg).default_folder(), split)
    assert len(found) == count
    assert np.bincount(found.labels).tolist() == [count // 10] * 10
    assert (found.image(7).mode, found.image(7).size) == ("L", (28, 28))
    assert np.mean([np.asarray(found.image(i)).mean() / 255 for i in range(count)]) == pytest.approx(0.286, abs=0.005)


# What is true of an article, by its class in the published order.
ARTICLES = {
    "T-shirt/top": {"worn on the upper body"},
    "Trouser": {"covers the legs"},
    "Pullover": {"worn on the upper body", "long sleeves"},
    "Dress": {"worn on the upper body", "covers the legs"},
    "Coat": {"worn on the upper body", "long sleeves", "open at the front"},
    "Sandal": {"worn on the feet"},
    "Shirt": {"worn on the upper body", "open at the front"},
    "Sneaker": {"worn on the feet"},
    "Bag": {"carried"},
    "Ankle boot": {"worn on the feet"},
}


def test_fashion_mnist__classes_and_attributes__are_those_of_the_articles():
    folder = kind_of(fragment("fashion_mnist")).default_folder()
    articles, attributes = read_fashion_mnist(folder, "val"), read_fashion_attributes(folder, "val")
    assert articles.classes == [*ARTICLES]
    for label, bits in zip(articles.samples.labels, attributes.samples.labels, strict=True):
        found = {name for bit, name in enumerate(attributes.classes) if bits >> bit & 1}
        assert found == ARTICLES[articles.classes[label]]


def test_fashion_mnist__three_channels__images_are_rgb(tmp_path):
    cfg = config("fashion_mnist", channels=3, mean=[0.5] * 3, std=[0.5] * 3)
    assert open_split(cfg, write_fashion_mnist(tmp_path), "val").image(0).mode == "RGB"


def test_default_folder__other_source__is_none():
    assert kind_of(config("cifar10")).default_folder() is None


def test_fashion_mnist__truncated_gzip_and_missing_file__names_both(tmp_path):
    write_fashion_mnist(tmp_path)
    images_file = tmp_path / "train-images-idx3-ubyte.gz"
    images_file.write_bytes(images_file.read_bytes()[:-20])
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    message = message_of(open_split, config("fashion_mnist"), tmp_path, "train")
    assert "train-images-idx3-ubyte.gz: truncated or damaged gzip file" in message
    assert "train-labels-idx1-ubyte.gz: not found" in message
    assert "github.com/zalandoresearch/fashion-mnist" in message


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (struct.pack(">4I", 2049, 6, 28, 28) + bytes(6 * 784), "found magic number and image shape (2049, 28, 28)"),
        (struct.pack(">4I", 2051, 6, 32, 32) + bytes(6 * 1024), "expected (2051, 28, 28)"),
        (struct.pack(">4I", 2051, 6, 28, 28) + bytes(100), "header says 6 entries, found 100 bytes"),
        (struct.pack(">4I", 2051, 5, 28, 28) + bytes(5 * 784), "found 5 images and 6 labels"),
        (b"\x00", "found magic number and image shape ()"),
        (b"", "found magic number and image shape ()"),
    ],
)
def test_fashion_mnist__wrong_idx_content__says_what_was_found(tmp_path, content, text):
    write_fashion_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
    assert text in message_of(open_split, config("fashion_mnist"), tmp_path, "train")


# ImageNet


def test_imagenet__class_folders__label_is_position_in_sorted_wnids(tmp_path):
    found = open_split(config("imagenet"), write_imagenet(tmp_path), "train")
    assert found.labels == [0, 0, 1, 1, 2, 2]
    assert found.name(5) == f"train/{WNIDS[2]}/{WNIDS[2]}_1.JPEG"
    assert found.image(5).size == (51, 40)
    assert found.image(5).getpixel((9, 9))[0] == pytest.approx(160, abs=3)


@pytest.mark.parametrize("devkit", [".", "ILSVRC2012_devkit_t12/data", "devkit/data"])
def test_imagenet__loose_val_with_devkit__labels_follow_wnids_not_ids(tmp_path, devkit):
    found = open_split(config("imagenet"), write_loose_val(tmp_path, devkit), "val")
    assert found.labels == [1, 2, 0]
    reds = [found.image(index).getpixel((9, 9))[0] for index in range(3)]
    assert reds == pytest.approx([80, 160, 0], abs=3)


@pytest.mark.parametrize("name", ["meta.mat", "ILSVRC2012_validation_ground_truth.txt"])
def test_imagenet__loose_val_without_devkit__names_the_missing_file(tmp_path, name):
    write_loose_val(tmp_path, "devkit/data")
    (tmp_path / "devkit/data" / name).unlink()
    message = message_of(open_split, config("imagenet"), tmp_path, "val")
    assert f"found loose images but no {name}" in message
    assert "ILSVRC2012_devkit_t12.tar.gz" in message


def test_imagenet__damaged_devkit__names_the_file(tmp_path):
    write_loose_val(tmp_path, "devkit/data")
    (tmp_path / "devkit/data/meta.mat").write_bytes(b"MATLAB 5.0 MAT-file, but no more than that")
    assert "meta.mat: found" in message_of(open_split, config("imagenet"), tmp_path, "val")


def test_imagenet__ground_truth_with_unknown_ids__shows_them(tmp_path):
    write_loose_val(tmp_path, "devkit/data")
    (tmp_path / "devkit/data/ILSVRC2012_validation_ground_truth.txt").write_text("3\n4\nx\n")
    message = message_of(open_split, config("imagenet"), tmp_path, "val")
    assert "found 2 lines such as 4, x, expected ids of the 3 leaves in meta.mat" in message


def test_imagenet__loose_image_beyond_ground_truth__is_named(tmp_path):
    write_loose_val(tmp_path)
    write_jpeg(tmp_path / "val" / "ILSVRC2012_val_00000004.JPEG", 0)
    message = message_of(open_split, config("imagenet"), tmp_path, "val")
    assert "found 1 images without a class: ILSVRC2012_val_00000004.JPEG" in message


def test_imagenet__val_mixes_both_layouts__is_refused(tmp_path):
    write_imagenet(tmp_path)
    write_jpeg(tmp_path / "val" / "ILSVRC2012_val_00000009.JPEG", 0)
    assert "both class folders and loose images" in message_of(open_split, config("imagenet"), tmp_path, "val")


def test_imagenet__png_cmyk_and_grey_under_jpeg_names__all_come_as_rgb(tmp_path):
    write_imagenet(tmp_path)
    first, second, third = (tmp_path / "train" / WNIDS[0] / f"{WNIDS[0]}_{i}.JPEG" for i in (0, 1, 2))
    Image.new("RGBA", (5, 6), (9, 9, 9, 9)).save(first, "PNG")
    write_jpeg(second, (0, 255, 255, 0), mode="CMYK")
    write_jpeg(third, 7, mode="L")
    found = open_split(config("imagenet", num_train=7), tmp_path, "train")
    assert [found.image(index).mode for index in range(3)] == ["RGB"] * 3


def test_imagenet__damaged_image_while_training__names_the_file(tmp_path):
    write_imagenet(tmp_path)
    damaged = tmp_path / "train" / WNIDS[0] / f"{WNIDS[0]}_0.JPEG"
    damaged.write_bytes(damaged.read_bytes()[:300])
    found = open_split(config("imagenet"), tmp_path, "train")
    assert str(damaged) in message_of(found.image, 0)


def test_open_split__small_set__is_read_once(tmp_path):
    found = open_split(config("imagenet"), write_imagenet(tmp_path), "train")
    for index in range(len(found)):
        found.path(index).unlink()
    assert [found.image(index).size for index in (0, 5)] == [(50, 40), (51, 40)]


def test_open_split__set_above_memory_limit__reads_files_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "IN_MEMORY_BYTES", 1000)
    found = open_split(config("imagenet"), write_imagenet(tmp_path), "train")
    assert found.image(5).size == (51, 40)
    found.path(5).unlink()
    assert "No such file" in message_of(found.image, 5)


def test_open_split__missing_folder__says_where_to_get_it_and_where_to_name_it(tmp_path):
    message = message_of(open_split, config("imagenet"), tmp_path / "nowhere", "train")
    assert f"folder {tmp_path / 'nowhere'} not found" in message
    assert "https://image-net.org/download.php" in message
    assert "`data: small_imagenet:` in the site file" in message


def test_open_split__wrong_counts__are_both_reported(tmp_path):
    write_imagenet(tmp_path)
    message = message_of(open_split, config("imagenet", num_classes=2, num_train=7), tmp_path, "train")
    assert "train: found 6 images, expected 7" in message
    assert "train: found images of 3 classes, expected 2" in message
    assert "train: found labels 2, expected 0 to 1" in message


@pytest.mark.parametrize("content", [None, "", "file,label\n", "path,label\na.JPEG,x\n", "path,label\na.JPEG\n"])
def test_open_split__damaged_list__asks_for_prepare(tmp_path, content):
    out = tmp_path / "results/demo/data/small_imagenet"
    prepare(config("imagenet"), write_imagenet(tmp_path / "data"), out, progress=False)
    (out / "train.csv").unlink()
    if content is not None:
        (out / "train.csv").write_text(content)
    message = message_of(open_split, config("imagenet"), tmp_path / "data", "train", index=out)
    assert "train.csv: found" in message
    assert "run `python -m pipeline prepare --scale demo --data small_imagenet` again" in message


# Tiny ImageNet


def test_tiny_imagenet__published_layout__labels_follow_sorted_wnids(tmp_path):
    write_tiny_imagenet(tmp_path)
    train = open_split(config("tiny_imagenet"), tmp_path, "train")
    val = open_split(config("tiny_imagenet"), tmp_path, "val")
    assert train.labels == [0, 0, 1, 1, 2, 2]
    assert val.labels == [2, 1, 0]
    assert val.name(0) == "val/images/val_0.JPEG"
    assert val.image(0).getpixel((9, 9))[0] == pytest.approx(160, abs=3)


def test_tiny_imagenet__annotations_do_not_fit__every_kind_is_reported(tmp_path):
    write_tiny_imagenet(tmp_path)
    (tmp_path / "val" / "images" / "val_0.JPEG").unlink()
    write_jpeg(tmp_path / "val" / "images" / "val_77.JPEG", 0)
    with (tmp_path / "val" / "val_annotations.txt").open("a") as file:
        file.write("val_78.JPEG\tn99999999\t0\t0\t9\t9\n")
    message = message_of(open_split, config("tiny_imagenet"), tmp_path, "val")
    assert "1 lines of val_annotations.txt without a class of wnids.txt: val_78.JPEG" in message
    assert "1 images of val_annotations.txt that are not in val/images: val_0.JPEG" in message
    assert "1 images that val_annotations.txt does not list: val_77.JPEG" in message


def test_tiny_imagenet__train_folders_differ_from_wnids__both_sides_are_named(tmp_path):
    write_tiny_imagenet(tmp_path)
    os.rename(tmp_path / "train" / WNIDS[0], tmp_path / "train" / "n11111111")
    message = message_of(open_split, config("tiny_imagenet"), tmp_path, "train")
    assert f"no folder found for 1 ids of wnids.txt: {WNIDS[0]}" in message
    assert "found 1 class folders not in wnids.txt: n11111111" in message


@pytest.mark.parametrize(("name", "split"), [("wnids.txt", "train"), ("val/val_annotations.txt", "val")])
def test_tiny_imagenet__missing_list__is_named(tmp_path, name, split):
    write_tiny_imagenet(tmp_path)
    (tmp_path / name).unlink()
    assert f"{split}: {name} not found" in message_of(open_split, config("tiny_imagenet"), tmp_path, split)


# CIFAR


@pytest.mark.parametrize("source", ["cifar10", "cifar100"])
def test_cifar__binary_version__has_its_images_and_fine_labels(tmp_path, source):
    write_cifar(tmp_path, source)
    train = open_split(config(source, **CIFAR_COUNTS), tmp_path, "train")
    val = open_split(config(source, **CIFAR_COUNTS), tmp_path, "val")
    assert (train.labels, val.labels) == ([0, 1, 2] * 5, [0, 1, 2])
    planes = cifar_batch(3, seed=9)[0][1].reshape(3, 32, 32)
    np.testing.assert_array_equal(np.asarray(val.image(1)), np.stack(list(planes), axis=-1))
    assert val.image(1).mode == "RGB"


@pytest.mark.parametrize(
    ("source", "found", "wanted"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_1", "cifar-10-binary.tar.gz"),
        ("cifar10", "cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"),
        ("cifar100", "cifar-100-python/train", "cifar-100-binary.tar.gz"),
        ("cifar100", "cifar-100-python.tar.gz", "cifar-100-binary.tar.gz"),
    ],
)
def test_cifar__only_the_python_version__one_message_names_what_to_download(tmp_path, source, found, wanted):
    path = tmp_path / "data" / found
    path.parent.mkdir(parents=True)
    path.write_bytes(b"a pickle that nobody opens")
    message = message_of(prepare, config(source, **CIFAR_COUNTS), tmp_path / "data", tmp_path / "out", progress=False)
    assert "number of problems: 1\n" in message
    assert f"found {found.split('/')[0]}, the python version" in message
    assert f"download {wanted}" in message and f"https://www.cs.toronto.edu/~kriz/{wanted}" in message


def test_cifar__damaged_and_missing_batches__are_all_named(tmp_path):
    folder = write_cifar(tmp_path, "cifar10") / "cifar-10-batches-bin"
    (folder / "data_batch_1.bin").write_bytes((folder / "data_batch_1.bin").read_bytes()[:500])
    (folder / "data_batch_2.bin").unlink()
    message = message_of(open_split, config("cifar10", **CIFAR_COUNTS), tmp_path, "train")
    assert "cifar-10-batches-bin/data_batch_1.bin: found 500 bytes, expected a multiple of 3073: truncated" in message
    assert "cifar-10-batches-bin/data_batch_2.bin: not found" in message
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in message


def test_cifar__truncated_fine_labels__are_named(tmp_path):
    path = write_cifar(tmp_path, "cifar100") / "cifar-100-binary" / "test.bin"
    path.write_bytes(path.read_bytes()[:-1])
    message = message_of(open_split, config("cifar100", **CIFAR_COUNTS), tmp_path, "val")
    assert "cifar-100-binary/test.bin: found 9221 bytes, expected a multiple of 3074: truncated" in message


@pytest.mark.parametrize(
    ("source", "archive"), [("cifar10", "cifar-10-binary.tar.gz"), ("cifar100", "cifar-100-binary.tar.gz")]
)
def test_cifar__archive_only__is_extracted_and_leaves_nothing_else(tmp_path, source, archive):
    (inside,) = write_cifar(tmp_path / "made", source).iterdir()
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "data" / archive, "w:gz") as tar:
        tar.add(inside, arcname=inside.name)
    assert len(open_split(config(source, **CIFAR_COUNTS), tmp_path / "data", "train")) == 15
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == sorted([archive, inside.name])


def test_cifar__archive_with_path_traversal__is_refused(tmp_path):
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "data" / "cifar-10-binary.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("../../escaped")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"evil"))
    message = message_of(open_split, config("cifar10", **CIFAR_COUNTS), tmp_path / "data", "train")
    assert "cifar-10-binary.tar.gz: damaged or unsafe archive" in message
    assert [path.name for path in tmp_path.rglob("*")] == ["data", "cifar-10-binary.tar.gz"]


def test_cifar__truncated_archive__leaves_no_half_folder(tmp_path):
    (inside,) = write_cifar(tmp_path / "made", "cifar10").iterdir()
    archive = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(inside, arcname=inside.name)
    archive.write_bytes(archive.read_bytes()[:-9000])
    message = message_of(open_split, config("cifar10", **CIFAR_COUNTS), tmp_path, "train")
    assert "cifar-10-binary.tar.gz: damaged or unsafe archive" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar-10-binary.tar.gz", "made"]


def test_cifar__empty_folder__lists_what_was_looked_for(tmp_path):
    message = message_of(open_split, config("cifar100"), tmp_path, "train")
    assert "neither cifar-100-binary nor cifar-100-binary.tar.gz found" in message
