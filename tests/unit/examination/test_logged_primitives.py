from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from recorded_builders import logged

from layoutdoctor.examination.kernels.logs import summarize_log
from layoutdoctor.recording.onednn import read_onednn_log

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.kernel import KernelSummary

MILLISECOND = 1e-3


def reorder(source: str, target: str, shape: str = "4x32x8x8") -> str:
    return logged("reorder", shape, src=source, dst=target)


def convolution(at: float | None = None) -> str:
    tags = {"src": "aBcd16b", "wei": "ABcd16b16a", "bia": "a", "dst": "aBcd16b"}
    problem = "mb4_ic32oc64_ih8oh8kh3sh1dh0ph1_iw8ow8kw3sw1dw0pw1"
    return logged("convolution", problem, "forward_training", at=at, **tags)


def relu(at: float | None = None) -> str:
    return logged("eltwise", "4x64x8x8", "forward_training", at=at, data="aBcd16b")


INPUT, WEIGHT = reorder("abcd", "aBcd16b"), reorder("abcd", "ABcd16b16a", "64x32x3x3")
OUTPUT = reorder("aBcd16b", "abcd", "4x64x8x8")


def summary(*lines: str) -> KernelSummary:
    return summarize_log(read_onednn_log("\n".join(lines)))


def test_the_primitives_of_a_log_are_summed_by_kind_and_listed_by_start() -> None:
    found = summary(INPUT, WEIGHT, convolution(), OUTPUT, relu(), relu())

    assert (found.count, found.conversion_count, found.convolution_count) == (6, 3, 4)
    assert found.seconds == pytest.approx(3 * MILLISECOND)
    assert found.conversion_seconds == pytest.approx(1.5 * MILLISECOND)
    assert found.convolution_seconds == pytest.approx(2 * MILLISECOND)
    assert found.share == pytest.approx(0.5)
    assert found.sources == ("onednn_log",)

    assert [(total.kind, total.name, total.count, total.conversion_count) for total in found.totals] == [
        ("kernel", "reorder", 3, 3),
        ("kernel", "eltwise", 2, 0),
        ("kernel", "convolution", 1, 0),
    ]
    assert found.totals[0].conversion_seconds == pytest.approx(1.5 * MILLISECOND)
    assert {total.library for total in found.totals} == {"onednn"}

    found = summary(relu(at=20), convolution(at=10))

    assert [kernel.name for kernel in found.kernels] == ["convolution", "eltwise"]
    assert [kernel.start_seconds for kernel in found.kernels] == pytest.approx([0.0, 10 * MILLISECOND], abs=1e-6)
    assert not any("TIMESTAMP" in lack.reason for lack in found.lacks)
