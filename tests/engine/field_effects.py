"""The table of test_every_key.py: for each field of every config class, a value that must be seen.

Methods and evaluations have theirs in method_field_effects.py and eval_field_effects.py. A new field fails the test
until it is listed there: with a value that changes a run, and the keys with which it does, or in NOT_SCIENCE or LABELS
with the reason why no run can show it.
"""

from bases import (
    BERT,
    CNN,
    FINER,
    GPT2,
    MAE,
    MASKED,
    MOVED,
    MP3,
    NO_POSITIONS,
    OBJECTS,
    RGB,
    ROTARY,
    SCENES,
    SINCOS,
    SOUNDS,
    SWIN,
    jigsaw,
)
from every_key import FieldEffect

from pipeline.core.config import merge

# They are no part of a run's name.
NOT_SCIENCE = {
    "optim.max_skips": "when to give up; a run that does not is the same",
    "optim.log_every": "how often to write; writing changes nothing",
}
# By pattern; those of runs are part of the name all the same.
LABELS = {
    "data.name": "a name alone",
    "data.part_of": "in whose folder it lies; tests/data has such a set",
    "data.*.name": "a name alone",
    "data.*.part_of": "in whose folder it lies",
    "data.*.made_from": "what `prepare` makes it from; it is then read as it lies there",
    "model.*.name": "a name alone",
    "*.code_epoch": "raised by hand when code changes",
    "method.supervised.fidelity": "there is one way to do it",
    "method.mae.fidelity": "there is one way to do it",
    "method.upernet.fidelity": "there is one way to do it",
    "method.mask_rcnn.fidelity": "there is one way to do it",
    "method.language_model.fidelity": "there is one way to do it",
    "method.masked_language.fidelity": "there is one way to do it",
    "method.multilabel.fidelity": "there is one way to do it; both thresholds are measured",
    "method.*.name": "chooses the class, whose own fields are here",
    "eval.*.name": "chooses the class, whose own fields are here",
    "eval.*.group": "which job computes it",
    "eval.*.needs.*": "where its job runs",
    "eval.*.data": "names data sets; the evaluation gets their configs, and tests/study has two that differ in them",
    "eval.*cost.model.*": "the model has its own fields here",
    "eval.ensemble.seed": "it draws nothing",
    "eval.detection.seed": "it draws the errors alone",
    "eval.detection_pictures.seed": "it draws nothing",
    "eval.segmentation.seed": "it draws nothing",
    "eval.segmentation_pictures.seed": "it draws nothing",
    "eval.april_scale.seed": "it draws nothing",
    "eval.split_wire.rows": "permuted rows are put back, so that all numbers may be the same",
    "eval.split_wire.seed": "it draws the order of the rows alone",
    "eval.april_scale.assumptions.given": "no position is hidden, so that both are the same gradient",
    "eval.gradient_matching.labels": "the label of one image is always recovered; tests/numerics has several",
    "eval.gradient_matching.at_once": "how many are attacked at once; each has its own gradient",
    "eval.april*.batch": "how many are attacked at once; each image has its own gradients",
    "eval.corruptions.seed": "it draws nothing",
    "eval.correlation_maps.seed": "it draws nothing",
    "eval.attention_maps.seed": "it draws nothing",
    "eval.local_heads.seed": "it draws nothing",
    "eval.cls_attention.seed": "it draws nothing",
    "eval.knn.seed": "it draws nothing",
    "eval.adversarial.seed": "it draws the error alone",
    "eval.classify_on.seed": "it draws nothing",
    "eval.image_sizes.seed": "it draws nothing",
    "eval.outliers.seed": "it draws the errors alone",
    "eval.outliers.fidelity": "outliers are the inliers here; tests/numerics has others",
    "eval.calibration.seed": "it draws the errors alone",
    "model.cnn.pos_resampling": "a CNN has no positions",
    "model.bert.pos_resampling": "positions of texts are no grid",
    "model.gpt2.pos_resampling": "positions of texts are no grid",
}

PADDED, RESIZED, PLAIN = ({"data": {"augment": {"crop": crop}}} for crop in ("padded", "resized", "none"))
SMALL = {"data": {"image_size": 14}}  # the images have 28 px, so each view resizes them
MIXUP, CUTMIX = {"data": {"augment": {"mixup": 0.8}}}, {"data": {"augment": {"cutmix": 1.0}}}
BOTH = {"data": {"augment": {"mixup": 0.8, "cutmix": 1.0}}}
WARM = {"optim": {"warmup_epochs": 0.7}}
CLIPPED = {"optim": {"clip_norm": 0.1}}
IN_STEPS = {"optim": {"lr_curve": "steps", "milestones": [0.5]}}
NOISY = {"optim": {"protection": {"noise": 0.1, "pruning": 0.5}}}

