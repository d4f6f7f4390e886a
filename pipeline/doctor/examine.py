"""Can this site run this scale? Every check, in the order in which one would fix what they find."""

from collections.abc import Callable, Iterator

from pipeline.core.config import shown
from pipeline.core.errors import PatchworkError
from pipeline.doctor import cluster, data, job, machine
from pipeline.doctor.finding import Finding, Subject, failed
from pipeline.site import Site, site_path
from pipeline.study.resolve.entries import Graph

Check = Callable[[Subject], Iterator[Finding]]
HERE: list[Check] = [machine.packages, machine.device, machine.results_folder]
DATA: list[Check] = [data.data_root, data.data_sets, data.weights, data.lpips]
LATER: list[Check] = [machine.tracking, machine.space]
CLUSTER: list[Check] = [
    cluster.commands,
    cluster.queue,
    cluster.partitions,
    cluster.account,
    cluster.resources,
    job.try_job,
]


def examine(graph: Graph, site: Site) -> Iterator[Finding]:
    """Each finding as soon as it is known."""
    subject = Subject(graph, site, shown(site_path()))
    for check in [*HERE, *DATA, *LATER]:
        yield from _carefully(check, subject)
    for check in CLUSTER if site.slurm else []:
        found = [*_carefully(check, subject)]
        yield from found
        # A cluster without its commands, or that does not answer, can tell nothing more.
        if check in (cluster.commands, cluster.queue) and found[0].state == "failed":
            return


def _carefully(check: Check, subject: Subject) -> Iterator[Finding]:
    """A check that meets an error of ours has found something, and the next ones still run."""
    try:
        yield from check(subject)
    except PatchworkError as error:
        yield failed(check.__name__.replace("_", " "), str(error), "fix it, then run this again")


def summary(findings: list[Finding]) -> str:
    counts = {
        state: sum(finding.state == state for finding in findings) for state in ("ok", "failed", "not applicable")
    }
    verdict = "fix what failed, then run this again" if counts["failed"] else "this site can run this scale"
    return f"{', '.join(f'{count} {state}' for state, count in counts.items())}: {verdict}"
