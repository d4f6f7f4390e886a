"""Features of frozen encoders, against timm's own forward_intermediates and against the methods."""

import pytest
import torch
from small_set import build
from tiny_vit import build_tiny, image_size_of, tiny_batch, tiny_encoder, tiny_model, tiny_resnet, tiny_swin

from pipeline.evals.base import Subject, spread
from pipeline.evals.probes.features import NUM_PARTS, pooled_features, pooled_layers
from pipeline.evals.probes.knn import NearestNeighbours
from pipeline.methods.droppos_swin import DropPosSwin
from pipeline.methods.supervised import Supervised
from pipeline.models.patches import to_patches

MODELS = {"vit": tiny_model(), "no positions": tiny_model(pos_embed="none"), "swin": tiny_swin(), "cnn": tiny_resnet()}


def supervised(encoder):
    return Supervised(Supervised.Config(), encoder).eval()


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_pooled_layers__of_every_family__are_the_means_of_timms_intermediates(kind):
    encoder = build_tiny(MODELS[kind]).eval()
    images = tiny_batch(image_size=image_size_of(MODELS[kind])).images
    stages = encoder.forward_intermediates(images, intermediates_only=True)  # (B, D, H, W)

    found = pooled_layers(supervised(encoder), images)

    means = [stage.mean(dim=(2, 3)) for stage in stages]
    entered = found[len(found) - len(means) - 1 : len(found) - len(means)]
    assert len(entered) == (kind != "cnn")  # the stem of a CNN is one of timm's
    for one, other in zip(found[len(entered) :], means, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert len({float(layer.double().sum()) for layer in found}) == len(found)


@torch.no_grad()
def test_pooled_layers__layer_0_of_a_vit__is_the_mean_of_patches_with_positions():
    method = build("baseline")
    images = tiny_batch().images
    entering = method.encoder.patch_embed(images) + method.encoder.pos_embed[:, 1:]
    torch.testing.assert_close(pooled_layers(method, images)[0], entering.mean(dim=1), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_pooled_layers__afterwards__leave_no_hook_behind():
    method = build("baseline")
    pooled_layers(method, tiny_batch().images)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in method.modules())


@pytest.mark.parametrize("pool", ["cls", "avg"])
@torch.no_grad()
def test_pooled_features__as_the_run_pools__are_those_by_which_it_classifies(pool):
    method = supervised(tiny_encoder(pool=pool))
    images = tiny_batch().images
    assert torch.equal(pooled_features(method, images, "run"), method.predict(images).features)


@torch.no_grad()
def test_pooled_features__cls_and_avg__are_tokens_after_the_last_norm():
    method, images = build("baseline"), tiny_batch().images
    tokens = method.encoder.forward_features(images)
    torch.testing.assert_close(pooled_features(method, images, "cls"), tokens[:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pooled_features(method, images, "avg"), tokens[:, 1:].mean(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", [tiny_swin(), tiny_resnet()], ids=lambda model: model.family)
@torch.no_grad()
def test_pooled_features__avg_of_a_map__is_what_timm_pools(model):
    method, images = supervised(build_tiny(model).eval()), tiny_batch(image_size=image_size_of(model)).images
    expected = method.encoder.forward_head(method.encoder.forward_features(images), pre_logits=True)
    torch.testing.assert_close(pooled_features(method, images, "avg"), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_pooled_features__of_droppos_on_a_swin__use_the_positions_it_was_trained_with():
    cfg = DropPosSwin.Config(cells=8, decoder_width=16, decoder_depth=1, decoder_heads=2)
    method = DropPosSwin(cfg, build_tiny(tiny_swin(window_size=2), num_classes=0, image_size=16)).eval()
    images = tiny_batch(image_size=32).images
    expected = method.features(to_patches(images, method.grid), method.positions.unsqueeze(0)).mean(dim=(1, 2))

    found = pooled_features(method, images, "avg")

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    without = method.encoder.forward_features(images).mean(dim=(1, 2))
    assert (without - expected).abs().max() > 1e-2


def test_frozen__inside_and_afterwards__has_no_gradients_and_is_then_as_it_was(world):
    method = build("droppos").train()  # its sin-cos table has no gradient, and must not get one
    before = {name: parameter.requires_grad for name, parameter in method.named_parameters()}
    probe = NearestNeighbours(NearestNeighbours.Config(), {}, world.results, world.site, None)
    with probe.frozen(Subject(world.run_of(method), method)) as found:
        assert found is method and not method.training
        assert not any(parameter.requires_grad for parameter in method.parameters())
    assert method.training
    assert {name: parameter.requires_grad for name, parameter in method.named_parameters()} == before
    assert len({*before.values()}) == 2


@pytest.mark.parametrize(
    ("count", "limit", "expected"), [(5, None, [0, 1, 2, 3, 4]), (5, 3, [0, 2, 4]), (3, 9, [0, 1, 2])]
)
def test_spread__with_a_limit__takes_so_many_from_the_first_to_the_last(count, limit, expected):
    assert spread(count, limit).tolist() == expected


@pytest.mark.slow
def test_spread__of_a_large_set__names_each_image_once():
    assert spread(1_281_167, None).tolist() == list(range(1_281_167)) and NUM_PARTS > 1
