"""
Warm iterations under the profiler and oneDNN's verbose log.

Timing is another pass: profiled times are good for shares, not for comparing configurations.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.diagnosis.writing import replacing
from layoutdoctor.errors import LayoutDoctorError, first_line
from layoutdoctor.examination.kernels.host import GENERATED_PREFIX
from layoutdoctor.measure.timing import kind_of
from layoutdoctor.recording.chrome import read_chrome_trace
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.onednn import read_onednn_log
from layoutdoctor.recording.recording import Iteration, busy_nanoseconds, unrest
from layoutdoctor.state.switches import profiler_is_running
from layoutdoctor.workers.processes import scratch_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from layoutdoctor.recording.onednn import OnednnLog

    GeneratedCode = tuple[str, Iterable[str], Any]
    """What a graph is called, its kernels' names, and the generated module that runs it."""

_TIMESTAMP_VARIABLES = ("ONEDNN_VERBOSE_TIMESTAMP", "DNNL_VERBOSE_TIMESTAMP")
"""Read by oneDNN when it first prints; with it every line says when its primitive started."""


MOST_ITERATIONS = 5
"""Of a short call: of each operation the least of their times counts, as any may have met another program."""

_LEAST_ITERATIONS = 3
_ENOUGH_SECONDS = 1.0
"""After which no more than the least are recorded."""

_LONG_ITERATION_NANOSECONDS = 2_000_000_000


def record_iterations(
    prepare: Callable[[], Callable[[], None]],
    device: str,
    generated: Sequence[GeneratedCode] = (),
    trace_file: Path | None = None,
) -> tuple[Iteration, ...]:
    """
    Records a few iterations, of which each operation counts with its least time; a long one is recorded once.

    Args:
        prepare: Makes one iteration, already warm, ready to run.
        trace_file: Where to keep the Chrome trace of the quietest one.

    Raises:
        Exception: Whatever the step raises.
    """
    start = time.perf_counter()
    best = record_iteration(prepare(), device, generated, trace_file)
    found = [best]
    while len(found) < MOST_ITERATIONS and busy_nanoseconds(best.events) <= _LONG_ITERATION_NANOSECONDS:
        if len(found) >= _LEAST_ITERATIONS and time.perf_counter() - start > _ENOUGH_SECONDS:
            break
        with tempfile.TemporaryDirectory(prefix=scratch_prefix(os.getpid())) as directory:
            kept = None if trace_file is None else Path(directory) / trace_file.name
            again = record_iteration(prepare(), device, generated, kept)
            found.append(again)
            if unrest(again) < unrest(best):
                best = again
                if kept is not None and trace_file is not None:
                    _keep(trace_file, kept.read_bytes())
    return tuple(found)


def _keep(trace_file: Path, data: bytes) -> None:
    with replacing(trace_file) as stream:
        stream.write(data)


def record_iteration(
    step: Callable[[], None], device: str, generated: Sequence[GeneratedCode] = (), trace_file: Path | None = None
) -> Iteration:
    """
    Runs one iteration under the profiler, and on a CPU under oneDNN's verbose log as well.

    Args:
        step: One iteration, already warm.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
        generated: What may run in it; its kernels are named in the record.
        trace_file: Where to keep the Chrome trace (``.json`` or ``.json.gz``); None keeps none.

    Raises:
        LayoutDoctorError: A profiler is running already, which ours would end; or its trace cannot be read.
        Exception: Whatever the step raises.
    """
    if profiler_is_running():
        raise LayoutDoctorError(
            "a profiler is running already, and torch has one at a time; the times include what it costs: "
            "diagnose outside of it"
        )
    activities = [torch.profiler.ProfilerActivity.CPU]
    if kind_of(device) == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    lacks: list[str] = []
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=scratch_prefix(os.getpid()))))
        stack.enter_context(quiet_profiler())
        _synchronize(device)  # what was queued before, such as copies of the inputs, is no part of the iteration
        with (
            named_kernels(generated) as unnamed,
            verbose_onednn(enabled=device == "cpu") as capture,
            torch.profiler.profile(activities=activities, record_shapes=True) as profiler,
        ):
            step()
            _synchronize(device)
        target = directory / "trace.json"
        profiler.export_chrome_trace(str(target))
        if trace_file is not None:  # the profiler hands out its trace once only
            data = target.read_bytes()
            _keep(trace_file, gzip.compress(data) if trace_file.suffix == ".gz" else data)
        events = read_chrome_trace(TraceFile(target, target.stat().st_size))
    lacks += unnamed + capture.lacks
    log = _with_header(read_onednn_log(capture.text)) if capture.text is not None else None
    if log is not None:
        log.other_lines.clear()  # they are the model's own, and were passed on
    if log is not None and log.primitives and not log.has_timestamps:
        lacks.append("oneDNN's log has no timestamps, so which operation ran a primitive is not known")
    return Iteration(events=events, device=kind_of(device), log=log, lacks=tuple(lacks))


_header: tuple[str | None, str | None] = (None, None)
"""Version and instruction set as oneDNN printed them: it does so once in a process, with its first line."""


