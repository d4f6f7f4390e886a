"""`prepare` accepts a good set with the same manifest every time, and refuses a bad one with all its problems."""

import os
import shutil
from pathlib import Path

import pytest
from layouts import (
    CIFAR_COUNTS,
    WNIDS,
    config,
    message_of,
    write_cifar,
    write_fashion_mnist,
    write_imagenet,
    write_jpeg,
    write_loose_val,
    write_stanford_cars,
    write_tiny_imagenet,
)
from PIL import Image

from pipeline.data.store import inspection
from pipeline.data.store.archives import extract
from pipeline.data.store.manifest import read_manifest
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare

WRITERS = {
    "fashion_mnist": (write_fashion_mnist, {}),
    "imagenet": (write_imagenet, {}),
    "tiny_imagenet": (write_tiny_imagenet, {}),
    "cifar10": (lambda folder: write_cifar(folder, "cifar10"), CIFAR_COUNTS),
    "cifar100": (lambda folder: write_cifar(folder, "cifar100"), CIFAR_COUNTS),
    "stanford_cars": (write_stanford_cars, {}),
}


def refusal(cfg, folder, out, **options):
    """The message of a refused set; no manifest may be left."""
    message = message_of(prepare, cfg, folder, out, progress=False, **options)
    assert not (out / "manifest.json").exists()
    return message


@pytest.mark.slow
@pytest.mark.parametrize("source", WRITERS)
def test_prepare__every_source__same_data_elsewhere_has_same_fingerprint(tmp_path, source):
    write, counts = WRITERS[source]
    cfg = config(source, **counts)
    first = prepare(cfg, write(tmp_path / "a"), tmp_path / "out", progress=False)
    once = (tmp_path / "out" / "manifest.json").read_bytes()
    again = prepare(cfg, tmp_path / "a", tmp_path / "out", workers=2, progress=False)
    elsewhere = prepare(cfg, write(tmp_path / "b"), tmp_path / "out2", progress=False)
    assert (tmp_path / "out" / "manifest.json").read_bytes() == once
    assert first == again == read_manifest(tmp_path / "out" / "manifest.json")
    assert elsewhere == first.model_copy(update={"folder": str(tmp_path / "b")})


def test_prepare__imagenet__manifest_describes_the_set(tmp_path):
    write_imagenet(tmp_path / "data")
    write_jpeg(tmp_path / "data" / "train" / WNIDS[0] / "grey.JPEG", 7, size=(90, 30), mode="L")
    cfg = config("imagenet", num_train=7)
    manifest = prepare(cfg, tmp_path / "data", tmp_path / "out", progress=False)
    files = (tmp_path / "data" / "train").rglob("*.JPEG")
    assert manifest.splits["train"].model_dump(exclude={"fingerprint", "stamp"}) == {
        "count": 7,
        "classes": 3,
        "per_class_min": 2,
        "per_class_max": 3,
        "min_size": (50, 30),
        "max_size": (90, 40),
        "modes": {"L": 1, "RGB": 6},
        "bytes": sum(path.stat().st_size for path in files),
    }
    assert (manifest.name, manifest.source) == ("small_imagenet", "imagenet")
    assert manifest.folder == str(tmp_path / "data")


@pytest.mark.parametrize("write", [write_imagenet, write_loose_val])
def test_prepare__file_lists__open_the_same_split_without_a_scan(tmp_path, write):
    cfg = config("imagenet")
    prepare(cfg, write(tmp_path / "data"), tmp_path / "out", progress=False)
    for split in ("train", "val"):
        scanned = open_split(cfg, tmp_path / "data", split)
        listed = open_split(cfg, tmp_path / "data", split, index=tmp_path / "out")
        assert listed.labels == scanned.labels
        assert [listed.name(i) for i in range(len(listed))] == [scanned.name(i) for i in range(len(scanned))]
        assert listed.image(1).tobytes() == scanned.image(1).tobytes()
    assert (tmp_path / "out" / "val.csv").read_text().startswith("path,label\nval/")


def test_prepare__array_sets__write_no_lists_and_ignore_them(tmp_path):
    cfg = config("fashion_mnist")
    prepare(cfg, write_fashion_mnist(tmp_path / "data"), tmp_path / "out", progress=False)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]
    assert len(open_split(cfg, tmp_path / "data", "val", index=tmp_path / "out")) == 3


