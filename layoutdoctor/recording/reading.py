"""
Reads runs that were recorded elsewhere: a trace, a table of kernels, a log of oneDNN or a log of torch.compile.

The kind of a file is recognized by its first bytes. A wrong file is the commonest mistake, so the error says what the
file seems to be, and what to do.

Source:
    First bytes of a format: its own documentation. ``.nsys-rep`` and ``.qdrep`` have no fixed first bytes, so they are
    recognized by their names.
"""

from __future__ import annotations

import contextlib
import gc
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import AnyStr, Literal

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis import Configuration, Environment, Observed, Subject
from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.errors import TraceError
from layoutdoctor.recording.chrome import read_chrome_trace
from layoutdoctor.recording.files import TraceFile, is_diagnosis
from layoutdoctor.recording.key_averages import OF_A_GPU
from layoutdoctor.recording.onednn import VERBOSE_LINE, OnednnLog, read_onednn_log
from layoutdoctor.recording.recording import Head, Iteration, KernelTotals, Problem, RecordedTrace, Recording
from layoutdoctor.recording.table import has_kernel_table, read_kernel_tables, text_encoding
from layoutdoctor.recording.torch_trace import RECORD, TorchTrace, read_torch_trace


def read_trace(
    path: Path, most_bytes: int = DEFAULT_MOST_BYTES
) -> RecordedTrace | KernelTotals | OnednnLog | TorchTrace:
    """
    Reads a recorded run of any known kind. If a file has several tables of kernels, only the first is read.

    Raises:
        TraceError: The file cannot be read, or is none of the known kinds.
    """
    file = TraceFile(path, most_bytes)
    head = file.head()
    if _OF_NSYS.search(path.name) and not head.startswith(_SQLITE) and (nsys := shutil.which("nsys")) is not None:
        from layoutdoctor.recording.nsys import read_nsys_report  # late: few traces need it

        return read_nsys_report(path, nsys)
    kind = recognize(head, path.name)
    if kind == "chrome":
        return read_chrome_trace(file)
    if kind == "nsys_sqlite":
        if file.is_packed:
            raise TraceError(f"cannot read {str(path)!r}: it is a packed SQLite database; unpack it first")
        from layoutdoctor.recording.nsys import read_nsys_export  # late: few traces are databases

        return read_nsys_export(path)
    if kind == "kernel_csv":
        return read_kernel_tables(file, only_first=True)[0]
    if kind == "torch_trace":
        return read_torch_trace(file)
    if kind == "onednn_log":
        text = b"".join(file.pieces()).decode("utf-8", "replace")
        return read_onednn_log(text)
    raise TraceError(
        f"cannot examine {path.name!r}: it is a saved diagnosis, not a trace; "
        f"show it with layoutdoctor show {path.name}"
    )


