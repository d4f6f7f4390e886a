"""Writing scenes in the layouts of COCO and of ADE20K, file by file as these are published.

`making.py` says when a set is made again.
"""

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from pipeline.core.files import explained, write_atomic
from pipeline.data.dense.outlines import bounds, compressed, run_lengths
from pipeline.data.derived.recipe import RECIPE, make_whole
from pipeline.data.derived.scenes import SIDE, Composed, compose
from pipeline.data.kind import Sources, maker_code
from pipeline.data.readers.ade20k import PARTS
from pipeline.data.readers.coco import ANNOTATIONS, IMAGES
from pipeline.data.samples import SplitName

if TYPE_CHECKING:
    from pipeline.data.dense.pictures import DenseConfig

VERSION = 1  # raised to have sets made again for a reason that this code does not show, such as another Pillow
QUALITY = 95
BACKGROUND = "background"
SPLITS: tuple[SplitName, SplitName] = ("train", "val")


def is_foreign(folder: Path) -> bool:
    """Whether a folder holds files that were not made here: they are read as they are."""
    return folder.is_dir() and any(folder.iterdir()) and not (folder / RECIPE).exists()


def make_scenes(cfg: "DenseConfig", folder: Path, sources: Sources) -> None:
    """Compose the scenes of both splits, unless the folder has them."""
    assert cfg.made_from
    origin = cfg.made_from
    write_files = {"detection": write_coco, "segmentation": write_ade20k}[cfg.kind]

    def write(draft: Path) -> None:
        scenes = {split: _composed(sources.open(origin, split), split, _number(cfg, split)) for split in SPLITS}
        write_files(draft, scenes, sources.classes(origin))

    recipe = {
        "version": VERSION,
        "code": maker_code(cfg),
        "kind": cfg.kind,
        "made_from": {split: sources.fingerprint(origin, split) for split in SPLITS},
        "scenes": {split: _number(cfg, split) for split in SPLITS},
    }
    make_whole(folder, recipe, write)


def _number(cfg: "DenseConfig", split: SplitName) -> int:
    """Scenes of a split: the empty one of train is one that the config does not count, where it leaves such out."""
    return cfg.count(split) + (split == "train" and getattr(cfg, "drop_empty", False))


def _composed(garments: Any, split: SplitName, number: int) -> list[Composed]:
    return [compose(garments, split, place) for place in range(number)]


# COCO


def write_coco(folder: Path, scenes: Mapping[SplitName, list[Composed]], classes: list[str]) -> None:
    """The pictures and the lists. Ids of categories leave out a number, as COCO's do."""
    ids = [number + (number > len(classes) // 2) for number in range(1, len(classes) + 1)]
    categories = [
        {"supercategory": "garment", "id": number, "name": name} for number, name in zip(ids, classes, strict=True)
    ]
    for split, found in scenes.items():
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for place, scene in enumerate(found):
            number = place + 1
            file = f"{number:012d}.jpg"
            _save(folder / IMAGES[split] / file, scene.pixels, "JPEG")
            images.append({"id": number, "file_name": file, "width": SIDE, "height": SIDE})
            annotations += _annotations(scene, number, ids, 1 + len(annotations))
        content = {"info": _info(), "images": images, "annotations": annotations, "categories": categories}
        write_atomic(folder / ANNOTATIONS[split], json.dumps(content).encode())


def _annotations(scene: Composed, image: int, ids: list[int], first: int) -> Iterable[dict[str, Any]]:
    """One for each garment or heap; the run lengths of a heap are not compressed, as those of COCO's crowds."""
    for place, (label, crowd) in enumerate(zip(scene.labels, scene.crowds, strict=True)):
        mask = scene.mask(place)
        left, top, right, bottom = map(int, bounds(mask[None])[0])
        runs = run_lengths(mask)
        text = compressed(np.array(runs), SIDE, SIDE).decode("ascii")
        yield {
            "id": first + place,
            "image_id": image,
            "category_id": ids[label],
            "iscrowd": int(crowd),
            "area": int(mask.sum()),
            "bbox": [left, top, right - left, bottom - top],
            "segmentation": {"size": [SIDE, SIDE], "counts": runs if crowd else text},
        }


def _info() -> dict[str, str]:
    return {"description": "scenes composed of garments of another set; masks are their visible parts"}


# ADE20K


def write_ade20k(folder: Path, scenes: Mapping[SplitName, list[Composed]], classes: list[str]) -> None:
    """The pictures, the classes of their pixels, and the names of the classes, the background being the last."""
    names = [*classes, BACKGROUND]
    maps = {split: [class_map(scene, len(names)) for scene in found] for split, found in scenes.items()}
    for split, found in scenes.items():
        for place, (scene, labels) in enumerate(zip(found, maps[split], strict=True)):
            name = f"{PARTS[split]}/ADE_{split}_{place + 1:08d}"
            _save(folder / "images" / f"{name}.jpg", scene.pixels, "JPEG")
            _save(folder / "annotations" / f"{name}.png", labels, "PNG")
    rows = [["Idx", "Ratio", "Train", "Val", "Name"]]
    pixels = np.concatenate([np.stack(found).reshape(-1) for found in maps.values()])
    for number, name in enumerate(names, 1):
        images = [str(sum((labels == number).any() for labels in maps[split])) for split in SPLITS]
        rows.append([str(number), f"{(pixels == number).mean():.4f}", *images, name])
    text = "".join("\t".join(row) + "\n" for row in rows)
    write_atomic(folder / f"objectInfo{len(names)}.txt", text.encode())


def class_map(scene: Composed, background: int) -> np.ndarray:
    """uint8 (SIDE, SIDE): 1 + class of the garment, or the background; 0 for the rim of garments, which is neither."""
    found = np.array([background, *[label + 1 for label in scene.labels]], dtype=np.uint8)[scene.owners]
    garment = np.pad(scene.owners > 0, 1)
    beside = garment[:-2, 1:-1] | garment[2:, 1:-1] | garment[1:-1, :-2] | garment[1:-1, 2:]
    found[beside & (scene.owners == 0)] = 0
    return found


def _save(path: Path, pixels: np.ndarray, kind: str) -> None:
    """Not synced to the disk: the folder gets its name when all is there."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **({"quality": QUALITY} if kind == "JPEG" else {}))
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(buffer.getvalue())
