"""Whole runs of detection: they learn, resume, are shared by processes, and are read back."""

import bases
import pytest
import torch
from every_key import NUM_SCENES, NUM_TRAIN, short_run
from test_text_runs import finished, measured
from tiny_runs import ALONE, StopAfter, differing, fit, weights_of
from tiny_scenes import write_objects
from unstable import train_together

from pipeline.engine.train import load_method

pytestmark = pytest.mark.slow
# Views that are not random.
CALM = {"data": {"scale": [1.0, 1.0], "hflip": 0.0}}
# Everything random and stateful at once, and steps in the learning rate as detectors have them.
RICH = {
    "model": {"drop_path": 0.2, "window_size": 2, "global_blocks": 1, "add_relative": True},
    "optim": {"epochs": 3, "ema_decay": 0.5, "clip_norm": 1.0, "log_every": 2, "lr_curve": "steps"}
    | {"milestones": [0.5]},
}


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objects")
    write_objects(folder, NUM_TRAIN, NUM_SCENES)
    return folder


def test_train__bright_rectangles__are_found_and_the_run_is_read_back(objects, tmp_path):
    quick = {"method": {"width": 32, "fc_width": 64}, "optim": {"epochs": 20, "validate_every": 20, "base_lr": 0.004}}
    run = short_run(bases.OBJECTS, CALM, quick, {"optim": {"micro_batch": 8}})
    record, paths = finished(run, objects, tmp_path)
    metrics = record["metrics"]
    assert metrics["val_ap_b50"] > 40 and metrics["val_ap_m50"] > 40
    assert metrics["best_val_ap_b"] == metrics["val_ap_b"]
    again = measured(run, load_method(run, paths, ALONE), objects, ALONE).metrics
    assert {f"val_{name}": value for name, value in again.items()} == {
        name: value for name, value in metrics.items() if name.startswith("val_")
    }


def test_resume__detector_with_windows_stopped_twice__ends_bit_identical(objects, tmp_path):
    run = short_run(bases.OBJECTS, RICH)
    expected = weights_of(fit(run, tmp_path / "uninterrupted", objects))
    assert fit(run, tmp_path / "stopped", objects, StopAfter(1)).step == 1
    assert fit(run, tmp_path / "stopped", objects, StopAfter(4)).step == 5
    assert differing(expected, weights_of(fit(run, tmp_path / "stopped", objects))) == []


def test_two_processes__with_a_micro_batch_each__train_as_one_with_both(objects, tmp_path):
    # Rounding must not decide the direction of an update.
    still = {"optim": {"base_lr": 1e-3, "eps": 1e-3}}
    run = short_run(bases.OBJECTS, still)
    train_together(run.model_dump(mode="json"), objects, tmp_path, data=run.data)
    alone = fit(run, tmp_path / "alone", objects)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    for name, value in alone.method.state_dict().items():
        assert torch.equal(first[f"method.{name}"], second[f"method.{name}"])
        torch.testing.assert_close(first[f"method.{name}"], value, atol=2e-5, rtol=1e-4, msg=name)
