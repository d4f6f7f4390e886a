"""Reads the facts of one machine or cluster from `configs/site`.

No key changes a result's fingerprint, but `cache`, `precision` and a few others change its numbers slightly: GUIDE has
the list, in the section What is computed again after a change.
"""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeInt

from pipeline.core.config import CONFIGS, FILE, Strict, names, nearest, parse_file, shown
from pipeline.core.errors import ConfigError, DataError
from pipeline.core.files import LOCKS
from pipeline.data.kind import BaseDataConfig, kind_of
from pipeline.published_sets.find import find_sets, looked_for


class Slurm(Strict):
    """How this cluster is asked for machines; amounts are those of one training process."""

    partition: str | None = None
    """Partition of jobs; null: the cluster's default."""
    cpu_partition: str | None = None
    """Partition of jobs that need no GPU, such as preparing data; null: the same."""
    account: str | None = None
    """Account that jobs are charged to; null: the cluster's default."""
    nodes: int = Field(1, ge=1, description="the most nodes that one run may take")
    gres: str | None = Field(
        "gpu", pattern=r"^[\w-]+(:[\w.-]+)?$", description="what a process needs one of: gpu, gpu:a100"
    )
    cpus: int = Field(8, ge=1)
    """CPU cores of a training process; at least `threads` + `workers`."""
    memory_gb: int = Field(32, ge=1)
    """Memory of a training process, in GB."""
    hours: float = Field(24, gt=0, le=8760)
    """Time limit of a job, such as 24 or 0.5; a longer run continues in the next job."""
    warning_s: int = Field(
        120, ge=1, description="how long before the time limit a job is told to write its checkpoint"
    )
    poll_s: float = Field(30, gt=0, description="seconds between two looks at the queue, for all jobs together")
    setup: list[str] = Field(
        default_factory=list, description="shell lines before a training job, such as module load cuda"
    )
    options: dict[str, str] = Field(default_factory=dict, description="more options of sbatch, such as qos: long")


