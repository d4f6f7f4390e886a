"""What a key of a config changes: the fields of every config class, and everything that can be seen of a tiny run.

A run of three updates goes through the real loop. Of it are kept: the weights at the start, the batches and the draws
that the method was given, everything that training changed, and the last validation.
"""

import copy
import gzip
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from pydantic import BaseModel
from tiny_maps import NUM_LABELS, write_scenes
from tiny_runs import ALONE, StopAfter, prepare_in, tiny_config, weights_of, write_images
from tiny_scenes import SCENE_CLASSES, write_objects
from tiny_sounds import SOUNDS, write_sounds

from pipeline.core.config import Layers, merge
from pipeline.core.errors import PatchworkError
from pipeline.core.registry import KINDS
from pipeline.data.kind import parse_data
from pipeline.engine.loop import Trainer
from pipeline.engine.run import RunConfig, parse_run
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.evals.base import EVALS
from pipeline.methods.base import METHODS, Method
from pipeline.models.encoder import ModelConfig
from pipeline.results import RunFolder
from pipeline.site import Site

EARLY = ("start", "batches", "draws", "weights")  # of what is seen of a run, what its first update shows
FAMILIES = ("vit", "swin", "cnn", "bert", "gpt2")  # a field of a model is one for each of them
NUM_TRAIN, NUM_VAL = 24, 20
NUM_SCENES = 8  # and pictures with objects for validation; each takes long
SHORT = {
    "data": {"num_train": NUM_TRAIN, "num_val": NUM_VAL},
    "model": {"act_layer": None},
    # A rate at which three updates leave the start far behind: the validation sees what they did.
    "optim": {"epochs": 1, "global_batch": 8, "micro_batch": 4, "warmup_epochs": 0, "base_lr": 0.1},
}
# Texts in the layout of the books of this project; a line of eight words and its end in the stream.
TEXTS: dict[str, dict[str, Any]] = {
    "text": {"name": "small_text", "num_classes": 2, "num_train": NUM_TRAIN, "num_val": NUM_VAL},
    "language": {"name": "small_stream", "num_train": 9 * NUM_TRAIN // 8, "num_val": 1 + (9 * NUM_VAL - 8) // 4}
    | {"stride": 4},
}
for each in TEXTS.values():
    each |= {"source": "books", "vocab_size": 30, "length": 8}
# Scenes in the layout of ADE20K.
SCENES: dict[str, Any] = {"name": "small_scenes", "num_train": NUM_TRAIN, "num_val": NUM_SCENES, "image_size": 28}
SCENES |= {"channels": 1, "num_classes": NUM_LABELS, "mean": [0.4], "std": [0.3]}
# Pictures with objects in the layout of COCO.
OBJECTS: dict[str, Any] = {"name": "small_objects", "num_train": NUM_TRAIN, "num_val": NUM_SCENES, "image_size": 32}
OBJECTS |= {"channels": 1, "num_classes": SCENE_CLASSES, "mean": [0.4], "std": [0.3], "scale": [0.5, 1.5]}
# Tones in the layout of Speech Commands; they have counts of their own.
TONES: dict[str, Any] = {key: value for key, value in SOUNDS.items() if key != "kind"}
# Kinds whose keys are not those of images.
OTHERS = {**TEXTS, "segmentation": SCENES, "detection": OBJECTS, "audio": TONES}


@dataclass(frozen=True)
class FieldEffect:
    """Another value of a field, where the run shows it, and the keys around it with which it matters.

    `at` names what changes first. start, batches, draws (several words: all of them): a run of one update shows exactly
    these and other weights, or a whole run shows them with updates and validation. `updates`: one update shows other
    weights alone, or a whole run shows updates and validation. `validation`: the validation alone. `refused`: such a
    run is an error.
    """

    other: Any
    at: str
    base: dict[str, Any] = field(default_factory=dict)
    with_it: dict[str, Any] = field(default_factory=dict)  # keys that have to follow, for the config to be valid

    @property
    def expected(self) -> set[str]:
        words = set(self.at.split())
        return words if words & {"validation", "refused"} else words | {"updates", "validation"}

    @property
    def early(self) -> set[str]:
        """What a run of one update may show of it, if anything."""
        words = set(self.at.split())
        return words if words & {"validation", "refused"} else words - {"updates"} | {"weights"}


@dataclass
class Record:
    """What was seen of a run."""

    start: dict[str, torch.Tensor]
    batches: list[tuple[torch.Tensor, torch.Tensor]]
    draws: list[dict[str, torch.Tensor]]
    updates: dict[str, torch.Tensor]
    validation: dict[str, float]
    method: Method

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The trained weights, without their moving average and the state of the optimiser."""
        return {name: value for name, value in self.updates.items() if name.startswith("method.")}


# The fields


def run_fields() -> list[str]:
    """Keys of a run such as `data.augment.scale`, without those of models and methods, which have many classes."""
    own = [name for name in _fields_below(RunConfig) if not name.startswith(("data.", "model.", "method."))]
    others = [f"data.{kind}.{name}" for kind in OTHERS for name in _fields_below(KINDS.get(kind).Config)]
    return own + [f"data.{name}" for name in _fields_below(KINDS.get("images").Config)] + others


def model_fields() -> list[str]:
    return [f"model.{family}.{name}" for family in FAMILIES for name in _fields_below(ModelConfig)]


def method_fields() -> list[str]:
    return [f"method.{name}.{key}" for name in METHODS.names() for key in _fields_below(METHODS.get(name).Config)]


def eval_fields() -> list[str]:
    return [f"eval.{name}.{key}" for name in EVALS.names() for key in _fields_below(EVALS.get(name).Config)]


def _fields_below(model: type[BaseModel]) -> Iterator[str]:
    for name, info in model.model_fields.items():
        inner = [part for part in (info.annotation, *get_args(info.annotation)) if _is_model(part)]
        yield from [f"{name}.{key}" for part in inner for key in _fields_below(part)] or [name]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def nested(key: str, value: Any) -> dict[str, Any]:
    """What a config says for a key: `model.swin.depths` and `method.mjp.dal` are `depths` and `dal` of theirs."""
    parts = key.split(".")
    if parts[0] in ("model", "method") or (parts[1:2] and parts[1] in OTHERS):
        del parts[1]
    return below(".".join(parts), value)


def below(key: str, value: Any) -> dict[str, Any]:
    """A value below its key: `a.b` -> {a: {b: value}}."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


# The runs


def short_run(*changes: dict[str, Any]) -> RunConfig:
    """A run of three updates; `data.kind` chooses images, texts, scenes, objects or sounds, each with its own keys."""
    content = tiny_config(SHORT, *changes)
    if other := OTHERS.get(content["data"].get("kind", "")):
        content["data"] = merge(other, *[change.get("data", {}) for change in changes])
    return parse_run(Layers(("test", content)))


class Recorder:
    """Records runs on a few images; each config once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images = write_images(folder / "images", num_train=NUM_TRAIN, num_val=NUM_VAL)
        write_texts(self.images)
        write_scenes(self.images, NUM_TRAIN, NUM_SCENES)
        write_objects(self.images, NUM_TRAIN, NUM_SCENES)
        write_sounds(self.images)
        self.prepared = folder / "prepared"
        others = [parse_data(Layers(("test", {**data, "kind": kind}))) for kind, data in OTHERS.items()]
        for data in (short_run().data, *others):
            prepare_in(self.prepared, self.images, data)
        self.known: dict[tuple[str, bool], Record | PatchworkError] = {}
        self.num_runs = 0

    def __call__(self, changes: Iterable[dict[str, Any]]) -> Record | PatchworkError:
        """The record of a whole run, or the error that refuses it."""
        return self._known(merge(*changes), is_whole=True)

    def first_update(self, changes: Iterable[dict[str, Any]]) -> Record | PatchworkError:
        """The same of a run that is stopped after one update."""
        return self._known(merge(*changes), is_whole=False)

    def site(self) -> Site:
        names = ("small", *[other["name"] for other in OTHERS.values()])
        return Site(device="cpu", weights=str(self.folder), data=dict.fromkeys(names, self.images))

    def _known(self, changes: dict[str, Any], is_whole: bool) -> Record | PatchworkError:
        key = repr(changes), is_whole
        if key not in self.known:
            self.known[key] = self._record(changes, StopRequest() if is_whole else StopAfter(1))
        return self.known[key]

    def _record(self, changes: dict[str, Any], stop: StopRequest) -> Record | PatchworkError:
        try:
            return self._train(short_run(changes), stop)
        except PatchworkError as error:
            return error

    def _train(self, run: RunConfig, stop: StopRequest) -> Record:
        # A folder for each: a run that found the state of another would continue it.
        self.num_runs += 1
        results = shutil.copytree(self.prepared, self.folder / f"results{self.num_runs}")
        trainer = Trainer(run, RunFolder(results, run.name), self.images, self.site(), ALONE, stop)
        start, inputs = copy.deepcopy(trainer.method.state_dict()), []
        trainer.model.register_forward_pre_hook(lambda _, given: inputs.append(copy.deepcopy(given)))
        validation = {}
        with suppress(Requeue):
            validation = trainer.fit()
        batches, draws = [(images, targets) for images, targets, _ in inputs], [draw for *_, draw in inputs if draw]
        return Record(start, batches, draws, weights_of(trainer), validation, trainer.method)


def write_texts(folder: Path) -> None:
    """Lines of eight words; what the authors write differs in the first."""
    for split, count in (("train", NUM_TRAIN), ("val", NUM_VAL)):
        lines = []
        for number in range(count):
            author = ("austen", "eliot")[number % 2]
            words = " ".join(f"w{(number * place + place) % 19}" for place in range(1, 8))
            lines.append(f"{author}\t{number}\t{author.title()} {words}\n")
        (folder / f"{split}.txt.gz").write_bytes(gzip.compress("".join(lines).encode()))


def differences(
    base: Record | PatchworkError,
    other: Record | PatchworkError,
    parts: Iterable[str] = ("start", "batches", "draws", "updates", "validation"),
) -> set[str]:
    """Names of what differs between two runs, of these parts of them.

    Of batches and draws only as many as both had are compared.
    """
    assert isinstance(base, Record), f"the base itself is refused: {base}"
    if not isinstance(other, Record):
        return {"refused"}
    shared = min(len(base.batches), len(other.batches))
    drawn = min(len(base.draws), len(other.draws)) if base.draws and other.draws else None
    pairs = {
        "start": (base.start, other.start),
        "batches": (base.batches[:shared], other.batches[:shared]),
        "draws": (base.draws[:drawn], other.draws[:drawn]),
        "weights": (base.weights, other.weights),
        "updates": (base.updates, other.updates),
        "validation": (base.validation, other.validation),
    }
    return {name for name in parts if not _equal(*pairs[name])}


def _equal(first: Any, second: Any) -> bool:
    """To the last bit."""
    if isinstance(first, torch.Tensor):
        return first.shape == second.shape and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_equal, first, second))
    return first == second
