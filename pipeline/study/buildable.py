"""Every model is built once without memory: what timm or a method refuses is found before a cluster is asked for it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from pipeline.config import Layers, fingerprint
from pipeline.engine.loop import build_method
from pipeline.errors import ConfigError
from pipeline.models.architectures import TEXT
from pipeline.models.encoder import ModelConfig

if TYPE_CHECKING:
    from pipeline.engine.run import RunConfig

# What weights are initialised with: on the device meta it would take most of the time.
INITIAL = {getattr(torch.Tensor, name) for name in ("uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_")}
INITIAL |= {torch.Tensor.fill_, torch.Tensor.zero_}


class ModelBuilder:
    """`built` are the keys of the models that could be built."""

    def __init__(self, built: Iterable[str] = ()) -> None:
        self.built = set(built)

    def check(self, run: "RunConfig", layers: Layers) -> None:
        """Raise ConfigError where a run's model cannot be built, naming the file and the key."""
        key = _key(run)
        # The rules of ModelConfig say all there is to say of models of texts, whose library takes seconds to import.
        if key in self.built or run.model.arch in TEXT:
            return
        try:
            with torch.device("meta"), _WithoutInitialisation():
                build_method(run)
        except Exception as error:  # libraries raise almost any kind for arguments that do not fit
            reason = str(error.__cause__ or error) or type(error).__name__
            named = [name for name in ModelConfig.model_fields if re.search(rf"\b{name}\b", reason)]
            place = ("model", *named[:1])
            text = str(error) if isinstance(error, ConfigError) else f"{run.model.arch} cannot be built: {reason}"
            raise ConfigError(f"{layers.origin(place)}: {'.'.join(place)}: {text}") from None
        self.built.add(key)


def _key(run: "RunConfig") -> str:
    """Names what a model depends on."""
    shape = {key: getattr(run.data, key) for key in run.data.shaping}
    method, model = run.method.model_dump(mode="json"), run.model.model_dump(mode="json", exclude={"name"})
    return fingerprint([method, model, shape, run.task], 16)


class _WithoutInitialisation(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return args[0] if func in INITIAL else func(*args, **kwargs or {})
