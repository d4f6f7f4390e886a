"""Where a number comes from: commit, fingerprints, seed, device, versions. Goes into every metrics file."""

import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.core.config import CONFIGS


def commit() -> str:
    """The commit of the working tree, with `+changes` if tracked files differ from it."""
    root = CONFIGS.parent
    revision = _git(root, "rev-parse", "HEAD")
    if revision is None:
        return "not a git checkout"
    return revision + ("+changes" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")


def provenance(**facts: Any) -> dict[str, Any]:
    """The given facts and those of this process."""
    libraries = {name: version(name) for name in ("torch", "timm", "numpy")}
    return {
        **facts,
        "commit": commit(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version(), **libraries},
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _git(root: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None
