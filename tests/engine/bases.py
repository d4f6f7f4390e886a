"""Runs that the effects of every key start from: for each method and family of models one that it can have."""

from pipeline.core.config import merge

_SWIN = {"arch": "swin_tiny_patch4_window7_224", "patch_size": 7, "depths": [2, 2], "num_heads": [2, 2]}
SWIN = {"model": {**_SWIN, "window_size": 2, "depth": None}}
CNN = {"model": {"arch": "test_resnet", "embed_dim": None, "depth": None, "num_heads": None}}
# A CNN has no patches; those of a jigsaw move its input.
MOVED = {"method": {"name": "mjp", "fidelity": "paper", "shuffle_ratio": 0.5, "unknown": False, "dal": "none"}}
RGB = {"data": {"channels": 3, "mean": [0.2, 0.3, 0.4], "std": [0.3, 0.3, 0.3]}}
NO_POSITIONS, SINCOS = {"model": {"pos_embed": "none"}}, {"model": {"pos_embed": "sincos"}}
ROTARY = {"model": {"pos_embed": "rope"}}


# A checkpoint of twice as many patches a side.
FINER = {"init": "file:finer.safetensors"}


def _base(name: str, model: dict, **fields: object) -> dict:
    return {"method": {"name": name, **fields}, "model": model}


def jigsaw(**fields: object) -> dict:
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
SCENES = {
    "method": {"name": "upernet", "width": 4, "aux_width": 2},
    "data": {"kind": "segmentation"},
    "optim": {"base_lr": 0.02},
}

# Every box that is proposed is a detection, so that little has to be learned for them to be right and wrong.
_DETECTOR = {"width": 8, "fc_width": 16, "box_convs": 1, "mask_convs": 1, "rpn_samples": 32, "roi_samples": 16}
_DETECTOR |= {"before_nms": [40, 40], "after_nms": [24, 24], "min_score": 0.0, "box_side": 3, "mask_side": 4}
OBJECTS = {"method": {"name": "mask_rcnn", **_DETECTOR}, "data": {"kind": "detection"}, "model": {"patch_size": 8}}
OBJECTS |= {"optim": {"base_lr": 0.02}}
SOUNDS = {"data": {"kind": "audio"}, "model": {"patch_size": [10, 1]}}
MP3_SOUNDS = merge(MP3, SOUNDS)
ALONE = {"unknown": False, "dal": "none"}  # the shuffle of patches, and nothing else
STILL = jigsaw(shuffle="none")

# For each method and family a run that it can have.
BASES = {"mjp": STILL, "mp3": MP3, "mae": MAE, "droppos": DROPPOS, "droppos_swin": DROPPOS_SWIN}
BASES |= {"swin": SWIN, "cnn": CNN, "bert": BERT, "gpt2": GPT2, "text": BERT, "language": LANGUAGE}
BASES |= {"language_model": LANGUAGE, "masked_language": MASKED, "upernet": SCENES, "segmentation": SCENES}
BASES |= {"mask_rcnn": OBJECTS, "detection": OBJECTS}
