"""Tiny real runs: a small set in the published Fashion-MNIST layout, prepared for real, and a ViT of 6,000 weights."""

import gzip
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from pipeline.core.config import Layers, merge
from pipeline.core.files import digest, write_json
from pipeline.data.images.classified import DataConfig
from pipeline.data.store.prepare import prepare
from pipeline.engine.loop import Trainer
from pipeline.engine.parallel.distributed import World
from pipeline.engine.run import RunConfig, parse_run
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.engine.train import export
from pipeline.evals.accuracy.classify import Classify
from pipeline.evals.evaluate import PlannedEvaluation, evaluate_job
from pipeline.results import RunFolder, ScaleFolder
from pipeline.results.records import EvalResult, Inputs, TrainRecord, read_record
from pipeline.site import Site

NUM_TRAIN, NUM_VAL = 120, 40
ALONE = World(0, 1, torch.device("cpu"))
CONFIG = {
    "method": {"name": "supervised"},
    "model": {
        "name": "mini",
        "arch": "vit_tiny_patch16_224",
        "patch_size": 7,
        "embed_dim": 16,
        "depth": 2,
        "num_heads": 2,
        "act_layer": "relu",
    },
    "data": {
        "name": "small",
        "source": "fashion_mnist",
        "image_size": 28,
        "channels": 1,
        "num_classes": 10,
        "num_train": NUM_TRAIN,
        "num_val": NUM_VAL,
        "mean": [0.286],
        "std": [0.353],
        "augment": {"crop": "padded", "padding": 2},
        "eval_crop": 1.0,
    },
    "optim": {
        "epochs": 3,
        "global_batch": 20,
        "micro_batch": 10,
        "base_lr": 3e-3,
        "lr_batch": 20,
        "warmup_epochs": 1,
        "log_every": 4,
    },
}
# Everything random and stateful at once: mixing, erasing, dropout, drop-path, repeated views, a moving average and the
# best of it, clipping, gradients with noise.
RICH = {
    "method": {"name": "mjp", "shuffle_ratio": 0.3, "warmup_ratio": 0.1},
    "model": {"drop_path": 0.2, "dropout": 0.1},
    "data": {"augment": {"mixup": 0.8, "cutmix": 1.0, "erasing": 0.5, "repeats": 3}},
    "optim": {
        "ema_decay": 0.9,
        "keep": "best",
        "clip_norm": 1.0,
        "smoothing": 0.1,
        "protection": {"noise": 0.1, "pruning": 0.3},
    },
}
PHOTOS = {
    "model": {"patch_size": 7},
    "data": {
        **{"name": "photos", "source": "folder", "channels": 3, "num_classes": 2, "num_train": 40, "num_val": 4},
        **{"mean": [0.5] * 3, "std": [0.25] * 3, "augment": {"crop": "resized"}, "eval_crop": 0.875},
    },
    "optim": {"epochs": 2},
}
DECODER = {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
# The other stateful parts come with RICH; here those that pretraining recipes have.
PRETRAINING = {
    "mp3": {"method": {"name": "mp3"}, "model": {"pos_embed": "none", "drop_path": 0.1}},
    "droppos": {
        "method": {"name": "droppos", **DECODER},
        "model": {"pos_embed": "sincos"},
        "optim": {"clip_norm": 5.0, "clip_mode": "tensor"},
    },
    "mae": {"method": {"name": "mae", **DECODER}, "model": {"pos_embed": "sincos"}},
}


def tiny_config(*changes: dict) -> dict:
    return merge(CONFIG, *changes)


def tiny_run(*changes: dict) -> RunConfig:
    return parse_run(Layers(("test", tiny_config(*changes))))


def write_images(folder: Path, shift: int = 0, num_train: int = NUM_TRAIN, num_val: int = NUM_VAL) -> Path:
    """Ten classes that can be told apart: a bright bar at a height of its own, with noise. A shift renames classes."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for prefix, count in (("train", num_train), ("t10k", num_val)):
        labels = np.arange(count) % 10
        pixels = rng.integers(0, 100, (count, 28, 28))
        for image, label in zip(pixels, labels, strict=True):
            image[4 + 2 * label : 6 + 2 * label] += 150
        _write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", 2051, pixels)
        _write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", 2049, (labels + shift) % 10)
    return folder


def write_photos(folder: Path) -> Path:
    """The set of PHOTOS: files of 48 x 60 pixels, of which a cache keeps 32 x 40."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("val", 4)):
        for number in range(count):
            path = folder / split / f"class{number % 2}" / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (48, 60, 3), dtype=np.uint8)).save(path)
    return folder


