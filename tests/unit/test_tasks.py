"""What every task must do. Parametrised over the registry: a new task is tested by existing."""

from pathlib import Path

import pytest
import torch
from PIL import Image

import pipeline
from pipeline.config import CONFIGS, Layers, read_yaml
from pipeline.data.kind import kind_of, parse_data
from pipeline.methods.base import METHODS, Primary
from pipeline.registry import TASKS
from pipeline.trees import batch_size, tensors_of

CPU = torch.device("cpu")
every_task = pytest.mark.parametrize("name", TASKS.names())


def data_of(**changes):
    path = CONFIGS / "data" / "fashion_mnist.yaml"
    return parse_data(Layers(("fashion_mnist", {**read_yaml(path)["data"], **changes})))


def shapes(tree):
    return [(tuple(tensor.shape), tensor.dtype) for tensor in tensors_of(tree)]


@every_task
def test_example__of_every_task__has_the_shapes_of_a_training_batch(name):
    data = data_of(image_size=[28, 42])
    task, view = TASKS.get(name)(data, CPU, 0.1), kind_of(data).train_view()
    batch = task.collate([view((Image.new("L", (28, 28), 90), label)) for label in range(4)])
    made, example = task.train_batch(*batch), task.example(data, 4)
    assert [shapes(tree) for tree in made] == [shapes(tree) for tree in example]
    assert batch_size(made[0]) == 4


@every_task
def test_eval_batch__of_every_task__is_the_same_every_time(name):
    data = data_of(augment={"erasing": 1.0, "mixup": 0.8})
    task = TASKS.get(name)(data, CPU, 0.1)
    pixels, labels = torch.randint(256, (4, 1, 28, 28), dtype=torch.uint8), torch.arange(4)
    first, second = (task.eval_batch(pixels.clone(), labels) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(tensors_of(first), tensors_of(second), strict=True))
    bits = [[number >> bit & 1 for bit in range(10)] for number in range(4)]
    assert first[1].tolist() == (bits if name == "attributes" else [0, 1, 2, 3])


@pytest.mark.parametrize("name", METHODS.names())
def test_task__of_every_method__exists(name):
    assert METHODS.get(name).Config.task in TASKS.names()


def test_num_outputs__pretraining_and_classification__are_none_and_one_per_class():
    assert [TASKS.get(name).num_outputs(data_of()) for name in ("pretrain", "classify")] == [0, 10]


@pytest.mark.parametrize(("is_lower_better", "expected"), [(False, 3.0), (True, 2.0)])
def test_primary__two_values__keeps_the_better(is_lower_better, expected):
    assert Primary("x", is_lower_better).better(2.0, 3.0) == expected


@pytest.mark.parametrize("package", ["engine", "data", "models", "study", "plan", "report", "track"])
def test_no_package__but_tasks_and_methods__names_pretraining(package):
    """A branch for one task elsewhere would have to be edited for the next."""
    files = Path(pipeline.__file__).parent.glob(f"{package}/*.py")
    assert [path.name for path in files if '"pretrain"' in path.read_text()] == []