RUN = {
    "seed": [FieldEffect(1, "start batches")],
    "init": [FieldEffect("file:other.safetensors", "start")],
    "train": [FieldEffect(False, "refused")],  # without a weight file; tests/engine/test_evaluate.py has one with it
    # Which images, and how many: the set is checked when it is opened.
    "data.kind": [FieldEffect("sounds", "refused")],
    "data.source": [FieldEffect("cifar10", "refused")],
    "data.num_classes": [FieldEffect(9, "refused")],
    "data.num_train": [FieldEffect(23, "refused")],
    "data.num_val": [FieldEffect(19, "refused")],
    "data.val_share": [FieldEffect(0.2, "refused")],  # this set has a split of its own; tests/data has one that has not
    "data.only_classes": [FieldEffect(["Bag"], "refused")],  # the counts are then others; tests/data has such sets
    "data.without_classes": [FieldEffect(["Bag"], "refused")],
    "data.image_size": [FieldEffect(14, "start batches"), FieldEffect([28, 14], "start batches")],
    "data.channels": [FieldEffect(3, "start batches", with_it=RGB)],
    "data.upright": [FieldEffect(True, "refused")],  # these images are in no files; tests/data has photographs
    "data.mean": [FieldEffect([0.3], "batches")],
    "data.std": [FieldEffect([0.4], "batches")],
    "data.eval_crop": [FieldEffect(0.8, "validation")],
    "data.augment.crop": [
        FieldEffect("resized", "batches"),
        FieldEffect("none", "batches"),
        FieldEffect("none", "batches", RESIZED),
    ],
    "data.augment.scale": [FieldEffect([0.5, 1.0], "batches", RESIZED), FieldEffect([0.08, 0.5], "batches", RESIZED)],
    "data.augment.padding": [FieldEffect(4, "batches", PADDED)],
    "data.augment.hflip": [FieldEffect(0.0, "batches", crop) for crop in (PADDED, RESIZED, PLAIN)],
    "data.augment.rand_augment": [FieldEffect("rand-m9-inc1", "batches", crop) for crop in (PADDED, RESIZED, PLAIN)],
    "data.augment.color_jitter": [FieldEffect(0.4, "batches", crop) for crop in (PADDED, RESIZED, PLAIN)],
    "data.augment.interpolation": [
        FieldEffect("bilinear", "batches", RESIZED),
        FieldEffect("bilinear", "batches", {**PADDED, **SMALL}),
        # Plain views of 28 px resize nothing; the validation does, to 35.
        FieldEffect("bilinear", "validation", {"data": {"eval_crop": 0.8, "augment": {"crop": "none"}}}),
    ],
    "data.augment.erasing": [
        FieldEffect(0.5, "batches"),
        FieldEffect(1.0, "batches", {"data": {"augment": {"erasing": 0.3}}}),
    ],
    "data.augment.mixup": [FieldEffect(0.8, "batches"), FieldEffect(0.1, "batches", MIXUP)],
    "data.augment.cutmix": [FieldEffect(1.0, "batches"), FieldEffect(0.1, "batches", CUTMIX)],
    "data.augment.mix_prob": [FieldEffect(0.3, "batches", MIXUP), FieldEffect(0.3, "batches", CUTMIX)],
    "data.augment.mix_switch_prob": [FieldEffect(0.0, "batches", BOTH), FieldEffect(1.0, "batches", BOTH)],
    "data.augment.repeats": [FieldEffect(3, "batches")],
    "optim.epochs": [FieldEffect(2, "updates")],
    "optim.iterations": [FieldEffect(2, "updates", with_it={"optim": {"epochs": None}})],
    "optim.global_batch": [FieldEffect(12, "batches")],
    "optim.micro_batch": [FieldEffect(2, "batches", MIXUP)],  # it shares a draw; without one, sums are the same
    "optim.base_lr": [FieldEffect(0.05, "updates")],
    "optim.lr_batch": [FieldEffect(40, "updates")],
    "optim.min_lr": [FieldEffect(1e-2, "updates")],
    "optim.warmup_epochs": [FieldEffect(0.7, "updates")],
    "optim.warmup_iterations": [FieldEffect(2, "updates")],
    "optim.warmup_lr": [FieldEffect(1e-4, "updates", WARM)],
    "optim.warmup_curve": [FieldEffect("constant", "updates", merge(WARM, IN_STEPS))],
    "optim.lr_curve": [
        FieldEffect("all_steps", "updates", WARM),
        FieldEffect("all_epochs", "updates", {"optim": {"epochs": 3, "warmup_epochs": 1}}),
        FieldEffect("poly", "updates"),
        FieldEffect("steps", "updates", with_it={"optim": {"milestones": [0.5]}}),
    ],
    "optim.milestones": [FieldEffect([0.3], "updates", IN_STEPS)],
    "optim.decay_every": [FieldEffect(1, "updates", IN_STEPS, with_it={"optim": {"milestones": []}})],
    "optim.decay_factor": [FieldEffect(0.5, "updates", IN_STEPS)],
    "optim.power": [FieldEffect(2.0, "updates", {"optim": {"lr_curve": "poly"}})],
    "optim.weight_decay": [FieldEffect(0.5, "updates"), FieldEffect(0.5, "updates", {"optim": {"layer_decay": 0.5}})],
    "optim.betas": [FieldEffect([0.5, 0.999], "updates"), FieldEffect([0.9, 0.5], "updates")],
    "optim.eps": [FieldEffect(1e-3, "updates")],
    "optim.layer_decay": [FieldEffect(0.5, "updates"), FieldEffect(0.9, "updates", {"optim": {"layer_decay": 0.5}})],
    "optim.rates": [FieldEffect({"encoder.": 0.5}, "updates"), FieldEffect({"encoder.blocks": 0.5}, "updates")],
    "optim.clip_norm": [FieldEffect(0.1, "updates"), FieldEffect(0.01, "updates", CLIPPED)],
    "optim.clip_mode": [FieldEffect("tensor", "updates", CLIPPED)],
    "optim.smoothing": [
        FieldEffect(0.1, "batches"),
        FieldEffect(0.1, "batches", MIXUP),
        FieldEffect(0.1, "batches", CUTMIX),
    ],
    "optim.protection.noise": [FieldEffect(0.1, "updates"), FieldEffect(0.2, "updates", NOISY)],
    "optim.protection.pruning": [FieldEffect(0.5, "updates"), FieldEffect(0.9, "updates", NOISY)],
    # A rate that is too high, so that the last of three epochs is not the best.
    "optim.keep": [
        FieldEffect("best", "updates", {"optim": {"epochs": 3, "base_lr": 1.0, "ema_decay": decay}})
        for decay in (None, 0.5)
    ],
    # The best of one validation is the last; see test_best.py for what is recorded where the last is kept.
    "optim.validate_every": [FieldEffect(3, "updates", {"optim": {"epochs": 3, "base_lr": 1.0, "keep": "best"}})],
    # A rate at which two validations in a row are no better than one before them.
    "optim.patience": [FieldEffect(2, "updates", {"optim": {"epochs": 6, "base_lr": 5.0}})],
    "optim.ema_decay": [FieldEffect(0.9, "updates"), FieldEffect(0.5, "updates", {"optim": {"ema_decay": 0.9}})],
}


