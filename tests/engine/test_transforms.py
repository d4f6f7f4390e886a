"""Views and batch transforms against PIL, numpy and the formulas."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from tiny_runs import tiny_run

from pipeline.core.seeds import seed_everything
from pipeline.data.images.transforms import Augment, ImageBatches, eval_view, train_view

CPU = torch.device("cpu")
RGB = {"channels": 3, "mean": [0.1, 0.5, 0.9], "std": [0.2, 0.3, 0.4]}


def data(**changes):
    return tiny_run({"data": changes, "model": {"patch_size": 4}}).data


def picture(width, height, mode="RGB", seed=0):
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    # Smooth, so that resampling differences cannot hide behind noise.
    small = np.random.default_rng(seed).integers(0, 256, (5, 5, *shape[2:]), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def planes(image):
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def uint8_batch(channels=1, count=8, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (count, channels, 28, 28), dtype=np.uint8)), torch.arange(count)


def test_normalise__rgb__subtracts_mean_and_divides_by_std_of_each_channel():
    images, _ = uint8_batch(channels=3)
    found = ImageBatches(data(**RGB), 0.0, CPU).normalise(images)
    for channel in range(3):
        expected = (images[:, channel].double() / 255 - RGB["mean"][channel]) / RGB["std"][channel]
        torch.testing.assert_close(found[:, channel].double(), expected, rtol=0, atol=1e-5)


def test_targets__smoothing__moves_its_share_evenly_to_all_classes():
    images, labels = uint8_batch()
    _, targets = ImageBatches(data(), 0.1, CPU)(images, labels)
    expected = torch.full((8, 10), 0.01)
    expected[torch.arange(8), labels] = 0.91
    torch.testing.assert_close(targets, expected)


def mixed(augment, seed, smoothing=0.1):
    images, labels = uint8_batch()
    transform = ImageBatches(data(augment=augment), smoothing, CPU)
    seed_everything(*seed)
    return transform(images, labels)


MIXING = {"mixup": {"mixup": 0.8}, "cutmix": {"cutmix": 1.0}, "both": {"mixup": 0.8, "cutmix": 1.0, "erasing": 0.5}}


@pytest.mark.parametrize("augment", MIXING.values(), ids=MIXING)
def test_mixing__same_seed__same_batch_and_targets_sum_to_one(augment):
    images, targets = mixed(augment, (0, 5, 1))
    again, targets_again = mixed(augment, (0, 5, 1))
    other, _ = mixed(augment, (0, 6, 1))
    assert torch.equal(images, again)
    assert torch.equal(targets, targets_again)
    assert not torch.equal(images, other)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(8))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiles", [False, True], ids=["as they are", "compiled"])
def test_mixing_and_erasing__recorded_on_a_gpu__draw_and_give_what_they_do_when_called(compiles):
    called, recorded = (ImageBatches(data(augment=MIXING["both"]), 0.1, torch.device("cuda")) for _ in range(2))
    recorded.prepare(records=True, compiles=compiles)
    rounding = 1e-6 if compiles else 0.0  # a product and a sum may be rounded once
    for step in range(6):
        found = []
        for transform in (called, recorded):
            seed_everything("step", step)
            found.append(transform(*uint8_batch()))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=rounding, atol=rounding)
    assert recorded.replayed.is_on and recorded.replayed.recordings


def test_mixup__images_and_targets__are_mixed_with_the_reversed_batch_by_the_same_weight():
    images, targets = mixed({"mixup": 0.8}, (0, 5, 1), smoothing=0.0)
    plain = ImageBatches(data(), 0.0, CPU).normalise(uint8_batch()[0])
    weight = targets[0, 0]
    assert 0.01 < weight < 0.99
    torch.testing.assert_close(images, weight * plain + (1 - weight) * plain.flip(0))
    torch.testing.assert_close(targets[0, 7], 1 - weight)


def test_cutmix__target_weight__is_the_area_that_was_left():
    images, targets = mixed({"cutmix": 1.0}, (0, 3, 1), smoothing=0.0)
    plain = ImageBatches(data(), 0.0, CPU).normalise(uint8_batch()[0])
    is_pasted = (images == plain.flip(0)) & (images != plain)
    assert ((images == plain) | is_pasted).all()
    assert 0.01 < targets[0, 0] < 0.99
    assert float(targets[0, 0]) == pytest.approx(1 - float(is_pasted.float().mean()), abs=0.02)


def test_erasing__one_rectangle_of_each_image__becomes_noise_and_the_rest_stays():
    images, _ = mixed({"erasing": 1.0}, (0, 1, 1))
    plain = ImageBatches(data(), 0.0, CPU).normalise(uint8_batch()[0])
    for erased in (images != plain)[:, 0]:
        rows, columns = erased.any(dim=1).nonzero(), erased.any(dim=0).nonzero()
        area = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
        assert 0.01 < float(area) / 784 < 0.5
        assert int(erased.sum()) >= 0.98 * float(area)  # noise may hit the old value


def test_erasing__noise_of_many_images__is_normal_and_of_the_seed():
    images, labels = uint8_batch(count=256)
    transform = ImageBatches(data(augment={"erasing": 1.0}), 0.0, CPU)
    found = []
    for seed in (3, 3, 4):
        seed_everything("step", seed)
        found.append(transform(images, labels % 10)[0])
    noise = found[0][found[0] != transform.normalise(images)]
    assert abs(float(noise.mean())) < 0.02
    assert abs(float(noise.std()) - 1) < 0.02
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [(60, 40), (20, 30), (28, 28)])
def test_eval_view__crop_one__squashes_both_sides(size, interpolation):
    image = picture(*size)
    found = np.asarray(eval_view(data(**RGB, augment={"interpolation": interpolation}), 1.0)(image))
    expected = planes(image.resize((28, 28), getattr(Image.Resampling, interpolation.upper())))
    assert found.dtype == np.uint8
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("size", [(60, 40), (40, 60), (64, 64)])
def test_eval_view__crop_seven_eighths__resizes_short_side_and_crops_centre(size):
    image = picture(*size)
    found = eval_view(data(**RGB), 0.875)(image)
    short = 32  # 28 / 0.875
    width, height = (int(short * side / min(size)) for side in size)
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = round((width - 28) / 2), round((height - 28) / 2)
    assert np.array_equal(found, planes(resized.crop((left, top, left + 28, top + 28))))


@pytest.mark.parametrize(("scale", "is_whole"), [((1.0, 1.0), True), ((0.3, 0.4), False)])
def test_resized_crop__of_a_scale__covers_that_share_of_the_image(scale, is_whole):
    """At scale 1, no crop of another aspect ratio fits into a square: after ten tries the whole image is taken."""
    image = picture(32, 32)
    view = train_view(data(image_size=32, **RGB), Augment(crop="resized", scale=scale, hflip=0.0))
    for seed in range(10):
        seed_everything(seed)
        assert np.array_equal(view(image), planes(image)) is is_whole


def test_color_jitter__of_a_strength__changes_brightness_contrast_and_saturation_by_it():
    view = train_view(data(image_size=32, **RGB), Augment(crop="none", hflip=0.0, color_jitter=0.4))
    (step,) = (step for step in view.transforms if type(step).__name__ == "ColorJitter")
    assert (step.brightness, step.contrast, step.saturation, step.hue) == (*[(0.6, 1.4)] * 3, None)


@pytest.mark.parametrize(("side", "mode"), [(28, "L"), (32, "RGB")])
def test_padded_crop__small_image__is_a_window_of_the_padded_image(side, mode):
    image = picture(side, side, mode)
    cfg = data(image_size=side, **(RGB if mode == "RGB" else {}))
    view = train_view(cfg, Augment(crop="padded", padding=4, hflip=0.0))
    padded = planes(ImageOps.expand(image, 4))
    windows = {padded[:, y : y + side, x : x + side].tobytes(): (x, y) for y in range(9) for x in range(9)}
    seen = set()
    for seed in range(60):
        seed_everything(seed)
        seen.add(windows[view(image).tobytes()])  # a KeyError: not a window
    assert len(seen) > 30
    assert {axis for corner in seen for axis in corner} == set(range(9))


@pytest.mark.parametrize(("side", "mode"), [(28, "L"), (32, "RGB")])
@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
def test_hflip__probability__is_the_share_of_mirrored_images(side, mode, probability):
    image = picture(side, side, mode)
    cfg = data(image_size=side, **(RGB if mode == "RGB" else {}))
    view = train_view(cfg, Augment(crop="none", hflip=probability))
    straight, mirrored = planes(image).tobytes(), planes(ImageOps.mirror(image)).tobytes()
    seen = []
    for seed in range(100):
        seed_everything(seed)
        seen.append(view(image).tobytes())
    assert set(seen) <= {straight, mirrored}
    assert abs(seen.count(mirrored) / 100 - probability) < 0.15


@pytest.mark.parametrize("crop", ["resized", "padded"])
def test_rand_augment__rgb__gives_many_views_each_determined_by_its_seed(crop):
    image = picture(32, 32)
    cfg = data(image_size=32, **RGB)
    view = train_view(
        cfg, Augment(crop=crop, scale=(1.0, 1.0), hflip=0, padding=0, rand_augment="rand-m9-mstd0.5-inc1")
    )

    def seen(seed):
        seed_everything(seed)
        found = np.asarray(view(image))
        assert found.shape == (3, 32, 32)
        assert found.dtype == np.uint8
        return found.tobytes()

    views = [seen(seed) for seed in range(40)]
    assert len(set(views)) > 20  # each of two operations is left out half of the time
    assert views == [seen(seed) for seed in range(40)]


@pytest.mark.parametrize("crop", ["resized", "padded", "none"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_rand_augment__any_crop__resamples_as_the_recipe_says_and_never_at_random(crop, interpolation, monkeypatch):
    """DeiT's padded crop takes the place of the resized one alone; what comes after it stays bicubic."""
    used, transform = set(), Image.Image.transform

    def recorded(image, size, method, data=None, resample=None, **options):
        used.add(resample)
        return transform(image, size, method, data, resample, **options)

    augment = Augment(crop=crop, hflip=0, rand_augment="rand-m9-mstd0.5-inc1", interpolation=interpolation)
    view = train_view(data(image_size=32, **RGB), augment)
    monkeypatch.setattr(Image.Image, "transform", recorded)
    for seed in range(60):
        seed_everything(seed)
        view(picture(32, 32))
    assert used == {getattr(Image.Resampling, interpolation.upper())}


@pytest.mark.slow
def test_rand_augment__thousands_of_images__none_is_refused_by_pillow():
    image = picture(32, 32)
    view = train_view(data(image_size=32, **RGB), Augment(crop="none", hflip=0, rand_augment="rand-m9-mstd0.5-inc1"))
    num_black = 0
    for seed in range(3000):
        seed_everything(seed)
        num_black += not np.asarray(view(image)).any()
    # Posterize, one of 15 operations, keeps no bit at magnitude 10: 2 draws * 1/15 * 1/2 * P(z > 2) = 0.15 % of images.
    assert 0 < num_black < 20


def test_seed_everything__same_key__seeds_python_numpy_and_torch_alike():
    import random

    def drawn(*key):
        seed_everything(*key)
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    assert drawn(1, 2, 3) == drawn(1, 2, 3)
    assert len({drawn(1, 2, 3), drawn(1, 2, 4), drawn(1, 23), drawn(12, 3)}) == 4
