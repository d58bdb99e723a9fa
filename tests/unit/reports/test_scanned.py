"""The report of a scan: on one screen, outlying ranks by name, nothing said of what was not recorded."""

from __future__ import annotations

import html5lib
import pytest
from builders import a_lack
from trace_builders import a_waiting

from layoutdoctor.diagnosis.scan import Scan, ScannedFile, ScannedRows, ScanRow, ScanSum
from layoutdoctor.reports import render_scan
from layoutdoctor.reports.sections.scanned import outlying

MILLISECOND = 1_000_000


def a_scan(*milliseconds: int, **further: object) -> Scan:
    total = ScanSum()
    for rank, spent in enumerate(milliseconds):
        nanoseconds = spent * MILLISECOND
        row = ScanRow(
            rule="LD111",
            owner="library",
            kernel="nchwToNhwcKernel",
            op="aten::cudnn_convolution",
            module=f"Conv2d_{rank}",
            direction="to_channels_last",
            count=2,
            nanoseconds=nanoseconds,
        )
        file = ScannedFile(
            name=f"rank{rank}.json",
            rank=rank,
            kernel_count=100,
            kernel_nanoseconds=100 * MILLISECOND,
            conversion_count=2,
            conversion_nanoseconds=nanoseconds,
            **further,  # type: ignore[arg-type]
        )
        total.add(ScannedRows(file=file, rows=(row,)))
    return total.result()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([10, 10, 10], []),
        ([10, 11, 10, 10, 30], [4]),
        ([10, 10, 0, 10, 10, 25], [5, 2]),
        ([1, 2, 3, 4, 5, 6], []),
    ],
)
def test_ranks_far_from_the_others_are_found(values: list[int], expected: list[int]) -> None:
    assert outlying(dict(enumerate(values))) == expected


def test_ranks_are_named_with_the_least_the_median_and_the_most() -> None:
    text = str(a_scan(10, 11, 10, 10, 30))

    assert "By rank: least 10.0 ms (rank 0), median 10.0 ms, most 30.0 ms (rank 4)" in text
    assert "Far from the others: rank 4 (30.0 ms)" in text
    assert "LD111 library-conversion  5      10           71.0 ms  14 %" in text
    many = str(a_scan(*range(1000)))
    assert len(many.splitlines()) < 45
    assert "and 994 more: --output report.json lists them" in many


def test_html_and_markdown_have_every_row() -> None:
    found = a_scan(*range(1, 30))

    page = render_scan(found, "html")
    assert page.count('<tr><th scope="row">Conv2d_') == 29
    html5lib.HTMLParser(strict=True).parse(page)
    assert "<script src" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "| Conv2d_28 |" in render_scan(found, "markdown").replace("`", "")


def test_bounds_and_waiting_are_shown_if_they_were_recorded() -> None:
    waiting = a_waiting(span_seconds=0.5, busy_seconds=0.1, collective_seconds=3e-3, step_count=5, waits_for="host")
    text = str(a_scan(10, 10, waiting=waiting))

    assert "Conversions cost at most 10.0 ms of 1.00 s from the first to the last kernel (1.0 %)" in text
    more = a_scan(
        10,
        10,
        waiting=waiting,
        undecided_nanoseconds=1000,
        lacks=(a_lack(),),
    )
    assert "Conversions and kernels that may convert, as far as recorded, cost at most 10.0 ms" in str(more)
    assert "Devices were busy 20 % of the time; collectives 6.00 ms" in text
    assert "Runs waited for the host in 2 files" in text
    assert "cost at most" not in str(a_scan(10, 10))


def test_markup_in_names_stays_text() -> None:
    total = ScanSum()
    total.add(ScannedRows(file=ScannedFile(name="<script>alert(1)</script>.json", failure="`x` <b>")))
    found = total.result()

    assert "<script>alert" not in render_scan(found, "html")
    assert "None of 1 file could be examined." in str(found)
