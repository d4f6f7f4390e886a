"""`python -m pipeline frame`."""

import argparse
import sys

from pipeline.commands.options import add_scale

SUMMARY = "print every metric of a scale as CSV, one line each"
DETAILS = (
    "The output is for spreadsheets; in a notebook, `pipeline.frame.frame(SCALE)` returns the same as a pandas "
    "DataFrame."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser)


def run(options: argparse.Namespace) -> None:
    from pipeline.frame import UNNAMED, frame
    from pipeline.report.words import shown_again
    from pipeline.study.targets import command_for

    table = frame(options.scale)
    print(table.to_csv(index=False), end="")
    if stale := table[~table.stale.isin(["", UNNAMED])].file.nunique():
        line = shown_again(stale, command_for("all", options.scale))
        print(f"{line}; column `stale` says why", file=sys.stderr)
