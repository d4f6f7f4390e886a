"""A trained encoder in the layout of timm and of the Hub: config.json, model.safetensors, README.md, model.onnx.

timm loads the folder before it gets its name, and its outputs are compared with those of the run; a run whose encoder
timm cannot build is refused with the reason.
"""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from pipeline.core.config import Layers, read_yaml, shown
from pipeline.core.dynamo import dynamo_deferred
from pipeline.core.errors import CheckpointError, ConfigError, DataError
from pipeline.core.files import write_atomic, write_json, write_text
from pipeline.core.seeds import generator_for
from pipeline.core.sizes import pair
from pipeline.data.store.manifest import Manifest, read_manifest
from pipeline.engine.parallel.distributed import World
from pipeline.engine.run import RunConfig, parse_run
from pipeline.engine.train import load_method
from pipeline.export.card import model_card
from pipeline.export.numbers import numbers_of
from pipeline.export.onnx_file import ROUNDING, relative_difference, require_onnx, write_onnx
from pipeline.export.rotary import refuse_other_than_plain_vit, rotary_model, rotary_weights
from pipeline.methods.base import Method
from pipeline.models.encoder import reason_not_of_timm, timm_arguments
from pipeline.models.places import rotary_of
from pipeline.permutation.new_files import new_folder, refuse_existing
from pipeline.results import RunFolder, find_run
from pipeline.site import Site

CONFIG, WEIGHTS, CARD, ONNX = "config.json", "model.safetensors", "README.md", "model.onnx"
EXAMPLES = 2  # images that outputs are compared on
DOWNSAMPLING = re.compile(r"^layers\.(\d+)\.downsample")


def export_run(name: str, out: Path, scale: str | None, site: Site, with_onnx: bool = False) -> list[tuple[str, str]]:
    """Write the folder; returns titles and texts for a reader. Nothing is written when anything is wrong."""
    refuse_existing(out)
    folder = find_run(name, scale)
    run = parse_run(Layers((str(folder.config), read_yaml(folder.config))))
    if reason := _reason_against(run):
        raise ConfigError(f"{run.name} cannot be exported for timm: {reason}")
    if with_onnx:
        require_onnx()
    torch.set_num_threads(site.threads)
    method = load_method(run, folder, World(0, 1, torch.device("cpu")))
    if run.model.is_rotary:
        refuse_other_than_plain_vit(method.export(), run.model.arch)
    lines = [("exported", f"{run.name} as {shown(out)}")]
    with new_folder(out) as draft:
        write_atomic(draft / WEIGHTS, save(_weights_for_timm(method.export()), {"format": "pt"}))
        write_json(draft / CONFIG, _config(run, method.export(), _manifest(folder, run)))
        loaded, images = load_with_timm(draft), _examples(run)
        difference = _refuse_other_outputs(method, run, loaded, images)
        lines.append(("timm", f"loads it with the same outputs (largest relative difference {difference:.1g})"))
        if with_onnx:
            difference = write_onnx(loaded, images, draft / ONNX)
            lines.append(("onnx", f"onnxruntime gives torch's outputs (largest relative difference {difference:.1g})"))
        numbers = numbers_of(run, folder)
        write_text(draft / CARD, model_card(run, folder, loaded, numbers, out.name, with_onnx))
        files = ", ".join(sorted(path.name for path in draft.iterdir()))
    return [*lines, ("files", files), ("load", f'timm.create_model("local-dir:{out}", pretrained=True)')]


def load_with_timm(folder: Path) -> nn.Module:
    """The model as anybody loads it."""
    with dynamo_deferred():
        import timm

    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


def _reason_against(run: RunConfig) -> str:
    if reason := reason_not_of_timm(run.model):
        return reason
    permutation = getattr(run.method, "permutation", None)
    if permutation is not None and permutation.key == "used":
        return "its weights are locked with a key, without which timm would run them at chance"
    return ""


def _weights_for_timm(encoder: Any) -> dict[str, Tensor]:
    """Rotary models have names of their own in timm. Of a Swin without a classifier, it renames parts when it loads."""
    weights = encoder.state_dict() if rotary_of(encoder) is None else rotary_weights(encoder)
    weights = {name: value.contiguous() for name, value in weights.items()}
    if not hasattr(encoder, "layers") or "head.fc.weight" in weights:
        return weights
    return {
        DOWNSAMPLING.sub(lambda found: f"layers.{int(found[1]) - 1}.downsample", name): value
        for name, value in weights.items()
    }


def _config(run: RunConfig, encoder: Any, manifest: Manifest | None) -> dict[str, Any]:
    """config.json, as timm reads it from a folder and from the Hub."""
    data: Any = run.data
    image_size, num_classes = run.method.encoder_size(data.input_size), int(encoder.num_classes)
    classes = (manifest.classes if manifest else None) or []
    architecture, arguments = run.model.arch.split(".")[0], timm_arguments(run.model, image_size)
    if run.model.is_rotary:
        architecture, arguments = rotary_model(run.model, encoder, image_size)
    return {
        "architecture": architecture,
        "num_classes": num_classes,
        "num_features": encoder.num_features,
        **({"global_pool": pool} if isinstance(pool := getattr(encoder, "global_pool", None), str) else {}),
        **({"label_names": classes} if len(classes) == num_classes else {}),
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [data.channels, *pair(image_size)],
            "num_classes": num_classes,
            "classifier": encoder.default_cfg["classifier"],
            # Of a model of grey images, timm would convert the first convolution as if it had three channels.
            "first_conv": encoder.default_cfg.get("first_conv") if data.channels == 3 else None,
            **view_for_timm(data),
        },
    }


def view_for_timm(data: Any) -> dict[str, Any]:
    """How validation sees images, in timm's words; other inputs have no such view."""
    if not hasattr(data, "eval_crop"):
        return {}
    return {
        "mean": [*data.mean],
        "std": [*data.std],
        "crop_pct": data.eval_crop,
        "crop_mode": "squash" if data.eval_crop == 1 else "center",
        "interpolation": data.augment.interpolation,
    }


def _manifest(folder: RunFolder, run: RunConfig) -> Manifest | None:
    """What is known of the run's data set, unless it was not brought along."""
    try:
        return read_manifest(folder.manifest(run.data.name))
    except DataError:
        return None


def _examples(run: RunConfig) -> Tensor:
    data: Any = run.data
    size = pair(run.method.encoder_size(data.input_size))
    return torch.randn(EXAMPLES, data.channels, *size, generator=generator_for("export"))


@torch.no_grad()
def _refuse_other_outputs(method: Method, run: RunConfig, loaded: nn.Module, images: Tensor) -> float:
    """Compare what timm computes with the encoder, and with the predictions of a classifier."""
    found, expected = loaded(images), [method.export()(images)]
    if run.task == "classify":
        expected.append(method.predict(images).logits)
    worst = max(relative_difference(found, each) for each in expected)
    if not worst < ROUNDING:
        raise CheckpointError(
            f"timm loads the encoder of {run.name} with other outputs (relative difference {worst:.2g}, expected below "
            f"{ROUNDING:g}), and nothing was written: its method {run.method.name} computes something else than timm's "
            f"{run.model.arch}"
        )
    return worst
