"""Schemas of study and scale files: classes, the short forms of `study/expand.py`, and the keys of run configs."""

from typing import Any

from pipeline.schema.classes import Schema, keys_of, partial, schemas_of
from pipeline.schema.runs import RUN, run
from pipeline.study.spec import Scale, Study

TEXT: Schema = {"type": "string"}
NAMES: list[Schema] = [TEXT, {"type": "array", "items": TEXT}]
EVAL: Schema = {"$ref": "#/definitions/any_eval"}
AXIS: Schema = {"$ref": "#/definitions/axis"}
COLUMNS: Schema = {"type": "object", "additionalProperties": {"$ref": "#/definitions/Column"}}
LIKE: Schema = {**TEXT, "description": "Key of a sibling entry from which this one starts; its own keys override it"}
OVER: Schema = {
    "anyOf": [*NAMES, {"type": "object", "additionalProperties": AXIS}],
    "description": "Axes: there is one entry for each of their values, with what the value changes",
}
ALONG: Schema = {
    "anyOf": NAMES,
    "description": "Axes of the study: there is one entry for each of their values, without what the value changes",
}
GRID = {"like": LIKE, "over": OVER, "along": ALONG}
ENTRIES = ("RunSpec", "Column", "Row")


def study() -> tuple[Schema, dict[str, Schema]]:
    """The schema of a study file, and what it refers to."""
    _, found = schemas_of([Study])
    _let(found["Row"], "run", anyOf=[TEXT, found["Row"]["properties"]["run"]])
    _let(found["RunSpec"], "set", **RUN)
    for name in ("Column", "EvalSpec"):
        _let(found[name], "set", **EVAL)
    _let(found["EvalSpec"], "at", additionalProperties=EVAL)
    found["EvalSpec"] = _entry(found["EvalSpec"], {"like": LIKE})
    for name in ("Table", "Figure"):
        _let(found[name], "columns", anyOf=[COLUMNS, TEXT, {"type": "array", "items": {"anyOf": [TEXT, COLUMNS]}}])
        notes = {"anyOf": NAMES, "description": "Names of texts of the study, before the note"}
        found[name] = _entry(found[name], {"like": LIKE, "notes": notes})
    found["axis"] = _axis(found)
    found |= {name: _entry(found[name], GRID) for name in ENTRIES}
    found["recipe"] = _entry(run(), {"like": LIKE})
    top = found.pop("Study")
    _let(top, "common", **RUN)
    _let(top, "recipes", additionalProperties={"$ref": "#/definitions/recipe"})
    top["properties"] |= _short_forms()
    return top, found


def scale() -> tuple[Schema, dict[str, Schema]]:
    """The schema of a scale file, and what it refers to."""
    _, found = schemas_of([Scale])
    top = found.pop("Scale")
    _let(top, "run", **RUN)
    for key in ("recipe", "task", "kind"):
        _let(top, key, additionalProperties=RUN)
    _let(top, "method", additionalProperties={"$ref": "#/definitions/any_method"})
    _let(top, "eval", additionalProperties=EVAL)
    return top, found


def _let(schema: Schema, key: str, **keywords: Any) -> None:
    """Give a key these keywords instead of its own; it keeps its meaning and its default."""
    keys = schema["properties"]
    kept = {name: keys[key][name] for name in ("description", "default", "type") if name in keys[key]}
    if "anyOf" in keywords or "$ref" in keywords:
        kept.pop("type", None)
    keys[key] = kept | keywords


def _entry(schema: Schema, forms: dict[str, Schema]) -> Schema:
    """An entry that may be written in a short form: what it lacks comes from an axis, or from what it is like.

    The same holds for all that is inside a table which is like another.
    """
    return partial(schema) | {"properties": schema["properties"] | forms}


def _axis(found: dict[str, Schema]) -> Schema:
    """The values of an axis: a label, or what a value changes in a run, a column or a row."""
    keys = keys_of(found[name] for name in ENTRIES)
    changes = {key: each[0] if len(each) == 1 else {"anyOf": each} for key, each in keys.items()}
    label = {"type": ["string", "number", "null"], "description": "Label of the value"}
    change = {"type": "object", "additionalProperties": False, "properties": changes | {"label": label}}
    return {"type": "object", "additionalProperties": {"anyOf": [{"type": ["string", "number", "null"]}, change]}}


def _short_forms() -> dict[str, Schema]:
    sets = {"type": "object", "additionalProperties": COLUMNS}
    return {
        "axes": {"type": "object", "additionalProperties": AXIS, "description": "Axes by name, for over and along"},
        "column_sets": sets | {"description": "Columns that tables share, by the name of their set"},
        "notes": {"type": "object", "additionalProperties": TEXT, "description": "Texts that tables share, by name"},
    }
