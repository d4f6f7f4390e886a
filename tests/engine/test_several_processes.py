"""Runs of real processes against one that does the same alone.

Four processes are started once. They train all of these runs one after the other: the first two of them, or all four.
"""

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import ForkedProcess
from tiny_runs import PHOTOS, StopAfter, StopsWithin, differing, fit, prepare_in, tiny_run, weights_of, write_photos

from pipeline.core.config import Layers
from pipeline.core.files import read_lines
from pipeline.data.store.prepare import prepare
from pipeline.engine import validate
from pipeline.engine.loop import Trainer
from pipeline.engine.parallel import pauses
from pipeline.engine.parallel.distributed import join_world, leave_world
from pipeline.engine.run import parse_run
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.results import RunFolder
from pipeline.site import Site

pytestmark = pytest.mark.slow

OF_A_VIT = dict.fromkeys(["embed_dim", "depth", "num_heads", "act_layer"])
CNN = tiny_run(
    {"model": {"name": "cnn", "arch": "test_resnet", "patch_size": 4, **OF_A_VIT}},
    # With the usual eps, AdamW makes steps of one size out of gradients that are nothing but rounding.
    {"optim": {"epochs": 2, "global_batch": 40, "micro_batch": 10, "ema_decay": 0.5, "eps": 0.01}},
)
CACHED = tiny_run(PHOTOS)
RARELY_LOGGED = tiny_run({"optim": {"epochs": 2, "log_every": 1000}})
LOOKS = 5  # before the second process finds that it was asked to stop


def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(frozen=True)
class Training:
    """What some of the processes train; each leaves its weights, and why it stopped."""

    name: str
    config: dict[str, Any]
    data: Path
    results: Path
    count: int = 2
    caches: tuple[str, ...] = ()  # of the site of the first process, of the second one
    is_stopped: bool = False
    is_stopped_within: bool = False  # the first validation
    port: int = field(default_factory=port)

    def path(self, rank: int) -> Path:
        return self.results / f"{self.name}{rank}.pt"

    def found(self) -> list[dict[str, Any]]:
        """What the processes left."""
        return [torch.load(self.path(rank), weights_only=True) for rank in range(self.count)]

    def lines(self) -> list[dict[str, Any]]:
        (path,) = self.results.glob("runs/*/metrics.jsonl")
        return read_lines(path)


def train_all(rank: int, trainings: list[Training]) -> None:
    torch.set_num_threads(1)
    pauses.LOOK_S, validate.LOOK_S = 0, -1  # they ask each other after every step, and look at every batch
    for training in trainings:
        if rank < training.count:
            train(rank, training)


def train(rank: int, training: Training) -> None:
    places = {"RANK": rank, "WORLD_SIZE": training.count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": training.port}
    os.environ.update({name: str(value) for name, value in places.items()})
    world, run, results = join_world("cpu"), parse_run(Layers(("test", training.config))), training.results
    stop = StopAfter(LOOKS) if training.is_stopped and rank == 1 else StopRequest()
    site = Site(device="cpu", cache=results / training.caches[rank] if rank < len(training.caches) else None)
    trainer, why = Trainer(run, RunFolder(results, run.name), training.data, site, world, stop), ""
    if training.is_stopped_within and rank == 0:  # the other one has no batch
        trainer.batches.validation = StopsWithin(trainer.batches.validation, stop)
    try:
        trainer.fit()
    except Requeue as request:
        why = str(request)
    torch.save({"weights": weights_of(trainer), "why": why, "side": trainer.shrunk_to}, training.path(rank))
    leave_world(world)


@pytest.fixture(scope="module")
def trained(images, tmp_path_factory) -> dict[str, Training]:
    folder = tmp_path_factory.mktemp("several")
    photos = write_photos(folder / "photos")
    cnn, cached, rare = (run.model_dump(mode="json") for run in (CNN, CACHED, RARELY_LOGGED))
    trainings = [
        Training("two", cnn, images, folder / "two"),
        Training("four", cnn, images, folder / "four", count=4),
        Training("caches", cached, photos, folder / "caches", caches=("cache0", "cache1")),
        Training("whole", rare, images, folder / "whole"),
        Training("stopped", rare, images, folder / "parts", is_stopped=True),
        Training("resumed", rare, images, folder / "parts"),
        Training("within", rare, images, folder / "within", is_stopped_within=True),
        Training("validated", rare, images, folder / "within"),
        Training("one cache", cached, photos, folder / "one cache", caches=("cache0",)),
    ]
    for training in [*trainings[:2], *trainings[3:5], trainings[6]]:
        prepare_in(training.results, images)
    for name in ("caches", "one cache"):
        prepare_photos(photos, folder / name, "cache0")
    children = [ForkedProcess(target=train_all, args=(rank, trainings)) for rank in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(300)  # a start on a busy machine takes minutes
        child.kill()
    assert [child.exitcode for child in children] == [0] * 4
    return {training.name: training for training in trainings}


def prepare_photos(photos: Path, results: Path, cache: str) -> None:
    index = RunFolder(results, "").manifest("photos").parent
    prepare(CACHED.data, photos, index, progress=False, cache=results / cache)


def assert_same_everywhere(training: Training) -> None:
    first, *others = (each["weights"] for each in training.found())
    assert all(differing(first, other) == [] for other in others)


def assert_close(training: Training, alone: Trainer) -> None:
    """Weights, statistics, averages, losses and validations are those of one process."""
    assert_same_everywhere(training)
    found = training.found()[0]["weights"]
    for name, value in weights_of(alone).items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=f"{name}: {training.name}")
    lines, expected = training.lines(), read_lines(alone.paths.metrics)
    assert [line.keys() for line in lines] == [line.keys() for line in expected]
    assert all(line == pytest.approx(one, rel=1e-4) for line, one in zip(lines, expected, strict=True))


def test_cnn__two_or_four_processes__have_the_statistics_and_validations_of_one(trained, images, tmp_path):
    alone = fit(CNN, tmp_path, images)
    assert sum("running_var" in name for name in weights_of(alone)) > 10
    for name in ("two", "four"):
        assert_close(trained[name], alone)


@pytest.mark.parametrize("name", ["caches", "one cache"])
def test_cache__on_the_disk_or_site_of_only_one_process__both_see_the_images_of_one_with_a_cache(
    trained, tmp_path, name
):
    training = trained[name]
    assert [each["side"] for each in training.found()] == [32, 32]
    assert not (training.results / "cache1").exists()
    prepare_photos(training.data, tmp_path, "cache")
    assert_close(training, fit(CACHED, tmp_path, training.data, cache=tmp_path / "cache"))


def test_stop__of_one_process_between_two_lines_of_the_log__is_noticed_by_both(trained):
    first, second = (each["why"] for each in trained["stopped"].found())
    assert first == f"a peer was asked to stop: checkpoint after step {LOOKS} of 12"
    assert second.endswith(f": checkpoint after step {LOOKS} of 12")


def test_stop__of_one_process_within_a_validation__is_noticed_by_both(trained):
    found = [each["why"] for each in trained["within"].found()]
    where = "checkpoint after step 6 of 12, before its validation"
    assert found == [f"the time limit is near: {where}", f"a peer was asked to stop: {where}"]


@pytest.mark.parametrize("name", ["resumed", "validated"])
def test_resume__stopped_between_two_lines_of_the_log_or_within_a_validation__ends_bit_identical(trained, name):
    whole, resumed = trained["whole"], trained[name]
    for one, other in zip(whole.found(), resumed.found(), strict=True):
        assert differing(one["weights"], other["weights"]) == []
    assert resumed.lines() == whole.lines()
