"""What every task must do. Parametrised over the registry: a new task is tested by existing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import pipeline
from pipeline.core.config import CONFIGS, Layers, read_yaml
from pipeline.core.errors import ConfigError
from pipeline.core.registry import TASKS
from pipeline.core.trees import batch_size, tensors_of
from pipeline.data.audio.clips import LENGTH, Clip
from pipeline.data.dense.coco_samples import Picture
from pipeline.data.dense.objects import Objects
from pipeline.data.kind import kind_of, parse_data
from pipeline.data.readers.ade20k import Scene
from pipeline.data.text.tokens import Tokens
from pipeline.methods.base import METHODS, Primary
from pipeline.tasks.detect import EXAMPLE_EDGES

CPU = torch.device("cpu")
every_task = pytest.mark.parametrize("name", TASKS.names())


def data_of(**changes):
    path = CONFIGS / "data" / "fashion_mnist.yaml"
    return parse_data(Layers(("fashion_mnist", {**read_yaml(path)["data"], **changes})))


def shapes(tree):
    return [(tuple(tensor.shape), tensor.dtype) for tensor in tensors_of(tree)]


TEXTS = {"text_classify": "books", "language": "books_stream"}  # tasks that see no images, and a set for each


def text_samples(name):
    """The data of a task of texts, and four samples."""
    data = parse_data(Layers(("data", read_yaml(CONFIGS / "data" / f"{TEXTS[name]}.yaml")["data"])))
    tokens = np.arange(5, 12)
    if name == "language":
        return data, [(tokens, tokens > 5)] * 4
    return data, [(Tokens(tokens.tolist(), [0] * 7), label % 2) for label in range(4)]


def image_samples(name):
    """The data of a task of images, and four samples."""
    if name == "detect":
        data = parse_data(Layers(("data", read_yaml(CONFIGS / "data" / "fashion_scenes_coco.yaml")["data"])))
        pictures = [Image.new("L", (40 + place, 64), 90) for place in range(4)]
        return data, [Picture(picture, whole_objects(7), place, place) for place, picture in enumerate(pictures)]
    if name == "segment":
        data = parse_data(Layers(("data", read_yaml(CONFIGS / "data" / "fashion_scenes_ade.yaml")["data"])))
        return data, [Scene(Image.new("L", (70, 50 + label), 90), labels_of(50 + label, 70)) for label in range(4)]
    data = data_of(image_size=[28, 42])
    return data, [(Image.new("L", (28, 28), 90), label) for label in range(4)]


@pytest.mark.parametrize("name", ["classify", "pretrain"])
def test_example__of_sounds__has_the_shapes_of_a_training_batch(name):
    data = parse_data(Layers(("data", read_yaml(CONFIGS / "data" / "spoken_words.yaml")["data"])))
    wave = np.arange(LENGTH, dtype=np.int16)
    task, view = TASKS.get(name)(data, CPU, 0.1), kind_of(data).train_view()
    made = task.train_batch(*task.collate([view(Clip(wave, label, (wave,))) for label in range(4)]))
    assert [shapes(tree) for tree in made] == [shapes(tree) for tree in task.example(data, 4)]


def whole_objects(count):
    """Objects in the middle of any picture, so that none is cut off, with many edges."""
    angles = np.linspace(0, 2 * np.pi, EXAMPLE_EDGES, endpoint=False)
    outlines = [[np.stack([20 + 9 * np.cos(angles), 32 + 2 * np.sin(angles)], axis=1).flatten()]] * count
    labels, crowds = np.ones(count, dtype=np.int64), np.zeros(count, dtype=np.uint8)
    return Objects(labels, labels, np.array([[0.0, 0, 99, 99]] * count), np.ones(count), crowds, outlines)


def labels_of(height, width):
    return (np.arange(height * width).reshape(height, width) % 12).astype(np.uint8)


@every_task
def test_example__of_every_task__has_the_shapes_of_a_training_batch(name):
    data, samples = text_samples(name) if name in TEXTS else image_samples(name)
    task, view = TASKS.get(name)(data, CPU, 0.1), kind_of(data).train_view()
    batch = task.collate([view(sample) for sample in samples])
    made, example = task.train_batch(*batch), task.example(data, 4)
    assert [shapes(tree) for tree in made] == [shapes(tree) for tree in example]
    assert batch_size(made[0]) == 4


@pytest.mark.parametrize("name", [name for name in TASKS.names() if name not in (*TEXTS, "segment", "detect")])
def test_eval_batch__of_every_task_of_images__is_the_same_every_time(name):
    data = data_of(augment={"erasing": 1.0, "mixup": 0.8})
    task = TASKS.get(name)(data, CPU, 0.1)
    pixels, labels = torch.randint(256, (4, 1, 28, 28), dtype=torch.uint8), torch.arange(4)
    first, second = (task.eval_batch(pixels.clone(), labels) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(tensors_of(first), tensors_of(second), strict=True))
    bits = [[number >> bit & 1 for bit in range(10)] for number in range(4)]
    assert first[1].tolist() == (bits if name == "attributes" else [0, 1, 2, 3])


def test_eval_batch__of_whole_images__has_their_own_sizes_and_published_labels():
    data, samples = image_samples("segment")
    task, view = TASKS.get("segment")(data, CPU), kind_of(data).eval_view()
    collated = task.collate([view(sample) for sample in samples])
    images, targets = task.eval_batch(*collated)
    assert [image.shape[1:] for image in images] == [pixels.shape[1:] for pixels in collated[0]]
    assert {min(image.shape[1:]) for image in images} == {64}
    torch.testing.assert_close(images[0] * 0.243 + 0.314, collated[0][0] / 255)
    for target, sample in zip(targets, samples, strict=True):
        expected = torch.from_numpy(sample.labels.astype(int)) - 1
        assert torch.equal(target["labels"].long(), torch.where(expected < 0, 255, expected))
    assert batch_size(images) == 4


def test_batch__of_pictures_with_objects__is_zero_outside_of_the_picture():
    data, samples = image_samples("detect")
    task, view = TASKS.get("detect")(data, CPU), kind_of(data).eval_view()
    pixels, targets = task.collate([view(sample) for sample in samples])
    images, known = task.eval_batch(pixels, targets)
    for image, target, sample in zip(images, known, samples, strict=True):
        width, height = sample.image.size
        assert target["size"].tolist() == [height, width]
        expected = torch.full((1, height, width), (90 / 255 - 0.314) / 0.243)
        torch.testing.assert_close(image[:, :height, :width], expected)
        assert not image[:, height:].any() and not image[:, :, width:].any()
    assert known[0].keys() == targets[0].keys()


@pytest.mark.parametrize("name", TEXTS)
def test_eval_batch__of_every_task_of_texts__is_what_was_collated(name):
    data, samples = text_samples(name)
    task, view = TASKS.get(name)(data, CPU, 0.1), kind_of(data).eval_view()
    batch = task.collate([view(sample) for sample in samples])
    found = task.eval_batch(*batch)
    assert all(torch.equal(one, other) for one, other in zip(tensors_of(found), tensors_of(batch), strict=True))


def test_train_batch__labels_of_texts__are_smoothed():
    data, samples = text_samples("text_classify")
    task, view = TASKS.get("text_classify")(data, CPU, 0.1), kind_of(data).train_view()
    _, targets = task.train_batch(*task.collate([view(sample) for sample in samples]))
    torch.testing.assert_close(targets, torch.tensor([[0.95, 0.05], [0.05, 0.95]] * 2))


@pytest.mark.parametrize("name", METHODS.names())
def test_task__of_every_method__exists(name):
    assert METHODS.get(name).Config.task in TASKS.names()


def test_num_outputs__detection_in_images_with_a_class_each__is_refused():
    with pytest.raises(ConfigError, match="'fashion_mnist' is of kind images, which has no objects"):
        TASKS.get("detect").num_outputs(data_of())


def test_num_outputs__segmentation_of_images_with_a_class_each__is_refused():
    with pytest.raises(ConfigError, match="'fashion_mnist' is of kind images, which has no class for each pixel"):
        TASKS.get("segment").num_outputs(data_of())


def test_num_outputs__pretraining_and_classification__are_none_and_one_per_class():
    assert [TASKS.get(name).num_outputs(data_of()) for name in ("pretrain", "classify")] == [0, 10]


@pytest.mark.parametrize(("is_lower_better", "expected"), [(False, 3.0), (True, 2.0)])
def test_primary__two_values__keeps_the_better(is_lower_better, expected):
    assert Primary("x", is_lower_better).better(2.0, 3.0) == expected


@pytest.mark.parametrize("is_lower_better", [True, False])
def test_primary__not_a_number__is_worse_than_any_number_but_better_than_nothing(is_lower_better):
    primary, nan = Primary("x", is_lower_better), float("nan")
    assert primary.beats(nan, None) and primary.beats(2.0, nan)
    assert not primary.beats(nan, 2.0) and not primary.beats(nan, nan)
    assert primary.better(nan, 2.0) == primary.better(2.0, nan) == 2.0


@pytest.mark.parametrize("is_lower_better", [False, True])
def test_primary__as_good_as_the_best__does_not_beat_it(is_lower_better):
    primary = Primary("x", is_lower_better)
    assert primary.beats(2.0, None) and not primary.beats(2.0, 2.0)
    assert primary.beats(1.0, 2.0) == is_lower_better == (not primary.beats(3.0, 2.0))


@every_task
def test_primary__of_every_task__is_a_share_or_a_perplexity(name):
    """Of all that tasks are judged by, perplexity alone is better when it is lower."""
    primary = TASKS.get(name).primary
    assert primary is None or primary.is_lower_better == (primary.name == "perplexity")


@pytest.mark.parametrize("package", ["engine", "data", "models", "study", "plan", "report", "tracking"])
def test_no_package__but_tasks_and_methods__names_pretraining(package):
    """A branch for one task elsewhere would have to be edited for the next."""
    files = Path(pipeline.__file__).parent.glob(f"{package}/*.py")
    assert [path.name for path in files if '"pretrain"' in path.read_text()] == []
