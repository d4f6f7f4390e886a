"""What seeds do at a scale: measured on cells with several seeds, kept in a file, and used for single runs."""

import re
from statistics import stdev

import pytest
from toy_study import A, B, C, measure, name_of, toy_graph, write_eval

from pipeline.cli import main
from pipeline.core.config import read_yaml
from pipeline.core.errors import DataError
from pipeline.report.records import Cell
from pipeline.report.tables.fill import CellReadings, fill_table, judge_tables
from pipeline.report.tables.seed_noise import measured, pooled, quantity_of, seed_noise, write_noise
from pipeline.study.resolve.fingerprints import claims_fingerprint, report_fingerprint
from pipeline.study.resolve.graph import build_graph
from pipeline.study.spec import SeedValues

SEEDS = {f"{A[:-6]}aaaaa{seed}": top1 for seed, top1 in enumerate((79.0, 80.5, 81.7), start=1)}
KIND = "toy classify: top1"
OTHER = SeedValues(run=C, values=[70.0, 72.0])


@pytest.fixture
def seeded(toy):
    """Row A has four seeds, of which the first is A itself; B and C have one run each."""
    graph = measure(toy)
    for run, top1 in SEEDS.items():
        graph.runs[run] = graph.runs[A]
        graph.evals[name_of("classify", run)] = graph.evals[name_of("classify", A)]
        write_eval(graph, run, classify={"top1": top1})
    sources = [f"evals/{name_of('classify', run)}/result.json" for run in (A, *SEEDS)]
    graph.tables["toy.t1"].rows["toy.t1.a"].cells["top1"].sources = sources
    return graph


def tables_of(graph):
    return [fill_table(graph, "toy.t1", "all")]


def claim(graph, key):
    return next(each for each in judge_tables(graph, "toy", tables_of(graph)).claims if each.id == key)


def test_measured__cell_of_several_seeds__is_found_under_its_data_and_metric(seeded):
    made = "Linux abacus, torch 0, commit c0ffee"
    expected = SeedValues(run=A, values=[79.84, *SEEDS.values()], made=made)
    assert measured(seeded, tables_of(seeded)) == {KIND: [expected]}


@pytest.mark.parametrize(("metric", "quantity"), [("val_top1", KIND), ("val_loss", "toy supervised: val_loss")])
def test_quantity__of_training__is_that_of_an_evaluation_where_both_measure_it(seeded, metric, quantity):
    seeded.runs[A].config["method"] = {"name": "supervised"}
    assert quantity_of(seeded, Cell(run=A, metric=metric, provenance={"metric": metric})) == quantity


def test_seed_noise__of_one_cell__is_its_deviation(seeded):
    assert seed_noise(seeded, tables_of(seeded)) == {KIND: (pytest.approx(stdev([79.84, *SEEDS.values()])), 3)}


def test_pooled__of_several_runs__weighs_their_variances_by_degrees_of_freedom():
    spread, dof = pooled([SeedValues(run="a", values=[1.0, 3.0]), SeedValues(run="b", values=[0.0, 1.0, 2.0])])

    assert (spread, dof) == (pytest.approx(((2.0 * 1 + 1.0 * 2) / 3) ** 0.5), 3)


def test_pooled__number_that_seeds_never_move__does_not_make_the_others_look_sure():
    moved, still = SeedValues(run="a", values=[1.0, 3.0]), SeedValues(run="b", values=[100.0, 100.0])

    assert pooled([moved, still]) == pooled([moved])
    assert pooled([still]).spread == 0


def test_file__written_and_read__gives_the_same_noise_to_a_project_without_seeds(seeded):
    path = write_noise(seeded, tables_of(seeded))
    content = read_yaml(path)

    single = measure(toy_graph())
    single.noise = {kind: [SeedValues(**each) for each in values] for kind, values in content["metrics"].items()}

    assert seed_noise(single, tables_of(single)) == seed_noise(seeded, tables_of(seeded))
    assert path.read_text().splitlines()[1].startswith("# What seeds do at scale toy")


