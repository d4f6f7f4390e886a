"""Every evaluation on every kind of timm model: a right answer, or one sentence that says what it needs."""

import math
from functools import cache

import pytest
import small_set
import torch
from corrupted_sets import sets_of_roles
from foreign_encoders import IMAGE_SIZE, KINDS, build_kind
from small_set import ALONE, config_of, make_world
from threaded_server import server_in_a_thread

from pipeline.core.errors import PatchworkError
from pipeline.data.derived.severities import CORRUPTIONS
from pipeline.engine.optim import OptimConfig
from pipeline.engine.run import RunConfig
from pipeline.evals.accuracy import corruptions, restricted
from pipeline.evals.attention.attention import look_at_attention
from pipeline.evals.base import EVALS, Subject
from pipeline.evals.permutation import split_wire
from pipeline.evals.positions import embedding_pictures
from pipeline.evals.probes.features import pooled_features, pooled_layers
from pipeline.methods.supervised import Supervised
from pipeline.models.encoder import ModelConfig
from pipeline.models.foreign import ForeignModel, _grid
from pipeline.models.position import encode
from pipeline.standalone.foreign import TimmClassifier

pytestmark = pytest.mark.slow
NAMES = [name for name in EVALS.names() if EVALS.get(name).roles() == ("model",)]
# Fewer steps than they take elsewhere: what is tested is whether they work at all.
FEW = {
    "april": {"images": 2, "settings": ("a",)},
    "april_scale": {"images": 2, "stds": (20,)},
    "gradient_matching": {"images": 2, "iterations": 1, "pictures": 1},
    "equivariance": {"keys": 1},
    "linear_probe": {"epochs": 2, "batch": 20, "warmup_epochs": 0},
    "position_embeddings": {"repeats": 2},
    "position_probe": {"epochs": 1, "batch": 10},
    "shuffle_curve": {"ratios": (20,)},
    "training_equivariance": {"batch": 4, "steps": 1},
    "split_learning": {
        "recipe": {"epochs": 1, "batch": 20},
        "inversion": {"epochs": 1, "batch": 20, "warmup_steps": 1, "lr": 1e-2},
        "images": 10,
    },
}
ALL_METRICS = corruptions.Corruptions.Config.metrics


@pytest.fixture(autouse=True)
def _no_other_process(monkeypatch):
    monkeypatch.setattr(split_wire, "server_process", server_in_a_thread)


@pytest.fixture(autouse=True)
def _little_work(monkeypatch):
    """One corruption of 15, few draws of a bootstrap, and no UMAP: none of it looks at the model."""
    monkeypatch.setattr(corruptions, "CORRUPTIONS", ("fog",))
    monkeypatch.setattr(corruptions, "NORMALISED", ("mce", "ce_fog"))
    few = [name for name in ALL_METRICS if not any(other in name for other in set(CORRUPTIONS) - {"fog"})]
    monkeypatch.setattr(corruptions.Corruptions.Config, "metrics", tuple(few))
    monkeypatch.setattr(restricted.resampled_error, "__kwdefaults__", {"times": 2})
    monkeypatch.setattr(embedding_pictures, "projected", lambda table, *options: table[:, :2])


