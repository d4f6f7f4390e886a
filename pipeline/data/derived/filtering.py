"""Making an adversarially filtered set: the validation images that a reference gets wrong, with confidence."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from pipeline.core.errors import DataError
from pipeline.data.derived.recipe import RECIPE, make_whole
from pipeline.data.images.images import ImageSet
from pipeline.data.kind import Sources, maker_code
from pipeline.data.readers.folder import class_folder

if TYPE_CHECKING:
    from pipeline.data.derived.filtered import FilteredConfig

VERSION = 1  # raised to have sets made again for a reason that this code does not show, such as other predictions


def make_filtered(cfg: "FilteredConfig", folder: Path, sources: Sources, progress: bool) -> None:
    """Write the images that the reference gets wrong, unless the folder has them."""
    if not (folder / RECIPE).exists() and folder.is_dir() and any(folder.iterdir()):
        raise DataError(
            f"{cfg.name}: {folder} holds files that were not made here and are no class folders; expected an empty "
            "folder, or none: name another one in the site file"
        )

    def write(draft: Path) -> None:
        samples, classes = sources.open(cfg.made_from), sources.classes(cfg.made_from)
        chosen = _choose(cfg, samples, sources.predict(cfg.reference))
        for index in tqdm(chosen, f"making {cfg.name}", unit="img", disable=None if progress else True):
            image, label = samples[index]
            path = draft / class_folder(classes[label]) / f"{index:06d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path)

    recipe = {
        "version": VERSION,
        "code": maker_code(cfg),
        "images": sources.fingerprint(cfg.made_from),
        "reference": sources.weights(cfg.reference),
        "min_confidence": cfg.min_confidence,
    }
    make_whole(folder, recipe, write)


def _choose(cfg: "FilteredConfig", samples: ImageSet, probabilities: np.ndarray) -> list[int]:
    """Indices of the images that the reference gets wrong with confidence."""
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
            f"{cfg.name}: {cfg.reference} classifies {len(chosen)} of {len(samples)} images wrongly with confidence "
            f"{cfg.min_confidence} or more ({int(wrong.sum())} with any), expected {cfg.min_images} (min_images); "
            "lower min_confidence or min_images in its config"
        )
    return chosen
