"""Sizes of images and patches in configs: one number for a square, or height and width.

A square stays one number, however it is written, so that it has one fingerprint.
"""

from typing import Annotated, Any, TypeAlias

from pydantic import PlainSerializer, PlainValidator

MOST = 65_536  # pixels along a side


def _checked(value: Any) -> "int | tuple[int, int]":
    sides = list(value) if isinstance(value, list | tuple) else [value]
    if not 1 <= len(sides) <= 2 or any(type(side) is not int or not 1 <= side <= MOST for side in sides):
        raise ValueError(f"expected a whole number from 1 to {MOST}, or two: [height, width]")
    return sides[0] if len(set(sides)) == 1 else (sides[0], sides[1])


def _written(size: "int | tuple[int, int]") -> "int | list[int]":
    return size if isinstance(size, int) else [*size]


Size: TypeAlias = Annotated[
    int | tuple[int, int], PlainValidator(_checked), PlainSerializer(_written, when_used="json")
]


def pair(size: Size) -> tuple[int, int]:
    """Height and width."""
    return (size, size) if isinstance(size, int) else size


def shown_size(size: Size) -> str:
    """224, or 40x98."""
    return str(size) if isinstance(size, int) else f"{size[0]}x{size[1]}"
