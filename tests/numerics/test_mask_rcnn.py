"""Mask R-CNN against plain references: regions, every loss, what is kept in the end."""

import math

import pytest
import torch
from timm.layers import LayerNorm2d
from tiny_scenes import SCENE_CLASSES, SCENE_MODELS, build_scene_encoder, detection_batch, scene
from torch.nn import functional as F
from torchvision.ops import roi_align

from pipeline.dense.boxes import anchors_of
from pipeline.dense.detections import keep_best, paste, to_original
from pipeline.dense.proposals import AnchorPredictions, proposal_losses, propose
from pipeline.dense.regions import Regions, box_losses, cut_out, mask_loss, mask_targets, sample_regions
from pipeline.methods import mask_rcnn
from pipeline.methods.base import METHODS, Batch
from pipeline.plan.operations import count_operations

SMALL = {"width": 32, "fc_width": 64, "box_convs": 1, "mask_convs": 1, "rpn_samples": 64, "roi_samples": 32}
SMALL |= {"before_nms": (100, 80), "after_nms": (64, 48), "min_score": 0.3}  # in training, in evaluation


def build(model="vit", seed=0, **fields):
    method, encoder = METHODS.get("mask_rcnn"), build_scene_encoder(SCENE_MODELS[model], seed)
    return method(method.Config(name="mask_rcnn", **SMALL | fields), encoder).train()


def loss_of(method, batch, seed=0):
    seeded = Batch(batch.inputs, batch.targets, torch.Generator().manual_seed(seed))
    return method(batch.inputs, batch.targets, method.draw(seeded, 0.5))


