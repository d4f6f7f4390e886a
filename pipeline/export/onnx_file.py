"""A model as ONNX, kept only when onnxruntime gives the outputs of torch for batches of several sizes."""

import logging
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from pipeline.core.errors import CheckpointError, ConfigError

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
INPUT, OUTPUT = "images", "outputs"
BATCHES = (1, 3)  # other sizes than that of the example
ROUNDING = 1e-4  # of the largest output: float32, and other kernels


def require_onnx() -> None:
    """Say what is missing before anything is computed."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ConfigError(
            f"--onnx needs {', '.join(PACKAGES)}, and {', '.join(missing)} not found; install them: "
            "pip install 'patchwork-pipeline[onnx]' (or leave --onnx out)"
        )


def write_onnx(model: nn.Module, images: Tensor, path: Path) -> float:
    """Write the model for batches of any size; returns its largest difference from torch, relative to the outputs."""
    for name in ("onnxscript", "onnx_ir"):  # they log every node that they remove
        logging.getLogger(name).setLevel(logging.WARNING)
    program = torch.onnx.export(
        model,
        (images,),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        input_names=[INPUT],
        output_names=[OUTPUT],
        external_data=False,
        verbose=False,
    )
    assert program is not None
    program.save(path)
    return compare(model, images, path)


@torch.no_grad()
def compare(model: nn.Module, images: Tensor, path: Path) -> float:
    import onnxruntime

    session, worst = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]), 0.0
    for count in (len(images), *BATCHES):
        batch = images.repeat(count, 1, 1, 1)[:count]
        expected = model(batch)
        (found,) = (torch.as_tensor(each) for each in session.run([OUTPUT], {INPUT: batch.numpy()}))
        worst = max(worst, relative_difference(found, expected))
    if not worst < ROUNDING:
        raise CheckpointError(
            f"onnxruntime gives other outputs than torch (relative difference {worst:.2g}, expected below "
            f"{ROUNDING:g}), and nothing was written: export without --onnx"
        )
    return worst


def relative_difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest output."""
    if found.shape != expected.shape:
        return float("inf")
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=torch.finfo(torch.float32).tiny))
