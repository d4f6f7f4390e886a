"""From config files to runs and tables: what a run is called, what renames it, and the paper's own numbers."""

import json

import pytest
import yaml

from pipeline.core.config import CONFIGS, Layers, SafeLoader, names, parse_file
from pipeline.core.errors import ConfigError
from pipeline.engine.run import parse_run
from pipeline.freshness.outputs import claims_file, drawings
from pipeline.study.claims.decide import judge
from pipeline.study.claims.reading import Reading
from pipeline.study.resolve.entries import Graph
from pipeline.study.resolve.fingerprints import table_fingerprint
from pipeline.study.resolve.graph import build_graph, load_graph
from pipeline.study.spec import Expected
from pipeline.study.study_file import read_study

STUDY, EXPECTED, DEMO, MJP = "study/mjp.yaml", "expected/mjp.yaml", "scale/demo.yaml", "method/mjp.yaml"


# What the studies resolve to


class Shipped(dict):
    """Scale -> the configs we ship, resolved when they are first asked for."""

    def __missing__(self, scale: str) -> Graph:
        self[scale] = build_graph(scale)
        return self[scale]


@pytest.fixture(scope="module")
def shipped():
    return Shipped()


@pytest.mark.slow
def test_scales__those_with_papers__resolve_to_the_same_tables_and_claims(shipped):
    assert set(names(CONFIGS / "scale")) == {"demo", "tiny", "paper", "own"} and shipped["own"].tables == {}
    scales = ["demo", "tiny", "paper"]
    graphs = [shipped[scale] for scale in scales]
    shapes = [[{key: list(table.rows) for key, table in graph.tables.items()}, graph.claims] for graph in graphs]
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "data", "model", "comparable"),
    [
        ("demo", "fashion_mnist", "vit_demo", False),
        ("tiny", "tiny_imagenet", "deit_s_patch8", False),
        ("paper", "imagenet1k", "deit_s", True),
    ],
)
def test_scale__fragments_of_its_runs__are_the_scales(shipped, scale, data, model, comparable):
    graph = shipped[scale]

    labels = [run.label for run in graph.runs.values() if run.label.startswith("DeiT-S + ")]
    configs = [run.config for run in graph.runs.values() if run.label in labels and "known" not in run.label]
    assert {(config["data"]["name"], config["model"]["name"]) for config in configs} == {(data, model)}
    assert graph.comparable == comparable


@pytest.mark.slow
def test_segmentation__with_a_swin__sees_whole_images_as_its_recipe_says(shipped):
    runs = [run.config for run in shipped["paper"].runs.values() if run.config["method"]["name"] == "upernet"]
    found = {(run["model"]["name"].split("_")[0], run["method"]["inference"]) for run in runs}
    assert found == {("swin", "whole"), ("vit", "slide")}


@pytest.mark.slow
def test_figure_5_of_st__trained_to_convergence__is_longer_than_figure_4(shipped):
    graph = shipped["paper"]
    epochs = {
        name: {
            row_id.split(".")[-1]: graph.runs[run].config["optim"]["epochs"]
            for row_id, row in graph.tables[f"permequiv.{name}"].rows.items()
            for run in row.run_names()
        }
        for name in ("f4", "f5")
    }
    assert {*epochs["f5"]} == {"authorized", "unauthorized", "scratch"}
    assert all(epochs["f5"][row] >= 4 * epochs["f4"][row] for row in epochs["f5"])


@pytest.mark.slow
@pytest.mark.parametrize("row", ["f3a.vit-s", "f5.vit-s", "f9.vit-s", "f10.vit-s", "t5.1a-vit-s", "t5.2b-vit-s"])
def test_vit_s__of_timm__is_evaluated_at_the_papers_own_size_only(shipped, row):
    table = f"mjp.{row.split('.')[0]}"
    small, paper = (shipped[scale].tables[table].rows[f"mjp.{row}"] for scale in ("demo", "paper"))
    assert {cell.why for cell in small.cells.values()} == {"computed only at scale paper"}
    assert all(cell.sources for cell in paper.cells.values())
    assert any(not shipped["paper"].runs[run].trained for run in paper.run_names())


