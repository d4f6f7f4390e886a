"""Anchors, which object a box belongs to, and which boxes are sampled; values exactly on a threshold."""

import math

import pytest
import torch

from pipeline.dense.boxes import anchors_of, decode, encode, has_area, match, sample, suppress
from pipeline.dense.proposals import AnchorPredictions, ProposalNetwork, propose


def test_anchors__of_a_level__have_their_area_and_ratio_around_whole_strides():
    (found,) = anchors_of([(2, 3)], [4], [32.0], [0.5, 1.0, 2.0])
    assert found.shape == (18, 4)
    heights, widths = found[:, 3] - found[:, 1], found[:, 2] - found[:, 0]
    torch.testing.assert_close(heights * widths, torch.full((18,), 1024.0))
    torch.testing.assert_close((heights / widths).view(6, 3), torch.tensor([0.5, 1.0, 2.0]).expand(6, 3))
    centres = (found[:, :2] + found[:, 2:]).view(6, 3, 2)[:, 0] / 2
    assert centres.round(decimals=3).tolist() == [[0, 0], [4, 0], [8, 0], [0, 4], [4, 4], [8, 4]]
    assert float(widths[0]) == pytest.approx(32 * math.sqrt(2))  # 45.25, where torchvision has 46


def test_decode__codes_of_a_box__lead_to_it_and_grow_no_side_beyond_a_limit():
    start, box = torch.tensor([10.0, 20, 30, 60]), torch.tensor([12.0, 5, 44, 21])
    torch.testing.assert_close(decode(encode(box, start, (10.0, 5.0)), start, (10.0, 5.0)), box)
    wild = decode(torch.tensor([0.0, 0, 99, -99]), start, (1.0, 1.0))
    torch.testing.assert_close(wild, torch.tensor([20 - 625.0, 40, 20 + 625, 40]))  # 1000 / 16 times as wide


def test_match__thresholds_and_best_boxes__follow_their_definition():
    objects = torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30], [50, 50, 60, 60]])
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 5], [20, 20, 24, 30], [40, 40, 44, 44], [0, 0, 10, 2]])
    found = match(objects, boxes, 0.3, 0.7, is_best_kept=True)
    # IoU 1, 0.5, 0.4 (the best of the second object), 0 (nothing touches the third), 0.2
    assert found.positive.tolist() == [True, False, True, False, False]
    assert found.negative.tolist() == [False, False, False, True, True]
    assert found.objects[:3].tolist() == [0, 0, 1]
    plain = match(objects, boxes, 0.3, 0.7)
    assert plain.positive.tolist() == [True, False, False, False, False]


def test_match__no_object__makes_everything_background():
    found = match(torch.zeros(0, 4), torch.rand(5, 4), 0.3, 0.7, is_best_kept=True)
    assert not found.positive.any() and found.negative.all()


@pytest.mark.parametrize(
    ("num_positive", "num_negative", "expected"),
    [(50, 50, (4, 12)), (2, 50, (2, 14)), (50, 5, (4, 5)), (0, 50, (0, 16)), (50, 0, (4, 0)), (0, 0, (0, 0))],
)
def test_sample__more_or_fewer_than_wanted__takes_a_quarter_of_16_and_fills_up(num_positive, num_negative, expected):
    generator = torch.Generator().manual_seed(0)
    kind = torch.zeros(1, 120, dtype=torch.long)
    kind[0, torch.randperm(120, generator=generator)[: num_positive + num_negative]] = 2
    kind[0, kind[0].nonzero()[:num_positive, 0]] = 1
    priority = torch.rand(1, 120, generator=generator)
    found = sample(kind == 1, kind == 2, priority, 16, 0.25)
    assert found.chosen.shape == (1, 16)
    chosen = found.chosen[found.valid].tolist()
    assert len(set(chosen)) == len(chosen) == sum(expected)
    for wanted, count in ((1, expected[0]), (2, expected[1])):
        first = sorted((kind[0] == wanted).nonzero()[:, 0].tolist(), key=lambda place: priority[0, place])[:count]
        assert sorted(i for i in chosen if kind[0, i] == wanted) == sorted(first)
    assert found.positive[0].tolist() == [True] * expected[0] + [False] * (16 - expected[0])


def test_match__overlaps_exactly_on_a_threshold__are_an_object_from_the_upper_and_not_background_from_the_lower():
    objects = torch.tensor([[0.0, 0, 8, 8]])
    boxes = torch.tensor([[0.0, 0, 8, 4], [0, 0, 4, 4], [0, 0, 8, 3.9], [0, 0, 4, 3.9]])  # IoU 0.5, 0.25, just below
    found = match(objects, boxes, 0.25, 0.5)
    assert found.positive.tolist() == [True, False, False, False]
    assert found.negative.tolist() == [False, False, False, True]


