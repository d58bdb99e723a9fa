from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from layoutdoctor.errors import TraceError
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.reading import read_trace
from layoutdoctor.recording.recording import KernelTotal, KernelTotals, Problem, RecordedTrace
from layoutdoctor.recording.table import read_kernel_tables

if TYPE_CHECKING:
    from pathlib import Path

TO_CHANNELS_LAST = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(float const*, float*)"
TO_CONTIGUOUS = "void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false>(float const*, float*)"

PREAMBLE = """
NOTICE: Existing SQLite export found: run.sqlite
        It is assumed file was previously exported from: run.nsys-rep

Processing [run.sqlite] with [/opt/nvidia/nsight-systems/host-linux-x64/reports/cuda_gpu_kern_sum.py]...
"""
SUMMARY = f"""\
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.0,1200,2,600.0,600.0,500,700,141.4,"{TO_CHANNELS_LAST}"
40.0,800,4,200.0,200.0,100,300,81.6,"{TO_CONTIGUOUS}"
"""
API = """\
Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
81.2,131012864,1,131012864.0,131012864.0,131012864,131012864,0.0,cudaMalloc
"""
EXPECTED = [KernelTotal(TO_CHANNELS_LAST, 2, 1200), KernelTotal(TO_CONTIGUOUS, 4, 800)]


def read(tmp_path: Path, text: str, encoding: str = "utf-8") -> KernelTotals:
    path = tmp_path / "kernels.csv"
    path.write_bytes(text.encode(encoding))
    found = read_kernel_tables(TraceFile(path))[0]
    assert isinstance(found, KernelTotals)
    return found


HEADER, ROWS = SUMMARY.split("\n", 1)
PROCESSING = "Processing [run.sqlite] with [cuda_gpu_kern_sum.py]... \n"
FURTHER = "further tables of kernels in the same file, which were not read"
UNREAD = "rows of the kernel table that could not be read"


@pytest.mark.parametrize(
    ("text", "rows", "problems"),
    [
        *((f"{SUMMARY}{line}{API}", EXPECTED, {}) for line in ("\n", PROCESSING, "")),
        *((f"{API}{line}{SUMMARY}", EXPECTED, {}) for line in ("\n", PROCESSING, "")),
        (f"{SUMMARY}\n{SUMMARY}", EXPECTED, {FURTHER: 1}),
        (f"{HEADER}\n1,2,3,{'x' * 3_000_000}\n{ROWS}", EXPECTED, {UNREAD: 1}),
        (HEADER, [], {"the kernel table has no rows": 1}),
        (
            "".join(
                f"ROCPROFV3 {domain} SUMMARY:\n\n|  NAME  |  DOMAIN  |  CALLS  | DURATION (nsec) | PERCENT (INC) |\n"
                f"|--------|----------|---------|-----------------|---------------|\n"
                f"| {name} | {domain} | 4 | 800 | 100.000000 |\n\n"
                for domain, name in (("HIP_API", "hipFree"), ("KERNEL_DISPATCH", "batched_transpose_32x32_half"))
            ),
            [KernelTotal("batched_transpose_32x32_half", 4, 800)],
            {FURTHER: 1},
        ),
    ],
)
def test_of_several_tables_the_one_of_kernels_is_read_and_what_is_left_out_is_counted(
    tmp_path: Path, text: str, rows: list[KernelTotal], problems: dict[str, int]
) -> None:
    totals = read(tmp_path, text)

    assert (totals.rows, {problem.what: problem.count for problem in totals.problems}) == (rows, problems)


@pytest.mark.parametrize(
    ("unit", "value", "nanoseconds"),
    [
        ("(ns)", "1500", 1500), ("(us)", "1.5", 1500), ("(\u00b5s)", "1.5", 1500), ("(\u03bcs)", "1.5", 1500),
        ("(ms)", "0.0015", 1500), ("(sec)", "1.5e-6", 1500), ("", "1500", 1500), ("(ns)", "1,500", 1500),
        ("(us)", "4660.9130000000005", 4_660_913),
    ],
)  # fmt: skip
def test_every_unit_becomes_nanoseconds(tmp_path: Path, unit: str, value: str, nanoseconds: int) -> None:
    totals = read(tmp_path, f'Time(%),Total Time {unit},Instances,Name\n50.0,"{value}",3,f(int)\n')

    assert totals.rows == [KernelTotal("f(int)", 3, nanoseconds)]


