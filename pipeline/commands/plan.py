"""`python -m pipeline plan`."""

import argparse

from pipeline.commands.options import TARGETS, add_scale, add_site, open_scale

SUMMARY = "count what would run and what it would cost"
DETAILS = "It counts jobs, hours of training and storage for what is not finished yet."


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser, default=None)
    add_site(parser)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{TARGETS}, or names of runs (default: all)")


def run(options: argparse.Namespace) -> None:
    from pipeline.plan.text import plan

    print(plan(open_scale(options.scale, options.targets), options.targets))