def _refused(family: dict, **values: object) -> dict[str, list[FieldEffect]]:
    return {name: [FieldEffect(value, "refused", family)] for name, value in values.items()}


VIT = {
    "arch": [FieldEffect("vit_base_patch16_clip_224", "start")],  # with a norm before its blocks
    "patch_size": [FieldEffect(14, "start"), FieldEffect([14, 7], "start")],
    "embed_dim": [FieldEffect(8, "start")],
    "depth": [FieldEffect(1, "start")],
    "num_heads": [FieldEffect(1, "updates")],
    "mlp_ratio": [FieldEffect(2.0, "start")],
    "act_layer": [FieldEffect("relu", "updates")],
    "pos_embed": [
        *[FieldEffect(value, "start") for value in ("none", "sincos", "sincos_learn", "relative")],
        *[FieldEffect(value, "start") for value in ("rope", "rope_mixed", "rope_dinov3")],
        FieldEffect("relative", "start", NO_POSITIONS),
        FieldEffect("rope", "updates", NO_POSITIONS),
        FieldEffect("sincos_learn", "updates", SINCOS),
    ],
    "cls_std": [FieldEffect(0.5, "start"), FieldEffect(0.5, "start", jigsaw()), FieldEffect(0.5, "start", MAE)],
    "pos_resampling": [FieldEffect("released", "start", FINER), FieldEffect("released", "start", merge(FINER, SINCOS))],
    "pool": [FieldEffect("avg", "start"), FieldEffect("avg", "start", {"model": {"pool": "cls"}})],
    "head_std": [FieldEffect(2e-5, "start")],
    "drop_path": [FieldEffect(0.5, "updates")],
    "dropout": [FieldEffect(0.3, "updates"), FieldEffect(0.3, "updates", MP3), FieldEffect(0.3, "updates", MAE)],
    "add_relative": [FieldEffect(True, "start"), FieldEffect(True, "start", SINCOS)],
    "add_absolute": [FieldEffect(True, "start", ROTARY)],
    "layer_scale": [FieldEffect(0.5, "start")],
    **_refused({}, depths=[1, 1], window_size=2, global_blocks=2),
}
SWIN_FIELDS = {
    "arch": [FieldEffect("swinv2_tiny_window8_256", "start", SWIN)],
    "patch_size": [FieldEffect(14, "start", {"model": {**SWIN["model"], "window_size": 1}})],
    "embed_dim": [FieldEffect(8, "start", SWIN)],
    "depths": [FieldEffect([1, 2], "start", SWIN)],
    "num_heads": [FieldEffect([1, 2], "start", SWIN)],
    "window_size": [FieldEffect(1, "start", SWIN)],
    "mlp_ratio": [FieldEffect(2.0, "start", SWIN)],
    "pos_embed": [FieldEffect(value, "start", SWIN) for value in ("learn", "sincos", "sincos_learn")],
    "pos_resampling": [
        FieldEffect(
            "released", "start", merge(SWIN, {"init": "file:finer_swin.safetensors", "model": {"pos_embed": "learn"}})
        )
    ],
    "head_std": [FieldEffect(2e-5, "start", SWIN)],
    "drop_path": [FieldEffect(0.5, "updates", SWIN)],
    **_refused(SWIN, cls_std=0.5, depth=2, act_layer="relu", pool="avg", dropout=0.1),
    **_refused(SWIN, global_blocks=2, add_relative=True, add_absolute=True, layer_scale=0.5),
}
CNN_FIELDS = {
    "arch": [FieldEffect("test_efficientnet", "start", CNN)],
    "patch_size": [FieldEffect(4, "draws", {**CNN, **MOVED})],
    "head_std": [FieldEffect(2e-5, "start", CNN)],
    "drop_path": [FieldEffect(0.5, "updates", CNN)],
    **_refused(CNN, cls_std=0.5, depth=2, depths=[1, 1], window_size=2, act_layer="relu", pool="avg"),
    **_refused(CNN, embed_dim=8, num_heads=2, mlp_ratio=2.0, pos_embed="learn", dropout=0.1),
    **_refused(CNN, global_blocks=2, add_relative=True, add_absolute=True, layer_scale=0.5),
}


