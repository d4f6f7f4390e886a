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

from pipeline.core.files import write_sealed
from pipeline.data.images.images import FileImages
from pipeline.data.store import opening
from pipeline.data.store.manifest import read_manifest
from pipeline.data.store.opening import compare_folder, open_split
from pipeline.data.store.prepare import prepare
from pipeline.data.store.stamp import NUM_SAMPLED, Stamp, content_differences, differences, take_stamp


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


def write_folders(root, num_folders=200, files=3):
    """Files of one size, with the same names in every folder."""
    names = [f"c{number:03d}/{file}" for number in range(num_folders) for file in range(files)]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return FileImages(root, names, [int(name[1:4]) for name in names])


@pytest.mark.slow
@pytest.mark.parametrize("pair", [(0, 1), (57, 58), (101, 102), (198, 199)], ids=str)
def test_stamp__two_class_folders_swapped__is_noticed_wherever_they_are(tmp_path, pair):
    images = write_folders(tmp_path)
    stamp = take_stamp(images)
    assert differences(images, stamp) == []
    one, other = (tmp_path / f"c{number:03d}" for number in pair)
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    assert {line.split("/")[0] for line in differences(images, stamp)} == {one.name, other.name}


def test_stamp__of_more_folders_than_are_read__reads_some_from_the_first_to_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.data.store.stamp.MOST_FOLDERS", 5)
    images = write_folders(tmp_path, num_folders=100, files=1)
    read = [file.name for file in take_stamp(images).sample if file.sha256]
    assert {"c000/0", "c099/0"} < {*read} and 5 <= len(read) <= 5 + 8


@pytest.mark.slow
def test_stamp__of_an_older_manifest__is_compared_with_what_it_has(tmp_path):
    images = write_folders(tmp_path)
    stamp = take_stamp(images)
    older = Stamp(listing=stamp.listing, sample=stamp.sample[:9])
    assert differences(images, older) == [] and content_differences(images, older) == []
    (tmp_path / stamp.sample[0].name).write_text("other")
    assert len(differences(images, older)) == 1


@pytest.fixture
def tiny(tmp_path, out):
    """Tiny ImageNet's layout, prepared: config and folder."""
    cfg, folder = config("tiny_imagenet", name="small"), write_tiny_imagenet(tmp_path / "data")
    prepare(cfg, folder, out, progress=False)
    return cfg, folder


def test_compare_folder__label_file_edited__is_noticed(tiny, out):
    cfg, folder = tiny
    path = folder / "val/val_annotations.txt"
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    rows[0][1], rows[1][1] = rows[1][1], rows[0][1]
    state = compare_folder(cfg, folder, out)
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    message = message_of(compare_folder, cfg, folder, out, state)
    assert "val: found other file names or labels than were verified" in message


def test_compare_folder__one_byte_of_any_file_and_its_time_set_back__is_noticed(tiny, out):
    cfg, folder = tiny
    state = compare_folder(cfg, folder, out)
    for path in sorted(folder.rglob("*.JPEG")):
        content, about = path.read_bytes(), path.stat()
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
        assert "content than was verified" in message_of(compare_folder, cfg, folder, out, state)
        path.write_bytes(content)
    assert compare_folder(cfg, folder, out, state) != state  # other times, and the same contents


def test_compare_folder__state_that_is_known__reads_no_more_than_opening_does(tiny, out, monkeypatch):
    cfg, folder = tiny
    state = compare_folder(cfg, folder, out)
    monkeypatch.setattr(opening, "content_differences", lambda *given: ["all files were read"])
    assert compare_folder(cfg, folder, out, state) == state
    assert "all files were read" in message_of(compare_folder, cfg, folder, out)


def test_compare_folder__too_many_files_to_look_at_all__has_no_state(tiny, out, monkeypatch):
    cfg, folder = tiny
    monkeypatch.setattr("pipeline.data.store.stamp.MOST_FILES", 2)
    assert compare_folder(cfg, folder, out) == ""


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
