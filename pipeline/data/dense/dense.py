"""What the kinds `detection` and `segmentation` have in common: published files, or scenes that are made here."""

from pathlib import Path

from pipeline.data.dense.pictures import MODES, DenseConfig
from pipeline.data.derived.scene_files import is_foreign, make_scenes
from pipeline.data.kind import DataKind, Sources
from pipeline.data.samples import Split


class DenseKind(DataKind):
    """A set of pictures in which places are marked."""

    unit = "images"
    maker = "data/derived/scene_files.py"
    cfg: DenseConfig

    def is_there(self, folder: Path) -> bool:
        return is_foreign(folder)

    def make(self, folder: Path, sources: Sources, workers: int, progress: bool) -> None:
        make_scenes(self.cfg, folder, sources)

    def _set_mode(self, found: Split) -> Split:
        """Pictures in as many channels as the config says."""
        found.samples.mode = MODES[self.cfg.channels]
        return found
