"""Which models, and which data, a method accepts: others are refused in one clear line."""

import pytest
from method_cases import BERT, CASES, GPT2, NO_POSITIONS, OF_TEXTS, PYRAMID, RESNET, SINCOS, SWIN, Case
from tiny_scenes import scene_swin, scene_vit
from tiny_vit import image_size_of, tiny_model, tiny_swin

from pipeline.core.config import CONFIGS, Layers, merge, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.engine.run import parse_run
from pipeline.methods.base import METHODS
from pipeline.models.architectures import TEXT

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
        "shuffle: positions moves no patch and hides only positions; set unknown: true",
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
        "data.image_size 64 is not a multiple of the largest stride, 128",
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
        (Case("language_model", {}, BERT), "books_stream", "predicts next words with a gpt2, found model.arch bert"),
        (Case("masked_language", {}, GPT2), "books_stream", "predicts hidden words with a bert, found model.arch gpt2"),
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
