"""Every run that the studies name at scale demo, on two random samples: it can be built, started from and trained."""

import functools
import re

import pytest
import torch

from pipeline.core.config import Layers
from pipeline.core.registry import TASKS
from pipeline.engine.loop import build_method
from pipeline.engine.optim import build_optimizer
from pipeline.engine.run import parse_run
from pipeline.engine.train import export
from pipeline.methods.base import Batch
from pipeline.models.weights import load_encoder
from pipeline.results import RunFolder
from pipeline.study.resolve.graph import build_graph

SHARE = re.compile(r"\b0\.0*[1-9]\d*\b")
CLASSIFY = ("classify", "pretrain", "text_classify")  # validation sees classes, not soft targets


@pytest.fixture(scope="module")
def graph():
    return build_graph("demo")


@pytest.fixture(scope="module")
def run_of(graph):
    """Parses a run of the graph."""
    return functools.cache(lambda name: parse_run(Layers((name, graph.runs[name].config))))


@pytest.fixture(scope="module")
def distinct(graph, run_of):
    """One run for each way of building and loading; runs that differ in epochs or in a share are one."""

    def essence(name):
        run = run_of(name)
        shape = [getattr(run.data, field) for field in run.data.cost_fields]
        return SHARE.sub("share", repr((run.method, run.model, run.task, shape, run.optim.layer_decay)))

    found = {(essence(name), run.init and essence(run.init)): name for name, run in graph.runs.items()}
    return sorted(found.values())


@pytest.fixture(scope="module")
def exported(tmp_path_factory, run_of):
    """The encoder file of an untrained run, written once."""
    folder, files = tmp_path_factory.mktemp("runs"), {}

    def of(name):
        if name not in files:
            paths = RunFolder(folder, name)
            paths.folder.mkdir(parents=True)
            export(build_method(run_of(name)), paths)
            files[name] = paths.encoder
        return files[name]

    return of


def randomised(inputs, data):
    if isinstance(inputs, torch.Tensor):
        return torch.randn_like(inputs)
    return {**inputs, "ids": torch.randint(data.vocab_size, inputs["ids"].shape)}


@pytest.mark.slow
def test_run__of_any_study__is_built_started_and_stepped(subtests, graph, distinct, run_of, exported):
    for name in distinct:
        with subtests.test(name):
            init = graph.runs[name].init
            build_start_and_step(run_of(name), exported(init) if init else None)


def build_start_and_step(run, init):
    method = build_method(run)
    if init:
        assert load_encoder(method.encoder, init).matched
    build_optimizer(method, run.optim)
    inputs, targets = TASKS.get(run.task).example(run.data, 2)
    inputs = randomised(inputs, run.data)
    batch = Batch(inputs, targets, torch.Generator().manual_seed(0))

    out = method.train()(batch.inputs, batch.targets, method.draw(batch, 0.5))
    out.loss.backward()
    with torch.no_grad():
        seen = Batch(*as_validated(run.task, inputs, targets), torch.Generator().manual_seed(0))
        measured = method.eval().measure(seen)

    assert torch.isfinite(out.loss)
    if run.task == "detect":
        assert len(measured) == 2 and all(found.scores.isfinite().all() for found, _ in measured)
        return
    values = [value if isinstance(value, torch.Tensor) else value[0] for value in measured.values()]
    assert all(value.shape[0] == 2 and value.isfinite().all() for value in values)


def as_validated(task, inputs, targets):
    """Inputs and targets as validation has them."""
    if task in CLASSIFY:
        return inputs, torch.tensor([0, 1])
    if task == "segment":
        return list(inputs), [{"labels": labels} for labels in targets]
    return inputs, targets
