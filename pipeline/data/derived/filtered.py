"""Adversarially filtered sets (kind `filtered`): validation images that a reference model confidently gets wrong.

ImageNet-A was made so (Hendrycks et al., CVPR 2021): photographs that fool a ResNet-50 were kept. Here the reference is
a run of another architecture, trained on the same data, and an image is kept if its wrong answer has at least
`min_confidence`. The images are written as PNG in the layout of ImageNet-A, so that both are read alike; classes
without such an image have no folder.
"""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from pipeline.data.derived.filtering import make_filtered
from pipeline.data.derived.recipe import RECIPE, read_recipe
from pipeline.data.images.classified import ClassifiedImages, DataConfig
from pipeline.data.kind import KINDS, Sources
from pipeline.data.samples import Split, SplitName


class FilteredConfig(DataConfig):
    """A generated set; its number of images is known only afterwards."""

    identity_fields: ClassVar[tuple[str, ...]] = (
        *DataConfig.identity_fields,
        *("made_from", "reference", "min_confidence", "min_images"),
    )

    kind: str = "filtered"
    source: str = "class_folders"
    num_classes: int = Field(gt=0, description="the most that there can be: those of `made_from`")
    num_train: int = Field(0, ge=0, le=0)
    """Always 0: the set is for evaluations."""
    num_val: int = Field(0, ge=0)
    """Number of images; 0: as many as the reference gets wrong."""
    made_from: str = Field(description="the set whose validation images are filtered")
    reference: str = Field(description="the run that must get them wrong; in configs/data, its key in the study")
    min_confidence: float = Field(0.5, ge=0, lt=1, description="probability of the wrong class")
    min_images: int = Field(20, ge=1, description="with fewer images the set is refused")


@KINDS.register("filtered")
class FilteredImages(ClassifiedImages):
    Config: ClassVar[type[DataConfig]] = FilteredConfig
    maker = "data/derived/filtering.py"
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
        """Class folders without a recipe are the user's own: they are read as they are."""
        return not (folder / RECIPE).exists() and folder.is_dir() and any(path.is_dir() for path in folder.iterdir())

    def make(self, folder: Path, sources: Sources, workers: int, progress: bool) -> None:
        make_filtered(self.cfg, folder, sources, progress)


def _compared(found: Split, folder: Path, split: SplitName) -> Split:
    """Add a problem if the count differs from that in the recipe; the config need not state a count."""
    known, count = read_recipe(folder), len(found.samples)
    if known and "files" in known and (made := len(known["files"])) != count:
        found.problems.append(f"{split}: found {count} images, but {folder / RECIPE} says that {made} were made")
    return found
