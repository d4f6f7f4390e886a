# Look-ups for the rules: what depends on what comes from the graph that the studies make.
import functools

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from pipeline.data.sources import DataConfig, prepared_from
from pipeline.errors import PatchworkError, storage_problem
from pipeline.files import hold_for_life, require_space
from workflow.restore import adopt_restored
from pipeline.site import Slurm, choose_site, named_folder
from pipeline.report.freshness import (
    claims_fingerprint,
    report_fingerprint,
    table_fingerprint,
)
from pipeline.report.summary import summarise_targets
from pipeline.study.graph import load_graph
from pipeline.study.targets import target_name, targets_of
from workflow import invocation

CALL = invocation.read_invocation(workflow)
SCALE = config.get("scale", "demo")


wildcard_constraints:
    scale=r"[a-z0-9_]+",
    rows="headline|all",
    run=r"[\w-]+",
    table=r"\w+\.t\w+",
    study=r"[a-z0-9_]+",


def or_message(function, *arguments):
    """A user's mistake stops the workflow with its message, without a traceback."""
    try:
        return function(*arguments)
    except PatchworkError as error:
        raise WorkflowError(str(error)) from None
    except OSError as error:
        if not (problem := storage_problem(error)):
            raise
        raise WorkflowError(problem) from None


@functools.cache
def graph(scale):
    return or_message(load_graph, scale)


def run_of(wildcards):
    return or_message(graph(wildcards.scale).run, wildcards.run)


# Everything that a user wrote is read and checked here, before the graph of jobs is built.
or_message(invocation.check_config, config)
graph(SCALE)
or_message(adopt_restored, SCALE)
SITE_NAME = invocation.choose_site_name(workflow, config)
SITE = or_message(choose_site, SITE_NAME)
or_message(invocation.check_site, SITE, SITE_NAME, CALL.executor)
invocation.take_all_cores(workflow)
if not workflow.output_settings.dryrun:
    or_message(invocation.check_writable, graph(SCALE).results.folder)
if not CALL.is_job:
    logger.info(f"scale {SCALE}, site {SITE_NAME}, executor {CALL.executor}")
SLURM = SITE.slurm or Slurm()
COUNTED = {"source", "num_train", "num_val", "num_classes", "val_share"}
QUEUE = {
    "slurm_partition": SLURM.partition or "",
    "slurm_account": SLURM.account or "",
    "slurm_extra": " ".join(f"--{key}={value}" for key, value in SLURM.options.items()),
    "mem_mb": SLURM.memory_gb * 1000,
}


def prepare_params(wildcards):
    """Other counts prepare again, and so does a folder with other images; the same data elsewhere does not."""
    known = graph(wildcards.scale)
    run = or_message(known.run_with_data, wildcards.data)
    data = DataConfig(**run.config["data"])
    index = known.results.manifest(data.name).parent
    folder = prepared_from(data, named_folder(SITE, data), index)
    return {"folder": folder, **data.model_dump(include=COUNTED)}


def train_inputs(wildcards):
    run = run_of(wildcards)
    init = [f"results/{{scale}}/runs/{run.init}/train.json"] if run.init else []
    return [f"results/{{scale}}/data/{run.data}/manifest.json", *init]


def train_priority(wildcards):
    """What others start from goes first: a chain that begins last would run alone."""
    known = graph(wildcards.scale).runs.values()
    return 20 if wildcards.run in {run.init for run in known} else 10


def eval_configs(wildcards):
    return graph(wildcards.scale).evaluations(wildcards.run, wildcards.group)


def evaluate_inputs(wildcards):
    """The run, and those that an evaluation does together with it."""
    partners = graph(wildcards.scale).partners(wildcards.run, wildcards.group)
    runs = [wildcards.run, *partners]
    return [f"results/{{scale}}/runs/{run}/train.json" for run in runs]


def table_inputs(wildcards):
    files = graph(wildcards.scale).files(wildcards.table, wildcards.rows)
    return [f"results/{{scale}}/{file}" for file in files]


def table_params(wildcards):
    return table_fingerprint(graph(wildcards.scale), wildcards.table)


def claims_inputs(wildcards):
    tables = graph(wildcards.scale).selected(wildcards.rows, wildcards.study)
    return [f"results/{{scale}}/tables/{{rows}}/{table}.json" for table in tables]


def claims_params(wildcards):
    return claims_fingerprint(graph(wildcards.scale), wildcards.study)


def report_params(wildcards):
    return report_fingerprint(graph(wildcards.scale), wildcards.rows)


def report_inputs(wildcards):
    known = graph(wildcards.scale)
    tables = known.selected(wildcards.rows)
    files = [f"results/{{scale}}/tables/{{rows}}/{table}.json" for table in tables]
    return files + [
        f"results/{{scale}}/tables/{{rows}}/{study}.claims.json"
        for study in known.studies()
    ]


def show_tables():
    """Print the tables behind the targets of the command line."""
    wanted = CALL.targets or ["all"]
    names = [name for name in wanted if name in targets_of(graph(SCALE))]
    if names:
        print(or_message(summarise_targets, graph(SCALE), names), flush=True)
