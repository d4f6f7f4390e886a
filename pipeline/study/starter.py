"""A study that is ready to run on a set of one's own: pretraining with each method, finetuning where there are labels.

What depends on the set is worked out here: patches that divide its images, epochs and batches that suit their number.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.config import CONFIGS, Layers, read_yaml, shown
from pipeline.core.errors import ConfigError
from pipeline.core.naming import RULES
from pipeline.core.sizes import Size, pair
from pipeline.data.images.classified import DataConfig
from pipeline.data.kind import parse_data

WRITTEN_BY = "Written by `python -m pipeline describe`"
METHODS = {"mp3": "MP3", "droppos": "DropPos", "mae": "MAE"}
LEAST_IMAGES = 16  # of train: four batches of four
SMALLEST_GRID, LARGEST_GRID = 3, 32  # patches along a side


@dataclass(frozen=True)
class Machine:
    """What trainings on a machine may cost: a model, and images seen with the fewest and most epochs."""

    model: str
    in_words: str
    decoder: str
    base_lr: float
    largest_batch: int
    pretraining: tuple[int, int, int]
    finetuning: tuple[int, int, int]


GPU = Machine(
    model="deit_ti",
    in_words="DeiT-Ti",
    decoder="{decoder_width: 192, decoder_depth: 2, decoder_heads: 3}",
    base_lr=1e-3,
    largest_batch=256,
    pretraining=(1_000_000, 50, 400),
    finetuning=(500_000, 30, 200),
)
# About a minute a run on one core. It shows whether everything works, and differences that are large.
CPU = Machine(
    model="vit_demo",
    in_words="a ViT of two blocks, trained for minutes because this machine has no GPU (with one, describe again)",
    decoder="{decoder_width: 48, decoder_depth: 1, decoder_heads: 2}",
    base_lr=2e-3,
    largest_batch=32,
    pretraining=(30_000, 10, 100),
    finetuning=(20_000, 10, 60),
)


@dataclass(frozen=True)
class Training:
    """What the study says of the trainings on one set."""

    data: str
    images: int
    optim: str

    @classmethod
    def on(
        cls, data: DataConfig, length: tuple[int, int, int], largest_batch: int, smoothing: float | None = None
    ) -> "Training":
        images_seen, least, most = length
        epochs = min(max(round(images_seen / data.num_train / 10) * 10, least), most)
        batch = min(largest_batch, 2 ** int(math.log2(data.num_train / 4)))
        keys = {"epochs": epochs, "warmup_epochs": epochs // 10, "global_batch": batch, "micro_batch": batch}
        keys |= {"smoothing": smoothing} if smoothing else {}
        return cls(data.name, data.num_train, "{" + ", ".join(f"{key}: {value}" for key, value in keys.items()) + "}")


def study_name(data: str) -> str:
    """The study of a data set; studies have plainer names, and none is called as a rule of the workflow."""
    name = re.sub("[^a-z0-9_]", "_", data.lower())
    return f"{name}_study" if name in RULES else name


def study_path(name: str) -> Path:
    return CONFIGS / "study" / f"{name}.yaml"


def new_study(data: Any, labelled: DataConfig | None, machine: Machine, force: bool) -> tuple[Path, str]:
    """The path of a set's study and its text; an edited study is replaced with `force`, a foreign one never."""
    study = study_name(data.name)
    text, path = study_text(study, data, labelled, machine), study_path(study)
    known = path.read_text(encoding="utf-8") if path.exists() else text
    if known != text and WRITTEN_BY not in known:
        raise ConfigError(f"{shown(path)} exists, and `describe` did not write it; choose another --name")
    if known != text and not force:
        raise ConfigError(f"{shown(path)} exists with different content; use --force, or leave out --study")
    return path, text


def study_text(study: str, data: Any, labelled: DataConfig | None, machine: Machine) -> str:
    """The file; `labelled` is the set to finetune on where `data` has no labels."""
    import jinja2

    _check_data(data, labelled)
    finetuned = data if data.has_labels else labelled
    patch = patch_size(data.image_size)
    rows, cols = (side // patch for side in pair(data.image_size))
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string((Path(__file__).parent / "starter.yaml.j2").read_text(encoding="utf-8"))
    return (
        template.render(
            study=study,
            title=_title(data, labelled),
            command=f"snakemake {study}",
            written_by=WRITTEN_BY,
            patch=patch,
            grid=rows,
            side=data.image_size,
            chance=100 / (rows * cols),
            machine=machine,
            pretraining=Training.on(data, machine.pretraining, machine.largest_batch),
            finetuning=Training.on(finetuned, machine.finetuning, machine.largest_batch, 0.1) if finetuned else None,
            methods=METHODS,
        ).rstrip("\n")
        + "\n"
    )


def patch_size(size: Size) -> int:
    """The usual patch of images of this size, 16 px of 224 and 8 px of 64, or the nearest one that divides them."""
    side = math.gcd(*pair(size))
    usual = 16 if side >= 160 else 8 if side >= 64 else 4 if side >= 24 else 2
    fitting = [part for part in range(1, side + 1) if side % part == 0]
    fitting = [part for part in fitting if SMALLEST_GRID <= min(pair(size)) // part <= LARGEST_GRID]
    if not fitting:
        raise ConfigError(
            f"images of {size} px have no patch size with {SMALLEST_GRID} to {LARGEST_GRID} patches along a side; "
            "describe the folder with another --image-size, such as 224"
        )
    return min(fitting, key=lambda part: abs(math.log(part / usual)))


def _title(data: Any, labelled: DataConfig | None) -> str:
    if data.has_labels:
        return f"Pretraining and finetuning on {data.name}"
    return f"Pretraining on {data.name}, finetuning on {labelled.name}" if labelled else f"Pretraining on {data.name}"


def read_labelled(name: str) -> Any:
    """The set that is named for finetuning."""
    path = CONFIGS / "data" / f"{name}.yaml"
    return parse_data(Layers((shown(path), read_yaml(path))).below("data"), "data.")


def _check_data(data: Any, labelled: Any) -> None:
    """Refuse sets for which these runs make no sense."""
    for each in [data, *([labelled] if labelled else [])]:
        if not isinstance(each, DataConfig) or each.has_attributes:
            raise ConfigError(
                f"data set {each.name} is of kind {each.kind}, and --study writes studies of images with classes or "
                "without labels; copy configs/template/study.yaml"
            )
        if each.num_train < LEAST_IMAGES:
            raise ConfigError(
                f"data set {each.name} has {each.num_train} train images, expected {LEAST_IMAGES} or more for a study; "
                "add images, or lower --val-share"
            )
    if labelled is None:
        return
    if data.has_labels:
        raise ConfigError(f"--labelled {labelled.name}: {data.name} has labels itself; leave it out")
    if not labelled.has_labels:
        raise ConfigError(f"--labelled {labelled.name}: its images have no labels; name a set that has them")
    if labelled.channels != data.channels:
        raise ConfigError(
            f"--labelled {labelled.name} has {labelled.channels} channels, {data.name} has {data.channels}; describe "
            "one of them again with --channels"
        )