@contextlib.contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """A block without garbage collection, which would only cost time while a trace is examined or calls are timed."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


RECORDED = Configuration(name="recorded", backend="recorded", model_format=None, input_format=None)

_SETTINGS = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules", "schemaVersion")
_TEXT_LENGTH = 200


def read_recorded(path: Path, most_bytes: int = DEFAULT_MOST_BYTES) -> Recording:
    """
    Reads a recorded run of any known kind as a recording. If a file has several tables of kernels, it reads the first.

    Raises:
        TraceError: The file cannot be read, or is none of the known kinds.
    """
    return _recording(read_trace(path, most_bytes), path.name)


def _recording(found: RecordedTrace | KernelTotals | OnednnLog | TorchTrace, name: str) -> Recording:
    trial = Observed(configuration=RECORDED, status="ok")
    if isinstance(found, RecordedTrace):
        device = device_of(found)
        head = _head(name, describe_environment(found), device, found.problems)
        return Recording(head=head, trial=trial, iterations=(Iteration(events=found, device=device),))
    if isinstance(found, KernelTotals):
        head = _head(name, Environment(torch=None), found.device, found.problems)
        return Recording(head=head, trial=trial, totals=found)
    if isinstance(found, TorchTrace):
        return _of_compiles(found, name)
    environment = Environment(torch=None, onednn=found.version, onednn_isa=found.isa)
    device = "xpu" if found.is_of_a_gpu else "cpu"
    return Recording(head=_head(name, environment, device, ()), trial=trial, log=found)


def read_tables(path: Path, name: str, most_bytes: int = DEFAULT_MOST_BYTES) -> tuple[Recording, ...]:
    """
    Reads each table of kernels in a file as a run of its own; returns no run if the file is of another kind.

    Args:
        name: Name of the file in reports. With several tables, each name ends in the table's number and heading.

    Raises:
        TraceError: The file cannot be read, or is none of the known kinds.
    """
    file = TraceFile(path, most_bytes)
    if _OF_NSYS.search(path.name) or recognize(file.head(), path.name) != "kernel_csv":
        return ()
    found = read_kernel_tables(file)
    if len(found) == 1:
        return (_recording(found[0], name),)
    headings = [one.heading if isinstance(one, KernelTotals) else "" for one in found]
    return tuple(
        _recording(one, f"{name}, table {number}{f' ({heading})' if heading else ''}")
        for number, (one, heading) in enumerate(zip(found, headings, strict=True), 1)
    )


def _of_compiles(found: TorchTrace, name: str) -> Recording:
    if not found.graphs and not found.problems:
        raise TraceError(
            f"cannot examine {name!r}: the TORCH_TRACE log has no graph that Inductor compiled; "
            "record a run in which the model is compiled, with TORCHINDUCTOR_FORCE_DISABLE_CACHES=1"
        )
    trial = Observed(
        configuration=RECORDED,
        status="ok",
        graphs=tuple(found.graphs),
        graph_break_reasons=tuple(found.break_reasons),
        recompile_reasons=tuple(found.recompile_reasons),
        recompile_count=len(found.recompile_reasons),
    )
    device = max(set(found.devices), key=found.devices.count, default=None)
    head = _head(name, Environment(torch=found.torch), device, found.problems)
    return Recording(head=head, trial=trial, was_profiled=True)


def _head(name: str, environment: Environment, device: str | None, problems: Sequence[Problem]) -> Head:
    notes = tuple(f"{problem.what} ({problem.count})" if problem.count > 1 else problem.what for problem in problems)
    return Head(
        layoutdoctor_version=__version__,
        created_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        environment=environment,
        subject=Subject(name=name, mode="trace", device=device, inputs=(), notes=notes),
        configurations=(RECORDED.name,),
    )


def device_of(trace: RecordedTrace) -> str | None:
    """Returns torch's name of the device that ran the trace, such as ``cuda``; None if nothing ran."""
    foreign = [problem.device for problem in trace.problems if problem.device is not None]
    if foreign and not len(trace.kernels):
        return foreign[0].partition("_")[0].lower()
    if not len(trace.kernels) and not launched_count(trace):
        ran = {trace.names[name] for name in set(trace.operations.name.tolist())}
        own = (device for device, pattern in _BY_OPERATION.items() if any(map(pattern.match, ran)))
        return next(own, "cpu") if ran else None
    called = {trace.names[name] for events in (trace.launches, trace.kernels) for name in set(events.name.tolist())}
    is_xpu = any(map(_OF_AN_XPU.search, (*called, *_device_names(trace))))
    return "xpu" if is_xpu else "cuda"


def launched_count(trace: RecordedTrace) -> int:
    """Counts the launches of kernels and graphs, whether the kernels were recorded or not."""
    is_launch = [_LAUNCH.search(name) is not None for name in trace.names] or [False]
    return sum(is_launch[name] for name in trace.launches.name.tolist())


