"""Errors on corrupted images: AlexNet's own, a hand computation on a small set, real photographs, and pictures."""

import io
import os
import tarfile

import numpy as np
import pytest
import torch
from corrupted_sets import OneSource, corrupted_config, prepared_parts
from PIL import Image
from small_set import MEAN, STD, build
from tiny_vit import tiny_model

from pipeline.core.errors import DataError
from pipeline.data.derived.severities import CORRUPTIONS, SEVERITIES
from pipeline.data.images.augment import Augment
from pipeline.data.images.classified import DataConfig
from pipeline.data.store.prepare import prepare
from pipeline.engine.parallel.distributed import World
from pipeline.evals.accuracy import corruptions
from pipeline.evals.accuracy.corruption_pictures import CorruptionPictures
from pipeline.evals.accuracy.corruptions import ALEXNET, NORMALISED, Corruptions, values_per_image
from pipeline.evals.base import Subject
from pipeline.evals.parts import Parts
from pipeline.methods.base import Prediction
from pipeline.methods.supervised import Supervised
from pipeline.models.encoder import build_encoder
from pipeline.results import ScaleFolder
from pipeline.site import Site

ALONE = World(0, 1, torch.device("cpu"))
ROLE = {"data": {"corrupted": "any"}}


# Numbers


def test_mce__of_alexnets_own_errors__is_100():
    errors = np.array([[[100 * ALEXNET[name]]] * len(SEVERITIES) for name in CORRUPTIONS])
    found = values_per_image(errors)
    assert found["mce"].mean() == pytest.approx(100)
    assert [found[f"ce_{name}"].mean() for name in CORRUPTIONS] == pytest.approx([100] * 15)
    assert found["error"].mean() == pytest.approx(78.8993, abs=1e-4)  # the mean of the published ones


def test_values_per_image__any_errors__have_the_means_of_the_definition():
    errors = 100.0 * np.random.default_rng(0).integers(0, 2, (15, 5, 7))
    found = {name: value.mean() for name, value in values_per_image(errors).items()}
    ratios = []
    for row, name in enumerate(CORRUPTIONS):
        severities = [errors[row, place].mean() for place in range(5)]
        ratios.append(sum(severities) / sum(5 * [ALEXNET[name]]))
        assert found[f"ce_{name}"] == pytest.approx(ratios[-1])
        assert found[f"error_{name}"] == pytest.approx(sum(severities) / 5)
        assert [found[f"top1_{name}_{s}"] for s in SEVERITIES] == pytest.approx([100 - error for error in severities])
    assert found["mce"] == pytest.approx(sum(ratios) / 15)
    assert found["error"] == pytest.approx(errors.mean())
    assert found["top1_severity_4"] == pytest.approx(100 - errors[:, 3].mean())


# A small set


@pytest.fixture(scope="module")
def corrupted(world):
    """One image of each class of the small set, corrupted: parts, and a site that knows their folder."""
    folder = world.results.folder / "corrupted"  # where all tests of this small set have it
    source = OneSource(world.data, world.site.data[world.data.name], world.results)
    parts = prepared_parts(corrupted_config(world.data), source, folder)
    site = world.site.model_copy(update={"data": {**world.site.data, f"{world.data.name}_c": folder}})
    return {f"corrupted/{name}": cfg for name, cfg in parts.items()}, site, folder


def evaluated(world, corrupted, method, parts=None, **fields):
    data, site, _ = corrupted
    evaluation = Corruptions(Corruptions.Config(**ROLE, **fields), data, world.results, site, ALONE, parts)
    return evaluation.compute(Subject(world.run_of(method), method))


@torch.no_grad()
def wrong_by_hand(method, folder, classes):
    """(corruption, severity, clean image) -> whether the class is wrong, one file at a time."""
    wrong = {}
    for path in sorted(folder.glob("*/*/*/*.png")):
        corruption, severity, name = path.parts[-4], int(path.parts[-3]), path.parts[-2].replace("%2F", "/")
        pixels = torch.tensor(np.asarray(Image.open(path)), dtype=torch.float32) / 255
        label = method.predict(((pixels - MEAN) / STD)[None, None]).logits.argmax().item()
        wrong[corruption, severity, f"{name}/{path.stem}"] = classes[label] != name
    return wrong


