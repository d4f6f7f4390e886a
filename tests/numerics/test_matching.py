"""Attacks by gradient matching: priors, distances and labels against a few lines, and the attack on a tiny ViT."""

import itertools

import numpy as np
import pytest
import torch
from tiny_vit import build_tiny, tiny_encoder, tiny_model

from pipeline.core.errors import ConfigError
from pipeline.engine.protection import Protection
from pipeline.evals.parts import Parts
from pipeline.methods.mjp import MJP
from pipeline.methods.supervised import Supervised
from pipeline.models.patches import Grid
from pipeline.privacy.client import Client
from pipeline.privacy.distances import cosine_distance, l2_distance
from pipeline.privacy.labels import BIAS, recover_labels
from pipeline.privacy.matching import Attack, Matching, attack, observe
from pipeline.privacy.priors import agreed, disagreement, moved, patch_borders, shifts, size, total_variation

BOUNDS = torch.full((1, 1, 1), -1.0), torch.full((1, 1, 1), 1.0)
SHORT = {"iterations": 12, "tv": 0.01, "signed": False, "gradients": "float64"}


def random_images(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Priors


def test_total_variation__of_an_image__is_the_mean_step_to_the_pixel_below_and_to_the_right():
    image = random_images(2, 5, 4)
    down = [abs(image[c, y + 1, x] - image[c, y, x]) for c, y, x in itertools.product(range(2), range(4), range(4))]
    right = [abs(image[c, y, x + 1] - image[c, y, x]) for c, y, x in itertools.product(range(2), range(5), range(3))]
    assert float(total_variation(image)) == pytest.approx(float(sum(down) / len(down) + sum(right) / len(right)))


def test_patch_borders__of_an_image__are_the_norms_of_the_jumps_across():
    image = random_images(2, 6, 8)  # patches of 3 x 4: one border between rows, one between columns
    pixels = image.numpy()
    across = [pixels[:, 3] - pixels[:, 2], pixels[:, :, 4] - pixels[:, :, 3]]
    assert float(patch_borders(image, Grid(2, 2))) == pytest.approx(sum(np.sqrt((jump**2).sum()) for jump in across))


def test_patch_borders__what_lies_inside_of_patches__is_not_seen():
    image = random_images(1, 12, 12)
    changed = image.clone()
    changed[:, [1, 5, 9], 1::4] += 5  # patches of 4 x 4: neither in their first or last row nor column
    assert patch_borders(changed, Grid(3, 3)) == patch_borders(image, Grid(3, 3))
    changed[:, 4] += 5
    assert patch_borders(changed, Grid(3, 3)) > 1.5 * patch_borders(image, Grid(3, 3))


def test_size__of_an_image__is_its_norm():
    image = random_images(3, 4, 4)
    assert float(size(image)) == pytest.approx(float(np.sqrt((image.numpy() ** 2).sum())))


@pytest.mark.parametrize("shape", [(12, 12), (9, 14)])
@pytest.mark.parametrize("by", [(0, 0), (3, 1), (-2, 5), (0, -4)])
def test_shifts__of_a_moved_image__lead_back_to_it(shape, by):
    image = random_images(1, 2, *shape)
    other = torch.roll(image, by, dims=(-2, -1)) + 0.05 * random_images(1, 2, *shape, seed=1)
    back = shifts(other, image)
    assert torch.equal(moved(torch.roll(image, by, dims=(-2, -1)), back), image)


def test_moved__each_by_its_own__rolls_rows_and_columns():
    images = random_images(2, 3, 1, 5, 7)
    by = torch.tensor([[[0, 1], [2, 0], [-1, -3]], [[4, 6], [0, 0], [1, 1]]])
    for index in itertools.product(range(2), range(3)):
        assert torch.equal(moved(images, by)[index], torch.roll(images[index], by[index].tolist(), dims=(-2, -1)))


def test_agreed__starts_that_differ_by_a_shift__is_their_image_without_blur():
    image = random_images(1, 1, 1, 1, 16, 16)  # one group, one start, one image
    starts = torch.cat([image, image, torch.roll(image, (2, -1), dims=(-2, -1))], dim=1)
    assert torch.allclose(agreed(starts), image)
    assert disagreement(starts)[0, :2, 0].tolist() == pytest.approx([0, 0], abs=1e-9)
    assert disagreement(starts)[0, 2, 0] == pytest.approx(float((starts[0, 2] - image[0, 0]).norm()))


def test_disagreement__gradient__pulls_a_start_towards_what_was_agreed_on():
    starts = random_images(1, 3, 1, 1, 8, 8).requires_grad_()
    disagreement(starts).sum().backward()
    away = (starts - agreed(starts.detach())).detach()
    assert torch.allclose(starts.grad, away / away.flatten(3).norm(dim=3)[..., None, None, None])


# Distances and labels


def test_distances__of_two_tensors__are_those_of_numpy():
    one, other = ({"a": random_images(2, 3, 4, seed=seed), "b": random_images(2, 5, seed=seed + 9)} for seed in (0, 1))
    for group in range(2):
        flat = [np.concatenate([value[group].numpy().ravel() for value in each.values()]) for each in (one, other)]
        cosine = 1 - flat[0] @ flat[1] / np.sqrt((flat[0] @ flat[0]) * (flat[1] @ flat[1]))
        l2 = sum(np.sqrt(((one[name][group] - other[name][group]).numpy() ** 2).sum()) for name in one)
        assert float(cosine_distance(one, other)[group]) == pytest.approx(cosine)
        assert float(l2_distance(one, other)[group]) == pytest.approx(l2)


def test_distances__of_gradients_that_are_equal__have_no_nan_in_their_gradient():
    values = {"a": torch.zeros(1, 3, requires_grad=True), "b": torch.ones(1, 3, requires_grad=True)}
    for distance in (cosine_distance, l2_distance):
        found = torch.autograd.grad(
            distance(values, {k: v.detach() for k, v in values.items()}).sum(), [*values.values()]
        )
        assert all(each.isfinite().all() for each in found)


def plain(**model):
    """With weights that are large enough for gradients to differ from image to image."""
    method = Supervised(Supervised.Config(), tiny_encoder(**model)).double().eval()
    return enlarged(method)


def enlarged(method, std=0.15):
    with torch.no_grad():
        for name, value in method.named_parameters():
            if value.ndim > 1:
                value.normal_(std=std, generator=torch.Generator().manual_seed(len(name)))
    return method


def test_recover_labels__one_image_of_every_class__names_it():
    client, labels = Client(plain(), torch.float64), torch.arange(10)
    gradients = client.gradients(random_images(10, 1, 1, 28, 28), labels[:, None])
    assert recover_labels(gradients, 1).flatten().tolist() == labels.tolist()


def test_recover_labels__of_several_images_of_distinct_classes__are_theirs_in_ascending_order():
    client = Client(plain(), torch.float64)
    labels = torch.tensor([[7, 2, 5, 0], [9, 1, 3, 8]])
    gradients = client.gradients(random_images(2, 4, 1, 28, 28), labels)
    assert recover_labels(gradients, 4).tolist() == [[0, 2, 5, 7], [1, 3, 8, 9]]


def test_recover_labels__more_images_than_classes_or_no_bias__say_what_to_do():
    with pytest.raises(ConfigError, match="11 images cannot be distinct among 10 classes; set labels to known"):
        recover_labels({BIAS: torch.zeros(1, 10)}, 11)
    with pytest.raises(ConfigError, match="which is not sent; set labels to known"):
        recover_labels({"encoder.head.weight": torch.zeros(1, 10, 4)}, 1)


# The attack


def smooth_images(count):
    """Light squares on dark ground, as a model may see them."""
    images = torch.full((count, 1, 28, 28), -1.0, dtype=torch.float64)
    for number in range(count):
        images[number, :, 6 + 2 * number : 18, 4 : 16 + 3 * number] = 0.8
    return images


def psnr(found, wanted):
    """Values lie between -1 and 1."""
    return -10 * ((found - wanted).square().mean(dim=(1, 2, 3)) / 4).log10()


@pytest.fixture(scope="module")
def recovered():
    """An image of four patches from its own gradients, and next to it another one, which is the wrong one for it.

    From some starts the attack ends in a local minimum, here not.
    """
    image = torch.full((1, 8, 8), -1.0, dtype=torch.float64)
    image[:, 3:, 4:] = 0.5
    encoder = build_tiny(tiny_model(embed_dim=64), image_size=8)
    method = enlarged(Supervised(Supervised.Config(), encoder).double().eval(), std=0.1)
    cfg = Matching(iterations=150, lr=0.15, tv=0.003, decay="cosine", signed=False, gradients="float64", start="mean")
    found = attack(method, torch.stack([image.flip(1, 2), image]), torch.tensor([3, 8]), None, cfg, BOUNDS, segments=2)
    return image[None], found


@pytest.mark.slow
def test_attack__on_a_tiny_vit__lowers_the_distance_and_finds_the_image(recovered):
    image, found = recovered
    wrong, right = psnr(found.images, image)
    blank = psnr(torch.zeros_like(image), image)
    assert found.distance[1] < found.curve[1, 0] / 1000
    assert right > blank + 15 and right > wrong + 15
    assert found.labels.tolist() == [3, 8]


@pytest.mark.slow
def test_attack__pictures_on_the_way__come_after_equal_shares_and_get_better(recovered):
    image, found = recovered
    assert found.steps == (75, 150) and torch.equal(found.progress[-1], found.images)
    assert found.curve.shape == (2, 150)
    assert (
        psnr(found.progress[1, 1:], image) > psnr(found.progress[0, 1:], image) > psnr(torch.zeros_like(image), image)
    )


@pytest.mark.slow
def test_attack__images_side_by_side__are_those_of_each_by_itself():
    cfg = Matching(**SHORT, seeds=2, registration=0.1, patch=0.01, norm=0.01)
    images, labels = smooth_images(2), torch.tensor([3, 8])
    together = attack(plain(), images, labels, None, cfg, BOUNDS)
    in_turn = attack(plain(), images, labels, None, cfg, BOUNDS, at_once=1)
    first = attack(plain(), images[:1], labels[:1], None, cfg, BOUNDS)
    torch.testing.assert_close(in_turn.images, together.images, rtol=0, atol=1e-8)
    torch.testing.assert_close(first.images, together.images[:1], rtol=0, atol=1e-8)
    assert not torch.allclose(together.images[0], together.images[1], atol=0.1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records CUDA graphs")
def test_attack__on_a_gpu__replays_its_steps_and_finds_what_a_cpu_does():
    cfg, images, labels = Matching(**SHORT), smooth_images(2), torch.tensor([3, 8])
    expected = attack(plain(), images, labels, None, cfg, BOUNDS)
    client = Client(plain().cuda(), torch.float64)
    observed = observe(client, images.cuda(), labels.cuda(), None, cfg, Protection(), 0)
    tried = Attack(client, observed, cfg, BOUNDS)
    found = tried.advance(tried.start(images.shape[1:], 0), cfg.iterations)
    assert len(tried.replayed.recordings) == 2  # of both halves
    torch.testing.assert_close(found.curve[:, 0].cpu(), expected.curve, rtol=1e-6, atol=0)


class Killed(Exception):
    pass


@pytest.mark.slow
def test_attack__killed_between_segments_and_continued__is_the_uninterrupted_one_to_the_last_bit(tmp_path):
    cfg = Matching(**SHORT | {"gradients": "float32", "signed": True}, seeds=2, registration=0.1)
    given = plain(), smooth_images(2), torch.tensor([3, 8]), None, cfg, BOUNDS
    parts, finished = Parts(tmp_path / "parts", "key"), []

    def once_until_killed(name, compute):
        if len(finished) == 2:
            raise Killed
        finished.append(name)
        return parts.once(name, compute)

    with pytest.raises(Killed):
        attack(*given, segments=4, once=once_until_killed)
    continued = attack(*given, segments=4, once=parts.once)
    alone = attack(*given, segments=4)
    in_one = attack(*given)
    assert finished == ["group_0_step_3", "group_0_step_6"]
    for other in (alone, in_one):
        assert torch.equal(continued.images, other.images) and torch.equal(continued.curve, other.curve)


@pytest.mark.slow
def test_attack__iterations_that_segments_do_not_divide__has_longer_segments_first():
    cfg = Matching(**SHORT | {"iterations": 5})
    found = attack(plain(), smooth_images(1), torch.tensor([3]), None, cfg, BOUNDS, segments=2)
    assert found.steps == (3, 5) and found.progress.shape[0] == 2 and found.curve.shape == (1, 5)


@pytest.mark.slow
def test_attack__same_seed_twice__is_the_same_and_another_seed_is_not():
    given = plain(), smooth_images(1), torch.tensor([3]), None, Matching(**SHORT), BOUNDS
    one, again, other = (attack(*given, seed=seed).images for seed in (0, 0, 1))
    assert torch.equal(one, again) and not torch.allclose(one, other, atol=0.1)


@pytest.mark.slow
def test_attack__of_several_starts__takes_the_one_with_the_smallest_distance():
    client, cfg = Client(plain(), torch.float64), Matching(**SHORT, seeds=3)
    images, labels = smooth_images(1), torch.tensor([3])
    tried = Attack(client, observe(client, images, labels, None, cfg, Protection(), 0), cfg, BOUNDS)
    state = tried.advance(tried.start((1, 28, 28), 0), 12)
    distances = tried.distances(state.images)[0]
    found = attack(plain(), images, labels, None, cfg, BOUNDS)
    assert float(found.distance) == pytest.approx(float(distances.min()))
    assert float(distances.max()) > float(distances.min())
    torch.testing.assert_close(found.images, state.images[0, distances.argmin()])


@pytest.mark.slow
def test_advance__one_step_of_adam__is_that_of_torch():
    client, cfg = Client(plain(), torch.float64), Matching(**SHORT | {"tv": 0.1}, boxed=False, decay="none")
    tried = Attack(
        client, observe(client, smooth_images(1), torch.tensor([3]), None, cfg, Protection(), 0), cfg, BOUNDS
    )
    start = tried.start((1, 28, 28), 0)
    images = start.images.clone().requires_grad_()
    optimiser = torch.optim.Adam([images], lr=cfg.lr)
    for _ in range(3):
        optimiser.zero_grad()
        (tried.distances(images).sum() + 0.1 * total_variation(images).sum()).backward()
        optimiser.step()
    torch.testing.assert_close(tried.advance(start, 3).images, images.detach(), rtol=1e-9, atol=1e-9)


def gradient_of(tried, images, weight, prior):
    """Compute the gradient of the weighted distance plus the mean of a prior over the images of each group."""
    images = images.clone().requires_grad_()
    (weight * tried.distances(images).sum() + prior(images).mean(dim=2).sum()).backward()
    return images.grad


@pytest.mark.slow
def test_descent__in_each_half__has_the_weights_and_the_priors_of_that_half():
    fields = {"weights": (2.0, 0.5), "tv": 0.3, "patch": 0.2, "norm": 0.1, "registration": 0.4, "seeds": 2, "batch": 2}
    client, cfg = Client(plain(), torch.float64), Matching(**SHORT | fields)
    observed = observe(client, smooth_images(2), torch.tensor([3, 8]), None, cfg, Protection(), 0)
    tried, images = Attack(client, observed, cfg, BOUNDS), random_images(1, 2, 2, 1, 28, 28)

    def always(images):
        return 0.3 * total_variation(images) + 0.2 * patch_borders(images, Grid(7, 7)) + 0.1 * size(images)

    for half, weight, prior in ((0, 2.0, always), (1, 0.5, lambda each: always(each) + 0.4 * disagreement(each))):
        _, found = tried._descent(half, images)
        torch.testing.assert_close(found, gradient_of(tried, images, weight, prior), rtol=1e-9, atol=1e-12)
    assert [tried._half(step) for step in (0, 5, 6, 11)] == [0, 0, 1, 1]  # of 12


@pytest.mark.parametrize(("start", "middle", "scale"), [("normal", 0, 1), ("mean", 0, 0.05), ("black", -1, 0.05)])
def test_start__of_each_kind__is_noise_around_a_colour(start, middle, scale):
    client, cfg = Client(plain(), torch.float64), Matching(**SHORT, start=start)
    observed = observe(client, smooth_images(1), torch.tensor([3]), None, cfg, Protection(), 0)
    images = Attack(client, observed, cfg, BOUNDS).start((1, 28, 28), 0).images
    assert images.mean().item() == pytest.approx(middle, abs=4 * scale / 28)
    assert images.std().item() == pytest.approx(scale, rel=0.1)


@pytest.mark.slow
def test_distances__at_the_clients_own_images__are_0_and_elsewhere_not():
    client, cfg = Client(plain(), torch.float64), Matching(**SHORT, batch=2, labels="known")
    images, labels = smooth_images(2), torch.tensor([8, 3])
    for distance in ("cosine", "l2"):
        of_one = cfg.model_copy(update={"distance": distance})
        tried = Attack(client, observe(client, images, labels, None, of_one, Protection(), 0), of_one, BOUNDS)
        assert tried.distances(images[None, None]).tolist() == [[pytest.approx(0, abs=1e-9)]]
        assert float(tried.distances(images.flip(0)[None, None])) > 0.01


def test_rates__of_both_schedules__are_those_of_the_papers():
    client = Client(plain(), torch.float64)
    observed = observe(client, smooth_images(1), torch.tensor([3]), None, Matching(), Protection(), 0)

    def rates(decay, steps):
        tried = Attack(client, observed, Matching(lr=0.1, iterations=800, decay=decay), BOUNDS)
        return [tried.lr_at(step) for step in steps]

    assert rates("step", (0, 299, 300, 500, 700)) == pytest.approx([0.1, 0.1, 0.01, 0.001, 0.0001])
    assert rates("cosine", (0, 400, 800)) == pytest.approx([0.1, 0.05, 0])
    assert rates("none", (0, 799)) == [0.1, 0.1]


# What the attacker is given


def mjp():
    return enlarged(MJP(MJP.Config(), tiny_encoder()).double().eval())


def hidden_patches():
    return torch.rand(2, 49, generator=torch.Generator().manual_seed(1)) < 0.3


def test_observe__images_with_hidden_positions__are_told_by_rows_without_gradient():
    client, shuffled = Client(mjp(), torch.float64), hidden_patches()
    given = client, smooth_images(2), torch.tensor([3, 8]), shuffled
    found = observe(*given, Matching(**SHORT), Protection(), 0)
    without_gradient = (found.gradients["encoder.pos_embed"][:, 0, 1:] == 0).all(dim=2)
    assert torch.equal(without_gradient, shuffled)
    assert torch.equal(found.shuffled[:, 0], shuffled)
    assert observe(*given, Matching(**SHORT, knows_shuffled=False), Protection(), 0).shuffled is None


def test_observe__fixed_positions__are_not_sent():
    for positions, is_sent in (("sincos", False), ("learn", True)):
        client = Client(plain(pos_embed=positions), torch.float64)
        found = observe(client, smooth_images(1), torch.tensor([3]), None, Matching(**SHORT), Protection(), 0)
        assert ("encoder.pos_embed" in found.gradients) is is_sent


def test_observe__protected_gradients__are_pruned_and_keep_their_precision():
    client = Client(plain(), torch.float32)
    given = client, smooth_images(1), torch.tensor([3]), None, Matching()
    open_ones, pruned = (observe(*given, Protection(pruning=share), 0).gradients for share in (0, 0.9))
    name = "encoder.blocks.0.mlp.fc1.weight"
    assert pruned[name].dtype == torch.float32
    assert float((pruned[name] == 0).double().mean()) == pytest.approx(0.9, abs=1e-3)
    assert float((open_ones[name] == 0).double().mean()) < 0.5


def test_observe__images_that_make_no_whole_groups__are_an_error():
    client = Client(plain(), torch.float64)
    with pytest.raises(ValueError, match="3 images do not make groups of 2"):
        observe(client, smooth_images(3), torch.tensor([1, 2, 3]), None, Matching(batch=2), Protection(), 0)


def test_words__say_what_the_attacker_is_given():
    assert "labels from the gradient" in Matching().words() and "unknown position" not in Matching().words()
    assert (
        "4 images together; labels from the gradient of the classifier's bias, all different"
        in Matching(batch=4).words()
    )
    assert "which slots have the unknown position (of one image" in Matching().words(has_hidden=True)
    assert "no knowledge of which slots" in Matching(knows_shuffled=False).words(has_hidden=True)


def test_matching__registration_of_one_start__is_refused():
    with pytest.raises(ValueError, match="registration compares several starts: set seeds to 2 or more"):
        Matching(registration=0.1)
