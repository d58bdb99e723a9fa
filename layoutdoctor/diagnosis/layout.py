"""
What a layout is: shape and stride of one tensor, and the memory formats it satisfies.

Pure values, no torch; torch is the oracle in the tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

MemoryFormat = Literal["contiguous_format", "channels_last", "channels_last_3d"]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | str
"""A size or stride: an integer, or the expression of a symbolic one, such as ``"s77"``; never a silent guess."""

CHANNELS_LAST_BY_RANK: dict[int, MemoryFormat] = {4: "channels_last", 5: "channels_last_3d"}


class Layout(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    Shape and stride of one tensor.

    Attributes:
        shape: Sizes, ``[N, C, H, W]`` and the like.
        stride: Strides in elements; None where the layout is no strided one (a blocked oneDNN format) or not known.
        memory_formats: Every memory format the layout satisfies; with size-1 dimensions it may be several.
        format: oneDNN's name of a blocked format, such as ``"aBcd16b"``; None for a strided layout.
    """

    shape: tuple[Size, ...]
    stride: tuple[Size, ...] | None
    memory_formats: tuple[MemoryFormat, ...]
    format: str | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether this is a library's blocked format, which no stride can describe."""
        return self.format is not None

    @property
    def element_count(self) -> int | None:
        """How many elements the tensor has; None where a size is symbolic."""
        count = 1
        for size in self.shape:
            if isinstance(size, str):
                return None
            count *= size
        return count


def strided_layout(shape: Sequence[Size], stride: Sequence[Size]) -> Layout:
    """The layout of a strided tensor, with every memory format it satisfies."""
    return Layout(tuple(shape), tuple(stride), memory_formats_of(shape, stride))


def blocked_layout(shape: Sequence[Size], tag: str) -> Layout:
    """
    The layout of a tensor in one of oneDNN's blocked formats.

    Args:
        tag: oneDNN's format tag, such as ``"aBcd16b"``.
    """
    return Layout(tuple(shape), None, (), tag)


def memory_formats_of(shape: Sequence[Size], stride: Sequence[Size]) -> tuple[MemoryFormat, ...]:
    """
    Every memory format that a strided layout satisfies, as ``Tensor.is_contiguous(memory_format=...)`` would say.

    Args:
        shape: Sizes; symbolic ones are compared as expressions, so only what is certain is claimed.
        stride: Strides in elements.

    Returns:
        The formats in the order contiguous_format, channels_last, channels_last_3d; empty where none fits.

    Source:
        ``c10/core/Contiguity.h`` and ``c10/core/MemoryFormat.h``, torch 2.13: strides of size-1 dimensions do not
        count, and a tensor without elements is contiguous. Checked against torch in tests/property.
    """
    found: list[MemoryFormat] = []
    if _is_dense_in_order(shape, stride, range(len(shape))):
        found.append("contiguous_format")
    channels_last = CHANNELS_LAST_BY_RANK.get(len(shape))
    if channels_last and _is_dense_in_order(shape, stride, (0, *range(2, len(shape)), 1)):
        found.append(channels_last)
    return tuple(found)


def _is_dense_in_order(shape: Sequence[Size], stride: Sequence[Size], order: Sequence[int]) -> bool:
    """Whether strides are those of a dense tensor whose dimensions, slowest first, stand in ``order``."""
    if any(size == 0 for size in shape) and order == range(len(shape)):
        return True  # torch calls a tensor without elements contiguous, but not channels_last
    expected: int | None = 1
    for dimension in reversed(order):
        size = shape[dimension]
        if size == 1:
            continue
        if expected is None or stride[dimension] != expected:
            return False
        expected = expected * size if isinstance(size, int) else None
    return True


def stride_order(shape: Sequence[Size], stride: Sequence[Size]) -> tuple[int, ...] | None:
    """
    The dimensions larger than one, slowest first: what has to differ for a layout conversion to move anything.

    Returns:
        Dimension numbers; None where a stride is symbolic, so that no order can be claimed.
    """
    pairs: list[tuple[int, int]] = []
    for dimension, (size, step) in enumerate(zip(shape, stride, strict=True)):
        if size == 1:
            continue
        if isinstance(step, str):
            return None
        pairs.append((-step, dimension))
    return tuple(dimension for _, dimension in sorted(pairs))


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor in ``contiguous_format``."""
    return dense_stride(shape, range(len(shape)))


def dense_stride(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor whose dimensions, slowest first, stand in ``order``."""
    stride = [0] * len(shape)
    step = 1
    for dimension in reversed(order):
        stride[dimension] = step
        step *= max(1, shape[dimension])
    return tuple(stride)
