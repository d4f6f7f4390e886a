"""`python -m pipeline train`."""

import argparse
from pathlib import Path

from pipeline.commands.options import add_scale, add_site

SUMMARY = "train one run, or continue it"
DETAILS = "On a SLURM site it submits the job and waits for it."


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser)
    add_site(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--run", help="name of a run; `check --scale SCALE` lists them")
    which.add_argument("--config", type=Path, help="a config.resolved.yaml, with which that run can be trained again")


def run(options: argparse.Namespace) -> int:
    from pipeline.launch.train import train

    return train(options.scale, options.run, options.config)