# Runtime calls of oneAPI, ATen's kernels for XPU, names of devices.
_OF_AN_XPU = re.compile(r"^(?:ur|ze)[A-Z]\w+$|\bat::native::xpu::|(?i:xpu)|^Intel\b")
# Operations that native_functions.yaml dispatches to one device only.
_BY_OPERATION = {"mps": re.compile(r"aten::_?mps_"), "cuda": OF_A_GPU}
_LAUNCH = re.compile(r"^(?:cu|cuda|hip|musa)\w{0,20}Launch|^urEnqueueKernelLaunch|^zeCommandListAppendLaunchKernel")


def describe_environment(trace: RecordedTrace) -> Environment:
    """Describes the machine that a trace was recorded on."""
    metadata = trace.metadata
    names = _device_names(trace)
    inner = metadata.get("metadata")
    versions = [source for source in (metadata, inner) if isinstance(source, dict)]
    found = (source.get(key) for source in versions for key in ("torch_version", "pytorch_version"))
    return Environment(
        torch=next((_text(version) for version in found if isinstance(version, str)), None),
        cuda=_cuda_version(metadata.get("cuda_runtime_version")),
        device_name=", ".join(dict.fromkeys(names)) or None,
        settings={key: _text(metadata[key]) for key in _SETTINGS if key in metadata},
    )


def _device_names(trace: RecordedTrace) -> list[str]:
    """
    Returns the names of the devices that ran kernels, from the trace's list of devices.

    If the list has no such device, its first device is named. If no kernel ran, all devices in the list are named.
    """
    listed = trace.metadata.get("deviceProperties")
    devices = [device for device in listed if isinstance(device, dict)] if isinstance(listed, list) else []
    used: list[object] = sorted(set(trace.kernels.device.tolist()))  # a list, as an id in the file may be unhashable
    chosen = [device for device in devices if device.get("id") in used] or (devices[:1] if used else devices)
    return [_text(device["name"]) for device in chosen if isinstance(device.get("name"), str)]


def _cuda_version(number: object) -> str | None:
    """Converts a version number of CUDA: ``12040`` becomes ``12.4``."""
    if not isinstance(number, int) or not 1000 <= number < 1_000_000:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"


def _text(value: object) -> str:
    return str(value)[:_TEXT_LENGTH]


_SQLITE = b"SQLite format 3\0"
_OF_NSYS = re.compile(r"\.(?:nsys-rep|qdrep)\Z", re.IGNORECASE)
TraceKind = Literal["chrome", "nsys_sqlite", "kernel_csv", "onednn_log", "torch_trace", "diagnosis"]

_EXPORT = "export it with nsys export --type sqlite"
_UNPACK = "unpack it first"
_RECORD = "record the run with torch.profiler and name the file that export_chrome_trace wrote"
_AS_JSON = "record with torch.profiler's export_chrome_trace, which writes JSON"
_BY_PROFILER = "record the run with torch.profiler, which records the operations as well"

