"""`python -m pipeline explain`."""

import argparse

from pipeline.commands.options import add_scale, open_scale

SUMMARY = "trace a number to its study, config, run, evaluation, data, weights and code"
DETAILS = (
    "`explain mjp.t1.deit-s:top1` traces a cell of a table, `explain RUN` a run, and `explain RUN optim.base_lr` a key "
    "of its config: it lists every file that sets the key, in the order in which they apply."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser, default=None)
    parser.add_argument(
        "number",
        metavar="SUBJECT",
        help="a cell, as STUDY.TABLE.ROW:COLUMN with the keys of the study file, or a run, by its name or by the "
        "beginning or the end of its name",
    )
    parser.add_argument("key", nargs="?", metavar="KEY", help="a key of the run, such as optim.base_lr")


def run(options: argparse.Namespace) -> None:
    from pipeline.audit.explain import explain

    print(explain(open_scale(options.scale, [options.number.partition(".")[0]]), options.number, options.key))
