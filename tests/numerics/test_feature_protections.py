"""What a client of split learning does to images and tokens, against a few lines of numpy each."""

import numpy as np
import pytest
import torch
from tiny_vit import tiny_encoder

from pipeline.core.errors import ConfigError
from pipeline.permutation.protections import FeatureProtection, batch_shuffled, low_pass, with_noise
from pipeline.permutation.split import split

SIZES = {"square": (28, 28), "odd": (27, 27), "wide": (24, 40)}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(height=28, width=28, count=3, dtype=torch.float64):
    return torch.randn(count, 2, height, width, generator=seeded(9), dtype=dtype)


def numbered(count, size):
    """Tokens (B, N, 2) that say where they come from: the image, the place in it."""
    return torch.cartesian_prod(torch.arange(count), torch.arange(size)).view(count, size, 2).float()


# Low-pass filter


def filtered(images, mask):
    """`mask` is that of a spectrum with its mean in the middle."""
    spectrum = np.fft.fftshift(np.fft.fft2(images.numpy()), axes=(2, 3))
    return np.fft.ifft2(np.fft.ifftshift(spectrum * mask, axes=(2, 3))).real


def square(height, width, radius):
    mask, top, left = np.zeros((height, width)), int(radius * height), int(radius * width)
    mask[height // 2 - top : height // 2 + top, width // 2 - left : width // 2 + left] = 1
    return mask


def disc(height, width, radius):
    mask = np.zeros((height, width))
    for row in range(height):
        for col in range(width):
            down, across = (row - height // 2) / (radius * height), (col - width // 2) / (radius * width)
            mask[row, col] = down**2 + across**2 <= 1
    return mask


@pytest.mark.parametrize("radius", [0.05, 0.1, 0.26, 0.5])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(("shape", "mask"), [("square", square), ("disc", disc)])
def test_low_pass__of_both_shapes__equals_numpy(shape, mask, size, radius):
    images = pictures(*size)
    torch.testing.assert_close(
        low_pass(images, radius, shape).numpy(), filtered(images, mask(*size, radius)), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize(("radius", "kept"), [(0.05, 22), (0.01, 4)])
def test_low_pass__square_at_224_px__keeps_as_many_frequencies_as_released(radius, kept):
    impulse = torch.zeros(1, 1, 224, 224, dtype=torch.float64)
    impulse[..., 0, 0] = 1
    # The impulse has every frequency once; the value at its place is the share of those that are kept.
    assert low_pass(impulse, radius, "square")[0, 0, 0, 0].item() * 224**2 == pytest.approx(kept**2)


def test_low_pass__constant_image__stays():
    images = torch.full((1, 1, 28, 28), 0.3, dtype=torch.float64)
    for shape in ("square", "disc"):
        torch.testing.assert_close(low_pass(images, 0.05, shape), images)


def test_low_pass__disc_twice__is_the_same_as_once_and_the_released_square_is_not():
    """The square lacks the negative of its lowest frequencies; taking the real part spreads them again."""
    images = pictures()
    for shape, is_projection in (("disc", True), ("square", False)):
        once = low_pass(images, 0.2, shape)
        assert torch.allclose(low_pass(once, 0.2, shape), once) == is_projection


def test_low_pass__square_that_would_keep_nothing__is_refused():
    with pytest.raises(ConfigError, match=r"radius 0.01 keeps nothing of 28x28 pixels; choose .* at least 0.0357"):
        low_pass(pictures(), 0.01, "square")


# Noise


def test_noise__of_a_seed__has_its_deviation_and_is_the_same_in_every_precision():
    images = pictures(64, 64)
    added = with_noise(images, 0.3, seeded()) - images
    assert added.std().item() == pytest.approx(0.3, rel=0.02)
    assert added.mean().item() == pytest.approx(0, abs=4 * 0.3 / added.numel() ** 0.5)
    again = with_noise(images.float(), 0.3, seeded()) - images.float()
    torch.testing.assert_close(again, added.float(), rtol=0, atol=1e-6)


# Batch shuffle


@pytest.mark.parametrize(("own", "still"), [(0.4, 0.5), (0.1, 0.8), (0.0, 0.8), (1.0, 0.3), (0.9, 0.0)])
def test_batch_shuffle__of_numbered_patches__moves_as_many_as_it_says(own, still):
    count, size = 5, 40
    before = numbered(count, size)
    after = batch_shuffled(before, own, still, seeded())
    assert sorted(map(tuple, after.flatten(0, 1).tolist())) == sorted(map(tuple, before.flatten(0, 1).tolist()))
    in_place = (after == before).all(dim=2).sum(dim=1)
    at_home = (after[..., 0] == before[..., 0]).sum(dim=1)
    assert (in_place >= int(size * own * still)).all()
    assert (at_home >= int(size * own)).all()


def test_batch_shuffle__of_many_patches__leaves_the_expected_shares():
    """Of those that leave, one in `count` comes back by chance; of those that move, one in `size` stays by chance."""
    count, size, own, still = 4, 5000, 0.4, 0.5
    before = numbered(count, size)
    after = batch_shuffled(before, own, still, seeded())
    at_home = (after[..., 0] == before[..., 0]).float().mean().item()
    in_place = (after == before).all(dim=2).float().mean().item()
    assert at_home == pytest.approx(own + (1 - own) / count, abs=0.01)
    assert in_place == pytest.approx(own * still, abs=0.005)
    # Those that stay are spread over all places, and no place is special.
    stays = (after == before).all(dim=2).float()
    assert stays[:, : size // 2].mean().item() == pytest.approx(own * still, abs=0.02)


def test_batch_shuffle__that_keeps_all__changes_nothing():
    before = numbered(3, 7)
    assert torch.equal(batch_shuffled(before, 1.0, 1.0, seeded()), before)


def test_batch_shuffle__that_keeps_all_at_home__permutes_each_image():
    before = numbered(3, 30)
    after = batch_shuffled(before, 1.0, 0.0, seeded())
    assert torch.equal(after[..., 0], before[..., 0])
    orders = after[..., 1]
    assert all(sorted(order.tolist()) == list(range(30)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 3


def test_batch_shuffle__backward__sends_each_gradient_to_the_patch_it_came_from():
    before = numbered(3, 10).requires_grad_()
    after = batch_shuffled(before, 0.3, 0.5, seeded())
    (after * after.detach()).sum().backward()
    assert torch.equal(before.grad, before.detach())


# All of them


def test_protection__all_at_once__is_noise_then_filter_then_shuffle_then_rows():
    protection = FeatureProtection(noise=0.2, radius=0.2, filter="disc", own_share=0.5, still_share=0.2, rows=True)
    encoder, images = tiny_encoder().double(), pictures()[:, :1]
    client, plain = split(encoder, protection)[0], split(encoder)[0]
    sent = client.features(images, seeded(4))
    generator = seeded(4)
    seen = low_pass(with_noise(images, 0.2, generator), 0.2, "disc")
    tokens = plain.features(seen, seeded()).tokens
    patches = batch_shuffled(tokens[:, 1:], 0.5, 0.2, generator)
    seed = int(torch.randint(2**62, (), generator=generator))
    order = torch.rand(50, generator=seeded(seed)).argsort()
    expected = torch.cat([tokens[:, :1], patches], dim=1)[:, order]
    assert torch.equal(sent.tokens, expected)
    assert torch.equal(sent.order, order)


def test_protection__of_nothing__changes_nothing():
    generator, images = seeded(), pictures()
    protection = FeatureProtection()
    assert protection.of_images(images, generator) is images
    sent = protection.of_tokens(images[:, 0], 1, generator)
    assert sent.order is None and sent.restored(images) is images


def test_row_permutation__of_a_batch__leaves_the_noise_of_the_next_as_it_is():
    def noises(rows):
        client, generator = split(tiny_encoder(), FeatureProtection(noise=0.3, rows=rows))[0], seeded()
        seen = []
        for images in pictures(dtype=torch.float32)[:, :1].split(1):
            sent = client.features(images, generator)
            seen.append(sent.restored(sent.tokens))
        return torch.cat(seen)

    assert torch.equal(noises(True), noises(False))


@pytest.mark.parametrize("fields", [{"noise": 0.1}, {"radius": 0.2}, {"own_share": 0.2}], ids=str)
def test_row_permutation__on_top_of_a_protection__leaves_the_outputs_as_they_are(fields):
    """'+' costs nothing: with the same noise, filter and shuffle, the logits are those without it (Table 6)."""
    encoder, images = tiny_encoder().double(), pictures()[:, :1]
    logits = []
    for rows in (False, True):
        client, server = split(encoder, FeatureProtection(**fields, rows=rows))
        logits.append(client.eval()(images, server, seeded()))
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-10)
    plain, server = split(encoder)
    assert (plain.eval()(images, server, seeded()) - logits[0]).abs().max() > 1e-4


def test_words__of_a_protection__name_what_is_on():
    assert FeatureProtection().words() == "none"
    both = FeatureProtection(radius=0.05, rows=True)
    assert both.words() == "low-pass filter, square of radius 0.05; row permutation"
    shuffle = FeatureProtection(noise=0.5, own_share=0.0)
    assert shuffle.words() == (
        "Gaussian noise of 0.5; batch shuffle, 0.0 of the patches stay with their image, 0.8 of those in place"
    )
