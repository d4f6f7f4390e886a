"""`optim.keep: best`: of all validations of a run, the weights of the best one are what it exports.

Early stopping without stopping: the run trains to its end, so that its length does not depend on luck, and its
checkpoints carry the best weights so far beside those that train on.
"""

from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from pipeline.engine.metrics import Found


class BestWeights:
    """A copy of the weights at the best validation so far, in main memory, and what that validation found."""

    def __init__(self) -> None:
        self.step: int | None = None  # None: there was no validation yet
        self.weights: dict[str, Tensor] = {}
        self.found = Found()

    def take(self, method: nn.Module, step: int, found: Found) -> None:
        self.step, self.found = step, found
        self.weights = {name: value.detach().to("cpu", copy=True) for name, value in method.state_dict().items()}

    def put_into(self, method: nn.Module) -> Found:
        """The method gets its best weights back; returns what was found with them."""
        method.load_state_dict(self.weights)
        return self.found

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "weights": self.weights, "found": asdict(self.found)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.weights, self.found = state["step"], state["weights"], Found(**state["found"])
