"""Evaluations in the graph: their names, their jobs, and evaluations without a run, through the command line."""

import json
import re

import pytest
import torch
from PIL import Image

from pipeline.cli import main
from pipeline.core.registry import EVALS
from pipeline.engine.parallel.distributed import World
from pipeline.report.tables.fill import fill_table
from pipeline.site import Site
from pipeline.study.resolve.graph import build_graph, load_graph

RUN = {"label": "a", "method": "supervised", "model": "vit_demo", "data": "fashion_mnist"}
DATA = "data/fashion_mnist.yaml"
TINY = {"name": "tiny", "arch": "vit_tiny_patch16_224", "patch_size": 7, "embed_dim": 16, "depth": 1, "num_heads": 2}
COST = {
    "name": "cost",
    "model": TINY,
    "method": {"mae": {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}},
    **{"etas": [50], "image_size": 28, "channels": 1, "num_classes": 10, "batch": 2, "steps": 1},
}


ALONE = World(0, 1, torch.device("cpu"))


def toy_study() -> dict:
    """A run with two evaluations, and a table and a figure of evaluations that need no run."""
    columns = {
        "top1": {"label": "Top-1", "eval": "classify", "metric": "top1"},
        "consistency": {"label": "Consistency", "eval": "consistency", "metric": "consistency"},
    }
    accuracy = {"label": "Table 1", "title": "T", "columns": columns, "rows": {"a": {"label": "a", "run": "a"}}}
    time = {"time": {"label": "Seconds", "eval": "cost"}, "memory": {"label": "GiB", "eval": "cost"}}
    cases = {
        name: {"label": name, "metrics": {"time": f"{name}_time_s", "memory": f"{name}_memory_gib"}, "paper": False}
        for name in ("mp3_50", "mae_50", "vit")
    }
    cost = {"label": "Table 2", "title": "C", "columns": time, "rows": cases}
    shuffled = {"shuffled": {"label": "shuffled", "eval": "jigsaw_pictures", "file": "shuffled.png"}}
    about = {"label": "Figure 1", "title": "F", "kind": "pictures"}
    figure = {**about, "columns": shuffled, "rows": {"images": {"label": "images", "paper": False}}}
    return {"runs": {"a": RUN}, "tables": {"t1": accuracy, "t2": cost}, "figures": {"f1": figure}}


@pytest.fixture
def toy(project):
    project.only_study("toy", toy_study(), {"toy.t1.a": {"top1": 1.0, "consistency": 1.0}})
    project.write("eval/cost.yaml", COST)
    project.write(
        "eval/jigsaw_pictures.yaml", {"name": "jigsaw_pictures", "data": {"images": "fashion_mnist"}, "patches": 7}
    )
    project.write("scale/demo.yaml", {**project.read("scale/demo.yaml"), "eval": {}})
    return project


def names(graph) -> dict[str, str]:
    """Evaluation -> its name; each is there once in this study."""
    return {entry.fragment: name for name, entry in graph.evals.items()}


def renamed(toy, before, **changes) -> set[str]:
    """Which evaluations have another name after keys of `classify` changed."""
    toy.write("eval/classify.yaml", {"name": "classify", **changes})
    return {key for key, name in names(build_graph("demo")).items() if name != before[key]}


# Names


@pytest.mark.slow
def test_name__is_the_fragment_and_a_fingerprint(toy):
    for key, name in names(build_graph("demo")).items():
        assert name.startswith(f"{key}-") and len(name) == len(key) + 9


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"shuffle_ratio": 0.4}, {"seed": 1}, {"code_epoch": 2}], ids=str)
def test_name__another_config__is_another_for_this_evaluation_only(toy, changes):
    toy.write("eval/classify.yaml", {"name": "classify"})
    assert renamed(toy, names(build_graph("demo")), **changes) == {"classify"}


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"group": "slow"}, {"needs": {"gpu": False, "hours": 9}}, {"seed": 0}], ids=str)
def test_name__where_and_with_what_it_runs__renames_nothing(toy, changes):
    toy.write("eval/classify.yaml", {"name": "classify"})
    assert renamed(toy, names(build_graph("demo")), **changes) == set()


