"""Facts of one machine or cluster: `configs/site/<name>.yaml`. Nothing here changes a result's fingerprint."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.config import CONFIGS, FILE, Strict, parse_file
from pipeline.data.sources import DataConfig, default_folder
from pipeline.errors import ConfigError, DataError


class Site(Strict):
    """Where data lies and what the hardware is."""

    data: dict[str, Path] = Field(default_factory=dict, description="data set name -> folder")
    weights: str | None = Field(
        None,
        description="folder of the weight files that an `init` of `file:name` names; else `weights` in the project",
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    processes: int = Field(1, ge=1, description="training processes per run, one per GPU")
    workers: int = Field(0, ge=0, description="loader workers per process")
    threads: int = Field(1, ge=1, description="CPU threads of a training process")
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool = False
    checkpoint_s: float = Field(300, ge=0, description="seconds between checkpoints")
    tracking_uri: str | None = Field(
        None, description="MLflow server; MLFLOW_TRACKING_URI wins; else SQLite in results"
    )
    partition: str | None = None
    account: str | None = None
    memory_gb: int = Field(32, ge=1, description="memory of a job")
    hours: int = Field(24, ge=1, description="time limit of a job")


def choose_site(name: str | None) -> Site:
    """Load the named site, here and in every process that this one starts."""
    if name:
        os.environ["PATCHWORK_SITE"] = name
    return load_site()


def load_site() -> Site:
    """The site that PATCHWORK_SITE names, else `local`. Relative folders start at the repository.

    A name that ends in .yaml is the path of a site file that lies anywhere.
    """
    name = os.environ.get("PATCHWORK_SITE", "local")
    site = parse_file(Site, Path(name) if name.endswith(".yaml") else CONFIGS / "site" / f"{name}.yaml")
    folders = {key: CONFIGS.parent / Path(os.path.expandvars(folder)).expanduser() for key, folder in site.data.items()}
    return site.model_copy(update={"data": folders})


def data_folder(site: Site, data: DataConfig) -> Path:
    """Where a data set lies on this site."""
    folder = site.data.get(data.name) or default_folder(data)
    if folder is None:
        raise DataError(
            f"data set {data.name!r} has no folder on this site; expected `data: {{{data.name}: /path}}` in "
            "configs/site/<site>.yaml, where PATCHWORK_SITE names the site (default: local)"
        )
    return folder


def weights_path(site: Site, init: str) -> Path:
    """The file that `file:name` or `file:/path/name` means on this site."""
    name = init.removeprefix(FILE)
    if name in ("", init):
        raise ConfigError(f"init {init!r} names no file; expected file:name.pth or file:/path/name.pth")
    folder = Path(os.path.expandvars(site.weights or "weights")).expanduser()
    return CONFIGS.parent / folder / Path(name).expanduser()
