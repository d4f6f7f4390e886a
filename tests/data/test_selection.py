"""Sets with some of their classes alone, or without some: arrays and files, before and after `prepare`."""

import numpy as np
import pytest
from layouts import WNIDS, config, message_of, write_fashion_mnist, write_tiny_imagenet

from pipeline.core.errors import ConfigError
from pipeline.data.kind import kind_of
from pipeline.data.store.manifest import MANIFEST, read_manifest
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare
from pipeline.site import Site, named_folder

ONE_LESS = {"num_classes": 2, "num_train": 4, "num_val": 2}
SETS = {"fashion_mnist": (write_fashion_mnist, "Trouser"), "tiny_imagenet": (write_tiny_imagenet, WNIDS[1])}


@pytest.mark.parametrize("source", SETS)
def test_without_classes__one_of_three__leaves_the_others_in_order(tmp_path, source):
    write, left_out = SETS[source]
    folder, whole = write(tmp_path / "set"), config(source)
    cfg = config(source, without_classes=[left_out], **ONE_LESS)
    names = [name for name in kind_of(whole).read(folder, "val").classes[:3] if name != left_out]

    prepare(cfg, folder, tmp_path / "out", progress=False)

    assert read_manifest(tmp_path / "out" / MANIFEST).classes[:2] == names
    for split, count in (("train", 4), ("val", 2)):
        found = open_split(cfg, folder, split, tmp_path / "out")
        assert sorted(found.labels) == sorted([0, 1] * (count // 2))
        expected = [image for image, label in all_of(whole, folder, split) if label != 1]
        assert all(np.array_equal(image, found[index][0]) for index, image in enumerate(expected))


@pytest.mark.parametrize("source", SETS)
def test_only_classes__in_any_order__keeps_the_order_of_the_source(tmp_path, source):
    write, _ = SETS[source]
    folder = write(tmp_path / "set")
    first, _, last = kind_of(config(source)).read(folder, "val").classes[:3]
    cfg = config(source, only_classes=[last, first], **ONE_LESS | {"num_train": 0})

    prepare(cfg, folder, tmp_path / "out", progress=False)

    found = open_split(cfg, folder, "val", tmp_path / "out")
    expected = [(image, {0: 0, 2: 1}[label]) for image, label in all_of(config(source), folder, "val") if label != 1]
    assert read_manifest(tmp_path / "out" / MANIFEST).classes == [first, last]
    assert found.labels == [label for _, label in expected]
    assert all(np.array_equal(image, found[index][0]) for index, (image, _) in enumerate(expected))


def all_of(cfg, folder, split):
    samples = open_split(cfg, folder, split)
    return [(np.asarray(samples[index][0]), samples[index][1]) for index in range(len(samples))]


def test_only_classes__mistyped__is_refused_with_the_nearest_name(tmp_path):
    cfg = config("fashion_mnist", only_classes=["Sandals", "Trouser"], **ONE_LESS | {"num_train": 0})
    message = message_of(prepare, cfg, write_fashion_mnist(tmp_path / "set"), tmp_path / "out", progress=False)
    assert "only_classes: found no class 'Sandals' in this set; did you mean 'Sandal'?" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"only_classes": ["Bag"], "without_classes": ["Coat"]}, "are both given; keep one of them"),
        ({"only_classes": ["Bag"]}, "only_classes has 1 names, num_classes is 3"),
        ({"without_classes": []}, "expected at least one name"),
        ({"without_classes": ["Bag", "Bag"]}, "each of them once"),
    ],
)
def test_config__classes_chosen_wrongly__says_what_is_wrong(changes, message):
    with pytest.raises(ConfigError, match=message):
        config("fashion_mnist", **changes)


def test_folder__of_a_part__is_that_of_the_whole_set(tmp_path):
    cfg = config("tiny_imagenet", name="tiny_known", part_of="tiny_imagenet", without_classes=WNIDS[:1])
    assert named_folder(Site(data={"tiny_imagenet": tmp_path}), cfg) == tmp_path
