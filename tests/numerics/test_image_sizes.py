"""Accuracy at other sizes of images: the model is the same, and its positions come to the new grid as they should."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from small_set import build
from test_rotary import strong, timm_twin
from tiny_vit import build_tiny, tiny_model, tiny_swin

from pipeline.evals.accuracy.image_sizes import at_size, scaled_size
from pipeline.evals.base import EVALS
from pipeline.models.patches import Grid, grid_of
from pipeline.models.places import ROTARY, rotary_of
from pipeline.models.position import sincos_positions

KINDS = ("none", "learn", "sincos", "relative", *ROTARY)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
SEEN = torch.randn(2, 1, 40, 28, generator=torch.Generator().manual_seed(0))


def moved(kind, size, **fields):
    model = tiny_model(pos_embed=kind, **fields)
    encoder = strong(build_tiny(model)) if kind != "sincos" else build_tiny(model).eval()
    return encoder, at_size(encoder, model, size, 1, 10).eval()


@torch.no_grad()
@EVERY_KIND
def test_at_size__its_own__is_the_same_model(kind):
    encoder, same = moved(kind, (28, 28))
    torch.testing.assert_close(same(SEEN[:, :, :28]), encoder(SEEN[:, :, :28]), atol=0, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["none", "rope", "rope_mixed"])
def test_at_size__larger__leaves_what_it_sees_of_patches_at_the_same_places(kind):
    """With keys of the first rows alone, more rows change nothing: their coordinates go on, and the others stay."""
    encoder, large = moved(kind, (40, 28))
    for number in range(2):
        own, other = (model.blocks[number].attn for model in (encoder, large))
        if kind == "none":
            torch.testing.assert_close(own.qkv.weight, other.qkv.weight)
        else:
            more = other.rotary.of_block(number)
            assert more.shape[-3] == 1 + 10 * 7
            torch.testing.assert_close(more[..., :50, :, :], own.rotary.of_block(number))
    assert large(SEEN).isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("size", [(40, 28), (20, 36), (56, 56)], ids=["higher", "smaller and wider", "twice"])
@pytest.mark.parametrize("kind", ROTARY)
def test_at_size__any__computes_what_timm_does_where_its_model_gets_another_size(kind, size):
    encoder, other = moved(kind, size)
    theirs, seen = timm_twin(encoder, kind), torch.randn(2, 1, *size, generator=torch.Generator().manual_seed(0))
    theirs.set_input_size(size)
    torch.testing.assert_close(other(seen), theirs(seen), atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("size", [(20, 36), (56, 56)], ids=["smaller and wider", "twice"])
def test_rescale__axial_rotations__computes_what_timm_does_with_a_reference_shape(size):
    encoder, other = moved("rope", size)
    rotary_of(other).rescale(grid_of(encoder))
    theirs, seen = timm_twin(encoder, "rope", ref_feat_shape=(7, 7)), torch.randn(2, 1, *size)
    theirs.set_input_size(size)
    torch.testing.assert_close(other(seen), theirs(seen), atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["rope", "rope_mixed"])
def test_rescale__image_three_times_as_wide__has_the_rotations_of_training_at_every_third_column(kind):
    encoder, other = moved(kind, (28, 84))
    rotary_of(other).rescale(grid_of(encoder))
    own, wide = (rotary_of(model).of_block(1)[..., 1:, :, :] for model in (encoder, other))
    torch.testing.assert_close(wide.unflatten(-3, (7, 21))[..., ::3, :, :], own.unflatten(-3, (7, 7)))


@torch.no_grad()
def test_at_size__larger__computes_sin_cos_positions_and_resamples_learned_ones():
    assert torch.equal(moved("sincos", (40, 28))[1].pos_embed, sincos_positions(Grid(10, 7), 32, 1))
    learned, large = moved("learn", (40, 28))
    assert torch.equal(large.pos_embed[:, 0], learned.pos_embed[:, 0])
    means = [table[:, 1:].mean(dim=1) for table in (large.pos_embed, learned.pos_embed)]
    torch.testing.assert_close(*means, atol=0.05, rtol=0)


@torch.no_grad()
def test_at_size__larger__stretches_the_rotations_of_dinov3_over_the_image():
    encoder, large = moved("rope_dinov3", (84, 84))
    own, other = (model.blocks[0].attn.rotary.of_block(0)[1:] for model in (encoder, large))
    # The middle of each patch is that of the middle one of three by three.
    torch.testing.assert_close(other.view(21, 21, -1)[1::3, 1::3], own.view(7, 7, -1), atol=1e-5, rtol=0)


def test_at_size__any__draws_nothing_from_the_generator_of_all():
    encoder = build_tiny(tiny_model())
    before = torch.get_rng_state()
    at_size(encoder, tiny_model(), (40, 28), 1, 10)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("factor", "expected"), [(0.75, (20, 20)), (1.25, (36, 36)), (2, (56, 56)), (0.01, (4, 4))])
def test_scaled_size__of_a_side__is_whole_patches(factor, expected):
    assert scaled_size(build_tiny(tiny_model()), factor) == expected


@pytest.mark.slow
def test_compute__at_other_sizes__is_the_accuracy_of_the_model_there(world):
    method = build("baseline")
    found = world.evaluate("image_sizes", method, sizes=(100, 150))
    assert found.metrics["top1_at_100"] == world.evaluate("classify", method).metrics["top1"]
    assert found.metrics["top1_other"] == found.metrics["top1_at_150"]
    assert (found.per_image["top1_at_150"] != found.per_image["top1_at_100"]).any()
    assert np.mean(found.per_image["top1_at_150"]) == pytest.approx(found.metrics["top1_at_150"])


@pytest.mark.parametrize("sizes", [(), (100,), (150, 150)])
def test_config__no_other_size_or_one_twice__is_refused(sizes):
    with pytest.raises(ValidationError, match="expected different sizes, and one that is not 100"):
        EVALS.get("image_sizes").Config(sizes=sizes)


def test_reason_against__a_swin_or_a_locked_model__is_one_sentence(world):
    evaluation = EVALS.get("image_sizes")
    run = world.run_of(build("baseline"))
    swin = run.model_copy(update={"model": tiny_swin()})
    locked = run.model_copy(update={"method": type(run.method)(permutation={"key": "used"})})
    assert evaluation.reason_against(evaluation.Config(), {"model": run}) == ""
    assert "is not a plain ViT" in evaluation.reason_against(evaluation.Config(), {"model": swin})
    assert "is for rope and rope_mixed, and tiny has learn" in evaluation.reason_against(
        evaluation.Config(rotations="rescaled"), {"model": run}
    )
    assert "its key is for the model as it was trained" in evaluation.reason_against(
        evaluation.Config(), {"model": locked}
    )
