"""`check`: all scales at once, with every mistake."""

import subprocess
import sys

import pytest
import timm

from pipeline.cli import main
from pipeline.models.architectures import architectures, unknown_architecture
from pipeline.study.graph import load_graph


@pytest.mark.slow
def test_check__without_a_scale__reads_all_of_them(project, capsys):
    assert main(["check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["scale demo", "scale paper", "scale tiny"]


@pytest.mark.slow
def test_check__of_one_scale__lists_its_runs(project, capsys):
    assert main(["check", "--scale", "demo"]) == 0
    *runs, last = capsys.readouterr().out.splitlines()
    study = project.read("study/mjp.yaml")
    counts = f"{len(study['tables'])} tables, {len(study['figures'])} figures"
    assert last == f"scale demo: configs are valid: {len(runs)} runs, {counts}"


@pytest.mark.slow
def test_check__mistake_that_one_scale_alone_shows__is_found_and_names_the_scale(project, capsys):
    # At scale demo another model stands in for this one.
    project.edit("model/deit_s.yaml", "vit_small_patch16_224", "vit_smal_patch16_224")
    project.edit("method/mjp.yaml", "shuffle_ratio:", "shufle_ratio:")
    assert main(["check"]) == 1
    lines = capsys.readouterr().err.splitlines()
    (arch,) = [line for line in lines if "model/deit_s.yaml" in line]
    assert "model.arch: timm has no architecture 'vit_smal_patch16_224'; did you mean 'vit_small_patch16_224'" in arch
    assert arch.endswith("(at scale paper)")
    (key,) = [line for line in lines if "shufle_ratio" in line]
    assert not key.endswith(")")


@pytest.mark.slow
def test_check__mistake_in_a_site_that_is_not_chosen__is_found(project, capsys):
    project.edit("site/slurm.yaml", "  partition: gpu", "  partitoin: gpu")
    assert main(["check"]) == 1
    assert "site/slurm.yaml: slurm.partitoin: unknown key; did you mean 'partition'?" in capsys.readouterr().err


def test_architectures__read_from_the_source__are_those_that_timm_registers():
    assert architectures() == set(timm.list_models())


@pytest.mark.parametrize("name", ["vit_small_patch16_224", "vit_small_patch16_224.augreg_in1k"])
def test_architecture__that_timm_has__is_known_with_and_without_its_weights(name):
    assert unknown_architecture(name) == ""


def test_architectures__do_not_import_torch():
    code = "import sys; from pipeline.models.architectures import architectures; architectures(); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "timm"} & set(modules)


@pytest.mark.slow
def test_expected__null_for_a_row__means_that_the_paper_has_no_numbers(project):
    # Two claims speak of this row.
    numbers = "mjp.t4.d-dal-nln: {top1: 80.0, delta_top1: 0.2, consistency: 64.0}"
    project.edit("expected/mjp.yaml", numbers, "mjp.t4.d-dal-nln: null")
    assert load_graph("demo").table("mjp.t4").rows["mjp.t4.d-dal-nln"].expected == {}
