"""Mel-frequency cepstral coefficients, against a computation of its own: sums of sines, triangles, scipy's DCT."""

import numpy as np
import pytest
import torch
from scipy.fft import dct

from pipeline.data.audio.audio import Mfcc
from pipeline.data.audio.mfcc import log_mels, mfcc

PUBLISHED, SMALL = Mfcc(), Mfcc(coefficients=7, mels=9, window_ms=20, step_ms=35, low_hz=0, high_hz=4000)


def reference_log_mels(wave, cfg):
    """(mels, frames) in double precision, frame by frame."""
    window, step = 16 * cfg.window_ms, 16 * cfg.step_ms
    points = next(2**power for power in range(20) if 2**power >= window)
    hann = np.array([0.5 - 0.5 * np.cos(2 * np.pi * n / window) for n in range(window)])
    turns = np.exp(-2j * np.pi * np.outer(np.arange(points // 2 + 1), np.arange(window)) / points)

    def mel(hertz):
        return 2595 * np.log10(1 + hertz / 700)

    places = mel(np.arange(points // 2 + 1) * 16000 / points)
    edges = [mel(cfg.low_hz) + i * (mel(cfg.high_hz) - mel(cfg.low_hz)) / (cfg.mels + 1) for i in range(cfg.mels + 2)]
    triangles = [np.interp(places, edges[i : i + 3], [0, 1, 0], left=0, right=0) for i in range(cfg.mels)]
    frames = []
    for start in range(0, len(wave) - window + 1, step):
        power = np.abs(turns @ (wave[start : start + window] * hann)) ** 2
        power[0] = 0
        frames.append([np.log(triangle @ power + 1e-6) for triangle in triangles])
    return np.array(frames).T


def some_waves():
    rng, times = np.random.default_rng(0), np.arange(16000) / 16000
    chirp = 0.5 * np.sin(2 * np.pi * 3000 * times**2)
    return np.stack([chirp, 0.1 * rng.standard_normal(16000), 0.3 + 0.001 * rng.standard_normal(16000)])


@pytest.mark.slow
@pytest.mark.parametrize("cfg", [PUBLISHED, SMALL], ids=["published", "small"])
def test_mfcc__any_sizes__are_those_of_the_definition(cfg):
    waves = some_waves()
    mels = np.stack([reference_log_mels(wave, cfg) for wave in waves])
    given = torch.from_numpy(waves).float()
    np.testing.assert_allclose(log_mels(given, cfg).numpy(), mels, atol=2e-3)
    expected = dct(mels, type=2, axis=1)[:, : cfg.coefficients] / np.sqrt(2 * cfg.mels)
    np.testing.assert_allclose(mfcc(given, cfg).numpy(), expected, atol=2e-3)


def test_mfcc__published_sizes__has_98_frames_and_a_coefficient_0_that_is_not_orthonormal():
    waves = torch.from_numpy(some_waves()).float()
    found = mfcc(waves, PUBLISHED)
    assert found.shape == (3, 40, 98) == (3, PUBLISHED.coefficients, PUBLISHED.frames)
    orthonormal = dct(log_mels(waves, PUBLISHED).double().numpy(), type=2, norm="ortho", axis=1)[:, :40]
    orthonormal[:, 0] *= np.sqrt(2)
    np.testing.assert_allclose(found.numpy(), orthonormal, atol=1e-4)


@pytest.mark.parametrize(("window_ms", "step_ms", "frames"), [(30, 10, 98), (40, 20, 49), (1000, 10, 1), (25, 10, 98)])
def test_frames__of_a_second__are_whole_ones(window_ms, step_ms, frames):
    cfg = Mfcc(window_ms=window_ms, step_ms=step_ms, mels=40)
    assert cfg.frames == frames
    assert mfcc(torch.zeros(1, 16000), cfg).shape == (1, 40, frames)


def test_mfcc__of_silence__is_finite_and_says_nothing_but_its_loudness():
    found = mfcc(torch.zeros(1, 16000), PUBLISHED)
    assert found[0, 0].tolist() == pytest.approx([np.log(1e-6) * np.sqrt(2 * 64)] * 98)
    assert found[0, 1:].abs().max() < 1e-3


def test_mfcc__of_a_batch__is_that_of_each_clip():
    waves = torch.from_numpy(some_waves()).float()
    together = mfcc(waves, PUBLISHED)
    for wave, found in zip(waves, together, strict=True):
        torch.testing.assert_close(mfcc(wave[None], PUBLISHED)[0], found, atol=1e-4, rtol=0)
