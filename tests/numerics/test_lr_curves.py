"""The learning rate of every step of the papers' recipes, against loops that ask for it as the released codes do."""

import math

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from pipeline.core.config import CONFIGS, merge, read_yaml
from pipeline.engine.optim import OptimConfig, build_schedule

STEPS = 7  # of an epoch: few, so that an epoch's steps are told apart from each other and all of them are looked at


def optim_of(*fragments):
    return OptimConfig.model_validate(merge(*[fragment["optim"] for fragment in fragments]))


def recipe(name, study=None):
    """A recipe as a run of this study finds it: the study's own, or that of a file."""
    own = read_yaml(CONFIGS / "study" / f"{study}.yaml")["recipes"] if study else {}
    return own[name] if name in own else read_yaml(CONFIGS / "recipe" / f"{name}.yaml")


def rates_of(optim):
    """What every step of a run would train with."""
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=optim.lr)
    schedule = build_schedule(optimizer, optim, STEPS)
    rates = []
    for step in range(optim.total_steps(STEPS)):
        schedule.step_update(step)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def timm_rate(now, warmup, end, peak, first, last):
    """The rate of timm's cosine as MJP and DeiT set it up: `end` is that of training, not of what is left."""
    if now < warmup:
        return first + now * (peak - first) / warmup
    return last + 0.5 * (peak - last) * (1 + math.cos(math.pi * now / end))


def mjp_rates(epochs, warmup, **rates):
    """MJP's loop: step, then ask for the next rate by the number of the step that is over."""
    found, rate = [], rates["first"]
    for step in range(epochs * STEPS):
        found.append(rate)
        rate = timm_rate(step, warmup * STEPS, epochs * STEPS, **rates)
    return found


def deit_rates(epochs, warmup, **rates):
    """DeiT's loop: an epoch, then ask for the next rate by the number of the epoch that is over."""
    found, rate = [], rates["first"]
    for epoch in range(epochs):
        found += [rate] * STEPS
        rate = timm_rate(epoch, warmup, epochs, **rates)
    return found


def mae_rates(epochs, warmup, peak, last):
    """MAE's loop, which DropPos took over: ask for the rate before a step, by the epoch and the share of it done."""
    found = []
    for step in range(epochs * STEPS):
        epoch = step / STEPS
        share = (epoch - warmup) / (epochs - warmup)
        found.append(
            peak * epoch / warmup if epoch < warmup else last + (peak - last) * 0.5 * (1 + math.cos(math.pi * share))
        )
    return found


