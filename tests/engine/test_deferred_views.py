"""Views that a device completes against those of timm, torchvision and Pillow: the same pixels for the same seeds."""

import os
from io import BytesIO
from pathlib import Path
from tarfile import open as open_tar

import numpy as np
import pytest
import torch
from PIL import Image
from pixels import same_as_pillows
from tiny_runs import StopAfter, differing, fit, tiny_run, weights_of

from pipeline.core.registry import TASKS
from pipeline.core.seeds import seed_everything
from pipeline.data.images.gpu.device_views import DeviceViews, PrefetchToDevice
from pipeline.data.images.gpu.interface import Completion
from pipeline.data.images.gpu.residence import ResidentImages
from pipeline.data.images.images import ImageSet
from pipeline.data.images.transforms import ImageView
from pipeline.data.kind import kind_of
from pipeline.data.loader import BatchPlan, eval_loader, train_loader
from pipeline.data.store.opening import open_split
from pipeline.data.store.prepare import prepare
from pipeline.engine.batches import sources_of_run
from pipeline.engine.parallel.distributed import World
from pipeline.site import Site

CPU = torch.device("cpu")
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
RGB = {"channels": 3, "mean": [0.1, 0.5, 0.9], "std": [0.2, 0.3, 0.4]}
SIZES = [(40, 40), (33, 61), (61, 33), (20, 20), (64, 30), (200, 90), (7, 90), (32, 32)]  # some too large for a device
CROPS = {
    "resized": {"crop": "resized"},
    "bilinear": {"crop": "resized", "interpolation": "bilinear", "scale": [0.5, 1.0]},
    "padded": {"crop": "padded", "padding": 4},
    "none": {"crop": "none", "hflip": 0.5},
    "still": {"crop": "none", "hflip": 0.0},
}
SIDES = {"square": 32, "wide": [24, 40]}


class Pictures(ImageSet):
    """Images of any size, in memory."""

    def __init__(self, images, mode="RGB"):
        self.pictures, self.labels, self.mode = (
            [image.convert(mode) for image in images],
            list(range(len(images))),
            mode,
        )

    def image(self, index):
        return self.pictures[index]

    def name(self, index):
        return str(index)

    def content(self, index):
        return self.pictures[index].tobytes()

    def listing(self):
        return b""

    def subset(self, indices, labels):
        raise NotImplementedError


