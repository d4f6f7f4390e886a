"""From the runs of a study to run configs with names: which layers make a run, and which run starts from which."""

from collections.abc import Container, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pipeline.core.config import FILE, Layers, nearest
from pipeline.core.errors import ConfigError
from pipeline.models.architectures import TEXT, unknown_architecture
from pipeline.study.overrides import problems_of_replaced, replaced_fragments, replaced_keys
from pipeline.study.resolve.data import add_data, add_origin
from pipeline.study.resolve.draft import Draft, fragment, fragment_names
from pipeline.study.resolve.entries import RunEntry
from pipeline.study.spec import RunSpec

if TYPE_CHECKING:
    from pipeline.engine.run import RunConfig

Layer = tuple[str, dict[str, Any]]
NUM_FRAGMENTS = 3  # method, model and data: the first layers of every run


def add_run(draft: Draft, key: str) -> None:
    """Resolve one run, once per seed; of one that starts from a run with problems, only names of files are checked."""
    spec, where = draft.study.runs[key], f"{draft.file}: runs.{key}"
    if not spec.train and spec.init in draft.runs:  # a stand-in for the file
        draft.runs[key] = draft.runs[spec.init]
        return
    layers = _layers(draft, key)
    if spec.init in draft.study.runs and spec.init not in draft.runs:
        return
    for source, content in layers:
        for name in ("init", "train"):
            if name in content:
                raise ConfigError(f"{source}: {name}: not allowed here; write it next to a run's method")
    lines = _add_overrides(draft, spec, layers)
    budget = min(spec.budget, draft.scale.max_budget or spec.budget)
    layers += _budget(layers, budget, f"{where}.budget")
    # A weight file is what it is: three times the same number would look like one without noise.
    count = (spec.seeds or draft.study.seeds or _seeds_of_scale(draft, key)) if spec.train else 1
    try:
        _check_architecture(Layers(*layers))
        names = [_add_seed(draft, key, [*layers, *_seed(layers, number, where)], number) for number in range(count)]
    except ConfigError as error:
        lines += str(error).splitlines()
    if lines:
        raise ConfigError("\n".join(dict.fromkeys(lines)))
    draft.runs[key] = names


def _seeds_of_scale(draft: Draft, key: str) -> int:
    in_headline = draft.scale.headline_seeds and key in draft.headline_runs
    return draft.scale.headline_seeds if draft.scale.headline_seeds and in_headline else draft.scale.seeds


def _add_overrides(draft: Draft, spec: RunSpec, layers: list[Layer]) -> list[str]:
    """Put what the scale replaces of a run's own values into the graph; returns what is wrong with those values."""
    from_scale = [layer for layer in layers if layer[0].startswith(f"{draft.scale_file}: ")]
    of_study = [layer for layer in layers[NUM_FRAGMENTS:] if layer not in from_scale]
    keys = replaced_keys([content for _, content in of_study], Layers(*layers).merged()) if spec.train else {}
    for override in [*replaced_fragments(spec, draft.scale), *keys.values()]:
        if str(override) not in draft.checked:
            draft.checked.add(str(override))
            draft.graph.overrides.setdefault(draft.name, []).append(override)
    checked = repr((spec.method, spec.data, keys))
    if not keys or checked in draft.checked:
        return []
    draft.checked.add(checked)
    return problems_of_replaced(Layers(*layers[:NUM_FRAGMENTS], *from_scale, *of_study), keys)


def _add_seed(draft: Draft, key: str, layers: list[Layer], number: int) -> str:
    """A run with one of its seeds, in the graph; returns its name."""
    from pipeline.engine.run import parse_run  # needs torch; only when graph.json is out of date

    spec, where = draft.study.runs[key], f"{draft.file}: runs.{key}"
    start = {"init": _init(draft, spec, where, number)} | ({} if spec.train else {"train": False})
    merged = Layers(*layers, (where, start))
    run = parse_run(merged)
    if draft.builder:
        draft.builder.check(run, merged)
    add_data(draft, run.data, where)
    add_origin(draft, run.data, where)
    name = run.name
    _check_name(draft, run, name, where)
    starts = draft.runs.get(spec.init or "", [])
    entry = RunEntry(
        config=run.model_dump(mode="json"),
        label=spec.label,
        data=run.data.name,
        task=run.task,
        init=starts[number % len(starts)] if starts else None,
        trained=run.train,
    )
    entry = draft.graph.runs.setdefault(name, entry)
    if draft.name not in entry.studies:
        entry.studies.append(draft.name)
    draft.parsed[name] = run
    draft.layers.setdefault(name, merged)
    return name


