"""What RandAugment and colour jitter do to an image, drawn by timm and torchvision, for a device to carry out.

timm's operations are called with stand-ins for the image: a ramp of all 256 values where each value becomes another
one, whatever the image; a blank that notes how it would be warped. So all arithmetic of arguments is theirs, too.
"""

import math
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import mtrand
from PIL import Image
from torch import Tensor

NOTHING = torch.empty(0, dtype=torch.uint8)  # was drawn
RAMP = Image.frombytes("L", (256, 1), bytes(range(256)))
NO_VALUES = (0.0,) * 6


class Kind(IntEnum):
    """The operations that a device knows (`view_operations.py`)."""

    TABLE = 0  # each value becomes another: inverted, posterised, solarised, brighter
    AUTOCONTRAST = 1
    EQUALISE = 2
    CONTRAST = 3
    COLOUR = 4
    SHARPNESS = 5
    WARP = 6


class Group(IntEnum):
    """Kinds of operation that are carried out together."""

    MAPPED = 0  # each value of a channel through a table, which may be made from the image itself
    BLENDED = 1  # between the image and a grey or a smooth one
    WARPED = 2


GROUPS = {
    **dict.fromkeys((Kind.TABLE, Kind.AUTOCONTRAST, Kind.EQUALISE, Kind.CONTRAST), Group.MAPPED),
    **dict.fromkeys((Kind.COLOUR, Kind.SHARPNESS), Group.BLENDED),
    Kind.WARP: Group.WARPED,
}
# Of the images of a batch, in each round of RandAugment, which carries out half of what it chooses.
SHARES = {Group.MAPPED: 0.27, Group.BLENDED: 0.07, Group.WARPED: 0.17}


class Operation(NamedTuple):
    """One operation on one image: its factor or its matrix, or its table of 256 values."""

    kind: Kind
    values: tuple[float, ...] = ()
    table: bytes = b""


class Operations(NamedTuple):
    """Those of a batch, by round and by group; at most one of an image in a round, in their order."""

    images: Tensor  # int64 (N,): the image of each operation
    kinds: Tensor  # int64 (N,)
    values: Tensor  # float64 (N, 6)
    tables: Tensor  # uint8 (those of group MAPPED, 256)


Counts = list[list[int]]  # of each round and group

KINDS_OF_TIMM = {
    "AutoContrast": Kind.AUTOCONTRAST,
    "Equalize": Kind.EQUALISE,
    **dict.fromkeys(("Invert", "Posterize", "Solarize", "SolarizeAdd", "Brightness"), Kind.TABLE),
    "Contrast": Kind.CONTRAST,
    "Color": Kind.COLOUR,
    "Sharpness": Kind.SHARPNESS,
    **dict.fromkeys(("Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"), Kind.WARP),
}


class OperationRecorder:
    """Stands for an image of a size while timm applies operations to it, and notes them."""

    rotate = Image.Image.rotate

    def __init__(self, width: int, height: int) -> None:
        self.size, self.width, self.height = (width, height), width, height
        self.operations: list[Operation] = []

    def transform(
        self, size: Any, method: Any, matrix: Any, resample: Any = None, fillcolor: Any = None
    ) -> "OperationRecorder":
        self.operations.append(Operation(Kind.WARP, tuple(matrix)))
        return self

    def copy(self) -> "OperationRecorder":
        """Rotated by nothing."""
        return self


def noted(rand_augment: Any) -> Any:
    """RandAugment that records its operations, drawn as timm's; None if a device does not know one of them."""
    from timm.data.auto_augment import AugmentOp, RandAugment

    kinds = [KINDS_OF_TIMM.get(op.name.removesuffix("Increasing")) for op in rand_augment.ops]
    if None in kinds:
        return None
    ops = []
    for op, kind in zip(rand_augment.ops, kinds, strict=True):
        copied = AugmentOp(op.name, op.prob, op.magnitude, op.hparams)
        copied.aug_fn = _Note(kind, op.aug_fn)
        ops.append(copied)
    if rand_augment.choice_weights is not None:
        return RandAugment(ops, rand_augment.num_layers, rand_augment.choice_weights)
    return NotedAugment(ops, rand_augment.num_layers)


class NotedAugment:
    """timm's RandAugment where every operation is as likely, without numpy's slow choice."""

    def __init__(self, ops: Sequence[Any], num_layers: int) -> None:
        self.ops, self.num_layers = ops, num_layers

    def __call__(self, blank: OperationRecorder) -> OperationRecorder:
        for number in drawn_below(len(self.ops), self.num_layers):
            blank = self.ops[number](blank)
        return blank


