"""Models that are locked with keys of a study: what `equivariance` and `perplexity` compare with the plain model.

Keys are drawn from the seed, so that a result can be obtained again; they protect nothing.
"""

import copy
from random import Random
from typing import TypeVar

from pipeline.evals.base import EvalConfig
from pipeline.methods.base import Method
from pipeline.permutation.forward import shape_of
from pipeline.permutation.keys import Key, Kind, new_key
from pipeline.permutation.rules import permute_state

AnyMethod = TypeVar("AnyMethod", bound=Method)


class KeyedConfig(EvalConfig):
    """Config of an evaluation that draws keys."""

    kind: Kind = "independent"
    """How keys are drawn. independent: everything by itself. shared: heads of a block have one order of columns.
    released: as the authors' code does.
    """


def locked_models(method: AnyMethod, kind: Kind, count: int, seed: int) -> list[tuple[AnyMethod, Key]]:
    """Copies of a model, each locked with a key of its own."""
    source, shape = Random(seed), shape_of(method.encoder)
    keys = [new_key(shape, kind, source) for _ in range(count)]
    return [(locked_with(method, key), key) for key in keys]


def locked_with(method: AnyMethod, key: Key) -> AnyMethod:
    locked = copy.deepcopy(method).eval()
    locked.encoder.load_state_dict(permute_state(locked.encoder.state_dict(), key))
    return locked
