from __future__ import annotations

from typing import TYPE_CHECKING

from recorded_builders import FORWARD, GEMM, TO_NCHW, TO_NHWC

from layoutdoctor.examination.kernels.tables import summarize_table
from layoutdoctor.recording.recording import KernelTotal, KernelTotals

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.kernel import KernelSummary


def summary(*rows: KernelTotal) -> KernelSummary:
    return summarize_table(KernelTotals("nsys stats", list(rows)))


def a_row(name: str, count: int = 10, nanoseconds: int = 1000, **changes: object) -> KernelTotal:
    return KernelTotal(name, count, nanoseconds, **changes)  # type: ignore[arg-type]


def nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def test_rows_stand_for_all_their_launches_and_are_added_up_by_name() -> None:
    found = summary(a_row(TO_NHWC, 20, 3000), a_row(TO_NCHW, 5, 1000), a_row(FORWARD, 10, 8000), a_row(GEMM, 1, 4000))

    assert [(c.count, c.direction, nanoseconds(c.seconds)) for c in found.conversions] == [
        (20, "to_channels_last", 3000),
        (5, "to_contiguous", 1000),
    ]
    assert (found.count, nanoseconds(found.seconds)) == (36, 16_000)
    assert (found.conversion_count, nanoseconds(found.conversion_seconds), found.share) == (25, 4000, 0.25)

    found = summary(
        a_row(GEMM, 3, 500, operation="aten::conv2d"),
        a_row(FORWARD, 4, 700, operation="aten::mm"),
        a_row(TO_NHWC, 5, 900, operation="some range"),
    )

    assert (found.convolution_count, nanoseconds(found.convolution_seconds)) == (8, 1400)

    found = summary(
        a_row(TO_NHWC, 2, 100, operation="aten::conv2d"),
        a_row(TO_NHWC, 3, 200, operation="aten::conv3d"),
        a_row(GEMM, 1, 5000),
    )

    assert [(t.kind, t.name, t.count, nanoseconds(t.seconds), t.conversion_count) for t in found.totals] == [
        ("kernel", GEMM, 1, 5000, 0),
        ("kernel", TO_NHWC, 5, 300, 5),
        ("operation", "aten::conv3d", 3, 200, 3),
        ("operation", "aten::conv2d", 2, 100, 2),
    ]
    assert [t.library for t in found.totals] == ["cublas", "cudnn", None, None]
    assert summary(*[a_row(GEMM, 1 << 61, 1 << 61)] * 4).totals[0].count == 1 << 63  # no sum runs over
