"""The headline of a scale: which rows and cells it runs, with how many seeds, and what it leaves out."""

import pytest
from result_files import write_evaluation, write_training

from pipeline.report.tables.fill import fill_table
from pipeline.study.resolve.graph import build_graph
from pipeline.study.targets import targets_of

RUN = {"method": "supervised", "model": "deit_s", "data": "imagenet1k", "recipe": ["mjp"]}


def study(**keys) -> dict:
    """Two finetuned encoders of one pretraining, a run without pretraining, and one that no row shows."""
    runs = {
        "first": {"label": "first", **RUN, "method": "mjp"},
        "small": {"label": "small", **RUN, "init": "first"},
        "large": {"label": "large", **RUN, "init": "first", "set": {"optim": {"clip_norm": 4.0}}},
        "plain": {"label": "plain", **RUN},
    }
    columns = {key: {"label": key, "eval": "classify", "metric": "top1", "run": key} for key in ("small", "large")}
    rows = {
        "tuned": {"label": "Tuned", "run": {"small": "small", "large": "large"}},
        "plain": {"label": "Plain", "run": "plain"},
    }
    tables = {"t1": {"label": "Table 1", "title": "Toys", "columns": columns, "rows": rows}}
    return {"runs": runs, "tables": tables, "scales": ["demo", "tiny"], "headline": {"t1": ["plain"]}, **keys}


@pytest.fixture
def graphs(project):
    """From a study and the number of seeds of its headline to its graphs at scales demo and tiny."""

    def build(content: dict, seeds: int = 2):
        project.only_study("toy", content, {})
        project.edit("scale/tiny.yaml", "headline_seeds: 3", f"headline_seeds: {seeds}")
        return build_graph("demo"), build_graph("tiny")

    return build


def num_seeds(graph) -> dict[str, int]:
    labels = [run.label for run in graph.runs.values()]
    return {label: labels.count(label) for label in labels}


@pytest.mark.slow
def test_headline__of_one_scale__is_for_that_scale_only(graphs):
    demo, tiny = graphs(study(headline_at={"tiny": {"t1": ["tuned"]}}))

    assert list(demo.rows("toy.t1", "headline")) == ["toy.t1.plain"]
    assert list(tiny.rows("toy.t1", "headline")) == ["toy.t1.tuned"]
    assert targets_of(tiny)["headline"] == [("toy.t1", "headline")] and "demo" not in targets_of(tiny)


@pytest.mark.slow
def test_seeds__of_the_headline__are_those_of_its_runs_and_of_what_they_start_from(graphs):
    demo, tiny = graphs(study(headline_at={"tiny": {"t1": ["tuned"]}}))

    assert num_seeds(tiny) == {"first": 2, "small": 2, "large": 2, "plain": 1}
    assert set(num_seeds(demo).values()) == {1}


@pytest.mark.slow
def test_cells__that_the_headline_does_not_name__are_not_run_and_say_what_runs_them(graphs):
    _, tiny = graphs(study(headline_at={"tiny": {"t1": ["tuned:small"]}}))
    for name in tiny.runs:
        write_training(tiny, name, {})
    for name in tiny.evals:
        write_evaluation(tiny, name, {"top1": 50.0})

    (row,) = tiny.rows("toy.t1", "headline").values()
    tuned = fill_table(tiny, "toy.t1", "headline").rows[0]
    assert list(row.cells) == ["small"] and num_seeds(tiny)["large"] == 1
    assert tuned.cells["small"].ours == 50.0 and tuned.cells["small"].n == 2
    assert tuned.cells["large"].reason == "`snakemake toy_table1 --config scale=tiny` runs it"
    assert fill_table(tiny, "toy.t1", "all").rows[0].cells["large"].ours == 50.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("headline", "line"),
    [
        ({"tiny": {"t1": ["tunde"]}}, "headline_at.tiny.t1: no row 'tunde'; did you mean 'tuned'"),
        ({"tiny": {"t1": ["tuned:smal"]}}, "headline_at.tiny.t1: tuned: no column 'smal'; did you mean 'small'"),
        ({"tinny": {"t1": ["tuned"]}}, "headline_at.tinny: no scale 'tinny'; did you mean 'tiny'"),
    ],
)
def test_check__mistyped_headline__names_the_nearest(project, headline, line):
    project.only_study("toy", study(headline_at=headline), {})
    assert any(line in problem for problem in project.problems())
