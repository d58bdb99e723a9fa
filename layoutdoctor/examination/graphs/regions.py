"""
A region: values that can live in one layout, with every conversion that enters and leaves it, and the balance of both.

Today each value that comes into the region is converted A to B, and each that leaves it is converted B to A. If the
region lived in A, those conversions would go, and instead every value that something else needs in B, and every value
that comes in from elsewhere in B, would cost one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from layoutdoctor.examination.graphs.buffers import densified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Conversion

_Number = TypeVar("_Number", int, float)


@dataclass
class Region:
    """
    Values that can live in one layout.

    Attributes:
        leaving: Conversions A to B of what enters the region, by the value that they make.
        entering: Conversions B to A of what is read from it, with the value each reads.
        pinned: Values that something needs in B: an output, an operation not known to take any layout.
        foreign: Values that come from elsewhere in B.
    """

    values: set[str] = field(default_factory=set)
    leaving: dict[str, Conversion] = field(default_factory=dict)
    entering: list[tuple[str, Conversion]] = field(default_factory=list)
    pinned: set[str] = field(default_factory=set)
    foreign: set[str] = field(default_factory=set)

    def layouts(self) -> list[Layout]:
        """Every layout that values come in: the candidates for A."""
        found: list[Layout] = []
        for conversion in self.leaving.values():
            source = conversion.source
            if source is not None and not any(same_format(source, known) for known in found):
                found.append(source)
        return found

    def in_layout(self, layout: Layout) -> Region:
        """The same region with that layout as A: what comes in another one is foreign, what is read so is pinned."""
        ours = {name: c for name, c in self.leaving.items() if c.source is not None and same_format(c.source, layout)}
        reads = [(name, c) for name, c in self.entering if c.target is not None and same_format(c.target, layout)]
        others = {name for name, conversion in self.entering if (name, conversion) not in reads}
        return Region(self.values, ours, reads, self.pinned | others, self.foreign | (self.leaving.keys() - ours))

    def removable_pair_count(self) -> int:
        """How many conversions of each direction nothing would need any more."""
        return max(0, min(len(self.leaving) - len(self.pinned), len(self.entering) - len(self.foreign)))

    def positions_of_ends(self) -> dict[str, list[int]]:
        """The positions in ``entering`` of each value's conversions."""
        found: dict[str, list[int]] = {}
        for position, (name, _) in enumerate(self.entering):
            found.setdefault(name, []).append(position)
        return found

    def saved_bytes(self, bytes_of: Callable[[str], int | None]) -> int | None:
        """
        Bytes that conversions move today and would not any more; None where a size is not known.

        Args:
            bytes_of: Bytes read and written by a conversion of a value.
        """
        today = known_sum(0, *(c.bytes_moved for c in (*self.leaving.values(), *(c for _, c in self.entering))))
        then = known_sum(0, *(bytes_of(name) for name in (*self.pinned, *self.foreign)))
        return None if today is None or then is None else today - then


class _Search:
    """A search in breadth from some values, one step at a time."""

    def __init__(self, starts: Iterable[str]) -> None:
        self.before: dict[str, str | None] = dict.fromkeys(starts)
        self.front = list(self.before)

    def go_on(self, successors: Callable[[str], Iterable[str]]) -> None:
        """Moves to the values that are one step further."""
        front: list[str] = []
        for name in self.front:
            for other in successors(name):
                if other not in self.before:
                    self.before[other] = name
                    front.append(other)
        self.front = front

    def way(self, end: str) -> list[str]:
        """The values from a start to here, both included."""
        names, name = [end], self.before[end]
        while name is not None:
            names.append(name)
            name = self.before[name]
        return names[::-1]


def shortest_ways(
    successors: Callable[[str], Iterable[str]],
    starts: Sequence[Sequence[str]],
    ends: Mapping[str, Sequence[int]],
    is_wanted: Callable[[int], bool],
) -> Iterator[tuple[int, int, list[str]]]:
    """
    Ways from any start to any end, the shortest first, found as they are asked for.

    Only as much of a region is walked as the answers need, so that one of thousands of values takes no square of time.

    Args:
        starts: The values of each start; a start is named by its position.
        ends: Positions of the ends at each value, in ascending order.

    Yields:
        (position of the start, position of the end, the values on the way, both ends included); of equal length by
        these positions.
    """
    pending = [(0, number, _Search(names)) for number, names in enumerate(starts)]
    while pending:
        length, number, search = heapq.heappop(pending)
        found = sorted((end, name) for name in search.front for end in ends.get(name, ()))
        for end, name in found:
            if is_wanted(number):
                yield number, end, search.way(name)
        if is_wanted(number):
            search.go_on(successors)
            if search.front:
                heapq.heappush(pending, (length + 1, number, search))


def same_format(one: Layout, other: Layout) -> bool:
    """Whether two layouts are of one format: a library's blocked one, or a memory format that both satisfy."""
    if one.is_blocked or other.is_blocked:
        return one.format == other.format
    first, second = densified(one), densified(other)
    return bool(set(first.memory_formats) & set(second.memory_formats)) or first == second


def known_sum(*values: _Number | None) -> _Number | None:
    """A sum; None where one of its terms is not known, or there is none."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
