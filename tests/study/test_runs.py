"""What a run is merged from: recipes, what a scale says of pretraining and of one method, budgets, and starts."""

import pytest

from pipeline.cli import main
from pipeline.study.resolve.graph import build_graph

STUDY, DEMO = "study/toy.yaml", "scale/demo.yaml"
FRAGMENTS = {"method": "mp3", "model": "vit_demo", "data": "fashion_mnist"}
COLUMNS = {"top1": {"label": "Top-1", "eval": "train", "metric": "val_top1"}}


@pytest.fixture
def toy(project):
    """Writes a study of these runs, pretrainings if they do not say otherwise, and resolves it at scale demo."""
    project.write("method/mp3.yaml", {"method": {"name": "mp3"}, "model": {"pos_embed": "none"}})

    def resolve(runs, recipes=(), common=None, scale=None, resolved=True):
        runs = {key: {"label": key, **FRAGMENTS, **run} for key, run in runs.items()}
        table = {"label": "Table 1", "title": "Toys", "columns": COLUMNS}
        table["rows"] = {key: {"label": key, "run": key} for key in runs}
        study = {"common": common or {}, "recipes": dict(recipes), "runs": runs, "tables": {"t1": table}}
        project.only_study("toy", study, {f"toy.t1.{key}": {"top1": None} for key in runs})
        optim = {"epochs": 20, "warmup_epochs": 4, "global_batch": 50, "micro_batch": 50, "base_lr": 0.001}
        project.write(DEMO, {"note": "", "comparable": False, "run": {"optim": optim}, **(scale or {})})
        if not resolved:
            return project.problems()
        graph = build_graph("demo")
        return {run.label: run for run in graph.runs.values()}

    return resolve


def optim_of(run: dict, *keys: str) -> list:
    return [run.config["optim"][key] for key in keys]


def test_recipes__named_by_a_run__win_over_common_and_over_earlier_ones(toy):
    recipes = {
        "first": {"optim": {"eps": 1e-2, "clip_norm": 2.0}},
        "second": {"optim": {"clip_norm": 3.0, "epochs": 7}},
    }
    runs = {"none": {}, "both": {"recipe": ["first", "second"]}, "swapped": {"recipe": ["second", "first"]}}

    found = toy(runs, recipes, common={"optim": {"eps": 1e-1, "clip_norm": 1.0, "weight_decay": 0.3}})

    assert optim_of(found["none"], "eps", "clip_norm", "weight_decay") == [0.1, 1.0, 0.3]
    assert optim_of(found["both"], "eps", "clip_norm", "weight_decay") == [0.01, 3.0, 0.3]
    assert optim_of(found["swapped"], "clip_norm", "epochs") == [2.0, 20]  # the scale wins over recipes


def test_recipes__of_a_file__are_shared_by_studies_and_lose_to_a_studys_own_of_that_name(toy, project):
    project.write("recipe/shared.yaml", {"optim": {"eps": 1e-2}})
    project.write("recipe/both.yaml", {"optim": {"eps": 1e-3}})

    found = toy({"a": {"recipe": ["shared"]}, "b": {"recipe": ["both"]}}, {"both": {"optim": {"eps": 1e-4}}})

    assert [optim_of(found[key], "eps") for key in "ab"] == [[1e-2], [1e-4]]


def test_scale__recipe__is_changed_where_it_is_used_and_loses_to_later_ones(toy, project):
    project.write("recipe/first.yaml", {"optim": {"eps": 1e-2, "clip_norm": 2.0}})
    recipes = {"second": {"optim": {"clip_norm": 3.0}}}
    runs = {"none": {}, "first": {"recipe": ["first"]}, "both": {"recipe": ["first", "second"]}}

    found = toy(runs, recipes, scale={"recipe": {"first": {"optim": {"clip_norm": 4.0}}}})

    assert optim_of(found["first"], "eps", "clip_norm") == [1e-2, 4.0]
    assert optim_of(found["both"], "eps", "clip_norm") == [1e-2, 3.0]
    assert optim_of(found["none"], "clip_norm") != [4.0]


def test_scale__pretraining_and_method__are_for_those_runs_only(toy):
    runs = {"pretrained": {}, "supervised": {"method": "supervised"}}
    scale = {"task": {"pretrain": {"optim": {"epochs": 9}}}, "method": {"mp3": {"mask_ratio": 0.5}}}

    found = toy(runs, scale=scale)

    assert (optim_of(found["pretrained"], "epochs"), optim_of(found["supervised"], "epochs")) == ([9], [20])
    assert found["pretrained"].config["method"]["mask_ratio"] == 0.5


