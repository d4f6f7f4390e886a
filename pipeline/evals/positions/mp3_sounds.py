"""Words put together again from the positions that MP3 predicts for their frames: spectrograms, and sounds to hear.

What MP3 Figs 2, 12 and 13 do with images. A frame whose position the model is given (`known_ratio`) is put there.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor

from pipeline.data.audio.clips import FULL_SCALE, RATE, as_wav
from pipeline.data.audio.mfcc import log_mels
from pipeline.data.readers.classes import class_names
from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Outcome, Percent, Subject, refused_by
from pipeline.evals.heat import Colours, bar, coloured, enlarged
from pipeline.evals.pictures import first_of_each_class, labelled_grid, place_patches
from pipeline.evals.positions.mp3_positions import named_positions
from pipeline.evals.positions.overlap import overlap_add
from pipeline.models.patches import Grid

# From quiet to loud. A straight line, so that the mean of two colours is the colour of the mean.
COLOURS: Colours = ((16, 18, 38), (255, 216, 128))
DECIBEL = 10 / np.log(10)  # of a natural logarithm of power
RANGE_DB = 60
WIDTH = 180  # px, of a spectrogram at least
PAUSE_S = 0.4


class Words(NamedTuple):
    """Clips, and the frames (B, N) of each: in which order a model gets them, and where they are put at each eta."""

    names: list[str]
    waves: Tensor  # (B, samples) int16
    order: Tensor
    places: dict[int, Tensor]
    known: Tensor  # whether the model is given the frame's position

    @property
    def grid(self) -> Grid:
        return Grid(1, self.order.shape[1])

    @property
    def in_turn(self) -> Tensor:
        """Where frames are put as they come."""
        return torch.arange(self.grid.size).expand_as(self.order)


def _reason(subjects: Mapping[str, RunConfig]) -> str:
    run = subjects["model"]
    if run.data.kind != "audio":
        return f"data set {run.data.name} is of kind {run.data.kind}, which cannot be heard"
    return "" if run.method.name == "mp3" else f"it is for mp3, not for {run.method.name}"


@EVALS.register("mp3_sounds")
class MP3Sounds(Evaluation):
    class Config(EvalConfig):
        name: Literal["mp3_sounds"] = "mp3_sounds"
        etas: tuple[Percent, ...] = Field((0, 25, 50, 75), min_length=1)
        """Mask ratios (eta), one row each, in per cent; `rebuilt.wav` is made at the first."""
        clips: int = Field(3, ge=1)
        """Spoken words that are put together."""

        files: ClassVar[tuple[str, ...]] = ("rebuilt.png", "original.wav", "shuffled.wav", "rebuilt.wav")

    reason_against = refused_by(_reason)
    cfg: Config

    def compute(self, model: Subject) -> Outcome:
        data: Any = model.run.data
        words = self._words(model)
        first = words.places[self.cfg.etas[0]]
        sounds = {
            "original.wav": words.waves.numpy(),
            "shuffled.wav": resynthesise(words, words.in_turn, data.features.window, data.features.step),
            "rebuilt.wav": resynthesise(words, first, data.features.window, data.features.step),
        }
        files = {name: as_wav(with_pauses(waves)) for name, waves in sounds.items()}
        return Outcome(files={"rebuilt.png": spectrograms(words, data.features, self.cfg.etas), **files})

    def _words(self, model: Subject) -> Words:
        data: Any = model.run.data
        clips, names = self.open(data), class_names(self.results.manifest(data.name))
        keywords = {names.index(word) for word in data.words}
        chosen = [index for index in first_of_each_class(clips.labels, len(clips)) if clips.labels[index] in keywords]
        chosen = chosen[: self.cfg.clips]
        batch = next(self.batches(data, indices=chosen, batch=len(chosen)))
        draw = model.method.draw(batch, 0.0)
        order, known = draw["order"], draw.get("known")
        with self.precision():
            named = {eta: named_positions(model.method, batch.images, order, eta, known) for eta in self.cfg.etas}
        order, known = order.cpu(), torch.zeros_like(order, dtype=torch.bool) if known is None else known
        places = {eta: torch.where(known.cpu(), order, places) for eta, places in named.items()}
        waves = torch.stack([torch.from_numpy(clips.wave(index)) for index in chosen])
        return Words([names[clips.labels[index]] for index in chosen], waves, order, places, known.cpu())


def spectrograms(words: Words, features: Any, etas: tuple[int, ...]) -> bytes:
    """A PNG with a row for each clip: as it is, in random order, and rebuilt at each eta; one scale for all."""
    decibels = DECIBEL * log_mels(words.waves.float() / FULL_SCALE, features).double().numpy()
    shares = 1 + (decibels - decibels.max()) / RANGE_DB
    zoom, captions = -(-WIDTH // words.grid.size), []
    rows: list[tuple[str, list[Tensor | None]]] = []
    for number, name in enumerate(words.names):
        picture = enlarged(coloured(shares[number, ::-1], COLOURS), zoom)  # low tones at the bottom
        slots = [words.in_turn[number], *(words.places[eta][number] for eta in etas)]
        rows.append(
            (name, [picture, *(place_patches(picture, words.grid, words.order[number], slot) for slot in slots)])
        )
        captions.append(["", "", *(f"{_right(words, number, eta):.0f} % right" for eta in etas)])
    headings = ["original", "in random order", *(f"rebuilt, eta {eta / 100:g}" for eta in etas)]

    def foot(width: int) -> Image.Image:
        ticks = [(0.0, f"-{RANGE_DB} dB"), (0.5, f"-{RANGE_DB // 2} dB"), (1.0, "0 dB")]
        return bar(COLOURS, ticks, _note(words, features), width)

    return labelled_grid(rows, headings, captions, foot)


def _right(words: Words, number: int, eta: int) -> float:
    """Per cent of the frames whose position is predicted, not given."""
    right = (words.places[eta] == words.order)[number, ~words.known[number]]
    return 100 * right.double().mean().item()


def _note(words: Words, features: Any) -> str:
    text = (
        f"dB below the loudest; {features.mels} mel bands from {features.low_hz:g} to {features.high_hz:g} Hz, the "
        "lowest at the bottom. Where several frames meet, their mean; pale blue: none."
    )
    given = int(words.known[0].sum())
    return f"{text} {given} of {words.grid.size} frames, drawn at random, were given their position." if given else text


def resynthesise(words: Words, places: Tensor, window: int, step: int) -> np.ndarray:
    """(B, samples) int16: the frames of every clip at these places."""
    frames = words.waves.unfold(1, window, step)
    found = [
        overlap_add(clip[order], slots, step, len(clip))
        for clip, order, slots in zip(frames, words.order, places, strict=True)
    ]
    return torch.stack(found).round().to(torch.int16).numpy()


def with_pauses(waves: np.ndarray) -> np.ndarray:
    """One clip after the other."""
    pause = np.zeros((len(waves), round(PAUSE_S * RATE)), dtype=waves.dtype)
    return np.concatenate([waves, pause], axis=1).flatten()
