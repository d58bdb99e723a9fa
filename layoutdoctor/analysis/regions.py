"""
A region: values that can live in one layout, with every conversion that enters and leaves it, and the balance of both.

Today each value that comes into the region is converted A to B, and each that leaves it is converted B to A. If the
region lived in A, those conversions would go, and instead every value that something else needs in B, and every value
that comes in from elsewhere in B, would cost one. Faces ``dataflow`` (FX nodes) and ``buffer_pairs`` (Inductor's
buffers); no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from layoutdoctor.analysis.buffers import densified

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.layout import Layout
    from layoutdoctor.records import Conversion


@dataclass
class Region:
    """
    Values that can live in one layout.

    Attributes:
        values: Names of the values: FX nodes or buffers.
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

    def saved_bytes(self, bytes_of: Callable[[str], int | None]) -> int | None:
        """
        Bytes that conversions move today and would not any more; None where a size is not known.

        Args:
            bytes_of: Bytes read and written by a conversion of a value.
        """
        today = [c.bytes_moved for c in (*self.leaving.values(), *(c for _, c in self.entering))]
        then = [bytes_of(name) for name in (*self.pinned, *self.foreign)]
        known_today, known_then = [b for b in today if b is not None], [b for b in then if b is not None]
        if len(known_today) < len(today) or len(known_then) < len(then):
            return None
        return sum(known_today) - sum(known_then)


def same_format(one: Layout, other: Layout) -> bool:
    """
    Whether two layouts are of one format: a library's blocked one, or a memory format that both satisfy.

    Args:
        one: Any; a part of a larger memory counts by its stride order.
        other: Any.
    """
    if one.is_blocked or other.is_blocked:
        return one.format == other.format
    first, second = densified(one), densified(other)
    return bool(set(first.memory_formats) & set(second.memory_formats)) or first == second


def known_sum(first: float | None, *others: float | None) -> float | None:
    """
    A sum; None where one of its terms is not known.

    Args:
        first: A quantity.
        others: More in the same unit.
    """
    total = first
    for value in others:
        if total is None or value is None:
            return None
        total += value
    return total
