"""At which scales a study runs, and the scale of a command that names none."""

import pytest

from pipeline.core.errors import ConfigError
from pipeline.study.resolve.graph import build_graph
from pipeline.study.scales import default_scale, runs_at, stated_scales, study_of
from pipeline.study.targets import check_target, command_for, report_target

MINE = {"title": "Mine", "runs": {}}


@pytest.fixture
def mine(project):
    project.write("study/mine.yaml", MINE)
    return project


@pytest.mark.parametrize("scale", ["demo", "tiny", "paper"])
def test_study__without_paper_and_scales__runs_as_written_and_adds_nothing_elsewhere(mine, scale):
    assert runs_at("mine", "own", papers=False) and not runs_at("mine", scale, papers=True)
    assert runs_at("mjp", scale, papers=True) and not runs_at("mjp", "own", papers=False)


def test_study__that_names_scales__runs_at_those(mine):
    mine.write("study/mine.yaml", {**MINE, "scales": ["tiny", "own"]})
    assert [scale for scale in ("demo", "own", "paper", "tiny") if runs_at("mine", scale, scale != "own")] == [
        "own",
        "tiny",
    ]


@pytest.mark.slow
def test_study__with_a_mistake_that_runs_elsewhere__stops_no_other_scale(mine):
    mine.write("study/mine.yaml", {**MINE, "runs": {"a": {"labl": "A"}}})
    for path in (mine.configs / "study").glob("mjp.yaml"):
        path.unlink()
    assert build_graph("demo").tables == {}
    assert "configs/study/mine.yaml: runs.a.labl: unknown key; did you mean 'label'?" in mine.problems("own")[-1]


@pytest.mark.slow
def test_scales__one_that_is_mistyped__is_an_error_at_every_scale(mine):
    mine.write("study/mine.yaml", {**MINE, "scales": ["own", "dmeo"]})
    assert stated_scales("mine") == ["demo", "own", "paper", "tiny"]
    for scale in ("own", "paper"):
        (line,) = mine.problems(scale)
        assert line.startswith("configs/study/mine.yaml: scales.1: no scale 'dmeo'; did you mean 'demo'?")


@pytest.mark.parametrize(
    ("targets", "scale"),
    [
        (["mine"], "own"),
        (["mine_table1", "mine_figure_curves"], "own"),
        (["mjp_table4"], "demo"),
        (["all"], "demo"),
        ([], "demo"),
        (["results/tiny/report/all.html"], "demo"),
    ],
)
def test_default_scale__of_targets__is_that_of_their_study(mine, targets, scale):
    assert default_scale(targets) == scale


def test_default_scale__named_by_the_study__is_the_first(mine):
    mine.write("study/mine.yaml", {**MINE, "scales": ["tiny", "own"]})
    assert default_scale(["mine"]) == "tiny"


def test_default_scale__of_studies_that_differ__is_refused(mine):
    with pytest.raises(ConfigError, match="different scales: mjp_table4 at demo, mine at own; run them one by one"):
        default_scale(["mjp_table4", "mine"])


def test_study_of__target_of_a_study_whose_name_begins_with_anothers__is_the_longer(mine):
    mine.write("study/mine_table.yaml", MINE)
    found = [study_of(target) for target in ("mine_table1", "mine_table", "mine_table_table1", "mine_tabel1", "all")]
    assert found == ["mine", "mine_table", "mine_table", "", ""]


def test_command__of_a_study__names_the_scale_where_it_is_not_the_studys_default(mine):
    assert command_for("mine_table1", "own") == "snakemake mine_table1"
    assert command_for("mine", "demo") == "snakemake mine --config scale=demo"
    assert report_target("mine", "own") == "mine"


@pytest.mark.parametrize(
    ("target", "scale", "reason"),
    [
        (
            "mine",
            "demo",
            r"study mine has no paper and runs at scale own; .*scales: \[own, demo\] into its file",
        ),
        ("mjp_table4", "own", "study mjp is of a paper, and this scale has none; choose another scale"),
        ("mjp_table99", "demo", "did you mean 'mjp_table9'"),
        ("other", "demo", r"study other has scales: \[tiny\]; choose one of them, or add demo"),
    ],
)
def test_target__of_a_study_that_runs_elsewhere__says_where(mine, target, scale, reason):
    mine.write("study/other.yaml", {**MINE, "scales": ["tiny"]})
    known = ["all", "mjp", "mjp_table9"] if scale == "demo" else ["all", "mine"]
    with pytest.raises(ConfigError, match=f"no target '{target}' at scale {scale}.*{reason}"):
        check_target(target, known, scale)
