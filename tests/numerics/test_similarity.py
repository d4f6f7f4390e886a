"""Similarity of images: each metric beside a few lines of numpy or scipy, LPIPS beside the published values."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from scipy.ndimage import correlate

from pipeline.core.errors import CheckpointError, DataError
from pipeline.data.store.archives import extract
from pipeline.privacy.lpips import LAYERS, LPIPS, MIN_SIDE, lpips_reason
from pipeline.privacy.similarity import METRICS, as_png, similarity
from pipeline.site import Site, site_file


@pytest.fixture(params=[1, 3], ids=["grey", "colour"])
def pair(request):
    """Three smooth pictures with noise, and noisier ones, 24 by 31 pixels."""
    rng = np.random.default_rng(request.param)
    size = (3, request.param, 24, 31)
    ramp = np.linspace(0.1, 0.8, 31) * np.linspace(1, 0.3, 24)[:, None]
    original = np.clip(ramp + 0.05 * rng.standard_normal(size), 0, 1)
    recovered = np.clip(original + 0.1 * rng.standard_normal(size), 0, 1)
    return torch.tensor(recovered), torch.tensor(original)


def found(pair, name):
    return similarity(*pair)[name].numpy()


def test_similarity__of_a_batch__is_that_of_each_pair_in_float64(pair):
    whole = similarity(pair[0].float(), pair[1].float())
    assert tuple(whole) == METRICS
    for name, values in whole.items():
        one_by_one = [similarity(a[None].float(), b[None].float())[name].item() for a, b in zip(*pair, strict=True)]
        assert values.dtype == torch.float64 and values.shape == (3,)
        assert values.tolist() == pytest.approx(one_by_one, rel=1e-12)


def test_mse_and_psnr__are_numpys(pair):
    one, other = (images.numpy() for images in pair)
    expected = [np.mean((a - b) ** 2) for a, b in zip(one, other, strict=True)]
    assert found(pair, "mse") == pytest.approx(expected, rel=1e-12)
    assert found(pair, "psnr") == pytest.approx([10 * np.log10(1 / mse) for mse in expected], rel=1e-12)


def test_psnr__of_equal_images__is_as_if_one_value_were_one_level_off():
    image = torch.full((1, 3, 16, 16), 0.2)
    off = image.clone()
    off[0, 1, 3, 4] += 1 / 255
    equal = similarity(image, image)
    assert equal["mse"].item() == 0
    assert equal["psnr"].item() == pytest.approx(similarity(off, image)["psnr"].item(), rel=1e-6)
    assert equal["psnr"].item() == pytest.approx(48.13 + 10 * np.log10(3 * 256), abs=0.01)


def ssim_by_scipy(one, other, crop):
    """Of two channels: 11 x 11 Gaussian windows with zeros outside; `crop` leaves out windows that reach outside."""
    distance = np.arange(11) - 5
    window = np.exp(-(distance[:, None] ** 2 + distance**2) / (2 * 1.5**2))
    window /= window.sum()

    def mean(values):
        return correlate(values, window, mode="constant", cval=0)

    m1, m2 = mean(one), mean(other)
    v1, v2, cov = mean(one**2) - m1**2, mean(other**2) - m2**2, mean(one * other) - m1 * m2
    values = (2 * m1 * m2 + 1e-4) * (2 * cov + 9e-4) / ((m1**2 + m2**2 + 1e-4) * (v1 + v2 + 9e-4))
    return values[crop : len(values) - crop, crop : values.shape[1] - crop].mean()


@pytest.mark.parametrize(("name", "crop"), [("ssim", 0), ("ssim_valid", 5)])
def test_ssim__of_both_paddings__is_scipys(pair, name, crop):
    one, other = (images.numpy() for images in pair)
    expected = [
        np.mean([ssim_by_scipy(*channels, crop) for channels in zip(a, b, strict=True)])
        for a, b in zip(one, other, strict=True)
    ]
    assert found(pair, name) == pytest.approx(expected, rel=1e-10)
    assert found((pair[1], pair[1]), name) == pytest.approx(np.ones(3), abs=1e-12)


def test_ssim_valid__is_that_of_scikit_image(pair):
    metrics = pytest.importorskip("skimage.metrics")
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 1}
    expected = [
        metrics.structural_similarity(a.numpy(), b.numpy(), channel_axis=0, **options)
        for a, b in zip(*pair, strict=True)
    ]
    assert found(pair, "ssim_valid") == pytest.approx(expected, rel=1e-10)


def test_ssim__of_images_smaller_than_its_window__is_refused():
    with pytest.raises(DataError, match="images of 8 px are too small for SSIM"):
        similarity(torch.zeros(1, 1, 8, 40), torch.zeros(1, 1, 8, 40))


@pytest.mark.parametrize("name", ["fft2d", "fft2d_proper"])
def test_fft2d__is_the_cosine_distance_of_numpys_spectra(pair, name):
    for a, b, value in zip(*pair, found(pair, name), strict=True):
        u, v = np.fft.fft2(a.numpy()).ravel(), np.fft.fft2(b.numpy()).ravel()
        if name == "fft2d":  # as scipy computed it, without a conjugate
            distance = 1 - np.sum(u * v) / np.sqrt(np.sum(u * u) * np.sum(v * v))
        else:
            distance = 1 - np.vdot(v, u) / (np.linalg.norm(u) * np.linalg.norm(v))
        assert value == pytest.approx(abs(distance), rel=1e-9)


def test_fft2d_proper__is_the_cosine_distance_of_the_pixels(pair):
    cosine = torch.nn.functional.cosine_similarity(pair[0].flatten(1), pair[1].flatten(1))
    assert found(pair, "fft2d_proper") == pytest.approx((1 - cosine).numpy(), rel=1e-9)


def test_fft2d__compares_with_the_image_turned_about_its_first_pixel():
    rng = np.random.default_rng(0)
    image = torch.tensor(rng.random((1, 1, 12, 15)))
    turned = image[:, :, [0, *range(11, 0, -1)]][..., [0, *range(14, 0, -1)]]  # x -> -x
    symmetric = torch.maximum(image, turned)
    assert similarity(turned, symmetric)["fft2d"] == pytest.approx(similarity(image, symmetric)["fft2d"], rel=1e-9)
    # For images that are their own counterparts, both distances are one.
    other = torch.minimum(image, turned)
    values = similarity(other, symmetric)
    assert values["fft2d"].item() == pytest.approx(values["fft2d_proper"].item(), rel=1e-9)
    assert found((image, turned), "fft2d_proper") > 0.1


def test_fft2d__of_a_black_image__is_1():
    black, image = torch.zeros(1, 3, 16, 16), torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    values = similarity(black, image)
    assert values["fft2d"].item() == values["fft2d_proper"].item() == 1
    assert all(torch.isfinite(value).all() for value in values.values())


def test_as_png__is_what_a_file_holds(tmp_path):
    pixels = torch.tensor([-0.3, 0.0, 0.4991, 0.5, 1.0, 7.0, float("nan"), float("inf")], dtype=torch.float64)
    stored = Image.fromarray(np.array([[0, 0, 127, 128, 255, 255, 0, 255]], dtype=np.uint8))
    stored.save(tmp_path / "x.png")
    expected = np.asarray(Image.open(tmp_path / "x.png"))[0] / 255
    assert as_png(pixels).numpy() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(as_png(as_png(pixels)), as_png(pixels))


# LPIPS


def alexnet(seed=0):
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in LAYERS:
        weights[f"features.{layer.number}.weight"] = torch.randn(layer.shape, generator=generator) * 0.05
        weights[f"features.{layer.number}.bias"] = torch.randn(layer.shape[0], generator=generator) * 0.05
    return weights


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    """AlexNet's layers with random weights, among those that a classifier has besides."""
    path = tmp_path_factory.mktemp("alexnet") / "alexnet.pth"
    torch.save({**alexnet(), "classifier.6.bias": torch.zeros(1000)}, path)
    return path