@pytest.mark.slow
def test_layers__method_study_scale_and_run__win_in_this_order(project):
    project.edit(
        MJP, "dal_weight: 0.01", "dal_weight: 0.01\noptim: {eps: 1.0e-1, max_skips: 1, epochs: 1, clip_norm: 1}"
    )
    project.edit("recipe/mjp.yaml", "  weight_decay: 0.05", "  max_skips: 2")
    project.edit(STUDY, "{dal: linear}", "{dal: linear}, optim: {clip_norm: 4}")

    (run,) = [run for run in build_graph("demo").runs.values() if run.config["method"].get("dal") == "linear"]

    optim = run.config["optim"]
    # only the method says eps; the recipe wins over it; the scale over the recipe; `set` over all
    assert (optim["eps"], optim["max_skips"], optim["epochs"], optim["clip_norm"]) == (0.1, 2, 4, 4)


@pytest.mark.slow
def test_paper_scale__recipe_of_mjp__is_the_released_one(shipped):
    run = next(run for run in shipped["paper"].runs.values() if run.label == "DeiT-S + MJP")

    optim, method = run.config["optim"], run.config["method"]
    assert (optim["epochs"], optim["global_batch"], optim["base_lr"], optim["warmup_epochs"]) == (300, 1024, 5e-4, 20)
    assert (method["shuffle_ratio"], method["dal_weight"]) == (0.03, 0.01)


@pytest.mark.slow
def test_graph__evaluations_of_a_run__are_those_its_tables_ask_for(shipped):
    graph = shipped["demo"]

    rows = [row for table in graph.tables.values() for row in table.rows.values()]
    sources = {source for row in rows for cell in row.cells.values() for source in cell.sources}
    asked = {source.split("/")[1] for source in sources if source.startswith("evals/")}
    assert asked == set(graph.evals)
    assert asked == {name for job in graph.eval_jobs.values() for name in job.evaluations}


def headline_of_t3() -> list[str]:
    """Rows of MJP Table 3 that its study marks so."""
    return [f"mjp.t3.{key}" for key in read_study(CONFIGS / STUDY).parse().headline["t3"]]


@pytest.mark.slow
def test_rows__headline__leaves_out_the_rows_marked_so(shipped):
    graph = shipped["demo"]

    assert list(graph.rows("mjp.t3", "headline")) == headline_of_t3()
    assert len(graph.rows("mjp.t3", "all")) == 6


def test_studies__without_a_headline_row__are_judged_with_all_rows_only(shipped):
    graph = shipped["demo"]
    assert {*graph.studies()} - {*graph.studies("headline")} == {"positions"}
    drawn = [*drawings(graph)]
    assert claims_file("positions", "all") in drawn
    assert claims_file("positions", "headline") not in drawn


@pytest.mark.slow
def test_positions__combinations_without_meaning__say_why_in_every_cell(shipped):
    rows = {key.split(".")[-1]: row for key, row in shipped["paper"].tables["positions.t1"].rows.items()}
    silent = {key for key, row in rows.items() if not row.runs}
    assert silent == {"mjp-none", "mjp-sincos", "mjp-relative", "droppos-none", "droppos-relative"}
    assert all(cell.why for key in silent for cell in rows[key].cells.values())
    assert "no parameter has the gradient" in rows["supervised-rope"].cells["parameters"].why
    assert "belong to pairs of patches" in rows["mp3-relative"].cells["position_top1"].why


