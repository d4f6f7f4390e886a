"""Who sees which image when: a function of the seed and the step alone."""

import os
import signal
from dataclasses import replace

import pytest
import torch
from tiny_runs import NUM_TRAIN, tiny_run
from torch.utils.data._utils import signal_handling

from pipeline.data.kind import kind_of
from pipeline.data.loader import BatchPlan, MicroBatches, epoch_order, eval_loader, train_loader
from pipeline.data.store.opening import open_split
from pipeline.engine.run import batch_plan

PLAN = BatchPlan(seed=0, num_images=NUM_TRAIN, repeats=1, epochs=3, global_batch=20, num_micro=2)
AUGMENTED = {"data": {"augment": {"crop": "resized", "rand_augment": "rand-m9-mstd0.5-inc1"}}}


def keys(plan, start=0, rank=0, world_size=1):
    return list(MicroBatches(plan, start, rank, world_size))


def test_batch_plan__of_a_run__has_its_numbers():
    run = tiny_run(
        {"seed": 7, "data": {"augment": {"repeats": 3}}},
        {"optim": {"epochs": 5, "global_batch": 60, "micro_batch": 20}},
    )
    assert batch_plan(run) == BatchPlan(seed=7, num_images=NUM_TRAIN, repeats=3, epochs=5, global_batch=60, num_micro=3)
    assert batch_plan(run).steps_per_epoch == run.steps_per_epoch == 2


def test_order__every_epoch__is_a_permutation_of_its_own():
    orders = [epoch_order(PLAN, epoch) for epoch in range(3)]
    assert all(sorted(order) == list(range(NUM_TRAIN)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


def test_order__same_seed__is_the_same_and_another_seed_differs():
    assert epoch_order(PLAN, 1) == epoch_order(PLAN, 1)
    assert epoch_order(PLAN, 1) != epoch_order(replace(PLAN, seed=1), 1)


def test_micro_batches__one_epoch__cover_every_image_once():
    first_epoch = [index for micro in keys(PLAN) for epoch, _, index in micro if epoch == 0]
    assert sorted(first_epoch) == list(range(NUM_TRAIN))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_micro_batches__shared_by_ranks__are_those_of_one_process_in_order(world_size):
    plan = replace(PLAN, global_batch=40, num_micro=4)
    alone = keys(plan)
    shares = [keys(plan, rank=rank, world_size=world_size) for rank in range(world_size)]
    # Rank r computes micro-batches r, r + world, ... of every update.
    assert [micro for turn in zip(*shares, strict=True) for micro in turn] == alone
    assert {len(micro) for micro in alone} == {10}
    assert len(alone) == 3 * 3 * 4  # epochs, updates of an epoch, micro-batches of an update


@pytest.mark.parametrize("start", [0, 1, 5, 6, 7, 17, 18])
def test_micro_batches__started_at_a_step__are_the_tail(start):
    assert keys(PLAN, start) == keys(PLAN)[start * PLAN.num_micro :]


def test_micro_batches__set_is_no_multiple_of_the_batch__drop_the_rest_of_each_epoch():
    plan = replace(PLAN, global_batch=50, num_micro=5)
    positions = {position for micro in keys(plan) for _, position, _ in micro}
    assert plan.steps_per_epoch == 2
    assert positions == set(range(100))


def test_repeats__three_views_of_an_image__fall_into_different_micro_batches_of_one_update():
    plan = replace(PLAN, repeats=3, global_batch=60, num_micro=3)
    for first in range(0, len(keys(plan)), 3):
        update = [[index for _, _, index in micro] for micro in keys(plan)[first : first + 3]]
        assert all(len(set(micro)) == 20 for micro in update)
        assert set(update[0]) == set(update[1]) == set(update[2])


def test_repeats__an_epoch__has_the_length_of_the_set():
    order = epoch_order(replace(PLAN, repeats=3), 0)
    assert len(order) == NUM_TRAIN
    assert all(order.count(index) == 3 for index in order)


def batches(run, images, start=0, rank=0, world_size=1, workers=0):
    split = open_split(run.data, images, "train")
    view = kind_of(run.data).train_view()
    return list(train_loader(batch_plan(run), split, view, start, rank, world_size, workers))


@pytest.mark.slow
def test_views__two_workers__are_those_of_none(images):
    run = tiny_run(AUGMENTED, {"optim": {"epochs": 2}})
    alone, shared = batches(run, images), batches(run, images, workers=2)
    assert len(alone) == len(shared) == 24
    for (a, a_labels), (b, b_labels) in zip(alone, shared, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a_labels, b_labels)


@pytest.mark.slow
def test_views__later_start_and_other_rank__show_each_image_as_before(images):
    run = tiny_run(AUGMENTED, {"optim": {"epochs": 2}})
    alone, second_rank = batches(run, images), batches(run, images, start=7, rank=1, world_size=2)
    expected = alone[7 * 2 + 1 :: 2]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(expected, second_rank, strict=True))


def test_views__same_image_in_two_epochs_or_with_two_seeds__differ(images):
    run = tiny_run(AUGMENTED, {"optim": {"epochs": 2, "warmup_epochs": 0}})
    split, view = open_split(run.data, images, "train"), kind_of(run.data).train_view()
    views = train_loader(batch_plan(run), split, view, 0, 0, 1, 0).dataset
    other = train_loader(replace(batch_plan(run), seed=1), split, view, 0, 0, 1, 0).dataset
    seen = [views[0, 0, 5], views[1, 0, 5], views[0, 1, 5], other[0, 0, 5]]
    assert len({image.numpy().tobytes() for image, _ in seen}) == 4
    assert torch.equal(views[0, 0, 5][0], seen[0][0])


@pytest.mark.slow
def test_workers__sigterm_to_the_whole_job__keep_working(images):
    run = tiny_run({"optim": {"epochs": 4}})
    split, view = open_split(run.data, images, "train"), kind_of(run.data).train_view()
    iterator = iter(train_loader(batch_plan(run), split, view, 0, 0, 1, 2))
    first = [next(iterator) for _ in iterator._workers]  # one of each: all of them have started
    for worker in iterator._workers:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            os.kill(worker.pid, number)
    assert len(list(iterator)) == run.total_steps * run.optim.num_micro - len(first)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_workers__signal_while_they_start__stay(images, monkeypatch, number):
    run, begin = tiny_run(), signal_handling._set_worker_signal_handlers

    def begin_and_be_warned():
        begin()  # from here on, SIGTERM ends a worker that says nothing else
        os.kill(os.getpid(), number)

    monkeypatch.setattr(signal_handling, "_set_worker_signal_handlers", begin_and_be_warned)
    split, view = open_split(run.data, images, "train"), kind_of(run.data).train_view()
    loader = train_loader(batch_plan(run), split, view, 0, 0, 1, 1)
    assert len(list(loader)) == run.total_steps * run.optim.num_micro
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])  # this process hears of signals again


