"""Encoders of texts: what they compute is what transformers computes, whatever the padding."""

import pytest
import torch
from pydantic import ValidationError
from tiny_text import (
    LENGTH,
    TEXT_CLASSES,
    VOCABULARY,
    any_weights,
    build_tiny_text,
    stream_batch,
    tiny_text_model,
    tiny_texts,
)
from torch.nn.functional import pad

from pipeline.engine.optim import OptimConfig, parameter_groups
from pipeline.methods.supervised import Supervised

both_families = pytest.mark.parametrize("arch", ["bert", "gpt2"])


def plain_bert(encoder):
    """transformers alone, with the weights of an encoder."""
    from transformers import BertForSequenceClassification

    model = BertForSequenceClassification(encoder.bert.config).double().eval()
    model.load_state_dict(encoder.state_dict())
    return model


def plain_gpt2(encoder):
    from transformers import GPT2ForSequenceClassification

    encoder.transformer.config.pad_token_id = 0
    model = GPT2ForSequenceClassification(encoder.transformer.config).double().eval()
    model.load_state_dict(
        {name.replace("classifier.", "score."): value for name, value in encoder.state_dict().items()}
    )
    return model


PLAIN = {"bert": plain_bert, "gpt2": plain_gpt2}


def encoder_and_plain(arch, **changes):
    encoder = build_tiny_text(tiny_text_model(arch, **changes))
    core = encoder.bert if arch == "bert" else encoder.transformer
    core.config.num_labels = TEXT_CLASSES
    return any_weights(encoder), PLAIN[arch](encoder)


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"act_layer": "relu", "mlp_ratio": 2.0}], ids=["default", "relu"])
@both_families
def test_forward__texts_of_different_lengths__gives_the_logits_of_transformers(arch, changes):
    encoder, plain = encoder_and_plain(arch, **changes)
    texts = tiny_texts()
    types = {"token_type_ids": texts["types"]} if arch == "bert" else {}
    expected = plain(texts["ids"], attention_mask=texts["mask"].long(), **types).logits
    torch.testing.assert_close(encoder(texts), expected, atol=1e-12, rtol=0)
    assert expected.std(dim=0).min() > 0.01


@torch.no_grad()
@both_families
def test_forward_features__texts_of_different_lengths__gives_the_tokens_of_transformers(arch):
    encoder, plain = encoder_and_plain(arch)
    texts = {name: value for name, value in tiny_texts().items() if name != "types"}
    expected = plain.base_model(texts["ids"], attention_mask=texts["mask"].long()).last_hidden_state
    found = encoder.forward_features(texts)
    assert found.shape == (8, LENGTH, 32)
    torch.testing.assert_close(found[texts["mask"]], expected[texts["mask"]], atol=1e-12, rtol=0)


@torch.no_grad()
def test_forward_features__gpt2_after_the_end_of_a_text__repeats_its_last_token():
    encoder, texts = any_weights(build_tiny_text(tiny_text_model("gpt2"))), tiny_texts()
    tokens = encoder.forward_features(texts)
    for row, mask in zip(tokens, texts["mask"], strict=True):
        end = int(mask.sum())
        assert torch.equal(row[end:], row[end - 1].expand(LENGTH - end, -1))
        assert not torch.equal(row[end - 1], row[end - 2])


@torch.no_grad()
@both_families
def test_forward__more_padding_and_other_words_in_it__changes_nothing(arch):
    encoder, texts = any_weights(build_tiny_text(tiny_text_model(arch))), tiny_texts(length=7)
    longer = {name: pad(value, (0, LENGTH - 7)) for name, value in texts.items()}
    longer["ids"] = longer["ids"].masked_fill(~longer["mask"], 9)
    torch.testing.assert_close(encoder(longer), encoder(texts), atol=1e-12, rtol=0)


@torch.no_grad()
def test_forward__bert_with_other_types__answers_otherwise():
    encoder, texts = any_weights(build_tiny_text(tiny_text_model("bert"))), tiny_texts()
    without = {name: value for name, value in texts.items() if name != "types"}
    torch.testing.assert_close(encoder(without), encoder({**without, "types": torch.zeros_like(texts["ids"])}))
    assert (encoder(texts) - encoder(without)).abs().max() > 0.01


@torch.no_grad()
def test_forward_features__gpt2__knows_nothing_of_what_follows():
    encoder, texts = any_weights(build_tiny_text(tiny_text_model("gpt2"))), stream_batch().inputs
    other = {**texts, "ids": torch.cat([texts["ids"][:, :6], texts["ids"][:, 6:].flip(1)], dim=1)}
    found, changed = encoder.forward_features(texts), encoder.forward_features(other)
    torch.testing.assert_close(found[:, :6], changed[:, :6], atol=1e-12, rtol=0)
    assert (found[:, 6:] - changed[:, 6:]).abs().amax(dim=(1, 2)).min() > 0.01


