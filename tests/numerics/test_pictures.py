"""Pictures that evaluations draw, read back from their PNG and compared with a few lines of pixel arithmetic."""

import io
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from small_set import MEAN, STD, build, config_of

from pipeline.core.errors import ConfigError
from pipeline.methods.mp3 import MP3

pytestmark = pytest.mark.slow

ZOOM, PATCH, SIDE, GAP = 4, 16, 112, 6  # a 28 px image is shown at 112 px, its 4 px patches at 16 px
EMPTY, GREEN = (214, 224, 242), (20, 150, 50)


def cells(png: bytes, rows: int, columns: int) -> list[list[np.ndarray]]:
    """The images of a grid, (112, 112, 3) each; the labels take what is left of the width and the height."""
    page = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
    top, left = page.shape[0] - rows * (SIDE + GAP), page.shape[1] - columns * (SIDE + GAP)
    assert top > 0 and left > 0
    return [
        [page[top + r * (SIDE + GAP) :, left + c * (SIDE + GAP) :][:SIDE, :SIDE] for c in range(columns)]
        for r in range(rows)
    ]


def patch(image: np.ndarray, slot: int) -> np.ndarray:
    """The pixels of one of the 49 patches; a view, so that it can be written to."""
    row, column = divmod(slot, 7)
    return image[row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH]


def shown(world, number: int) -> np.ndarray:
    """The first image of a class, enlarged, in three equal channels. Classes come in turn, so it is its number."""
    return np.repeat(np.repeat(world.pixels[number], ZOOM, 0), ZOOM, 1)[:, :, None].repeat(3, 2).astype(int)


def inputs(world, count: int) -> torch.Tensor:
    return (torch.tensor(world.pixels[:count]).float()[:, None] / 255 - MEAN) / STD


def outline(image: np.ndarray, slot: int) -> None:
    """A green border of two pixels."""
    part = patch(image, slot)
    inner = part[2:-2, 2:-2].copy()
    part[:] = GREEN
    part[2:-2, 2:-2] = inner


# MP3: images put together from predicted positions


def place(picture: np.ndarray, patches: list[int], slots: list[int]) -> np.ndarray:
    """Each patch at its slot; where several meet, their mean; where none is, pale blue."""
    result = np.empty((SIDE, SIDE, 3))
    for slot in range(49):
        here = [patch(picture, name) for name, at in zip(patches, slots, strict=True) if at == slot]
        patch(result, slot)[:] = np.mean(here, axis=0) if here else EMPTY
    return np.rint(result).astype(int)


def mp3_that_is_told(known_ratio):
    method = build("mp3")
    told = MP3(MP3.Config(known_ratio=known_ratio), method.encoder).eval()
    told.head = method.head
    return told


@torch.no_grad()
@pytest.mark.parametrize("known_ratio", [0.0, 0.3])
def test_mp3_pictures__every_cell__is_the_patches_at_the_positions_that_the_model_names(world, known_ratio):
    method, etas, count = mp3_that_is_told(known_ratio), (0, 50, 75), 2
    rows = cells(world.evaluate("mp3_pictures", method, etas=etas, images=count, seed=3).files["rebuilt.png"], 6, 4)

    generator = torch.Generator().manual_seed(3)
    orders = torch.rand(count, 49, generator=generator).argsort(dim=1)
    shown_at = torch.rand(49, generator=generator).argsort().tolist()
    told = torch.rand(count, 49, generator=generator).argsort(dim=1) < 15 if known_ratio else None
    collisions = 0
    for number in range(count):
        picture, order = shown(world, number), orders[number].tolist()
        context, unordered, rebuilt = rows[3 * number : 3 * number + 3]
        np.testing.assert_array_equal(context[0], picture)
        assert (unordered[0] == 255).all() and (rebuilt[0] == 255).all()  # nothing is drawn below the original
        for column, eta in enumerate(etas, start=1):
            kept = int(49 * (1 - eta / 100))
            named = method.position_logits(inputs(world, count), orders, kept, told)[number].argmax(dim=1).tolist()
            collisions += 49 - len(set(named))
            input_row = place(picture, order, shown_at)
            for slot in shown_at[:kept]:
                outline(input_row, slot)
            np.testing.assert_array_equal(context[column], place(picture, order[:kept], order[:kept]))
            np.testing.assert_array_equal(unordered[column], input_row)
            np.testing.assert_array_equal(rebuilt[column], place(picture, order, named))
    assert collisions > 20  # otherwise means would not have been compared