@pytest.mark.parametrize("change", ["content", "name", "label"])
def test_prepare__changed_data__changes_the_fingerprint(tmp_path, change):
    cfg = config("tiny_imagenet")
    before = prepare(cfg, write_tiny_imagenet(tmp_path / "data"), tmp_path / "out", progress=False)
    image = tmp_path / "data" / "train" / WNIDS[0] / "images" / f"{WNIDS[0]}_0.JPEG"
    if change == "content":
        write_jpeg(image, (1, 2, 3))
    elif change == "name":
        image.rename(image.with_name("other.JPEG"))
    else:
        path = tmp_path / "data" / "val" / "val_annotations.txt"
        swap = {WNIDS[0]: WNIDS[1], WNIDS[1]: WNIDS[0], WNIDS[2]: WNIDS[2]}
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        path.write_text("".join("\t".join([row[0], swap[row[1]], *row[2:]]) + "\n" for row in rows))
    after = prepare(cfg, tmp_path / "data", tmp_path / "out", progress=False)
    split, same = ("val", "train") if change == "label" else ("train", "val")
    assert after.fingerprint != before.fingerprint
    assert after.splits[split].fingerprint != before.splits[split].fingerprint
    assert after.splits[same] == before.splits[same]


def test_prepare__missing_folder__says_where_to_get_the_set(tmp_path):
    message = refusal(config("tiny_imagenet"), tmp_path / "nowhere", tmp_path / "out")
    assert f"folder {tmp_path / 'nowhere'} not found" in message
    assert "http://cs231n.stanford.edu/tiny-imagenet-200.zip" in message
    assert "expected: 6 train and 3 val images of 3 classes" in message


@pytest.mark.parametrize("source", ["imagenet", "tiny_imagenet"])
def test_prepare__missing_split__is_named_once(tmp_path, source):
    WRITERS[source][0](tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "val")
    message = refusal(config(source), tmp_path / "data", tmp_path / "out")
    assert "number of problems: 1" in message
    assert "val: " in message and "not found" in message


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_prepare__truncated_jpeg__names_the_file(tmp_path, workers):
    write_imagenet(tmp_path / "data")
    damaged = tmp_path / "data" / "train" / WNIDS[1] / f"{WNIDS[1]}_1.JPEG"
    damaged.write_bytes(damaged.read_bytes()[:-40])
    message = refusal(config("imagenet"), tmp_path / "data", tmp_path / "out", workers=workers)
    assert f"train/{WNIDS[1]}/{WNIDS[1]}_1.JPEG: found an image that cannot be decoded" in message
    assert "truncated" in message


def test_prepare__class_folders_differ__names_both_sides(tmp_path):
    write_imagenet(tmp_path / "data", val_wnids=[*WNIDS[:2], "n07777777"])
    message = refusal(config("imagenet"), tmp_path / "data", tmp_path / "out")
    assert f"found 1 classes in train but not in val: {WNIDS[2]}" in message
    assert "found 1 classes in val but not in train: n07777777" in message


def test_prepare__wrong_image_size__is_named(tmp_path):
    write_tiny_imagenet(tmp_path / "data")
    write_jpeg(tmp_path / "data" / "val" / "images" / "val_1.JPEG", (80, 0, 0), size=(64, 48))
    message = refusal(config("tiny_imagenet"), tmp_path / "data", tmp_path / "out")
    assert "val/images/val_1.JPEG: found 64x48 pixels, expected 64x64" in message


def test_prepare__many_kinds_of_problems__come_at_once(tmp_path):
    write_imagenet(tmp_path / "data")
    (tmp_path / "data" / "train" / WNIDS[0] / f"{WNIDS[0]}_0.JPEG").write_bytes(b"")
    (tmp_path / "data" / "train" / WNIDS[0] / f"{WNIDS[0]}_1.JPEG").unlink()
    (tmp_path / "data" / "val" / WNIDS[2] / "ILSVRC2012_val_00000003.JPEG").write_bytes(b"<html>not found</html>")
    shutil.rmtree(tmp_path / "data" / "val" / WNIDS[0])
    message = refusal(config("imagenet"), tmp_path / "data", tmp_path / "out")
    for text in (
        "train: found 5 images, expected 6",
        "val: found 2 images, expected 3",
        "val: found images of 2 classes, expected 3",
        f"found 1 classes in train but not in val: {WNIDS[0]}",
        f"train/{WNIDS[0]}/{WNIDS[0]}_0.JPEG: found an image that cannot be decoded",
        f"val/{WNIDS[2]}/ILSVRC2012_val_00000003.JPEG: found an image that cannot be decoded",
    ):
        assert text in message
    assert "BytesIO" not in message


