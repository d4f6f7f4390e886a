"""Evaluate a finished run: every evaluation of one group, in one process, into one JSON."""

import time

import torch

from pipeline.config import fingerprint
from pipeline.data.manifest import read_manifest
from pipeline.engine.distributed import World
from pipeline.engine.run import RunConfig
from pipeline.engine.train import device_name, load_method
from pipeline.errors import CheckpointError
from pipeline.evals.base import EvalConfig
from pipeline.files import write_json
from pipeline.provenance import provenance
from pipeline.records import Measured, read_record
from pipeline.registry import EVALS, METHODS
from pipeline.results import RunFolder
from pipeline.site import Site


def evaluate_run(run: RunConfig, group: str, evals: dict[str, EvalConfig], paths: RunFolder, site: Site) -> None:
    """Write `evals/<group>.json`: {evaluation: {metrics, provenance}}."""
    if not paths.done.exists():
        raise CheckpointError(f"run {run.name} is not finished ({paths.done} is not there); train it first")
    torch.set_num_threads(site.threads)
    has_gpu = torch.cuda.is_available() if site.device == "auto" else site.device == "cuda"
    world = World(0, 1, torch.device("cuda" if has_gpu else "cpu"))
    method = load_method(run, paths, world)
    trained = read_record(paths.done, Measured)
    results = {}
    for key, cfg in evals.items():
        started = time.monotonic()
        metrics = EVALS.get(cfg.name)(cfg, run, paths, site, world).compute(method)
        results[key] = {
            "run": run.name,
            "metrics": metrics,
            "provenance": provenance(
                config_fingerprint=run.fingerprint,
                code=EVALS.code(cfg.name),
                method_code=METHODS.code(run.method.name),
                eval_fingerprint=fingerprint({"name": cfg.name, **cfg.model_dump(mode="json", exclude_defaults=True)}),
                data_fingerprint=read_manifest(paths.manifest(run.data.name)).fingerprint,
                seed=cfg.seed,
                fidelity=run.method.fidelity,
                device=device_name(world.device),
                wall_s=round(time.monotonic() - started, 1),
                trained_at_commit=trained.provenance["commit"],
                weights=trained.files.get(paths.encoder.name),
            ),
        }
    write_json(paths.evaluation(group), results)
