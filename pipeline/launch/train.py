"""What `train` does: bring one run to its end, in this process, in several on this machine, or through SLURM."""

import logging
import os
from pathlib import Path
from typing import Any

import yaml

from pipeline.core.config import Layers, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.core.files import holder_of, is_held, require_space, write_text
from pipeline.engine.inputs import find_inputs
from pipeline.engine.signals import CONTINUE_ME, STOP, Requeue
from pipeline.launch.gpus import hold_gpus, keep_inherited_lock
from pipeline.launch.local import is_placed, run_processes, train_here
from pipeline.launch.resources import Shape, shape_of
from pipeline.launch.slurm import train_on_cluster
from pipeline.results import RunFolder, ScaleFolder, results_of
from pipeline.site import Site, load_site

log = logging.getLogger(__name__)

LOOK_S = 0.5  # between two looks whether a run is still being trained


def train(scale: str, run: str | None = None, config: Path | None = None) -> int:
    """Train a run of the graph, or the one that a file describes, or continue it; returns the exit code."""
    stop = STOP.listen()  # before torch is imported, which takes seconds
    site, (name, content) = load_site(), _chosen_run(scale, run, config)
    if not content.get("train", True):
        raise ConfigError(f"{name} is a weight file that is evaluated without training; there is nothing to train")
    paths, optim = results_of(scale).run(name), content["optim"]
    require_space(paths.folder, 0, "training with its logs")
    if is_placed():
        keep_inherited_lock()
        return train_here(content, paths, site, stop)
    inputs = find_inputs(paths, site, content["data"]["name"], content["init"])
    shape, code = shape_of(optim["global_batch"] // optim["micro_batch"], site), 0
    if paths.is_finished(inputs):
        log.info("%s is finished already", name)
    elif site.slurm:
        code = train_on_cluster(paths, site, shape, _submitted(paths, content), inputs, stop)
    else:
        again = ["train", "--scale", scale, *(["--run", run] if run else ["--config", str(config)])]
        code = _train_on_this_machine(content, paths, site, shape, again)
    if code == 0:
        paths.publish()
    return code


def _train_on_this_machine(
    content: dict[str, Any], paths: RunFolder, site: Site, shape: Shape, command: list[str]
) -> int:
    """In this process or in several, on GPUs of their own where the site has any."""
    job_log = ScaleFolder(paths.results).log("train_run", paths.name)
    try:
        _wait_for_trainer(paths)
        with hold_gpus(site, shape.processes, job_log, STOP) as slots:
            if shape.processes > 1:
                return run_processes(shape.processes, command, slots)
            return train_here(content, paths, site, STOP)
    except Requeue as request:
        log.info("%s; the same command continues", request)
        return CONTINUE_ME


def _wait_for_trainer(paths: RunFolder) -> None:
    """Wait for a training run that outlived the command that started it, before a GPU is taken that others can use."""

    def tell() -> None:
        log.info("%s is working on %s; waiting for it", holder_of(paths.lock), paths.name)

    if not STOP.wait_for(lambda: not is_held(paths.lock), LOOK_S, tell):
        raise Requeue(f"{STOP.why} while {holder_of(paths.lock)} worked on {paths.name}")


def _chosen_run(scale: str, run: str | None, config: Path | None) -> tuple[str, dict[str, Any]]:
    """Name and config. A run of the graph needs no torch: hundreds of launchers may wait on one machine."""
    if run:
        from pipeline.study.resolve.graph import load_for_run

        return run, load_for_run(scale, run).run(run).config
    from pipeline.engine.run import parse_run

    assert config is not None  # the command line asks for one of both
    found = parse_run(Layers((str(config), read_yaml(config))))
    return found.name, found.model_dump(mode="json")


def _submitted(paths: RunFolder, content: dict[str, Any]) -> str:
    """Keep the config for a process elsewhere and later; returns the site, as any folder and environment knows it."""
    write_text(paths.submitted, yaml.safe_dump(content, sort_keys=False))
    site = os.environ.get("PATCHWORK_SITE", "local")
    return str(Path(site).absolute()) if site.endswith(".yaml") else site
