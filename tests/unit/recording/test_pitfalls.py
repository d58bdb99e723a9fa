"""What real traces have surprised readers with, each in a small document made by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from layoutdoctor.diagnosis.saved import to_json
from layoutdoctor.recording.reading import read_trace
from layoutdoctor.recording.recording import NONE, RecordedTrace
from layoutdoctor.run.recorded import examine_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[..., Path]

TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>(int*)"
OPERATION = {"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "pid": 100, "tid": 200, "ts": 1, "dur": 8}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes bytes, or a document of JSON, into a file."""

    def write(document: Any, name: str = "trace.json") -> Path:
        path = tmp_path / name
        path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
        return path

    return write


def kernel(name: str = TO_NHWC, ts: Any = 10, dur: Any = 5, correlation: Any = 1, **args: Any) -> dict[str, Any]:
    given = {"device": 0, "stream": 7, "correlation": correlation, "grid": [1, 2, 3], **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": given}


def test_events_of_a_device_that_is_not_understood_are_named(write: Write) -> None:
    strange = {**kernel(), "cat": "mtia_ccp_events"}
    diagnosis = examine_trace(write({"traceEvents": [OPERATION, strange, strange]}))

    assert diagnosis.subject.device == "mtia"
    assert diagnosis.subject.notes == ("events of a device that is not understood: mtia_ccp_events (2)",)
    assert diagnosis.trials[0].kernel_summary.not_understood_count == 2
    assert "Nothing can be said of conversions: events of the device mtia are not understood" in str(diagnosis)
    assert "ONEDNN_VERBOSE" not in str(diagnosis)


def test_an_engine_of_tensorrt_gets_advice_for_building_it(write: Write) -> None:
    names = ("void cuInt8::nchwToNhwcKernel<float>", "trt_volta_scudnn_relu_nn", "void cuInt8::nhwcToNchwKernel<float>")
    diagnosis = examine_trace(write({"traceEvents": [kernel(name, ts=10 * n) for n, name in enumerate(names)]}))
    text = str(diagnosis)

    assert [finding.code for finding in diagnosis.findings] == ["LD111"]
    assert "-> build the TensorRT engine with inputs and outputs in the formats" in text
    assert "ProfilingVerbosity.DETAILED" in text
    assert "channels_last_3d" not in text
    assert "layoutdoctor model.py" not in text


def trace_of(path: Path) -> RecordedTrace:
    found = read_trace(path)
    assert isinstance(found, RecordedTrace)
    return found


def names_of(trace: RecordedTrace) -> list[str]:
    return [trace.names[index] for index in trace.kernels.name.tolist()]


def problems_of(trace: RecordedTrace) -> dict[str, int]:
    return {problem.what: problem.count for problem in trace.problems}


def lost(trace: RecordedTrace) -> int:
    return sum(problem.count for problem in trace.problems if problem.is_loss)


def test_ids_of_any_kind_are_a_number_or_not_recorded(write: Write) -> None:
    """What is neither a number nor a text is left out, and the row's own number stands in its place."""
    given = [("stream 7", 7), ("7", 7), (7.0, 7), ("default", NONE), ([7], 7), (True, 7), ({}, 7), ("", NONE)]
    given += [(number, NONE) for number in (2**63, 2**64 + 1, 10**30, -(2**70))]
    for value, stream in given:
        found = trace_of(write({"traceEvents": [kernel(stream=value)]}))
        assert (found.kernels.stream.tolist(), found.kernels.correlation.tolist()) == ([stream], [1]), value
        assert found.problems == []
    for value in (None, "", "none", 2**64):
        event = kernel(correlation=value, **{"External id": value, "Comms Id": value})
        bare = {key: item for key, item in kernel().items() if key not in ("args", "pid", "tid")}
        found = trace_of(write({"traceEvents": [event, bare]}))
        assert found.kernels.correlation.tolist() == found.kernels.external.tolist() == [NONE, NONE]
        assert found.kernels.grid.tolist() == [0, NONE]
    row = {**kernel(), "cat": "Kernel", "args": {"correlation": 3, "external id": 4}, "pid": 2, "tid": "stream 13"}
    found = trace_of(write({"traceEvents": [row]})).kernels  # 2020: capitals, and ids that begin small
    assert [c.tolist() for c in (found.device, found.stream, found.external)] == [[2], [13], [4]]


def test_arguments_of_any_kind_are_read_past_and_what_is_no_event_is_lost(write: Write) -> None:
    for args in (None, [], "x", 7, {"correlation": {"a": 1}}, {"grid": "x"}, {"grid": [1]}, {"grid": None}):
        found = trace_of(write({"traceEvents": [{**kernel(), "args": args}, kernel(ts=30)]}))
        assert (found.kernels.correlation.tolist(), found.problems) == ([NONE, 1], [])
    for event in (None, 7, True):
        found = trace_of(write({"traceEvents": [kernel(), event, kernel(ts=30)]}))
        assert (len(found.kernels), lost(found)) == (2, 1)


@pytest.mark.parametrize(
    ("written", "nanoseconds"),
    [
        ("1610366388630527", 1_610_366_388_630_527_000),
        ("3743411224592.117", 3_743_411_224_592_117),
        ("1.25e3", 1_250_000),
        ("0", 0),
        ("-3.001", -3_001),
    ],
)
def test_a_time_keeps_its_nanoseconds(write: Write, written: str, nanoseconds: int) -> None:
    document = json.dumps({"traceEvents": [kernel(ts="TS", dur=0.001)]}).replace('"TS"', written)
    found = trace_of(write(document.encode()))

    assert found.base_nanoseconds + int(found.kernels.start[0]) == nanoseconds
    assert (found.kernels.duration.tolist(), found.problems) == ([1], [])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, value) for key in ("ts", "dur") for value in ("NaN", "-Infinity", "-nan", "null", "1e400", '"7"')),
        *(("ts", str(number)) for number in (10**17, 10**400, -(10**20))),
        *(("dur", str(number)) for number in (-1, 10**12, 10**400, 2**64)),
    ],
)
def test_a_time_that_cannot_be_loses_its_event_alone(write: Write, key: str, value: str) -> None:
    events = json.dumps([kernel("before"), kernel("bad", **{key: "TIME"}), kernel("after", ts=30)])
    found = trace_of(write(b'{"traceEvents": %b}' % events.replace('"TIME"', value).encode()))

    assert (names_of(found), lost(found)) == (["before", "after"], 1)


