from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from recorded_builders import Recorder

from layoutdoctor.examination.kernels.host import ProfiledIteration, iteration_of
from layoutdoctor.recording.chrome import read_chrome_trace
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.recording import NONE, Problem


def read(*events: dict[str, Any], **document: Any) -> ProfiledIteration:
    """As a live iteration is read: through the reader of Chrome traces."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_text(json.dumps({"traceEvents": events, **document}), encoding="utf-8")
        return iteration_of(read_chrome_trace(TraceFile(path)))


def operation(name: str = "aten::relu", ts: float = 1.0, dur: float = 2.0, **changes: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "pid": 3, "tid": 7, "args": {}, **changes}


def test_an_operation_has_its_times_in_seconds_and_its_arguments() -> None:
    arguments = {
        "Input Dims": [[2, 3], [], "scalar", [[1], [2]]],
        "Input Strides": [[3, 1], [], "scalar"],
        "External id": 9,
    }
    profile = read(operation(ts=1500.25, dur=12.5, args=arguments), baseTimeNanoseconds=1_700_000_000_000_000_000)
    (found,) = profile.operations

    assert (found.name, found.thread, found.is_annotation) == ("aten::relu", "3 7", False)
    assert found.start_seconds + profile.base_seconds == pytest.approx(1_700_000_000.00150025, abs=5e-7)
    assert found.seconds == pytest.approx(12.5e-6)
    assert found.end_seconds - found.start_seconds == pytest.approx(12.5e-6)
    assert found.shapes == ((2, 3), (), (), ())
    assert found.strides == ((3, 1), (), ())
    assert found.external_id == 9
    assert profile.base_seconds == pytest.approx(1_700_000_000.00150025, abs=5e-7)  # its first operation


def test_operations_of_a_whole_trace_know_their_rows_and_stand_behind_the_ranges_around_them() -> None:
    recorder = Recorder()
    with recorder.annotation("step"), recorder.operation("aten::add", shapes=[(2, 3)], strides=[(3, 1)]):
        pass
    with recorder.operation("aten::empty", external=NONE):
        pass
    trace = recorder.trace(problems=[Problem("lost", 2, is_loss=True), Problem("mended", 5)])
    found = iteration_of(trace)

    assert [(o.name, o.row, o.is_annotation) for o in found.operations] == [
        ("step", None, True),
        ("aten::add", 0, False),
        ("aten::empty", 1, False),
    ]
    assert [(o.shapes, o.strides, o.external_id) for o in found.operations[1:]] == [
        (((2, 3),), ((3, 1),), 5001),
        ((), (), None),
    ]
    assert {o.thread for o in found.operations} == {"1 main"}
    assert (found.base_seconds, found.not_understood_count) == (0.0, 2)
