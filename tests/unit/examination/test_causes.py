"""Causes that the source of a generated kernel shows."""

from __future__ import annotations

import pytest

from layoutdoctor.examination.kernels.causes import threads_started_in_loops


def loop(end: object, step: int = 1, depth: int = 0) -> str:
    text = "for(int64_t x0=static_cast<int64_t>({}L); x0<static_cast<int64_t>({}); x0+=static_cast<int64_t>({}L))"
    return f"{'    ' * depth}{text.format(0, end, step)}\n{'    ' * depth}{{\n"


PARALLEL = "#pragma omp parallel num_threads(2)\n"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        (PARALLEL + "{\n" + "    #pragma omp for\n" + loop("64L", depth=1), 0),
        (loop("64L") + "}\n" + PARALLEL, 0),
        (loop("2L", 16) + loop("64L", depth=1) + loop("20L", depth=2) + " " * 12 + PARALLEL, 1280),
        (loop("2L") + "    " + PARALLEL + "    {\n    }\n    " + PARALLEL, 4),
        (loop("ks0") + "    " + PARALLEL, None),
        ("", 0),
    ],
    ids=["outside", "behind a loop", "in three loops", "two regions", "symbolic", "no source"],
)
def test_threads_that_a_kernel_starts_inside_its_loops_are_counted(source: str, count: int | None) -> None:
    assert threads_started_in_loops(source) == count