@pytest.mark.slow
def test_name__another_subject__is_another_and_data_are_not(toy):
    before = names(build_graph("demo"))
    study = toy_study()
    study["runs"]["a"] = {**RUN, "set": {"seed": 5}}
    toy.write("study/toy.yaml", {"title": "toy", **study})
    after = names(build_graph("demo"))
    assert {key for key in before if before[key] != after[key]} == {"classify", "consistency"}


@pytest.mark.slow
def test_name__data_set_of_a_role_seen_otherwise__is_another(toy):
    before = names(build_graph("demo"))
    toy.edit(DATA, "eval_crop: 1.0", "eval_crop: 0.9")
    assert names(build_graph("demo"))["jigsaw_pictures"] != before["jigsaw_pictures"]


@pytest.mark.slow
def test_name__scale_that_changes_the_config__is_another(toy):
    before = names(build_graph("demo"))
    toy.write("scale/demo.yaml", {**toy.read("scale/demo.yaml"), "eval": {"classify": {"shuffle_ratio": 0.5}}})
    assert names(build_graph("demo"))["classify"] != before["classify"]


# Jobs


def test_job__of_one_run_and_group__has_all_its_evaluations_and_needs_enough_for_all(toy):
    toy.write("eval/classify.yaml", {"name": "classify", "needs": {"gpu": False, "memory_gb": 8, "hours": 2}})
    toy.write("eval/consistency.yaml", {"name": "consistency", "needs": {"memory_gb": 4, "hours": 3}})
    graph = build_graph("demo")
    (run,) = graph.runs
    job = graph.eval_jobs[f"{run}-quick"]
    assert sorted(job.evaluations) == sorted(names(graph)[key] for key in ("classify", "consistency"))
    assert (job.runs, job.data) == ([run], ["fashion_mnist"])
    assert (job.needs.gpu, job.needs.memory_gb) == (True, 8) and job.needs.hours == pytest.approx(5.1)


def test_job__another_group__is_another_process(toy):
    toy.write("eval/classify.yaml", {"name": "classify", "group": "slow", "needs": {"gpu": False}})
    graph = build_graph("demo")
    (run,) = graph.runs
    assert graph.eval_jobs[f"{run}-slow"].evaluations == [names(graph)["classify"]]
    assert not graph.eval_jobs[f"{run}-slow"].needs.gpu and graph.eval_jobs[f"{run}-quick"].needs.gpu


def test_job__without_subjects__waits_for_its_data_only(toy):
    graph = build_graph("demo")
    pictures, cost = (graph.eval_jobs[names(graph)[key]] for key in ("jigsaw_pictures", "cost"))
    assert (pictures.runs, pictures.data) == ([], ["fashion_mnist"])
    assert (cost.runs, cost.data) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({}, "configs/eval/jigsaw_pictures.yaml: data: found none, jigsaw_pictures needs images"),
        (
            {"picture": "cifar10"},
            "configs/eval/jigsaw_pictures.yaml: data: found picture, jigsaw_pictures needs images",
        ),
        ({"images": "cifar"}, "configs/eval/jigsaw_pictures.yaml: data.images: no data 'cifar'; did you mean 'cifar10"),
    ],
    ids=["no role", "another role", "no such set"],
)
def test_check__data_of_an_evaluation__mistakes_are_one_line_with_the_key(toy, data, line):
    toy.write("eval/jigsaw_pictures.yaml", {"name": "jigsaw_pictures", "data": data})
    (problem,) = toy.problems()
    assert problem.startswith(line)


