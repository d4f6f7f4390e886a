"""Starting Snakemake for a study that a command has just written."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.core.config import CONFIGS, nearest, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.results import ROOT
from pipeline.study.scales import default_scale, run_at


@dataclass(frozen=True)
class Call:
    """How Snakemake is to be called."""

    study: str  # that is swept
    given_scale: str | None
    site: str | None
    profile: str | None
    is_dry_run: bool
    options: tuple[str, ...] = ()

    @property
    def scale(self) -> str:
        """The one that was given, else the profile's if the study runs there, else the study's."""
        of_profile = _choices(self.profile).get("scale")
        if of_profile and run_at([self.study], of_profile):
            return self.given_scale or of_profile
        return self.given_scale or default_scale([self.study])

    def take_site(self) -> None:
        """Look at results with the site of the profile, as Snakemake does, unless another one is named."""
        if site := _choices(self.profile).get("site"):
            os.environ.setdefault("PATCHWORK_SITE", site)

    def command(self, target: str) -> list[str]:
        """In this Python, so that it needs no activated environment."""
        config = [f"scale={self.scale}", *([f"site={self.site}"] if self.site else [])]
        profile = ["--profile", self.profile] if self.profile else []
        dry = ["--dry-run"] if self.is_dry_run else []
        return [sys.executable, "-m", "snakemake", target, *profile, *dry, *self.options, "--config", *config]


def _choices(profile: str | None) -> dict[str, Any]:
    """The config that a profile brings along: its scale and its site."""
    if not profile:
        return {}
    folder = next((path for path in (ROOT / "profiles" / profile, Path(profile)) if path.is_dir()), None)
    if folder is None:
        known = [path.name for path in (ROOT / "profiles").iterdir()]
        raise ConfigError(f"--profile {profile}: no such profile; {nearest(profile, known)}")
    content = read_yaml(folder / "config.yaml")
    return read_yaml(folder / content["configfile"]) if "configfile" in content else {}


def snakemake(target: str, call: Call) -> int:
    """Its exit code; the jobs it starts use this Python as well."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen(call.command(target), cwd=CONFIGS.parent, env={**os.environ, "PATH": path})
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # Ctrl-C reaches Snakemake as well, which stops its jobs first
