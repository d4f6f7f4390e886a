"""Files that runs leave behind: begun, finished, held by a process, submitted to SLURM."""

import fcntl
import json
from contextlib import contextmanager

from result_files import finish as finish_files

from pipeline.freshness.outputs import run_file
from pipeline.launch.slurm import JobRecord
from pipeline.results.records import Inputs

SUBMITTED = JobRecord(job="77", time=1.0, inputs=Inputs(data="1", init=None)).model_dump_json()


def put(path, content="{}") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def begin(graph, name, step=0):
    """The files of a run that has begun and written metrics up to a step of 200."""
    folder = graph.results.run(name)
    put(folder.started, json.dumps({"identity": "1", "commit": "2", "steps": 200}))
    put(folder.metrics, "".join(f'{{"step": {at}, "loss": 1.0}}\n' for at in range(10, step + 1, 10)) + '{"ste')
    put(folder.lock, "")
    return folder


def finish(graph, name):
    folder = begin(graph, name, 200)
    finish_files(graph, [run_file(name)])
    return folder


@contextmanager
def held(path):
    """As another process would hold it."""
    put(path, "")
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
