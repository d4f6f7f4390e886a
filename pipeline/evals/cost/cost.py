"""Time and memory of a training step: MP3 and MAE at several mask ratios eta (MP3 Table 2), or MJP (MJP App. B).

A supervised ViT is measured with them. No trained run is needed. Random images of the right size; the same step as in
training, in the site's precision. MP3's paper does not state its batch. Peak memory is what torch allocates on a GPU; a
CPU has no such count, and says so.

`mjp_overhead` is the time that MJP adds to the supervised step, in per cent. It needs several `turns`: both are
measured in each of them, so that a machine that is slow for a while is slow for both.
"""

import statistics
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from pipeline.core.config import added
from pipeline.core.registry import TASKS
from pipeline.core.seeds import seed_everything
from pipeline.engine.compute.precision import precision_of
from pipeline.engine.compute.timing import StepCost, time_step
from pipeline.evals.base import COUNTED, EVALS, EvalConfig, Evaluation, Outcome, Percent
from pipeline.methods.base import METHODS, Batch, Method
from pipeline.models.encoder import ModelConfig, build_encoder

MASKED = ("mp3", "mae")
NO_GPU = "peak memory is counted on a GPU, and this machine has none"


@EVALS.register("cost")
class Cost(Evaluation):
    class Config(EvalConfig):
        name: Literal["cost"] = "cost"
        model: ModelConfig
        """The encoder that is measured."""
        method: dict[str, dict[str, Any]] = Field(default_factory=dict, description="method -> its keys, beside eta")
        methods: tuple[Literal["mp3", "mae", "mjp"], ...] = added(
            MASKED, before=MASKED, min_length=1, description="measured with a supervised ViT; mp3 and mae at every eta"
        )
        etas: tuple[Percent, ...] = Field((30, 50, 75, 90), min_length=1)
        """Mask ratios (eta) that are measured, in per cent."""
        image_size: int = Field(224, ge=1)
        """Side of the images, in pixels."""
        channels: Literal[1, 3] = 3
        """Channels of the images."""
        num_classes: int = Field(1000, ge=1)
        """Classes of the classifier."""
        batch: int = Field(256, ge=1)
        """Images of a step."""
        steps: int = Field(10, ge=1)
        """Steps that are timed in each of three rounds, of which the median counts."""
        turns: int = added(1, before=1, ge=1, description="how often every case is measured; several give the overhead")

        @property
        def cases(self) -> dict[str, tuple[str, dict[str, Any]]]:
            """Name of a case -> method, and keys of its config."""
            masked = [name for name in self.methods if name in MASKED]
            cases = {f"{name}_{eta}": (name, {"mask_ratio": eta / 100}) for name in masked for eta in self.etas}
            others: dict[str, Any] = {name: (name, {}) for name in self.methods if name not in MASKED}
            return {**cases, **others, "vit": ("supervised", {})}

        @property
        def metrics(self) -> tuple[str, ...]:
            overheads = [f"{case}_overhead" for case in self.cases if case != "vit" and self.turns > 1]
            return (*(f"{case}_{what}" for case in self.cases for what in ("time_s", "memory_gib")), *overheads)

    without_error = MappingProxyType({"*_memory_gib": COUNTED})
    cfg: Config

    def compute(self) -> Outcome:
        cases = self.cfg.cases
        turns = [{case: self._measure(*cases[case]) for case in cases} for _ in range(self.cfg.turns)]
        metrics: dict[str, float] = {}
        errors: dict[str, float] = {}
        for case in cases:
            rounds = [seconds for turn in turns for seconds in turn[case].rounds_s]
            metrics[f"{case}_time_s"], errors[f"{case}_time_s"] = statistics.median(rounds), error_of(rounds)
            if (memory := turns[0][case].peak_memory_gib) is not None:
                metrics[f"{case}_memory_gib"] = memory
            if f"{case}_overhead" in self.cfg.metrics:
                more = [100 * (turn[case].seconds / turn["vit"].seconds - 1) for turn in turns]
                metrics[f"{case}_overhead"], errors[f"{case}_overhead"] = statistics.fmean(more), error_of(more)
        return Outcome(metrics, errors, reasons={name: NO_GPU for name in self.cfg.metrics if name not in metrics})

    def _measure(self, name: str, keys: dict[str, Any]) -> StepCost:
        cfg, device = self.cfg, self.world.device
        seed_everything("cost", cfg.seed)
        batch = random_batch(cfg, device)
        method = self._build(name, keys).to(device).train()
        return time_step(method, batch, precision_of(self.site, device), self.site.compile, cfg.steps)

    def _build(self, name: str, keys: dict[str, Any]) -> Method:
        kind, cfg = METHODS.get(name), self.cfg
        method = kind.Config(name=name, **{**cfg.method.get(name, {}), **keys})
        positions = {"mp3": "none", "mae": "sincos"}.get(name)
        model = cfg.model.model_copy(update={"pos_embed": positions} if positions else {})
        num_outputs = TASKS.get(method.task).num_outputs(cfg)
        return kind(method, build_encoder(model, cfg.image_size, cfg.channels, num_outputs))


def random_batch(cfg: Any, device: torch.device) -> Batch:
    """Noise images of a config's size with one-hot targets, drawn from torch's global generator."""
    images = torch.randn(cfg.batch, cfg.channels, cfg.image_size, cfg.image_size, device=device)
    classes = torch.arange(cfg.batch, device=device) % cfg.num_classes
    targets = torch.eye(cfg.num_classes, device=device)[classes]
    return Batch(images, targets, torch.Generator().manual_seed(cfg.seed))


def error_of(values: Sequence[float]) -> float:
    """Standard error of numbers that were measured again and again, such as the seconds of a step in each round."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))
