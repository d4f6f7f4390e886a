"""Time and memory of a training step of MP3, MAE and a supervised ViT, against the mask ratio eta (MP3 Table 2).

No trained run is needed. Random images of the right size; the same step as in training, in the site's precision. The
paper does not state its batch. Peak memory is what torch allocates on a GPU; a CPU has no such count, and says so.
"""

from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from pipeline.engine.precision import precision_of
from pipeline.engine.timing import StepCost, time_step
from pipeline.evals.base import COUNTED, EVALS, EvalConfig, Evaluation, Outcome, Percent
from pipeline.methods.base import METHODS, Batch, Method
from pipeline.models.encoder import ModelConfig, build_encoder
from pipeline.registry import TASKS
from pipeline.seeds import seed_everything

MASKED = ("mp3", "mae")
NO_GPU = "peak memory is counted on a GPU, and this machine has none"


@EVALS.register("cost")
class Cost(Evaluation):
    class Config(EvalConfig):
        name: Literal["cost"] = "cost"
        model: ModelConfig
        method: dict[str, dict[str, Any]] = Field(default_factory=dict, description="method -> its keys, beside eta")
        etas: tuple[Percent, ...] = Field((30, 50, 75, 90), min_length=1, description="eta in per cent")
        image_size: int = Field(224, ge=1)
        channels: Literal[1, 3] = 3
        num_classes: int = Field(1000, ge=1)
        batch: int = Field(256, ge=1)
        steps: int = Field(10, ge=1, description="in each of three rounds, of which the median counts")

        @property
        def cases(self) -> dict[str, tuple[str, dict[str, Any]]]:
            """Name of a case -> method, and keys of its config."""
            masked = {f"{name}_{eta}": (name, {"mask_ratio": eta / 100}) for name in MASKED for eta in self.etas}
            return {**masked, "vit": ("supervised", {})}

        @property
        def metrics(self) -> tuple[str, ...]:
            return tuple(f"{case}_{what}" for case in self.cases for what in ("time_s", "memory_gib"))

    without_error = MappingProxyType({"*_memory_gib": COUNTED})
    cfg: Config

    def compute(self) -> Outcome:
        costs = {case: self._measure(name, keys) for case, (name, keys) in self.cfg.cases.items()}
        memory = {f"{case}_memory_gib": cost.peak_memory_gib for case, cost in costs.items()}
        return Outcome(
            metrics={f"{case}_time_s": cost.seconds for case, cost in costs.items()}
            | {name: value for name, value in memory.items() if value is not None},
            errors={f"{case}_time_s": error_of(cost) for case, cost in costs.items()},
            reasons={name: NO_GPU for name, value in memory.items() if value is None},
        )

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


def error_of(cost: StepCost) -> float:
    """Standard error of the seconds of a step, over rounds."""
    return float(np.std(cost.rounds_s, ddof=1) / np.sqrt(len(cost.rounds_s)))
