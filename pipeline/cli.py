"""`python -m pipeline <verb>`: what the rules call, and what people call by hand.

User mistakes end in one message and exit code 1; a run that was asked to stop exits with 75, which means "continue me".
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pipeline.errors import PatchworkError

if TYPE_CHECKING:
    from pipeline.engine.signals import StopRequest
    from pipeline.results import RunFolder
    from pipeline.site import Site

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


def start_logging() -> None:
    level = logging.INFO if is_main_process() else logging.ERROR
    logging.basicConfig(level=level, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    logging.getLogger("alembic").setLevel(logging.WARNING)


def is_main_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


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

    load_site()
    graph = load_graph(options.scale)
    for name, run in graph.runs.items():
        start = f", from {run['config']['init']}" if run["config"]["init"] else ""
        print(f"{name:60} {run['label']}{start}")
    print(f"configs are sound: {len(graph.runs)} runs, {len(graph.tables)} tables at scale {graph.scale}")


def prepare(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.config import Layers, parse
    from pipeline.data.prepare import prepare as prepare_data
    from pipeline.data.sources import DataConfig
    from pipeline.site import data_folder, load_site
    from pipeline.study.graph import load_graph

    graph, site = load_graph(options.scale), load_site()
    content = graph.run_with_data(options.data)["config"]["data"]
    data = parse(DataConfig, Layers((options.data, content)))
    manifest = graph.results.manifest(data.name)
    found = prepare_data(data, data_folder(site, data), manifest.parent, workers=site.workers)
    print(f"{data.name}: {found['splits']['train']['count']} + {found['splits']['val']['count']} images are sound")


def train(options: argparse.Namespace, arguments: list[str]) -> int:
    from pipeline.engine.signals import STOP
    from pipeline.launch.local import is_placed, run_processes
    from pipeline.launch.resources import shape_of
    from pipeline.launch.slurm import train_on_cluster
    from pipeline.results import results_of
    from pipeline.site import load_site

    stop = STOP.listen()  # before torch is imported, which takes seconds
    site, (name, config) = load_site(), _chosen_run(options)
    paths, optim = results_of(options.scale).run(name), config["optim"]
    if is_placed():
        return _train_here(config, paths, site, stop)
    shape = shape_of(optim["global_batch"] // optim["micro_batch"], site)
    if site.slurm:
        code = train_on_cluster(paths, site, shape, _arguments_of_job(options, config, paths), stop)
    elif shape.processes > 1:
        code = run_processes(shape.processes, arguments)
    else:
        code = _train_here(config, paths, site, stop)
    if code == 0:
        paths.publish()
    return code


def _chosen_run(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Name and config. A run of the graph needs no torch: hundreds of launchers may wait on one machine."""
    if options.run:
        from pipeline.study.graph import load_graph

        return options.run, load_graph(options.scale).find("runs", options.run)["config"]
    from pipeline.config import Layers, read_yaml
    from pipeline.engine.run import parse_run

    run = parse_run(Layers((str(options.config), read_yaml(options.config))))
    return run.name, run.model_dump(mode="json")


def _arguments_of_job(options: argparse.Namespace, config: dict[str, Any], paths: "RunFolder") -> list[str]:
    """The same command for a process elsewhere and later, with another environment, folder and configs."""
    from pipeline.files import write_text

    site = os.environ.get("PATCHWORK_SITE", "local")
    site = str(Path(site).absolute()) if site.endswith(".yaml") else site
    write_text(paths.submitted, yaml.safe_dump(config, sort_keys=False))
    return ["train", "--scale", options.scale, "--site", site, "--config", str(paths.submitted)]


def _train_here(config: dict[str, Any], paths: "RunFolder", site: "Site", stop: "StopRequest") -> int:
    from pipeline.config import Layers
    from pipeline.engine.run import parse_run
    from pipeline.engine.signals import CONTINUE_ME, Requeue
    from pipeline.engine.train import train_run

    run = parse_run(Layers((paths.name, config)))
    # A requeued job may find that the one before it has not ended yet, on a node that SLURM gave up.
    patience_s = 600 if "SUBMITIT_EXECUTOR" in os.environ else 0
    try:
        train_run(run, paths, site, stop, patience_s)
    except Requeue as request:
        if is_main_process():
            print(f"{request}; the same command continues", file=sys.stderr)
        return CONTINUE_ME
    return 0


def evaluate(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.config import Layers, parse
    from pipeline.engine.run import parse_run
    from pipeline.evals.base import EVALS
    from pipeline.evals.evaluate import evaluate_run
    from pipeline.site import load_site
    from pipeline.study.graph import load_graph

    graph = load_graph(options.scale)
    entry = graph.find("runs", options.run)
    run = parse_run(Layers((options.run, entry["config"])))
    keys = entry["groups"].get(options.group, [])
    configs = {key: graph.evals[key] for key in keys}
    evals = {key: parse(EVALS.get(cfg["name"]).Config, Layers((key, cfg))) for key, cfg in configs.items()}
    evaluate_run(run, options.group, evals, graph.results.run(run.name), load_site())


def table(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.files import write_json, write_text
    from pipeline.report import draw
    from pipeline.report.tables import fill_table
    from pipeline.study.graph import load_graph

    graph = load_graph(options.scale)
    filled = fill_table(graph, options.table, options.rows)
    path = graph.results.table(options.table, options.rows)
    for suffix, drawing in ((".csv", draw.to_csv), (".md", draw.to_markdown), (".html", draw.to_html)):
        write_text(path.with_name(options.table + suffix), drawing(filled))
    write_json(path, filled)


def claims(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.files import write_json
    from pipeline.report.tables import judge_study
    from pipeline.study.graph import load_graph

    graph = load_graph(options.scale)
    write_json(graph.results.claims(options.study, options.rows), judge_study(graph, options.study, options.rows))


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
    write_numbers(content[0], path)
    print(write_report(*content, path, title, graph.scale, subtitle))


def track(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.engine.signals import StopRequest
    from pipeline.site import load_site
    from pipeline.study.graph import load_graph
    from pipeline.track.follow import follow, mirror_once

    if options.follow:
        stop = StopRequest().listen()  # before MLflow is imported, which takes seconds
        follow(load_graph(options.scale), load_site(), stop)
    else:
        print(mirror_once(load_graph(options.scale), load_site()))


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
