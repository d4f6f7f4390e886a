"""What a plan counts, and what it rests on: work left, operations, bytes, speeds that were measured."""

import copy
import functools
import json

import pytest
import torch
from result_files import SITE
from result_files import finish as finish_files

from pipeline.core.config import CONFIGS, Layers, merge, read_yaml
from pipeline.engine.loop import build_method
from pipeline.engine.optim import build_optimizer
from pipeline.engine.run import parse_run
from pipeline.freshness.outputs import run_file
from pipeline.freshness.remake import Freshness
from pipeline.launch.resources import Shape
from pipeline.methods.base import Batch
from pipeline.plan import costs, text
from pipeline.plan.costs import costs_of
from pipeline.plan.estimate import RunEstimate, chain_hours, estimate, hours_on, images_left, most_at_once
from pipeline.plan.operations import count_operations, step_cost
from pipeline.plan.rough import rough
from pipeline.plan.speed import Case, Speeds, nearest_case
from pipeline.plan.work import pending_work
from pipeline.results import RunFolder
from pipeline.site import Site, Slurm
from pipeline.study.resolve import graph as graphs


@pytest.fixture
def graph(tmp_path, monkeypatch) -> graphs.Graph:
    """Scale demo, of which nothing has run."""
    found = graphs.load_graph("demo")
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path)
    for name in ("OWN_BENCHMARK", "OWN_LOOPS", "H200_LOOPS"):  # none, whatever was measured here
        monkeypatch.setattr(f"pipeline.plan.speed.{name}", tmp_path / name)
    monkeypatch.setattr(costs, "_count_one", lambda config: dict(count_once(json.dumps(config))))
    return found


@functools.cache
def count_once(config: str, count_one=costs._count_one) -> costs.Cost:
    """The cost of a step, by its whole config as JSON: many tests ask for that of the same few runs."""
    return count_one(json.loads(config))


GPU, CPU = Site(device="cuda"), Site(device="cpu")


