"""Language models: losses against transformers and by hand, perplexity by strides, masks of BERT, keys."""

import math
from random import Random

import numpy as np
import pytest
import torch
from tiny_text import (
    LENGTH,
    MASK_TOKEN,
    VOCABULARY,
    any_weights,
    build_tiny_text,
    stream_batch,
    text_batch,
    tiny_text_model,
    tiny_texts,
)

from pipeline.methods import language_model
from pipeline.methods.base import Batch, PerToken
from pipeline.methods.language_model import LanguageModel
from pipeline.methods.masked_language import MaskedLanguage
from pipeline.permutation.forward import permuted
from pipeline.permutation.keys import Shape, new_key
from pipeline.permutation.rules import permute_state
from pipeline.tasks.language import Perplexities
from pipeline.tasks.metrics import MeanPerToken

STRIDE = 5


def language(seed=0):
    return LanguageModel(LanguageModel.Config(), any_weights(build_tiny_text(tiny_text_model("gpt2"), seed, 0), seed))


def masked(seed=0, **fields):
    method = MaskedLanguage(MaskedLanguage.Config(**fields), build_tiny_text(tiny_text_model("bert"), seed, 0))
    return any_weights(method, seed)


def found_by(method, batches, metric=None):
    """What validation finds in these batches."""
    metric = metric or Perplexities()
    with torch.no_grad():
        for number, batch in enumerate(batches):
            metric.update(method.measure(batch), number)
    metric.merge([metric.state()])
    return metric.compute()


# The next word


def test_loss__whole_windows__is_the_loss_of_transformers():
    from transformers import GPT2LMHeadModel

    method, batch = language(), stream_batch()
    plain = GPT2LMHeadModel(method.encoder.transformer.config).double().eval()
    plain.transformer.load_state_dict(method.encoder.transformer.state_dict())
    plain.tie_weights()
    expected = plain(batch.inputs["ids"], labels=batch.inputs["ids"]).loss
    assert method(batch.inputs, batch.targets, {}).loss.item() == pytest.approx(expected.item(), abs=1e-5)  # in float32


