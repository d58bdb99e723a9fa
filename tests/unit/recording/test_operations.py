from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from layoutdoctor.examination.kernels.host import base_seconds, operation_tree
from layoutdoctor.recording.chrome import read_chrome_trace
from layoutdoctor.recording.files import TraceFile

if TYPE_CHECKING:
    from pathlib import Path


def test_an_operation_has_its_times_in_seconds_and_its_arguments(tmp_path: Path) -> None:
    arguments = {
        "Input Dims": [[2, 3], [], "scalar", [[1], [2]]],
        "Input Strides": [[3, 1], [], "scalar"],
        "External id": 9,
    }
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "ts": 1500.25, "dur": 12.5, "pid": 3, "tid": 7}
    document = {
        "traceEvents": [{**event, "args": arguments}],
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    }
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    trace = read_chrome_trace(TraceFile(path))
    (found,) = operation_tree(trace)

    assert (found.name, found.thread, found.row, found.external_id) == ("aten::relu", "3 7", 0, 9)
    assert found.start_seconds + base_seconds(trace) == pytest.approx(1_700_000_000.00150025, abs=5e-7)
    assert (found.seconds, found.end_seconds - found.start_seconds) == pytest.approx((12.5e-6, 12.5e-6))
    assert found.shapes == ((2, 3), (), (), ())
    assert found.strides == ((3, 1), (), ())
