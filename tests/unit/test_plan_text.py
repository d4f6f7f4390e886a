"""The plan in words: every number of it against arithmetic on a few runs that are made up."""

import os
import time
from types import SimpleNamespace

import pytest
from result_files import SITE, finish

from pipeline.evals.needs import Needs
from pipeline.freshness.outputs import data_file
from pipeline.freshness.remake import Freshness
from pipeline.launch.resources import Shape
from pipeline.plan import costs, device, text
from pipeline.plan.estimate import RunEstimate, images_left, most_at_once
from pipeline.plan.work import Work
from pipeline.site import Site, Slurm
from pipeline.study.resolve import graph as graphs
from pipeline.study.resolve.graph_configs import data_of


def run_of(name, init=None, hours=1.0, nodes=1, study="mjp", source="a test") -> RunEstimate:
    """A run on nodes of 8 processes each."""
    cost = {"gflop_per_image": 1.0, "weights_bytes": 1e9, "checkpoints_bytes": 6e9}
    return RunEstimate(name, study, init, Shape(nodes, 8), 8 * nodes * hours, source, cost)


# Two start from the first; the last needs no other and takes two nodes.
RUNS = [run_of("a", hours=2), run_of("b", "a", hours=3), run_of("c", "a"), run_of("d", hours=4, nodes=2, study="mp3")]


def in_one_line(said: str) -> str:
    return said.replace("\n", " ")


def test_queue__of_a_chain_and_others__names_the_numbers_of_nodes_that_help():
    """Fourteen node hours: four nodes take no longer than the chain, so eight would not help."""
    assert in_one_line(text._queue(RUNS, "GPU")) == (
        "At most 3 training jobs at once, each on up to 2 x 8 processes (nodes x GPUs). If nodes are free all the "
        "time: 14 h on 1 node, 7.0 h on 2 nodes, 5.0 h on 4 nodes. The longest chain of runs, one starting from "
        "the other, takes 5.0 h on any number."
    )


def test_most_at_once__of_two_chains__is_one_run_of_each():
    assert most_at_once([run_of("a"), run_of("b", "a"), run_of("c"), run_of("d", "c")]) == 2


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        (4, "1 run at a time: 10 h."),
        (8, "2 runs at a time: 5.0 h."),
        (64, "16 runs at a time: 5.0 h."),  # the chain
        (1, "1 run at a time: 10 h."),
    ],
)
def test_here__on_cores__as_many_runs_at_once_as_have_threads_of_their_own(monkeypatch, cores, said):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert text._here(RUNS, Site(threads=2, processes=2), "CPU") == f"On this machine, {said}"


@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        ([0], "1 GPU: 112 h."),
        ([0, 1, 2, 3, 4, 5, 6, 7], "8 GPUs: 14 h."),
        ([*range(99)], "99 GPUs: 5.0 h."),  # the chain
    ],
    ids=lambda value: str(value)[:3],
)
def test_here__on_gpus__divides_the_hours_of_gpus_by_their_number(monkeypatch, gpus, said):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert text._here(RUNS, Site(gpus=gpus, runs_per_gpu=2), "GPU") == f"On this machine, {said}"


def test_rows__of_two_studies__count_and_add_up_their_own_and_the_longest_is_the_longest_on_the_clock():
    work = Work({run.name: run.study for run in RUNS}, {"e": "mjp", "f": "mp3", "g": "mp3"}, {("mjp.t1", "all"): "mjp"})
    long, wide = run_of("long", hours=5, study="mp3"), RUNS[3]
    assert wide.process_hours > long.process_hours
    rows = text._rows(work, [*RUNS, long], "GPU")
    assert rows == [
        ("mjp", "3", "1", "1", "48", "21.0 GB", "3.0 h on 8 GPUs: b"),
        ("mp3", "1", "2", "0", "104", "14.0 GB", "5.0 h on 8 GPUs: long"),
        ("total", "4", "3", "1", "152", "35.0 GB", "5.0 h on 8 GPUs: long"),
    ]
    assert text._rows(Work(), [], "GPU") == [("total", "0", "0", "0", "0.00", "0.0 MB", "-")]


def test_heading__of_work_left_and_done__says_each_number_in_its_place():
    def work(runs, evaluations, tables) -> Work:
        names = [dict.fromkeys(map(str, range(count)), "mjp") for count in (runs, evaluations)]
        return Work(*names, {(str(number), "all"): "mjp" for number in range(tables)})

    left = work(3, 2, 1)
    left.finished = work(6, 5, 4)
    said = in_one_line(text._heading(SimpleNamespace(scale="demo"), left, ["mjp", "mp3"]))
    assert said == (
        "Scale demo, mjp mp3: 3 runs to train, 2 evaluations, 1 tables. "
        "Finished before: 6 runs, 5 evaluations, 4 tables."
    )


