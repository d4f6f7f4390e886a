"""Reading, merging and naming configs: what wins, what is refused, and what an error says."""

import pytest
from pydantic import BaseModel, Field, model_validator

from pipeline.core.config import CONFIGS, Layers, Strict, merge, nearest, parse, parse_file, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.core.registry import Registry
from pipeline.methods.base import METHODS


class Recipe(Strict):
    epochs: int = Field(ge=1)
    warmup: int = 0
    betas: tuple[float, float] = (0.9, 0.999)

    @model_validator(mode="after")
    def _is_possible(self) -> "Recipe":
        if self.warmup >= self.epochs:
            raise ValueError(f"warmup {self.warmup} must be below epochs {self.epochs}")
        return self


class Plan(Strict):
    title: str = ""
    recipe: Recipe
    variants: dict[str, Recipe] = Field(default_factory=dict)
    steps: list[Recipe] = Field(default_factory=list)
    spare: Recipe | None = None


def refused(*contents: dict, model: type[BaseModel] = Plan) -> list[str]:
    """Lines of the error that these layers, from files named 1.yaml, 2.yaml, ..., give."""
    with pytest.raises(ConfigError) as caught:
        parse(model, Layers(*[(f"{n}.yaml", content) for n, content in enumerate(contents, start=1)]))
    return str(caught.value).splitlines()


def write(tmp_path, text: str | bytes):
    path = tmp_path / "some.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# Merging


def test_merge__maps_in_both__are_merged_deep():
    merged = merge({"optim": {"epochs": 5, "lr": 1}}, {"optim": {"lr": 2}})

    assert merged == {"optim": {"epochs": 5, "lr": 2}}


def test_merge__lists_in_both__the_later_one_replaces():
    assert merge({"mean": [1, 2, 3]}, {"mean": [4]}) == {"mean": [4]}


def test_merge__null_over_a_value__is_a_value_too():
    assert merge({"rand_augment": "rand-m9"}, {"rand_augment": None}) == {"rand_augment": None}


@pytest.mark.parametrize(("first", "second"), [({"a": {"b": 1}}, {"a": 2}), ({"a": 2}, {"a": {"b": 1}})])
def test_merge__map_against_scalar__the_later_one_replaces(first, second):
    assert merge(first, second) == second


def test_merge__three_maps__the_last_one_wins():
    assert merge({"a": 1}, {"a": 2}, {"a": 3}) == {"a": 3}


def test_merge__result_is_new__the_given_maps_stay_as_they_were():
    first, second = {"optim": {"epochs": 5}}, {"optim": {"lr": 2}}

    merge(first, second)

    assert (first, second) == ({"optim": {"epochs": 5}}, {"optim": {"lr": 2}})


# Where a key comes from


def test_origin__key_given_twice__is_the_last_file():
    layers = Layers(("a.yaml", {"optim": {"epochs": 1}}), ("b.yaml", {"optim": {"epochs": 2}}))

    assert layers.origin(("optim", "epochs")) == "b.yaml"


def test_origin__later_file_gives_only_a_neighbour__is_the_file_with_the_key():
    layers = Layers(("a.yaml", {"optim": {"epochs": 1}}), ("b.yaml", {"optim": {"lr": 2}}))

    assert layers.origin(("optim", "epochs")) == "a.yaml"


def test_origin__key_given_nowhere__is_the_first_file_with_the_key_above():
    layers = Layers(("a.yaml", {}), ("b.yaml", {"optim": {"lr": 1}}), ("c.yaml", {"optim": {"lr": 2}}))

    assert layers.origin(("optim", "epochs")) == "b.yaml"


def test_origin__item_of_a_list__is_the_last_file_that_gives_the_list():
    layers = Layers(("a.yaml", {"mean": [1, 2]}), ("b.yaml", {"mean": [3, "x"]}))

    assert layers.origin(("mean", 1)) == "b.yaml"


def test_origin__nothing_near_the_key__is_the_last_file():
    assert Layers(("a.yaml", {}), ("b.yaml", {})).origin(("optim", "epochs")) == "b.yaml"


