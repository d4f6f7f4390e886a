"""The table of test_every_key.py: for each field of every config class, a value that must be seen.

A new field fails the test until it stands here: with a value that changes a run, and the keys with which it does, or
in NOT_SCIENCE or LABELS with the reason why no run can show it.
"""

from every_key import Bite

from pipeline.config import merge

# They are no part of a run's name.
NOT_SCIENCE = {
    "optim.max_skips": "when to give up; a run that does not is the same",
    "optim.validate_every": "how often to look; looking changes nothing, unless the best is kept (see test_best.py)",
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
    "eval.detection.seed": "it draws nothing",
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
    "eval.cls_attention.seed": "it draws nothing",
    "eval.knn.seed": "it draws nothing",
    "eval.adversarial.seed": "it draws the error alone",
    "eval.classify_on.seed": "it draws nothing",
    "eval.outliers.seed": "it draws the errors alone",
    "eval.calibration.seed": "it draws the errors alone",
    "model.cnn.pos_resampling": "a CNN has no positions",
    "model.bert.pos_resampling": "positions of texts are no grid",
    "model.gpt2.pos_resampling": "positions of texts are no grid",
}

PADDED, RESIZED, PLAIN = ({"data": {"augment": {"crop": crop}}} for crop in ("padded", "resized", "none"))
SMALL = {"data": {"image_size": 14}}  # the images have 28 px, so each view resizes them
RGB = {"data": {"channels": 3, "mean": [0.2, 0.3, 0.4], "std": [0.3, 0.3, 0.3]}}
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
    "optim.ema_decay": [Bite(0.9, "updates"), Bite(0.5, "updates", {"optim": {"ema_decay": 0.9}})],
}

_SWIN = {"arch": "swin_tiny_patch4_window7_224", "patch_size": 7, "depths": [2, 2], "num_heads": [2, 2]}
SWIN = {"model": {**_SWIN, "window_size": 2, "depth": None}}
CNN = {"model": {"arch": "test_resnet", "embed_dim": None, "depth": None, "num_heads": None}}
# A CNN has no patches; those of a jigsaw move its input.
MOVED = {"method": {"name": "mjp", "fidelity": "paper", "shuffle_ratio": 0.5, "unknown": False, "dal": "none"}}
NO_POSITIONS, SINCOS = {"model": {"pos_embed": "none"}}, {"model": {"pos_embed": "sincos"}}


# A checkpoint of twice as many patches a side.
FINER = {"init": "file:finer.safetensors"}


def _base(name: str, model: dict, **fields: object) -> dict:
    return {"method": {"name": name, **fields}, "model": model}


def _jigsaw(**fields: object) -> dict:
    """Half of the patches are moved in every step."""
    always = {"shuffle_ratio": 0.5, "warmup_ratio": 0.0, "shuffle_prob": 1.0}
    return {"method": {"name": "mjp", **always, **fields}}


