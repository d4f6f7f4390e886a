"""The difference of two computations of the same values."""

from collections.abc import Sequence

from torch import Tensor


def relative_difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference over the largest value, of all tensors together."""
    largest = max(float(value.abs().max()) for value in expected)
    return max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True)) / largest
