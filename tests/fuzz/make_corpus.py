"""
Writes the seed inputs of the fuzz tests: a few events of a real trace in every style, and small inputs of all kinds.

    python tests/fuzz/make_corpus.py

The events come from ``tests/traces/h100_vit_patch_embed.json.gz``, the rows of one table from
``tests/traces/h100_wan21_kernel_summary.csv`` (see the README there for source and licence); all else is made up.
The files are kept in the repository, so that a changed recipe never changes what an old failure was found with.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"
TRACES = Path(__file__).parents[1] / "traces"
HEAD = '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "baseTimeNanoseconds": 1000'
TO_NHWC = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(float const*, float*)"


def real_events() -> list[dict[str, Any]]:
    """The first convolution of the trace with all that belongs to it, and one event of every other category."""
    events = json.loads(gzip.decompress((TRACES / "h100_vit_patch_embed.json.gz").read_bytes()))["traceEvents"]
    outer = next(event for event in events if event.get("name") == "aten::conv2d")
    start, end = outer["ts"], outer["ts"] + outer["dur"]
    within = [
        event
        for event in events
        if event.get("tid") == outer["tid"] and start <= event.get("ts", -1) <= end and "dur" in event
    ]
    launched = {event["args"].get("correlation") for event in within if event["cat"].startswith("cuda")} - {None}
    kernels = [e for e in events if e.get("cat") == "kernel" and e["args"].get("correlation") in launched]
    chosen = [*within, *kernels]
    seen = {event["cat"] for event in chosen}
    for event in events:
        kind = event.get("cat", event["ph"])
        if kind not in seen:
            seen.add(kind)
            chosen.append(event)
    return chosen


def kineto(events: list[dict[str, Any]]) -> str:
    """Kineto's own style: the fields on two lines, the arguments on one of their own."""
    texts = []
    for event in events:
        parts = [f'"{key}": {json.dumps(value)}' for key, value in event.items() if key != "args"]
        text = "  {\n    " + ", ".join(parts[:5]) + "".join(f",\n    {part}" for part in parts[5:])
        if "args" in event:
            text += ',\n    "args": {\n      ' + json.dumps(event["args"])[1:-1] + "\n    }"
        texts.append(text + "\n  }")
    return f'{HEAD},\n  "traceEvents": [\n' + ",\n".join(texts) + '\n  ],\n  "traceName": "trace.json"\n}\n'


