"""A training run on a SLURM cluster: submitted through submitit, watched, submitted again while there is a reason to.

The command that starts it may be killed and started again at any time: which job works on a run is kept beside its
checkpoints, and a job that was submitted without a trace there is found by its name. Two launchers of one run watch the
same job.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from pydantic import Field

from pipeline.core.config import CONFIGS, Strict, shown
from pipeline.core.errors import LaunchError
from pipeline.core.files import LockFile, explained, holder_of, write_json
from pipeline.engine.signals import CONTINUE_ME, StopRequest
from pipeline.launch.job import TrainJob, log_tail, read_outcome
from pipeline.launch.queue import Job, Queue
from pipeline.launch.resources import Shape, sbatch_options
from pipeline.results import RunFolder, ScaleFolder
from pipeline.results.records import Inputs
from pipeline.site import Site

log = logging.getLogger(__name__)

MAX_JOBS_WITHOUT_PROGRESS = 3  # jobs in a row that get no further than an earlier one
SBATCH_S = 10  # after this an interrupted sbatch has either registered its job or not
SCANCEL_S = 30  # all launchers cancel at the same time, so Ctrl-C takes no longer than this
LOOK_S = 0.5  # between two looks for the result and for Ctrl-C
# What sbatch says when the same submission may succeed later.
TRANSIENT_REFUSALS = (
    "contact slurm controller",
    "timed out",
    "refused",
    "temporarily",
    "maxsubmitjob",
    "transport endpoint",
)
UNINTERESTING_REASONS = {"None", "Priority", "Resources", "BeginTime"}


class JobRecord(Strict):
    """The job that was submitted last for a run. Without a job: a submission that has not come back yet."""

    job: str | None
    time: float
    inputs: Inputs
    has_ended: bool = Field(False, description="seen by the launcher; one that never started leaves no other trace")


class Interrupted(Exception):
    """Somebody asked the launcher to stop."""


@dataclass
class Launcher:
    """One run's way through the queue."""

    name: str  # of the job
    paths: RunFolder
    site: Site
    shape: Shape
    site_name: str  # by which the job finds the site file
    inputs: Inputs
    stop: StopRequest
    queue: Queue
    told: str = field(default="", init=False)

    def run(self) -> None:
        """Return when the run is finished; raise LaunchError when it cannot be, Interrupted on request."""
        without_progress, furthest, is_first = 0, self.paths.last_step(), True
        while not self.paths.is_finished(self.inputs):
            job = self._attach_or_submit()
            if job is None:
                break
            state = self._watch(job)
            if state is None:
                break
            self._remember(job, time.time(), has_ended=True)
            self._judge(job, state)
            step = self.paths.last_step()
            if is_first and step < furthest:  # checkpoints of other inputs were there; it has begun anew
                furthest = 0
            without_progress = 0 if step > furthest else without_progress + 1
            furthest, is_first = max(furthest, step), False
            if without_progress == MAX_JOBS_WITHOUT_PROGRESS:
                raise LaunchError(
                    f"{without_progress} jobs in a row ended without a checkpoint beyond step {furthest} "
                    f"(the last: job {job}, {state}, after step {step}); expected one within slurm.hours "
                    f"{self.site.cluster.hours}: fix what ends them, then start again\n"
                    + log_tail(self.paths.jobs, job)
                )

    def _attach_or_submit(self) -> str | None:
        """Return the job that works on this run, or submit one; None if the run has finished in the meantime.

        There is never a second job: launchers do this one after the other.
        """
        with self._sole_submitter():
            record = self._record()
            known = self._find(record) if record else None
            if record and known:
                if record.inputs == self.inputs:
                    log.info("watching job %s, submitted earlier (%s)", known.id, known.state.lower())
                    self._remember(known.id, record.time)
                    return known.id
                self._cancel(known, record)
            # Its job may have ended while this launcher waited for the lock or for the queue.
            return None if self.paths.is_finished(self.inputs) else self._submit()

    @contextmanager
    def _sole_submitter(self) -> Iterator[None]:
        """Hold the lock of submissions, after the launcher that has it: it may hang in sbatch or squeue."""

        def tell() -> None:
            self._tell(f"{holder_of(self.paths.submit_lock)} submits this run; waiting for it")

        with closing(LockFile(self.paths.submit_lock)) as lock:
            if not self.stop.wait_for(lock.take, LOOK_S, tell):
                raise Interrupted(self.stop.why)  # the other one cancels what it has submitted
            yield

    def _cancel(self, job: Job, record: JobRecord) -> None:
        """End a job that works on what is no longer asked for."""
        change = self.inputs.change_since(record.inputs)
        log.info("%s since job %s was submitted: cancelling it and submitting another", change, job.id)
        scancel(job.id)
        while self._find(JobRecord(job=job.id, time=time.time(), inputs=record.inputs)):
            self._pause(self.site.cluster.poll_s)

    def _find(self, record: JobRecord) -> Job | None:
        """The queued or running job of this run. A record without a job is of a submission that did not come back."""
        since = record.time
        if record.job is None:
            self._pause(since + SBATCH_S - time.time())
            since = time.time()
        while True:
            answer = self.queue.look(newer_than=since)
            self._leave_if_asked()
            job = answer.active(self.name, CONFIGS.parent)
            # One that is ending may have been cancelled, or be on its way back into the queue.
            if not answer.problem and (job is None or not self._is_ending(job, record)):
                return job
            self._tell(f"waiting for job {job.id} to end" if job else f"waiting for the queue ({answer.problem})")
            self._pause(self.site.cluster.poll_s)

    def _is_ending(self, job: Job, record: JobRecord) -> bool:
        """squeue shows a job that a launcher has just cancelled as running for a moment."""
        return job.state == "COMPLETING" or (record.has_ended and (job.id, job.state) == (record.job, "RUNNING"))

    def _submit(self) -> str:
        from submitit import SlurmExecutor
        from submitit.core.utils import FailedJobError

        with explained(self.paths.jobs):
            executor = SlurmExecutor(self.paths.jobs, python=None)
        executor.update_parameters(job_name=self.name, **sbatch_options(self.site, *self.shape))
        while True:
            asked_at = time.time()
            self._remember(None, asked_at)
            try:
                job = executor.submit(TrainJob(self.paths, self.site_name)).job_id
            except FailedJobError as error:
                self._refused(str(error))
                found = self._find(JobRecord(job=None, time=asked_at, inputs=self.inputs))  # it may have arrived
                if found is None:
                    continue
                job = found.id
            self._remember(job, time.time())
            nodes, processes = self.shape
            words = f"{nodes} node{'s' * (nodes > 1)} x {processes} process{'es' * (processes > 1)}"
            log.info("submitted job %s: %s; its log: %s/%s_0_log.out", job, words, shown(self.paths.jobs), job)
            return job

    def _refused(self, message: str) -> None:
        """Wait, if that can help."""
        last = (message.strip().splitlines() or ["no message"])[-1]
        if not any(word in message.lower() for word in TRANSIENT_REFUSALS):
            raise LaunchError(
                f"sbatch refused the job: {last}; `python -m pipeline doctor` compares what the site file asks for "
                "with what the cluster offers"
            )
        self._tell(f"sbatch: {last}; trying again")
        self._pause(self.site.cluster.poll_s)

    def _watch(self, job: str) -> str | None:
        """Wait for the end of a job; returns its last state, or None when the run is finished."""
        record = self._record()
        asked_since, ends_seen, entry = record.time if record else 0.0, 0, None
        while ends_seen < 2:  # once could be a moment between two states, as in a requeue
            if self._finished_within(self.site.cluster.poll_s if asked_since == 0 else LOOK_S):
                if entry is not None and entry.state == "PENDING":
                    scancel(job)  # a node that SLURM took for lost has finished the run
                return None
            answer = self.queue.look(newer_than=asked_since)
            asked_since = 0.0
            if answer.problem:
                if not self.stop.is_raised:
                    self._tell(f"the queue cannot be read ({answer.problem}); job {job} goes on, waiting")
                continue
            entry = answer.jobs.get(job)
            if entry and entry.is_given_up:
                scancel(job)
                return f"held by SLURM, {entry.reason}"
            ends_seen = ends_seen + 1 if entry is None or entry.has_ended else 0
            if entry and not ends_seen:
                self._tell_state(entry)
        return entry.state if entry else "no longer in the queue"

    def _finished_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.paths.is_finished(self.inputs):
            self._leave_if_asked()
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_S)
        return True

    def _judge(self, job: str, state: str) -> None:
        """Raise if the failure is final; otherwise the run is submitted again."""
        outcome = read_outcome(self.paths, job)
        where = f"nothing is lost: the same command continues after step {self.paths.last_step()}"
        if state == "CANCELLED":
            raise LaunchError(f"job {job} was cancelled (scancel); {where}")
        if state == "OUT_OF_MEMORY":
            asked = self.site.cluster.memory_gb
            raise LaunchError(
                f"job {job} ran out of memory with slurm.memory_gb {asked} per process; raise it. {where}"
            )
        if outcome and outcome.code not in (0, CONTINUE_ME):
            text = outcome.message or log_tail(self.paths.jobs, job)
            raise LaunchError(f"job {job} failed with exit code {outcome.code} (process {outcome.rank}):\n{text}")
        record = self.paths.record()
        if outcome and outcome.code == 0 and record and record.inputs != self.inputs:
            change = record.inputs.change_since(self.inputs)
            raise LaunchError(f"{change} while job {job} was queued or ran, and it trained from the new; start again")
        why = outcome.why or outcome.message if outcome else "killed without a message"
        log.info("job %s ended (%s: %s) after step %d; submitting again", job, state, why, self.paths.last_step())

    def _tell_state(self, job: Job) -> None:
        runs = f"job {job.id} runs on {job.nodes}"
        # The wait in the queue may be over before anybody has looked; other nodes give it away.
        has_moved = job.state == "RUNNING" and self.told != runs
        if "runs on" in self.told and (has_moved or job.state in ("PENDING", "REQUEUED")):
            outcome = read_outcome(self.paths, job.id)
            why = outcome.why if outcome else "without a message, as when a node is lost"
            self._tell(f"job {job.id} is back in the queue ({why}), after step {self.paths.last_step()}")
        elif job.state != "RUNNING" and job.reason not in UNINTERESTING_REASONS:
            self._tell(f"job {job.id} is {job.state.lower()}: {job.reason}")
        if job.state == "RUNNING":
            self._tell(runs)

    def _tell(self, text: str) -> None:
        """One line per event, however often it is seen."""
        if text != self.told:
            log.info("%s", text)
            self.told = text

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.stop.wait_for(lambda: time.monotonic() >= deadline, LOOK_S)
        self._leave_if_asked()

    def _leave_if_asked(self) -> None:
        """Ctrl-C means the job; SIGTERM may be a login node that ends what its users left running."""
        if not self.stop.is_raised:
            return
        record = self._record()
        if record is None or record.job is None or record.has_ended:
            raise Interrupted(self.stop.why)
        if self.stop.signal != signal.SIGINT:
            raise Interrupted(f"{self.stop.why}: job {record.job} goes on")
        has_ended = scancel(record.job)
        write_json(self.paths.job, record.model_copy(update={"has_ended": has_ended}).model_dump())
        raise Interrupted(f"{self.stop.why}: {'cancelled' if has_ended else 'could not cancel'} job {record.job}")

    def _record(self) -> JobRecord | None:
        path = self.paths.job
        return JobRecord.model_validate_json(path.read_bytes()) if path.exists() else None

    def _remember(self, job: str | None, at: float, has_ended: bool = False) -> None:
        record = JobRecord(job=job, time=at, inputs=self.inputs, has_ended=has_ended)
        write_json(self.paths.job, record.model_dump())