def test_scale__task_and_kind_of_the_data__kind_wins(toy):
    """Pretraining on sounds counts updates, whatever the scale says of pretraining on images."""
    scale = {"task": {"pretrain": {"optim": {"epochs": 9, "eps": 1e-3}}}, "kind": {"images": {"optim": {"epochs": 7}}}}

    found = toy({"a": {}}, scale=scale)["a"]

    assert (optim_of(found, "epochs"), optim_of(found, "eps")) == ([7], [1e-3])


def test_set__of_a_run__wins_over_all_that_the_scale_says(toy):
    runs = {"a": {"set": {"optim": {"epochs": 8}, "method": {"mask_ratio": 0.1}}}}
    scale = {"task": {"pretrain": {"optim": {"epochs": 9}}}, "method": {"mp3": {"mask_ratio": 0.5}}}

    found = toy(runs, scale=scale)["a"].config

    assert (found["optim"]["epochs"], found["method"]["mask_ratio"]) == (8, 0.1)


@pytest.mark.parametrize(
    ("budget", "epochs", "warmup"),
    [
        (1.0, 20, 4),
        (0.5, 10, 4),
        (4.0, 80, 4),
        (0.25, 5, 4),
        (0.33, 7, 4),
        (0.2, 4, 0.8),
        (0.05, 1, 0.2),
        (0.001, 1, 0.004),
    ],
)
def test_budget__share_of_the_epochs__scales_the_warm_up_where_it_must(toy, budget, epochs, warmup):
    found = toy({"a": {"budget": budget}})["a"]

    assert optim_of(found, "epochs", "warmup_epochs") == [epochs, pytest.approx(warmup)]


def test_budget__of_a_scale_with_other_epochs__is_the_share_of_those(toy):
    found = toy({"a": {"budget": 0.5}}, scale={"task": {"pretrain": {"optim": {"epochs": 12}}}})["a"]

    assert optim_of(found, "epochs") == [6]


def test_budget__one__renames_no_run(toy):
    names = [run.config for run in toy({"a": {}}).values()]

    assert [run.config for run in toy({"a": {"budget": 1}}).values()] == names


def test_init__key_of_a_run__is_the_name_of_that_run(toy):
    found = toy({"tuned": {"method": "supervised", "init": "pretrained"}, "pretrained": {}})

    assert found["tuned"].init == found["tuned"].config["init"] is not None
    assert found["tuned"].init.startswith("mp3-")


def test_init__file_from_elsewhere__is_passed_on_and_no_run_is_needed(toy):
    found = toy({"tuned": {"init": "file:deit_small.pth"}, "other": {"init": "file:deit_base.pth"}})

    assert found["tuned"].config["init"] == "file:deit_small.pth"
    assert found["tuned"].init is None
    assert len(found) == 2  # the file is part of the name


@pytest.mark.slow
def test_stand_in__scale_without_weight_files__is_what_a_run_starts_from(toy):
    tuned = {"method": "supervised", "init": "file:published.safetensors", "stand_in": "pre"}

    found = toy({"tuned": tuned, "pre": {}, "as_it_is": {**tuned, "train": False}}, scale={"weight_files": False})

    assert {*found} == {"tuned", "pre"}  # a file that is evaluated as it is, is that run itself
    assert found["tuned"].config["init"] == found["tuned"].init
    assert found["tuned"].init == next(name for name, run in build_graph("demo").runs.items() if run.label == "pre")


@pytest.mark.slow
def test_stand_in__scale_with_weight_files__is_left_out_with_what_it_starts_from(toy, project):
    stands = {"tuned": {"method": "supervised", "init": "file:published.safetensors", "stand_in": "then"}}
    first, never = ({"set": {"seed": seed}} for seed in (1, 2))
    toy({**stands, "then": {"init": "first"}, "first": first, "shown": {}, "never": never})
    study = project.read(STUDY)
    study["tables"]["t1"]["rows"] = {key: {"label": key, "run": key} for key in ("tuned", "shown")}
    project.write(STUDY, study)

    graph = build_graph("demo")

    assert {run.label for run in graph.runs.values()} == {"tuned", "shown", "never"}
    assert [run.config["init"] for run in graph.runs.values() if run.label == "tuned"] == ["file:published.safetensors"]


def test_stand_in__run_that_the_study_lacks__is_named(toy):
    tuned = {"init": "file:published.safetensors", "stand_in": "prae"}

    lines = toy({"tuned": tuned}, scale={"weight_files": False}, resolved=False)

    assert any("runs.tuned.init: no run 'prae'" in line for line in lines)


