"""Which image, model and layer the cells of a picture show: what is drawn, as it is handed over to be drawn."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from small_set import MEAN, STD, build
from test_leakage import first_images
from test_pictures import inputs, shown

from pipeline.data.derived.corruptions import corrupt_picture, seed_of
from pipeline.data.derived.severities import CORRUPTIONS
from pipeline.dense.iou import IGNORED
from pipeline.evals.accuracy import corruption_pictures
from pipeline.evals.attention import attention_maps, cls_attention, correlation_maps
from pipeline.evals.attention.attention_maps import draw_maps
from pipeline.evals.attention.cls_attention import cls_maps
from pipeline.evals.dense import detection_pictures, segmentation_pictures
from pipeline.evals.dense.segmentation_pictures import palette
from pipeline.evals.heat import of_multiples
from pipeline.evals.permutation import split_learning
from pipeline.evals.pictures import first_of_each_class
from pipeline.evals.positions.shuffling import Shuffler
from pipeline.evals.privacy import april, april_pictures, gradient_matching, leakage
from pipeline.evals.privacy.leakage import PictureColumn, draw_columns, pixels_of
from pipeline.models.patches import Grid
from pipeline.privacy.april import attack

SURE = 0.25  # a score that some detections of an untrained model have


@pytest.fixture
def handed_over(monkeypatch):
    """Replaces what draws in a module; returns a list of what it was given."""

    def watch(module, name="labelled_grid"):
        calls = []
        monkeypatch.setattr(module, name, lambda *given, **named: calls.append(given) or b"drawn")
        return calls

    return watch


def test_first_of_each_class__labels_in_any_order__are_one_of_each_class_and_then_the_second_ones():
    assert first_of_each_class([3, 1, 1, 3, 2, 1], 5) == [1, 4, 0, 2, 3]


# Attention and correlation


class Sums:
    """What is drawn of a layer: maps (heads, rows, cols) and the entropy of each head."""

    def __init__(self, maps, entropies):
        self.maps, self.entropies = np.array(maps), entropies


def test_draw_maps__of_two_layers__have_their_own_rows_and_all_heads_or_the_chosen_ones(handed_over):
    calls = handed_over(attention_maps)
    low, high = np.full((3, 3), 0.125), np.full((3, 3), 0.5)  # half of and twice uniform attention to 2x2 patches
    seen = {1: Sums([low, high], [0.9, 0.4]), 5: Sums([high, low], [0.3, 0.7])}

    for heads in (None, {1: [1], 5: [0]}):
        draw_maps(seen, heads, Grid(2, 2))
    (rows, columns, captions, _), (fewer, places, notes, _) = calls

    dark, bright = (of_multiples(times, 2)[:, 0, 0].tolist() for times in (4 * low, 4 * high))
    corners = {label: [tile[:, 0, 0].tolist() for tile in tiles] for label, tiles in rows}
    assert corners == {"layer 1": [dark, bright], "layer 5": [bright, dark]}
    assert columns == ["head 1", "head 2"] and captions == [["H 0.90", "H 0.40"], ["H 0.30", "H 0.70"]]
    assert [[tile[:, 0, 0].tolist() for tile in tiles] for _, tiles in fewer] == [[bright], [bright]]
    assert places == ["1."] and notes == [["head 2, H 0.40"], ["head 1, H 0.30"]]


@pytest.mark.slow
@torch.no_grad()
def test_cls_attention__rows_of_the_picture__are_images_of_several_classes_and_their_own_maps(world, handed_over):
    calls, method = handed_over(cls_attention), build("mjp")
    world.evaluate("cls_attention", method, images=3, limit=2)
    ((rows, headings),) = calls
    assert headings == ["original", "head 1", "head 2"] and len(rows) == 3
    for number, (_, (picture, *tiles)) in enumerate(rows):
        np.testing.assert_array_equal(picture.permute(1, 2, 0), shown(world, number))
        maps = cls_maps(method.encoder, inputs(world, 3)[number : number + 1])[0]
        for tile, weights in zip(tiles, maps, strict=True):
            colours = tile[:, ::16, ::16].flatten(1).T.tolist()  # a pixel of each of the 7x7 patches
            strongest, weakest = colours[weights.argmax()], colours[weights.argmin()]
            assert strongest[0] > strongest[2] and weakest[2] > weakest[0]  # orange and blue


@pytest.mark.slow
def test_correlation_maps__each_file__is_the_matrix_of_its_metrics(world, monkeypatch):
    def kept(matrix, grid, limit, what):
        return np.append(matrix.flatten(), limit).tobytes()

    monkeypatch.setattr(correlation_maps, "_draw", kept)
    found = world.evaluate("correlation_maps", build("mjp"), limit=20)
    values = {name: np.frombuffer(content) for name, content in found.files.items()}
    within, across = (values[f"{name}.png"][:-1].reshape(49, 49) for name in ("within", "across"))
    place = Grid(7, 7).coordinates().numpy()
    near = np.abs(place[:, None] - place).sum(axis=2) == 1
    others = ~np.eye(49, dtype=bool)
    expected = {"within_mean": within[others].mean(), "within_near": within[near].mean()}
    expected |= {"across_mean": across[others].mean(), "across_near": across[near].mean()}
    expected |= {"across_same": across.diagonal().mean()}
    assert found.metrics == pytest.approx(expected) and within.diagonal() == pytest.approx(1)
    # One scale for both.
    largest = max(np.abs(within[others]).max(), np.abs(across[others]).max())
    assert values["within.png"][-1] == values["across.png"][-1] == pytest.approx(largest)


# Corruptions


@pytest.mark.slow
def test_corruption_pictures__each_cell__is_its_image_under_its_corruption_and_severity(world, handed_over):
    calls = handed_over(corruption_pictures)
    world.evaluate("corruption_pictures", images=2, seed=3)
    ((rows, headings),) = calls
    assert headings == ["original", *(f"severity {severity}" for severity in range(1, 6))] * 2
    assert [label.replace(" ", "_") for label, _ in rows] == list(CORRUPTIONS)
    for label, cells in rows:
        for number in range(2):
            clean = Image.fromarray(world.pixels[number])
            pictures = [clean]
            for severity in (1, 5):
                seed = seed_of(f"3 {number}", label.replace(" ", "_"), severity)
                pictures.append(corrupt_picture(clean, label.replace(" ", "_"), severity, "cifar", seed))
            for place, picture in zip((0, 1, 5), pictures, strict=True):
                pixels = np.array(picture).repeat(3, 0).repeat(3, 1)
                np.testing.assert_array_equal(cells[6 * number + place][1], pixels)


# Scenes


@pytest.mark.slow
@torch.no_grad()
def test_segmentation_pictures__each_row__is_an_image_with_its_truth_and_the_models_answer(world, handed_over):
    calls, method = handed_over(segmentation_pictures), build("upernet")
    world.evaluate("segmentation_pictures", method, images=3)
    ((rows, headings, captions, _),) = calls
    assert headings == ["image", "truth", "answer"] and [label for label, _ in rows] == ["1", "3", "5"]
    folder, colours = world.site.data["small_scenes"], palette(4)
    for (label, cells), (*_, caption) in zip(rows, captions, strict=True):
        number = int(label) - 1
        labels = np.array(Image.open(folder / f"annotations/validation/scene{number}.png")).astype(int) - 1
        labels = np.where(labels < 0, IGNORED, labels)
        image = Image.open(folder / f"images/validation/scene{number}.jpg")
        small = np.array(image.resize(segmentation_size(image.size), Image.Resampling.BILINEAR))
        logits = method.segment((torch.tensor(small).float()[None] / 255 - MEAN) / STD)[None]
        answer = torch.nn.functional.interpolate(logits, labels.shape, mode="bilinear").argmax(dim=1)[0].numpy()
        for cell, classes in zip(cells[1:], (labels, answer), strict=True):
            np.testing.assert_array_equal(cell.permute(1, 2, 0), on_a_page(colours[classes]))
        np.testing.assert_array_equal(cells[0].permute(1, 2, 0), on_a_page(small[:, :, None].repeat(3, 2)))
        right = (answer == labels)[labels != IGNORED].mean()
        assert caption == f"{100 * right:.0f} % right"


def segmentation_size(size):
    """Width and height with a shorter side of 28 px."""
    return tuple(round(side * 28 / min(size)) for side in size)


def on_a_page(pixels):
    """In the middle of a white square of 224 px, enlarged without smoothing."""
    height, width = (round(side * 224 / max(pixels.shape[:2])) for side in pixels.shape[:2])
    page = np.full((224, 224, 3), 255)
    top, left = (224 - height) // 2, (224 - width) // 2
    large = Image.fromarray(pixels.astype(np.uint8)).resize((width, height), Image.Resampling.NEAREST)
    page[top : top + height, left : left + width] = np.array(large)
    return page


@pytest.mark.slow
def test_detection_pictures__both_sides__are_the_same_image_with_what_is_published_and_what_is_sure(world, monkeypatch):
    calls, draw = [], detection_pictures.draw_objects
    monkeypatch.setattr(detection_pictures, "draw_objects", lambda *given: calls.append(given) or draw(*given))
    world.evaluate("detection_pictures", build("mask_rcnn"), images=2, min_score=SURE)
    assert len(calls) == 4
    seen = set()
    for (left, record, truth, texts, published), (right, other, found, named, sure) in zip(
        calls[::2], calls[1::2], strict=True
    ):
        assert torch.equal(left, right) and record is other
        assert truth is record.truth and found is record.found
        assert published.tolist() == [place for place, crowd in enumerate(record.crowd) if not crowd]
        assert sure.tolist() == [place for place, score in enumerate(record.scores) if score >= SURE]
        assert 0 < len(sure) < len(record.scores) and len(published)
        assert texts == [f"class {label}" for label in truth.labels]
        words = zip(found.labels, record.scores, strict=True)
        assert named == [f"class {label} {score:.2f}" for label, score in words]
        seen.add(record.image_id)
    assert len(seen) == 2


# Images recovered from gradients


def test_drawn__columns_of_recovered_images__have_the_psnr_to_what_they_are_compared_with(world, handed_over):
    calls = handed_over(leakage)
    images = inputs(world, 4)
    worse = images + 0.1 * torch.arange(4)[:, None, None, None]
    draw_columns(
        [PictureColumn("original", images), PictureColumn("recovered", worse, images)], world.data, slice(1, 3), "text"
    )
    ((rows, headings, captions, _),) = calls
    assert headings == ["original", "recovered"] and [label for label, _ in rows] == ["image 1", "image 2"]
    for number, ((_, (original, recovered)), caption) in enumerate(zip(rows, captions, strict=True), start=1):
        np.testing.assert_array_equal(original.permute(1, 2, 0), shown(world, number))
        pixels = (255 * pixels_of(worse[number], world.data)).round().numpy()[0]
        np.testing.assert_array_equal(recovered[2, ::4, ::4], pixels)
        error = ((pixels - world.pixels[number]) ** 2).mean() / 255**2
        assert caption == ["", f"{-10 * np.log10(error):.1f} dB"]


def test_april_pictures__each_column__is_what_is_recovered_of_its_own_model(world, handed_over, monkeypatch):
    calls = handed_over(april_pictures, "draw_columns")
    # Nothing is solved: a recovered image says what was attacked.
    monkeypatch.setattr(april_pictures, "attack", lambda *given: SimpleNamespace(images=given))
    monkeypatch.setattr(april_pictures, "ceiling", lambda method, _, *given: (method, *given))
    models = [build("baseline"), build("no positions"), build("mjp")]
    world.evaluate("april_pictures", *models, images=2, skip=1, shuffle_ratio=0.5, seed=4)
    ((columns, _, which, _),) = calls
    names = ["DeiT", "without PEs", "MJP"]
    assert [each.heading for each in columns] == ["original", "ceiling, DeiT", *names, "shuffled", *names]
    images, labels = first_images(world, 3)
    moved, shuffled = Shuffler(models[0], 0.5, 4)(images)
    assert torch.equal(columns[0].images, images) and torch.equal(columns[5].images, moved) and which == slice(1, 3)
    assert columns[1].images[0] is models[0] and columns[1].images[1] is columns[1].wanted is columns[0].images
    for column, model in zip((*columns[2:5], *columns[6:]), 2 * models, strict=True):
        attacked, seen, targets, hidden, _ = column.images
        assert attacked is model and seen is column.wanted and torch.equal(targets, labels)
        is_moved = any(column is each for each in columns[6:])
        assert seen is columns[5 if is_moved else 0].images
        assert torch.equal(hidden, shuffled) if is_moved else hidden is None


def test_april_pictures__plain_model_from_a_file__is_called_by_its_name(world, handed_over, monkeypatch):
    calls = handed_over(april_pictures, "draw_columns")
    monkeypatch.setattr(april_pictures, "attack", lambda *given: SimpleNamespace(images=given))
    monkeypatch.setattr(april_pictures, "ceiling", lambda method, _, *given: (method, *given))
    run_of = type(world).run_of
    file = {"train": False, "init": "file:folder/vit_small.safetensors"}
    monkeypatch.setattr(
        type(world),
        "run_of",
        lambda self, method, **more: run_of(self, method, **more).model_copy(update=file if method is plain else {}),
    )
    plain = build("baseline")
    world.evaluate("april_pictures", plain, build("no positions"), build("mjp"), images=1)
    ((columns, *_),) = calls
    assert [each.heading for each in columns[1:3]] == ["ceiling, vit_small", "vit_small"]


@pytest.mark.slow
def test_april__columns_of_its_picture__are_those_of_each_setting(world, handed_over):
    calls, method = handed_over(april, "draw_columns"), build("mjp")
    world.evaluate("april", method, settings=("b", "a", "c"), images=4, batch=3, pictures=2, shuffle_ratio=0.5)
    ((columns, _, which, _),) = calls
    headings = ["original", "ceiling", "recovered (a)", "shuffled", "recovered (b)"]
    assert [each.heading for each in columns] == headings and which == slice(2)
    images, labels = first_images(world, 3)
    moved, shuffled = Shuffler(method, 0.5, 0)(images)
    assert torch.equal(columns[0].images, images) and torch.equal(columns[3].images, moved)
    hidden = attack(method, moved, labels, shuffled)
    for column, seen, found in (
        (columns[1], moved, hidden.ceiling),
        (columns[2], images, attack(method, images, labels).images),
        (columns[4], moved, hidden.images),
    ):
        assert torch.equal(column.images, found) and torch.equal(column.wanted, seen)


@pytest.mark.slow
def test_gradient_matching__columns_of_its_picture__are_the_attack_on_its_way(world, handed_over):
    calls = handed_over(gradient_matching, "draw_columns")
    fields = {"images": 2, "iterations": 6, "pictures": 3, "shown": 1, "setting": "c", "shuffle_ratio": 0.5}
    found = world.evaluate("gradient_matching", build("mjp"), **fields)
    ((columns, _, which, _),) = calls
    assert [each.heading for each in columns[:2]] == ["original", "shuffled"] and which == slice(1)
    assert columns[-1].heading == "recovered" and len(columns) == 2 + 3
    images, _ = first_images(world, 2)
    assert torch.equal(columns[0].images, images) and not torch.equal(columns[1].images, images)
    assert all(torch.equal(each.wanted, images) for each in columns[2:])  # as in setting (c)
    errors = (pixels_of(columns[-1].images, world.data) - pixels_of(images, world.data)).square().mean(dim=(1, 2, 3))
    assert found.per_image["psnr_raw"] == pytest.approx((-10 * errors.log10()).numpy(), rel=1e-6)


@pytest.mark.slow
def test_split_learning__picture__has_the_first_attacked_images_and_what_was_found_of_them(world, handed_over):
    calls = handed_over(split_learning, "draw_columns")
    found = world.evaluate("split_learning", build("baseline"), images=30, pictures=25)
    ((columns, _, which, _),) = calls
    assert [each.heading for each in columns] == ["original", "recovered"] and which == slice(25)
    chosen = np.linspace(0, 149, 30).round().astype(int)[:25]
    pixels = [(pixels_of(column.images, world.data)).numpy() for column in columns]
    np.testing.assert_allclose(255 * pixels[0][:, 0], world.pixels[chosen], atol=1e-3)
    assert torch.equal(columns[1].wanted, columns[0].images)
    errors = ((pixels[0] - pixels[1]) ** 2).mean(axis=(1, 2, 3))
    assert found.per_image["psnr"][:25] == pytest.approx(-10 * np.log10(errors), abs=1e-3)