def images_of(size, channels=3, count=2, seed=0):
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*weight.*:UserWarning")
def test_lpips__with_the_same_trunk__is_that_of_its_package(trunk):
    theirs = pytest.importorskip("lpips").LPIPS(net="alex", pnet_rand=True, verbose=False).double()
    for name, values in (("shift", [-0.030, -0.088, -0.188]), ("scale", [0.458, 0.448, 0.450])):
        getattr(theirs.scaling_layer, name).copy_(torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1))
    stages = {0: 1, 3: 2, 6: 3, 8: 4, 10: 5}
    for name, value in alexnet().items():
        _, number, kind = name.split(".")
        getattr(theirs.net.get_submodule(f"slice{stages[int(number)]}.{number}"), kind).data = value.double()
    one, other = images_of(40, seed=1).double(), images_of(40, seed=2).double()
    with torch.no_grad():
        expected = theirs(one, other, normalize=True).flatten()
    assert LPIPS(trunk).distance(one, other).numpy() == pytest.approx(expected.numpy(), rel=1e-9)


@pytest.mark.slow
def test_lpips__of_a_batch__is_that_of_each_pair_and_zero_for_equal_images(trunk):
    metric = LPIPS(trunk)
    one, other = images_of(MIN_SIDE, seed=1), images_of(MIN_SIDE, seed=2)
    whole = metric.distance(one, other)
    single = [metric.distance(a[None], b[None]).item() for a, b in zip(one, other, strict=True)]
    assert whole.dtype == torch.float64 and whole.tolist() == pytest.approx(single, rel=1e-9)
    assert min(single) > 0 and metric.distance(one, one).tolist() == [0, 0]


