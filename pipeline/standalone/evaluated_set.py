"""The set that a model of timm is evaluated on, as the model sees it.

A folder of class folders or a file of configs/data, as --data names it, or else the set that the scale has instead of
ImageNet-1K. Of a set with a train split only the validation images are needed, under a name of their own, unless
something is to be trained on the features of the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.config import CONFIGS, Layers, merge, names, nearest
from pipeline.core.errors import ConfigError
from pipeline.data.describe.evaluated import describe_for_evaluation
from pipeline.data.images.images import FileImages
from pipeline.data.kind import BaseDataConfig, kind_of, parse_data
from pipeline.evals.pictures import first_of_each_class
from pipeline.models.foreign import ForeignView
from pipeline.site import Site, data_folder
from pipeline.study.resolve.draft import fragment
from pipeline.study.spec import Scale

CLASSIFIED = "imagenet1k"  # what timm's classifiers are trained on; a scale may put another set in its place


@dataclass(frozen=True)
class EvaluatedSet:
    """A set, and its folder where the command line names one."""

    data: BaseDataConfig
    folder: Path | None = None


def evaluated_set(named: str | None, scale: Scale, view: ForeignView, with_train: bool) -> EvaluatedSet:
    """The set of this name, in the folder of this name, or the one of the scale."""
    if named is None:
        return EvaluatedSet(own_set(scale.replace_data.get(CLASSIFIED, CLASSIFIED), view, with_train))
    if named in names(CONFIGS / "data"):
        return EvaluatedSet(own_set(named, view, with_train))
    folder = _folder(named)
    data = describe_for_evaluation(folder, input_of(view), with_train)
    augment = data.augment.model_copy(update={"interpolation": view.interpolation})
    return EvaluatedSet(data.model_copy(update={"augment": augment, "eval_crop": view.crop}), folder)


@dataclass(frozen=True)
class LabelledImages:
    """Image files of a set, and their labels."""

    files: list[Path]
    labels: list[int]
    num_classes: int


def labelled_images(named: str, count: int, seen: Mapping[str, Any], site: Site) -> LabelledImages:
    """Validation images of the set of this name, or in the folder of this name: the first of each class in turn."""
    if named in names(CONFIGS / "data"):
        file, content = fragment("data", named, "attack")
        data = parse_data(Layers((file, content)).below("data"), "data.")
        folder = data_folder(site, data)
    else:
        folder = _folder(named)
        data = describe_for_evaluation(folder, seen)
    samples: Any = kind_of(data).read(folder, "val").samples
    if not isinstance(samples, FileImages):
        raise ConfigError(f"--data {named} has no image files (kind {data.kind}); name images with --image")
    chosen = first_of_each_class(samples.labels, count)
    files, labels = [samples.path(index) for index in chosen], [samples.labels[index] for index in chosen]
    return LabelledImages(files, labels, data.num_classes)


def _folder(named: str) -> Path:
    folder = Path(named).expanduser().absolute()
    if folder.is_dir():
        return folder
    near = nearest(named, names(CONFIGS / "data"))
    raise ConfigError(f"--data {named}: found no such folder, nor a file of configs/data; {near}")


def own_set(name: str, view: ForeignView, with_train: bool = False) -> BaseDataConfig:
    """The validation images of a set of configs/data, or all of its images."""
    file, content = fragment("data", name, "evaluate")
    whole = Layers((file, content)).below("data").merged()
    if (kind := whole.get("kind", "images")) != "images":
        raise ConfigError(
            f"--data {name} is of kind {kind}; expected images with classes, which models of timm classify"
        )
    val = {"name": f"{whole['name']}-val", "part_of": whole["name"], "num_train": 0}
    is_whole = with_train or not whole["num_train"]
    return seen_by(parse_data(Layers((file, whole if is_whole else merge(whole, val))), "data."), view)


def seen_by(data: Any, view: ForeignView) -> Any:
    """A set through the model's view; where nothing is stated for so many channels, the set's own mean and std."""
    if view.mean is None or view.std is None:
        if data.channels != view.channels:
            _statistics(view)
        return data.model_copy(update={"image_size": view.image_size or data.image_size})
    return data.model_copy(
        update={
            "image_size": _image_size(view),
            "channels": view.channels,
            "mean": view.mean,
            "std": view.std,
            "augment": data.augment.model_copy(update={"interpolation": view.interpolation}),
            # Images that are not cropped have their centre already, such as those of ImageNet-C.
            "eval_crop": view.crop if data.eval_crop < 1 else data.eval_crop,
        }
    )


def input_of(view: ForeignView) -> dict[str, Any]:
    """Keys of a data config for images of no set of their own."""
    return {"image_size": _image_size(view), "channels": view.channels, **_statistics(view)}


def input_of_data(data: Any) -> dict[str, Any]:
    """The same keys of another data config."""
    return {key: getattr(data, key) for key in ("image_size", "channels", "mean", "std")}


def _image_size(view: ForeignView) -> Any:
    if view.image_size is None:
        raise ConfigError("the model works at any image size, and none is stated for it; add --set img_size=N")
    return view.image_size


def _statistics(view: ForeignView) -> dict[str, Any]:
    if view.mean is None or view.std is None:
        raise ConfigError(
            f"no mean and std are stated for a model with {view.channels} channels; give those that it was trained "
            "with: --mean and --std, one value for each channel"
        )
    return {"mean": view.mean, "std": view.std}
