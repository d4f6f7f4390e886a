"""What an evaluation is: a pure function of its subjects, its data sets and its config that returns numbers and files.

One file, one config class, `compute`, `@EVALS.register("name")`. The parameters of `compute` are the roles of its
subjects: none, one (`model`), or several. Evaluations with the same subject and `group` share a process; each writes a
result of its own as soon as it is done.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from pipeline.core.config import Strict, science
from pipeline.core.registry import EVALS as EVALS
from pipeline.core.registry import TASKS
from pipeline.core.seeds import seed_everything
from pipeline.data.images.classified import DataConfig
from pipeline.data.images.transforms import eval_view
from pipeline.data.kind import BaseDataConfig
from pipeline.data.readers.classes import labels_in
from pipeline.data.samples import SplitName
from pipeline.data.store.manifest import Manifest, read_manifest
from pipeline.data.store.opening import open_for_evaluation
from pipeline.engine.batches import Source, open_evaluation, sizes_for
from pipeline.engine.compute.precision import Precision, in_precision, precision_of
from pipeline.engine.parallel.distributed import World
from pipeline.engine.run import RunConfig
from pipeline.engine.validate import Measure, measure_set
from pipeline.evals.finite import finite_outputs
from pipeline.evals.needs import Needs
from pipeline.evals.parts import Parts
from pipeline.evals.pictures import as_shown, one_per_class
from pipeline.methods.base import Batch, Method
from pipeline.results import ScaleFolder
from pipeline.results.records import ImageSet
from pipeline.site import Site, data_folder
from pipeline.tasks.base import Task
from pipeline.tasks.metrics import Metric, MetricValues

Percent = Annotated[int, Field(ge=0, lt=100)]  # a ratio in the name of a metric, such as at_55
BATCH = 128
COUNTED, ROUNDING = "it is counted, not sampled", "the largest difference of two computations: rounding"
Indices = Sequence[int] | np.ndarray
SCHEDULING = ("group", "needs")  # which evaluations share a process, and where it runs, change no number


class EvalConfig(Strict):
    """Fields every evaluation has. `code_epoch` is raised by hand when a change of code invalidates old results."""

    name: str
    """The evaluation, by its name in the registry."""
    code_epoch: int = Field(1, ge=1)
    """Raised by hand when a change of code makes earlier results wrong."""
    group: str = Field("quick", pattern=r"^[a-z0-9_]+$")
    """Evaluations of one run with the same group share a process."""
    needs: Needs = Needs()
    """What a job of it needs on a cluster."""
    seed: int = Field(0, ge=0)
    """Seed of every random choice."""
    data: dict[str, str] = Field(
        default_factory=dict, description="role -> data set (a file of configs/data), beside those of the subjects"
    )

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the numbers that `compute` returns with this config; a class attribute if it decides none."""
        return ()

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the pictures and arrays that `compute` returns with this config."""
        return ()

    def science(self) -> dict[str, Any]:
        """What of it decides the result; the data sets go into the name of a result with their own configs."""
        return {key: value for key, value in science(self).items() if key not in (*SCHEDULING, "data")}


@dataclass(frozen=True)
class Subject:
    """A trained run, or a weight file, under the role that an evaluation gives it."""

    run: RunConfig
    method: Any  # a Method of the kind that the evaluation is for


@dataclass(frozen=True)
class Outcome(MetricValues):
    """What an evaluation found: numbers with their errors and values per image, and files."""

    reasons: dict[str, str] = field(default_factory=dict)  # of metrics that it could not obtain
    images: str = ""  # which images, in which order, the values per image are of
    other_images: dict[str, ImageSet] = field(default_factory=dict)  # of metrics that are over others than the rest
    files: dict[str, bytes] = field(default_factory=dict)


class Evaluation:
    """One evaluation; `compute` returns what its config names."""

    Config: ClassVar[type[EvalConfig]] = EvalConfig
    # Roles of the data sets that its config must name.
    data_roles: ClassVar[tuple[str, ...]] = ()
    # Keys of the site that name files it reads; a result is finished for what they held.
    site_files: ClassVar[tuple[str, ...]] = ()
    # Whether it shows, changes or recovers the pixels of its subjects' images; classified sounds have none.
    needs_pixels: ClassVar[bool] = False
    # Whether it compares what must be identical: models run in exact float32 then, whatever the site says. In bf16,
    # rounding alone turns one answer in a thousand.
    is_exact: ClassVar[bool] = False
    # Patterns of metrics that have no standard error, such as bytes_*, and why; all others have one.
    without_error: ClassVar[Mapping[str, str]] = MappingProxyType({})
    # Whether something is trained on the train split of its subjects' data.
    needs_train: ClassVar[bool] = False
    # Whether it compares answers with labels, of its subjects' data or of its own sets. Who classifies was trained on
    # labels, so that this is about the others.
    needs_labels: ClassVar[bool] = False

    def __init__(
        self,
        cfg: EvalConfig,
        data: Mapping[str, Any],
        results: ScaleFolder,
        site: Site,
        world: World,
        parts: Parts | None = None,
    ) -> None:
        self.cfg, self.data, self.results, self.site, self.world = cfg, data, results, site, world
        self.parts = parts or Parts()

    def compute(self, *args: Any, **kwargs: Any) -> Outcome:
        """Its parameters are the roles of its subjects; each is given a Subject."""
        raise NotImplementedError

    def evaluate(self, **subjects: Subject) -> Outcome:
        """`compute`, with every output of the subjects checked before anything is kept or returned."""
        with finite_outputs(subject.method for subject in subjects.values()) as watch:
            self.parts = replace(self.parts, check=watch.refuse)
            return self.compute(**subjects)

    @classmethod
    @functools.cache
    def roles(cls) -> tuple[str, ...]:
        return tuple(inspect.signature(cls.compute).parameters)[1:]

    @classmethod
    def refusal(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        """Why it cannot be computed of these subjects, or nothing: its own reason, or data that it needs."""
        if reason := cls.reason_against(cfg, subjects):
            return reason
        others = [run.data for run in subjects.values() if not isinstance(run.data, DataConfig)]
        if cls.needs_pixels and others:
            return f"it needs images, and data set {others[0].name} is of kind {others[0].kind}"
        unlabelled = [run.data.name for run in subjects.values() if not run.data.has_labels]
        if cls.needs_labels and unlabelled:
            return f"the images of {unlabelled[0]} have no labels; evaluate a run that is finetuned on a labelled set"
        untrained = [run.data.name for run in subjects.values() if not run.data.num_train]
        if cls.needs_train and untrained:
            return f"data set {untrained[0]} has no train split to learn from (`evaluate --model` has one with --train)"
        return ""

    @classmethod
    def reason_against(cls, cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        """Why it does not apply to these subjects; the cell shows it. By default it applies to what classifies."""
        others = {run.method.name for run in subjects.values() if run.task != "classify"}
        return f"method {', '.join(sorted(others))} does not classify" if others else ""

    @classmethod
    def reason_without_error(cls, metric: str) -> str:
        """Why a metric has no standard error; empty if it has one."""
        return next((why for pattern, why in cls.without_error.items() if fnmatchcase(metric, pattern)), "")

    def manifest(self, data: BaseDataConfig) -> Manifest:
        return read_manifest(self.results.manifest(data.name))

    def labels_in(self, data: BaseDataConfig, other: BaseDataConfig) -> list[int]:
        """For each label of a set, the label that the class of the same name has in another."""
        return labels_in(self.results.manifest(data.name), self.results.manifest(other.name))

    def data_parts(self, role: str) -> dict[str, Any]:
        """The sets that a data set in parts consists of."""
        return {key.removeprefix(f"{role}/"): data for key, data in self.data.items() if key.startswith(f"{role}/")}

    def open(self, data: BaseDataConfig, split: SplitName = "val") -> Any:
        """The samples of a set, by default those of validation, as they are seen there."""
        index, cache = self.results.manifest(data.name).parent, self.site.cache
        is_read_here = self.site.workers == 0  # workers read files while the device computes
        return open_for_evaluation(data, data_folder(self.site, data), split, index, cache, is_read_here)

    def pictures_and_inputs(self, data: Any, count: int) -> tuple[Tensor, Tensor]:
        """Images of several classes as they are shown, uint8 (count, 3, H, W), and as a model sees them."""
        images = one_per_class(self.open(data), eval_view(data, data.eval_crop), count)
        inputs, _ = TASKS.get("classify")(data, self.world.device).eval_batch(images, torch.zeros(len(images)))
        return as_shown(images), inputs

    @property
    def model_precision(self) -> Precision:
        """In which models are run over images: that of the site, unless it is exact."""
        return "exact_fp32" if self.is_exact else precision_of(self.site, self.world.device)

    def precision_name(self) -> str:
        """The precision that its result names; float32 or float64 where its config or its purpose decides."""
        return self.model_precision

    def precision(self) -> AbstractContextManager:
        """Forward passes inside it are computed as in validation."""
        return in_precision(self.model_precision, self.world.device)

    def full_batch(self, data: BaseDataConfig) -> int:
        """Samples that fill the device, for who draws nothing."""
        return sizes_for(TASKS.get("classify")(data, self.world.device), self.world.device, BATCH).batch

    def batches(
        self, data: BaseDataConfig, split: SplitName = "val", indices: Indices | None = None, batch: int = BATCH
    ) -> Iterator[Batch]:
        """Samples of a split, all or those with these indices, in order, on the device, seen as in validation."""
        chosen = range(data.count(split)) if indices is None else indices
        yield from next(self.batches_of_parts(data, split, [chosen], batch))

    def batches_of_parts(
        self, data: BaseDataConfig, split: SplitName, parts: Sequence[Indices], batch: int
    ) -> Iterator[Iterator[Batch]]:
        """The batches of each part, to be used up before the next: loader workers start once for all of them."""
        task: Task = TASKS.get("classify")(data, self.world.device)
        for found in self.source(data, task, split).parts(parts, batch, self.label(data)):
            yield self._on_device(found, task)

    def _on_device(self, batches: Iterable[Any], task: Task) -> Iterator[Batch]:
        for number, (inputs, targets) in enumerate(batches):
            generator = torch.Generator().manual_seed(seed_everything("measure", self.cfg.seed, number))
            yield Batch(*task.eval_batch(inputs, targets), generator)

    def over_images(
        self,
        model: Method,
        data: BaseDataConfig,
        measure: Measure,
        crop: float | None = None,
        metric: Metric | None = None,
    ) -> Outcome:
        """Means over the validation samples of a set, seen as in validation, or images through another centre crop.

        `metric` is one of the task's kind, for who wants to ask it more.
        """
        seen = data if crop is None else data.model_copy(update={"eval_crop": crop})
        task: Task = TASKS.get(data.task_of(model.cfg.task))(seen, self.world.device)
        sizes = sizes_for(task, self.world.device, min(BATCH, task.at_once))
        batches = self.source(seen, task).once(sizes.batch, self.label(data))
        place = self.world, self.model_precision
        found = measure_set(model, batches, task, *place, measure, self.cfg.seed, metric, sizes)
        images = self.manifest(data).splits["val"].fingerprint
        return Outcome(found.metrics, found.errors, found.count, found.per_image, images=images)

    def source(self, data: BaseDataConfig, task: Task, split: SplitName = "val") -> Source:
        """The samples of a split, for a task that is not `classify`."""
        return open_evaluation(data, self.open(data, split), task, self.site, self.world)

    def label(self, data: BaseDataConfig) -> str:
        """What the bar of a pass over a set is called."""
        return f"{self.cfg.name} {data.name}"


def spread(count: int, limit: int | None) -> np.ndarray:
    """All indices of a split, or `limit` of them spread evenly over it."""
    return np.linspace(0, count - 1, min(limit or count, count)).round().astype(int)


def refused_by(reason: Callable[[Mapping[str, RunConfig]], str]) -> Any:
    """`reason_against` of an evaluation for which a function of the subjects gives the reason."""
    return classmethod(lambda cls, cfg, subjects: reason(subjects))


def only_for_task(task: str, what: str) -> Any:
    """`reason_against` of an evaluation of all methods of a task; `what` they do, in a word."""

    def reason_against(cls: type[Evaluation], cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        others = {run.method.name for run in subjects.values() if run.task != task}
        return f"method {', '.join(sorted(others))} does not {what}" if others else ""

    return classmethod(reason_against)


def only_for(*methods: str) -> Any:
    """`reason_against` of an evaluation that is for certain methods."""

    def reason_against(cls: type[Evaluation], cfg: EvalConfig, subjects: Mapping[str, RunConfig]) -> str:
        others = {run.method.name for run in subjects.values()} - set(methods)
        return f"it is for {' or '.join(methods)}, not for {', '.join(sorted(others))}" if others else ""

    return classmethod(reason_against)
