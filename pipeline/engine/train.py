"""From a resolved run to its files: train, export the weights, write `train.json` last."""

import logging
import math
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress

import torch
from pydantic import ValidationError
from safetensors.torch import save
from torch import Tensor

from pipeline.core.code import code_of_run
from pipeline.core.config import Strict
from pipeline.core.errors import LaunchError
from pipeline.core.files import LockFile, digest, holder_of, is_wanted, remove, write_atomic, write_json, write_text
from pipeline.core.provenance import commit, provenance
from pipeline.engine.checkpoint import Checkpoints
from pipeline.engine.compute.compiling import num_graphs
from pipeline.engine.inputs import find_inputs
from pipeline.engine.loop import Trainer, build_method
from pipeline.engine.parallel.distributed import World, join_world, leave_world
from pipeline.engine.run import RunConfig, resolved_yaml
from pipeline.engine.signals import Requeue, StopRequest
from pipeline.methods.base import Method
from pipeline.models.weights import fill_weights, grid_record, read_weights
from pipeline.results import RunFolder
from pipeline.results.records import Inputs, TrainRecord, write_record, written_errors
from pipeline.site import Site, data_folder
from pipeline.tasks.metrics import MetricValues

log = logging.getLogger(__name__)

POLL_S = 2.0  # between two looks of processes that wait for the run's lock


def train_run(run: RunConfig, paths: RunFolder, site: Site, stop: StopRequest, takeover_s: float | None = None) -> None:
    """Train, or continue, one run on this process (and its peers, if it has any).

    While another process works on the run, this one waits for it. With `takeover_s` it asks the other to write its
    checkpoint and give way, and fails if that takes longer.
    """
    torch.set_num_threads(site.threads)
    world = join_world(site.device)
    try:
        with _sole_trainer(paths, world, stop, takeover_s):
            inputs = find_inputs(paths, site, run.data.name, run.init)
            if world.any(world.is_main and paths.is_finished(inputs)):
                log.info("%s is finished already", run.name)
                return
            if world.is_main:
                _set_aside_other_inputs(paths, inputs)
            world.barrier()
            trainer = Trainer(run, paths, data_folder(site, run.data), site, world, stop, inputs)
            if world.is_main:
                _begin(run, paths, inputs)
            first_step, code = trainer.step, code_of_run(run.named)  # as it is before it trains
            found = trainer.fit()
            if world.is_main:
                export(trainer.exported, paths)
                record = _record(trainer, found, inputs, code, first_step)
                write_record(paths.finished, record)
            world.barrier()
    finally:
        leave_world(world)


@contextmanager
def _sole_trainer(paths: RunFolder, world: World, stop: StopRequest, takeover_s: float | None) -> Iterator[None]:
    """Hold the run's lock, in the main process.

    All processes wait for it together: they ask each other every few seconds, so that no collective operation takes
    longer than that, and all of them leave when one is asked to stop or the time to take over has passed.
    """
    deadline = time.monotonic() + (math.inf if takeover_s is None else takeover_s)
    wait_s = 0.0
    with closing(LockFile(paths.lock)) if world.is_main else nullcontext() as lock:
        while not world.any(lock is not None and lock.take(wait_s, is_asking=takeover_s is not None)):
            holder = holder_of(paths.lock)
            if world.any(stop.is_raised):
                raise Requeue(f"{stop.why or 'a peer was asked to stop'} while {holder} worked on {paths.name}")
            if world.any(time.monotonic() >= deadline):
                raise LaunchError(
                    f"{holder} is working on {paths.name} (it holds {paths.lock}) and did not stop within "
                    f"{takeover_s:g} s; stop it, then start again"
                )
            if not wait_s:
                log.info("%s is working on %s; waiting for it", holder, paths.name)
            wait_s = POLL_S
        stop.also_when("another job has taken over", lambda: is_wanted(paths.lock))
        yield


class Identity(Strict):
    """One training of a run: the same through every interruption, another one if the inputs have changed."""

    identity: str
    inputs: Inputs


def _set_aside_other_inputs(paths: RunFolder, inputs: Inputs) -> None:
    """Start again from the beginning if the run was trained from other inputs so far."""
    known = _known_identity(paths)
    if known and known.inputs != inputs:
        change = inputs.change_since(known.inputs)
        log.warning("%s since this run was last trained: it is trained again from the beginning", change)
        Checkpoints(paths.state).clear()
        paths.unpublish()
        remove(paths.started)
        remove(paths.identity)  # last: a process that is killed before this does it all again


