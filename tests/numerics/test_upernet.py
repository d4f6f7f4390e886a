"""UperNet: the heads against those of transformers, the pyramid, the loss, and what is counted."""

import re

import pytest
import torch
from tiny_maps import IGNORED, NUM_LABELS, segmentation_batch, whole_images
from tiny_vit import build_tiny, image_size_of, tiny_model, tiny_swin
from torch import nn
from torch.nn import functional as F

from pipeline.core.errors import ConfigError
from pipeline.dense.sliding import slide, whole
from pipeline.dense.upernet import FCNHead, PlainPyramid, StageNorms, UperNetHead
from pipeline.engine.parallel.batchnorm import synchronised
from pipeline.methods.upernet import UperNet, spread_taps


def build(model=None, seed=0, **fields):
    encoder = build_tiny(model or tiny_model(), seed, num_classes=0)
    encoder.num_labels = NUM_LABELS
    return UperNet(UperNet.Config(**{"width": 8, "aux_width": 4} | fields), encoder)


# The heads


def reference_heads(widths, width, aux_width):
    """Those of transformers, a port of mmsegmentation's, which have no dropout."""
    from transformers import UperNetConfig
    from transformers.models.upernet.modeling_upernet import UperNetFCNHead as Auxiliary
    from transformers.models.upernet.modeling_upernet import UperNetHead as Main

    shape = {"hidden_size": width, "auxiliary_channels": aux_width, "auxiliary_in_channels": None}
    config = UperNetConfig(num_labels=NUM_LABELS, pool_scales=[1, 2, 3, 6], **shape)
    return Main(config, widths), Auxiliary(config, widths)


NAMES = [  # of transformers and of ours
    (r"^psp_modules\.(\d)\.1", r"pooled.\1"),
    (r"^bottleneck", "context"),
    (r"^lateral_convs", "laterals"),
    (r"^fpn_convs", "smoothed"),
    (r"^fpn_bottleneck", "merged"),
    (r"^convs\.0", "0"),
    (r"\bconv\b", "0"),
    (r"\bbatch_norm\b", "1"),
]


def renamed(name, of_classifier):
    for pattern, ours in NAMES:
        name = re.sub(pattern, ours, name)
    return name.replace("classifier", f"{of_classifier}.1")


def load(ours, theirs, of_classifier):
    ours.load_state_dict({renamed(name, of_classifier): value for name, value in theirs.state_dict().items()})


