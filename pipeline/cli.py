"""`python -m pipeline <verb>`: what the rules call, and what people call by hand.

User mistakes end in one message and exit code 1; a run that was asked to stop exits with 75, which means "continue me".
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from pipeline.errors import PatchworkError
from pipeline.logs import start_logging

SCALE = "demo"


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = build_parser().parse_args(arguments)
    start_logging()
    if options.site:
        os.environ["PATCHWORK_SITE"] = options.site
    try:
        return options.verb(options, arguments) or 0
    except PatchworkError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("pipeline"):
            raise
        print(
            f"{sys.executable} has no package {error.name!r}, expected those of requirements.lock; "
            "use the project's own Python: `. .venv/bin/activate` (`make demo` or `make test` installs it)",
            file=sys.stderr,
        )
        return 1
    except BrokenPipeError:  # `... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        return 75


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline",
        description="Patchwork, one step at a time. Snakemake calls these verbs in the right order; "
        "by hand, the order is prepare, train, evaluate, table, claims, report.",
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def add(name: str, verb: Callable, help: str, *names: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=help, description=help)
        sub.set_defaults(verb=verb)
        sub.add_argument("--scale", default=SCALE, help="a file of configs/scale (default: %(default)s)")
        sub.add_argument("--site", help="a file of configs/site, or a path (default: PATCHWORK_SITE, else local)")
        for option in names:
            sub.add_argument(f"--{option}", required=True)
        return sub

    add("check", check, "read and validate every config, and say what would run")
    add("verify", verify, "compare every finished run, evaluation and table with what was recorded of it")
    add("prepare", prepare, "verify a data set and write its manifest", "data")
    train_parser = add("train", train, "train one run, or continue it")
    which = train_parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--run", help="name of a run; `check` lists them")
    which.add_argument("--config", type=Path, help="a config.resolved.yaml: enough to train that run again")
    add("evaluate", evaluate, "compute a group of evaluations of a finished run", "run", "group")
    for name, verb, text in (
        ("table", table, "fill a table from metrics files"),
        ("claims", claims, "judge a study's claims"),
        ("report", report, "write the report page"),
        ("summary", summary, "print what came out"),
    ):
        sub = add(name, verb, text, *{"table": ["table"], "claims": ["study"]}.get(name, []))
        sub.add_argument("--rows", choices=["headline", "all"], default="all" if name != "summary" else "headline")
    track_parser = add("track", track, "mirror runs, evaluations and tables into MLflow")
    track_parser.add_argument("--follow", action="store_true", help="go on while Snakemake runs, then catch up and end")
    plan_parser = add("plan", plan, "say what would run and what it would cost: jobs, GPU hours, storage")
    plan_parser.add_argument("targets", nargs="*", help="studies, tables (mjp_table4) or runs; none: everything")
    add("doctor", doctor, "check that this site can run a scale: commands, queue, GPUs, data, space, tracking")
    return parser


def check(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.site import load_site
    from pipeline.study.graph import load_graph
    from pipeline.verify import made_by_other_code

    load_site()
    graph = load_graph(options.scale)
    for name, run in graph.runs.items():
        start = f", from {run.config['init']}" if run.config["init"] else ""
        print(f"{name:60} {run.label}{start}")
    for notice in made_by_other_code(graph):
        print(notice)
    print(f"configs are sound: {len(graph.runs)} runs, {len(graph.tables)} tables at scale {graph.scale}")


def verify(options: argparse.Namespace, arguments: list[str]) -> int:
    from pipeline.study.graph import load_graph
    from pipeline.verify import made_by_other_code
    from pipeline.verify import verify as problems_of

    graph, problems = load_graph(options.scale), []
    for problem in problems_of(graph):
        print(problem, flush=True)
        problems.append(problem)
    for notice in made_by_other_code(graph):
        print(notice)
    done = sum(graph.results.run(name).done.exists() for name in graph.runs)
    print(f"scale {graph.scale}: {done} finished runs compared with their records, {len(problems)} problems")
    return int(bool(problems))


def prepare(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.config import Layers, parse
    from pipeline.data.prepare import prepare as prepare_data
    from pipeline.data.sources import DataConfig
    from pipeline.site import data_folder, load_site
    from pipeline.study.graph import load_graph

    graph, site = load_graph(options.scale), load_site()
    content = graph.run_with_data(options.data).config["data"]
    data = parse(DataConfig, Layers((options.data, content)))
    manifest = graph.results.manifest(data.name)
    found = prepare_data(data, data_folder(site, data), manifest.parent, workers=site.workers)
    print(f"{data.name}: {found.splits['train'].count} + {found.splits['val'].count} images verified")


def train(options: argparse.Namespace, arguments: list[str]) -> int:
    from pipeline.launch.train import train as train_run

    return train_run(options.scale, options.run, options.config)


def evaluate(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.config import Layers, parse
    from pipeline.engine.run import parse_run
    from pipeline.evals.base import EVALS
    from pipeline.evals.evaluate import evaluate_run
    from pipeline.site import load_site
    from pipeline.study.graph import load_graph

    graph = load_graph(options.scale)
    run = parse_run(Layers((options.run, graph.run(options.run).config)))
    configs = graph.evaluations(options.run, options.group)
    evals = {key: parse(EVALS.get(cfg["name"]).Config, Layers((key, cfg))) for key, cfg in configs.items()}
    evaluate_run(run, options.group, evals, graph.results.run(run.name), load_site())


def table(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.files import write_text
    from pipeline.records import write_record
    from pipeline.report import draw
    from pipeline.report.tables import fill_table
    from pipeline.study.graph import load_graph

    graph = load_graph(options.scale)
    filled = fill_table(graph, options.table, options.rows)
    path = graph.results.table(options.table, options.rows)
    for suffix, drawing in ((".csv", draw.to_csv), (".md", draw.to_markdown), (".html", draw.to_html)):
        write_text(path.with_name(options.table + suffix), drawing(filled))
    write_record(path, filled)


def claims(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.records import write_record
    from pipeline.report.tables import judge_study
    from pipeline.study.graph import load_graph

    graph = load_graph(options.scale)
    write_record(graph.results.claims(options.study, options.rows), judge_study(graph, options.study, options.rows))


def report(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.report.collect import collect
    from pipeline.report.numbers import write_numbers
    from pipeline.report.page import write_report
    from pipeline.study.graph import load_graph

    graph = load_graph(options.scale)
    path = graph.results.report(options.rows)
    chosen, title, subtitle = graph.selected(options.rows), f"Patchwork, scale {graph.scale}", ""
    if len(chosen) < len(graph.tables):
        subtitle = f"{len(chosen)} of {len(graph.tables)} tables; `snakemake all` draws the others and every row."
    content = collect(graph, options.rows)
    write_numbers(content.tables, path)
    print(write_report(content, path, title, graph.scale, subtitle))


def track(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.engine.signals import StopRequest
    from pipeline.site import load_site
    from pipeline.study.graph import load_graph
    from pipeline.track.follow import follow, mirror_once

    if options.follow:
        stop = StopRequest().listen()  # before MLflow is imported, which takes seconds
        follow(load_graph(options.scale), load_site(), stop)
    else:
        print(json.dumps(mirror_once(load_graph(options.scale), load_site())))


def plan(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.plan.text import plan as make_plan
    from pipeline.site import load_site
    from pipeline.study.graph import load_graph

    print(make_plan(load_graph(options.scale), load_site(), options.targets))


def doctor(options: argparse.Namespace, arguments: list[str]) -> int:
    from pipeline.doctor.examine import examine, summary
    from pipeline.site import load_site
    from pipeline.study.graph import load_graph

    findings = []
    for finding in examine(load_graph(options.scale), load_site()):
        print(finding, flush=True)
        findings.append(finding)
    print(summary(findings))
    return int(any(finding.state == "failed" for finding in findings))


def summary(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.report.summary import summarise
    from pipeline.study.graph import load_graph

    print(summarise(load_graph(options.scale), options.rows))
