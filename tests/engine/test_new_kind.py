"""A kind of data, a task and a method that the project has never heard of, in this one file, through the real loop.

Sentences of different lengths: inputs are a tree (tokens and a mask), targets one number each. What is measured, the
area under the ROC curve, is no mean over samples.
"""

import json
import shutil
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from peers import peers
from pydantic import Field
from tiny_runs import ALONE, StopAfter, build_trainer, differing, fit, weights_of
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.core.config import Layers, merge
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.trees import to_device
from pipeline.data.kind import KINDS, BaseDataConfig, DataKind, View, kind_of, parse_data
from pipeline.data.loader import eval_loader
from pipeline.data.samples import Samples, Split
from pipeline.data.store.manifest import read_manifest
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare
from pipeline.engine.loop import build_method
from pipeline.engine.run import parse_run
from pipeline.engine.signals import StopRequest
from pipeline.engine.train import load_method, train_run
from pipeline.engine.validate import measure_set
from pipeline.methods.base import METHODS, Method, MethodConfig, Output, Primary
from pipeline.plan.operations import step_cost
from pipeline.results import RunFolder
from pipeline.site import Site, data_folder
from pipeline.tasks.base import TASKS, Task
from pipeline.tasks.metrics import Metric, MetricValues

# The kind


class Sentences(Samples):
    """Lines of a file: a label, then words."""

    def __init__(self, split: str, lines: list[str]) -> None:
        self.split, self.lines = split, lines

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> tuple[list[str], int]:
        label, *words = self.lines[index].split()
        return words, int(label)

    def name(self, index: int) -> str:
        return f"{self.split}/{index}"

    def content(self, index: int) -> bytes:
        return self.lines[index].encode()

    def identity(self) -> list[bytes]:
        return ["\n".join(self.lines).encode()]


class SentenceKind(DataKind):
    class Config(BaseDataConfig):
        identity_fields: ClassVar[tuple[str, ...]] = ("num_train", "num_val")
        cost_fields: ClassVar[tuple[str, ...]] = ("length", "vocabulary")

        kind: Literal["sentences"] = "sentences"
        length: int = Field(gt=0, description="words at most")
        vocabulary: int = Field(gt=0)
        drop: float = Field(0.1, ge=0, lt=1, description="share of words that a training view leaves out")

        @property
        def input_size(self) -> tuple[int, int]:
            return 1, self.length

    unit = "sentences"
    layout = "train.txt and val.txt, in each line 0 or 1 and words w0, w1, ..."
    obtained = "write them"

    def read(self, folder: Any, split: str) -> Split:
        path = folder / f"{split}.txt"
        if not path.exists():
            return Split(Sentences(split, []), problems=[f"{split}: {path.name} not found"])
        return Split(Sentences(split, path.read_text().splitlines()), ["no", "yes"])

    def train_view(self) -> View:
        def view(sample: tuple[list[str], int]) -> tuple[Tensor, int]:
            words = self.tokens(sample[0])
            kept = torch.rand(len(words)) >= self.cfg.drop
            return words[kept | (torch.arange(len(words)) == 0)], sample[1]

        return view

    def eval_view(self) -> View:
        return lambda sample: (self.tokens(sample[0]), sample[1])

    def tokens(self, words: list[str]) -> Tensor:
        return torch.tensor([int(word[1:]) for word in words[: self.cfg.length]])


# The task


class Auroc(Metric):
    """Area under the ROC curve: the chance that a positive sample scores above a negative one."""

    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}

    def update(self, values: dict[str, Tensor], number: int) -> None:
        self.seen[number] = values

    def state(self) -> dict[int, Any]:
        return {number: (v["scores"].cpu().numpy(), v["labels"].cpu().numpy()) for number, v in self.seen.items()}

    def merge(self, states: Any) -> None:
        self.seen = {number: values for state in states for number, values in state.items()}

    def compute(self) -> MetricValues:
        ordered = [self.seen[number] for number in sorted(self.seen)]
        scores, labels = (np.concatenate(parts) for parts in zip(*ordered, strict=True))
        above = scores[labels == 1][:, None] - scores[labels == 0]
        return MetricValues({"auroc": float(100 * ((above > 0) + 0.5 * (above == 0)).mean())}, count=len(scores))


