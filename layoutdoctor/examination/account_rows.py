"""The rows of an account: which are told one by one, which together because they are alike or small."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.records import AccountRow
from layoutdoctor.examination.graphs.regions import known_sum
from layoutdoctor.words import count_of, distinct, layout_words

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from layoutdoctor.diagnosis.records import AccountKind, SourceLocation

MOST_ROWS = 30
SMALL_SHARE = 0.01
"""Of the difference: what contributes less is told together."""


def told(rows: Iterable[AccountRow], difference: float) -> list[AccountRow]:
    """The rows in the order of what they contribute; small ones that are alike as one, and all other small ones."""
    least = SMALL_SHARE * abs(difference)
    ordered = sorted(rows, key=_place)
    count = sum(_weight(row) > least for row in ordered[:MOST_ROWS])
    groups = in_groups(row for row in ordered[count:] if _weight(row))
    telling = [own for own in groups if len(own) > 1 and _weight(as_one(own)) > least]
    small = [row for own in groups if own not in telling for row in own]
    kept = sorted([*ordered[:count], *map(as_one, telling)], key=_place)
    return [*kept, *([sum_row("small", small)] if small else [])]


def _place(row: AccountRow) -> tuple[float, str, tuple[str, ...]]:
    return -_weight(row), row.kind, row.operations


def _weight(row: AccountRow) -> float:
    """What decides whether a row is told: what it contributes, or how much could not be aligned."""
    if row.kind == "not_aligned":
        return max(row.slower_seconds or 0.0, row.faster_seconds or 0.0)
    return abs(row.seconds)


def in_groups(rows: Iterable[AccountRow]) -> list[list[AccountRow]]:
    """Rows that are alike together, in the order of the first of each."""
    groups: dict[Hashable, list[AccountRow]] = defaultdict(list)
    for number, row in enumerate(rows):
        alike = _alike(row)
        groups[number if alike is None else alike].append(row)
    return list(groups.values())


def _alike(row: AccountRow) -> Hashable | None:
    """
    What rows have in common that stand in every layer: what is fused on one side only, calls that lose by a library's
    code or by their layouts.
    """
    if row.kind == "missing_fusion":
        return row.kind, frozenset(row.operations), row.backward
    if row.kind not in ("implementation", "layout"):
        return None
    why = (layout_words(row.slower_layout), layout_words(row.faster_layout)) if row.kind == "layout" else None
    return row.kind, row.operations, row.backward, computing(row.slower_kernels), computing(row.faster_kernels), why


def computing(kernels: Iterable[str]) -> tuple[str, ...]:
    """The kernels that are no conversions."""
    return tuple(name for name in kernels if not name.startswith("reorder"))


def as_one(rows: Sequence[AccountRow]) -> AccountRow:
    """Rows that are alike as the one that contributes most, with the sums and places of all."""
    dearest = max(rows, key=lambda row: abs(row.seconds))
    if len(rows) == 1:
        return dearest
    return msgspec.structs.replace(
        dearest,
        seconds=sum(row.seconds for row in rows),
        slower_seconds=sum(row.slower_seconds or 0.0 for row in rows),
        faster_seconds=sum(row.faster_seconds or 0.0 for row in rows),
        locations=tuple(sorted({place for row in rows for place in row.locations}, key=in_file)),
        slower_kernels=tuple(distinct(name for row in rows for name in row.slower_kernels)),
        faster_kernels=tuple(distinct(name for row in rows for name in row.faster_kernels)),
        tensor_bytes=known_sum(*(row.tensor_bytes for row in rows)),
        count=sum(row.count for row in rows),
        detail=None,
        source=None,
    )


def in_file(place: SourceLocation) -> tuple[str, int]:
    """By file, then line."""
    return place.file, place.line


def sum_row(kind: AccountKind, rows: Sequence[AccountRow]) -> AccountRow:
    """Several rows that have nothing in common as one."""
    return AccountRow(
        kind=kind,
        seconds=sum(row.seconds for row in rows),
        slower_seconds=sum(row.slower_seconds or 0.0 for row in rows),
        faster_seconds=sum(row.faster_seconds or 0.0 for row in rows),
        detail=count_of(sum(row.count for row in rows), "row") if kind == "small" else None,
        operations=() if kind == "small" else tuple(distinct(name for row in rows for name in row.operations)),
    )