@pytest.mark.slow
def test_file__of_runs_that_no_config_names_any_more__does_not_count(project):
    values = {"values": [1.0, 2.0]}
    run = next(iter(build_graph("demo").runs))
    project.write("noise/demo.yaml", {"metrics": {KIND: [{"run": "gone", **values}, {"run": run, **values}]}})

    assert build_graph("demo").noise == {KIND: [SeedValues(run=run, **values)]}


def test_write__no_cell_of_several_seeds__says_what_to_do(toy):
    with pytest.raises(DataError, match=r"no number at scale toy has several seeds; write seeds: 4 into configs/scale"):
        write_noise(measure(toy), tables_of(toy))


def test_claim__single_run_next_to_one_with_seeds__is_judged_by_the_noise_of_seeds(seeded):
    judged = claim(seeded, "toy.c2")  # 77 against a mean of 80.3, and seeds differ by 1.2

    assert judged.verdict == "within noise"
    assert re.search(r"standard deviation over seeds at this scale: 1\.[12]$", judged.reason)


def test_claim__noise_of_two_runs_alone__says_how_little_is_known(seeded):
    cell = seeded.tables["toy.t1"].rows["toy.t1.a"].cells["top1"]
    cell.sources = cell.sources[:2]
    assert claim(seeded, "toy.c2").reason.endswith("at this scale: 0.59, known from few runs only")


def test_claim__single_runs__are_judged_by_what_the_file_says(toy):
    graph = measure(toy)
    assert claim(graph, "toy.c2").verdict == "false"  # 77.0 against 79.84; the tolerance is 0.3

    graph.noise = {KIND: [SeedValues(run=B, values=[70.0, 76.0, 80.0, 84.0])]}

    assert claim(graph, "toy.c2").verdict == "within noise"


def test_reading__of_two_seeds__is_pooled_with_what_the_file_says(seeded):
    row = seeded.tables["toy.t1"].rows["toy.t1.a"].cells["top1"]
    row.sources = row.sources[:2]
    seeded.noise = {KIND: [SeedValues(run=B, values=[70.0, 76.0, 80.0, 84.0])]}

    reading = CellReadings(tables_of(seeded), seeded)["toy.t1.a", "top1"]

    own = SeedValues(run=A, values=[79.84, 79.0])
    spread, dof = pooled([*seeded.noise[KIND], own])
    assert (dof, reading.training) == (4, (pytest.approx(spread / 2**0.5), 4))


def test_seed_noise__run_that_the_file_has_with_more_seeds__counts_with_those(seeded):
    longer = SeedValues(run=A, values=[70.0, 76.0, 80.0, 84.0, 90.0], made="Linux abacus, torch 0, commit old")
    seeded.noise = {KIND: [longer]}
    assert seed_noise(seeded, tables_of(seeded)) == {KIND: pooled([longer])}

    seeded.noise = {KIND: [longer.model_copy(update={"values": [70.0, 90.0]})]}
    assert seed_noise(seeded, tables_of(seeded))[KIND].dof == 3


def test_seed_noise__run_that_another_kind_of_machine_measured__counts_with_both(seeded):
    seeded.noise = {KIND: [SeedValues(run=A, values=[70.0, 76.0, 80.0, 84.0, 90.0], made="Linux sliderule, torch 0")]}
    assert seed_noise(seeded, tables_of(seeded))[KIND].dof == 3 + 4


@pytest.mark.slow
def test_claims_and_report__noise_changed__are_drawn_again(toy):
    before = claims_fingerprint(toy, "toy"), report_fingerprint(toy, "all")

    toy.noise = {KIND: [OTHER]}

    assert claims_fingerprint(toy, "toy") != before[0] and report_fingerprint(toy, "all") != before[1]


@pytest.mark.slow
def test_graph__file_of_its_scale__is_read_and_a_mistake_in_it_named(project):
    project.write("noise/demo.yaml", {"metrics": {KIND: [{"run": "a", "values": [1.0]}]}})
    assert any("configs/noise/demo.yaml: metrics." in line for line in project.problems())


@pytest.mark.slow
def test_command__without_results__says_what_to_do(project, capsys):
    assert main(["noise", "--scale", "demo"]) == 1
    assert "has several seeds; write seeds: 4 into configs/scale/demo.yaml" in capsys.readouterr().err