class Words(nn.Module):
    """A transformer on words, with a head of one output."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(length, width))
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        found = self.block(self.words(ids) + self.places[: ids.shape[1]], src_key_padding_mask=~mask)
        return self.head((found * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True))[:, 0]


class Spot(Task):
    primary = Primary("auroc")

    @classmethod
    def build_encoder(cls, method: Any, model: Any, data: Any) -> nn.Module:
        return Words(data.vocabulary, data.length, model.embed_dim)

    @classmethod
    def example(cls, data: Any, count: int) -> tuple[dict[str, Tensor], Tensor]:
        ids = torch.zeros(count, data.length, dtype=torch.long)
        return {"ids": ids, "mask": ids == 0}, torch.zeros(count)

    def collate(self, samples: Any) -> tuple[dict[str, Tensor], Tensor]:
        ids = nn.utils.rnn.pad_sequence([words for words, _ in samples], batch_first=True, padding_value=-1)
        return {"ids": ids.clamp(min=0), "mask": ids >= 0}, torch.tensor([label for _, label in samples])

    def train_batch(self, inputs: Any, targets: Any) -> tuple[Any, Tensor]:
        return to_device(inputs, self.device), targets.float().to(self.device)

    def metric(self) -> Metric:
        return Auroc()


class Spotter(Method):
    class Config(MethodConfig):
        task: ClassVar[str] = "spot"
        name: Literal["spotter"] = "spotter"

    def loss(self, inputs: Any, targets: Any, draw: Any, /) -> Output:
        return Output(F.binary_cross_entropy_with_logits(self.encoder(**inputs), targets), {})

    def measure(self, batch: Any) -> Any:
        return {"scores": self.encoder(**batch.inputs), "labels": batch.targets}


# What the project does with them


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Here, not where the classes are: other tests go through everything that is registered."""
    entries = [(KINDS, "sentences", SentenceKind), (TASKS, "spot", Spot), (METHODS, "spotter", Spotter)]
    for registry, name, entry in entries:
        registry.register(name)(entry)
    yield
    for registry, name, _ in entries:
        del registry._entries[name]


NUM_TRAIN, NUM_VAL, VOCABULARY = 120, 75, 12
CONFIG = {
    "method": {"name": "spotter"},
    "model": {"name": "words", "arch": "vit_tiny_patch16_224", "embed_dim": 16},
    "data": {
        "name": "lines",
        "kind": "sentences",
        "num_train": NUM_TRAIN,
        "num_val": NUM_VAL,
        "length": 9,
        "vocabulary": VOCABULARY,
    },
    "optim": {
        "epochs": 12,
        "global_batch": 20,
        "micro_batch": 10,
        "base_lr": 1e-2,
        "lr_batch": 20,
        "warmup_epochs": 0,
        "log_every": 4,
        "ema_decay": 0.5,
    },
}


