"""The notebooks, executed cell by cell: one on finished results, one that trains a method of its own."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from result_files import write_evaluation, write_training

from pipeline.core.files import write_text
from pipeline.method_checks import methods
from pipeline.methods.base import METHODS
from pipeline.study.resolve.graph import load_graph

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text())


def code_of(name):
    return ["".join(cell["source"]) for cell in read(name)["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Run the cells of a notebook, all or up to one, with changes of their text; returns its variables."""
    plt.switch_backend("agg")
    monkeypatch.chdir(tmp_path)

    def run(name, changes=(), until=None):
        cells, variables = code_of(name), {"__name__": "__main__"}
        for old, new in changes:
            assert sum(old in cell for cell in cells) == 1, f"{name}.ipynb has {old!r} in none or several of its cells"
            cells = [cell.replace(old, new) for cell in cells]
        for number, cell in enumerate(cells, start=1):
            exec(compile(cell, f"{name}.ipynb, code cell {number}", "exec"), variables)
            if until and until in cell:
                break
        return variables

    yield run
    plt.close("all")
    METHODS._entries.pop("placed", None)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook__as_committed__has_no_outputs_and_few_cells(name):
    notebook = read(name)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == [], (
        "clear all outputs before you commit"
    )
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"]) <= 22
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)


# A figure


@pytest.fixture
def trained(project):
    """The runs of a table, finished, with accuracies that tell them apart."""
    graph = load_graph("demo")
    names = dict.fromkeys(name for row in graph.tables["mjp.t4"].rows.values() for name in row.run_names())
    for number, name in enumerate(names):
        folder = write_training(graph, name, {"params_m": 0.1})
        lines = [{"step": step, "epoch": step / 10, "loss": 2.0 - step / 10 - number / 100} for step in range(3)]
        write_text(folder.metrics, "".join(json.dumps(line) + "\n" for line in lines))
        for each in graph.evaluations_of(name):
            metrics = {"top1": 50.0 + 5 * number} if graph.evals[each].fragment == "classify" else {"consistency": 60.0}
            images = {key: [100.0] * (10 + number) + [0.0] * (10 - number) for key in metrics}
            write_evaluation(graph, each, metrics, images, errors=dict.fromkeys(metrics, 1.5), count=20)
    return [*names]


@pytest.mark.slow
def test_figure_notebook__on_finished_results__draws_them(trained, execute, tmp_path, capsys):
    found = execute("figure")
    assert [*found["table"].index.get_level_values("run")] == trained[::-1]
    points = [line.get_xydata()[0] for group in plt.figure(1).axes[0].containers for line in group.lines[:1]]
    assert len(points) >= 2 and all(point[1] == 60 for point in points)
    assert {path.name for path in tmp_path.glob("*.svg")} == {"two-metrics.svg", "training.svg", "two-models.svg"}
    difference = 5 * (len(trained) - 1)  # in each run, one image more of twenty is right
    assert f"difference {difference:.2f} +- " in capsys.readouterr().out


@pytest.mark.slow
def test_figure_notebook__metric_that_no_run_has__names_those_that_there_are(trained, execute):
    """As for a study that `describe` wrote, which does not measure consistency."""
    wrong = [('("consistency", "consistency")', '("consistency", "shuffled")')]
    with pytest.raises(AssertionError, match=r"choose X and Y among .*\('consistency', 'consistency'\)"):
        execute("figure", wrong)
    with pytest.raises(AssertionError, match=r"DATA may be one of .*'fashion_mnist'"):
        execute("figure", [('"demo", "fashion_mnist"', '"demo", "petz"')])
    found = execute("figure", [('("consistency", "consistency")', '("train", "params_m")')], until="two-metrics")
    assert len(found["axes"].containers) >= 2  # also where a metric has no standard error


def test_figure_notebook__without_results__names_the_command(project, execute):
    with pytest.raises(AssertionError, match="no results at scale demo; `make demo` makes those of the demo"):
        execute("figure")


# A method

FEW_STEPS = ("STEPS = 100", "STEPS = 12")


@pytest.fixture
def quick_checks(monkeypatch):
    for name in ("one graph", "overfits one batch", "bf16"):
        monkeypatch.delitem(methods.CHECKS, name)


@pytest.mark.slow
def test_method_notebook__as_it_is__trains_a_method_that_keeps_every_promise(execute, quick_checks, capsys):
    found = execute("method", [FEW_STEPS])
    first, *_, last = found["history"]
    assert last["loss"] < first["loss"] and first.keys() == {"loss", "class_loss", "place_loss"}
    printed = capsys.readouterr().out
    assert printed.startswith("top-1 of 200 validation images: "), printed
    assert found["known"].shape == (7, 7)


@pytest.mark.slow
def test_method_notebook__detach_removed_as_it_proposes__reads_a_sentence_when_run_again(execute, quick_checks, capsys):
    first = execute("method", until="METHODS.register")["Placed"]
    changes = [('"class_loss": class_loss.detach()', '"class_loss": class_loss')]
    second = execute("method", changes, until="check_run(run)")["Placed"]
    assert METHODS.get("placed") is second is not first
    assert '- Placed.loss returned scalar "class_loss" that still requires grad;' in capsys.readouterr().out
