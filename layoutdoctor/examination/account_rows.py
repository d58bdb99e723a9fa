"""Sorts and merges the rows of an account, so that small rows do not hide large rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from layoutdoctor.diagnosis import AccountKind, AccountRow
from layoutdoctor.units import sum_if_all_known
from layoutdoctor.words import count_of, distinct

_MOST_ROWS = 30
_SMALL_SHARE = 0.01
"""Rows that contribute less than this share of the difference are merged into one row."""


def without_small(rows: Iterable[AccountRow], difference: float) -> list[AccountRow]:
    """
    Sorts rows by their contribution, the largest first, and merges small rows.

    Small rows with the same operations become one row. Rows that are still small, or beyond the first ``_MOST_ROWS``,
    become one last row. Rows of conversions are never merged.
    """
    least = _SMALL_SHARE * abs(difference)
    large, alike = [], defaultdict(list)
    for row in rows:
        if row.kind == "conversion" or not row.operations or _weight(row) > least:
            large.append(row)
        else:
            alike[row.kind, row.operations, row.backward].append(row)
    large += [_added(own) for own in alike.values()]
    ordered = sorted(large, key=lambda row: (-_weight(row), row.kind, row.operations))
    count = sum(_weight(row) > least for row in ordered[:_MOST_ROWS])
    kept = [row for place, row in enumerate(ordered) if place < count or row.kind == "conversion"]
    small = [row for row in ordered[count:] if row.kind != "conversion" and _weight(row)]
    return [*kept, *([sum_row("small", small)] if small else [])]


def _added(rows: Sequence[AccountRow]) -> AccountRow:
    """Merges rows of one kind with the same operations into one row; the places of the largest row come first."""
    ordered = sorted(rows, key=lambda row: -abs(row.seconds))
    if len(ordered) == 1:
        return ordered[0]
    return msgspec.structs.replace(
        ordered[0],
        seconds=sum(row.seconds for row in rows),
        slower_seconds=sum(row.slower_seconds or 0.0 for row in rows),
        faster_seconds=sum(row.faster_seconds or 0.0 for row in rows),
        locations=tuple(dict.fromkeys(place for row in ordered for place in row.locations)),
        slower_kernels=tuple(distinct(name for row in ordered for name in row.slower_kernels)),
        faster_kernels=tuple(distinct(name for row in ordered for name in row.faster_kernels)),
        tensor_bytes=sum_if_all_known(*(row.tensor_bytes for row in ordered)),
        count=sum(row.count for row in ordered),
        source=None,
    )


def _weight(row: AccountRow) -> float:
    """The seconds by which a row is ranked: its contribution, or for ``not_aligned`` the longer of its two times."""
    if row.kind == "not_aligned":
        return max(row.slower_seconds or 0.0, row.faster_seconds or 0.0)
    return abs(row.seconds)


def sum_row(kind: AccountKind, rows: Sequence[AccountRow]) -> AccountRow:
    """Merges several rows that have nothing in common into one row."""
    return AccountRow(
        kind=kind,
        seconds=sum(row.seconds for row in rows),
        slower_seconds=sum(row.slower_seconds or 0.0 for row in rows),
        faster_seconds=sum(row.faster_seconds or 0.0 for row in rows),
        detail=count_of(sum(row.count for row in rows), "row") if kind == "small" else None,
        operations=() if kind == "small" else tuple(distinct(name for row in rows for name in row.operations)),
    )
