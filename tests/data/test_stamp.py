"""What was recorded is what is trained on: a folder with other images than the verified ones is noticed at once."""

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from layouts import (
    CIFAR_COUNTS,
    WNIDS,
    config,
    message_of,
    write_cifar,
    write_fashion_mnist,
    write_idx,
    write_imagenet,
    write_jpeg,
    write_tiny_imagenet,
)

from pipeline.data.images import FileImages
from pipeline.data.manifest import read_manifest
from pipeline.data.opening import open_split
from pipeline.data.prepare import prepare
from pipeline.data.stamp import NUM_SAMPLED, differences, take_stamp
from pipeline.files import write_sealed


@pytest.fixture
def out(tmp_path) -> Path:
    """Where the manifest and the lists of a set are written."""
    return tmp_path / "results/demo/data/small"


def test_open_split__site_names_another_folder__says_both_folders_what_differs_and_what_to_do(tmp_path, out):
    cfg = config("imagenet", name="small")
    prepare(cfg, write_imagenet(tmp_path / "first"), out, progress=False)
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    write_jpeg(tmp_path / "second/train" / WNIDS[1] / f"{WNIDS[1]}_0.JPEG", (1, 2, 3), size=(90, 90))
    message = message_of(open_split, cfg, tmp_path / "second", "train", index=out)
    assert f"train/{WNIDS[1]}/{WNIDS[1]}_0.JPEG: found " in message
    assert f"folder that the site names: {tmp_path / 'second'}" in message
    assert f"folder that was verified: {tmp_path / 'first'}" in message
    assert "run `python -m pipeline prepare --scale demo --data small`" in message
    assert "fix `data: small:` in the site file" in message
    assert len(open_split(cfg, tmp_path / "second", "val", index=out)) == 3  # which is the same in both


def test_open_split__same_data_elsewhere__is_accepted(tmp_path, out):
    cfg = config("imagenet")
    prepare(cfg, write_imagenet(tmp_path / "first"), out, progress=False)
    (tmp_path / "first").rename(tmp_path / "second")
    assert len(open_split(cfg, tmp_path / "second", "train", index=out)) == 6


def test_open_split__other_content_of_the_same_size__is_noticed(tmp_path, out):
    cfg = config("tiny_imagenet")
    prepare(cfg, write_tiny_imagenet(tmp_path / "data"), out, progress=False)
    path = tmp_path / "data/val/images/val_0.JPEG"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    message = message_of(open_split, cfg, tmp_path / "data", "val", index=out)
    assert "val/images/val_0.JPEG: found other content than was verified" in message


def test_open_split__file_that_is_gone__is_named(tmp_path, out):
    cfg = config("tiny_imagenet")
    prepare(cfg, write_tiny_imagenet(tmp_path / "data"), out, progress=False)
    (tmp_path / "data/val/images/val_1.JPEG").unlink()
    message = message_of(open_split, cfg, tmp_path / "data", "val", index=out)
    assert "val/images/val_1.JPEG: No such file" in message


@pytest.mark.parametrize("kind", ["images", "labels"])
def test_open_split__arrays_with_other_pixels_or_labels__are_noticed(tmp_path, out, kind):
    cfg = config("fashion_mnist", name="small")
    prepare(cfg, write_fashion_mnist(tmp_path / "first"), out, progress=False)
    write_fashion_mnist(tmp_path / "second")
    labels, pixels = np.arange(6) % 3, np.arange(6 * 784).reshape(6, 28, 28) % 251
    labels[[1, 2]], pixels[5, 27, 27] = labels[[2, 1]], 7
    if kind == "images":
        write_idx(tmp_path / "second/train-images-idx3-ubyte.gz", pixels)
    else:
        write_idx(tmp_path / "second/train-labels-idx1-ubyte.gz", labels)
    message = message_of(open_split, cfg, tmp_path / "second", "train", index=out)
    assert "train: found other pixels or labels than were verified" in message
    assert str(tmp_path / "first") in message and str(tmp_path / "second") in message