def _write_idx(path: Path, magic: int, array: np.ndarray) -> None:
    header = struct.pack(f">{1 + array.ndim}I", magic, *array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


def prepare_in(results: Path, folder: Path, data: DataConfig | None = None) -> None:
    data = data or tiny_run().data
    prepare(data, folder, RunFolder(results, "").manifest(data.name).parent, progress=False)


class StopsWithin:
    """Batches of a validation; the first time that they are read, somebody asks to stop."""

    def __init__(self, batches: Iterable[Any], stop: StopRequest) -> None:
        self.batches, self.stop, self.num_passes = batches, stop, 0

    def __iter__(self) -> Iterator[Any]:
        self.num_passes += 1
        if self.num_passes == 1:
            self.stop.why = "the time limit is near"
        yield from self.batches


class StopAfter(StopRequest):
    """Asks to stop after the given number of looks: the loop of a single process looks once per step."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    @property
    def is_raised(self) -> bool:
        self.looks -= 1
        return self.looks <= 0


def build_trainer(
    run: RunConfig, results: Path, folder: Path, stop: StopRequest | None = None, **site: object
) -> Trainer:
    """A trainer in this process, on prepared data."""
    if not RunFolder(results, "").manifest(run.data.name).exists():
        prepare_in(results, folder, run.data)
    given = {"device": "cpu", "data": {"small": folder}, **site}
    return Trainer(run, RunFolder(results, run.name), folder, Site(**given), ALONE, stop or StopRequest())


def fit(run: RunConfig, results: Path, folder: Path, stop: StopRequest | None = None, **site: object) -> Trainer:
    """Train to the end or until asked to stop, in this process."""
    torch.set_num_threads(1)
    trainer = build_trainer(run, results, folder, stop, **site)
    try:
        trainer.fit()
    except Requeue:
        assert stop is not None
    return trainer


def publish(trainer: Trainer) -> None:
    """Let others start from what a trainer has learned so far."""
    export(trainer.method, trainer.paths)
    made = trainer.paths.encoder, trainer.paths.heads
    files = {path.name: digest(path) for path in made}
    inputs = Inputs(data="", init=None)
    record = TrainRecord(run=trainer.run.name, metrics={}, files=files, inputs=inputs, provenance={})
    write_json(trainer.paths.done, record.model_dump())


def classify(run: RunConfig, paths: RunFolder, site: Site) -> EvalResult:
    """The accuracy of a finished run, evaluated as a job of the workflow does it."""
    results = ScaleFolder(paths.results)
    planned = PlannedEvaluation("classify-00000000", "classify", Classify.Config(), {"model": run}, {})
    evaluate_job("job", [planned], results, site)
    return read_record(results.evaluation(planned.name).result, EvalResult)


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Everything that training changes."""
    weights = {f"method.{name}": value for name, value in trainer.method.state_dict().items()}
    if trainer.ema:
        weights |= {f"ema.{name}": value for name, value in trainer.ema.state_dict().items()}
    for index, state in trainer.optimizer.state_dict()["state"].items():
        weights |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
    return weights


def differing(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> list[str]:
    """Names of the tensors that are not equal to the last bit."""
    assert first.keys() == second.keys()
    return [name for name in first if not torch.equal(first[name], second[name])]
