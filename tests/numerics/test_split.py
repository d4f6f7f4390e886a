"""Split learning against the plain model: the same outputs, gradients and weights, whoever computes them."""

import copy
import socket
import struct
from contextlib import closing

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from threaded_server import server_in_a_thread
from tiny_vit import tiny_encoder, tiny_model, tiny_resnet
from torch import nn
from torch.nn import functional as F

from pipeline.core.errors import ConfigError, LaunchError
from pipeline.models.encoder import build_encoder
from pipeline.permutation.protections import FeatureProtection
from pipeline.permutation.split import (
    ANSWERS,
    ProtocolError,
    SplitRecipe,
    split,
    start_positions,
    train_step,
)
from pipeline.permutation.wire import RemoteServer, ServerPlan, Wire, serve, server_process

ROWS, PLAIN = FeatureProtection(rows=True), FeatureProtection()
MODELS = {
    "learned positions": {},
    "no positions": {"pos_embed": "none"},
    "sin-cos": {"pos_embed": "sincos"},
    "average of patches": {"pool": "avg"},
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
every_protection = pytest.mark.parametrize("protection", [PLAIN, ROWS], ids=["plain", "rows"])
PRECISIONS = {torch.float64: 1e-10, torch.float32: 1e-6}
every_precision = pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS.items(), ids=str)
# Few steps at rates that move every weight; an epoch of two steps, so that the rates move too.
RECIPE = SplitRecipe(epochs=4, lr=0.05, min_lr=1e-3, block_ratio=0.3)
EPOCH_STEPS, STEPS = 2, 5


def vit(dtype=torch.float64, **changes):
    """Away from its start, where biases are zero and attention looks everywhere alike."""
    encoder = tiny_encoder(**changes).to(dtype)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    return encoder


def join_parts(client, server):
    """A plain timm model from both sides."""
    encoder = copy.deepcopy(client.encoder)
    encoder.blocks = copy.deepcopy(server.blocks)
    return encoder


def batches(dtype=torch.float64, count=STEPS):
    """Images, and targets for several labels at once."""
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(4, 1, 28, 28, generator=generator, dtype=dtype),
            (torch.rand(4, 10, generator=generator) < 0.5).to(dtype),
        )
        for _ in range(count)
    ]


def seeded():
    return torch.Generator().manual_seed(3)


