"""Each field of the configs of `detection` and `segmentation`, changed by itself, changes what a model sees."""

import numpy as np
import pytest
import torch
from dense_sets import config, write_ade20k, write_coco
from PIL import Image

from pipeline.core.errors import PatchworkError
from pipeline.core.seeds import seed_everything
from pipeline.core.trees import tensors_of
from pipeline.data.images.transforms import Normaliser
from pipeline.data.kind import kind_of
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare

GREY = {"channels": 1, "mean": [0.5], "std": [0.5]}
# Field -> other values, and what they change: views of train or val, what a model is given, the folder; or they are
# refused, by the config or by `prepare`.
BOTH = {
    "kind": ("sounds", "refused"),
    "source": ("voc", "refused"),
    "num_train": (5, "refused"),
    "num_val": (5, "refused"),
    "num_classes": (7, "refused"),
    "image_size": (48, "train val"),
    "channels": (GREY, "train val"),
    "mean": ([0.1, 0.2, 0.3], "given"),
    "std": ([0.1, 0.2, 0.3], "given"),
    "hflip": (1.0, "train"),
    "scale": ([0.3, 0.4], "train"),
    "name": ("other", "folder"),
    "part_of": ("other", "folder"),
    "made_from": ("fashion_mnist", "folder"),
}
OWN = {
    "coco": {
        "drop_empty": (False, "refused"),
        "outlines": ("bitmaps", "train"),
        "train_images": ("val2017", "refused"),
        "val_images": ("train2017", "refused"),
        "train_annotations": ("annotations/instances_val2017.json", "refused"),
        "val_annotations": ("annotations/instances_train2017.json", "refused"),
    },
    "ade20k": {
        "mean": ([0.1, 0.2, 0.3], "train"),  # what is padded has the mean colour
        "max_class_share": (0.5, "train"),
        "photometric": (False, "train"),
        "ignored": (255, "refused"),
    },
}
CASES = [(name, key) for name, own in OWN.items() for key in {**BOTH, **own}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Both sets with noise instead of colours, which flips and crops then change."""
    root, draw = tmp_path_factory.mktemp("sets"), np.random.default_rng(0)
    found = {"coco": write_coco(root / "coco"), "ade20k": write_ade20k(root / "ade20k")}
    for path in root.rglob("*.jpg"):
        width, height = Image.open(path).size
        Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path, quality=95)
    return found


def seen(cfg, folder, out):
    """What there is to see of a set; "refused" where nothing is."""
    prepare(cfg, folder, out, progress=False)
    kind, found = kind_of(cfg), {}
    for split, view in (("train", kind.train_view()), ("val", kind.eval_view())):
        samples = open_split(cfg, folder, split, out)
        seed_everything("test", 0)
        found[split] = [*tensors_of([view(samples[0]) for _ in range(8)])]
    found["given"] = [Normaliser(cfg, torch.device("cpu")).normalise(found["train"][0][None])]
    found["folder"] = [cfg.folder_name, kind.default_folder()]
    return found


def differences(first, second):
    return {key for key in first if not _equal(first[key], second[key])}


def _equal(first, second):
    pairs = zip(first, second, strict=False)
    same = [torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs]
    return len(first) == len(second) and all(same)


@pytest.mark.parametrize("name", OWN)
def test_table__every_field__is_in_it(name):
    assert {*BOTH, *OWN[name]} == {*type(config(name)).model_fields}


@pytest.mark.parametrize("name", OWN)
def test_fields__that_say_which_samples_and_how_they_are_seen__are_told_apart(name):
    cfg = config(name)
    assert not {*cfg.identity_fields} & {*cfg.view_fields}
    assert {*type(cfg).model_fields} - {*cfg.identity_fields, *cfg.view_fields} == {
        "name",
        "kind",
        "part_of",
        "channels",
    }


@pytest.mark.slow
@pytest.mark.parametrize(("name", "key"), CASES)
def test_field__changed_by_itself__is_seen(folders, tmp_path, name, key):
    other, where = {**BOTH, **OWN[name]}[key]
    changes = other if isinstance(other, dict) else {key: other}
    # Crops are then drawn once.
    base = {"scale": [0.6, 1.9]} | ({"max_class_share": 1.0} if key == "max_class_share" else {})
    before = seen(config(name, **base), folders[name], tmp_path / "before")
    try:
        after = seen(config(name, **base | changes), folders[name], tmp_path / "after")
    except PatchworkError:
        assert where == "refused"
        return
    # What a model is given follows the views.
    found = differences(before, after) - ({"given"} if "train" in where else set())
    assert found == set(where.split())
