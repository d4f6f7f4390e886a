"""From result files to what claims read of a cell: its own metric's noise, seed by seed and image by image."""

import math
import statistics

import numpy as np
import pytest
from result_files import write_evaluation, write_training

from pipeline.report.tables.fill import CellReadings, fill_table, judge_tables
from pipeline.results.records import EvalResult, read_record, write_record
from pipeline.study.resolve.entries import Graph
from pipeline.study.spec import SeedValues

IMAGES = 50
COLUMNS = {
    "loss": {"label": "Loss", "eval": "classify", "metric": "loss"},
    "top1": {"label": "Top-1", "eval": "classify", "metric": "top1"},
    "params": {"label": "Parameters", "eval": "train", "metric": "params_m"},
    "gain": {"label": "Gain", "delta": "top1", "against": "a"},
}


def toy_graph(seeds: dict[str, int], holds: list[str]) -> Graph:
    """Rows a and b with their numbers of seeds, and claims that hold their cells against each other."""
    runs = {row: [f"{row}{seed}" for seed in range(count)] for row, count in seeds.items()}
    names = [name for row in runs.values() for name in row]
    about = {"config": {"method": {"name": "toy", "fidelity": "paper"}}, "label": "run", "data": "toy", "init": None}
    table = {"study": "toy", "study_title": "Toy", "label": "Table 1", "title": "Toys", "note": "", "columns": COLUMNS}
    claim = {"statement": "x", "type": "directional", "holds": holds}
    rows = {f"toy.t1.{row}": _row(row, names, is_headline=row != "c") for row, names in runs.items()}
    return Graph.model_validate(
        {
            "scale": "toy",
            "note": "",
            "comparable": False,
            "runs": dict.fromkeys(names, about),
            "evals": {
                f"classify-{name}": {
                    "fragment": "classify",
                    "file": "classify",
                    "config": {},
                    "subjects": {"model": name},
                    "data": {},
                    "job": name,
                }
                for name in names
            },
            "tables": {"toy.t1": {**table, "rows": rows}},
            "claims": {"toy": {"toy.c1": claim}} if holds else {},
        }
    )