def test_fields_that_are_no_json_are_said_and_hide_no_event(write: Write) -> None:
    found = trace_of(
        write(b'{"schemaVersion": 1, "path": "C:\\x", "traceEvents": [%b]}' % json.dumps(kernel()).encode())
    )
    assert (len(found.kernels), problems_of(found)) == (1, {"mended: invalid JSON before the events": 1})

    found = trace_of(write(b'{"traceEvents": [%b], "traceName": "C:\\x.json"}' % json.dumps(kernel()).encode()))
    assert (len(found.kernels), problems_of(found)) == (1, {"mended: invalid JSON after the events": 1})

    # The name of the machine is not kept.
    document = {"traceEvents": [kernel()], "host_name": "somebodys-machine", "traceName": "a"}
    assert trace_of(write(json.dumps(document).encode())).metadata == {"traceName": "a"}


def test_half_a_surrogate_pair_in_a_field_harms_no_report(write: Write) -> None:
    document = b'{"deviceProperties": [{"id": 0, "name": "A\\ud800"}], "traceEvents": [%b], "traceName": "\\udc00"}'
    path = write(document % json.dumps(kernel()).encode())

    assert trace_of(path).metadata == {"deviceProperties": [{"id": 0, "name": "A?"}], "traceName": "?"}
    assert b"A?" in to_json(examine_trace(path))
