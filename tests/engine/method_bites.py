"""For each field of every method, a value that must be seen; bites.py says how."""

from bases import ALONE, BERT, DROPPOS, DROPPOS_SWIN, LANGUAGE, MAE, MASKED, MP3, OBJECTS, SCENES, STILL, jigsaw
from every_key import Bite

from pipeline.core.config import merge

MJP = {
    "fidelity": [Bite("released", "start", jigsaw()), Bite("paper", "start draws", jigsaw())],
    "shuffle": [
        *[Bite(value, "draws", jigsaw(**ALONE)) for value in ("none", "pixels")],
        Bite("positions", "draws", jigsaw(dal="none")),
        Bite("none", "draws", jigsaw(shuffle="positions")),
    ],
    "index": [
        Bite("slots", "start", jigsaw(**ALONE)),
        Bite("patches", "start", jigsaw(**ALONE)),
        Bite("patches", "updates", jigsaw(**ALONE, index="slots")),
    ],
    "unknown": [Bite(False, "start", jigsaw()), Bite(False, "start", jigsaw(dal="none"))],
    "dal": [
        *[Bite(value, "start", jigsaw()) for value in ("none", "pca", "linear")],
        Bite("pca", "updates", jigsaw(dal="none")),
    ],
    "shuffle_ratio": [Bite(0.9, "draws", jigsaw(**ALONE))],
    "dal_weight": [Bite(1.0, "draws", STILL), Bite(1.0, "draws", jigsaw(dal="pca"))],
    "warmup_ratio": [Bite(0.5, "draws", STILL), Bite(0.5, "draws", jigsaw(**ALONE, dal_schedule="constant"))],
    "shuffle_prob": [Bite(0.0, "draws", jigsaw(**ALONE))],
    "per_image": [Bite(True, "draws", jigsaw(**ALONE)), Bite(True, "draws", jigsaw())],
    "exact_count": [Bite(True, "draws", jigsaw(**ALONE))],
    "dal_schedule": [Bite("constant", "draws", STILL)],
    "dal_updates": [Bite(2, "draws", STILL)],
    "dal_reduction": [Bite("norm", "updates", STILL)],
    "dal_layers": [Bite(3, "start", STILL)],
    "position_std": [Bite(0.1, "start", jigsaw())],
}


def _decoder(base: dict) -> dict[str, list[Bite]]:
    return {
        "decoder_width": [Bite(32, "start", base)],
        "decoder_depth": [Bite(2, "start", base)],
        "decoder_heads": [Bite(1, "updates", base)],
    }


def _droppos(base: dict) -> dict[str, list[Bite]]:
    return {
        **_decoder(base),
        "fidelity": [Bite("paper", "updates", base), Bite("released", "updates", base)],
        "position_ratio": [Bite(0.4, "updates", base)],
        "sigma": [Bite(2.0, "draws", base)],
        "sigma_end": [Bite(1.0, "draws", base)],
        "tau": [Bite(None, "updates", base), Bite(1.0, "updates", base)],
    }


def _permutation(base: dict, *rows: Bite) -> dict[str, list[Bite]]:
    used = merge(base, {"method": {"permutation": {"key": "used"}}})
    return {
        "permutation.rows": list(rows),
        "permutation.key": [
            Bite("used", "start", base),
            Bite("missing", "start", base),
            Bite("missing", "updates", used),
        ],
        "permutation.kind": [Bite("released", "start", used), Bite("shared", "start", used)],
        "permutation.seed": [Bite(1, "start", used)],
    }


OTHERS = {
    "supervised": _permutation({}, Bite(True, "draws"), Bite(True, "draws", BERT)),
    "language_model": _permutation(LANGUAGE, Bite(True, "refused", LANGUAGE)),
    "mp3": {
        "mask_ratio": [Bite(0.25, "updates", MP3)],
        "known_ratio": [Bite(0.3, "draws", MP3)],
        "fidelity": [Bite("released", "draws", MP3)],
    },
    "mae": {
        **_decoder(MAE),
        "mask_ratio": [Bite(0.25, "updates", MAE)],
        "norm_pix": [Bite(False, "updates", MAE)],
    },
    "droppos": {**_droppos(DROPPOS), "mask_ratio": [Bite(0.25, "updates", DROPPOS)]},
    "droppos_swin": {
        **_droppos(DROPPOS_SWIN),
        "mask_ratio": [Bite(0.0, "start", DROPPOS_SWIN)],
        "cells": [Bite(2, "start draws", DROPPOS_SWIN, {"method": {"mask_ratio": 0.0}})],
    },
    "masked_language": {
        "mask_ratio": [Bite(0.5, "draws", MASKED)],
        "mask_prob": [Bite(0.2, "draws", MASKED)],
        "random_prob": [Bite(0.2, "draws", merge(MASKED, {"method": {"mask_prob": 0.0}}))],
    },
    "mask_rcnn": {
        **{
            key: [Bite(other, "start", OBJECTS)]
            for key, other in {"width": 12, "fc_width": 8, "rpn_convs": 1, "box_convs": 2, "box_fcs": 2}.items()
        },
        "mask_convs": [Bite(2, "start", OBJECTS)],
        "head_norm": [Bite(False, "start", OBJECTS)],
        "anchor_sizes": [Bite([16, 32, 64, 128, 256], "updates", OBJECTS)],
        "anchor_ratios": [Bite([1.0], "start draws", OBJECTS), Bite([0.5, 1.0, 1.5], "updates", OBJECTS)],
        "rpn_samples": [Bite(16, "updates", OBJECTS)],
        "rpn_positive": [Bite(0.05, "updates", OBJECTS)],
        "rpn_overlap": [Bite([0.1, 0.7], "updates", OBJECTS), Bite([0.3, 0.35], "updates", OBJECTS)],
        "rpn_nms": [Bite(0.2, "updates", OBJECTS)],
        "before_nms": [Bite([10, 40], "updates", OBJECTS), Bite([40, 2], "validation", OBJECTS)],
        "after_nms": [Bite([8, 24], "draws", OBJECTS), Bite([24, 2], "validation", OBJECTS)],
        "roi_samples": [Bite(8, "updates", OBJECTS)],
        "roi_positive": [Bite(0.1, "updates", OBJECTS)],
        "roi_overlap": [Bite(0.3, "updates", OBJECTS)],
        "box_side": [Bite(2, "start", OBJECTS)],
        "mask_side": [Bite(2, "updates", OBJECTS)],
        "min_score": [Bite(0.9, "validation", OBJECTS)],
        "nms": [Bite(0.1, "validation", OBJECTS)],
        "max_detections": [Bite(1, "validation", OBJECTS)],
    },
    "upernet": {
        "width": [Bite(6, "start", SCENES)],
        "aux_width": [Bite(5, "start", SCENES)],
        "taps": [Bite([0, 1, 1, 1], "updates", SCENES)],
        "aux_weight": [Bite(1.0, "updates", SCENES)],
        "dropout": [Bite(0.5, "updates", SCENES)],
        "average": [Bite("valid", "updates", SCENES)],
        "inference": [Bite("whole", "validation", SCENES)],
        "stride": [Bite(5, "validation", SCENES)],
    },
}
METHODS = {
    f"method.{method}.{name}": bites
    for method, fields in {"mjp": MJP, **OTHERS}.items()
    for name, bites in fields.items()
}
