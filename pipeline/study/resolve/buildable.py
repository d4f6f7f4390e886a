"""Every model is built once without memory: what timm or a method refuses is found before a cluster is asked for it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from pipeline.core.config import Layers, fingerprint
from pipeline.core.errors import ConfigError
from pipeline.engine.loop import build_method
from pipeline.models.architectures import TEXT
from pipeline.models.encoder import ModelConfig

if TYPE_CHECKING:
    from pipeline.engine.run import RunConfig

# What weights are initialised with: on the device meta it would take most of the time.
INITIAL = {getattr(torch.Tensor, name) for name in ("uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_")}
INITIAL |= {torch.Tensor.fill_, torch.Tensor.zero_}
_BUILT: set[str] = set()  # by this process, whose code stays the same


class ModelBuilder:
    """`built` are the keys of the models that could be built."""

    def __init__(self, built: Iterable[str] = ()) -> None:
        self.built = set(built)

    def check(self, run: "RunConfig", layers: Layers) -> None:
        """Raise ConfigError where a run's model cannot be built, naming the file and the key."""
        key = _key(run)
        # The rules of ModelConfig say all there is to say of models of texts, whose library takes seconds to import.
        if run.model.arch in TEXT:
            return
        if key in _BUILT:
            self.built.add(key)
        if key in self.built:
            return
        try:
            with torch.device("meta"), _WithoutInitialisation():
                build_method(run)
        except ConfigError as error:
            named = [name for name in ModelConfig.model_fields if re.search(rf"\b{name}\b", str(error.__cause__))]
            place = ("model", *named[:1])
            raise ConfigError(f"{layers.origin(place)}: {'.'.join(place)}: {error}") from None
        except Exception as error:  # torch raises almost any kind for sizes that do not fit
            reason, *_ = str(error).splitlines() or [type(error).__name__]
            raise ConfigError(
                f"{layers.origin(('method',))}: method: {run.method.name} cannot be built around {run.model.arch}: "
                f"{reason}; change the sizes in method or in model"
            ) from None
        self.built.add(key)
        _BUILT.add(key)


def _key(run: "RunConfig") -> str:
    """Names what a model depends on."""
    shape = {key: getattr(run.data, key) for key in run.data.cost_fields}
    method, model = run.method.model_dump(mode="json"), run.model.model_dump(mode="json", exclude={"name"})
    return fingerprint([method, model, shape, run.task], 16)


class _WithoutInitialisation(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return args[0] if func in INITIAL else func(*args, **kwargs or {})
