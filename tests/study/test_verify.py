"""`verify`: results that are not what was recorded, and results that other code made."""

import pytest

from pipeline.cli import main
from pipeline.files import digest, write_json, write_text
from pipeline.records import write_record
from pipeline.registry import EVALS, METHODS
from pipeline.report.tables import fill_table
from pipeline.study.graph import load_graph
from pipeline.verify import made_by_other_code, verify

TABLE = "mjp.t1"


@pytest.fixture
def graph(project):
    """One run trained and evaluated, its table drawn."""
    graph = load_graph("demo")
    name = graph.tables[TABLE].rows["mjp.t1.deit-s"].runs[""]
    folder = graph.results.run(name)
    for path in (folder.encoder, folder.heads, folder.metrics, folder.config, folder.timing):
        write_text(path, f"content of {path.name}")
    files = {path.name: digest(path) for path in (folder.encoder, folder.heads, folder.metrics)}
    trained = {"code": METHODS.code("supervised"), "wall_s": 1.0}
    write_json(
        folder.done,
        {
            "run": name,
            "metrics": {"params_m": 1.0},
            "files": files,
            "inputs": {"data": "d", "init": None},
            "provenance": trained,
        },
    )
    origin = {"weights": files["encoder.safetensors"]}
    results = {
        key: {"run": name, "metrics": {"top1": 70.0}, "provenance": origin} for key in ("classify", "consistency")
    }
    for key, result in results.items():
        result["provenance"] = {**origin, "code": EVALS.code(key)}
    write_json(folder.evaluation("quick"), results)
    write_record(graph.results.table(TABLE, "all"), fill_table(graph, TABLE, "all"))
    return graph


@pytest.fixture
def folder(graph):
    return graph.results.run(graph.tables[TABLE].rows["mjp.t1.deit-s"].runs[""])


def test_verify__everything_as_recorded__finds_nothing(graph):
    assert [*verify(graph)] == [] and made_by_other_code(graph) == []


def test_verify__a_byte_of_the_weights_changed__names_the_file_and_both_digests(graph, folder):
    write_text(folder.encoder, "Content of encoder.safetensors")
    (problem,) = verify(graph)
    assert problem.file.endswith("encoder.safetensors") and "recorded was" in problem.found and "dvc" in problem.remedy


@pytest.mark.parametrize("name", ["metrics", "heads", "config", "timing"])
def test_verify__a_file_of_a_run_deleted__is_noticed(graph, folder, name):
    getattr(folder, name).unlink()
    (problem,) = verify(graph)
    assert problem.file.endswith(getattr(folder, name).name) and problem.found == "not found"


def test_verify__an_evaluation_deleted__is_noticed_by_the_table_that_shows_it(graph, folder):
    folder.evaluation("quick").unlink()
    assert {problem.file.rsplit("/", 1)[1] for problem in verify(graph)} == {f"{TABLE}.json"}


def test_verify__evaluated_before_the_run_was_trained_again__is_noticed(graph, folder):
    record = {"classify": {"run": folder.name, "metrics": {"top1": 70.0}, "provenance": {"weights": "0" * 64}}}
    write_json(folder.evaluation("quick"), record)
    assert any("was computed with weights 000000000000" in problem.found for problem in verify(graph))


@pytest.mark.parametrize("name", ["done", "evaluation"])
def test_verify__a_result_cut_short__is_one_line_not_a_traceback(graph, folder, name, capsys):
    path = folder.done if name == "done" else folder.evaluation("quick")
    path.write_text(path.read_text()[:-20])
    assert main(["verify"]) == 1
    out, err = capsys.readouterr()
    assert "is damaged" in out and "Traceback" not in out + err


def test_other_code__formula_of_a_method_changed__names_its_runs_and_the_key_to_raise(graph, folder, monkeypatch):
    monkeypatch.setattr(METHODS, "code", lambda name: "changed")
    (notice,) = made_by_other_code(graph)
    assert (notice.kind, notice.name, notice.results) == ("method", "supervised", [folder.name])
    assert "raise code_epoch in configs/method/supervised.yaml" in str(notice)


def test_other_code__formula_of_an_evaluation_changed__names_it(graph, folder, monkeypatch, capsys):
    monkeypatch.setattr(
        EVALS, "code", lambda name: "changed" if name == "classify" else EVALS.__class__.code(EVALS, name)
    )
    (notice,) = made_by_other_code(graph)
    assert (notice.kind, notice.name) == ("evaluation", "classify")
    main(["check"])
    assert "raise code_epoch in configs/eval/classify.yaml" in capsys.readouterr().out