def test_mp3_pictures__of_a_model_that_names_every_position__show_the_image(world):
    method = build("mp3")
    method.position_logits = lambda images, order, num_context, known: torch.nn.functional.one_hot(order, 49).float()

    _, _, rebuilt = cells(world.evaluate("mp3_pictures", method, etas=(75,), images=1).files["rebuilt.png"], 3, 2)

    np.testing.assert_array_equal(rebuilt[1], shown(world, 0))


# DropPos: right positions show the image, wrong ones are white, masked patches black


@torch.no_grad()
def test_droppos_pictures__wrong_is_white__masked_is_black__all_else_is_the_image(world):
    method, gammas, count = build("droppos"), (0, 25, 75), 2
    found = world.evaluate("droppos_pictures", method, gammas=gammas, position_gamma=50, images=count, seed=4)
    rows = cells(found.files["rebuilt.png"], count, 4)

    orders = torch.rand(count, 49, generator=torch.Generator().manual_seed(4)).argsort(dim=1)
    states = Counter()
    for number in range(count):
        np.testing.assert_array_equal(rows[number][3], shown(world, number))
        for column, gamma in enumerate(gammas):
            visible = 49 * (100 - gamma) // 100
            anchors = visible // 2
            logits = method.position_logits(inputs(world, count), orders, visible, anchors)[number]
            order, named = orders[number].tolist(), logits.argmax(dim=1).tolist()
            expected = shown(world, number)
            for name, slot in zip(named, order[anchors:visible], strict=True):
                states["right" if name == slot else "wrong"] += 1
                patch(expected, slot)[:] = patch(expected, slot) if name == slot else 255
            for slot in order[visible:]:
                states["masked"] += 1
                patch(expected, slot)[:] = 0
            np.testing.assert_array_equal(rows[number][column], expected)
    assert min(states[state] for state in ("right", "wrong", "masked")) > 0


# The jigsaw: it needs no run


@pytest.mark.parametrize("ratio", [0.27, 1.0])
def test_jigsaw_pictures__shuffled_image__has_the_same_patches_and_outlines_those_that_were_chosen(world, ratio):
    found = world.evaluate("jigsaw_pictures", ratios=(ratio,), images=3)
    for number, (original, shuffled) in enumerate(cells(found.files["shuffled.png"], 3, 2)):
        np.testing.assert_array_equal(original, shown(world, number))
        chosen = [slot for slot in range(49) if (patch(shuffled, slot)[0, 0] == GREEN).all()]
        assert len(chosen) == int(49 * ratio)
        inner = {slot: patch(shuffled, slot)[2:-2, 2:-2].tobytes() for slot in range(49)}
        before = {slot: patch(original, slot)[2:-2, 2:-2].tobytes() for slot in range(49)}
        assert Counter(inner.values()) == Counter(before.values())
        assert all(inner[slot] == before[slot] for slot in range(49) if slot not in chosen)
        assert sum(inner[slot] != before[slot] for slot in chosen) > len(chosen) / 2
        for slot in chosen:
            border = patch(shuffled, slot).copy()
            border[2:-2, 2:-2] = GREEN
            assert (border == GREEN).all()


def test_jigsaw_pictures__ratio_0__moves_and_outlines_nothing(world):
    original, shuffled = cells(world.evaluate("jigsaw_pictures", ratios=(0.0,), images=1).files["shuffled.png"], 1, 2)[
        0
    ]
    np.testing.assert_array_equal(original, shuffled)


def test_jigsaw_pictures__patches_that_do_not_divide_the_image__is_one_message(world):
    with pytest.raises(ConfigError, match=r"patches 9 do not divide the 112 x 112 pixels .* small_fashion"):
        world.evaluate("jigsaw_pictures", patches=9)


def test_pictures__another_seed__are_others(world):
    for name, kind in (("mp3_pictures", "mp3"), ("droppos_pictures", "droppos"), ("jigsaw_pictures", None)):
        methods = [build(kind)] if kind else []
        one, other = (world.evaluate(name, *methods, seed=seed).files for seed in (0, 1))
        assert one.keys() == other.keys() == set(config_of(name).files) and one != other
