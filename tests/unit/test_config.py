"""Reading, merging and naming configs: what wins, what is refused, and what an error says."""

import warnings
from typing import Any

import pytest
from pydantic import BaseModel, Field, model_validator

from pipeline.config import (
    CONFIGS,
    Layers,
    Strict,
    added,
    fingerprint,
    merge,
    nearest,
    parse,
    parse_file,
    read_yaml,
    science,
)
from pipeline.engine.run import NOT_SCIENCE, RunConfig, parse_run
from pipeline.errors import ConfigError
from pipeline.evals.base import EVALS
from pipeline.methods.base import METHODS
from pipeline.registry import Registry


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

    with pytest.raises(ConfigError, match=r"some\.yaml: epochs: written a second time in line 4"):
        read_yaml(path)


def test_read_yaml__same_key_in_two_maps__is_fine(tmp_path):
    assert read_yaml(write(tmp_path, "a: {x: 1}\nb: {x: 1}\n")) == {"a": {"x": 1}, "b": {"x": 1}}


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


# Fingerprints


def run_content(method: str = "mjp") -> dict[str, Any]:
    files = [CONFIGS / "method" / f"{method}.yaml", CONFIGS / "model" / "vit_demo.yaml"]
    recipe = {"optim": {"epochs": 5, "global_batch": 50, "micro_batch": 50, "base_lr": 3e-3}}
    return merge(*[read_yaml(path) for path in [*files, CONFIGS / "data" / "fashion_mnist.yaml"]], recipe)


def run_of(content: dict[str, Any]) -> RunConfig:
    return parse_run(Layers(("run.yaml", content)))