BAD = ["soon,2,600,f", "-5,2,600,f", "nan,2,600,f", "1e99,2,600,f", f"{'9' * 400},2,600,f", "1200,2.5,600,f"]
BAD += ["1200,0,600,f", "1200,,600,f", "1200,2,600,", "1200"]


@pytest.mark.parametrize("row", [*(f"60.0,{row}" for row in BAD), "12.5", ",,,,"])
def test_a_bad_row_is_counted_and_the_next_one_read(tmp_path: Path, row: str) -> None:
    totals = read(tmp_path, f"Time (%),Total Time (ns),Instances,Avg (ns),Name\n{row}\n40.0,800,4,200,g\n")

    assert (totals.rows, totals.problems) == ([KernelTotal("g", 4, 800)], [Problem(UNREAD)])


def test_a_no_break_space_of_windows_is_one_between_thousands(tmp_path: Path) -> None:
    text = "Time (%);Total Time (ns);Instances;Avg (ns);Name\n60,0;1\u00a0200;2;600,0;f\n40,0;800;4;200,0;g\n"

    assert read(tmp_path, text, "cp1252").rows == [KernelTotal("f", 2, 1200), KernelTotal("g", 4, 800)]


def test_a_table_that_pandas_prints_without_some_columns_is_read(tmp_path: Path) -> None:
    text = (
        "   Time (%)  Total Time (ns)  Instances  ...  StdDev (ns)  Name\n"
        "0      60.0             1200          2  ...        100.0     f\n"
        "1      40.0              800          4  ...        100.0     g\n\n[2 rows x 9 columns]\n"
    )

    assert read(tmp_path, text).rows == [KernelTotal("f", 2, 1200), KernelTotal("g", 4, 800)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path, encoding: str) -> None:
    assert read(tmp_path, SUMMARY.replace("\n", "\r\n"), encoding).rows == EXPECTED


@pytest.mark.parametrize(
    "text", [API, "hello\n", "Time (%),Total Time (ns),Instances,Avg (ns),Source,Name\n1,2,3,4,MPI,f\n", "a\0b\n"]
)
def test_a_file_without_kernels_is_refused_with_what_was_found(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match="it has no table of kernels; expected the CSV of nsys stats"):
        read(tmp_path, text)


def test_a_row_with_empty_cells_and_without_its_blanks_is_not_guessed(tmp_path: Path) -> None:
    text = (
        "Start (ns)  Duration (ns)  GrdX  GrdY  GrdZ  Bytes (MB)  Device  Ctx  Strm  Name\n"
        "1000 70 98 2 8 NVIDIA A100 (0) 1 13 void cudnn::f<__half, float>(int)\n"
    )

    with pytest.raises(TraceError, match="the numbers could not be read in any row of its table"):
        read(tmp_path, text)


TITLES = "Time (%),Total Time (ns),Instances,"
ROW = f'98,1,4,32,8,1,16,0.000,0.000,,,,,NVIDIA H100 (0),1,,13,"{TO_CHANNELS_LAST}"'


