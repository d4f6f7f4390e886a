"""Parts of a step that are recorded do what they do when they are called; without a GPU, all but the recording."""

import copy
import gc
import logging

import pytest
import torch
from tiny_runs import ALONE, PRETRAINING, RICH, StopAfter, differing, fit, prepare_in, tiny_run, weights_of
from torch import nn
from unstable import train_together

from pipeline.core.cuda_graph import CALLED, Replayed
from pipeline.core.files import read_lines
from pipeline.core.seeds import seed_everything
from pipeline.engine.compute import graphs
from pipeline.engine.compute.graphs import Recorder, recorder_for
from pipeline.engine.loop import Trainer, build_method
from pipeline.engine.optim import build_optimizer
from pipeline.engine.parallel.distributed import World, _pieces
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.methods.base import METHODS
from pipeline.results import RunFolder
from pipeline.site import Site

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="records CUDA graphs")
DROPPED = {"model": {"drop_path": 0.3}, "optim": {"clip_norm": 0.1, "ema_decay": 0.9}}
ACCUMULATED = {"optim": {"global_batch": 40, "micro_batch": 10, "clip_norm": 0.5, "clip_mode": "tensor"}}
KINDS = {"supervised": DROPPED, "accumulated": ACCUMULATED, "rich mjp": RICH, **PRETRAINING}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rich mjp", "accumulated", "droppos"])
def test_fit__parts_called_on_copies_of_their_arguments__gives_the_same_run(images, tmp_path, kind):
    run = tiny_run(KINDS[kind])
    plain, copied = (fit(run, tmp_path / how, images, graphs=how) for how in ("off", "on"))
    assert plain.recorder.recordings == {}
    assert len(copied.recorder.recordings) == (2 if run.optim.num_micro == 1 else 3)
    assert differing(weights_of(plain), weights_of(copied)) == []
    assert plain.paths.metrics.read_bytes() == copied.paths.metrics.read_bytes()


@pytest.mark.slow
def test_resume__between_recorded_and_plain__ends_bit_identical(images, tmp_path):
    run = tiny_run(RICH)
    whole = fit(run, tmp_path / "whole", images)
    fit(run, tmp_path / "cut", images, StopAfter(5), graphs="on")
    fit(run, tmp_path / "cut", images, StopAfter(5))
    cut = fit(run, tmp_path / "cut", images, graphs="on")
    assert differing(weights_of(whole), weights_of(cut)) == []
    assert whole.paths.metrics.read_bytes() == cut.paths.metrics.read_bytes()


def test_recorder__arguments_of_other_shapes__are_calls_from_then_on_and_said_once(caplog):
    recorder, seen = Recorder(is_on=True, is_gpu=False), []

    def part(tree):
        seen.append(tree["x"])

    given = [{"x": torch.full((size,), float(size))} for size in (2, 2, 3, 2)]
    with caplog.at_level(logging.INFO):
        for tree in given:
            recorder.run(part, tree)
    assert [value.tolist() for value in seen] == [[2, 2], [2, 2], [3, 3, 3], [2, 2]]
    assert seen[0] is seen[1] and seen[3] is given[3]["x"]  # first copied to one place, then passed on
    assert len(caplog.records) == 1
    assert "no longer recorded as CUDA graphs: a batch has other shapes" in caplog.text


def recorder_of(keys, size=1, device="cpu", **site):
    return recorder_for(Site(**site), build_method(tiny_run(keys)), World(0, size, torch.device(device)))


@pytest.mark.parametrize(
    ("site", "device", "is_on"),
    [
        ({}, "cuda", False),
        ({"compile": True}, "cuda", True),
        ({"compile": True}, "cpu", False),
        ({"compile": True, "graphs": "off"}, "cuda", False),
        ({"graphs": "on"}, "cuda", True),
    ],
    ids=str,
)
def test_graphs__of_a_site__are_on_where_it_compiles_for_a_gpu_or_says_so(site, device, is_on):
    found = recorder_of({}, device=device, **site)
    assert (found.is_on, found.reads_rates) == (is_on, is_on and device == "cuda")


