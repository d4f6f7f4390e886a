"""A sweep is a study: its runs, its table and its figure; mistakes are found before anything is written."""

import pytest
from result_files import SITE
from swept_study import LR, STUDY, configs_of, files, swept

from pipeline.cli import main
from pipeline.core.config import merge
from pipeline.core.errors import ConfigError
from pipeline.freshness.remake import Freshness
from pipeline.study.resolve.graph import load_graph

pytestmark = pytest.mark.slow


@pytest.fixture
def mine(project):
    project.only_study("mine", STUDY, {})
    return project


def graph_of(study):
    """The graph, after the study was written; before that it is the same."""
    unsaved = study.graph("demo")
    study.write("demo")
    graph = load_graph("demo")
    assert graph == unsaved
    return graph


def test_sweep__of_a_run_over_numbers__has_one_row_a_value_and_a_line_over_a_logarithmic_axis(mine):
    study = swept("mine.plain", LR, seeds=2)
    graph = graph_of(study)
    table, figure = (graph.tables[f"{study.name}.{key}"] for key in ("t1", "f1"))
    for key, value in zip(("v1-1e-4", "v2-3e-4", "v3-1e-3"), (1e-4, 3e-4, 1e-3), strict=True):
        configs = configs_of(graph, f"{study.name}.t1", f"plain_{key}")
        assert [config["optim"]["base_lr"] for config in configs] == [value] * 2
        assert [config["seed"] for config in configs] == [0, 1]
    assert [row.label for row in table.rows.values()] == ["base_lr 1e-4", "base_lr 3e-4", "base_lr 1e-3"]
    assert [(column.eval, column.metric, column.direction) for column in table.columns.values()] == [
        ("train", "val_top1", "up")
    ]
    assert (figure.figure.kind, figure.figure.log_x, figure.figure.x_label) == ("lines", True, "optim.base_lr")
    assert [column.x for column in figure.columns.values()] == [1e-4, 3e-4, 1e-3]
    cells = [row.cells["value"].sources for row in table.rows.values()]
    (line,) = figure.rows.values()
    assert [cell.sources for cell in line.cells.values()] == cells and len(cells[0]) == 2
    assert not any(row.headline for row in table.rows.values())


@pytest.mark.parametrize(("seeds", "count"), [(2, 2), (None, 3)])
def test_sweep__with_seeds__has_them_in_place_of_those_of_a_run(project, seeds, count):
    runs = STUDY["runs"] | {"plain": STUDY["runs"]["plain"] | {"seeds": 3}}
    project.only_study("mine", STUDY | {"runs": runs}, {})
    study = swept("mine.plain", LR, seeds=seeds)
    rows = graph_of(study).tables[f"{study.name}.t1"].rows.values()
    assert [len(row.run_names()) for row in rows] == [count] * 3


def test_sweep__of_a_run_that_starts_from_another_in_place_of_a_file__keeps_that_as_it_is(project):
    tuned = STUDY["runs"]["tuned"] | {"init": "file:vit.safetensors", "stand_in": "pre"}
    project.only_study("mine", STUDY | {"runs": STUDY["runs"] | {"tuned": tuned}}, {})
    study = swept("mine", "optim.weight_decay=0,0.1")
    (config,) = configs_of(graph_of(study), f"{study.name}.t1", "tuned_v1-0")
    graph = load_graph("demo")
    (plain,) = graph.tables["mine.t1"].rows["mine.t1.tuned"].run_names()
    assert config["init"] == graph.runs[plain].init


def test_sweep__value_that_the_study_has__is_its_run(mine):
    plain = load_graph("demo").tables["mine.t1"].rows["mine.t1.plain"].runs[""]
    study = swept("mine.plain", "optim.base_lr=3e-3,1e-3")
    rows = graph_of(study).tables[f"{study.name}.t1"].rows.values()
    assert [row.runs[""] == plain for row in rows] == [True, False]


def test_sweep__over_two_keys__is_a_heat_map_of_every_combination(mine):
    study = swept("mine.plain", "optim.base_lr=1e-4,1e-3", "optim.weight_decay=0,0.05,0.1")
    graph = graph_of(study)
    figure, table = graph.tables[f"{study.name}.f1"], graph.tables[f"{study.name}.t1"]
    assert figure.figure.kind == "heatmap" and len(table.rows) == 6
    found = {
        (row.label, column.label): graph.runs[graph.run_behind(row.cells[key].sources[0])].config["optim"]
        for row in figure.rows.values()
        for key, column in figure.columns.items()
    }
    assert {key: (optim["base_lr"], optim["weight_decay"]) for key, optim in found.items()} == {
        (f"base_lr {rate}", decay): (float(rate), float(decay))
        for rate in ("1e-4", "1e-3")
        for decay in ("0", "0.05", "0.1")
    }
    assert [*table.rows.values()][1].label == "base_lr 1e-4, weight_decay 0.05"


