"""`python -m pipeline evaluate`."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.commands.options import add_model_of_timm, add_scale, add_site, named_model
from pipeline.core.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.site import Site


SUMMARY = "compute the evaluations of one job, or of any timm model; finished ones are not repeated"
DETAILS = (
    "With --job, this is a step of the workflow. With --model, no run is needed: `evaluate --model resnet50.a1_in1k "
    "robustness` downloads timm's weights, `evaluate --model deit_small_patch16_224 --weights deit.pth robustness` "
    "reads them from a file, `evaluate --model vit_base_patch16_224 --weights moco.pth.tar --train "
    "position_probe` trains a probe on the model's features, `evaluate --model vit_tiny_patch16_224 --weights "
    "mine.safetensors --data photos` evaluates on a folder with one folder per class. The command prepares the data "
    "sets that it needs, reports those that are missing on this site, and prints every number with its standard error."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--job", help="name of a job, which is a run and a group of evaluations, such as RUN-quick; `status` lists jobs"
    )
    which.add_argument("--model", metavar="NAME", help="a timm model, such as resnet50 or vit_base_patch16_224.mae")
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="with --model: its weights, safetensors or .pth (default: timm's own, downloaded)",
    )
    add_model_of_timm(parser)
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        help="with --model: a folder with one folder per class, which in alphabetical order are the outputs of the "
        "model; or the name of a file in configs/data (default: the set of the scale)",
    )
    parser.add_argument(
        "--train",
        action="store_true",
        help="with --model: also use the train split, from which linear_probe, knn and position_probe learn",
    )
    parser.add_argument(
        "evaluations",
        nargs="*",
        metavar="EVALUATION",
        help="with --model: names of files in configs/eval, such as adversarial, or of a group (default: robustness; "
        "with --data: classify)",
    )
    add_scale(parser, None, "demo with --job, paper with --model")
    add_site(parser)


def run(options: argparse.Namespace) -> int:
    if options.model:
        return _evaluate_model(options)
    of_model = ("weights", "evaluations", "train", "data", "settings", "may_resample", "mean", "std")
    if any(getattr(options, name) for name in of_model):
        raise ConfigError(
            "--weights, --data, --train, --set, --resample-positions, --mean, --std and names of evaluations are "
            "for --model; a job has its own"
        )
    return _evaluate_job(options)


def _evaluate_job(options: argparse.Namespace) -> int:
    from pipeline.evals.evaluate import evaluate_job
    from pipeline.launch.gpus import hold_gpus
    from pipeline.launch.memory import explain_memory
    from pipeline.site import load_site
    from pipeline.study.resolve.graph import load_for_job
    from pipeline.study.resolve.graph_configs import planned_evaluations

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
    from pipeline.core.config import shown
    from pipeline.standalone.foreign import CLEAN, Foreign, chosen_evaluations, evaluate_foreign

    chosen, count = chosen_evaluations(options.evaluations or [CLEAN if options.data else "robustness"]), 0
    foreign = Foreign.of(named_model(options), options.data, options.scale or "paper", site, options.train)
    for title, text in foreign.lines():
        print(f"{title:16} {text}", flush=True)
    for found in evaluate_foreign(foreign, chosen):
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
