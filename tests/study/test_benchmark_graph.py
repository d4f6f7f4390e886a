"""The benchmark of large studies: what it generates is a study, which resolves and finishes; its table is Markdown."""

import pytest
import yaml
from benchmark_script import load_benchmark
from result_files import SITE, finish

from pipeline.freshness.outputs import report_file
from pipeline.freshness.remake import Freshness
from pipeline.study.resolve.graph import load_graph

benchmark = load_benchmark("graph")


@pytest.mark.slow
def test_study__of_twenty_runs__resolves_and_once_all_is_made_nothing_is_to_do(project):
    (project.configs / "study/mjp.yaml").unlink()
    (project.configs / "study/many.yaml").write_text(yaml.safe_dump(benchmark.study(20)))
    graph = load_graph("demo")
    assert (len(graph.runs), len(graph.evals)) == (20, 60)
    report = report_file("all")
    assert len(Freshness(graph, SITE).stale([report])) > 20
    finish(graph, [report])
    assert Freshness(graph, SITE).stale([report]) == {}


def test_study__number_of_runs_that_ten_seeds_do_not_divide__is_refused():
    with pytest.raises(SystemExit, match="found 15, expected a multiple of 10"):
        benchmark.study(15)


@pytest.mark.slow
def test_timed__a_process__has_its_seconds_and_memory_and_a_failed_one_its_words(tmp_path):
    cost = benchmark.time_command(tmp_path, ("-c", "pass"))
    assert cost.seconds > 0 and cost.peak_mib > 1
    with pytest.raises(SystemExit, match=r"failed:\nno such study"):
        benchmark.time_command(tmp_path, ("-c", "raise SystemExit('no such study')"))


def test_table__of_two_sizes__has_a_line_for_each_step():
    costs = {1000: {"resolve": benchmark.Cost(1.25, 70.2)}, 3000: {"resolve": benchmark.Cost(3.0, 90.0)}}
    assert benchmark.table(costs).splitlines() == [
        "| step | 1,000 runs | 3,000 runs |",
        "| --- | --- | --- |",
        "| resolve | 1.2 s, 70 MiB | 3.0 s, 90 MiB |",
    ]
