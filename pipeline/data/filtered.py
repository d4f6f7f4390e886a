"""An adversarially filtered set, the kind `filtered`: validation images that a reference model gets wrong, surely.

ImageNet-A was made so (Hendrycks et al., CVPR 2021): photographs that fool a ResNet-50 were kept. Here the reference is
a run of another architecture, trained on the same data, and an image is kept if its wrong answer has at least
`min_confidence`. The images are written as PNG in the layout of ImageNet-A, so that both are read alike; a class none
of whose images fools the reference has no folder.
"""

from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field, ValidationError
from tqdm import tqdm

from pipeline.config import Strict
from pipeline.data.classified import ClassifiedImages, DataConfig
from pipeline.data.folder import class_folder
from pipeline.data.images import ImageSet
from pipeline.data.kind import KINDS, Sources
from pipeline.data.samples import Split, SplitName
from pipeline.errors import DataError
from pipeline.files import draft_of, explained, remove_folder, write_json

RECIPE = "made.json"
VERSION = 1  # of the code that makes the files; another one makes them again


class FilteredConfig(DataConfig):
    """A set that is made; how many images it has is known afterwards."""

    counted: ClassVar[tuple[str, ...]] = (
        *DataConfig.counted,
        *("made_from", "reference", "min_confidence", "min_images"),
    )

    kind: str = "filtered"
    source: str = "class_folders"
    num_classes: int = Field(gt=0, description="the most that there can be: those of `made_from`")
    num_train: int = Field(0, ge=0, le=0)
    num_val: int = Field(0, ge=0, description="0: as many as the reference gets wrong")
    made_from: str = Field(description="the set whose validation images are filtered")
    reference: str = Field(description="the run that must get them wrong; in configs/data, its key in the study")
    min_confidence: float = Field(0.5, ge=0, lt=1, description="probability of the wrong class")
    min_images: int = Field(20, ge=1, description="with fewer images the set is refused")


class _Recipe(Strict):
    """What the files in a folder were made from."""

    version: int
    images: str  # fingerprint of the validation images of `made_from`
    reference: str  # SHA-256 of the reference's encoder
    min_confidence: float
    count: int = 0


@KINDS.register("filtered")
class FilteredImages(ClassifiedImages):
    Config: ClassVar[type[DataConfig]] = FilteredConfig
    cfg: FilteredConfig

    def expected(self) -> str:
        if self.cfg.num_val:
            return super().expected()
        return f"{self.cfg.min_images} val {self.unit} or more, of at most {self.cfg.num_classes} classes"

    def is_count(self, split: SplitName, count: int) -> bool:
        return count >= self.cfg.min_images and self.cfg.num_val in (0, count)

    def count_problems(self, split: SplitName, found: Split) -> list[str]:
        count, classes = len(found.samples), len(set(found.samples.labels))
        problems: list[str] = []
        if found.problems and not count:  # it has reported that already
            return problems
        if not self.is_count(split, count):
            problems.append(f"{split}: found {count} {self.unit}, expected {self.cfg.num_val or self.cfg.min_images}")
        if classes > self.cfg.num_classes:
            problems.append(f"{split}: found images of {classes} classes, expected at most {self.cfg.num_classes}")
        return problems

    def read(self, folder: Path, split: SplitName) -> Split:
        return _compared(super().read(folder, split), folder, split)

    def find(self, folder: Path, split: SplitName, index: Path) -> Split:
        return _compared(super().find(folder, split, index), folder, split)

    def is_there(self, folder: Path) -> bool:
        """Class folders that were not made here are somebody's own: they are read as they are."""
        return not (folder / RECIPE).exists() and folder.is_dir() and any(path.is_dir() for path in folder.iterdir())

    def make(self, folder: Path, sources: Sources, workers: int, progress: bool) -> None:
        cfg = self.cfg
        recipe = _Recipe(
            version=VERSION,
            images=sources.fingerprint(cfg.made_from),
            reference=sources.weights(cfg.reference),
            min_confidence=cfg.min_confidence,
        )
        if _is_made(folder, recipe):
            return
        if not (folder / RECIPE).exists() and folder.is_dir() and any(folder.iterdir()):
            raise DataError(
                f"{cfg.name}: {folder} holds files that were not made here and are no class folders; expected an empty "
                "folder, or none: name another one in the site file"
            )
        samples, classes = sources.open(cfg.made_from), sources.classes(cfg.made_from)
        chosen = self._chosen(samples, sources.predict(cfg.reference))
        # Made beside the folder and moved there when it is whole: a kill never leaves half a set, or two mixed.
        draft = draft_of(folder)
        for index in tqdm(chosen, f"making {cfg.name}", unit="img", disable=None if progress else True):
            image, label = samples[index]
            path = draft / class_folder(classes[label]) / f"{index:06d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path)
        write_json(draft / RECIPE, recipe.model_copy(update={"count": len(chosen)}).model_dump())
        remove_folder(folder)
        with explained(folder):
            draft.replace(folder)

    def _chosen(self, samples: ImageSet, probabilities: np.ndarray) -> list[int]:
        """Indices of the images that the reference gets wrong with confidence."""
        cfg = self.cfg
        if len(probabilities) != len(samples):
            raise DataError(
                f"{cfg.name}: run {cfg.reference} gave {len(probabilities)} predictions for the {len(samples)} images "
                f"of {cfg.made_from}; expected a reference that was trained on {cfg.made_from}: name another run"
            )
        confidences = probabilities.max(axis=1)
        wrong = probabilities.argmax(axis=1) != np.asarray(samples.labels)
        chosen = np.flatnonzero(wrong & (confidences >= cfg.min_confidence)).tolist()
        if len(chosen) < cfg.min_images:
            raise DataError(
                f"{cfg.name}: {cfg.reference} gets {len(chosen)} of {len(samples)} images wrong with a confidence of "
                f"{cfg.min_confidence} or more ({int(wrong.sum())} with any), expected {cfg.min_images} (min_images); "
                "lower min_confidence or min_images in its config"
            )
        return chosen


def _compared(found: Split, folder: Path, split: SplitName) -> Split:
    """The config does not say how many images there are, but whoever made them has counted them."""
    known, count = _read_recipe(folder), len(found.samples)
    if known and known.count != count:
        found.problems.append(f"{split}: found {count} images, but {folder / RECIPE} says that {known.count} were made")
    return found


def _is_made(folder: Path, recipe: _Recipe) -> bool:
    """Whether a folder holds what this recipe makes, whole."""
    count = sum(1 for _ in folder.glob("*/*.png"))
    return _read_recipe(folder) == recipe.model_copy(update={"count": count})


def _read_recipe(folder: Path) -> _Recipe | None:
    try:
        return _Recipe.model_validate_json((folder / RECIPE).read_bytes())
    except (OSError, ValidationError):
        return None
