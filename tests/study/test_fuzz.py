"""Config files with every field removed, mistyped, of another type or out of range: success, or one clear message.

A sample of the cases runs with the suite. PATCHWORK_FUZZ=all runs all of them, in pieces: -k piece3 runs one.
"""

import copy
import itertools
import os
import random
import re
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from pipeline.audit.check import check_site
from pipeline.core.errors import PatchworkError
from pipeline.study.resolve.buildable import ModelBuilder
from pipeline.study.resolve.graph import build_graph
from pipeline.study.targets import targets_of

STUDY = {
    "title": "Mine",
    "seeds": 1,
    "headline": {"t1": ["a"]},
    "notes": {"short": "Short runs."},
    "axes": {"size": {"small": {"label": "small", "budget": 0.5, "x": 1}, "large": {"label": "large", "x": 2}}},
    "column_sets": {"scores": {"top1": {"label": "Top-1", "eval": "classify", "metric": "top1", "decimals": 1}}},
    "common": {"optim": {"base_lr": 0.001, "lr_batch": 50, "clip_norm": 1.0, "betas": [0.9, 0.99]}},
    "recipes": {"own": {"optim": {"weight_decay": 0.05, "smoothing": 0.1}, "data": {"augment": {"hflip": 0.5}}}},
    "runs": {
        "a": {"label": "A", "method": "mjp", "model": "deit_s", "data": "imagenet1k", "recipe": ["mjp", "own"]},
        "b": {"like": "a", "label": "B", "init": "a", "seeds": 1, "set": {"model": {"depth": 1}, "seed": 3}},
        "d": {"label": "D", "method": "supervised", "model": "swin_demo", "data": "fashion_mnist", "recipe": ["mjp"]},
        "e": {"label": "E", "method": "droppos", "model": "vit_demo", "data": "fashion_mnist", "recipe": ["mjp"]},
        "c_*": {"like": "a", "over": ["size"], "label": "C *", "budget": 1.0},
    },
    "tables": {
        "t1": {
            "label": "Table 1",
            "title": "Scores",
            "notes": ["short"],
            "note": "A note.",
            "columns": ["scores", {"gain": {"label": "Gain", "delta": "top1", "against": "a", "direction": "up"}}],
            "rows": {
                "a": {"label": "A", "run": "a"},
                "b": {"label": "B", "run": "b", "scales": ["demo"]},
                "d": {"label": "D", "run": "d"},
            },
        }
    },
    "figures": {
        "f1": {
            "label": "Figure 1",
            "title": "Sizes",
            "kind": "lines",
            "x_label": "size",
            "columns": {
                "c_*": {"label": "C *", "along": ["size"], "eval": "train", "metric": "val_top1", "run": "c_*"}
            },
            "rows": {"all": {"label": "All", "run": {"c_small": "c_small", "c_large": "c_large"}}},
        }
    },
    "claims": {"c1": {"statement": "A wins", "type": "directional", "holds": ["mine.t1.a:top1 > mine.t1.b:top1"]}},
}
EXPECTED = {
    "source": "a test",
    "rows": {"mine.t1.a": {"top1": 80.5, "gain": 0}, "mine.t1.b": {"top1": None}, "mine.t1.d": None},
}
SCALE = {
    "note": "small",
    "comparable": False,
    "seeds": 1,
    "weight_files": False,
    "max_budget": 1.0,
    "replace_model": {"deit_s": "vit_demo"},
    "replace_data": {"imagenet1k": "fashion_mnist"},
    "run": {"optim": {"epochs": 4, "warmup_epochs": 0.5, "global_batch": 50, "micro_batch": 50, "log_every": 10}},
    "task": {"classify": {"optim": {"min_lr": 0.0001}}},
    "kind": {"images": {"data": {"eval_crop": 1.0}}},
    "method": {"mjp": {"dal": "linear"}},
    "eval": {"classify": {"shuffle_ratio": 0.1}},
    "recipe": {"mjp": {"optim": {"lr_curve": "all_steps"}}},
    "words": {"ImageNet": "Fashion-MNIST"},
}
SITE = {
    "data": {"fashion_mnist": "/data/x"},
    "cache": "/tmp/cache",
    "weights": "/weights",
    "lpips": None,
    "device": "cpu",
    "processes": 2,
    "workers": 1,
    "compile": False,
    "graphs": "off",
    "checkpoint_s": 15.0,
    "tracking_uri": None,
    "slurm": {"partition": "gpu", "nodes": 1, "gres": "gpu:a100", "cpus": 8, "hours": 24, "setup": ["module load x"]},
}
SHIPPED = ["model/vit_demo", "model/swin_demo", "method/mjp", "method/supervised", "data/fashion_mnist"]
SHIPPED += ["method/droppos", "eval/classify", "recipe/mjp"]
REPLACED = ["model/deit_s", "data/imagenet1k"]  # by the scale
OTHERS = ["some text", "", [1], [], {"a": 1}, {}, None, 7, True, -1, 0, 0.5, 10**18, float("nan"), float("inf")]
PIECES = 16
NUM_PAIRS = 1500
IS_WHOLE = os.environ.get("PATCHWORK_FUZZ") == "all"
SAMPLE = 80

Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Change:
    """What is done to one value of one file."""

    file: str
    place: Place
    how: str  # remove, mistype or replace
    value: Any = None

    def __str__(self) -> str:
        value = f" by {self.value!r}" if self.how == "replace" else ""
        return f"{self.how} {self.file}: {'.'.join(map(str, self.place))}{value}"

    def apply(self, content: Any) -> None:
        *above, last = self.place
        for part in above:
            content = content[part]
        if self.how == "replace":
            content[last] = copy.deepcopy(self.value)
            return
        value = content.pop(last)
        if self.how == "mistype":
            content[mistyped(last)] = value


