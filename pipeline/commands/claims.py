"""`python -m pipeline claims`."""

import argparse

from pipeline.commands.options import add_rows, add_scale, open_scale

SUMMARY = "judge a study's claims on its tables"
DETAILS = "Each verdict comes with the numbers that decided it."


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser)
    parser.add_argument("--study", required=True, help="name of a file in configs/study, such as mjp")
    add_rows(parser, default="all")


def run(options: argparse.Namespace) -> None:
    from pipeline.report.drawing import judge_claims

    judge_claims(open_scale(options.scale), options.study, options.rows)
