"""`python -m pipeline table`."""

import argparse

from pipeline.commands.options import add_rows, add_scale, open_scale

SUMMARY = "fill a table from the results and write it as JSON, CSV, Markdown and HTML"
DETAILS = "Cells without a result show the reason."


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser)
    parser.add_argument(
        "--table", required=True, help="a table: name of a study and the table's key in its file, such as mjp.t4"
    )
    add_rows(parser, default="all")


def run(options: argparse.Namespace) -> None:
    from pipeline.report.drawing import draw_table

    draw_table(open_scale(options.scale), options.table, options.rows)
