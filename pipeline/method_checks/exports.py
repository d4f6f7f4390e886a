"""What a method leaves behind: an encoder with timm's keys, and a state that holds everything."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from pipeline.method_checks.bench import Bench, compute_loss, name_of, quoted, seeded


def check_export(plain: Callable[[], nn.Module]) -> Callable[[Bench], list[str]]:
    """The exported encoder, after a step, has the tensors that this model of the library has."""

    def check(bench: Bench) -> list[str]:
        method = bench.method()
        compute_loss(method, bench.batch(4)).loss.backward()
        torch.optim.SGD(method.parameters(), lr=0.1).step()
        return compare_tensors(f"{name_of(method)}.export", method.export().state_dict(), plain().state_dict())

    return check


def compare_tensors(who: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Keys and shapes of two state dicts."""
    other = [key for key in expected if key in found and found[key].shape != expected[key].shape]
    parts = {
        "lacks": [key for key in expected if key not in found],
        "has, beyond timm's model,": [key for key in found if key not in expected],
        "has in another shape": other,
    }
    if lines := [f"{verb} {quoted(keys)}" for verb, keys in parts.items() if keys]:
        return [
            f"{who}() {', and '.join(lines)}; it must return an encoder with the keys and shapes of timm's model, as "
            "self.encoder is: heads stay in the method"
        ]
    return []


def check_state(bench: Bench) -> list[str]:
    """A checkpoint holds all that the loss depends on."""
    first, second, batch = bench.method(0), bench.method(1), bench.batch(8)
    name, expected = name_of(first), compute_loss(first, seeded(batch, 3)).loss
    if torch.equal(compute_loss(second, seeded(batch, 3)).loss, expected):
        return [
            f"{name}.loss is {expected.item():.6g} with two different starts; it must depend on the encoder's weights: "
            "look for a constant, or a clamp that cuts all values"
        ]
    second.load_state_dict(first.state_dict())
    found = compute_loss(second, seeded(batch, 3)).loss
    if torch.equal(found, expected):
        return []
    return [
        f"{name}.loss is {found.item():.6g} after loading a checkpoint, {expected.item():.6g} before; a resumed run "
        "would differ: keep tensors with self.register_buffer or nn.Parameter, and modules as attributes or in "
        "nn.ModuleList"
    ]
