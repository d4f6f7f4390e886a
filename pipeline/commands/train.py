"""`python -m pipeline train`."""

import argparse
from pathlib import Path

from pipeline.commands.options import add_scale, add_site

SUMMARY = "train one run, or continue it"
DETAILS = "If the site file describes a SLURM cluster, it submits a job and waits until the job ends."


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser)
    add_site(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--run", help="name of a run; `check --scale SCALE` lists them")
    which.add_argument("--config", type=Path, help="the config.resolved.yaml of a run, to train the same run again")


def run(options: argparse.Namespace) -> int:
    from pipeline.launch.train import train

    return train(options.scale, options.run, options.config)
