"""`python -m pipeline <verb>`: what the rules call, and what people call by hand.

User mistakes end in one message and exit code 1; a run that was asked to stop exits with 75, which means "continue me".
"""

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pipeline.errors import PatchworkError, storage_problem

if TYPE_CHECKING:
    from pipeline.engine.signals import StopRequest
    from pipeline.results import RunFolder
    from pipeline.site import Site


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
    except BrokenPipeError:  # `... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if not (problem := storage_problem(error)):
            raise
        print(problem, file=sys.stderr)
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
    from pipeline import options

    return options.build_parser(
        {
            "check": check,
            "doctor": doctor,
            "plan": plan,
            "status": status,
            "summary": summary,
            "verify": verify,
            "clean": clean,
            "prepare": prepare,
            "train": train,
            "evaluate": evaluate,
            "table": table,
            "claims": claims,
            "report": report,
            "track": track,
        }
    )


def check(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.check import all_scales, check_configs
    from pipeline.verify import made_by_other_code

    for graph in check_configs([options.scale] if options.scale else all_scales()):
        for name, run in graph.runs.items() if options.scale else ():
            start = f", from {run.config['init']}" if run.config["init"] else ""
            print(f"{name:60} {run.label}{start}")
        for notice in made_by_other_code(graph):
            print(notice)
        print(f"scale {graph.scale}: configs are valid: {len(graph.runs)} runs, {len(graph.tables)} tables")


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
    print(
        f"scale {graph.scale}: {done} finished runs compared with what was recorded of them, {len(problems)} problems"
    )
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
    print(f"{data.name}: {found['splits']['train']['count']} + {found['splits']['val']['count']} images verified")


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

        return options.run, load_graph(options.scale).run(options.run).config
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
    from pipeline.study.targets import command_for

    graph = load_graph(options.scale)
    path = graph.results.report(options.rows)
    chosen, title, subtitle = graph.selected(options.rows), f"Patchwork, scale {graph.scale}", ""
    if len(chosen) < len(graph.tables):
        more = command_for("all", graph.scale)
        subtitle = f"{len(chosen)} of {len(graph.tables)} tables; `{more}` draws the others and every row."
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
    from pipeline.report.summary import summarise, summarise_targets
    from pipeline.study.graph import load_graph

    graph = load_graph(options.scale)
    print(summarise_targets(graph, options.targets) if options.targets else summarise(graph, options.rows))


def status(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.results import scales_with_results
    from pipeline.status import read_status
    from pipeline.study.graph import load_graph

    scales = [options.scale] if options.scale else scales_with_results()
    for scale in scales:
        print(read_status(load_graph(scale)), end="\n\n" if scale != scales[-1] else "\n")
    if not scales:
        print("nothing has run yet; `make demo` or `snakemake demo` runs the smallest scale")


def clean(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.clean import delete, find_leftovers
    from pipeline.results import scales_with_results
    from pipeline.study.graph import load_graph

    scales = [options.scale] if options.scale else scales_with_results()
    found = find_leftovers(map(load_graph, scales))
    print(found)
    if not found.items or options.dry_run:
        return
    if options.yes or _agrees("delete all of this?"):
        delete(found)
        print(f"deleted {len(found.items)} entries")
    else:
        print("nothing was deleted")


def _agrees(question: str) -> bool:
    """Whether a person says yes; without one, the answer is no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
