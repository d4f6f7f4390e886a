"""Pretraining runs from start to file, what validation finds on the way, and finetuning runs that start from them."""

import json
import shutil

import pytest
import torch
from peers import peers
from safetensors.torch import load_file
from tiny_runs import ALONE, NUM_VAL, PRETRAINING, build_trainer, tiny_run, weights_of
from unstable import train_together

from pipeline.core.errors import CheckpointError
from pipeline.core.files import read_lines
from pipeline.core.registry import TASKS
from pipeline.data.kind import kind_of
from pipeline.data.loader import eval_loader
from pipeline.data.store.opening import open_split
from pipeline.engine.loop import build_method
from pipeline.engine.signals import StopRequest
from pipeline.engine.train import load_method, train_run
from pipeline.engine.validate import measure_set
from pipeline.methods.base import Batch
from pipeline.results import RunFolder
from pipeline.site import Site

pytestmark = pytest.mark.slow

KINDS = {"supervised": {}, **PRETRAINING}


def train(run, results, images):
    """What `train.json` says in the end."""
    paths = RunFolder(results, run.name)
    train_run(run, paths, Site(device="cpu", data={"small": images}), StopRequest())
    return json.loads(paths.finished.read_text())


@pytest.fixture(scope="module")
def pretrained(images, prepared, tmp_path_factory):
    """Results in which every pretraining method has a finished run; method -> its run and `train.json`."""
    results = shutil.copytree(prepared, tmp_path_factory.mktemp("pretrained") / "results")
    runs = {kind: tiny_run(changes) for kind, changes in PRETRAINING.items()}
    return results, {kind: (run, train(run, results, images)) for kind, run in runs.items()}


def measured(run, method, images, world=ALONE, batch=16, measure=None):
    data = run.data
    split, view = open_split(data, images, "val"), kind_of(data).eval_view()
    loader = eval_loader(split, view, batch, world.rank, world.size, 0)
    task = TASKS.get(run.task)(data, world.device)
    return measure_set(method, loader, task, world, "fp32", measure or type(method).measure)


@pytest.mark.parametrize("size", [2, 3, 5])  # of three batches: shared unevenly, one each, too few
@pytest.mark.parametrize("kind", KINDS)
def test_validation__shared_by_processes__gives_the_numbers_of_one(images, kind, size):
    run = tiny_run(KINDS[kind])
    method = build_method(run)
    alone = measured(run, method, images)
    together = [measured(run, method, images, world) for world in peers(size)][-1]
    assert (together.metrics, together.errors, together.count) == (alone.metrics, alone.errors, alone.count)
    assert all((together.per_image[name] == values).all() for name, values in alone.per_image.items())


def test_validation__last_batch_smaller__is_a_mean_over_images(images):
    run = tiny_run()

    def count(method, batch: Batch):
        return {"images": torch.ones(len(batch.images)), "first": torch.arange(len(batch.images)) == 0}

    found = measured(run, build_method(run), images, measure=count)
    assert found.metrics == {"images": 1.0, "first": 3 / NUM_VAL}
    assert found.count == NUM_VAL
    assert found.per_image["first"].nonzero()[0].tolist() == [0, 16, 32]


@pytest.mark.parametrize("kind", KINDS)
def test_validation__after_it__method_and_training_go_on_as_before(images, kind):
    run = tiny_run(KINDS[kind])
    method = build_method(run).train()
    assert measured(run, method, images).metrics == measured(run, method, images).metrics
    assert method.training and not any(parameter.grad is not None for parameter in method.parameters())


@pytest.mark.parametrize("kind", PRETRAINING)
def test_train__pretraining_run__writes_what_tables_read(pretrained, kind):
    results, runs = pretrained
    run, summary = runs[kind]
    names = {"params_m", "val_loss"}
    if kind != "mae":
        names |= {"val_position_top1", "best_val_position_top1"}
    assert set(summary["metrics"]) == names
    weights = load_file(RunFolder(results, run.name).encoder)
    assert summary["metrics"]["params_m"] == pytest.approx(sum(value.numel() for value in weights.values()) / 1e6)
    assert not any(name.startswith("head") for name in weights)
    assert summary["provenance"]["init"] is None

    validations = [r for r in read_lines(RunFolder(results, run.name).metrics) if "val_loss" in r]
    assert len(validations) == run.optim.epochs
    assert summary["metrics"]["val_loss"] == validations[-1]["val_loss"]
    if kind != "mae":
        shares = [r["val_position_top1"] for r in validations]
        assert summary["metrics"]["val_position_top1"] == shares[-1]
        assert summary["metrics"]["best_val_position_top1"] == max(shares)


@pytest.mark.parametrize("kind", PRETRAINING)
def test_train__pretraining_run__can_be_read_back_and_measures_the_same(pretrained, images, kind):
    results, runs = pretrained
    run, summary = runs[kind]
    method = load_method(run, RunFolder(results, run.name), ALONE)
    found = measured(run, method, images, batch=256)
    assert {f"val_{name}": value for name, value in found.metrics.items()}.items() <= summary["metrics"].items()
    assert {f"val_{name}": value for name, value in found.errors.items()}.items() <= summary["errors"].items()
    assert summary["count"] == NUM_VAL


@pytest.mark.parametrize("kind", PRETRAINING)
def test_train__pretraining_for_longer__learns_its_task(images, results, kind):
    longer = {"optim": {"epochs": 15}, "data": {"augment": {"crop": "none", "hflip": 0}}}
    # Targets that become sharper lower the loss of DropPos whether or not it learns.
    sharp = {"method": {"sigma": 0.0}} if kind == "droppos" else {}
    run = tiny_run(PRETRAINING[kind], longer, sharp)
    train(run, results, images)
    losses = [r["val_loss"] for r in read_lines(RunFolder(results, run.name).metrics) if "val_loss" in r]
    assert losses[-1] < 0.99 * losses[0]


