"""Whole runs on sounds: they learn, resume, are shared by processes, and start from each other."""

import json

import pytest
import torch
from tiny_runs import StopAfter, build_trainer, classify, differing, fit, publish, weights_of
from tiny_sounds import SOUNDS, write_sounds
from unstable import train_together

from pipeline.core.config import CONFIGS, Layers, merge, read_yaml
from pipeline.data.store.prepare import prepare
from pipeline.engine.loop import build_method
from pipeline.engine.run import parse_run
from pipeline.engine.signals import StopRequest
from pipeline.engine.train import train_run
from pipeline.plan.operations import step_cost
from pipeline.results import RunFolder
from pipeline.site import Site

pytestmark = pytest.mark.slow
MODEL = {"name": "ear", "arch": "vit_tiny_patch16_224", "patch_size": [10, 1], "embed_dim": 16, "depth": 2}
CONFIG = {
    "method": {"name": "supervised"},
    "model": {**MODEL, "num_heads": 2, "mlp_ratio": 2.0, "act_layer": "relu", "pos_embed": "sincos"},
    "data": SOUNDS,
    "optim": {"epochs": 2, "global_batch": 8, "micro_batch": 4, "base_lr": 3e-3, "lr_batch": 8, "warmup_epochs": 0}
    | {"log_every": 1, "smoothing": 0.1},
}
MP3 = {"name": "mp3", "known_ratio": 0.1}
RUNS = {"supervised": {}, "mp3": {"method": MP3, "model": {"pos_embed": "none"}}}
RICH = {"model": {"drop_path": 0.2, "dropout": 0.1}, "optim": {"ema_decay": 0.5, "clip_norm": 1.0}}


def sound_run(*changes):
    return parse_run(Layers(("test", merge(CONFIG, *changes))))


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    return write_sounds(tmp_path_factory.mktemp("sounds"))


def test_train__tones__are_told_apart(sounds, tmp_path):
    run = sound_run({"optim": {"epochs": 25, "base_lr": 1e-2}})
    paths, site = RunFolder(tmp_path, run.name), Site(device="cpu", data={run.data.name: sounds})
    prepare(run.data, sounds, paths.manifest(run.data.name).parent, progress=False)
    train_run(run, paths, site, StopRequest())
    record = json.loads(paths.finished.read_text())
    assert record["metrics"]["val_top1"] > 80 and record["count"] == 12  # the commonest class has 33
    paths.publish()
    found = classify(run, paths, site)
    assert found.metrics["top1"] == record["metrics"]["val_top1"]


@pytest.mark.parametrize("name", RUNS)
def test_resume__sound_run_stopped_at_any_step__ends_bit_identical(sounds, tmp_path, name):
    run = sound_run(RUNS[name], RICH)
    whole = fit(run, tmp_path / "whole", sounds)
    fit(run, tmp_path / "parts", sounds, StopAfter(4))
    again = fit(run, tmp_path / "parts", sounds)
    assert differing(weights_of(whole), weights_of(again)) == []
    assert again.paths.metrics.read_bytes() == whole.paths.metrics.read_bytes()


@pytest.mark.parametrize("name", RUNS)
def test_two_processes__sound_run__are_one_to_rounding(sounds, tmp_path, name):
    run = sound_run(RUNS[name], {"optim": {"base_lr": 1e-3, "eps": 1e-4}})
    alone = fit(run, tmp_path / "alone", sounds)
    results = tmp_path / "together"
    train_together(run.model_dump(mode="json"), sounds, results, data=run.data)
    for rank in range(2):
        found = torch.load(results / f"rank{rank}.pt", weights_only=True)
        for key, value in alone.method.state_dict().items():
            torch.testing.assert_close(found[f"method.{key}"], value, atol=1e-5, rtol=0)


def test_start__classifier_from_positions__takes_all_but_its_head(sounds, tmp_path):
    first = fit(sound_run(RUNS["mp3"]), tmp_path, sounds)
    publish(first)
    second = build_trainer(sound_run({"init": first.run.name, "seed": 3}), tmp_path, sounds)
    found, expected = second.method.encoder.state_dict(), first.method.encoder.state_dict()
    assert differing({name: found[name] for name in expected}, expected) == []
    assert {name.split(".")[0] for name in second.init_report.fresh} == {"head", "pos_embed"}


def test_step_cost__of_a_sound_run__counts_a_frame_as_a_patch():
    found = []
    for step_ms, frames in ((50, 19), (25, 37)):
        run = sound_run({"data": {"features": {"step_ms": step_ms}}})
        assert build_method(run).encoder.grid == (1, frames)
        found.append(step_cost(run)["gflop_per_image"])
    assert 1.8 * found[0] < found[1] < 3 * found[0]  # attention grows faster than the number of frames


def test_encoder__as_published__has_the_size_that_the_paper_states():
    """MP3 Sec. 4.3: about 70K parameters, with 8 layers of width 32 and an MLP of 64."""
    data = read_yaml(CONFIGS / "data" / "speech_commands.yaml")["data"]
    model = {"patch_size": [40, 1], "embed_dim": 32, "depth": 8, "num_heads": 4}
    method = build_method(parse_run(Layers(("test", merge({**CONFIG, "data": data}, {"model": model})))))
    assert method.encoder.grid == (1, 98)
    trained = [parameter for parameter in method.encoder.parameters() if parameter.requires_grad]
    assert sum(parameter.numel() for parameter in trained) == 70_156
