from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import time
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest

from layoutdoctor.errors import TraceError
from layoutdoctor.recording.reading import recognize

TESTS = Path(__file__).parent.parent.parent
EVENT = '{"ph": "X", "cat": "kernel", "name": "f", "ts": 1, "dur": 2}'
REORDER = (
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,"
    "src:f32::blocked:abcd::f0 dst:f32::blocked:aBcd16b::f0,,,4x64x56x56,0.5"
)
ROCPROF = '"Kind","Agent_Id","Queue_Id","Thread_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp"'

NVPROF = (
    "==9261== NVPROF is profiling process 9261, command: python a.py\n",
    "==1== Profiling result:\n",
    "Time(%)      Time     Calls       Avg       Min       Max  Name\n 58.73%  737.97us         1  737.97us",
    "> | Type | Time(%) | Time | Calls | Avg | Name |\n> |---|---|---|---|---|---|\n",
    '"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"\n,%,ms,,ms,ms,ms,\n',
    " GPU activities:   60.00%  1.20000s      1000  1.2000ms  1.1000ms  1.3000ms  void dgrad_engine<float, int=512>\n",
    "   Start  Duration            Grid Size      Block Size     Regs*    SSMem*    DSMem*      Size  Name\n",
    '"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Size","Device","Stream","Name"\n',
)
ROCPROF_1 = (
    '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"zero_kernel(double*, int)",1,10,10,40\n',
    '"Index","KernelName","gpu-id","queue-id","grd","wgr","DispatchNs","BeginNs","EndNs","CompleteNs","DurationNs"\n',
)


def refusal(head: bytes, name: str = "file") -> str:
    with pytest.raises(TraceError) as error:
        recognize(head, name)
    return str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        f'{{"schemaVersion": 1, "traceEvents": [{EVENT}]}}',
        f'{{"traceEvents": [{EVENT}',
        f"[{EVENT}]",
        f"[\n{EVENT},",
        f" \r\n\t[ {EVENT} ]",
        f'\ufeff{{"traceEvents": [{EVENT}]}}',
        '{"traceEvents": []}',
        "[]",
        "{",
        '{"deviceProperties": [{"id": 0, "name": "a \\" } quoted one"}], "distributedInfo": {"backend": "nccl"},',
        '{"schema": 1, "nodes": [], "traceEvents": []}',
        '{"traceEvents": [{"name": "nodes", "args": {"schema": "1.0"}}',
        '{"traceEvents": [{"ph": "X", "name": "not escaped \x01\x02"}]}',
    ],
)
def test_a_chrome_trace_is_known_by_its_beginning(text: str) -> None:
    assert recognize(text.encode(), "trace.json") == "chrome"


@pytest.mark.parametrize(
    "text",
    [
        "Time (%),Total Time (ns),Instances,Avg (ns),Name\n",
        "Generating SQLite file run.sqlite from run.nsys-rep\nProcessing [run.sqlite] with [cuda_gpu_kern_sum.py]...\n"
        "Time (%),Total Time (ns),Instances,Avg (ns),Name\n60.0,1200,2,600.0,f\n",
        "[6/8] Executing 'cuda_gpu_kern_sum' stats report\n\nTime (%),Total Time (ns),Instances,Name\n60.0,1200,2,f\n",
        " Time (%)  Total Time (ns)  Instances  Name\n --------  ---------------  ---------  ----\n",
    ],
)
def test_a_table_of_kernels_is_known_by_its_titles(text: str) -> None:
    for encoding in ("utf-8", "utf-16"):
        assert recognize(text.encode(encoding), "kernels.csv") == "kernel_csv"


@pytest.mark.parametrize("before", ["", "loading weights\n", "[W1121 13:00:00] Warning: slow\n", "{'epoch': 1}\n"])
def test_a_onednn_log_may_begin_with_other_output(before: str) -> None:
    for marker in ("onednn", "dnnl", "mkldnn"):
        assert recognize((before + REORDER.replace("onednn", marker)).encode(), "run.log") == "onednn_log"


def test_a_diagnosis_of_ours_is_known() -> None:
    assert recognize((TESTS / "golden" / "no_gain.json").read_bytes()[: 1 << 16], "diagnosis.json") == "diagnosis"


