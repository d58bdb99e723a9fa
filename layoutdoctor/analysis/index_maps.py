"""
How the loops of a generated kernel see a buffer: from steps per loop variable to strides per dimension.

A loop body stores one buffer and loads others, each at an index that is a sum of loop variables times whole numbers.
Read together, the two say with which strides the load walks the dimensions of the stored buffer: whether the values
are only moved, and from which layout. Pure integer arithmetic; faces capture (which reads the loops) and
``graph_conversions`` (which judges them). No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Loop:
    """
    One loop variable of a body.

    Attributes:
        count: How many values it takes.
        store_step: By how many elements the store moves for one step of it; 0 where the store does not depend on it.
        load_step: The same for the load.
    """

    count: int
    store_step: int
    load_step: int


def seen_strides(shape: Sequence[int], stride: Sequence[int], loops: Sequence[Loop]) -> tuple[int, ...] | None:
    """
    Strides with which a load walks the dimensions of the buffer that its body stores.

    Args:
        shape: Sizes of the stored buffer.
        stride: Its strides in elements; dimensions do not overlap.
        loops: The body's loop variables; one may cover several dimensions, or a part of one.

    Returns:
        One stride per dimension: 0 where the load does not depend on it, and for dimensions of size 1. None where a
        dimension is not walked in equal steps, so that no stride describes the load.
    """
    strides: list[int] = []
    for size, step in zip(shape, stride, strict=True):
        seen = 0 if size == 1 else _seen_stride(size, step, loops)
        if seen is None:
            return None
        strides.append(seen)
    return tuple(strides)


def _seen_stride(size: int, step: int, loops: Sequence[Loop]) -> int | None:
    """
    The load's stride along one dimension: the loops that cover it, from the innermost on, have to agree.

    The dimension's elements stand at 0, ``step``, 2 ``step`` ... in the stored buffer. Each loop covers the places
    from its own step up to step times count, and no two of them the same.
    """
    seen: int | None = None
    place, left = step, size
    while left > 1:
        loop = next((loop for loop in loops if _covers(loop, place)), None)
        if loop is None or loop.store_step * loop.count % place:
            return None
        count = loop.store_step * loop.count // place
        load_step = loop.load_step * (place // loop.store_step)
        multiple = place // step
        if seen is None:
            seen = load_step
        elif load_step != seen * multiple:
            return None
        if count < left and left % count:
            return None
        left = 1 if count >= left else left // count
        place *= count
    return seen


def _covers(loop: Loop, place: int) -> bool:
    return loop.store_step > 0 and place % loop.store_step == 0 and place < loop.store_step * loop.count


def reduction_run(loops: Sequence[Loop]) -> int | None:
    """
    How many neighbouring elements a reduction reads one after the other.

    Args:
        loops: The body's loop variables; those that the store does not depend on are reduced.

    Returns:
        1 where every element is a stride away from the last; None where nothing is reduced.
    """
    reduced = sorted((loop.load_step, loop.count) for loop in loops if loop.store_step == 0 and loop.load_step > 0)
    run = 1
    for step, count in reduced:
        if step != run:
            break
        run *= count
    return run if reduced else None


@dataclass(frozen=True)
class _Run:
    """Places ``step`` to ``step * count`` of a memory, walked by one dimension."""

    dimension: int
    step: int
    count: int


def is_relayout(
    source_shape: Sequence[int],
    source_stride: Sequence[int],
    target_shape: Sequence[int],
    seen_stride: Sequence[int],
) -> bool:
    """
    Whether a load that walks the target's dimensions with these strides sees the source's own tensor, whole.

    True for the same dimensions in any order (a permuted view), for neighbouring ones seen as one or one seen as
    neighbouring ones (a flattened view and its inverse), and for a leading dimension that stands for batch and space
    together, as in the result of a matrix product seen as ``[N, C, H, W]``. False for what rearranges elements: a part
    of the source, a broadcast, a channel shuffle, a pixel shuffle, windows, attention heads.

    Args:
        source_shape: Sizes of the source.
        source_stride: Its strides in elements.
        target_shape: Sizes of the buffer that is written.
        seen_stride: From ``seen_strides``.
    """
    if _product(source_shape) != _product(target_shape):
        return False
    own, seen = _runs(source_shape, source_stride), _runs(target_shape, seen_stride)
    if own is None or seen is None:
        return False
    large = [dimension for dimension, size in enumerate(target_shape) if size != 1]
    for run in own:
        pieces = _pieces(run, seen)
        if pieces is None or not _keeps_together(run.dimension, pieces, large):
            return False
    return _covered(own) == _covered(seen)


def _product(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def _runs(shape: Sequence[int], stride: Sequence[int]) -> list[_Run] | None:
    """The dimensions larger than one as runs of memory, outermost first; None where two overlap."""
    runs = [
        _Run(dimension, step, size)
        for dimension, (size, step) in enumerate(zip(shape, stride, strict=True))
        if size != 1
    ]
    runs.sort(key=lambda run: -run.step)
    if any(run.step <= 0 for run in runs):
        return None
    overlap = any(outer.step < inner.step * inner.count for outer, inner in pairwise(runs))
    return None if overlap else runs


def _pieces(run: _Run, seen: Sequence[_Run]) -> list[int] | None:
    """The dimensions that walk one dimension of the source, outermost first; None where they do not fit into it."""
    end = run.step * run.count
    pieces: list[int] = []
    for other in seen:
        low, high = max(run.step, other.step), min(end, other.step * other.count)
        if low >= high:
            continue
        if low % run.step or low % other.step:
            return None
        pieces.append(other.dimension)
    return pieces


def _keeps_together(dimension: int, pieces: Sequence[int], large: Sequence[int]) -> bool:
    """
    Whether dimensions that walk one dimension of the source are still that dimension, only seen in parts.

    They are where they follow each other, in their order; or where the first dimension of both is the batch, so that
    the others are the space of an image whose channels stand between. Size-1 dimensions stand between nothing; but the
    heads of an attention are no batch, also where there is a batch of one.
    """
    places = [large.index(piece) for piece in pieces]
    follow_each_other = places == list(range(places[0], places[0] + len(places))) if places else True
    is_batch_and_space = dimension == 0 and pieces[:1] == [0] and places == sorted(places) and len(large) <= 5
    return follow_each_other or is_batch_and_space


def _covered(runs: Sequence[_Run]) -> list[tuple[int, int]]:
    """The memory that runs walk, as few (step, end) as say the same."""
    merged: list[tuple[int, int]] = []
    for run in sorted(runs, key=lambda run: run.step):
        if merged and merged[-1][1] == run.step:
            merged[-1] = (merged[-1][0], run.step * run.count)
        else:
            merged.append((run.step, run.step * run.count))
    return merged
