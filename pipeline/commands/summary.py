"""`python -m pipeline summary`."""

import argparse

from pipeline.commands.options import TARGETS, add_rows, add_scale, open_scale

SUMMARY = "print tables and claims"
DETAILS = "It shows all finished results, with the papers' numbers in brackets."


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser, default=None)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{TARGETS} (default: --rows of every study)")
    add_rows(parser, default="headline")


def run(options: argparse.Namespace) -> None:
    from pipeline.report.summary import summarise, summarise_targets

    freshness = open_scale(options.scale, options.targets)
    print(summarise_targets(freshness, options.targets) if options.targets else summarise(freshness, options.rows))
