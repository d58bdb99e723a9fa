from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from recorded_builders import FORWARD, GEMM, POINTWISE, TO_NHWC, Recorder

from layoutdoctor.examination.kernels.attribution import attribute
from layoutdoctor.examination.kernels.summaries import kernel_records, totals_of

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Total
    from layoutdoctor.recording.recording import RecordedTrace

IMAGE, WEIGHT = (4, 64, 28, 28), (96, 64, 3, 3)


def a_run() -> Recorder:
    """Two steps of a convolution and a ReLU, and a matrix product of no operation."""
    record = Recorder()
    for number in (1, 2):
        with record.annotation(f"ProfilerStep#{number}"):
            with record.operation("aten::conv2d"), record.operation("aten::cudnn_convolution"):
                record.kernel(TO_NHWC, takes=100 * number)
                record.kernel(FORWARD, takes=1000)
            record.pointwise("aten::relu", kernel=POINTWISE)
    record.kernel(GEMM, takes=7)
    return record


def totals(trace: RecordedTrace) -> tuple[Total, ...]:
    names = [trace.names[name] for name in trace.kernels.name.tolist()]
    modules = ["Conv2d_0" if name == FORWARD else None for name in names]
    return totals_of(attribute(trace), modules, np.array([name == TO_NHWC for name in names], bool))


def of_kind(trace: RecordedTrace, kind: str) -> dict[str, tuple[int, float, int, float]]:
    """Kernels, nanoseconds, conversions and their nanoseconds of each name, in order."""
    return {
        t.name: (t.count, round(t.seconds * 1e9), t.conversion_count, round(t.conversion_seconds * 1e9))
        for t in totals(trace)
        if t.kind == kind
    }


def test_the_list_and_its_sums_by_kernel_operation_module_and_step() -> None:
    trace = a_run().trace()

    first, *_, last = kernel_records(attribute(trace))

    assert (first.name, first.op, first.library, first.stream) == (TO_NHWC, "aten::cudnn_convolution", "cudnn", 7)
    assert (first.seconds, first.start_seconds) == pytest.approx((100e-9, trace.kernels.start[0] * 1e-9))
    assert (last.name, last.op) == (GEMM, None)

    kinds = {kind: of_kind(trace, kind) for kind in ("kernel", "operation", "module", "step")}

    assert kinds == {
        "kernel": {FORWARD: (2, 2000, 0, 0), POINTWISE: (2, 2000, 0, 0), TO_NHWC: (2, 300, 2, 300), GEMM: (1, 7, 0, 0)},
        "operation": {"aten::conv2d": (4, 2300, 2, 300), "aten::relu": (2, 2000, 0, 0)},
        "module": {"Conv2d_0": (2, 2000, 0, 0)},
        "step": {"ProfilerStep#2": (3, 2200, 1, 200), "ProfilerStep#1": (3, 2100, 1, 100)},
    }
    assert all(list(rows.values()) == sorted(rows.values(), key=lambda row: -row[1]) for rows in kinds.values())
    libraries = {(t.kind, t.name): t.library for t in totals(trace)}
    assert (libraries["kernel", TO_NHWC], libraries["operation", "aten::conv2d"]) == ("cudnn", None)