@pytest.mark.slow  # imports transformers
@pytest.mark.parametrize("is_training", [True, False])
def test_heads__with_the_weights_of_transformers__give_its_logits(is_training):
    torch.manual_seed(0)
    widths, sizes = [6, 8, 10, 12], [(16, 20), (8, 10), (4, 5), (2, 3)]
    maps = [torch.randn(2, each, *size) for each, size in zip(widths, sizes, strict=True)]
    main, auxiliary = reference_heads(widths, width=16, aux_width=8)
    our_main, our_auxiliary = UperNetHead(widths, 16, NUM_LABELS, 0.0), FCNHead(10, 8, NUM_LABELS, 0.0)
    load(our_main, main, "classifier")
    load(our_auxiliary, auxiliary, "1")
    for module in (main, auxiliary, our_main, our_auxiliary):
        module.train(is_training)
    torch.testing.assert_close(our_main(maps), main(maps), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(our_auxiliary(maps[2]), auxiliary(maps), atol=1e-5, rtol=1e-5)
    assert main(maps).shape == (2, NUM_LABELS, 16, 20)


def test_heads__in_training__drop_whole_channels_before_they_classify():
    head = FCNHead(3, 64, NUM_LABELS, 0.5).train()
    features = torch.randn(2, 3, 5, 5)
    torch.manual_seed(0)
    dropped = head[1][0](head[0](features))
    whole_channels = (dropped == 0).all(dim=(2, 3)).float().mean()
    assert 0.35 < whole_channels < 0.65
    assert not torch.equal(head(features), head(features))
    head.eval()
    assert torch.equal(head(features), head(features))


# The pyramid


@pytest.mark.parametrize(
    ("patch", "sides"), [(16, (32, 16, 8, 4)), (8, (16, 16, 8, 4)), (4, (8, 8, 8, 4)), (14, (16, 16, 8, 4))]
)
def test_plain_pyramid__patches_of_any_size__is_no_finer_than_a_stride_of_4(patch, sides):
    maps = [torch.randn(2, 6, 8, 8) for _ in range(4)]
    found = PlainPyramid(6, patch).eval()(maps)
    assert [tuple(each.shape) for each in found] == [(2, 6, side, side) for side in sides]
    assert torch.equal(found[2], maps[2])
    assert torch.equal(found[3], F.max_pool2d(maps[3], 2))


def test_plain_pyramid__patches_of_16__is_made_of_deconvolutions_as_in_beit():
    finest, finer, *_ = PlainPyramid(6, 16)
    assert [type(step) for step in finest] == [nn.ConvTranspose2d, nn.BatchNorm2d, nn.GELU, nn.ConvTranspose2d]
    assert [type(step) for step in finer] == [nn.ConvTranspose2d]
    assert {(step.kernel_size, step.stride) for step in (finest[0], finest[3], finer[0])} == {((2, 2), (2, 2))}


def test_stage_norms__any_map__normalise_the_channels_of_each_place():
    maps = [3 + 5 * torch.randn(2, width, 4, 4) for width in (16, 32)]
    for each in StageNorms([16, 32])(maps):
        torch.testing.assert_close(each.mean(dim=1), torch.zeros(2, 4, 4), atol=1e-5, rtol=0)
        torch.testing.assert_close(each.var(dim=1, correction=0), torch.ones(2, 4, 4), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("depth", "taps"), [(12, (3, 5, 7, 11)), (24, (7, 11, 15, 23)), (6, (1, 2, 3, 5)), (1, (0, 0, 0, 0))]
)
def test_spread_taps__any_depth__are_those_of_beit_and_the_like(depth, taps):
    assert spread_taps(depth) == taps


def test_maps__of_taps_that_repeat__are_those_of_each_block():
    method = build(tiny_model(depth=3), taps=(0, 0, 1, 2)).eval()
    images = segmentation_batch(2).inputs
    expected = method.encoder.forward_intermediates(images, indices=[0, 1, 2], intermediates_only=True)
    found = method.maps(images)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[0])
    assert torch.equal(found[2], expected[1])


# The loss


def expected_loss(method, batch, average):
    """Pixel by pixel, from logits that are enlarged by hand."""
    maps = method.maps(batch.inputs)
    total = 0.0
    for logits, weight in ((method.head(maps), 1.0), (method.auxiliary(maps[-2]), method.cfg.aux_weight)):
        large = by_hand(logits.detach().double(), batch.targets.shape[1:])
        terms = []
        for image, row, col in (batch.targets != IGNORED).nonzero().tolist():
            scores = large[image, :, row, col]
            terms.append(scores.exp().sum().log() - scores[int(batch.targets[image, row, col])])
        count = batch.targets.numel() if average == "all" else len(terms)
        total += weight * float(sum(terms)) / count
    return total


def by_hand(maps, size):
    """Bilinear, with the centres of pixels where they are and edges repeated."""
    for axis, length in ((2, size[0]), (3, size[1])):
        old = maps.shape[axis]
        places = ((torch.arange(length) + 0.5) * old / length - 0.5).clamp(0, old - 1)
        low = places.floor().long()
        share = (places - low).view([-1 if side == axis else 1 for side in range(4)])
        upper = (low + 1).clamp(max=old - 1)
        maps = maps.index_select(axis, low) * (1 - share) + maps.index_select(axis, upper) * share
    return maps


@pytest.mark.slow
@pytest.mark.parametrize("average", ["all", "valid"])
def test_loss__of_a_batch__is_the_mean_cross_entropy_of_enlarged_logits(average):
    method = build(average=average, dropout=0.0).eval()
    with torch.no_grad():  # logits away from 0
        for head in (method.head.classifier[1], method.auxiliary[1][1]):
            head.weight.normal_()
    batch = segmentation_batch(2)
    out = method.loss(batch.inputs, batch.targets, {})
    assert out.loss.item() == pytest.approx(expected_loss(method, batch, average), rel=1e-5)
    assert out.weight is None if average == "all" else out.weight == (batch.targets != IGNORED).sum()


def test_loss__no_pixel_with_a_label__is_zero_with_gradients_of_zero():
    for average in ("all", "valid"):
        method, batch = build(average=average), segmentation_batch(2)
        out = method.loss(batch.inputs, torch.full_like(batch.targets, IGNORED), {})
        out.loss.backward()
        assert out.loss == 0
        assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in method.parameters() if p.requires_grad)