def field_paths(model: BaseModel, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every field of a config, those of configs inside it too."""
    paths = []
    for name in type(model).model_fields:
        value = getattr(model, name)
        paths += field_paths(value, (*above, name)) if isinstance(value, BaseModel) else [(*above, name)]
    return paths


def changed(model: BaseModel, path: tuple[str, ...]) -> BaseModel:
    """A copy with another value at one field; not validated, so that any field can be given one."""
    name, *rest = path
    value = getattr(model, name)
    other = changed(value, tuple(rest)) if rest else ("other" if value is None else [value, "other"])
    return model.model_copy(update={name: other})


def test_fingerprint__known_content__never_changes():
    # The first digits of: printf '{"a":{"x":true},"b":[1,2.5,null]}' | sha256sum. Folders of finished runs carry such
    # names: another number here means that all of them are forgotten.
    assert fingerprint({"b": [1, 2.5, None], "a": {"x": True}}) == "e4f1f0"


def test_fingerprint__order_of_keys__does_not_matter():
    assert fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == fingerprint({"b": {"d": 3, "c": 2}, "a": 1})


def test_run_fingerprint__same_config_in_another_order__is_the_same():
    content = run_content()
    turned = {key: dict(reversed(list(value.items()))) for key, value in reversed(list(content.items()))}

    assert run_of(turned).name == run_of(content).name


def test_run_fingerprint__number_written_in_another_way__is_the_same():
    content = run_content()

    assert run_of(merge(content, {"optim": {"base_lr": "3.0e-3", "epochs": 5.0}})).name == run_of(content).name


@pytest.mark.parametrize(
    "key", [("seed",), ("optim", "lr_batch"), ("data", "augment", "mixup"), ("model", "drop_path")]
)
def test_run_fingerprint__field_given_its_default__is_the_same(key):
    bare = run_of(run_content())
    value: Any = bare
    for part in key:
        value = getattr(value, part)
    given: Any = value
    for part in reversed(key):
        given = {part: given}

    assert run_of(merge(run_content(), given)).fingerprint == bare.fingerprint


class Later(RunConfig):
    """What a run is after somebody gave it more to choose."""

    new: int = added(5, before=3, ge=0)


def later_run(**changes: Any) -> RunConfig:
    before = run_of(run_content())
    return Later.model_validate({**run_content(), "method": before.method, "data": before.data, **changes})


def test_run_fingerprint__class_gets_a_new_field__old_runs_keep_their_names():
    assert later_run(new=3).name == run_of(run_content()).name


def test_run_fingerprint__new_field_has_another_value_than_before__is_another_run():
    names = {later_run().name, later_run(new=4).name, run_of(run_content()).name}

    assert len(names) == 3 and later_run().name == later_run(new=5).name


def test_run_fingerprint__default_of_a_field_changed__is_another_run():
    """Whoever states nothing gets the new value; the run of the old one must not be taken for it."""

    class Changed(RunConfig):
        seed: int = 7

    before = run_of(run_content())
    content = {**run_content(), "method": before.method, "data": before.data}
    after = Changed.model_validate(content)

    assert after.fingerprint != before.fingerprint
    assert Changed.model_validate({**content, "seed": 0}).name == before.name


def test_run_fingerprint__default_of_a_method_changed__is_another_run():
    method = METHODS.get("mjp")

    class Changed(method.Config):
        shuffle_ratio: float = 0.77

    content = {key: value for key, value in run_content()["method"].items() if key != "shuffle_ratio"}
    base = run_of(run_content())
    runs = [base.model_copy(update={"method": config(**content)}) for config in (method.Config, Changed)]

    assert runs[0].method.shuffle_ratio != 0.77 and runs[0].fingerprint != runs[1].fingerprint


def test_science__field_added_inside_a_list_or_map__is_left_out_at_its_old_value():
    class Step(Strict):
        size: int = 1
        speed: float = added(1.0, before=1.0)

    class Walk(Strict):
        steps: list[Step]
        named: dict[str, Step]

    walk = Walk(steps=[Step(), Step(speed=2)], named={"a": Step()})

    assert science(walk) == {"steps": [{"size": 1}, {"size": 1, "speed": 2.0}], "named": {"a": {"size": 1}}}


def test_added__value_out_of_range__is_refused_as_in_any_field():
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        later_run(new=-1)


@pytest.mark.parametrize("name", EVALS.names())
def test_eval_config__any_field_but_those_of_scheduling_changed__is_another_result(name):
    config = EVALS.get(name).Config(**read_yaml(CONFIGS / "eval" / f"{name}.yaml"))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        same = {path[0] for path in field_paths(config) if changed(config, path).science() == config.science()}

    # Data sets go into the name of a result with their own configs.
    assert same - {"data"} == {"group", "needs"}


SCIENCE = [path for path in field_paths(run_of(run_content())) if path[-1] not in NOT_SCIENCE]


@pytest.mark.parametrize("path", SCIENCE, ids=".".join)
def test_run_fingerprint__any_science_field_changed__is_another(path):
    run = run_of(run_content())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the other value is not of the field's type
        assert changed(run, path).fingerprint != run.fingerprint


def test_run_fingerprint__two_methods_with_their_defaults__differ():
    content = merge(run_content(), {"model": {"pos_embed": "sincos"}})
    runs = [run_of({**content, "method": {"name": name}}) for name in ("mae", "droppos", "supervised")]

    assert len({run.fingerprint for run in runs}) == 3


def test_run_name__for_people__says_method_model_data_epochs_and_seed():
    run = run_of(merge(run_content(), {"seed": 3}))

    assert run.name == f"mjp-vit_demo-fashion_mnist-e5-s3-{run.fingerprint}"


def test_run_name__methods_without_own_fields__differ_by_method():
    assert run_of(run_content("supervised")).name.startswith("supervised-")


def test_parse_run__problems_in_method_and_elsewhere__come_together():
    content = merge(run_content(), {"method": {"shufle_ratio": 1}, "optim": {"epochs": 0}, "sead": 1})

    with pytest.raises(ConfigError) as caught:
        run_of(content)

    keys = [line.split(": ")[1] for line in str(caught.value).splitlines()]
    assert keys == ["method.shufle_ratio", "optim.epochs", "sead"]
