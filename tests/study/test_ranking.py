"""What a sweep prints at its end: mean and deviation over seeds, the best one marked, and what is missing."""

import pytest
from result_files import SITE, finish
from swept_study import STUDY, swept

from pipeline.freshness.outputs import run_file, table_file
from pipeline.freshness.remake import Freshness
from pipeline.study.resolve.graph import load_graph
from pipeline.sweep.ranking import ranking

pytestmark = pytest.mark.slow
KEYS = ("plain_v1-1e-4", "plain_v2-3e-4", "plain_v3-1e-3")


def finished(project, values, metric="val_top1", **options):
    """A sweep of three values with these numbers of its seeds; none: that value has not run."""
    project.only_study("mine", STUDY, {})
    study = swept("mine.plain", "optim.base_lr=1e-4,3e-4,1e-3", seeds=2, metric=metric, **options)
    study.write("demo")
    graph = load_graph("demo")
    for key, seeds in zip(KEYS, values, strict=True):
        runs = graph.tables[f"{study.name}.t1"].rows[f"{study.name}.t1.{key}"].run_names()
        for run, value in zip(runs, seeds, strict=False):
            finish(graph, [run_file(run)], {metric: value})
    return graph, study


def lines_of(graph, study) -> list[str]:
    return [line.rstrip() for line in ranking(Freshness(graph, SITE), study.name).splitlines()]


def test_ranking__of_a_finished_sweep__has_means_and_deviations_and_marks_the_highest(project):
    graph, study = finished(project, [(60.0, 62.0), (71.0, 73.0), (70.0, 70.0)])
    finish(graph, [])
    assert lines_of(graph, study) == [
        "val_top1 over optim.base_lr",
        "              val_top1, mean +/- deviation over seeds",
        "base_lr 1e-4                 61.00 +/- 1.41 (2 seeds)",
        "base_lr 3e-4                 72.00 +/- 1.41 (2 seeds)  <- highest",
        "base_lr 1e-3                 70.00 +/- 0.00 (2 seeds)",
        "",
        "picture: drawn when all of it is finished",
    ]


def test_ranking__of_a_loss__marks_the_lowest(project):
    graph, study = finished(project, [(0.6, 0.6), (0.4, 0.4), (0.5, 0.5)], metric="val_loss")
    marked = [line for line in lines_of(graph, study) if "<-" in line]
    assert marked == ["base_lr 3e-4                0.400 +/- 0.000 (2 seeds)  <- lowest"]


@pytest.mark.parametrize(
    ("seeds", "number"), [((), "  n/a  results/demo/runs/"), ((99.0,), "  99.00 (1 of 2 seeds so far)")]
)
def test_ranking__value_with_missing_seeds__says_so_and_the_best_of_the_others_is_marked(project, seeds, number):
    graph, study = finished(project, [(60.0, 62.0), seeds, (70.0, 70.0)])
    found = {line.split("  ")[0]: line for line in lines_of(graph, study)}
    assert number in found["base_lr 3e-4"] and found["base_lr 1e-3"].endswith("<- highest")


def test_ranking__stale_number__is_marked_and_not_the_best(project):
    graph, study = finished(project, [(60.0, 62.0), (71.0, 73.0), (70.0, 70.0)])
    run = graph.tables[f"{study.name}.t1"].rows[f"{study.name}.t1.{KEYS[1]}"].run_names()[0]
    graph.results.run(run).encoder.write_text("other")
    said = "\n".join(lines_of(graph, study))
    assert "72.00* +/- 1.41" in said and "their numbers are marked *" in said
    assert "70.00 +/- 0.00 (2 seeds)  <- highest" in said


def test_ranking__metric_of_unknown_direction__says_why_none_is_marked(project):
    graph, study = finished(project, [(1.0, 1.0)] * 3, metric="params_m")
    said = "\n".join(lines_of(graph, study))
    assert "<-" not in said and "no table shows whether high or low values of params_m are good: none is marked" in said


def test_ranking__figure_that_is_drawn__is_named(project):
    graph, study = finished(project, [(1.0, 2.0)] * 3)
    path = graph.results.folder / table_file(f"{study.name}.f1", "all")
    path.parent.mkdir(parents=True)
    path.with_suffix(".svg").write_text("<svg/>")
    assert lines_of(graph, study)[-1].endswith(f"figures/all/{study.name}.f1.svg")
