"""MLflow follows the files: every finished run and evaluation is mirrored, in batches, by one process.

The JSON files are the truth. Mirroring again adds what is missing and repeats nothing, so it can be killed or find no
server, and be run again later.
"""

import json
import logging
import os
from typing import TYPE_CHECKING, Any

from pipeline.engine.folders import RunFolder
from pipeline.errors import LaunchError
from pipeline.files import read_lines
from pipeline.site import Site
from pipeline.study.graph import RESULTS, Graph

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

BATCH = 1000  # MLflow's limit of metrics per request
NAME = "patchwork.name"  # the tag by which a mirrored run is found again


def mirror(graph: Graph, site: Site) -> dict[str, Any]:
    """Bring MLflow up to date with the results of one scale; returns how many runs it now has."""
    # A server that does not answer shall cost seconds, not minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    uri = os.environ.get("MLFLOW_TRACKING_URI") or site.tracking_uri or f"sqlite:///{RESULTS / 'mlflow.db'}"
    try:
        client = MlflowClient(uri)
        experiment = _experiment(client, graph.scale)
        mirrored = [name for name in graph.runs if _mirror_run(client, experiment, graph, name)]
    except MlflowException as error:
        raise LaunchError(
            f"MLflow at {uri} did not take the results ({str(error).splitlines()[0][:200]}); nothing is lost: start "
            "the server or mend MLFLOW_TRACKING_URI, then run `python -m pipeline track` again"
        ) from None
    return {"uri": uri, "experiment": experiment, "runs": len(mirrored)}


def _experiment(client: "MlflowClient", scale: str) -> str:
    found = client.get_experiment_by_name(f"patchwork-{scale}")
    if found:
        return found.experiment_id
    return client.create_experiment(f"patchwork-{scale}", artifact_location=(RESULTS / "mlflow-artifacts").as_uri())


def _mirror_run(client: "MlflowClient", experiment: str, graph: Graph, name: str) -> bool:
    """One finished training run, and its evaluations as its children."""
    folder, entry = RunFolder(graph.results, name), graph.runs[name]
    if not folder.done.exists():
        return False
    record = json.loads(folder.done.read_text())
    tags = {
        "scale": graph.scale,
        "study": ",".join(entry["studies"]),
        "table": ",".join(
            key for key in graph.tables if any(name in r["runs"].values() for r in graph.rows(key, "all").values())
        ),
        "label": entry["label"],
    }
    run_id = _open_run(client, experiment, name, tags, record, _flat(entry["config"]))
    lines = read_lines(folder.metrics)
    _log_missing(client, run_id, [(key, value, line["step"]) for line in lines for key, value in line.items()])
    if not client.list_artifacts(run_id):
        client.log_artifact(run_id, str(folder.config))
    client.set_terminated(run_id)
    for group in entry["groups"]:
        path = folder.evaluation(group)
        results = json.loads(path.read_text()) if path.exists() else {}
        for key, result in results.items():
            child_tags = {**tags, "mlflow.parentRunId": run_id, "evaluation": key}
            child = _open_run(client, experiment, f"{name}/{key}", child_tags, result, _flat(graph.evals.get(key, {})))
            _log_missing(client, child, [(metric, value, 0) for metric, value in result["metrics"].items()])
            client.set_terminated(child)
    return True


def _open_run(
    client: "MlflowClient",
    experiment: str,
    name: str,
    tags: dict[str, str],
    record: dict[str, Any],
    params: dict[str, str],
) -> str:
    """The MLflow run of this name, with its parameters and tags; made if there is none."""
    from mlflow.entities import Param, RunTag

    # A result computed anew is another run: its commit and configs may differ, and points must not be mixed.
    key = f"{name}@{record['provenance']['commit'][:12]}-{record['provenance'].get('eval_fingerprint', '')}"
    found = client.search_runs([experiment], f"tags.`{NAME}` = '{key}'", max_results=1)
    if found:
        return found[0].info.run_id
    run_id = client.create_run(experiment, run_name=name, tags={NAME: key}).info.run_id
    commit = {"commit": record["provenance"]["commit"], "device": record["provenance"]["device"]}
    client.log_batch(
        run_id,
        params=[Param(key, value) for key, value in params.items()],
        tags=[RunTag(key, value) for key, value in {**tags, **commit}.items()],
    )
    return run_id


def _log_missing(client: "MlflowClient", run_id: str, points: list[tuple[str, Any, int]]) -> None:
    """Log each point once, whatever an earlier, interrupted call has already logged."""
    from mlflow.entities import Metric

    points = [(key, value, step) for key, value, step in points if isinstance(value, (int, float)) and key != "step"]
    known = client.get_run(run_id).data.metrics
    there = {key: {metric.step for metric in client.get_metric_history(run_id, key)} for key in known}
    missing = [Metric(key, value, 0, step) for key, value, step in points if step not in there.get(key, ())]
    for start in range(0, len(missing), BATCH):
        client.log_batch(run_id, metrics=missing[start : start + BATCH])


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """{"optim": {"epochs": 5}} -> {"optim.epochs": "5"}; MLflow takes 6,000 characters a value."""
    flat: dict[str, str] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = str(value)[:6000]
    return flat
