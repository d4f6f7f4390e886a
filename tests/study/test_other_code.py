"""Results that other code made: which config to edit, and how to accept the change."""

import pytest
from result_files import ORIGIN, SITE, finish_run, write_evaluation

from pipeline.audit.explain import explain
from pipeline.cli import main
from pipeline.core.errors import ConfigError
from pipeline.freshness.other_code import AcceptedCodes, accept_code, made_by_other_code, notices
from pipeline.freshness.remake import Freshness
from pipeline.results.records import read_record
from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.graph import load_graph

pytestmark = pytest.mark.slow

TABLE, ROW = "mjp.t1", "mjp.t1.deit-s"


@pytest.fixture
def graph(project):
    """One run trained and evaluated by the code of today."""
    graph = load_graph("demo")
    (name,) = graph.tables[TABLE].rows[ROW].runs[""]
    finish_run(graph, name)
    return graph


@pytest.fixture
def run(graph):
    return graph.tables[TABLE].rows[ROW].runs[""][0]


def test_other_code__nothing_changed__is_silent(graph):
    assert made_by_other_code(graph) == []


def test_other_code__formula_of_a_method_changed__names_its_runs_and_the_key_to_raise(graph, run, monkeypatch):
    monkeypatch.setattr(Graph, "code_of_run", lambda graph, name: "changed")
    (notice,) = made_by_other_code(graph)
    assert (notice.kind, notice.name, notice.results) == ("method", "supervised", [run])
    assert "raise code_epoch in configs/method/supervised.yaml" in str(notice)


def test_other_code__evaluation_with_several_configs__names_those_of_the_results_concerned(graph, project, monkeypatch):
    first_of = {entry.fragment: name for name, entry in reversed(graph.evals.items())}
    chosen = [first_of["april_float32"], first_of["april_parameters"]]  # an entry of a study, and a file
    for name in chosen:
        write_evaluation(graph, name, {"mse": 1.0}, provenance={**ORIGIN, "code": "before"})
    (notice,) = made_by_other_code(graph)
    assert "raise code_epoch in configs/eval/{april,april_parameters}.yaml" in str(notice)
    write_evaluation(graph, chosen[0], {"mse": 1.0})
    (notice,) = made_by_other_code(graph)
    assert "raise code_epoch in configs/eval/april_parameters.yaml" in str(notice)


def test_other_code__in_the_message__says_how_to_accept_it(graph, monkeypatch):
    monkeypatch.setattr(Graph, "code_of_run", lambda graph, name: "changed")
    (notice,) = made_by_other_code(graph)
    assert "if not, `python -m pipeline verify --scale demo --accept-code supervised` records that" in str(notice)


def test_notices__one_edit_that_touches_many__are_two_lines_and_how_to_see_all(graph, monkeypatch):
    monkeypatch.setattr(Graph, "code_of_run", lambda graph, name: "changed")
    assert notices(graph) == [str(each) for each in made_by_other_code(graph)]
    monkeypatch.setattr(Graph, "code_of_evaluation", lambda graph, name: "changed")
    every = made_by_other_code(graph)
    assert len(every) > 3
    *first, rest = notices(graph)
    assert first == [str(each) for each in every[:2]]
    assert (
        rest.startswith(f"{len(every) - 2} more methods and evaluations")
        and "verify --scale demo --accept-code`" in rest
    )


def test_accept_code__then__is_silent_until_the_code_changes_again(graph, run, monkeypatch):
    before = graph.code_of_run(run)
    monkeypatch.setattr(Graph, "code_of_run", lambda graph, name: "changed")
    accept_code(graph, [])
    assert made_by_other_code(graph) == []
    (accepted,) = read_record(graph.results.accepted_code, AcceptedCodes).accepted
    assert (accepted.kind, accepted.name) == ("method", "supervised")
    assert (accepted.made_by, accepted.today) == (before, "changed") and accepted.date[:2] == "20"
    monkeypatch.setattr(Graph, "code_of_run", lambda graph, name: "changed again")
    assert len(made_by_other_code(graph)) == 1
    accept_code(graph, [])
    assert len(read_record(graph.results.accepted_code, AcceptedCodes).accepted) == 2


def test_accept_code__of_one_evaluation__leaves_the_others_named(graph, monkeypatch):
    monkeypatch.setattr(Graph, "code_of_evaluation", lambda graph, name: "changed")
    names = [notice.name for notice in made_by_other_code(graph)]
    accept_code(graph, ["classify"])
    assert [notice.name for notice in made_by_other_code(graph)] == [name for name in names if name != "classify"]
    with pytest.raises(ConfigError, match=r"no results of 'consistencyy' .* did you mean 'consistency'"):
        accept_code(graph, ["consistencyy"])


def test_accept_code__on_the_command_line__says_what_it_wrote_and_is_not_repeated(graph, monkeypatch, capsys):
    monkeypatch.setattr(Graph, "code_of_run", lambda graph, name: "changed")
    main(["verify", "--accept-code"])
    out = capsys.readouterr().out
    assert "accepted: method supervised" in out and "results/demo/accepted_code.json" in out
    main(["verify"])
    assert "its code has changed" not in capsys.readouterr().out


def test_accepted_code__damaged__is_as_if_nothing_were_accepted(graph, monkeypatch):
    monkeypatch.setattr(Graph, "code_of_run", lambda graph, name: "changed")
    accept_code(graph, [])
    path = graph.results.accepted_code
    path.write_text(path.read_text().replace("changed", "forged"))
    assert len(made_by_other_code(graph)) == 1


def test_explain__code_changed__says_so_in_the_last_line_and_when_it_was_accepted(graph, run, monkeypatch):
    before = graph.code_of_run(run)
    said = explain(Freshness(graph, SITE), run)
    assert "code        method supervised" in said and "today" not in said
    monkeypatch.setattr(Graph, "code_of_run", lambda graph, name: "changed")
    said = explain(Freshness(graph, SITE), run)
    assert f"method supervised {before}; today's code is changed" in said
    accept_code(graph, [])
    assert "today's code is changed, accepted on 20" in explain(Freshness(graph, SITE), run)
