"""For each field of every evaluation, a value that must be seen; field_effects.py says how."""

from bases import DECODER, DROPPOS, LANGUAGE, MP3, MP3_SOUNDS, OBJECTS, ROTARY, SCENES, jigsaw
from every_key import FieldEffect

from pipeline.core.config import merge
from pipeline.evals.base import EVALS as REGISTRY
from pipeline.evals.base import EvalConfig

# What an evaluation needs beside its subjects; by name of the evaluation.
TIMED = {
    "model": {"name": "mini", "arch": "vit_tiny_patch16_224", "patch_size": 7, "embed_dim": 16, "depth": 1}
    | {"num_heads": 2},
    "image_size": 28,
    "channels": 1,
    "num_classes": 10,
    "batch": 4,
    "steps": 1,
}
EVAL_FIELDS = {
    "cost": {**TIMED, "method": {"mae": DECODER}},
    "permutation_cost": TIMED,
    "training_equivariance": {"batch": 4, "steps": 2},
    "split_wire": {"batch": 4, "steps": 2},
    "april": {"images": 6, "batch": 4, "settings": ("a", "b"), "shuffle_ratio": 0.5},
    "april_scale": {"images": 4, "stds": (20, 100)},
    "april_pictures": {"images": 2, "shuffle_ratio": 0.5},
    "gradient_matching": {"images": 2, "iterations": 4, "pictures": 2, "setting": "b", "seeds": 2},
    "corruption_pictures": {"data": {"images": "small"}, "table": "cifar"},
    "jigsaw_pictures": {"data": {"images": "small"}},
    "shuffle_curve": {"ratios": (50, 90)},  # a twentieth of 16 patches is none
    "position_embeddings": {"repeats": 2},
    "knn": {"layers": (0, 1), "k": 7},
    "linear_probe": {"epochs": 6, "batch": 8, "base_lr": 30, "warmup_epochs": 2},
    "position_probe": {"epochs": 4, "batch": 8, "lr": 3e-2},
    # Everything is on, so that each key has something to change.
    "split_learning": {
        "feature_protection": {"noise": 0.2, "radius": 0.3, "own_share": 0.6, "still_share": 0.5, "rows": False},
        "recipe": {"epochs": 2, "batch": 8, "block_ratio": 0.5},
        "inversion": {"epochs": 2, "batch": 8, "warmup_steps": 1, "lr": 1e-2},
        "train_images": 16,
        "images": 4,
    },
}
# A model whose predictions depend on the image: only then do they depend on how it is shuffled.
LEARNED = {"optim": {"base_lr": 3e-2, "epochs": 20, "validate_every": 20}}
LEARNED_ROTARY = merge(LEARNED, ROTARY)
# What the attacker is given; with the unknown position at some patches, so that it matters.
ASSUMPTIONS = {
    "gradients": [FieldEffect("float32", "validation", jigsaw())],
    "given": [FieldEffect("parameters", "validation", jigsaw())],
    "first_norm": [FieldEffect(True, "validation", jigsaw())],
    "first_skips": [FieldEffect(True, "validation", jigsaw())],
    "cutoff": [FieldEffect(0.1, "validation", jigsaw())],
}
# The run that is evaluated, in every role, is the base.
EVALS = {
    **{
        f"eval.{name}.assumptions.{key}": found
        for name in ("april", "april_pictures")
        for key, found in ASSUMPTIONS.items()
    },
    **{
        f"eval.april_scale.assumptions.{key}": found
        for key, found in ASSUMPTIONS.items()
        if key not in ("given", "gradients")
    },
    "eval.april_scale.assumptions.gradients": [FieldEffect("float64", "validation")],
    "eval.april.settings": [FieldEffect(("c", "kept"), "validation", jigsaw())],
    "eval.april.shuffle_ratio": [FieldEffect(0.9, "validation", jigsaw())],
    "eval.april.images": [FieldEffect(4, "validation")],
    "eval.april.pictures": [FieldEffect(2, "validation")],
    "eval.april.cutoffs": [FieldEffect((0.5,), "validation")],
    "eval.april.seed": [FieldEffect(1, "validation", jigsaw())],
    "eval.april_scale.stds": [FieldEffect((20, 1000), "validation")],
    "eval.april_scale.untrained": [FieldEffect(True, "validation", LEARNED)],
    "eval.april_scale.images": [FieldEffect(2, "validation")],
    "eval.gradient_matching.setting": [FieldEffect("a", "validation", jigsaw())],
    "eval.gradient_matching.shuffle_ratio": [FieldEffect(0.9, "validation", jigsaw())],
    "eval.gradient_matching.knows_shuffled": [FieldEffect(False, "validation", jigsaw())],
    **{
        f"eval.gradient_matching.{key}": [FieldEffect(other, "validation")]
        for key, other in {
            "distance": "l2",
            "weights": (1.0, 5.0),
            "tv": 0.5,
            "patch": 0.5,
            "norm": 0.5,
            "registration": 0.5,
            "start": "black",
            "seeds": 3,
            "iterations": 3,
            "lr": 0.2,
            "decay": "none",
            "signed": False,
            "boxed": False,
            "batch": 2,
            "gradients": "float64",
            "images": 3,
            "pictures": 3,
            "shown": 1,
            "seed": 1,
        }.items()
    },
    **{
        f"eval.split_learning.{key}": [FieldEffect(other, "validation")]
        for key, other in {
            "feature_protection.noise": 0.5,
            "feature_protection.radius": 0.1,
            "feature_protection.filter": "disc",
            "feature_protection.own_share": 0.2,
            "feature_protection.still_share": 1.0,
            "feature_protection.rows": True,
            "recipe.epochs": 3,
            "recipe.batch": 4,
            "recipe.lr": 0.5,
            "recipe.min_lr": 0.02,
            "recipe.block_ratio": 1.0,
            "recipe.momentum": 0.0,
            "recipe.weight_decay": 0.5,
            "recipe.trained": "released",
            "recipe.positions": "released",
            "inversion.epochs": 3,
            "inversion.batch": 4,
            "inversion.lr": 1e-3,
            "inversion.betas": (0.5, 0.5),
            "inversion.weight_decay": 10.0,
            "inversion.warmup_steps": 5,
            "inversion.has_positions": False,
            "inversion.protects_test": False,
            "train_images": 8,
            "images": 6,
            "pictures": 2,
            "seed": 1,
        }.items()
    },
    "eval.april_pictures.shuffle_ratio": [FieldEffect(0.9, "validation")],
    "eval.april_pictures.images": [FieldEffect(1, "validation")],
    "eval.april_pictures.skip": [FieldEffect(1, "validation")],
    "eval.april_pictures.seed": [FieldEffect(1, "validation")],
    "eval.classify.shuffle_ratio": [FieldEffect(0.9, "validation")],
    "eval.classify.seed": [FieldEffect(1, "validation")],
    "eval.consistency.shuffle_ratio": [FieldEffect(0.9, "validation")],
    "eval.consistency.seed": [FieldEffect(1, "validation")],
    "eval.equivariance.kind": [FieldEffect("released", "validation")],
    "eval.equivariance.keys": [FieldEffect(2, "validation")],
    "eval.equivariance.seed": [FieldEffect(1, "validation")],
    "eval.calibration.fidelity": [FieldEffect("released", "validation")],
    "eval.training_equivariance.kind": [FieldEffect("released", "validation")],
    "eval.training_equivariance.batch": [FieldEffect(6, "validation")],
    "eval.training_equivariance.steps": [FieldEffect(3, "validation")],
    "eval.training_equivariance.seed": [FieldEffect(1, "validation")],
    "eval.split_wire.batch": [FieldEffect(6, "validation")],
    "eval.split_wire.steps": [FieldEffect(3, "validation")],
    "eval.split_wire.precision": [FieldEffect("float32", "validation")],
    **{
        f"eval.counterexamples.{key}": [FieldEffect(other, "validation")]
        for key, other in {"width": 24, "depth": 1, "num_heads": 2, "tokens": 20, "seed": 1}.items()
    },
    "eval.detection_pictures.images": [FieldEffect(2, "validation", OBJECTS)],
    "eval.detection_pictures.min_score": [FieldEffect(0.0, "validation", OBJECTS)],
    "eval.segmentation_equivariance.kind": [FieldEffect("released", "validation", SCENES)],
    "eval.segmentation_equivariance.keys": [FieldEffect(3, "validation", SCENES)],
    "eval.segmentation_equivariance.seed": [FieldEffect(1, "validation", SCENES)],
    "eval.segmentation_pictures.images": [FieldEffect(2, "validation", SCENES)],
    "eval.perplexity.kind": [FieldEffect("released", "validation", LANGUAGE)],
    "eval.perplexity.keys": [FieldEffect(2, "validation", LANGUAGE)],
    "eval.perplexity.seed": [FieldEffect(1, "validation", LANGUAGE)],
    "eval.image_sizes.sizes": [FieldEffect((50, 100), "validation")],
    "eval.image_sizes.rotations": [FieldEffect("rescaled", "validation", LEARNED_ROTARY)],
    "eval.shuffle_curve.ratios": [FieldEffect((30, 60), "validation")],
    "eval.shuffle_curve.seed": [FieldEffect(1, "validation", LEARNED)],
    "eval.mp3_positions.etas": [FieldEffect((10, 60), "validation", MP3)],
    "eval.mp3_positions.top5": [FieldEffect(True, "validation", MP3)],
    "eval.mp3_positions.seed": [FieldEffect(1, "validation", MP3)],
    "eval.droppos_positions.gammas": [FieldEffect((10, 60), "validation", DROPPOS)],
    "eval.droppos_positions.position_gammas": [FieldEffect((40, 60), "validation", DROPPOS)],
    "eval.droppos_positions.seed": [FieldEffect(1, "validation", DROPPOS)],
    "eval.mp3_sounds.etas": [FieldEffect((60, 10), "validation", MP3_SOUNDS)],
    "eval.mp3_sounds.clips": [FieldEffect(2, "validation", MP3_SOUNDS)],
    "eval.mp3_sounds.seed": [FieldEffect(1, "validation", MP3_SOUNDS)],
    "eval.mp3_pictures.etas": [FieldEffect((10, 60), "validation", MP3)],
    "eval.mp3_pictures.images": [FieldEffect(2, "validation", MP3)],
    "eval.mp3_pictures.seed": [FieldEffect(1, "validation", MP3)],
    "eval.droppos_pictures.gammas": [FieldEffect((10, 60), "validation", DROPPOS)],
    "eval.droppos_pictures.position_gamma": [FieldEffect(40, "validation", DROPPOS)],
    "eval.droppos_pictures.images": [FieldEffect(2, "validation", DROPPOS)],
    "eval.droppos_pictures.seed": [FieldEffect(1, "validation", DROPPOS)],
    "eval.corruptions.normalise_by": [FieldEffect("none", "validation")],
    "eval.corruption_pictures.table": [FieldEffect("tiny_imagenet", "validation")],
    "eval.corruption_pictures.images": [FieldEffect(2, "validation")],
    "eval.corruption_pictures.seed": [FieldEffect(1, "validation")],
    "eval.jigsaw_pictures.ratios": [FieldEffect((0.2, 0.6), "validation")],
    "eval.jigsaw_pictures.patches": [FieldEffect(7, "validation")],
    "eval.jigsaw_pictures.images": [FieldEffect(2, "validation")],
    "eval.jigsaw_pictures.seed": [FieldEffect(1, "validation")],
    "eval.calibration.bins": [FieldEffect(3, "validation", LEARNED)],
    "eval.calibration.per_bin": [FieldEffect(7, "validation")],
    "eval.mixed_pictures.etas": [FieldEffect((10, 60), "validation", MP3)],
    "eval.mixed_pictures.pairs": [FieldEffect(1, "validation", MP3)],
    "eval.mixed_pictures.seed": [FieldEffect(1, "validation", MP3)],
    "eval.position_embeddings.dims": [FieldEffect((2, 3), "validation")],
    "eval.position_embeddings.centred": [FieldEffect(False, "validation")],
    "eval.position_embeddings.with_cls": [FieldEffect(True, "validation")],
    "eval.position_embeddings.folds": [FieldEffect(4, "validation")],
    "eval.position_embeddings.repeats": [FieldEffect(3, "validation")],
    "eval.position_embeddings.seed": [FieldEffect(1, "validation")],
    "eval.embedding_pictures.neighbours": [FieldEffect(4, "validation")],
    "eval.embedding_pictures.min_dist": [FieldEffect(0.7, "validation")],
    "eval.embedding_pictures.seed": [FieldEffect(1, "validation")],
    "eval.correlation_maps.limit": [FieldEffect(7, "validation")],
    "eval.attention_maps.layers": [FieldEffect((2,), "validation")],
    "eval.attention_maps.limit": [FieldEffect(7, "validation")],
    "eval.local_heads.layers": [FieldEffect((2,), "validation")],
    "eval.local_heads.lowest_entropy": [FieldEffect(1, "validation")],
    "eval.local_heads.limit": [FieldEffect(7, "validation")],
    "eval.cls_attention.images": [FieldEffect(2, "validation")],
    "eval.cls_attention.limit": [FieldEffect(7, "validation")],
    "eval.cost.method": [FieldEffect({"mae": {**DECODER, "decoder_depth": 2}}, "validation")],
    "eval.cost.methods": [FieldEffect(("mp3", "mjp"), "validation")],
    "eval.cost.etas": [FieldEffect((40,), "validation")],
    "eval.cost.turns": [FieldEffect(2, "validation")],
    **{
        f"eval.{name}.{key}": [FieldEffect(other, "validation")]
        for name in ("cost", "permutation_cost")
        for key, other in {
            "image_size": 56,
            "channels": 3,
            "num_classes": 9,
            "batch": 6,
            "steps": 2,
            "seed": 1,
        }.items()
    },
    "eval.knn.layers": [FieldEffect((0, 2), "validation")],
    "eval.knn.k": [FieldEffect(3, "validation")],
    "eval.knn.weighting": [FieldEffect("uniform", "validation", LEARNED)],
    "eval.knn.temperature": [FieldEffect(10.0, "validation", LEARNED)],
    "eval.knn.bank_limit": [FieldEffect(12, "validation")],
    "eval.knn.untrained": [FieldEffect(True, "validation", LEARNED)],
    "eval.linear_probe.pool": [FieldEffect("avg", "validation")],
    "eval.linear_probe.epochs": [FieldEffect(7, "validation")],
    "eval.linear_probe.batch": [FieldEffect(12, "validation")],
    "eval.linear_probe.base_lr": [FieldEffect(40, "validation")],
    "eval.linear_probe.warmup_epochs": [FieldEffect(3, "validation")],
    "eval.linear_probe.train_limit": [FieldEffect(16, "validation")],
    "eval.linear_probe.untrained": [FieldEffect(True, "validation")],
    "eval.linear_probe.seed": [FieldEffect(1, "validation")],
    "eval.position_probe.position_ratio": [FieldEffect(0.25, "validation")],
    "eval.position_probe.masked": [
        FieldEffect("zero", "validation", DROPPOS),
        FieldEffect("learned", "validation", DROPPOS),
        FieldEffect("learned", "validation"),
    ],
    "eval.position_probe.shuffle_tokens": [FieldEffect(True, "validation")],
    "eval.position_probe.epochs": [FieldEffect(6, "validation")],
    "eval.position_probe.batch": [FieldEffect(12, "validation")],
    "eval.position_probe.lr": [FieldEffect(0.3, "validation")],
    "eval.position_probe.train_limit": [FieldEffect(16, "validation")],
    "eval.position_probe.untrained": [FieldEffect(True, "validation")],
    "eval.position_probe.seed": [FieldEffect(1, "validation")],
}


def eval_config(name: str, **fields: object) -> EvalConfig:
    """The config of an evaluation as it is tried here, with these fields changed."""
    return REGISTRY.get(name).Config(**merge(EVAL_FIELDS.get(name, {}), fields))
