"""Several seeds of a run: which runs there are, what starts from what, and cells with their mean and noise."""

import math
import statistics

import numpy as np
import pytest
from result_files import write_evaluation, write_training

from pipeline.core.errors import DataError
from pipeline.report.tables.draw import few_seeds, noise_facts, to_markdown
from pipeline.report.tables.fill import fill_table, judge_tables
from pipeline.study.resolve.graph import build_graph

pytestmark = pytest.mark.slow

ABOUT = {"model": "vit_demo", "data": "fashion_mnist"}
IMAGES = 40


def toy_study(**study) -> dict:
    """An encoder, a run that starts from it, and one from scratch, in one table with two columns that are the same."""
    runs = {
        "encoder": {"label": "encoder", "method": "mp3", **ABOUT, "set": {"model": {"pos_embed": "none"}}},
        "tuned": {"label": "tuned", "method": "supervised", **ABOUT, "init": "encoder"},
        "scratch": {"label": "scratch", "method": "supervised", **ABOUT},
    }
    columns = {
        "params": {"label": "Parameters", "eval": "train", "metric": "params_m"},
        "top1": {"label": "Top-1", "eval": "classify", "metric": "top1"},
        "again": {"label": "Top-1 again", "eval": "classify", "metric": "top1"},
        "loss": {"label": "Loss", "eval": "classify", "metric": "loss"},
        "gain": {"label": "Gain", "delta": "top1", "against": "scratch"},
    }
    rows = {key: {"label": key, "run": key, "paper": False} for key in ("tuned", "scratch")}
    rows["twin"] = {"label": "twin", "run": "scratch", "paper": False}
    table = {"label": "Table 1", "title": "Toys", "columns": columns, "rows": rows}
    return {"runs": runs, "tables": {"t1": table}, **study}


@pytest.fixture
def toy(project):
    """Resolves the study above, after changes to it and to the scale."""

    def resolve(scale=None, runs=None, **study):
        content = toy_study(**study)
        for key, changes in (runs or {}).items():
            content["runs"][key] |= changes
        project.only_study("toy", content, {})
        project.write("scale/demo.yaml", {**project.read("scale/demo.yaml"), **(scale or {})})
        return build_graph("demo")

    return resolve


def seeds_of(graph, label) -> list[int]:
    return [run.config["seed"] for run in graph.runs.values() if run.label == label]


def runs_of(graph, row) -> list[str]:
    return graph.tables["toy.t1"].rows[f"toy.t1.{row}"].runs[""]


# Runs


@pytest.mark.parametrize(
    "seeds",
    [{"scale": {"seeds": 3}}, {"seeds": 3}, {"runs": {key: {"seeds": 3} for key in ("encoder", "tuned", "scratch")}}],
    ids=["scale", "study", "run"],
)
def test_seeds__of_scale_study_or_run__give_as_many_runs_one_seed_after_the_other(toy, seeds):
    graph = toy(**seeds)
    assert {label: seeds_of(graph, label) for label in ("encoder", "tuned", "scratch")} == {
        "encoder": [0, 1, 2],
        "tuned": [0, 1, 2],
        "scratch": [0, 1, 2],
    }
    assert len(graph.runs) == 9 and len(runs_of(graph, "tuned")) == 3


def test_seeds__of_a_run__win_over_the_studys_which_win_over_the_scales(toy):
    graph = toy(scale={"seeds": 4}, seeds=2, runs={"scratch": {"seeds": 3}})
    assert [len(seeds_of(graph, label)) for label in ("encoder", "tuned", "scratch")] == [2, 2, 3]


def test_seeds__of_a_run_with_a_seed_of_its_own__follow_it(toy):
    assert seeds_of(toy(seeds=3, runs={"scratch": {"set": {"seed": 7}}}), "scratch") == [7, 8, 9]


def test_seeds__finetuning__starts_from_the_pretraining_of_its_own_seed(toy):
    graph = toy(seeds=3)
    tuned = [graph.runs[name] for name in runs_of(graph, "tuned")]
    starts = [graph.runs[run.init].config["seed"] for run in tuned]
    assert starts == [run.config["seed"] for run in tuned] == [0, 1, 2]
    assert [run.config["init"] for run in tuned] == [run.init for run in tuned]


def test_seeds__more_of_finetuning_than_of_pretraining__share_its_weights(toy):
    graph = toy(runs={"tuned": {"seeds": 3}})
    assert len({graph.runs[name].init for name in runs_of(graph, "tuned")}) == 1
    assert seeds_of(graph, "tuned") == [0, 1, 2]


def test_seeds__one__renames_no_run_and_no_evaluation(toy):
    before = toy()
    after = toy(scale={"seeds": 1}, seeds=1, runs={"tuned": {"seeds": 1}})
    assert (after.runs.keys(), after.evals.keys()) == (before.runs.keys(), before.evals.keys())


