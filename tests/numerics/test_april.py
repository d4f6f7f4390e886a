"""APRIL (MJP Eq. 8 and 9) against a few lines of numpy, where it is exact, and where its assumptions fail."""

import numpy as np
import pytest
import torch
from tiny_vit import build_tiny, tiny_encoder, tiny_model
from torch.nn import functional as F

from pipeline.engine.protection import Protection
from pipeline.methods.mjp import MJP
from pipeline.methods.supervised import Supervised
from pipeline.models.patches import Grid, to_patches
from pipeline.models.position import encode
from pipeline.privacy.april import Assumptions, Equations, _solve, attack, reason_against

GRID = Grid(7, 7)
WIDE = 64  # 49 tokens and 16 values a patch: every equation has one solution


@pytest.fixture
def images():
    return torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))


LABELS = torch.tensor([1, 4, 7])


def plain(**model):
    return Supervised(Supervised.Config(), biased(tiny_encoder(**{"embed_dim": WIDE} | model)))


def mjp(**model):
    return MJP(MJP.Config(), biased(tiny_encoder(**{"embed_dim": WIDE} | model)))


def biased(encoder):
    """With a bias of the patches and a CLS that are not zero, as they start."""
    generator = torch.Generator().manual_seed(2)
    for part in (encoder.patch_embed.proj.bias, encoder.cls_token):
        torch.nn.init.normal_(part, std=0.02, generator=generator)
    return encoder


def shuffled_patches():
    return torch.rand(3, 49, generator=torch.Generator().manual_seed(1)) < 0.3


def psnr(found, wanted):
    """Of the worst image; the values of the images lie between 0 and 1."""
    return float(-10 * (found - wanted.double()).square().mean(dim=(1, 2, 3)).log10().max())


def gradients_by_hand(method, image, label):
    """Of one image: the position table's and those of query, key and value, of a model without norm and skips."""
    model = method.double().eval()
    encoder = model.encoder
    tokens = F.conv2d(image[None].double(), encoder.patch_embed.proj.weight, encoder.patch_embed.proj.bias, stride=4)
    tokens = torch.cat([encoder.cls_token, tokens.flatten(2).mT], dim=1) + encoder.pos_embed
    first = encoder.blocks[0]
    tokens = first.mlp(first.norm2(first.attn(tokens)))
    for block in encoder.blocks[1:]:
        tokens = block(tokens)
    loss = F.cross_entropy(encoder.head(encoder.norm(tokens)[:, 0]), label[None])
    found = torch.autograd.grad(loss, [encoder.pos_embed, first.attn.qkv.weight])
    return [each.numpy() for each in found]


@pytest.mark.slow
def test_attack__against_a_solve_in_numpy__finds_the_same_image(images):
    method = plain()
    found = attack(method, images, LABELS).images

    table, qkv = gradients_by_hand(method, images[1], LABELS[1])
    encoder = method.encoder
    weight = encoder.blocks[0].attn.qkv.weight.detach().numpy()
    tokens = np.linalg.lstsq(table[0].T, weight.T @ qkv, rcond=None)[0]
    tokens = (tokens - encoder.pos_embed[0].detach().numpy())[1:] - encoder.patch_embed.proj.bias.detach().numpy()
    patches = np.linalg.lstsq(encoder.patch_embed.proj.weight.detach().flatten(1).numpy(), tokens.T, rcond=None)[0].T
    assert to_patches(found[1:2], GRID)[0, :, 0].numpy() == pytest.approx(patches, abs=1e-5)


@pytest.mark.parametrize("method", [plain(), mjp(), plain(pos_embed="sincos")])
def test_attack__width_allows_it__recovers_every_image_above_100_db(method, images):
    assert psnr(attack(method, images, LABELS).images, images) > 100


