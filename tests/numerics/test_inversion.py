"""The inversion attack: what it sees, how it trains, what it measures, each against a few lines of its own."""

import copy
import math

import pytest
import torch
from tiny_vit import build_tiny, tiny_encoder, tiny_model
from torch.nn import functional as F

from pipeline.core.errors import ConfigError
from pipeline.core.seeds import generator_for
from pipeline.models.position import embed
from pipeline.permutation.protections import FeatureProtection, low_pass, with_noise
from pipeline.permutation.split import split
from pipeline.privacy.inversion import Attacker, InversionConfig, Inverter, compared, feature_similarity

NONE = FeatureProtection()
MEAN, STD = (0.3,), (0.4,)
SHORT = InversionConfig(epochs=3, batch=16, lr=3e-3, warmup_steps=2)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def order_of(generator):
    """Of 50 rows, as the first row permutation after this draws it."""
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.rand(50, generator=seeded(seed)).argsort()


def squares(count=32, seed=0):
    """Pixels (count, 1, 28, 28): a bright square on a dark ground, somewhere."""
    pixels = torch.full((count, 1, 28, 28), 0.1)
    for image, (row, col) in zip(pixels, torch.randint(20, (count, 2), generator=seeded(seed)).tolist(), strict=True):
        image[0, row : row + 8, col : col + 8] = 0.9
    return pixels


def attacker(protection=NONE, cfg=SHORT, **changes):
    encoder = tiny_encoder(**changes)
    client, _ = split(encoder, protection)
    torch.manual_seed(7)
    return Attacker(client, Inverter(tiny_encoder(seed=1), 1), cfg, MEAN, STD)


def trained(protection=NONE, cfg=SHORT, **changes):
    attack = attacker(protection, cfg, **changes)
    pixels = squares(48).split(cfg.batch)
    attack.train(lambda epoch: pixels, len(pixels), kept=[squares(16, seed=1)])
    return attack


# What the attacker sees


def test_features__by_default__are_patch_tokens_with_positions_of_what_the_model_sees():
    attack, pixels = attacker(), squares(2)
    expected = embed(attack.client.encoder, (pixels - 0.3) / 0.4, attack.client.encoder.pos_embed)[:, 1:]
    assert torch.equal(attack.features(pixels, seeded(), FeatureProtection()), expected)


def test_features__as_released__have_no_positions():
    attack, pixels = attacker(cfg=SHORT.model_copy(update={"has_positions": False})), squares(2)
    expected = embed(attack.client.encoder, (pixels - 0.3) / 0.4, None)[:, 1:]
    assert torch.equal(attack.features(pixels, seeded(), FeatureProtection()), expected)
    assert not torch.equal(attacker().features(pixels, seeded(), FeatureProtection()), expected)


def test_features__of_permuted_rows__lack_the_row_that_came_first():
    attack, pixels = attacker(FeatureProtection(rows=True)), squares(2)
    order = order_of(seeded())
    tokens = embed(attack.client.encoder, (pixels - 0.3) / 0.4, attack.client.encoder.pos_embed)
    found = attack.features(pixels, seeded(), attack.client.protection)
    assert torch.equal(found, tokens[:, order[1:]])


@pytest.mark.parametrize("protects", [True, False])
def test_recover__of_filtered_images__protects_them_unless_as_released(protects):
    protection = FeatureProtection(radius=0.2, rows=True)
    attack, pixels = attacker(protection, SHORT.model_copy(update={"protects_test": protects})), squares(3)
    seen = {}
    attack.inverter.register_forward_pre_hook(lambda module, inputs: seen.update(features=inputs[0]))
    recovered = attack.recover(pixels, number=0)
    inputs = (pixels - 0.3) / 0.4
    tokens = embed(
        attack.client.encoder, low_pass(inputs, 0.2, "square") if protects else inputs, attack.client.encoder.pos_embed
    )
    # Rows are permuted either way.
    order = order_of(generator_for("inverted", 0, 0))
    torch.testing.assert_close(seen["features"], tokens[:, order[1:]].detach(), rtol=0, atol=1e-6)
    assert recovered.shape == pixels.shape and recovered.min() >= 0 and recovered.max() <= 1


# The inverter


