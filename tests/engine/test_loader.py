"""Who sees which image when: a function of the seed and the step alone."""

import os
import signal

import pytest
import torch
from tiny_runs import NUM_TRAIN, tiny_run

from pipeline.data.loader import MicroBatches, epoch_order, eval_loader, train_loader
from pipeline.data.sources import open_split
from pipeline.data.transforms import eval_view, train_view

AUGMENTED = {"data": {"augment": {"crop": "resized", "rand_augment": "rand-m9-mstd0.5-inc1"}}}


def keys(run, start=0, rank=0, world_size=1):
    return list(MicroBatches(run, start, rank, world_size))


def test_order__every_epoch__is_a_permutation_of_its_own():
    run = tiny_run()
    orders = [epoch_order(run, epoch) for epoch in range(3)]
    assert all(sorted(order) == list(range(NUM_TRAIN)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_order__same_seed__is_the_same_and_another_seed_differs():
    assert epoch_order(tiny_run(), 1) == epoch_order(tiny_run(), 1)
    assert epoch_order(tiny_run(), 1) != epoch_order(tiny_run({"seed": 1}), 1)


def test_micro_batches__one_epoch__cover_every_image_once():
    run = tiny_run({"optim": {"epochs": 2}})
    first_epoch = [index for micro in keys(run) for epoch, _, index in micro if epoch == 0]
    assert sorted(first_epoch) == list(range(NUM_TRAIN))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_micro_batches__shared_by_ranks__are_those_of_one_process_in_order(world_size):
    run = tiny_run({"optim": {"global_batch": 40}})
    alone = keys(run)
    shares = [keys(run, rank=rank, world_size=world_size) for rank in range(world_size)]
    # Rank r computes micro-batches r, r + world, ... of every update.
    assert [micro for turn in zip(*shares, strict=True) for micro in turn] == alone
    assert {len(micro) for micro in alone} == {run.optim.micro_batch}
    assert len(alone) == run.total_steps * run.optim.num_micro


@pytest.mark.parametrize("start", [0, 1, 5, 6, 7, 17, 18])
def test_micro_batches__started_at_a_step__are_the_tail(start):
    run = tiny_run()
    assert keys(run, start) == keys(run)[start * run.optim.num_micro :]


def test_micro_batches__set_is_no_multiple_of_the_batch__drop_the_rest_of_each_epoch():
    run = tiny_run({"optim": {"global_batch": 50, "micro_batch": 10}})
    positions = {position for micro in keys(run) for _, position, _ in micro}
    assert run.steps_per_epoch == 2
    assert positions == set(range(100))


def test_repeats__three_views_of_an_image__fall_into_different_micro_batches_of_one_update():
    run = tiny_run({"data": {"augment": {"repeats": 3}}, "optim": {"global_batch": 60, "micro_batch": 20}})
    for first in range(0, len(keys(run)), 3):
        update = [[index for _, _, index in micro] for micro in keys(run)[first : first + 3]]
        assert all(len(set(micro)) == 20 for micro in update)
        assert set(update[0]) == set(update[1]) == set(update[2])


def test_repeats__an_epoch__has_the_length_of_the_set():
    order = epoch_order(tiny_run({"data": {"augment": {"repeats": 3}}}), 0)
    assert len(order) == NUM_TRAIN
    assert all(order.count(index) == 3 for index in order)


def batches(run, images, start=0, rank=0, world_size=1, workers=0):
    split = open_split(run.data, images, "train")
    view = train_view(run.data, run.data.augment)
    return list(train_loader(run, split, view, start, rank, world_size, workers))


def test_views__two_workers__are_those_of_none(images):
    run = tiny_run(AUGMENTED, {"optim": {"epochs": 2}})
    alone, shared = batches(run, images), batches(run, images, workers=2)
    assert len(alone) == len(shared) == 24
    for (a, a_labels), (b, b_labels) in zip(alone, shared, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a_labels, b_labels)


def test_views__later_start_and_other_rank__show_each_image_as_before(images):
    run = tiny_run(AUGMENTED, {"optim": {"epochs": 2}})
    alone, second_rank = batches(run, images), batches(run, images, start=7, rank=1, world_size=2)
    expected = alone[7 * 2 + 1 :: 2]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(expected, second_rank, strict=True))


def test_views__same_image_in_two_epochs_or_with_two_seeds__differ(images):
    run = tiny_run(AUGMENTED, {"optim": {"epochs": 2, "warmup_epochs": 0}})
    split, view = open_split(run.data, images, "train"), train_view(run.data, run.data.augment)
    views = train_loader(run, split, view, 0, 0, 1, 0).dataset
    other = train_loader(tiny_run(AUGMENTED, {"seed": 1}), split, view, 0, 0, 1, 0).dataset
    seen = [views[0, 0, 5], views[1, 0, 5], views[0, 1, 5], other[0, 0, 5]]
    assert len({image.numpy().tobytes() for image, _ in seen}) == 4
    assert torch.equal(views[0, 0, 5][0], seen[0][0])


def test_workers__sigterm_to_the_whole_job__keep_working(images):
    run = tiny_run({"optim": {"epochs": 4}})
    split, view = open_split(run.data, images, "train"), train_view(run.data, run.data.augment)
    iterator = iter(train_loader(run, split, view, 0, 0, 1, 2))
    next(iterator)
    for worker in iterator._workers:
        os.kill(worker.pid, signal.SIGTERM)
        os.kill(worker.pid, signal.SIGINT)
    assert len(list(iterator)) == run.total_steps * run.optim.num_micro - 1


@pytest.mark.parametrize("world_size", [1, 3])
def test_eval_loader__ranks_together__see_every_image_once(images, world_size):
    data = tiny_run().data
    split, view = open_split(data, images, "val"), eval_view(data, 1.0)
    seen = []
    for rank in range(world_size):
        for pictures, labels in eval_loader(split, view, 16, rank, world_size, 0):
            seen += [(picture.numpy().tobytes(), int(label)) for picture, label in zip(pictures, labels, strict=True)]
    expected = [(split.content(index), split.labels[index]) for index in range(len(split))]
    assert sorted(seen) == sorted(expected)


def eval_batches(images, rank=0, world_size=1, workers=0):
    data = tiny_run().data
    loader = eval_loader(open_split(data, images, "val"), eval_view(data, 1.0), 16, rank, world_size, workers)
    return [(pictures, labels.tolist()) for pictures, labels in loader]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_eval_loader__any_number_of_ranks__share_out_the_same_whole_batches(images, world_size):
    alone = eval_batches(images)
    assert [len(labels) for _, labels in alone] == [16, 16, 8]
    for rank in range(world_size):
        share, expected = eval_batches(images, rank, world_size), alone[rank::world_size]
        assert [labels for _, labels in share] == [labels for _, labels in expected]
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(share, expected, strict=True))


def test_eval_loader__read_twice_and_with_workers__gives_the_same_batches_in_order(images):
    data = tiny_run().data
    split = open_split(data, images, "val")
    loader = eval_loader(split, eval_view(data, 1.0), 16, 0, 1, 0)
    expected = [labels.tolist() for _, labels in loader]
    assert [label for labels in expected for label in labels] == list(split.labels)
    assert [labels.tolist() for _, labels in loader] == expected
    assert [labels for _, labels in eval_batches(images, workers=2)] == expected
