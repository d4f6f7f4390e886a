"""Rates of measured loops: which one a plan takes, how it goes between them, and what it says of it."""

import json

import pytest

from pipeline.plan import loops, speed
from pipeline.plan.loops import Loop, Loops, Pass
from pipeline.site import Site

VIT_S, VIT_B, SWIN = "vit_small_patch16_224", "vit_base_patch16_224", "swin_tiny_patch4_window7_224"


def asked(method="mae", arch=VIT_S, gflop=2.0, batch=128, is_recorded=True) -> Pass:
    return Pass(method, arch, gflop, batch, is_recorded)


# Passes of 256 and of 1024 GFLOP, of 8 and of 20 ms.
SMALL = Loop(asked(batch=128), 16_000.0, 20_000.0)
LARGE = Loop(asked(batch=512), 25_600.0, 25_600.0)
MEASURED = Loops("a GPU", [LARGE, SMALL])


def test_measured__same_run__has_its_rate_and_a_larger_head_a_little_less():
    assert MEASURED.measured(asked(batch=128)) == 16_000
    assert MEASURED.measured(asked(batch=512, gflop=2.04)) == pytest.approx(25_600 / 1.02)


@pytest.mark.parametrize(
    "change", [{"batch": 256}, {"gflop": 2.2}, {"method": "mp3"}, {"arch": VIT_B}, {"is_recorded": False}], ids=str
)
def test_measured__another_run__has_none(change):
    assert MEASURED.measured(asked(**change)) is None


@pytest.mark.parametrize(
    ("batch", "gflop", "pass_s"),
    [
        (320, 2.0, 0.014),  # half way between both in operations
        (160, 4.0, 0.014),  # the same operations
        (1024, 2.0, 0.040),  # twice those of the last
        (64, 2.0, 0.008),  # half of the first; but no pass was shorter than that
    ],
)
def test_interpolated__between_on_the_line_and_beyond_in_proportion(batch, gflop, pass_s):
    assert MEASURED.interpolated(asked(batch=batch, gflop=gflop)) == pytest.approx(batch / pass_s)


def test_interpolated__without_a_loop_of_this_kind__is_none():
    assert MEASURED.interpolated(asked(arch=VIT_B)) is None
    assert MEASURED.interpolated(asked(is_recorded=False)) is None


def test_share_of_bare__of_the_same_method_first_and_never_above_one():
    other = Loop(asked("droppos"), 5_000.0, 10_000.0)
    faster = Loop(asked("mp3"), 10_100.0, 10_000.0)
    found = Loops("a GPU", [SMALL, other, faster])
    assert [found.share_of_bare(asked(name)) for name in ("mae", "droppos", "mp3", "mjp")] == [0.8, 0.5, 1.0, 0.8]
    assert found.share_of_bare(asked(is_recorded=False)) is None


def test_least_pass__is_the_shortest_measured_with_graphs_or_without_and_never_above_the_default():
    assert MEASURED.least_pass_s(is_recorded=True) == pytest.approx(0.008)
    assert MEASURED.least_pass_s(is_recorded=False) == loops.LEAST_PASS_S == 0.01
    assert Loops("a GPU", [LARGE]).least_pass_s(is_recorded=True) == 0.01


@pytest.mark.parametrize(
    ("keys", "nodes", "is_recorded"),
    [
        ({"compile": True}, 1, True),
        ({"compile": True}, 2, False),  # DDP sends during the backward pass
        ({}, 1, False),
        ({"graphs": "on"}, 2, True),
        ({"compile": True, "graphs": "off"}, 1, False),
    ],
)
def test_records_steps__follows_the_site(keys, nodes, is_recorded):
    assert speed.records_steps(Site(**keys), nodes) == is_recorded


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Puts loops where the project's own, or this site's, are looked for."""
    for name in ("OWN_BENCHMARK", "OWN_LOOPS", "H200_LOOPS"):
        monkeypatch.setattr(speed, name, tmp_path / name)

    def write(name, device, *found, precision="bf16"):
        keys = ("name", "model", "gflop_per_image", "batch", "recorded", "loop_images_per_s", "bare_images_per_s")
        report = {"device": device, "precision": precision}
        report["loops"] = [dict(zip(keys, values, strict=True)) for values in found]
        (tmp_path / name).write_text(json.dumps(report))
        loops.read_loops.cache_clear()

    yield write
    loops.read_loops.cache_clear()


MAE = ("mae", "deit_s_patch8", 2.0, 128, True, 16_000.0, 20_000.0)


def test_speed__of_loops_of_the_h200__says_whether_it_was_measured_or_estimated(written):
    written("H200_LOOPS", "NVIDIA H200", MAE)
    assert speed.speed_on_gpu(asked()) == (16_000, "the loop as measured on an NVIDIA H200")
    rate, source = speed.speed_on_gpu(asked(gflop=4.0))
    assert (rate, source) == (pytest.approx(8_000), "the loop on an NVIDIA H200, estimated by operations")


def test_speed__of_a_run_without_a_loop__is_the_share_of_its_bare_step_that_loops_reach(written):
    bare = speed.speed_on_gpu(asked("supervised", VIT_B, 105.9, 256))
    written("H200_LOOPS", "NVIDIA H200", MAE)
    found = speed.speed_on_gpu(asked("supervised", VIT_B, 105.9, 256))
    assert found.images_per_s == pytest.approx(0.8 * bare.images_per_s)
    assert found.source == f"{bare.source} and the 80 % of it that loops reach"


def test_speed__short_passes_measured_with_graphs__raise_the_bound_of_small_models_there_only(written):
    small = {"arch": SWIN, "gflop": 0.01, "batch": 10}
    assert speed.speed_on_gpu(asked(**small)).images_per_s == pytest.approx(10 / 0.01)
    written("H200_LOOPS", "NVIDIA H200", MAE)
    assert speed.speed_on_gpu(asked(**small)).images_per_s == pytest.approx(10 / 0.008)
    assert speed.speed_on_gpu(asked(**small, is_recorded=False)).images_per_s == pytest.approx(10 / 0.01)


def test_speed__loops_measured_here__come_first_and_those_of_a_cpu_never(written):
    written("H200_LOOPS", "NVIDIA H200", MAE)
    here = (*MAE[:5], 9_000.0, 9_000.0)
    written("OWN_LOOPS", "x86", here, precision="fp32")
    assert speed.speed_on_gpu(asked()).images_per_s == 16_000
    written("OWN_LOOPS", "NVIDIA A100", here)
    assert speed.speed_on_gpu(asked()) == (9_000, "the loop as measured on an NVIDIA A100")


def test_speed__own_benchmark_of_steps_on_another_gpu__is_not_mixed_with_loops_of_the_h200(written, tmp_path):
    written("H200_LOOPS", "NVIDIA H200", MAE)
    step = {"model": "deit_s", "method": "supervised", "gflop_per_image": 2.0, "images_per_s": 3_000.0}
    report = {"device": "NVIDIA A100", "precision": "bf16", "matmul_tflops": 250.0, "steps": [step]}
    (tmp_path / "OWN_BENCHMARK").write_text(json.dumps(report))
    speed._benchmark.cache_clear()
    found = speed.speed_on_gpu(asked())
    assert found == (pytest.approx(3_000), "the bare step on an NVIDIA A100, estimated by operations")
