"""Which precision a site computes in on a device: one answer for training, validation and evaluations."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from pipeline.site import Site

Precision = Literal["fp32", "bf16"]


def precision_of(site: Site, device: torch.device) -> Precision:
    """What the site says; where it leaves the choice: bf16 on a GPU, fp32 on a CPU."""
    if site.precision == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    return site.precision


def in_precision(precision: Precision, device: torch.device) -> AbstractContextManager:
    """Forward passes inside it are computed in this precision."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