def test_sweep__over_names__is_bars(mine):
    study = swept("mine.plain", "model=deit_s,resnet50")
    graph = graph_of(study)
    assert graph.tables[f"{study.name}.f1"].figure.kind == "bars"
    models = [
        configs_of(graph, f"{study.name}.t1", row)[0]["model"]["name"]
        for row in ("plain_v1-deit_s", "plain_v2-resnet50")
    ]
    assert models == ["vit_demo", "resnet_demo"]


def test_sweep__of_a_finetuning__starts_from_the_pretraining_as_it_is(mine):
    study = swept("mine.tuned", "optim.base_lr=1e-4,1e-3")
    graph = graph_of(study)
    starts = {
        config["init"]
        for row in ("tuned_v1-1e-4", "tuned_v2-1e-3")
        for config in configs_of(graph, f"{study.name}.t1", row)
    }
    (start,) = starts
    assert graph.runs[start].studies == ["mine", study.name]
    assert {config["optim"]["weight_decay"] for config in configs_of(graph, f"{study.name}.t1", "tuned_v1-1e-4")} == {
        0.3
    }


def test_sweep__of_a_study__has_each_of_its_runs_judged_by_its_own_metric(mine):
    study = swept("mine", "optim.weight_decay=0,0.1")
    graph = graph_of(study)
    metrics = {
        key: table.columns["value"].metric for key, table in graph.tables.items() if key.startswith(f"{study.name}.t")
    }
    assert metrics == {f"{study.name}.t1": "val_top1", f"{study.name}.t2": "val_position_top1"}
    for value in ("v1-0", "v2-0_1"):
        (tuned,) = configs_of(graph, f"{study.name}.t1", f"tuned_{value}")
        (pre,) = configs_of(graph, f"{study.name}.t2", f"pre_{value}")
        assert graph.runs[tuned["init"]].config == pre
        assert tuned["optim"]["weight_decay"] == pre["optim"]["weight_decay"] == {"v1-0": 0, "v2-0_1": 0.1}[value]
    assert len(graph.tables[f"{study.name}.f1"].rows) == 2  # a line for each run


def test_sweep__with_the_metric_of_an_evaluation__takes_its_column_from_the_tables_that_show_it(mine):
    study = swept("mine.plain", LR, metric="classify:top1")
    column = graph_of(study).tables[f"{study.name}.t1"].columns["value"]
    assert (column.eval, column.metric, column.direction, column.label) == ("classify", "top1", "up", "Top-1 (%)")


def test_sweep__of_a_loss__is_better_when_lower(mine):
    assert swept("mine.plain", LR, metric="val_loss").content["tables"]["t1"]["columns"]["value"]["direction"] == "down"


def test_sweep__at_another_scale__is_not_there(mine):
    study = swept("mine.plain", LR)
    study.write("demo")
    assert study.name in load_graph("demo").studies() and study.name not in load_graph("tiny").studies()


def test_name__of_another_sweep__is_another_and_the_same_sweep_keeps_its_file(mine):
    first, again, other = swept("mine.plain", LR), swept("mine.plain", LR), swept("mine.plain", LR, seeds=2)
    assert first.name == again.name != other.name and first.name.startswith("sweep_mine_plain_base_lr_")
    first.write("demo")
    before = first.path.read_text()
    again.write("demo")
    assert first.path.read_text() == before


def test_name__chosen_and_taken_by_another_sweep__is_refused(mine):
    swept("mine.plain", LR, name="rates").write("demo")
    with pytest.raises(ConfigError, match=r"sweep_rates\.yaml exists with different content; rename it"):
        swept("mine.plain", LR, seeds=2, name="rates").write("demo")


def problems(project, *arguments, target="mine.plain") -> list[str]:
    before = files(project)
    with pytest.raises(ConfigError) as caught:
        swept(target, *arguments).graph("demo")
    assert files(project) == before
    return str(caught.value).splitlines()


def test_mistakes__in_keys_and_values__name_the_option_and_come_all_at_once(mine):
    lines = problems(mine, "optim.base_lrr=1e-4,1e-3", "model.depth=two,2", "model=deit_s,deit_ss")
    assert len(lines) == 3
    for start in (
        "--over optim.base_lrr: unknown key; did you mean 'base_lr'?",
        "--over model.depth=two: found 'two'; input should be a valid integer",
        "--over model=deit_ss: no model 'deit_ss'; did you mean 'deit_s'?",
    ):
        assert [line for line in lines if line.startswith(start)], lines


def test_mistake__value_that_only_other_keys_make_impossible__is_reported(mine):
    (line,) = problems(mine, "optim.micro_batch=50,7")
    assert (
        line.startswith("--over optim.micro_batch=7: ") and "global_batch 50 is not a multiple of micro_batch 7" in line
    )