def drawn_below(limit: int, count: int) -> list[int]:
    """`np.random.randint(limit, size=count)`: of each raw number the lowest bits, until these are below the limit."""
    if limit == 1:
        return [0] * count  # without a draw
    mask, found, raw = (1 << (limit - 1).bit_length()) - 1, list[int](), mtrand.get_bit_generator().random_raw
    while len(found) < count:
        number = raw() & mask
        if number < limit:
            found.append(number)
    return found


class _Note:
    """In place of a function that changes an image."""

    def __init__(self, kind: Any, change: Any) -> None:
        self.kind, self.change = kind, change

    def __call__(self, blank: OperationRecorder, *arguments: Any, **options: Any) -> OperationRecorder:
        if self.kind == Kind.WARP:
            return self.change(blank, *arguments, **options)
        if self.kind == Kind.TABLE:
            blank.operations.append(table(self.change, *arguments, **options))
        else:
            blank.operations.append(Operation(self.kind, arguments))
        return blank


@lru_cache(maxsize=1024)
def table(change: Any, *arguments: Any, **options: Any) -> Operation:
    """A change of each value by itself, whatever the image."""
    return Operation(Kind.TABLE, (), change(RAMP, *arguments, **options).tobytes())


def jittered(step: Any) -> list[Operation]:
    """What torchvision's colour jitter without a hue draws."""
    from torchvision.transforms.functional import adjust_brightness

    order, brightness, contrast, saturation, _ = step.get_params(step.brightness, step.contrast, step.saturation, None)
    by_place = [
        None if brightness is None else table(adjust_brightness, brightness),
        None if contrast is None else Operation(Kind.CONTRAST, (contrast,)),
        None if saturation is None else Operation(Kind.COLOUR, (saturation,)),
        None,
    ]
    return [operation for place in order.tolist() if (operation := by_place[place])]


def batched(drawn: Sequence[Sequence[Operation]], fill: bool = False) -> tuple[Tensor, Counts]:
    """The operations of each image of a batch, put together: one row of bytes, and how many they are.

    `fill`: up to sizes that come again, which can be recorded.
    """
    rounds: list[list[list[tuple[int, Operation]]]]  # by round and group: images and their operations
    rounds = [[[] for _ in Group] for _ in range(max(map(len, drawn), default=0))]
    for image, operations in enumerate(drawn):
        # Where an image has fewer operations than there are rounds, it sits out the first ones or the last ones by
        # turns, so that all rounds have about as many.
        first = (len(rounds) - len(operations)) * (image % 2)
        for place, operation in enumerate(operations, first):
            rounds[place][GROUPS[operation.kind]].append((image, operation))
    for by_group in rounds if fill else []:
        for group, these in zip(Group, by_group, strict=True):
            # Filled up with the first of them: done twice, an operation gives the same image twice.
            these += these[:1] * (-len(these) % filled_to(group, len(drawn)))
    counts = [[len(these) for these in by_group] for by_group in rounds]
    found = [each for by_group in rounds for these in by_group for each in these]
    values = np.array([each.values + NO_VALUES[len(each.values) :] for _, each in found], dtype=np.float64)
    tables = b"".join(each.table or bytes(256) for _, each in found if GROUPS[each.kind] == Group.MAPPED)
    images, kinds = ([image for image, _ in found], [each.kind for _, each in found])
    parts = np.array([images, kinds], dtype=np.int64).tobytes(), values.tobytes(), tables
    return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8) if found else NOTHING, counts


@lru_cache(maxsize=64)
def filled_to(group: Group, batch: int) -> int:
    """A group is filled up to a multiple of this: five standard deviations above its mean, so that one size is enough.

    Every other size is compiled, for seconds, and recorded by itself.
    """
    mean = SHARES[group] * batch
    return min(batch, math.ceil(mean + 5 * math.sqrt(mean * (1 - SHARES[group]))))


def unpacked(packed: Tensor, counts: Counts) -> Operations:
    """What `batched` has put into one row of bytes, on any device; nothing is copied."""
    total, num_tables = sum(map(sum, counts)), sum(counted[Group.MAPPED] for counted in counts)
    numbers, values, tables = packed.split([16 * total, 48 * total, 256 * num_tables])
    images, kinds = numbers.view(torch.int64).view(2, total)
    return Operations(images, kinds, values.view(torch.float64).view(total, 6), tables.view(num_tables, 256))
