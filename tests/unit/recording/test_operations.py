from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from layoutdoctor.examination.kernels.host import ProfiledIteration, iteration_of
from layoutdoctor.recording.chrome import read_chrome_trace
from layoutdoctor.recording.files import TraceFile


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
