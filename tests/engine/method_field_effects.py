"""For each field of every method, a value that must be seen; field_effects.py says how."""

from bases import ALONE, BERT, DROPPOS, DROPPOS_SWIN, LANGUAGE, MAE, MASKED, MP3, OBJECTS, SCENES, STILL, jigsaw
from every_key import FieldEffect

from pipeline.core.config import merge

MJP = {
    "fidelity": [FieldEffect("released", "start", jigsaw()), FieldEffect("paper", "start draws", jigsaw())],
    "shuffle": [
        *[FieldEffect(value, "draws", jigsaw(**ALONE)) for value in ("none", "pixels")],
        FieldEffect("positions", "draws", jigsaw(dal="none")),
        FieldEffect("none", "draws", jigsaw(shuffle="positions")),
    ],
    "index": [
        FieldEffect("slots", "start", jigsaw(**ALONE)),
        FieldEffect("patches", "start", jigsaw(**ALONE)),
        FieldEffect("patches", "updates", jigsaw(**ALONE, index="slots")),
    ],
    "unknown": [FieldEffect(False, "start", jigsaw()), FieldEffect(False, "start", jigsaw(dal="none"))],
    "dal": [
        *[FieldEffect(value, "start", jigsaw()) for value in ("none", "pca", "linear")],
        FieldEffect("pca", "updates", jigsaw(dal="none")),
    ],
    "shuffle_ratio": [FieldEffect(0.9, "draws", jigsaw(**ALONE))],
    "dal_weight": [FieldEffect(1.0, "draws", STILL), FieldEffect(1.0, "draws", jigsaw(dal="pca"))],
    "warmup_ratio": [
        FieldEffect(0.5, "draws", STILL),
        FieldEffect(0.5, "draws", jigsaw(**ALONE, dal_schedule="constant")),
    ],
    "shuffle_prob": [FieldEffect(0.0, "draws", jigsaw(**ALONE))],
    "per_image": [FieldEffect(True, "draws", jigsaw(**ALONE)), FieldEffect(True, "draws", jigsaw())],
    "exact_count": [FieldEffect(True, "draws", jigsaw(**ALONE))],
    "dal_schedule": [FieldEffect("constant", "draws", STILL)],
    "dal_updates": [FieldEffect(2, "draws", STILL)],
    "dal_reduction": [FieldEffect("norm", "updates", STILL)],
    "dal_layers": [FieldEffect(3, "start", STILL)],
    "position_std": [FieldEffect(0.1, "start", jigsaw())],
}


def _decoder(base: dict) -> dict[str, list[FieldEffect]]:
    return {
        "decoder_width": [FieldEffect(32, "start", base)],
        "decoder_depth": [FieldEffect(2, "start", base)],
        "decoder_heads": [FieldEffect(1, "updates", base)],
    }


def _droppos(base: dict) -> dict[str, list[FieldEffect]]:
    return {
        **_decoder(base),
        "fidelity": [FieldEffect("paper", "updates", base), FieldEffect("released", "updates", base)],
        "position_ratio": [FieldEffect(0.4, "updates", base)],
        "sigma": [FieldEffect(2.0, "draws", base)],
        "sigma_end": [FieldEffect(1.0, "draws", base)],
        "tau": [FieldEffect(None, "updates", base), FieldEffect(1.0, "updates", base)],
    }


def _permutation(base: dict, *rows: FieldEffect) -> dict[str, list[FieldEffect]]:
    used = merge(base, {"method": {"permutation": {"key": "used"}}})
    return {
        "permutation.rows": list(rows),
        "permutation.key": [
            FieldEffect("used", "start", base),
            FieldEffect("missing", "start", base),
            FieldEffect("missing", "updates", used),
        ],
        "permutation.kind": [FieldEffect("released", "start", used), FieldEffect("shared", "start", used)],
        "permutation.seed": [FieldEffect(1, "start", used)],
    }


