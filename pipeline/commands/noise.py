"""`python -m pipeline noise`."""

import argparse

from pipeline.commands.options import add_rows, add_scale, open_scale

SUMMARY = "measure how much seeds differ at a scale"
DETAILS = (
    "It writes configs/noise/SCALE.yaml from results with several seeds; with this file, claims that compare single "
    "runs can be judged. 1. Write `seeds: 4` in configs/scale/SCALE.yaml. 2. Run `snakemake headline --config "
    "scale=SCALE`. 3. Run this command. 4. Set `seeds: 1` again."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser)
    add_rows(parser, default="headline")


def run(options: argparse.Namespace) -> None:
    from pipeline.core.config import shown
    from pipeline.report.tables.fill import fill_table
    from pipeline.report.tables.seed_noise import write_noise

    freshness = open_scale(options.scale)
    graph = freshness.graph
    tables = [fill_table(graph, key, options.rows, freshness) for key in graph.selected(options.rows)]
    print(f"wrote {shown(write_noise(graph, tables))}")
