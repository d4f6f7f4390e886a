"""Any timm model through evaluations of configs/eval, without a run or a study of its own.

The model is evaluated as a weight file is (`train: false`), with the sizes of its file, on a set that the command line
names or that the scale has instead of ImageNet-1K. Every set is seen as the model sees images. Where the classes of
the model and of the set do not fit, or a file has no classifier, only features are evaluated. Results lie where those
of studies do, and what is finished is not computed again.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.core.config import CONFIGS, FILE, Layers, names, nearest, parse, read_yaml
from pipeline.core.errors import CheckpointError, ConfigError, DataError, NumericsError
from pipeline.core.sizes import pair
from pipeline.data.kind import BaseDataConfig, kind_of, parse_data, reference_run, source_set
from pipeline.data.samples import shortened
from pipeline.data.store.manifest import read_manifest
from pipeline.data.store.prepare import find_all_samples, prepare, reason_to_prepare
from pipeline.engine.optim import OptimConfig
from pipeline.engine.parallel.distributed import World, device_of
from pipeline.engine.run import RunConfig, parse_run
from pipeline.evals.base import EVALS, EvalConfig, Evaluation, Subject
from pipeline.evals.evaluate import EvalContext, PlannedEvaluation, evaluate_one
from pipeline.evals.sources import PreparedSources
from pipeline.methods.base import Prediction
from pipeline.methods.supervised import Supervised
from pipeline.models.foreign import ForeignModel, build_foreign
from pipeline.results import ScaleFolder, results_of
from pipeline.results.records import EvalResult
from pipeline.site import Site, data_folder
from pipeline.standalone.evaluated_set import evaluated_set, seen_by
from pipeline.standalone.named_model import FoundModel, NamedModel, find_model
from pipeline.study.resolve.draft import fragment
from pipeline.study.resolve.graph import load_graph
from pipeline.study.resolve.rows import evaluation_name, evaluation_science
from pipeline.study.spec import Scale, read_scale

log = logging.getLogger(__name__)
CLEAN = "classify"  # goes with every group: what the other numbers are compared with
# What compares no output of the model with a class: it applies to a set of any number of classes.
WITHOUT_CLASSES = (
    *("attention_maps", "cls_attention", "consistency", "correlation_maps", "embedding_pictures"),
    *("knn", "linear_probe", "position_embeddings", "position_probe"),
)


@dataclass(frozen=True)
class ForeignResult:
    """What became of one evaluation: its result, or the reason why there is none."""

    name: str
    result: EvalResult | None = None
    file: Path | None = None
    reason: str = ""


def evaluate_foreign(foreign: "Foreign", chosen: Iterable[str]) -> Iterator[ForeignResult]:
    """Evaluations of a timm model, one after the other; a set that is missing stops only those that need it."""
    for name in chosen:
        try:
            foreign.prepare(foreign.run.data)
            planned = foreign.planned(name)
            folder = foreign.results.evaluation(planned.name)
            yield ForeignResult(name, evaluate_one(planned, folder, foreign.context), folder.result)
        except (DataError, ConfigError, NumericsError) as error:
            yield ForeignResult(name, reason=str(error))


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


class TimmClassifier(Supervised):
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


@dataclass
class ForeignEvalContext(EvalContext):
    """Loads the one model, when something has to be computed."""

    model: FoundModel = field(kw_only=True)

    def subject(self, run: RunConfig) -> Subject:
        if run.name not in self.loaded:
            data: Any = run.data
            cfg: Any = run.method
            encoder = build_foreign(self.model.name, self.model.file, self.model.fitted, data.image_size)
            method = TimmClassifier(cfg, encoder)
            self.loaded[run.name] = Subject(run, method.to(self.world.device).eval())
        return self.loaded[run.name]


@dataclass
class Foreign:
    """The model as a run, and everything around it."""

    run: RunConfig
    model: FoundModel
    scale: str
    results: ScaleFolder
    site: Site
    context: EvalContext
    folder: Path | None  # of the set, where the command line names it
    prepared: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, named: NamedModel, data: str | None, scale: str, site: Site, with_train: bool = False) -> "Foreign":
        torch.set_num_threads(site.threads)
        model = find_model(named, site)
        chosen = evaluated_set(data, read_scale(scale), model.view, with_train)
        if chosen.folder:
            site = site.model_copy(update={"data": {**site.data, chosen.data.name: chosen.folder}})
        run = RunConfig(
            method=Supervised.Config(),
            model=ForeignModel(name=model.name.replace(".", "_"), arch=model.name, args=model.fitted.args),
            data=chosen.data,
            optim=OptimConfig(epochs=1, global_batch=2, micro_batch=2, base_lr=1.0),  # it is not trained
            init=f"{FILE}{model.file}",
            train=False,
        )
        results = results_of(scale)
        context = ForeignEvalContext(results, site, World(0, 1, device_of(site.device)), model=model)
        return cls(run, model, scale, results, site, context, chosen.folder)

    def lines(self) -> list[tuple[str, str]]:
        """What a reader must know before the numbers: titles and texts."""
        data: Any = self.run.data
        height, width = pair(data.image_size)
        numbers = (f"{key} {', '.join(f'{value:g}' for value in getattr(data, key))}" for key in ("mean", "std"))
        words = (
            f"{data.name}: {data.num_val} of {data.num_classes} classes, seen as {data.channels} x {height} x {width}"
        )
        lines = [*self.model.lines(), ("images", f"{words}, {', '.join(numbers)} ({self.model.view_source})")]
        if self.folder and self._fits_classes():
            self.prepare(data)
            classes = read_manifest(self.results.manifest(data.name)).classes or []
            self._refuse_other_order(classes)
            named = shortened([f"{label} {name}" for label, name in enumerate(classes)], 10)
            lines.append(("classes", f"{named}; outputs of the model are taken in this order"))
        return lines

    def _refuse_other_order(self, classes: list[str]) -> None:
        """Where config.json names the outputs, the folders of the same names must come in the same order."""
        names = [*self.model.label_names]
        if sorted(names) == sorted(classes) and names != classes:
            raise ConfigError(
                f"{self.folder} has the classes of the model in another order: found {shortened(classes)}, expected "
                f"{shortened(names)}, as config.json has them; rename the folders so that they sort in this order"
            )

    def _fits_classes(self) -> bool:
        data: Any = self.run.data
        return self.model.fitted.num_classes in (None, data.num_classes)

    def planned(self, name: str) -> PlannedEvaluation:
        """The evaluation under the name that the graph would give it; its data sets are prepared."""
        scale = read_scale(self.scale)
        file, content = fragment("eval", name, "evaluate")
        layers = Layers((file, content), (f"configs/scale/{self.scale}.yaml: eval.{name}", scale.eval.get(name, {})))
        evaluation: type[Evaluation] = EVALS.get(layers.merged()["name"])
        cfg = parse(evaluation.Config, layers)
        if evaluation.roles() != ("model",):
            raise ConfigError(f"{name} needs more than one model, or none; use it in a study, which names them")
        if reason := evaluation.refusal(cfg, {"model": self.run}):
            raise ConfigError(reason)
        if not self._fits_classes() and cfg.name not in WITHOUT_CLASSES:
            data: Any = self.run.data
            raise ConfigError(
                f"the model has {self.model.fitted.num_classes} classes, {data.name} has {data.num_classes}; expected "
                "the same, in the same order. These evaluations compare no output with a class and still apply: "
                f"{', '.join(WITHOUT_CLASSES)}"
            )
        sets: dict[str, BaseDataConfig] = {}
        for role, of_role in cfg.data.items():
            sets |= self._sets(role, of_role, scale)
        for each in sets.values():
            self.prepare(each)  # as it is published or made, whatever the model sees of it
        seen = {role: seen_by(each, self.model.view) for role, each in sets.items()}
        full_name = evaluation_name(name, evaluation_science(cfg, seen), {"model": self.run.name})
        return PlannedEvaluation(full_name, name, cfg, {"model": self.run}, seen)

    def prepare(self, data: BaseDataConfig) -> None:
        """Verify a set, or make it, unless that was done before."""
        manifest = self.results.manifest(data.name)
        if data.name in self.prepared or (manifest.exists() and not self._has_changed(data, manifest)):
            return
        folder = data_folder(self.site, data)
        log.info("preparing %s (only the first time)", data.name)
        own = self.run.data
        sources = PreparedSources(self.results, self.site, {own.name: own}, self._run_of)
        prepare(data, folder, manifest.parent, self.site.workers, sources=sources if source_set(data) else None)
        self.prepared.add(data.name)

    def _has_changed(self, data: BaseDataConfig, manifest: Path) -> bool:
        """Whether a folder of the command line holds other images than before; other sets are to stay as they are."""
        if self.folder is None or data.name != self.run.data.name:
            return False
        try:
            find_all_samples(data, self.folder, manifest.parent)
            return bool(reason_to_prepare(read_manifest(manifest), data, {}))
        except DataError:
            return True

    def _run_of(self, name: str) -> RunConfig:
        return parse_run(Layers((name, load_graph(self.scale).run(name).config)))

    def _sets(self, role: str, name: str, scale: Scale) -> dict[str, BaseDataConfig]:
        """The set of a role, or its parts."""
        file, content = fragment("data", scale.replace_data.get(name, name), "evaluate")
        data = parse_data(Layers((file, content)).below("data"), "data.")
        if reference_run(data):
            data = self._config_in_a_study(data)
        if source := source_set(data):
            origin = fragment("data", scale.replace_data.get(source, source), file)[1]["data"]["name"]
            if origin != self.run.data.folder_name:
                raise DataError(f"{data.name} is made from {origin}, which is not the set of the model")
            data = data.model_copy(update={"made_from": self.run.data.name})
        return {f"{role}/{part}": cfg for part, cfg in kind_of(data).parts().items()} or {role: data}

    def _config_in_a_study(self, data: Any) -> Any:
        """A set that is made with a run of a study, which must have been trained."""
        known = load_graph(self.scale).data.get(data.name)
        if known is None:
            raise DataError(f"{data.name} is made with a run, and no study has it at scale {self.scale}")
        try:
            self.results.run(known["reference"]).trained()
        except CheckpointError as error:
            raise DataError(f"{data.name} is made with a run that does not exist: {error}") from None
        return parse_data(Layers((data.name, known)))