def test_mistake__value_that_a_key_of_the_study_contradicts__names_both_places(mine):
    content = {"title": "mine", "scales": ["own"], "common": {"optim": {"warmup_epochs": 3}}}
    mine.write("study/mine.yaml", merge(STUDY, content))
    with pytest.raises(ConfigError) as caught:
        swept("mine.plain", "optim.epochs=2,4", scale="own").graph("own")
    assert str(caught.value) == (
        "--over optim.epochs=2: optim.warmup_epochs: warmup_epochs 3.0 must be below epochs 2; "
        "change that, too (configs/study/mine.yaml: common)"
    )


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("mien.plain", {}, "no study 'mien'; did you mean 'mine'?"),
        ("mine.plane", {}, "study mine has no run 'plane'; did you mean 'plain'?"),
        (
            "mine.plain",
            {"metric": "val_topp1"},
            "--metric val_topp1: train has no metric 'val_topp1'; did you mean 'val_top1'?",
        ),
        (
            "mine.plain",
            {"metric": "clasify:top1"},
            "--metric clasify:top1: no eval 'clasify'; did you mean 'classify'?",
        ),
        ("mine.plain", {"seeds": 0}, "--seeds 0: "),
        ("mine.plain", {"scale": "own"}, "--scale own: mine does not run there; its scale is demo"),
        ("mine.plain", {"name": "My rates"}, "--name My rates: expected a to z, digits and _"),
    ],
    ids=["study", "run", "metric", "evaluation", "seeds", "scale", "name"],
)
def test_mistake__elsewhere_in_the_call__names_the_option_and_the_nearest(mine, target, options, message):
    with pytest.raises(ConfigError) as caught:
        swept(target, LR, **options).graph("demo")
    assert str(caught.value).splitlines()[0].startswith(message)


# The command


@pytest.fixture
def started(monkeypatch, mine):
    """Commands instead of Snakemake, with the studies that were there when it began."""
    calls = []

    class Process:
        def __init__(self, command, **_):
            calls.append((command, {*files(mine)}))

        def wait(self):
            return 0

    monkeypatch.setattr("pipeline.sweep.start.subprocess.Popen", Process)
    return calls


def test_command__starts_snakemake_with_what_was_given_and_prints_the_ranking(mine, started, capsys):
    options = ["--site", "local", "--snakemake=--cores 2"]
    assert main(["sweep", "mine.plain", "--over", LR, "--name", "rates", *options]) == 0
    ((command, there),) = started
    assert command[1:] == ["-m", "snakemake", "sweep_rates", "--cores", "2", "--config", "scale=demo", "site=local"]
    assert "sweep_rates.yaml" in there and "sweep_rates.yaml" in files(mine)
    said = capsys.readouterr().out
    assert "mine.plain over optim.base_lr: study sweep_rates, " in said
    assert "  n/a  results/demo/runs/" in said and "picture: drawn when all of it is finished" in said


def test_command__with_a_profile__takes_its_scale_and_a_dry_run_leaves_no_file(mine, started, capsys):
    before = files(mine)
    assert main(["sweep", "mine.plain", "--over", LR, "--profile", "slurm", "-n"]) == 0
    ((command, there),) = started
    assert command[4:] == ["--profile", "slurm", "--dry-run", "--config", "scale=paper"]
    assert len(there) == len(before) + 1 and files(mine) == before


def test_command__with_a_profile_and_a_scale__takes_the_scale_that_was_typed(mine, started):
    assert main(["sweep", "mine.plain", "--over", LR, "--profile", "slurm", "--scale", "demo", "-n"]) == 0
    ((command, _),) = started
    assert command[4:] == ["--profile", "slurm", "--dry-run", "--config", "scale=demo"]


def test_command__mistyped_key__starts_nothing(mine, started, capsys):
    before = files(mine)
    assert main(["sweep", "mine.plain", "--over", "optim.base_lrr=1,2"]) == 1
    assert "ConfigError: --over optim.base_lrr: unknown key" in capsys.readouterr().err
    assert (started, files(mine)) == ([], before)


def test_command__profile_that_is_not_there__names_the_nearest(mine, started, capsys):
    assert main(["sweep", "mine.plain", "--over", LR, "--profile", "slurn"]) == 1
    assert "--profile slurn: no such profile; did you mean 'slurm'?" in capsys.readouterr().err


def test_other_commands__of_a_sweep_that_has_not_run__know_it(mine, capsys):
    study = swept("mine.plain", LR)
    study.write("demo")
    graph = load_graph("demo")
    wanted = {f"runs/{name}/train.json" for name, run in graph.runs.items() if study.name in run.studies}
    assert len(wanted) == 3 and wanted <= {*Freshness(graph, SITE).needed_at_all()}
    assert main(["plan", study.name]) == 0 and "3 runs to train" in capsys.readouterr().out
    assert main(["explain", f"{study.name}.t1.plain_v1-1e-4:value"]) == 0
    assert f"{study.name}.yaml: tables.t1.rows.plain_*" in capsys.readouterr().out
