"""`python -m pipeline sweep`."""

import argparse
import shlex

from pipeline.commands.options import add_scale, add_site

SUMMARY = "try several values of a key in a run or a study, and compare them"
DETAILS = (
    "`sweep mjp.a --over optim.base_lr=1e-4,3e-4,1e-3 --seeds 3` writes a study into configs/study, runs it with "
    "Snakemake, prints a table in which the best value is marked, and draws a figure. Several --over make a grid."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="STUDY.RUN", help="a run of a study; STUDY without a run means each of its runs"
    )
    parser.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="KEY=VALUES",
        help="a key of the run's config (optim.base_lr), or method, model, data, recipe or budget, and its values, "
        "separated by commas; may be repeated",
    )
    parser.add_argument("--seeds", type=int, help="number of seeds of each run (default: the study's or the scale's)")
    parser.add_argument(
        "--metric",
        help="a metric of training (val_loss), or of an evaluation (classify:top1) "
        "(default: the task's validation metric, such as val_top1)",
    )
    parser.add_argument(
        "--name", help="the new study is called sweep_NAME (default: a name made from the run, the keys and a digest)"
    )
    add_scale(parser, None, "the profile's, else the study's")
    add_site(parser)
    parser.add_argument("--profile", help="a profile of Snakemake, such as slurm")
    parser.add_argument("-n", "--dry-run", action="store_true", help="check everything and list the jobs")
    parser.add_argument(
        "--snakemake", default="", metavar="OPTIONS", help="options for Snakemake, such as --snakemake='--cores 2'"
    )


def run(options: argparse.Namespace) -> int:
    from pipeline.commands.options import open_scale
    from pipeline.sweep.ranking import ranking
    from pipeline.sweep.start import Call, snakemake
    from pipeline.sweep.study import SweepRequest, sweep_of

    parent = options.target.partition(".")[0]
    more = tuple(shlex.split(options.snakemake))
    call = Call(parent, options.scale, options.site, options.profile, options.dry_run, more)
    call.take_site()
    about = (options.seeds, options.metric, options.name)
    study = sweep_of(SweepRequest(options.target, options.over, call.scale, *about))
    study.graph(call.scale)  # every mistake is reported before anything is written
    was_there = study.is_written
    study.write(call.scale)
    print(study.notice, flush=True)
    code = 1
    try:
        code = snakemake(study.name, call)
    finally:
        if options.dry_run and not was_there:
            study.path.unlink()
    if not options.dry_run:
        print(f"\n{ranking(open_scale(call.scale), study.name)}")
    return code
