"""What every method must do. Parametrised over the registry: a new method is tested by existing."""

from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import pytest
import timm
import torch
from timm.models.vision_transformer_sam import VisionTransformerSAM
from tiny_maps import NUM_LABELS, segmentation_batch
from tiny_scenes import SCENE_SIZE, build_scene_encoder, detection_batch, scene_swin, scene_vit
from tiny_text import TEXT_CLASSES, build_tiny_text, stream_batch, text_batch, tiny_text_model
from tiny_vit import (
    CHANNELS,
    NUM_CLASSES,
    build_tiny,
    frame_model,
    image_size_of,
    tiny_batch,
    tiny_model,
    tiny_resnet,
    tiny_swin,
)
from torch import nn

from pipeline.config import CONFIGS, Layers, merge, read_yaml
from pipeline.engine.run import parse_run
from pipeline.errors import ConfigError
from pipeline.methods.base import METHODS, Batch
from pipeline.models.architectures import TEXT
from pipeline.models.dense import feature_maps
from pipeline.models.encoder import ModelConfig
from pipeline.models.position import encode
from pipeline.permutation.rules import unpermute_state
from pipeline.sizes import pair


class Case(NamedTuple):
    """A method, what differs from its defaults, and a model it accepts."""

    name: str
    fields: dict[str, Any] = {}
    model: ModelConfig = tiny_model()


NO_POSITIONS, SINCOS = tiny_model(pos_embed="none"), tiny_model(pos_embed="sincos")
# 8x8 cells of 4 px, of which 4x4 are visible; each has 2x2 patches, and a token of the last stage has 2x2 cells.
PYRAMID = tiny_swin(patch_size=2, depths=(2, 1, 1), num_heads=(2, 2, 2))
SWIN, RESNET = tiny_swin(pos_embed="learn"), tiny_resnet()
BERT, GPT2 = tiny_text_model("bert"), tiny_text_model("gpt2")
DECODER = {"decoder_width": 32, "decoder_depth": 1, "decoder_heads": 2}

DETECTOR = {"width": 16, "fc_width": 32, "box_convs": 1, "mask_convs": 1, "mask_side": 7, "rpn_samples": 64}
DETECTOR |= {"roi_samples": 32, "before_nms": (100, 100), "after_nms": (64, 64)}