def _seed(layers: list[Layer], number: int, where: str) -> list[Layer]:
    """The first seed is the one that the config names; the others follow it."""
    first = Layers(*layers).merged().get("seed", 0)
    return [(f"{where}.seeds", {"seed": first + number})] if number and isinstance(first, int) else []


def _layers(draft: Draft, key: str) -> list[Layer]:
    """What a run is merged from; later layers override earlier ones. CONTRIBUTING has this table."""
    study, scale, spec = draft.study, draft.scale, draft.study.runs[key]
    method, model, data = _fragments(draft, key)
    task, kind = _task_of(method[1]) or "", _kind_of(data[1]) or ""
    of_scale = {
        "run": scale.run,
        f"task.{task}": scale.task.get(task),
        f"kind.{kind}": scale.kind.get(kind),
        f"method.{spec.method}": scale.method.get(spec.method) and {"method": scale.method[spec.method]},
    }
    return [
        *(method, model, data),
        (f"{draft.file}: common", study.common),
        *_recipes(draft, key),
        *[(f"{draft.scale_file}: {name}", content) for name, content in of_scale.items() if content],
        (f"{draft.file}: runs.{key}.set", spec.set),
        (f"{draft.file}: set", study.set),
    ]


def _fragments(draft: Draft, key: str) -> list[Layer]:
    """Method, model and data, with the scale's model and data in place of the paper's."""
    fragments, lines, scale = [], _recipe_problems(draft, key), draft.scale
    for kind, replace in (("method", {}), ("model", scale.replace_model), ("data", scale.replace_data)):
        name, where = getattr(draft.study.runs[key], kind), f"{draft.file}: runs.{key}.{kind}"
        if name in replace:
            name, where = replace[name], f"{draft.scale_file}: replace_{kind}.{name}"
        try:
            fragments.append(fragment(kind, name, where))
        except ConfigError as error:
            lines.append(str(error))
    if lines:
        raise ConfigError("\n".join(lines))
    file, content = fragments[-1]
    if draft.study.runs[key].train and _for_evaluations_alone(content):
        raise ConfigError(
            f"{where}: {name} is only for evaluations: num_train is 0 in {file}; train on another data set"
        )
    return fragments


def _for_evaluations_alone(data_fragment: dict[str, Any]) -> bool:
    data = data_fragment.get("data")
    return isinstance(data, dict) and data.get("num_train") == 0


def _recipes(draft: Draft, key: str) -> list[Layer]:
    """Those of the study, and files of configs/recipe, which several studies share, with the scale's own keys."""
    own, here, layers = draft.study.recipes, draft.scale.recipe, []
    for name in draft.study.runs[key].recipe:
        if name in own:
            layers.append((f"{draft.file}: recipes.{name}", own[name]))
            continue
        layers.append(fragment("recipe", name, f"{draft.file}: runs.{key}.recipe"))
        if name in here:
            layers.append((f"{draft.scale_file}: recipe.{name}", here[name]))
    return layers


def _recipe_problems(draft: Draft, key: str) -> list[str]:
    known, where = [*draft.study.recipes, *fragment_names("recipe")], f"{draft.file}: runs.{key}.recipe"
    wrong = [name for name in draft.study.runs[key].recipe if name not in known]
    return [f"{where}: no recipe {name!r}; {nearest(name, known)}" for name in wrong]


def _kind_of(data_fragment: dict[str, Any]) -> str | None:
    """The kind of the data; one that does not exist is reported where the run is parsed."""
    data = data_fragment.get("data")
    return data.get("kind", "images") if isinstance(data, dict) else None


