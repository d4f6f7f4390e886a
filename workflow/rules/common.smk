# The call and the configs, checked before the graph of jobs is built. What depends on what: workflow/dependencies.py.
import functools

from snakemake.logging import logger

from pipeline.core.files import hold_for_life, require_space
from pipeline.freshness.remake import Freshness, open_freshness
from pipeline.freshness.outputs import files_of_targets, table_file
from pipeline.core.naming import NAME, PLAIN_NAME
from pipeline.report.summary import summarise_targets
from pipeline.site import choose_site
from pipeline.study.resolve.graph import load_graph
from pipeline.study.targets import target_name, targets_of
from workflow import invocation
from workflow.dependencies import Dependencies, or_message

CALL = invocation.read_invocation(workflow)
SCALE = or_message(invocation.choose_scale, workflow, config, CALL.targets)


wildcard_constraints:
    scale=PLAIN_NAME,
    rows="headline|all",
    run=NAME,
    job=NAME,
    table=rf"{PLAIN_NAME}\.[tf]\w+",
    study=PLAIN_NAME,


or_message(invocation.check_config, config)
# With --config set=...: a study derived from that of the targets. The processes of jobs find its file.
DERIVED = (
    or_message(invocation.derive_study, SCALE, CALL.targets, config["set"])
    if "set" in config and not CALL.is_job
    else None
)


@functools.cache
def graph(scale):
    return or_message(DERIVED.graph if DERIVED else load_graph, scale)


graph(SCALE)
SITE_NAME = invocation.choose_site_name(workflow, config)
SITE = or_message(choose_site, SITE_NAME)
or_message(invocation.check_site, SITE, SITE_NAME, CALL.executor)
invocation.take_all_cores(workflow)
or_message(invocation.limit_gpus, workflow, SITE)
if not workflow.output_settings.dryrun:
    or_message(invocation.check_writable, graph(SCALE).results.folder)
if not CALL.is_job:
    logger.info(f"scale {SCALE}, site {SITE_NAME}, executor {CALL.executor}")
    if DERIVED:
        logger.info(DERIVED.notice)


@functools.cache
def freshness(scale):
    return open_freshness(graph(scale), SITE)


def force(file):
    """Snakemake then runs the job behind a file; it asks for a job's inputs before it decides what to run."""
    if not CALL.is_job:
        workflow.dag.forcefiles.add(file)


JOBS = Dependencies(freshness, SITE, force)
TARGETS = files_of_targets(graph(SCALE))
if DERIVED:
    TARGETS = DERIVED.redirect(TARGETS, graph(SCALE))
if not CALL.is_job:
    PROBLEMS = or_message(
        invocation.problems_of, freshness(SCALE), CALL.targets, TARGETS
    )
    for line in PROBLEMS:
        logger.warning(line)
    for line in invocation.overrides_of(graph(SCALE), CALL.targets):
        logger.info(line)


def show_tables():
    """Print the tables behind the targets of the command line, as they are now."""
    wanted = CALL.targets or ["all"]
    names = [name for name in wanted if name in targets_of(graph(SCALE))]
    if names:
        names = [DERIVED.target(name) if DERIVED else name for name in names]
        now = Freshness(graph(SCALE), SITE, freshness(SCALE).digests)
        print(or_message(summarise_targets, now, names), flush=True)
        or_message(now.digests.keep)
