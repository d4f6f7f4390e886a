"""What the classes of a registry must state, found without computing anything."""

import types
from typing import Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from pipeline.core.registry import TASKS
from pipeline.methods.base import Method


def check_config(name: str, entry: type[Any], key: str = "name") -> list[str]:
    """The config class of a method, an evaluation or a kind has the registered name, and a range for every number."""
    config, found = entry.Config, []
    if config.model_fields[key].default != name:
        found.append(
            f"{entry.__name__}.Config.{key} is not {name!r}, by which {entry.__name__} is registered; write a class "
            f'Config inside {entry.__name__}, with `{key}: Literal["{name}"] = "{name}"`'
        )
    for each, field in config.model_fields.items():
        if _is_number(field) and not field.metadata:
            found.append(
                f"{entry.__name__}.Config.{each} is a number without a range, so a mistyped one would be used for "
                "hours; give it one: Field(0.1, ge=0, le=1, description=...)"
            )
    return found


def _is_number(field: FieldInfo) -> bool:
    """Or a number or nothing."""
    is_union = get_origin(field.annotation) in (Union, types.UnionType)
    return not {int, float}.isdisjoint(get_args(field.annotation) if is_union else [field.annotation])


def check_method_class(name: str, method: type[Method]) -> list[str]:
    found, task = check_config(name, method), method.Config.task
    if method.loss is Method.loss:
        found.append(f"{method.__name__} has no `loss`; write `def loss(self, images, targets, draw) -> Output`")
    if task not in TASKS.names():
        found.append(
            f"{method.__name__}.Config.task is {task!r}, and no file of pipeline/tasks registers it; valid: "
            f"{', '.join(TASKS.names())}"
        )
    return found
