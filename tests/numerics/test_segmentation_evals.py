"""Evaluations of segmentation models, against one image at a time and against models without a key."""

import csv
import io

import numpy as np
import pytest
import torch
from peers import peers
from PIL import Image
from small_set import ALONE, MEAN, STD, build, config_of
from tiny_vit import tiny_model

from pipeline.data.dense.segmentation_views import resized
from pipeline.dense.iou import IGNORED
from pipeline.evals.base import EVALS, Subject
from pipeline.evals.dense.segmentation_pictures import SIDE, UNLABELLED, palette
from pipeline.models.dense import feature_maps
from pipeline.permutation.forward import permuted, shape_of
from pipeline.permutation.keys import new_key
from pipeline.permutation.rules import permute_state

pytestmark = pytest.mark.slow


def scenes_of(world):
    """The validation set as its files have it: pixels, and classes from 0 on."""
    for number in range(5):
        folder = world.site.data["small_scenes"]
        image = Image.open(folder / f"images/validation/scene{number}.jpg")
        labels = np.array(Image.open(folder / f"annotations/validation/scene{number}.png")).astype(int) - 1
        yield image, np.where(labels < 0, IGNORED, labels)


@torch.no_grad()
def answers_of(method, world):
    """True and answered classes of every labelled pixel of the set, image by image, by plain calls."""
    pairs = []
    for image, labels in scenes_of(world):
        small = np.array(image.resize(resized(image.size, 28), Image.Resampling.BILINEAR))
        pixels = (torch.tensor(small).float()[None] / 255 - MEAN) / STD
        logits = method.segment(pixels)[None]
        large = torch.nn.functional.interpolate(logits, labels.shape, mode="bilinear").argmax(dim=1)[0].numpy()
        pairs.append((labels[labels != IGNORED], large[labels != IGNORED]))
    truth, named = (np.concatenate(each) for each in zip(*pairs, strict=True))
    return truth, named


def expected_shares(truth, named):
    ious = [np.mean(named[(truth == k) | (named == k)] == truth[(truth == k) | (named == k)]) for k in range(4)]
    accs = [np.mean(named[truth == k] == k) if (truth == k).any() else np.nan for k in range(4)]
    return ious, accs, np.mean(named == truth)


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value encountered")
def test_segmentation__small_set__matches_one_image_at_a_time(world):
    method = build("upernet")
    outcome = world.evaluate("segmentation", method)
    ious, accs, share = expected_shares(*answers_of(method, world))
    expected = {"miou": 100 * np.nanmean(ious), "macc": 100 * np.nanmean(accs), "aacc": 100 * share}
    assert outcome.metrics == pytest.approx(expected)
    assert outcome.count == 5 and {len(values) for values in outcome.per_image.values()} == {5}
    assert 0 < outcome.metrics["miou"] < outcome.metrics["aacc"] < 100
    rows = [*csv.DictReader(io.StringIO(outcome.files["classes.csv"].decode()))]
    assert [row["name"] for row in rows] == ["class 1", "class 2", "class 3", "class 4"]
    for column, shares in (("iou", ious), ("acc", accs)):
        found = [float(row[column] or "nan") for row in rows]
        assert found == pytest.approx([100 * share for share in shares], nan_ok=True, abs=1e-4)
    truth, _ = answers_of(method, world)
    shares = [100 * np.mean(truth == number) for number in range(4)]
    assert [float(row["pixels"]) for row in rows] == pytest.approx(shares, abs=1e-3)


@pytest.mark.parametrize("size", [2, 3])
def test_segmentation__shared_by_processes__is_that_of_one_to_the_last_bit(world, size):
    method = build("upernet")
    alone = world.evaluate("segmentation", method)
    together = [world.evaluate("segmentation", method, peer=peer) for peer in peers(size)][-1]
    assert (together.metrics, together.errors, together.files) == (alone.metrics, alone.errors, alone.files)


