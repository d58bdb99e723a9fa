"""How the loop that writes one buffer walks through another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Loop:
    """
    One loop variable of a body.

    Attributes:
        store_step: By how many elements the store moves for one step of it; 0 if the store does not depend on it.
    """

    count: int
    store_step: int
    load_step: int


def seen_strides(shape: Sequence[int], stride: Sequence[int], loops: Sequence[Loop]) -> tuple[int, ...] | None:
    """
    Strides with which a load walks the dimensions of the buffer that its body stores.

    Args:
        stride: Its strides in elements; dimensions do not overlap.

    Returns:
        One stride per dimension: 0 if the load does not depend on it, and for dimensions of size 1. None if a
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

    The dimension's elements are at 0, ``step``, 2 ``step`` ... in the stored buffer. Each loop covers the places
    from its own step up to step times count, and no two of them the same.
    """
    seen: int | None = None
    place, left = step, size
    while left > 1:
        ahead = (loop for loop in loops if loop.store_step > 0 and place < loop.store_step * loop.count)
        loop = next((loop for loop in ahead if place % loop.store_step == 0), None)
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


def reduction_run(loops: Sequence[Loop]) -> int | None:
    """How many neighbours a reduction reads one after the other: 1 where each is a stride away; None without one."""
    reduced = sorted((loop.load_step, loop.count) for loop in loops if loop.store_step == 0 and loop.load_step > 0)
    run = 1
    for step, count in reduced:
        if step != run:
            break
        run *= count
    return run if reduced else None
