from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from layoutdoctor.traces.kineto import ProfiledIteration, read_profiled_iteration


def read(*events: dict[str, Any], **document: Any) -> ProfiledIteration:
    return read_profiled_iteration(json.dumps({"traceEvents": events, **document}).encode())


def operation(name: str = "aten::relu", ts: float = 1.0, dur: float = 2.0, **changes: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "tid": 7, "args": {}, **changes}


def test_an_operation_has_its_times_in_seconds_and_its_arguments() -> None:
    arguments = {
        "Input Dims": [[2, 3], [], "scalar", [[1], [2]]],
        "Input Strides": [[3, 1], [], "scalar"],
        "Sequence number": 5,
        "External id": 9,
    }
    profile = read(operation(ts=1500.25, dur=12.5, args=arguments), baseTimeNanoseconds=1_700_000_000_000_000_000)
    (found,) = profile.operations

    assert (found.name, found.thread, found.is_annotation) == ("aten::relu", "7", False)
    assert found.start_seconds == pytest.approx(1500.25e-6)
    assert found.seconds == pytest.approx(12.5e-6)
    assert found.end_seconds == pytest.approx(1512.75e-6)
    assert found.shapes == ((2, 3), (), (), ())
    assert found.strides == ((3, 1), (), ())
    assert (found.sequence_number, found.external_id) == (5, 9)
    assert profile.base_seconds == pytest.approx(1_700_000_000.0)


def test_operations_are_sorted_by_start_and_parents_stand_before_their_children() -> None:
    profile = read(operation("c", ts=5, dur=1), operation("child", ts=1, dur=1), operation("parent", ts=1, dur=4))

    assert [item.name for item in profile.operations] == ["parent", "child", "c"]


def test_a_range_of_the_user_is_an_annotation() -> None:
    (found,) = read(operation("step", cat="user_annotation")).operations

    assert found.is_annotation


def test_a_device_kernel_has_its_stream_and_the_operation_that_launched_it() -> None:
    kernel = operation("nchwToNhwcKernel", cat="kernel", args={"stream": 7, "External id": 9})
    profile = read(kernel, operation("later", ts=9, cat="kernel"))

    assert [(k.name, k.stream, k.external_id) for k in profile.device_kernels] == [
        ("nchwToNhwcKernel", 7, 9),
        ("later", None, None),
    ]
    assert profile.operations == []


def test_events_of_other_kinds_are_left_out() -> None:
    profile = read(
        operation(ph="i"),
        operation(ph="M"),
        operation(cat="python_function"),
        operation(cat="cuda_runtime"),
        operation(cat="gpu_memset"),
        {"ph": "f"},
    )

    assert (profile.operations, profile.device_kernels) == ([], [])


def test_an_empty_trace_is_an_empty_iteration() -> None:
    assert read() == ProfiledIteration()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"traceEvents": 3}'])
def test_what_is_no_trace_is_an_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_profiled_iteration(data)