def test_seeds__the_first_of_several__is_the_run_of_one(toy):
    one, several = toy(), toy(seeds=3)
    assert one.runs.keys() < several.runs.keys() and one.evals.keys() < several.evals.keys()
    assert runs_of(several, "tuned")[0] == runs_of(one, "tuned")[0]


def test_seeds__each__is_evaluated_by_a_job_of_its_own(toy):
    graph = toy(seeds=3)
    files = graph.files("toy.t1", "all")
    names = [name for row in ("tuned", "scratch") for name in runs_of(graph, row)]
    assert files == sorted(
        [f"evals/{name}-quick.json" for name in names] + [f"runs/{name}/train.json" for name in names]
    )


# Cells


def sources_of_tuned(graph) -> list[str]:
    return graph.tables["toy.t1"].rows["toy.t1.tuned"].cells["top1"].sources


def right_or_wrong(seed: int, share: float) -> np.ndarray:
    """Which images are classified correctly, as 100 or 0."""
    return 100.0 * (np.random.default_rng(seed).random(IMAGES) < share).astype(np.float32)


def finish(graph, images="val") -> dict[str, np.ndarray]:
    """Every run trained and evaluated; returns the accuracies per image, by run."""
    found = {}
    for number, name in enumerate(graph.runs):
        write_training(graph, name, {"params_m": 22.0}, errors={"params_m": 0.0})
        for each in graph.evaluations_of(name):
            found[name] = right_or_wrong(number, 0.5 + 0.04 * number)
            losses = np.random.default_rng(number).random(IMAGES).astype(np.float32)
            values = {"top1": found[name], "loss": losses}
            errors = {key: float(np.std(v, dtype=np.float64) / np.sqrt(IMAGES)) for key, v in values.items()}
            metrics = {key: float(np.mean(v, dtype=np.float64)) for key, v in values.items()}
            write_evaluation(graph, each, metrics, values, errors=errors, count=IMAGES, images=images)
    return found


def cells(graph) -> dict[str, dict]:
    return {row.id.rpartition(".")[2]: row.cells for row in fill_table(graph, "toy.t1", "all").rows}


def test_cell__of_three_seeds__has_mean_spread_values_and_their_error(toy):
    graph = toy(seeds=3)
    per_image = finish(graph)
    cell = cells(graph)["tuned"]["top1"]
    values = [float(per_image[name].mean()) for name in runs_of(graph, "tuned")]
    assert len(set(values)) == 3 and cell.values == values and cell.n == 3
    assert cell.ours == pytest.approx(statistics.fmean(values), abs=1e-12)
    assert cell.spread == pytest.approx(statistics.stdev(values), rel=1e-12)
    assert cell.error == pytest.approx(statistics.stdev(values) / math.sqrt(3), rel=1e-12)
    assert cell.count == IMAGES and len(cell.per_image) == 3


def test_cell__of_one_seed_of_an_accuracy__has_exactly_the_binomial_error(toy):
    graph = toy()
    per_image = finish(graph)
    cell = cells(graph)["scratch"]["top1"]
    share = float(per_image[runs_of(graph, "scratch")[0]].mean()) / 100
    assert 0 < share < 1 and cell.error == pytest.approx(100 * math.sqrt(share * (1 - share) / IMAGES), rel=1e-12)
    assert (cell.spread, cell.n, cell.values) == (None, 1, [cell.ours])


def test_cell__of_a_count_of_parameters__is_exact(toy):
    graph = toy()
    finish(graph)
    cell = cells(graph)["scratch"]["params"]
    assert (cell.ours, cell.error, cell.per_image) == (22.0, 0.0, [])


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_cell__one_of_three_seeds_missing__has_the_others_and_says_so(toy, missing):
    graph = toy(seeds=3)
    per_image = finish(graph)
    (graph.results.folder / sources_of_tuned(graph)[missing]).unlink()
    cell = cells(graph)["tuned"]["top1"]
    means = [per_image[run].mean() for seed, run in enumerate(runs_of(graph, "tuned")) if seed != missing]
    assert cell.values == pytest.approx(means, rel=1e-6)
    assert cell.ours == pytest.approx(statistics.fmean(means), rel=1e-6)
    assert (cell.n, cell.planned, len(cell.per_image)) == (2, 3, 2)
    table = fill_table(graph, "toy.t1", "all")
    assert "have 2 of 3 planned seeds so far" in to_markdown(table)
    assert ("seeds", f"2 of 3: {', '.join(f'{mean:.6g}' for mean in cell.values)}") in noise_facts(cell)


def test_cell__one_of_three_seeds_there__has_no_spread(toy):
    graph = toy(seeds=3)
    per_image = finish(graph)
    for source in sources_of_tuned(graph)[:2]:
        (graph.results.folder / source).unlink()
    cell = cells(graph)["tuned"]["top1"]
    assert cell.ours == pytest.approx(per_image[runs_of(graph, "tuned")[2]].mean(), rel=1e-6)
    assert (cell.n, cell.planned, cell.spread) == (1, 3, None)


