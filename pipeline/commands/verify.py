"""`python -m pipeline verify`."""

import argparse

from pipeline.commands.options import add_scale

SUMMARY = "compare every finished run, evaluation and table with its record"
DETAILS = "Every byte is read; nothing is changed."


def add_options(parser: argparse.ArgumentParser) -> None:
    add_scale(parser)
    parser.add_argument(
        "--accept-code",
        nargs="*",
        metavar="NAME",
        help="declare that the changed code of these methods and evaluations (without a name: of all) affects no "
        "number. Nothing checks this: the decision is yours, and is recorded with its date, so that their results are "
        "no longer listed as made by other code",
    )


def run(options: argparse.Namespace) -> int:
    from pipeline.audit.verify import problems_of
    from pipeline.core.config import shown
    from pipeline.freshness.other_code import accept_code, made_by_other_code
    from pipeline.freshness.remake import Freshness
    from pipeline.report.words import counted
    from pipeline.site import load_site
    from pipeline.study.resolve.graph import load_graph

    graph = load_graph(options.scale)
    for each in accept_code(graph, options.accept_code) if options.accept_code is not None else ():
        changes = ", ".join(f"{made_by} -> {today}" for made_by, today in each.changes)
        print(f"accepted: {each.kind} {each.name} {changes}; {shown(graph.results.accepted_code)}")
    problems = problems_of(Freshness(graph, load_site()))  # a new one has no digests yet: every byte is read
    for line in [*problems, *made_by_other_code(graph)]:
        print(line)
    done = sum(graph.results.run(name).done.exists() for name in graph.runs)
    print(f"scale {graph.scale}: {done} finished runs compared with their records, {counted(len(problems), 'problem')}")
    return int(bool(problems))
