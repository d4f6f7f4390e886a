"""Small methods with large weights, and evaluations of them on a small set in Fashion-MNIST's published layout."""

import gzip
import struct
from dataclasses import dataclass, replace

import numpy as np
import torch
from corrupted_sets import sets_of_roles
from readable_failures import defaults_of
from tiny_maps import NUM_LABELS, write_scenes
from tiny_scenes import SCENE_CLASSES, write_objects
from tiny_text import LENGTH, VOCABULARY, build_tiny_text, tiny_text_model
from tiny_vit import build_tiny, tiny_encoder, tiny_model

from pipeline.data.dense.detection import DetectionConfig
from pipeline.data.dense.segmentation import SegmentationConfig
from pipeline.data.images.augment import Augment
from pipeline.data.images.classified import DataConfig
from pipeline.data.store.prepare import prepare
from pipeline.data.text.language import LanguageConfig
from pipeline.engine.optim import OptimConfig
from pipeline.engine.parallel.distributed import World
from pipeline.engine.run import RunConfig
from pipeline.evals.base import EVALS, EvalConfig, Outcome, Subject
from pipeline.methods.droppos import DropPos
from pipeline.methods.language_model import LanguageModel
from pipeline.methods.mask_rcnn import MaskRCNN
from pipeline.methods.mjp import MJP
from pipeline.methods.mp3 import MP3
from pipeline.methods.supervised import Supervised
from pipeline.methods.upernet import UperNet
from pipeline.models.patches import Grid
from pipeline.results import ScaleFolder
from pipeline.site import Site