def _with_header(log: OnednnLog) -> OnednnLog:
    global _header  # a fact about the process, like the line it was read from
    if log.version is not None:
        _header = (log.version, log.isa)
    else:
        log.version, log.isa = _header
    return log


def _synchronize(device: str) -> None:
    if kind_of(device) == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def named_kernels(generated: Sequence[GeneratedCode]) -> Iterator[list[str]]:
    """
    Meanwhile every generated C++ kernel runs inside a profiler range that names its graph and itself.

    Inductor's own ``cpp.enable_kernel_profile`` would change the generated source, so that no two configurations could
    share a compiled kernel; here the compiled functions are wrapped in the generated module's globals, and put back.
    """
    problems: list[str] = []
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    for graph, names, module in generated:
        try:
            namespace = _namespace(module)
            for name in names:
                original = namespace.get(name)
                if callable(original) and not hasattr(original, "run"):  # Triton kernels show up on the device
                    namespace[name] = _ranged(original, f"{GENERATED_PREFIX}{graph}::{name}")
                    replaced.append((namespace, name, original))
        except Exception as error:  # without names the list is poorer, the iteration still runs
            problems.append(f"kernels of {graph} are not named: {first_line(error)}")
    try:
        yield problems
    finally:
        for namespace, name, original in replaced:
            namespace[name] = original


def _namespace(module: Any) -> dict[str, Any]:
    """The globals that the generated ``call`` really uses."""
    call = getattr(module, "call", None)
    function = getattr(call, "__func__", call)
    namespace = getattr(function, "__globals__", None)
    return namespace if isinstance(namespace, dict) else dict(vars(module))


def _ranged(kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any, **keywords: Any) -> Any:
        with torch.profiler.record_function(name):
            return kernel(*args, **keywords)

    return call


@dataclass
class LogCapture:
    """
    What was written to standard output meanwhile.

    Attributes:
        text: All of it; None where nothing was captured.
    """

    text: str | None
    lacks: list[str]


@contextlib.contextmanager
def verbose_onednn(*, enabled: bool) -> Iterator[LogCapture]:
    """
    OneDNN's verbose log of this region, read from the C-level standard output it prints to.

    Lines that are not oneDNN's are written back to standard output afterwards.
    """
    capture = LogCapture(None, [])
    if not enabled:
        yield capture
        return
    if not torch.backends.mkldnn.is_available():
        capture.lacks.append("this torch was built without oneDNN: there is no log of its primitives")
        yield capture
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_timestamps())
            stack.enter_context(_captured_stdout(capture))
            stack.enter_context(torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON))
        except (OSError, RuntimeError) as error:
            capture.lacks.append(f"oneDNN's log could not be captured: {first_line(error)}")
        yield capture


@contextlib.contextmanager
def _timestamps() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _TIMESTAMP_VARIABLES}
    os.environ.update(dict.fromkeys(_TIMESTAMP_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _captured_stdout(capture: LogCapture) -> Iterator[None]:
    """Sends file descriptor 1 to a temporary file meanwhile; what is not oneDNN's is written back at the end."""
    with _captured_descriptor(1, sys.stdout) as written:
        yield
    capture.text = "".join(written)
    _write_lines(1, read_onednn_log(capture.text).other_lines)


@contextlib.contextmanager
def _captured_descriptor(number: int, stream: Any) -> Iterator[list[str]]:
    """
    Sends a file descriptor to a temporary file meanwhile; the list holds what was written, once the block is over.

    Raises:
        OSError: The descriptor is closed.
    """
    written: list[str] = []
    _flush(stream)
    _flush_c()
    saved = os.dup(number)
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), number)
            try:
                yield written
            finally:
                _flush(stream)
                _flush_c()
                os.dup2(saved, number)
                file.seek(0)
                written.append(file.read().decode(errors="replace"))
    finally:
        os.close(saved)


def _write_lines(number: int, lines: Sequence[str]) -> None:
    if lines:
        with contextlib.suppress(OSError):
            os.write(number, ("\n".join(lines) + "\n").encode())


def _flush(stream: Any) -> None:
    with contextlib.suppress(Exception):  # a closed or replaced stream has nothing of ours
        stream.flush()


def _flush_c() -> None:
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).fflush(None)


@contextlib.contextmanager
def quiet_profiler() -> Iterator[None]:
    """
    Keeps what the profiler itself prints at C level (``USDT:``, ``profiler_start``) off standard error.

    Everything else written to standard error meanwhile is passed on afterwards.
    """
    written: list[str] = []
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # standard error is closed: there is nothing to keep clean
                written = stack.enter_context(_captured_descriptor(2, sys.stderr))
            yield
    finally:
        lines = [line for text in written for line in text.splitlines()]
        _write_lines(2, [line for line in lines if line.strip() and not _is_profiler_noise(line)])


def _is_profiler_noise(line: str) -> bool:
    return line.startswith("USDT:") or "ActivityProfiler" in line or "Memory block of unknown size" in line