def mistyped(key: Any) -> str:
    return f"{str(key)[:-1]}q"


def places_of(content: Any, above: Place = ()) -> list[Place]:
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [place for key, value in items for place in [(*above, key), *places_of(value, (*above, key))]]


def changes_of(file: str, content: Any) -> list[Change]:
    changes = []
    for place in places_of(content):
        changes += [Change(file, place, "replace", value) for value in OTHERS]
        changes.append(Change(file, place, "remove"))
        if isinstance(place[-1], str):
            changes.append(Change(file, place, "mistype"))
    return changes


class Fuzzed:
    """A project of one study; files are changed, checked and put back."""

    def __init__(self, project) -> None:
        self.project, self.builder = project, ModelBuilder()
        self.contents = {file: project.read(f"{file}.yaml") for file in SHIPPED}
        self.contents |= {"study/mine": STUDY, "expected/mine": EXPECTED, "scale/demo": SCALE, "site/local": SITE}
        for path in project.configs.rglob("*.yaml"):
            if str(path.relative_to(project.configs).with_suffix("")) not in REPLACED:
                path.unlink()
        for file in self.contents:
            self.write(file, self.contents[file])
        build_graph("demo", self.builder)

    def write(self, file: str, content: Any) -> None:
        path = self.project.configs / f"{file}.yaml"
        path.write_text(yaml.dump(content, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False))

    def cases(self) -> list[list[Change]]:
        single = [change for file, content in self.contents.items() for change in changes_of(file, content)]
        draw = random.Random(1)
        pairs = [pair for _ in range(NUM_PAIRS) if is_possible(pair := draw.sample(single, 2))]
        return [[change] for change in single] + pairs

    def problem(self, changes: list[Change]) -> str:
        """What is wrong with the way these changes are answered; empty if nothing is."""
        contents = {change.file: copy.deepcopy(self.contents[change.file]) for change in changes}
        for change in changes:
            change.apply(contents[change.file])
        for file, content in contents.items():
            self.write(file, content)
        try:
            return self.answer(changes)
        finally:
            for file in contents:
                self.write(file, self.contents[file])

    def answer(self, changes: list[Change]) -> str:
        messages = []
        for step in (self.check_site, self.resolve):
            try:
                step()
            except PatchworkError as error:
                messages.append(str(error))
            except Exception as error:
                return f"{type(error).__name__}: {error}"
        named = [(change.file, self.names(change)) for change in changes]
        return unclear("\n".join(messages), named) if messages else ""

    def names(self, change: Change) -> set[str]:
        """Keys above and at the changed place, and those below it: what refers to one of them is what breaks."""
        value = self.contents[change.file]
        for part in change.place:
            value = value[part]
        below = {key for place in places_of(value) for key in place}
        return {key for key in {*change.place, mistyped(change.place[-1]), *below} if isinstance(key, str)}

    def check_site(self) -> None:
        check_site(self.project.configs / "site/local.yaml")

    def resolve(self) -> None:
        graph = build_graph("demo", self.builder)
        graph.model_dump_json()
        targets_of(graph)


def is_possible(pair: list[Change]) -> bool:
    """Whether both changes can be made: the place of neither is below that of the other."""
    one, other = pair
    size = min(len(one.place), len(other.place))
    return one.file != other.file or one.place[:size] != other.place[:size]


def unclear(message: str, changed: list[tuple[str, set[str]]]) -> str:
    """Every line must begin with a file and a key; some line must name a file and a key that were changed."""
    lines = message.splitlines()
    for line in lines:
        if not re.match(r"configs/[\w/]+\.yaml: \S.*?: \S", line):
            return f"does not begin with file and key: {line!r}"
    if not lines:
        return "says nothing"
    for file, keys in changed:
        if any(f"configs/{file}.yaml" in line and any(key.strip("*") in line for key in keys) for line in lines):
            return ""
    return f"names neither file nor key: {message!r}"


@pytest.mark.slow
@pytest.mark.parametrize("piece", range(PIECES) if IS_WHOLE else ["sample"], ids=lambda piece: f"piece{piece}")
def test_configs__changed_in_any_way__end_in_success_or_one_clear_message(project, piece):
    fuzzed = Fuzzed(project)
    cases = fuzzed.cases()
    chosen = cases[piece::PIECES] if IS_WHOLE else random.Random(2).sample(cases, SAMPLE)

    problems = {" and ".join(map(str, case)): problem for case in chosen if (problem := fuzzed.problem(case))}

    assert [f"{case} -> {problem[:300]}" for case, problem in itertools.islice(problems.items(), 400)] == []