@pytest.mark.slow
def test_check__run_with_a_start__says_what_it_starts_from(toy, capsys):
    found = toy({"tuned": {"method": "supervised", "init": "first"}, "first": {"init": "file:deit_small.pth"}})

    assert main(["check", "--scale", "demo"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(" first, from file:deit_small.pth")
    assert lines[1].endswith(f" tuned, from {found['tuned'].init}")


@pytest.mark.parametrize(
    ("run", "scale", "line"),
    [
        (
            {"recipe": ["pretrian"]},
            {},
            f"configs/{STUDY}: runs.a.recipe: no recipe 'pretrian'; did you mean 'pretrain'? valid: ",
        ),
        (
            {"recipe": ["pretrain"]},
            {},
            f"configs/{STUDY}: recipes.pretrain: optim.wamup: unknown key; ",
        ),
        ({"budget": 0}, {}, f"configs/{STUDY}: runs.a.budget: found 0; input should be greater than 0"),
        ({"init": "file:"}, {}, f"configs/{STUDY}: runs.a.init: found 'file:' without a path; write it as file:PATH"),
        (
            {},
            {"method": {"mp33": {}}},
            f"configs/{DEMO}: method: no method 'mp33'; did you mean 'mp3'?",
        ),
        (
            {},
            {"method": {"mp3": {"mask_ration": 1}}},
            f"configs/{DEMO}: method.mp3: method.mask_ration: unknown key; did you mean 'mask_ratio'?",
        ),
        (
            {},
            {"task": {"pretrain": {"optim": {"epochs": 0}}}},
            f"configs/{DEMO}: task.pretrain: optim.epochs: found 0; input should be greater than or equal to 1",
        ),
        (
            {"budget": 2},
            {"task": {"pretrain": {"optim": {"epochs": "x"}}}},
            f"configs/{DEMO}: task.pretrain: optim.epochs: found 'x'",
        ),
        (
            {"budget": 2},
            {"task": {"pretrain": {"optim": 3}}},
            f"configs/{DEMO}: task.pretrain: optim: found 3, expected a mapping",
        ),
        (
            {},
            {"recipe": {"mpj": {"optim": {"eps": 1e-3}}}},
            f"configs/{DEMO}: recipe: no recipe 'mpj'; did you mean 'mjp'?",
        ),
        ({}, {"task": {"pretrain": {"init": "a"}}}, f"configs/{DEMO}: task.pretrain: init: not allowed here"),
    ],
    ids=lambda value: value.split(": ", 1)[1][:40] if isinstance(value, str) else "",
)
def test_check__mistake_in_a_run__is_one_line_that_names_file_and_key(toy, run, scale, line):
    (found,) = toy({"a": run}, {"pretrain": {"optim": {"wamup": 3}}}, scale=scale, resolved=False)

    assert found.startswith(line)


def test_scale__max_budget__cuts_longer_runs_and_leaves_shorter_ones(toy):
    runs = {"long": {"budget": 8.0}, "short": {"budget": 0.5}, "plain": {}}

    found = toy(runs, scale={"max_budget": 2.0})

    assert [optim_of(found[key], "epochs") for key in runs] == [[40], [10], [20]]


def test_check__two_runs_that_would_share_a_name__are_refused(toy, monkeypatch):
    monkeypatch.setattr("pipeline.engine.run.fingerprint", lambda content: "abc")  # as short as it takes
    runs = {"a": {"label": "first"}, "b": {"label": "second", "set": {"optim": {"eps": 1e-3}, "seed": 0}}}

    (line,) = toy(runs, resolved=False)

    assert line.startswith(
        f"configs/{STUDY}: runs.b: has the name mp3-vit_demo-fashion_mnist-e20-s0-abc, as 'first' of"
    )
    assert "study toy has, but another optim.eps; " in line and "change something in the name, such as the seed" in line


def test_check__runs_that_differ_in_what_is_not_in_the_name__are_refused(toy):
    (line,) = toy({"a": {"label": "first"}, "b": {"set": {"optim": {"log_every": 7}}}}, resolved=False)

    assert "but another optim.log_every; " in line and "make them equal, or change something in the name" in line


def test_check__same_run_twice__is_one_run(toy):
    assert len(toy({"a": {}, "b": {"set": {"seed": 0}}})) == 1


def test_warm_up__that_rounds_to_the_whole_training__is_refused(toy):
    (line,) = toy({"a": {"set": {"optim": {"epochs": 1, "warmup_epochs": 0.996}}}}, resolved=False)

    assert "a warm-up of 100 updates must be shorter than the training, which has 100 (optim.epochs 1)" in line