def plain_training(encoder, recipe):
    """The whole model in one piece, with torch's own optimiser and schedule."""
    encoder = copy.deepcopy(encoder).train()
    blocks = list(encoder.blocks.parameters())
    inside = {id(parameter) for parameter in blocks}
    outside = [p for p in encoder.parameters() if id(p) not in inside and p.requires_grad]
    groups = [{"params": outside}, {"params": blocks, "lr": recipe.block_ratio * recipe.lr}]
    optimizer = torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, recipe.epochs, recipe.min_lr)
    losses = []
    for number, (images, targets) in enumerate(batches(blocks[0].dtype), start=1):
        loss = F.binary_cross_entropy_with_logits(encoder(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if number % EPOCH_STEPS == 0:
            schedule.step()
    return encoder, torch.stack(losses)


def train(client, server, dtype):
    client.train_with(RECIPE, EPOCH_STEPS)
    generator = seeded()
    losses = [
        train_step(client, server, images, targets, F.binary_cross_entropy_with_logits, generator)
        for images, targets in batches(dtype)
    ]
    return torch.stack(losses)


def assert_states_close(found, expected, tolerance):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance, msg=name)


@pytest.mark.slow
@every_precision
@every_protection
@every_model
def test_outputs__of_both_sides__equal_those_of_the_whole_model(model, protection, dtype, tolerance):
    encoder, (images, _) = vit(dtype, **model), batches(dtype)[0]
    client, server = split(encoder, protection)
    for is_training in (True, False):
        with torch.no_grad():
            found = client.train(is_training)(images, server, seeded())
        torch.testing.assert_close(found, encoder(images), rtol=0, atol=tolerance)


@pytest.mark.slow
@every_precision
@every_protection
@every_model
def test_gradients__of_both_sides__equal_those_of_the_whole_model(model, protection, dtype, tolerance):
    encoder, (images, targets) = vit(dtype, **model), batches(dtype)[0]
    client, server = split(encoder, protection)
    F.binary_cross_entropy_with_logits(encoder(images), targets).backward()
    F.binary_cross_entropy_with_logits(client.train()(images, server, seeded()), targets).backward()
    sides = dict(client.encoder.named_parameters()) | dict(server.named_parameters())
    expected = {name: p.grad for name, p in encoder.named_parameters() if p.requires_grad}
    assert_states_close({name: p.grad for name, p in sides.items() if p.requires_grad}, expected, tolerance)


@pytest.mark.slow
@every_precision
@every_protection
@every_model
def test_training__of_both_sides__gives_the_weights_of_the_whole_model(model, protection, dtype, tolerance):
    encoder = vit(dtype, **model)
    expected, expected_losses = plain_training(encoder, RECIPE)
    client, server = split(encoder, protection)
    server.train_with(RECIPE, EPOCH_STEPS)
    losses = train(client, server, dtype)
    torch.testing.assert_close(losses, expected_losses, rtol=0, atol=tolerance)
    assert_states_close(join_parts(client, server).state_dict(), expected.state_dict(), tolerance)
    before = encoder.state_dict()
    assert max((value - before[name]).abs().max() for name, value in expected.state_dict().items()) > 1e-3


def test_row_permutation__undone_in_another_order__gives_other_outputs():
    """The test of equality could fail: CLS is then another token."""
    encoder, (images, _) = vit(), batches()[0]
    client, server = split(encoder, ROWS)
    sent = client.features(images, seeded())
    wrong = sent._replace(order=sent.order.roll(1))
    outputs = server.answer("test_features", sent.tokens)
    right, found = (client.encoder.forward_head(client.encoder.norm(s.restored(outputs))) for s in (sent, wrong))
    torch.testing.assert_close(right, encoder(images), rtol=0, atol=1e-10)
    assert (found - right).abs().max() > 0.01


def test_sides__of_one_model__share_no_memory_with_it_or_each_other():
    encoder = vit()
    client, server = split(encoder)
    places = [{p.data_ptr() for p in module.parameters()} for module in (encoder, client, server)]
    assert sum(map(len, places)) == len(set.union(*places))
    assert not any(name.startswith("encoder.blocks") for name in client.state_dict())
    assert all(name.startswith("blocks.") for name in server.state_dict())


def test_server__in_a_step__sees_tokens_and_gradients_only():
    client, server = split(vit())
    seen = []

    class Watched:
        def answer(self, kind, tensor):
            assert not tensor.requires_grad and tensor.grad_fn is None
            answer = server.answer(kind, tensor)
            seen.append((kind, tuple(tensor.shape), tuple(answer.shape)))
            return answer

    train_step(client, Watched(), *batches()[0], F.binary_cross_entropy_with_logits, seeded())
    shape = (4, 50, 32)
    assert seen == [("features", shape, shape), ("output_gradients", shape, shape)]
    each = 4 * 50 * 32 * 8
    assert client.traffic == dict.fromkeys(("features", "outputs", "output_gradients", "feature_gradients"), each)


def test_row_permutation__of_a_batch__is_one_order_of_all_tokens_and_new_each_time():
    client, _ = split(vit(), ROWS)
    images, generator = batches()[0][0], seeded()
    plain = split(vit())[0].features(images, seeded()).tokens
    first, second = (client.features(images, generator) for _ in range(2))
    assert sorted(first.order.tolist()) == list(range(50))
    assert first.order.tolist() != second.order.tolist()
    assert torch.equal(first.tokens, plain[:, first.order])
    assert torch.equal(first.restored(first.tokens), plain)


def test_server__with_dropout__draws_for_training_only():
    _, server = split(vit(dropout=0.5))
    tokens = torch.randn(2, 50, 32, dtype=torch.float64, generator=seeded())
    tested = [server.answer("test_features", tokens) for _ in range(2)]
    trained = [server.answer("features", tokens) for _ in range(2)]
    again = server.answer("test_features", tokens)
    assert torch.equal(*tested) and torch.equal(tested[0], again) and not torch.equal(*trained)


# The recipe


@pytest.mark.slow
def test_updates__of_a_side_that_was_stopped__go_on_where_they_were():
    encoder, images = vit(), batches()
    sides = [split(encoder) for _ in range(2)]
    for client, server in sides:
        client.train_with(RECIPE, EPOCH_STEPS)
        server.train_with(RECIPE, EPOCH_STEPS)
        for batch in images[:3]:
            train_step(client, server, *batch, F.binary_cross_entropy_with_logits, seeded())
    states = [copy.deepcopy(side.updates.state_dict()) for side in sides[1]]
    for side, state in zip(sides[1], states, strict=True):
        side.train_with(RECIPE, EPOCH_STEPS)
        side.updates.load_state_dict(state)
    for client, server in sides:
        for batch in images[3:]:
            train_step(client, server, *batch, F.binary_cross_entropy_with_logits, seeded())
    assert_states_close(join_parts(*sides[1]).state_dict(), join_parts(*sides[0]).state_dict(), 0)


def test_updates__as_released__leave_cls_and_the_last_norm_as_they_are():
    recipe = RECIPE.model_copy(update={"trained": "released"})
    client, server = split(vit())
    before = copy.deepcopy(client.encoder.state_dict())
    client.train_with(recipe, EPOCH_STEPS)
    for images, targets in batches():
        train_step(client, server, images, targets, F.binary_cross_entropy_with_logits, seeded())
    same = {name for name, value in client.encoder.state_dict().items() if torch.equal(value, before[name])}
    assert same == {"cls_token", "norm.weight", "norm.bias"}


def test_updates__as_released__leave_fixed_positions_fixed():
    client, _ = split(vit(pos_embed="sincos"))
    client.train_with(RECIPE.model_copy(update={"trained": "released"}), EPOCH_STEPS)
    start_positions(client, SplitRecipe(), seeded())
    assert not client.encoder.pos_embed.requires_grad
    assert torch.equal(client.encoder.pos_embed, tiny_encoder(pos_embed="sincos").pos_embed.double())


@pytest.mark.parametrize(("positions", "mean", "std"), [("fresh", 0.0, 0.02), ("released", 0.02, 0.88)])
def test_start_positions__of_a_recipe__have_its_mean_and_deviation(positions, mean, std):
    """A normal distribution that is cut off at two standard deviations has one of 0.88."""
    client, _ = split(tiny_encoder())
    client.encoder.pos_embed = nn.Parameter(torch.zeros(1, 100, 1000))  # many, so that a mean of 0.02 is told from 0
    start_positions(client, SplitRecipe(positions=positions), seeded())
    table = client.encoder.pos_embed
    error = std / table.numel() ** 0.5
    assert table.mean().item() == pytest.approx(mean, abs=4 * error)
    assert table.std().item() == pytest.approx(std, rel=0.02)


def test_start_positions__given__stay():
    encoder = vit()
    client, _ = split(encoder)
    start_positions(client, SplitRecipe(positions="given"), seeded())
    assert torch.equal(client.encoder.pos_embed, encoder.pos_embed)


# What is refused


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (["output_gradients"], "gradients without features before them"),
        (["features", "output_gradients", "output_gradients"], "gradients without features before them"),
        (["test_features", "output_gradients"], "gradients without features before them"),
        (["weights"], "got 'weights'; expected one of features, test_features, output_gradients"),
        (["outputs"], "got 'outputs'"),
    ],
)
def test_server__out_of_turn__refuses(messages, text):
    _, server = split(vit())
    with pytest.raises(ProtocolError, match=text):
        for kind in messages:
            server.answer(kind, torch.zeros(2, 50, 32, dtype=torch.float64))


