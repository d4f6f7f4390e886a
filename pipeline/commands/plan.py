"""`python -m pipeline plan`."""

import argparse

from pipeline.commands.options import TARGETS, add_scale, add_site, open_scale

SUMMARY = "estimate the jobs, hours and storage that targets would need"
DETAILS = "Only what is not finished yet is counted: hours of GPUs and on the clock, and bytes."


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser, default=None)
    add_site(parser)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{TARGETS}, or names of runs (default: all)")


def run(options: argparse.Namespace) -> None:
    from pipeline.plan.text import plan

    print(plan(open_scale(options.scale, options.targets), options.targets))
