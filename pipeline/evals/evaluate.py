"""Evaluate a finished run: every evaluation of one group, in one process, into one JSON."""

import time

import torch

from pipeline.data.manifest import read_manifest
from pipeline.engine.distributed import World, device_of
from pipeline.engine.precision import precision_of
from pipeline.engine.run import RunConfig
from pipeline.engine.train import device_name, load_method
from pipeline.errors import CheckpointError
from pipeline.evals.base import EvalConfig
from pipeline.files import write_json
from pipeline.provenance import provenance
from pipeline.records import Inputs
from pipeline.registry import EVALS, METHODS
from pipeline.results import RunFolder
from pipeline.site import Site


def evaluate_run(run: RunConfig, group: str, evals: dict[str, EvalConfig], paths: RunFolder, site: Site) -> None:
    """Write `evals/<group>.json`: {evaluation: {metrics, provenance}}."""
    trained = paths.trained()
    data = read_manifest(paths.manifest(run.data.name)).fingerprint
    if trained.inputs.data != data:
        change = Inputs(data=data, init=trained.inputs.init).change_since(trained.inputs)
        raise CheckpointError(f"{change} since run {run.name} was trained; train it again, then evaluate it")
    torch.set_num_threads(site.threads)
    world = World(0, 1, device_of(site.device))
    method = load_method(run, paths, world)
    results = {}
    for key, cfg in evals.items():
        started = time.monotonic()
        metrics = EVALS.get(cfg.name)(cfg, run, paths, site, world).compute(method)
        results[key] = {
            "run": run.name,
            "metrics": metrics,
            "provenance": provenance(
                code=EVALS.code(cfg.name),
                method_code=METHODS.code(run.method.name),
                config_fingerprint=run.fingerprint,
                eval_fingerprint=cfg.fingerprint,
                data_fingerprint=data,
                seed=cfg.seed,
                fidelity=run.method.fidelity,
                device=device_name(world.device),
                precision=precision_of(site, world.device),
                wall_s=round(time.monotonic() - started, 1),
                trained_at_commit=trained.provenance["commit"],
                weights=trained.files[paths.encoder.name],
            ),
        }
    write_json(paths.evaluation(group), results)