@pytest.mark.slow
def test_positions__runs_with_the_papers_own_positions__are_those_of_the_crossing_study(shipped):
    graph = shipped["paper"]
    here, there = (graph.tables[f"{study}.t1"].rows for study in ("positions", "crossing"))
    for own, other in (("supervised-none", "none"), ("supervised-learned", "supervised"), ("mjp-learned", "mjp")):
        assert here[f"positions.t1.{own}"].runs[""] == there[f"crossing.t1.{other}"].runs["model"]
    assert here["positions.t1.mp3-learned"].runs[""] == there["crossing.t1.mp3"].runs["model"]
    assert here["positions.t1.droppos-sincos"].runs[""] == there["crossing.t1.droppos"].runs["model"]


def test_find__unknown_name__names_the_nearest(shipped):
    with pytest.raises(
        ConfigError, match=r"'mjp\.t99' is not among the tables at scale demo; did you mean 'mjp\.t[0-9]'"
    ):
        shipped["demo"].table("mjp.t99")


# What renames a run and what does not


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["demo", "paper", "tiny"])
def test_name__read_back_from_the_graph__is_the_same(shipped, scale):
    """A job knows its run by the config in graph.json: a default that JSON changes would make it another run."""
    configs = {name: json.loads(json.dumps(run.config)) for name, run in shipped[scale].runs.items()}
    assert [name for name, config in configs.items() if parse_run(Layers((name, config))).name != name] == []


def run_names(graph) -> dict[str, str]:
    """Row -> name of its run, for rows that have one."""
    rows = {key: row for table in graph.tables.values() for key, row in table.rows.items()}
    return {key: row.runs[""][0] for key, row in rows.items() if "" in row.runs}


def differing(before, after) -> set[str]:
    old, new = run_names(before), run_names(after)
    assert old.keys() == new.keys()
    return {row for row in old if old[row] != new[row]}


@pytest.mark.slow
def test_names__two_equal_runs__share_one(project):
    project.edit(STUDY, "set: {method: {shuffle_ratio: 0.27}}", "set: {method: {shuffle_ratio: 0.15}}")

    rows = run_names(build_graph("demo"))

    assert rows["mjp.t3.g027"] == rows["mjp.t3.g015"]


def test_names__same_run_in_three_tables__is_trained_once(shipped):
    rows = run_names(shipped["demo"])

    assert rows["mjp.t1.deit-s-mjp"] == rows["mjp.t3.g003"] == rows["mjp.t4.j-jp-unk-dal-nln"]
    names_of_mjp = {name for name, run in shipped["demo"].runs.items() if "mjp" in run.studies}
    trained = [spec for spec in read_study(CONFIGS / STUDY).parse().runs.values() if spec.train]
    assert len(names_of_mjp) == len(trained)


@pytest.mark.slow
def test_names__one_field_of_one_run_changed__rename_that_run_and_those_that_start_from_it(project):
    project.edit(STUDY, "e: {like: j,", "e: {like: j, init: b,")
    project.edit(STUDY, "f: {like: j,", "f: {like: j, init: e,")
    before = build_graph("demo")

    project.edit(STUDY, "{pos_embed: none}", "{pos_embed: none}, seed: 1")

    rows = run_names(before)
    renamed = {rows[row] for row in ("mjp.t4.b-no-pe", "mjp.t4.e-jp", "mjp.t4.f-jp-idx")}
    assert len(renamed) == 3
    assert differing(before, build_graph("demo")) == {row for row, name in rows.items() if name in renamed}


@pytest.mark.slow
def test_names__run_that_starts_from_another__carries_its_name(project):
    project.edit(STUDY, "b: {like: a,", "b: {like: a, init: j,")  # `j` is written further down

    graph = build_graph("demo")

    rows = run_names(graph)
    assert graph.runs[rows["mjp.t4.b-no-pe"]].init == rows["mjp.t3.g003"]


@pytest.mark.slow
def test_names__a_method_fragment_changed__rename_its_runs_only(project):
    before = load_graph("demo")

    project.edit(MJP, "dal_weight: 0.01", "dal_weight: 0.02")

    of_mjp = {row for row, name in run_names(before).items() if name.startswith("mjp-")}
    assert differing(before, build_graph("demo")) == of_mjp