@pytest.mark.slow
def test_check__evaluation_whose_config_names_nothing__names_its_own_file_and_not_the_scales(toy):
    toy.write("scale/demo.yaml", {**toy.read("scale/demo.yaml"), "eval": {"classify": {"shuffle_ratio": 0.5}}})
    toy.write("eval/jigsaw_pictures.yaml", {"name": "jigsaw_pictures"})
    toy.write("eval/classify.yaml", {})
    places = [problem.split(": ")[:2] for problem in toy.problems()]
    assert places == [["configs/eval/classify.yaml", "name"], ["configs/eval/jigsaw_pictures.yaml", "data"]]


# Weight files


@pytest.mark.slow
def test_weight_file__as_a_subject__is_no_training_and_its_run_says_so(toy):
    study = toy_study()
    study["runs"]["a"] = {**RUN, "init": "file:mine.safetensors", "train": False}
    toy.write("study/toy.yaml", {"title": "toy", **study})
    graph = build_graph("demo")
    (name,) = graph.runs
    assert name.startswith("weights-vit_demo-fashion_mnist-") and graph.trained_runs() == []
    assert graph.evals[names(graph)["classify"]].subjects == {"model": name}


def with_weight_file(toy, **study):
    content = toy_study()
    content["runs"]["file"] = {**RUN, "label": "file", "init": "file:mine.safetensors", "train": False}
    content["tables"]["t1"]["columns"]["params"] = {"label": "Parameters", "eval": "train", "metric": "params_m"}
    content["tables"]["t1"]["rows"]["file"] = {"label": "file", "run": "file", "paper": False}
    toy.write("study/toy.yaml", {"title": "toy", **content, **study})
    return build_graph("demo")


@pytest.mark.slow
def test_weight_file__as_a_subject__has_no_number_of_training_and_says_why(toy):
    graph = with_weight_file(toy)
    row = graph.tables["toy.t1"].rows["toy.t1.file"]
    assert row.cells["params"].why == "it is a weight file, which is not trained here"
    assert row.cells["top1"].sources and row.cells["params"].sources == []
    assert not [file for file in graph.files("toy.t1", "all") if file.startswith("runs/weights-")]


@pytest.mark.slow
def test_weight_file__at_a_scale_of_several_seeds__is_one_subject(toy):
    graph = with_weight_file(toy, seeds=3)
    assert [len(graph.tables["toy.t1"].rows[f"toy.t1.{key}"].runs[""]) for key in ("a", "file")] == [3, 1]


@pytest.mark.slow
def test_weight_file__in_a_figure_of_curves__is_left_out(toy):
    rows = {key: {"label": key, "run": key, "paper": False} for key in ("a", "file")}
    figure = {"label": "Figure 2", "title": "C", "kind": "curves", "curve": "val_top1", "rows": rows}
    graph = with_weight_file(toy, figures={"f2": figure})
    assert [len(row.cells["curve"].sources) for row in graph.tables["toy.f2"].rows.values()] == [1, 0]


@pytest.mark.slow
def test_weight_file__with_seeds_of_its_own__is_refused(toy):
    study = toy_study()
    study["runs"]["a"] = {**RUN, "init": "file:mine.safetensors", "train": False, "seeds": 2}
    toy.write("study/toy.yaml", {"title": "toy", **study})
    (problem,) = toy.problems()
    assert "runs.a.seeds: seeds is 2, and a weight file has one; leave out seeds, or write 1" in problem


@pytest.mark.slow
def test_weight_file__as_the_start_of_a_run__is_refused_before_a_training_waits_for_it(toy):
    study = toy_study()
    study["runs"]["file"] = {**RUN, "label": "file", "init": "file:mine.safetensors", "train": False}
    study["runs"]["tuned"] = {**RUN, "label": "tuned", "init": "file"}
    toy.write("study/toy.yaml", {"title": "toy", **study})
    (problem,) = toy.problems()
    assert problem.startswith(
        "configs/study/toy.yaml: runs.tuned.init: run 'file' is a weight file; write its init here: file:mine.safet"
    )


