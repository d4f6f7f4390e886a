"""Small sets of corrupted images, made and prepared for real from a small set that is prepared already."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.data.derived.corrupted import CorruptedImages
from pipeline.data.kind import kind_of
from pipeline.data.readers.classes import class_names
from pipeline.data.store.manifest import read_manifest
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare
from pipeline.results import ScaleFolder


@dataclass(frozen=True)
class OneSource:
    """What sets are made from: one prepared set."""

    data: Any
    folder: Path
    results: ScaleFolder

    def config(self, name):
        return self.data

    def open(self, name):
        return open_split(self.data, self.folder, "val", self.results.manifest(name).parent)

    def fingerprint(self, name):
        return read_manifest(self.results.manifest(name)).splits["val"].fingerprint

    def classes(self, name):
        return class_names(self.results.manifest(name))


def corrupted_config(data, **changes) -> CorruptedImages.Config:
    """Of a set that is made from the first image of each class of another."""
    values = {
        "name": f"{data.name}_c",
        "made_from": data.name,
        "table": "cifar",
        "image_size": data.image_size,
        "source_crop": 1.0,
        "quality": None,
        "per_class": 1,
        "channels": data.channels,
        "num_classes": data.num_classes,
        "num_val": data.num_classes,
        "mean": data.mean,
        "std": data.std,
    }
    return CorruptedImages.Config(**{**values, **changes})


def prepared_parts(cfg, source: OneSource, folder: Path) -> dict[str, CorruptedImages.Config]:
    """The parts of a set, each made and prepared once."""
    parts = dict(kind_of(cfg).parts())
    for data in parts.values():
        if source.results.manifest(data.name).exists() and folder.is_dir():
            continue
        prepare(data, folder, source.results.manifest(data.name).parent, progress=False, sources=source)
    return parts


def sets_of_roles(kind, data, folder, results, **changes) -> tuple[dict[str, Any], dict[str, Path]]:
    """A prepared set in all data roles of an evaluation, or its corrupted parts, and the folders of what was made."""
    if "corrupted" not in kind.data_roles:
        return dict.fromkeys(kind.data_roles, data.model_copy(update=changes)), {}
    cfg, made = corrupted_config(data), results.folder / "corrupted"
    parts = prepared_parts(cfg, OneSource(data, folder, results), made)
    return {f"corrupted/{name}": part.model_copy(update=changes) for name, part in parts.items()}, {cfg.name: made}
