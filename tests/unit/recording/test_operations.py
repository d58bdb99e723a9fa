from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from recorded_builders import Recorder

from layoutdoctor.examination.kernels.host import base_seconds, lost_count, operation_tree
from layoutdoctor.recording.chrome import read_chrome_trace
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.recording import NONE, Problem

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


def test_operations_of_a_whole_trace_know_their_rows_and_stand_behind_the_ranges_around_them() -> None:
    recorder = Recorder()
    with recorder.annotation("step"), recorder.operation("aten::add", shapes=[(2, 3)], strides=[(3, 1)]):
        pass
    with recorder.operation("aten::empty", external=NONE):
        pass
    trace = recorder.trace(problems=[Problem("lost", 2, is_loss=True), Problem("mended", 5)])
    tree = operation_tree(trace)

    assert [(o.name, o.row, o.parent) for o in tree] == [
        ("step", None, None),
        ("aten::add", 0, tree[0]),
        ("aten::empty", 1, None),
    ]
    assert [(o.shapes, o.strides, o.external_id) for o in tree[1:]] == [
        (((2, 3),), ((3, 1),), 5001),
        ((), (), None),
    ]
    assert {o.thread for o in tree} == {"1 main"}
    assert (base_seconds(trace), lost_count(trace)) == (0.0, 2)
