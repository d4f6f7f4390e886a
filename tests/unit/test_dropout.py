"""Dropout and drop path of a model are on in the loss of every method on a ViT, and off in evaluation mode."""

import pytest
import torch
from method_cases import CASES, NUM_LABELS, batch_for
from tiny_vit import NUM_CLASSES, build_tiny

from pipeline.method_checks.bench import compute_loss
from pipeline.methods.base import METHODS

VITS = [name for name in METHODS.names() if CASES[name].model.family == "vit" and name != "mask_rcnn"]


def on_vit(name, **model):
    """A method with its defaults on a ViT with these fields."""
    _, fields, plain = CASES[name]
    kind = METHODS.get(name)
    has_classes = kind.Config.task in ("classify", "attributes")
    encoder = build_tiny(plain.model_copy(update=model), num_classes=NUM_CLASSES if has_classes else 0)
    encoder.num_labels = NUM_LABELS
    return kind(kind.Config(name=name, **fields), encoder)


@pytest.mark.parametrize("name", VITS)
def test_dropout__of_every_method_on_a_vit__reaches_the_first_block_in_training_only(name):
    method, seen = on_vit(name, dropout=0.5), []
    method.encoder.blocks[0].norm1.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    for is_training, share in ((True, 0.5), (False, 0.0)):
        compute_loss(method.train(is_training), batch_for(name))
        assert float((seen[-1] == 0).float().mean()) == pytest.approx(share, abs=0.05)


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("field", ["dropout", "drop_path"])
@pytest.mark.parametrize("name", VITS)
def test_dropout__every_method_on_a_vit__is_random_in_training_and_nothing_in_evaluation(name, field):
    method, batch = on_vit(name, **{field: 0.5}), batch_for(name)
    draw = method.draw(batch, 0.5)
    for is_training in (True, False):
        method.train(is_training)
        losses = [method(batch.inputs, batch.targets, draw).loss for _ in range(2)]
        assert torch.equal(*losses) != is_training