def overlap(one, other):
    """IoU of two boxes."""
    sides = [min(one[k + 2], other[k + 2]) - max(one[k], other[k]) for k in (0, 1)]
    shared = max(sides[0], 0) * max(sides[1], 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return shared / (sum(areas) - shared)


def code(box, start, weights):
    """How to move `start` to `box` (R-CNN App. C)."""
    (x, y, w, h), (a, b, c, d) = (
        ((v[0] + v[2]) / 2, (v[1] + v[3]) / 2, v[2] - v[0], v[3] - v[1]) for v in (box, start)
    )
    moves = ((x - a) / c, (y - b) / d, math.log(w / c), math.log(h / d))
    return [weight * move for weight, move in zip(weights, moves, strict=True)]


def test_anchors__of_a_vit__are_those_of_vitdet_by_default():
    method = build()
    assert method.strides == [4, 8, 16, 32, 64]
    sides = [(level[1, 2] - level[1, 0]).item() for level in method.anchors.split(method.level_sizes)]
    assert sides == [32, 64, 128, 256, 512]


# Regions


def test_cut_out__ramp__is_read_at_the_centres_of_the_bins():
    """Aligned: the value of place i stands for the point (i + 1/2) * stride of the image."""
    strides, counts = [4, 8, 16, 32], [128, 64, 32, 16]
    ramps = [(torch.arange(count) + 0.5) * s for count, s in zip(counts, strides, strict=True)]
    maps = [(ramp + 1000 * n).expand(1, 1, len(ramp), -1) for n, ramp in enumerate(ramps)]
    boxes = torch.tensor([[[40.0, 64, 80, 96], [30, 50, 180, 180], [101, 11, 401, 311], [16, 16, 496, 496]]])
    found = cut_out(maps, boxes, strides, 7)
    for number, (x1, _, x2, _) in enumerate(boxes[0].tolist()):
        centres = x1 + (torch.arange(7) + 0.5) * (x2 - x1) / 7 + 1000 * number
        torch.testing.assert_close(found[number, 0], centres.expand(7, 7), atol=2e-3, rtol=0)


def test_cut_out__empty_slot__is_zero_and_has_no_gradient():
    maps = [torch.randn(1, 2, side, side, requires_grad=True) for side in (32, 16, 8, 4)]
    found = cut_out(maps, torch.zeros(1, 1, 4), [2, 4, 8, 16], 7)
    found.sum().backward()
    assert not found.any() and not any(each.grad.any() for each in maps)


def test_cut_out__several_images__reads_each_from_its_own_map():
    maps = [torch.randn(2, 3, side, side) for side in (32, 16, 8, 4)]
    boxes = torch.tensor([[[3.0, 4, 20, 30]], [[2, 2, 62, 61]]])
    found = cut_out(maps, boxes, [2, 4, 8, 16], 5)
    for number, (level, stride) in enumerate([(0, 2), (1, 4)]):
        own = maps[level][number : number + 1]
        expected = roi_align(own, [boxes[number]], 5, 1 / stride, 0, aligned=True)
        torch.testing.assert_close(found[number : number + 1], expected)


def test_mask_targets__box_of_whole_pixels__is_the_cut_out_bitmap():
    masks = (torch.rand(2, 40, 40, generator=torch.Generator().manual_seed(0)) < 0.5).to(torch.uint8)
    found = mask_targets(masks, torch.tensor([1, 0]), torch.tensor([[3.0, 5, 31, 33], [8, 0, 36, 28]]), 28)
    assert torch.equal(found[0], masks[1, 5:33, 3:31].float())
    assert torch.equal(found[1], masks[0, 0:28, 8:36].float())


def test_mask_targets__half_of_a_pixel_covered__counts():
    masks = torch.zeros(1, 8, 8, dtype=torch.uint8)
    masks[0, :, 2:] = 1
    # Four bins of 2 px; the second has one pixel outside, one inside.
    found = mask_targets(masks, torch.tensor([0]), torch.tensor([[-1.0, 0, 7, 8]]), 4)
    assert found[0, 0].tolist() == [0, 1, 1, 1]


# Losses


def judged_at_random(anchors, count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = count, len(anchors)
    return AnchorPredictions(torch.randn(shape, generator=generator), torch.randn(*shape, 4, generator=generator))


@pytest.mark.parametrize("count", [16, 1000], ids=["some sampled", "more than there are anchors"])
def test_proposal_losses__images_with_and_without_objects__are_those_of_detectron2(count):
    """Sums over what was sampled, divided by what was to be sampled."""
    anchors = torch.cat(anchors_of([(8, 8), (4, 4)], [8, 16], [16.0, 32.0], [0.5, 1.0, 2.0]))
    targets = [scene(seed, count)[1] for seed, count in ((0, 3), (1, 0), (2, 1))]
    judged, priority = judged_at_random(anchors, 3), torch.rand(3, len(anchors))
    found = proposal_losses(judged, anchors, targets, priority, count, 0.5, (0.3, 0.7))

    objectness = boxes = 0.0
    for number, target in enumerate(targets):
        table = [[overlap(box, anchor) for box in target["boxes"].tolist()] for anchor in anchors.tolist()]
        best = [max(column) for column in zip(*table, strict=True)]
        kinds = []
        for row in table:
            is_best = any(value == top > 0 for value, top in zip(row, best, strict=True))
            most = max(row, default=0)
            kinds.append(1 if most >= 0.7 or is_best else 0 if most < 0.3 else -1)
        order = priority[number].argsort().tolist()
        positive = [i for i in order if kinds[i] == 1][: count // 2]
        negative = [i for i in order if kinds[i] == 0][: count - len(positive)]
        for i in positive + negative:
            logit = judged.logits[number, i]
            objectness += F.softplus(-logit if i in positive else logit)
        for i in positive:
            box = target["boxes"][table[i].index(max(table[i]))].tolist()
            wanted = torch.tensor(code(box, anchors[i].tolist(), (1, 1, 1, 1)))
            boxes += (judged.deltas[number, i] - wanted).abs().sum()
    torch.testing.assert_close(found[0], objectness / (3 * count))
    torch.testing.assert_close(found[1], boxes / (3 * count))


def some_regions():
    """Two images, three slots each: objects, background, an empty slot."""
    first, second = [[2.0, 3, 20, 22], [5, 5, 30, 28], [40, 40, 60, 63]], [[9, 9, 33, 40], [0, 0, 8, 8], [0] * 4]
    boxes = torch.tensor([first, second])
    labels = torch.tensor([[1, 3, 0], [2, 0, 0]])
    valid = torch.tensor([[True, True, True], [True, True, False]])
    targets = [scene(5, 2)[1], scene(6, 1)[1]]
    return Regions(boxes, labels, torch.tensor([[0, 1, 0], [0, 0, 0]]), labels > 0, valid), targets


def test_box_losses__objects_and_background__are_those_of_detectron2():
    regions, targets = some_regions()
    logits, deltas = torch.randn(6, 1 + SCENE_CLASSES), torch.randn(6, SCENE_CLASSES, 4)
    found = box_losses(logits, deltas, regions, targets)
    entropies, moves = [], 0.0
    for place in range(5):  # the sixth is empty
        image, slot = divmod(place, 3)
        label = int(regions.labels[image, slot])
        entropies.append(-logits[place].log_softmax(0)[label])
        if label:
            box = targets[image]["boxes"][regions.objects[image, slot]].tolist()
            wanted = torch.tensor(code(box, regions.boxes[image, slot].tolist(), (10, 10, 5, 5)))
            moves += (deltas[place, label - 1] - wanted).abs().sum()
    torch.testing.assert_close(found[0], torch.stack(entropies).mean())
    torch.testing.assert_close(found[1], moves / 5)


def test_mask_loss__objects_only__is_the_mean_cross_entropy_of_their_classes_masks():
    regions, targets = some_regions()
    logits = torch.randn(6, SCENE_CLASSES, 8, 8)
    found = mask_loss(logits, regions, targets)
    terms = []
    for place, image, slot in ((0, 0, 0), (1, 0, 1), (3, 1, 0)):
        own = targets[image]["masks"][regions.objects[image, slot]][None, None].float()
        wanted = (roi_align(own, [regions.boxes[image, slot][None]], 8, 1.0, 0, aligned=True) >= 0.5).float()[0, 0]
        values = logits[place, regions.labels[image, slot] - 1]
        terms.append((F.softplus(values) - values * wanted).mean())
    torch.testing.assert_close(found, torch.stack(terms).mean())


def test_sample_regions__objects_own_boxes__are_among_them():
    targets = [scene(0, 3)[1], scene(1, 0)[1]]
    proposals = torch.tensor([[30.0, 30, 31, 31]]).expand(2, 10, 4)
    usable = torch.ones(2, 10, dtype=torch.bool)
    usable[:, 8:] = False
    found = sample_regions(proposals, usable, targets, torch.rand(2, 13), 12, 0.25, 0.5)
    assert found.positive.sum(dim=1).tolist() == [3, 0]
    assert found.valid.sum(dim=1).tolist() == [11, 8]
    for box, label, number in zip(found.boxes[0, :3], found.labels[0, :3], found.objects[0, :3], strict=True):
        assert torch.equal(box, targets[0]["boxes"][number]) and label == targets[0]["labels"][number]
    assert found.objects_first(0.25).boxes.shape == (2, 3, 4)
    assert not found.labels[0, 3:].any() and not found.labels[1].any()


# Values that no two fields share.
FIELDS = {"rpn_samples": 60, "rpn_positive": 0.4, "rpn_overlap": (0.2, 0.6), "rpn_nms": 0.65, "roi_samples": 30}
FIELDS |= {"roi_positive": 0.3, "roi_overlap": 0.45, "box_side": 5, "mask_side": 6}
FIELDS |= {"min_score": 0.1, "nms": 0.35, "max_detections": 7}


def calls_of(monkeypatch, *names):
    """What the parts of a detector are called with, by name."""
    calls = {}

    def spied(name, part):
        return lambda *given: calls.setdefault(name, []).append(given) or part(*given)

    for name in names:
        monkeypatch.setattr(mask_rcnn, name, spied(name, getattr(mask_rcnn, name)))
    return calls


def test_loss__every_field__reaches_the_part_that_it_is_for(monkeypatch):
    method, batch = build(**FIELDS), detection_batch(3)
    calls = calls_of(monkeypatch, "proposal_losses", "propose", "sample_regions", "cut_out")
    loss_of(method, batch)
    assert calls["proposal_losses"][0][4:] == (60, 0.4, (0.2, 0.6))
    sizes, *limits = calls["propose"][0][2:6]
    assert sizes.tolist() == [[64, 64], [64, 64], [48, 56]] and limits == [100, 64, 0.65]
    assert calls["sample_regions"][0][4:] == (30, 0.3, 0.45)
    assert [(boxes.shape[1], side) for _, boxes, _, side in calls["cut_out"]] == [(30, 5), (9, 6)]


@torch.no_grad()
def test_detect__every_field__reaches_the_part_that_it_is_for(monkeypatch):
    method, batch = build(**FIELDS).eval(), detection_batch(3)
    calls = calls_of(monkeypatch, "propose", "keep_best", "cut_out")
    method.mask_head.classes.bias += 3.0
    found = method.detect(batch.inputs, batch.targets)
    assert calls["propose"][0][3:6] == (80, 48, 0.65)
    sizes, *limits = calls["keep_best"][0][4:]
    assert sizes.tolist() == [[64, 64], [64, 64], [48, 56]] and limits == [0.1, 0.35, 7]
    assert [(boxes.shape[1], side) for _, boxes, _, side in calls["cut_out"]] == [(48, 5), (7, 6)]
    masks = torch.cat([detections.masks for detections in found])
    assert masks.shape[1:] == (12, 12) and len(masks) > 0
    torch.testing.assert_close(masks, torch.full_like(masks, 1 / (1 + math.exp(-3))), atol=0.02, rtol=0)


def test_draw__two_images__have_priorities_of_their_own():
    drawn = build().draw(detection_batch(2, objects=(2, 1)), 0.5)
    assert {name: tuple(value.shape) for name, value in drawn.items()} == {"anchors": (2, 1023), "regions": (2, 64 + 2)}
    assert not any(torch.equal(*value) for value in drawn.values())


@pytest.mark.slow
@pytest.mark.parametrize("model", SCENE_MODELS)
@pytest.mark.parametrize("objects", [(0,), (3, 0, 0, 1)])
def test_loss__images_without_objects__is_finite_and_reaches_every_parameter(model, objects):
    method = build(model)
    out = loss_of(method, detection_batch(3, objects=objects))
    out.loss.backward()
    torch.testing.assert_close(out.loss, torch.stack([*out.scalars.values()]).sum())
    assert set(out.scalars) == {f"{name}_loss" for name in ("rpn_class", "rpn_box", "class", "box", "mask")}
    if not any(objects):
        assert [float(out.scalars[f"{name}_loss"]) for name in ("rpn_box", "box", "mask")] == [0, 0, 0]
    trained = {name: p.grad for name, p in method.named_parameters() if p.requires_grad}
    assert [name for name, grad in trained.items() if grad is None or not grad.isfinite().all()] == []


@pytest.mark.slow
def test_loss__gradient_of_a_parameter__is_that_of_finite_differences():
    """Of the heads, which do not change what is proposed."""
    method, batch = build().double(), detection_batch(2)
    images = Batch(batch.inputs.double(), batch.targets, batch.generator)
    loss_of(method, images).loss.backward()
    for parameter in (method.mask_head.classes.bias, method.box_head.classes.bias, method.box_head.boxes.bias):
        slope = parameter.grad.flatten()[0].item()
        with torch.no_grad():
            parameter.view(-1)[0] += 1e-4
            above = loss_of(method, images).loss.item()
            parameter.view(-1)[0] -= 2e-4
            below = loss_of(method, images).loss.item()
            parameter.view(-1)[0] += 1e-4
        assert (above - below) / 2e-4 == pytest.approx(slope, rel=1e-2, abs=1e-5)


@pytest.mark.slow
def test_operations__without_values__are_those_of_a_real_step():
    method, batch = build(), detection_batch(2)
    counted = [
        count_operations(method, batch.inputs, batch.targets, draw)
        for draw in (method.draw(batch, 0.5), method.draw_to_count(batch))
    ]
    assert counted[0] == counted[1] > 1e8


# Proposals and detections


def greedy(boxes, scores, threshold):
    kept = []
    for place in sorted(range(len(boxes)), key=lambda i: -scores[i]):
        if all(overlap(boxes[place], boxes[other]) <= threshold for other in kept):
            kept.append(place)
    return kept


def test_propose__two_maps__keeps_the_best_that_overlap_no_better_one_of_their_map():
    levels = anchors_of([(6, 6), (3, 3)], [8, 16], [16.0, 32.0], [1.0])
    anchors = torch.cat(levels)
    judged = judged_at_random(anchors, 2)
    judged = AnchorPredictions(judged.logits, judged.deltas * 0.2)
    sizes = torch.tensor([[48, 48], [30, 40]])
    found, usable = propose(judged, levels, sizes, 20, 12, 0.5)
    assert found.shape == (2, 12, 4) and usable.shape == (2, 12)
    for number, (height, width) in enumerate(sizes.tolist()):
        kept = []
        for start, end in ((0, 36), (36, 45)):
            best = sorted(range(start, end), key=lambda i: -judged.logits[number, i])[:20]
            moved = {}
            for i in best:
                x1, y1, x2, y2 = anchors[i].tolist()
                dx, dy, dw, dh = judged.deltas[number, i].tolist()
                x, y = (x1 + x2) / 2 + dx * (x2 - x1), (y1 + y2) / 2 + dy * (y2 - y1)
                w, h = (x2 - x1) * math.exp(dw), (y2 - y1) * math.exp(dh)
                box = [max(x - w / 2, 0), max(y - h / 2, 0), min(x + w / 2, width), min(y + h / 2, height)]
                if box[2] > box[0] and box[3] > box[1]:
                    moved[i] = box
            names = list(moved)
            own = greedy([moved[i] for i in names], [float(judged.logits[number, i]) for i in names], 0.5)
            kept += [(float(judged.logits[number, names[k]]), moved[names[k]]) for k in own]
        expected = [box for _, box in sorted(kept, reverse=True)[:12]]
        torch.testing.assert_close(found[number][usable[number]], torch.tensor(expected), atol=1e-4, rtol=0)


def test_keep_best__two_classes__suppresses_within_a_class_and_leaves_out_the_unsure():
    proposals = torch.tensor([[[10.0, 10, 30, 30], [11, 10, 31, 30], [40, 40, 60, 62], [1, 1, 5, 5]]])
    logits = torch.full((4, 3), -9.0)
    logits[0, 1], logits[1, 1], logits[1, 2], logits[2, 2], logits[3, 0] = 2, 1, 1, 3, 5
    usable = torch.tensor([[True, True, True, True]])
    sizes = torch.tensor([[50, 64]])
    found = keep_best(logits, torch.zeros(4, 2, 4), proposals, usable, sizes, 0.3, 0.5, 5)
    assert found.counts == [3]
    assert found.labels[0].tolist() == [2, 1, 2, 0, 0]
    assert found.boxes[0, 0].tolist() == [40, 40, 60, 50]  # cut off at the border
    assert found.boxes[0, 1].tolist() == [10, 10, 30, 30]
    torch.testing.assert_close(found.scores[0, :3], torch.tensor([1.0, 1.0, 0.5]), atol=1e-4, rtol=0)
    nobody = keep_best(logits, torch.zeros(4, 2, 4), proposals, ~usable, sizes, 0.3, 0.5, 5)
    assert nobody.counts == [0] and nobody.boxes.shape == (1, 5, 4)
    surest = keep_best(logits, torch.zeros(4, 2, 4), proposals, usable, sizes, 0.3, 0.5, 2)
    assert surest.counts == [2] and torch.equal(surest.boxes, found.boxes[:, :2])


@pytest.mark.parametrize(("least", "count"), [(0.5, 0), (0.4999, 1)])
def test_keep_best__score_exactly_on_the_limit__is_not_above_it(least, count):
    proposals, usable, sizes = torch.tensor([[[1.0, 1, 9, 9]]]), torch.tensor([[True]]), torch.tensor([[16, 16]])
    found = keep_best(torch.zeros(1, 2), torch.zeros(1, 1, 4), proposals, usable, sizes, least, 0.5, 3)
    assert found.counts == [count]


@pytest.mark.parametrize(
    ("limits", "expected"),
    # The maps have 768, 192, 48, 12 and 3 anchors.
    [({"after_nms": (1000, 1000)}, (100 + 100 + 63, 80 + 80 + 63)), ({"after_nms": (64, 48)}, (64, 48))],
    ids=["before suppression", "after suppression"],
)
def test_propose__in_training_and_in_evaluation__has_their_own_limits(limits, expected):
    method, batch = build(rpn_nms=1.0, **limits), detection_batch(2)
    judged = judged_at_random(method.anchors, 2)
    found = [method.train(is_training)._propose(judged, batch.targets)[0].shape[1] for is_training in (True, False)]
    assert found == [*expected]


@pytest.mark.parametrize(
    "box", [[5.3, -3.7, 41.9, 30.2], [0, 0, 50, 37], [20.1, 9, 20.9, 9.2], [-20, 30, 8.5, 60], [60, 3, 70, 9]]
)
def test_paste__any_box__is_grid_sample_between_centres(box):
    mask = torch.rand(28, 28, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    box = torch.tensor(box, dtype=torch.float64)
    pixels = (torch.arange(count, dtype=torch.float64) + 0.5 for count in (37, 50))
    y, x = ((place - box[k]) / (box[k + 2] - box[k]) * 2 - 1 for place, k in zip(pixels, (1, 0), strict=True))
    places = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], dim=-1)[None]
    expected = F.grid_sample(mask[None, None], places, align_corners=False)[0, 0] >= 0.5
    assert torch.equal(paste(mask, box, 37, 50), expected)


def test_paste__exactly_a_half__belongs_to_the_object():
    found = paste(torch.full((4, 4), 0.5), torch.tensor([2.0, 1, 6, 5]), 8, 9)
    expected = torch.zeros(8, 9, dtype=torch.bool)
    expected[1:5, 2:6] = True
    assert torch.equal(found, expected)


@pytest.mark.parametrize("has_norm", [True, False])
def test_heads__with_and_without_norms__have_one_after_each_convolution(has_norm):
    method = build(head_norm=has_norm, box_convs=2, mask_convs=3)
    for head, count in ((method.box_head, 2), (method.mask_head, 3)):
        assert sum(isinstance(part, LayerNorm2d) for part in head.modules()) == has_norm * count


def test_to_original__box_of_the_input__is_scaled_and_cut_off():
    found = to_original(torch.tensor([[10.0, 8, 70, 40]]), torch.tensor([48, 64]), torch.tensor([480, 640]))
    assert found.tolist() == [[100, 80, 640, 400]]


@pytest.mark.slow
def test_training__two_images__finds_their_objects_again():
    """The surest boxes, with their classes and masks, are the three objects after some steps on them alone."""
    method, batch = build("windowed", roi_samples=16, mask_side=7), detection_batch(2, objects=(2, 1))
    optimizer = torch.optim.AdamW(method.parameters(), lr=3e-3, weight_decay=0.0)
    for step in range(100):
        optimizer.zero_grad()
        loss_of(method, batch, step).loss.backward()
        optimizer.step()
    method.eval()
    with torch.no_grad():
        found = method.detect(batch.inputs, batch.targets)
    for detections, target in zip(found, batch.targets, strict=True):
        surest = detections.boxes[: len(target["boxes"])]
        for box, label, bitmap in zip(target["boxes"], target["labels"], target["masks"], strict=True):
            overlaps = [overlap(box.tolist(), other.tolist()) for other in surest]
            best = overlaps.index(max(overlaps))
            assert overlaps[best] > 0.6 and detections.labels[best] == label
            drawn = paste(detections.masks[best], detections.boxes[best].double(), 64, 64)
            assert (drawn & (bitmap > 0)).sum() / (drawn | (bitmap > 0)).sum() > 0.6