def test_server__gradients_of_another_batch__refuses():
    _, server = split(vit())
    server.answer("features", torch.zeros(2, 50, 32, dtype=torch.float64))
    with pytest.raises(ProtocolError, match=r"shape \(1, 50, 32\) for outputs of \(2, 50, 32\)"):
        server.answer("output_gradients", torch.zeros(1, 50, 32, dtype=torch.float64))


def test_split__of_a_cnn__is_refused():
    with pytest.raises(ConfigError, match="it is a ResNet, not"):
        split(build_encoder(tiny_resnet(), 28, 1, 10))


def test_row_permutation__of_relative_positions__is_refused():
    with pytest.raises(ConfigError, match="this model has relative ones"):
        split(vit(pos_embed="relative"), ROWS)


# Two processes


@pytest.fixture
def wires():
    here, there = socket.socketpair()
    here.settimeout(5)
    there.settimeout(5)
    with closing(here), closing(there):
        yield Wire(here), Wire(there)


def test_wire__message__arrives_bit_for_bit_and_every_byte_is_counted(wires):
    here, there = wires
    tensor = torch.randn(2, 3, 4, dtype=torch.float64).transpose(0, 1)
    here.send("features", tensor)
    kind, found = there.receive(ANSWERS)
    assert kind == "features" and torch.equal(found, tensor)
    raw = 8 + len(save({"features": tensor.contiguous()}))
    assert here.num_bytes == there.num_bytes == {"features": raw}
    assert here.num_messages == there.num_messages == {"features": 1}
    here.connection.close()
    assert there.receive(ANSWERS) is None


