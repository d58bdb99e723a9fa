"""Layouts against torch, which is the oracle for what a memory format is."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import TYPE_CHECKING

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutdoctor.diagnosis.layout import dense_stride, memory_formats_of, stride_order, strided_layout

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.layout import MemoryFormat

LAYOUT_COUNT = 4_000
# Rich in what is special: sizes 0 and 1.
SIZES = (0, 1, 1, 1, 2, 2, 3, 4)


def torch_formats(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[MemoryFormat, ...]:
    """Every format torch says the layout satisfies; nothing is allocated."""
    tensor = torch.empty_strided(shape, stride, device="meta")
    names: list[MemoryFormat] = ["contiguous_format"]
    names += ["channels_last"] if len(shape) == 4 else []
    names += ["channels_last_3d"] if len(shape) == 5 else []
    return tuple(name for name in names if tensor.is_contiguous(memory_format=getattr(torch, name)))


def random_layout(generator: random.Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A dense layout in some order, half of the time with one stride changed."""
    rank = generator.choice((4, 5))
    shape = tuple(generator.choice(SIZES) for _ in range(rank))
    channels_last = (0, *range(2, rank), 1)
    order = generator.choice((tuple(range(rank)), channels_last, tuple(generator.sample(range(rank), rank))))
    stride = list(dense_stride(shape, order))
    if generator.random() < 0.5:
        stride[generator.randrange(rank)] = generator.choice((0, 1, 2, 3, 7, math.prod(shape)))
    return shape, tuple(stride)


def test_memory_formats_are_those_of_torch() -> None:
    generator = random.Random(20_260)
    seen: Counter[int] = Counter()
    for _ in range(LAYOUT_COUNT):
        shape, stride = random_layout(generator)
        found = memory_formats_of(shape, stride)
        assert found == torch_formats(shape, stride), (shape, stride)
        seen[len(found)] += 1

    # The draw has met all three kinds, so agreement says something about each.
    assert min(seen[0], seen[1], seen[2]) > 300


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=5).flatmap(
        lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))
    )
)
def test_strides_of_a_dense_tensor_are_those_of_torch(drawn: tuple[list[int], list[int]]) -> None:
    shape, order = drawn
    permuted = torch.empty([shape[dimension] for dimension in order], device="meta")
    expected = permuted.permute([order.index(dimension) for dimension in range(len(shape))])

    assert dense_stride(shape, order) == expected.stride()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=4, max_size=5), st.booleans())
def test_a_tensor_that_torch_converted_satisfies_the_format(shape: list[int], is_channels_last: bool) -> None:
    last: MemoryFormat = "channels_last" if len(shape) == 4 else "channels_last_3d"
    name: MemoryFormat = last if is_channels_last else "contiguous_format"
    tensor = torch.empty(shape, device="meta").to(memory_format=getattr(torch, name))

    assert name in strided_layout(tensor.shape, tensor.stride()).memory_formats


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(2, 5), min_size=1, max_size=5).flatmap(
        lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))
    )
)
def test_the_order_of_a_dense_layout_is_found_again(drawn: tuple[list[int], list[int]]) -> None:
    shape, order = drawn

    assert stride_order(shape, dense_stride(shape, order)) == tuple(order)
