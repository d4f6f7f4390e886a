"""`check --names`: everything that an error with many valid names leaves out."""

import pytest

from pipeline.audit.valid_names import valid_names
from pipeline.cli import main
from pipeline.core.config import names
from pipeline.core.errors import ConfigError
from pipeline.engine.optim import OptimConfig

pytestmark = pytest.mark.slow


def shown(capsys, *words: str) -> dict[str, list[str]]:
    assert main(["check", "--names", *words]) == 0
    text = capsys.readouterr().out.replace("\n  ", " ")
    return {line.partition(": ")[0]: line.partition(": ")[2].split(", ") for line in text.splitlines()}


def test_names__are_those_of_configs_keys_and_studies(project, capsys):
    found = shown(capsys)
    assert found["configs/model"] == names(project.configs / "model")
    assert found["keys of optim"] == sorted(OptimConfig.model_fields)
    assert "shuffle_ratio" in found["keys of method mjp"] and "like" in found["keys of a run"]
    assert {"mjp", "mjp_table4", "mjp_figure3a"} <= {*found["targets of mjp"]}
    assert "b-no-pe" in found["rows of mjp.t4"] and "top1" in found["columns of mjp.t4"] and "b" in found["runs of mjp"]


def test_names__with_a_word__are_those_under_the_headings_that_have_it(project, capsys):
    assert [*shown(capsys, "configs/mo")] == ["configs/model"]
    with pytest.raises(ConfigError, match="--names modle: no heading contains this word; nearest: keys of model, "):
        valid_names("modle")


def test_names__with_a_study_that_is_broken__are_still_those_of_the_others(project, capsys):
    project.write("study/mine.yaml", {"title": "Mine", "runs": [], "tables": {"t1": 5}})
    (project.configs / "study/broken.yaml").write_text("runs: [")
    found = shown(capsys)
    assert (
        found["configs/study"] == ["broken", "mine", "mjp"] and "runs of mjp" in found and "runs of mine" not in found
    )