def test_cell__no_seed_there__has_no_number_and_names_the_first_file(toy):
    graph = toy(seeds=3)
    finish(graph)
    for source in sources_of_tuned(graph):
        (graph.results.folder / source).unlink()
    cell = cells(graph)["tuned"]["top1"]
    assert (cell.ours, cell.reason) == (None, f"results/demo/{sources_of_tuned(graph)[0]} has not been written")


def test_delta__fewer_seeds_on_one_side__pairs_the_seeds_that_both_have(toy):
    graph = toy(seeds=3)
    finish(graph)
    complete = cells(graph)["tuned"]["gain"].values
    (graph.results.folder / sources_of_tuned(graph)[2]).unlink()
    cell = cells(graph)["tuned"]["gain"]
    assert (cell.values, cell.n, cell.planned) == (complete[:2], 2, 3)


def test_few_seeds__all_finished__says_nothing(toy):
    graph = toy(seeds=3)
    finish(graph)
    assert few_seeds([fill_table(graph, "toy.t1", "all")]) == ""


def test_delta__on_the_same_images__has_the_error_of_the_differences_image_by_image(toy):
    graph = toy()
    per_image = finish(graph)
    tuned, scratch = (per_image[runs_of(graph, row)[0]] for row in ("tuned", "scratch"))
    differences = [float(a) - float(b) for a, b in zip(tuned, scratch, strict=True)]
    cell = cells(graph)["tuned"]["gain"]
    assert cell.ours == pytest.approx(statistics.fmean(differences), abs=1e-9)
    assert cell.error == pytest.approx(statistics.pstdev(differences) / math.sqrt(IMAGES), rel=1e-6)
    single = cells(graph)
    unpaired = math.hypot(single["tuned"]["top1"].error, single["scratch"]["top1"].error)
    assert abs(cell.error - unpaired) > 0.01 * unpaired  # otherwise the test could not tell them apart


def test_delta__on_other_images__has_the_error_of_independent_numbers(toy):
    graph = toy()
    finish(graph)
    (source,) = graph.tables["toy.t1"].rows["toy.t1.scratch"].cells["top1"].sources
    name = source.split("/")[1]
    values = right_or_wrong(9, 0.5)
    error = float(np.std(values, dtype=np.float64) / np.sqrt(IMAGES))
    write_evaluation(
        graph,
        name,
        {"top1": float(values.mean())},
        {"top1": values},
        errors={"top1": error},
        count=IMAGES,
        images="other",
    )
    found = cells(graph)
    assert found["tuned"]["gain"].error == pytest.approx(math.hypot(found["tuned"]["top1"].error, error))


def test_delta__of_several_seeds__has_the_error_of_independent_means(toy):
    graph = toy(seeds=3)
    finish(graph)
    found = cells(graph)
    expected = math.hypot(found["tuned"]["top1"].error, found["scratch"]["top1"].error)
    gain = found["tuned"]["gain"]
    assert gain.error == pytest.approx(expected) and gain.n == 3
    assert gain.values == pytest.approx(
        [a - b for a, b in zip(found["tuned"]["top1"].values, found["scratch"]["top1"].values, strict=True)]
    )


# What is the same


def test_column__with_the_sources_of_an_earlier_one__says_so(toy):
    columns = {column.id: column.same_as for column in fill_table(toy(), "toy.t1", "all").columns}
    assert columns == {"params": "", "top1": "", "again": "Top-1", "loss": "", "gain": ""}


def test_row__with_the_sources_of_an_earlier_one__says_so(toy):
    rows = {row.label: row.same_as for row in fill_table(toy(), "toy.t1", "all").rows}
    assert rows == {"tuned": "", "scratch": "", "twin": "scratch"}


# Values per image that are not what was recorded


def claim_on_both(toy):
    claim = {"statement": "S", "type": "directional", "holds": ["toy.t1.tuned:top1 > toy.t1.scratch:top1"]}
    graph = toy(claims={"c": claim})
    finish(graph)
    (source,) = graph.tables["toy.t1"].rows["toy.t1.tuned"].cells["top1"].sources
    return graph, (graph.results.folder / source).with_name("per_image.npz")


@pytest.mark.parametrize("damage", ["missing", "cut short", "text", "another metric", "pickled"])
def test_claim__values_per_image_damaged__is_one_message_that_names_the_file(toy, damage):
    graph, path = claim_on_both(toy)
    arrays = {"another metric": {"other": np.zeros(IMAGES)}, "pickled": {"top1": np.array([{}], dtype=object)}}
    if damage == "missing":
        path.unlink()
    elif damage in arrays:
        np.savez(path, **arrays[damage])
    else:
        path.write_bytes(path.read_bytes()[:60] if damage == "cut short" else b"text")
    with pytest.raises(
        DataError, match=r"per_image\.npz (not found|is damaged).*; delete .* and run the workflow again"
    ):
        judge_tables(graph, "toy", [fill_table(graph, "toy.t1", "all").model_copy()])