@pytest.fixture(scope="module")
def few_images(tmp_path_factory):
    """A small world of 20 images, resized to the size of the models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_set, "COUNTS", {"train": 20, "t10k": 20})
        world = make_world(tmp_path_factory.mktemp("published"), tmp_path_factory.mktemp("results"))
    small = world.data.model_copy(update={"image_size": IMAGE_SIZE})
    return world, small


def subject_of(kind, data) -> Subject:
    arch, sizes = KINDS[kind]
    encoder = build_kind(kind)
    said = {key: value for key, value in sizes.items() if key in ModelConfig.model_fields and "depth" in sizes}
    encoder.grid = _grid(encoder, IMAGE_SIZE)
    run = RunConfig(
        method=Supervised.Config(),
        model=ForeignModel(name="foreign", arch=arch, **said),
        data=data,
        optim=OptimConfig(epochs=1, global_batch=2, micro_batch=2, base_lr=1.0),
        init="file:weights.safetensors",
        train=False,
    )
    return Subject(run, TimmClassifier(run.method, encoder))


@pytest.fixture(scope="module")
def evaluated(few_images):
    """The outcome, or the sentence, of an evaluation and a kind, computed once."""
    return cache(lambda name, kind, num_train=20: evaluate(*few_images, name, kind, num_train))


def evaluate(world, data, name, kind, num_train):
    data = data.model_copy(update={"num_train": num_train})
    evaluation, cfg, subject = EVALS.get(name), config_of(name, **FEW.get(name, {})), subject_of(kind, data)
    if reason := evaluation.refusal(cfg, {"model": subject.run}):
        return cfg, reason
    folder = world.site.data[world.data.name]
    sets, made = sets_of_roles(evaluation, world.data, folder, world.results, eval_crop=1.0)
    site = world.site.model_copy(update={"data": {**world.site.data, **made}})
    sets = {role: each for role, each in sets.items() if role.removeprefix("corrupted/") in ("fog", role)}
    try:
        return cfg, evaluation(cfg, sets, world.results, site, ALONE).evaluate(model=subject)
    except PatchworkError as error:
        return cfg, str(error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_evaluation__of_any_timm_model__gives_its_metrics_or_one_sentence(evaluated, name, kind):
    cfg, found = evaluated(name, kind)
    if isinstance(found, str):
        assert found and "\n" not in found
        return
    assert sorted([*found.metrics, *found.reasons]) == sorted(cfg.metrics)
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert sorted(found.files) == sorted(cfg.files)


@pytest.mark.parametrize("name", [name for name in NAMES if EVALS.get(name).needs_train])
def test_evaluation__that_trains__without_a_train_split_says_how_to_get_one(evaluated, name):
    _, found = evaluated(name, "class token", num_train=0)
    assert "no train split" in found and "--train" in found


# Which kinds an evaluation answers for; all others are refused.
VITS = {kind for kind, (_, sizes) in KINDS.items() if "depth" in sizes}
NO_CLASS_TOKEN = {"registers, no class token", "relative, no position table", "two attentions in one"}
NO_TABLE = {"relative, no position table", "rotary", "BEiT"}
ANSWERED = {
    "classify": {*KINDS},
    "outliers": {*KINDS},
    "knn": {*KINDS},
    "linear_probe": {*KINDS},
    "attention_maps": VITS - {"two attentions in one"},
    "cls_attention": VITS - NO_CLASS_TOKEN,
    "correlation_maps": VITS - {"hybrid"},  # which has one patch here
    "position_embeddings": VITS - NO_TABLE,
    "gradient_matching": {"class token", "mean pooling", "norm before"},
    "april": {"class token", "mean pooling"},
    "position_probe": {"class token", "mean pooling", "norm before", *NO_TABLE},
}


@pytest.mark.parametrize("name", ANSWERED)
def test_evaluation__of_the_kinds_that_it_is_for__answers_for_these_and_no_others(evaluated, name):
    assert {kind for kind in KINDS if not isinstance(evaluated(name, kind)[1], str)} == ANSWERED[name]


# Right answers: what timm itself computes


@pytest.mark.parametrize("kind", KINDS)
def test_encode__of_any_timm_model__is_timms_forward_features(few_images, kind):
    encoder, images = subject_of(kind, few_images[1]).method.encoder, torch.randn(3, 1, IMAGE_SIZE, IMAGE_SIZE)
    with torch.no_grad():
        torch.testing.assert_close(encode(encoder, images), encoder.forward_features(images))


@pytest.mark.parametrize("kind", sorted(ANSWERED["attention_maps"]))
def test_attention__of_any_vit__sums_to_one_and_changes_no_output(few_images, kind):
    encoder, images = subject_of(kind, few_images[1]).method.encoder, torch.randn(3, 1, IMAGE_SIZE, IMAGE_SIZE)
    seen = {}
    with torch.no_grad():
        found = look_at_attention(encoder, images, seen.__setitem__)
        torch.testing.assert_close(found, encoder.forward_features(images))
    assert [*seen] == [0, 1]
    torch.testing.assert_close(seen[1].sum(dim=-1), torch.ones_like(seen[1][..., 0]))


@pytest.mark.parametrize("kind", KINDS)
def test_features__of_any_timm_model__are_those_that_timm_classifies(few_images, kind):
    method, images = subject_of(kind, few_images[1]).method, torch.randn(3, 1, IMAGE_SIZE, IMAGE_SIZE)
    with torch.no_grad():
        expected = method.encoder.forward_head(method.encoder.forward_features(images), pre_logits=True)
        torch.testing.assert_close(pooled_features(method, images, "run"), expected)
        layers = pooled_layers(method, images)
    assert len(layers) >= 3 and all(layer.shape[0] == 3 and layer.ndim == 2 for layer in layers)


@pytest.mark.parametrize("kind", sorted(ANSWERED["position_embeddings"] - {"hybrid"}))
def test_position_embeddings__that_are_linear_in_rows_and_columns__are_regressed_without_error(few_images, kind):
    world, data = few_images
    subject = subject_of(kind, data)
    encoder = subject.method.encoder
    rows = encoder.grid.coordinates().float()
    with torch.no_grad():
        encoder.pos_embed.normal_(std=5.0)
        encoder.pos_embed[0, -encoder.grid.size :] = rows @ torch.randn(2, 32)
    evaluation = EVALS.get("position_embeddings")(
        config_of("position_embeddings", repeats=2), {}, world.results, world.site, ALONE
    )
    metrics = evaluation.evaluate(model=subject).metrics
    assert metrics["mae_2d"] == pytest.approx(0, abs=1e-4) and metrics["ev2"] == pytest.approx(100, abs=1e-3)
