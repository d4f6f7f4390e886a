"""Classified images, the kind `images`: published sets in their published layouts, or your own folders of classes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from pipeline.core.config import added, nearest
from pipeline.core.sizes import Size
from pipeline.data.dense.pictures import MODES, check_pictures, check_statistics
from pipeline.data.images.augment import Augment
from pipeline.data.images.images import FileImages, ImageSet, class_problems
from pipeline.data.images.selection import with_classes
from pipeline.data.kind import KINDS, BaseDataConfig, PublishedKind, View, common_summary
from pipeline.data.readers.sources import SOURCES
from pipeline.data.samples import Split, SplitName, label_problems
from pipeline.data.store.cache import CacheRecord, eval_side, train_side
from pipeline.data.store.inspection import ImageInspection, image_problems, inspect_images
from pipeline.data.store.lists import read_list, written_list
from pipeline.data.store.manifest import ImageSummary, Manifest

if TYPE_CHECKING:
    from pipeline.models.encoder import ModelConfig

LIST_HEADER = ["path", "label"]


class DataConfig(BaseDataConfig):
    """A set of classified images."""

    identity_fields: ClassVar[tuple[str, ...]] = (
        *("source", "num_classes", "num_train", "num_val", "val_share"),
        *("only_classes", "without_classes", "upright"),
    )
    view_fields: ClassVar[tuple[str, ...]] = ("augment", "eval_crop", "image_size", "mean", "std")
    cost_fields: ClassVar[tuple[str, ...]] = ("image_size", "channels", "num_classes")
    has_attributes: ClassVar[bool] = False  # its labels are sets of attributes, not classes
    peak: ClassVar[float] = 255.0  # of what the views return; mean and std are those of values from 0 to 1

    source: str
    """Published layout in which the set is read, such as imagenet; folder: class folders of your own."""
    image_size: Size = Field(description="pixels along a side, or [height, width]")
    channels: Literal[1, 3]
    """1: grey, 3: colour. Images are converted."""
    num_classes: int = Field(gt=0, le=1_000_000)
    """Number of classes, which `prepare` compares with the folder."""
    val_share: float | None = Field(
        None, gt=0, lt=1, description="source folder: share of each class that is val; null: val is a separate folder"
    )
    only_classes: tuple[str, ...] | None = added(
        None, before=None, description="images of other classes are left out; names as the set has them"
    )
    without_classes: tuple[str, ...] | None = added(
        None, before=None, description="images of these classes are left out, such as classes held out of training"
    )
    part_of: str | None = added(
        None, before=None, description="the set whose folder holds these images; null: it has a folder of its own"
    )
    upright: bool = added(False, before=False, description="turn and mirror images by their EXIF orientation")
    mean: tuple[float, ...]
    """Mean of each channel, of pixels from 0 to 1; subtracted."""
    std: tuple[float, ...]
    """Standard deviation of each channel, of pixels from 0 to 1; divided by."""
    augment: Augment = Augment()
    """The training view."""
    eval_crop: float = Field(default=0.875, gt=0, le=1)
    """Evaluation resizes to `image_size` / `eval_crop` and crops the centre; 1.0 resizes only."""

    @field_validator("source")
    @classmethod
    def _is_known(cls, source: str) -> str:
        if source not in SOURCES:
            raise ValueError(f"unknown source; {nearest(source, SOURCES)}")
        return source

    @model_validator(mode="after")
    def _labels_fit_the_source(self) -> "DataConfig":
        source = SOURCES[self.source]
        if (source.has_attributes, source.has_labels) != (self.has_attributes, self.has_labels):
            kind = "attributes" if source.has_attributes else "images" if source.has_labels else "unlabelled"
            raise ValueError(f"source {self.source} is read by kind {kind}, found kind {self.kind}; set it so")
        if self.upright and not source.has_files:
            raise ValueError(f"upright is for images in files, and source {self.source} has none; leave it out")
        return self

    @model_validator(mode="after")
    def _share_fits_the_source(self) -> "DataConfig":
        if self.val_share is not None and "val_share" not in SOURCES[self.source].options:
            raise ValueError(
                f"val_share is {self.val_share}, but source {self.source} has a published split; leave it out"
            )
        # The val images of another set are still a share of all of its images.
        if self.val_share is not None and not self.num_train and not self.part_of:
            raise ValueError(f"val_share is {self.val_share}, but num_train is 0: nothing to split; leave it out")
        return self

    @model_validator(mode="after")
    def _chooses_classes_in_one_way(self) -> "DataConfig":
        only, without = self.only_classes, self.without_classes
        if only is not None and without is not None:
            raise ValueError("only_classes and without_classes are both given; keep one of them")
        for key, names in (("only_classes", only), ("without_classes", without)):
            if names is not None and (not names or len(set(names)) < len(names)):
                raise ValueError(f"{key} is {list(names)}; expected at least one name, and each of them once")
        if only is not None and len(only) != self.num_classes:
            raise ValueError(f"only_classes has {len(only)} names, num_classes is {self.num_classes}; make them equal")
        return self

    @model_validator(mode="after")
    def _one_statistic_per_channel(self) -> "DataConfig":
        check_statistics(self.channels, self.mean, self.std)
        return self

    @property
    def repeats(self) -> int:
        return self.augment.repeats

    @property
    def input_size(self) -> Size:
        return self.image_size

    def check(self, model: "ModelConfig", micro_batch: int) -> None:
        if (self.augment.mixup or self.augment.cutmix) and micro_batch % 2:
            raise ValueError(f"mixup and cutmix pair images, so optim.micro_batch {micro_batch} must be even")
        check_pictures(self.name, self.image_size, model)
        if model.is_windowed:
            raise ValueError(
                f"model.window_size {model.window_size} of a ViT is for detection and segmentation, and the images of "
                f"{self.name} have classes; remove it"
            )


@KINDS.register("images")
class ClassifiedImages(PublishedKind):
    Config: ClassVar[type[DataConfig]] = DataConfig
    unit = "images"
    cfg: DataConfig

    def __init__(self, cfg: DataConfig) -> None:
        super().__init__(cfg, SOURCES[cfg.source])

    def read(self, folder: Path, split: SplitName) -> Split:
        options = {key: getattr(self.cfg, key) for key in self.source.options}
        found = self.source.read(folder, split, **options)
        return self._set_mode(with_classes(found, self.cfg.only_classes, self.cfg.without_classes))

    def find(self, folder: Path, split: SplitName, index: Path) -> Split:
        """From the list that `prepare` wrote."""
        if not self.source.has_files:
            return self.read(folder, split)
        return self._set_mode(Split(_read_list(folder, index / f"{split}.csv")))

    def _set_mode(self, found: Split) -> Split:
        found.samples.mode, found.samples.upright = MODES[self.cfg.channels], self.cfg.upright
        return found

    def train_view(self) -> View:
        from pipeline.data.images.transforms import ImageView, train_view

        return ImageView(train_view(self.cfg, self.cfg.augment))

    def eval_view(self) -> View:
        from pipeline.data.images.transforms import ImageView, eval_view

        return ImageView(eval_view(self.cfg, self.cfg.eval_crop))

    def deferred(self, view: View) -> View | None:
        from pipeline.data.images.gpu.interface import defer_view
        from pipeline.data.images.transforms import ImageView

        return defer_view(view.view, self.cfg) if isinstance(view, ImageView) else None

    def expected(self) -> str:
        return f"{super().expected()} of {self.cfg.num_classes} classes"

    def count_problems(self, split: SplitName, found: Split) -> list[str]:
        return super().count_problems(split, found) + label_problems(split, found, self.cfg.num_classes, self.unit)

    def split_problems(self, splits: Mapping[SplitName, Split]) -> list[str]:
        return class_problems(splits)

    def class_names(self, splits: Mapping[SplitName, Split]) -> list[str]:
        """Those that the labels mean: a subset of a published set may have its first classes alone."""
        return super().class_names(splits)[: self.cfg.num_classes]

    def inspect(self, splits: Mapping[SplitName, Split], workers: int, progress: bool) -> dict[SplitName, list[Any]]:
        return {**inspect_images(self.cfg.name, splits, workers, progress)}

    def sample_problems(self, samples: ImageSet, looks: Sequence[ImageInspection]) -> list[str]:
        return image_problems(samples, looks, self.source.side)

    def summary(self, samples: ImageSet, looks: Sequence[ImageInspection]) -> ImageSummary:
        per_class = Counter(samples.labels)
        widths, heights = zip(*(look.size for look in looks), strict=True)
        return ImageSummary(
            **common_summary(samples, looks),
            classes=len(per_class),
            per_class_min=min(per_class.values()),
            per_class_max=max(per_class.values()),
            min_size=(min(widths), min(heights)),
            max_size=(max(widths), max(heights)),
            modes=dict(sorted(Counter(look.mode for look in looks).items())),
        )

    def cache_record(self, split: SplitName, manifest: Manifest) -> CacheRecord | None:
        """Of sets that runs train on and that are decoded from files."""
        cfg = self.cfg
        side = train_side(cfg.image_size) if split == "train" else eval_side(cfg.image_size, cfg.eval_crop)
        side = side or self.source.side  # images of one size are kept as they are, however they are evaluated
        if side is None or not (self.source.has_files and cfg.num_train):
            return None
        return CacheRecord(
            fingerprint=manifest.splits[split].fingerprint,
            side=side,
            interpolation=cfg.augment.interpolation,
            channels=cfg.channels,
            upright=cfg.upright,
        )

    def lists(self, splits: Mapping[SplitName, Split]) -> dict[str, str]:
        if not self.source.has_files:
            return {}
        return {f"{name}.csv": _list_of_files(split.samples) for name, split in splits.items()}


def _read_list(folder: Path, path: Path) -> FileImages:
    """The images that a list of `prepare` names."""
    rows = read_list(path, LIST_HEADER, int)
    return FileImages(folder, [name for name, _ in rows], [label for _, label in rows])


def _list_of_files(images: ImageSet) -> str:
    return written_list(LIST_HEADER, ((images.name(index), label) for index, label in enumerate(images.labels)))
