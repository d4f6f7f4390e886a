"""CelebA in its published layout: attributes as bits, parts, every way in which a copy is incomplete, and a run."""

import json

import pytest
import torch
from layouts import FACE_ATTRIBUTES, FACES, message_of, write_celeba, write_jpeg

from pipeline.core.config import CONFIGS, Layers, merge, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.data.kind import kind_of, parse_data
from pipeline.data.readers.celeba import read_celeba
from pipeline.data.store.manifest import read_manifest
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare
from pipeline.engine.parallel.distributed import World
from pipeline.engine.run import parse_run
from pipeline.engine.signals import StopRequest
from pipeline.engine.train import load_method, train_run
from pipeline.evals.base import EVALS, Subject
from pipeline.results import RunFolder, ScaleFolder
from pipeline.site import Site
from pipeline.tasks.attributes import Attributes

SMALL = {"image_size": 32, "num_classes": 3, "num_train": 3, "num_val": 2}
TRAIN, VAL = [0b101, 0b100, 0b000], [0b111, 0b010]


def config(**changes):
    published = read_yaml(CONFIGS / "data" / "celeba.yaml")["data"]
    return parse_data(Layers(("test", merge(published, SMALL, changes))))


def refusal(folder, **changes):
    return message_of(prepare, config(**changes), folder, folder / "out", progress=False)


def edit(path, *changes):
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)


@pytest.mark.parametrize(
    "places",
    [
        {},
        {"images": "Img/img_align_celeba", "attributes": "Anno", "partition": "Eval"},
        {"images": "img_align_celeba/img_align_celeba"},
        {"images": "celeba/img_align_celeba", "attributes": "celeba", "partition": "celeba"},
    ],
    ids=["one folder", "as downloaded", "doubled", "below celeba"],
)
def test_celeba__published_layout__labels_are_bits_of_attributes(tmp_path, places):
    write_celeba(tmp_path, **places)
    train, val = open_split(config(), tmp_path, "train"), open_split(config(), tmp_path, "val")
    assert (train.labels, val.labels) == (TRAIN, VAL)
    folder = places.get("images", "img_align_celeba")
    assert [train.name(index) for index in range(3)] == [f"{folder}/00000{number}.jpg" for number in (1, 2, 5)]
    assert val.image(1).getpixel((9, 9))[0] == pytest.approx(200, abs=3)
    assert read_celeba(tmp_path, "val").classes == FACE_ATTRIBUTES


def test_celeba__prepared__has_names_and_counts_of_attributes_and_opens_what_was_verified(tmp_path):
    write_celeba(tmp_path / "data")
    prepare(config(), tmp_path / "data", tmp_path / "out", progress=False)
    manifest = read_manifest(tmp_path / "out" / "manifest.json")
    assert manifest.classes == FACE_ATTRIBUTES
    train = manifest.splits["train"]
    assert (train.count, train.classes, train.per_class_min, train.per_class_max) == (3, 3, 0, 2)
    assert (train.min_size, train.max_size) == ((178, 218), (178, 218))
    assert open_split(config(), tmp_path / "data", "val", tmp_path / "out").labels == VAL
    edit(tmp_path / "data" / "list_attr_celeba.txt", ("000003.jpg  1", "000003.jpg -1"))
    prepare(config(), tmp_path / "data", tmp_path / "again", progress=False)
    assert read_manifest(tmp_path / "again" / "manifest.json").fingerprint != manifest.fingerprint


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("img_align_celeba", "no images found in img_align_celeba, Img/img_align_celeba"),
        ("list_attr_celeba.txt", "list_attr_celeba.txt not found in ., Anno, Eval, celeba"),
        ("list_eval_partition.txt", "list_eval_partition.txt not found in ., Anno"),
    ],
)
def test_celeba__part_missing__is_named(tmp_path, name, text):
    (write_celeba(tmp_path) / name).rename(tmp_path / "elsewhere")
    message = refusal(tmp_path)
    assert text in message
    assert "expected: 3 train and 2 val images with 3 attributes" in message
    assert "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html" in message


