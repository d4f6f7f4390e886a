"""What a kind of data is: how its sets are configured, read, seen and verified.

One file in this folder, one config class, `@KINDS.register("name")`; a data config names its kind. Opening, preparing
and loading a set (`opening.py`, `prepare.py`, `loader.py`) are the same for all kinds.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from pydantic import Field

from pipeline.core.config import Layers, Strict, added, parse
from pipeline.core.errors import ConfigError
from pipeline.core.naming import Name
from pipeline.core.registry import KINDS as KINDS
from pipeline.core.sizes import Size
from pipeline.core.source import PACKAGE, digest_behind
from pipeline.data.samples import Samples, Split, SplitName
from pipeline.data.store.cache import CacheRecord, SplitCache
from pipeline.data.store.inspection import inspect_samples
from pipeline.data.store.manifest import Manifest, SplitSummary
from pipeline.data.store.stamp import take_stamp
from pipeline.published_sets.sets import how_to_get
from pipeline.results import made_folder

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from pipeline.models.encoder import ModelConfig

Read = TypeVar("Read")
View = Callable[[Any], tuple[Any, Any]]  # a sample -> its inputs and targets, as a task collates them


class BaseDataConfig(Strict):
    """A data set as a run sees it; each kind adds its own fields. The counts are what `prepare` insists on."""

    # Fields that say which samples these are: with others, the set is prepared again.
    identity_fields: ClassVar[tuple[str, ...]] = ("num_train", "num_val")
    # Fields that say how samples are seen: runs may differ in them and mean the same set.
    view_fields: ClassVar[tuple[str, ...]] = ()
    # Fields on which the operations of a training step depend.
    cost_fields: ClassVar[tuple[str, ...]] = ()
    # Tasks that can use its targets; empty means any task.
    tasks: ClassVar[tuple[str, ...]] = ()
    # Whether its samples have labels that mean something.
    has_labels: ClassVar[bool] = True
    # Task of a method -> what it is on this kind of data, such as classify -> text_classify.
    own_tasks: ClassVar[Mapping[str, str]] = {}

    name: Name
    """Name of the set: its key in the site file and its folder below results/<scale>/data."""
    kind: str = added("images", before="images", description="a kind of data, by its name in the registry")
    num_train: int = Field(ge=0)
    """Number of training samples, which `prepare` compares with the folder; 0: a set for evaluations alone."""
    num_val: int = Field(gt=0)
    """Number of validation samples, which `prepare` compares with the folder."""

    @property
    def repeats(self) -> int:
        """Views of one sample in an epoch."""
        return 1

    @property
    def input_size(self) -> Size:
        """What an encoder sees of a sample: height and width; of a sequence, 1 and its length."""
        raise NotImplementedError

    @property
    def folder_name(self) -> str:
        """Its key in the site file; sets with `part_of`, a field of some kinds, lie in the folder of another."""
        return getattr(self, "part_of", None) or self.name

    @property
    def splits(self) -> tuple[SplitName, ...]:
        return ("train", "val") if self.num_train else ("val",)

    def task_of(self, task: str) -> str:
        """The task, by its name in the registry, that methods of a task have on this kind of data."""
        return self.own_tasks.get(task, task)

    def count(self, split: SplitName) -> int:
        """Number of samples the split must have."""
        return self.num_train if split == "train" else self.num_val

    def check(self, model: "ModelConfig", micro_batch: int) -> None:
        """Raise ValueError where a model or a micro-batch does not fit the data."""


class Sources(Protocol):
    """What sets are made from: other sets that were prepared, and trained runs."""

    def config(self, name: str) -> Any:
        """The config of a set."""

    def open(self, name: str, split: SplitName = "val") -> Any:
        """The samples of a split of a set, as they were verified."""

    def fingerprint(self, name: str, split: SplitName = "val") -> str:
        """Of the samples of a split of a set."""

    def classes(self, name: str) -> list[str]:
        """A set's own names of its classes, in the order of labels."""

    def predict(self, run: str) -> np.ndarray:
        """float32 (N, classes): probabilities that a trained run gives the validation samples of its own set."""

    def weights(self, run: str) -> str:
        """SHA-256 of a trained run's encoder."""


