"""MLflow's own page: the addresses that show training curves, and the note at the top of an experiment.

MLflow 3.17 opens an experiment on a page about language models, and its runs as a list without charts. Nothing but the
address of a page changes that, so addresses are given wherever a reader may look.
"""

import shlex
from urllib.parse import urlencode

MODEL_TRAINING = {"workflowType": "machine_learning"}
CHARTS = MODEL_TRAINING | {"compareRunsMode": "CHART"}
LOCAL_PAGE = "http://127.0.0.1:5000"  # where `mlflow ui` serves it


def curves_of(experiment: str, study: str = "") -> str:
    """The address of the training curves of all runs, or of one study, below that of the server."""
    only = {"searchFilter": f"tags.study LIKE '%{study}%'"} if study else {}
    return f"#/experiments/{experiment}/runs?{urlencode(CHARTS | only)}"


def tables_of(experiment: str) -> str:
    return f"#/experiments/{experiment}/runs?{urlencode(MODEL_TRAINING)}"


def note_of_runs(runs: str, tables: str, studies: list[str]) -> str:
    """One line, as MLflow hides the rest; both experiments are given by their ids."""
    of_studies = ", ".join(f"[{study}]({curves_of(runs, study)})" for study in studies)
    return (
        f"[Training curves]({curves_of(runs)}), by study: {of_studies}. [Tables and claims]({tables_of(tables)}). "
        "Expand a run to see its evaluations."
    )


def note_of_tables(runs: str) -> str:
    return f"[Training curves]({curves_of(runs)}). Expand a study to see its tables."


def how_to_open(uri: str, address: str) -> str:
    """What to type or click to see a page of MLflow."""
    if uri.startswith("http"):
        return f"open {uri.rstrip('/')}/{address}"
    return f"run `mlflow ui --backend-store-uri {shlex.quote(uri)}` and open {LOCAL_PAGE}/{address}"
