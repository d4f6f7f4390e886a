"""Every method as tests build it: with its defaults, and with the variants of the papers' tables."""

from typing import Any, NamedTuple

from readable_failures import defaults_of
from tiny_maps import NUM_LABELS, segmentation_batch
from tiny_scenes import SCENE_SIZE, build_scene_encoder, detection_batch, scene_swin, scene_vit
from tiny_text import TEXT_CLASSES, build_tiny_text, stream_batch, text_batch, tiny_text_model
from tiny_vit import (
    NUM_CLASSES,
    build_tiny,
    frame_model,
    image_size_of,
    tiny_batch,
    tiny_model,
    tiny_resnet,
    tiny_swin,
)

from pipeline.method_checks.bench import Bench
from pipeline.methods.base import METHODS
from pipeline.models.architectures import TEXT
from pipeline.models.encoder import ModelConfig


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
    "upernet": Case("upernet", {"width": 8, "aux_width": 4}),
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
    "mjp, rotary": Case("mjp", {"dal": "none", "shuffle_ratio": 0.27}, tiny_model(pos_embed="rope")),
    "mjp of the paper, rotary beside a table": Case(
        "mjp", {"fidelity": "paper", "shuffle_ratio": 0.27}, tiny_model(pos_embed="rope_mixed", add_absolute=True)
    ),
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
    "droppos, rotary": Case("droppos", DECODER, tiny_model(pos_embed="rope_dinov3")),
    "mae, rotary, frequencies learned": Case("mae", DECODER, tiny_model(pos_embed="rope_mixed")),
    "supervised, rotary, rows permuted": Case(
        "supervised", {"permutation": {"rows": True}}, tiny_model(pos_embed="rope")
    ),
    "supervised on frames, rotary": Case("supervised", {}, frame_model(pos_embed="rope_mixed")),
    "upernet, rotary, whole images": Case(
        "upernet", {"width": 8, "aux_width": 4, "inference": "whole"}, tiny_model(pos_embed="rope")
    ),
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
    "upernet, patches of 14": Case(
        "upernet", {"width": 8, "aux_width": 4, "average": "valid"}, tiny_model(patch_size=14)
    ),
    "upernet with windows": Case("upernet", {"width": 8, "aux_width": 4}, tiny_model(window_size=3, global_blocks=1)),
    "upernet, relative too": Case("upernet", {"width": 8, "aux_width": 4}, tiny_model(add_relative=True)),
    "upernet on a Swin": Case("upernet", {"width": 8, "aux_width": 4, "inference": "whole"}, tiny_swin()),
    "language_model, with a key": Case("language_model", {"permutation": {"key": "used"}}, GPT2),
}
# Each method with its defaults, and variants whose loss is computed by other code: slow tests try these alone. The
# other cases differ from one of them in values, or in what is drawn.
PATHS = [
    *METHODS.names(),
    *("mjp row C", "mjp, positions hidden", "mjp row H (pca)", "mjp of the paper", "mjp on a Swin", "mjp on a ResNet"),
    *("mjp of the paper, rotary beside a table", "droppos, rotary", "mae, rotary, frequencies learned"),
    *("mp3 on frames, some known", "droppos, no attentive reconstruction", "droppos, learned positions"),
    *("supervised, relative", "supervised, rows permuted and a key", "supervised on a BERT, rows permuted and a key"),
    *("supervised on a GPT-2, with a key", "mask_rcnn with windows", "upernet on a Swin"),
]
HEADLESS = ("pretrain", "segment", "detect")  # tasks whose encoders classify nothing
OF_TEXTS = [case for case, (_, _, model) in CASES.items() if model.family in TEXT]


def build(case, seed=0, model=None):
    """With its own model or with this one of the same family."""
    name, fields, own = CASES[case]
    model = model or own
    method = METHODS.get(name)
    with defaults_of(
        f"method {name}", f'name what it needs in NEEDS of {__file__}: "{name}": Case("{name}", {{...}}, MODEL)'
    ):
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


def bench_for(case, model=None):
    """What the checks of method_checks/ are given of a case."""
    return Bench(lambda seed: build(case, seed, model), lambda size: batch_for(case, size))


def of_task(task):
    return [case for case, (name, _, _) in CASES.items() if METHODS.get(name).Config.task == task]
