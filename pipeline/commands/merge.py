"""`python -m pipeline merge`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.commands.options import add_scale

if TYPE_CHECKING:
    from pipeline.audit.merge import Merge

SUMMARY = "import finished results of a scale: published ones, or those of another machine, with or without weights"
DETAILS = (
    "`merge results/published/SCALE` imports what is published, of this project or of another one, so that more seeds "
    "can be added to it. To import from another machine, copy its results/SCALE here, for example with `rsync -a "
    "--exclude state --exclude '*.safetensors'`, and name that copy. Each file is compared with its record first, and "
    "nothing is copied if anything contradicts the results here. Snakemake draws tables and the report when it is "
    "started next."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help="a published folder, results of the other machine, or the project that has them",
    )
    add_scale(parser, None, "that of a published folder, else demo")
    parser.add_argument(
        "--weights-at",
        default="the machine that trained it",
        metavar="PLACE",
        help="where to find the weights that were not copied: any text, such as login1:/scratch/patchwork",
    )
    parser.add_argument("-n", "--dry-run", action="store_true", help="print what would be copied, and copy nothing")


def run(options: argparse.Namespace) -> None:
    from pipeline.audit.merge import open_results, plan_merge
    from pipeline.study.resolve.graph import load_graph

    with open_results(options.folder.expanduser(), options.scale) as (scale, results):
        _merge(plan_merge(load_graph(scale), results), options)


def _merge(merge: "Merge", options: argparse.Namespace) -> None:
    from pipeline.audit.merge import carry_out
    from pipeline.core.errors import DataError
    from pipeline.report.words import counted

    if merge.conflicts:
        problems = "\n".join(f"- {each}" for each in merge.conflicts)
        raise DataError(f"{counted(len(merge.conflicts), 'contradiction')}, so nothing was copied:\n{problems}")
    if merge.unknown:
        print(f"left out, since no config names them: {', '.join(merge.unknown)}")
    for folder in merge.files if options.dry_run else carry_out(merge, options.weights_at):
        print(f"{'would copy' if options.dry_run else 'copied'} {folder}")
    kinds = {"data": "data set", "runs": "run", "evals": "evaluation"}
    new = ", ".join(counted(merge.counted(kind), word) for kind, word in kinds.items())
    elsewhere = f"; weights of {counted(len(merge.elsewhere), 'run')} stay elsewhere" if merge.elsewhere else ""
    print(f"{new} new, {merge.num_same} here already{elsewhere}")
