from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from layoutdoctor.errors import TraceError
from layoutdoctor.recording.nsys import read_nsys_export, read_range_text
from layoutdoctor.recording.recording import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from layoutdoctor.recording.recording import RecordedTrace

PROCESS, OTHER_PROCESS = 4242 << 24, 4243 << 24
THREAD = PROCESS | 4300
BASE = 1_700_000_000

# The columns that nsys 2024 exports, as far as they matter; real exports have a dozen more, and types.
SCHEMA = """
CREATE TABLE StringIds (id, value);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start, end, deviceId, contextId, greenContextId, streamId, correlationId, globalPid, demangledName, shortName,
    mangledName, launchType, gridX, gridY, gridZ, blockX, blockY, blockZ, graphNodeId
);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start, end, eventClass, globalTid, correlationId, nameId, returnValue, callchainId
);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
    start, end, deviceId, contextId, streamId, correlationId, globalPid, bytes, copyKind
);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (
    start, end, deviceId, contextId, streamId, correlationId, globalPid, value, bytes
);
CREATE TABLE NVTX_EVENTS (
    start, end, eventType, rangeId, category, color, text, globalTid, endGlobalTid, textId, domainId
);
CREATE TABLE TARGET_INFO_GPU (vmId, id, name, busLocation);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid, uuid);
"""
STRINGS = {
    1: "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(float const*, float*)",
    2: "nchwToNhwcKernel",
    3: "sm90_xmma_fprop_implicit_gemm_f32f32_f32_nhwckrsc_nhwc",
    4: "cudaLaunchKernel_v7000",
    5: "cuLaunchKernelEx",
    6: "never referred to",
    7: "forward",
    8: "aten::relu, seq = 6, op_id = 14, sizes = [[4, 64, 56, 56]]",
}
CONVOLUTION = (
    "aten::cudnn_convolution, seq = 5, op_id = 12, sizes = [[4, 3, 224, 224], [64, 3, 7, 7], [], []], "
    "input_op_ids = [(3,0), (4,0)]"
)


def kernel(start: Any, end: Any, name: Any = 1, correlation: int = 90, **changes: Any) -> dict[str, Any]:
    return {
        **{"start": start, "end": end, "deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": correlation},
        **{"globalPid": PROCESS, "demangledName": name, "shortName": 2, "mangledName": None},
        **{"gridX": 98, "gridY": 1, "gridZ": 4, "blockX": 32, "blockY": 8, "blockZ": 1},
        **changes,
    }


def nvtx(start: int, end: int | None, text: str | None, **changes: Any) -> dict[str, Any]:
    return {"start": start, "end": end, "eventType": 59, "text": text, "globalTid": THREAD, **changes}


def call(start: int, correlation: int, name: int = 4, thread: int = THREAD) -> dict[str, Any]:
    return {
        **{"start": start, "end": start + 10, "eventClass": 0, "globalTid": thread},
        **{"correlationId": correlation, "nameId": name, "returnValue": 0},
    }


def transfer(start: int, end: int, **changes: Any) -> dict[str, Any]:
    place = {"deviceId": 0, "contextId": 1, "streamId": 7, "correlationId": 80, "globalPid": PROCESS, "bytes": 64}
    return {"start": start, "end": end, **place, **changes}