GRID, BATCH = Grid(7, 7), 128
ALONE = World(0, 1, torch.device("cpu"))
# More than one batch, and the last one is smaller: a mean of batch means would differ.
COUNTS = {"train": 40, "t10k": 150}
MEAN, STD = 0.286, 0.353
# For training only: evaluations must not apply it.
AUGMENT = Augment(scale=(0.2, 0.5), rand_augment="rand-m9-mstd0.5-inc1", erasing=0.5, mixup=0.8, cutmix=1.0)
DECODER = {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
DETECTOR = {"width": 16, "fc_width": 32, "box_convs": 1, "mask_convs": 1, "min_score": 0.0}
METHODS = {
    "baseline": (Supervised, {}, {}),
    "no positions": (Supervised, {}, {"pos_embed": "none"}),
    "mjp": (MJP, {"fidelity": "released"}, {}),
    "mp3": (MP3, {}, {"pos_embed": "none"}),
    "droppos": (DropPos, DECODER, {"pos_embed": "sincos"}),
    "language": (LanguageModel, {}, {}),
    "upernet": (UperNet, {"width": 8, "aux_width": 4}, {}),
    "mask_rcnn": (MaskRCNN, DETECTOR, {"patch_size": 8}),
}
STREAM_WORDS, STRIDE = {"train": 400, "val": 1200}, 5
# Evaluations that need another subject than a classifier, or other fields than they start with.
SUITED = {"mp3_positions": "mp3", "droppos_positions": "droppos", "mp3_pictures": "mp3", "droppos_pictures": "droppos"}
SUITED |= dict.fromkeys(("segmentation", "segmentation_pictures", "segmentation_equivariance"), "upernet")
SUITED |= dict.fromkeys(("detection", "detection_pictures"), "mask_rcnn")
SUITED |= {"mixed_pictures": "mp3", "training_equivariance": "baseline", "perplexity": "language"}
SIZES = {"image_size": 28, "channels": 1, "num_classes": 10, "batch": 4, "steps": 1}
FIELDS = {
    "cost": {"model": tiny_model(), "method": {"mae": DECODER}, **SIZES},
    "permutation_cost": {"model": tiny_model(), **SIZES},
    "training_equivariance": {"batch": 4, "steps": 2},
    "split_wire": {"batch": 8, "steps": 2},
    "april": {"images": 12, "batch": 8, "settings": ("a", "b", "c", "kept", "hidden", "own")},
    "april_scale": {"images": 4, "stds": (20, 1000)},
    "april_pictures": {"images": 3, "skip": 2},
    "gradient_matching": {"images": 2, "iterations": 4, "pictures": 2, "setting": "b", "shuffle_ratio": 0.5},
    "corruption_pictures": {"data": {"images": "small_fashion"}, "table": "cifar"},
    "jigsaw_pictures": {"data": {"images": "small_fashion"}, "patches": 7},
    "knn": {"layers": (0, 1, 2), "k": 5},
    "linear_probe": {"epochs": 20, "batch": 20, "base_lr": 30, "warmup_epochs": 2},
    "position_probe": {"epochs": 4, "batch": 10, "lr": 3e-2},
    "split_learning": {
        "recipe": {"epochs": 2, "batch": 20},
        "inversion": {"epochs": 2, "batch": 20, "warmup_steps": 1, "lr": 1e-2},
        "images": 50,
    },
}


@dataclass(frozen=True)
class SmallWorld:
    """A prepared data set, where it lies, and what its validation images and labels are; and sets of other kinds."""

    data: DataConfig
    stream: LanguageConfig
    scenes: SegmentationConfig
    objects: DetectionConfig
    site: Site
    results: ScaleFolder
    pixels: np.ndarray
    labels: np.ndarray

    def with_site(self, **changes) -> "SmallWorld":
        return replace(self, site=self.site.model_copy(update=changes))

    def run_of(self, method, seed=0, protection=None, **data) -> RunConfig:
        changes = METHODS[method.cfg.name][2] if method.cfg.name in METHODS else {}
        if getattr(method.encoder, "pos_embed", None) is None:
            changes = {**changes, "pos_embed": "none"}
        optim = OptimConfig(epochs=1, global_batch=8, micro_batch=8, base_lr=1e-3, protection=protection or {})
        if isinstance(method, LanguageModel):  # which sees no images
            return RunConfig(method=method.cfg, model=tiny_text_model("gpt2"), data=self.stream, optim=optim, seed=seed)
        if isinstance(method, UperNet):  # which sees whole scenes
            return RunConfig(method=method.cfg, model=tiny_model(**changes), data=self.scenes, optim=optim, seed=seed)
        if isinstance(method, MaskRCNN):
            return RunConfig(method=method.cfg, model=tiny_model(**changes), data=self.objects, optim=optim, seed=seed)
        data = self.data.model_copy(update=data)
        return RunConfig(method=method.cfg, model=tiny_model(**changes), data=data, optim=optim, seed=seed)

    def evaluate(self, name, *methods, peer=None, crop=1.0, protection=None, **fields) -> Outcome:
        """What an evaluation finds in these subjects, in the order of its roles."""
        kind, cfg = EVALS.get(name), config_of(name, **fields)
        runs = [self.run_of(method, protection=protection, eval_crop=crop) for method in methods]
        subjects = [Subject(run, method) for run, method in zip(runs, methods, strict=True)]
        folder = self.site.data[self.data.name]
        data, made = sets_of_roles(kind, self.data, folder, self.results, eval_crop=crop)
        site = self.site.model_copy(update={"data": {**self.site.data, **made}})
        evaluation = kind(cfg, data, self.results, site, peer or ALONE)
        return evaluation.evaluate(**dict(zip(kind.roles(), subjects, strict=True)))


def make_world(folder, results, paint=lambda pixels: pixels) -> SmallWorld:
    """Images are noise, or what `paint` makes of it."""
    pixels, labels = {}, {}
    for prefix, count in COUNTS.items():
        generator = np.random.default_rng(count)
        pixels[prefix] = paint(generator.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        labels[prefix] = (np.arange(count) % 10).astype(np.uint8)
        _write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", 2051, pixels[prefix])
        _write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", 2049, labels[prefix])
    data = DataConfig(
        name="small_fashion",
        source="fashion_mnist",
        image_size=28,
        channels=1,
        num_classes=10,
        num_train=COUNTS["train"],
        num_val=COUNTS["t10k"],
        mean=(MEAN,),
        std=(STD,),
        eval_crop=1.0,
        augment=AUGMENT,
    )
    others = _write_stream(folder), _write_scenes(folder), _write_objects(folder)
    scale = ScaleFolder(results)
    for each in (data, *others):
        prepare(each, folder, scale.manifest(each.name).parent, progress=False)
    site = Site(data=dict.fromkeys((data.name, *(each.name for each in others)), folder), device="cpu")
    return SmallWorld(data, *others, site, scale, pixels["t10k"], labels["t10k"])


def _write_scenes(folder) -> SegmentationConfig:
    write_scenes(folder, num_train=8, num_val=5)
    sizes = {"image_size": 28, "channels": 1, "num_classes": NUM_LABELS, "num_train": 8, "num_val": 5}
    return SegmentationConfig(name="small_scenes", **sizes, mean=(MEAN,), std=(STD,))


def _write_objects(folder) -> DetectionConfig:
    write_objects(folder, num_train=8, num_val=9)
    sizes = {"image_size": 32, "channels": 1, "num_classes": SCENE_CLASSES, "num_train": 8, "num_val": 9}
    return DetectionConfig(name="small_objects", **sizes, mean=(MEAN,), std=(STD,))


def _write_stream(folder) -> LanguageConfig:
    """Words in the layout of the books of this project, as many as the small text models know."""
    for seed, (split, count) in enumerate(STREAM_WORDS.items()):
        words = np.random.default_rng(seed).integers(0, VOCABULARY - 7, count)
        line = f"austen\t1\t{' '.join(f'w{word}' for word in words)}\n"
        (folder / f"{split}.txt.gz").write_bytes(gzip.compress(line.encode()))
    num_val = 1 + -(-(STREAM_WORDS["val"] + 1 - LENGTH) // STRIDE)  # one more token: the end of the line
    counts = {"num_train": (STREAM_WORDS["train"] + 1) // LENGTH, "num_val": num_val}
    sizes = {"vocab_size": VOCABULARY, "length": LENGTH, "stride": STRIDE}
    return LanguageConfig(name="small_stream", source="books", **sizes, **counts)


def _write_idx(path, magic, array):
    header = struct.pack(f">{1 + array.ndim}I", magic, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def build(kind, seed=0, dropout=0.0):
    """A method whose weights are large enough for patches, positions and classes to matter.

    With `dropout` it also has drop path, and its answers in training mode are different each time.
    """
    method, fields, changes = METHODS[kind]
    if method is LanguageModel:
        encoder = build_tiny_text(tiny_text_model("gpt2", dropout=dropout), seed, 0)
    elif method is MaskRCNN:
        encoder = build_tiny(tiny_model(dropout=dropout, drop_path=dropout, **changes), seed, 0, 32)
    else:
        num_classes = 0 if method is UperNet else 10
        encoder = tiny_encoder(seed, num_classes, dropout=dropout, drop_path=dropout, **changes)
    encoder.num_labels = SCENE_CLASSES if method is MaskRCNN else NUM_LABELS
    built = method(method.Config(**fields), encoder).eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            is_enlarged = method is not MaskRCNN or name.startswith("encoder.")  # boxes would leave the picture
            if parameter.ndim > 1 and "token" not in name and parameter.requires_grad and is_enlarged:
                parameter.normal_(std=0.4)
    return built


def subjects_of(name):
    """Methods that an evaluation can be computed of, one for each of its roles; they drop much in training mode."""
    return [build(SUITED.get(name, "mjp"), seed, dropout=0.2) for seed, _ in enumerate(EVALS.get(name).roles())]


def config_of(name, **fields) -> EvalConfig:
    with defaults_of(f"evaluation {name}", f'name its fields in FIELDS of {__file__}: "{name}": {{...}}'):
        return EVALS.get(name).Config(name=name, **{**FIELDS.get(name, {}), **fields})