def test_inverter__of_a_width_that_is_a_patch__has_no_layer_more_and_puts_values_in_their_place():
    """16 values: 4x4 pixels of one channel. With blocks and norm left out, a patch is tanh of its own feature."""
    encoder = tiny_encoder(embed_dim=16)
    inverter = Inverter(encoder, 1)
    assert isinstance(inverter.to_values, torch.nn.Identity)
    inverter.mlp = inverter.blocks = inverter.norm = torch.nn.Identity()
    features = torch.randn(2, 49, 16, generator=seeded())
    image = inverter(features)
    patch = (features + encoder.pos_embed[:, 1:])[1, 7 * 2 + 3].tanh().view(4, 4)
    assert image.shape == (2, 1, 28, 28)
    assert torch.equal(image[1, 0, 8:12, 12:16], patch)


def test_inverter__of_patches_that_are_no_squares__puts_values_in_their_place():
    encoder = build_tiny(tiny_model(patch_size=(8, 2), embed_dim=16), image_size=(24, 10))  # 3 x 5 patches
    inverter = Inverter(encoder, 1)
    inverter.mlp = inverter.blocks = inverter.norm = torch.nn.Identity()
    features = torch.randn(2, 15, 16, generator=seeded())
    image = inverter(features)
    patch = (features + encoder.pos_embed[:, 1:])[1, 5 * 2 + 3].tanh().view(8, 2)
    assert image.shape == (2, 1, 24, 10)
    assert torch.equal(image[1, 0, 16:24, 6:8], patch)


def test_inverter__starts_with_the_blocks_of_its_encoder_and_leaves_them_unchanged():
    encoder = tiny_encoder()
    inverter = Inverter(encoder, 1)
    assert torch.equal(inverter.blocks[0].attn.qkv.weight, encoder.blocks[0].attn.qkv.weight)
    assert inverter.blocks[0].attn.qkv.weight.data_ptr() != encoder.blocks[0].attn.qkv.weight.data_ptr()
    assert inverter(torch.zeros(1, 49, 32)).shape == (1, 1, 28, 28)


def test_inverter__without_positions__is_refused():
    with pytest.raises(ConfigError, match="needs position embeddings"):
        Inverter(tiny_encoder(pos_embed="none"), 1)


# Training


def test_rate__of_every_step__is_that_of_warm_up_and_cosine():
    cfg = InversionConfig(lr=0.2, warmup_steps=4)
    expected = [0.0, 0.05, 0.1, 0.15] + [0.1 * (1 + math.cos(math.pi * step / 6)) for step in range(7)]
    assert [cfg.rate(step, 10) for step in range(11)] == pytest.approx(expected)