def insert(connection: sqlite3.Connection, table: str, rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        names = ", ".join(f'"{name}"' for name in row)
        connection.execute(f'INSERT INTO "{table}" ({names}) VALUES ({", ".join("?" * len(row))})', tuple(row.values()))


RUN: dict[str, list[dict[str, Any]]] = {
    "StringIds": [{"id": number, "value": text} for number, text in STRINGS.items()],
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        kernel(BASE + 900, BASE + 1500, 3, 91, gridX=1, gridY=2, gridZ=3),
        kernel(BASE + 400, BASE + 700, 1, 90),
    ],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [call(BASE + 110, 90), call(BASE + 150, 91, 5)],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [transfer(BASE + 300, BASE + 350, copyKind=1)],
    "CUPTI_ACTIVITY_KIND_MEMSET": [transfer(BASE + 360, BASE + 365, value=0)],
    "NVTX_EVENTS": [
        nvtx(BASE, BASE + 1000, None, textId=7),
        nvtx(BASE + 100, BASE + 200, CONVOLUTION),
        nvtx(BASE + 220, BASE + 230, None, textId=8),
        nvtx(BASE + 240, None, "a mark", eventType=34),
    ],
    "TARGET_INFO_GPU": [{"vmId": 0, "id": 3, "name": "NVIDIA H100 80GB HBM3"}],
    "TARGET_INFO_CUDA_DEVICE": [{"gpuId": 3, "cudaId": 0, "pid": 4242}],
}


def export(path: Path, run: dict[str, list[dict[str, Any]]] = RUN, schema: str = SCHEMA) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema)
        for table, rows in run.items():
            insert(connection, table, rows)
        connection.commit()
    return path


def problems(trace: RecordedTrace) -> dict[str, int]:
    return {problem.what: problem.count for problem in trace.problems}


def names(trace: RecordedTrace, column: Any) -> list[str]:
    return [trace.names[index] for index in column]


def test_an_export_is_read_with_all_that_it_says_and_left_alone_whatever_its_name(tmp_path: Path) -> None:
    path = export(tmp_path / "run ?mode=rwc&#%41 é.sqlite")
    before = path.read_bytes()
    path.chmod(0o444)

    trace = read_nsys_export(path)

    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == [path.name]
    assert names(trace, trace.kernels.name) == [STRINGS[1], STRINGS[3]]
    assert trace.kernels.start.tolist() == [400, 900]
    assert trace.kernels.duration.tolist() == [300, 600]
    assert trace.base_nanoseconds == BASE
    assert (trace.kernels.device.tolist(), trace.kernels.stream.tolist()) == ([0, 0], [7, 7])
    assert [trace.grids[index] for index in trace.kernels.grid] == [(98, 1, 4), (1, 2, 3)]
    assert trace.kernels.process.tolist() == [0, 0]
    assert (trace.source, trace.problems) == ("nsys_export", [])
    assert trace.launches.correlation.tolist() == [90, 91] == trace.kernels.correlation.tolist()
    assert names(trace, trace.launches.name) == ["cudaLaunchKernel", "cuLaunchKernelEx"]
    assert trace.launches.start.tolist() == [110, 150]
    assert [trace.threads[index] for index in trace.launches.thread] == [("4242", "4300")] * 2
    assert names(trace, trace.transfers.name) == ["Memcpy HtoD", "Memset (Device)"]
    assert trace.transfers.duration.tolist() == [50, 5]
    operations = trace.operations

    assert names(trace, operations.name) == ["aten::cudnn_convolution", "aten::relu"]
    assert operations.sequence.tolist() == [5, 6]
    assert operations.start.tolist() == [100, 220]
    assert [json.loads(trace.arguments[index].shapes) for index in operations.arguments] == [
        [[4, 3, 224, 224], [64, 3, 7, 7], [], []],
        [[4, 64, 56, 56]],
    ]
    assert operations.thread.tolist() == trace.launches.thread.tolist()
    assert names(trace, trace.annotations.name) == ["forward"]
    assert trace.annotations.duration.tolist() == [1000]
    assert trace.metadata == {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
    }
    assert STRINGS[6] not in trace.names


def test_two_processes_stay_apart(tmp_path: Path) -> None:
    run = {
        **RUN,
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            kernel(1, 2),
            kernel(3, 4, globalPid=OTHER_PROCESS),
            kernel(5, 6, globalPid=None),
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [call(0, 90, thread=OTHER_PROCESS | 9)],
    }

    trace = read_nsys_export(export(tmp_path / "run.sqlite", run))

    assert trace.kernels.process.tolist() == [0, 1, NONE]
    assert trace.launches.process.tolist() == [1]


