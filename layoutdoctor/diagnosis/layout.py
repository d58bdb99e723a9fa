"""A layout: shape and stride of one tensor, and the memory formats that it satisfies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

MemoryFormat = Literal["contiguous_format", "channels_last", "channels_last_3d"]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | str
"""A size or stride: an integer, or the expression of a symbolic size, such as ``"s77"``; it is never guessed."""

CHANNELS_LAST_BY_RANK: dict[int, MemoryFormat] = {4: "channels_last", 5: "channels_last_3d"}


class Layout(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    Shape and stride of one tensor.

    Attributes:
        shape: Sizes, ``[N, C, H, W]`` and the like.
        stride: Strides in elements; None if the layout is not strided (a blocked oneDNN format) or not known.
        memory_formats: Every memory format that the layout satisfies; there may be several if a dimension has size 1.
        format: oneDNN's name of a blocked format, such as ``"aBcd16b"``; None for a strided layout.
    """

    shape: tuple[Size, ...]
    stride: tuple[Size, ...] | None
    memory_formats: tuple[MemoryFormat, ...]
    format: str | None = None

    def __post_init__(self) -> None:
        check_ranks(self.shape, self.stride)

    @property
    def is_blocked(self) -> bool:
        """Whether this is a library's blocked format, which no stride can describe."""
        return self.format is not None

    @property
    def element_count(self) -> int | None:
        """Number of elements of the tensor; None if a size is symbolic, or torch cannot count so many."""
        sizes = [size for size in self.shape if isinstance(size, int)]
        count = math.prod(sizes)
        return count if len(sizes) == len(self.shape) and count < 2**63 else None


def check_ranks(shape: Sequence[Size], stride: Sequence[Size] | None) -> None:
    """
    Checks that a tensor in a record has as many strides as sizes. The decoder refuses a file in which they differ.

    Raises:
        ValueError: The numbers of sizes and strides differ.
    """
    if stride is not None and len(stride) != len(shape):
        raise ValueError(f"strides in {len(stride)} and sizes in {len(shape)} dimensions, expected as many of each")


def strided_layout(shape: Sequence[Size], stride: Sequence[Size]) -> Layout:
    """Returns the layout of a strided tensor, with every memory format that it satisfies."""
    return Layout(tuple(shape), tuple(stride), memory_formats_of(shape, stride))


def blocked_layout(shape: Sequence[Size], tag: str) -> Layout:
    """Returns the layout of a tensor in a blocked format of oneDNN, whose name is a tag such as ``"aBcd16b"``."""
    return Layout(tuple(shape), None, (), tag)


def memory_formats_of(shape: Sequence[Size], stride: Sequence[Size]) -> tuple[MemoryFormat, ...]:
    """
    Finds every memory format that a strided layout satisfies, as ``Tensor.is_contiguous(memory_format=...)`` would say.

    Args:
        shape: Sizes; a format that depends on a symbolic size is left out.
        stride: Strides in elements.

    Returns:
        The formats in the order contiguous_format, channels_last, channels_last_3d; empty if no format fits.

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


def dispatched_format(shape: Sequence[Size], stride: Sequence[Size] | None) -> MemoryFormat | None:
    """
    Finds the memory format that ATen assumes for a strided layout: the result of ``Tensor.suggest_memory_format()``.

    The layout need not satisfy this format: the strides of size-1 dimensions count here, and gaps are allowed.

    Returns:
        The format; None if the layout is not 4-D or 5-D, has no strides, or has symbolic sizes or strides.

    Source:
        ``is_channels_last_strides_2d_s4`` and the function for 5-D, ``c10/core/MemoryFormat.h``, torch 2.13. Checked
        against torch in tests/property.
    """
    rank = len(shape)
    sizes = [size for size in shape if isinstance(size, int)]
    steps = [step for step in stride or () if isinstance(step, int)]
    if rank not in CHANNELS_LAST_BY_RANK or len(sizes) < rank or len(steps) != rank:
        return None
    if steps[1] == 0 or 0 in sizes:
        return "contiguous_format"
    least = 0
    for dimension in (1, *range(rank - 1, 1, -1), 0):
        # The batch stride equals the channels' stride: ATen treats one channel, or a slice, as contiguous.
        if steps[dimension] < least or (dimension == 0 and least == steps[1]):
            return "contiguous_format"
        least = steps[dimension] * max(sizes[dimension], 1)
    return CHANNELS_LAST_BY_RANK[rank]


def _is_dense_in_order(shape: Sequence[Size], stride: Sequence[Size], order: Sequence[int]) -> bool:
    """Whether a dense tensor with its dimensions in ``order``, slowest first, has these strides."""
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


def known_numbers(layout: Layout | None) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns sizes and strides as whole numbers; None if one is symbolic, or the layout has no strides."""
    if layout is None or layout.stride is None:
        return None
    values = (*layout.shape, *layout.stride)
    if not all(isinstance(value, int) for value in values):
        return None
    return tuple(int(size) for size in layout.shape), tuple(int(step) for step in layout.stride)


def stride_order(shape: Sequence[Size], stride: Sequence[Size]) -> tuple[int, ...] | None:
    """
    Returns the dimensions whose size is not 1, slowest first. Dense layouts of one shape are equal if their orders are.

    Returns:
        Dimension numbers; None if a stride of these dimensions is symbolic, so that the order is not known.
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
    """Returns the strides of a dense tensor in ``contiguous_format``."""
    return dense_stride(shape, range(len(shape)))


def dense_stride(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a dense tensor with its dimensions in ``order``, slowest first."""
    stride = [0] * len(shape)
    step = 1
    for dimension in reversed(order):
        stride[dimension] = step
        step *= max(1, shape[dimension])
    return tuple(stride)
