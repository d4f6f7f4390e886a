"""The best validation of a run: `optim.keep: best` exports its weights, `optim.patience` stops some time after it.

Checkpoints carry the best weights so far beside those that train on. Without `patience` a run trains to its end.
"""

from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from pipeline.results.records import STOP_FACTS
from pipeline.tasks.metrics import MetricValues


class BestWeights:
    """A copy of the weights at the best validation so far, in main memory, and what that validation found."""

    def __init__(self) -> None:
        self.step: int | None = None  # None: there was no validation yet
        self.weights: dict[str, Tensor] = {}
        self.found = MetricValues()

    def take(self, method: nn.Module, step: int, found: MetricValues) -> None:
        self.step, self.found = step, found
        self.weights = {name: value.detach().to("cpu", copy=True) for name, value in method.state_dict().items()}

    def put_into(self, method: nn.Module) -> MetricValues:
        """The method gets its best weights back; returns what was found with them."""
        method.load_state_dict(self.weights)
        return self.found

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "weights": self.weights, "found": asdict(self.found)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.weights, self.found = state["step"], state["weights"], MetricValues(**state["found"])


class Patience:
    """Stops a training after `limit` validations in a row without a better one; without a limit, never.

    The decision depends on validations only, which are the same in all processes, and its state is in each checkpoint:
    an interrupted run stops at the same step as an undisturbed one.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.num_since_best = 0  # validations
        self.best_step = 0  # 0: there was no validation yet

    def count(self, is_better: bool, step: int) -> None:
        self.num_since_best = 0 if is_better else self.num_since_best + 1
        self.best_step = step if is_better else self.best_step

    @property
    def is_over(self) -> bool:
        return self.limit is not None and self.num_since_best >= self.limit

    def as_metrics(self) -> dict[str, int]:
        """What a line of metrics.jsonl has beside the validation."""
        return {} if self.limit is None else {"since_best": self.num_since_best}

    def explain(self, step: int, total: int, metric: str) -> dict[str, str]:
        """Where a run stopped and why, as its record has it."""
        times = f"{self.limit} validation{'s' * (self.limit != 1)}"
        why = f"{metric} has not improved in {times}, its best is that of step {self.best_step} (optim.patience)"
        return dict(zip(STOP_FACTS, (f"after step {step} of {total}", why), strict=True))

    def state_dict(self) -> dict[str, int]:
        return {"num_since_best": self.num_since_best, "best_step": self.best_step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the count; the state of a run that begins is empty."""
        self.num_since_best, self.best_step = state.get("num_since_best", 0), state.get("best_step", 0)