OTHERS = {
    "supervised": _permutation({}, FieldEffect(True, "draws"), FieldEffect(True, "draws", BERT)),
    "language_model": _permutation(LANGUAGE, FieldEffect(True, "refused", LANGUAGE)),
    "mp3": {
        "mask_ratio": [FieldEffect(0.25, "updates", MP3)],
        "known_ratio": [FieldEffect(0.3, "draws", MP3)],
        "fidelity": [FieldEffect("released", "draws", MP3)],
    },
    "mae": {
        **_decoder(MAE),
        "mask_ratio": [FieldEffect(0.25, "updates", MAE)],
        "norm_pix": [FieldEffect(False, "updates", MAE)],
    },
    "droppos": {**_droppos(DROPPOS), "mask_ratio": [FieldEffect(0.25, "updates", DROPPOS)]},
    "droppos_swin": {
        **_droppos(DROPPOS_SWIN),
        "mask_ratio": [FieldEffect(0.0, "start", DROPPOS_SWIN)],
        "cells": [FieldEffect(2, "start draws", DROPPOS_SWIN, {"method": {"mask_ratio": 0.0}})],
    },
    "masked_language": {
        "mask_ratio": [FieldEffect(0.5, "draws", MASKED)],
        "mask_prob": [FieldEffect(0.2, "draws", MASKED)],
        "random_prob": [FieldEffect(0.2, "draws", merge(MASKED, {"method": {"mask_prob": 0.0}}))],
    },
    "mask_rcnn": {
        **{
            key: [FieldEffect(other, "start", OBJECTS)]
            for key, other in {"width": 12, "fc_width": 8, "rpn_convs": 1, "box_convs": 2, "box_fcs": 2}.items()
        },
        "mask_convs": [FieldEffect(2, "start", OBJECTS)],
        "head_norm": [FieldEffect(False, "start", OBJECTS)],
        "anchor_sizes": [FieldEffect([16, 32, 64, 128, 256], "updates", OBJECTS)],
        "anchor_ratios": [FieldEffect([1.0], "start draws", OBJECTS), FieldEffect([0.5, 1.0, 1.5], "updates", OBJECTS)],
        "rpn_samples": [FieldEffect(16, "updates", OBJECTS)],
        "rpn_positive": [FieldEffect(0.05, "updates", OBJECTS)],
        "rpn_overlap": [FieldEffect([0.1, 0.7], "updates", OBJECTS), FieldEffect([0.3, 0.35], "updates", OBJECTS)],
        "rpn_nms": [FieldEffect(0.2, "updates", OBJECTS)],
        "before_nms": [FieldEffect([10, 40], "updates", OBJECTS), FieldEffect([40, 2], "validation", OBJECTS)],
        "after_nms": [FieldEffect([8, 24], "draws", OBJECTS), FieldEffect([24, 2], "validation", OBJECTS)],
        "roi_samples": [FieldEffect(8, "updates", OBJECTS)],
        "roi_positive": [FieldEffect(0.1, "updates", OBJECTS)],
        "roi_overlap": [FieldEffect(0.3, "updates", OBJECTS)],
        "box_side": [FieldEffect(2, "start", OBJECTS)],
        "mask_side": [FieldEffect(2, "updates", OBJECTS)],
        "min_score": [FieldEffect(0.9, "validation", OBJECTS)],
        "nms": [FieldEffect(0.1, "validation", OBJECTS)],
        "max_detections": [FieldEffect(1, "validation", OBJECTS)],
    },
    "upernet": {
        "width": [FieldEffect(6, "start", SCENES)],
        "aux_width": [FieldEffect(5, "start", SCENES)],
        "taps": [FieldEffect([0, 1, 1, 1], "updates", SCENES)],
        "aux_weight": [FieldEffect(1.0, "updates", SCENES)],
        "dropout": [FieldEffect(0.5, "updates", SCENES)],
        "average": [FieldEffect("valid", "updates", SCENES)],
        "inference": [FieldEffect("whole", "validation", SCENES)],
        "stride": [FieldEffect(5, "validation", SCENES)],
    },
}
METHODS = {
    f"method.{method}.{name}": effects
    for method, fields in {"mjp": MJP, **OTHERS}.items()
    for name, effects in fields.items()
}
