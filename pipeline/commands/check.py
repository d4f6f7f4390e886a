"""`python -m pipeline check`."""

import argparse

from pipeline.commands.options import add_site

SUMMARY = "read and validate every config"
DETAILS = (
    "It lists the mistakes at all scales, with file, key and line. With --scale, it reads one scale and lists its runs."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scale", help="read and list only this scale, the name of a file in configs/scale (default: read all)"
    )
    parser.add_argument(
        "--expanded",
        nargs="?",
        const="",
        metavar="STUDY",
        help="print a study file with every abbreviation (`like`, `over`, ...) written out; without a name, all "
        "studies",
    )
    parser.add_argument(
        "--names",
        nargs="?",
        const="",
        metavar="WORD",
        help="print every name and key that configs may use, under headings; with WORD, only headings that contain it",
    )
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="test the code of this method, with the model and data of a run that uses it, or of "
        "the baseline; takes half a minute",
    )
    add_site(parser)


def run(options: argparse.Namespace) -> None:
    from pipeline.audit.check import all_scales, check_configs, expanded_studies, runs_trained
    from pipeline.freshness.other_code import notices
    from pipeline.study.overrides import override_notices

    if options.names is not None:
        from pipeline.audit.valid_names import valid_names

        print(valid_names(options.names))
        return
    if options.expanded is not None:
        print(expanded_studies(options.expanded), end="")
        return
    if options.method:
        print_method(options.method, options.scale or "demo")
        return
    for graph in check_configs([options.scale] if options.scale else all_scales()):
        trained = runs_trained(graph)
        for name, run in graph.runs.items() if options.scale else ():
            start = f", from {run.config['init']}" if run.config["init"] else ""
            note = ", will not be trained: no table uses it" if run.trained and name not in trained else ""
            print(f"{name:60} {run.label}{start}{note}")
        for notice in [*override_notices(graph.overrides, graph.scale, None), *notices(graph)]:
            print(notice)
        figures = sum(table.figure is not None for table in graph.tables.values())
        tables = f"{len(graph.tables) - figures} tables, {figures} figures"
        print(f"scale {graph.scale}: configs are valid: {len(trained)} runs, {tables}")


def print_method(name: str, scale: str) -> None:
    from pipeline.method_checks.methods import BASELINE, check_method
    from pipeline.study.resolve.graph import load_graph

    checked = check_method(load_graph(scale), name)
    whose = (
        f"run {checked.run.name}" if checked.has_run else f"the model and data of {BASELINE}; no run at {scale} has it"
    )
    print(f"method {name}, with {whose}: {', '.join(checked.checks)}: all checks passed")
