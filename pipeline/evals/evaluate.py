"""Compute evaluations in one process. Each writes its own folder when it is done: what was finished is not repeated."""

import io
import logging
import math
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.core.code import code_of_evaluation
from pipeline.core.errors import CheckpointError, DataError
from pipeline.core.files import digest, held_in_turn, remove, write_atomic
from pipeline.core.provenance import provenance
from pipeline.core.registry import EVALS
from pipeline.data.kind import BaseDataConfig
from pipeline.data.store.manifest import read_manifest
from pipeline.engine.compute.precision import precision_of, without_tf32
from pipeline.engine.loop import build_method
from pipeline.engine.parallel.distributed import World, device_of
from pipeline.engine.run import RunConfig
from pipeline.engine.train import device_name, load_method
from pipeline.evals.base import EvalConfig, Evaluation, Outcome, Subject
from pipeline.evals.parts import Parts, key_of
from pipeline.methods.base import Method
from pipeline.models.weights import load_encoder
from pipeline.results import PER_IMAGE, RESULT, EvalFolder, ScaleFolder
from pipeline.results.records import EvalInputs, EvalJobRecord, EvalResult, write_record, written_errors
from pipeline.site import Site, site_file, weights_path

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedEvaluation:
    """An evaluation as the graph names it."""

    name: str
    fragment: str
    cfg: EvalConfig
    subjects: Mapping[str, RunConfig]
    data: Mapping[str, BaseDataConfig]


@dataclass
class EvalContext:
    """Where evaluations are computed; subjects are loaded once and shared."""

    results: ScaleFolder
    site: Site
    world: World
    loaded: dict[str, Subject] = field(default_factory=dict)
    digests: dict[str, str | None] = field(default_factory=dict)

    def subject(self, run: RunConfig) -> Subject:
        if run.name not in self.loaded:
            method = load_method(run, self.results.run(run.name), self.world) if run.train else _from_file(self, run)
            self.loaded[run.name] = Subject(run, method)
        return self.loaded[run.name]

    def weights(self, run: RunConfig) -> str | None:
        """SHA-256 of what a subject's encoder is, without loading it; a large file is read once for all evaluations.

        None for a weight file that is not on this machine.
        """
        if run.name not in self.digests:
            self.digests[run.name] = self._weights(run)
        return self.digests[run.name]

    def _weights(self, run: RunConfig) -> str | None:
        folder = self.results.run(run.name)
        if not run.train:
            return digest(weights_path(self.site, run.init or ""))
        trained = folder.trained()
        data = read_manifest(folder.manifest(run.data.name)).fingerprint
        if trained.inputs.data != data:
            change = trained.inputs.model_copy(update={"data": data}).change_since(trained.inputs)
            raise CheckpointError(f"{change} since run {run.name} was trained; train it again before you evaluate it")
        return trained.files[folder.encoder.name]


def evaluate_job(job: str, planned: Iterable[PlannedEvaluation], results: ScaleFolder, site: Site) -> None:
    """Every evaluation of a job; then the file that says so."""
    torch.set_num_threads(site.threads)
    context = EvalContext(results, site, World(0, 1, device_of(site.device)))
    written = {}
    for each in planned:
        folder = results.evaluation(each.name)
        evaluate_one(each, folder, context)
        written[each.name] = digest(folder.result) or ""
    write_record(results.eval_job(job), EvalJobRecord(results=written))


def evaluate_one(planned: PlannedEvaluation, folder: EvalFolder, context: EvalContext) -> EvalResult:
    """One evaluation, unless it is finished for the same weights and data, or another process finishes it now."""
    with held_in_turn(folder.lock, planned.name):
        inputs = _inputs(planned, context)
        if finished := folder.finished(inputs):
            log.info("%s is finished already", planned.name)
            return finished
        return _compute(planned, folder, context, inputs)


def _compute(planned: PlannedEvaluation, folder: EvalFolder, context: EvalContext, inputs: EvalInputs) -> EvalResult:
    remove(folder.result)  # so that a process that is killed here leaves nothing that looks finished
    started, code = time.monotonic(), _code(planned)  # as it is before it computes
    parts = Parts(folder.parts, key_of(inputs.model_dump(), planned.cfg.science()))
    evaluation: Evaluation = EVALS.get(planned.cfg.name)(
        planned.cfg, planned.data, context.results, context.site, context.world, parts
    )
    subjects = {role: context.subject(run) for role, run in planned.subjects.items()}
    site_precision = precision_of(context.site, context.world.device)
    # What states a precision of its own has all bits of it.
    with without_tf32() if evaluation.precision_name() != site_precision else nullcontext():
        outcome = evaluation.evaluate(**subjects)
    _check(planned, outcome)
    files = _write_files(folder, outcome)
    errors, odd = written_errors(outcome.errors)
    facts = _facts(planned, evaluation, code, time.monotonic() - started)
    result = EvalResult(
        evaluation=planned.fragment,
        subjects={role: run.name for role, run in planned.subjects.items()},
        data={role: data.name for role, data in planned.data.items()},
        metrics={**outcome.metrics, **dict.fromkeys(outcome.reasons)},
        reasons={**outcome.reasons, **odd},
        errors=errors,
        without_error={name: why for name in outcome.metrics if (why := evaluation.reason_without_error(name))},
        count=outcome.count or None,
        images=outcome.images,
        other_images=outcome.other_images,
        per_image=[name for name in outcome.per_image if name in outcome.metrics],
        files=files,
        inputs=inputs,
        provenance=facts,
    )
    write_record(folder.result, result)
    parts.forget()
    log.info("%s: %s", planned.name, _in_words(outcome))
    return result