@pytest.mark.slow
def test_attack__colour_and_as_many_equations_as_values__recovers_above_100_db():
    from pipeline.models.encoder import ModelConfig, build_encoder

    torch.manual_seed(0)
    model = ModelConfig(name="square", arch="vit_tiny_patch16_224", patch_size=8, depth=2)  # width 192 = 3 * 8 * 8
    method = Supervised(Supervised.Config(), build_encoder(model, 64, 3, 10))
    images = torch.rand(3, 3, 64, 64)

    assert psnr(attack(method, images, LABELS).images, images) > 100


def test_attack__images_and_patches_that_are_no_squares__recovers_above_100_db():
    encoder = build_tiny(tiny_model(patch_size=(8, 2), embed_dim=WIDE), image_size=(24, 10))  # 3 x 5 patches
    images = torch.rand(3, 1, 24, 10, generator=torch.Generator().manual_seed(0))
    found = attack(Supervised(Supervised.Config(), encoder), images, LABELS)

    assert psnr(found.images, images) > 100 and psnr(found.ceiling, images) > 100


@pytest.mark.parametrize("positions", ["none", "relative"])
def test_attack__no_table_of_positions__needs_the_gradient_at_the_slots(positions, images):
    found = attack(plain(pos_embed=positions), images, LABELS)

    assert psnr(found.images, images) > 60  # its condition is worse: 1e12, that of the others 1e10
    model = tiny_model(pos_embed=positions)
    assert "no parameter has the gradient" in reason_against(model, Assumptions(given="parameters"))
    assert reason_against(model, Assumptions()) == ""


@pytest.mark.parametrize("wrong", [{"first_norm": True}, {"first_skips": True}, {"gradients": "float32"}])
def test_attack__an_assumption_is_wrong__fails_visibly(wrong, images):
    found = attack(plain(), images, LABELS, assumptions=Assumptions(**wrong))

    assert psnr(found.images, images) < 5
    assert psnr(found.ceiling, images) > 100  # which it is not for lack of equations


def test_attack__fewer_dimensions_than_values__finds_the_projection_and_calls_it_the_ceiling(images):
    method = plain(patch_size=7, embed_dim=32)  # 16 tokens, 49 values a patch
    found = attack(method, images, LABELS)

    embedding = method.encoder.patch_embed.proj.weight.detach().flatten(1).double().numpy()
    basis = np.linalg.svd(embedding, full_matrices=False)[2]
    patches = to_patches(images, Grid(4, 4))[:, :, 0].double().numpy()
    seen = patches @ basis.T @ basis
    assert to_patches(found.ceiling, Grid(4, 4))[:, :, 0].numpy() == pytest.approx(seen, abs=1e-10)
    assert psnr(found.images, found.ceiling) > 100
    assert psnr(found.images, images) < 30


def test_attack__fewer_dimensions_than_tokens__reaches_the_ceiling_and_not_the_image(images):
    found = attack(plain(embed_dim=32), images, LABELS)

    assert found.rank.tolist() == [32, 32, 32]
    assert psnr(found.images, found.ceiling) > 60
    assert psnr(found.images, images) < 40


def test_attack__hidden_positions_and_their_slots_known__recovers_the_image(images):
    found = attack(mjp(), images, LABELS, shuffled_patches())

    assert psnr(found.images, images) > 100


def test_attack__hidden_positions_and_parameters_only__cannot_tell_hidden_patches_apart(images):
    shuffled = shuffled_patches()
    found = attack(mjp(), images, LABELS, shuffled, Assumptions(given="parameters"))

    patches = to_patches(found.images, GRID)[:, :, 0]
    for number in range(3):
        hidden = patches[number, shuffled[number]]
        assert torch.equal(hidden, hidden[:1].expand_as(hidden))
    assert psnr(found.images, images) < 10


def test_attack__one_hidden_position_and_parameters_only__recovers_the_image(images):
    """A patch that alone has the unknown position is not mixed with another one."""
    shuffled = torch.zeros(3, 49, dtype=torch.bool)
    shuffled[torch.arange(3), torch.tensor([0, 20, 48])] = True
    found = attack(mjp(), images, LABELS, shuffled, Assumptions(given="parameters"))

    assert psnr(found.images, images) > 100