def put(path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def finish(graph, name, images_per_s=100.0, processes=1, device="a GPU") -> RunFolder:
    """The files of a finished run, as far as a plan reads them."""
    paths = graph.results.run(name)
    put(paths.done, json.dumps({"provenance": {"processes": processes, "device": device}}))
    lines = [{"step": step, "images_per_s": images_per_s if step else 1.0} for step in range(5)]
    put(paths.timing, "".join(f"{json.dumps(line)}\n" for line in lines))
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mjp", "mp3", "droppos", "mae", "droppos_swin", "supervised-resnet"])
def test_step_cost__counted_without_numbers__is_that_of_real_tensors(graph, name):
    config = next(run.config for key, run in graph.runs.items() if key.startswith(name))
    depth = {"model": {"depth": 4}} if config["model"]["arch"].startswith("vit") else {}
    run = parse_run(Layers(("a test", merge(config, depth, {"optim": {"ema_decay": None}}))))
    method, data = build_method(run).train(), run.data
    images = torch.rand(2, data.channels, data.image_size, data.image_size)
    targets = torch.eye(data.num_classes)[:2]
    draw = method.draw(Batch(images, targets, torch.Generator()), 0.5)
    optimizer = build_optimizer(method, run.optim)
    cost = step_cost(run)
    assert cost["gflop_per_image"] == pytest.approx(count_operations(method, images, targets, draw) / 2e9)
    for parameter in method.parameters():  # also those that this draw left alone
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    moments = sum(v.numel() for state in optimizer.state.values() for v in state.values() if v.ndim)
    weights = sum(value.numel() for value in method.state_dict().values())
    assert (cost["weights_bytes"], cost["checkpoints_bytes"]) == (4 * weights, 2 * 4 * (weights + moments))


@pytest.mark.slow
def test_costs__asked_for_again__come_from_the_file_until_the_code_changes(graph, monkeypatch):
    name = next(name for name in graph.runs if name.startswith("mp3"))
    first, path = costs_of(graph, [name]), graph.results.folder / "costs.json"
    kept = json.loads(path.read_text())
    (key,) = kept["costs"]
    kept["costs"][key]["gflop_per_image"] = 7.0
    put(path, json.dumps(kept))
    assert costs_of(graph, [name])[name]["gflop_per_image"] == 7.0
    monkeypatch.setattr("pipeline.plan.costs._code", lambda: "other code")
    assert costs_of(graph, [name]) == first


@pytest.mark.slow
def test_costs__results_that_cannot_be_written__are_counted_all_the_same(graph, caplog):
    folder = graph.results.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    assert not folder.exists()
    folder.write_text("a file is in the way")
    name = next(name for name in graph.runs if name.startswith("mp3"))
    assert costs_of(graph, [name])[name]["gflop_per_image"] > 0
    assert "the counted operations are not kept for the next command: could not write" in caplog.text


@pytest.mark.slow
def test_speed__of_a_run_like_one_that_finished_here__is_scaled_by_operations(graph):
    alike = [name for name in graph.runs if name.startswith("mp3-vit_demo-")]
    ratios = {name: graph.runs[name].config["method"]["mask_ratio"] for name in alike}
    most, least = max(ratios, key=ratios.get), min(ratios, key=ratios.get)
    finish(graph, most, images_per_s=100.0, processes=2)
    speeds = Speeds(graph, [least], GPU)
    assert speeds.costs[least]["gflop_per_image"] > speeds.costs[most]["gflop_per_image"]
    rate, source = speeds.of(least)
    share = speeds.costs[most]["gflop_per_image"] / speeds.costs[least]["gflop_per_image"]
    assert rate == pytest.approx(100 / 2 * share) and source == "runs that finished here (a GPU)"


@pytest.mark.slow
def test_speed__of_a_benchmarked_step__is_the_one_in_the_file(graph):
    name = next(name for name in graph.runs if name.startswith("supervised-vit_demo-"))
    model = read_yaml(CONFIGS / "model" / "vit_b.yaml")["model"]
    config = graph.runs[name].config
    config["model"], config["data"] = model, {**config["data"], "image_size": 224, "channels": 3, "num_classes": 1000}
    config["data"] |= {"mean": [0.5] * 3, "std": [0.5] * 3}
    rate, source = Speeds(graph, [name], GPU).of(name)
    # The counter knows what flash attention computes twice on a GPU, which is not in the count here.
    assert (
        rate == pytest.approx(3912, rel=0.01) and source == "the bare step on an NVIDIA H200, estimated by operations"
    )


CASES = [
    Case("supervised", "vit_base_patch16_224", 100, 4),
    Case("supervised", "vit_base_patch16_224", 30, 3),
    Case("mae", "vit_base_patch16_224", 60, 2),
    Case("supervised", "resnet50", 25, 1),
    Case("mjp", "resnet50", 25, 0),
]


@pytest.mark.parametrize(
    ("method", "arch", "gflop", "at"),
    [
        ("mae", "vit_base_patch16_224", 60, 2),
        ("mae", "vit_large_patch16_224", 130, 2),
        ("mae", "vit_base_patch16_224", 10, 1),
        ("droppos", "vit_base_patch16_224", 28, 1),
        ("supervised", "resnet101", 100, 3),
        ("mjp", "resnet50", 25, 4),
    ],
)
def test_nearest_case__by_method_family_and_size(method, arch, gflop, at):
    assert nearest_case(CASES, method, arch, gflop) is CASES[at]


def run_of(name, init=None, hours=1.0, nodes=1) -> RunEstimate:
    cost = {"gflop_per_image": 1.0, "weights_bytes": 1e9, "checkpoints_bytes": 6e9}
    return RunEstimate(name, "study", init, Shape(nodes, 8), 8 * nodes * hours, "a test", cost)


def test_schedule__of_a_chain_and_others__is_bound_by_work_and_by_the_chain():
    runs = [run_of("a", hours=2), run_of("b", "a", hours=3), run_of("c", "a", hours=1), run_of("d", hours=4, nodes=2)]
    assert chain_hours(runs) == 5 and most_at_once(runs) == 3
    assert [hours_on(count, runs) for count in (1, 2, 100)] == [14, 7, 5]


@pytest.mark.slow
def test_estimate__run_that_was_stopped_half_way__counts_what_is_left(graph):
    name = next(name for name in graph.runs if name.startswith("mp3"))
    paths = finish(graph, name, images_per_s=100.0)
    paths.done.rename(paths.done.with_name("elsewhere"))
    config = graph.runs[name].config
    steps = config["data"]["num_train"] // config["optim"]["global_batch"] * config["optim"]["epochs"]
    (whole,) = estimate(graph, GPU, pending_work(Freshness(graph, SITE), [name]))
    put(paths.state / f"step-{steps // 4:09d}-0123456789abcdef.pt", "")
    (rest,) = estimate(graph, GPU, pending_work(Freshness(graph, SITE), [name]))
    assert rest.process_hours == pytest.approx(0.75 * whole.process_hours, rel=0.01)


@pytest.mark.slow
def test_plan__of_a_run_and_its_start__says_jobs_hours_storage_and_nodes(graph):
    name, run = next((name, run) for name, run in graph.runs.items() if run.init)
    run.config["optim"] |= {"global_batch": 40, "micro_batch": 10}
    said = text.plan(Freshness(graph, Site(processes=4, slurm=Slurm())), [name])
    assert f"Scale demo, {name}: 2 runs to train" in said.replace("\n", " ")
    assert "Data sets to verify first: fashion_mnist." in said.replace("\n", " ")
    source = "the bare step on an NVIDIA H200, estimated by operations, with at most 100 passes"
    assert f"GPU hours: 2 runs from {source}" in said.replace("\n", " ")
    assert "At most 1 training jobs at once, each on up to 1 x 4 processes" in said
    lines = said.splitlines()
    header = next(line for line in lines if line.startswith("study"))
    total = next(line for line in lines if line.startswith("total"))
    assert total[: header.index("runs") + 4].split() == ["total", "2"]


@pytest.mark.slow
def test_plan__where_all_is_finished__says_so(graph):
    name = next(name for name, run in graph.runs.items() if not run.init)
    finish_files(graph, [run_file(name)])
    said = text.plan(Freshness(graph, SITE), [name])
    assert "0 runs to train" in said and "Finished before: 1 runs" in said.replace("\n", " ")


@pytest.mark.slow
def test_plan__site_without_gpus__has_no_word_of_them_and_hours_of_a_cpu(graph):
    name = next(name for name, run in graph.runs.items() if name.startswith("mp3-vit_demo-"))
    for site in (CPU, Site(slurm=Slurm(gres=None))):
        said = text.plan(Freshness(graph, site), [name]).replace("\n", " ")
        assert "CPU hours of one process" in said and "GPU" not in said
    finish(graph, name, images_per_s=100.0, device="cpu")
    other = next(other for other in graph.runs if other.startswith("mp3-vit_demo-") and other != name)
    assert "from runs that finished here (cpu)" in text.plan(Freshness(graph, CPU), [other]).replace("\n", " ")


@pytest.mark.slow
def test_speed__runs_that_finished_on_another_kind_of_device__do_not_count(graph):
    name = next(name for name in graph.runs if name.startswith("mp3-vit_demo-"))
    finish(graph, name, device="a GPU")
    assert Speeds(graph, [name], GPU).of(name).source == "runs that finished here (a GPU)"
    source = Speeds(graph, [name], CPU).of(name).source
    assert source.startswith("the bare step on an NVIDIA H200, scaled to the matrix products of this CPU")


@pytest.mark.slow
def test_speed__of_a_small_model_on_a_gpu__is_bound_by_the_passes_that_a_host_can_start(graph):
    name = next(name for name in graph.runs if name.startswith("supervised-vit_demo-"))
    graph.runs[name].config["optim"] |= {"global_batch": 40, "micro_batch": 10}
    rate, source = Speeds(graph, [name], GPU).of(name)
    assert rate == pytest.approx(10 * 100)
    assert source.endswith("estimated by operations, with at most 100 passes a second, as many as a host starts")


@pytest.mark.slow
def test_speed__on_a_cpu__is_in_proportion_to_its_matrix_products(graph, monkeypatch):
    name = next(name for name in graph.runs if name.startswith("supervised-vit_demo-"))
    rates = []
    for gflop_per_s in (10.0, 30.0):
        monkeypatch.setattr("pipeline.plan.speed.matmul_gflop_per_s", lambda threads, rate=gflop_per_s: rate)
        rates.append(Speeds(graph, [name], CPU).of(name).images_per_s)
    monkeypatch.setattr("pipeline.plan.loops.LEAST_PASS_S", 1e-9)
    on_gpu = Speeds(graph, [name], GPU).of(name).images_per_s
    assert rates[1] == pytest.approx(3 * rates[0])
    assert rates[0] == pytest.approx(on_gpu * 10 / 801_000, rel=0.01)  # an H200 makes 801 TFLOP/s


@pytest.mark.slow
def test_rough_bound__of_every_method__is_below_the_operations_counted_and_has_the_same_bytes(graph):
    first = {run.method: name for name, run in reversed(graph.runs.items())}
    for name in first.values():
        cost, bound = costs_of(graph, [name])[name], rough(graph, [name])
        images = bound.least_gflop / images_left(graph, name)
        assert 0 < images <= cost["gflop_per_image"], name
        assert bound.num_bytes == cost["weights_bytes"] + cost["checkpoints_bytes"]


# The numbers, each against its own arithmetic


def two_alike(known):
    """Two runs that differ in their seed alone."""
    name = next(name for name in known.runs if name.startswith("mp3-vit_demo-"))
    known.runs["mp3-another"] = copy.deepcopy(known.runs[name])
    return name, "mp3-another"


@pytest.mark.slow
def test_hours__of_a_run_like_one_that_finished_here__are_its_images_over_the_rate(graph):
    done, left = two_alike(graph)
    finish(graph, done, images_per_s=100.0)
    config = graph.runs[left].config
    batch = config["optim"]["global_batch"]
    config["optim"]["micro_batch"] = batch // 2
    (found,) = estimate(graph, Site(device="cuda", processes=2), pending_work(Freshness(graph, SITE), [left]))
    num_images = config["data"]["num_train"] // batch * batch * config["optim"]["epochs"]
    assert found.process_hours == pytest.approx(num_images / 100 / 3600)
    assert found.hours == pytest.approx(found.process_hours / 2)


@pytest.mark.slow
def test_hours__of_two_nodes__are_those_of_all_their_processes(graph):
    done, left = two_alike(graph)
    finish(graph, done, images_per_s=100.0)
    optim = graph.runs[left].config["optim"]
    optim["micro_batch"] = optim["global_batch"] // 10
    (found,) = estimate(
        graph, Site(device="cuda", processes=5, slurm=Slurm(nodes=2)), pending_work(Freshness(graph, SITE), [left])
    )
    assert found.hours == pytest.approx(found.process_hours / 10)


@pytest.mark.slow
def test_plan__total__is_the_sum_of_the_hours_of_all_gpus(graph):
    done, left = two_alike(graph)
    finish(graph, done, images_per_s=0.1)
    optim = graph.runs[left].config["optim"]
    optim["micro_batch"] = optim["global_batch"] // 2
    site = Site(device="cuda", processes=2)
    (found,) = estimate(graph, site, pending_work(Freshness(graph, SITE), [left]))
    (total,) = [line for line in text.plan(Freshness(graph, site), [left]).splitlines() if line.startswith("total")]
    assert text.hours(found.process_hours) in total.split()
    assert text.hours(found.process_hours) != text.hours(found.hours)


@pytest.mark.slow
def test_speed__of_a_long_run__is_that_of_its_last_lines(graph):
    done, left = two_alike(graph)
    paths = finish(graph, done)
    rates = [1.0] * 500 + [60.0] * 500  # more than is read, so that the first line that is read is cut
    put(
        paths.timing,
        "".join(json.dumps({"step": step, "images_per_s": rate}) + "\n" for step, rate in enumerate(rates)),
    )
    assert Speeds(graph, [left], GPU).of(left).images_per_s == pytest.approx(60)


@pytest.mark.slow
@pytest.mark.parametrize("copy", [{"ema_decay": 0.9}, {"keep": "best"}], ids=str)
def test_bytes__of_a_run_with_a_moving_average_or_best_weights__have_them_in_every_checkpoint(graph, copy):
    config = next(run.config for name, run in graph.runs.items() if name.startswith("supervised-vit_demo"))
    alone = {"ema_decay": None, "keep": "last"}
    plain, more = (
        step_cost(parse_run(Layers(("a test", merge(config, {"optim": optim}))))) for optim in (alone, alone | copy)
    )
    assert more["weights_bytes"] == plain["weights_bytes"]
    assert more["checkpoints_bytes"] == plain["checkpoints_bytes"] + 2 * plain["weights_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"data": {"image_size": 56}},
        {"model": {"depth": 7}},
        {"method": {"mask_ratio": 0.1}},
        {"optim": {"ema_decay": 0.5}},
    ],
    ids=str,
)
def test_costs__of_runs_that_differ_in_their_step__are_counted_apart(graph, change):
    first, second = two_alike(graph)
    graph.runs[second].config = merge(graph.runs[second].config, change)
    found = costs_of(graph, [first, second])
    assert found[first] != found[second]


@pytest.mark.parametrize(
    ("num_bytes", "said"),
    [(1e6, "1.0 MB"), (999e6, "999.0 MB"), (1e9, "1.0 GB"), (2.5e9, "2.5 GB"), (1.5e12, "1.5 TB")],
)
def test_size__in_decimal_units__as_disks_are_sold(num_bytes, said):
    assert text.size(num_bytes) == said