def test_match__two_boxes_that_are_equally_the_best__are_both_kept():
    objects = torch.tensor([[0.0, 0, 8, 8], [20, 20, 28, 28]])
    boxes = torch.tensor([[20.0, 20, 28, 22], [20, 26, 28, 28], [20, 20, 28, 21]])
    assert match(objects, boxes, 0.3, 0.7, is_best_kept=True).positive.tolist() == [True, True, False]


def test_match__a_box_over_two_objects__belongs_to_the_one_that_it_overlaps_more():
    objects = torch.tensor([[0.0, 0, 8, 8], [4, 0, 12, 8]])
    boxes = torch.tensor([[1.0, 0, 9, 8], [3, 0, 11, 8], [40, 0, 48, 8]])
    assert match(objects, boxes, 0.3, 0.5).objects[:2].tolist() == [0, 1]


def test_sample__fewer_boxes_than_wanted__has_a_slot_for_each():
    kind = torch.tensor([[1, 2, 2, 0, 2]])
    found = sample(kind == 1, kind == 2, torch.tensor([[0.9, 0.4, 0.2, 0.1, 0.3]]), 16, 0.5)
    assert found.chosen[found.valid].tolist() == [0, 2, 4, 1]
    assert found.valid.tolist() == [[True] * 4 + [False]]


@pytest.mark.parametrize(("count", "expected"), [(3, 1), (4, 1), (6, 1), (7, 1), (8, 2)])
def test_sample__share_that_is_no_whole_number__is_rounded_down_to_one_at_least(count, expected):
    kind = torch.tensor([[1] * 5 + [2] * 10])
    found = sample(kind == 1, kind == 2, torch.arange(15.0)[None], count, 0.25)
    assert found.chosen.tolist() == [[*range(expected), *range(5, 5 + count - expected)]]
    assert found.positive.sum() == expected


def test_has_area__sides_of_zero_or_not_finite__have_none():
    boxes = torch.tensor([[0.0, 0, 1, 1], [2, 2, 2, 5], [2, 2, 5, 2], [3, 3, 1, 1], [0, 0, math.inf, 1]])
    assert has_area(boxes).tolist() == [True, False, False, False, False]


def test_suppress__overlap_exactly_on_the_threshold_or_of_another_group__is_kept():
    boxes = torch.tensor([[0.0, 0, 8, 8], [0, 0, 8, 4], [0, 0, 8, 4.5], [0, 0, 8, 8]])
    scores, groups = torch.tensor([0.9, 0.8, 0.7, 0.95]), torch.tensor([0, 0, 0, 1])
    assert suppress(boxes, scores, groups, 0.5).tolist() == [3, 0, 1]


class Told(torch.nn.Module):
    """A head whose outputs are given."""

    def __init__(self, *outputs):
        super().__init__()
        self.outputs = outputs

    def forward(self, maps):
        return self.outputs


def test_proposal_network__maps_of_any_shape__are_listed_as_anchors_are():
    """Level by level, row by row, column by column, ratio by ratio; four coordinates each."""
    network, sizes = ProposalNetwork(4, 3, 1), [(2, 5), (1, 3)]
    logits, deltas, places = [], [], []
    for number, (rows, cols) in enumerate(sizes):
        values = torch.empty(1, 3, 4, rows, cols)
        for row in range(rows):
            for col in range(cols):
                for ratio in range(3):
                    places.append(1000 * number + 100 * row + 10 * col + ratio)
                    values[0, ratio, :, row, col] = places[-1] + torch.tensor([0, 0.1, 0.2, 0.3])
        logits.append(values[:, :, 0])
        deltas.append(values.flatten(1, 2))
    network.head = Told(logits, deltas)
    found = network([])
    assert found.logits[0].tolist() == places
    torch.testing.assert_close(found.deltas[0], torch.tensor(places)[:, None] + torch.tensor([0, 0.1, 0.2, 0.3]))


def test_propose__boxes_that_a_network_has_moved__are_constants_for_the_heads():
    levels = anchors_of([(2, 2)], [8], [16.0], [1.0])
    judged = AnchorPredictions(torch.zeros(1, 4, requires_grad=True), torch.zeros(1, 4, 4, requires_grad=True))
    found, usable = propose(judged, levels, torch.tensor([[16, 16]]), 4, 4, 0.7)
    assert usable.all() and not found.requires_grad


def test_propose__fewer_boxes_left_than_slots__leaves_slots_empty():
    level = torch.tensor([[0.0, 0, 8, 8], [0, 0, 8, 7], [8, 8, 16, 16]])
    judged = AnchorPredictions(torch.tensor([[3.0, 2, 1]]), torch.zeros(1, 3, 4))
    found, usable = propose(judged, [level], torch.tensor([[16, 16]]), 3, 3, 0.5)
    assert usable.tolist() == [[True, True, False]]
    assert torch.equal(found[0, :2], level[[0, 2]])
