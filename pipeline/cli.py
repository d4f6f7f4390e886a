"""`python -m pipeline <verb>`: what the rules call, and what people call by hand.

User mistakes end in one message and exit code 1; a run that was asked to stop exits with 75, which means "continue me".
"""

import argparse
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.errors import CheckpointError, ConfigError, PatchworkError, storage_problem
from pipeline.logs import start_logging

if TYPE_CHECKING:
    from pipeline.freshness import Freshness
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
            "explain": explain,
            "clean": clean,
            "describe": describe,
            "prepare": prepare,
            "train": train,
            "evaluate": evaluate,
            "attack": attack,
            "key": key,
            "lock": lock,
            "unlock": unlock,
            "infer": infer,
            "table": table,
            "claims": claims,
            "report": report,
            "track": track,
            "frame": frame,
            "noise": noise,
        }
    )


def check(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.check import all_scales, check_configs, expanded_studies, runs_trained
    from pipeline.other_code import notices

    if options.expanded is not None:
        print(expanded_studies(options.expanded), end="")
        return
    for graph in check_configs([options.scale] if options.scale else all_scales()):
        trained = runs_trained(graph)
        for name, run in graph.runs.items() if options.scale else ():
            start = f", from {run.config['init']}" if run.config["init"] else ""
            note = ", not trained: no table shows it" if run.trained and name not in trained else ""
            print(f"{name:60} {run.label}{start}{note}")
        for notice in notices(graph):
            print(notice)
        figures = sum(table.figure is not None for table in graph.tables.values())
        tables = f"{len(graph.tables) - figures} tables, {figures} figures"
        print(f"scale {graph.scale}: configs are valid: {len(trained)} runs, {tables}")


def verify(options: argparse.Namespace, arguments: list[str]) -> int:
    from pipeline.config import shown
    from pipeline.freshness import Freshness
    from pipeline.other_code import accept_code, made_by_other_code
    from pipeline.report.words import counted
    from pipeline.site import load_site
    from pipeline.study.graph import load_graph
    from pipeline.verify import problems_of

    graph = load_graph(options.scale)
    for each in accept_code(graph, options.accept_code) if options.accept_code is not None else ():
        changes = ", ".join(f"{made_by} -> {today}" for made_by, today in each.changes)
        print(f"accepted: {each.kind} {each.name} {changes}; {shown(graph.results.accepted_code)}")
    problems = problems_of(Freshness(graph, load_site()))  # no digest is taken over: every byte is read
    for line in [*problems, *made_by_other_code(graph)]:
        print(line)
    done = sum(graph.results.run(name).done.exists() for name in graph.runs)
    print(f"scale {graph.scale}: {done} finished runs compared with their records, {counted(len(problems), 'problem')}")
    return int(bool(problems))


def explain(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.explain import explain as explained

    print(explained(_freshness(options.scale), options.number, options.key))


def prepare(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.data.kind import kind_of, reference_run, source_set
    from pipeline.data.prepare import fill_cache
    from pipeline.data.prepare import prepare as prepare_data
    from pipeline.launch.gpus import hold_gpus
    from pipeline.site import data_folder, load_site
    from pipeline.study.graph import load_graph
    from pipeline.study.planned import as_runs_see, data_of

    graph, site = load_graph(options.scale), load_site()
    data, sources = data_of(graph, options.data), None
    folder, out, seen = data_folder(site, data), graph.results.manifest(data.name).parent, as_runs_see(graph, data.name)
    if options.cache_only:
        if not site.cache:
            raise ConfigError("--cache-only writes to the folder that `cache` names in the site file; found none")
        fill_cache(data, folder, out, site.cache, site.workers, seen=seen)
        print(f"{data.name}: the cache in {site.cache} has all that runs of scale {options.scale} see")
        return
    if source_set(data):  # needs torch, which verifying a set does not
        from pipeline.study.planned import sources_of

        sources = sources_of(graph, site)
    job_log = graph.results.log("prepare_data", data.name)
    with hold_gpus(site, int(reference_run(data) is not None), job_log):
        found = prepare_data(data, folder, out, site.workers, sources=sources, cache=site.cache, seen=seen)
    counts = " + ".join(str(split.count) for split in found.splits.values())
    print(f"{data.name}: {counts} {kind_of(data).unit} verified")


def describe(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.config import Layers, parse, shown
    from pipeline.data.describe import Choices, config_path, write_config
    from pipeline.data.describe import describe as describe_folder
    from pipeline.site import load_site

    site, folder = load_site(), options.folder.expanduser().absolute()
    given = {key: getattr(options, key) for key in Choices.model_fields}
    found = describe_folder(folder, parse(Choices, Layers(("command line", given))), workers=site.workers)
    has_changed = write_config(found, options.force)
    print(f"{found.summary}; {'wrote' if has_changed else 'unchanged:'} {shown(config_path(options.name))}")
    if site.data.get(options.name) != folder:
        print(f"next: name the folder in the site file (`data: {{{options.name}: {folder}}}`)")


def train(options: argparse.Namespace, arguments: list[str]) -> int:
    from pipeline.launch.train import train as train_run

    return train_run(options.scale, options.run, options.config)


def evaluate(options: argparse.Namespace, arguments: list[str]) -> int:
    from pipeline.evals.evaluate import evaluate_job
    from pipeline.launch.gpus import hold_gpus
    from pipeline.launch.memory import explain_memory
    from pipeline.site import load_site
    from pipeline.study.graph import load_for_job
    from pipeline.study.planned import planned_evaluations

    if options.model:
        return _evaluate_model(options)
    if options.weights or options.evaluations or options.train:
        raise ConfigError("--weights, --train and names of evaluations go with --model; a job has its own")
    graph, site = load_for_job(options.scale or "demo", options.job), load_site()
    needs, job_log = graph.eval_job(options.job).needs, graph.results.log("evaluate", options.job)
    computes_on = site if needs.gpu else site.model_copy(update={"device": "cpu"})  # `device: cuda` would find no GPU
    with hold_gpus(site, int(needs.gpu), job_log), explain_memory(f"evaluation job {options.job}", site):
        evaluate_job(options.job, planned_evaluations(graph, options.job), graph.results, computes_on)
    return 0


def _evaluate_model(options: argparse.Namespace) -> int:
    from pipeline.launch.gpus import hold_gpus
    from pipeline.launch.memory import explain_memory
    from pipeline.results import results_of
    from pipeline.site import load_site

    site, job_log = load_site(), results_of(options.scale or "paper").log("evaluate", options.model)
    with hold_gpus(site, 1, job_log), explain_memory(f"model {options.model}", site):
        return _print_evaluations(options, site)


def _print_evaluations(options: argparse.Namespace, site: "Site") -> int:
    from pipeline.config import shown
    from pipeline.study.foreign import evaluate_foreign

    wanted, count, scale = options.evaluations or ["robustness"], 0, options.scale or "paper"
    for found in evaluate_foreign(options.model, options.weights, wanted, scale, site, options.train):
        if found.result is None or found.file is None:
            print(f"{found.name:16} n/a: {found.reason}", flush=True)
            continue
        count += 1
        for metric, value in found.result.metrics.items():
            error = found.result.errors.get(metric)
            spread = f" +/- {error:.2f}" if error else ""
            number = f"n/a: {found.result.reasons.get(metric, '')}" if value is None else f"{value:10.2f}{spread}"
            print(f"{found.name:16} {metric:24} {number}")
        print(f"{found.name:16} {found.result.count or 0} images; {shown(found.file)}", flush=True)
    return int(not count)


def attack(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.site import load_site
    from pipeline.study.attack import Wish, attack_images

    wish = Wish(**{key: getattr(options, key) for key in Wish.__dataclass_fields__})
    for number, report in enumerate(attack_images(wish, load_site())):
        print(f"{chr(10) if number else ''}{report}", flush=True)


def key(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.permutation import authorise
    from pipeline.permutation.keys import new_key, write_key

    if options.what == "recover":
        return _recover(options)
    if options.out is None:
        raise ConfigError("key new: --out is missing; name the key to write, such as --out vit.key")
    plan = authorise.plan_key(options.like, options.heads, options.model)
    drawn = new_key(plan.shape, options.kind or ("shared" if plan.are_alike else "independent"))
    made = replace(drawn, architecture=plan.architecture, names=plan.names)
    write_key(made, options.out)
    print(f"{options.out}: {authorise.described(made)}")
    print("keep a copy of it where nobody else can read it: without the key, a locked model cannot be unlocked")


def _recover(options: argparse.Namespace) -> None:
    from pipeline.permutation.authorise import described, plan_key
    from pipeline.permutation.keys import write_key
    from pipeline.permutation.known_weights import recover_key

    if options.locked is None:
        raise ConfigError("key recover: --locked is missing; name the file whose key is to be found")
    plan = plan_key(options.like, options.heads, options.model)
    found = recover_key(options.locked, options.like, plan.shape)
    if found.is_confirmed is False:
        raise CheckpointError(
            f"the key of {options.locked} was not found: {options.like} and the locked model resemble each other too "
            "little for it, and no key was written; expected the original, or a model that was trained from it"
        )
    print(f"found in {found.seconds:.1f} s: {described(found.key)}")
    print(f"smallest lead of a column over the next: {found.margin:.3f}")
    print("the original and this key give the locked file " + ("bit for bit" if found.is_exact else "only nearly"))
    if found.is_confirmed:
        print("it is the key that the file names")
    if options.out:
        write_key(replace(found.key, architecture=plan.architecture, names=plan.names), options.out)
        print(f"wrote {options.out}")


def lock(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.permutation import authorise
    from pipeline.permutation.keys import read_key

    found = read_key(options.key)
    authorise.lock(options.model, found, options.out)
    print(f"locked {options.model} as {options.out}")
    print(authorise.described(found))
    for line in authorise.LIMITS:
        print(line)


def unlock(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.permutation import authorise
    from pipeline.permutation.keys import read_key

    authorise.unlock(options.model, read_key(options.key), options.out)
    print(f"unlocked {options.model} as {options.out}")


def infer(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.engine.distributed import device_of
    from pipeline.permutation.infer import classify_image
    from pipeline.permutation.infer_text import answer_text
    from pipeline.permutation.keys import read_key
    from pipeline.site import load_site

    found, device = read_key(options.key), device_of(load_site().device)
    if options.image:
        guesses = classify_image(options.locked, found, options.image, options.model, device)
    else:
        guesses = answer_text(options.locked, found, options.text, device)
    for guess in guesses:
        print(f"{guess.probability:8.2%}  {guess.name}")


def table(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.report.drawing import draw_table

    draw_table(_freshness(options.scale), options.table, options.rows)


def claims(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.report.drawing import judge_claims

    judge_claims(_freshness(options.scale), options.study, options.rows)


def report(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.report.drawing import draw_report

    print(draw_report(_freshness(options.scale), options.rows))


def _freshness(scale: str) -> "Freshness":
    from pipeline.freshness import open_freshness
    from pipeline.site import load_site
    from pipeline.study.graph import load_graph

    return open_freshness(load_graph(scale), load_site())


def frame(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.frame import UNNAMED
    from pipeline.frame import frame as read_frame
    from pipeline.report.words import shown_again
    from pipeline.study.targets import command_for

    found = read_frame(options.scale)
    print(found.to_csv(index=False), end="")
    if stale := found[~found.stale.isin(["", UNNAMED])].file.nunique():
        line = shown_again(stale, command_for("all", options.scale))
        print(f"{line}; column `stale` says why", file=sys.stderr)


def noise(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.config import shown
    from pipeline.report.seed_noise import write_noise
    from pipeline.report.tables import fill_table

    freshness = _freshness(options.scale)
    graph = freshness.graph
    tables = [fill_table(graph, key, options.rows, freshness) for key in graph.selected(options.rows)]
    print(f"wrote {shown(write_noise(graph, tables))}")


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

    print(make_plan(_freshness(options.scale), options.targets))


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

    freshness = _freshness(options.scale)
    print(summarise_targets(freshness, options.targets) if options.targets else summarise(freshness, options.rows))


def status(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.results import scales_with_results
    from pipeline.status import read_status

    scales = [options.scale] if options.scale else scales_with_results()
    for scale in scales:
        print(read_status(_freshness(scale)), end="\n\n" if scale != scales[-1] else "\n")
    if not scales:
        print("nothing has run yet; `make demo` or `snakemake demo` runs the smallest scale")


def clean(options: argparse.Namespace, arguments: list[str]) -> None:
    from pipeline.clean import delete, find_leftovers
    from pipeline.results import scales_with_results

    scales = [options.scale] if options.scale else scales_with_results()
    found = find_leftovers(map(_freshness, scales))
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
