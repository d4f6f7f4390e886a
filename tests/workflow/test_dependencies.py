"""What jobs depend on and ask for, read off the graph: the functions that Snakemake calls, without a workflow."""

from types import SimpleNamespace

import pytest
import yaml
from snakemake.exceptions import WorkflowError
from snakemake.io import is_flagged

from pipeline.core.config import CONFIGS
from pipeline.freshness.remake import Freshness
from pipeline.site import Site, Slurm
from pipeline.study.resolve.entries import Graph
from workflow.dependencies import Dependencies

MADE_WITH = "supervised-resnet"


def data_set(name: str, **fields: object) -> dict:
    return yaml.safe_load((CONFIGS / "data" / f"{name}.yaml").read_text())["data"] | fields


def run(init: str | None = None, trained: bool = True, file: str | None = None) -> dict:
    return {"config": {"init": file}, "label": "", "data": "fashion_mnist", "init": init, "trained": trained}


@pytest.fixture
def graph(tmp_path, monkeypatch) -> Graph:
    """A finetuned run, a weight file and their evaluations, on a set and on two that are made from it."""
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path / "results")
    runs = {"pretrained": run(), "finetuned": run("pretrained"), MADE_WITH: run()}
    runs["given"] = run(trained=False, file="file:given.pth")
    data = {name: data_set(name) for name in ("fashion_mnist", "fashion_mnist_c")}
    data["fashion_mnist_a"] = data_set("fashion_mnist_a", reference=MADE_WITH)
    both = {"runs": ["finetuned", "given"], "data": ["fashion_mnist", "fashion_mnist_a"]}
    jobs = {
        "both": {**both, "evaluations": ["classify-1"], "needs": {"gpu": True, "hours": 0.26}},
        "without": {"runs": [], "data": [], "evaluations": ["april-1"], "needs": {"gpu": False, "memory_gb": 7}},
    }
    entry = {"fragment": "", "file": "", "config": {}, "subjects": {}, "data": {}}
    evals = {"classify-1": {**entry, "job": "both"}, "april-1": {**entry, "job": "without", "site_files": ["lpips"]}}
    return Graph.model_validate(
        {
            "scale": "demo",
            "note": "",
            "comparable": False,
            "runs": runs,
            "data": data,
            "eval_jobs": jobs,
            "evals": evals,
        }
    )


def jobs_of(graph: Graph, forced: list[str] | None = None, **site: object) -> Dependencies:
    freshness = Freshness(graph, Site(**site))
    return Dependencies(
        lambda scale: {"demo": freshness}[scale], freshness.site, ([] if forced is None else forced).append
    )


def of(**wildcards: str) -> SimpleNamespace:
    return SimpleNamespace(scale="demo", **wildcards)


# Data


def test_prepare__set_that_lies_in_a_folder__waits_for_nothing(graph):
    assert jobs_of(graph).prepare_inputs(of(data="fashion_mnist")) == []


def test_prepare__set_that_is_made__waits_for_its_source_and_the_run_that_chooses(graph):
    source = "results/demo/data/fashion_mnist/manifest.json"
    assert jobs_of(graph).prepare_inputs(of(data="fashion_mnist_c")) == [source]
    chosen = f"results/demo/runs/{MADE_WITH}/train.json"
    assert jobs_of(graph).prepare_inputs(of(data="fashion_mnist_a")) == [source, chosen]


def test_prepare__made_set_that_the_site_has_as_somebody_made_it__waits_for_nothing(graph, tmp_path):
    data = {"fashion_mnist_a": tmp_path / "theirs"}
    assert jobs_of(graph, data=data).prepare_inputs(of(data="fashion_mnist_a")) != []
    (tmp_path / "theirs/Bag").mkdir(parents=True)
    assert jobs_of(graph, data=data).prepare_inputs(of(data="fashion_mnist_a")) == []


# What comes first


def test_priority__data_to_train_on_then_runs_that_others_start_from_then_the_rest(graph):
    jobs = jobs_of(graph)
    found = [jobs.prepare_priority(of(data=name)) for name in ("fashion_mnist", "fashion_mnist_c")]
    assert found == [30, 0]
    assert [jobs.train_priority(of(run=name)) for name in ("pretrained", "finetuned")] == [20, 10]


# Training and evaluations


def test_train__run_that_starts_from_another__waits_for_its_data_and_that_run(graph):
    data = "results/demo/data/fashion_mnist/manifest.json"
    assert jobs_of(graph).train_inputs(of(run="pretrained")) == [data]
    assert jobs_of(graph).train_inputs(of(run="finetuned")) == [data, "results/demo/runs/pretrained/train.json"]


def test_train__run_that_starts_from_a_file__has_it_as_an_input_where_it_exists(graph, tmp_path):
    graph.runs["finetuned"].config["init"], graph.runs["finetuned"].init = "file:start.pth", None
    jobs, data = jobs_of(graph, weights=str(tmp_path)), "results/demo/data/fashion_mnist/manifest.json"
    assert jobs.train_inputs(of(run="finetuned")) == [data]  # training itself says that the file is missing
    (tmp_path / "start.pth").touch()
    assert jobs.train_inputs(of(run="finetuned")) == [data, str(tmp_path / "start.pth")]


