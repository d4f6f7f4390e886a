"""Any timm model through evaluations of configs/eval, without a run or a study of its own.

The model is evaluated as a weight file is (`train: false`), on the set that the scale has in place of ImageNet-1K; of
that set only the validation images are needed, under a name of their own, unless something is to be trained on the
features of the model (`with_train`). Every set is seen as the model sees images. A file without a classifier, such as
that of a pretraining, has features alone. Results lie where those of studies do, and what is finished is not computed
again.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.config import CONFIGS, FILE, Layers, merge, names, nearest, parse, parse_file, read_yaml
from pipeline.data.kind import BaseDataConfig, kind_of, parse_data, reference_run, source_set
from pipeline.data.prepare import prepare
from pipeline.engine.distributed import World, device_of
from pipeline.engine.optim import OptimConfig
from pipeline.engine.run import RunConfig, parse_run
from pipeline.errors import CheckpointError, ConfigError, DataError, NumericsError
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Subject
from pipeline.evals.evaluate import Planned, Workshop, evaluate_one
from pipeline.evals.sources import PreparedSources
from pipeline.methods.base import Prediction
from pipeline.methods.supervised import Supervised
from pipeline.models.foreign import ForeignModel, ForeignView, build_foreign, download, view_of
from pipeline.records import EvalResult
from pipeline.results import ScaleFolder, results_of
from pipeline.site import Site, data_folder, weights_path
from pipeline.study.draft import fragment
from pipeline.study.graph import load_graph
from pipeline.study.rows import evaluation_name, evaluation_science
from pipeline.study.spec import Scale

log = logging.getLogger(__name__)
CLASSIFIED = "imagenet1k"  # what timm's classifiers are trained on; a scale may put another set in its place
CLEAN = "classify"  # goes with every group: what the other numbers are compared with


@dataclass(frozen=True)
class Evaluated:
    """What became of one evaluation: its result, or the reason why there is none."""

    name: str
    result: EvalResult | None = None
    file: Path | None = None
    reason: str = ""


def evaluate_foreign(
    model: str, weights: Path | None, wanted: Iterable[str], scale: str, site: Site, with_train: bool = False
) -> Iterator[Evaluated]:
    """Evaluations of a timm model, one after the other; a set that is missing stops only those that need it."""
    chosen = chosen_evaluations(wanted)
    torch.set_num_threads(site.threads)
    foreign = Foreign.of(model, weights, scale, site, with_train)
    for name in chosen:
        try:
            foreign.prepare(foreign.run.data)
            planned = foreign.planned(name)
            folder = foreign.results.evaluation(planned.name)
            yield Evaluated(name, evaluate_one(planned, folder, foreign.workshop), folder.result)
        except (DataError, ConfigError, NumericsError) as error:
            yield Evaluated(name, reason=str(error))


def chosen_evaluations(wanted: Iterable[str]) -> list[str]:
    """Files of configs/eval; the name of a group stands for `classify` and all of the group that are of one model."""
    configs = {name: read_yaml(CONFIGS / "eval" / f"{name}.yaml") for name in names(CONFIGS / "eval")}
    default = EvalConfig.model_fields["group"].default
    group_of = {name: content.get("group", default) for name, content in configs.items()}
    found: list[str] = []
    for name in wanted:
        if name in configs:
            found.append(name)
        elif name in group_of.values():
            members = [each for each, group in group_of.items() if group == name]
            found += [CLEAN, *(each for each in members if EVALS.get(configs[each]["name"]).roles() == ("model",))]
        else:
            groups = ", ".join(sorted({*group_of.values()}))
            raise ConfigError(f"no evaluation or group {name!r}; {nearest(name, configs)}; groups: {groups}")
    return list(dict.fromkeys(found))


class AsItIs(Supervised):
    """Whatever timm does between an image and its classes; our own encoders are run with positions of their own."""

    def predict(self, images: Tensor, shuffled: Tensor | None = None) -> Prediction:
        self._refuse_without_classifier()
        found = self.encoder.forward_features(images)
        return Prediction(self.encoder.forward_head(found, pre_logits=True), self.encoder.forward_head(found))

    def classify(self, tokens: Tensor) -> Prediction:
        self._refuse_without_classifier()
        return super().classify(tokens)

    def _refuse_without_classifier(self) -> None:
        if not self.encoder.num_classes:
            raise ConfigError(
                "the weight file has no classifier; expected one for evaluations that classify: those of features, "
                "such as linear_probe, knn and position_probe with --train, work without it"
            )


class ForeignWorkshop(Workshop):
    """Loads the one model, when something has to be computed."""

    def subject(self, run: RunConfig) -> Subject:
        if run.name not in self.loaded:
            data: Any = run.data
            cfg: Any = run.method
            file = weights_path(self.site, run.init or "")
            encoder = build_foreign(run.model.arch, file, data.image_size, data.channels, data.num_classes, False)
            method = AsItIs(cfg, encoder)
            self.loaded[run.name] = Subject(run, method.to(self.world.device).eval())
        return self.loaded[run.name]


@dataclass
class Foreign:
    """The model as a run, and everything around it."""

    run: RunConfig
    view: ForeignView
    scale: str
    results: ScaleFolder
    site: Site
    workshop: Workshop
    prepared: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, model: str, weights: Path | None, scale: str, site: Site, with_train: bool = False) -> "Foreign":
        view = view_of(model)
        data = _own_set(_scale(scale), view, with_train)
        file = weights.expanduser().absolute() if weights else weights_path(site, f"{FILE}{model}.safetensors")
        run = RunConfig(
            method=Supervised.Config(),
            model=ForeignModel(name=model, arch=model),
            data=data,
            optim=OptimConfig(epochs=1, global_batch=2, micro_batch=2, base_lr=1.0),  # it is not trained
            init=f"{FILE}{file}",
            train=False,
        )
        if not weights:
            download(model, file)
        results = results_of(scale)
        workshop = ForeignWorkshop(results, site, World(0, 1, device_of(site.device)))
        return cls(run, view, scale, results, site, workshop)

    def planned(self, name: str) -> Planned:
        """The evaluation under the name that the graph would give it; its data sets are prepared."""
        scale = _scale(self.scale)
        file, content = fragment("eval", name, "evaluate")
        layers = Layers((file, content), (f"configs/scale/{self.scale}.yaml: eval.{name}", scale.eval.get(name, {})))
        evaluation: type[Evaluation] = EVALS.get(layers.merged()["name"])
        cfg = parse(evaluation.Config, layers)
        if evaluation.roles() != ("model",):
            raise ConfigError(f"{name} is not of one model; a study gives it its subjects")
        if reason := evaluation.refusal(cfg, {"model": self.run}):
            raise ConfigError(reason)
        sets: dict[str, BaseDataConfig] = {}
        for role, of_role in cfg.data.items():
            sets |= self._sets(role, of_role, scale)
        for each in sets.values():
            self.prepare(each)  # as it is published or made, whatever the model sees of it
        data = {role: _seen(each, self.view) for role, each in sets.items()}
        full_name = evaluation_name(name, evaluation_science(cfg, data), {"model": self.run.name})
        return Planned(full_name, name, cfg, {"model": self.run}, data)

    def prepare(self, data: BaseDataConfig) -> None:
        """Verify a set, or make it, unless that was done before."""
        manifest = self.results.manifest(data.name)
        if manifest.exists() or data.name in self.prepared:
            return
        folder = data_folder(self.site, data)
        log.info("preparing %s, which is done once", data.name)
        own = self.run.data
        sources = PreparedSources(self.results, self.site, {own.name: own}, self._run_of)
        prepare(data, folder, manifest.parent, self.site.workers, sources=sources if source_set(data) else None)
        self.prepared.add(data.name)

    def _run_of(self, name: str) -> RunConfig:
        return parse_run(Layers((name, load_graph(self.scale).run(name).config)))

    def _sets(self, role: str, name: str, scale: Scale) -> dict[str, BaseDataConfig]:
        """The set of a role, or its parts."""
        file, content = fragment("data", scale.replace_data.get(name, name), "evaluate")
        data = parse_data(Layers((file, content)).below("data"), "data.")
        if reference_run(data):
            data = self._as_in_a_study(data)
        if source := source_set(data):
            origin = fragment("data", scale.replace_data.get(source, source), file)[1]["data"]["name"]
            if origin != self.run.data.folder_name:
                raise DataError(f"{data.name} is made from {origin}, which is not the set of the model")
            data = data.model_copy(update={"made_from": self.run.data.name})
        return {f"{role}/{part}": cfg for part, cfg in kind_of(data).parts().items()} or {role: data}

    def _as_in_a_study(self, data: Any) -> Any:
        """A set that is made with a run of a study, which must have been trained."""
        known = load_graph(self.scale).data.get(data.name)
        if known is None:
            raise DataError(f"{data.name} is made with a run, and no study has it at scale {self.scale}")
        try:
            self.results.run(known["reference"]).trained()
        except CheckpointError as error:
            raise DataError(f"{data.name} is made with a run that is not there: {error}") from None
        return parse_data(Layers((data.name, known)))


def _scale(name: str) -> Scale:
    return parse_file(Scale, CONFIGS / "scale" / f"{name}.yaml")


def _own_set(scale: Scale, view: ForeignView, with_train: bool = False) -> BaseDataConfig:
    """The validation images of the set that the model classifies, or all of its images."""
    name = scale.replace_data.get(CLASSIFIED, CLASSIFIED)
    file, content = fragment("data", name, "evaluate")
    whole = Layers((file, content)).below("data").merged()
    val = {"name": f"{whole['name']}-val", "part_of": whole["name"], "num_train": 0}
    return _seen(parse_data(Layers((file, whole if with_train else merge(whole, val))), "data."), view)


def _seen(data: Any, view: ForeignView) -> Any:
    """A set through the model's view; one with another number of channels is of another world and keeps its own."""
    if data.channels != view.channels:
        return data
    return data.model_copy(
        update={
            "image_size": view.image_size,
            "mean": view.mean,
            "std": view.std,
            "augment": data.augment.model_copy(update={"interpolation": view.interpolation}),
            # Images that are not cropped have their centre already, such as those of ImageNet-C.
            "eval_crop": view.crop if data.eval_crop < 1 else data.eval_crop,
        }
    )
