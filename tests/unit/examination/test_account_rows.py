from __future__ import annotations

from typing import Any

import pytest
from builders import a_location, channels_last, contiguous

from layoutdoctor.diagnosis.records import AccountRow
from layoutdoctor.examination.account_rows import MOST_ROWS, told

CODE: dict[str, Any] = {
    "operations": ("conv3d",),
    "slower_kernels": ("reorder jit", "aten::slow_conv3d_forward"),
    "faster_kernels": ("convolution brg",),
}


def row(kind: Any, milliseconds: float, **changes: Any) -> AccountRow:
    times = {"slower_seconds": milliseconds * 2e-3, "faster_seconds": milliseconds * 1e-3}
    return AccountRow(kind=kind, seconds=milliseconds * 1e-3, **{**times, **changes})


def test_small_rows_that_are_alike_are_told_where_they_matter_together() -> None:
    """A video VAE lost 48 ms in 90 calls; a third of it stood in "130 rows, each small"."""
    large = [row("implementation", 2, **CODE, locations=(a_location(7),)) for _ in range(19)]
    small = [row("implementation", 0.2, **CODE, locations=(a_location(line),)) for line in range(60, 130)]
    others = [row("implementation", 0.2, **CODE, backward=True), row("operation", 0.3), row("operation", 0.1)]
    difference = sum(one.seconds for one in (*large, *small, *others))
    found = told([*small, *others, *large], difference)

    assert [(one.kind, one.count, round(one.seconds * 1e3, 6), one.detail) for one in found] == [
        ("implementation", 70, 14.0, None),
        *[("implementation", 1, 2.0, None)] * 19,
        ("small", 1, 0.6, "3 rows"),
    ]
    assert [place.line for place in found[0].locations] == list(range(60, 130))
    assert (found[0].slower_seconds, found[0].faster_seconds) == (pytest.approx(28e-3), pytest.approx(14e-3))
    assert sum(one.seconds for one in found) == pytest.approx(difference)


def test_what_goes_both_ways_or_lost_by_other_layouts_is_not_alike() -> None:
    layouts = {"slower_layout": contiguous(), "faster_layout": channels_last()}
    rows = [row("layout", 0.5, **CODE, **layouts), row("layout", 0.5, **CODE, slower_layout=channels_last())]
    rows += [row("implementation", milliseconds, **CODE) for milliseconds in (0.4, -0.4)]
    found = told([row("operation", 99), *rows], 100e-3)

    assert [(one.kind, one.detail) for one in found] == [("operation", None), ("small", "4 rows")]


def test_more_rows_than_are_listed_are_summed_too() -> None:
    found = told([row("operation", 1, operations=(f"op{number}",)) for number in range(MOST_ROWS + 5)], 35e-3)

    assert (len(found), found[-1].detail) == (MOST_ROWS + 1, "5 rows")