def source_set(cfg: BaseDataConfig) -> str | None:
    """The set whose samples this one is made from; a field of the kinds that are made."""
    return getattr(cfg, "made_from", None)


def reference_run(cfg: BaseDataConfig) -> str | None:
    """The run that chooses the samples of a set; a field of the kinds that need one."""
    return getattr(cfg, "reference", None)


class BatchTransform(Protocol):
    """From batches of views to what a model sees, on a device; of kinds whose samples have classes."""

    def __call__(self, inputs: Any, labels: "Tensor", /) -> "tuple[Tensor, Tensor]":
        """Training: inputs, and soft targets (B, classes). Random choices are seeded by the caller."""

    def normalise(self, inputs: Any, /) -> "Tensor":
        """Evaluation: the inputs; nothing is random."""


class DataKind(ABC):
    """One data set of this kind."""

    Config: ClassVar[type[BaseDataConfig]] = BaseDataConfig
    unit: ClassVar[str] = "samples"
    # The file of this package that makes sets of this kind, where there is one.
    maker: ClassVar[str] = ""
    # For people whose set is missing or wrong; configs/published_sets.yaml has the facts of published sets.
    layout: str = ""
    obtained: str = ""

    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg

    @abstractmethod
    def read(self, folder: Path, split: SplitName) -> Split:
        """The samples of a split as they are in the folder, none of them decoded, and all that is wrong."""

    @abstractmethod
    def train_view(self) -> View:
        """From a sample to what a training batch has of it; every random choice is seeded by the caller."""

    @abstractmethod
    def eval_view(self) -> View:
        """The same for evaluation; nothing is random."""

    def deferred(self, view: View) -> View | None:
        """Defer the part of a view that a GPU may do for whole batches; None where loader workers do all of it."""
        return None

    def batch_transform(self, smoothing: float, device: "torch.device") -> BatchTransform:
        """What classification does with batches of these views: as with images, unless a kind says otherwise."""
        from pipeline.data.images.transforms import ImageBatches

        return ImageBatches(self.cfg, smoothing, device)

    def find(self, folder: Path, split: SplitName, index: Path) -> Split:
        """Like `read`, for a set that was prepared: `index` is the folder of its manifest and lists."""
        return self.read(folder, split)

    def default_folder(self) -> Path | None:
        """The folder of a set that is part of this project, or is made by it."""
        return made_folder(self.cfg.folder_name) if source_set(self.cfg) else None

    def parts(self) -> Mapping[str, BaseDataConfig]:
        """The sets that a large one consists of, each prepared by a job of its own; none of an ordinary set."""
        return {}

    def is_there(self, folder: Path) -> bool:
        """Whether a folder already holds the set as published, so that nothing has to be made."""
        return False

    def make(self, folder: Path, sources: Sources, workers: int, progress: bool) -> None:
        """Write the files of a set with `made_from` where they are absent, or were made from something else."""
        raise NotImplementedError

    def origin(self) -> str:
        """How people get the set: the facts of the published one, or what its kind says."""
        made_from, source = source_set(self.cfg), getattr(self.cfg, "source", None)
        if made_from:
            return how_to_get(self.cfg.folder_name, None, f"`python -m pipeline prepare` makes it from {made_from}")
        return how_to_get(self.cfg.folder_name, source, self.obtained)

    def expected(self) -> str:
        """The counts in words."""
        return " and ".join(f"{self.cfg.count(split)} {split}" for split in self.cfg.splits) + f" {self.unit}"

    def is_count(self, split: SplitName, count: int) -> bool:
        """Whether the config allows a split to have so many samples."""
        return count == self.cfg.count(split)

    def count_problems(self, split: SplitName, found: Split) -> list[str]:
        """How a split differs from the numbers of the config."""
        # A split that could not be read has reported that already.
        if found.problems and not len(found.samples):
            return []
        if self.is_count(split, len(found.samples)):
            return []
        return [f"{split}: found {len(found.samples)} {self.unit}, expected {self.cfg.count(split)}"]

    def split_problems(self, splits: Mapping[SplitName, Split]) -> list[str]:
        """What does not fit between the splits."""
        return []

    def class_names(self, splits: Mapping[SplitName, Split]) -> list[str]:
        """The set's own names of its classes, in the order of labels."""
        return splits["val"].classes

    def inspect(self, splits: Mapping[SplitName, Split], workers: int, progress: bool) -> dict[SplitName, list[Any]]:
        """Decode every sample once; what was seen of each has num_bytes, digest and problem, as an Inspection has."""
        return {**inspect_samples(self.cfg.name, splits, workers, progress)}

    def sample_problems(self, samples: Any, looks: Sequence[Any]) -> list[str]:
        """One line for each sample that cannot be used."""
        return [f"{samples.name(index)}: {look.problem}" for index, look in enumerate(looks) if look.problem]

    def summary(self, samples: Any, looks: Sequence[Any]) -> SplitSummary:
        """What the manifest says of a good split."""
        return SplitSummary(**common_summary(samples, looks))

    def cache_record(self, split: SplitName, manifest: Manifest) -> CacheRecord | None:
        """How the images of a verified split are kept in a form that is faster to read; most kinds keep nothing."""
        return None

    def cache(self, folder: Path, split: SplitName, manifest: Manifest) -> SplitCache | None:
        """Where they are kept below a folder, if they are."""
        record = self.cache_record(split, manifest)
        return SplitCache(folder / self.cfg.name, split, record) if record else None

    def lists(self, splits: Mapping[SplitName, Split]) -> Mapping[str, str | bytes]:
        """Files beside the manifest that spare `find` a walk through the folder: name -> content."""
        return {}


