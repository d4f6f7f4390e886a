"""All checks of one method, with a model and data that a run of the project gives it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.core.config import CONFIGS, Layers, read_yaml, shown
from pipeline.core.errors import ContractError, DataError
from pipeline.core.registry import TASKS
from pipeline.core.seeds import seed_everything
from pipeline.data.kind import kind_of
from pipeline.engine.loop import build_method
from pipeline.engine.run import RunConfig, parse_run
from pipeline.method_checks.bench import Bench, run_check
from pipeline.method_checks.declared import check_method_class
from pipeline.method_checks.devices import check_devices
from pipeline.method_checks.exports import check_export, check_state
from pipeline.method_checks.gradients import check_gradients
from pipeline.method_checks.graphs import check_graph
from pipeline.method_checks.outputs import check_batch_sizes, check_inputs_kept, check_outputs, check_randomness
from pipeline.method_checks.training import check_bf16, check_overfits
from pipeline.methods.base import METHODS, Batch, Method
from pipeline.site import data_folder, load_site
from pipeline.study.resolve.entries import Graph

CPU = torch.device("cpu")
BASELINE = "supervised"  # the method whose model and data a method without a run is checked with
CHECKS: dict[str, Callable[[Bench], list[str]]] = {
    "loss and scalars": check_outputs,
    "random draws": check_randomness,
    "inputs left as they are": check_inputs_kept,
    "any number of samples": check_batch_sizes,
    "gradients": check_gradients,
    "checkpoint": check_state,
    "device of the batch": check_devices,
    "bf16": check_bf16,
    "overfits one batch": check_overfits,
    "one graph": check_graph,
}


@dataclass(frozen=True)
class CheckReport:
    """What was checked, in words, and what was found."""

    run: RunConfig
    has_run: bool
    checks: list[str]


def check_method(graph: Graph, name: str) -> CheckReport:
    """Check the method that is registered by this name, or raise one ContractError with all that is wrong."""
    method = METHODS.get(name)
    _refuse(check_method_class(name, method))
    run, has_run = _run_of(graph, name)
    _refuse(check_run(run))
    return CheckReport(run, has_run, [*CHECKS, "export"])


def check_run(run: RunConfig) -> list[str]:
    """The sentences of all checks of a run's method, with the run's model and data."""
    bench, export = bench_of(run), check_export(lambda: _plain_encoder(run))
    return [*dict.fromkeys(line for check in (*CHECKS.values(), export) for line in run_check(check, bench))]


def _refuse(lines: list[str]) -> None:
    if lines:
        raise ContractError("\n".join(lines))


def _run_of(graph: Graph, name: str) -> tuple[RunConfig, bool]:
    """A run of a study that has the method, else the baseline's with the method in its place."""
    runs = {run: entry.config for run, entry in graph.runs.items()}
    found = [run for run, config in runs.items() if config["method"]["name"] == name]
    if found:
        return parse_run(Layers((f"run {found[0]}", runs[found[0]]))), True
    baseline = next(config for config in runs.values() if config["method"]["name"] == BASELINE)
    return parse_run(Layers(("the baseline", {**baseline, "method": {}}), _fragment(name))), False


def _fragment(name: str) -> tuple[str, dict[str, Any]]:
    """The file of configs/method that has the method, or its defaults."""
    path = CONFIGS / "method" / f"{name}.yaml"
    return (shown(path), read_yaml(path)) if path.exists() else ("its defaults", {"method": {"name": name}})


def bench_of(run: RunConfig) -> Bench:
    """The method of a run on the first samples of its train split, seen as in training, with hard targets."""
    kind, task = kind_of(run.data), TASKS.get(run.task)(run.data, CPU)
    folder = data_folder(load_site(), run.data)
    samples = kind.read(folder, "train").samples
    if not len(samples):
        raise DataError(
            f"data set {run.data.name!r}: no train samples found in {folder}, expected {kind.layout}; "
            f"`python -m pipeline prepare --data {run.data.name}` makes or verifies it"
        )
    view = kind.train_view()

    def build(seed: int) -> Method:
        return build_method(run.model_copy(update={"seed": seed}))

    def batch(count: int) -> Batch:
        seed_everything("contract", count)
        views = [view(samples[number % len(samples)]) for number in range(count)]
        inputs, targets = task.train_batch(*task.collate(views))
        return Batch(inputs, targets, torch.Generator().manual_seed(0))

    return Bench(build, batch)


def _plain_encoder(run: RunConfig) -> torch.nn.Module:
    return TASKS.get(run.task).build_encoder(run.method, run.model, run.data)