def a_run(*changes):
    return parse_run(Layers(("test", merge(CONFIG, *changes))))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sentences of 2 to 9 words; the answer is yes where w3 is among them."""
    folder, rng = tmp_path_factory.mktemp("sentences"), np.random.default_rng(0)
    for split, count in (("train", NUM_TRAIN), ("val", NUM_VAL)):
        sentences = [rng.integers(VOCABULARY, size=rng.integers(2, 10)) for _ in range(count)]
        lines = [f"{int(3 in words)} " + " ".join(f"w{word}" for word in words) for words in sentences]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
def test_prepare__new_kind__verifies_every_sample_and_opens_what_was_verified(folder, tmp_path):
    data = a_run().data
    manifest = prepare(data, folder, tmp_path / "out", workers=2, progress=False)
    assert manifest == read_manifest(tmp_path / "out" / "manifest.json")
    assert {name: split.count for name, split in manifest.splits.items()} == {"train": NUM_TRAIN, "val": NUM_VAL}
    assert manifest.classes == ["no", "yes"]
    assert len(open_split(data, folder, "val", tmp_path / "out")) == NUM_VAL

    other = shutil.copytree(folder, tmp_path / "other")
    (other / "val.txt").write_text((other / "val.txt").read_text().replace("w1 ", "w2 "))
    with pytest.raises(DataError, match="does not hold the val sentences that were verified") as caught:
        open_split(data, other, "val", tmp_path / "out")
    assert "val: found other contents or labels than were verified" in str(caught.value)


def test_prepare__new_kind_with_problems__reports_all_of_them(folder, tmp_path):
    broken = shutil.copytree(folder, tmp_path / "broken")
    lines = (broken / "val.txt").read_text().splitlines()
    (broken / "val.txt").write_text("\n".join(["yes w1 w2", *lines]) + "\n")
    (broken / "train.txt").unlink()
    with pytest.raises(DataError) as caught:
        prepare(a_run().data, broken, tmp_path / "out", progress=False)
    for part in (
        "train: train.txt not found",
        f"val: found {NUM_VAL + 1} sentences, expected {NUM_VAL}",
        "val/0: found a sample that cannot be read (invalid literal for int()",
        f"expected: {NUM_TRAIN} train and {NUM_VAL} val sentences",
        "in this layout: train.txt and val.txt",
    ):
        assert part in str(caught.value)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_config__of_a_new_kind__is_checked_by_its_own_class():
    with pytest.raises(ConfigError) as caught:
        a_run({"data": {"lenght": 3, "vocabulary": 0}, "optim": {"epochs": 0}})
    text = str(caught.value)
    assert "data.lenght: unknown key; did you mean 'length'?" in text
    assert "data.vocabulary: found 0; input should be greater than 0" in text and "optim.epochs: found 0" in text


def test_config__unknown_kind__lists_those_that_there_are():
    with pytest.raises(ConfigError) as caught:
        a_run({"data": {"kind": "sentence"}})
    message = "test: data.kind: kind of data 'sentence' is unknown; did you mean 'sentences'? valid: "
    assert str(caught.value) == message + ", ".join(KINDS.names())


def test_config__of_a_new_kind__is_read_back_from_its_dump():
    run = a_run()
    assert parse_run(Layers(("dump", run.model_dump(mode="json")))).name == run.name
    assert parse_data(Layers(("dump", run.data.model_dump(mode="json")))) == run.data


@pytest.mark.slow
def test_train__new_kind_and_task__learns_and_writes_what_tables_read(folder, tmp_path):
    run, site = a_run(), Site(device="cpu", data={"lines": folder})
    paths = RunFolder(tmp_path, run.name)
    prepare(run.data, data_folder(site, run.data), paths.manifest("lines").parent, progress=False)
    train_run(run, paths, site, StopRequest())
    record = json.loads(paths.finished.read_text())
    assert record["count"] == NUM_VAL
    assert record["metrics"]["best_val_auroc"] >= record["metrics"]["val_auroc"] > 80  # chance is 50
    method = load_method(run, paths, ALONE)
    assert measured(run, method, folder, ALONE).metrics["auroc"] == record["metrics"]["val_auroc"]


def measured(run, method, folder, world):
    task, split = TASKS.get(run.task)(run.data, world.device), open_split(run.data, folder, "val")
    loader = eval_loader(split, kind_of(run.data).eval_view(), 16, world.rank, world.size, 0, task.collate)
    return measure_set(method, loader, task, world, "fp32", type(method).measure)


@pytest.mark.parametrize("size", [2, 3, 7])  # of five batches: shared unevenly, and too few
def test_metric__that_is_no_mean__is_the_same_for_any_number_of_processes(folder, size):
    run = a_run()
    method = build_method(run)
    alone = measured(run, method, folder, ALONE)
    first, *_, last = [measured(run, method, folder, world) for world in peers(size)]
    assert last == alone and last.count == NUM_VAL
    assert first.metrics != alone.metrics  # it has seen its own share alone


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 5, 6, 17])
def test_resume__new_kind_and_task_stopped_at_any_step__ends_bit_identical(folder, tmp_path, step):
    run = a_run({"optim": {"epochs": 3}})
    whole = fit(run, tmp_path / "whole", folder)
    fit(run, tmp_path / "parts", folder, StopAfter(step))
    again = fit(run, tmp_path / "parts", folder)
    assert differing(weights_of(whole), weights_of(again)) == []
    assert again.paths.metrics.read_bytes() == whole.paths.metrics.read_bytes()
    assert (again.best, again.last_validation) == (whole.best, whole.last_validation)


def test_batches__of_a_new_task__are_trees_padded_to_their_longest(folder, tmp_path):
    trainer = build_trainer(a_run(), tmp_path, folder)
    inputs, targets = next(iter(trainer.batches.validation))
    assert {key: value.dtype for key, value in inputs.items()} == {"ids": torch.long, "mask": torch.bool}
    assert inputs["mask"].sum(dim=1).max() == inputs["ids"].shape[1] <= 9
    assert targets.shape == (NUM_VAL,)


@pytest.mark.slow
def test_plan__of_a_new_task__counts_the_operations_of_its_example():
    found = step_cost(a_run())["gflop_per_image"] * 1e9
    width, length = 16, 9
    block = length * 2 * (4 * width**2 + 2 * 2 * width**2) + 2 * 2 * length**2 * width
    assert found == pytest.approx(3 * (block + 2 * width))