def test_loss__some_tokens_scored__is_their_mean_by_hand():
    method, batch = language(), stream_batch(4)
    scored = torch.rand(4, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.4
    scored[:, 0] = True  # which has nothing before it, and cannot count
    ids, total, count = batch.inputs["ids"], 0.0, 0
    tokens = method.encoder.forward_features(batch.inputs)
    for text in range(4):
        for place in range(1, LENGTH):
            if scored[text, place]:
                logits = method.encoder.transformer.wte.weight @ tokens[text, place - 1]
                total += (logits.exp().sum().log() - logits[ids[text, place]]).item()
                count += 1
    found = method(batch.inputs, {"scored": scored}, {}).loss.item()
    assert found == pytest.approx(total / count, abs=1e-5)


def test_word_losses__in_parts__are_those_of_one_part(monkeypatch):
    method, batch = language(), stream_batch(7)
    whole = method.next_word_losses(batch.inputs)
    monkeypatch.setattr(language_model, "MOST_LOGITS", 20 * VOCABULARY)
    assert torch.equal(method.next_word_losses(batch.inputs), whole)


def windows_of(stream):
    """Windows of LENGTH every STRIDE tokens; scored is what no earlier one has scored. The last one is padded."""
    begins = range(0, max(1, len(stream) - LENGTH + STRIDE), STRIDE)
    inputs, scored, done = [], [], 1
    for begin in begins:
        window = stream[begin : begin + LENGTH]
        rest = [0] * (LENGTH - len(window))
        inputs.append([*window, *rest])
        scored.append([done <= begin + place < len(stream) for place in range(LENGTH)])
        done = max(done, begin + len(window))
    ids = torch.tensor(inputs)
    mask = torch.arange(LENGTH) < torch.tensor([[len(stream[begin : begin + LENGTH])] for begin in begins])
    return {"ids": ids, "mask": mask}, torch.tensor(scored)


@pytest.mark.slow
def test_perplexity__stream_by_strides__is_that_of_every_token_given_what_its_window_has_before_it():
    method, stream = language(), torch.randint(VOCABULARY, (43,), generator=torch.Generator().manual_seed(3)).tolist()
    total = 0.0
    for place in range(1, len(stream)):
        # The first window that reaches the token scores it.
        begin = 0 if place < LENGTH else STRIDE * -(-(place - LENGTH + 1) // STRIDE)
        given = torch.tensor([stream[begin:place]])
        tokens = method.encoder.transformer(given).last_hidden_state[0, -1]
        total -= (method.encoder.transformer.wte.weight @ tokens).log_softmax(dim=0)[stream[place]].item()
    expected = math.exp(total / (len(stream) - 1))

    inputs, scored = windows_of(stream)
    parts = zip(inputs["ids"].split(3), inputs["mask"].split(3), scored.split(3), strict=True)
    batches = [Batch({"ids": ids, "mask": mask}, {"scored": s}, torch.Generator()) for ids, mask, s in parts]
    found = found_by(method, batches)

    assert int(scored.sum()) == len(stream) - 1 and not inputs["mask"].all()
    assert found.metrics["perplexity"] == pytest.approx(expected, rel=1e-5)
    assert found.metrics["loss"] == pytest.approx(math.log(expected), rel=1e-5)
    assert found.count == len(inputs["ids"])


# Means over tokens


def test_mean_per_token__texts_of_different_lengths__weighs_tokens_and_gives_the_error_of_a_ratio():
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 30, 200)
    totals = counts * 2.0 + rng.normal(size=200) * counts**0.5
    metric = MeanPerToken()
    for number, part in enumerate(np.array_split(np.arange(200), 3)):
        metric.update({"x": PerToken(torch.tensor(totals[part]), torch.tensor(counts[part]))}, number)
    state = metric.state()
    # Two processes, of which the first has the first and the third batch.
    metric.merge([{number: state[number] for number in (0, 2)}, {1: state[1]}])
    found = metric.compute()

    mean = totals.sum() / counts.sum()
    error = math.sqrt(sum((t - mean * n) ** 2 for t, n in zip(totals, counts, strict=True))) / counts.sum()
    assert found.metrics == {"x": pytest.approx(mean, rel=1e-12)}
    assert found.errors == {"x": pytest.approx(error, rel=1e-12)}
    assert found.per_image["x"].mean() == pytest.approx(mean, rel=1e-6) and found.count == 200
    assert found.per_image["x"] == pytest.approx(mean + (totals - mean * counts) / counts.mean(), rel=1e-6)


def test_perplexities__two_losses__have_each_their_own_with_its_error():
    metric, counts = Perplexities(), torch.tensor([3, 3, 3])
    losses = {"loss": torch.tensor([6.0, 7.0, 8.0]), "other_loss": torch.tensor([3.0, 3.0, 3.0])}
    metric.update({name: PerToken(value, counts) for name, value in losses.items()} | {"apart": counts}, 0)
    metric.merge([metric.state()])
    found = metric.compute()
    assert found.metrics["perplexity"] == pytest.approx(math.exp(7 / 3))
    assert found.metrics["other_perplexity"] == pytest.approx(math.e)
    assert found.metrics.keys() == {"loss", "other_loss", "apart", "perplexity", "other_perplexity"}
    assert found.metrics["apart"] == 3  # a plain number of each text
    assert found.errors["perplexity"] == pytest.approx(math.exp(7 / 3) * found.errors["loss"])
    assert found.errors["other_perplexity"] == 0
    assert found.per_image["perplexity"].mean() == pytest.approx(math.exp(7 / 3), rel=1e-6)


def test_perplexities__loss_without_measure__is_a_number_still():
    metric = Perplexities()
    metric.update({"loss": PerToken(torch.tensor([5000.0]), torch.tensor([1]))}, 0)
    metric.merge([metric.state()])
    assert math.isfinite(metric.compute().metrics["perplexity"])


# Hidden words


def test_hidden_word_losses__head_of_transformers__are_the_same():
    from transformers import BertForMaskedLM

    method, batch = masked(), text_batch()
    plain = BertForMaskedLM(method.encoder.bert.config).double().eval()
    head = plain.cls.predictions
    plain.bert.load_state_dict(method.encoder.bert.state_dict())
    plain.tie_weights()
    head.transform.dense.load_state_dict(method.head[0].state_dict())
    head.transform.LayerNorm.load_state_dict(method.head[2].state_dict())
    with torch.no_grad():
        head.decoder.bias.copy_(method.bias)
    draw, texts = method.draw(batch, 0.0), batch.inputs
    shown = plain(draw["ids"], attention_mask=texts["mask"].long(), token_type_ids=texts["types"]).logits
    expected = shown.log_softmax(dim=-1).gather(2, texts["ids"][:, :, None])[:, :, 0].gather(1, draw["chosen"])
    torch.testing.assert_close(method.hidden_word_losses(texts, draw), -expected, atol=1e-10, rtol=0)


def test_loss__texts_shorter_than_the_share__counts_no_padding():
    method = masked(mask_ratio=0.5)
    texts = tiny_texts(6)
    texts["mask"] = torch.arange(LENGTH) < torch.tensor([[3], [4], [5], [6], [12], [12]])
    batch = Batch(texts, None, torch.Generator().manual_seed(0))
    draw = method.draw(batch, 0.0)
    losses = method.hidden_word_losses(texts, draw)
    real = [
        losses[text, number].item()
        for text in range(6)
        for number in range(6)
        if texts["mask"][text, draw["chosen"][text, number]]
    ]
    assert len(real) == 3 + 4 + 5 + 6 + 6 + 6
    assert method.loss(texts, None, draw).loss.item() == pytest.approx(sum(real) / len(real), rel=1e-5)
    with torch.no_grad():
        measured = method.measure(Batch(texts, None, torch.Generator().manual_seed(0)))["loss"]
    assert measured.counts.tolist() == [3, 4, 5, 6, 6, 6]
    assert measured.totals.sum().item() == pytest.approx(sum(real), rel=1e-5)


def test_draw__many_texts__hides_a_fixed_share_80_10_10_and_nothing_else():
    method, texts = masked(mask_ratio=0.25), tiny_texts(4000, seed=2)
    texts["ids"] = texts["ids"].clamp(min=MASK_TOKEN + 1)  # no text has MASK in it
    draw = method.draw(Batch(texts, None, torch.Generator().manual_seed(0)), 0.0)
    chosen, shown, ids = draw["chosen"], draw["ids"], texts["ids"]
    assert chosen.shape == (4000, 3)
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    assert texts["mask"].gather(1, chosen).all()  # all have three tokens at least
    hidden = torch.zeros_like(texts["mask"]).scatter(1, chosen, True)
    assert torch.equal(shown[~hidden], ids[~hidden])
    became_mask = (shown[hidden] == MASK_TOKEN).float().mean().item()
    stayed = (shown[hidden] == ids[hidden]).float().mean().item()
    # A random word is MASK, or the word itself, once in VOCABULARY times.
    assert became_mask == pytest.approx(0.8 + 0.1 / VOCABULARY, abs=0.01)
    assert stayed == pytest.approx(0.1 + 0.1 / VOCABULARY, abs=0.01)
    others = shown[hidden & (shown != ids) & (shown != MASK_TOKEN)]
    assert others.unique().numel() >= VOCABULARY - 2 and others.max() < VOCABULARY


@pytest.mark.parametrize(("ratio", "count"), [(0.15, 2), (0.25, 3), (0.01, 1)])
def test_draw__share_that_is_no_whole_number__is_rounded_to_one_at_least(ratio, count):
    assert masked(mask_ratio=ratio).draw(text_batch(), 0.0)["chosen"].shape == (8, count)


def test_draw__another_seed__hides_other_words():
    method, batch = masked(), text_batch()
    one, other = (method.draw(Batch(batch.inputs, None, torch.Generator().manual_seed(seed)), 0.0) for seed in (0, 1))
    assert not torch.equal(one["ids"], other["ids"])


# Keys: the encoders of both families can be locked


@torch.no_grad()
@pytest.mark.parametrize("kind", ["independent", "released"])
@pytest.mark.parametrize("arch", ["bert", "gpt2"])
def test_permuted__locked_text_encoder_with_its_key__answers_the_same_and_without_it_does_not(arch, kind):
    encoder, texts = any_weights(build_tiny_text(tiny_text_model(arch))), tiny_texts()
    tokens, answers = encoder.forward_features(texts), encoder(texts)
    key = new_key(Shape(arch, 32, 2, 2, 32), kind, Random(0))
    encoder.load_state_dict(permute_state(encoder.state_dict(), key))
    with permuted(encoder, key):
        torch.testing.assert_close(encoder.forward_features(texts), tokens, atol=1e-10, rtol=0)
        torch.testing.assert_close(encoder(texts), answers, atol=1e-10, rtol=0)
    assert (encoder(texts) - answers).abs().max() > 0.1


@torch.no_grad()
def test_permuted__rows_of_a_padded_bert__answer_the_same():
    encoder, texts = any_weights(build_tiny_text(tiny_text_model("bert"))), tiny_texts()
    answers = encoder(texts)
    with permuted(encoder, rows=torch.Generator().manual_seed(0)):
        torch.testing.assert_close(encoder(texts), answers, atol=1e-10, rtol=0)


@torch.no_grad()
def test_permuted__locked_language_model_with_its_key__has_the_same_losses():
    method, batch = language(), stream_batch()
    expected = method.next_word_losses(batch.inputs)
    key = new_key(Shape("gpt2", 32, 2, 2, 32), "independent", Random(0))
    method.encoder.load_state_dict(permute_state(method.encoder.state_dict(), key))
    with permuted(method.encoder, key):
        torch.testing.assert_close(method.next_word_losses(batch.inputs), expected, atol=1e-6, rtol=0)
    assert (method.next_word_losses(batch.inputs) - expected).abs().max() > 0.1
