"""Tells whether anything still works on a run: a process that holds its lock, or a SLURM job that waits or runs."""

from pipeline.core.errors import DataError
from pipeline.core.files import is_held
from pipeline.launch.queue import Queue
from pipeline.launch.slurm import JobRecord
from pipeline.results import RunFolder, ScaleFolder
from pipeline.results.records import read_record
from pipeline.site import Site

POLL_S = 30.0  # how old an answer of SLURM may be where the site names no interval


class Workers:
    """The processes and jobs that work on the runs of one scale."""

    def __init__(self, results: ScaleFolder, site: Site) -> None:
        self.queue = Queue(results.queue, site.slurm.poll_s if site.slurm else POLL_S)

    def have_left(self, run: RunFolder) -> bool:
        """Return whether this run is idle; False also if the run has a SLURM job and SLURM does not answer."""
        if is_held(run.lock):
            return False
        if not run.job.exists():
            return True
        try:
            record = read_record(run.job, JobRecord)
        except DataError:  # written by an older version of Patchwork
            return False
        answer = self.queue.look(newer_than=record.time)
        job = answer.jobs.get(record.job) if record.job else None
        return not answer.problem and (job is None or job.has_ended)