def train_on_cluster(
    paths: RunFolder, site: Site, shape: Shape, site_name: str, inputs: Inputs, stop: StopRequest
) -> int:
    """Bring one run to its end through SLURM."""
    forget_own_job()
    name = f"{paths.results.name}-{paths.name}"
    queue = Queue(ScaleFolder(paths.results).queue, site.cluster.poll_s, stop)
    try:
        Launcher(name, paths, site, shape, site_name, inputs, stop, queue).run()
    except Interrupted as request:
        log.info("%s; the same command continues", request)
        return CONTINUE_ME
    return 0


def waiting_job(paths: RunFolder) -> str | None:
    """The SLURM job of an unfinished run, unless a file says that it has ended. The queue is not asked.

    One that was told to stop may be back in the queue: a job requeues itself before a time limit, and SLURM requeues
    one that it preempts.
    """
    if paths.finished.exists() or not paths.job.exists():
        return None
    record = JobRecord.model_validate_json(paths.job.read_bytes())
    if record.job is None or record.has_ended:
        return None
    outcome = read_outcome(paths, record.job)
    return record.job if outcome is None or outcome.code == CONTINUE_ME else None


def forget_own_job() -> None:
    """Drop the variables of a job that this process itself may run in: sbatch would read them as options."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_")) and name != "SLURM_CONF"]:
        del os.environ[name]


def scancel(job: str) -> bool:
    """Cancel a job; whether SLURM took the request."""
    try:
        result = subprocess.run(["scancel", job], capture_output=True, text=True, timeout=SCANCEL_S, check=False)
    except subprocess.TimeoutExpired:
        log.warning("scancel %s: no answer within %d s", job, SCANCEL_S)
        return False
    if result.returncode:
        log.warning("scancel %s: %s", job, result.stderr.strip())
    return result.returncode == 0
