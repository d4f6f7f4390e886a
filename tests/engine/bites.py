"""The table of test_every_key.py: for each field of every config class, a value that must be seen.

Methods and evaluations have theirs in method_bites.py and eval_bites.py. A new field fails the test until it stands
there: with a value that changes a run, and the keys with which it does, or in NOT_SCIENCE or LABELS with the reason
why no run can show it.
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
from every_key import Bite

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
    "seed": [Bite(1, "start batches")],
    "init": [Bite("file:other.safetensors", "start")],
    "train": [Bite(False, "refused")],  # without a weight file; tests/engine/test_evaluate.py has one with it
    # Which images, and how many: the set is checked when it is opened.
    "data.kind": [Bite("sounds", "refused")],
    "data.source": [Bite("cifar10", "refused")],
    "data.num_classes": [Bite(9, "refused")],
    "data.num_train": [Bite(23, "refused")],
    "data.num_val": [Bite(19, "refused")],
    "data.val_share": [Bite(0.2, "refused")],  # this set has a split of its own; tests/data has one that has not
    "data.only_classes": [Bite(["Bag"], "refused")],  # the counts are then others; tests/data has such sets
    "data.without_classes": [Bite(["Bag"], "refused")],
    "data.image_size": [Bite(14, "start batches"), Bite([28, 14], "start batches")],
    "data.channels": [Bite(3, "start batches", with_it=RGB)],
    "data.upright": [Bite(True, "refused")],  # these images are in no files; tests/data has photographs
    "data.mean": [Bite([0.3], "batches")],
    "data.std": [Bite([0.4], "batches")],
    "data.eval_crop": [Bite(0.8, "validation")],
    "data.augment.crop": [Bite("resized", "batches"), Bite("none", "batches"), Bite("none", "batches", RESIZED)],
    "data.augment.scale": [Bite([0.5, 1.0], "batches", RESIZED), Bite([0.08, 0.5], "batches", RESIZED)],
    "data.augment.padding": [Bite(4, "batches", PADDED)],
    "data.augment.hflip": [Bite(0.0, "batches", crop) for crop in (PADDED, RESIZED, PLAIN)],
    "data.augment.rand_augment": [Bite("rand-m9-inc1", "batches", crop) for crop in (PADDED, RESIZED, PLAIN)],
    "data.augment.color_jitter": [Bite(0.4, "batches", crop) for crop in (PADDED, RESIZED, PLAIN)],
    "data.augment.interpolation": [
        Bite("bilinear", "batches", RESIZED),
        Bite("bilinear", "batches", {**PADDED, **SMALL}),
        # Plain views of 28 px resize nothing; the validation does, to 35.
        Bite("bilinear", "validation", {"data": {"eval_crop": 0.8, "augment": {"crop": "none"}}}),
    ],
    "data.augment.erasing": [Bite(0.5, "batches"), Bite(1.0, "batches", {"data": {"augment": {"erasing": 0.3}}})],
    "data.augment.mixup": [Bite(0.8, "batches"), Bite(0.1, "batches", MIXUP)],
    "data.augment.cutmix": [Bite(1.0, "batches"), Bite(0.1, "batches", CUTMIX)],
    "data.augment.mix_prob": [Bite(0.3, "batches", MIXUP), Bite(0.3, "batches", CUTMIX)],
    "data.augment.mix_switch_prob": [Bite(0.0, "batches", BOTH), Bite(1.0, "batches", BOTH)],
    "data.augment.repeats": [Bite(3, "batches")],
    "optim.epochs": [Bite(2, "updates")],
    "optim.iterations": [Bite(2, "updates", with_it={"optim": {"epochs": None}})],
    "optim.global_batch": [Bite(12, "batches")],
    "optim.micro_batch": [Bite(2, "batches", MIXUP)],  # it shares a draw; without one, sums are the same
    "optim.base_lr": [Bite(0.05, "updates")],
    "optim.lr_batch": [Bite(40, "updates")],
    "optim.min_lr": [Bite(1e-2, "updates")],
    "optim.warmup_epochs": [Bite(0.7, "updates")],
    "optim.warmup_iterations": [Bite(2, "updates")],
    "optim.warmup_lr": [Bite(1e-4, "updates", WARM)],
    "optim.warmup_curve": [Bite("constant", "updates", merge(WARM, IN_STEPS))],
    "optim.lr_curve": [
        Bite("all_steps", "updates", WARM),
        Bite("all_epochs", "updates", {"optim": {"epochs": 3, "warmup_epochs": 1}}),
        Bite("poly", "updates"),
        Bite("steps", "updates", with_it={"optim": {"milestones": [0.5]}}),
    ],
    "optim.milestones": [Bite([0.3], "updates", IN_STEPS)],
    "optim.decay_every": [Bite(1, "updates", IN_STEPS, with_it={"optim": {"milestones": []}})],
    "optim.decay_factor": [Bite(0.5, "updates", IN_STEPS)],
    "optim.power": [Bite(2.0, "updates", {"optim": {"lr_curve": "poly"}})],
    "optim.weight_decay": [Bite(0.5, "updates"), Bite(0.5, "updates", {"optim": {"layer_decay": 0.5}})],
    "optim.betas": [Bite([0.5, 0.999], "updates"), Bite([0.9, 0.5], "updates")],
    "optim.eps": [Bite(1e-3, "updates")],
    "optim.layer_decay": [Bite(0.5, "updates"), Bite(0.9, "updates", {"optim": {"layer_decay": 0.5}})],
    "optim.rates": [Bite({"encoder.": 0.5}, "updates"), Bite({"encoder.blocks": 0.5}, "updates")],
    "optim.clip_norm": [Bite(0.1, "updates"), Bite(0.01, "updates", CLIPPED)],
    "optim.clip_mode": [Bite("tensor", "updates", CLIPPED)],
    "optim.smoothing": [Bite(0.1, "batches"), Bite(0.1, "batches", MIXUP), Bite(0.1, "batches", CUTMIX)],
    "optim.protection.noise": [Bite(0.1, "updates"), Bite(0.2, "updates", NOISY)],
    "optim.protection.pruning": [Bite(0.5, "updates"), Bite(0.9, "updates", NOISY)],
    # A rate that is too high, so that the last of three epochs is not the best.
    "optim.keep": [
        Bite("best", "updates", {"optim": {"epochs": 3, "base_lr": 1.0, "ema_decay": decay}}) for decay in (None, 0.5)
    ],
    # The best of one validation is the last; see test_best.py for what is recorded where the last is kept.
    "optim.validate_every": [Bite(3, "updates", {"optim": {"epochs": 3, "base_lr": 1.0, "keep": "best"}})],
    # A rate at which two validations in a row are no better than one before them.
    "optim.patience": [Bite(2, "updates", {"optim": {"epochs": 6, "base_lr": 5.0}})],
    "optim.ema_decay": [Bite(0.9, "updates"), Bite(0.5, "updates", {"optim": {"ema_decay": 0.9}})],
}


def _refused(family: dict, **values: object) -> dict[str, list[Bite]]:
    return {name: [Bite(value, "refused", family)] for name, value in values.items()}


VIT = {
    "arch": [Bite("vit_base_patch16_clip_224", "start")],  # with a norm before its blocks
    "patch_size": [Bite(14, "start"), Bite([14, 7], "start")],
    "embed_dim": [Bite(8, "start")],
    "depth": [Bite(1, "start")],
    "num_heads": [Bite(1, "updates")],
    "mlp_ratio": [Bite(2.0, "start")],
    "act_layer": [Bite("relu", "updates")],
    "pos_embed": [
        *[Bite(value, "start") for value in ("none", "sincos", "sincos_learn", "relative")],
        *[Bite(value, "start") for value in ("rope", "rope_mixed", "rope_dinov3")],
        Bite("relative", "start", NO_POSITIONS),
        Bite("rope", "updates", NO_POSITIONS),
        Bite("sincos_learn", "updates", SINCOS),
    ],
    "cls_std": [Bite(0.5, "start"), Bite(0.5, "start", jigsaw()), Bite(0.5, "start", MAE)],
    "pos_resampling": [Bite("released", "start", FINER), Bite("released", "start", merge(FINER, SINCOS))],
    "pool": [Bite("avg", "start"), Bite("avg", "start", {"model": {"pool": "cls"}})],
    "head_std": [Bite(2e-5, "start")],
    "drop_path": [Bite(0.5, "updates")],
    "dropout": [Bite(0.3, "updates"), Bite(0.3, "updates", MP3), Bite(0.3, "updates", MAE)],
    "add_relative": [Bite(True, "start"), Bite(True, "start", SINCOS)],
    "add_absolute": [Bite(True, "start", ROTARY)],
    "layer_scale": [Bite(0.5, "start")],
    **_refused({}, depths=[1, 1], window_size=2, global_blocks=2),
}
SWIN_FIELDS = {
    "arch": [Bite("swinv2_tiny_window8_256", "start", SWIN)],
    "patch_size": [Bite(14, "start", {"model": {**SWIN["model"], "window_size": 1}})],
    "embed_dim": [Bite(8, "start", SWIN)],
    "depths": [Bite([1, 2], "start", SWIN)],
    "num_heads": [Bite([1, 2], "start", SWIN)],
    "window_size": [Bite(1, "start", SWIN)],
    "mlp_ratio": [Bite(2.0, "start", SWIN)],
    "pos_embed": [Bite(value, "start", SWIN) for value in ("learn", "sincos", "sincos_learn")],
    "pos_resampling": [
        Bite("released", "start", merge(SWIN, {"init": "file:finer_swin.safetensors", "model": {"pos_embed": "learn"}}))
    ],
    "head_std": [Bite(2e-5, "start", SWIN)],
    "drop_path": [Bite(0.5, "updates", SWIN)],
    **_refused(SWIN, cls_std=0.5, depth=2, act_layer="relu", pool="avg", dropout=0.1),
    **_refused(SWIN, global_blocks=2, add_relative=True, add_absolute=True, layer_scale=0.5),
}
CNN_FIELDS = {
    "arch": [Bite("test_efficientnet", "start", CNN)],
    "patch_size": [Bite(4, "draws", {**CNN, **MOVED})],
    "head_std": [Bite(2e-5, "start", CNN)],
    "drop_path": [Bite(0.5, "updates", CNN)],
    **_refused(CNN, cls_std=0.5, depth=2, depths=[1, 1], window_size=2, act_layer="relu", pool="avg"),
    **_refused(CNN, embed_dim=8, num_heads=2, mlp_ratio=2.0, pos_embed="learn", dropout=0.1),
    **_refused(CNN, global_blocks=2, add_relative=True, add_absolute=True, layer_scale=0.5),
}


def _text_model(base: dict, other: str) -> dict[str, list[Bite]]:
    return {
        "arch": [Bite(other, "start", base)],
        "embed_dim": [Bite(8, "start", base)],
        "depth": [Bite(1, "start", base)],
        "num_heads": [Bite(1, "updates", base)],
        "mlp_ratio": [Bite(2.0, "start", base)],
        "act_layer": [Bite("relu", "updates", base)],
        "head_std": [Bite(2e-5, "start", base)],
        "dropout": [Bite(0.3, "updates", base)],
        **_refused(base, patch_size=4, depths=[1, 1], window_size=2, pos_embed="sincos", cls_std=0.5, pool="avg"),
        **_refused(base, drop_path=0.5, global_blocks=2, add_relative=True, add_absolute=True, layer_scale=0.5),
    }


FIELDS_OF = {"vit": VIT, "swin": SWIN_FIELDS, "cnn": CNN_FIELDS}
FIELDS_OF |= {"bert": _text_model(BERT, "gpt2"), "gpt2": _text_model(GPT2, "bert")}
MODELS = {f"model.{family}.{name}": bites for family, fields in FIELDS_OF.items() for name, bites in fields.items()}

# A set of texts is prepared for its source and its counts, a stream also for its windows.
TEXT_DATA = {
    **_refused(BERT, kind="images", source="imdb", tokenizer="spaces", num_train=23, num_val=19, num_classes=3),
    "vocab_size": [Bite(20, "start batches", BERT)],
    "length": [Bite(6, "start batches", BERT)],
}
STREAM_DATA = {
    **_refused(MASKED, kind="images", source="wikitext2", tokenizer="spaces", num_train=23, num_val=19),
    **_refused(MASKED, vocab_size=20, length=6, stride=8),
    "mask_token": [Bite(5, "draws", MASKED)],
}
SCENE_DATA = {
    **_refused(SCENES, kind="images", source="coco", num_train=23, num_val=7),
    "num_classes": [Bite(3, "start batches", SCENES)],  # `prepare` refuses the fourth; tests/data has such a set
    "ignored": [Bite(255, "batches", SCENES)],
    "image_size": [Bite(21, "start batches", SCENES)],
    "channels": [Bite(3, "start batches", SCENES, RGB)],
    "mean": [Bite([0.3], "batches", SCENES)],
    "std": [Bite([0.4], "batches", SCENES)],
    "scale": [Bite([0.8, 0.9], "batches", SCENES)],
    "max_class_share": [Bite(0.3, "batches", SCENES)],
    "photometric": [Bite(False, "batches", SCENES)],
    "hflip": [Bite(0.0, "batches", SCENES)],
}
OBJECT_DATA = {
    **_refused(OBJECTS, kind="images", source="ade20k", num_train=23, num_val=7, num_classes=4),
    "drop_empty": [Bite(False, "refused", OBJECTS, {"data": {"num_train": 25}})],  # prepared without those
    **_refused(OBJECTS, train_images="val2017", val_images="train2017", train_annotations="a.json"),
    **_refused(OBJECTS, val_annotations="a.json"),
    "image_size": [Bite(64, "start batches draws", OBJECTS)],
    "channels": [Bite(3, "start batches", OBJECTS, RGB)],
    "mean": [Bite([0.3], "batches", OBJECTS)],
    "std": [Bite([0.4], "batches", OBJECTS)],
    "scale": [Bite([0.8, 0.9], "batches", OBJECTS)],
    "hflip": [Bite(0.0, "batches", OBJECTS)],
    "outlines": [Bite("bitmaps", "batches", OBJECTS)],
}
# A set of sounds is prepared for its words and its shares.
SOUND_DATA = {
    **_refused(SOUNDS, kind="images", source="spoken_words", num_train=23, num_val=11, words=["low", "hum"]),
    **_refused(SOUNDS, unknown=0.5, silence=0.5, val_list="testing"),
    "features.coefficients": [Bite(8, "start batches", SOUNDS, {"model": {"patch_size": [8, 1]}})],
    "features.mels": [Bite(20, "batches", SOUNDS)],
    "features.window_ms": [Bite(110, "start batches", SOUNDS), Bite(90, "batches", SOUNDS)],
    "features.step_ms": [Bite(40, "start batches", SOUNDS)],
    "features.low_hz": [Bite(200.0, "batches", SOUNDS)],
    "features.high_hz": [Bite(4000.0, "batches", SOUNDS)],
    "mean": [Bite([-3.0], "batches", SOUNDS), Bite([0.1 * row for row in range(10)], "batches", SOUNDS)],
    "std": [Bite([5.0], "batches", SOUNDS)],
    "augment.shift": [Bite(0.3, "batches", SOUNDS), Bite(0.0, "batches", SOUNDS)],
    "augment.noise": [Bite(0.1, "batches", SOUNDS), Bite(0.0, "batches", SOUNDS)],
    "augment.volume": [Bite(0.5, "batches", SOUNDS)],
}
OF_KINDS = {"text": TEXT_DATA, "language": STREAM_DATA, "segmentation": SCENE_DATA, "detection": OBJECT_DATA}
OF_KINDS |= {"audio": SOUND_DATA}
OTHER_DATA = {f"data.{kind}.{name}": bites for kind, fields in OF_KINDS.items() for name, bites in fields.items()}