def test_an_old_export_with_few_columns_is_read(tmp_path: Path) -> None:
    schema = """
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, shortName INT);
        CREATE TABLE NVTX_EVENTS (start INT, end INT, text TEXT);
    """
    run: dict[str, list[dict[str, Any]]] = {
        "StringIds": [{"id": 2, "value": "nchwToNhwcKernel"}],
        "CUPTI_ACTIVITY_KIND_KERNEL": [{"start": 50, "end": 80, "shortName": 2}],
        "NVTX_EVENTS": [
            {"start": 40, "end": 90, "text": "conv2d, seq = 3"},
            {"start": 41, "end": None, "text": "mark"},
        ],
    }

    trace = read_nsys_export(export(tmp_path / "old.sqlite", run, schema))

    assert names(trace, trace.kernels.name) == ["nchwToNhwcKernel"]
    assert [int(trace.kernels.stream[0]), int(trace.kernels.grid[0]), int(trace.kernels.process[0])] == [NONE, NONE, 0]
    assert names(trace, trace.operations.name) == ["conv2d"]
    assert (trace.operations.thread.tolist(), trace.operations.arguments.tolist()) == ([NONE], [NONE])
    assert trace.problems == []


def test_an_export_without_kernels_or_with_whole_graphs_is_read_and_says_so(tmp_path: Path) -> None:
    schema = SCHEMA.replace("CUPTI_ACTIVITY_KIND_KERNEL", "SCHED_EVENTS")

    run = {table: RUN[table] for table in ("NVTX_EVENTS", "StringIds")}

    trace = read_nsys_export(export(tmp_path / "run.sqlite", run, schema))

    assert (len(trace.kernels), len(trace.annotations)) == (0, 1)
    (what,) = (what for what in problems(trace) if "kernel" in what)
    assert "nsys profile --trace=cuda,nvtx" in what

    # Graphs recorded as a whole are a problem.
    schema = SCHEMA + "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, end INT, graphId INT);"
    run = {**RUN, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": [{"start": 1, "end": 2}, {"start": 3, "end": 4}]}

    trace = read_nsys_export(export(tmp_path / "whole.sqlite", run, schema))

    assert [(count, "--cuda-graph-trace=node" in what) for what, count in problems(trace).items()] == [(2, True)]


def test_values_of_other_types_are_counted_and_left_out(tmp_path: Path) -> None:
    spans = [("soon", 5), (None, 5), (1.5, 5), (b"\0\1", 5), (9, 3), (2**63 - 1, 2**63 - 1), (-(2**63), 5), (1e9, 1e10)]
    bad = [kernel(start, end) for start, end in spans]
    odd = kernel(
        10, 20, name="'; DROP TABLE StringIds; --", shortName=b"x", deviceId="zero", streamId=-5, gridX=2**63 - 1
    )
    ranges = [
        nvtx(1, None, "open"),
        nvtx(2, 3, None),
        nvtx(4, 5, None, textId=999),
        nvtx(6, 7, "aten::add, seq = 1, sizes = [[1, 2"),
        nvtx(8, 9, "start and end", eventType=60),
    ]
    launched_nothing = {**call(BASE + 120, 0, 5), "correlationId": None}
    run = {
        **RUN,
        "CUPTI_ACTIVITY_KIND_KERNEL": [*bad, odd],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [launched_nothing],
        "NVTX_EVENTS": ranges,
    }
    trace = read_nsys_export(export(tmp_path / "run.sqlite", run))

    assert trace.kernels.duration.tolist() == [10]
    assert names(trace, trace.kernels.name) == ["(name not recorded)"]
    assert [int(trace.kernels.device[0]), int(trace.kernels.stream[0]), int(trace.kernels.grid[0])] == [
        NONE,
        NONE,
        NONE,
    ]
    assert problems(trace) == {
        "device kernels whose times could not be read": 8,
        "device kernels without a name": 1,
        "NVTX ranges that were not closed": 1,
        "NVTX ranges without a text": 2,
        "operations whose sizes could not be read": 1,
    }
    assert len(trace.launches) == 0
    assert names(trace, trace.operations.name) == ["aten::add"]
    assert names(trace, trace.annotations.name) == ["(name not recorded)", "(name not recorded)", "start and end"]


@pytest.mark.parametrize(
    "kind",
    [
        "VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "SELECT x AS start, x + 1 AS end FROM n",
        "VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts5(start, end)",
    ],
)
def test_a_view_is_never_run_and_a_virtual_table_is_no_table(tmp_path: Path, kind: str) -> None:
    schema = f"{SCHEMA.replace('CUPTI_ACTIVITY_KIND_KERNEL', 'REAL_KERNELS')} CREATE {kind};"

    trace = read_nsys_export(export(tmp_path / "run.sqlite", {}, schema))

    assert len(trace.kernels) == 0
    assert any("is missing" in what for what in problems(trace))


def test_a_damaged_page_ends_its_table_only_and_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    many = {**RUN, "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(index, index + 1) for index in range(2000)]}
    path = export(tmp_path / "run.sqlite", many)
    with closing(sqlite3.connect(path)) as connection:
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    last = (len(data) // page_bytes - 1) * page_bytes
    data[last : last + page_bytes] = random.Random(1).randbytes(page_bytes)
    path.write_bytes(data)

    trace = read_nsys_export(path)

    assert 0 < len(trace.kernels) < 2000
    assert "the table CUPTI_ACTIVITY_KIND_KERNEL is damaged and ends early" in problems(trace)
    assert names(trace, trace.annotations.name) == ["forward"]

    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(TraceError, match=r"its SQLite database is damaged \(database disk image is malformed\)"):
        read_nsys_export(path)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("CREATE TABLE rocpd_api (id INTEGER);", "rocprofiler database"),
        ("CREATE TABLE StringTable (_id_ INTEGER); CREATE TABLE Version (version INTEGER);", "nvprof"),
        ("CREATE TABLE moz_places (id INTEGER);", "something else (its tables: moz_places)"),
        ("", "something else (its tables: none)"),
    ],
)
def test_a_database_of_another_program_is_named(tmp_path: Path, schema: str, expected: str) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema + "PRAGMA user_version = 1;")

    with pytest.raises(TraceError) as error:
        read_nsys_export(path)

    assert expected in str(error.value)
    assert "nsys export --type sqlite" in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aten::mm, op_id = 3", ("aten::mm", True, NONE, b"")),
        ("aten::mm", ("aten::mm", True, NONE, b"")),
        ("ConvolutionBackward0, seq = 7, op_id = 3, sizes = [[]]", ("ConvolutionBackward0", True, 7, b"[[]]")),
        ("mylib::op, op_id = 3", ("mylib::op", True, NONE, b"")),
        ("ProfilerStep#3, op_id = 3", ("ProfilerStep#3", False, NONE, b"")),
        ("forward, stage = 2", ("forward, stage = 2", False, NONE, b"")),
        ("loss, seq = two", ("loss, seq = two", False, NONE, b"")),
        ("ncclAllReduce", ("ncclAllReduce", False, NONE, b"")),
        ("aten::cat, seq = 1, sizes = [[[2, 3], [4, 5]], []]", ("aten::cat", True, 1, b"[[[2,3],[4,5]],[]]")),
        ("", ("", False, NONE, b"")),
    ],
)
def test_a_range_text_is_taken_apart(text: str, expected: tuple[str, bool, int, bytes]) -> None:
    said = read_range_text(text)

    assert (said.name, said.is_operation, said.sequence, said.shapes) == expected