def noisy(width, height, seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def pictures(mode="RGB"):
    return Pictures([noisy(*size, seed) for seed, size in enumerate(SIZES)], mode)


def config(mode="RGB", **changes):
    return tiny_run({"data": {**(RGB if mode == "RGB" else {}), **changes}, "model": {"patch_size": 4}}).data


def loaded(plan, samples, view, start=0, rank=0, world_size=1, workers=0):
    """Batches as a loader hands them over, of a view of the host or a deferred one."""
    own = getattr(view, "collate", None), getattr(view, "handover", None)
    return train_loader(plan, samples, view, start, rank, world_size, workers, *own)


def train_batches(samples, data, on_device, epochs=4, workers=0, start=0, rank=0, world_size=1, views=None):
    """uint8 batches and labels of some epochs, two micro-batches an update."""
    kind = kind_of(data)
    view = kind.deferred(kind.train_view()) if on_device else kind.train_view()
    plan = BatchPlan(0, len(samples), 1, epochs, len(samples), 2)
    views = views or DeviceViews(data, CPU)
    loader = loaded(plan, samples, view, start, rank, world_size, workers)
    return [(views.complete(inputs) if on_device else inputs, labels) for inputs, labels in loader]


def assert_same(found, expected):
    assert_labels(found, expected)
    for (a, _), (b, _) in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def assert_same_as_pillows(found, expected):
    """Of views with operations that warp."""
    assert_labels(found, expected)
    assert same_as_pillows(*(torch.cat([images for images, _ in batches]) for batches in (found, expected)))


def assert_labels(found, expected):
    assert len(found) == len(expected) > 0
    for (a, a_labels), (b, b_labels) in zip(found, expected, strict=True):
        assert a.dtype == b.dtype == torch.uint8
        assert torch.equal(a_labels, b_labels)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("side", SIDES.values(), ids=SIDES)
@pytest.mark.parametrize("augment", CROPS.values(), ids=CROPS)
def test_train_views__completed_on_a_device__equal_those_of_the_host(augment, side, mode):
    data = config(mode, image_size=side, augment=augment)
    assert_same(*(train_batches(pictures(mode), data, on_device) for on_device in (True, False)))


@pytest.mark.parametrize("crop", [1.0, 0.875, 0.5])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_eval_views__completed_on_a_device__equal_those_of_the_host(crop, interpolation):
    data = config(image_size=32, eval_crop=crop, augment={"crop": "none", "interpolation": interpolation})
    kind, views = kind_of(data), DeviceViews(data, CPU)
    expected = list(eval_loader(pictures(), kind.eval_view(), 3, 0, 1, 0))
    view = kind.deferred(kind.eval_view())
    deferred = eval_loader(pictures(), view, 3, 0, 1, 0, view.collate)
    assert_same([(views.complete(inputs), labels) for inputs, labels in deferred], expected)


def test_deferred__step_that_needs_pixels__is_left_to_the_host():
    """timm resizes to rectangles with a filter of its own before it crops the centre."""
    data = config(image_size=[24, 40], eval_crop=0.875)
    kind = kind_of(data)
    assert kind.deferred(kind.eval_view()) is None


@pytest.mark.slow
def test_deferred_batches__workers_ranks_and_later_starts__are_those_of_one_process():
    data = config(image_size=32, augment=CROPS["resized"])
    alone = train_batches(pictures(), data, True)
    assert_same(train_batches(pictures(), data, True, workers=2), alone)
    assert_same(train_batches(pictures(), data, True, start=1, rank=1, world_size=2), alone[1 * 2 + 1 :: 2])


def test_deferred_batches__region_far_larger_than_the_view__is_shrunk_by_the_host():
    data = config(image_size=32, augment={"crop": "none"})
    kind = kind_of(data)
    view = kind.deferred(kind.train_view())
    small, large = (view((noisy(side, side, 0), 0))[0] for side in (64, 65))
    assert len(small.pixels) == 64 * 64
    assert len(large.pixels) == 32 * 32


@pytest.mark.slow
def test_run__views_on_a_device_or_on_the_host__is_the_same_run(images, tmp_path):
    run = tiny_run({"data": {"augment": {"crop": "resized", "hflip": 0.5}, "eval_crop": 0.875}})
    host, device = (fit(run, tmp_path / views, images, views=views) for views in ("host", "device"))
    assert differing(weights_of(host), weights_of(device)) == []
    assert host.paths.metrics.read_bytes() == device.paths.metrics.read_bytes()


@pytest.fixture(scope="module")
def photographs():
    source = Path(os.environ.get("PATCHWORK_DATA", "")) / "imagenet-samples-256" / "imagenet-samples-256.tar"
    if not source.is_file():
        pytest.skip("PATCHWORK_DATA does not name the development data")
    with open_tar(source) as tar:
        files = [member for member in tar if member.name.lower().endswith((".jpeg", ".jpg"))][::100]
        return Pictures([Image.open(BytesIO(tar.extractfile(member).read())) for member in files])


@pytest.mark.slow
@pytest.mark.data
def test_train_views__photographs_at_224_pixels__equal_those_of_the_host(photographs):
    data = config(image_size=224, augment={"crop": "resized"})
    assert_same(*(train_batches(photographs, data, on_device, epochs=2) for on_device in (True, False)))


COLOURS = {
    "jitter": {"color_jitter": 0.4},
    "increasing": {"rand_augment": "rand-m9-mstd0.5-inc1"},
    "plain": {"rand_augment": "rand-m14-n2", "interpolation": "bilinear"},
    "many": {"rand_augment": "rand-m10-n4-p1-mstd101-inc1"},
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("crop", ["resized", "padded"])
@pytest.mark.parametrize("colours", COLOURS.values(), ids=COLOURS)
def test_coloured_views__completed_on_a_device__equal_those_of_the_host(colours, crop, mode):
    data = config(mode, image_size=32, augment={"crop": crop, **colours})
    assert_same_as_pillows(*(train_batches(pictures(mode), data, on_device, epochs=8) for on_device in (True, False)))


@pytest.fixture(scope="module")
def opened(images, tmp_path_factory):
    """Both splits of the small set, and its manifest."""
    data = config("L")
    manifest = prepare(data, images, tmp_path_factory.mktemp("prepared"), progress=False)
    return {split: open_split(data, images, split) for split in ("train", "val")}, manifest


@pytest.mark.slow
@pytest.mark.parametrize("augment", [*CROPS.values(), {"crop": "resized", **COLOURS["increasing"]}])
def test_set_on_the_device__any_view__equals_those_of_the_host(opened, augment):
    data, (splits, manifest) = config("L", augment=augment), opened
    completion = Completion(data, CPU)
    train, val = completion.move_if_small(splits, manifest, threads=2).values()
    views = completion.views
    assert isinstance(train, ResidentImages)
    expected = train_batches(splits["train"], data, False, epochs=1)
    assert_same_as_pillows(train_batches(train, data, True, epochs=1, views=views), expected)
    view = kind_of(data).deferred(kind_of(data).eval_view())
    found = [(views.complete(inputs), labels) for inputs, labels in eval_loader(val, view, 16, 0, 1, 0, view.collate)]
    assert_same(found, list(eval_loader(splits["val"], kind_of(data).eval_view(), 16, 0, 1, 0)))


@pytest.mark.slow
def test_set_on_the_device__workers_ranks_and_later_starts__are_those_of_one_process(opened):
    data, (splits, manifest) = config("L", augment={"crop": "resized", **COLOURS["increasing"]}), opened
    completion = Completion(data, CPU)
    train = completion.move_if_small(splits, manifest, threads=0)["train"]
    views = completion.views
    alone = train_batches(train, data, True, epochs=2, views=views)
    assert_same(train_batches(train, data, True, epochs=2, views=views, workers=2), alone)
    assert_same(train_batches(train, data, True, 2, start=1, rank=1, world_size=2, views=views), alone[1 * 2 + 1 :: 2])


def test_set_on_the_device__batches__have_no_pixels(opened):
    data, (splits, manifest) = config("L"), opened
    train = Completion(data, CPU).move_if_small(splits, manifest, threads=0)["train"]
    view, plan = kind_of(data).deferred(kind_of(data).train_view()), BatchPlan(0, 120, 1, 1, 40, 1)
    batch, _ = next(iter(loaded(plan, train, view)))
    assert len(batch.pixels) == 0
    assert len(batch.cuts) == 40


def test_set_on_the_device__too_large_for_its_memory__stays_on_the_host(opened, monkeypatch, caplog):
    data, (splits, manifest) = config("L"), opened
    monkeypatch.setattr("pipeline.data.images.gpu.residence.IN_MEMORY_BYTES", 160 * 784 - 1)
    with caplog.at_level("INFO"):
        assert Completion(data, CPU).move_if_small(splits, manifest, threads=0) == splits
    assert "small stays on the host" in caplog.text


def test_set_of_large_images__stays_on_the_host(opened):
    data, (splits, manifest) = config("L", image_size=8), opened  # of 28 pixels
    assert Completion(data, CPU).move_if_small(splits, manifest, threads=0) == splits


def test_set_of_images_of_many_sizes__stays_on_the_host(opened):
    data, (splits, manifest) = config("L"), opened
    summary = manifest.splits["val"].model_copy(update={"max_size": (28, 29)})
    other = manifest.model_copy(update={"splits": {**manifest.splits, "val": summary}})
    assert Completion(data, CPU).move_if_small(splits, other, threads=0) == splits


@ON_GPU
@pytest.mark.parametrize("colours", [{}, *COLOURS.values()], ids=["none", *COLOURS])
def test_views__completed_on_a_gpu__equal_those_of_the_host(colours):
    data = config(image_size=32, augment={"crop": "resized", **colours})
    views = DeviceViews(data, torch.device("cuda"))
    found = train_batches(pictures(), data, True, epochs=20, views=views)
    found = [(images.cpu(), labels) for images, labels in found]
    assert_same_as_pillows(found, train_batches(pictures(), data, False, epochs=20))


@pytest.mark.parametrize("device", [CPU, pytest.param(torch.device("cuda"), marks=ON_GPU)], ids=str)
def test_ahead__every_batch_once_in_order__and_one_more_is_begun_before_it_is_asked_for(device):
    data = config(image_size=32, augment=CROPS["resized"])
    kind, taken = kind_of(data), []
    loader = loaded(BatchPlan(0, 8, 1, 3, 8, 2), pictures(), kind.deferred(kind.train_view()), 0, 0, 1, 0)
    batches = ((taken.append(1), batch)[1] for batch in loader)
    expected, found = train_batches(pictures(), data, False, epochs=3), []
    for images, labels in PrefetchToDevice(batches, DeviceViews(data, device)):
        assert len(taken) == min(len(found) + 2, len(expected))
        found.append((images.cpu(), labels))
    assert_same(found, expected)


@ON_GPU
@pytest.mark.parametrize("colours", [{}, COLOURS["increasing"]], ids=["none", "increasing"])
def test_views__recorded_on_a_gpu__equal_those_of_the_host(opened, colours):
    """Of a set that lives there; some sizes of groups come often enough to be recorded."""
    data, (splits, manifest) = config("L", augment={"crop": "resized", **colours}), opened
    device = torch.device("cuda")
    world, site = World(0, 1, device), Site(device="cuda", workers=0, graphs="on", compile=False)
    train, _ = sources_of_run(data, splits, manifest, TASKS.get("classify")(data, device), site, world)
    samples, view, views = train.samples, train.view, train.completion.views
    plan = BatchPlan(0, len(samples), 1, 60, 8, 1)
    expected = loaded(plan, splits["train"], kind_of(data).train_view())
    found = [(views.complete(inputs).cpu(), labels) for inputs, labels in loaded(plan, samples, view)]
    assert_same_as_pillows(found, list(expected))
    assert views.replayed.is_on and views.replayed.recordings


@ON_GPU
def test_views__completed_on_a_gpu__never_wait_for_it():
    data = config(image_size=32, augment={"crop": "resized", **COLOURS["many"]})
    kind, views = kind_of(data), DeviceViews(data, torch.device("cuda"))
    loader = loaded(BatchPlan(0, 8, 1, 4, 8, 1), pictures(), kind.deferred(kind.train_view()), 0, 0, 1, 0)
    batches = list(loader)
    views.complete(batches[0][0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch, _ in batches:
            views.complete(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def traced(monkeypatch):
    """torch.compile as it is, but for machine code; what it cannot put into one graph is refused. Graphs so far."""
    import torch._dynamo

    compiled, graphs = torch.compile, []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda function: compiled(function, backend=keep, fullgraph=True))
    yield graphs
    torch._dynamo.reset()


@pytest.mark.slow
def test_views__compiled__are_compiled_once_for_any_number_of_pixels_and_lines(traced):
    data = config(image_size=32, augment={"crop": "resized"})
    kind, views = kind_of(data), DeviceViews(data, CPU)
    views.prepare(records=False, compiles=True)
    loader = loaded(BatchPlan(0, 8, 1, 12, 2, 1), pictures(), kind.deferred(kind.train_view()), 0, 0, 1, 0)
    batches = [batch for batch, _ in loader]
    assert len({batch.extent for batch in batches}) > 1 and len({len(batch.pixels) for batch in batches}) > 20
    plain = DeviceViews(data, CPU)
    assert all(torch.equal(views.complete(batch), plain.complete(batch)) for batch in batches)
    assert len(traced) == 2  # the taps, and the images


@pytest.mark.slow
def test_views_and_mixing__compiled__are_whole_graphs_and_give_the_same(traced):
    mixing = {"mixup": 0.8, "cutmix": 1.0, "erasing": 0.5}
    data = config(image_size=32, augment={"crop": "resized", **COLOURS["many"], **mixing})
    kind = kind_of(data)
    tasks = [TASKS.get("classify")(data, CPU, 0.1) for _ in range(2)]
    plain, compiled = ((DeviceViews(data, CPU), task.transform) for task in tasks)
    for each in compiled:
        each.prepare(records=False, compiles=True)
    loader = loaded(BatchPlan(0, 8, 1, 3, 8, 1), pictures(), kind.deferred(kind.train_view()), 0, 0, 1, 0)
    for step, (batch, labels) in enumerate(loader):
        found = []
        for views, transform in (plain, compiled):
            seed_everything("step", step)
            found.append(transform(views.complete(batch), labels))
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert traced


def test_task_with_batches_of_its_own__keeps_the_views_of_the_host(opened):
    data, (splits, manifest) = config("L"), opened
    task = TASKS.get("classify")(data, CPU)
    task.takes_deferred = False
    site = Site(device="cpu", views="device")
    sources = sources_of_run(data, splits, manifest, task, site, World(0, 1, CPU))
    assert [source.samples for source in sources] == [*splits.values()]
    assert all(source.completion is None and isinstance(source.view, ImageView) for source in sources)


def test_view_that_is_no_list_of_steps__stays_on_the_host():
    data = config("L")
    assert kind_of(data).deferred(ImageView(lambda image: image)) is None
    assert kind_of(data).deferred(lambda sample: sample) is None


@pytest.mark.slow
def test_run__stopped_with_views_on_a_device_and_resumed_on_the_host__is_the_same_run(images, tmp_path):
    run = tiny_run({"data": {"augment": {"crop": "resized", "rand_augment": "rand-m9-mstd0.5-inc1"}}})
    whole = fit(run, tmp_path / "whole", images, views="device")
    fit(run, tmp_path / "parts", images, StopAfter(5), views="device")
    fit(run, tmp_path / "parts", images, StopAfter(6), views="host")
    resumed = fit(run, tmp_path / "parts", images, views="device", workers=1)
    assert differing(weights_of(whole), weights_of(resumed)) == []
    assert whole.paths.metrics.read_bytes() == resumed.paths.metrics.read_bytes()