# What a method needs other than its defaults and the tiny ViT.
NEEDS = {
    "mp3": Case("mp3", {}, NO_POSITIONS),
    "mae": Case("mae", DECODER, SINCOS),
    "droppos": Case("droppos", DECODER, SINCOS),
    "droppos_swin": Case("droppos_swin", {**DECODER, "cells": 8}, PYRAMID),
    "language_model": Case("language_model", {}, GPT2),
    "masked_language": Case("masked_language", {}, BERT),
    "mask_rcnn": Case("mask_rcnn", DETECTOR, scene_vit()),
    "upernet": Case("upernet", {"width": 8}),
}
# Every registered method with its defaults, then the variants of the papers' tables and the other fidelities.
CASES = {name: NEEDS.get(name, Case(name)) for name in METHODS.names()} | {
    "mjp row C": Case("mjp", {"shuffle": "pixels", "unknown": False, "dal": "none"}),
    "mjp row D": Case("mjp", {"shuffle": "none", "unknown": False}),
    "mjp row F": Case("mjp", {"unknown": False, "dal": "none", "index": "slots"}),
    "mjp row F, indices of patches": Case("mjp", {"unknown": False, "dal": "none", "index": "patches"}),
    "mjp row E": Case("mjp", {"unknown": False, "dal": "none"}),
    "mjp row G": Case("mjp", {"dal": "none"}),
    "mjp, positions hidden": Case("mjp", {"shuffle": "positions"}),
    "mjp row H (pca)": Case("mjp", {"dal": "pca"}),
    "mjp row I": Case("mjp", {"dal": "linear"}),
    "mjp row J, ratio 0.27": Case("mjp", {"shuffle_ratio": 0.27}),
    "mjp as released": Case("mjp", {"fidelity": "released"}),
    "mjp of the paper": Case("mjp", {"fidelity": "paper", "shuffle_ratio": 0.27}),
    "mjp on a Swin": Case("mjp", {}, SWIN),
    "mjp on a Swin, as released": Case("mjp", {"fidelity": "released"}, SWIN),
    "mjp on a ResNet": Case("mjp", {"unknown": False, "dal": "none"}, RESNET),
    "mp3, eta 0": Case("mp3", {"mask_ratio": 0.0}, NO_POSITIONS),
    "mp3 on frames": Case("mp3", {"mask_ratio": 0.5}, frame_model(pos_embed="none")),
    "mp3 on frames, some known": Case("mp3", {"mask_ratio": 0.0, "known_ratio": 0.2}, frame_model(pos_embed="none")),
    "mp3 as released": Case("mp3", {"fidelity": "released"}, NO_POSITIONS),
    "mae, plain pixels": Case("mae", {**DECODER, "norm_pix": False}, SINCOS),
    "droppos, no attentive reconstruction": Case("droppos", {**DECODER, "tau": None}, SINCOS),
    "droppos of the paper": Case("droppos", {**DECODER, "fidelity": "paper"}, SINCOS),
    "droppos, gamma_pos 1": Case("droppos", {**DECODER, "position_ratio": 1.0}, SINCOS),
    "droppos, learned from sin-cos": Case("droppos", DECODER, tiny_model(pos_embed="sincos_learn")),
    "droppos, learned positions": Case("droppos", DECODER, tiny_model(pos_embed="learn")),
    "supervised, relative": Case("supervised", {}, tiny_model(pos_embed="relative")),
    "supervised, sin-cos and average": Case("supervised", {}, tiny_model(pos_embed="sincos", pool="avg")),
    "supervised, no positions": Case("supervised", {}, NO_POSITIONS),
    "supervised on frames": Case("supervised", {}, frame_model(pos_embed="sincos")),
    "supervised, rows permuted": Case("supervised", {"permutation": {"rows": True}}),
    "supervised, with a key": Case("supervised", {"permutation": {"key": "used"}}),
    "supervised, rows permuted and a key": Case("supervised", {"permutation": {"rows": True, "key": "used"}}),
    "supervised on a BERT": Case("supervised", {}, BERT),
    "supervised on a BERT, rows permuted and a key": Case(
        "supervised", {"permutation": {"rows": True, "key": "used"}}, BERT
    ),
    "supervised on a GPT-2": Case("supervised", {}, GPT2),
    "supervised on a GPT-2, with a key": Case("supervised", {"permutation": {"key": "used"}}, GPT2),
    "mask_rcnn with windows": Case("mask_rcnn", DETECTOR, scene_vit(window_size=4, global_blocks=1, add_relative=True)),
    "mask_rcnn on a Swin, heads without norms": Case("mask_rcnn", {**DETECTOR, "head_norm": False}, scene_swin()),
    "upernet, patches of 14": Case("upernet", {"width": 8, "average": "valid"}, tiny_model(patch_size=14)),
    "upernet with windows": Case("upernet", {"width": 8}, tiny_model(window_size=3, global_blocks=1)),
    "upernet, relative too": Case("upernet", {"width": 8}, tiny_model(add_relative=True)),
    "upernet on a Swin": Case("upernet", {"width": 8, "inference": "whole"}, tiny_swin()),
    "language_model, with a key": Case("language_model", {"permutation": {"key": "used"}}, GPT2),
}
HEADLESS = ("pretrain", "segment", "detect")  # tasks whose encoders classify nothing
OF_TEXTS = [case for case, (_, _, model) in CASES.items() if model.family in TEXT]
every_method = pytest.mark.parametrize("case", CASES)


def build(case, seed=0):
    name, fields, model = CASES[case]
    method = METHODS.get(name)
    cfg = method.Config(name=name, **fields)
    cfg.check(model, size_of(case))
    if case in OF_TEXTS:
        return method(cfg, build_tiny_text(model, seed, 0 if cfg.task == "language" else TEXT_CLASSES)).train()
    if cfg.task == "detect":
        return method(cfg, build_scene_encoder(model, seed)).train()
    size = cfg.encoder_size(size_of(case))
    encoder = build_tiny(model, seed, 0 if cfg.task in HEADLESS else NUM_CLASSES, size)
    encoder.num_labels = NUM_LABELS
    return method(cfg, encoder).train()


def batch_for(case, size=8):
    if case in OF_TEXTS:
        return stream_batch(size) if case in of_task("language") else text_batch(size)
    if case in of_task("detect"):
        return detection_batch(size)
    made = segmentation_batch if case in of_task("segment") else tiny_batch
    return made(size, image_size=size_of(case))


