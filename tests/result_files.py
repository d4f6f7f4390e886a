"""Results of runs and evaluations on disk, as training and evaluating write them, with numbers that a test chooses."""

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import yaml

from pipeline.core.config import CONFIGS, names
from pipeline.core.files import digest, write_atomic, write_text
from pipeline.data.store.manifest import Manifest, read_manifest, write_manifest
from pipeline.freshness.outputs import data_file, job_file, run_file
from pipeline.freshness.remake import Freshness, begin_drawing, record_drawing
from pipeline.results import EvalFolder, RunFolder
from pipeline.results.records import EvalInputs, EvalJobRecord, EvalResult, Inputs, TrainRecord, write_record
from pipeline.site import Site
from pipeline.study.resolve.entries import Graph

# A site without data: what is finished needs none.
SITE = Site(data={name: Path("/nowhere") for name in names(CONFIGS / "data")})
ORIGIN = {
    "commit": "c0ffee",
    "seed": 0,
    "wall_s": 1.5,
    "device": "cpu",
    "machine": "Linux abacus",
    "versions": {"torch": "0"},
}


def write_training(graph: Graph, run: str, metrics: dict, **record) -> RunFolder:
    """A finished run: its record, its config, and files that hold no more than their names."""
    folder = graph.results.run(run)
    made = folder.encoder, folder.heads, folder.metrics, folder.config
    for path in (folder.encoder, folder.heads, folder.timing):
        write_text(path, f"content of {path.name} of {run}")
    write_text(folder.metrics, "")
    write_text(folder.config, yaml.dump(graph.runs[run].config, Dumper=yaml.CSafeDumper))
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
    data = {each: fingerprint for each in graph.data_behind(name) if (fingerprint := _fingerprint(graph, each))}
    weights = {role: digest(graph.results.run(run).encoder) or "w" for role, run in entry.subjects.items()}
    about = {
        "subjects": entry.subjects,
        "data": {role: config["name"] for role, config in entry.data.items()},
        "per_image": [*(per_image or {})],
        "files": {} if per_image is None else {folder.per_image.name: digest(folder.per_image)},
        "inputs": EvalInputs(weights=weights, data=data),
        "provenance": ORIGIN,
    }
    write_record(folder.result, EvalResult(evaluation=entry.fragment, metrics=metrics, **{**about, **record}))
    return folder


def _fingerprint(graph: Graph, data: str) -> str | None:
    """Of a set as it was prepared; None if it was not."""
    path = graph.results.manifest(data)
    return read_manifest(path).fingerprint if path.exists() else None


def finish(graph: Graph, files: Iterable[str], metrics: dict | None = None) -> None:
    """Everything that these files of the workflow need, and they themselves, as if it had run; drawings are empty."""
    for file in Freshness(graph, SITE).needed_for(files):
        finish_one(graph, file, metrics or {})


def finish_run(graph: Graph, name: str, per_image: dict[str, list[float]] | None = None) -> None:
    """A run trained and evaluated by the code of today."""
    write_training(graph, name, {"params_m": 1.0}, provenance={**ORIGIN, "code": graph.code_of_run(name)})
    for each in graph.evaluations_of(name):
        about = {**ORIGIN, "code": graph.code_of_evaluation(each)}
        write_evaluation(graph, each, {"top1": 70.0}, per_image, provenance=about)


def finish_one(graph: Graph, file: str, metrics: dict) -> None:
    kind, name, *_ = file.split("/")
    if kind == "data":
        manifest = Manifest(name=name, source="a test", folder="/nowhere", fingerprint=f"data {name}", splits={})
        write_manifest(graph.results.folder / data_file(name), manifest)
    elif kind == "runs":
        init = graph.runs[name].init
        inputs = Inputs(
            data=f"data {graph.runs[name].data}", init=digest(graph.results.run(init).encoder) if init else None
        )
        folder = write_training(graph, name, metrics, inputs=inputs)
        write_text(folder.finished, (graph.results.folder / run_file(name)).read_text())
    elif kind == "evals":
        job = name.removesuffix(".json")
        folders = [write_evaluation(graph, each, metrics) for each in graph.eval_jobs[job].evaluations]
        record = EvalJobRecord(results={folder.name: digest(folder.result) for folder in folders})
        write_record(graph.results.folder / job_file(job), record)
    else:
        write_text(graph.results.folder / file, "{}")
        freshness = Freshness(graph, SITE)
        record_drawing(freshness, file, begin_drawing(freshness, file), [graph.results.folder / file])
