"""`python -m pipeline report`."""

import argparse
import webbrowser

from pipeline.commands.options import add_scale, open_scale

SUMMARY = "write the report: HTML pages that open from disk"
DETAILS = "It contains everything that is finished. The command prints the path of its first page."


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser, default=None)
    parser.add_argument(
        "--rows",
        default="all",
        metavar="{headline,all,STUDY}",
        help="headline: the few rows that `snakemake headline` runs; all: every row; a study: all of its rows and "
        "nothing else (default: %(default)s)",
    )
    parser.add_argument("--single", action="store_true", help="write one page with everything in it, to send by mail")
    parser.add_argument("--open", action="store_true", help="open the report in the browser")


def run(options: argparse.Namespace) -> None:
    from pipeline.report.drawing import draw_report, draw_single

    draw = draw_single if options.single else draw_report
    path = draw(open_scale(options.scale, [options.rows]), options.rows)
    print(path)
    if options.open and not webbrowser.open(path.resolve().as_uri()):
        print("no browser found on this machine; copy the folder of the report to one that has a browser")
