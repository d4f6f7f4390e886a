"""`python -m pipeline track`: bring MLflow up to date once, or keep it up to date while Snakemake works.

Training never waits for MLflow and never talks to it: this one process reads the files that all jobs write. It may be
killed at any time and started again, and the server may come and go.
"""

import logging
import time
from contextlib import AbstractContextManager, ExitStack

from pipeline.core.errors import DataError, LaunchError
from pipeline.core.files import held, is_held
from pipeline.engine.signals import StopRequest
from pipeline.site import Site
from pipeline.study.resolve.entries import Graph
from pipeline.tracking.mirror import Mirror
from pipeline.tracking.page import curves_of, how_to_open
from pipeline.tracking.store import answering, tracking_uri, without_password
from pipeline.tracking.workers import Workers

log = logging.getLogger(__name__)

PAUSE_S = 3.0
LONGEST_PAUSE_S = 60.0
LOOK_S = 0.5  # how often a pause checks whether the work is over
ENDING_S = 10.0  # how long a run that was told to stop may take for its last checkpoint


def mirror_once(graph: Graph, site: Site) -> str:
    """Bring MLflow up to date with the results of one scale; returns what it has now and how to see it."""
    uri = tracking_uri(site, graph.results)
    with _sole_mirror(graph), answering(uri):
        mirror = Mirror(graph, uri, Workers(graph.results, site))
        mirror.update()
        mirror.runs.end_stopped()
    if mirror.damaged:
        raise DataError("\n".join(mirror.damaged.values()))
    return _outcome(mirror, uri)


def follow(graph: Graph, site: Site, stop: StopRequest) -> None:
    """Mirror until asked to stop or until Snakemake has ended, and then once more."""
    with ExitStack() as stack:
        try:
            stack.enter_context(_sole_mirror(graph))
        except LaunchError:
            log.info("another process mirrors scale %s into MLflow already; there is nothing to do", graph.scale)
            return
        _Follower(graph, site, stop).run()


class _Follower:
    """Passes over the results, with a pause between them that grows while MLflow does not answer."""

    def __init__(self, graph: Graph, site: Site, stop: StopRequest) -> None:
        self.graph, self.site, self.stop = graph, site, stop
        self.uri = tracking_uri(site, graph.results)
        self.mirror: Mirror | None = None
        self.pause_s = PAUSE_S
        self.caught_up_at = 0.0  # when the last pass that succeeded began

    def run(self) -> None:
        while not self._is_over():
            self._pass()
            deadline = time.monotonic() + self.pause_s
            while not self._is_over() and time.monotonic() < deadline:
                time.sleep(LOOK_S)
        self._last_pass()
        self._log_exit()

    def _is_over(self) -> bool:
        return self.stop.is_raised or not is_held(self.graph.results.workflow_lock)

    def _last_pass(self) -> None:
        """Mirror once more, and end the runs that were killed."""
        # After SIGTERM, Snakemake has stopped its runs; if it was killed itself, they may go on for days.
        deadline = time.monotonic() + (ENDING_S if self.stop.is_raised else 0)
        while self._pass(is_last=True) and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def _pass(self, is_last: bool = False) -> int:
        """Returns the number of runs that go on, if this is the last pass."""
        began, going_on = time.time(), 0
        try:
            with answering(self.uri):
                self.mirror = self.mirror or Mirror(self.graph, self.uri, Workers(self.graph.results, self.site))
                self.mirror.update()
                going_on = self.mirror.runs.end_stopped() if is_last else 0
        except LaunchError as error:
            if self.pause_s == PAUSE_S:
                log.warning("%s; trying again until the workflow ends", error)
            self.mirror, self.pause_s = None, min(2 * self.pause_s, LONGEST_PAUSE_S)
        else:
            if self.pause_s > PAUSE_S:
                log.info("MLflow answers again and is up to date")
            self.pause_s, self.caught_up_at = PAUSE_S, began
        return going_on

    def _log_exit(self) -> None:
        if self.mirror:
            log.info("%s", _outcome(self.mirror, self.uri))
            return
        behind = [name for name in _begun_runs(self.graph) if _changed_at(self.graph, name) >= self.caught_up_at]
        log.warning(
            "MLflow at %s still lacks: %s; when it answers, `python -m pipeline track --scale %s` catches up",
            *(without_password(self.uri), ", ".join(behind) or "the newest tables", self.graph.scale),
        )


def _sole_mirror(graph: Graph) -> AbstractContextManager[None]:
    """Two at once would each find the same points missing."""
    return held(graph.results.track_lock, f"mirroring scale {graph.scale} into MLflow")


def _outcome(mirror: Mirror, uri: str) -> str:
    """One line: Snakemake shows the last line of the log."""
    see = how_to_open(without_password(uri), curves_of(mirror.runs.experiment.id))
    return f"MLflow has everything; runs so far: {len(_begun_runs(mirror.graph))}; to see the curves, {see}"


def _begun_runs(graph: Graph) -> list[str]:
    folders = [graph.results.run(name) for name in graph.runs]
    return [folder.name for folder in folders if folder.started.exists()]


def _changed_at(graph: Graph, name: str) -> float:
    folder = graph.results.run(name).folder
    return max(path.stat().st_mtime for path in folder.rglob("*"))