def test_prepare__hundreds_of_problems__lists_twenty_and_counts_the_rest(tmp_path):
    write_imagenet(tmp_path / "data")
    for number in range(44):
        (tmp_path / "data" / "train" / WNIDS[0] / f"{number}.JPEG").write_bytes(b"x")
    message = refusal(config("imagenet", num_train=50), tmp_path / "data", tmp_path / "out")
    assert "number of problems: 44" in message
    assert message.count("cannot be decoded") == 20
    assert "and 24 more" in message


def test_prepare__set_got_damaged_later__removes_the_old_manifest(tmp_path):
    cfg = config("tiny_imagenet")
    prepare(cfg, write_tiny_imagenet(tmp_path / "data"), tmp_path / "out", progress=False)
    (tmp_path / "data" / "val" / "images" / "val_2.JPEG").write_bytes(b"")
    refusal(cfg, tmp_path / "data", tmp_path / "out")


def test_prepare__interrupted__leaves_no_manifest(tmp_path, monkeypatch):
    cfg = config("tiny_imagenet")
    prepare(cfg, write_tiny_imagenet(tmp_path / "data"), tmp_path / "out", progress=False)

    def interrupt(path, measured_in, upright):
        raise KeyboardInterrupt

    monkeypatch.setattr(inspection, "inspect_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare(cfg, tmp_path / "data", tmp_path / "out", progress=False)
    assert not (tmp_path / "out" / "manifest.json").exists()


def kill_worker(path, measured_in, upright):
    os._exit(1)


@pytest.mark.slow
def test_prepare__decoding_process_killed__says_so_and_does_not_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(inspection, "inspect_file", kill_worker)
    write_tiny_imagenet(tmp_path / "data")
    message = refusal(config("tiny_imagenet"), tmp_path / "data", tmp_path / "out", workers=2)
    assert "use fewer workers" in message


def test_prepare__progress__goes_to_stderr_only(tmp_path, capsys):
    prepare(config("imagenet"), write_imagenet(tmp_path / "data"), tmp_path / "out")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "small_imagenet train: 100%" in captured.err


# Real images


def development_data(name: str) -> Path:
    if "PATCHWORK_DATA" not in os.environ:
        pytest.skip("PATCHWORK_DATA is not set: it names the folder of the development data sets")
    return Path(os.environ["PATCHWORK_DATA"]) / name / f"{name}.tar"


@pytest.mark.data
@pytest.mark.slow
def test_prepare__tiny_imagenet_25_classes__is_accepted(tmp_path):
    extract(development_data("tiny-imagenet-25"), tmp_path)
    cfg = config("tiny_imagenet", num_classes=25, num_train=12500, num_val=1250)
    manifest = prepare(cfg, tmp_path / "tiny-imagenet-25", tmp_path / "out", workers=2, progress=False)
    train, val = manifest.splits["train"], manifest.splits["val"]
    assert (train.per_class_min, train.per_class_max) == (500, 500)
    assert (val.per_class_min, val.per_class_max) == (50, 50)
    assert train.modes.keys() == {"L", "RGB"}
    found = open_split(cfg, tmp_path / "tiny-imagenet-25", "val", index=tmp_path / "out")
    assert {found.image(index).mode for index in range(len(found))} == {"RGB"}


@pytest.mark.slow
@pytest.mark.data
def test_prepare__one_image_of_each_imagenet_class__is_accepted(tmp_path):
    extract(development_data("imagenet-samples-256"), tmp_path)
    for split in ("train", "val"):
        (tmp_path / split).symlink_to(tmp_path / "imagenet-samples-256", target_is_directory=True)
    cfg = config("imagenet", num_classes=1000, num_train=1000, num_val=1000)
    manifest = prepare(cfg, tmp_path, tmp_path / "out", workers=2, progress=False)
    assert manifest.splits["train"].classes == 1000
    found = open_split(cfg, tmp_path, "train", index=tmp_path / "out")
    assert found.labels == list(range(1000))
    assert isinstance(found.image(0), Image.Image)