@pytest.mark.slow
def test_names__comments_and_order_of_keys__change_nothing(project):
    before = {"demo": load_graph("demo"), "paper": build_graph("paper")}

    for path in project.configs.rglob("*.yaml"):
        content = yaml.load(path.read_text(), SafeLoader)
        path.write_text("# a new comment\n" + yaml.safe_dump(content, sort_keys=True))

    for scale, graph in before.items():
        after = build_graph(scale)
        assert run_names(after) == run_names(graph)
        assert {key: table_fingerprint(after, key) for key in after.tables} == {
            key: table_fingerprint(graph, key) for key in graph.tables
        }


@pytest.mark.slow
def test_names__evaluation_changed__rename_no_run(project):
    before = load_graph("demo")

    project.edit("eval/consistency.yaml", "shuffle_ratio: 0.15", "shuffle_ratio: 0.15\nseed: 1")

    after = build_graph("demo")
    assert differing(before, after) == set()
    renamed = {name.split("-")[0] for name in before.evals.keys() ^ after.evals.keys()}
    assert renamed == {"consistency"}


@pytest.mark.slow
def test_graph__another_site__renames_nothing(project, monkeypatch):
    before = list(load_graph("demo").runs)

    monkeypatch.setenv("PATCHWORK_SITE", "slurm")

    assert list(build_graph("demo").runs) == before


ALL_OF_MJP = {f"mjp.{key}" for key in read_study(CONFIGS / STUDY).parse().all_tables}


def fingerprints(graph) -> dict[str, str]:
    return {key: table_fingerprint(graph, key) for key in graph.tables}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        (STUDY, "direction: up, tolerance: 0.4", "direction: up, tolerance: 0.5", {"mjp.t4"}),
        (STUDY, "label: 0 (DAL alone)", "label: none (DAL alone)", {"mjp.t3"}),
        (STUDY, "title: Which parts", "title: What parts", {"mjp.t4"}),
        (EXPECTED, "16.21", "16.22", {"mjp.t1"}),
        (DEMO, "comparable: false", "comparable: true", ALL_OF_MJP),
        (DEMO, "note: >-", "note: >-\n  Look:", ALL_OF_MJP),
        (STUDY, "statement: Removing", "statement: To remove", set()),
    ],
    ids=["tolerance", "label of a row", "title", "expected number", "comparable", "note of the scale", "claim"],
)
def test_table_fingerprint__one_thing_changed__changes_for_the_tables_that_show_it(project, file, old, new, changed):
    before = load_graph("demo")

    project.edit(file, old, new)

    after = build_graph("demo")
    old, new = fingerprints(before), fingerprints(after)
    assert {key for key in new if new[key] != old[key]} == changed
    assert differing(before, after) == set()


# The papers' own numbers


@pytest.mark.slow
@pytest.mark.parametrize("study", names(CONFIGS / "expected"))
def test_claims__on_the_papers_own_numbers__are_true_where_it_prints_them(shipped, study):
    expected = parse_file(Expected, CONFIGS / "expected" / f"{study}.yaml")
    cells = [(row, column, value) for row, columns in expected.rows.items() for column, value in columns.items()]
    readings = {(row, column): Reading(value, error=0.0) for row, column, value in cells if value is not None}

    judged = judge(shipped["paper"].claims[study], readings)

    printed = [claim for claim in judged if not claim.reason.startswith("no number for")]
    assert [(claim.id, claim.verdict) for claim in printed if claim.verdict != "true"] == []
    assert [claim.id for claim in judged if claim.verdict == "false"] == []
    assert len(printed) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a_first", "z_last"])
