"""Mel-frequency cepstral coefficients of clips, as TC-ResNet computes them with TensorFlow; MP3 keeps its data code.

Frames of 30 ms every 10 ms without padding, a periodic Hann window, the power spectrum of each frame followed by zeros
up to a power of two, triangles on HTK's mel scale, log(x + 1e-6), and the first coefficients of a DCT-II that is
divided by sqrt(2 * mels): coefficient 0 is sqrt(2) times that of the orthonormal transform.
"""

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pipeline.data.audio.clips import RATE

if TYPE_CHECKING:
    from pipeline.data.audio.audio import Mfcc

LOG_OFFSET = 1e-6


def mfcc(waves: Tensor, cfg: "Mfcc") -> Tensor:
    """float (B, samples) from -1 to 1 -> (B, coefficients, frames)."""
    return _dct(cfg.coefficients, cfg.mels, waves.device) @ log_mels(waves, cfg)


def log_mels(waves: Tensor, cfg: "Mfcc") -> Tensor:
    """float (B, samples) from -1 to 1 -> (B, mels, frames): the spectrogram that is looked at."""
    window = torch.hann_window(cfg.window, device=waves.device)
    frames = waves.unfold(-1, cfg.window, cfg.step) * window
    # Not torch.stft, which puts a window of 480 in the middle of the 512 samples.
    spectrum = torch.fft.rfft(frames, n=_fft_length(cfg.window))
    power = spectrum.real.square() + spectrum.imag.square()
    mels = power @ _mel_matrix(cfg, waves.device)
    return torch.log(mels + LOG_OFFSET).transpose(-1, -2)


def _fft_length(window: int) -> int:
    """The next power of two."""
    return 1 << (window - 1).bit_length()


def _mel(hertz: np.ndarray | float) -> np.ndarray:
    return 1127 * np.log1p(np.asarray(hertz) / 700)


@lru_cache
def _mel_matrix(cfg: "Mfcc", device: torch.device) -> Tensor:
    """(bins, mels): triangles of height 1, each from the centre of the one before to that of the one after."""
    bins = _mel(np.linspace(0, RATE / 2, _fft_length(cfg.window) // 2 + 1))[:, None]
    edges = np.linspace(_mel(cfg.low_hz), _mel(cfg.high_hz), cfg.mels + 2)
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    weights = np.maximum(0, np.minimum(rising, falling))
    weights[0] = 0  # a constant is no sound
    return torch.tensor(weights, dtype=torch.float32, device=device)


@lru_cache
def _dct(coefficients: int, mels: int, device: torch.device) -> Tensor:
    """(coefficients, mels)."""
    angles = math.pi * np.outer(np.arange(coefficients), np.arange(mels) + 0.5) / mels
    return torch.tensor(np.cos(angles) * math.sqrt(2 / mels), dtype=torch.float32, device=device)