def test_open_split__one_pixel_of_cifar__is_noticed(tmp_path, out):
    cfg = config("cifar10", **CIFAR_COUNTS)
    prepare(cfg, write_cifar(tmp_path / "data", "cifar10"), out, progress=False)
    path = tmp_path / "data/cifar-10-batches-bin/data_batch_4.bin"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "other pixels or labels" in message_of(open_split, cfg, tmp_path / "data", "train", index=out)
    assert len(open_split(cfg, tmp_path / "data", "val", index=out)) == 3


def test_open_split__labels_edited_in_the_list__are_noticed(tmp_path, out):
    cfg = config("imagenet")
    prepare(cfg, write_imagenet(tmp_path / "data"), out, progress=False)
    rows = list(csv.reader((out / "train.csv").open()))
    rows[1][1], rows[6][1] = rows[6][1], rows[1][1]
    with (out / "train.csv").open("w") as file:
        csv.writer(file).writerows(rows)
    message = message_of(open_split, cfg, tmp_path / "data", "train", index=out)
    assert "train: found other file names or labels than were verified" in message


def test_open_split__without_a_manifest__says_which_command_writes_it(tmp_path, out):
    write_imagenet(tmp_path / "data")
    message = message_of(open_split, config("imagenet"), tmp_path / "data", "train", index=out)
    assert message.endswith("not found; run `python -m pipeline prepare --scale demo --data small` first")


@pytest.mark.parametrize("content", ["", "{}", '{"name": "small", "splits": {"train": {"count": 6}}}'])
def test_read_manifest__damaged_or_of_another_version__asks_for_prepare(out, content):
    out.mkdir(parents=True)
    (out / "manifest.json").write_text(content)
    message = message_of(read_manifest, out / "manifest.json")
    assert "manifest.json: found " in message
    assert "run `python -m pipeline prepare --scale demo --data small` again" in message


def test_read_manifest__with_the_older_name_of_its_source_digests__is_read(tmp_path, out):
    path = out / "manifest.json"
    folder = write_imagenet(tmp_path / "data")
    content = prepare(config("imagenet"), folder, out, progress=False).model_dump(mode="json")
    content["made_of"] = {"fashion_mnist": "1234"}
    del content["source_digests"]
    write_sealed(path, content)
    assert read_manifest(path).source_digests == {"fashion_mnist": "1234"}


def test_prepare__same_data_elsewhere__leaves_the_manifest_as_it_was(tmp_path, out):
    cfg = config("imagenet")
    prepare(cfg, write_imagenet(tmp_path / "first"), out, progress=False)
    before = (out / "manifest.json").read_bytes()
    (tmp_path / "first").rename(tmp_path / "second")
    assert prepare(cfg, tmp_path / "second", out, progress=False).folder == str(tmp_path / "first")
    assert (out / "manifest.json").read_bytes() == before
    write_jpeg(tmp_path / "second/val" / WNIDS[0] / "ILSVRC2012_val_00000001.JPEG", (1, 2, 3))
    assert prepare(cfg, tmp_path / "second", out, progress=False).folder == str(tmp_path / "second")
    assert (out / "manifest.json").read_bytes() != before


@pytest.mark.slow
def test_stamp__of_a_million_files__touches_a_few_spread_over_all_of_them(tmp_path, monkeypatch):
    names = [f"{number:07d}" for number in range(1_000_000)]
    images, touched = FileImages(tmp_path, names, [0] * len(names)), []

    def stat(path, **options):
        touched.append(int(path.name))
        return os.stat_result([0] * 6 + [len(path.name)] + [0] * 3)

    opened = []
    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path) or path.name.encode())
    stamp = take_stamp(images)
    assert len(touched) == len(stamp.sample) == NUM_SAMPLED and 4 <= len(opened) <= 16
    assert (touched[0], touched[-1]) == (0, 999_999) and max(np.diff(touched)) < 20_000
    assert differences(images, stamp) == [] and len(touched) == 2 * NUM_SAMPLED