@pytest.mark.slow
def test_train__one_epoch__is_adamw_on_the_squared_error_of_the_clean_image():
    protection = FeatureProtection(noise=0.3, radius=0.2)
    cfg = InversionConfig(epochs=1, lr=1e-3, warmup_steps=0, batch=16)
    attack, pixels = attacker(protection, cfg), squares(32).split(16)
    inverter = copy.deepcopy(attack.inverter)
    optimizer = torch.optim.AdamW(inverter.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    losses = []
    for step, batch in enumerate(pixels):
        optimizer.param_groups[0]["lr"] = 1e-3 * (1 + math.cos(math.pi * step / 2)) / 2
        noisy = with_noise((batch - 0.3) / 0.4, 0.3, generator_for("inversion", 0, step))
        seen = low_pass(noisy, 0.2, "square")
        features = embed(attack.client.encoder, seen, attack.client.encoder.pos_embed)[:, 1:].detach()
        loss = F.mse_loss(inverter(features), 2 * batch - 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    attack.train(lambda epoch: pixels, 2, kept=[squares(4, seed=1)])
    assert attack.losses == pytest.approx([sum(losses) / 2])
    for name, value in inverter.state_dict().items():
        torch.testing.assert_close(attack.inverter.state_dict()[name], value, rtol=0, atol=1e-6, msg=name)


@pytest.mark.slow
def test_train__again__gives_the_same_inverter_and_leaves_the_client_as_it_is():
    protection = FeatureProtection(noise=0.3, rows=True)
    before = attacker(protection).client.state_dict()
    one, other = (trained(protection) for _ in range(2))
    assert one.held_out == other.held_out and len(one.losses) == SHORT.epochs
    for name, value in one.inverter.state_dict().items():
        assert torch.equal(value, other.inverter.state_dict()[name])
    assert all(torch.equal(value, before[name]) for name, value in one.client.state_dict().items())
    assert torch.equal(one.recover(squares(4), 0), other.recover(squares(4), 0))
    assert not torch.equal(one.recover(squares(4), 0), one.recover(squares(4), 1))


@pytest.mark.slow
def test_train__that_gets_worse__keeps_the_best_epoch():
    attack, kept = attacker(cfg=SHORT), [squares(16, seed=1)]

    def batches(epoch):
        """White images at the end: the inverter forgets the squares."""
        return [squares(16)] * 6 if epoch < 1 else [torch.ones(16, 1, 28, 28)] * 6

    attack.train(batches, 6, kept)
    assert min(attack.held_out[1:]) > attack.held_out[0]
    errors = (2 * (attack.recover(kept[0], 0) - kept[0])).square().mean()
    assert errors.item() == pytest.approx(min(attack.held_out), rel=1e-5)


@pytest.mark.slow
def test_attack__on_plain_features__recovers_images_and_without_positions_rows_stop_it():
    """As released (no positions in the features), the order of the rows is all that says where a patch belongs."""
    cfg = InversionConfig(epochs=20, batch=16, lr=6e-3, warmup_steps=10, has_positions=False)
    pixels = squares(16, seed=1)
    found = {}
    for rows in (False, True):
        recovered = trained(FeatureProtection(rows=rows), cfg).recover(pixels, 0)
        found[rows] = compared(recovered, pixels)["psnr"].mean().item()
    mean_image = squares(48).mean(dim=0).expand_as(pixels)
    blind = compared(mean_image, pixels)["psnr"].mean().item()
    assert found[False] > blind + 5
    assert found[True] < blind + 1


# Metrics


def ssim_by_hand(one, other):
    """Every window of 11x11 inside the image, for a range of 1."""
    places = torch.arange(11, dtype=torch.float64) - 5
    line = (-places.square() / (2 * 1.5**2)).exp()
    weights = torch.outer(line, line) / line.sum() ** 2
    values = []
    for row in range(one.shape[0] - 10):
        for col in range(one.shape[1] - 10):
            x, y = (image[row : row + 11, col : col + 11] for image in (one, other))
            mx, my = (weights * x).sum(), (weights * y).sum()
            vx, vy = (weights * (x - mx) ** 2).sum(), (weights * (y - my) ** 2).sum()
            covariance = (weights * (x - mx) * (y - my)).sum()
            means = (2 * mx * my + 1e-4) / (mx**2 + my**2 + 1e-4)
            values.append(means * (2 * covariance + 9e-4) / (vx + vy + 9e-4))
    return torch.stack(values).mean().item()


def test_metrics__of_two_images__equal_those_by_hand():
    one, other = torch.rand(2, 1, 1, 16, 18, generator=seeded(), dtype=torch.float64)
    found = compared(one, other)
    mse = (one - other).square().mean().item()
    assert found["psnr"].item() == pytest.approx(10 * math.log10(1 / mse))
    released = (2 * one - 2 * other).square().mean().sqrt().item()
    assert found["psnr_released"].item() == pytest.approx(20 * math.log10(1 / released))
    assert found["psnr"].item() - found["psnr_released"].item() == pytest.approx(6.02, abs=0.001)
    assert found["ssim_valid"].item() == pytest.approx(ssim_by_hand(one[0, 0], other[0, 0]))
    assert found["ssim_released"].item() == pytest.approx(ssim_by_hand(2 * one[0, 0] - 1, 2 * other[0, 0] - 1))
    assert "fsim" not in found


def test_feature_similarity__of_a_network__is_the_size_of_the_cosine():
    def network(images):
        return torch.stack([images[:, 0, 0, 0], images[:, 0, 0, 1]], dim=1)

    pixels = torch.zeros(3, 1, 11, 11)
    pixels[:, 0, 0, :2] = torch.tensor([[1.0, 0.5], [0.0, 0.5], [1.0, 1.0]])  # features (1, 0), (-1, 0), (1, 1)
    original = torch.zeros(3, 1, 11, 11)
    original[:, 0, 0, :2] = torch.tensor([1.0, 0.5])
    expected = torch.tensor([1.0, 1.0, 0.5**0.5], dtype=torch.float64)
    torch.testing.assert_close(feature_similarity(network, pixels, original), expected, rtol=0, atol=1e-7)
    torch.testing.assert_close(compared(pixels, original, network)["fsim"], expected, rtol=0, atol=1e-7)
