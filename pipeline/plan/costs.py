"""What the step of each run costs, counted once: runs that differ in seed or recipe share it.

Counting takes about a second for each distinct step, so the results stay in `costs.json`; they are counted anew when
their code changes.
"""

import functools
import json
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from typing import Any

from tqdm import tqdm

from pipeline.core.config import Layers, fingerprint
from pipeline.core.files import write_cache
from pipeline.core.processes import end_with_parent
from pipeline.core.registry import KINDS, METHODS, TASKS
from pipeline.core.source import PACKAGE, digest_behind
from pipeline.study.resolve.entries import Graph

Cost = dict[str, float]
FEW = 4  # steps that are counted before other processes would have started


def costs_of(graph: Graph, runs: Iterable[str]) -> dict[str, Cost]:
    """Run -> operations per image and bytes on disk."""
    keys, path = {name: _key(graph.runs[name].config) for name in runs}, graph.results.costs
    kept = json.loads(path.read_text()) if path.exists() else {}
    known = kept["costs"] if kept.get("code") == _code() else {}
    missing = {key: graph.runs[name].config for name, key in keys.items() if key not in known}
    if missing:
        known |= _count(missing)
        content = {"code": _code(), "costs": known}
        write_cache(path, json.dumps(content, indent=2) + "\n", "the counted operations")
    return {name: known[key] for name, key in keys.items()}


def _key(config: dict[str, Any]) -> str:
    """Names what the cost depends on."""
    cost_fields = KINDS.get(config["data"].get("kind", "images")).Config.cost_fields
    data = {key: config["data"][key] for key in cost_fields}
    return fingerprint([config["method"], config["model"], data, bool(config["optim"]["ema_decay"])], 16)


@functools.cache
def _code() -> str:
    """Changes with the code that a step consists of."""
    plugged_in = [path for registry in (METHODS, TASKS, KINDS) for path in registry.files().values()]
    code = digest_behind(PACKAGE / "plan/operations.py", *plugged_in)
    return fingerprint([code, version("torch"), version("timm")], 16)


def _count(configs: dict[str, dict[str, Any]]) -> dict[str, Cost]:
    bar = functools.partial(tqdm, desc="counting operations", total=len(configs), unit="step")
    if len(configs) <= FEW:
        return dict(zip(configs, bar(map(_count_one, configs.values())), strict=True))
    # From a server that has imported torch but never computed: a fork of this process could wait for its threads.
    context = get_context("forkserver")
    context.set_forkserver_preload(["timm", "pipeline.plan.operations", "pipeline.engine.loop"])
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1), context, end_with_parent) as pool:
        return dict(zip(configs, bar(pool.map(_count_one, configs.values())), strict=True))


def _count_one(config: dict[str, Any]) -> Cost:
    from pipeline.engine.run import parse_run
    from pipeline.plan.operations import step_cost

    return step_cost(parse_run(Layers(("the plan", config))))
