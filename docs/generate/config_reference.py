"""The reference of every config key, from the config classes."""

import inspect
import sys
from collections.abc import Callable

from keys import ENTRY, Used, keys_of
from pydantic import BaseModel
from usage import Usage

from pipeline.core.registry import EVALS, KINDS, METHODS, Registry
from pipeline.data.images.augment import Augment
from pipeline.data.kind import BaseDataConfig
from pipeline.engine.optim import OptimConfig
from pipeline.engine.run import RunConfig
from pipeline.evals.base import EvalConfig
from pipeline.methods.base import MethodConfig
from pipeline.models.encoder import ModelConfig
from pipeline.site import Site, Slurm
from pipeline.study.spec import Claim, Column, Drawing, Row, RunSpec, Scale, Study, Table

HOW = (
    "*Used* lists the values that the studies of the papers have at scale `paper`; a key without it is not used there."
)
PARTS: dict[str, type[BaseModel]] = {
    "runs": RunSpec,
    "tables": Table,
    "columns": Column,
    "rows": Row,
    "figures": Drawing,
    "claims": Claim,
}


def pages(usage: Usage) -> dict[str, str]:
    """Path of each page -> its text."""
    return {
        "reference/optim.md": _optim(usage),
        "reference/model.md": _models(usage),
        "reference/data.md": _data(usage),
        "reference/methods.md": _methods(usage),
        "reference/evaluations.md": _evaluations(usage),
        "reference/studies.md": _studies(),
        "reference/scales.md": _head("Scales", "A file of `configs/scale`.", Scale) + keys_of(Scale, "", _nobody),
        "reference/site.md": _site(),
    }


def _nobody(key: str) -> str:
    """Describe keys that are not part of a run."""
    return ""


def _head(title: str, intro: str, model: type[BaseModel] | None = None) -> str:
    about = f"{inspect.getdoc(model)}\n\n" if model else ""
    return f"# {title}\n\n{intro}\n\n{about}"


def _optim(usage: Usage) -> str:
    text = _head("The recipe: optim", HOW, OptimConfig)
    text += keys_of(OptimConfig, "optim.", lambda key: usage.of_run_key(f"optim.{key}"))
    text += "## The rest of a run\n\nKeys beside `method`, `model`, `data` and `optim`.\n\n"
    return text + keys_of(RunConfig, "", _nobody, without=("method", "model", "data", "optim"))


def _models(usage: Usage) -> str:
    text = _head("Models", f"A file of `configs/model`. {HOW}", ModelConfig)
    return text + keys_of(ModelConfig, "model.", lambda key: usage.of_run_key(f"model.{key}"))


def _data(usage: Usage) -> str:
    text = _head("Data sets", f"A file of `configs/data`. Its `kind` decides which keys there are. {HOW}")
    text += "## Every kind\n\n" + keys_of(BaseDataConfig, "data.", lambda key: usage.of_run_key(f"data.{key}"))
    text += f"## augment\n\n{inspect.getdoc(Augment)} It is for kinds with classified images.\n\n"
    text += keys_of(
        Augment, "data.augment.", lambda key: usage.of_run_key(f"data.augment.{key}", "data.kind", "images")
    )
    for name in KINDS.names():
        config, used = KINDS.get(name).Config, _used_by(usage, "data", "data.kind", name)
        text += f"## {name}\n\n{(inspect.getdoc(config) or '').splitlines()[0]}\n\n"
        text += keys_of(config, "data.", used, without=BaseDataConfig.model_fields, anchor=f"{name}.")
    return text


def _methods(usage: Usage) -> str:
    text = _head("Methods", f"A file of `configs/method`. Its `name` decides which keys there are. {HOW}")
    text += "## Every method\n\n" + keys_of(MethodConfig, "method.", lambda key: usage.of_run_key(f"method.{key}"))
    return text + _registered(
        METHODS, MethodConfig, "method.", lambda name: _used_by(usage, "method", "method.name", name)
    )


def _used_by(usage: Usage, part: str, chosen_by: str, name: str) -> Used:
    """In runs that have this method, or data of this kind."""
    return lambda key: usage.of_run_key(f"{part}.{key}", chosen_by, name)


def _evaluations(usage: Usage) -> str:
    text = _head("Evaluations", f"A file of `configs/eval`. Its `name` decides which keys there are. {HOW}")
    text += "## Every evaluation\n\n" + keys_of(EvalConfig, "", _nobody, anchor="eval.")
    return text + _registered(EVALS, EvalConfig, "", lambda name: lambda key: usage.of_eval_key(name, key))


def _registered(registry: Registry, base: type[BaseModel], prefix: str, used: Callable[[str], Used]) -> str:
    """A part for each entry of a registry, which begins as the docstring of its file does."""
    text = ""
    for name in registry.names():
        config = registry.get(name).Config
        doc = inspect.getdoc(sys.modules[config.__module__]) or ""
        text += f"## {name}\n\n{doc.partition(chr(10) * 2)[0]}\n\n"
        text += keys_of(config, prefix, used(name), without=base.model_fields, anchor=f"{name}.")
    return text


def _studies() -> str:
    intro = "A file of `configs/study`. Short forms (`like`, `over`, `along`, sets of columns) are in "
    intro += "[A study, a table, a row](../extend/a-study-a-table-a-row.md)."
    text = _head("Studies", intro, Study) + keys_of(Study, "", _nobody, anchor="study.")
    for name, model in PARTS.items():
        text += f"## {name}\n\n{inspect.getdoc(model)}\n\n"
        text += keys_of(model, f"{name}.{ENTRY}", _nobody)
    return text


def _site() -> str:
    text = _head("Site", "A file of `configs/site`, which `PATCHWORK_SITE` names.", Site) + keys_of(Site, "", _nobody)
    return text + f"## slurm\n\n{inspect.getdoc(Slurm)}\n\n" + keys_of(Slurm, "slurm.", _nobody, anchor="of.")
