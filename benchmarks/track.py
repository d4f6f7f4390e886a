"""What writing a metrics line at every step costs, as a share of a step of 0.1 s: `python benchmarks/track.py`.

The same steps three times: alone, beside the process that mirrors them into MLflow, and beside one whose server is
down. The share is the time inside `MetricsFile.append` over the time of all steps.
"""

import argparse
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import checkout  # noqa: F401

from pipeline import results as results_module
from pipeline.core.files import held, write_json, write_text
from pipeline.engine.meters import MetricsFile
from pipeline.engine.signals import StopRequest
from pipeline.site import Site
from pipeline.study.resolve.entries import Graph, RunEntry
from pipeline.tracking.follow import follow

SITUATIONS = {"alone": None, "MLflow follows (SQLite)": "", "MLflow is down": "http://127.0.0.1:9"}
RUN = RunEntry(config={}, label="benchmark", studies=["benchmark"], data="none", init=None)
GRAPH = Graph(scale="benchmark", note="", comparable=False, runs={"run": RUN})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="of each situation (default: %(default)s)")
    parser.add_argument("--step-s", type=float, default=0.1, help="length of a step (default: %(default)s)")
    parser.add_argument("--follow", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        follow_here(options.follow)
        return
    print(f"{'':28}{'share of a step':>16}{'median line':>14}{'slowest line':>14}")
    for name, uri in SITUATIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            spent = measure(Path(folder), uri, options.steps, options.step_s)
        share = sum(spent) / (options.steps * options.step_s)
        print(f"{name:28}{share:>15.4%}{statistics.median(spent) * 1e6:>11.0f} us{max(spent) * 1e6:>11.0f} us")


def follow_here(results: Path) -> None:
    logging.basicConfig(stream=sys.stderr)
    results_module.RESULTS = results
    follow(GRAPH, Site(), StopRequest().listen())


def measure(results: Path, uri: str | None, num_steps: int, step_s: float) -> list[float]:
    """Seconds of each `append` in a run of this many steps."""
    results_module.RESULTS = results
    run = GRAPH.results.run("run")
    write_text(run.config, "seed: 0\n")
    write_json(run.started, {"identity": "benchmark", "commit": "", "steps": num_steps})
    file, spent = MetricsFile(run.metrics), []
    with follower(results, uri):
        for step in range(1, num_steps + 1):
            began = time.perf_counter()
            file.append(step=step, epoch=step / num_steps, loss=1.0, lr=0.1, skipped=0, grad_norm=1.0)
            spent.append(time.perf_counter() - began)
            time.sleep(max(0.0, step_s - spent[-1]))
    return spent


@contextmanager
def follower(results: Path, uri: str | None) -> Iterator[None]:
    """A process that follows, past its start, while the block runs; None: no such process."""
    if uri is None:
        yield
        return
    env = {**os.environ, "MLFLOW_TRACKING_URI": uri}
    with held(GRAPH.results.workflow_lock, "the benchmark"), (results / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, __file__, "--follow", results], env=env, stdout=log, stderr=log)
        while not has_begun(results):
            if process.poll() is not None:
                sys.exit((results / "log").read_text())
            time.sleep(0.2)
        yield
    process.wait()


def has_begun(results: Path) -> bool:
    """Whether it has mirrored the config, or has said that it cannot."""
    return (results / "mlflow-artifacts").exists() or "did not take the results" in (results / "log").read_text()


if __name__ == "__main__":
    main()
