"""A run: one training job as data, and its name.

Science keys make the fingerprint: everything in RunConfig but how often to log and how many skips to bear. How often to
validate is one of them: the record has the best validation, which may decide what is exported.
What belongs to a machine is in `pipeline.site`, so moving to another cluster does not retrain. A field is part of the
fingerprint whether it equals its default or not: a changed default is another run. A field that a class gets later is
declared with `added`, which names the value of all runs from before, so that they keep their names.
"""

import yaml
from pydantic import Field, SerializeAsAny, ValidationError, model_validator

from pipeline.core.code import PluginNames
from pipeline.core.config import FILE, Layers, Strict, added, fingerprint, parse, problems, science
from pipeline.core.errors import ConfigError
from pipeline.core.registry import TASKS
from pipeline.data.kind import BaseDataConfig, parse_data
from pipeline.data.loader import BatchPlan
from pipeline.engine.optim import OptimConfig
from pipeline.methods.base import METHODS, MethodConfig
from pipeline.models.encoder import ModelConfig

NOT_SCIENCE = {"log_every", "max_skips"}
UNKNOWN = "unknown"  # stands for a method with problems, while those of the other keys are looked for


class RunConfig(Strict):
    """One training job: what to train, how, on what, from where."""

    method: SerializeAsAny[MethodConfig]
    """The training method and its keys."""
    model: ModelConfig
    """The architecture of the encoder."""
    data: SerializeAsAny[BaseDataConfig]
    """The data set, and how images or texts of it are seen."""
    optim: OptimConfig
    """The recipe: length, batch, learning rate, regularisation."""
    seed: int = Field(0, ge=0)
    """Seed of weights, batches and every other random choice."""
    init: str | None = Field(
        None, description="name of the run whose encoder this one starts from, or file:PATH, weights from elsewhere"
    )

    train: bool = added(True, before=True)
    """Whether the run is trained; false: the weights that `init` names are evaluated as they are."""

    @model_validator(mode="after")
    def _is_possible(self) -> "RunConfig":
        data, optim = self.data, self.optim
        if self.train and optim.global_batch > data.num_train:
            raise ValueError(f"optim.global_batch {optim.global_batch} exceeds data.num_train {data.num_train}")
        warmup = optim.warmup_steps(self.steps_per_epoch)
        if self.train and warmup >= self.total_steps:
            length = f"iterations {optim.iterations}" if optim.iterations else f"epochs {optim.epochs}"
            raise ValueError(
                f"a warm-up of {warmup} updates must be shorter than the training, which has {self.total_steps} "
                f"(optim.{length})"
            )
        data.check(self.model, optim.micro_batch)
        if data.tasks and self.task not in data.tasks and self.method.name != UNKNOWN:
            raise ValueError(
                f"data of kind {data.kind} is for the tasks {', '.join(data.tasks)}, but method {self.method.name} has "
                f"task {self.task}; choose another method or another data set"
            )
        self._check_labels()
        if not self.train and not (self.init or "").startswith(FILE):
            raise ValueError(f"train is false, so init must name a weight file (file:PATH); found init {self.init}")
        self.method.check(self.model, data.input_size)
        self._check_best()
        return self

    def _check_labels(self) -> None:
        if self.data.has_labels or self.method.name == UNKNOWN or not TASKS.get(self.task).needs_labels:
            return
        raise ValueError(
            f"the images of {self.data.name} have no labels, and {self.method.name} learns from labels; pretrain on "
            f"{self.data.name} with another method, and give {self.method.name} a labelled set"
        )

    def _check_best(self) -> None:
        """Both keys that need a metric to compare validations by."""
        if self.method.name == UNKNOWN or METHODS.get(self.method.name).primary or TASKS.get(self.task).primary:
            return
        if self.optim.keep == "best":
            raise ValueError(
                f"optim.keep is best, but method {self.method.name} has no metric to choose by; set it to last"
            )
        if self.optim.patience:
            raise ValueError(
                f"optim.patience is {self.optim.patience}, but method {self.method.name} has no metric to compare its "
                "validations by; set it to null"
            )

    @property
    def task(self) -> str:
        """Its name in the registry of tasks."""
        return self.data.task_of(self.method.task)

    @property
    def named(self) -> PluginNames:
        """What it names, and so which code trains it."""
        return PluginNames(self.method.name, self.task, self.data.kind)

    @property
    def steps_per_epoch(self) -> int:
        return self.data.num_train // self.optim.global_batch

    @property
    def total_steps(self) -> int:
        return self.optim.total_steps(self.steps_per_epoch)

    @property
    def length(self) -> str:
        """In a name: e300 are epochs, i80000 iterations."""
        return f"i{self.optim.iterations}" if self.optim.iterations else f"e{self.optim.epochs}"

    @property
    def fingerprint(self) -> str:
        content = science(self)
        optim = {key: value for key, value in content["optim"].items() if key not in NOT_SCIENCE}
        return fingerprint({**content, "optim": optim})

    @property
    def name(self) -> str:
        """For people, with the fingerprint for machines: mjp-vit_demo-fashion_mnist-e6-s0-3fa9c1b2."""
        if not self.train:
            return "-".join(["weights", self.model.name, self.data.name, self.fingerprint])
        parts = [self.method.name, self.model.name, self.data.name, self.length, f"s{self.seed}"]
        return "-".join([*parts, self.fingerprint])


def parse_run(layers: Layers) -> RunConfig:
    """Validate merged layers; the method's own class checks the keys below `method`. All problems at once."""
    content, lines = layers.merged(), []
    try:
        content["method"] = _parse_method(layers)
    except ConfigError as error:
        lines += str(error).splitlines()
        content["method"] = MethodConfig(name=UNKNOWN)
    reported = []
    try:
        content["data"] = parse_data(layers.below("data"), "data.")
    except ConfigError as error:
        lines += str(error).splitlines()
        content["data"], reported = None, ["data"]
    try:
        run = RunConfig.model_validate(content)
    except ValidationError as error:
        lines += problems(error, RunConfig, layers, reported=reported)
    if lines:
        raise ConfigError("\n".join(lines))
    return run


def _parse_method(layers: Layers) -> MethodConfig:
    below = layers.below("method")
    try:
        method = METHODS.get(below.merged().get("name", ""))
    except ConfigError as error:
        raise ConfigError(f"{below.origin(('name',))}: method.name: {error}") from None
    return parse(method.Config, below, "method.")


def batch_plan(run: RunConfig) -> BatchPlan:
    return BatchPlan(
        seed=run.seed,
        num_images=run.data.num_train,
        repeats=run.data.repeats,
        epochs=-(-run.total_steps // run.steps_per_epoch),
        global_batch=run.optim.global_batch,
        num_micro=run.optim.num_micro,
    )


def check_world(run: RunConfig, size: int) -> None:
    """Refuse a number of processes that would change the global batch."""
    if run.optim.num_micro % size:
        fitting = [str(n) for n in range(1, run.optim.num_micro + 1) if run.optim.num_micro % n == 0]
        raise ConfigError(
            f"{run.name}: {size} processes cannot share a global batch of {run.optim.global_batch} in micro-batches of "
            f"{run.optim.micro_batch}; use {', '.join(fitting)} processes, or change optim.micro_batch"
        )


def resolved_yaml(run: RunConfig) -> str:
    return yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False, width=110)
