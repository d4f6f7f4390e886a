# Look-ups for the rules: what depends on what comes from the graph that the studies make.
import functools
import math

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

from pipeline.data.kind import kind_of, made_from, made_with
from pipeline.data.opening import prepared_from
from pipeline.errors import PatchworkError, storage_problem
from pipeline.files import hold_for_life, require_space
from workflow.restore import adopt_restored
from pipeline.site import Slurm, choose_site, named_folder, site_file, weights_path
from pipeline.report.freshness import (
    claims_fingerprint,
    report_fingerprint,
    table_fingerprint,
)
from pipeline.report.summary import summarise_targets
from pipeline.results import drawn_in
from pipeline.study.graph import load_graph
from pipeline.study.planned import data_of
from pipeline.study.targets import target_name, targets_of
from pipeline.verify import forget_unfinished_jobs
from workflow import invocation

CALL = invocation.read_invocation(workflow)
SCALE = config.get("scale", "demo")


wildcard_constraints:
    scale=r"[a-z0-9_]+",
    rows="headline|all",
    run=r"[\w-]+",
    job=r"[\w-]+",
    table=r"\w+\.[tf]\w+",
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
if not CALL.is_job:
    for job in or_message(forget_unfinished_jobs, graph(SCALE)):
        logger.warning(f"{job}: a result is missing or changed; it is evaluated again")
SITE_NAME = invocation.choose_site_name(workflow, config)
SITE = or_message(choose_site, SITE_NAME)
or_message(invocation.check_site, SITE, SITE_NAME, CALL.executor)
invocation.take_all_cores(workflow)
if not workflow.output_settings.dryrun:
    or_message(invocation.check_writable, graph(SCALE).results.folder)
if not CALL.is_job:
    logger.info(f"scale {SCALE}, site {SITE_NAME}, executor {CALL.executor}")
SLURM = SITE.slurm or Slurm()
QUEUE = {
    "slurm_partition": SLURM.partition or "",
    "slurm_account": SLURM.account or "",
    "slurm_extra": " ".join(f"--{key}={value}" for key, value in SLURM.options.items()),
    "mem_mb": SLURM.memory_gb * 1000,
}
CPU_PARTITION = SLURM.cpu_partition or QUEUE["slurm_partition"]


def prepare_params(wildcards):
    """Other counts prepare again, and so does a folder with other images; the same data elsewhere does not."""
    known = graph(wildcards.scale)
    data = or_message(data_of, known, wildcards.data)
    index = known.results.manifest(data.name).parent
    folder = prepared_from(data, named_folder(SITE, data), index)
    return {"folder": folder, **{key: getattr(data, key) for key in data.counted}}


def prepare_inputs(wildcards):
    """What a set is made from: another set, and the run that chooses its images; nothing where it is published."""
    data = or_message(data_of, graph(wildcards.scale), wildcards.data)
    folder = named_folder(SITE, data)
    if not made_from(data) or (folder and kind_of(data).is_there(folder)):
        return []
    chosen = (
        [f"results/{{scale}}/runs/{made_with(data)}/train.json"]
        if made_with(data)
        else []
    )
    return [f"results/{{scale}}/data/{made_from(data)}/manifest.json", *chosen]


def prepare_priority(wildcards):
    """What runs train on goes before what is only evaluated on: a training that begins last would run alone."""
    known = graph(wildcards.scale).runs.values()
    return 30 if wildcards.data in {run.data for run in known} else 0


def train_inputs(wildcards):
    run = run_of(wildcards)
    init = [f"results/{{scale}}/runs/{run.init}/train.json"] if run.init else []
    return [f"results/{{scale}}/data/{run.data}/manifest.json", *init]


def train_priority(wildcards):
    """What others start from goes first: a chain that begins last would run alone."""
    known = graph(wildcards.scale).runs.values()
    return 20 if wildcards.run in {run.init for run in known} else 10


def eval_job(wildcards):
    return or_message(graph(wildcards.scale).eval_job, wildcards.job)


def eval_configs(wildcards):
    """Which evaluations a job computes; their names change with their configs, subjects and data."""
    return eval_job(wildcards).evaluations


def evaluate_inputs(wildcards):
    """Trained runs, weight files, data sets, and files of the site that are there."""
    known, job = graph(wildcards.scale), eval_job(wildcards)
    trained = [run for run in job.runs if known.runs[run].trained]
    files = [known.runs[run].config["init"] for run in job.runs if run not in trained]
    paths = [weights_path(SITE, file) for file in files]
    named = [site_file(SITE, key) for key in job.site_files]
    # With a missing input, Snakemake would take tables that exist for current; the job says which file is missing.
    is_done = known.results.eval_job(wildcards.job).exists()
    return [
        *(f"results/{{scale}}/runs/{run}/train.json" for run in trained),
        *(f"results/{{scale}}/data/{data}/manifest.json" for data in job.data),
        *(str(path) for path in paths if is_done or path.exists()),
        *(str(path) for path in named if path and path.exists()),
    ]


def evaluate_gres(wildcards):
    return f"{SLURM.gres}:1" if SLURM.gres and eval_job(wildcards).needs.gpu else ""


def evaluate_partition(wildcards):
    needs = eval_job(wildcards).needs
    return QUEUE["slurm_partition"] if needs.gpu else CPU_PARTITION


def evaluate_memory(wildcards):
    return 1000 * (eval_job(wildcards).needs.memory_gb or SLURM.memory_gb)


def evaluate_minutes(wildcards):
    return math.ceil(60 * eval_job(wildcards).needs.hours)


def drawn(table, scale="{scale}", rows="{rows}"):
    """The file of a table or figure."""
    return f"results/{scale}/{drawn_in(table)}/{rows}/{table}.json"


def table_inputs(wildcards):
    files = graph(wildcards.scale).files(wildcards.table, wildcards.rows)
    return [f"results/{{scale}}/{file}" for file in files]


def table_params(wildcards):
    return table_fingerprint(graph(wildcards.scale), wildcards.table)


def claims_inputs(wildcards):
    tables = graph(wildcards.scale).judged_on(wildcards.study, wildcards.rows)
    return [drawn(table) for table in tables]


def claims_params(wildcards):
    return claims_fingerprint(graph(wildcards.scale), wildcards.study)


def report_params(wildcards):
    return report_fingerprint(graph(wildcards.scale), wildcards.rows)


def report_inputs(wildcards):
    known = graph(wildcards.scale)
    tables = known.selected(wildcards.rows)
    files = [drawn(table) for table in tables]
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