@pytest.mark.slow
def test_attack__nothing_hidden__finds_the_same_from_parameters_as_from_slots(images):
    for method in (plain(), mjp()):
        one, other = (
            attack(method, images, LABELS, None, Assumptions(given=given)).images for given in ("slots", "parameters")
        )
        assert psnr(one, other) > 100


def test_attack__a_larger_position_table__makes_float32_enough(images):
    small, large = plain(), plain()
    torch.nn.init.normal_(large.encoder.pos_embed, std=3.0)

    found = [attack(each, images, LABELS, None, Assumptions(gradients="float32")) for each in (small, large)]
    assert psnr(found[0].images, images) < 5
    assert psnr(found[1].images, images) > 50
    assert (found[0].condition > 1e4 * found[1].condition).all()


@pytest.mark.parametrize("protection", [Protection(noise=0.01), Protection(pruning=0.5)])
def test_attack__protected_gradients__loses_the_image(protection, images):
    found = attack(plain(), images, LABELS, protection=protection)

    assert psnr(found.images, images) < 15


def test_attack__noise_of_another_seed__finds_another_image(images):
    noisy = {"protection": Protection(noise=0.01)}
    one, again, other = (attack(plain(), images[:1], LABELS[:1], **noisy, seed=seed).images for seed in (0, 0, 1))

    assert torch.equal(one, again) and not torch.allclose(one, other)


def test_attack__cut_off__tames_noise(images):
    noisy = {"protection": Protection(noise=0.01)}
    whole = attack(plain(), images, LABELS, **noisy)
    cut = attack(plain(), images, LABELS, assumptions=Assumptions(cutoff=0.1), **noisy)

    assert psnr(cut.images, images) > psnr(whole.images, images) + 20
    # What was there to be cut off is a fact of the gradients, and not of the attack.
    assert cut.rank.tolist() == whole.rank.tolist() == [49] * 3
    assert torch.equal(cut.condition, whole.condition)


@pytest.mark.parametrize(("cutoff", "num_kept"), [(0.0, 4), (0.06, 3), (0.3, 2)])
def test_solve__with_a_cut_off__drops_what_is_below_that_share_of_the_largest_singular_value(cutoff, num_kept):
    draw = np.random.default_rng(0)
    shares, scales = np.array([1.0, 0.5, 0.08, 0.04]), (7.0, 0.01)
    bases = [[np.linalg.qr(draw.normal(size=(size, 4)))[0] for size in (6, 4)] for _ in scales]
    rows = np.stack([scale * (left * shares) @ right.T for scale, (left, right) in zip(scales, bases, strict=True)])
    right = draw.normal(size=(2, 4, 4))

    tokens, condition, rank = _solve(Equations(torch.from_numpy(rows), torch.from_numpy(right)), cutoff)

    for found, scale, (left, other), products in zip(tokens.numpy(), scales, bases, right, strict=True):
        kept = slice(num_kept)
        expected = (left[:, kept] / (scale * shares[kept])) @ other[:, kept].T @ products
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert condition.tolist() == pytest.approx([25, 25]) and rank.tolist() == [4, 4]  # of all that there is


@pytest.mark.slow
def test_attack__images_together__are_those_of_each_by_itself(images):
    method = plain()
    together = attack(method, images, LABELS)
    for number in range(3):
        alone = attack(method, images[number : number + 1], LABELS[number : number + 1])
        assert psnr(together.images[number : number + 1], alone.images) > 100


def test_client__of_the_attack__predicts_as_the_method_where_its_block_is_unchanged(images):
    from pipeline.privacy.client import Client

    method = plain().eval()
    expected = method.classify(encode(method.encoder, images)).logits
    assert torch.allclose(Client(method, torch.float64)(images.double()).float(), expected, atol=1e-5)