def size_of(case):
    """Of the images of a case."""
    return SCENE_SIZE if case in of_task("detect") else image_size_of(CASES[case].model)


def loss_of(method, batch, progress=0.5, model=None):
    draw = method.draw(batch, progress)
    torch.manual_seed(0)
    return (method if model is None else model)(batch.images, batch.targets, draw)


def seeded(batch, seed):
    return Batch(batch.images, batch.targets, torch.Generator().manual_seed(seed))


def of_task(task):
    return [case for case, (name, _, _) in CASES.items() if METHODS.get(name).Config.task == task]


@every_method
def test_forward__any_progress__gives_a_finite_scalar_loss_and_scalars_to_log(case):
    method, batch = build(case), batch_for(case)
    for progress in (0.0, 0.5, 1.0):
        out = loss_of(method, batch, progress)
        assert out.loss.shape == () and out.loss.requires_grad
        assert torch.isfinite(out.loss)
        assert all(value.shape == () and torch.isfinite(value) for value in out.scalars.values())
        assert not any(value.requires_grad for value in out.scalars.values())


@every_method
def test_backward__over_at_most_32_draws__reaches_every_trainable_parameter(case):
    method, batch = build(case), batch_for(case, 4)
    # A first step, because timm starts a ResNet's branches from 0, which hides what is in them.
    loss_of(method, batch).loss.backward()
    torch.optim.SGD(method.parameters(), lr=0.1).step()
    method.zero_grad()
    trained = {name: p for name, p in method.named_parameters() if p.requires_grad}
    for _ in range(32):
        loss_of(method, batch).loss.backward()
        unreached = [name for name, p in trained.items() if p.grad is None or not p.grad.any()]
        if not unreached:
            break
    assert unreached == []
    assert all(torch.isfinite(p.grad).all() for p in trained.values())


@every_method
def test_backward__single_step__leaves_no_parameter_without_gradient(case):
    """DDP waits for every parameter in every step, shuffled or not."""
    method = build(case)
    for progress in (0.0, 0.5):
        method.zero_grad(set_to_none=True)
        loss_of(method, batch_for(case, 4), progress).loss.backward()
        assert [name for name, p in method.named_parameters() if p.requires_grad and p.grad is None] == []


@every_method
def test_draw__same_seed__gives_the_same_loss_bit_for_bit(case):
    method, batch = build(case), batch_for(case)
    losses = [loss_of(method, seeded(batch, 3)).loss for _ in range(2)]
    assert torch.equal(*losses)


def train(method, batches, lr, progress):
    optimizer = torch.optim.AdamW(method.parameters(), lr=lr, weight_decay=0.0)
    for step, batch in enumerate(batches):
        out = loss_of(method, batch, progress(step))
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()


# Row C scrambles every image in half of the steps: that it does not fit is what the paper finds.
@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in of_task("classify") if case != "mjp row C"])
def test_training__one_batch_for_80_steps__brings_the_loss_below_a_tenth_of_its_start(case):
    method, batch = build(case), batch_for(case, 16)
    first = loss_of(method, batch, 0.0).loss.item()
    train(method, [batch] * 80, 3e-3, lambda step: step / 80)
    # Unshuffled, so that the last draw does not decide.
    assert loss_of(method, batch, 0.0).loss.item() < 0.1 * first


@pytest.mark.slow
@pytest.mark.parametrize("case", [*of_task("pretrain"), *of_task("language")])
def test_pretraining__one_batch_and_one_draw__is_learnt_by_heart(case):
    """At progress 1, where DropPos no longer smooths its targets and its loss can reach 0.

    To name the mean of a patch gives MAE half of its start; less takes the pixels themselves, and more steps.
    """
    steps, bar = (200, 0.25) if CASES[case].name == "mae" else (80, 0.1)
    method, batch = build(case), batch_for(case, 2)
    first = loss_of(method, seeded(batch, 3), 1.0).loss.item()
    train(method, [seeded(batch, 3) for _ in range(steps)], 6e-3, lambda step: 1.0)
    assert loss_of(method, seeded(batch, 3), 1.0).loss.item() < bar * first


