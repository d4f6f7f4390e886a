"""Results of runs and evaluations on disk, as training and evaluating write them, with numbers that a test chooses."""

import io

import numpy as np
import yaml

from pipeline.files import digest, write_atomic, write_text
from pipeline.records import EvalInputs, EvalResult, Inputs, TrainRecord, write_record
from pipeline.results import EvalFolder, RunFolder
from pipeline.study.entries import Graph

ORIGIN = {"commit": "c0ffee", "seed": 0, "wall_s": 1.5, "device": "cpu"}


def write_training(graph: Graph, run: str, metrics: dict, **record) -> RunFolder:
    """A finished run: its record, its config, and files that hold no more than their names."""
    folder = graph.results.run(run)
    made = folder.encoder, folder.heads, folder.metrics
    for path in (folder.encoder, folder.heads, folder.timing):
        write_text(path, f"content of {path.name}")
    write_text(folder.metrics, "")
    write_text(folder.config, yaml.safe_dump(graph.runs[run].config))
    about = {
        "files": {path.name: digest(path) for path in made},
        "inputs": Inputs(data="d", init=None),
        "provenance": ORIGIN,
    }
    write_record(folder.done, TrainRecord(run=run, metrics=metrics, **{**about, **record}))
    return folder


def write_evaluation(graph: Graph, name: str, metrics: dict, per_image: dict | None = None, **record) -> EvalFolder:
    """A finished evaluation of the runs that the graph names, with the weights that they have now."""
    entry, folder = graph.evals[name], graph.results.evaluation(name)
    if per_image is not None:
        buffer = io.BytesIO()
        np.savez(buffer, **{key: np.asarray(values, np.float32) for key, values in per_image.items()})
        write_atomic(folder.per_image, buffer.getvalue())
    weights = {role: digest(graph.results.run(run).encoder) or "w" for role, run in entry.subjects.items()}
    about = {
        "subjects": entry.subjects,
        "data": {role: config["name"] for role, config in entry.data.items()},
        "per_image": [*(per_image or {})],
        "files": {} if per_image is None else {folder.per_image.name: digest(folder.per_image)},
        "inputs": EvalInputs(weights=weights, data={}),
        "provenance": ORIGIN,
    }
    write_record(folder.result, EvalResult(evaluation=entry.fragment, metrics=metrics, **{**about, **record}))
    return folder