@pytest.mark.slow
def test_training__on_a_data_set_for_evaluations_only__is_refused_where_the_run_names_it(toy):
    toy.write(
        DATA.replace("fashion_mnist", "shop"), {"data": {**toy.read(DATA)["data"], "name": "shop", "num_train": 0}}
    )
    study = toy_study()
    study["runs"]["b"] = {**RUN, "label": "b", "data": "shop"}
    toy.write("study/toy.yaml", {"title": "toy", **study})
    (problem,) = toy.problems()
    assert problem.startswith(
        "configs/study/toy.yaml: runs.b.data: shop is only for evaluations: num_train is 0 in configs/data/shop.yaml"
    )


@pytest.mark.slow
def test_weight_file__named_by_no_init__is_refused(toy):
    study = toy_study()
    study["runs"]["a"] = {**RUN, "train": False}
    toy.write("study/toy.yaml", {"title": "toy", **study})
    (problem,) = toy.problems()
    assert "runs.a" in problem and "train: false evaluates a weight file; write init: file:<path>" in problem


# Through the command line


@pytest.mark.slow
def test_table__figure_that_was_of_another_kind__leaves_no_old_drawing(toy):
    old = load_graph("demo").results.table("toy.f1", "all").with_suffix(".svg")
    old.parent.mkdir(parents=True)
    old.touch()
    assert main(["table", "--table", "toy.f1"]) == 0
    assert old.with_suffix(".html").exists() and not old.exists()


@pytest.fixture
def evaluated(toy):
    """Every evaluation that needs no run, computed as the rules do it."""
    assert main(["prepare", "--data", "fashion_mnist"]) == 0
    graph = load_graph("demo")
    for key in ("jigsaw_pictures", "cost"):
        assert main(["evaluate", "--job", names(graph)[key]]) == 0
    return graph


@pytest.mark.slow
def test_evaluate__without_subjects__fills_its_table_and_its_figure(evaluated):
    rows = {row.id: row.cells for row in fill_table(evaluated, "toy.t2", "all").rows}
    for row in rows.values():
        time, memory = row["time"], row["memory"]
        assert time.ours > 0 and time.error >= 0 and time.run is None and time.count is None
        assert memory.ours is None and memory.reason.endswith("this machine has none")
    (row,) = fill_table(evaluated, "toy.f1", "all").rows
    picture = evaluated.results.folder / row.cells["shuffled"].picture
    assert Image.open(picture).width > 500 and row.cells["shuffled"].ours is None


@pytest.mark.slow
def test_evaluate__without_subjects__names_no_run_and_its_data(evaluated):
    folder = evaluated.results.evaluation(names(evaluated)["jigsaw_pictures"])
    result = json.loads(folder.result.read_text())
    assert (result["subjects"], result["data"]) == ({}, {"images": "fashion_mnist"})
    assert result["inputs"]["data"].keys() == {"fashion_mnist"} and result["inputs"]["weights"] == {}


