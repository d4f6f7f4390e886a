"""Data sets that are made from others, in the graph: their parts, what they are made from and with, and their jobs."""

import pytest
from result_files import SITE

from pipeline.freshness.remake import Freshness
from pipeline.plan.work import needed_work
from pipeline.study.resolve.graph import build_graph

RUN = {"label": "a", "method": "supervised", "model": "vit_demo", "data": "imagenet1k"}
RESNET = {**RUN, "label": "ResNet", "model": "resnet_demo"}


def study(**runs) -> dict:
    columns = {
        "error": {"label": "error", "eval": "corruptions", "metric": "error"},
        "top1": {"label": "adversarial", "eval": "adversarial", "metric": "top1"},
    }
    table = {"label": "Table 1", "title": "T", "columns": columns, "rows": {"a": {"label": "a", "run": "a"}}}
    return {"runs": {"a": RUN, "resnet": RESNET, **runs}, "tables": {"t1": table}}


@pytest.fixture
def toy(project):
    project.only_study("toy", study(), {"toy.t1.a": {}})
    return project


def test_parts__of_a_set__are_sets_of_their_own_in_one_job(toy):
    graph = build_graph("demo")
    parts = [name for name in graph.data if name.startswith("fashion_mnist_c-")]
    assert len(parts) == 15 and "fashion_mnist_c" not in graph.data
    ((name, job),) = graph.eval_jobs.items()
    assert name.endswith("-robustness") and set(parts) < set(job.data) and len(job.evaluations) == 2
    (entry,) = [entry for entry in graph.evals.values() if entry.fragment == "corruptions"]
    assert entry.data["corrupted/fog"]["name"] == "fashion_mnist_c-fog"


def test_made_from__of_a_made_set__is_the_scales_set(toy):
    graph = build_graph("demo")
    assert {graph.data[name]["made_from"] for name in graph.data if "_c-" in name} == {"fashion_mnist"}


def test_reference__of_a_filtered_set__is_the_run_of_the_study_and_trained_before_its_evaluations(toy):
    graph = build_graph("demo")
    (resnet,) = [name for name, run in graph.runs.items() if run.label == "ResNet"]
    assert graph.data["fashion_mnist_a"]["reference"] == resnet
    assert resnet in needed_work(Freshness(graph, SITE), ["toy_table1"]).runs


def test_reference__of_a_set_that_the_site_has__is_not_planned(toy, monkeypatch):
    """As Snakemake does not train it."""
    graph = build_graph("demo")
    (resnet,) = [name for name, run in graph.runs.items() if run.label == "ResNet"]
    monkeypatch.setattr("pipeline.data.derived.filtered.FilteredImages.is_there", lambda self, folder: True)
    work = needed_work(Freshness(graph, SITE), ["toy_table1"])
    assert work.evaluations and resnet not in work.runs


def test_reference__study_without_that_run__is_refused_with_near_names(toy):
    content = study()
    content["runs"]["resnets"] = content["runs"].pop("resnet")
    toy.write("study/toy.yaml", {"title": "toy", **content})
    problems = [line for line in toy.problems() if "data.reference" in line]
    assert len(problems) == 1
    assert "no run 'resnet' in configs/study/toy.yaml, which uses the set; did you mean 'resnets'?" in problems[0]


def test_reference__two_studies_with_other_runs__are_refused(toy):
    other = study()
    other["runs"]["resnet"] = {**RESNET, "set": {"seed": 7}}
    toy.write("study/other.yaml", {"title": "other", "scales": ["demo"], **other})
    assert any("data 'fashion_mnist_a' differs from other runs in reference" in line for line in toy.problems())


@pytest.mark.slow
def test_name__of_an_evaluation__follows_the_parts_and_the_reference(toy):
    before = {entry.fragment: name for name, entry in build_graph("demo").evals.items()}
    toy.write("study/toy.yaml", {"title": "toy", **study(resnet={**RESNET, "set": {"seed": 7}})})
    after = {entry.fragment: name for name, entry in build_graph("demo").evals.items()}
    assert [key for key in before if before[key] != after[key]] == ["adversarial"]
    toy.edit("data/fashion_mnist_c.yaml", "per_class: 20", "per_class: 30")
    again = {entry.fragment: name for name, entry in build_graph("demo").evals.items()}
    assert [key for key in after if after[key] != again[key]] == ["corruptions"]


SCENES = {"label": "scenes", "method": "upernet", "model": "vit_demo", "data": "fashion_scenes_ade"}


@pytest.mark.slow
def test_made_from__of_a_runs_own_set__is_in_the_graph(toy):
    toy.write("study/toy.yaml", {"title": "toy", **study(scenes=SCENES)})
    graph = build_graph("demo")
    (name,) = [name for name, run in graph.runs.items() if run.label == "scenes"]
    assert graph.runs[name].data == "fashion_scenes_ade"
    assert graph.data["fashion_scenes_ade"]["made_from"] == "fashion_mnist" and "fashion_mnist" in graph.data


@pytest.mark.slow
def test_made_from__of_a_runs_own_set__that_the_scale_replaces__is_refused(toy):
    scale = toy.read("scale/demo.yaml")
    toy.write("scale/demo.yaml", scale | {"replace_data": {**scale["replace_data"], "fashion_mnist": "cifar10"}})
    toy.write("study/toy.yaml", {"title": "toy", **study(scenes=SCENES)})
    (problem,) = [line for line in toy.problems() if "fashion_scenes_ade" in line]
    assert "is made from 'fashion_mnist', which is 'cifar10' at scale demo" in problem