@pytest.mark.parametrize(
    ("source", "text", "rows"),
    [
        ("nsys_kernel_summary", PREAMBLE + SUMMARY, EXPECTED),
        (
            "nsys_kernel_summary",  # a name without quotes keeps its commas
            f"{TITLES}Name\n10,20,3,void f<int, 4>(int*, float)\n",
            [KernelTotal("void f<int,4>(int*,float)", 3, 20)],
        ),
        (
            "nsys_kernel_summary",  # a quote that is never closed
            f'{TITLES}Name\n60,1200,2,"f\n40,800,4,g\n',
            [KernelTotal("f", 2, 1200), KernelTotal("g", 4, 800)],
        ),
        (
            "nsys_kernel_summary",  # one kernel with different grids
            f"{TITLES}Avg (ns),GridXYZ,BlockXYZ,Name\n"
            "25,10,1,10,   1    1    1,  32    1    1,f\n75,30,2,15,   2    1    1,  32    1    1,f\n",
            [KernelTotal("f", 3, 40)],
        ),
        (
            "nsys_summary_with_copies",
            f"{TITLES}Avg (ns),Category,Operation\n74.6,3070579,1,3070579.0,CUDA_KERNEL,f(int)\n"
            "17.1,703395,48,14654.1,MEMORY_OPER,[CUDA memcpy Unified Host-to-Device]\n",
            [KernelTotal("f(int)", 1, 3_070_579)],
        ),
        (
            "nsys_kernel_summary",  # in a comment, with columns of three numbers
            "# Time (%)  Total Time (ns)  Instances      GridXYZ      Name\n"
            "# --------  ---------------  ---------  --------------  -----\n"
            "#     25.0               10          1     1    1    1  f\n"
            "#     75.0               30          2   390    2   64  f\n",
            [KernelTotal("f", 3, 40)],
        ),
        (
            "rocprofv3_summary",
            '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n'
            '"batched_transpose_32x32_half.kd",4,800,200,7.5,1,2,0\n"zero_kernel(double*, int)",1,10,10,0.1,1,2,0\n'
            '"hipLaunchKernel",5,9000,1800,84.7,1,1,1\n"KERNEL_DISPATCH",5,810,162,7.6,1,1,1\n"hsa_queue_create",1,5,5,0.1,1,1,1\n',
            [KernelTotal("batched_transpose_32x32_half.kd", 4, 800), KernelTotal("zero_kernel(double*, int)", 1, 10)],
        ),
    ],
)
def test_a_table_of_each_program_is_read(tmp_path: Path, source: str, text: str, rows: list[KernelTotal]) -> None:
    totals = read(tmp_path, text)

    assert (totals.rows, totals.problems) == (rows, [])
    assert totals.source == source


NSYS_TITLES = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),"
    "Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name"
)
ROCM_TITLES = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"'
)


@pytest.mark.parametrize(
    ("source", "text", "kernels", "transfers", "devices"),
    [
        (
            "nsys_kernel_list",
            f"NOTICE: exporting\n{NSYS_TITLES}\n"
            "11347,661398,123,,,,,,,,,,4.194,6337.593,Pinned,Device,NVIDIA H100 (0),1,,13,[CUDA memcpy HtoD]\n"
            f"11362,7000,129,{ROW}\n11361,7072,128,{ROW}\n",
            [
                (TO_CHANNELS_LAST, 14, 7072, 0, 13, 128, (98, 1, 4)),
                (TO_CHANNELS_LAST, 15, 7000, 0, 13, 129, (98, 1, 4)),
            ],
            [("[CUDA memcpy HtoD]", 0, 661_398)],
            {0: "NVIDIA H100"},
        ),
        (
            "rocprofv3_kernel_list",
            f"{ROCM_TITLES}\n"
            '"KERNEL_DISPATCH","Agent 2",1,0,70,1,33,"batched_transpose_32x32_half",62,1000,3560,'
            "0,0,12,4,48,256,1,1,1000,2,1\n"
            '"MEMORY_COPY","Agent 2",1,0,70,1,33,"other",62,1000,3560,0,0,12,4,48,256,1,1,1000,2,1\n',
            [("batched_transpose_32x32_half", 0, 2560, 2, 1, 62, (4, 2, 1))],
            [],
            {},
        ),
    ],
)
def test_a_list_with_starts_is_a_run(
    tmp_path: Path,
    source: str,
    text: str,
    kernels: list[tuple[object, ...]],
    transfers: list[tuple[object, ...]],
    devices: dict[int, str],
) -> None:
    (tmp_path / "list.csv").write_text(text, encoding="utf-8")

    trace = read_trace(tmp_path / "list.csv")

    assert isinstance(trace, RecordedTrace)
    assert (trace.source, trace.problems) == (source, [])
    found = trace.kernels
    rows = zip(
        *(getattr(found, name).tolist() for name in "name start duration device stream correlation grid".split()),
        strict=True,
    )
    assert [(trace.names[row[0]], *row[1:6], trace.grids[row[6]] if row[6] >= 0 else None) for row in rows] == kernels
    copies = trace.transfers
    moved = zip(copies.name.tolist(), copies.start.tolist(), copies.duration.tolist(), strict=True)
    assert [(trace.names[name], start, duration) for name, start, duration in moved] == transfers
    assert {one["id"]: one["name"] for one in trace.metadata.get("deviceProperties", ())} == devices
