"""Schemas of config files: complete, kept fresh, and agreed on by every file of the project."""

import json
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft7Validator
from pydantic import BaseModel, Field
from referencing import Registry, Resource

from pipeline.cli import main
from pipeline.core.config import CONFIGS, Strict, merge, read_yaml, shown
from pipeline.core.registry import EVALS, KINDS, METHODS
from pipeline.engine.optim import OptimConfig
from pipeline.engine.run import RunConfig
from pipeline.methods.base import MethodConfig
from pipeline.schema import files
from pipeline.schema.meaning import meaning_of
from pipeline.site import Site
from pipeline.study.spec import Expected, Noise, Scale, Study

TOPS = (RunConfig, Site, Study, Scale, Expected, Noise)


@cache
def validator(kind: str) -> Draft7Validator:
    found = files.schema(kind)
    Draft7Validator.check_schema(found)
    shared = Resource.from_contents(files.shared())
    return Draft7Validator(found, registry=Registry().with_resource(files.SHARED, shared))


def mistakes(kind: str, content: Any) -> list[str]:
    """Where a schema finds something wrong. JSON has text for all keys."""
    found = validator(kind).iter_errors(json.loads(json.dumps(content)))
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in found]


def configs() -> set[type[BaseModel]]:
    """Every class whose fields are keys of a config file."""
    registered = {registry.get(name).Config for registry in (METHODS, EVALS, KINDS) for name in registry.names()}
    found: set[type[BaseModel]] = set()
    waiting = [*TOPS, *registered]
    while waiting:
        model = waiting.pop()
        if model not in found:
            found.add(model)
            waiting += [below for field in model.model_fields.values() for below in models_in(field.annotation)]
    return found


def models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in models_in(part)]


@pytest.mark.slow
def test_fields__of_every_config__have_a_meaning():
    found = configs()
    assert {OptimConfig, MethodConfig} <= found and len(found) > 80
    keys = [(model, key) for model in found for key in model.model_fields]
    assert [f"{model.__module__}: {key}" for model, key in keys if not meaning_of(model, key)] == []


class Base(Strict):
    width: int = 1
    """Channels."""
    depth: int = Field(2, description="blocks")
    heads: int = Field(4, description="of a block")
    """Attention heads of a block."""
    bare: int = 3


class Derived(Base):
    width: int = 5


def test_meaning__is_the_text_below_a_key_or_its_description__of_the_class_or_its_base():
    found = {key: meaning_of(Derived, key) for key in Derived.model_fields}
    assert found == {"width": "Channels", "depth": "blocks", "heads": "Attention heads of a block", "bare": ""}


@pytest.mark.slow
def test_schemas__as_checked_in__are_those_of_the_classes():
    """Where this fails: `python -m pipeline schema`."""
    assert [shown(path) for path in files.outdated(files.written_schemas() | files.named_schemas())] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(files.MAKERS))
def test_schema__of_each_kind__allows_every_file_of_the_project(kind):
    paths = [path for path, found in files.config_files() if found == kind]
    assert paths and {path: wrong for path in paths if (wrong := mistakes(kind, read_yaml(path)))} == {}


MISTYPED = {
    "study/mjp.yaml": [
        {"titel": "MJP"},
        {"common": {"optm": {}}},
        {"recipes": {"swin": {"model": {"drop_pth": 0.2}}}},
        {"runs": {"a": {"metod": "mjp"}}},
        {"runs": {"a": {"set": {"optim": {"lr_cruve": "poly"}}}}},
        {"runs": {"a": {"set": {"optim": {"lr_curve": "polly"}}}}},
        {"axes": {"ratio": {"009": {"set": {"method": {"shufle_ratio": 0.1}}}}}},
        {"tables": {"t1": {"rows": {"deit-s": {"rum": "a"}}}}},
        {"column_sets": {"top1": {"top1": {"desimals": 2}}}},
        {"figures": {"f2": {"kind": "line"}}},
        {"claims": {"new": {"statement": "It is so.", "type": "exact"}}},
    ],
    "scale/demo.yaml": [
        {"replace_modl": {}},
        {"run": {"optim": {"epoch": 4}}},
        {"kind": {"images": {"data": {"augment": {"crop": "padd"}}}}},
        {"method": {"mjp": {"shufle_ratio": 0.1}}},
        {"eval": {"knn": {"kk": 3}}},
    ],
    "site/slurm.yaml": [{"worker": 2}, {"gpus": [-1]}, {"slurm": {"partitions": "gpu"}}],
    "method/mjp.yaml": [{"method": {"sigma": 1.0}}, {"method": {"name": "mpj"}}, {"method": {"shuffle_ratio": 2}}],
    "model/vit_demo.yaml": [{"model": {"dept": 2}}, {"model": {"patch_size": [4, 4, 4]}}, {"model": {"depth": 0}}],
    "data/cifar10.yaml": [{"data": {"num_clases": 10}}, {"data": {"channels": 2}}, {"data": {"ignored": 255}}],
    "data/books.yaml": [{"data": {"image_size": 28}}, {"data": {"kind": "tekst"}}],
    "eval/knn.yaml": [{"layer": [1]}, {"name": "knnn"}, {"k": 0}],
    "recipe/mjp.yaml": [{"optim": {"warmup": 3}}, {"data": {"augment": {"cutmx": 1}}}],
    "expected/mp3.yaml": [{"rows": {"mp3.t3.mae": {"top1": "high"}}}],
    "noise/demo.yaml": [{"metric": {}}],
}


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(MISTYPED))
def test_schema__of_a_file_with_a_mistake__refuses_it_where_it_is(file):
    content, kind = read_yaml(CONFIGS / file), file.split("/")[0]
    for change in MISTYPED[file]:
        assert len(mistakes(kind, merge(content, change))) >= 1, change


@pytest.mark.parametrize("kind", ["method", "model", "data", "eval"])
def test_schema__of_a_file_without_what_it_is_about__refuses_it(kind):
    assert mistakes(kind, {})


def test_schema__explains_a_key__with_its_values_and_its_default():
    key = files.shared()["definitions"]["OptimConfig"]["properties"]["lr_curve"]
    assert key["default"] == "after_warmup" and "all_steps" in key["enum"] and "warm-up ends" in key["description"]


@pytest.mark.slow
def test_schema_verb__file_that_does_not_name_its_schema__is_listed_and_then_changed_by_one_line(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(files, "CONFIGS", tmp_path)
    path = tmp_path / "recipe/mine.yaml"
    path.parent.mkdir()
    path.write_text("optim: {epochs: 3}\n")
    assert main(["schema", "--check"]) == 1 and f"{path}: out of date" in capsys.readouterr().out
    assert path.read_text() == "optim: {epochs: 3}\n" and not (tmp_path / "schema").exists()
    assert main(["schema"]) == 0
    assert path.read_text() == "# yaml-language-server: $schema=../schema/recipe.json\noptim: {epochs: 3}\n"
    assert json.loads((tmp_path / "schema/recipe.json").read_text()) == files.schema("recipe")
    assert main(["schema", "--check"]) == 0
