"""`python -m pipeline explain`."""

import argparse

from pipeline.commands.options import add_scale, open_scale

SUMMARY = "trace a number to its study, config, run, evaluation, data, weights and code"
DETAILS = (
    "`explain mjp.t1.deit-s:top1` is a cell, `explain RUN` a run, `explain RUN optim.base_lr` a key of its "
    "config: every file that sets it, in order."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser, default=None)
    parser.add_argument("number", help="a cell as ROW:COLUMN, or the name of a run, or its beginning or end")
    parser.add_argument("key", nargs="?", help="a key of the run, such as optim.base_lr")


def run(options: argparse.Namespace) -> None:
    from pipeline.audit.explain import explain

    print(explain(open_scale(options.scale, [options.number.partition(".")[0]]), options.number, options.key))
