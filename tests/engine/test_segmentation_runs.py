"""Whole runs of segmentation: they learn, resume, are shared by processes, and are read back."""

import bases
import pytest
import torch
from every_key import NUM_SCENES, NUM_TRAIN, short_run
from test_text_runs import finished, measured
from tiny_maps import write_scenes
from tiny_runs import ALONE, StopAfter, differing, fit, weights_of
from unstable import train_together

from pipeline.engine.train import load_method

pytestmark = pytest.mark.slow
# Views that are not random.
CALM = {"data": {"scale": [1.0, 1.0], "max_class_share": 1.0, "photometric": False, "hflip": 0.0}}
# Everything random and stateful at once.
RICH = {
    "model": {"drop_path": 0.2},
    "optim": {"epochs": 3, "ema_decay": 0.5, "clip_norm": 1.0, "log_every": 2, "lr_curve": "poly"},
}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, NUM_TRAIN, NUM_SCENES)
    return folder


def test_train__bands_of_brightness__are_found_and_the_run_is_read_back(scenes, tmp_path):
    quick = {"method": {"width": 16, "aux_width": 8}, "optim": {"epochs": 30, "validate_every": 30, "micro_batch": 8}}
    run = short_run(bases.SCENES, CALM, quick)
    record, paths = finished(run, scenes, tmp_path)
    metrics = record["metrics"]
    assert metrics["val_miou"] > 60 and metrics["val_aacc"] > 80
    assert metrics["best_val_miou"] == metrics["val_miou"] and 0 < record["errors"]["val_miou"] < 10
    again = measured(run, load_method(run, paths, ALONE), scenes, ALONE).metrics
    assert {f"val_{name}": value for name, value in again.items()} == {
        name: value for name, value in metrics.items() if name in ("val_miou", "val_macc", "val_aacc")
    }


def test_resume__with_norms_and_averages_stopped_twice__ends_bit_identical(scenes, tmp_path):
    run = short_run(bases.SCENES, RICH)
    expected = weights_of(fit(run, tmp_path / "uninterrupted", scenes))
    assert any("running_var" in name for name in expected)
    assert fit(run, tmp_path / "stopped", scenes, StopAfter(1)).step == 1
    assert fit(run, tmp_path / "stopped", scenes, StopAfter(4)).step == 5
    assert differing(expected, weights_of(fit(run, tmp_path / "stopped", scenes))) == []


@pytest.mark.parametrize("average", ["all", "valid"])
def test_two_processes__with_half_of_each_batch__train_as_one_with_all_of_it(scenes, tmp_path, average):
    """Norms see the same images, and pixels without a label, of which one half may have more, weigh the same."""
    # Rounding must not decide the direction of an update.
    still = {"method": {"dropout": 0.0, "average": average}, "optim": {"base_lr": 1e-3, "eps": 1e-3}}
    run = short_run(bases.SCENES, still)
    train_together(run.model_dump(mode="json"), scenes, tmp_path, data=run.data)
    alone = fit(short_run(bases.SCENES, still, {"optim": {"micro_batch": 8}}), tmp_path / "alone", scenes)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    for name, value in alone.method.state_dict().items():
        assert torch.equal(first[f"method.{name}"], second[f"method.{name}"])
        torch.testing.assert_close(first[f"method.{name}"], value, atol=2e-5, rtol=1e-4, msg=name)
