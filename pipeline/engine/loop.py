"""The training loop: one for every task and method, one process or many, interrupted anywhere.

Read `Trainer.fit`; everything else prepares it or is called from it.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from tqdm import tqdm

from pipeline.core.config import FILE
from pipeline.core.errors import CheckpointError, NumericsError
from pipeline.core.registry import TASKS
from pipeline.core.seeds import seed_everything
from pipeline.core.trees import Tree, batch_size
from pipeline.engine.batches import open_batches, side_of_crops
from pipeline.engine.best_validation import BestWeights, Patience
from pipeline.engine.checkpoint import Checkpoints
from pipeline.engine.compute.compiling import compile_step, num_graphs, prepare_to_compile
from pipeline.engine.compute.graphs import recorder_for
from pipeline.engine.compute.precision import precision_of
from pipeline.engine.compute.recompute import recompute_blocks
from pipeline.engine.meters import Meters, MetricsFile, Stopwatch
from pipeline.engine.optim import build_optimizer, build_schedule, make_capturable, rates_of
from pipeline.engine.parallel.batchnorm import RunningStatistics, synchronised
from pipeline.engine.parallel.distributed import World
from pipeline.engine.parallel.pauses import Pauses
from pipeline.engine.parallel.sync_timer import GradientSyncTimer
from pipeline.engine.protection import protect_gradients
from pipeline.engine.run import RunConfig, check_world
from pipeline.engine.signals import CutShort, Requeue, StopRequest
from pipeline.engine.step import MicroStep, Update
from pipeline.engine.validate import measure_set
from pipeline.methods.base import METHODS, Batch, Method, Output
from pipeline.models.weights import LoadReport, load_encoder
from pipeline.results import RunFolder
from pipeline.results.records import Inputs
from pipeline.site import Site, weights_path
from pipeline.tasks.base import Task
from pipeline.tasks.metrics import MetricValues

log = logging.getLogger(__name__)

SHRUNK_TO = "shrunk_to"  # among the inputs in a checkpoint: the side of the images that crops are cut from


def build_method(run: RunConfig) -> Method:
    """The method around a fresh encoder; weights are a function of the seed."""
    seed_everything("weights", run.seed)
    encoder = TASKS.get(run.task).build_encoder(run.method, run.model, run.data)
    return METHODS.get(run.method.name)(run.method, encoder)


class Trainer:
    """Everything one run needs, built once and restored from its last checkpoint."""

    def __init__(
        self,
        run: RunConfig,
        paths: RunFolder,
        data: Path,
        site: Site,
        world: World,
        stop: StopRequest,
        inputs: Inputs | None = None,
    ) -> None:
        self.started, self.earlier_s = time.monotonic(), 0.0
        self.run, self.paths, self.site, self.world, self.stop, self.inputs = run, paths, site, world, stop, inputs
        check_world(run, world.size)
        prepare_to_compile(site)
        self.precision = precision_of(site, world.device)
        self.method = build_method(run).to(world.device)
        self.init_report = self._start_from(run.init) if run.init else None
        self.method.begin()
        self.optimizer = build_optimizer(self.method, run.optim)
        self.schedule = build_schedule(self.optimizer, run.optim, run.steps_per_epoch)
        self.ema = _moving_average(self.method, run.optim.ema_decay)
        self.task: Task = TASKS.get(run.task)(run.data, world.device, run.optim.smoothing)
        self.recorder = recorder_for(site, self.method, world)
        self.statistics = RunningStatistics(self.method.encoder, run.optim.num_micro, world)
        self.model = self._prepared_model()
        self.meters, self.sync_timer = Meters(world), GradientSyncTimer(world)
        share = run.optim.num_micro // world.size
        self.micro_step = MicroStep(self.method, self.model, self.precision, world.device, self.meters, share)
        self.update = Update(self.method, self.optimizer, run.optim, self.ema, self.meters)
        self.checkpoints, self.step = Checkpoints(paths.state), 0
        self.best: dict[str, float] = {}
        self.owes_validation = False  # that of its last step, within which it was stopped
        self.best_weights = BestWeights() if run.optim.keep == "best" else None
        self.patience = Patience(run.optim.patience)
        state = self._usable_checkpoint()
        # Decided when the run began, and the same in all processes.
        self.shrunk_to: int | None = world.gather(self._side(state))[0]
        self.batches = open_batches(run, site, world, self.task, data, self._index, self.shrunk_to)
        self.checkpoints.require_space(self._num_bytes())
        self._restore(state)

    def fit(self) -> MetricValues:
        """Train to the end, or until patience is over; returns the validation of the last or the best weights."""
        if self.owes_validation:
            self._validate()
        run, micros = self.run, iter(self.batches.from_step(self.step))
        stopwatch = Stopwatch()
        pauses = Pauses(self.world, self.stop, self.site.checkpoint_s, run.optim.log_every, self.step)
        bar = tqdm(total=run.total_steps, initial=self.step, unit="step", disable=None if self.world.is_main else True)
        while self.step < run.total_steps and not self.patience.is_over:
            self.schedule.step_update(self.step)
            loss = self.accumulate(micros, stopwatch)
            protect_gradients(self.method, run.optim.protection, "protection", run.seed, self.step)
            self._update_weights(loss)
            self.step += 1
            bar.update()
            if self._is_due(run.optim.log_every):
                self._log(stopwatch)
            if self._is_due(run.optim.validate_every * run.steps_per_epoch):
                self._validate()
            pause = pauses.after(self.step)
            if pause.must_save:
                self._save()
                pauses.saved()
            if pause.must_stop:
                self._leave()
        self._save()
        return self.best_weights.put_into(self.exported) if self.best_weights else self.last_validation

    def _leave(self) -> NoReturn:
        """On request, after a checkpoint."""
        self.world.barrier()  # nobody leaves before the checkpoint is written: that could end the others
        why = self.stop.why or "a peer was asked to stop"
        before = ", before its validation" if self.owes_validation else ""
        raise Requeue(f"{why}: checkpoint after step {self.step} of {self.run.total_steps}{before}")

    @property
    def exported(self) -> Method:
        """What is validated and exported: the method, or its moving average."""
        return self.ema.module if self.ema else self.method

    @property
    def stopped_early(self) -> dict[str, str]:
        """Where and why this run ended before its full length, for its record; empty if it did not."""
        if not self.patience.is_over or self.step >= self.run.total_steps:
            return {}
        (metric,) = self.best
        return self.patience.explain(self.step, self.run.total_steps, f"val_{metric}")

    @property
    def num_skips(self) -> Tensor:
        """Steps that were not finite, on the device."""
        return self.update.num_skips

    def accumulate(self, micros: Iterator[tuple[Tree, Tree]], stopwatch: Stopwatch) -> Tensor:
        """Forward and backward over this process's share of the global batch; returns the mean loss of them all."""
        share = range(self.world.rank, self.run.optim.num_micro, self.world.size)
        self.statistics.begin()
        for micro in share:
            since = time.perf_counter()
            inputs, targets = next(micros)
            stopwatch.fetched(batch_size(inputs), since)
            part = self.micro_step.first if micro == share[0] else self.micro_step.next
            with self._sync_gradients(micro == share[-1]):
                self.recorder.run(part, *self._prepare(inputs, targets, micro))
            self.statistics.add(micro)
            self.meters.count(self.micro_step.names, 1 / len(share))
        self.statistics.share()
        return self._reduce_gradients()

    def _reduce_gradients(self) -> Tensor:
        """Loss and gradients are those of the global batch; a mean over targets is divided by the number of them all.

        The loss is the same in all processes: one that is not finite must make all of them skip.
        """
        if self.recorder.replaces_ddp:
            with self.sync_timer.timed():
                self.world.average(self.micro_step.gradients())
        loss, num_targets = self.world.sum(self.micro_step.sums).unbind()
        if not self.micro_step.is_weighted:
            return loss / self.world.size
        # Gradients are means over processes already.
        factor = self.world.size / num_targets.float().clamp(min=1)
        for gradient in self.micro_step.gradients():
            gradient.mul_(factor)
        return loss * factor / self.world.size

    def _update_weights(self, loss: Tensor) -> None:
        rates = [rates_of(self.optimizer, self.world.device)] if self.recorder.reads_rates else []
        self.recorder.run(self.update, loss, *rates)
        self.recorder.updated()
        self.meters.count(["grad_norm"])

    def forward(self, inputs: Tree, targets: Tree, micro: int) -> Output:
        """The loss of one micro-batch."""
        return self.micro_step.forward(*self._prepare(inputs, targets, micro))

    def _prepare(self, inputs: Tree, targets: Tree, micro: int) -> tuple[Tree, Tree, dict[str, Tensor]]:
        """A micro-batch as the method sees it, and what it draws; every draw is seeded by (seed, step, micro)."""
        seed = seed_everything("step", self.run.seed, self.step, micro)
        batch = Batch(*self.task.train_batch(inputs, targets), torch.Generator().manual_seed(seed))
        return batch.inputs, batch.targets, self.method.draw(batch, self.step / self.run.total_steps)

    def _start_from(self, init: str) -> LoadReport:
        start = self.paths.sibling(init)
        path = weights_path(self.site, init) if init.startswith(FILE) else start.verified(start.encoder)
        report = load_encoder(self.method.encoder, path, self.run.model.pos_resampling)
        log.info("%s", report.summary())
        return report

    def _prepared_model(self) -> Any:
        model: nn.Module = self.method
        if self.site.recompute:
            recompute_blocks(self.method.encoder)
        if self.world.size > 1:
            model = synchronised(model)
        if self._has_ddp:
            model = nn.parallel.DistributedDataParallel(model, forward_sync_buffers=False)
        return compile_step(self.method, model) if self.site.compile else model

    def _side(self, state: dict[str, Any]) -> int | None:
        """The side of the images that crops of training are cut from, as a cache has them; none: as their files are.

        A run goes on with what it began with, whether a machine has the cache or not.
        """
        if state:
            known = (state["inputs"] or {}).get(SHRUNK_TO)
            return int(known) if known else None
        return side_of_crops(self.run, self.site, self._index)

    @property
    def _index(self) -> Path:
        """The folder of the manifest of its data set."""
        return self.paths.manifest(self.run.data.name).parent

    def _sync_gradients(self, is_last: bool) -> AbstractContextManager:
        return self.model.no_sync() if self._has_ddp and not is_last else nullcontext()

    @property
    def _has_ddp(self) -> bool:
        """It sends gradients from hooks within the backward pass, which a recording cannot hold."""
        return self.world.size > 1 and not self.recorder.replaces_ddp

    def _is_due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.run.total_steps

    def _log(self, stopwatch: Stopwatch) -> None:
        means = self.meters.read()
        num_skips = int(self.num_skips)
        synced = self.sync_timer.read(time.perf_counter() - stopwatch.start)
        if self.world.is_main:
            rate = self.optimizer.param_groups[-1]["lr"]
            self._append(loss=means.pop("loss"), lr=rate, skipped=num_skips, **means)
            graphs = {"graphs": num_graphs(), "recorded": self.recorder.num_recorded} if self.site.compile else {}
            self.timing.append(step=self.step, **stopwatch.read(self.world.size), **synced, **graphs)
        if num_skips > self.run.optim.max_skips:
            raise NumericsError(
                f"{num_skips} of {self.step} steps had a loss or gradient that is not finite, "
                f"{self.run.optim.max_skips} are tolerated; lower optim.base_lr or set optim.clip_norm. "
                f"Checkpoints are in {self.paths.state}"
            )

    def _validate(self) -> None:
        method = self.exported
        measure, batches, sizes = type(method).measure, self.batches.validation, self.batches.sizes
        place = self.world, self.precision
        try:
            found = measure_set(method, batches, self.task, *place, measure, sizes=sizes, stop=self.stop)
        except CutShort:  # it may take longer than there is time left
            self.owes_validation = True
            self._save()
            self._leave()
        self.owes_validation = False
        self.last_validation = replace(found, per_image={})  # as a checkpoint has it
        if primary := method.primary or self.task.primary:
            value = found.metrics[primary.name]
            is_better = primary.beats(value, self.best.get(primary.name))
            self.patience.count(is_better, self.step)
            if self.best_weights and is_better:
                self.best_weights.take(method, self.step, self.last_validation)
            self.best = {primary.name: primary.better(value, self.best.get(primary.name, value))}
        if self.world.is_main:
            self._append(
                **{f"val_{name}": value for name, value in found.metrics.items()}, **self.patience.as_metrics()
            )
            words = ", ".join(f"{name} {value:.4g}" for name, value in found.metrics.items())
            log.info("epoch %g: %s", self.step / self.run.steps_per_epoch, words)
            if self.stopped_early:
                log.info("stopped early %s: %s", *self.stopped_early.values())

    def _append(self, **values: float) -> None:
        self.metrics.append(step=self.step, epoch=round(self.step / self.run.steps_per_epoch, 4), **values)

    def _state(self, meters: dict[str, Any]) -> dict[str, Any]:
        return {
            "run": self.run.name,
            "inputs": {**self._known_inputs, **({SHRUNK_TO: str(self.shrunk_to)} if self.shrunk_to else {})} or None,
            "step": self.step,
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.state_dict() if self.ema else None,
            "meters": meters,
            "num_skips": self.num_skips,
            "best": self.best,
            "best_weights": self.best_weights.state_dict() if self.best_weights else None,
            "patience": self.patience.state_dict(),
            "last_validation": self.last_validation.metrics,
            "last_errors": self.last_validation.errors,
            "last_count": self.last_validation.count,
            "owes_validation": self.owes_validation,
            "metrics_bytes": self.metrics.sync(),
            "wall_s": self.wall_s,
        }

    @property
    def wall_s(self) -> float:
        """Seconds that this run has taken, in all the processes one after the other that worked on it."""
        return self.earlier_s + time.monotonic() - self.started

    def _num_bytes(self) -> int:
        """About the size of a checkpoint: the weights, two moments of each in AdamW, their average, the best ones."""
        num_bytes = sum(value.numel() * value.element_size() for value in self.method.state_dict().values())
        return num_bytes * (3 + bool(self.ema) + bool(self.best_weights))

    def _save(self) -> None:
        meters = self.meters.state_dict()  # of all processes
        if self.world.is_main:
            self.checkpoints.save(self.step, self._state(meters))

    def _usable_checkpoint(self) -> dict[str, Any]:
        """The newest one, if it is of this run and of these inputs."""
        state = self.checkpoints.latest() or {}
        if state and state["run"] != self.run.name:
            log.warning(
                "the checkpoint after step %d belongs to run %s and is ignored: %s starts from the beginning",
                *(state["step"], state["run"], self.run.name),
            )
            return {}
        known = {key: value for key, value in (state.get("inputs") or {}).items() if key != SHRUNK_TO}
        if state and known != self._known_inputs:
            log.warning("the checkpoint after step %d was made from other inputs and is ignored", state["step"])
            return {}
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        # The state of a run that begins is empty.
        self.last_validation = MetricValues(
            state.get("last_validation", {}), state.get("last_errors", {}), state.get("last_count", 0)
        )
        self.best = state.get("best", {})
        self.owes_validation = state.get("owes_validation", False)
        if state:
            log.info("resuming at step %d", state["step"])
            self.step = state["step"]
            self.method.load_state_dict(state["method"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.meters.load_state_dict(state["meters"])
            self.num_skips.copy_(state["num_skips"])
            self.earlier_s = state["wall_s"]
            if self.ema:
                self.ema.load_state_dict(state["ema"])
            if self.best_weights:
                self.best_weights.load_state_dict(state["best_weights"])
            self.patience.load_state_dict(state.get("patience", {}))
        make_capturable(self.optimizer, self.recorder.reads_rates)
        if len(steps := {*self.world.gather(self.step)}) > 1:
            raise CheckpointError(
                f"the processes found different checkpoints in {self.paths.state} (of steps "
                f"{', '.join(map(str, sorted(steps)))}); the shared file system lags: start again"
            )
        if self.world.is_main:
            self.metrics = MetricsFile(self.paths.metrics, state.get("metrics_bytes", 0))
            self.timing = MetricsFile(self.paths.timing, None if state else 0)

    @property
    def _known_inputs(self) -> dict[str, str | None]:
        return self.inputs.model_dump() if self.inputs else {}


def _moving_average(method: Method, decay: float | None) -> Any:
    if decay is None:
        return None
    from timm.utils import ModelEmaV3

    return ModelEmaV3(method, decay=decay)