@dataclass(frozen=True)
class PublishedSet(Generic[Read]):
    """How a published set is read, and what its folder holds."""

    read: Read
    layout: str
    obtained: str = ""  # where configs/published_sets.yaml does not have the set
    embedded: str = ""  # part of this project: a folder beside this file


class PublishedKind(DataKind):
    """A kind whose configs name one of its published sets as `source`."""

    def __init__(self, cfg: Any, source: Any) -> None:
        super().__init__(cfg)
        self.source, self.layout, self.obtained = source, source.layout, source.obtained

    def default_folder(self) -> Path | None:
        embedded = self.source.embedded
        return Path(__file__).parent / embedded if embedded else super().default_folder()


def common_summary(samples: Samples, looks: Sequence[Any]) -> dict[str, Any]:
    """What the summaries of all kinds have."""
    lines = sorted(f"{samples.line(index)}\t{look.digest}\n" for index, look in enumerate(looks))
    return {
        "count": len(samples),
        "bytes": sum(look.num_bytes for look in looks),
        # Of every name, label and content: the same data has the same fingerprint in any folder.
        "fingerprint": hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest(),
        "stamp": take_stamp(samples),
    }


def kind_of(cfg: BaseDataConfig) -> DataKind:
    return KINDS.get(cfg.kind)(cfg)


def maker_code(cfg: BaseDataConfig) -> str:
    """A digest of the code that makes a set from another one."""
    return digest_behind(PACKAGE / kind_of(cfg).maker)


def parse_data(layers: Layers, prefix: str = "") -> Any:
    """The config of a data set; the class of its kind checks the keys."""
    kind = layers.merged().get("kind", BaseDataConfig.model_fields["kind"].default)
    try:
        config = KINDS.get(kind).Config
    except ConfigError as error:
        raise ConfigError(f"{layers.origin(('kind',))}: {prefix}kind: {error}") from None
    return parse(config, layers, prefix)
