"""The names people type for studies, tables and figures."""

import pytest

from pipeline.core.errors import ConfigError
from pipeline.study.resolve.graph import load_graph
from pipeline.study.targets import command_for, tables_of, target_name, targets_of


@pytest.fixture(scope="module")
def graph():
    return load_graph("demo")


@pytest.mark.parametrize(
    ("table_id", "name"),
    [
        ("mjp.t4", "mjp_table4"),
        ("mjp.t10", "mjp_table10"),
        ("droppos.ts1", "droppos_table_s1"),
        ("mp3.f3", "mp3_figure3"),
        ("mjp.f3a", "mjp_figure3a"),
        ("mine.fcurves", "mine_figure_curves"),
        ("mp3.tensemble", "mp3_table_ensemble"),
        ("mine.tfast", "mine_table_fast"),
    ],
)
def test_target_name__of_a_table__is_what_people_would_guess(table_id, name):
    assert target_name(table_id) == name


def test_targets__of_a_scale__are_all_studies_and_tables_each_once(graph):
    known = targets_of(graph)
    assert known.keys() == {"all", "headline", "demo", *graph.studies(), *map(target_name, graph.tables)}
    assert len(known) == 3 + len(graph.studies()) + len(graph.tables)
    assert set(known["mjp"]) == {entry for target in known if target.startswith("mjp_") for entry in known[target]}


def test_tables__of_a_target_and_its_study__come_once(graph):
    both = tables_of(graph, ["mjp_table4", "mjp"])
    assert both[0] == ("mjp.t4", "all") and sorted(both) == sorted(targets_of(graph)["mjp"])


def test_target__mistyped__names_the_nearest(graph):
    with pytest.raises(ConfigError, match="no target 'mp3_tablef3' at scale demo; did you mean 'mp3_table3'"):
        tables_of(graph, ["mp3_tablef3"])


def test_command__of_another_scale__names_the_scale():
    assert command_for("all", "demo") == "snakemake all"
    assert command_for("all", "tiny") == "snakemake all --config scale=tiny"


def test_targets__each__has_the_tables_and_rows_that_it_names(graph):
    known = targets_of(graph)
    assert known["all"] == [(table, "all") for table in graph.tables]
    assert known["demo"] == known["headline"] == [(table, "headline") for table in graph.selected("headline")]
    for study in graph.studies():
        assert known[study] == [(table, "all") for table in graph.tables if table.startswith(f"{study}.")]
