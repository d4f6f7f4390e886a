"""A SLURM job of a rule that could not start is submitted again, and the reason is given.

A node opens the log of a job before it runs anything. Where it cannot, because the folder was removed while the job
waited or the node does not see it, SLURM ends the job with JobLaunchFailure (exit code 0:53). Snakemake's executor
would report a failed job without a reason.
"""

from collections import Counter
from typing import Any

from snakemake.logging import logger

from pipeline.launch.queue import ask

NEVER_STARTED = "JobLaunchFailure"
MAX_TRIES = 3


def resubmit_unstarted(executor: type) -> None:
    """Change Snakemake's SLURM executor: it is told in one method that a job has failed."""
    report, tries = executor.report_job_error, Counter[Any]()  # type: ignore[attr-defined]

    def report_or_resubmit(self: Any, submitted: Any, msg: str | None = None, **options: Any) -> None:
        slurm_job = ask().jobs.get(str(submitted.external_jobid))
        if slurm_job is None or slurm_job.reason != NEVER_STARTED:
            report(self, submitted, msg=msg, **options)
            return
        tries[submitted.job] += 1
        log = submitted.aux["slurm_logfile"]
        why = (
            f"SLURM job {slurm_job.id} could not start ({NEVER_STARTED}): node {slurm_job.nodes} could not open {log}. "
            "The folder was removed while the job waited, or the node does not see it"
        )
        if tries[submitted.job] < MAX_TRIES:
            logger.warning(f"{why}; submitting it again")
            self.run_job(submitted.job)
        else:
            report(self, submitted, msg=f"{why}: try `srun ls` of it; {MAX_TRIES} tries failed. ", **options)

    executor.report_job_error = report_or_resubmit  # type: ignore[attr-defined]
