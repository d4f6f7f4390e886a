"""`--over KEY=VALUE,VALUE`: what is typed, and the axis that a study gets from it."""

import pytest

from pipeline.core.errors import ConfigError
from pipeline.sweep.axes import parse_axes


def axis(text):
    (found,) = parse_axes([text])
    return found


def test_values__as_typed__have_the_types_of_a_config():
    found = axis("optim.x=1e-4,3,-0.5,.5,true,null,none,[0.9, 0.95],'a, b'")
    assert found.values == [1e-4, 3, -0.5, 0.5, True, None, "none", [0.9, 0.95], "a, b"]
    assert [type(value) for value in found.values[:4]] == [float, int, float, float]
    assert found.texts == ["1e-4", "3", "-0.5", ".5", "true", "null", "none", "[0.9, 0.95]", "a, b"]
    assert (found.key, found.name, found.is_numeric) == ("optim.x", "x", False)


def test_axis__written__has_a_key_a_label_a_place_and_a_change_for_each_value():
    written = axis("optim.base_lr=1e-4,3e-4").written()
    assert list(written.values()) == [
        {"label": "1e-4", "x": 1e-4, "set": {"optim": {"base_lr": 1e-4}}},
        {"label": "3e-4", "x": 3e-4, "set": {"optim": {"base_lr": 3e-4}}},
    ]
    assert list(written) == ["v1-1e-4", "v2-3e-4"]


def test_axis__of_a_fragment__changes_the_run_and_has_no_place():
    assert list(axis("model=deit_s,vit_b").written().values()) == [
        {"label": "deit_s", "model": "deit_s"},
        {"label": "vit_b", "model": "vit_b"},
    ]


@pytest.mark.parametrize(
    ("values", "is_geometric"),
    [
        ("1e-4,3e-4,1e-3", True),
        ("1,2,4,8", True),
        ("8,1,4,2", True),
        ("1e-4,1e-3", True),
        ("0.1,0.2", False),
        ("0.1,0.2,0.3", False),
        ("0,1,10", False),
        ("5", False),
        ("a,b", False),
    ],
)
def test_axis__values__are_geometric_if_their_ratios_are_more_alike_than_their_distances(values, is_geometric):
    assert axis(f"optim.x={values}").is_geometric == is_geometric


def test_axes__with_the_same_last_part__have_their_whole_keys_as_names():
    assert [each.name for each in parse_axes(["model.rate=1,2", "data.rate=1,2", "seed=1"])] == [
        "model_rate",
        "data_rate",
        "seed",
    ]


def test_mistakes__in_several_options__are_all_reported_with_the_option():
    with pytest.raises(ConfigError) as caught:
        parse_axes(["optim.base_lr", "optim.x=", "optim.y=1,1", "optim.z=1,,2", "optim.v=[1", "a.b=1", "a.b=2"])
    lines = str(caught.value).splitlines()
    assert lines == [
        "--over optim.base_lr: expected KEY=VALUE,VALUE, such as optim.base_lr=1e-4,3e-4,1e-3",
        "--over optim.x=: expected KEY=VALUE,VALUE, such as optim.base_lr=1e-4,3e-4,1e-3",
        "--over optim.y=1,1: found a value that is given twice; expected different values with commas between them",
        "--over optim.z=1,,2: found values that are not valid YAML; put such text in quotes",
        "--over optim.v=[1: found values that are not valid YAML; put such text in quotes",
        "--over: a.b is given twice; write all its values in one",
    ]
