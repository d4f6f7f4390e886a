"""A SLURM job of a rule that could not start is submitted again, and the reason is given.

A node opens the log of a job before it runs anything. Where it cannot, because the folder was removed while the job
waited or the node does not see it, SLURM ends the job with JobLaunchFailure (exit code 0:53). Snakemake's executor
would report a failed job without a reason.
"""

from collections import Counter
from typing import Any

from snakemake.logging import logger

from pipeline.launch.queue import Job, ask

NEVER_STARTED = "JobLaunchFailure"
MAX_TRIES = 3


def resubmit_unstarted(executor: type) -> None:
    """Change Snakemake's SLURM executor: it is told in one method that a job has failed."""
    report, tries = executor.report_job_error, Counter[Any]()  # type: ignore[attr-defined]

    def report_or_resubmit(self: Any, submitted: Any, msg: str | None = None, **options: Any) -> None:
        if not (failed := _launch_failure(submitted)):
            report(self, submitted, msg=msg, **options)
            return
        tries[submitted.job] += 1
        why = (
            f"SLURM job {failed.id} could not start on {failed.nodes} ({NEVER_STARTED}), as when its log cannot be "
            f"opened, {submitted.aux['slurm_logfile']}: the folder was removed while the job waited, or the node does "
            "not see it"
        )
        if tries[submitted.job] < MAX_TRIES:
            logger.warning(f"{why}; submitting it again")
            self.run_job(submitted.job)
        else:
            report(self, submitted, msg=f"{why}; {MAX_TRIES} tries failed, see `srun ls` of it there. ", **options)

    executor.report_job_error = report_or_resubmit  # type: ignore[attr-defined]


def _launch_failure(submitted: Any) -> Job | None:
    """The job as SLURM shows it, if it could not start; one that has a log has started."""
    if submitted.external_jobid is None or submitted.aux["slurm_logfile"].exists():
        return None
    job = ask().jobs.get(submitted.external_jobid)
    return job if job and job.reason == NEVER_STARTED else None
