"""BatchNorm of two processes against one that sees the whole batch."""

import os
import socket

import pytest
import torch
from forked import ForkedProcess
from torch import nn

from pipeline.engine.parallel.batchnorm import SharedBatchNorm, synchronised
from pipeline.engine.parallel.distributed import join_world, leave_world

STEPS = 3


def network():
    torch.manual_seed(0)
    # The second one has one value for each image and channel, as the coarsest pooling of UperNet.
    steps = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(4)]
    return nn.Sequential(*steps, nn.Conv2d(4, 2, 1)).double().train()


def images(count=4):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(STEPS, count, 3, 6, 6, generator=generator, dtype=torch.float64) * 3 + 2


def trained(model, inner, batches):
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        (model(batch).flatten(1) - torch.tensor([1.0, -1.0]).double()).square().mean().backward()
        optimizer.step()
    return inner.state_dict()


def train_as_rank(rank, port, folder, is_compiled):
    places = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in places.items()})
    torch.set_num_threads(1)
    world = join_world("cpu")
    inner = synchronised(network())
    model = nn.parallel.DistributedDataParallel(inner, forward_sync_buffers=False)
    if is_compiled:
        model = torch.compile(model, backend="aot_eager")
    state = trained(model, inner, images()[:, 2 * rank : 2 * rank + 2])
    torch.save(state, folder / f"rank{rank}.pt")
    leave_world(world)


@pytest.mark.slow
@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_synchronised__two_processes_with_half_of_each_batch__train_as_one_with_all_of_it(tmp_path, is_compiled):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = (port, tmp_path, is_compiled)
    children = [ForkedProcess(target=train_as_rank, args=(rank, *arguments)) for rank in range(2)]
    for child in children:
        child.start()
    alone = network()
    expected = trained(alone, alone, images())
    for child in children:
        child.join(300)
        child.kill()
    assert [child.exitcode for child in children] == [0, 0]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    for name, value in expected.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=1e-10, atol=1e-12, msg=name)


def test_synchronised__any_module__keeps_its_parameters_and_names():
    plain = network()
    names, parameters = [*plain.state_dict()], [*plain.parameters()]
    shared = synchronised(plain)
    assert [type(step) for step in shared if isinstance(step, nn.BatchNorm2d)] == [SharedBatchNorm] * 2
    assert [*shared.state_dict()] == names
    assert all(one is other for one, other in zip(shared.parameters(), parameters, strict=True))


def test_synchronised__norms_of_an_encoder__stay_as_they_are():
    method = nn.Module()
    method.encoder, method.head = network(), network()
    synchronised(method)
    assert {type(norm) for norm in method.encoder.modules() if isinstance(norm, nn.BatchNorm2d)} == {nn.BatchNorm2d}
    assert {type(norm) for norm in method.head.modules() if isinstance(norm, nn.BatchNorm2d)} == {SharedBatchNorm}


def test_synchronised__one_process__is_plain_batchnorm():
    plain, shared = network(), synchronised(network())
    batches = images()
    expected, found = trained(plain, plain, batches), trained(shared, shared, batches)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    plain.eval(), shared.eval()
    assert torch.equal(shared(batches[0]), plain(batches[0]))