def _text_model(base: dict, other: str) -> dict[str, list[FieldEffect]]:
    return {
        "arch": [FieldEffect(other, "start", base)],
        "embed_dim": [FieldEffect(8, "start", base)],
        "depth": [FieldEffect(1, "start", base)],
        "num_heads": [FieldEffect(1, "updates", base)],
        "mlp_ratio": [FieldEffect(2.0, "start", base)],
        "act_layer": [FieldEffect("relu", "updates", base)],
        "head_std": [FieldEffect(2e-5, "start", base)],
        "dropout": [FieldEffect(0.3, "updates", base)],
        **_refused(base, patch_size=4, depths=[1, 1], window_size=2, pos_embed="sincos", cls_std=0.5, pool="avg"),
        **_refused(base, drop_path=0.5, global_blocks=2, add_relative=True, add_absolute=True, layer_scale=0.5),
    }


FIELDS_OF = {"vit": VIT, "swin": SWIN_FIELDS, "cnn": CNN_FIELDS}
FIELDS_OF |= {"bert": _text_model(BERT, "gpt2"), "gpt2": _text_model(GPT2, "bert")}
MODELS = {f"model.{family}.{name}": effects for family, fields in FIELDS_OF.items() for name, effects in fields.items()}

# A set of texts is prepared for its source and its counts, a stream also for its windows.
TEXT_DATA = {
    **_refused(BERT, kind="images", source="imdb", tokenizer="spaces", num_train=23, num_val=19, num_classes=3),
    "vocab_size": [FieldEffect(20, "start batches", BERT)],
    "length": [FieldEffect(6, "start batches", BERT)],
}
STREAM_DATA = {
    **_refused(MASKED, kind="images", source="wikitext2", tokenizer="spaces", num_train=23, num_val=19),
    **_refused(MASKED, vocab_size=20, length=6, stride=8),
    "mask_token": [FieldEffect(5, "draws", MASKED)],
}
SCENE_DATA = {
    **_refused(SCENES, kind="images", source="coco", num_train=23, num_val=7),
    "num_classes": [FieldEffect(3, "start batches", SCENES)],  # `prepare` refuses the fourth; tests/data has such a set
    "ignored": [FieldEffect(255, "batches", SCENES)],
    "image_size": [FieldEffect(21, "start batches", SCENES)],
    "channels": [FieldEffect(3, "start batches", SCENES, RGB)],
    "mean": [FieldEffect([0.3], "batches", SCENES)],
    "std": [FieldEffect([0.4], "batches", SCENES)],
    "scale": [FieldEffect([0.8, 0.9], "batches", SCENES)],
    "max_class_share": [FieldEffect(0.3, "batches", SCENES)],
    "photometric": [FieldEffect(False, "batches", SCENES)],
    "hflip": [FieldEffect(0.0, "batches", SCENES)],
}
OBJECT_DATA = {
    **_refused(OBJECTS, kind="images", source="ade20k", num_train=23, num_val=7, num_classes=4),
    "drop_empty": [FieldEffect(False, "refused", OBJECTS, {"data": {"num_train": 25}})],  # prepared without those
    **_refused(OBJECTS, train_images="val2017", val_images="train2017", train_annotations="a.json"),
    **_refused(OBJECTS, val_annotations="a.json"),
    "image_size": [FieldEffect(64, "start batches draws", OBJECTS)],
    "channels": [FieldEffect(3, "start batches", OBJECTS, RGB)],
    "mean": [FieldEffect([0.3], "batches", OBJECTS)],
    "std": [FieldEffect([0.4], "batches", OBJECTS)],
    "scale": [FieldEffect([0.8, 0.9], "batches", OBJECTS)],
    "hflip": [FieldEffect(0.0, "batches", OBJECTS)],
    "outlines": [FieldEffect("bitmaps", "batches", OBJECTS)],
}
# A set of sounds is prepared for its words and its shares.
SOUND_DATA = {
    **_refused(SOUNDS, kind="images", source="spoken_words", num_train=23, num_val=11, words=["low", "hum"]),
    **_refused(SOUNDS, unknown=0.5, silence=0.5, val_list="testing", per_word={"train": 2}),
    "features.coefficients": [FieldEffect(8, "start batches", SOUNDS, {"model": {"patch_size": [8, 1]}})],
    "features.mels": [FieldEffect(20, "batches", SOUNDS)],
    "features.window_ms": [FieldEffect(110, "start batches", SOUNDS), FieldEffect(90, "batches", SOUNDS)],
    "features.step_ms": [FieldEffect(40, "start batches", SOUNDS)],
    "features.low_hz": [FieldEffect(200.0, "batches", SOUNDS)],
    "features.high_hz": [FieldEffect(4000.0, "batches", SOUNDS)],
    "mean": [FieldEffect([-3.0], "batches", SOUNDS), FieldEffect([0.1 * row for row in range(10)], "batches", SOUNDS)],
    "std": [FieldEffect([5.0], "batches", SOUNDS)],
    "augment.shift": [FieldEffect(0.3, "batches", SOUNDS), FieldEffect(0.0, "batches", SOUNDS)],
    "augment.noise": [FieldEffect(0.1, "batches", SOUNDS), FieldEffect(0.0, "batches", SOUNDS)],
    "augment.volume": [FieldEffect(0.5, "batches", SOUNDS)],
}
OF_KINDS = {"text": TEXT_DATA, "language": STREAM_DATA, "segmentation": SCENE_DATA, "detection": OBJECT_DATA}
OF_KINDS |= {"audio": SOUND_DATA}
OTHER_DATA = {f"data.{kind}.{name}": effects for kind, fields in OF_KINDS.items() for name, effects in fields.items()}