def various_tensors(samples):
    """As a collate function gives them: small ones of many types and shapes; a large one, and one of a rare type."""
    whole = torch.arange(24.0).reshape(4, 6)
    typed = [whole.to(dtype) for dtype in (torch.uint8, torch.bool, torch.int64, torch.float64)]
    shaped = [whole.mT, whole[:, ::2], whole[1:1], torch.tensor(7), torch.empty(0, 3, dtype=torch.uint8)]
    return [*typed, *shaped], [torch.arange(2**18 + 1, dtype=torch.int32), whole.bfloat16()]


@pytest.mark.slow
def test_workers__tensors_of_any_type_and_shape__arrive_as_they_were_sent(images):
    split, view = open_split(tiny_run().data, images, "train"), kind_of(tiny_run().data).train_view()
    plan = replace(PLAN, epochs=1, global_batch=NUM_TRAIN, num_micro=1)
    ((small, others),) = train_loader(plan, split, view, 0, 0, 1, 1, various_tensors)
    expected, expected_others = various_tensors([])
    for found, sent in zip([*small, *others], [*expected, *expected_others], strict=True):
        assert (found.dtype, found.shape) == (sent.dtype, sent.shape)
        assert torch.equal(found, sent)
    assert not any(tensor.is_shared() for tensor in small)  # else the receiver would have to ask the worker for each
    assert all(tensor.is_shared() for tensor in others)
    small[0].zero_()  # it may be written to, as any other


@pytest.mark.parametrize("world_size", [1, 3])
def test_eval_loader__ranks_together__see_every_image_once(images, world_size):
    data = tiny_run().data
    split, view = open_split(data, images, "val"), kind_of(data).eval_view()
    seen = []
    for rank in range(world_size):
        for pictures, labels in eval_loader(split, view, 16, rank, world_size, 0):
            seen += [(picture.numpy().tobytes(), int(label)) for picture, label in zip(pictures, labels, strict=True)]
    expected = [(split.content(index), split.labels[index]) for index in range(len(split))]
    assert sorted(seen) == sorted(expected)


def eval_batches(images, rank=0, world_size=1, workers=0):
    data = tiny_run().data
    loader = eval_loader(open_split(data, images, "val"), kind_of(data).eval_view(), 16, rank, world_size, workers)
    return [(pictures, labels.tolist()) for pictures, labels in loader]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_eval_loader__any_number_of_ranks__share_out_the_same_whole_batches(images, world_size):
    alone = eval_batches(images)
    assert [len(labels) for _, labels in alone] == [16, 16, 8]
    for rank in range(world_size):
        share, expected = eval_batches(images, rank, world_size), alone[rank::world_size]
        assert [labels for _, labels in share] == [labels for _, labels in expected]
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(share, expected, strict=True))


@pytest.mark.slow
def test_eval_loader__read_twice_and_with_workers__gives_the_same_batches_in_order(images):
    data = tiny_run().data
    split = open_split(data, images, "val")
    loader = eval_loader(split, kind_of(data).eval_view(), 16, 0, 1, 0)
    expected = [labels.tolist() for _, labels in loader]
    assert [label for labels in expected for label in labels] == list(split.labels)
    assert [labels.tolist() for _, labels in loader] == expected
    assert [labels for _, labels in eval_batches(images, workers=2)] == expected


@pytest.mark.parametrize(("workers", "started"), [(0, 0), (2, 2), (9, 3)])
def test_eval_loader__more_workers_than_batches__starts_no_more_than_have_work(images, workers, started):
    data = tiny_run().data
    loader = eval_loader(
        open_split(data, images, "val"), kind_of(data).eval_view(), 8, 0, 1, workers, None, [range(20)]
    )
    assert loader.num_workers == started