def _begin(run: RunConfig, paths: RunFolder, inputs: Inputs) -> None:
    """Write down what is being trained; from here on the run is not finished."""
    paths.unpublish()
    known = _known_identity(paths) or Identity(identity=secrets.token_hex(8), inputs=inputs)
    write_json(paths.identity, known.model_dump())
    write_text(paths.config, resolved_yaml(run))
    write_json(paths.started, {"identity": known.identity, "commit": commit(), "steps": run.total_steps})


def _known_identity(paths: RunFolder) -> Identity | None:
    with suppress(FileNotFoundError, ValidationError):  # a damaged one is as good as none
        return Identity.model_validate_json(paths.identity.read_bytes())
    return None


def export(method: Method, paths: RunFolder) -> None:
    """encoder.safetensors has plain timm keys; heads.safetensors has whatever else the method learned."""
    encoder = {name: value.contiguous() for name, value in method.export().state_dict().items()}
    heads = {name: v.contiguous() for name, v in method.state_dict().items() if not name.startswith("encoder.")}
    write_atomic(paths.encoder, save(encoder, grid_record(method.encoder)))
    write_atomic(paths.heads, save(heads))


def load_method(run: RunConfig, paths: RunFolder, world: World) -> Method:
    """The trained method of a finished run, in evaluation mode; its weights are verified first."""
    encoder, heads = (read_weights(paths.verified(path)) for path in (paths.encoder, paths.heads))
    weights: dict[str, Tensor] = {f"encoder.{name}": value for name, value in encoder.items()} | heads
    method = build_method(run)
    fill_weights(method, weights, paths.folder)
    return method.to(world.device).eval()


def _record(trainer: Trainer, found: MetricValues, inputs: Inputs, code: str, first_step: int) -> TrainRecord:
    run, world = trainer.run, trainer.world
    num_params = sum(parameter.numel() for parameter in trainer.method.export().parameters())
    metrics = {"params_m": num_params / 1e6}
    metrics |= {f"val_{name}": value for name, value in found.metrics.items()}
    metrics |= {f"best_val_{name}": value for name, value in trainer.best.items()}
    known = {f"val_{name}": value for name, value in found.errors.items() if math.isfinite(found.metrics[name])}
    errors, odd = written_errors({"params_m": 0.0} | known)
    paths = trainer.paths
    made = paths.encoder, paths.heads, paths.metrics, paths.config, paths.started
    kept = {"kept_step": trainer.best_weights.step} if trainer.best_weights else {}
    cached = {"shrunk_to": trainer.shrunk_to} if trainer.shrunk_to else {}
    return TrainRecord(
        run=run.name,
        metrics={name: value if math.isfinite(value) else None for name, value in metrics.items()},
        reasons=_reasons(trainer, found) | odd,
        errors=errors,
        count=found.count or None,
        files={path.name: digest(path) for path in made},
        inputs=inputs,
        provenance=provenance(
            code=code,
            config_fingerprint=run.fingerprint,
            data_fingerprint=inputs.data,
            seed=run.seed,
            fidelity=run.method.fidelity,
            init=trainer.init_report.as_dict() if trainer.init_report else None,
            device=device_name(world.device),
            processes=world.size,
            precision=trainer.precision,
            graphs=num_graphs() if trainer.site.compile else 0,
            steps=trainer.step,
            resumed_at_step=first_step,
            wall_s=round(trainer.wall_s, 1),
            **kept,
            **trainer.stopped_early,
            **cached,
        ),
    )


def _reasons(trainer: Trainer, found: MetricValues) -> dict[str, str]:
    """Why metrics are null: neither JSON nor a table has a place for what is not finite."""
    step = trainer.best_weights.step if trainer.best_weights else trainer.step
    last = {f"val_{name}": f"validation {name} is {value} at step {step}" for name, value in _odd(found.metrics)}
    return last | {f"best_val_{name}": f"the best validation {name} is {value}" for name, value in _odd(trainer.best)}


def _odd(metrics: dict[str, float]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in metrics.items() if not math.isfinite(value)]


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