HEAD = ["head.weight", "head.bias"]
TABLES = [f"blocks.{block}.attn.rel_pos.relative_position_bias_table" for block in range(2)]
# pretraining method, what the finetuned model has: what keeps its own start, what of the file is left aside.
STARTS = {
    ("mp3", "learn"): (["pos_embed", *HEAD], []),
    ("mp3", "sincos"): (["pos_embed", *HEAD], []),
    ("mp3", "relative"): ([*TABLES, *HEAD], []),
    ("mp3", "none"): (HEAD, []),
    ("droppos", "sincos"): (HEAD, []),
    ("droppos", "learn"): (HEAD, []),
    ("droppos", "none"): (HEAD, ["pos_embed"]),
    ("mae", "relative"): ([*TABLES, *HEAD], ["pos_embed"]),
    ("mae", "sincos_learn"): (HEAD, []),
}


@pytest.mark.parametrize(("kind", "positions"), STARTS)
def test_finetune__from_a_pretraining_run__says_what_matched_and_what_is_fresh(pretrained, images, kind, positions):
    results, runs = pretrained
    source = RunFolder(results, runs[kind][0].name)
    changes = {"init": source.name, "model": {"pos_embed": positions}, "optim": {"epochs": 1, "warmup_epochs": 0}}

    init = train(tiny_run(changes), results, images)["provenance"]["init"]

    fresh, dropped = STARTS[kind, positions]
    taken = [name for name in load_file(source.encoder) if name not in dropped]
    assert sorted(init["fresh"]) == sorted(fresh)
    assert init["dropped"] == dropped and init["resized"] == []
    assert sorted(init["matched"]) == sorted(taken)
    assert init["num_matched"] == len(taken)
    assert init["source"] == str(source.encoder)


@pytest.mark.parametrize(("kind", "positions"), [("mp3", "learn"), ("droppos", "sincos")])
def test_finetune__before_its_first_step__has_the_encoder_of_the_pretraining_run(pretrained, images, kind, positions):
    results, runs = pretrained
    source = RunFolder(results, runs[kind][0].name)
    run = tiny_run({"init": source.name, "model": {"pos_embed": positions}, "seed": 4})
    trainer = build_trainer(run, results, images)
    encoder = trainer.method.encoder.state_dict()
    assert all(torch.equal(encoder[name], value) for name, value in load_file(source.encoder).items())
    untouched = build_method(run).encoder.state_dict()
    fresh = set(encoder) - set(load_file(source.encoder))
    assert fresh and all(torch.equal(encoder[name], untouched[name]) for name in fresh)


def test_finetune__averaging_patches__starts_its_norm_anew(pretrained, images):
    results, runs = pretrained
    model = {"pos_embed": "sincos", "pool": "avg"}
    run = tiny_run({"init": runs["droppos"][0].name, "model": model, "optim": {"epochs": 1, "warmup_epochs": 0}})
    init = train(run, results, images)["provenance"]["init"]
    assert sorted(init["fresh"]) == sorted([*HEAD, "fc_norm.weight", "fc_norm.bias"])
    assert sorted(init["dropped"]) == ["norm.bias", "norm.weight"]


@pytest.mark.parametrize(("resampling", "positions"), [("timm", "formula"), ("released", "released")])
def test_finetune__at_another_image_size__says_how_the_positions_came_to_its_grid(
    pretrained, images, resampling, positions
):
    results, runs = pretrained
    changes = {"data": {"image_size": 42}, "model": {"pos_embed": "sincos", "pos_resampling": resampling}}
    run = tiny_run(changes, {"init": runs["mae"][0].name, "optim": {"epochs": 1, "warmup_epochs": 0}})
    init = train(run, results, images)["provenance"]["init"]
    assert init["positions"] == positions
    assert init["resized"] == (["pos_embed 4x4 -> 6x6"] if positions == "released" else [])


WRONG_MODELS = {
    "another width": ({"embed_dim": 24}, r"another architecture \(embed dim found 16, expected 24\)"),
    "another depth": ({"depth": 3}, r"blocks\.2\.norm1\.weight: missing, expected \(16,\)"),
    "other patches": ({"patch_size": 14}, r"patch size found \(7, 7\), expected \(14, 14\)"),
}


@pytest.mark.parametrize("case", WRONG_MODELS)
def test_finetune__model_that_does_not_fit__is_one_error_before_the_first_step(pretrained, images, case):
    changes, message = WRONG_MODELS[case]
    results, runs = pretrained
    run = tiny_run({"init": runs["mp3"][0].name, "model": changes})
    with pytest.raises(CheckpointError, match=message) as caught:
        train(run, results, images)
    assert "encoder.safetensors does not fit the model" in str(caught.value)
    paths = RunFolder(results, run.name)
    assert not paths.metrics.exists() and not paths.finished.exists()


def test_two_processes__with_two_micro_batches_each__have_losses_and_gradients_of_one(images, tmp_path):
    """40 validation images are one batch: the second process has none and must not wait for ever."""
    run = tiny_run(PRETRAINING["droppos"], {"optim": {"epochs": 2, "global_batch": 40, "log_every": 1}})
    assert run.optim.num_micro == 4
    train_together(run.model_dump(mode="json"), images, tmp_path)
    together = read_lines(RunFolder(tmp_path, run.name).metrics)
    alone = build_trainer(run, tmp_path / "alone", images)
    alone.fit()
    for one, other in zip(together, read_lines(alone.paths.metrics), strict=True):
        assert one == pytest.approx(other, abs=1e-4), one["step"]
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2)]
    assert ranks[0].keys() - {"num_skips"} == weights_of(alone).keys()
    assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])