ATTRIBUTES, PARTITION = "list_attr_celeba.txt", "list_eval_partition.txt"
DAMAGES = {
    "no count": (ATTRIBUTES, ("6\n", "\n"), "expected the number of images in line 1"),
    "wrong count": (ATTRIBUTES, ("6\n", "7\n"), "found 6 images, expected 7 as its line 1 says"),
    "short line": (ATTRIBUTES, ("000002.jpg -1", "000002.jpg"), "1 lines without 3 values 1 or -1: 000002.jpg"),
    "another value": (ATTRIBUTES, ("000002.jpg -1", "000002.jpg 0"), "1 lines without 3 values 1 or -1: 000002.jpg"),
    "unknown part": (PARTITION, ("000002.jpg 0", "000002.jpg 3"), "1 lines without a part 0, 1 or 2: 000002.jpg"),
    "no part": (PARTITION, ("000002.jpg 0", "000002.jpg"), "1 lines without a part 0, 1 or 2: 000002.jpg"),
    "csv": (PARTITION, ("000002.jpg 0", "000002.jpg,0"), "1 lines without a part 0, 1 or 2"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_celeba__damaged_list__is_named(tmp_path, name):
    file, change, text = DAMAGES[name]
    edit(write_celeba(tmp_path) / file, change)
    message = refusal(tmp_path)
    assert f"{file}: " in message and text in message


def test_celeba__lists_and_images_differ__every_kind_is_reported(tmp_path):
    write_celeba(tmp_path)
    (tmp_path / "img_align_celeba" / "000003.jpg").unlink()
    write_jpeg(tmp_path / "img_align_celeba" / "000099.jpg", 0)
    edit(tmp_path / "list_attr_celeba.txt", ("6\n", "5\n"), ("000005.jpg -1 -1 -1\n", ""))
    message = refusal(tmp_path)
    for text in (
        "val: found 1 images of list_eval_partition.txt that are not in img_align_celeba: 000003.jpg",
        "train: found 1 images of list_eval_partition.txt that list_attr_celeba.txt lacks: 000005.jpg",
        "train: found 1 images in img_align_celeba that list_eval_partition.txt does not list: 000099.jpg",
        "train: found 2 images, expected 3",
        "val: found 1 images, expected 2",
    ):
        assert message.count(text) == 1


def test_celeba__another_number_of_attributes__is_refused(tmp_path):
    assert "train: found 3 attributes, expected 2" in refusal(write_celeba(tmp_path), num_classes=2)


def test_celeba__damaged_image__prepare_names_it(tmp_path):
    path = write_celeba(tmp_path) / "img_align_celeba" / "000003.jpg"
    path.write_bytes(path.read_bytes()[:-40])
    assert "img_align_celeba/000003.jpg: found an image that cannot be decoded" in refusal(tmp_path)


# Configs


def test_config__as_published__has_the_published_counts():
    cfg = parse_data(Layers(("celeba", read_yaml(CONFIGS / "data" / "celeba.yaml")["data"])))
    test_part = 19962
    assert cfg.num_train + cfg.num_val + test_part == 202599


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kind": "images"}, "source celeba is read by kind attributes, found kind images"),
        ({"source": "cifar10"}, "source cifar10 is read by kind images, found kind attributes"),
        ({"only_classes": ["Bald", "Smiling", "Young"]}, "only_classes: for images with one class each"),
        ({"augment": {"mixup": 0.8}}, "augment.mixup: for images with one class each"),
    ],
    ids=str,
)
def test_config__that_speaks_of_classes__is_refused(changes, text):
    with pytest.raises(ConfigError) as caught:
        config(**changes)
    assert text in str(caught.value)


def a_run(*changes):
    values = {
        "method": {"name": "multilabel"},
        "model": {
            **{"name": "tiny", "arch": "vit_tiny_patch16_224", "patch_size": 8, "embed_dim": 24, "depth": 1},
            "num_heads": 2,
        },
        "data": merge(read_yaml(CONFIGS / "data" / "celeba.yaml")["data"], SMALL),
        "optim": {"epochs": 2, "global_batch": 2, "micro_batch": 1, "base_lr": 1e-3, "lr_batch": 2},
    }
    return parse_run(Layers(("test", merge(values, *changes))))


def test_run__of_a_method_for_classes__is_refused_on_attributes():
    with pytest.raises(ConfigError, match="data of kind attributes is for the tasks attributes, but method"):
        a_run({"method": {"name": "supervised"}})


