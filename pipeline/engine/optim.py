"""AdamW with weight-decay groups and layer decay, schedules with warm-up, gradient clipping, finite check.

The released codes draw three cosines through the same numbers; detection and segmentation have curves of their own, of
which the warm-up is a part. `lr_curve` chooses; the text below it says what each one does.

The non-finite guard runs on the device: AdamW's fused step skips itself where `found_inf` is 1, so no step waits for
the host; the number of skips is read when metrics are due.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from pipeline.core.config import Strict, added
from pipeline.core.dynamo import AdamW, dynamo_deferred
from pipeline.core.errors import ConfigError
from pipeline.core.trees import send
from pipeline.engine.protection import Protection
from pipeline.methods.base import Method

if TYPE_CHECKING:
    from timm.scheduler import CosineLRScheduler

LrCurve = Literal["after_warmup", "all_steps", "all_epochs", "steps", "poly"]
Beta = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Factor = Annotated[float, Field(gt=0)]


class OptimConfig(Strict):
    """The recipe. Only the global batch is a choice of scale; devices and accumulation are derived from it.

    `micro_batch` images share one random draw (mixup, jigsaw, drop-path) and pass through the model together. It is
    fixed by the recipe, not by the cluster, so that the numbers do not depend on the number of GPUs.
    """

    epochs: int | None = Field(None, ge=1, description="passes over the training set; or give `iterations`")
    iterations: int | None = added(
        None, before=None, ge=1, description="updates, instead of epochs; the last pass may be cut short"
    )
    global_batch: int = Field(ge=1)
    """Samples of one update, over all processes and micro-batches."""
    micro_batch: int = Field(ge=1)
    """Samples that pass through the model together and share one random draw. It divides the global batch."""
    base_lr: float = Field(gt=0, description="learning rate at a global batch of `lr_batch`")
    lr_batch: int = Field(512, ge=1)
    """Global batch for which `base_lr` is meant; the rate grows in proportion to the batch."""
    min_lr: float = Field(1e-5, ge=0)
    """Learning rate at the end of the curve."""
    warmup_lr: float = Field(1e-6, ge=0)
    """Learning rate at the start of the warm-up."""
    warmup_epochs: float = Field(0.0, ge=0)
    """Epochs of warm-up, in which the rate rises from `warmup_lr`."""
    warmup_iterations: int | None = added(None, before=None, ge=0, description="updates, instead of warmup_epochs")
    warmup_curve: Literal["line", "constant"] = added(
        "line", before="line", description="a line from warmup_lr to the rate; lr_curve steps: or warmup_lr all along"
    )
    lr_curve: LrCurve = "after_warmup"
    """The curve of the learning rate. after_warmup (MAE, DropPos): a cosine that begins where the warm-up ends and
    moves every step. all_steps (MJP): a cosine that counts the steps of the warm-up too, so that the rate drops onto it
    when the warm-up ends; it moves every step, one step late. all_epochs (DeiT): the same, but it moves every epoch,
    one epoch late, so that two epochs train at `warmup_lr`. steps (detectron2): the rate falls by `decay_factor` at
    each of the `milestones`, or every `decay_every` updates. poly (mmsegmentation): (1 - step / steps)^`power` from the
    first step on, times a line up to 1 in the warm-up.
    """
    milestones: tuple[Share, ...] = added(
        (), before=(), description="lr_curve steps: shares of the training after which the rate falls"
    )
    decay_every: int | None = added(
        None,
        before=None,
        ge=1,
        description="lr_curve steps: updates after which the rate falls, instead of milestones",
    )
    decay_factor: float = added(0.1, before=0.1, gt=0, lt=1, description="lr_curve steps: by which the rate falls")
    power: float = added(1.0, before=1.0, gt=0)
    """Exponent of the curve `lr_curve: poly`."""
    weight_decay: float = Field(0.05, ge=0)
    """Decoupled weight decay of AdamW; biases, norms and what a method spares, such as positions, have none."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of AdamW's two moments."""
    eps: float = Field(1e-8, gt=0)
    """Epsilon of AdamW."""
    layer_decay: float | None = Field(None, gt=0, le=1)
    """Factor by which the rate of each block is below that of the next one; null: all blocks have one rate."""
    rates: dict[str, Factor] = added(
        {},
        before={},
        description="beginning of a parameter's name -> factor of its rate, such as encoder.: 0.1; the longest one "
        "counts, on top of layer_decay",
    )
    clip_norm: float | None = Field(None, gt=0)
    """Norm to which gradients are clipped; null: they are not."""
    clip_mode: Literal["global", "tensor"] = "global"
    """What is clipped: the norm of all gradients together, or that of each tensor (DINO, DropPos)."""
    smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing: share of a target that is spread over all classes."""
    ema_decay: float | None = Field(None, gt=0, lt=1, description="export this moving average of the weights")
    keep: Literal["last", "best"] = added(
        "last", before="last", description="export the weights of the end, or those of the best validation"
    )
    patience: int | None = added(
        None,
        before=None,
        ge=1,
        description="validations in a row without a better one after which the training stops; null: it never stops "
        "early. The learning rate follows the curve of the full length",
    )
    max_skips: int = Field(10, ge=0, description="non-finite steps tolerated before the run stops")
    validate_every: int = added(1, before=1, ge=1, description="epochs; the best of these validations is recorded")
    log_every: int = Field(50, ge=1)
    """Steps between two lines of the metrics."""
    protection: Protection = added(Protection(), before=Protection())
    """Noise on the gradient of the global batch, or pruning of it, before it is clipped."""

    @model_validator(mode="after")
    def _is_possible(self) -> "OptimConfig":
        if self.global_batch % self.micro_batch:
            raise ValueError(
                f"global_batch {self.global_batch} is not a multiple of micro_batch {self.micro_batch}; "
                "change one of them"
            )
        self._check_length()
        self._check_curve_of_epochs()
        self._check_steps()
        return self

    def _check_curve_of_epochs(self) -> None:
        if self.lr_curve != "all_epochs":
            return
        for key in ("warmup_iterations", "iterations"):
            if value := getattr(self, key):
                raise ValueError(
                    f"lr_curve all_epochs changes once per epoch, found {key} {value}; give "
                    f"{key.replace('iterations', 'epochs')}, or set lr_curve to all_steps"
                )
        if self.warmup_epochs and (self.epochs or 0) < 3:
            raise ValueError(
                f"lr_curve all_epochs trains the first two epochs at warmup_lr, and epochs is {self.epochs}; "
                "set lr_curve to all_steps"
            )

    def _check_length(self) -> None:
        if (self.epochs is None) == (self.iterations is None):
            raise ValueError(
                f"epochs is {self.epochs} and iterations {self.iterations}; give one of them, and null for the other"
            )
        if self.warmup_epochs and self.warmup_iterations is not None:
            raise ValueError(
                f"warmup_epochs is {self.warmup_epochs} and warmup_iterations {self.warmup_iterations}; give one of "
                "them, and 0 or null for the other"
            )
        if self.epochs is not None and self.warmup_epochs >= self.epochs:
            raise ValueError(f"warmup_epochs {self.warmup_epochs} must be below epochs {self.epochs}")

    def _check_steps(self) -> None:
        """What only the curve `steps` has, and what it needs."""
        is_steps, num_ways = self.lr_curve == "steps", bool(self.milestones) + (self.decay_every is not None)
        if num_ways != is_steps or [*self.milestones] != sorted(set(self.milestones)):
            raise ValueError(
                f"milestones is {list(self.milestones)}, decay_every {self.decay_every} and lr_curve {self.lr_curve}; "
                "the curve `steps` needs increasing milestones or decay_every; other curves accept neither"
            )
        if self.warmup_curve == "constant" and not is_steps:
            raise ValueError(
                f"warmup_curve constant is for lr_curve steps, found {self.lr_curve}; set warmup_curve to line"
            )

    def total_steps(self, steps_per_epoch: int) -> int:
        return self.iterations or (self.epochs or 0) * steps_per_epoch

    def warmup_steps(self, steps_per_epoch: int) -> int:
        if self.warmup_iterations is not None:
            return self.warmup_iterations
        return round(self.warmup_epochs * steps_per_epoch)

    @property
    def lr(self) -> float:
        return self.base_lr * self.global_batch / self.lr_batch

    @property
    def num_micro(self) -> int:
        return self.global_batch // self.micro_batch


def build_optimizer(method: Method, cfg: OptimConfig) -> torch.optim.AdamW:
    groups = parameter_groups(method, cfg)
    return AdamW(groups, lr=cfg.lr, betas=cfg.betas, eps=cfg.eps, fused=True)


def make_capturable(optimizer: torch.optim.Optimizer, is_capturable: bool) -> None:
    """Whether updates may become part of a CUDA graph; a checkpoint may come from a machine where it was otherwise."""
    for group in optimizer.param_groups:
        group["capturable"] = is_capturable


def rates_of(optimizer: torch.optim.Optimizer, device: torch.device) -> Tensor:
    """(groups,): their rates, on the device, where a recorded update reads them."""
    return send(torch.tensor([group["lr"] for group in optimizer.param_groups]), device)


def parameter_groups(method: Method, cfg: OptimConfig) -> list[dict]:
    """timm's groups: no decay for vectors, biases and the method's list; `lr_scale` per layer where asked for."""
    with dynamo_deferred():
        from timm.optim import param_groups_layer_decay, param_groups_weight_decay

    spared = method.no_weight_decay()
    if cfg.layer_decay is None:
        return _with_rates(
            method, cfg, param_groups_weight_decay(method, cfg.weight_decay, no_weight_decay_list=spared)
        )
    encoder_groups = param_groups_layer_decay(
        method.encoder,
        cfg.weight_decay,
        no_weight_decay_list={name.removeprefix("encoder.") for name in spared},
        layer_decay=cfg.layer_decay,
    )
    return _with_rates(method, cfg, encoder_groups + _head_groups(method, cfg.weight_decay, spared))


def _with_rates(method: Method, cfg: OptimConfig, groups: list[dict]) -> list[dict]:
    """The groups, split where `rates` gives some of their parameters another rate."""
    if not cfg.rates:
        return groups
    factors = {id(parameter): _factor(name, cfg.rates) for name, parameter in method.named_parameters()}
    unused = [start for start in cfg.rates if not any(name.startswith(start) for name, _ in method.named_parameters())]
    if unused:
        raise ConfigError(
            f"optim.rates: no parameter begins with {', '.join(map(repr, unused))}; they begin with "
            f"{', '.join(sorted({name.split('.')[0] + '.' for name, _ in method.named_parameters()}))}"
        )
    return [
        {**group, "params": params, "lr_scale": group.get("lr_scale", 1.0) * factor}
        for group in groups
        for factor in sorted({factors[id(parameter)] for parameter in group["params"]})
        if (params := [parameter for parameter in group["params"] if factors[id(parameter)] == factor])
    ]


def _factor(name: str, rates: Mapping[str, float]) -> float:
    starts = [start for start in rates if name.startswith(start)]
    return rates[max(starts, key=len)] if starts else 1.0


def _head_groups(method: Method, weight_decay: float, spared: set[str]) -> list[dict]:
    """The method's own parameters, at the full rate."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in method.named_parameters():
        if not name.startswith("encoder.") and parameter.requires_grad:
            (free if parameter.ndim <= 1 or name in spared else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


class Schedule(Protocol):
    """The learning rate of every step."""

    def step_update(self, step: int) -> None:
        """Set the rate with which `step`, counted from 0, trains."""


class CosineSchedule:
    """timm draws the curve, over steps or over epochs."""

    def __init__(self, cosine: "CosineLRScheduler", steps_per_move: int, num_late: int) -> None:
        self.cosine, self.steps_per_move, self.num_late = cosine, steps_per_move, num_late

    def step_update(self, step: int) -> None:
        self.cosine.step_update(max(0, step // self.steps_per_move - self.num_late))


class CurveSchedule:
    """A rate that is a function of the step; `lr_scale` of a group multiplies it, as in timm."""

    def __init__(self, optimizer: torch.optim.Optimizer, rate: Callable[[int], float]) -> None:
        self.optimizer, self.rate = optimizer, rate

    def step_update(self, step: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(step) * group.get("lr_scale", 1.0)


def build_schedule(optimizer: torch.optim.Optimizer, cfg: OptimConfig, steps_per_epoch: int) -> Schedule:
    """Warm-up from `warmup_lr`, then what `lr_curve` says, down to `min_lr`."""
    total, warmup = cfg.total_steps(steps_per_epoch), cfg.warmup_steps(steps_per_epoch)
    if cfg.lr_curve == "steps":
        return CurveSchedule(optimizer, lambda step: _rate_in_steps(cfg, step, total, warmup))
    if cfg.lr_curve == "poly":
        return CurveSchedule(optimizer, lambda step: _poly_rate(cfg, step, total, warmup))
    return _cosine(optimizer, cfg, steps_per_epoch)


def _rate_in_steps(cfg: OptimConfig, step: int, total: int, warmup: int) -> float:
    """detectron2's: a line from `warmup_lr` to the rate, which falls at the milestones; or what MP3 has for either."""
    if step < warmup:
        share = 0.0 if cfg.warmup_curve == "constant" else step / warmup
        return cfg.warmup_lr + (cfg.lr - cfg.warmup_lr) * share
    if cfg.decay_every is not None:  # the updates of the warm-up count too
        return cfg.lr * cfg.decay_factor ** (step // cfg.decay_every)
    return cfg.lr * cfg.decay_factor ** sum(step >= round(share * total) for share in cfg.milestones)


def _poly_rate(cfg: OptimConfig, step: int, total: int, warmup: int) -> float:
    """mmsegmentation's: the warm-up multiplies the curve, which has begun to fall by then."""
    rate = (cfg.lr - cfg.min_lr) * (1 - step / total) ** cfg.power + cfg.min_lr
    if step >= warmup:
        return rate
    start = cfg.warmup_lr / cfg.lr
    return rate * (start + (1 - start) * step / warmup)


def _cosine(optimizer: torch.optim.Optimizer, cfg: OptimConfig, steps_per_epoch: int) -> CosineSchedule:
    """Linear warm-up, then half a cosine."""
    with dynamo_deferred():
        from timm.scheduler import CosineLRScheduler

    by_epoch, is_prefix = cfg.lr_curve == "all_epochs", cfg.lr_curve == "after_warmup"
    moves_per_epoch = 1 if by_epoch else steps_per_epoch
    warmup = cfg.warmup_epochs if by_epoch else cfg.warmup_steps(steps_per_epoch)
    moves = cfg.total_steps(steps_per_epoch) // (steps_per_epoch // moves_per_epoch)
    cosine = CosineLRScheduler(
        optimizer,
        t_initial=moves - (warmup if is_prefix else 0),
        lr_min=cfg.min_lr,
        warmup_t=warmup,
        warmup_lr_init=cfg.warmup_lr,
        warmup_prefix=is_prefix,
        t_in_epochs=False,
    )
    # MJP and DeiT ask timm for a rate when a step or an epoch is over, by the number of the one that is over.
    return CosineSchedule(cosine, steps_per_epoch // moves_per_epoch, num_late=0 if is_prefix else 1)


def clip_gradients(method: nn.Module, cfg: OptimConfig) -> Tensor:
    """Clip as the recipe says; returns the global norm before clipping, on the device."""
    parameters = [parameter for parameter in method.parameters() if parameter.grad is not None]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if cfg.clip_norm is not None and cfg.clip_mode == "tensor":
        return _clip_each(gradients, cfg.clip_norm)
    total = get_total_norm(gradients)
    if cfg.clip_norm is not None:
        clip_grads_with_norm_(parameters, cfg.clip_norm, total)
    return total


def _clip_each(gradients: list[Tensor], limit: float) -> Tensor:
    """Clip every tensor by its own norm (DINO's way, which DropPos took over); returns the norm of them all.

    Norms are those of many tensors at once, as in torch's own clipping: one by one, they took a tenth of DeiT-S's step.
    """
    norms = torch.stack(torch._foreach_norm(gradients))
    scales = (limit / (norms + 1e-6)).clamp(max=1.0)
    for gradient, scale in zip(gradients, scales.unbind(), strict=True):
        gradient.mul_(scale)
    return torch.linalg.vector_norm(norms)


def step_if_finite(optimizer: torch.optim.Optimizer, loss: Tensor, norm: Tensor) -> Tensor:
    """Update unless loss or gradient is not finite; returns 1.0 if the update was skipped, else 0.0."""
    skipped = (~(torch.isfinite(loss) & torch.isfinite(norm))).float()
    setattr(optimizer, "found_inf", skipped)  # noqa: B010 - torch's fused step reads it, and does not declare it
    optimizer.step()
    return skipped