def test_claim__on_cells_of_another_study__is_resolved_whichever_comes_first(project, name):
    claim = {"statement": "", "type": "directional", "holds": ["max(mjp.t3.g0*:top1) > mjp.t1.deit-s:top1"]}
    project.write(f"study/{name}.yaml", {"title": name, "scales": ["demo"], "claims": {"c1": claim}})

    found = build_graph("demo").claims[name][f"{name}.c1"]

    assert found.tables() == ["mjp.t3", "mjp.t1"]
    assert len(found.sets["mjp.t3.g0*:top1"]) == 6


@pytest.mark.parametrize(
    ("row", "numbers"),
    [
        ("mjp.t1.deit-s", {"params_m": 22, "top1": 79.8, "diff_norm": 16.21, "consistency": 64.3}),
        ("mjp.t1.deit-s-mjp", {"params_m": 22, "top1": 80.5, "diff_norm": 8.96, "consistency": 82.9}),
        ("mjp.t3.g027", {"top1": 80.3, "diff_norm": 3.97, "consistency": 93.1}),
        ("mjp.t4.b-no-pe", {"top1": 77.5, "delta_top1": -2.3, "consistency": 100.0}),
        ("mjp.t4.j-jp-unk-dal-nln", {"top1": 80.5, "delta_top1": 0.7, "consistency": 82.9}),
    ],
)
def test_expected__rows_of_the_mjp_paper__are_what_it_prints(row, numbers):
    assert parse_file(Expected, CONFIGS / EXPECTED).rows[row] == numbers


def test_expected__differences_of_table_4__follow_from_its_accuracies():
    rows = {key: row for key, row in parse_file(Expected, CONFIGS / EXPECTED).rows.items() if key.startswith("mjp.t4.")}

    base = rows.pop("mjp.t4.a-deit-s")["top1"]

    assert {key: row["delta_top1"] for key, row in rows.items()} == {
        key: pytest.approx(row["top1"] - base) for key, row in rows.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"), [("num_train", 4000), ("num_val", 900), ("num_classes", 9), ("source", "cifar10")]
)
def test_runs__same_data_name_for_other_images__are_refused(project, key, value):
    project.edit(
        "study/mjp.yaml", "set: {method: {dal: none}}}", f"set: {{method: {{dal: none}}, data: {{{key}: {value}}}}}}}"
    )
    lines = (CONFIGS / "study/mjp.yaml").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.startswith("  g: "))

    assert project.problems() == [
        f"configs/study/mjp.yaml: runs.g: data 'fashion_mnist' differs from other runs in {key}; "
        f"give it another name (line {line})"
    ]


@pytest.mark.slow
def test_names__logging_interval__changes_nothing(project):
    before = list(build_graph("demo").runs)
    project.edit("scale/demo.yaml", "log_every: 10", "log_every: 25")

    assert list(build_graph("demo").runs) == before


def test_files__of_a_table__are_those_its_columns_read_for_the_selected_rows(shipped):
    graph = shipped["demo"]
    runs = run_names(graph)

    headline = [runs[row] for row in headline_of_t3()]
    assert graph.files("mjp.t3", "headline") == sorted(f"evals/{run}-quick.json" for run in headline)
    assert len(graph.files("mjp.t3", "all")) == 6
    trained = [file for file in graph.files("mjp.t1", "all") if file.endswith("train.json")]
    assert len(trained) == len(graph.rows("mjp.t1", "all"))


@pytest.mark.slow
def test_segmentation_runs__of_each_paper__have_the_heads_that_it_names():
    """DropPos follows mmsegmentation's configs of MAE and BEiT, MJP that of Swin."""
    runs = [run for run in load_graph("paper").runs.values() if run.method == "upernet"]
    found = {
        study: {
            (run.config["method"]["width"], run.config["method"]["aux_width"]) for run in runs if study in run.studies
        }
        for study in ("droppos", "mjp", "permequiv")
    }
    assert found == {"droppos": {(768, 256)}, "mjp": {(512, 256)}, "permequiv": {(512, 256)}}
