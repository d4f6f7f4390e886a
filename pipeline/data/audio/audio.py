"""Spoken words, the kind `audio`: clips of one second, seen as frames of mel-frequency cepstral coefficients.

A clip is an image of one channel, with a row for each coefficient and a column for each frame; a frame is a patch of a
ViT. Views are waves: what training draws, and the coefficients, are computed for whole batches on the device.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from pipeline.core.config import Strict, added, nearest
from pipeline.core.sizes import Size, pair
from pipeline.data.audio.clips import LENGTH, RATE, ClipInspection, Clips
from pipeline.data.kind import KINDS, BaseDataConfig, BatchTransform, PublishedKind, PublishedSet, View, common_summary
from pipeline.data.readers.speech_commands import RELEASED_WORDS, Choice, ListName, read_speech_commands
from pipeline.data.readers.spoken_words import read_spoken_words
from pipeline.data.samples import Split, SplitName, label_problems
from pipeline.data.store.manifest import SplitSummary

if TYPE_CHECKING:
    import torch

    from pipeline.models.encoder import ModelConfig

Word = Annotated[str, Field(pattern=r"^[^_./\s][^/\s]*$")]  # the name of a folder


Reader = Callable[[Path, SplitName, Choice], Split]

SOURCES: dict[str, PublishedSet[Reader]] = {
    "speech_commands": PublishedSet(
        read=read_speech_commands,
        layout="<word>/*.wav, _background_noise_/*.wav, validation_list.txt and testing_list.txt, in the folder or in "
        "speech_commands_v0.01/ of it",
    ),
    "spoken_words": PublishedSet(
        read=read_spoken_words,
        layout="clips.xz",
        obtained="it is part of this project: pipeline/data/spoken_words",
        embedded="spoken_words",
    ),
}


class Mfcc(Strict):
    """Coefficients of a frame, and which sounds they are of."""

    coefficients: int = Field(40, ge=1)
    """Mel-frequency cepstral coefficients of a frame."""
    mels: int = Field(64, ge=1, description="triangles on the mel scale from low_hz to high_hz")
    window_ms: int = Field(30, ge=1, le=1000)
    """Length of a frame, in ms."""
    step_ms: int = Field(10, ge=1, description="between the beginnings of two frames")
    low_hz: float = Field(80.0, ge=0)
    """Lowest frequency that counts, in Hz."""
    high_hz: float = Field(7600.0, le=RATE / 2)
    """Highest frequency that counts, in Hz."""

    @model_validator(mode="after")
    def _fits_together(self) -> "Mfcc":
        if self.coefficients > self.mels:
            raise ValueError(f"coefficients {self.coefficients} are more than mels {self.mels}, of which they are made")
        if self.low_hz >= self.high_hz:
            raise ValueError(f"low_hz {self.low_hz:g} is not below high_hz {self.high_hz:g}")
        return self

    @property
    def window(self) -> int:
        """Samples of a frame."""
        return self.window_ms * RATE // 1000

    @property
    def step(self) -> int:
        return self.step_ms * RATE // 1000

    @property
    def frames(self) -> int:
        """Whole frames in a clip."""
        return 1 + (LENGTH - self.window) // self.step


class SpeechAugment(Strict):
    """The training view."""

    shift: float = Field(0.1, ge=0, le=1, description="share of a clip that it is moved by at most, zeros come after")
    noise: float = Field(0.8, ge=0, le=1, description="probability of background noise")
    volume: float = Field(0.1, ge=0, le=1)
    """Largest volume of the background noise."""


class AudioConfig(BaseDataConfig):
    """A set of spoken words. Classes: silence, unknown, then the words; those with a share of 0 are left out."""

    identity_fields: ClassVar[tuple[str, ...]] = (
        *("source", "words", "unknown", "silence", "val_list", "per_word"),
        *("num_train", "num_val"),
    )
    view_fields: ClassVar[tuple[str, ...]] = ("features", "mean", "std", "augment")
    cost_fields: ClassVar[tuple[str, ...]] = ("features", "words", "unknown", "silence")
    channels: ClassVar[int] = 1

    kind: str = "audio"
    source: str
    """Published layout in which the set is read: speech_commands or spoken_words."""
    words: tuple[Word, ...] = Field(min_length=1)
    """Keywords: a folder and a class for each."""
    unknown: Literal["released"] | Annotated[float, Field(ge=0)] = Field(
        0.1,
        description="clips of other words, as a share of those of keywords; released: those of TC-ResNet; 0: no such "
        "class",
    )
    silence: float = Field(0.1, ge=0, description="silent clips, as a share of those of keywords; 0: no such class")
    val_list: ListName = Field("validation", description="the published list that is val; train is in neither")
    per_word: dict[SplitName, PositiveInt] = added(
        {}, before={}, description="split -> how many clips of each keyword, the first by name; a split not named: all"
    )
    features: Mfcc = Mfcc()
    """What a model sees of a clip."""
    mean: tuple[float, ...] = Field((0.0,))
    """Subtracted from the coefficients: one number, or one for each of them."""
    std: tuple[float, ...] = Field((1.0,))
    """The coefficients are divided by it: one number, or one for each of them."""
    augment: SpeechAugment = SpeechAugment()
    """The training view."""
    part_of: str | None = Field(None, description="the set whose folder holds these clips; null: its own")

    @field_validator("source")
    @classmethod
    def _is_known(cls, source: str) -> str:
        if source not in SOURCES:
            raise ValueError(f"unknown source; {nearest(source, SOURCES)}")
        return source

    @model_validator(mode="after")
    def _words_fit(self) -> "AudioConfig":
        twice = [word for word, count in Counter(self.words).items() if count > 1]
        reserved = [word for word in self.words if word in ("silence", "unknown")]
        if twice or reserved:
            raise ValueError(f"words has {', '.join(twice or reserved)}; expected each once, none silence or unknown")
        if self.unknown == "released" and {*self.words} != {*RELEASED_WORDS}:
            raise ValueError(f"unknown is released, which is for words {', '.join(RELEASED_WORDS)}; give a share")
        return self

    @model_validator(mode="after")
    def _statistics_fit(self) -> "AudioConfig":
        for key, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.features.coefficients):
                expected = f"1 or one for each of the {self.features.coefficients} features.coefficients"
                raise ValueError(f"{key} has {len(values)} values, expected {expected}")
        if min(self.std) <= 0:
            raise ValueError("std is what coefficients are divided by, so each must be above 0")
        return self

    @property
    def num_classes(self) -> int:
        return len(self.choice.classes)

    @property
    def choice(self) -> Choice:
        return Choice(self.words, self.unknown, self.silence, self.val_list, self.augment.noise > 0, self.per_word)

    @property
    def input_size(self) -> Size:
        return self.features.coefficients, self.features.frames

    def check(self, model: "ModelConfig", micro_batch: int) -> None:
        patch = self.features.coefficients, 1
        if model.family != "vit" or model.is_windowed:
            raise ValueError(f"data set {self.name} has sounds, found model.arch {model.arch}; expected a plain ViT")
        if model.patch_size is None or pair(model.patch_size) != patch:
            found = None if model.patch_size is None else [*pair(model.patch_size)]
            raise ValueError(f"a frame of {self.name} is a patch: expected model.patch_size {[*patch]}, found {found}")


@KINDS.register("audio")
class SpokenWords(PublishedKind):
    Config: ClassVar[type[AudioConfig]] = AudioConfig
    unit = "clips"
    cfg: AudioConfig

    def __init__(self, cfg: AudioConfig) -> None:
        super().__init__(cfg, SOURCES[cfg.source])

    def read(self, folder: Path, split: SplitName) -> Split:
        return self.source.read(folder, split, self.cfg.choice)

    def train_view(self) -> View:
        from pipeline.data.audio.audio_views import train_view

        return train_view(self.cfg.augment)

    def eval_view(self) -> View:
        from pipeline.data.audio.audio_views import eval_view

        return eval_view

    def batch_transform(self, smoothing: float, device: "torch.device") -> BatchTransform:
        from pipeline.data.audio.audio_views import ClipBatches

        return ClipBatches(self.cfg, smoothing, device)

    def expected(self) -> str:
        return f"{super().expected()} of {self.cfg.num_classes} classes"

    def count_problems(self, split: SplitName, found: Split) -> list[str]:
        return super().count_problems(split, found) + label_problems(split, found, self.cfg.num_classes, self.unit)

    def sample_problems(self, samples: Clips, looks: Sequence[ClipInspection]) -> list[str]:
        return super().sample_problems(samples, looks) + samples.noise_problems()

    def summary(self, samples: Clips, looks: Sequence[ClipInspection]) -> SplitSummary:
        found, per_class = common_summary(samples, looks), Counter(samples.labels).values()
        # The same clips are other training samples with another noise.
        both = f"{found['fingerprint']}\n{samples.noise_digest}\n"
        lengths = [look.length / RATE for look in looks if look.length]
        return SplitSummary(
            **found | {"fingerprint": hashlib.sha256(both.encode()).hexdigest()},
            classes=len(per_class),
            per_class_min=min(per_class),
            per_class_max=max(per_class),
            shortest_s=min(lengths),
            longest_s=max(lengths),
            noise_s=sum(map(len, samples.noises)) / RATE,
        )
