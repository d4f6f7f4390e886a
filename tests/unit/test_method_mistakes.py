"""Mistakes in a new method, planted one by one: each is one sentence that says what to do."""

import importlib
import sys
from types import SimpleNamespace
from typing import Literal

import pytest
from method_mistakes import MISTAKES, GlobalDraw, Mine, WrappedExport
from tiny_vit import tiny_batch, tiny_encoder

from pipeline.cli import main
from pipeline.core.config import CONFIGS, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.core.registry import Registry
from pipeline.method_checks import methods
from pipeline.method_checks.bench import Bench, run_check
from pipeline.method_checks.declared import check_method_class
from pipeline.methods.base import METHODS, Method, MethodConfig


def sentences(cls, check):
    bench = Bench(lambda seed: cls(cls.Config(), tiny_encoder(seed, depth=1)), tiny_batch)
    return run_check(check, bench)


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_check__planted_mistake__is_one_sentence_that_says_what_to_do(name):
    cls, check, texts = MISTAKES[name]
    (sentence,) = sentences(cls, check)
    assert [text for text in texts if text not in sentence] == [], sentence


@pytest.mark.slow
@pytest.mark.parametrize("check", dict.fromkeys(check for _, check, _ in MISTAKES.values()))
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_check__method_without_a_mistake__has_nothing_to_say(check):
    assert sentences(Mine, check) == []


# By hand: `python -m pipeline check --method mine`


RUN = {
    "method": {"name": "supervised"},
    "optim": {"epochs": 5, "global_batch": 50, "micro_batch": 50, "base_lr": 3e-3},
    **read_yaml(CONFIGS / "model/vit_demo.yaml"),
    **read_yaml(CONFIGS / "data/fashion_mnist.yaml"),
}


@pytest.fixture
def check(monkeypatch, capsys):
    """The command, for a method of this file, with a scale of one run; the quick checks alone."""
    quick = {name: methods.CHECKS[name] for name in ("loss and scalars", "random draws", "device of the batch")}
    monkeypatch.setattr(methods, "CHECKS", quick)

    def run(name, config=RUN):
        graph = SimpleNamespace(runs={"a-run": SimpleNamespace(config=config)})
        monkeypatch.setattr("pipeline.study.resolve.graph.load_graph", lambda scale: graph)
        code = main(["check", "--method", name])
        return code, capsys.readouterr()

    return run


def registered(monkeypatch, cls, name):
    config = type("Config", (Mine.Config,), {"__annotations__": {"name": Literal[name]}, "name": name})
    monkeypatch.setitem(METHODS._entries, name, type(cls.__name__, (cls,), {"Config": config}))


@pytest.mark.slow
def test_command__method_of_a_run__is_checked_with_its_model_and_data(check):
    code, said = check("supervised")
    assert code == 0
    assert said.out.startswith("method supervised, with run supervised-vit_demo-fashion_mnist-e5-s0-")
    assert said.out.endswith("loss and scalars, random draws, device of the batch, export: all checks passed\n")


@pytest.mark.slow
def test_command__method_that_no_run_has__is_checked_with_those_of_the_baseline(check, monkeypatch):
    registered(monkeypatch, Mine, "mine")
    code, said = check("mine")
    assert code == 0 and "with the model and data of supervised; no run at demo has it" in said.out


@pytest.mark.slow
def test_command__method_with_several_mistakes__is_all_sentences_at_once(check, monkeypatch):
    class Careless(WrappedExport, GlobalDraw):
        pass

    registered(monkeypatch, Careless, "careless")
    code, said = check("careless")
    first, second = said.err.splitlines()
    assert code == 1 and said.out == ""
    assert first.startswith("ContractError: Careless.draw used torch's global generator;")
    assert second.startswith("Careless.export() lacks ")


def test_command__mistyped_name__names_the_nearest(check):
    code, said = check("supervized")
    assert code == 1 and "method 'supervized' is unknown; did you mean 'supervised'" in said.err


# What a class states


class Unnamed(Mine):
    Config = MethodConfig


class NoRange(Mine):
    class Config(MethodConfig):
        name: Literal["no_range"] = "no_range"
        strength: float = 0.1
        steps: int | None = None


class NoLoss(Method):
    class Config(MethodConfig):
        task = "clasify"
        name: Literal["no_loss"] = "no_loss"


@pytest.mark.parametrize(
    ("cls", "texts"),
    [
        (Unnamed, ["Unnamed.Config.name is not 'unnamed', by which Unnamed is registered", 'Literal["unnamed"]']),
        (NoRange, ["NoRange.Config.strength is a number without a range", "NoRange.Config.steps", "Field(0.1, ge=0"]),
        (
            NoLoss,
            ["NoLoss has no `loss`; write `def loss", "task is 'clasify', and no file of pipeline/tasks", "classify"],
        ),
    ],
)
def test_check__class_with_a_mistake__is_told_what_it_must_state(cls, texts):
    name = {"Unnamed": "unnamed", "NoRange": "no_range", "NoLoss": "no_loss"}[cls.__name__]
    found = "\n".join(check_method_class(name, cls))
    assert [text for text in texts if text not in found] == [], found


METHOD_FILE = """
from pydantic import BaseModel

from {package} import REGISTRY


{decorator}
class Mine:
    class Config(BaseModel):
        name: str = "mine"
        strength{annotation} = 0.1
"""


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A registry of methods whose folder has one file, which a test writes."""
    package = "methods_of_a_test.methods"
    folder = tmp_path / "methods_of_a_test" / "methods"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry("method", package)

    def write(decorator, annotation):
        text = METHOD_FILE.format(package=package, decorator=decorator, annotation=annotation)
        (folder / "mine.py").write_text(text)
        (folder / "__init__.py").write_text("")
        importlib.invalidate_caches()
        importlib.import_module(package).REGISTRY = registry
        return registry

    yield write
    for name in [name for name in sys.modules if name.startswith("methods_of_a_test")]:
        del sys.modules[name]


def test_registry__file_that_registers_nothing__is_told_which_line_to_write(registry):
    with pytest.raises(ConfigError, match=r'mine.py does not register it; write @METHODS.register\("mine"\) above its'):
        registry("", ": float").get("mine")


def test_registry__config_field_without_a_type__is_named_with_its_file(registry):
    with pytest.raises(
        ConfigError, match=r"mine.py: its config class is not valid: A non-annotated attribute .*strength"
    ):
        registry('@REGISTRY.register("mine")', "").get("mine")


def test_registry__file_without_a_mistake__is_found(registry):
    assert registry('@REGISTRY.register("mine")', ": float").get("mine").__name__ == "Mine"


def test_registry__mistyped_name__still_names_the_nearest():
    with pytest.raises(ConfigError, match="method 'superwised' is unknown; did you mean 'supervised'"):
        METHODS.get("superwised")