@pytest.mark.slow
def test_corruptions__on_a_small_set__equal_one_file_at_a_time(world, corrupted):
    method = build("mjp")
    found = evaluated(world, corrupted, method)
    classes = OneSource(world.data, corrupted[2], world.results).classes(world.data.name)
    wrong = wrong_by_hand(method, corrupted[2], classes)
    assert len(wrong) == 15 * 5 * 10

    def error(corruption=None, severity=None):
        chosen = [
            is_wrong for (c, s, _), is_wrong in wrong.items() if corruption in (None, c) and severity in (None, s)
        ]
        return 100 * sum(chosen) / len(chosen)

    expected = {"error": error(), "mce": np.mean([error(name) / ALEXNET[name] for name in CORRUPTIONS])}
    for name in CORRUPTIONS:
        expected |= {f"error_{name}": error(name), f"ce_{name}": error(name) / ALEXNET[name]}
        expected |= {f"top1_{name}_{severity}": 100 - error(name, severity) for severity in SEVERITIES}
    expected |= {f"top1_severity_{severity}": 100 - error(None, severity) for severity in SEVERITIES}
    assert 0 < expected["error"] < 100
    assert found.metrics == pytest.approx(expected) and set(found.metrics) == set(Corruptions.Config().metrics)

    images = sorted({image for _, _, image in wrong})
    means = [100 * np.mean([is_wrong for (_, _, i), is_wrong in wrong.items() if i == image]) for image in images]
    assert sorted(found.per_image["error"].tolist()) == pytest.approx(sorted(means), rel=1e-5) and found.count == 10
    # The 75 versions of an image are not independent: the sample is the 10 clean images.
    assert found.errors["error"] == pytest.approx(np.std(means) / np.sqrt(10), rel=1e-5)


@pytest.mark.slow
def test_corruptions__not_normalised__say_why_there_is_no_mce(world, corrupted):
    found = evaluated(world, corrupted, build("baseline"), normalise_by="none")
    assert set(found.reasons) == set(NORMALISED) and not set(found.reasons) & set(found.metrics)
    assert {"ImageNet-C" in reason for reason in found.reasons.values()} == {True}


@pytest.mark.slow
def test_corruptions__killed_half_way__do_not_repeat_what_was_finished(world, corrupted, tmp_path, monkeypatch):
    method, parts, seen = build("baseline"), Parts(tmp_path, "key"), []
    errors = Corruptions.errors_on

    def watched(self, model, data):
        seen.append(data.corruption)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return errors(self, model, data)

    monkeypatch.setattr(Corruptions, "errors_on", watched)
    with pytest.raises(KeyboardInterrupt):
        evaluated(world, corrupted, method, parts)
    found = evaluated(world, corrupted, method, parts)
    assert seen[3:] == list(CORRUPTIONS)[3:4] + list(CORRUPTIONS)[3:]
    assert found.metrics == evaluated(world, corrupted, method).metrics


@pytest.mark.slow
def test_corruptions__images__are_seen_as_those_that_the_model_was_trained_on(world, corrupted):
    data, site, folder = corrupted
    own = {"image_size": 20, "mean": (0.5,), "std": (0.25,), "augment": Augment(interpolation="bilinear")}
    method, seen = build("baseline"), []
    method.predict = lambda images: seen.append(images) or Prediction(None, torch.zeros(len(images), 10))
    evaluation = Corruptions(Corruptions.Config(**ROLE), data, world.results, site, ALONE)
    whole = data["corrupted/fog"].model_copy(update={"eval_crop": 1.0})
    evaluation.errors_on(Subject(world.run_of(method, **own), method), whole)
    found = (255 * (0.25 * torch.cat(seen)[:, 0] + 0.5)).round().to(torch.uint8)
    files = [Image.open(path).resize((20, 20), Image.Resampling.BILINEAR) for path in folder.glob("fog/*/*/*.png")]
    assert len(files) == 50 and sorted(map(bytes, found.numpy())) == sorted(bytes(np.array(file)) for file in files)