class Site(Strict):
    """Where data lies and what the hardware is."""

    data: dict[str, Path] = Field(default_factory=dict)
    """Folder of each data set, by its name."""
    data_root: Path | None = Field(
        None,
        description="folder in which public data sets are found by their usual names and layouts, such as "
        "tiny-imagenet-200; `data` wins; `doctor` prints what was found",
    )
    cache: Path | None = Field(
        None,
        description="folder to which `prepare` writes decoded images, from which training reads them; for training "
        "they are shrunk to 8/7 of what a model sees, and crops are cut from that; a machine whose folder lacks them "
        "does so each time; evaluations read them where the pixels that they see are the same; null: files are decoded "
        "each time",
    )
    weights: str | None = Field(
        None,
        description="folder of the weight files that an `init` of `file:name` names; else `weights` in the project",
    )
    lpips: Path | None = Field(
        None, description="file of AlexNet's weights, for the metric LPIPS; a relative one starts at `weights`"
    )
    locks: Path | None = Field(
        None,
        description="shared folder of the lock files of this project, where those in results do not hold on other "
        "nodes, as `doctor` finds out; null: next to what they lock",
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where training and evaluations compute; auto: on a GPU if there is one."""
    gpus: list[NonNegativeInt] | None = Field(
        None,
        min_length=1,
        description="GPUs of this machine that jobs may use, by their numbers in nvidia-smi; null: all. "
        "CUDA_VISIBLE_DEVICES restricts both; SLURM hands them out by itself",
    )
    runs_per_gpu: int = Field(1, ge=1, description="runs and evaluations that share one of these GPUs at a time")
    processes: int = Field(1, ge=1, description="the most training processes of a run on one node, one per GPU")
    workers: int = Field(0, ge=0)
    """Loader workers of each training process."""
    threads: int = Field(1, ge=1, description="CPU threads of a training process")
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on a GPU that has it, fp32 elsewhere."""
    views: Literal["auto", "host", "device"] = Field(
        "auto",
        description="where images are cut, resized, mirrored and coloured, with the same draws: in loader workers, "
        "or in whole batches on the device; auto: on a GPU",
    )
    compile: bool = False
    """Whether training steps are compiled with torch.compile."""
    compiled: str | None = Field(
        None,
        description="folder where compiled code is kept for the next run, shared by all machines; else "
        "results/compiled in the project; TORCHINDUCTOR_CACHE_DIR wins",
    )
    graphs: Literal["auto", "on", "off"] = Field(
        "auto",
        description="capture training steps as CUDA graphs, so that small models do not wait for the CPU; auto: on "
        "GPUs of one node, where compile is true",
    )
    recompute: bool = Field(
        False, description="compute activations twice instead of keeping them: less memory, a third more time"
    )
    checkpoint_s: float = Field(300, ge=0, description="seconds between checkpoints")
    tracking_uri: str | None = Field(
        None, description="MLflow server; MLFLOW_TRACKING_URI wins; else SQLite in results"
    )
    slurm: Slurm | None = None
    """How jobs are submitted to SLURM; null: jobs run on this machine."""

    @property
    def cluster(self) -> Slurm:
        """The cluster's part, on a site that has one."""
        assert self.slurm is not None
        return self.slurm


def choose_site(name: str | None) -> Site:
    """Load the named site, here and in every process that this one starts."""
    if name:
        os.environ["PATCHWORK_SITE"] = name
    return load_site()


def load_site() -> Site:
    """The site that PATCHWORK_SITE names, else `local`, with the sets that are found below its data root.

    Relative folders start at the repository.
    """
    path = site_path()
    if not path.is_file():
        known = f"; {nearest(path.stem, names(path.parent))}" if path.parent == CONFIGS / "site" else ""
        raise ConfigError(
            f"{shown(path)}: no such file{known}; the site is named by --site, by `--config site=...` of snakemake, or "
            "by the environment variable PATCHWORK_SITE"
        )
    site = parse_file(Site, path)
    cache, locks, root = (_absolute(folder) if folder else None for folder in (site.cache, site.locks, site.data_root))
    folders = {**(find_sets(root) if root else {}), **{key: _absolute(folder) for key, folder in site.data.items()}}
    if locks:  # for all locks of this process, and of those that it starts
        os.environ[LOCKS] = str(locks)
    return site.model_copy(update={"data": folders, "data_root": root, "cache": cache, "locks": locks})


def site_path() -> Path:
    """The file of the chosen site; a name that ends in .yaml is the path of one that lies anywhere."""
    name = os.environ.get("PATCHWORK_SITE", "local")
    return Path(name) if name.endswith(".yaml") else CONFIGS / "site" / f"{name}.yaml"


def _absolute(folder: Path) -> Path:
    return CONFIGS.parent / Path(os.path.expandvars(folder)).expanduser()


def data_folder(site: Site, data: BaseDataConfig) -> Path:
    """The folder of a data set on this site, or an error that says where to name it."""
    folder = named_folder(site, data)
    if folder is None:
        raise DataError(
            f"data set {data.name!r} has no folder on this site; expected `data: {{{data.folder_name}: /path}}` in "
            "configs/site/<site>.yaml, where PATCHWORK_SITE names the site (default: local)"
            f"{_looked_for(site, data)}"
        )
    return folder


def _looked_for(site: Site, data: BaseDataConfig) -> str:
    """Lines on where a public set was looked for, and how to get one; empty for a set that has neither."""
    looked, origin = looked_for(site.data_root, data.folder_name), kind_of(data).origin()
    return "".join(f"\n{line}" for line in (looked, f"to get it: {origin}" if origin else "") if line)


def named_folder(site: Site, data: BaseDataConfig) -> Path | None:
    """The folder that the site names, or the one that is part of this project; None without either."""
    return site.data.get(data.folder_name) or kind_of(data).default_folder()


def weights_path(site: Site, init: str) -> Path:
    """The file that `file:name` or `file:/path/name` means on this site."""
    name = init.removeprefix(FILE)
    if name in ("", init):
        raise ConfigError(f"init {init!r} names no file; expected file:name.pth or file:/path/name.pth")
    folder = Path(os.path.expandvars(site.weights or "weights")).expanduser()
    return CONFIGS.parent / folder / Path(name).expanduser()


def site_file(site: Site, key: str) -> Path | None:
    """The file that a key of the site names, such as `lpips`; a relative one starts at its `weights`."""
    name = getattr(site, key)
    return weights_path(site, f"{FILE}{os.path.expandvars(name)}") if name else None