def test_below__layers_of_one_key__keep_their_files():
    layers = Layers(("a.yaml", {"method": {"name": "x"}}), ("b.yaml", {}), ("c.yaml", {"method": {"name": "y"}}))

    assert layers.below("method").layers == (("a.yaml", {"name": "x"}), ("c.yaml", {"name": "y"}))


def test_below__key_is_no_mapping__names_file_and_value():
    with pytest.raises(ConfigError, match=r"^a\.yaml: method: found 'mjp', expected a mapping"):
        Layers(("a.yaml", {"method": "mjp"}), ("b.yaml", {})).below("method")


# Reading YAML


def test_read_yaml__key_written_twice__names_file_key_and_line(tmp_path):
    path = write(tmp_path, "optim:\n  epochs: 5\n  lr: 1\n  epochs: 6\n")

    with pytest.raises(ConfigError, match=r"some\.yaml: epochs: written again in line 4"):
        read_yaml(path)


def test_read_yaml__same_key_in_two_maps__is_fine(tmp_path):
    assert read_yaml(write(tmp_path, "a: {x: 1}\nb: {x: 1}\n")) == {"a": {"x": 1}, "b": {"x": 1}}


def test_read_yaml__again__is_a_mapping_of_its_own_and_that_of_what_is_written_now(tmp_path):
    path = write(tmp_path, "a: {x: [1]}\n")
    read_yaml(path)["a"]["x"].append(2)
    assert read_yaml(path) == {"a": {"x": [1]}}
    path.write_text("a: {x: [3]}\n")
    assert read_yaml(path) == {"a": {"x": [3]}}


def test_read_yaml__damaged_file__is_refused_each_time(tmp_path):
    first = write(tmp_path, "a: [\n")
    second = first.with_name("copy.yaml")
    second.write_text(first.read_text())
    for path in (first, first, second):
        with pytest.raises(ConfigError, match=f"{path.name}: not valid YAML"):
            read_yaml(path)


def test_read_yaml__syntax_error__names_file_and_line_once(tmp_path):
    path = write(tmp_path, "optim:\n  epochs: [5\nlr: 1\n")

    with pytest.raises(ConfigError) as caught:
        read_yaml(path)

    message = str(caught.value)
    assert message.startswith(f"{path}: not valid YAML: ")
    assert "line 3" in message
    assert message.count(str(path)) == 1
    assert "\n" not in message


@pytest.mark.parametrize(
    "text", [b"title: \xe9t\xe9\n", b"title: \x00\n", b"a: !!python/name:os.system\n", b"? [a]\n: 1\n"]
)
def test_read_yaml__not_readable_as_plain_data__is_a_config_error(tmp_path, text):
    with pytest.raises(ConfigError, match=r"some\.yaml: not valid YAML"):
        read_yaml(write(tmp_path, text))


@pytest.mark.parametrize("text", ["", "# only a comment\n", "- a\n- b\n", "just text\n"])
def test_read_yaml__no_mapping__says_what_was_expected(tmp_path, text):
    with pytest.raises(ConfigError, match=r"some\.yaml: expected a mapping of keys to values"):
        read_yaml(write(tmp_path, text))


def test_read_yaml__no_such_file__names_the_nearest_one(tmp_path):
    write(tmp_path, "a: 1\n")

    with pytest.raises(ConfigError, match=r"sone\.yaml: no such file; did you mean 'some'\?"):
        read_yaml(tmp_path / "sone.yaml")


def test_read_yaml__file_of_the_repository__is_shown_relative_to_it():
    with pytest.raises(ConfigError, match=r"^configs/model/deit_x\.yaml: "):
        read_yaml(CONFIGS / "model" / "deit_x.yaml")


# Errors of parsing


