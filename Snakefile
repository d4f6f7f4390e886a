# Patchwork: from configs to tables. Which runs and tables there are, configs/study and configs/scale say.
#   results/{scale}/data/{data}/manifest.json        a verified data set
#   results/{scale}/runs/{run}/train.json            a trained run
#   results/{scale}/evals/{job}.json                 evaluations that share a process; each has a folder of its own
#   results/{scale}/tables/{rows}/{table}.json       a filled table; {rows} is headline (the demo) or all
#   results/{scale}/figures/{rows}/{table}.json      a figure
#   results/{scale}/report/{rows}.html               the report; {rows} is also the name of a study, for its own
from snakemake.logging import logger
from snakemake.utils import min_version
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from pipeline.freshness.other_code import notices
from workflow.console import Console
from workflow.follower import Follower
from workflow.live_line import LiveLine
from workflow.unstarted import resubmit_unstarted

min_version("9.27")


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"


localrules:
    all,
    demo,
    headline,


rule all:
    default_target: True
    input:
        f"results/{SCALE}/report/all.html",


rule demo:
    input:
        "results/demo/report/headline.html",


# Few rows that decide the papers' main claims: `headline` of configs/study, or `headline_at` of this scale.
rule headline:
    input:
        f"results/{SCALE}/report/headline.html",


include: "workflow/rules/targets.smk"


# What is registered last comes first: the lock.
if DERIVED:
    invocation.before_execution(workflow, lambda: or_message(DERIVED.write, SCALE))
# In place of Snakemake's own lock, which outlives a killed Snakemake and would refuse the next one.
invocation.before_execution(
    workflow,
    lambda: or_message(
        hold_for_life, graph(SCALE).results.workflow_lock, f"scale {SCALE}"
    ),
)
if CALL.executor == "slurm":
    resubmit_unstarted(ExecutorPluginRegistry().get_plugin("slurm").executor)
OUTPUT = workflow.output_settings
CONSOLE = Console(OUTPUT.dryrun, OUTPUT.printshellcmds, when_idle=show_tables)
LIVE_LINE = LiveLine(workflow, lambda: graph(SCALE))
if not CALL.is_job:
    invocation.ignore_repeated_interrupts()
    CONSOLE.install()
    LIVE_LINE.install()
# MLflow follows the results in the background. Dry runs and the processes of jobs call no hooks.
FOLLOWER = Follower(SCALE)


onstart:
    or_message(require_space, graph(SCALE).results.folder, 0, "the workflow")
    for notice in notices(graph(SCALE)):
        logger.warning(notice)
    freshness(SCALE).digests.keep()
    or_message(FOLLOWER.start)


onsuccess:
    LIVE_LINE.stop()
    logger.info(FOLLOWER.stop())
    show_tables()


onerror:
    LIVE_LINE.stop()
    logger.info(FOLLOWER.stop())
    logger.info(
        f"interrupted; the same command continues: {CALL.command}"
        if CONSOLE.was_interrupted
        else f"`python -m pipeline status --scale {SCALE}` lists what failed; the same command tries it again"
    )
    # The log of a rule that failed for want of space is empty.
    or_message(require_space, graph(SCALE).results.folder, 0, "the workflow")