GOOD = torch.zeros(1, 2, 3)
MESSAGES = {
    "not a tensor": (b"\x80\x04N.", "cannot be read"),
    "empty": (b"", "cannot be read"),
    "two tensors": (save({"features": GOOD, "labels": GOOD.clone()}), "cannot be read"),
    "no tensor": (save({}), "cannot be read"),
    "truncated": (save({"features": GOOD})[:-1], "cannot be read"),
    "labels": (save({"labels": GOOD}), "a message has 'labels'"),
    "integers": (save({"features": GOOD.long()}), "torch.int64"),
    "images": (save({"features": torch.zeros(1, 2, 3, 4)}), r"\(1, 2, 3, 4\)"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_wire__message_that_the_protocol_does_not_have__is_refused(wires, name):
    content, text = MESSAGES[name]
    here, there = wires
    here.connection.sendall(struct.pack(">Q", len(content)) + content)
    with pytest.raises(ProtocolError, match=text):
        there.receive(ANSWERS)


def test_wire__announced_length_beyond_all_measure__is_refused_before_it_is_read(wires):
    here, there = wires
    here.connection.sendall(struct.pack(">Q", 2**60))
    with pytest.raises(ProtocolError, match="was announced"):
        there.receive(ANSWERS)


@pytest.mark.parametrize("part", [b"half", b""], ids=["within its content", "after its length"])
def test_wire__connection_that_ends_within_a_message__is_an_error(wires, part):
    here, there = wires
    here.connection.sendall(struct.pack(">Q", 100) + part)
    here.connection.close()
    with pytest.raises(LaunchError, match=f"after {len(part)} of 100 bytes"):
        there.receive(ANSWERS)


def test_serve__client_that_breaks_the_protocol__ends_with_an_error(wires):
    here, there = wires
    _, server = split(vit())
    here.send("output_gradients", torch.zeros(2, 50, 32, dtype=torch.float64))
    with pytest.raises(ProtocolError):
        serve(server, there)


def plan_for(server, folder, **changes):
    save_file(server.state_dict(), folder / "blocks.safetensors")
    fields = {"recipe": RECIPE, "epoch_steps": EPOCH_STEPS} | changes
    return ServerPlan(tiny_model(), 28, folder / "blocks.safetensors", folder / "trained.safetensors", **fields)


@pytest.mark.slow
def test_two_processes__training_with_row_permutation__equal_one(tmp_path):
    assert_trained_as_one(torch.float64, server_process, tmp_path)


@pytest.mark.slow
def test_two_ends_of_a_wire__training_with_row_permutation_in_float32__equal_one(tmp_path):
    assert_trained_as_one(torch.float32, server_in_a_thread, tmp_path)


def assert_trained_as_one(dtype, start_server, tmp_path):
    """A server that is started so learns what one in the same place does, and every message is counted."""
    encoder = vit(dtype)
    client, server = split(encoder, ROWS)
    plan = plan_for(server, tmp_path)
    server.train_with(RECIPE, EPOCH_STEPS)
    expected = train(client, server, dtype)
    other, _ = split(encoder, ROWS)
    with start_server(plan) as remote:
        losses = train(other, remote, dtype)
        tested = other.eval()(batches(dtype)[0][0], remote, seeded())
    tolerance = PRECISIONS[dtype]
    torch.testing.assert_close(losses, expected, rtol=0, atol=tolerance)
    assert_states_close(load_file(plan.trained), server.state_dict(), tolerance)
    assert_states_close(other.encoder.state_dict(), client.encoder.state_dict(), tolerance)
    torch.testing.assert_close(tested, client.eval()(batches(dtype)[0][0], server, seeded()), rtol=0, atol=tolerance)
    counts = {"features": STEPS, "test_features": 1, "output_gradients": STEPS, "feature_gradients": STEPS}
    assert remote.wire.num_messages == counts | {"outputs": STEPS + 1}
    for kind, count in remote.wire.num_messages.items():
        overhead = remote.wire.num_bytes[kind] - other.traffic[kind]
        assert 0 < overhead < 200 * count


@pytest.mark.slow
def test_two_processes__server_that_cannot_start__is_reported(tmp_path, capfd):
    client, server = split(vit(torch.float32))
    plan = plan_for(server, tmp_path)
    plan.weights.write_bytes(b"damaged")
    with pytest.raises(LaunchError), server_process(plan) as remote:
        client(batches(torch.float32)[0][0], remote, seeded())
    assert "SafetensorError" in capfd.readouterr().err


@pytest.mark.slow
def test_two_processes__client_that_fails__leaves_no_process_behind(tmp_path):
    import psutil

    before = set(psutil.Process().children(recursive=True))
    _, server = split(vit(torch.float32))
    with pytest.raises(ValueError, match="mine"), server_process(plan_for(server, tmp_path)):
        raise ValueError("mine")
    left = [
        p for p in set(psutil.Process().children(recursive=True)) - before if "resource_tracker" not in p.cmdline()[-1]
    ]
    assert left == []


def test_remote__server_gone__says_so(wires):
    here, there = wires
    there.connection.close()
    with pytest.raises(LaunchError):
        RemoteServer(here).answer("features", GOOD)
