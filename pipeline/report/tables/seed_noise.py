"""How much seeds differ at a scale, by metric and data set: what a single run cannot tell about itself.

It is measured wherever a cell has several seeds: in the tables at hand, and in configs/noise, where `pipeline noise`
writes what it finds. A measurement counts as long as the configs still name its runs; stale cells are not measured.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from statistics import variance
from typing import Any

import yaml

from pipeline.core.config import CONFIGS, shown
from pipeline.core.errors import DataError
from pipeline.core.files import write_text
from pipeline.report.records import Cell, FilledTable
from pipeline.study.claims.reading import SeedNoise
from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.graph import noise_file
from pipeline.study.spec import Noise, SeedValues

HEADER = "# yaml-language-server: $schema=../schema/noise.json\n"
HEADER += "# What seeds do at scale {scale}: values of one metric over seeds, by data set. Measured; do not edit.\n"
HEADER += "# seeds: 4 in configs/scale/{scale}.yaml, then Snakemake, then: python -m pipeline noise --scale {scale}\n"
# The last validation of a training found what the evaluation `classify` would find again.
ALSO_EVALUATED = {"val_top1": "classify: top1"}


def quantity_of(graph: Graph, cell: Cell) -> str:
    """Names what a cell measures, such as `fashion_mnist classify: top1`.

    What else training itself measures is another thing for each method, such as its loss. Empty where no run was
    trained, and for differences of cells.
    """
    run, metric = graph.runs.get(cell.run or ""), (cell.provenance or {}).get("metric", "")
    metric = ALSO_EVALUATED.get(metric, metric)
    if run is None or not run.trained or not cell.metric:
        return ""
    return f"{run.data} {metric}" if metric != cell.metric else f"{run.data} {run.method}: {metric}"


def measured(graph: Graph, tables: Iterable[FilledTable]) -> dict[str, list[SeedValues]]:
    """Every cell with several seeds, once, by what it measures."""
    found: dict[str, dict[str, SeedValues]] = {}
    for table in tables:
        for _, _, cell in table.cells():
            if cell.n > 1 and cell.run and not cell.stale and (quantity := quantity_of(graph, cell)):
                values = SeedValues(run=cell.run, values=cell.values, made=_made(cell.provenance or {}))
                found.setdefault(quantity, {})[cell.run] = values
    return {kind: list(by_run.values()) for kind, by_run in found.items()}


def _made(facts: dict[str, Any]) -> str:
    return f"{facts['machine']}, torch {facts['versions']['torch']}, commit {facts['commit']}"


def seed_noise(graph: Graph, tables: Iterable[FilledTable]) -> dict[str, SeedNoise]:
    """By what cells measure: the deviation over seeds, over all runs that were trained with several."""
    return {kind: pooled(values) for kind, values in _with_known(graph, measured(graph, tables)).items()}


def _with_known(graph: Graph, found: dict[str, list[SeedValues]]) -> dict[str, list[SeedValues]]:
    """With what was known before; of a run measured twice on one kind of machine, the measurement with more seeds.

    Other machines round differently, and a short training amplifies that as another seed would: both count.
    """
    together: dict[str, list[SeedValues]] = {}
    for kind in sorted({*graph.noise, *found}):
        longest_last = sorted(graph.noise.get(kind, []) + found.get(kind, []), key=lambda each: len(each.values))
        together[kind] = [*{(each.run, each.machine): each for each in longest_last}.values()]
    return together


def pooled(measurements: Iterable[SeedValues]) -> SeedNoise:
    """One deviation for all of them. A number that seeds do not move at all says nothing about the others."""
    values = [each.values for each in measurements]
    moved = [each for each in values if variance(each)] or values
    dof = sum(len(each) - 1 for each in moved)
    return SeedNoise(math.sqrt(sum(variance(each) * (len(each) - 1) for each in moved) / dof), dof)


def write_noise(graph: Graph, tables: Iterable[FilledTable]) -> Path:
    """Writes what the tables measure; returns the file."""
    found = measured(graph, tables)
    if not found:
        raise DataError(
            f"no number at scale {graph.scale} has several seeds; write seeds: 4 into "
            f"{shown(CONFIGS / 'scale' / f'{graph.scale}.yaml')}, run Snakemake, then run this command again"
        )
    noise, path = Noise(metrics=_with_known(graph, found)), noise_file(graph.scale)
    text = yaml.safe_dump(noise.model_dump(mode="json"), sort_keys=True, width=120, default_flow_style=None)
    write_text(path, HEADER.format(scale=graph.scale) + text)
    return path