def _row(label: str, names: list[str], is_headline: bool) -> dict:
    results = [f"evals/classify-{name}/result.json" for name in names]
    cells = {metric: {"sources": results, "metric": metric} for metric in ("loss", "top1")}
    cells["params"] = {"sources": [f"runs/{name}/train.json" for name in names], "metric": "params_m"}
    return {"label": label, "headline": is_headline, "runs": {"": names}, "cells": cells, "expected": {}}


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Makes the graph and all its results; `top1` gives the share of images that each run classifies correctly."""
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path)

    def make(seeds=None, holds=(), top1=None, **record):
        graph = toy_graph(seeds or {"a": 1, "b": 1}, list(holds))
        for number, name in enumerate(graph.runs):
            write_training(graph, name, {"params_m": 22.0}, errors={"params_m": 0.0}, count=IMAGES)
            values = per_image(number, (top1 or {}).get(name, 0.6))
            errors = {key: float(np.std(v, dtype=np.float64)) / math.sqrt(IMAGES) for key, v in values.items()}
            about = {"errors": errors, "count": IMAGES, "images": "val", **record}
            metrics = {key: float(np.mean(v, dtype=np.float64)) for key, v in values.items()}
            write_evaluation(graph, f"classify-{name}", metrics, values, **about)
        return graph

    return make


def per_image(number: int, share: float) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(number)
    right = generator.permutation(np.arange(IMAGES) < share * IMAGES)
    return {"loss": generator.random(IMAGES).astype(np.float32), "top1": 100 * right.astype(np.float32)}


def filled(graph: Graph, selection: str = "all"):
    return fill_table(graph, "toy.t1", selection)


def reading(graph: Graph, row: str, column: str):
    return CellReadings([filled(graph)], graph)[f"toy.t1.{row}", column]


def test_cell__of_one_of_several_metrics__has_the_error_of_its_own(toy):
    cells = filled(toy()).rows[0].cells
    own = per_image(0, 0.6)
    assert cells["loss"].error == pytest.approx(statistics.pstdev(own["loss"].tolist()) / math.sqrt(IMAGES), rel=1e-6)
    assert cells["top1"].error == pytest.approx(100 * math.sqrt(0.6 * 0.4 / IMAGES), rel=1e-6)


def test_cell__metric_of_the_whole_set__has_an_error_and_nothing_to_pair_by(toy):
    graph = toy()
    path = graph.results.evaluation(f"classify-{next(iter(graph.runs))}").result
    # Such as AUROC beside accuracy: an error, and no value per image.
    write_record(path, read_record(path, EvalResult).model_copy(update={"per_image": ["loss"]}))
    cell = filled(graph).rows[0].cells["top1"]
    assert cell.error > 0 and (cell.images, cell.per_image) == ("", [])
    assert filled(graph).rows[0].cells["loss"].per_image != []


def test_cell__metric_over_other_images_than_the_rest__has_its_own_count_and_pairs_with_them(toy):
    some = {"other_images": {"top1": {"count": 7, "images": "some"}}}
    cells = filled(toy(**some)).rows[0].cells
    assert (cells["top1"].count, cells["top1"].images) == (7, "some")
    assert (cells["loss"].count, cells["loss"].images) == (IMAGES, "val")


def test_cell__that_is_exact__is_over_no_images(toy):
    cell = filled(toy()).rows[0].cells["params"]
    assert (cell.error, cell.count) == (0.0, None)


def test_reading__of_one_seed__has_its_error_and_the_images_of_its_own_metric(toy):
    found = reading(toy(), "b", "top1")
    assert (found.seed_error, found.dof, found.images) == (None, 0, "val")
    assert found.error == pytest.approx(100 * math.sqrt(0.6 * 0.4 / IMAGES), rel=1e-6)
    assert [values.tolist() for values in found.per_image] == [per_image(1, 0.6)["top1"].tolist()]


def test_reading__of_three_seeds__has_their_error_and_degrees_of_freedom_and_every_seeds_images(toy):
    graph = toy({"a": 3, "b": 1}, top1={"a0": 0.5, "a1": 0.6, "a2": 1.0})
    found = reading(graph, "a", "top1")
    of_images = [np.sqrt(share * (1 - share) / IMAGES) * 100 for share in (0.5, 0.6, 1.0)]
    # The root of the mean square, here far from the mean.
    assert found.error == pytest.approx(np.sqrt(np.mean(np.square(of_images))), rel=0.02) and found.dof == 2
    assert found.seed_error == pytest.approx(statistics.stdev([50, 60, 100]) / math.sqrt(3))
    assert [values.mean() for values in found.per_image] == pytest.approx([50, 60, 100])


@pytest.mark.slow
def test_reading__of_the_difference_of_several_seeds__has_their_noise(toy):
    graph = toy({"a": 3, "b": 3}, top1={"a0": 0.5, "a1": 0.6, "a2": 0.7, "b0": 0.5, "b1": 0.6, "b2": 0.8})
    found = reading(graph, "b", "gain")
    parts = [statistics.stdev(values) / math.sqrt(3) for values in ([50, 60, 70], [50, 60, 80])]
    assert found.has_noise and found.seed_error == pytest.approx(math.hypot(*parts)) and found.dof == 2


@pytest.mark.slow
def test_claim__on_a_difference_of_several_seeds__is_decided_with_their_noise(toy):
    top1 = {"a0": 0.5, "a1": 0.6, "a2": 0.7, "b0": 0.5, "b1": 0.6, "b2": 0.8}
    graph = toy({"a": 3, "b": 3}, ["toy.t1.b:gain > 0"], top1)
    (claim,) = judge_tables(graph, "toy", [filled(graph)]).claims
    assert claim.verdict == "within noise"


def test_claim__on_cells_of_one_measurement_without_values_by_image__knows_that_they_are_equal(toy):
    graph = toy({"a": 1, "b": 1}, ["toy.t1.a:top1 >= toy.t1.b:top1"], images="")
    table = graph.tables["toy.t1"]
    table.rows["toy.t1.b"].cells = table.rows["toy.t1.a"].cells
    (claim,) = judge_tables(graph, "toy", [filled(graph)]).claims
    assert claim.verdict == "true"


def test_cell__of_few_seeds__has_the_error_that_all_runs_of_the_scale_tell(toy):
    graph = toy({"a": 2, "b": 4, "c": 2}, top1={"a1": 0.7, "b1": 0.5})
    own = {row.id[-1]: row.cells["top1"].spread / math.sqrt(row.cells["top1"].n) for row in filled(graph).rows}
    graph.noise = {"toy classify: top1": [SeedValues(run="x", values=[60.0, 62.0, 64.0, 66.0])]}
    errors = {row.id[-1]: row.cells["top1"].error for row in filled(graph).rows}

    spread = statistics.stdev([60.0, 62.0, 64.0, 66.0])
    assert errors["a"] == pytest.approx(spread / math.sqrt(2))
    assert errors["b"] == own["b"]  # four are enough
    assert errors["c"] == 0.0  # seeds that move nothing say that nothing moves

    graph.noise["toy classify: top1"] = [SeedValues(run="x", values=[60.0, 62.0])]
    assert filled(graph).rows[0].cells["top1"].error == own["a"]  # no more is known than of the cell itself


@pytest.mark.parametrize(("kind", "unit"), [(None, "images"), ("text", "texts"), ("audio", "clips")])
def test_cell__of_a_run__names_the_samples_as_its_kind_of_data_does(toy, kind, unit):
    graph = toy()
    for run in graph.runs.values():
        run.config["data"] = {"kind": kind} if kind else {}
    readings = CellReadings([fill_table(graph, "toy.t1", "all")], graph)
    assert readings["toy.t1.a", "top1"].unit == unit


def test_cell__of_seeds_that_saw_other_images__is_not_paired(toy):
    graph = toy({"a": 2, "b": 1})
    values = per_image(1, 0.6)
    write_evaluation(graph, "classify-a1", {"top1": 60.0}, values, errors={"top1": 1.0}, count=IMAGES, images="other")
    cell = filled(graph).rows[0].cells["top1"]
    assert (cell.images, cell.per_image, cell.n) == ("", [], 2)


def test_difference__of_a_number_whose_error_is_not_known__has_none(toy):
    graph = toy()
    write_evaluation(graph, "classify-a0", {"top1": 60.0})
    cell = filled(graph).rows[1].cells["gain"]
    assert (cell.ours, cell.error) == (0.0, None)


def test_selection__rows_it_does_not_run__are_marked_and_do_not_tell_columns_apart(toy):
    graph = toy({"a": 1, "b": 1, "c": 1})
    table = graph.tables["toy.t1"]
    for row in ("a", "b"):
        table.rows[f"toy.t1.{row}"].cells["loss"] = table.rows[f"toy.t1.{row}"].cells["top1"]
    some, all_rows = filled(graph, "headline"), filled(graph)
    assert [row.selected for row in some.rows] == [True, True, False]
    assert [[column.same_as for column in shown.columns][1] for shown in (some, all_rows)] == ["Loss", ""]


def test_rows__that_share_their_first_seed_only__are_not_the_same(toy):
    graph = toy({"a": 2, "b": 2})
    rows = graph.tables["toy.t1"].rows
    for key, cell in rows["toy.t1.b"].cells.items():
        cell.sources[0] = rows["toy.t1.a"].cells[key].sources[0]
    assert [row.same_as for row in filled(graph).rows] == ["", ""]


def test_places_on_an_axis__of_rows_and_columns__are_those_of_the_graph(toy):
    graph = toy()
    table = graph.tables["toy.t1"]
    table.rows["toy.t1.b"].x = 0.25
    table.columns["top1"] = table.columns["top1"].model_copy(update={"x": 7.5})
    found = filled(graph)
    assert [row.x for row in found.rows] == [None, 0.25]
    assert [column.x for column in found.columns] == [None, 7.5, None, None]


def test_seeds__that_are_missing_before_others__leave_the_others(toy):
    shares = {"a0": 0.1, "a1": 0.5, "a2": 0.6, "b0": 0.2, "b1": 0.7, "b2": 0.3}
    graph = toy({"a": 3, "b": 3}, top1=shares)
    for name in ("a0", "b2"):
        graph.results.evaluation(f"classify-{name}").result.unlink()
    cells, other = (row.cells for row in filled(graph).rows)
    assert (cells["top1"].values, cells["top1"].n, cells["top1"].planned) == ([50.0, 60.0], 2, 3)
    assert cells["top1"].run == "a0", "a training is known by its first seed, whichever are finished"
    assert cells["top1"].provenance["run"] == "a1", "the facts are those of a result that is there"
    assert other["gain"].ours == pytest.approx(45 - 55), "of the means"
    assert other["gain"].values == pytest.approx([70 - 50]), "seed by seed, where both are finished"
    assert CellReadings([filled(graph)], graph)["toy.t1.a", "top1"].dof == 1


def test_picture__of_several_seeds__is_the_first_seeds(toy):
    graph = toy({"a": 2})
    cell = graph.tables["toy.t1"].rows["toy.t1.a"].cells["top1"]
    cell.metric, cell.file = "", "seen.png"
    for source in cell.sources:
        (graph.results.folder / source).with_name("seen.png").touch()
    assert filled(graph).rows[0].cells["top1"].picture == "evals/classify-a0/seen.png"