# Epochs, warm-up and rates as the papers and their scripts have them, for the batch of the study.
OFFICIAL = {
    "mjp": (lambda: optim_of(recipe("mjp")), mjp_rates(300, 20, peak=1e-3, first=1e-6, last=1e-5)),
    "deit, by mp3": (
        lambda: optim_of(*[recipe(name, "mp3") for name in ("deit", "mp3_supervised", "imagenet")]),
        deit_rates(300, 5, peak=2e-3, first=1e-6, last=1e-5),
    ),
    "deit, mp3's pretraining": (
        lambda: optim_of(*[recipe(name, "mp3") for name in ("deit", "imagenet_pretrain")]),
        deit_rates(100, 5, peak=2e-3, first=1e-6, last=1e-5),
    ),
    "mae": (lambda: optim_of(recipe("mae_pretrain")), mae_rates(200, 40, peak=2.4e-3, last=0.0)),
    "mae, finetuning": (lambda: optim_of(recipe("mae_finetune")), mae_rates(100, 5, peak=2e-3, last=1e-6)),
    "droppos": (lambda: optim_of(recipe("pretrain", "droppos")), mae_rates(200, 10, peak=2.4e-3, last=0.0)),
    "droppos, finetuning": (
        lambda: optim_of(recipe("droppos_finetune")),
        mae_rates(100, 5, peak=4e-3, last=1e-6),
    ),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_rate__every_step_of_a_papers_recipe__is_that_of_its_released_code(name):
    optim, expected = OFFICIAL[name]
    assert rates_of(optim()) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_rate__curves_of_the_same_numbers__differ_as_much_as_the_papers_do():
    """So that no two names of a curve can stand for one."""
    numbers = {"epochs": 300, "global_batch": 1024, "micro_batch": 128, "base_lr": 5e-4, "warmup_epochs": 20}
    curves = ("after_warmup", "all_steps", "all_epochs")
    after, steps, epochs = (rates_of(OptimConfig(**numbers, lr_curve=curve)) for curve in curves)
    ratios = [a / b for a, b in zip(after, steps, strict=True)]
    assert max(ratios[20 * STEPS :]) == pytest.approx(1.127, abs=2e-3)
    assert sum(after) / sum(steps) == pytest.approx(1.069, abs=2e-3)
    assert epochs[: 2 * STEPS] == [1e-6] * 2 * STEPS
    assert len(set(epochs)) < 300 < len(set(steps))


@pytest.mark.parametrize("scale", ["demo", "tiny"])
def test_scale__runs_of_few_epochs__do_not_take_the_curve_that_moves_once_an_epoch(scale):
    assert read_yaml(CONFIGS / "scale" / f"{scale}.yaml")["run"]["optim"]["lr_curve"] == "after_warmup"


@pytest.mark.parametrize("epochs", [1, 2])
def test_config__curve_of_epochs_that_never_leaves_the_warm_up__is_refused_with_what_to_do(epochs):
    numbers = {"global_batch": 8, "micro_batch": 8, "base_lr": 1e-3, "lr_curve": "all_epochs"}
    with pytest.raises(ValidationError, match=f"epochs is {epochs}; set lr_curve to all_steps"):
        OptimConfig(**numbers, epochs=epochs, warmup_epochs=0.5)
    assert OptimConfig(**numbers, epochs=epochs).lr_curve == "all_epochs"


def cosine_rates(total, warmup, peak, first, last):
    """A line up to the peak, then half a cosine down to the end."""
    after = [last + (peak - last) * 0.5 * (1 + math.cos(math.pi * step / (total - warmup))) for step in range(total)]
    return [first + (peak - first) * step / warmup for step in range(warmup)] + after[: total - warmup]


def test_after_warmup__fewer_updates_than_an_epoch_has__is_the_whole_curve():
    optim = in_iterations("after_warmup", min_lr=1e-6).model_copy(update={"iterations": STEPS - 1})
    assert rates_of(optim) == pytest.approx(cosine_rates(STEPS - 1, 5, peak=3e-4, first=3e-7, last=1e-6))


@pytest.mark.parametrize("length", [{"epochs": 5, "warmup_iterations": 7}, {"iterations": 3}, {"iterations": 300}])
def test_config__curve_of_epochs_with_lengths_in_updates__is_refused_with_what_to_do(length):
    numbers = {"global_batch": 8, "micro_batch": 8, "base_lr": 1e-3, "lr_curve": "all_epochs"}
    key = [*length][-1]
    with pytest.raises(ValidationError, match=f"once per epoch, found {key} {length[key]}; give .*epochs, or set"):
        OptimConfig(**numbers, **length)
    assert OptimConfig(**{**numbers, "lr_curve": "all_steps"}, **length).lr_curve == "all_steps"


def in_iterations(curve, **keys):
    """A recipe of 90 updates, 5 of which warm up."""
    length = {"iterations": 90, "warmup_iterations": 5, "global_batch": 16, "micro_batch": 2, "lr_batch": 16}
    return OptimConfig(lr_curve=curve, base_lr=3e-4, warmup_lr=3e-7, **length, **keys)


def test_steps__detectron2s_schedule_of_the_papers_numbers__falls_at_the_papers_iterations():
    """DropPos A.2: 88,750 iterations, a tenth at 78,889 and 85,463; ViTDet's milestones are 8/9 and 26/27."""
    optim = in_iterations("steps", milestones=(0.888889, 0.962963)).model_copy(update={"iterations": 88750})
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=optim.lr)
    schedule, found = build_schedule(optimizer, optim, 7329), {}
    for step in (5, 78888, 78889, 85462, 85463):
        schedule.step_update(step)
        found[step] = optimizer.param_groups[0]["lr"]
    assert list(found.values()) == pytest.approx([3e-4, 3e-4, 3e-5, 3e-5, 3e-6])