def _task_of(method_fragment: dict[str, Any]) -> str | None:
    """The task of the method; one that does not exist is reported where the run is parsed."""
    from pipeline.methods.base import METHODS

    method = method_fragment.get("method")
    try:
        return METHODS.get(method["name"]).Config.task if isinstance(method, dict) and "name" in method else None
    except ConfigError:
        return None


def _budget(layers: Iterable[Layer], budget: float, where: str) -> list[Layer]:
    """Another length where a run gets only a share of its recipe's epochs or iterations, or several times as many."""
    if budget == 1:
        return []
    optim = Layers(*layers).below("optim").merged()
    content: dict[str, float] = {}
    for unit in ("epochs", "iterations"):
        length, warmup = optim.get(unit), optim.get(f"warmup_{unit}") or 0
        if not isinstance(length, int) or not isinstance(warmup, int | float):
            continue  # reported where the run is parsed
        content[unit] = max(1, round(budget * length))
        if warmup >= content[unit]:
            content[f"warmup_{unit}"] = warmup * budget if unit == "epochs" else round(warmup * budget)
    return [(where, {"optim": content})] if content else []


def _init(draft: Draft, spec: RunSpec, where: str, number: int) -> str | None:
    """The name of the run it starts from, of the same seed where that has several; or the file as it is written."""
    if spec.init == FILE:
        raise ConfigError(f"{where}.init: found {spec.init!r} without a path; write it as file:PATH")
    start = draft.study.runs.get(spec.init or "")
    if start and not start.train:
        raise ConfigError(f"{where}.init: run {spec.init!r} is a weight file; write its init here: {start.init}")
    starts = draft.runs.get(spec.init or "", [])
    return starts[number % len(starts)] if starts else spec.init


def _check_architecture(layers: Layers) -> None:
    """A mistyped one would be found by timm when training starts; here, before a cluster is asked for anything."""
    arch = layers.below("model").merged().get("arch")
    if isinstance(arch, str) and arch not in TEXT and (problem := unknown_architecture(arch)):
        raise ConfigError(f"{layers.origin(('model', 'arch'))}: model.arch: {problem}")


def _check_name(draft: Draft, run: "RunConfig", name: str, where: str) -> None:
    """Runs of one name share their files, so they must be equal in everything, also in what is not in the name."""
    known = draft.graph.runs.get(name)
    keys = _differing(known.config, run.model_dump(mode="json")) if known else []
    if known and keys:
        raise ConfigError(
            f"{where}: has the name {name}, as {known.label!r} of study {known.studies[0]} has, but another "
            f"{', '.join(keys)}; runs with one name share their files: make them equal, or change something in the "
            "name, such as the seed"
        )


def _differing(one: Any, other: Any, key: str = "") -> list[str]:
    """Dotted keys of the values that differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = dict.fromkeys([*one, *other])
        return [found for name in names for found in _differing(one.get(name), other.get(name), f"{key}.{name}")]
    return [] if one == other else [key.removeprefix(".")]


def in_init_order(runs: dict[str, RunSpec], file: str, collector: AbstractContextManager) -> list[str]:
    """Keys of runs, each after the one it starts from; those whose start has a problem are left out."""
    ordered: dict[str, None] = {}
    for first in runs:
        with collector:
            ordered |= dict.fromkeys(reversed(_init_chain(runs, first, file, ordered)))
    return [*ordered]


def _init_chain(runs: dict[str, RunSpec], first: str, file: str, known: Container[str]) -> list[str]:
    """A run, the one it starts from, and so on, up to one that is known."""
    chain: list[str] = []
    key: str | None = first
    while key is not None and key not in known and not key.startswith(FILE):
        if key not in runs:
            raise ConfigError(f"{file}: runs.{chain[-1]}.init: no run {key!r}; {nearest(key, runs)}")
        if key in chain:
            cycle = chain[chain.index(key) :]
            start = cycle.index(min(cycle))  # the same words, whichever of its runs it is found from
            cycle = [*cycle[start:], *cycle[: start + 1]]
            text = " -> ".join(cycle)
            raise ConfigError(f"{file}: runs.{cycle[0]}.init: runs start from each other: {text}; break the cycle")
        chain.append(key)
        key = runs[key].init
    return chain