_BINARY = (
    (rb"\x1f\x8b", "data that were packed with gzip twice", _UNPACK),
    (rb"\x28\xb5\x2f\xfd", "packed with zstd", _UNPACK),
    (rb"\xfd7zXZ\x00", "packed with xz", _UNPACK),
    (rb"BZh", "packed with bzip2", _UNPACK),
    (rb"NVR\x00", "a report of Nsight Compute (.ncu-rep)", "record the run with nsys profile, and " + _EXPORT),
    (rb"\x89HDF", "an HDF5 file", _EXPORT),
    (rb"PAR1", "a Parquet file", _EXPORT),
    (rb"ARROW1", "an Arrow file", _EXPORT),
    (rb"PK\x03\x04.*(?:data\.pkl|/version)", "saved by torch.save or torch.export (.pt, .pt2)", _RECORD),
    (rb"PK\x03\x04", "a zip archive", _UNPACK),
    (rb"\x80[\x02-\x05]", "a pickle, such as a memory snapshot; it was not opened, as that can run code", _RECORD),
    (rb".{257}ustar", "a tar archive", _UNPACK),
    (rb"\n", "protobuf, such as a Perfetto trace or an XPlane", _AS_JSON),
    (rb"", "binary data of an unknown kind", _RECORD),
)
"""Patterns of first bytes, each with a description of the file and advice; ``_NAMES`` and ``_TEXTS`` are alike."""
_NAMES = (
    (r".*\.(nsys-rep|qdrep|qdstrm)\Z", "a recording of Nsight Systems that was not exported", _EXPORT),
    (r".*\.(pftrace|perfetto-trace|perfetto)\Z", "a Perfetto trace in protobuf", _AS_JSON),
    (r".*\.xplane\.pb\Z", "an XPlane of TensorFlow, JAX or PyTorch/XLA", _AS_JSON),
)
# The first pattern has the process names of TensorFlow's profiler since 2016, on which JAX's profiler is built. Process
# names in Kineto's traces are numbers and names of programs.
_TEXTS = (
    (
        r'\{.*"traceEvents".*"name"\s*:\s*"/(?:job:|host:|device:)',
        "a trace of TensorFlow or JAX, which names no operation of PyTorch",
        _RECORD,
    ),
    (
        r'\[\s*\{\s*"cat"\s*:\s*"(?:Session|Node)"',
        "a profile of ONNX Runtime, which names no operation of PyTorch",
        _RECORD,
    ),
    (
        r'\{.*"traceEvents".*"cat"\s*:\s*"gpu_op"',
        "a trace of Intel's unitrace, which names no operation of PyTorch",
        _RECORD,
    ),
    (
        r'[\[{].*"Ascend Hardware"',
        "a trace of an Ascend NPU, whose kernels are not known here",
        "record the run on a CPU, or on a GPU of NVIDIA, AMD or Intel",
    ),
    (r'\{"Type"\s*:\s*\d', "an export of Nsight Systems in JSON", _EXPORT),
    (
        r'\{(?!.*"traceEvents")(?=.*"schema"\s*:).*"nodes"\s*:',
        "an execution trace (Chakra), which has neither kernels nor times",
        _RECORD,
    ),
    (r'\{(?!.*"traceEvents").*"rocprofiler-sdk-tool"', "a rocprofiler recording in JSON", _BY_PROFILER),
    (
        r'\{(?!.*"traceEvents")(?=.*"segments"\s*:).*"device_traces"\s*:',
        "a snapshot of the memory allocator",
        _RECORD,
    ),
    (r'\[\s*\{"Time \(%\)"', "a table of nsys stats in JSON", "write it with nsys stats --format csv"),
    (r'\[\s*(?:[^{\]\s]|\{(?!.*"ph"))', "a JSON list of something else than trace events", _RECORD),
    (
        r'\{"log"\s*:\s*"',
        "a log of Docker, with one JSON object per line",
        "take its text out: jq -j .log FILE > run.log",
    ),
    (r"<(?:!doctype )?html", "a web page (HTML), perhaps of a failed download", "download the file itself"),
    (r"version https://git-lfs", "a pointer of Git LFS to the file, not the file", "fetch it with git lfs pull"),
    (
        r".*(?:==\d+== (?:NVPROF|Profiling (?:application|result))|GPU activities|"
        r'\bTime ?\(%\)[\s",|]{1,40}Time[\s",|]{1,40}Calls|\bStart[\s",|]{1,40}Duration[\s",|]{1,40}Grid (?:Size|X)\b)',
        "output of nvprof, which is not supported",
        "record the run with nsys profile, and write nsys stats --report cuda_gpu_kern_sum --format csv",
    ),
    (
        r'.*(?:\bkernelname.{0,400}(?:gpu-id|begin_?ns)|"Calls","TotalDurationNs")',
        "a table of rocprof (v1), which is not supported",
        "record the run with torch.profiler, or with rocprofv3 --kernel-trace --stats --output-format csv",
    ),
    (r".*kernel_?name.{0,400}start_timestamp", "a CSV of rocprofiler", _BY_PROFILER),
    (
        r'.*(?:==PROF== |"ID","Process ID"|Section: GPU Speed Of Light)',
        "output of Nsight Compute (ncu), which runs each kernel alone and several times",
        "record the run with nsys profile, and " + _EXPORT,
    ),
    (
        r".*\bName\s+Self CPU",
        "a table of torch.profiler whose lines were broken or cut",
        "write it into a file: print(table, file=open('table.txt', 'w'))",
    ),
    (
        r".*\d\.\d\d%[ \t|]+-?\d+\.\d{3}[num]?s[ \t|]+\d+\.\d\d%[ \t|]",
        "rows of a table of torch.profiler without its line of titles (Name, Self CPU %, ...)",
        "put the line of titles above the rows",
    ),
    (
        r"(?:.*\n)?[ \t]*\d{1,3}\.\d[ \t]+\d+[ \t]+\d+(?:[ \t]+\d[\d.]*){3,6}[ \t]+[A-Za-z_]",
        "rows of a table of nsys stats without its line of titles (Time (%), Total Time (ns), ...)",
        "put the line of titles above the rows",
    ),
    (
        r".*(?:total time (?:\(\w+\))?.{0,80}\b(?:num calls|instances|count)|\bKAvg \(\w+\)?|\bNVTX Inst)\b",
        "a table of nsys stats without the time of each kernel",
        "use nsys stats --report cuda_gpu_kern_sum --format csv",
    ),
)
_TEXT_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\r\f\x1b\b")
_TEXT_BYTES_PER_CONTROL = 100


