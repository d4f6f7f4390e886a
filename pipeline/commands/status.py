"""`python -m pipeline status`."""

import argparse

from pipeline.commands.options import add_scale, open_scale

SUMMARY = "list what is finished, running, waiting and failed"
DETAILS = (
    "It only reads files, so it may be called at any time, even while Snakemake is running. An unfinished job is "
    "running, queued (SLURM has the job, Snakemake watches it), submitted (SLURM has the job, nothing watches it), "
    "stopped (continues from its checkpoint when started again), failed, outdated (finished, but must be made again) "
    "or waiting (not started)."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser, None, "every scale with results")


def run(options: argparse.Namespace) -> None:
    from pipeline.audit.status import read_status
    from pipeline.results import scales_with_results

    scales = [options.scale] if options.scale else scales_with_results()
    for scale in scales:
        print(read_status(open_scale(scale)), end="\n\n" if scale != scales[-1] else "\n")
    if not scales:
        print("nothing has run yet; `make demo` or `snakemake demo` runs the smallest scale")