def test_run__of_a_method_for_attributes__is_refused_on_classes():
    data = read_yaml(CONFIGS / "data" / "fashion_mnist.yaml")["data"]
    with pytest.raises(ConfigError, match="'fashion_mnist' is of kind images, with one class per image"):
        Attributes.num_outputs(parse_data(Layers(("test", data))))


# What a method sees


def test_task__of_a_training_batch__gives_smoothed_bits_and_of_an_evaluation_plain_ones(tmp_path):
    cfg = config()
    samples = open_split(cfg, write_celeba(tmp_path), "train")
    view = kind_of(cfg).eval_view()
    task = Attributes(cfg, torch.device("cpu"), smoothing=0.2)
    inputs, labels = task.collate([view(samples[index]) for index in range(3)])
    images, targets = task.eval_batch(inputs, labels)
    assert images.shape == (3, 3, 32, 32) and images.min() >= -1 and images.max() <= 1
    expected = torch.tensor([values for part, values in FACES.values() if part == 0], dtype=torch.float32)
    assert torch.equal(targets, expected)
    torch.testing.assert_close(task.train_batch(inputs, labels)[1], 0.8 * expected + 0.1)


def test_task__of_forty_attributes__keeps_the_last_one():
    from pipeline.tasks.attributes import decoded

    assert decoded(torch.tensor([2**39 + 1]), 40)[0].nonzero().flatten().tolist() == [0, 39]


def test_accuracy__of_logits__counts_both_thresholds():
    from pipeline.methods.multilabel import attribute_accuracy

    logits, targets = torch.tensor([[0.3, -1.0, 2.0, -0.1]]), torch.tensor([[1.0, 0.0, 1.0, 1.0]])
    found = attribute_accuracy(logits, targets)
    assert (found["accuracy"].values.item(), found["accuracy_released"].values.item()) == (75.0, 50.0)
    probabilities = logits.sigmoid()
    by_hand = -(targets * probabilities.log() + (1 - targets) * (1 - probabilities).log()).mean()
    torch.testing.assert_close(found["loss"][0], by_hand)


@pytest.mark.slow
def test_train__on_attributes__measures_the_share_of_attributes_that_are_right_whole_and_split(tmp_path):
    faces = write_celeba(tmp_path / "faces")
    run, site = a_run(), Site(device="cpu", data={"celeba": faces})
    paths = RunFolder(tmp_path / "results", run.name)
    prepare(run.data, faces, paths.manifest("celeba").parent, progress=False)
    train_run(run, paths, site, StopRequest())
    metrics = json.loads(paths.finished.read_text())["metrics"]
    sixths = [100 * share / 6 for share in range(7)]
    for name in ("val_accuracy", "val_accuracy_released", "best_val_accuracy"):
        assert any(metrics[name] == pytest.approx(share) for share in sixths)
    assert metrics["val_loss"] == pytest.approx(0.69, abs=0.4)
    kind = EVALS.get("split_learning")
    cfg = kind.Config(recipe={"epochs": 1, "batch": 2}, inversion={"epochs": 1, "batch": 2, "warmup_steps": 0})
    assert kind.reason_against(cfg, {"model": run}) == ""
    subject = Subject(run, load_method(run, paths, World(0, 1, torch.device("cpu"))))
    found = kind(cfg, {}, ScaleFolder(tmp_path / "results"), site, World(0, 1, torch.device("cpu"))).compute(subject)
    assert sorted(found.metrics) == sorted(cfg.metrics) and found.reasons == {}
    assert any(found.metrics["acc"] == pytest.approx(share) for share in sixths)


def test_fashion_attributes__embedded_set__has_the_attributes_of_each_class():
    plain, named = (
        parse_data(Layers(("test", read_yaml(CONFIGS / "data" / f"{name}.yaml")["data"])))
        for name in ("fashion_mnist", "fashion_attributes")
    )
    folder = kind_of(named).default_folder()
    classes, labels = (open_split(cfg, folder, "val").labels for cfg in (plain, named))
    bits = {"T-shirt": 0b000010, "Trouser": 0b000100, "Dress": 0b000110, "Coat": 0b011010, "Sandal": 0b000001}
    wanted = dict(zip([0, 1, 3, 4, 5], bits.values(), strict=True)) | {8: 0b100000}
    found = {cls: {label for other, label in zip(classes, labels, strict=True) if other == cls} for cls in wanted}
    assert found == {cls: {label} for cls, label in wanted.items()}
