"""`check`: all scales at once, with every mistake."""

import shutil
import subprocess
import sys

import pytest
import timm

from pipeline.cli import main
from pipeline.models.architectures import architectures, unknown_architecture
from pipeline.study.resolve import buildable
from pipeline.study.resolve.graph import load_graph


@pytest.mark.slow
def test_check__without_a_scale__reads_all_of_them(project, capsys):
    assert main(["check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    told = [" ".join(line.replace(":", "").split()[:3]) for line in lines]
    of_all = [["replaces", "configs"], ["configs"], ["configs"], ["replaces", "configs"]]  # demo, own, paper, tiny
    scales = ("demo", "own", "paper", "tiny")
    assert told == [f"scale {scale} {word}" for scale, words in zip(scales, of_all, strict=True) for word in words]


@pytest.mark.slow
def test_check__of_one_scale__lists_its_runs(project, capsys):
    assert main(["check", "--scale", "demo"]) == 0
    *runs, _, last = capsys.readouterr().out.splitlines()
    study = project.read("study/mjp.yaml")
    counts = f"{len(study['tables'])} tables, {len(study['figures'])} figures"
    assert last == f"scale demo: configs are valid: {len(runs)} runs, {counts}"


@pytest.mark.slow
def test_check__mistake_that_only_one_scale_shows__is_found_and_names_the_scale(project, capsys):
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
    project.edit("site/slurm.yaml", "  imagenet1k: /data", "  imagnet1k: /data")
    assert main(["check"]) == 1
    errors = capsys.readouterr().err
    assert "site/slurm.yaml: slurm.partitoin: unknown key; did you mean 'partition'?" in errors
    assert "site/slurm.yaml: data.imagnet1k: no data set 'imagnet1k'; did you mean 'imagenet1k'?" in errors


def test_architectures__read_from_the_source__are_those_that_timm_registers():
    assert architectures() == set(timm.list_models())


@pytest.mark.parametrize("name", ["vit_small_patch16_224", "vit_small_patch16_224.augreg_in1k"])
def test_architecture__that_timm_has__is_known_with_and_without_its_weights(name):
    assert unknown_architecture(name) == ""


@pytest.mark.slow
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


def problems_of(capsys, *arguments) -> list[str]:
    assert main(["check", *arguments]) == 1
    return capsys.readouterr().err.removeprefix("ConfigError: ").splitlines()


@pytest.mark.slow
def test_check__heads_that_do_not_divide_the_width_of_an_architecture__is_one_line(project, capsys):
    project.edit("model/vit_demo.yaml", "num_heads: ", "num_heads: 5 # ")
    project.edit("model/vit_demo.yaml", "embed_dim", "# embed_dim")

    (line,) = problems_of(capsys, "--scale", "demo")

    assert line.startswith("configs/model/vit_demo.yaml: model.num_heads: timm cannot build vit_tiny_patch16_224 for")
    assert "num_heads 5, act_layer relu: dim should be divisible by num_heads; change one of these" in line


@pytest.mark.slow
def test_check__models__are_built_once_for_what_is_kept_with_the_graph(project, capsys, monkeypatch):
    counted = []
    monkeypatch.setattr(buildable, "build_method", counted.append)
    monkeypatch.setattr(buildable, "_BUILT", set())
    assert main(["check", "--scale", "demo"]) == 0
    num_models = len(counted)
    assert 0 < num_models < len(load_graph("demo").runs)

    buildable._BUILT.clear()  # as in another process
    assert main(["check", "--scale", "demo"]) == 0
    project.edit("scale/demo.yaml", "5,000 Fashion-MNIST images", "just 5,000 Fashion-MNIST images")
    assert main(["check", "--scale", "demo"]) == 0
    assert len(counted) == num_models


@pytest.mark.slow
def test_check__in_a_project_without_results__creates_no_folder(project):
    shutil.rmtree(project.results)
    assert main(["check", "--scale", "demo"]) == 0
    assert not project.results.exists()


@pytest.mark.slow
def test_check__mean_in_pixels__says_what_is_expected(project, capsys):
    content = project.read("data/fashion_mnist.yaml")
    content["data"] |= {"mean": [72.9], "std": [90.0]}
    project.write("data/fashion_mnist.yaml", content)

    line = problems_of(capsys, "--scale", "demo")[0]

    assert line.startswith("configs/data/fashion_mnist.yaml: data.mean: mean is [72.9] and std [90.0]; expected those")


@pytest.mark.slow
def test_check__hours_written_as_a_time__are_refused(project, capsys):
    project.edit("site/slurm.yaml", "  hours: ", "  hours: 24:00:00 # ")

    line = problems_of(capsys, "--scale", "demo")[0]

    assert line.startswith("configs/site/slurm.yaml: slurm.hours: found '24:00:00'; input should be a valid number")


@pytest.mark.slow
@pytest.mark.parametrize("file", ["site/local.yaml", "elsewhere.yaml"])
def test_check__folder_of_no_data_set__names_the_nearest(project, capsys, monkeypatch, file):
    project.edit("site/local.yaml", "data: {}", "data: {imagnet1k: /x, celeba: /y}")
    path = (project.configs / "site/local.yaml").rename(project.configs / file)
    monkeypatch.setenv("PATCHWORK_SITE", str(path))

    (line,) = problems_of(capsys, "--scale", "demo")

    assert line.startswith(f"configs/{file}: data.imagnet1k: no data set 'imagnet1k'; did you mean 'imagenet1k'?")