def test_parse__mistyped_key__names_file_key_and_nearest():
    lines = refused({"recipe": {"epochs": 5}}, {"recipe": {"warmpu": 1}})

    assert lines == ["2.yaml: recipe.warmpu: unknown key; did you mean 'warmup'? valid: betas, epochs, warmup"]


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"variants": {"a": {"epochs": 1, "warmpu": 0}}}, "variants.a.warmpu"),
        ({"steps": [{"epochs": 1, "warmpu": 0}]}, "steps.0.warmpu"),
        ({"spare": {"epochs": 1, "warmpu": 0}}, "spare.warmpu"),
    ],
    ids=["map", "list", "optional"],
)
def test_parse__mistyped_key_inside_a_container__still_names_the_nearest(content, key):
    (line,) = refused({"recipe": {"epochs": 5}, **content})

    assert line.startswith(f"1.yaml: {key}: unknown key; did you mean 'warmup'?")


def test_parse__wrong_type__names_the_file_that_says_it_and_the_value():
    (line,) = refused({"recipe": {"epochs": "five"}}, {"recipe": {"warmup": 1}})

    assert line.startswith("1.yaml: recipe.epochs: found 'five'; input should be a valid integer")


def test_parse__wrong_item_of_a_list__names_its_place():
    (line,) = refused({"recipe": {"epochs": 5, "betas": [0.9, 0.99]}}, {"recipe": {"betas": [0.9, "x"]}})

    assert line.startswith("2.yaml: recipe.betas.1: found 'x'; ")


def test_parse__out_of_range__says_what_is_allowed():
    assert refused({"recipe": {"epochs": 0}}) == [
        "1.yaml: recipe.epochs: found 0; input should be greater than or equal to 1"
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_parse__not_finite__is_refused(value):
    (line,) = refused({"recipe": {"epochs": 5, "betas": [0.9, value]}})

    assert "finite number" in line


def test_parse__required_key_left_out__names_the_file_where_it_belongs():
    assert refused({"recipe": {"warmup": 0}}, {"recipe": {"warmup": 1}}) == [
        "1.yaml: recipe.epochs: required, not given"
    ]


def test_parse__rule_between_keys_of_two_files__names_both_files():
    assert refused({"recipe": {"epochs": 5}}, {"recipe": {"warmup": 7}}) == [
        "2.yaml: recipe.warmup: warmup 7 must be below epochs 5; recipe.epochs is in 1.yaml"
    ]


def test_parse__several_problems__come_all_at_once():
    lines = refused({"titel": "x", "recipe": {"epochs": 0, "warmpu": 1}, "variants": {"a": {}}})

    assert [line.split(": ")[1] for line in lines] == ["recipe.epochs", "recipe.warmpu", "variants.a.epochs", "titel"]


def test_parse_file__value_changed_later__is_refused(tmp_path):
    plan = parse_file(Plan, write(tmp_path, "recipe: {epochs: 5}\n"))

    with pytest.raises(ValueError, match="frozen"):
        plan.title = "other"


def test_nearest__nothing_close__lists_what_is_valid_without_guessing():
    assert nearest("zzz", ["beta", "alpha"]) == "valid: alpha, beta"


def test_nearest__many_names__are_the_nearest_and_what_lists_the_others():
    models = [f"vit_{size}_{number}" for size in "abc" for number in range(30)]
    hint = nearest("vit_b_17", [*models, "vit_b_177"])
    assert hint.startswith("did you mean 'vit_b_17'? nearest: vit_b_17, vit_b_177, vit_")
    assert hint.endswith("; 85 others: `python -m pipeline check --names`") and len(hint) < 200
    assert nearest("zzz", models, "ls").endswith("; 84 others: `ls`") and "did you mean" not in nearest("zzz", models)


# Names that plug in


@pytest.mark.parametrize("name", ["mpj", "", None, ["mjp"], {"a": 1}], ids=str)
def test_registry__unknown_name_of_any_type__is_a_config_error(name):
    with pytest.raises(ConfigError, match=r"is unknown; .*valid: .*mjp"):
        METHODS.get(name)


def test_registry__name_taken__is_refused():
    registry = Registry("method", "pipeline.methods")
    registry.register("x")(int)

    with pytest.raises(ConfigError, match="'x' is registered twice"):
        registry.register("x")(float)
