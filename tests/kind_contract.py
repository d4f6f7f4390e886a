"""What a kind of data must state, and what its views promise."""

from collections.abc import Iterator
from typing import Any, get_args

import torch

from pipeline.core.seeds import random_state, seed_everything
from pipeline.data.kind import BaseDataConfig, DataKind, PublishedKind
from pipeline.method_checks.bench import is_same
from pipeline.method_checks.declared import check_config

GROUPS = {
    "identity_fields": "which samples",
    "view_fields": "how they are seen",
    "cost_fields": "what a training step costs",
}


def check_kind_class(name: str, kind: type[DataKind]) -> list[str]:
    return [*check_config(name, kind, "kind"), *_key_problems(kind), *_text_problems(kind)]


def _key_problems(kind: type[DataKind]) -> Iterator[str]:
    """Every key of its own says what it decides; keys of a class that it extends have done so there."""
    config = kind.Config
    listed = {key for group in GROUPS for key in getattr(config, group)}
    elsewhere = {*BaseDataConfig.model_fields, "part_of"}  # where a set lies changes no sample
    for key in sorted(listed - config.model_fields.keys()):
        yield f"{kind.__name__}.Config names {key!r} in {', '.join(GROUPS)}, but has no such field; remove it there"
    for key in config.__annotations__:
        field = config.model_fields.get(key)
        is_free = field is not None and len(get_args(field.annotation)) != 1  # Literal["one"] has no other value
        if is_free and key not in listed | elsewhere:
            groups = ", ".join(f"`{group}` ({meaning})" for group, meaning in GROUPS.items())
            yield (
                f"{kind.__name__}.Config.{key} is in none of {', '.join(GROUPS)}, so a set with another value would be "
                f"taken for the same; add it to {groups}"
            )
    if config.input_size is BaseDataConfig.input_size:
        yield f"{kind.__name__}.Config has no input_size; return the height and width of what an encoder sees"


def _text_problems(kind: type[DataKind]) -> Iterator[str]:
    if issubclass(kind, PublishedKind) or kind.maker:
        return
    for key, example in (("layout", "train/<word>/*.wav and val/<word>/*.wav"), ("obtained", "record them")):
        if not getattr(kind, key):
            yield f'{kind.__name__}.{key} is empty, and messages about a wrong folder show it: {key} = "{example}"'


def check_views(kind: DataKind, sample: Any) -> list[str]:
    """Evaluation sees a sample the same way each time, and draws nothing."""
    view, who, source = kind.eval_view(), f"{type(kind).__name__}.eval_view", torch.Generator()
    seen, states = [], []
    for number in range(2):
        seed_everything("contract", number)
        states.append(random_state(source))
        seen.append(view(sample))
        states.append(random_state(source))
    if states[0] != states[1] or not is_same(*seen):
        return [
            f"{who} sees one sample in two ways, or draws random numbers; two evaluations of a run would differ: what "
            "is random belongs into train_view"
        ]
    return []