@every_method
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_forward__bf16_autocast__is_finite_and_close_to_fp32(case):
    method, batch = build(case), batch_for(case)
    plain = loss_of(method, seeded(batch, 3)).loss
    with torch.autocast("cpu", torch.bfloat16):
        out = loss_of(method, seeded(batch, 3))
    out.loss.backward()
    assert out.loss.dtype == torch.float32
    assert out.loss.item() == pytest.approx(plain.item(), rel=0.02)
    assert all(torch.isfinite(p.grad).all() for p in method.parameters() if p.requires_grad)


@pytest.mark.slow
@every_method
def test_compile__several_draws__is_one_graph_compiled_once(case):
    """Or one for each of the parts that compile."""
    method, batch = build(case), batch_for(case)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = compiled_twin(method)
    with torch._dynamo.config.patch(error_on_recompile=True):
        # With seed 0 to 5 and both ends of the schedule there are draws that shuffle and draws that do not.
        for seed, progress in enumerate((0.0, 0.5, 0.5, 0.9, 0.9, 1.0)):
            found = loss_of(method, seeded(batch, seed), progress, compiled).loss
            expected = loss_of(method, seeded(batch, seed), progress).loss
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == len(method.compiled or ("all",))
    assert not torch._dynamo.utils.counters["graph_break"]


def compiled_twin(method):
    if method.compiled is None:
        return torch.compile(method, backend="eager", fullgraph=True)
    twin = deepcopy(method)
    for name in method.compiled:
        twin.get_submodule(name).compile(backend="eager", fullgraph=True)
    return twin


@pytest.mark.parametrize("case", [case for case in CASES if case not in OF_TEXTS])
def test_export__trained_one_step__loads_into_plain_timm_with_the_same_features(case):
    method, batch = build(case), batch_for(case)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    loss_of(method, batch).loss.backward()
    optimizer.step()
    method.eval()
    height, width = pair(size_seen(method, case))
    images = batch.images[..., :height, :width]
    with torch.no_grad():
        expected = features_of(method, images) if method.cfg.task in HEADLESS else method.predict(images).logits

    encoder = method.export().eval()
    weights = unlocked(encoder.state_dict(), method)
    plain = plain_timm(CASES[case].model, (height, width), encoder.num_classes)
    missing, unexpected = plain.load_state_dict(weights, strict=False)

    assert missing == []
    assert unexpected == extra_keys(CASES[case].model)
    restore(plain, {key: weights[key] for key in unexpected})
    with torch.no_grad():
        found = plain_features(plain, method, images) if method.cfg.task in HEADLESS else plain(images)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def features_of(method, images):
    """What the encoder of a method gives to its heads."""
    return encode(method.encoder, images) if method.cfg.task == "pretrain" else feature_maps(method.encoder, images)[-1]


def plain_features(plain, method, images):
    """The same of timm's."""
    if method.cfg.task == "pretrain":
        return plain.forward_features(images)
    return plain.forward_intermediates(images, intermediates_only=True)[-1]


@pytest.mark.parametrize("case", OF_TEXTS)
def test_export__text_model_trained_one_step__loads_into_plain_transformers_with_the_same_tokens(case):
    method, batch = build(case), batch_for(case)
    loss_of(method, batch).loss.backward()
    torch.optim.SGD(method.parameters(), lr=0.1).step()
    encoder = method.eval().export()
    prefix = "bert." if CASES[case].model.family == "bert" else "transformer."
    weights = {
        name.removeprefix(prefix): value
        for name, value in unlocked(encoder.state_dict(), method).items()
        if name.startswith(prefix)
    }
    plain = plain_transformers(CASES[case].model, has_pooler="pooler.dense.weight" in weights)
    plain.load_state_dict(weights)
    texts = batch.inputs
    types = {"token_type_ids": texts["types"]} if "types" in texts and prefix == "bert." else {}
    with torch.no_grad():
        found = plain(texts["ids"], attention_mask=texts["mask"].long(), **types).last_hidden_state
        expected = encode(method.encoder, texts)
    torch.testing.assert_close(found[texts["mask"]], expected[texts["mask"]], atol=1e-5, rtol=0)


def plain_transformers(model, has_pooler):
    """transformers alone, without a line of ours."""
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    if model.family == "gpt2":
        shape = {"n_embd": model.embed_dim, "n_layer": model.depth, "n_head": model.num_heads, "n_positions": 12}
        return GPT2Model(GPT2Config(vocab_size=40, **shape)).eval()
    shape = {"hidden_size": model.embed_dim, "num_hidden_layers": model.depth, "num_attention_heads": model.num_heads}
    shape |= {"intermediate_size": 4 * model.embed_dim, "max_position_embeddings": 12}
    return BertModel(BertConfig(vocab_size=40, **shape), add_pooling_layer=has_pooler).eval()


