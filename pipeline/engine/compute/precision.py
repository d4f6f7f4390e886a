"""Which precision a site computes in on a device: one answer for training, validation and evaluations.

`exact_fp32` is float32 without TF32, with which a GPU rounds the factors of products to 10 bits; torch allows it in
convolutions unless it is told not to. Evaluations of what must be identical use it whatever the site says.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch

from pipeline.site import Site

Precision = Literal["exact_fp32", "fp32", "bf16"]


def precision_of(site: Site, device: torch.device) -> Precision:
    """What the site says; where it leaves the choice: bf16 on a GPU, fp32 on a CPU."""
    if site.precision == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    return site.precision


def in_precision(precision: Precision, device: torch.device) -> AbstractContextManager:
    """Forward passes inside it are computed in this precision."""
    if precision == "exact_fp32":
        return without_tf32()
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


@contextmanager
def without_tf32() -> Iterator[None]:
    """Products and convolutions of float32 inside it have all bits of float32, on a GPU too."""
    backends: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    allowed = [backend.allow_tf32 for backend in backends]
    try:
        for backend in backends:
            backend.allow_tf32 = False
        yield
    finally:
        for backend, was_allowed in zip(backends, allowed, strict=True):
            backend.allow_tf32 = was_allowed