def test_lpips__of_grey_images__is_that_of_three_equal_channels(trunk):
    metric = LPIPS(trunk)
    one, other = images_of(40, 1, seed=1), images_of(40, 1, seed=2)
    expected = metric.distance(one.repeat(1, 3, 1, 1), other.repeat(1, 3, 1, 1))
    assert torch.equal(metric.distance(one, other), expected)


def test_lpips__leaves_the_random_numbers_of_a_run_unchanged(trunk):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    LPIPS(trunk)
    assert torch.equal(torch.rand(3), expected)


def test_lpips_reason__names_what_is_missing(trunk, tmp_path):
    there = Site(lpips="alexnet.pth", weights=str(trunk.parent))
    assert site_file(there, "lpips") == trunk and lpips_reason(there, 224) == ""
    assert lpips_reason(there, (40, 28)) == "images of 28 px are too small for AlexNet (at least 31 px)"
    assert "`lpips` of the site file names no file" in lpips_reason(Site(), 224)
    assert "nowhere.pth not found" in lpips_reason(Site(lpips=tmp_path / "nowhere.pth"), 224)


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_lpips__file_cut_short__is_one_message(trunk, tmp_path, suffix):
    path = tmp_path / f"alexnet.{suffix}"
    if suffix == "pth":
        path.write_bytes(trunk.read_bytes()[:5000])
    else:
        save_file(alexnet(), path)
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=f"alexnet.{suffix} (is damaged|could not be read)"):
        LPIPS(path)


def test_lpips__file_that_is_not_there__is_one_message(tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere.pth not found"):
        LPIPS(tmp_path / "nowhere.pth")


def test_lpips__file_of_another_network__says_what_was_expected(tmp_path):
    path = tmp_path / "vgg.safetensors"
    save_file({"features.0.weight": torch.zeros(64, 3, 3, 3), "features.0.bias": torch.zeros(64)}, path)
    with pytest.raises(CheckpointError, match=r"another network: features.0.weight has shape \(64, 3, 3, 3\)"):
        LPIPS(path)
    save_file({"conv1.weight": torch.zeros(64, 3, 7, 7)}, path)
    with pytest.raises(CheckpointError, match=r"has no features.0.weight; expected torchvision's AlexNet"):
        LPIPS(path)


@pytest.mark.data
def test_lpips__on_the_example_images_of_its_authors__gives_their_values(tmp_path):
    folder = Path(os.environ.get("PATCHWORK_DATA", "")) / "lpips-alexnet"
    if not folder.is_dir():
        pytest.skip("PATCHWORK_DATA does not name the development data")
    extract(folder / "lpips_test_images.tar", tmp_path)
    pictures = {path.stem: np.array(Image.open(path).convert("RGB")) for path in tmp_path.rglob("*.png")}
    ref, far, near = (
        torch.tensor(pictures[name]).permute(2, 0, 1)[None] / 255 for name in ("ex_ref", "ex_p0", "ex_p1")
    )
    metric = LPIPS(folder / "alexnet_features.safetensors")
    assert round(metric.distance(ref, far).item(), 3) == 0.722
    assert round(metric.distance(ref, near).item(), 3) == 0.138
