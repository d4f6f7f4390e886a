"""Views of a clip, and what a batch of them becomes on the device: shifted, mixed with noise, and seen as coefficients.

As in TC-ResNet, whose data MP3 uses: a shift of up to a tenth with zeros instead of what is missing, noise from any
place of any noise file, the sum clipped. A view draws for its own clip, so that it does not depend on its batch, on the
number of processes or of loader workers; the arithmetic is done for all clips of a batch at once.
"""

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.data.audio.clips import FULL_SCALE, LENGTH, Clip
from pipeline.data.audio.mfcc import mfcc
from pipeline.data.images.mixing import soft_targets
from pipeline.data.kind import View

if TYPE_CHECKING:
    from pipeline.data.audio.audio import AudioConfig, SpeechAugment

Views = dict[str, Tensor]


def eval_view(clip: Clip) -> tuple[Views, int]:
    """{"wave": int16 (LENGTH,)} and the label."""
    return {"wave": torch.from_numpy(clip.wave)}, clip.label


def train_view(augment: "SpeechAugment") -> View:
    """The same with "noise" (int16, LENGTH), its "volume" and a "shift" in samples, later where it is positive."""
    most = int(augment.shift * LENGTH)

    def view(clip: Clip) -> tuple[Views, int]:
        inputs, label = eval_view(clip)
        # The upper end is left out, as TensorFlow's integers do.
        shift = torch.randint(-most, most, ()) if most else torch.tensor(0)
        noise = _some_noise(clip)
        is_noisy, volume = torch.rand(()) < augment.noise, augment.volume * torch.rand(())
        return {**inputs, "noise": noise, "volume": volume * is_noisy, "shift": shift}, label

    return view


def _some_noise(clip: Clip) -> Tensor:
    """A second of one of the noise files, each as likely as the others; zeros where there is none."""
    if not clip.noise:
        return torch.zeros(LENGTH, dtype=torch.int16)
    noise = clip.noise[int(torch.randint(len(clip.noise), ()))]
    start = int(torch.randint(len(noise) - LENGTH + 1, ()))
    return torch.from_numpy(noise[start : start + LENGTH])


class ClipBatches:
    """Batches of views -> coefficients (B, 1, coefficients, frames) on a device."""

    def __init__(self, data: "AudioConfig", smoothing: float, device: torch.device) -> None:
        self.data, self.device = data, device
        self.soft = partial(soft_targets, num_classes=data.num_classes, smoothing=smoothing)
        self.mean, self.std = (torch.tensor(values, device=device).view(-1, 1) for values in (data.mean, data.std))

    def __call__(self, inputs: Views, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Training views and class indices -> coefficients, and soft targets (B, classes)."""
        given = {name: values.to(self.device, non_blocking=True) for name, values in inputs.items()}
        noise = given["volume"][:, None] * _as_float(given["noise"])
        waves = (shifted(_as_float(given["wave"]), given["shift"]) + noise).clamp_(-1, 1)
        return self._to_inputs(waves), self.soft(labels.to(self.device, non_blocking=True))

    def normalise(self, inputs: Views) -> Tensor:
        """Evaluation views -> coefficients."""
        return self._to_inputs(_as_float(inputs["wave"].to(self.device, non_blocking=True)))

    def _to_inputs(self, waves: Tensor) -> Tensor:
        return mfcc(waves, self.data.features).sub_(self.mean).div_(self.std)[:, None]


def shifted(waves: Tensor, shifts: Tensor) -> Tensor:
    """(B, samples), each later by its own number of samples, at most all; zeros instead of what is missing."""
    count, length = waves.shape
    # All windows of each wave between zeros, without a copy; four times as fast as a gather of single samples.
    windows = F.pad(waves, (length, length)).unfold(1, length, 1)
    return windows[torch.arange(count, device=waves.device), length - shifts]


def _as_float(waves: Tensor) -> Tensor:
    return waves.float() / FULL_SCALE
