"""Trees of tensors: inputs and targets of any task."""

from typing import NamedTuple

import pytest
import torch

from pipeline.core.trees import batch_size, device_of, map_tree, tensors_of, to_device


class Boxes(NamedTuple):
    corners: torch.Tensor
    labels: torch.Tensor


# A detector's: pictures of one size, and for each of them boxes of its own number.
PICTURES = {"pictures": torch.zeros(2, 3, 8, 8), "sizes": (torch.tensor([8, 8]), torch.tensor([6, 4]))}
OBJECTS = [Boxes(torch.ones(3, 4), torch.arange(3)), Boxes(torch.ones(0, 4), torch.arange(0))]


def test_map_tree__dicts_lists_and_tuples__keeps_their_kinds_and_order():
    doubled = map_tree(lambda tensor: tensor * 2, {"inputs": PICTURES, "targets": OBJECTS})
    assert list(doubled) == ["inputs", "targets"] and isinstance(doubled["targets"][0], Boxes)
    assert isinstance(doubled["inputs"]["sizes"], tuple) and doubled["inputs"]["sizes"][1].tolist() == [12, 8]
    assert doubled["targets"][0].labels.tolist() == [0, 2, 4]


def test_map_tree__something_that_is_no_tensor__says_what_it_found():
    with pytest.raises(TypeError, match="found a str in a tree of tensors; expected tensors, dicts, lists and tuples"):
        map_tree(lambda tensor: tensor, {"inputs": torch.zeros(1), "name": "x"})


def test_tensors_of__any_tree__gives_each_once_in_order():
    assert [tuple(tensor.shape) for tensor in tensors_of(OBJECTS)] == [(3, 4), (3,), (0, 4), (0,)]


@pytest.mark.parametrize("tree", [torch.zeros(2, 5), PICTURES, OBJECTS, (torch.zeros(2), torch.zeros(2, 3))])
def test_batch_size__of_any_tree__counts_samples(tree):
    assert batch_size(tree) == 2


def test_to_device__any_tree__moves_every_tensor():
    moved = to_device({"inputs": PICTURES, "targets": OBJECTS}, torch.device("meta"))
    assert {tensor.device.type for tensor in tensors_of(moved)} == {"meta"} and device_of(moved).type == "meta"
