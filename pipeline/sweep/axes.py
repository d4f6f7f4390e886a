"""`--over KEY=VALUE,VALUE`: the axes of a sweep, as they are typed and as a study has them."""

import itertools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import yaml

from pipeline.core.errors import ConfigError
from pipeline.sweep.derived import typed

OF_RUNS = ("method", "model", "data", "budget", "recipe")  # what a run of a study names; other keys are of its config


@dataclass(frozen=True)
class Axis:
    """`--over KEY=VALUES`: a key of a run, and its values as they were typed and as they are."""

    key: str
    name: str  # the last part of the key, as labels have it
    texts: list[str]
    values: list[Any]

    @property
    def is_numeric(self) -> bool:
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    @property
    def is_geometric(self) -> bool:
        """Whether the ratios of neighbours are more alike than their distances."""
        if not self.is_numeric or min(self.values) <= 0 or len(self.values) < 2:
            return False
        pairs = [*itertools.pairwise(sorted(self.values))]
        ratios, steps = [math.log(high / low) for low, high in pairs], [high - low for low, high in pairs]
        if len(pairs) == 1:
            return ratios[0] >= math.log(10)
        return max(ratios) / min(ratios) < max(steps) / min(steps)

    def value_keys(self) -> list[str]:
        """A key of the axis for each value, as it may stand in the key of a run."""
        words = [re.sub("[^A-Za-z0-9-]+", "_", text)[:20] for text in self.texts]
        return [f"v{number}-{word}" for number, word in enumerate(words, 1)]

    def written(self) -> dict[str, Any]:
        """The axis as a study has it."""
        found = {}
        for key, text, value in zip(self.value_keys(), self.texts, self.values, strict=True):
            place = {"x": value} if self.is_numeric else {}
            found[key] = {"label": text, **place, **self._change(value)}
        return found

    def _change(self, value: Any) -> dict[str, Any]:
        if self.key in OF_RUNS:
            return {self.key: value}
        for part in reversed(self.key.split(".")):
            value = {part: value}
        return {"set": value}


def parse_axes(over: Iterable[str]) -> list[Axis]:
    """Every `--over`; all mistakes in them at once."""
    axes, lines = [], []
    for text in over:
        try:
            axes.append(_parse_axis(text))
        except ConfigError as error:
            lines.append(str(error))
    keys = [axis.key for axis in axes]
    lines += [f"--over: {key} is given twice; write all its values in one" for key in {*keys} if keys.count(key) > 1]
    if lines:
        raise ConfigError("\n".join(lines))
    names = [axis.name for axis in axes]
    return [axis if names.count(axis.name) == 1 else replace(axis, name=axis.key.replace(".", "_")) for axis in axes]


def _parse_axis(text: str) -> Axis:
    key, equals, rest = text.partition("=")
    if not (key and equals and rest.strip()):
        raise ConfigError(f"--over {text}: expected KEY=VALUE,VALUE, such as optim.base_lr=1e-4,3e-4,1e-3")
    try:
        values = yaml.load(f"[{rest}]", Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        raise ConfigError(f"--over {text}: found values that are not valid YAML; put such text in quotes") from None
    texts = [value if isinstance(value, str) else _in_one_line(value) for value in values]
    if "" in texts or len(set(texts)) < len(texts):
        problem = "an empty value" if "" in texts else "a value that is given twice"
        raise ConfigError(f"--over {text}: found {problem}; expected different values with commas between them")
    return Axis(key.strip(), key.strip().rpartition(".")[2], texts, [typed(value) for value in values])


def _in_one_line(value: Any) -> str:
    return yaml.safe_dump(typed(value), default_flow_style=True, width=math.inf).strip()
