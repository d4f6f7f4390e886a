"""Does a model learn the same from permuted tokens? Gradients and updates in float64 (ST Theorems 4.2, 4.3, 4.5, 4.6).

On one batch, in evaluation mode, so that nothing is dropped. Rows: P_R enters, its inverse leaves the last block.
Columns: the model is locked, and what it learned is unlocked again. `unlocked_gradients_apart` is the control: columns
are permuted and weights are not, so it must be far from 0. Each number is the largest difference over the largest
value, of all parameters of the encoder; `digits` are the decimals that agree. `weights_moved` says how far plain
training moved the weights in as many steps. AdamW makes steps of 1e-8 of its rate out of gradients that are rounding
alone, such as those of the biases of keys.
"""

import copy
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from random import Random
from types import MappingProxyType
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.core.dynamo import AdamW
from pipeline.core.registry import TASKS
from pipeline.core.seeds import generator_for
from pipeline.core.trees import map_tree
from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS, ROUNDING, EvalConfig, Evaluation, Outcome, Subject
from pipeline.evals.permutation.locked import KeyedConfig, locked_with
from pipeline.evals.permutation.relative_difference import relative_difference
from pipeline.methods.base import Batch, Method
from pipeline.methods.permuted import PermutableConfig, permutable_reason, rows_reason
from pipeline.permutation.forward import permuted, shape_of
from pipeline.permutation.keys import new_key
from pipeline.permutation.rules import unpermute_state

State = dict[str, Tensor]
APART = "_apart"
FLOAT64_DIGITS = 16.0
OPTIMISERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=5e-4),
    "adamw": functools.partial(AdamW, lr=1e-3, weight_decay=0.05),
}


@EVALS.register("training_equivariance")
class TrainingEquivariance(Evaluation):
    class Config(KeyedConfig):
        name: Literal["training_equivariance"] = "training_equivariance"
        batch: int = Field(16, ge=1, description="the first validation samples")
        steps: int = Field(5, ge=1, description="updates by SGD, and as many by AdamW")

        @property
        def metrics(self) -> tuple[str, ...]:
            named = [f"{side}_{what}_apart" for side in ("rows", "columns") for what in ("gradients", "weights")]
            named.append("unlocked_gradients_apart")
            return (*named, *map(_digits_name, named), "weights_moved")

    without_error = MappingProxyType(
        {
            "*_apart": ROUNDING,
            "*_digits": ROUNDING,
            "weights_moved": "of one training",
        }
    )
    cfg: Config

    def precision_name(self) -> str:
        return "float64"

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        run = subjects["model"]
        if not isinstance(run.method, PermutableConfig):
            return f"method {run.method.name} does not train on permuted tokens"
        return permutable_reason(run.model)

    def compute(self, model: Subject) -> Outcome:
        method, batch = copy.deepcopy(model.method).double().eval(), self._batch(model.run)
        key = new_key(shape_of(method.encoder), self.cfg.kind, Random(self.cfg.seed))
        locked = locked_with(method, key)
        start, plain = _weights(method), self._train(method, batch)
        with permuted(locked.encoder, key):
            columns = {what: unpermute_state(state, key) for what, state in self._train(locked, batch).items()}
        with permuted(method.encoder, key):
            unlocked = _gradients(method, batch)
        metrics = _compared("columns", columns, plain)
        metrics["unlocked_gradients_apart"] = _difference(unlocked, plain["gradients"])
        metrics["weights_moved"] = max(_difference(plain[name], start) for name in OPTIMISERS)
        reason = rows_reason(model.run.model)
        if not reason:
            with permuted(method.encoder, rows=generator_for("rows", self.cfg.seed)):
                metrics |= _compared("rows", self._train(method, batch), plain)
        metrics |= {_digits_name(name): _digits(value) for name, value in metrics.items() if name.endswith(APART)}
        reasons = {name: reason for name in self.cfg.metrics if name not in metrics}
        return Outcome(metrics, count=self.cfg.batch, reasons=reasons)

    def _batch(self, run: RunConfig) -> Batch:
        task = TASKS.get(run.task)(run.data, self.world.device)
        first = next(self.source(run.data, task).parts([range(self.cfg.batch)], self.cfg.batch, self.label(run.data)))
        inputs, targets = (map_tree(_to_double, tree) for tree in task.eval_batch(*next(iter(first))))
        return Batch(inputs, targets, torch.Generator())

    def _train(self, method: Method, batch: Batch) -> dict[str, State]:
        """The gradients, and the weights after the steps of each optimiser; the method is left as it was."""
        start, found = copy.deepcopy(method.state_dict()), {"gradients": _gradients(method, batch)}
        for name, optimiser in OPTIMISERS.items():
            optimizer = optimiser([parameter for parameter in method.parameters() if parameter.requires_grad])
            for _ in range(self.cfg.steps):
                _gradients(method, batch)
                optimizer.step()
            found[name] = _weights(method)
            method.load_state_dict(start)
        return found


def _digits_name(name: str) -> str:
    return name.removesuffix(APART) + "_digits"


def _digits(value: float) -> float:
    """Decimals in which two computations agree; no number has more than its precision."""
    return min(FLOAT64_DIGITS, -math.log10(value)) if value else FLOAT64_DIGITS


def _to_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _gradients(method: Method, batch: Batch) -> State:
    """Of the encoder's parameters; what the method itself draws is the same each time."""
    method.zero_grad()
    batch.generator.manual_seed(0)
    method(batch.inputs, batch.targets, method.draw(batch, 0.5)).loss.backward()
    named = method.encoder.named_parameters()
    return {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}


def _weights(method: Method) -> State:
    return {name: parameter.detach().clone() for name, parameter in method.encoder.named_parameters()}


def _compared(side: str, found: Mapping[str, State], plain: Mapping[str, State]) -> dict[str, float]:
    return {
        f"{side}_gradients_apart": _difference(found["gradients"], plain["gradients"]),
        f"{side}_weights_apart": max(_difference(found[name], plain[name]) for name in OPTIMISERS),
    }


def _difference(found: State, expected: State) -> float:
    return relative_difference([found[name] for name in expected], list(expected.values()))