def unlocked(weights, method):
    """Those of a method with a key are locked; whoever has it unlocks them."""
    return unpermute_state(weights, method.key) if getattr(method, "key", None) else weights


def size_seen(method, case):
    return method.cfg.encoder_size(size_of(case))


def plain_timm(model, image_size, num_classes):
    """timm alone, without a line of ours."""
    shape = {}
    if model.is_windowed:
        return plain_windowed(model, image_size)
    if model.family != "cnn":
        keys = ("patch_size", "embed_dim", "depth", "depths", "num_heads", "window_size")
        shape = {"img_size": image_size} | {key: getattr(model, key) for key in keys if getattr(model, key) is not None}
    if model.family == "vit":
        shape["pos_embed"] = "none" if model.positions in ("none", "relative") else "learn"
        shape["global_pool"] = "avg" if model.pool == "avg" else "token"
    return timm.create_model(model.arch, in_chans=CHANNELS, num_classes=num_classes, **shape).eval()


def plain_windowed(model, image_size):
    """SAM's image encoder without what comes after its blocks; its last block is global."""
    shape = {key: getattr(model, key) for key in ("patch_size", "embed_dim", "depth", "num_heads", "window_size")}
    shape |= {"img_size": image_size, "in_chans": CHANNELS, "norm_layer": partial(nn.LayerNorm, eps=1e-6)}
    shape["use_rel_pos"] = model.add_relative
    plain = VisionTransformerSAM(**shape, global_attn_indexes=(model.depth - 1,), neck_chans=0)
    plain.neck = plain.head = nn.Identity()
    return plain.eval()


def extra_keys(model):
    """What timm has no place for: a Swin's absolute positions, a ViT's relative ones."""
    if model.family == "swin" and model.positions != "none":
        return ["pos_embed"]
    if model.positions == "relative" or (model.add_relative and not model.is_windowed):
        return [f"blocks.{number}.attn.rel_pos.relative_position_bias_table" for number in range(model.depth)]
    return []


def restore(plain, extra):
    """Put extra keys where they belong, from outside."""
    for key, value in extra.items():
        if key == "pos_embed":
            plain.patch_embed.register_forward_hook(lambda _, __, out, value=value: out + value.view(1, *out.shape[1:]))
        else:
            add_relative_bias(plain.blocks[int(key.split(".")[1])].attn, value)