DECODER = {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
MP3 = _base("mp3", {"pos_embed": "none"}, mask_ratio=0.7)
MAE = _base("mae", {"pos_embed": "sincos"}, **DECODER)
DROPPOS = _base("droppos", {"pos_embed": "sincos"}, mask_ratio=0.5, **DECODER)
# 4x4 cells of one patch, of which 2x2 are visible; a token of the last stage has 2x2 cells.
DROPPOS_SWIN = _base("droppos_swin", SWIN["model"], cells=4, **DECODER)

BERT = {"model": {"arch": "bert", "patch_size": None}, "data": {"kind": "text"}}
GPT2 = {"model": {"arch": "gpt2", "patch_size": None}, "data": {"kind": "text"}}
LANGUAGE = merge(GPT2, {"method": {"name": "language_model"}, "data": {"kind": "language"}})
MASKED = merge(BERT, {"method": {"name": "masked_language"}, "data": {"kind": "language"}})
# Little is learned in three updates; norms that see at once what there is show it all the same.
SCENES = {"method": {"name": "upernet", "width": 4}, "data": {"kind": "segmentation"}, "optim": {"base_lr": 0.02}}

# Every box that is proposed is a detection, so that little has to be learned for them to be right and wrong.
_DETECTOR = {"width": 8, "fc_width": 16, "box_convs": 1, "mask_convs": 1, "rpn_samples": 32, "roi_samples": 16}
_DETECTOR |= {"before_nms": [40, 40], "after_nms": [24, 24], "min_score": 0.0, "box_side": 3, "mask_side": 4}
OBJECTS = {"method": {"name": "mask_rcnn", **_DETECTOR}, "data": {"kind": "detection"}, "model": {"patch_size": 8}}
OBJECTS |= {"optim": {"base_lr": 0.02}}
SOUNDS = {"data": {"kind": "audio"}, "model": {"patch_size": [10, 1]}}
MP3_SOUNDS = merge(MP3, SOUNDS)


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
        Bite("relative", "start", NO_POSITIONS),
        Bite("sincos_learn", "updates", SINCOS),
    ],
    "cls_std": [Bite(0.5, "start"), Bite(0.5, "start", _jigsaw()), Bite(0.5, "start", MAE)],
    "pos_resampling": [Bite("released", "start", FINER), Bite("released", "start", merge(FINER, SINCOS))],
    "pool": [Bite("avg", "start"), Bite("avg", "start", {"model": {"pool": "cls"}})],
    "head_std": [Bite(2e-5, "start")],
    "drop_path": [Bite(0.5, "updates")],
    "dropout": [Bite(0.3, "updates"), Bite(0.3, "updates", MP3), Bite(0.3, "updates", MAE)],
    "add_relative": [Bite(True, "start"), Bite(True, "start", SINCOS)],
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
    **_refused(SWIN, global_blocks=2, add_relative=True),
}
CNN_FIELDS = {
    "arch": [Bite("test_efficientnet", "start", CNN)],
    "patch_size": [Bite(4, "draws", {**CNN, **MOVED})],
    "head_std": [Bite(2e-5, "start", CNN)],
    "drop_path": [Bite(0.5, "updates", CNN)],
    **_refused(CNN, cls_std=0.5, depth=2, depths=[1, 1], window_size=2, act_layer="relu", pool="avg"),
    **_refused(CNN, embed_dim=8, num_heads=2, mlp_ratio=2.0, pos_embed="learn", dropout=0.1),
    **_refused(CNN, global_blocks=2, add_relative=True),
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
        **_refused(base, drop_path=0.5, global_blocks=2, add_relative=True),
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
    **_refused(SCENES, kind="images", source="coco", num_train=23, num_val=19),
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
    **_refused(OBJECTS, kind="images", source="ade20k", num_train=23, num_val=19, num_classes=4),
    "drop_empty": [Bite(False, "refused", OBJECTS, {"data": {"num_train": 25}})],  # prepared without those
    **_refused(OBJECTS, train_images="val2017", val_images="train2017", train_annotations="a.json"),
    **_refused(OBJECTS, val_annotations="a.json"),
    "image_size": [Bite(64, "start batches draws", OBJECTS)],
    "channels": [Bite(3, "start batches", OBJECTS, RGB)],
    "mean": [Bite([0.3], "batches", OBJECTS)],
    "std": [Bite([0.4], "batches", OBJECTS)],
    "scale": [Bite([0.8, 0.9], "batches", OBJECTS)],
    "hflip": [Bite(0.0, "batches", OBJECTS)],
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


ALONE = {"unknown": False, "dal": "none"}  # the shuffle of patches, and nothing else
STILL = _jigsaw(shuffle="none")
MJP = {
    "fidelity": [Bite("released", "start", _jigsaw()), Bite("paper", "start draws", _jigsaw())],
    "shuffle": [
        *[Bite(value, "draws", _jigsaw(**ALONE)) for value in ("none", "pixels")],
        Bite("positions", "draws", _jigsaw(dal="none")),
        Bite("none", "draws", _jigsaw(shuffle="positions")),
    ],
    "index": [
        Bite("slots", "start", _jigsaw(**ALONE)),
        Bite("patches", "start", _jigsaw(**ALONE)),
        Bite("patches", "updates", _jigsaw(**ALONE, index="slots")),
    ],
    "unknown": [Bite(False, "start", _jigsaw()), Bite(False, "start", _jigsaw(dal="none"))],
    "dal": [
        *[Bite(value, "start", _jigsaw()) for value in ("none", "pca", "linear")],
        Bite("pca", "updates", _jigsaw(dal="none")),
    ],
    "shuffle_ratio": [Bite(0.9, "draws", _jigsaw(**ALONE))],
    "dal_weight": [Bite(1.0, "draws", STILL), Bite(1.0, "draws", _jigsaw(dal="pca"))],
    "warmup_ratio": [Bite(0.5, "draws", STILL), Bite(0.5, "draws", _jigsaw(**ALONE, dal_schedule="constant"))],
    "shuffle_prob": [Bite(0.0, "draws", _jigsaw(**ALONE))],
    "per_image": [Bite(True, "draws", _jigsaw(**ALONE)), Bite(True, "draws", _jigsaw())],
    "exact_count": [Bite(True, "draws", _jigsaw(**ALONE))],
    "dal_schedule": [Bite("constant", "draws", STILL)],
    "dal_updates": [Bite(2, "draws", STILL)],
    "dal_reduction": [Bite("norm", "updates", STILL)],
    "dal_layers": [Bite(3, "start", STILL)],
    "position_std": [Bite(0.1, "start", _jigsaw())],
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

# For each method and family a run that it can have.
BASES = {"mjp": STILL, "mp3": MP3, "mae": MAE, "droppos": DROPPOS, "droppos_swin": DROPPOS_SWIN}
BASES |= {"swin": SWIN, "cnn": CNN, "bert": BERT, "gpt2": GPT2, "text": BERT, "language": LANGUAGE}
BASES |= {"language_model": LANGUAGE, "masked_language": MASKED, "upernet": SCENES, "segmentation": SCENES}
BASES |= {"mask_rcnn": OBJECTS, "detection": OBJECTS}

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
    "knn": {"layers": (0, 1), "k": 7},
    "linear_probe": {"epochs": 6, "batch": 8, "base_lr": 30, "warmup_epochs": 2},
    "position_probe": {"epochs": 4, "batch": 8, "lr": 3e-2},
    # Everything is on, so that each key has something to change.
    "split_learning": {
        "feature_protection": {"noise": 0.2, "radius": 0.3, "own_share": 0.6, "still_share": 0.5, "rows": False},
        "recipe": {"epochs": 2, "batch": 8, "block_ratio": 0.5},
        "inversion": {"epochs": 2, "batch": 8, "warmup_steps": 1, "lr": 1e-2},
        "images": 10,
    },
}
# A model whose predictions depend on the image: only then do they depend on how it is shuffled.
LEARNED = {"optim": {"base_lr": 3e-2, "epochs": 20, "validate_every": 20}}
# What the attacker is given; with the unknown position at some patches, so that it matters.
ASSUMPTIONS = {
    "gradients": [Bite("float32", "validation", _jigsaw())],
    "given": [Bite("parameters", "validation", _jigsaw())],
    "first_norm": [Bite(True, "validation", _jigsaw())],
    "first_skips": [Bite(True, "validation", _jigsaw())],
    "cutoff": [Bite(0.1, "validation", _jigsaw())],
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
    "eval.april_scale.assumptions.gradients": [Bite("float64", "validation")],
    "eval.april.settings": [Bite(("c", "kept"), "validation", _jigsaw())],
    "eval.april.shuffle_ratio": [Bite(0.9, "validation", _jigsaw())],
    "eval.april.images": [Bite(4, "validation")],
    "eval.april.pictures": [Bite(2, "validation")],
    "eval.april.cutoffs": [Bite((0.5,), "validation")],
    "eval.april.seed": [Bite(1, "validation", _jigsaw())],
    "eval.april_scale.stds": [Bite((20, 1000), "validation")],
    "eval.april_scale.untrained": [Bite(True, "validation", LEARNED)],
    "eval.april_scale.images": [Bite(2, "validation")],
    "eval.gradient_matching.setting": [Bite("a", "validation", _jigsaw())],
    "eval.gradient_matching.shuffle_ratio": [Bite(0.9, "validation", _jigsaw())],
    "eval.gradient_matching.knows_shuffled": [Bite(False, "validation", _jigsaw())],
    **{
        f"eval.gradient_matching.{key}": [Bite(other, "validation")]
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
        f"eval.split_learning.{key}": [Bite(other, "validation")]
        for key, other in {
            "feature_protection.noise": 0.5,
            "feature_protection.radius": 0.1,
            "feature_protection.filter": "disc",
            "feature_protection.own_share": 0.2,
            "feature_protection.still_share": 1.0,
            "feature_protection.rows": True,
            "recipe.epochs": 3,
            "recipe.batch": 12,
            "recipe.lr": 0.5,
            "recipe.min_lr": 0.02,
            "recipe.block_ratio": 1.0,
            "recipe.momentum": 0.0,
            "recipe.weight_decay": 0.5,
            "recipe.trained": "released",
            "recipe.positions": "released",
            "inversion.epochs": 3,
            "inversion.batch": 12,
            "inversion.lr": 1e-3,
            "inversion.betas": (0.5, 0.5),
            "inversion.weight_decay": 10.0,
            "inversion.warmup_steps": 5,
            "inversion.has_positions": False,
            "inversion.protects_test": False,
            "train_images": 16,
            "images": 12,
            "pictures": 2,
            "seed": 1,
        }.items()
    },
    "eval.april_pictures.shuffle_ratio": [Bite(0.9, "validation")],
    "eval.april_pictures.images": [Bite(1, "validation")],
    "eval.april_pictures.skip": [Bite(1, "validation")],
    "eval.april_pictures.seed": [Bite(1, "validation")],
    "eval.classify.shuffle_ratio": [Bite(0.9, "validation")],
    "eval.classify.seed": [Bite(1, "validation")],
    "eval.consistency.shuffle_ratio": [Bite(0.9, "validation")],
    "eval.consistency.seed": [Bite(1, "validation")],
    "eval.equivariance.kind": [Bite("released", "validation")],
    "eval.equivariance.keys": [Bite(2, "validation")],
    "eval.equivariance.seed": [Bite(1, "validation")],
    "eval.training_equivariance.kind": [Bite("released", "validation")],
    "eval.training_equivariance.batch": [Bite(6, "validation")],
    "eval.training_equivariance.steps": [Bite(3, "validation")],
    "eval.training_equivariance.seed": [Bite(1, "validation")],
    "eval.split_wire.batch": [Bite(6, "validation")],
    "eval.split_wire.steps": [Bite(3, "validation")],
    "eval.split_wire.precision": [Bite("float32", "validation")],
    **{
        f"eval.counterexamples.{key}": [Bite(other, "validation")]
        for key, other in {"width": 24, "depth": 1, "num_heads": 2, "tokens": 20, "seed": 1}.items()
    },
    "eval.detection_pictures.images": [Bite(2, "validation", OBJECTS)],
    "eval.detection_pictures.min_score": [Bite(0.0, "validation", OBJECTS)],
    "eval.segmentation_equivariance.kind": [Bite("released", "validation", SCENES)],
    "eval.segmentation_equivariance.keys": [Bite(3, "validation", SCENES)],
    "eval.segmentation_equivariance.seed": [Bite(1, "validation", SCENES)],
    "eval.segmentation_pictures.images": [Bite(2, "validation", SCENES)],
    "eval.perplexity.kind": [Bite("released", "validation", LANGUAGE)],
    "eval.perplexity.keys": [Bite(2, "validation", LANGUAGE)],
    "eval.perplexity.seed": [Bite(1, "validation", LANGUAGE)],
    "eval.shuffle_curve.ratios": [Bite((30, 60), "validation")],
    "eval.shuffle_curve.seed": [Bite(1, "validation", LEARNED)],
    "eval.mp3_positions.etas": [Bite((10, 60), "validation", MP3)],
    "eval.mp3_positions.top5": [Bite(True, "validation", MP3)],
    "eval.mp3_positions.seed": [Bite(1, "validation", MP3)],
    "eval.droppos_positions.gammas": [Bite((10, 60), "validation", DROPPOS)],
    "eval.droppos_positions.position_gammas": [Bite((40, 60), "validation", DROPPOS)],
    "eval.droppos_positions.seed": [Bite(1, "validation", DROPPOS)],
    "eval.mp3_sounds.etas": [Bite((60, 10), "validation", MP3_SOUNDS)],
    "eval.mp3_sounds.clips": [Bite(2, "validation", MP3_SOUNDS)],
    "eval.mp3_sounds.seed": [Bite(1, "validation", MP3_SOUNDS)],
    "eval.mp3_pictures.etas": [Bite((10, 60), "validation", MP3)],
    "eval.mp3_pictures.images": [Bite(2, "validation", MP3)],
    "eval.mp3_pictures.seed": [Bite(1, "validation", MP3)],
    "eval.droppos_pictures.gammas": [Bite((10, 60), "validation", DROPPOS)],
    "eval.droppos_pictures.position_gamma": [Bite(40, "validation", DROPPOS)],
    "eval.droppos_pictures.images": [Bite(2, "validation", DROPPOS)],
    "eval.droppos_pictures.seed": [Bite(1, "validation", DROPPOS)],
    "eval.corruptions.normalise_by": [Bite("none", "validation")],
    "eval.corruption_pictures.table": [Bite("tiny_imagenet", "validation")],
    "eval.corruption_pictures.images": [Bite(2, "validation")],
    "eval.corruption_pictures.seed": [Bite(1, "validation")],
    "eval.jigsaw_pictures.ratios": [Bite((0.2, 0.6), "validation")],
    "eval.jigsaw_pictures.patches": [Bite(7, "validation")],
    "eval.jigsaw_pictures.images": [Bite(2, "validation")],
    "eval.jigsaw_pictures.seed": [Bite(1, "validation")],
    "eval.calibration.bins": [Bite(3, "validation", LEARNED)],
    "eval.calibration.per_bin": [Bite(7, "validation")],
    "eval.mixed_pictures.etas": [Bite((10, 60), "validation", MP3)],
    "eval.mixed_pictures.pairs": [Bite(1, "validation", MP3)],
    "eval.mixed_pictures.seed": [Bite(1, "validation", MP3)],
    "eval.position_embeddings.dims": [Bite((2, 3), "validation")],
    "eval.position_embeddings.centred": [Bite(False, "validation")],
    "eval.position_embeddings.with_cls": [Bite(True, "validation")],
    "eval.position_embeddings.folds": [Bite(4, "validation")],
    "eval.position_embeddings.repeats": [Bite(3, "validation")],
    "eval.position_embeddings.seed": [Bite(1, "validation")],
    "eval.embedding_pictures.neighbours": [Bite(4, "validation")],
    "eval.embedding_pictures.min_dist": [Bite(0.7, "validation")],
    "eval.embedding_pictures.seed": [Bite(1, "validation")],
    "eval.correlation_maps.limit": [Bite(7, "validation")],
    "eval.attention_maps.layers": [Bite((2,), "validation")],
    "eval.attention_maps.lowest_entropy": [Bite(1, "validation")],
    "eval.attention_maps.limit": [Bite(7, "validation")],
    "eval.cls_attention.images": [Bite(2, "validation")],
    "eval.cls_attention.limit": [Bite(7, "validation")],
    "eval.cost.method": [Bite({"mae": {**DECODER, "decoder_depth": 2}}, "validation")],
    "eval.cost.etas": [Bite((40,), "validation")],
    **{
        f"eval.{name}.{key}": [Bite(other, "validation")]
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
    "eval.knn.layers": [Bite((0, 2), "validation")],
    "eval.knn.k": [Bite(3, "validation")],
    "eval.knn.weighting": [Bite("uniform", "validation", LEARNED)],
    "eval.knn.temperature": [Bite(10.0, "validation", LEARNED)],
    "eval.knn.bank_limit": [Bite(12, "validation")],
    "eval.knn.untrained": [Bite(True, "validation", LEARNED)],
    "eval.linear_probe.pool": [Bite("avg", "validation")],
    "eval.linear_probe.epochs": [Bite(7, "validation")],
    "eval.linear_probe.batch": [Bite(12, "validation")],
    "eval.linear_probe.base_lr": [Bite(40, "validation")],
    "eval.linear_probe.warmup_epochs": [Bite(3, "validation")],
    "eval.linear_probe.train_limit": [Bite(16, "validation")],
    "eval.linear_probe.untrained": [Bite(True, "validation")],
    "eval.linear_probe.seed": [Bite(1, "validation")],
    "eval.position_probe.position_ratio": [Bite(0.25, "validation")],
    "eval.position_probe.masked": [
        Bite("zero", "validation", DROPPOS),
        Bite("learned", "validation", DROPPOS),
        Bite("learned", "validation"),
    ],
    "eval.position_probe.shuffle_tokens": [Bite(True, "validation")],
    "eval.position_probe.epochs": [Bite(6, "validation")],
    "eval.position_probe.batch": [Bite(12, "validation")],
    "eval.position_probe.lr": [Bite(0.3, "validation")],
    "eval.position_probe.train_limit": [Bite(16, "validation")],
    "eval.position_probe.untrained": [Bite(True, "validation")],
    "eval.position_probe.seed": [Bite(1, "validation")],
}