@both_families
def test_forward__dropout__is_drawn_in_training_only(arch):
    encoder, texts = build_tiny_text(tiny_text_model(arch, dropout=0.3)), tiny_texts()
    assert {part.p for part in encoder.modules() if isinstance(part, torch.nn.Dropout)} == {0.3}
    assert not torch.equal(encoder.train()(texts), encoder(texts))
    assert torch.equal(encoder.eval()(texts), encoder(texts))


@both_families
def test_forward_head__dropout__hides_its_share_of_what_is_classified(arch):
    encoder = build_tiny_text(tiny_text_model(arch, dropout=0.5)).train()
    features = encoder.forward_head(torch.randn(64, LENGTH, 32), pre_logits=True)
    assert (features == 0).float().mean().item() == pytest.approx(0.5, abs=0.1)


# What is built


@both_families
def test_build__0_classes__has_neither_classifier_nor_pooler(arch):
    encoder = build_tiny_text(tiny_text_model(arch), num_classes=0)
    assert isinstance(encoder.get_classifier(), torch.nn.Identity)
    assert [name for name in encoder.state_dict() if "pooler" in name or "classifier" in name] == []


@both_families
def test_build__sizes__are_those_of_the_config_and_the_data(arch):
    model = tiny_text_model(arch, embed_dim=48, depth=3, num_heads=4, mlp_ratio=3.0)
    encoder = build_tiny_text(model)
    config = (encoder.bert if arch == "bert" else encoder.transformer).config
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (48, 3, 4)
    assert (config.vocab_size, config.max_position_embeddings) == (VOCABULARY, LENGTH)
    assert config._attn_implementation == "sdpa"
    shapes = {tuple(value.shape) for value in encoder.state_dict().values()}
    assert shapes & {(144, 48), (48, 144)} and (TEXT_CLASSES, 48) in shapes


@both_families
def test_build__base_size__is_the_published_one(arch):
    with torch.device("meta"):
        encoder = build_tiny_text(tiny_text_model(arch, embed_dim=None, depth=None, num_heads=None), num_classes=0)
    blocks = sum(value.numel() for name, value in encoder.named_parameters() if ".layer." in name or ".h." in name)
    assert blocks == 85_054_464  # 12 times 4 (768^2 + 768) + 8 768^2 + 5 768 + 4 768


@both_families
def test_build__head_std__is_the_classifiers(arch):
    weight = build_tiny_text(tiny_text_model(arch, head_std=0.5)).get_classifier().weight
    assert weight.std().item() == pytest.approx(0.5, rel=0.2)


@both_families
def test_parameter_groups__layer_decay__is_smaller_the_deeper_the_layer(arch):
    method = Supervised(Supervised.Config(), build_tiny_text(tiny_text_model(arch)))
    optim = OptimConfig(epochs=1, global_batch=8, micro_batch=8, base_lr=1e-3, layer_decay=0.5)
    scales = {p: group["lr_scale"] for group in parameter_groups(method, optim) for p in group["params"]}
    parameters = dict(method.encoder.named_parameters())
    block = "bert.encoder.layer.{}.attention.self.query.weight" if arch == "bert" else "transformer.h.{}.ln_1.weight"
    names = [block.format(0), block.format(1), "classifier.weight"]
    embeddings, first, second, head = (scales[p] for p in (method.encoder.words, *(parameters[name] for name in names)))
    assert (first, second, head) == (2 * embeddings, 4 * embeddings, 1.0)
    last = "bert.pooler.dense.weight" if arch == "bert" else "transformer.ln_f.weight"
    assert scales[parameters[last]] == second
    assert len(scales) == len(parameters)


# What is refused


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"patch_size": 4}, "patch_size is for a vit or swin or cnn, bert does not have it; remove it"),
        ({"depths": (2, 2)}, "depths is for a swin, bert does not have it"),
        ({"pool": "avg"}, "pool is for a vit, bert does not have it"),
        ({"cls_std": 0.1}, "cls_std is for a vit"),
        ({"drop_path": 0.1}, "drop_path is for a vit or swin or cnn, bert does not have it"),
        ({"pos_embed": "sincos"}, "bert has learned positions, found pos_embed sincos; remove it"),
        ({"num_heads": (2, 2)}, "num_heads of a bert is one number"),
        ({"num_heads": 3}, "num_heads 3 does not divide embed_dim 32"),
        ({"embed_dim": None, "num_heads": 7}, "num_heads 7 does not divide embed_dim 768"),
    ],
    ids=str,
)
def test_model_config__what_a_bert_has_not__is_refused_with_what_to_do(changes, reason):
    with pytest.raises(ValidationError, match=reason):
        tiny_text_model("bert", **changes)


def test_model_config__positions_of_a_text_model__are_learned():
    models = [tiny_text_model(arch, **given) for arch in ("bert", "gpt2") for given in ({}, {"pos_embed": "learn"})]
    assert {model.positions for model in models} == {"learn"}
