"""What benchmarks write down: where and when they ran, and what they found."""

import json
import os
import platform
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import torch


def where(device: torch.device, *packages: str) -> dict[str, Any]:
    """The date, the machine, and the versions of these packages."""
    versions = {name: import_module(name).__version__ for name in packages}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": name_of(device),
        "versions": {"python": platform.python_version(), **versions},
        "cores": len(os.sched_getaffinity(0)),
    }


def name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def write(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
