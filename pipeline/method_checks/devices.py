"""Whether a method puts everything on the device of its batch, asked without a GPU."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from pipeline.core.trees import Tree, map_tree
from pipeline.method_checks.bench import Bench, name_of, raised_at
from pipeline.methods.base import Batch, Method

MISMATCH = ("different device", "same device", "not on the expected device")


def check_devices(bench: Bench) -> list[str]:
    """Nothing is computed: tensors have a device and a shape, and no values."""
    return [*_draw_problems(bench.method(), bench.batch(2)), *_loss_problems(bench.method(), bench.batch(2))]


def _draw_problems(method: Method, batch: Batch) -> Iterator[str]:
    """Draws come from a generator on the CPU, and must follow the batch to its device."""
    there = Batch(_to("meta", batch.inputs), _to("meta", batch.targets), torch.Generator().manual_seed(0))
    method = method.to("meta")
    try:
        draw = method.draw(there, 0.5)
    except (RuntimeError, NotImplementedError) as error:
        if not _is_mismatch(error):
            return  # it looks at values of the batch
        yield (
            f"{name_of(method)}.draw mixes the CPU with the batch's device{raised_at(error, method)}; draw on the CPU, "
            "then move it: .to(batch.images.device)"
        )
        return
    for key, value in draw.items():
        if value.device.type != "meta":
            yield (
                f'{name_of(method)}.draw returned "{key}" on the {value.device.type}, whatever device the batch is on; '
                "end with .to(batch.images.device)"
            )


def _loss_problems(method: Method, batch: Batch) -> Iterator[str]:
    draw = method.draw_to_count(batch)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, sdpa_kernel(SDPBackend.MATH):

        def there(tensor: Tensor) -> Tensor:
            return fake.from_tensor(tensor).to("cuda")

        method.to_empty(device="cuda")
        try:
            method(
                map_tree(there, batch.inputs), map_tree(there, batch.targets), {k: there(v) for k, v in draw.items()}
            )
        except Exception as error:
            if _is_mismatch(error):
                yield (
                    f"{name_of(method)}.loss computes with a tensor on the CPU while the batch is on a GPU"
                    f"{raised_at(error, method)}; make new tensors with device=images.device, and keep constants with "
                    "self.register_buffer"
                )


def _to(device: str, tree: Tree) -> Any:
    return map_tree(lambda tensor: tensor.to(device), tree)


def _is_mismatch(error: Exception) -> bool:
    return any(words in str(error) for words in MISMATCH)