def test_storage__has_weights_and_checkpoints_each_in_its_place():
    said = in_one_line(text._storage(SimpleNamespace(scale="tiny"), RUNS))
    assert said.startswith(
        "Storage: 4.0 GB of weights, which stay, and up to 24.0 GB of checkpoints in results/tiny/state"
    )


SLURM, GPU, CPU = (Site(slurm=Slurm(partition="p")), Site(device="cuda"), Site(device="cpu"))


@pytest.mark.parametrize(
    ("site", "text_of_jobs"),
    [
        (
            SLURM,
            "3, of which 2 ask for a GPU, for up to 5.0 h together. These are time limits. The longest asks for "
            "9.0 h: c (2 evaluations, one after the other).",
        ),
        (GPU, "3, of which 2 use a GPU. Their time is not estimated."),
        (CPU, "3. Their time is not estimated."),
    ],
)
def test_evaluations__with_gpus_and_without__have_limits_on_a_cluster_only(site, text_of_jobs):
    needs = {"a": Needs(gpu=True, hours=2), "b": Needs(gpu=True, hours=3), "c": Needs(gpu=False, hours=9)}
    jobs = {name: SimpleNamespace(needs=need, evaluations=["x", "y"]) for name, need in needs.items()}
    work = Work(evaluations=dict.fromkeys(jobs, "mjp"))
    said = in_one_line(text._evaluations(SimpleNamespace(eval_jobs=jobs), work, site))
    assert said == f"Evaluation jobs: {text_of_jobs}"


def test_sources__of_several_runs__are_counted_and_the_most_frequent_comes_first():
    runs = [run_of("a", source="one"), run_of("b", source="two"), run_of("c", source="two")]
    assert "GPU hours: 2 runs from two; 1 runs from one. Rates" in in_one_line(text._sources(runs, "GPU"))


@pytest.mark.parametrize(
    ("value", "said"), [(12345.6, "12,346"), (10, "10"), (9.94, "9.9"), (0.1, "0.1"), (0.04, "0.04"), (1.26, "1.3")]
)
def test_hours__short_or_long__have_the_digits_that_they_need(value, said):
    assert text.hours(value) == said


# On the graph


@pytest.fixture
def graph(tmp_path, monkeypatch) -> graphs.Graph:
    """Scale demo, of which nothing has run."""
    found = graphs.load_graph("demo")
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path)
    return found


def test_sets__of_runs_and_of_evaluations__are_named_until_they_have_manifests(graph):
    trained = {run.data for run in graph.runs.values()}
    job = next(name for name, job in graph.eval_jobs.items() if {*job.data} - trained)
    name = next(iter(graph.runs))
    work = Work({name: "mjp"}, {job: "mjp"})
    wanted = {graph.runs[name].data, *graph.eval_jobs[job].data}
    folders = {data_of(graph, each).folder_name for each in wanted}
    said = in_one_line(text._sets(Freshness(graph, SITE), work))
    assert len(folders) > 1 and all(folder in said for folder in folders), said
    finish(graph, map(data_file, wanted))
    assert text._sets(Freshness(graph, SITE), work) == ""


def test_images_left__of_a_recipe_in_iterations__are_those(graph):
    name, run = next(iter(graph.runs.items()))
    run.config["optim"] |= {"iterations": 7, "global_batch": 30}
    assert images_left(graph, name) == 7 * 30


@pytest.mark.slow
def test_costs__of_another_run_asked_for_later__are_added_to_the_first(graph, monkeypatch):
    counted = []

    def count(configs):
        counted.extend(configs)
        return {key: {"gflop_per_image": 1.0} for key in configs}

    monkeypatch.setattr(costs, "_count", count)
    different = {costs._key(run.config): name for name, run in graph.runs.items()}
    first, second = [*different.values()][:2]
    for name in (first, second, first, second):
        costs.costs_of(graph, [name])
    assert len(counted) == 2


@pytest.mark.slow
def test_matmul__on_fewer_threads__is_in_proportion_to_what_all_of_them_reach(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    measure = device.matmul_gflop_per_s.__wrapped__
    # A product of 768 x 768 matrices has 768 ** 3 multiplications and as many additions; here in one second.
    assert measure() == pytest.approx(0.906, rel=1e-3) and measure(1) == pytest.approx(0.906 / 4, rel=1e-3)
