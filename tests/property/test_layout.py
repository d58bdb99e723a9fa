"""Layouts against torch, which is the oracle for what a memory format is."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import TYPE_CHECKING

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from layoutdoctor.diagnosis.layout import (
    Layout,
    dense_stride,
    dispatched_format,
    memory_formats_of,
    stride_order,
    strided_layout,
)
from layoutdoctor.examination.graphs.conversions import layout_change

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.layout import MemoryFormat


# A hundred thousand were compared once: no difference.
LAYOUT_COUNT = 20_000
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
    """A dense layout in some order, half of the time with one to three strides changed."""
    rank = generator.choice((4, 5))
    shape = tuple(generator.choice(SIZES) for _ in range(rank))
    channels_last = (0, *range(2, rank), 1)
    order = generator.choice((tuple(range(rank)), channels_last, tuple(generator.sample(range(rank), rank))))
    stride = list(dense_stride(shape, order))
    if generator.random() < 0.5:
        for dimension in generator.sample(range(rank), generator.choice((1, 1, 2, 3))):
            stride[dimension] = generator.choice((0, 1, 2, 3, 7, math.prod(shape)))
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


def test_the_format_dispatched_is_the_one_torch_goes_by() -> None:
    """Upsampling lays out its result by ``suggest_memory_format()`` of what it is given."""
    generator = random.Random(20_261)
    seen: Counter[tuple[str | None, bool]] = Counter()
    for _ in range(LAYOUT_COUNT):
        shape, stride = random_layout(generator)
        found = dispatched_format(shape, stride)
        if 0 in shape:
            assert found == "contiguous_format", (shape, stride)
            continue
        returned = functional.interpolate(torch.empty_strided(shape, stride), scale_factor=2)
        assert returned.stride() == torch.empty(returned.shape, memory_format=getattr(torch, str(found))).stride()
        seen[found, found in memory_formats_of(shape, stride)] += 1

    assert len(seen) == 6  # each of the three, where the layout satisfies it and where not
    assert min(seen.values()) > 5


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=5).flatmap(
        lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))
    )
)
def test_strides_of_a_dense_tensor_are_those_of_torch_and_have_its_order(drawn: tuple[list[int], list[int]]) -> None:
    shape, order = drawn
    permuted = torch.empty([shape[dimension] for dimension in order], device="meta")
    expected = permuted.permute([order.index(dimension) for dimension in range(len(shape))])

    assert dense_stride(shape, order) == expected.stride()
    if min(shape) > 1:
        assert stride_order(shape, dense_stride(shape, order)) == tuple(order)


SHAPES = st.lists(st.sampled_from((1, 1, 2, 2, 3, 4)), min_size=3, max_size=5)


def memory_of(layout: Layout) -> list[int]:
    """The numbers of a tensor's elements in the order in which they lie in memory."""
    shape, count = [int(size) for size in layout.shape], math.prod(int(size) for size in layout.shape)
    stride = [int(step) for step in layout.stride or ()]
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    memory = torch.full((extent,), -1)
    memory.as_strided(shape, stride).copy_(torch.arange(count).reshape(shape))
    return [int(number) for number in memory if number >= 0]


@st.composite
def permuted(draw: st.DrawFn, *, with_gaps: bool = False) -> tuple[Layout, Layout]:
    """The same shape in two orders, often the two that have a name; with gaps, as parts of larger memories."""
    shape = draw(SHAPES)
    named = ([*range(len(shape))], [0, *range(2, len(shape)), 1])
    orders = [draw(st.one_of(st.sampled_from(named), st.permutations(range(len(shape))))) for _ in range(2)]
    layouts = []
    for order in orders:
        step = draw(st.integers(1, 2)) if with_gaps else 1
        wide = [size + (draw(st.integers(0, 2)) if with_gaps else 0) for size in shape]
        stride = [step * one for one in dense_stride(wide, order)]
        # Strides of size-1 dimensions say nothing, so they may be anything.
        free = [
            draw(st.integers(0, 50)) if size == 1 and draw(st.booleans()) else one
            for size, one in zip(shape, stride, strict=True)
        ]
        layouts.append(strided_layout(shape, free))
    return layouts[0], layouts[1]


@settings(max_examples=500, deadline=None)
@given(permuted() | permuted(with_gaps=True))
def test_no_conversion_is_needed_exactly_where_the_bytes_lie_in_the_same_order(layouts: tuple[Layout, Layout]) -> None:
    source, target = layouts

    assert (layout_change(source, target) == "none") == (memory_of(source) == memory_of(target))


@settings(max_examples=300, deadline=None)
@given(permuted())
def test_the_direction_names_the_format_that_torch_gives_the_target(layouts: tuple[Layout, Layout]) -> None:
    source, target = layouts
    change = layout_change(source, target)
    tensor = torch.empty_strided(target.shape, target.stride, device="meta")
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(target.shape))

    if change == "to_channels_last":
        assert last is not None
        assert tensor.is_contiguous(memory_format=last)
        assert not tensor.is_contiguous()
    elif change == "to_contiguous":
        assert tensor.is_contiguous()
    elif change == "other":
        assert not tensor.is_contiguous()
        assert last is None or not tensor.is_contiguous(memory_format=last)


@settings(max_examples=300, deadline=None)
@given(permuted(), st.data())
def test_a_tensor_that_is_expanded_is_never_converted(layouts: tuple[Layout, Layout], data: st.DataObject) -> None:
    source, target = layouts
    large = [dimension for dimension, size in enumerate(source.shape) if size != 1]
    if not large:
        return
    dimension = data.draw(st.sampled_from(large))
    stride = [0 if d == dimension else int(step) for d, step in enumerate(source.stride or ())]

    assert layout_change(strided_layout(source.shape, stride), target) == "none"