def test_graphs__what_cannot_be_recorded__says_why_in_one_line(caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    assert not recorder_of({}, graphs="on", recompute=True).is_on
    monkeypatch.setattr(METHODS.get("supervised"), "compiled", ("encoder",))
    assert not recorder_of({}, graphs="on").is_on
    monkeypatch.undo()
    method = build_method(tiny_run())
    method.head = nn.BatchNorm2d(3)
    two = World(0, 2, torch.device("cpu"))
    assert not recorder_for(Site(graphs="on"), method, two).is_on
    assert recorder_for(Site(graphs="on"), method, ALONE).is_on
    words = ["recompute: true", "loss of method supervised depend on values", "talks to other processes"]
    assert [word in record.message for word, record in zip(words, caplog.records, strict=True)] == [True] * 3


@pytest.mark.slow
def test_update__rates_given_as_a_tensor__are_those_it_takes_and_the_schedule_keeps_its_own(images, tmp_path):
    run = tiny_run()
    trainer = fit(run, tmp_path, images, StopAfter(2))
    method, optimizer, before = trainer.method, trainer.optimizer, copy.deepcopy(trainer.method.state_dict())
    expected = copy.deepcopy(method)
    reference = build_optimizer(expected, run.optim)
    reference.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    rates = [0.5, 0.25, 0.125][: len(optimizer.param_groups)]
    for ours, theirs in zip(method.parameters(), expected.parameters(), strict=True):
        theirs.grad = ours.grad.clone()
    for group, rate in zip(reference.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduled = [group["lr"] for group in optimizer.param_groups]
    trainer.update(torch.tensor(1.0), torch.tensor(rates))
    reference.step()
    assert differing(method.state_dict(), expected.state_dict()) == []
    assert "encoder.head.weight" in differing(before, method.state_dict())
    assert [group["lr"] for group in optimizer.param_groups] == scheduled


class TwoNodes(World):
    def gather(self, value):
        return [value, "another"]


def test_graphs__processes_on_several_nodes__are_recorded_only_if_the_site_insists(caplog):
    caplog.set_level(logging.INFO)
    method, world = build_method(tiny_run()), TwoNodes(0, 2, torch.device("cuda"))
    assert not recorder_for(Site(compile=True), method, world).is_on
    assert "on several nodes" in caplog.text
    assert recorder_for(Site(compile=True, graphs="on"), method, world).is_on


def test_pieces__of_many_tensors__hold_all_in_order_and_few_numbers(monkeypatch):
    monkeypatch.setattr("pipeline.engine.parallel.distributed.PIECE_NUMEL", 10)
    sizes = [4, 4, 3, 30, 1, 9]
    pieces = [[len(tensor) for tensor in piece] for piece in _pieces([torch.zeros(size) for size in sizes])]
    assert pieces == [[4, 4], [3], [30], [1, 9]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["supervised", "accumulated"])
def test_processes__gradients_sent_in_large_pieces__give_the_run_of_ddp(images, tmp_path, kind):
    config = tiny_run(KINDS[kind]).model_dump(mode="json")
    for how in ("off", "on"):
        train_together(config, images, tmp_path / how, graphs=how)
    ranks = [
        torch.load(tmp_path / how / f"rank{rank}.pt", weights_only=True) for how in ("off", "on") for rank in (0, 1)
    ]
    assert all(differing(ranks[0], other) == [] for other in ranks[1:])
    for how, keys in (("off", set()), ("on", {"sending", "peer_wait"})):
        (path,) = (tmp_path / how).rglob("timing.jsonl")
        assert all(line.keys() & {"sending", "peer_wait"} == keys for line in read_lines(path))


def gpu_trainer(run, results, images, stop=None, **site):
    if not RunFolder(results, "").manifest(run.data.name).exists():
        prepare_in(results, images, run.data)
    world, site = World(0, 1, torch.device("cuda", 0)), Site(device="cuda", data={"small": images}, graphs="on", **site)
    return Trainer(run, RunFolder(results, run.name), images, site, world, stop or StopRequest())


@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_gpu__recorded__gives_the_run_of_called_parts_whole_or_resumed(images, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    run = tiny_run(KINDS[kind])
    whole = gpu_trainer(run, tmp_path / "whole", images)
    whole.fit()
    assert whole.recorder.num_recorded == (2 if run.optim.num_micro == 1 else 3)
    with pytest.raises(Requeue):
        gpu_trainer(run, tmp_path / "cut", images, StopAfter(9)).fit()
    cut = gpu_trainer(run, tmp_path / "cut", images)
    cut.fit()
    monkeypatch.setattr(graphs, "WARM_UP", 10**9)
    called = gpu_trainer(run, tmp_path / "called", images)
    called.fit()
    assert called.recorder.num_recorded == 0
    for other in (cut, whole):
        assert differing(weights_of(called), weights_of(other)) == []
        assert called.paths.metrics.read_bytes() == other.paths.metrics.read_bytes()


@needs_gpu
def test_gpu__seeded_before_a_replay__draws_what_the_part_draws():
    found, recorder = torch.zeros(2, 1000, device="cuda"), Recorder(is_on=True, is_gpu=True)

    def part(scale):
        found.copy_(torch.stack([torch.rand(1000, device="cuda"), torch.randn(1000, device="cuda")]) * scale)

    drawn = []
    for update in range(graphs.WARM_UP + 3):
        seed_everything("test", update)
        torch.rand(7, device="cuda")  # as a transform does before the part
        recorder.run(part, torch.full((), update + 1.0, device="cuda"))
        recorder.updated()
        drawn.append(found.clone())
    assert recorder.recordings[part].graph is not None
    for update, values in enumerate(drawn):
        seed_everything("test", update)
        torch.rand(7, device="cuda")
        part(torch.full((), update + 1.0, device="cuda"))
        assert torch.equal(found, values)


@needs_gpu
def test_gpu__part_that_waits_for_the_device__is_called_and_the_reason_said(caplog):
    total, recorder = torch.zeros((), device="cuda"), Recorder(is_on=True, is_gpu=True)

    def part(value):
        total.add_(value.item() + torch.rand((), device="cuda"))

    for _ in range(graphs.WARM_UP + 3):
        torch.cuda.manual_seed(0)
        recorder.run(part, torch.ones((), device="cuda"))
        recorder.updated()
    torch.cuda.manual_seed(0)
    expected = (graphs.WARM_UP + 3) * (1 + torch.rand((), device="cuda"))
    torch.testing.assert_close(total, expected)
    assert not recorder.is_on
    assert caplog.text.count("no longer recorded as CUDA graphs") == 1


@needs_gpu
def test_gpu__older_graph_that_python_could_free_meanwhile__does_not_end_a_recording(caplog):
    def part(value):
        if gc.isenabled():
            gc.collect()  # as Python may at any time
        return value + 1

    replayed = Replayed("these", torch.device("cuda"))
    replayed.is_on = True
    found = [float(replayed.run(part, 0, torch.full((), value, device="cuda"))) for value in range(CALLED)]
    older = torch.cuda.CUDAGraph()
    with torch.cuda.graph(older):
        torch.zeros(1, device="cuda")
    circle = [older]
    circle.append(circle)  # only the collector frees it
    del older, circle
    found += [float(replayed.run(part, 0, torch.full((), value, device="cuda"))) for value in range(CALLED, 5)]
    assert found == [1, 2, 3, 4, 5]
    assert replayed.recordings and not caplog.text
    assert gc.isenabled()
