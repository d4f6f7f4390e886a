"""The table and the figure of a sweep, as a study file has them."""

from typing import Any

from pipeline.study.spec import Study
from pipeline.sweep.axes import Axis
from pipeline.sweep.measure import Group, Measure


def table_of(group: Group, axes: list[Axis], study: Study) -> dict[str, Any]:
    """One row for each combination of values."""
    measure, chosen = group
    stars = "_*" * len(axes)
    values = ", ".join(f"{axis.name} *" for axis in axes)
    rows = {
        f"{key}{stars}": {
            "label": f"{study.runs[key].label}, {values}" if len(chosen) > 1 else values,
            "run": f"{key}{stars}",
            "along": [axis.name for axis in axes],
        }
        for key in chosen
    }
    return {"label": "Sweep", "title": _title(measure, axes), "columns": {"value": measure.column}, "rows": rows}


def _title(measure: Measure, axes: list[Axis]) -> str:
    return f"{measure.title} over {' and '.join(axis.key for axis in axes)}"


def figure_of(group: Group, axes: list[Axis], study: Study) -> dict[str, Any]:
    """Lines over an axis of numbers, bars over one of names, a heat map over several; the last axis has the columns."""
    measure, chosen = group
    *others, last = axes
    column = measure.column | {"label": "*", "run": "*", "along": [last.name]}
    stars = "_*" * len(others)
    labels = ", ".join(f"{axis.name} *" for axis in others)
    rows = {}
    for key in chosen:
        parts = [study.runs[key].label] if len(chosen) > 1 or not others else []
        rows[f"{key}{stars}"] = {
            "label": ", ".join(filter(None, [*parts, labels])),
            "run": {value: f"{key}{stars}_{value}" for value in last.value_keys()},
            **({"along": [axis.name for axis in others]} if others else {}),
        }
    kind = "heatmap" if others else "lines" if last.is_numeric else "bars"
    log_x = {"log_x": True} if kind == "lines" and last.is_geometric else {}
    about = {"kind": kind, **log_x, "x_label": last.key, "y_label": measure.title}
    return {"label": "Sweep", "title": _title(measure, axes), **about, "columns": {"*": column}, "rows": rows}
