"""Texts with permuted tokens and a key (ST Tables 3 to 5): BERT and GPT-2 learn and answer what plain ones do."""

import copy
import gzip

import pytest
import torch
from permuted_models import split_key_biases
from small_set import ALONE, config_of
from tiny_text import LENGTH, TEXT_CLASSES, VOCABULARY, any_weights, build_tiny_text, stream_batch, text_batch
from tiny_text import tiny_text_model as tiny_model

from pipeline.core.trees import map_tree
from pipeline.data.store.prepare import prepare
from pipeline.data.text.text import TextConfig
from pipeline.engine.optim import OptimConfig
from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS, Subject
from pipeline.methods.base import METHODS
from pipeline.methods.supervised import Supervised
from pipeline.permutation.forward import shape_of
from pipeline.permutation.keys import Shape
from pipeline.permutation.rules import unpermute_state
from pipeline.results import ScaleFolder
from pipeline.site import Site

STEPS = 5
CLOSE = {torch.float64: 1e-12, torch.float32: 2e-5}
KEY, ROWS, BOTH = {"key": "used"}, {"rows": True}, {"rows": True, "key": "used"}
CASES = {
    "bert, rows": ("supervised", "bert", ROWS),
    "bert, key": ("supervised", "bert", KEY),
    "bert, both": ("supervised", "bert", BOTH),
    "gpt2, key": ("supervised", "gpt2", KEY),
    "gpt2, released key": ("supervised", "gpt2", {**KEY, "kind": "released"}),
    "language model, key": ("language_model", "gpt2", KEY),
}


def built(name, arch, dtype=torch.float64, **permutation):
    method = METHODS.get(name)
    encoder = any_weights(build_tiny_text(tiny_model(arch), 0, 0 if name == "language_model" else TEXT_CLASSES))
    built = method(method.Config(permutation=permutation), encoder.to(dtype))
    built.begin()
    return built.train()


def trained(method, dtype):
    """The loss of every step, and the weights after it."""
    optimizer = torch.optim.AdamW(method.parameters(), lr=1e-3)
    for step in range(STEPS):
        batch = stream_batch(seed=step) if method.cfg.task == "language" else text_batch(seed=step)
        targets = map_tree(lambda value: value.to(dtype) if value.is_floating_point() else value, batch.targets)
        optimizer.zero_grad()
        loss = method(batch.inputs, targets, method.draw(batch, 0.5)).loss
        loss.backward()
        optimizer.step()
        yield loss.detach(), copy.deepcopy(method.encoder.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", CLOSE, ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_training__of_texts_with_padding__is_plain_training_step_by_step(case, dtype):
    name, arch, permutation = CASES[case]
    other = built(name, arch, dtype, **permutation)
    for (loss, weights), (other_loss, found) in zip(
        trained(built(name, arch, dtype), dtype), trained(other, dtype), strict=True
    ):
        assert abs(float(other_loss - loss)) < CLOSE[dtype]
        found = unpermute_state(found, other.key) if other.key else found
        kept, expected = (split_key_biases(state)[0] for state in (found, weights))
        assert max(float((kept[part] - value).abs().max()) for part, value in expected.items()) < CLOSE[dtype]


@pytest.mark.parametrize(("name", "arch"), [("supervised", "bert"), ("supervised", "gpt2"), ("language_model", "gpt2")])
def test_training__with_the_key_missing__starts_from_another_loss(name, arch):
    plain, other = (next(trained(built(name, arch, **given), torch.float64))[0] for given in ({}, {"key": "missing"}))
    assert abs(float(other - plain)) > 1e-2


@pytest.mark.parametrize("arch", ["bert", "gpt2"])
def test_shape__of_a_text_model__is_that_of_its_keys(arch):
    model = tiny_model(arch, embed_dim=24, depth=3, num_heads=4)
    assert shape_of(build_tiny_text(model)) == Shape(arch, 24, 3, 4, 24)


def test_config__rows_of_a_causal_model__are_refused():
    with pytest.raises(ValueError, match="rows: a causal mask knows the order of the tokens"):
        Supervised.Config(permutation=ROWS).check(tiny_model("gpt2"), 1)
    Supervised.Config(permutation=KEY).check(tiny_model("gpt2"), 1)


# Evaluations


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A small set of classified texts, in the layout of the books of this project, and where its results lie."""
    folder, results = tmp_path_factory.mktemp("texts"), ScaleFolder(tmp_path_factory.mktemp("results"))
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 20), ("val", 60)):
        lines = []
        for number in range(count):
            words = torch.randint(VOCABULARY - 6, (3 + number % (LENGTH - 4),), generator=generator).tolist()
            lines.append(f"{('austen', 'eliot')[number % 2]}\t1\t{' '.join(f'w{word}' for word in words)}\n")
        (folder / f"{split}.txt.gz").write_bytes(gzip.compress("".join(lines).encode()))
    sizes = {"vocab_size": VOCABULARY, "length": LENGTH, "num_classes": 2, "num_train": 20, "num_val": 60}
    data = TextConfig(name="small_texts", source="books", **sizes)
    prepare(data, folder, results.manifest(data.name).parent, progress=False)
    return data, Site(data={data.name: folder}, device="cpu"), results


def evaluate(texts, name, arch, **fields):
    data, site, results = texts
    method = Supervised(Supervised.Config(), any_weights(build_tiny_text(tiny_model(arch), num_classes=2)).float())
    optim = OptimConfig(epochs=1, global_batch=4, micro_batch=4, base_lr=1e-3)
    run = RunConfig(method=method.cfg, model=tiny_model(arch), data=data, optim=optim)
    kind, cfg = EVALS.get(name), config_of(name, **fields)
    assert kind.reason_against(cfg, {"model": run}) == ""
    return kind(cfg, {}, results, site, ALONE).compute(Subject(run, method))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["bert", "gpt2"])
def test_equivariance__of_texts__is_exact_with_the_key_and_not_without(texts, arch):
    outcome = evaluate(texts, "equivariance", arch, keys=3)
    found = outcome.metrics
    assert found["columns_top1"] == found["top1"] and 0 < found["columns_apart"] < 1e-4
    assert (outcome.per_image["without_key_top1"] != outcome.per_image["top1"]).any()
    if arch == "bert":
        assert found["rows_top1"] == found["top1"] and 0 < found["rows_apart"] < 1e-4
    else:
        reason = "a causal mask knows the order of the tokens"
        assert outcome.reasons == {"rows_top1": reason, "rows_apart": reason}


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["bert", "gpt2"])
def test_training_equivariance__of_texts__is_rounding(texts, arch):
    outcome = evaluate(texts, "training_equivariance", arch, batch=6, steps=3)
    found = outcome.metrics
    assert 0 < found["columns_gradients_apart"] < 1e-12 and 0 < found["columns_weights_apart"] < 1e-9
    assert found["unlocked_gradients_apart"] > 0.1
    if arch == "bert":
        assert 0 < found["rows_gradients_apart"] < 1e-12 and 0 < found["rows_weights_apart"] < 1e-9
    else:
        assert {*outcome.reasons} == {name for name in config_of("training_equivariance").metrics if "rows_" in name}