def add_relative_bias(attn, table):
    """Of two patches: the row of their offset. The last three rows: CLS to patch, patch to CLS, CLS to CLS."""
    bias = torch.zeros(1, table.shape[1], 50, 50)
    places = [(index // 7, index % 7) for index in range(49)]
    for query, (row, col) in enumerate(places):
        for key, (other_row, other_col) in enumerate(places):
            bias[0, :, 1 + query, 1 + key] = table[(row - other_row + 6) * 13 + col - other_col + 6]
    bias[0, :, 0, 1:], bias[0, :, 1:, 0], bias[0, :, 0, 0] = table[-3][:, None], table[-2][:, None], table[-1]
    plain_forward = attn.forward
    attn.forward = lambda x, attn_mask=None, is_causal=False: plain_forward(x, attn_mask=bias)


@every_method
def test_state_dict__loaded_into_another_start__gives_the_same_loss(case):
    first, second, batch = build(case, seed=0), build(case, seed=1), batch_for(case)
    expected = loss_of(first, seeded(batch, 3)).loss
    assert not torch.equal(loss_of(second, seeded(batch, 3)).loss, expected)
    second.load_state_dict(first.state_dict())
    assert torch.equal(loss_of(second, seeded(batch, 3)).loss, expected)


# Dropout


# A detector takes the same maps of a ViT as `upernet`, and is slow.
PLAIN_VITS = [case for case in METHODS.names() if CASES[case].model.family == "vit" and case != "mask_rcnn"]


@pytest.mark.parametrize("case", PLAIN_VITS)
def test_dropout__in_each_place_of_a_vit_alone__is_drawn_in_training(case):
    """Also by methods that take the encoder apart instead of calling timm's forward."""
    method, batch = build(case), batch_for(case, 4)
    draw, drops = method.draw(batch, 0.5), dropouts(method)
    places = {name.split(".")[-1] for name in dropouts(method.encoder)} - {"patch_drop"}
    places -= {"head_drop"} if method.cfg.task in HEADLESS else set()
    assert places >= {"pos_drop", "attn_drop", "proj_drop", "drop1", "drop2"}

    def losses(place):
        for name, drop in drops.items():
            drop.p = 0.5 if name.startswith("encoder.") and name.endswith(f".{place}") else 0.0
        return [seeded_loss(method, batch, draw, seed) for seed in (1, 2)]

    assert torch.equal(*losses("nowhere"))
    assert [place for place in places if torch.equal(*losses(place))] == []


def dropouts(module):
    return {name: part for name, part in module.named_modules() if isinstance(part, nn.modules.dropout._DropoutNd)}


def seeded_loss(method, batch, draw, seed):
    torch.manual_seed(seed)
    return method(batch.inputs, batch.targets, draw).loss


# Models that a method refuses

IMPOSSIBLE = {
    "mp3 with positions": (Case("mp3", {}, SINCOS), "must not have them: set model.pos_embed to none, found sincos"),
    "mp3 with timm's own": (Case("mp3"), "set model.pos_embed to none, found learn"),
    "mp3 with relative positions": (Case("mp3", {}, tiny_model(pos_embed="relative")), "none, found relative"),
    "mae without positions": (Case("mae", {}, NO_POSITIONS), "needs absolute positions, found model.pos_embed: none"),
    "mae with relative positions": (Case("mae", {}, tiny_model(pos_embed="relative")), "pos_embed: relative"),
    "mae on a ResNet": (Case("mae", {}, RESNET), "works on a ViT, found model.arch test_resnet"),
    "droppos without positions": (Case("droppos", {}, NO_POSITIONS), "needs absolute positions, found model.pos_embed"),
    "droppos on a Swin": (Case("droppos", {}, SWIN), "method droppos works on a ViT, found model.arch swin_tiny"),
    "droppos_swin on a ViT": (Case("droppos_swin", {}, SINCOS), "works on a Swin and adds its own positions, found"),
    "droppos_swin that sees nothing": (
        Case("droppos_swin", {"cells": 7, "mask_ratio": 0.99}, tiny_swin(pos_embed="none")),
        "method.mask_ratio 0.99 leaves none of 49 cells",
    ),
    "droppos_swin with positions": (Case("droppos_swin", {}, SWIN), "adds its own positions, found"),
    "droppos_swin, odd cells": (
        Case("droppos_swin", {"cells": 5}, PYRAMID),
        "method.cells 5 does not divide data.image_size 28",
    ),
    "mjp without positions": (
        Case("mjp", {}, NO_POSITIONS),
        "set model.pos_embed to learn, or method.unknown to false",
    ),
    "mjp that hides positions without the unknown one": (
        Case("mjp", {"shuffle": "positions", "unknown": False}),
        "shuffle: positions moves no patch and hides positions alone; set unknown: true",
    ),
    "mjp on a ResNet, all of it": (Case("mjp", {}, RESNET), "model tiny_resnet has none"),
    "mjp with fixed positions": (Case("mjp", {}, SINCOS), "works on learned positions, model tiny has sincos"),
    "mae that masks nothing": (Case("mae", {"mask_ratio": 0.0}, SINCOS), "method.mask_ratio: found 0.0"),
    "mae, heads that do not divide": (
        Case("mae", {"decoder_width": 64, "decoder_heads": 3}, SINCOS),
        "method.decoder_heads 3 does not divide method.decoder_width 64",
    ),
    "mae, width without sin-cos": (
        Case("mae", {"decoder_width": 30, "decoder_heads": 2}, SINCOS),
        "method.decoder_width: found 30",
    ),
    "mask_rcnn on a ResNet": (Case("mask_rcnn", {}, RESNET), "works on a ViT or a Swin, found model.arch test_resnet"),
    "mask_rcnn, four anchors": (
        Case("mask_rcnn", {"anchor_sizes": (8, 16, 32, 64)}, scene_vit()),
        "method.anchor_sizes has 4 sides, expected one for each of 5 maps",
    ),
    "mask_rcnn, Swin that halves too often": (
        Case("mask_rcnn", {}, scene_swin(patch_size=16)),
        "data.image_size 64 is no multiple of 128, the stride of the coarsest map",
    ),
    "upernet on a ResNet": (Case("upernet", {}, RESNET), "works on a ViT or a Swin, found model.arch test_resnet"),
    "upernet, taps of a Swin": (Case("upernet", {"taps": (0, 0, 1, 1)}, SWIN), "method.taps are blocks of a ViT"),
    "upernet, whole and relative": (
        Case("upernet", {"inference": "whole"}, tiny_model(add_relative=True)),
        "method.inference: whole sees images of any size, and relative positions are of one",
    ),
    "mp3 that averages": (Case("mp3", {}, tiny_model(pos_embed="none", pool="avg")), "set model.pool to cls"),
    "mae that averages": (Case("mae", {}, tiny_model(pos_embed="sincos", pool="avg")), "set model.pool to cls"),
    "droppos that averages": (Case("droppos", {}, tiny_model(pool="avg")), "set model.pool to cls"),
}


def data_for(case):
    """The name of a set that the model of a case can see."""
    if case.model.family not in TEXT:
        of_scenes = {"segment": "fashion_scenes_ade", "detect": "fashion_scenes_coco"}
        return of_scenes.get(METHODS.get(case.name).Config.task, "fashion_mnist")
    return "books_stream" if METHODS.get(case.name).Config.task == "language" else "books"


def parse_case(case, data=None):
    content = {
        "method": {"name": case.name, **case.fields},
        "model": case.model.model_dump(exclude_none=True),
        "optim": {"epochs": 5, "global_batch": 50, "micro_batch": 50, "base_lr": 3e-3},
    }
    if isinstance(case.model.patch_size, tuple):
        content["data"] = {"image_size": image_size_of(case.model)}
    path = CONFIGS / "data" / f"{data or data_for(case)}.yaml"
    return parse_run(Layers(("run.yaml", merge(read_yaml(path), content))))


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_parse_run__model_the_method_cannot_use__is_refused_in_one_clear_line(case):
    given, reason = IMPOSSIBLE[case]

    with pytest.raises(ConfigError) as caught:
        parse_case(given)

    (line,) = str(caught.value).splitlines()
    assert line.startswith("run.yaml: ")
    assert reason in line


TASK_OF = dict.fromkeys(("mp3", "mae", "droppos", "droppos_swin"), "pretrain") | {"multilabel": "attributes"}
TASK_OF |= dict.fromkeys(("language_model", "masked_language"), "language")
TASK_OF |= {"upernet": "segment", "mask_rcnn": "detect"}


# The data of this test are 28 px, which the Swin of droppos_swin does not divide, and 64 px, which 14 does not.
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("droppos_swin", "upernet, patches of 14")])
def test_parse_run__model_the_method_accepts__is_a_run_of_its_task(case):
    run = parse_case(CASES[case])

    assert run.task == TASK_OF.get(CASES[case].name, "text_classify" if case in OF_TEXTS else "classify")