@pytest.mark.slow
def test_corruptions__severity_with_other_images__is_refused(world, corrupted, monkeypatch):
    find = corruptions.find_samples

    class Renamed(list):
        name = list.__getitem__

    def renamed(data, *given):
        samples = find(data, *given)
        names = map(samples.name, range(len(samples)))
        return Renamed(name.replace(".", "x.") if name.startswith("fog/4/") else name for name in names)

    monkeypatch.setattr(corruptions, "find_samples", renamed)
    with pytest.raises(DataError, match="_c-fog: severity 4 has other images than gaussian_noise"):
        evaluated(world, corrupted, build("baseline"))


@pytest.mark.slow
def test_corruptions__set_without_parts__is_refused(world):
    evaluation = Corruptions(Corruptions.Config(**ROLE), {"corrupted": world.data}, world.results, world.site, ALONE)
    with pytest.raises(DataError, match="expected the 15 corruptions"):
        evaluation.compute(Subject(world.run_of(build("baseline")), build("baseline")))


@pytest.mark.slow
def test_corruption_pictures__of_small_images__are_15_rows_of_enlarged_images(world):
    cfg = CorruptionPictures.Config(data={"images": "any"}, table="cifar", images=2)
    evaluation = CorruptionPictures(cfg, {"images": world.data}, world.results, world.site, ALONE)
    sheet = Image.open(io.BytesIO(evaluation.compute().files["corruptions.png"]))
    assert sheet.height > 15 * 72 and sheet.width > 12 * 72


# Real photographs


@pytest.mark.data
@pytest.mark.slow
def test_corruptions__on_photographs__are_made_at_224_px_and_evaluated(tmp_path):
    images = write_photographs(tmp_path / "photographs", 4)
    data = DataConfig(
        name="photographs",
        source="folder",
        image_size=224,
        channels=3,
        num_classes=4,
        num_train=0,
        num_val=4,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )
    results = ScaleFolder(tmp_path / "results")
    prepare(data, images, results.manifest(data.name).parent, progress=False)
    cfg = corrupted_config(data, table="imagenet", quality=85, source_crop=0.875)
    parts = prepared_parts(cfg, OneSource(data, images, results), tmp_path / "made")
    encoder = build_encoder(tiny_model(patch_size=56), 224, 3, 4)
    method = Supervised(Supervised.Config(), encoder).eval()
    site = Site(data={"photographs": images, "photographs_c": tmp_path / "made"}, device="cpu")
    sets = {f"corrupted/{name}": part for name, part in parts.items()}
    run = _RunOf(data)
    found = Corruptions(Corruptions.Config(**ROLE), sets, results, site, ALONE).compute(Subject(run, method))
    assert found.count == 4 and 0 <= found.metrics["error"] <= 100
    assert {Image.open(path).size for path in (tmp_path / "made").glob("*/*/*/*.JPEG")} == {(224, 224)}


class _RunOf:
    """What the evaluation asks of a run."""

    def __init__(self, data):
        self.data = data


def write_photographs(folder, count):
    """The first photographs of different classes, one class folder for each."""
    path = os.environ.get("PATCHWORK_DATA")
    if not path:
        pytest.skip("PATCHWORK_DATA is not set")
    written = 0
    with tarfile.open(os.path.join(path, "imagenet-samples-256", "imagenet-samples-256.tar")) as tar:
        for member in tar:
            if written < count and member.name.lower().endswith((".jpg", ".jpeg", ".png")):
                place = folder / "val" / f"class_{written}" / os.path.basename(member.name)
                place.parent.mkdir(parents=True)
                place.write_bytes(tar.extractfile(member).read())
                written += 1
    return folder
