"""
A region: values that can live in one layout, with every conversion that enters and leaves it, and the balance of both.

Today each value that comes into the region is converted A to B, and each that leaves it is converted B to A. If the
region lived in A, those conversions would go, and instead every value that something else needs in B, and every value
that comes in from elsewhere in B, would cost one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from layoutdoctor.examination.graphs.buffers import densified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.layout import Layout

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


def shortest_ways(
    successors: Callable[[str], Iterable[str]], starts: Sequence[Sequence[str]], ends: Mapping[str, Sequence[int]]
) -> list[tuple[int, int, list[str]]]:
    """
    Ways from any start to any end, the shortest first.

    Args:
        starts: The values of each start; a start is named by its position.
        ends: Positions of the ends at each value, in ascending order.

    Returns:
        (position of the start, position of the end, the values on the way, both ends included); of equal length by
        these positions.
    """
    found = [
        (start, end, way)
        for start, names in enumerate(starts)
        for name, way in _ways_from(successors, names).items()
        for end in ends.get(name, ())
    ]
    return sorted(found, key=lambda item: (len(item[2]), item[0], item[1]))


def _ways_from(successors: Callable[[str], Iterable[str]], names: Sequence[str]) -> dict[str, list[str]]:
    """The shortest way from any of some values to each value that can be reached."""
    ways = {name: [name] for name in names}
    pending = deque(names)
    while pending:
        name = pending.popleft()
        for other in successors(name):
            if other not in ways:
                ways[other] = [*ways[name], other]
                pending.append(other)
    return ways


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