def zipped(name: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, EVENT)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("head", "name", "expected"),
    [
        (gzip.compress(EVENT.encode() * 100), "trace.json.xyz", "packed with gzip twice; unpack it first"),
        (bz2.compress(EVENT.encode() * 100), "trace.json.xyz", "packed with bzip2; unpack it first"),
        (lzma.compress(EVENT.encode() * 100), "trace.json.xyz", "packed with xz; unpack it first"),
        (b"\x28\xb5\x2f\xfd\0" + EVENT.encode(), "trace.json.xyz", "packed with zstd; unpack it first"),
        (zipped("archive/data.pkl"), "model.pt", "saved by torch.save"),
        (zipped("trace.json"), "trace.zip", "a zip archive; unpack it first"),
        (pickle.dumps({"segments": [1, 2]}), "snapshot.pickle", "it was not opened, as that can run code"),
        (b"\x00\x83\x01\x02" * 40, "run.nsys-rep", "nsys export --type sqlite"),
        (b"\x00\x83\x01\x02" * 40, "RUN.QDREP", "nsys export --type sqlite"),
        (b"NVR\x00\x01\x00\x00", "run.ncu-rep", "Nsight Compute"),
        (b"\x0a\x40\x00\x01" * 40, "run.pftrace", "a Perfetto trace in protobuf"),
        (b"\x0a\x40\x00\x01" * 40, "host.xplane.pb", "an XPlane"),
        (b"\x0a\x40\x00\x01" * 40, "unknown", "protobuf, such as"),
        (b"\x89HDF\r\n\x1a\n", "run.h5", "nsys export --type sqlite"),
        (b"\x00\x01\x02\x03" * 40, "what", "binary data of an unknown kind"),
        (b"x" * 257 + b"ustar\x00" + b"\x00" * 200, "traces.tar", "a tar archive"),
        (
            b"\xff\xfe" + '{"traceEvents": []}'.encode("utf-16-le"),
            "trace.json",
            "JSON in UTF-16; convert it to UTF-8",
        ),
    ],
)
def test_a_file_of_another_kind_is_named_and_not_opened(head: bytes, name: str, expected: str) -> None:
    assert expected in refusal(head, name)
    assert repr(name) in refusal(head, name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<!DOCTYPE html>\n<html>", "a web page (HTML)"),
        ('{"log":"onednn_verbose,v1,primitive,exec,cpu,reorder\\n","stream":"stdout"}\n', "jq -j .log"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (ROCPROF + "\n", "a CSV of rocprofiler"),
        *(
            (text, "output of nvprof, which is not supported; record the run with nsys profile, and write")
            for text in NVPROF
        ),
        *(
            (text, "a table of rocprof (v1), which is not supported; record the run with torch.pr")
            for text in ROCPROF_1
        ),
        ("Time (%),Total Time (ns),Num Calls,Avg (ns),Name\n", "a table of nsys stats without the time"),
        ("  NVTX Range  Style  NVTX Inst  Kern Inst  Total Time (ns)  Kernel Name\n", "cuda_gpu_kern_sum --format csv"),
        ("  PID  Count  KAvg (ns)  KMed (ns)  API Name  Kernel Name\n", "a table of nsys stats without the time"),
        ('[{"Time (%)":68.1,"Total Time (ns)":98867000,"Name":"f"}]', "write it with nsys stats --format csv"),
        ('==PROF== Connected to process 1\n"ID","Process ID","Kernel Name"\n', "output of Nsight Compute (ncu)"),
        ('"ID","Process ID","Process Name","Kernel Name"\n', "output of Nsight Compute (ncu)"),
        ("  f (1, 1, 1)x(2, 1, 1)\n    Section: GPU Speed Of Light Throughput\n", "output of Nsight Compute (ncu)"),
        ("-----\nName    Self CPU %      Self CPU   CPU to\ntal %   # of Calls\n", "whose lines were broken"),
        (
            "  aten::conv2d   0.48%  847.420us   0.48%  847.420us  35.309us   0.11%  705.594us  29.400us   24\n",
            "rows of a table of torch.profiler without its line of titles",
        ),
        ("aten::conv2d | 0.48% | 847.420us | 0.48% | 847.420us | 24\n", "put the line of titles above the rows"),
        (
            " 58.8  501135728  1011  495683.2  470459.0  469755  602906  51678.9  sm80_xmma_fprop_implicit_gemm\n",
            "rows of a table of nsys stats without its line of titles",
        ),
        ("once upon a time\nthere was", "it begins 'once upon a time'"),
        ('"text"', "text of another kind"),
        ('[\n{"cat" : "Session","pid" :1,"ph" : "X","name" :"model_loading_uri"},', "a profile of ONNX Runtime"),
        ('{"traceEvents":[{"ph":"X","name":"gen_conv","cat":"gpu_op","ts":1,"dur":2}]}', "a trace of Intel's unitrace"),
        (
            '[{"name":"process_name","ph":"M","pid":5,"args":{"name":"Ascend Hardware"}},',
            "record the run on a CPU, or on a GPU of",
        ),
        ('{"Type":48,"CudaEvent":{"startNs":"691362"}}\n', "an export of Nsight Systems in JSON; export it with"),
        ('[{"a": 1}]', "a JSON list of something else"),
        ("[[0, 1], [2, 3]]", "a JSON list of something else"),
        ('{"schema": "1.1.1-chakra", "pid": 5, "nodes": [{"id": 1', "an execution trace (Chakra)"),
        ('{"rocprofiler-sdk-tool": [{"metadata": {', "a rocprofiler recording"),
        ('{"segments": [], "device_traces": [[', "a snapshot of the memory allocator"),
        (
            '{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":[{"ph":"M","pid":1,'
            '"name":"process_name","args":{"name":"/device:GPU:0 (pid 1)"}},',
            "a trace of TensorFlow or JAX",
        ),
        (
            '{"traceEvents": [{"name": "process_name", "ph": "M", "args": {"name": "/job:localhost/replica:0/task:0',
            "a trace of TensorFlow or JAX",
        ),
    ],
)
def test_a_text_of_another_kind_is_named(text: str, expected: str) -> None:
    assert expected in refusal(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        '{"' + '\\"' * 40_000,
        "{" * 65_000,
        "kernelname " * 6_500,
        "python " + " " * 65_000,
        "a " * 33_000,
        "\n" * 30_000 + "a,b\n" * 9_000,
        "total time " * 6_000,
        "-- " * 20_000,
        "Time(%) " * 8_000,
    ],
)
def test_no_beginning_takes_long(text: str) -> None:
    started = time.process_time()
    with suppress(TraceError):
        recognize(text.encode(), "file")
    assert time.process_time() - started < 2
