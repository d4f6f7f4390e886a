"""`python -m pipeline track`."""

import argparse

from pipeline.commands.options import add_scale, add_site

SUMMARY = "mirror runs, evaluations and tables into MLflow"
DETAILS = "Nothing is logged twice."


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser)
    add_site(parser)
    parser.add_argument("--follow", action="store_true", help="go on until Snakemake has ended")


def run(options: argparse.Namespace) -> None:
    from pipeline.engine.signals import StopRequest
    from pipeline.site import load_site
    from pipeline.study.resolve.graph import load_graph
    from pipeline.tracking.follow import follow, mirror_once

    if options.follow:
        stop = StopRequest().listen()  # before MLflow is imported, which takes seconds
        follow(load_graph(options.scale), load_site(), stop)
    else:
        print(mirror_once(load_graph(options.scale), load_site()))