@pytest.mark.parametrize("name", ["segmentation", "segmentation_pictures", "segmentation_equivariance"])
def test_reason_against__a_run_of_another_task__is_that_it_does_not_segment(world, name):
    subjects = {"model": world.run_of(build("mjp"))}
    assert EVALS.get(name).reason_against(config_of(name), subjects) == "method mjp does not segment"
    subjects = {"model": world.run_of(build("upernet"))}
    assert EVALS.get(name).reason_against(config_of(name), subjects) == ""


def test_reason_against__a_vit_with_windows__is_that_its_tokens_have_places(world):
    run = world.run_of(build("upernet"))
    run = run.model_copy(update={"model": tiny_model(window_size=3, global_blocks=1)})
    name = "segmentation_equivariance"
    reason = EVALS.get(name).reason_against(config_of(name), {"model": run})
    assert reason == "vit_tiny_patch16_224 has windows, whose tokens have places"


def test_segmentation_equivariance__permuted_or_with_a_key__is_the_model_itself_and_without_it_another(world):
    method = build("upernet")
    outcome = world.evaluate("segmentation_equivariance", method)
    found, plain = outcome.metrics, world.evaluate("segmentation", method).metrics
    for share in ("miou", "macc", "aacc"):
        assert found[share] == found[f"rows_{share}"] == found[f"columns_{share}"] == plain[share]
        assert found[f"without_key_{share}"] != found[share]
        assert outcome.errors[f"rows_{share}"] == outcome.errors[share]
    with torch.no_grad():  # rounding is relative to the logits, which are large here
        largest = method.segment(torch.randn(1, 28, 28)).abs().max().item()
    assert 0 < found["rows_apart"] < 1e-4 * largest and 0 < found["columns_apart"] < 1e-4 * largest


def test_segmentation_equivariance__relative_positions__permutes_columns_only(world):
    method, name = build("upernet"), "segmentation_equivariance"
    run = world.run_of(method).model_copy(update={"model": tiny_model(add_relative=True)})
    evaluation = EVALS.get(name)(config_of(name), {}, world.results, world.site, ALONE)
    outcome = evaluation.compute(Subject(run, method))
    assert outcome.reasons.keys() == {"rows_miou", "rows_macc", "rows_aacc", "rows_apart"}
    assert "know the order of the tokens" in outcome.reasons["rows_miou"]


@torch.no_grad()
def test_permuted__with_taps__puts_every_map_back_and_none_without():
    method = build("upernet")
    encoder, images = method.encoder, torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    plain = feature_maps(encoder, images, [0, 1])
    with permuted(encoder, rows=torch.Generator().manual_seed(1)):
        first, last = feature_maps(encoder, images, [0, 1])
    assert not torch.allclose(first, plain[0], atol=1e-2) and torch.allclose(last, plain[1], atol=1e-4)
    key = new_key(shape_of(encoder))
    encoder.load_state_dict(permute_state(encoder.state_dict(), key))
    with permuted(encoder, key, torch.Generator().manual_seed(1), taps=(0, 1)):
        found = feature_maps(encoder, images, [0, 1])
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    with permuted(encoder, key, taps=(0,)):  # where the last blocks are not run
        (found,) = feature_maps(encoder, images, [0])
    torch.testing.assert_close(found, plain[0], atol=1e-4, rtol=1e-4)
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in encoder.blocks)


def test_segmentation_pictures__three_images__has_the_truth_in_its_colours(world):
    outcome = world.evaluate("segmentation_pictures", build("upernet"), images=3)
    page = np.array(Image.open(io.BytesIO(outcome.files["segmented.png"])).convert("RGB"))
    assert page.shape[0] > 3 * SIDE and page.shape[1] > 3 * SIDE
    colours = {tuple(colour) for colour in np.unique(page.reshape(-1, 3), axis=0).tolist()}
    table = palette(4)
    assert {tuple(table[label].tolist()) for label in (0, 1, 3)} <= colours
    assert tuple(UNLABELLED) in colours


def test_palette__150_classes__have_150_colours():
    table = palette(150)
    assert len({tuple(colour) for colour in table[:150].tolist()}) == 150
    assert (table[150:] == UNLABELLED).all()
