"""Training curves: what is read, what is thinned, and which runs share their axes."""

import json
from pathlib import Path

import numpy as np
import pytest
from report_content import make_runs, write_metrics

from pipeline.core.errors import DataError
from pipeline.report.figures import curves


def logged(runs) -> list[curves.Logged]:
    return [curves.Logged(run["name"], run["label"], Path(run["metrics_file"])) for run in runs]


def test_curves__damaged_line__names_file_and_line(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "epoch": 0.1, "loss": 2.0}\n{"step": 2, "ep\n{"step": 3, "epoch": 0.3, "loss": 1.0}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: .*expected one JSON object"):
        curves.read_series(file)


def test_curves__line_still_being_written__is_left_out(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "epoch": 0.1, "loss": 2.0}\n{"step": 2, "ep')
    assert curves.read_series(file)["loss"][1].tolist() == [2.0]


def test_curves__long_run__keeps_its_last_value(tmp_path):
    file = tmp_path / "metrics.jsonl"
    write_metrics(file, 0, steps=5000)
    epochs, values = curves.read_series(file)["loss"]
    last = json.loads(file.read_text().splitlines()[-2])
    assert len(epochs) == curves.MAX_POINTS
    assert (epochs[-1], values[-1]) == (last["epoch"], last["loss"])


def test_curves__long_run__every_point_is_the_mean_of_its_neighbours():
    steps = np.arange(1001.0)
    epochs, values = curves.thin(np.stack([steps / 10, steps % 2], axis=1))  # 0, 1, 0, 1, ...
    assert np.abs(values[:-1] - 0.5).max() < 0.1
    assert np.abs(np.diff(epochs[:-1]) - 100 / 119).max() < 0.1


def test_curves__band__is_the_range_over_the_runs_that_reach_an_epoch():
    short = np.array([0.0, 1.0]), np.array([5.0, 6.0])
    long = np.array([0.0, 2.0]), np.array([1.0, 3.0])
    epochs, lowest, highest = curves.band([short, long])
    both = epochs <= 1
    assert epochs[-1] == 2 and both.any() and not both.all()
    np.testing.assert_allclose(lowest, 1 + epochs)
    np.testing.assert_allclose(highest, np.where(both, 5 + epochs, 1 + epochs))


@pytest.mark.slow
def test_curves__loss_that_left_the_finite_numbers__is_drawn_with_a_gap(tmp_path):
    runs = make_runs(tmp_path)[:2]
    with open(runs[0]["metrics_file"], "a") as file:
        file.write('{"step": 241, "epoch": 6.1, "loss": NaN}\n')
    drawn = curves.draw(logged(runs), "mjp")
    assert all("<path" in curve.svg for curve in drawn)


def write_pretraining(path, scale=1.0):
    lines = [{"step": e, "epoch": e, "loss": 5.0 * scale / e, "val_position_top1": 9.0 * e} for e in (1, 2, 3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.slow
def test_curves__pretraining__shows_loss_and_position_accuracy(tmp_path):
    runs = make_runs(tmp_path)[:2]
    write_pretraining(tmp_path / "pretraining.jsonl")
    runs[1]["metrics_file"] = str(tmp_path / "pretraining.jsonl")

    tuned, pretrained = curves.draw(logged(runs), "mjp")

    assert list(tuned.last) == ["loss", "validation top-1"]
    assert pretrained.last == {"loss": pytest.approx(5 / 3), "validation position top-1": 27.0}
    assert "validation position top-1" in pretrained.svg


def test_curves__run_with_three_metrics__shows_two(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "epoch": 1, "loss": 2.0, "val_top1": 50.0, "val_position_top1": 9.0}\n')

    assert list(curves.read_series(file)) == ["loss", "val_top1"]


@pytest.mark.slow
def test_curves__runs_of_one_kind__share_axes_that_the_other_kind_does_not_change(tmp_path):
    runs = make_runs(tmp_path)[:3]
    write_pretraining(tmp_path / "pretraining.jsonl")
    runs[2]["metrics_file"] = str(tmp_path / "pretraining.jsonl")
    before = [curve.svg for curve in curves.draw(logged(runs), "mjp")]

    write_pretraining(tmp_path / "pretraining.jsonl", scale=50)
    after = [curve.svg for curve in curves.draw(logged(runs), "mjp")]
    write_metrics(tmp_path / "other.jsonl", 40)
    runs[1]["metrics_file"] = str(tmp_path / "other.jsonl")
    last = [curve.svg for curve in curves.draw(logged(runs), "mjp")]

    assert before[:2] == after[:2] and before[2] != after[2]
    assert last[0] != after[0] and last[2] == after[2]
