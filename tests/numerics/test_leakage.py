"""Evaluations of gradient leakage: what clients see in each setting, and how recovered images are compared."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from small_set import build, config_of
from tiny_vit import tiny_encoder

from pipeline.evals.base import EVALS
from pipeline.evals.positions.shuffling import Shuffler
from pipeline.evals.privacy.april_scale import with_table_of
from pipeline.evals.privacy.leakage import SETTINGS, pixels_of, raw_psnr, setting_of
from pipeline.methods.mjp import MJP
from pipeline.methods.supervised import Supervised
from pipeline.privacy.april import Assumptions, attack
from pipeline.results.records import ImageSet
from pipeline.tasks.classify import Classify

COUNT = 12  # more than a batch of 8


def first_images(world, count=COUNT):
    """Of each class one, as a model sees them; the labels of the small set are 0, 1, ... 9, 0, 1, ..."""
    task = Classify(world.data, torch.device("cpu"))
    return task.eval_batch(torch.from_numpy(world.pixels[:count, None]), torch.from_numpy(world.labels[:count]).long())


def test_settings__of_images__are_those_of_table_5():
    images, moved, shuffled = torch.zeros(1), torch.ones(1), torch.tensor([True])
    given = {name: setting.inputs(images, moved, shuffled) for name, setting in SETTINGS.items()}

    assert given["a"] == (images, None)
    assert given["b"] == given["c"] == (moved, shuffled)
    assert given["kept"] == (moved, None)
    assert given["hidden"] == (images, shuffled)
    assert [name for name, setting in SETTINGS.items() if setting.original] == ["c"]


@pytest.mark.parametrize(("shuffle", "own"), [("patches", "b"), ("positions", "hidden"), ("none", "a")])
def test_own_setting__of_mjp__is_what_it_trains_with(world, shuffle, own):
    method = build("mjp")
    method.cfg = MJP.Config(shuffle=shuffle)
    assert setting_of("own", world.run_of(method)) == SETTINGS[own]


def test_own_setting__of_supervised_training__is_the_image_itself(world):
    assert setting_of("own", world.run_of(build("baseline"))) == SETTINGS["a"]


def test_pixels__of_what_a_model_sees__are_those_of_the_file(world):
    images, _ = first_images(world, 3)
    assert (255 * pixels_of(images, world.data)).round().numpy() == pytest.approx(world.pixels[:3, None])


def test_raw_psnr__of_a_known_error__is_minus_ten_times_its_logarithm():
    one = torch.zeros(2, 1, 4, 4, dtype=torch.float64)
    other = one.clone()
    other[1] += 0.1
    assert raw_psnr(one, other).tolist() == pytest.approx([300, 20])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["baseline", "no positions", "mjp"])
def test_april__means_over_images__are_those_of_the_attack_itself(world, kind):
    method = build(kind)
    found = world.evaluate("april", method, settings=("a", "c"), images=COUNT, batch=8)

    images, labels = first_images(world)
    moved, shuffled = Shuffler(method, 0.27, 0)(images)
    parts = [attack(method, moved[part], labels[part], shuffled[part]) for part in (slice(8), slice(8, COUNT))]
    recovered = torch.cat([part.images for part in parts])
    pixels, wanted = ((255 * pixels_of(each, world.data)).round() / 255 for each in (recovered, images))
    errors = (pixels - wanted).square().mean(dim=(1, 2, 3)).numpy()
    assert found.count == COUNT
    assert found.metrics["mse_c"] == pytest.approx(errors.mean(), rel=1e-6)
    assert found.metrics["psnr_c"] == pytest.approx((-10 * np.log10(errors)).mean(), rel=1e-6)
    assert found.per_image["mse_c"] == pytest.approx(errors, rel=1e-6)
    assert found.errors["mse_c"] == pytest.approx(errors.std() / COUNT**0.5, rel=1e-6)
    # Width 32 is below the 49 tokens: in (a) all that can be recovered is, and that is not the image.
    assert found.metrics["psnr_a"] == pytest.approx(found.metrics["ceiling_psnr_a"], abs=0.1)


@pytest.mark.slow
def test_april__accuracy__is_that_of_the_whole_validation_set(world):
    method = build("mjp")
    found = world.evaluate("april", method, settings=("a", "b"), images=2)
    clean = world.evaluate("classify", method, shuffle_ratio=0.27)

    assert found.metrics["acc_a"] == clean.metrics["top1"]
    assert found.metrics["acc_b"] == clean.metrics["shuffled_top1"]
    assert found.per_image["acc_b"].tolist() == clean.per_image["shuffled_top1"].tolist()
    assert found.other_images["acc_b"] == ImageSet(count=clean.count, images=clean.images)
    assert "mse_b" not in found.other_images and len(found.per_image["mse_b"]) == found.count < clean.count


@pytest.mark.slow
def test_april__small_images__say_why_there_is_no_lpips(world):
    found = world.evaluate("april", build("baseline"), settings=("a",), images=2)
    assert "28 px" in found.reasons["lpips_a"]
    assert "lpips_a" not in found.metrics


@pytest.mark.slow
def test_april__several_cut_offs__count_the_closest_image(world):
    method, given = build("baseline"), {"settings": ("a",), "images": 4, "assumptions": {"gradients": "float32"}}
    alone = [world.evaluate("april", method, **given, cutoffs=(cutoff,)) for cutoff in (0, 1e-4, 1e-2)]
    best = world.evaluate("april", method, **given, cutoffs=(0, 1e-4, 1e-2))

    values = np.stack([each.per_image["psnr_raw_a"] for each in alone])
    assert best.per_image["psnr_raw_a"] == pytest.approx(values.max(axis=0))


@pytest.mark.slow
def test_april__protected_run__is_attacked_through_its_protection(world):
    method = build("baseline")
    plain = world.evaluate("april", method, settings=("a",), images=4)
    noisy = world.evaluate("april", method, settings=("a",), images=4, protection={"noise": 0.1})
    assert noisy.metrics["psnr_a"] < plain.metrics["psnr_a"] - 5
    assert noisy.metrics["ceiling_psnr_a"] == plain.metrics["ceiling_psnr_a"]


def test_april__no_parameter_has_the_gradient_at_the_slots__says_why(world):
    cfg = config_of("april", assumptions=Assumptions(given="parameters"))
    run = world.run_of(build("no positions"))
    assert "none is sent" in EVALS.get("april").reason_against(cfg, {"model": run})


def test_with_table_of__a_deviation__scales_the_table_of_a_copy():
    method = build("baseline")
    before = method.encoder.pos_embed.detach().clone()
    scaled = with_table_of(method, 0.3).encoder.pos_embed.detach()
    assert scaled.std().item() == pytest.approx(0.3)
    torch.testing.assert_close(scaled / scaled.std(), before / before.std())
    assert torch.equal(method.encoder.pos_embed, before)


def test_clients__of_a_set_in_any_order__have_images_of_all_classes(world, monkeypatch):
    evaluation = EVALS.get("april")(config_of("april"), {}, world.results, world.site, None)
    monkeypatch.setattr(evaluation, "open", lambda data: SimpleNamespace(labels=[7, 7, 7, 2, 2, 5]))
    monkeypatch.setattr(evaluation, "batches", lambda data, indices, batch: (indices, batch))
    assert evaluation.client_batches(world.data, 4, 3) == ([3, 5, 0, 4], 3)


def test_scale__of_the_table__decides_in_float32(world):
    fresh = Supervised(Supervised.Config(), tiny_encoder(embed_dim=64))
    found = world.evaluate("april_scale", fresh, stds=(20, 3000), images=4).metrics

    assert found["psnr_at_3000"] > found["psnr_at_20"] + 30
    assert found["condition_at_3000"] < found["condition_at_20"] - 3


@pytest.mark.slow
def test_pictures__of_three_models__have_a_column_for_each_that_can_be_attacked(world):
    models = [build(kind) for kind in ("baseline", "no positions", "mjp")]
    all_of_them, of_parameters = (
        Image.open(
            io.BytesIO(world.evaluate("april_pictures", *models, images=3, assumptions=given).files["recovered.png"])
        )
        for given in ({}, {"given": "parameters"})
    )
    assert all_of_them.height >= 3 * 112
    assert all_of_them.width > of_parameters.width