def test_inputs__of_what_is_stale__are_plain_and_it_is_forced_and_of_what_is_fresh_ancient(graph):
    forced: list[str] = []
    stale = jobs_of(graph, forced).train_inputs(of(run="pretrained"))
    assert forced == ["results/demo/runs/pretrained/train.json"] and not any(map(is_ancient, stale))
    jobs = jobs_of(graph, forced)
    jobs.freshness_of("demo").reasons["runs/pretrained/train.json"] = ""
    fresh = jobs.train_inputs(of(run="pretrained"))
    assert fresh == stale and all(map(is_ancient, fresh)) and len(forced) == 1


def is_ancient(file: str) -> bool:
    return is_flagged(file, "ancient")


def test_evaluate__weight_file__is_an_input_where_it_exists(graph, tmp_path):
    jobs, weights = jobs_of(graph, weights=str(tmp_path)), tmp_path / "given.pth"
    expected = [
        "results/demo/runs/finetuned/train.json",
        *(f"results/demo/data/{name}/manifest.json" for name in ("fashion_mnist", "fashion_mnist_a")),
    ]
    assert jobs.evaluate_inputs(of(job="both")) == expected  # the job itself says that the file is missing
    weights.touch()
    assert jobs.evaluate_inputs(of(job="both")) == [*expected, str(weights)]


def test_evaluate__file_that_the_site_names__is_an_input_where_it_exists(graph, tmp_path):
    file = tmp_path / "lpips.pth"
    assert jobs_of(graph, lpips=file).evaluate_inputs(of(job="without")) == []
    file.touch()
    assert jobs_of(graph, lpips=file).evaluate_inputs(of(job="without")) == [str(file)]
    assert jobs_of(graph).evaluate_inputs(of(job="without")) == []


def test_names__that_are_not_in_the_graph__are_one_message(graph):
    jobs = jobs_of(graph)
    with pytest.raises(WorkflowError, match="'finetund' is not among the runs at scale demo; did you mean"):
        jobs.train_inputs(of(run="finetund"))
    with pytest.raises(WorkflowError, match="'bth' is not among the evaluation jobs"):
        jobs.evaluate_inputs(of(job="bth"))
    with pytest.raises(WorkflowError, match="'fashion' is not among the data sets"):
        jobs.prepare_inputs(of(data="fashion"))


# GPUs of this machine


def test_gpus__of_jobs__are_as_many_as_a_run_divides_into_and_one_where_a_model_computes(graph, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, micro in {"pretrained": 10, "finetuned": 40}.items():
        graph.runs[name].config["optim"] = {"global_batch": 40, "micro_batch": micro}

    def asked(**site):
        jobs = jobs_of(graph, processes=8, threads=3, **site)
        runs = [
            (jobs.train_gpus(of(run=name)), jobs.train_threads(of(run=name))) for name in ("pretrained", "finetuned")
        ]
        sets = [jobs.prepare_gpus(of(data=name)) for name in ("fashion_mnist", "fashion_mnist_a")]
        return [*runs, *(jobs.evaluate_gpus(of(job=name)) for name in ("both", "without")), *sets]

    assert asked(gpus=[0, 1, 2, 3]) == [(4, 12), (1, 3), 1, 0, 0, 1]
    assert asked(gpus=[5, 7]) == [(2, 6), (1, 3), 1, 0, 0, 1]
    assert asked(device="cpu") == [(0, 12), (0, 3), 0, 0, 0, 0]
    assert asked(slurm=Slurm()) == [(0, 1), (0, 1), 0, 0, 0, 0]


# The queue


def test_evaluate__on_a_cluster__asks_for_what_its_evaluations_need(graph):
    slurm = Slurm(partition="gpu", cpu_partition="cpu", gres="gpu:a100", memory_gb=32)
    jobs = jobs_of(graph, slurm=slurm)

    def asked(job):
        ask = jobs.evaluate_gres, jobs.evaluate_partition, jobs.evaluate_memory, jobs.evaluate_minutes
        return [function(of(job=job)) for function in ask]

    assert asked("both") == ["gpu:a100:1", "gpu", 32000, 16]  # 15.6 minutes, rounded up
    assert asked("without") == ["", "cpu", 7000, 60]


def test_evaluate__cluster_without_gres_or_cpu_partition__goes_where_everything_goes(graph):
    jobs = jobs_of(graph, slurm=Slurm(partition="main", gres=None))
    assert jobs.evaluate_gres(of(job="both")) == ""
    assert jobs.evaluate_partition(of(job="without")) == jobs.cpu_partition == "main"
    assert jobs_of(graph, slurm=Slurm()).cpu_partition == ""


def test_queue__options_of_the_site__are_in_the_words_of_sbatch(graph):
    slurm = Slurm(partition="main", account="lab", memory_gb=3, options={"qos": "long", "nice": "5"})
    assert jobs_of(graph, slurm=slurm).queue == {
        "slurm_partition": "main",
        "slurm_account": "lab",
        "slurm_extra": "--qos=long --nice=5",
        "mem_mb": 3000,
    }