def recognize(head: bytes, name: str) -> TraceKind:
    """
    Recognizes the kind of recorded run that a file holds.

    Args:
        head: The file's first bytes, unpacked, as ``TraceFile.head`` returns them.
        name: The file's name, for messages and for formats that are recognized only by the name.

    Returns:
        ``chrome`` for a Chrome trace in JSON, even if its events begin behind ``head``; ``nsys_sqlite`` for any SQLite
        database; ``kernel_csv`` for a table that ``read_kernel_tables`` reads; ``onednn_log`` for a log of oneDNN;
        ``torch_trace`` for the structured log that ``TORCH_TRACE`` writes; ``diagnosis`` for a saved diagnosis.

    Raises:
        TraceError: The file is of another kind; the message says what it seems to be and what to do.
    """
    if head.startswith(_SQLITE):
        return "nsys_sqlite"
    encoding = text_encoding(head)
    if encoding == "utf-8" and not _is_text(head):
        raise _refusal(name, *(_first_sign(_NAMES, name) or _first_sign(_BINARY, head)))  # type: ignore[misc]
    text = head.decode(encoding, "replace").lstrip()
    if RECORD.match(text):
        return "torch_trace"
    if VERBOSE_LINE.search(text):
        return "onednn_log"
    is_json = text.startswith(("{", "["))
    if not re.match(r"[{\[]\s*[\"{]", text) and has_kernel_table(text):
        return "kernel_csv"
    if is_json and encoding == "utf-16":
        raise _refusal(name, "JSON in UTF-16", "convert it to UTF-8")
    if is_diagnosis(text):
        return "diagnosis"
    if found := _first_sign(_TEXTS, text):
        raise _refusal(name, *found)
    if is_json:
        return "chrome"
    raise _refusal(name, f"text of another kind (it begins {(text[:40].splitlines() or [''])[0]!r})", _RECORD)


def _first_sign(signs: Iterable[tuple[AnyStr, str, str]], given: AnyStr) -> tuple[str, str] | None:
    flags = re.DOTALL | re.IGNORECASE
    return next(((what, advice) for pattern, what, advice in signs if re.match(pattern, given, flags)), None)


def _refusal(name: str, what: str, advice: str) -> TraceError:
    return TraceError(f"cannot examine {name!r}: it seems to be {what}; {advice}")


def _is_text(head: bytes) -> bool:
    """Whether a file is text. Control characters are rare in text, except in JSON, where names may be unescaped."""
    if head.startswith((b"{", b"[")):
        return True
    strange = len(head) - len(head.translate(None, _TEXT_CONTROLS))
    return b"\0" not in head and strange * _TEXT_BYTES_PER_CONTROL <= len(head)