@pytest.mark.parametrize(
    ("case", "data", "reason"),
    [
        (
            Case("supervised", {}, BERT),
            "fashion_mnist",
            "model.arch bert reads texts, data set fashion_mnist has images",
        ),
        (Case("mjp", {}, GPT2), "books", "method mjp moves patches of images, found model.arch gpt2"),
        (Case("mae", {}, BERT), "books", "is for the tasks text_classify, but method mae has task pretrain"),
        (Case("supervised", {}, BERT), "books_stream", "is for the tasks language, but method supervised has task"),
        (Case("language_model", {}, GPT2), "books", "but method language_model has task language"),
        (Case("language_model", {}, BERT), "books_stream", "names the next word with a gpt2, found model.arch bert"),
        (Case("masked_language", {}, GPT2), "books_stream", "names hidden words with a bert, found model.arch gpt2"),
        (
            Case("masked_language", {"mask_prob": 0.9, "random_prob": 0.2}, BERT),
            "books_stream",
            "mask_prob 0.9 and random_prob 0.2 are above 1 together",
        ),
    ],
    ids=range(8),
)
def test_parse_run__texts_and_what_cannot_read_them__is_refused_in_one_clear_line(case, data, reason):
    with pytest.raises(ConfigError) as caught:
        parse_case(case, data)

    (line,) = str(caught.value).splitlines()
    assert line.startswith("run.yaml: ")
    assert reason in line
