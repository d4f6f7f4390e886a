"""`python -m pipeline track`: bring MLflow up to date once, or go on doing so while Snakemake works.

Training never waits for MLflow and never talks to it: this one process reads the files that all jobs write. It may be
killed at any time and started again, and the server may come and go.
"""

import logging
import time
from contextlib import ExitStack
from typing import Any

from pipeline.engine.signals import StopRequest
from pipeline.errors import DataError, LaunchError
from pipeline.files import held, is_held
from pipeline.site import Site
from pipeline.study.entries import Graph
from pipeline.track.mirror import Mirror
from pipeline.track.store import Experiment, answering, tracking_uri, without_password

log = logging.getLogger(__name__)

PAUSE_S = 3.0
LONGEST_PAUSE_S = 60.0
LOOK_S = 0.5  # how often a pause is broken off if the work is over


def mirror_once(graph: Graph, site: Site) -> dict[str, Any]:
    """Bring MLflow up to date with the results of one scale; returns how many runs it now has."""
    uri = tracking_uri(site, graph.results)
    with _sole_mirror(graph), answering(uri):
        mirror = _connect(graph, uri)
        mirror.update()
    if mirror.damaged:
        raise DataError("\n".join(mirror.damaged.values()))
    return {"uri": without_password(uri), "experiment": mirror.experiment.id, "runs": len(_begun(graph))}


def follow(graph: Graph, site: Site, stop: StopRequest) -> None:
    """Mirror until asked to stop or until Snakemake has ended, and then once more."""
    with ExitStack() as stack:
        try:
            stack.enter_context(_sole_mirror(graph))
        except LaunchError:
            log.info("another process mirrors scale %s into MLflow already: nothing to do", graph.scale)
            return
        _Follower(graph, tracking_uri(site, graph.results), stop).run()


class _Follower:
    """Passes over the results, with a pause between them that grows while MLflow does not answer."""

    def __init__(self, graph: Graph, uri: str, stop: StopRequest) -> None:
        self.graph, self.uri, self.stop = graph, uri, stop
        self.mirror: Mirror | None = None
        self.pause_s = PAUSE_S
        self.caught_up_at = 0.0  # when the last pass that succeeded began

    def run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_over()
            self._pass()
            deadline = time.monotonic() + self.pause_s
            while not is_last and not self._is_over() and time.monotonic() < deadline:
                time.sleep(LOOK_S)
        self._say_farewell()

    def _is_over(self) -> bool:
        return self.stop.is_raised or not is_held(self.graph.results.workflow_lock)

    def _pass(self) -> None:
        began = time.time()
        try:
            with answering(self.uri):
                self.mirror = self.mirror or _connect(self.graph, self.uri)
                self.mirror.update()
        except LaunchError as error:
            if self.pause_s == PAUSE_S:
                log.warning("%s; trying again until the work is over", error)
            self.mirror, self.pause_s = None, min(2 * self.pause_s, LONGEST_PAUSE_S)
        else:
            if self.pause_s > PAUSE_S:
                log.info("MLflow answers again and has everything")
            self.pause_s, self.caught_up_at = PAUSE_S, began

    def _say_farewell(self) -> None:
        if self.mirror:
            log.info(
                "MLflow at %s has everything; runs so far: %d", without_password(self.uri), len(_begun(self.graph))
            )
            return
        behind = [name for name in _begun(self.graph) if _changed_at(self.graph, name) >= self.caught_up_at]
        log.warning(
            "MLflow at %s does not have yet: %s; when it answers, `python -m pipeline track --scale %s` catches up",
            *(without_password(self.uri), ", ".join(behind) or "the newest tables", self.graph.scale),
        )


def _sole_mirror(graph: Graph) -> Any:
    """Two at once would each find the same points missing."""
    return held(graph.results.track_lock, f"mirroring scale {graph.scale} into MLflow")


def _connect(graph: Graph, uri: str) -> Mirror:
    return Mirror(graph, Experiment(uri, f"patchwork-{graph.scale}", graph.results.tracking_artifacts))


def _begun(graph: Graph) -> list[str]:
    folders = [graph.results.run(name) for name in graph.runs]
    return [folder.name for folder in folders if folder.started.exists()]


def _changed_at(graph: Graph, name: str) -> float:
    folder = graph.results.run(name).folder
    return max(path.stat().st_mtime for path in folder.rglob("*"))
