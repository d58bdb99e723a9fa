"""How loops see a buffer, against torch: every claim about strides is checked element by element on element numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutdoctor.diagnosis.layout import dense_stride
from layoutdoctor.examination.graphs.buffers import is_relayout
from layoutdoctor.recording.generated_code import Loop, seen_strides

SIZES = st.sampled_from((1, 1, 2, 2, 3, 4))
Numbers = tuple[int, ...]


@dataclass
class Case:
    """A buffer that is stored, the strides with which another one is read for it, and the loops that do both."""

    shape: Numbers
    stride: Numbers
    seen: Numbers
    loops: list[Loop]


@st.composite
def walked(draw: st.DrawFn) -> Case:
    """
    A stored buffer dense in any order; read dense in any order, expanded, sliced or flipped; loops split and merged.

    The loops are those of the dimensions, outermost in the stored memory first, then some cut in two and some
    neighbours joined where both memories allow it: what Inductor's simplification of index expressions does.
    """
    shape = tuple(draw(st.lists(SIZES, min_size=1, max_size=5)))
    stride = dense_stride(shape, draw(st.permutations(range(len(shape)))))
    seen = list(dense_stride(shape, draw(st.permutations(range(len(shape))))))
    if draw(st.booleans()):
        seen = list(dense_stride(shape, sorted(range(len(shape)), key=lambda d: -stride[d])))  # the same order
    for dimension in range(len(shape)):
        change = draw(st.sampled_from(("keep", "keep", "keep", "keep", "expand", "slice", "flip")))
        seen[dimension] *= {"keep": 1, "expand": 0, "slice": 2, "flip": -1}[change]
    loops = [
        (shape[d], stride[d], seen[d]) for d in sorted(range(len(shape)), key=lambda d: -stride[d]) if shape[d] > 1
    ]
    # Cut within dimensions, then joined: a cut across the dimensions of a joined loop is left as not followed.
    for change_loops in (*[_cut] * draw(st.integers(0, 2)), *[_joined] * draw(st.integers(0, 3))):
        loops = change_loops(loops, draw(st.integers(0, 7)))
    return Case(shape, stride, tuple(seen), draw(st.permutations([Loop(*loop) for loop in loops])))


def _cut(dims: list[Numbers], number: int) -> list[Numbers]:
    """One dimension or loop ``(size, *steps)`` of size four as two."""
    fours = [index for index, (size, *_) in enumerate(dims) if size == 4]
    if not fours:
        return dims
    index = fours[number % len(fours)]
    steps = dims[index][1:]
    return [*dims[:index], (2, *(2 * step for step in steps)), (2, *steps), *dims[index + 1 :]]


def _joined(dims: list[Numbers], number: int) -> list[Numbers]:
    """Two neighbours as one, where no memory is walked through with a jump."""
    pairs = [
        index
        for index, ((_, *outer), (size, *inner)) in enumerate(itertools.pairwise(dims))
        if outer == [size * step for step in inner]
    ]
    if not pairs:
        return dims
    index = pairs[number % len(pairs)]
    outer, (size, *inner) = dims[index], dims[index + 1]
    return [*dims[:index], (outer[0] * size, *inner), *dims[index + 2 :]]


def stored_by(loops: list[Loop], shape: Numbers, stride: Numbers) -> torch.Tensor:
    """What the loops leave in the stored buffer when each element that is read is its own place, from 0 on."""
    memory = torch.full((math.prod(shape),), 1_000_000)
    for counters in itertools.product(*(range(loop.count) for loop in loops)):
        place = sum(counter * loop.store_step for counter, loop in zip(counters, loops, strict=True))
        memory[place] = sum(counter * loop.load_step for counter, loop in zip(counters, loops, strict=True))
    return memory.as_strided(shape, stride)


def seen_as(shape: Numbers, strides: Numbers) -> torch.Tensor:
    """Places that torch visits for every element of such a view; negative steps, which torch has not, by flipping."""
    low = sum((size - 1) * step for size, step in zip(shape, strides, strict=True) if step < 0)
    high = sum((size - 1) * step for size, step in zip(shape, strides, strict=True) if step > 0)
    view = torch.arange(low, high + 1).as_strided(shape, [abs(step) for step in strides])
    return view.flip([dimension for dimension, step in enumerate(strides) if step < 0])


@settings(max_examples=500, deadline=None)
@given(walked())
def test_strides_are_those_with_which_torch_sees_the_same_elements(case: Case) -> None:
    found = seen_strides(case.shape, case.stride, case.loops)

    assert found is not None
    assert torch.equal(stored_by(case.loops, case.shape, case.stride), seen_as(case.shape, found))
    assert all(step == 0 for size, step in zip(case.shape, found, strict=True) if size == 1)


@settings(max_examples=500, deadline=None)
@given(walked(), st.lists(st.integers(-3, 30), min_size=8, max_size=8))
def test_what_is_read_in_unequal_steps_has_no_strides_and_a_claim_is_never_wrong(case: Case, steps: list[int]) -> None:
    loops = [Loop(loop.count, loop.store_step, step) for loop, step in zip(case.loops, steps, strict=False)]
    found = seen_strides(case.shape, case.stride, loops)
    stored = stored_by(loops, case.shape, case.stride)
    only = _only_possible_strides(stored)

    assert found in (None, only)
    assert (found is not None) == torch.equal(stored, seen_as(case.shape, only))


def _only_possible_strides(stored: torch.Tensor) -> Numbers:
    """What the first step in each dimension moves: if any strides describe these places, it is these."""
    first = (0,) * stored.dim()
    return tuple(
        int(stored[(*first[:d], 1, *first[d + 1 :])] - stored[first]) if stored.shape[d] > 1 else 0
        for d in range(stored.dim())
    )


@st.composite
def sources_and_views(draw: st.DrawFn) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """A source, and a target that walks its memory: permuted, split, merged, sliced, expanded or shuffled."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 4)), min_size=2, max_size=4)))
    shape = draw(st.sampled_from((shape, (1, *shape))))  # a batch of one, as in inference
    stride = dense_stride(shape, draw(st.permutations(range(len(shape)))))
    dims = list(zip(shape, stride, strict=True))
    for _ in range(draw(st.integers(0, 3))):
        dims = draw(st.sampled_from((_cut, _cut, _joined, _swapped)))(dims, draw(st.integers(0, 7)))
    if draw(st.booleans()):
        dims.insert(0, dims.pop(draw(st.integers(0, len(dims) - 1))))
    for index in range(len(dims)):
        change = draw(st.sampled_from(("keep",) * 8 + ("expand", "slice")))
        size, step = dims[index]
        dims[index] = {"keep": (size, step), "expand": (size, 0), "slice": (max(1, size // 2), step)}[change]
    if draw(st.booleans()):
        dims.insert(draw(st.integers(0, len(dims))), (1, 0))
    target = tuple(size for size, _ in dims)
    return shape, stride, target, tuple(0 if size == 1 else step for size, step in dims)


def _swapped(dims: list[Numbers], number: int) -> list[Numbers]:
    moved = list(dims)
    moved.append(moved.pop(number % len(moved)))
    return moved


def is_relayout_by_elements(shape: Numbers, stride: Numbers, target: Numbers, seen: Numbers) -> bool:
    """
    The definition, on coordinates.

    The target holds every element of the source once, and the target's dimensions that walk one of the source's stand
    side by side, the one with the longest steps first; or, for the first dimension of the source and of an image of at
    most five, the target's first dimension is among them and the others come after it in that order.
    """
    places, own = seen_as(target, seen), seen_as(shape, stride).reshape(-1).tolist()
    if sorted(places.reshape(-1).tolist()) != sorted(own):
        return False
    number_of = {place: number for number, place in enumerate(own)}
    logical = torch.tensor([number_of[place] for place in places.reshape(-1).tolist()])
    large = [dimension for dimension, size in enumerate(target) if size > 1]
    for dimension, coordinate in enumerate(torch.unravel_index(logical, shape)):
        grid = coordinate.reshape(target)
        walking = [d for d in large if bool((grid.narrow(d, 0, 1) != grid).any())]
        steps = [_smallest_step(grid, d) for d in walking]
        are_side_by_side = [large.index(d) - large.index(walking[0]) for d in walking] == list(range(len(walking)))
        are_batch_and_space = dimension == 0 and walking[:1] == [0] and len(large) <= 5
        if steps != sorted(steps, reverse=True) or not (are_side_by_side or are_batch_and_space):
            return False
    return True


def _smallest_step(grid: torch.Tensor, dimension: int) -> int:
    """What the shortest move along one dimension alone changes a coordinate by."""
    line = grid[tuple(slice(None) if d == dimension else 0 for d in range(grid.dim()))]
    return int(line[line > 0].min())


@settings(max_examples=1000, deadline=None)
@given(sources_and_views())
def test_a_read_is_the_tensor_itself_exactly_where_its_elements_say_so(
    drawn: tuple[Numbers, Numbers, Numbers, Numbers],
) -> None:
    assert is_relayout(*drawn) == is_relayout_by_elements(*drawn), drawn
