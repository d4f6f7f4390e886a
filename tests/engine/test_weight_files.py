"""Evaluating weight files: as a trained run is evaluated, with and without a key."""

from pathlib import Path

import pytest
from lab import CONFIGS, Lab
from safetensors.torch import load_file, save_file
from tiny_runs import ALONE, tiny_run

from pipeline.core.errors import CheckpointError
from pipeline.core.files import digest
from pipeline.evals.evaluate import EvalContext, PlannedEvaluation

pytestmark = pytest.mark.slow


def weight_file(lab: Lab, path: Path, keep=lambda name: True, **method) -> PlannedEvaluation:
    """An evaluation of the run's own weights, in a file with plain timm keys, as if they came from elsewhere."""
    weights = load_file(lab.results.run(lab.run.name).encoder)
    save_file({name: value for name, value in weights.items() if keep(name)}, path)
    changes = {"seed": 3, "data": {"eval_crop": 0.9}, "train": False, "init": f"file:{path}", "method": method}
    run = tiny_run(changes)
    assert run.name.startswith("weights-mini-small-")
    return PlannedEvaluation("file-aaaaaaaa", "classify", CONFIGS["classify"], {"model": run}, {})


def test_weight_file__of_a_trained_run__has_the_numbers_of_the_run(lab, tmp_path):
    lab.evaluate(*lab.planned("classify"), weight_file(lab, tmp_path / "mini.safetensors"))
    ours, theirs = lab.result("classify"), lab.result("file")
    assert (theirs.metrics, theirs.errors, theirs.files) == (ours.metrics, ours.errors, ours.files)
    assert theirs.inputs.weights == {"model": digest(tmp_path / "mini.safetensors")}


@pytest.mark.parametrize("use", ["used", "missing"])
def test_weight_file__evaluated_with_a_key__is_locked_first(lab, tmp_path, use):
    file = weight_file(lab, tmp_path / "mini.safetensors", permutation={"key": use})
    lab.evaluate(*lab.planned("classify"), file)
    ours, theirs = lab.result("classify").metrics, lab.result("file").metrics
    assert (theirs["loss"] == pytest.approx(ours["loss"], abs=1e-5)) is (use == "used")


def test_subject__of_a_run_or_of_a_weight_file__is_in_evaluation_mode(lab, tmp_path):
    context = EvalContext(lab.results, lab.site, ALONE)
    (file,) = weight_file(lab, tmp_path / "mini.safetensors").subjects.values()
    assert not context.subject(lab.run).method.training and not context.subject(file).method.training


def test_subjects__of_two_weight_files__have_their_own_weights(lab, tmp_path):
    (one,) = weight_file(lab, tmp_path / "one.safetensors").subjects.values()
    lab.change_weights()
    (other,) = weight_file(lab, tmp_path / "other.safetensors").subjects.values()
    context = EvalContext(lab.results, lab.site, ALONE)
    heads = [context.subject(run).method.encoder.head.weight for run in (one, other, one)]
    assert heads[0].equal(-heads[1]) and heads[2] is heads[0]
    assert context.weights(one) != context.weights(other)


def test_weight_file__without_its_classifier__is_refused_in_one_message(lab, tmp_path):
    planned = weight_file(lab, tmp_path / "mini.safetensors", keep=lambda name: not name.startswith("head."))
    with pytest.raises(CheckpointError) as caught:
        lab.evaluate(planned)
    assert "has no head.weight, head.bias, which vit_tiny_patch16_224 on small needs" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weight_file__replaced_by_another__is_evaluated_again(lab, tmp_path, computed):
    planned = weight_file(lab, tmp_path / "mini.safetensors")
    lab.evaluate(planned)
    before = lab.result("file")
    lab.change_weights()
    lab.evaluate(weight_file(lab, tmp_path / "mini.safetensors"))
    assert computed == ["classify"] * 2 and lab.result("file").metrics != before.metrics


def test_weight_file__not_found__is_one_message_that_names_it(lab, tmp_path):
    planned = weight_file(lab, tmp_path / "mini.safetensors")
    (tmp_path / "mini.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"mini\.safetensors not found; finish the run that writes it, or put the file there"
    ):
        lab.evaluate(planned)