def of_2020(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same run as torch 1.8 wrote it: capital categories, whole microseconds, the old keys."""
    names = {"cpu_op": "Operator", "kernel": "Kernel", "cuda_runtime": "Runtime"}
    changed = []
    for event in events:
        if event.get("cat") not in names:
            continue
        args = {("external id" if key == "External id" else key): value for key, value in event["args"].items()}
        args["Input dims"] = args.pop("Input Dims", [])
        whole = {"ts": int(event["ts"]), "dur": int(event["dur"]), "tid": str(event["tid"])}
        changed.append({**event, **whole, "cat": names[event["cat"]], "args": args})
    return changed


def damaged(text: str) -> bytes:
    """All that real files were damaged by, each in an event of its own."""
    end = text.rindex("]")
    extra = (
        b',{"ph": "X", "name": "foo "bar" baz", "pid": 1}, {"ph": "X", "dur": NaN, "ts": -inf}',
        b',{"ph": "X", "name": "a\n\x01b"}, {"ph": "X", "args": {"file": "C:\\Users\\x\\", "a": 1}}',
        b',{"ph": "X", "name": "\xff\xfe\\ud800"}, {"ph": "X", "pid": 1,},, {"ph": "X" "name": "a"}',
        b',{"ph": "X", "dur": , "ts": 01}, {"ph": "X", "cat": "cpu_op", "name": "aten::co{"ph": "X", "ts": 1}\0',
    )
    return text[:end].encode() + b"".join(extra) + text[end:].encode()


def database(path: Path, page_bytes: int) -> None:
    """An export of Nsight Systems with one of everything."""
    path.unlink(missing_ok=True)
    process, thread = 7 << 24, (7 << 24) + 7
    operation = "aten::cudnn_convolution, seq = 5, op_id = 12, sizes = [[4, 3, 224, 224], [64, 3, 7, 7], []]"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"""
            PRAGMA page_size = {page_bytes};
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, correlationId INT,
                globalPid INT, demangledName INT, shortName INT, gridX INT, gridY INT, gridZ INT, graphNodeId INT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, streamId INT, globalPid INT,
                bytes INT, copyKind INT);
            CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, globalTid INT, textId INT);
            CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT);
            CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INT, cudaId INT);
            """
        )
        strings = [(1, TO_NHWC), (2, "nchwToNhwcKernel"), (3, "cudaLaunchKernel_v7000"), (4, "forward")]
        rows = {
            "StringIds": strings,
            "CUPTI_ACTIVITY_KIND_KERNEL": [
                (400 + 200 * n, 500 + 200 * n, 0, 7, 90 + n, process, 1, 2, 98, 1, 4, None) for n in range(3)
            ],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [(110 + 20 * n, 120 + 20 * n, thread, 90 + n, 3) for n in range(3)],
            "CUPTI_ACTIVITY_KIND_MEMCPY": [(300, 350, 0, 7, process, 64, 1)],
            "NVTX_EVENTS": [(0, 1000, 59, None, thread, 4), (100, 200, 59, operation, thread, None)],
            "TARGET_INFO_GPU": [(0, "NVIDIA H100 80GB HBM3")],
            "TARGET_INFO_CUDA_DEVICE": [(0, 0)],
        }
        for table, values in rows.items():
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)
        connection.commit()


TABLES = {
    "nsys_kernel_summary.csv": (
        "Processing [run.sqlite] with [cuda_gpu_kern_sum.py]...\n\n"
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
        f'60.0,1200,2,600.0,600.0,500,700,141.4,"{TO_NHWC}"\n40.0,800,4,200.0,200.0,100,300,81.6,void f<int, 4>(int*)\n'
    ),
    "nsys_kernel_list.csv": (
        "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Strm,Name\n"
        f'100,50,1,98,1,4,32,8,1,7,"{TO_NHWC}"\n200,5,2,,,,,,,7,[CUDA memcpy HtoD]\n'
    ),
    "nsys_columns.txt": (
        " Time (%)  Total Time (ns)  Instances  Name            \n"
        " --------  ---------------  ---------  ----------------\n"
        "     60.0             1200          2  nchwToNhwcKernel\n"
    ),
    "nvprof.csv": (
        '==1== Profiling result:\n"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n,%,ms,,ms,ms,ms,\n'
        f'"GPU activities",60.0,1.2,2,0.6,0.5,0.7,"{TO_NHWC}"\n"API calls",40.0,9.0,4,1,1,1,"cudaMalloc"\n'
    ),
    "key_averages.txt": (
        "----------------  ------------  ------------  ------------  \n"
        "            Name      Self CPU     Self CUDA    # of Calls  \n"
        "----------------  ------------  ------------  ------------  \n"
        "nchwToNhwcKernel       0.000us       1.200ms             2  \n"
        "    aten::conv2d       5.000us       0.000us             2  \n"
        "----------------  ------------  ------------  ------------  \n"
        "Self CPU time total: 5.000us\n"
    ),
}
LOGS = {
    "onednn_new.log": (
        "onednn_verbose,v1,info,oneDNN v3.12.0 (commit 0123456789abcdef)\n"
        "onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost\n"
        "onednn_verbose,v1,1790000000123.456,primitive,exec,cpu,reorder,jit:blk,undef,src:f32::blocked:abcd::f0 "
        "dst:f32::blocked:aBcd16b::f0,attr-scratchpad:user,,4x64x56x56,0.512939\n"
        "onednn_verbose,v1,1790000000124.001,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,"
        "src:f32:a:blocked:aBcd16b::f0 wei:f32:a:blocked:ABcd16b16a::f0 dst:f32:a:blocked:aBcd16b::f0,,"
        "alg:convolution_direct,mb4_ic64oc64_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1,1.25\n"
        "a line of the program\n"
    ),
    "onednn_old.log": (
        "dnnl_verbose,info,DNNL v1.6.0\n"
        "dnnl_verbose,exec,cpu,reorder,jit:uni,undef,"
        "src_f32::blocked:abcd:f0 dst_f32::blocked:aBcd16b:f0,,,2x16x7x7,0.01\n"
    ),
}


def write_corpus() -> None:
    """Writes every file anew."""
    CORPUS.mkdir(exist_ok=True)
    events = real_events()
    document = {"schemaVersion": 1, "traceEvents": events, "traceName": "trace.json"}
    whole = kineto(events)
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    texts = {
        "chrome_kineto.json": whole,
        "chrome_streaming.json": f'{{"schemaVersion":1,\n"traceEvents":[\n{lines}\n]}}',
        "chrome_one_line.json": json.dumps(document),
        "chrome_indented.json": json.dumps(document, indent=2),
        "chrome_list_of_2020.json": json.dumps(of_2020(events)),
        "chrome_truncated.json": whole[: len(whole) * 2 // 3],
        "diagnosis.json": '{"schema_version": 1, "layoutdoctor_version": "0.1.0", "trials": []}',
        "notebook.json": '{"cells": [], "nbformat": 4}',
        **TABLES,
        **LOGS,
    }
    for name, text in texts.items():
        (CORPUS / name).write_text(text, encoding="utf-8", newline="\n")
    table = (TRACES / "h100_wan21_kernel_summary.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (CORPUS / "tracelens.csv").write_text("".join(table[:4]), encoding="utf-8", newline="\n")
    (CORPUS / "utf16.csv").write_bytes(TABLES["nsys_kernel_summary.csv"].encode("utf-16"))
    (CORPUS / "chrome_damaged.json").write_bytes(damaged(json.dumps(document)))
    packed = gzip.compress(json.dumps(document).encode(), mtime=0)
    (CORPUS / "chrome_packed.json.gz").write_bytes(packed)
    half = len(lines) // 2
    members = [f'{{"traceEvents":[{lines[:half]}'.encode(), f"{lines[half:]}]}}".encode()]
    (CORPUS / "chrome_two_members.json.gz").write_bytes(b"".join(gzip.compress(part, mtime=0) for part in members))
    database(CORPUS / "nsys.sqlite", 512)


if __name__ == "__main__":
    write_corpus()
