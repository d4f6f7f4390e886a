"""`pipeline.results.load_encoder`: a trained run in a notebook, as the timm model it is."""

import pytest
import torch
from tiny_runs import build_trainer, publish, tiny_run

from pipeline.core.errors import CheckpointError, DataError
from pipeline.core.files import write_text
from pipeline.engine.run import resolved_yaml
from pipeline.results import load_encoder

PICTURES = torch.linspace(-1, 1, 2 * 28 * 28).view(2, 1, 28, 28)


@pytest.fixture
def trainers(results, images, tmp_path, monkeypatch):
    """Two runs of one scale whose weights are exported; nothing has been trained."""
    scale = results.rename(tmp_path / "demo")
    monkeypatch.setattr("pipeline.results.RESULTS", tmp_path)
    made = [build_trainer(tiny_run({"seed": seed}), scale, images) for seed in (0, 1)]
    for trainer in made:
        publish(trainer)
        write_text(trainer.paths.config, resolved_yaml(trainer.run))
    return made


@pytest.mark.slow
def test_load_encoder__of_a_finished_run__computes_what_the_run_computed(trainers):
    trainer = trainers[1]
    encoder = load_encoder(trainer.run.name)
    assert not encoder.training
    with torch.no_grad():
        assert torch.equal(encoder(PICTURES), trainer.method.encoder.eval()(PICTURES))


def test_load_encoder__end_of_a_name__is_enough(trainers):
    found = load_encoder(trainers[0].run.fingerprint, scale="demo")
    assert torch.equal(found.cls_token, trainers[0].method.encoder.cls_token)


@pytest.mark.parametrize(
    ("name", "found"), [("supervised", "2 finished runs have"), ("none-of-them", "no finished run has")]
)
def test_load_encoder__name_of_none_or_several__lists_the_runs(trainers, name, found):
    with pytest.raises(DataError, match=f"^{found} a name that begins or ends with '{name}', expected one; ") as caught:
        load_encoder(name)
    assert all(trainer.run.name in str(caught.value) for trainer in trainers)


def test_load_encoder__damaged_weights__are_refused(trainers):
    path = trainers[0].paths.encoder
    content = bytearray(path.read_bytes())
    content[-40:] = bytes(40)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"encoder.safetensors has SHA-256 .*, expected .* damaged after"):
        load_encoder(trainers[0].run.name)