@pytest.mark.slow
def test_evaluate__before_its_data_are_prepared__is_one_message(toy, capsys):
    assert main(["evaluate", "--job", names(load_graph("demo"))["jigsaw_pictures"]]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "manifest.json not found; run `python -m pipeline prepare" in error


# Rows with an evaluation of their own, and words of a scale


def test_row__with_an_evaluation_of_its_own__takes_its_numbers_from_that(toy):
    study = toy_study()
    study["tables"]["t1"]["rows"]["b"] = {"label": "b", "run": "a", "eval": "other", "paper": False}
    del study["tables"]["t1"]["columns"]["consistency"]
    toy.write("study/toy.yaml", {"title": "toy", **study})
    toy.write("expected/toy.yaml", {"source": "a test", "rows": {"toy.t1.a": {"top1": 1.0}}})
    toy.write("eval/other.yaml", {"name": "classify", "shuffle_ratio": 0.9})
    graph = build_graph("demo")
    found = {key: row.cells["top1"] for key, row in graph.tables["toy.t1"].rows.items()}
    assert [cell.metric for cell in found.values()] == ["top1", "top1"]
    assert [cell.sources[0].split("/")[1].split("-")[0] for cell in found.values()] == ["classify", "other"]


def test_row__with_an_evaluation_for_one_column__takes_only_that_number_from_it(toy):
    toy.write("eval/other.yaml", {**toy.read("eval/classify.yaml"), "shuffle_ratio": 0.2})
    study = toy.read("study/toy.yaml")
    study["tables"]["t1"]["rows"]["b"] = {"label": "b", "run": "a", "eval": {"top1": "other"}, "paper": False}
    toy.write("study/toy.yaml", study)

    cells = build_graph("demo").table("toy.t1").rows["toy.t1.b"].cells

    assert cells["top1"].sources[0].startswith("evals/other-")
    assert cells["consistency"].sources[0].startswith("evals/consistency-")


def own_evaluation(toy, evals: dict, **column) -> None:
    """The toy study with evaluations of its own, and another evaluation behind its column top1."""
    study = {**toy.read("study/toy.yaml"), "evals": evals}
    study["tables"]["t1"]["columns"]["top1"] |= column
    toy.write("study/toy.yaml", study)


def top1_entry(toy, evals: dict, **column):
    own_evaluation(toy, evals, **column)
    graph = build_graph("demo")
    source = graph.table("toy.t1").rows["toy.t1.a"].cells["top1"].sources[0]
    return graph.evals[source.split("/")[1]]


def test_evals_of_a_study__change_keys_of_a_file_and_give_the_result_their_name(toy):
    toy.write("scale/demo.yaml", {**toy.read("scale/demo.yaml"), "eval": {"classify": {"shuffle_ratio": 0.5}}})
    evals = {"mixed": {"eval": "classify", "set": {"shuffle_ratio": 0.2}}, "same": {"eval": "classify"}}
    mixed, same = top1_entry(toy, evals, eval="mixed"), top1_entry(toy, evals, eval="same")
    assert (mixed.fragment, mixed.file, mixed.config["shuffle_ratio"]) == ("mixed", "classify", 0.2)
    assert (same.fragment, same.config["shuffle_ratio"]) == ("same", 0.5)  # as the scale says for the file


def test_evals_of_a_study__name_as_a_file_of_configs__has_the_same_result(toy):
    """A file that becomes an entry of a study leaves all names of results as they are."""
    toy.write("eval/other.yaml", {**toy.read("eval/classify.yaml"), "shuffle_ratio": 0.2})
    own_evaluation(toy, {}, eval="other")
    before = {*build_graph("demo").evals}
    (toy.configs / "eval/other.yaml").unlink()
    own_evaluation(toy, {"other": {"eval": "classify", "set": {"shuffle_ratio": 0.2}}})
    assert {*build_graph("demo").evals} == before


def test_evals_of_a_study__keys_at_a_scale__override_the_others_there(toy):
    evals = {"mixed": {"eval": "classify", "set": {"shuffle_ratio": 0.2}}}
    evals["mixed"]["at"] = {"demo": {"shuffle_ratio": 0.1}, "tiny": {"shuffle_ratio": 0.3}}
    assert top1_entry(toy, evals, eval="mixed").config["shuffle_ratio"] == 0.1


def test_column__set__changes_keys_of_its_evaluation(toy):
    entry = top1_entry(toy, {}, set={"shuffle_ratio": 0.2})
    assert (entry.fragment, entry.config["shuffle_ratio"]) == ("classify", 0.2)


@pytest.mark.parametrize(
    ("evals", "column", "line"),
    [
        (
            {"mixed": {"eval": "classify", "set": {"shuffle_ration": 0.2}}},
            {"eval": "mixed"},
            "toy.yaml: evals.mixed.set: shuffle_ration: unknown key; did you mean 'shuffle_ratio'",
        ),
        ({"mixed": {"eval": "clasify"}}, {}, "toy.yaml: evals.mixed.eval: no eval 'clasify'; did you mean 'classify'"),
        (
            {"consistency": {"eval": "classify"}},
            {},
            "toy.yaml: evals.consistency: configs/eval has a file of this name",
        ),
        ({"mixed": {"eval": "classify"}}, {"eval": "mixd"}, "columns.top1.eval: no eval 'mixd'; did you mean 'mixed'"),
        ({}, {"set": {"shuffle_ration": 0.2}}, "columns.top1.set: shuffle_ration: unknown key; did you mean"),
        (
            {},
            {"eval": "train", "metric": "val_top1", "set": {"a": 1}},
            "set changes keys of an evaluation, found eval: train",
        ),
    ],
)
def test_evals_of_a_study__mistake__is_named_with_its_line(toy, evals, column, line):
    own_evaluation(toy, evals, **column)
    (found,) = [each for each in toy.problems() if line in each]
    assert re.search(r"\(line \d+\)$", found), found


@pytest.mark.slow
def test_row__evaluation_for_a_column_that_is_not_there__is_refused(toy):
    study = toy.read("study/toy.yaml")
    study["tables"]["t1"]["rows"]["a"]["eval"] = {"top2": "classify"}
    toy.write("study/toy.yaml", study)

    assert any("rows.a.eval.top2 names no column; did you mean 'top1'?" in line for line in toy.problems())


@pytest.mark.slow
def test_row__evaluation_without_the_columns_metric__is_refused(toy):
    study = toy_study()
    study["tables"]["t1"]["rows"]["b"] = {"label": "b", "run": "a", "eval": "consistency", "paper": False}
    toy.write("study/toy.yaml", {"title": "toy", **study})
    (line,) = toy.problems()
    assert "tables.t1.columns.top1.metric: consistency has no metric 'top1'" in line


@pytest.mark.slow
def test_words__of_a_scale__stand_in_labels_titles_and_notes(toy):
    study = toy_study()
    study["tables"]["t1"] |= {"title": "On ImageNet-C", "note": "ImageNet-C is large."}
    study["tables"]["t1"]["columns"]["top1"]["label"] = "ImageNet-C top-1"
    study["tables"]["t1"]["rows"]["a"]["label"] = "a on ImageNet-C"
    toy.write("study/toy.yaml", {"title": "toy", **study})
    toy.write("scale/demo.yaml", {**toy.read("scale/demo.yaml"), "words": {"ImageNet-C": "Fashion-C"}})
    table = build_graph("demo").tables["toy.t1"]
    texts = [table.title, table.note, table.columns["top1"].label, table.rows["toy.t1.a"].label]
    assert texts == ["On Fashion-C", "Fashion-C is large.", "Fashion-C top-1", "a on Fashion-C"]


@pytest.mark.slow
def test_evaluations__behind_claims_of_type_exact__compute_in_a_precision_of_their_own_in_a_site_with_bf16():
    graph = load_graph("demo")
    claims = [claim for study in graph.claims.values() for claim in study.values() if claim.type == "exact"]
    cells = {cell for claim in claims for comparison in claim.comparisons() for cell in comparison.cells}
    rows = {row: entry for table in graph.tables.values() for row, entry in table.rows.items()}
    sources = {source for row, column in cells for source in rows[row].cells[column].sources}
    known = {f"evals/{name}/result.json": entry.config for name, entry in graph.evals.items()}
    configs = [known[source] for source in sources if source in known]
    assert {"consistency", "equivariance", "training_equivariance"} <= {config["name"] for config in configs}
    for config in configs:
        kind = EVALS.get(config["name"])
        evaluation = kind(kind.Config(**config), {}, graph.results, Site(precision="bf16"), ALONE)
        assert evaluation.precision_name() in ("exact_fp32", "float32", "float64"), config["name"]
