"""What a scale replaces of a study is told and checked; scale `own` replaces nothing."""

import pytest
from test_own_study import RUN, STUDY

from pipeline.core.config import merge
from pipeline.study.overrides import Override, override_notices, replaced_keys
from pipeline.study.resolve.graph import build_graph

MINE = "configs/study/mine.yaml"


@pytest.fixture
def mine(project):
    """Only the study of one's own, with 15 epochs of a small model on the embedded images."""
    (project.configs / "study/mjp.yaml").unlink()
    (project.configs / "expected/mjp.yaml").unlink()
    runs = {"a": {**RUN, "model": "vit_demo"}, "b": {**RUN, "data": "fashion_mnist", "model": "vit_demo"}}
    project.write("study/mine.yaml", merge(STUDY, {"runs": runs, "common": {"optim": {"epochs": 15}}}))
    return project


def notices(scale: str, most: int | None = 6) -> list[str]:
    return override_notices(build_graph(scale).overrides, scale, most)


@pytest.mark.slow
def test_scale__that_replaces_a_stated_key__says_from_what_to_what_in_one_line(mine):
    replaced = "data imagenet1k -> fashion_mnist, optim.epochs 15 -> 4"
    assert notices("demo") == [f"scale demo replaces values of {MINE}: {replaced}; scale own keeps them"]
    assert notices("demo", most=1) == [
        f"scale demo replaces values of {MINE}: data imagenet1k -> fashion_mnist and 1 more "
        "(`python -m pipeline check --scale demo`); scale own keeps them"
    ]


@pytest.mark.slow
def test_scale_own__runs_what_is_written_and_has_nothing_to_tell(mine):
    graph = build_graph("own")
    lengths = {run.config["optim"]["epochs"] for run in graph.runs.values()}
    assert (lengths, graph.overrides, graph.comparable) == ({15}, {}, False)


@pytest.mark.slow
def test_budget__above_what_the_scale_allows__is_told(mine):
    mine.write("study/mine.yaml", merge(mine.read("study/mine.yaml"), {"runs": {"a": {"budget": 5}}}))
    assert "budget 5.0 -> 2.0" in notices("demo")[0]


@pytest.mark.slow
def test_scale__that_replaces_values_of_papers__says_so_in_one_line_for_all_of_them(project):
    (line,) = notices("demo")
    count = len(build_graph("demo").overrides["mjp"])
    assert count > 20
    assert line == f"scale demo replaces {count} values of mjp (configs/scale/demo.yaml); scale paper keeps them"
    assert notices("paper") == []


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["demo", "own"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optim": {"epochs": -3}}, "optim.epochs: found -3; input should be greater than or equal to 1"),
        ({"optim": {"epochs": "many"}}, "optim.epochs: found 'many'; input should be a valid integer"),
        ({"data": {"augment": {"erasing": 7}}}, "data.augment.erasing: found 7; input should be less than or equal"),
        ({"model": {"drop_path": 2}}, "model.drop_path: found 2; input should be"),
        ({"method": {"fidelity": "papr"}}, "method.fidelity: found 'papr'; input should be 'paper', 'released'"),
    ],
    ids=["range", "type", "augmentation", "model", "method"],
)
def test_value__wrong_in_common__is_one_line_with_its_line_also_where_the_scale_replaces_it(
    mine, scale, changes, message
):
    mine.write("study/mine.yaml", merge(mine.read("study/mine.yaml"), {"common": changes}))
    (line,) = mine.problems(scale)
    assert line.startswith(f"{MINE}: common: {message}")
    key = message.split(":")[0].rpartition(".")[2]
    text = (mine.configs / "study/mine.yaml").read_text().splitlines()
    number = int(line.rpartition("(line ")[2].rstrip(")"))
    assert text[number - 1].strip().startswith(f"{key}:")


@pytest.mark.slow
def test_section__that_is_no_mapping__is_an_error_also_where_the_scale_replaces_it(mine):
    mine.write("study/mine.yaml", {**mine.read("study/mine.yaml"), "common": {"optim": 5}})
    assert mine.problems("demo") == [
        f"{MINE}: common: optim: found 5, expected a mapping of keys to values (line {line_of(mine, 'optim: 5')})"
    ]


@pytest.mark.slow
def test_method__unknown_together_with_a_key_that_the_scale_replaces__is_reported_with_its_line_once(mine):
    mine.edit("scale/demo.yaml", "method:\n  mp3:", "method:\n  supervised: {fidelity: released}\n  mp3:")
    changes = {"common": {"method": {"name": "mpj", "fidelity": "paper"}}}
    mine.write("study/mine.yaml", merge(mine.read("study/mine.yaml"), changes))
    (line,) = mine.problems("demo")
    assert line.startswith(f"{MINE}: common: method.name: method 'mpj' is unknown; did you mean ")
    assert line.endswith(f"(line {line_of(mine, 'name: mpj')})")


@pytest.mark.slow
def test_key__that_every_run_lacks__is_required_once_of_what_they_have_in_common(mine):
    content = mine.read("study/mine.yaml")
    mine.write("study/mine.yaml", {**content, "common": {"seed": 3}})
    assert mine.problems("own") == [
        f"{MINE}: common: optim: required, not given (line {line_of(mine, 'common:')})",
    ]

    content["runs"]["a"]["set"] = {"optim": content["common"]["optim"]}
    mine.write("study/mine.yaml", {**content, "common": {"seed": 3}})
    assert [line.split(" (")[0] for line in mine.problems("own")] == [f"{MINE}: runs.b: optim: required, not given"]


@pytest.mark.slow
def test_key__unknown_to_several_methods__is_one_line_with_the_nearest_name(mine):
    runs = {"b": {"method": "mjp"}}
    changes = {"common": {"method": {"shufle_ratio": 0.1}}, "runs": runs}
    mine.write("study/mine.yaml", merge(mine.read("study/mine.yaml"), changes))
    (line,) = mine.problems("own")
    assert line.startswith(f"{MINE}: common: method.shufle_ratio: unknown key; did you mean 'shuffle_ratio'? nearest: ")


def line_of(project, text: str) -> int:
    lines = (project.configs / "study/mine.yaml").read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if text in line)


def test_replaced_keys__of_several_layers__are_those_whose_last_value_is_not_the_one_here():
    stated = [{"optim": {"epochs": 15, "betas": [0.9, 0.95]}, "model": {}}, {"optim": {"epochs": 4, "rates": {}}}]
    here = {"optim": {"epochs": 4, "betas": [0.9, 0.999], "rates": {"head": 2}}, "model": {"name": "vit"}}
    assert replaced_keys(stated, here) == {
        ("optim", "betas"): Override(key="optim.betas", stated=[0.9, 0.95], here=[0.9, 0.999]),
    }