def test_draw__one_image_in_training__is_refused_with_what_to_do():
    method, batch = build().train(), segmentation_batch(1)
    with pytest.raises(ConfigError, match=r"found one; set optim\.micro_batch to 2 or more"):
        method.draw(batch, 0.0)
    assert method.draw(segmentation_batch(2), 0.0) == {} == method.eval().draw(batch, 0.0)
    assert synchronised(method).train().draw(batch, 0.0) == {}


def test_training__last_norm_of_the_encoder_and_blocks_after_the_last_tap__are_frozen():
    method = build(tiny_model(depth=3), taps=(0, 0, 1, 1))
    frozen = {name.rsplit(".", 1)[0] for name, p in method.named_parameters() if not p.requires_grad}
    assert {name for name in frozen if "blocks" not in name} == {"encoder.norm"}
    assert {name.split(".")[2] for name in frozen if "blocks" in name} == {"2"}


@pytest.mark.slow
@pytest.mark.parametrize("model", [tiny_model(), tiny_swin()], ids=["vit", "swin"])
def test_training__one_batch__is_learnt_by_heart_and_counted(model):
    method = build(model, width=16).train()
    batch = segmentation_batch(8, image_size=image_size_of(model))
    optimizer = torch.optim.AdamW(method.parameters(), lr=6e-3, weight_decay=0.0)
    for _ in range(60):
        optimizer.zero_grad()
        method.loss(batch.inputs, batch.targets, {}).loss.backward()
        optimizer.step()
    method.eval()
    with torch.no_grad():
        right = method.answer(batch.inputs).argmax(dim=1) == batch.targets
        matrices = method.measure(whole_images())["confusion"].double()
    assert right[batch.targets != IGNORED].float().mean() > 0.8
    shares = matrices.diagonal(dim1=1, dim2=2).sum(dim=1) / matrices.sum(dim=(1, 2))
    assert shares.min() > 0.6


# What is counted


@torch.no_grad()
def test_segment__no_stride_given__slides_by_two_thirds_of_the_window():
    method, image = build().eval(), torch.randn(1, 28, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(method.segment(image), slide(method.answer, image, (28, 28), 18))
    assert not torch.allclose(method.segment(image), slide(method.answer, image, (28, 28), 28))


@torch.no_grad()
def test_segment__swin_with_learned_positions__sees_images_of_any_size_at_once():
    method = build(tiny_swin(pos_embed="learn"), inference="whole").eval()
    image = torch.randn(1, 37, 50, generator=torch.Generator().manual_seed(0))
    found = method.segment(image)
    assert found.shape == (NUM_LABELS, 37, 50)
    assert torch.equal(found, whole(method.answer, image, (4, 4)))


@torch.no_grad()
@pytest.mark.parametrize("inference", ["slide", "whole"])
def test_measure__images_of_any_size__counts_every_labelled_pixel_of_the_published_size(inference):
    method, batch = build(inference=inference).eval(), whole_images(((28, 41), (37, 28), (20, 23)))
    found = method.measure(batch)["confusion"]
    assert found.shape == (3, NUM_LABELS, NUM_LABELS)
    for matrix, image, target in zip(found, batch.inputs, batch.targets, strict=True):
        labels = target["labels"]
        answers = F.interpolate(method.segment(image)[None], labels.shape, mode="bilinear")[0].argmax(dim=0)
        for true in range(NUM_LABELS):
            for answered in range(NUM_LABELS):
                assert matrix[true, answered] == ((labels == true) & (answers == answered)).sum()


@pytest.mark.parametrize(("width", "millions"), [(512, 41), (768, 77)])
def test_heads__of_mmsegmentation_on_a_vit_b__have_as_many_parameters(width, millions):
    with torch.device("meta"):
        parts = UperNetHead([768] * 4, width, 150, 0.1), FCNHead(768, 256, 150, 0.1), PlainPyramid(768, 16)
    assert round(sum(each.numel() for part in parts for each in part.parameters()) / 1e6) == millions


def test_auxiliary_head__of_another_width__has_it():
    method = build(width=8, aux_width=6)
    assert method.auxiliary[0][0].out_channels == 6 and method.head.merged[0].out_channels == 8
