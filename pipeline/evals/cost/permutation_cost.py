"""What permuted tokens cost in training: seconds, operations and memory of a step (ST Sec. 5.4, Fig. 8); no run needed.

Plain, with indices, and with products of matrices as in the paper: P_R new in each batch and one for all of its images,
P_C fixed, two products of each. `gmacs` are multiply-adds of a forward pass for one image, in 10^9. `saved_mb` are what
autograd keeps for the backward pass, parameters and images not counted, on any device; `peak_gb` is what torch
allocates on a GPU at most, in GiB. Each of them is also given in per cent of the plain step (`time_percent`, ...).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from pipeline.core.seeds import seed_everything
from pipeline.engine.compute.precision import in_precision, precision_of
from pipeline.engine.compute.timing import StepCost, time_step
from pipeline.evals.base import COUNTED, EVALS, EvalConfig, Evaluation, Outcome
from pipeline.evals.cost.cost import NO_GPU, error_of, random_batch
from pipeline.methods.base import Batch
from pipeline.methods.supervised import Supervised
from pipeline.models.encoder import ModelConfig, build_encoder

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "indexed": {"rows": True, "key": "used"},
    "products": {"rows": True, "key": "used"},
}
UNITS = ("time_s", "gmacs", "saved_mb", "peak_gb")


@EVALS.register("permutation_cost")
class PermutationCost(Evaluation):
    class Config(EvalConfig):
        name: Literal["permutation_cost"] = "permutation_cost"
        model: ModelConfig
        """The encoder that is measured."""
        image_size: int = Field(224, ge=1)
        """Side of the images, in pixels."""
        channels: Literal[1, 3] = 3
        """Channels of the images."""
        num_classes: int = Field(10, ge=1)
        """Classes of the classifier."""
        batch: int = Field(256, ge=1)
        """Images of a step."""
        steps: int = Field(10, ge=1)
        """Steps that are timed in each of three rounds, of which the median counts."""

        @property
        def metrics(self) -> tuple[str, ...]:
            return tuple(f"{case}_{unit}" for case in CASES for unit in (*UNITS, *map(_percent, UNITS)))

    without_error = MappingProxyType({"*_gmacs*": COUNTED, "*_saved_*": COUNTED})
    cfg: Config

    def compute(self) -> Outcome:
        costs = {case: self._measured(case) for case in CASES}
        metrics = {f"{case}_{unit}": value for case, (found, _) in costs.items() for unit, value in found.items()}
        errors = {f"{case}_time_s": error for case, (_, error) in costs.items()}
        for name, value in list(metrics.items()):
            case, unit = name.split("_", 1)
            plain = metrics[f"plain_{unit}"]
            metrics[f"{case}_{_percent(unit)}"] = 100 * value / plain
            if name in errors:
                errors[f"{case}_{_percent(unit)}"] = 100 * errors[name] / plain
        reasons = dict.fromkeys((name for name in self.cfg.metrics if name not in metrics), NO_GPU)
        return Outcome(metrics, errors, reasons=reasons)

    def _measured(self, case: str) -> tuple[dict[str, float], float]:
        """UNITS, and the error of the time; when it returns, nothing of this case is left on the GPU."""
        method = self._method(CASES[case], is_product=case == "products")
        batch = random_batch(self.cfg, self.world.device)
        found = {"gmacs": self._gmacs(method, batch), "saved_mb": self._saved_mb(method, batch)}
        cost = self._time_steps(method, batch)
        found["time_s"] = cost.seconds
        if cost.peak_memory_gib is not None:
            found["peak_gb"] = cost.peak_memory_gib
        return found, error_of(cost.rounds_s)

    def _method(self, keys: dict[str, Any], is_product: bool) -> Supervised:
        cfg = self.cfg
        seed_everything("permutation_cost", cfg.seed)
        encoder = build_encoder(cfg.model, cfg.image_size, cfg.channels, cfg.num_classes)
        method = Supervised(Supervised.Config(permutation=keys), encoder)
        method.begin()
        if is_product and method.tokens is not None:
            method.tokens.by = "product"
        return method.to(self.world.device).train()

    def _time_steps(self, method: Supervised, batch: Batch) -> StepCost:
        precision = precision_of(self.site, self.world.device)
        return time_step(method, batch, precision, self.site.compile, self.cfg.steps)

    def _gmacs(self, method: Supervised, batch: Batch) -> float:
        from torch.utils.flop_counter import FlopCounterMode

        # Attention as two products, which are counted on every device.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            method(batch.images, batch.targets, method.draw(batch, 0.5))
        return counter.get_total_flops() / 2e9 / len(batch.images)

    def _saved_mb(self, method: Supervised, batch: Batch) -> float:
        given = [*method.parameters(), batch.images, batch.targets]
        precision = precision_of(self.site, self.world.device)
        with saved_bytes(given) as saved, in_precision(precision, self.world.device):
            kept = method(batch.images, batch.targets, method.draw(batch, 0.5))
        del kept
        return sum(saved.values()) / 1e6


def _percent(unit: str) -> str:
    """time_s -> time_percent."""
    return f"{unit.split('_')[0]}_percent"


@contextmanager
def saved_bytes(given: list[Tensor]) -> Iterator[dict[int, int]]:
    """Bytes of each piece of memory that autograd keeps, other than what it was given, by its address."""
    known = {tensor.untyped_storage().data_ptr() for tensor in given}
    found: dict[int, int] = {}

    def count(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in known:
            found[memory.data_ptr()] = memory.nbytes()
        return tensor.detach()  # kept, so that nothing else gets its address

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        yield found
