"""A model of timm as a command names it: its name, weights and arguments, and how it sees images.

What the command line, the config.json beside a weight file and the file itself tell must agree. The view of images is
that of the command line, else of config.json, else timm's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pipeline.core.config import FILE, shown
from pipeline.core.errors import CheckpointError, ConfigError
from pipeline.models.fitting import IMAGE_SIZE, FittedModel, build_on_meta, classifier_of, fit, shown_facts
from pipeline.models.foreign import ForeignView, download, view_of
from pipeline.permutation.stated_model import StatedModel, find_stated_model, refuse_contradiction
from pipeline.site import Site, weights_path

STATISTICS = ("mean", "std")


@dataclass(frozen=True)
class NamedModel:
    """What the command line says of a model."""

    name: str
    weights: Path | None = None  # None: timm's own, downloaded
    settings: Sequence[str] = ()  # KEY=VALUE, of timm.create_model
    may_resample: bool = False  # positions, where the image size is given and is another one
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def arguments(self) -> dict[str, Any]:
        """`settings`, with values read as YAML."""
        found: dict[str, Any] = {}
        for setting in self.settings:
            key, equals, value = setting.partition("=")
            if not (key.isidentifier() and equals and value):
                raise ConfigError(f"--set {setting}: expected KEY=VALUE, such as img_size=96")
            try:
                found[key] = yaml.safe_load(value)
            except yaml.YAMLError:
                raise ConfigError(
                    f"--set {setting}: {value!r} cannot be read; expected a number, word or list"
                ) from None
        return found


@dataclass(frozen=True)
class FoundModel:
    """The model that is meant, with the sizes of its file."""

    name: str
    file: Path
    fitted: FittedModel
    view: ForeignView
    view_source: str  # in words
    classifier: str  # its name in the file
    label_names: tuple[str, ...] = ()  # by config.json, where it has them

    def lines(self) -> list[tuple[str, str]]:
        """What a reader must know of it: titles and texts."""
        fitted = self.fitted
        told = f"{shown_facts(fitted.read)} (from its file)" if fitted.read else ""
        given = shown_facts({key: value for key, value in fitted.args.items() if key not in fitted.read})
        classes = "no classifier" if fitted.num_classes is None else f"{fitted.num_classes} classes"
        words = [self.name, f"{given} (as stated)" if given else "", told, classes, shown(self.file)]
        lines = [("model", "; ".join(filter(None, words)))]
        if fitted.resampled:
            lines.append(("positions", f"resampled {fitted.resampled}, as asked: not the model of the file any more"))
        return lines


def find_model(named: NamedModel, site: Site) -> FoundModel:
    """The model, after comparing everything that is said of it; its weights are fetched where no file is given."""
    view_of(named.name)  # so that a mistyped name is refused before anything is fetched
    arguments = named.arguments()
    if named.may_resample and IMAGE_SIZE not in arguments:
        raise ConfigError("--resample-positions needs the image size to resample to; add --set img_size=N")
    if named.weights:
        file = named.weights.expanduser().absolute()
        if not file.exists():
            raise CheckpointError(f"--weights {file} not found; expected a weight file, safetensors or .pth")
        stated = find_stated_model(file, named.name)
    else:
        file, stated = download(named.name, weights_path(site, f"{FILE}{named.name}.safetensors")), None
    fitted = fit(named.name, _collect_arguments(named, arguments, stated), file, named.may_resample)
    if stated and fitted.num_classes is not None and (classes := stated.config.get("num_classes")) is not None:
        refuse_contradiction(
            f"the number of classes of {file}", {"its tensors": fitted.num_classes, "config.json": classes}
        )
    view = view_of(named.name, stated.view if stated else None).of_file(fitted)
    view, source = _with_statistics(view, named, stated)
    classifier = classifier_of(build_on_meta(named.name, fitted.args))
    return FoundModel(named.name, file, fitted, view, source, classifier, _label_names(stated))


def _label_names(stated: StatedModel | None) -> tuple[str, ...]:
    found = stated.config.get("label_names") if stated else None
    return tuple(map(str, found)) if isinstance(found, list) else ()


def _collect_arguments(named: NamedModel, arguments: dict[str, Any], stated: StatedModel | None) -> dict[str, Any]:
    """Arguments of the command line and of config.json."""
    config = stated.config if stated else {}
    recorded = dict(config.get("model_args") or {})
    if isinstance(pool := config.get("global_pool"), str):
        recorded = {"global_pool": pool} | recorded
    if stated and (seen := stated.view.get("input_size")):
        recorded = {IMAGE_SIZE: seen[1] if seen[1] == seen[2] else tuple(seen[1:])} | recorded
    for key in arguments.keys() & recorded.keys():
        if not (key == IMAGE_SIZE and named.may_resample):
            said = {"--set": str(arguments[key]), "config.json": str(recorded[key])}
            refuse_contradiction(f"{key} of {named.weights}", said)
    return {**recorded, **arguments}


def _with_statistics(view: ForeignView, named: NamedModel, stated: StatedModel | None) -> tuple[ForeignView, str]:
    """The view with --mean and --std, and where its mean and std come from."""
    given = {key: tuple(value) for key in STATISTICS if (value := getattr(named, key)) is not None}
    if len(given) == 1:
        raise ConfigError(f"--{next(iter(given))} is given without the other of --mean and --std; give both")
    for key, values in given.items():
        if len(values) != view.channels:
            raise ConfigError(
                f"--{key} has {len(values)} values, the model has {view.channels} channels; give one each"
            )
    if given:
        return replace(view, mean=given["mean"], std=given["std"]), "as given"
    if view.mean is None:
        return view, "of the data set"
    return view, "of config.json" if stated and "mean" in stated.view else f"timm's for {named.name}"