def test_steps__every_update__is_the_rate_of_a_plain_loop():
    optim, expected, rate = in_iterations("steps", milestones=(0.5, 0.9), decay_factor=0.2), [], 3e-4
    for step in range(90):
        rate *= 0.2 if step in (45, 81) else 1
        expected.append(3e-7 + (3e-4 - 3e-7) * step / 5 if step < 5 else rate)
    assert rates_of(optim) == pytest.approx(expected)


def test_steps__mp3s_schedule_of_speech__is_constant_at_first_and_halved_every_ten_thousand_updates():
    """MP3 Sec. 4.3: 500 updates at 1e-4, then 1e-3, dropped by a factor of 2 every 10k updates."""
    length = {"iterations": 30000, "warmup_iterations": 500, "global_batch": 256, "micro_batch": 256, "lr_batch": 256}
    keys = {"lr_curve": "steps", "warmup_curve": "constant", "decay_every": 10000, "decay_factor": 0.5}
    optim, expected, rate = OptimConfig(base_lr=1e-3, warmup_lr=1e-4, **length, **keys), [], 1e-3
    for update in range(30000):
        rate /= 2 if update in (10000, 20000) else 1
        expected.append(1e-4 if update < 500 else rate)
    assert rates_of(optim) == expected


def test_steps__decay_every__counts_the_updates_of_the_warm_up_too():
    found = rates_of(in_iterations("steps", decay_every=4))
    assert found[4] == pytest.approx(3e-7 + (3e-4 - 3e-7) * 4 / 5)
    assert [found[update] for update in (5, 7, 8, 11, 12)] == pytest.approx([3e-5, 3e-5, 3e-6, 3e-6, 3e-7])


@pytest.mark.parametrize("power", [1.0, 0.9])
def test_poly__every_update__is_mmsegmentations(power):
    """Its hook scales the regular rate by 1 - (1 - t / W) (1 - ratio) while it warms up."""
    optim, expected = in_iterations("poly", power=power, min_lr=1e-6), []
    for step in range(90):
        regular = (3e-4 - 1e-6) * (1 - step / 90) ** power + 1e-6
        expected.append(regular * (1 - (1 - step / 5) * (1 - 1e-3)) if step < 5 else regular)
    assert rates_of(optim) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"epochs": 3}, "give one of them"),
        ({"iterations": None}, "give one of them"),
        ({"warmup_epochs": 1.0}, "give one of them, and 0 or null"),
        ({"milestones": (0.9, 0.5)}, "increasing milestones"),
        ({"lr_curve": "poly"}, "other curves accept neither"),
        ({"milestones": ()}, "the curve `steps` needs increasing milestones"),
        ({"decay_every": 10}, "or decay_every"),
        ({"milestones": (), "decay_every": 10, "lr_curve": "poly"}, "other curves accept neither"),
        ({"milestones": (), "decay_every": 0}, "greater than or equal to 1"),
        (
            {"milestones": (), "lr_curve": "poly", "warmup_curve": "constant"},
            "for lr_curve steps, found poly; set warmup_curve to line",
        ),
    ],
)
def test_optim__lengths_and_milestones_that_do_not_fit__are_refused(keys, found):
    recipe = in_iterations("steps", milestones=(0.5,)).model_dump() | keys
    with pytest.raises(ValidationError, match=found):
        OptimConfig.model_validate(recipe)
