"""Names of runs and results: what is part of them, and what never changes them."""

import warnings
from typing import Any

import pytest
from pydantic import BaseModel

from pipeline.core.config import CONFIGS, Layers, Strict, added, fingerprint, merge, read_yaml, science
from pipeline.core.errors import ConfigError
from pipeline.engine.run import NOT_SCIENCE, RunConfig, parse_run
from pipeline.evals.base import EVALS
from pipeline.methods.base import METHODS


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
    assert fingerprint({"b": [1, 2.5, None], "a": {"x": True}}) == "e4f1f031"


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
