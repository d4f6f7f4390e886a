"""Weight files of BERT and GPT-2: as transformers publishes them, and as runs of this project leave them."""

import pytest
import torch
from safetensors.torch import save_file
from tiny_text import LENGTH, TEXT_CLASSES, VOCABULARY, any_weights, build_tiny_text, tiny_text_model, tiny_texts

from pipeline.core.errors import CheckpointError
from pipeline.methods.masked_language import MaskedLanguage
from pipeline.models.weights import load_encoder


def published_bert(prefix="bert.", positions=20, **sizes):
    """A file of BertForPreTraining as of 2019, as which bert-base-uncased is still published."""
    from transformers import BertConfig, BertForPreTraining

    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(**{"vocab_size": VOCABULARY, "max_position_embeddings": positions, **shape, **sizes})
    torch.manual_seed(3)
    model = any_weights(BertForPreTraining(config), seed=3).float()
    state = {name.replace("bert.", prefix, 1): value for name, value in model.state_dict().items()}
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, name in old.items():
        state = {key.replace(new, name): value for key, value in state.items()}
    return model, state | {f"{prefix}embeddings.position_ids": torch.arange(positions)[None]}


def published_gpt2(prefix="", positions=20):
    """A file of GPT2Model, whose blocks carry their causal masks, as gpt2 is published."""
    from transformers import GPT2Config, GPT2Model

    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": positions}
    torch.manual_seed(3)
    model = any_weights(GPT2Model(GPT2Config(vocab_size=VOCABULARY, **shape)), seed=3).float()
    state = {f"{prefix}{name}": value for name, value in model.state_dict().items()}
    masks = torch.ones(positions, positions).tril()[None, None]
    state |= {f"{prefix}h.{block}.attn.bias": masks for block in range(2)}
    return model, state | {f"{prefix}h.{block}.attn.masked_bias": torch.tensor(-1e4) for block in range(2)}


def load(state, encoder, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({name: value.clone().contiguous() for name, value in state.items()}, path)
    return load_encoder(encoder, path)


@torch.no_grad()
@pytest.mark.parametrize("prefix", ["bert.", ""], ids=["with a head", "bare"])
def test_load_encoder__published_bert__computes_what_it_computed(tmp_path, prefix):
    model, state = published_bert(prefix)
    state = {name: value for name, value in state.items() if prefix or not name.startswith("cls.")}
    encoder, texts = build_tiny_text(tiny_text_model("bert")).eval(), tiny_texts()
    report = load(state, encoder, tmp_path)
    expected = model.bert(texts["ids"], attention_mask=texts["mask"].long(), token_type_ids=texts["types"])
    tokens = encoder.forward_features(texts)
    torch.testing.assert_close(tokens[texts["mask"]], expected.last_hidden_state[texts["mask"]], atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder.pool(tokens), expected.pooler_output, atol=1e-5, rtol=0)
    assert (report.format, report.positions) == ("bert", "file")
    assert report.fresh == ["classifier.weight", "classifier.bias"]
    assert report.resized == [f"bert.embeddings.position_embeddings.weight 20 -> {LENGTH}"]
    dropped = {name.split(".")[0] for name in report.dropped if "position_ids" not in name}
    assert dropped == ({"cls"} if prefix else set())


@torch.no_grad()
@pytest.mark.parametrize("prefix", ["", "transformer."], ids=["bare", "with a head"])
def test_load_encoder__published_gpt2__computes_what_it_computed(tmp_path, prefix):
    model, state = published_gpt2(prefix)
    if prefix:
        state["lm_head.weight"] = state["transformer.wte.weight"]
    encoder, texts = build_tiny_text(tiny_text_model("gpt2"), num_classes=0).eval(), tiny_texts()
    report = load(state, encoder, tmp_path)
    expected = model(texts["ids"], attention_mask=texts["mask"].long()).last_hidden_state
    found = encoder.forward_features(texts)
    torch.testing.assert_close(found[texts["mask"]], expected[texts["mask"]], atol=1e-5, rtol=0)
    assert (report.format, report.fresh) == ("gpt2", [])
    assert report.resized == [f"transformer.wpe.weight 20 -> {LENGTH}"]
    assert len(report.dropped) == 4 + bool(prefix) and len(report.matched) == len(encoder.state_dict()) - 1


@torch.no_grad()
def test_load_encoder__classifier_of_transformers__arrives_with_its_head(tmp_path):
    from transformers import GPT2Config, GPT2ForSequenceClassification

    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": LENGTH, "num_labels": TEXT_CLASSES}
    config = GPT2Config(vocab_size=VOCABULARY, pad_token_id=0, **shape)
    model = any_weights(GPT2ForSequenceClassification(config)).float()
    encoder, texts = build_tiny_text(tiny_text_model("gpt2"), seed=1).eval(), tiny_texts()
    report = load(model.state_dict(), encoder, tmp_path)
    assert (report.fresh, report.resized, report.dropped) == ([], [], [])
    expected = model(texts["ids"], attention_mask=texts["mask"].long()).logits
    torch.testing.assert_close(encoder(texts), expected, atol=1e-5, rtol=0)


def test_load_encoder__masked_language_model_of_a_run__gives_a_classifier_all_but_pooler_and_head(tmp_path):
    method = MaskedLanguage(MaskedLanguage.Config(), build_tiny_text(tiny_text_model("bert"), 5, 0))
    encoder = build_tiny_text(tiny_text_model("bert"), seed=6)
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    report = load(method.export().state_dict(), encoder, tmp_path)
    new = ["bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"]
    assert report.fresh == new and report.dropped == [] == report.resized
    for name, value in encoder.state_dict().items():
        expected = before[name] if name in new else method.encoder.state_dict()[name]
        assert torch.equal(value, expected), name


def test_load_encoder__classifier_into_a_language_model__drops_pooler_and_head(tmp_path):
    classifier = build_tiny_text(tiny_text_model("bert"), seed=6)
    report = load(classifier.state_dict(), build_tiny_text(tiny_text_model("bert"), num_classes=0), tmp_path)
    assert report.fresh == []
    assert sorted({name.rpartition(".")[0] for name in report.dropped}) == ["bert.pooler.dense", "classifier"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"positions": LENGTH - 1},
            rf"position_embeddings.weight: found \({LENGTH - 1}, 32\), expected \({LENGTH}, 32\)",
        ),
        ({"vocab_size": 50}, r"word_embeddings.weight: found \(50, 32\), expected \(40, 32\)"),
        ({"num_hidden_layers": 3}, r"encoder.layer.2.attention.self.query.weight: found \(32, 32\), not expected"),
        ({"num_hidden_layers": 1}, r"encoder.layer.1.attention.self.query.weight: missing"),
    ],
    ids=["fewer positions", "other words", "deeper", "shallower"],
)
def test_load_encoder__bert_of_another_size__is_refused_with_what_differs(tmp_path, changes, reason):
    _, state = published_bert(**changes)
    encoder = build_tiny_text(tiny_text_model("bert"))
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    with pytest.raises(CheckpointError, match=reason):
        load(state, encoder, tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_load_encoder__gpt2_into_a_bert__says_another_architecture(tmp_path):
    _, state = published_gpt2()
    with pytest.raises(CheckpointError, match="it is of another architecture, give the model the one of the file"):
        load(state, build_tiny_text(tiny_text_model("bert")), tmp_path)