def _inputs(planned: PlannedEvaluation, context: EvalContext) -> EvalInputs:
    """What it would be computed from now, without files that are not on this machine: what is finished needs none."""
    sets = [*planned.data.values(), *(run.data for run in planned.subjects.values())]
    names = dict.fromkeys(data.name for data in sets)
    files = {key: site_file(context.site, key) for key in EVALS.get(planned.cfg.name).site_files}
    return EvalInputs(
        weights={role: found for role, run in planned.subjects.items() if (found := context.weights(run))},
        data={name: read_manifest(context.results.manifest(name)).fingerprint for name in names},
        site_files={key: digest(path) or "" for key, path in files.items() if path and path.exists()},
    )


def _check(planned: PlannedEvaluation, outcome: Outcome) -> None:
    """An evaluation returns what its config promised, and what can be kept: the tables count on it."""
    if problem := _cannot_be_kept(outcome):
        raise DataError(f"evaluation {planned.fragment} returned {problem}; fix its compute")
    promised = {*planned.cfg.metrics, *planned.cfg.files}
    missing = sorted(promised - outcome.metrics.keys() - outcome.reasons.keys() - outcome.files.keys())
    if missing:
        raise DataError(
            f"evaluation {planned.fragment} returned no {', '.join(missing)}, which `metrics` or `files` of its config "
            "name; fix its compute, or give the reason in `reasons`"
        )


def _cannot_be_kept(outcome: Any) -> str:
    """What is wrong with an outcome, whatever it should have held."""
    if not isinstance(outcome, Outcome):
        return f"{type(outcome).__name__}; expected an Outcome"
    odd = [f"{name} {value}" for name, value in outcome.metrics.items() if not math.isfinite(value)]
    if odd:
        return f"{', '.join(odd)}; expected numbers, or the reason why there is none in `reasons`"
    for name, content in outcome.files.items():
        if Path(name).name != name or name in (RESULT, PER_IMAGE):
            return f"the file {name!r}; expected a name without folders, and not {RESULT} or {PER_IMAGE}"
        if not isinstance(content, bytes):
            return f"{name!r} as {type(content).__name__}; expected bytes"
    return ""


def _write_files(folder: EvalFolder, outcome: Outcome) -> dict[str, str]:
    """The pictures and arrays, and the values per image; returns the digest of each."""
    files = dict(outcome.files)
    if outcome.per_image:
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {name: value.astype(np.float32) for name, value in outcome.per_image.items()}
        np.savez(buffer, **arrays)
        files[folder.per_image.name] = buffer.getvalue()
    for name, content in files.items():
        write_atomic(folder.folder / name, content)
    return {name: digest(folder.folder / name) or "" for name in files}


def _code(planned: PlannedEvaluation) -> str:
    subjects = [run.named for run in planned.subjects.values()]
    return code_of_evaluation(planned.cfg.name, subjects, [data.kind for data in planned.data.values()])


def _facts(planned: PlannedEvaluation, evaluation: Evaluation, code: str, wall_s: float) -> dict[str, Any]:
    methods = {role: run.method for role, run in planned.subjects.items()}
    return provenance(
        code=code,
        eval_fingerprint=planned.name.rpartition("-")[2],
        seed=planned.cfg.seed,
        fidelity=", ".join(dict.fromkeys(method.fidelity for method in methods.values())),
        **({"eval_fidelity": fidelity} if (fidelity := getattr(planned.cfg, "fidelity", None)) else {}),
        device=device_name(evaluation.world.device),
        precision=evaluation.precision_name(),
        wall_s=round(wall_s, 1),
    )


def _from_file(context: EvalContext, run: RunConfig) -> Method:
    """A weight file as it is: a metric of a model with missing weights would mean nothing."""
    assert run.init is not None
    method = build_method(run)
    report = load_encoder(method.encoder, weights_path(context.site, run.init), run.model.pos_resampling)
    if report.fresh:
        raise CheckpointError(
            f"{run.init} has no {', '.join(report.fresh)}, which {run.model.arch} on {run.data.name} needs; "
            "expected all weights, because it is evaluated without training"
        )
    method.begin()
    log.info("%s", report.summary())
    return method.to(context.world.device).eval()


def _in_words(outcome: Outcome) -> str:
    numbers = [f"{name} {value:.4g}" for name, value in outcome.metrics.items()]
    return ", ".join([*numbers[:6], *outcome.files]) or "done"
