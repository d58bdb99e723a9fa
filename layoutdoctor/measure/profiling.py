"""
Records warm iterations with the profiler and with oneDNN's verbose log.

Profiled times serve only for the shares of a call. For comparisons of configurations, calls are timed without profiler.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gzip
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from layoutdoctor.diagnosis import Graph, Lack
from layoutdoctor.errors import first_line
from layoutdoctor.examination.kernels.operations import GENERATED_PREFIX
from layoutdoctor.files.scratch import private_directory
from layoutdoctor.files.writing import replacing
from layoutdoctor.measure.timing import kind_of
from layoutdoctor.recording.chrome import read_chrome_trace
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.onednn import read_onednn_log
from layoutdoctor.recording.recording import Iteration, busy_time
from layoutdoctor.recording.steps import without_steps
from layoutdoctor.state.switches import same_environment

if TYPE_CHECKING:
    GeneratedCode = tuple[str, Iterable[str], Any]
    """A graph's name, its kernels' names, and the generated module that runs it."""

_NOISE = ("USDT:", "ActivityProfiler", "Memory block of unknown size")
"""Texts by which the profiler's own lines are recognized."""


class Recorder:
    """Records iterations one by one; a trace file keeps the trace of the iteration with the shortest busy time."""

    def __init__(self) -> None:
        self._quietest: tuple[bool, float] = (True, math.inf)

    def record(
        self,
        prepare: Callable[[], Callable[[], None]],
        device: str,
        generated: Sequence[GeneratedCode],
        trace_file: Path | None = None,
    ) -> Iteration:
        """
        Runs one iteration under the profiler, and on a CPU under oneDNN's verbose log as well.

        An iteration that is not recorded runs first, because caches lose their data and threads fall asleep while the
        profiler starts.

        Args:
            prepare: Returns one iteration, already warm and ready to run.
            generated: Compiled graphs that may run in the iteration; the record names their kernels.
            trace_file: File for the Chrome trace (``.json`` or ``.json.gz``); it is written if this iteration has the
                shortest busy time so far.
        """
        activities = [torch.profiler.ProfilerActivity.CPU]
        if kind_of(device) == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with private_directory() as directory, quiet_profiler():
            file = Path(directory) / "trace.json"
            with contextlib.ExitStack() as stack:
                lacks = stack.enter_context(named_kernels(generated))
                schedule = torch.profiler.schedule(wait=0, warmup=1, active=1)
                options: dict[str, Any] = {"activities": activities, "record_shapes": True, "schedule": schedule}
                profiler = stack.enter_context(torch.profiler.profile(**options))
                prepare()()
                _synchronize(device)
                logged = stack.enter_context(verbose_onednn(lacks)) if device == "cpu" else []
                step = prepare()
                _synchronize(device)  # queued work, such as copies of inputs, does not belong to the iteration
                profiler.step()
                begin = time.perf_counter()
                step()
                _synchronize(device)
                seconds = time.perf_counter() - begin
            profiler.export_chrome_trace(str(file))
            events = without_steps(read_chrome_trace(TraceFile(file, file.stat().st_size)))
            log = read_onednn_log("".join(logged)) if logged else None
            if log is not None:
                log.other_lines.clear()  # lines of the model, which were passed on
                if log.primitives and not log.has_timestamps:
                    reason = "oneDNN's log has no timestamps, so the operation that ran a primitive is not known"
                    lacks.append(Lack(part="operations", reason=reason))
            found = Iteration(
                events=events, device=kind_of(device), log=log, lacks=tuple(lacks), profiled_seconds=seconds
            )
            if trace_file is not None and busy_time(found) < self._quietest:
                self._quietest, data = busy_time(found), file.read_bytes()
                with replacing(trace_file) as stream:
                    stream.write(gzip.compress(data) if trace_file.suffix == ".gz" else data)
        return found


def _synchronize(device: str) -> None:
    if kind_of(device) == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def named_kernels(generated: Sequence[GeneratedCode]) -> Iterator[list[Lack]]:
    """
    A block in which every generated C++ kernel runs inside a profiler range with the names of graph and kernel.

    Inductor's own ``cpp.enable_kernel_profile`` would change the generated source, and configurations could not share
    compiled kernels. Here, wrappers replace the compiled functions in the globals of the generated ``call`` until the
    block ends. The yielded list has a ``Lack`` for each graph whose kernels could not be named.
    """
    lacks: list[Lack] = []
    with contextlib.ExitStack() as stack:
        for graph, names, module in generated:
            try:
                namespace = getattr(getattr(module.call, "__func__", module.call), "__globals__", {})
                kernels = {name: namespace[name] for name in names if callable(namespace.get(name))}
            except Exception as error:  # the iteration runs also without names
                lacks.append(Lack(part="kernel_names", reason=f"kernels of {graph} are not named: {first_line(error)}"))
                continue
            stack.callback(namespace.update, kernels)
            for name, kernel in kernels.items():
                if not hasattr(kernel, "run"):  # a Triton kernel has its name on the device
                    namespace[name] = _ranged(kernel, f"{GENERATED_PREFIX}{graph}::{name}")
        yield lacks


def with_names_of_packages(iteration: Iteration, graphs: Sequence[Graph]) -> Iteration:
    """
    Renames the kernels and operations of an AOTInductor package to their names under torch.compile.

    Source:
        ``cpp.enable_kernel_profile`` in torch/_inductor/codegen/cpp_wrapper_cpu.py, torch 2.13:
        ``graph_0_cpp_fused_relu_0``, ``aoti_torch_cpu_convolution``, ``aoti_torch_cpu_mkldnn__convolution_pointwise``.
    """
    own = {kernel: f"{GENERATED_PREFIX}{graph.name}::{kernel}" for graph in graphs for kernel in graph.kernel_names}
    names = [_OF_A_SHIM.sub(_called, own.get(_OF_A_GRAPH.sub("", name), name)) for name in iteration.events.names]
    return msgspec.structs.replace(iteration, events=dataclasses.replace(iteration.events, names=names))


_OF_A_GRAPH = re.compile(r"^graph_\d+_")
_OF_A_SHIM = re.compile(r"^aoti_torch_(?:cpu|cuda)_(mkldnn_)?(.*?)(?:_out)?$")


def _called(shim: re.Match[str]) -> str:
    return f"{'mkldnn' if shim[1] else 'aten'}::{shim[2]}"


def _ranged(kernel: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any, **keywords: Any) -> Any:
        with torch.profiler.record_function(name):
            return kernel(*args, **keywords)

    return call


@contextlib.contextmanager
def verbose_onednn(lacks: list[Lack]) -> Iterator[list[str]]:
    """
    Captures oneDNN's verbose log of a block from standard output, at C level.

    After the block, the yielded list holds the whole captured text; it is empty if nothing was captured. Captured lines
    that are not oneDNN's are then written to standard output.

    Args:
        lacks: List to which the reason is added if there is no log.
    """
    if not torch.backends.mkldnn.is_available():
        reason = "this torch was built without oneDNN: there is no log of its primitives"
        lacks.append(Lack(part="kernels_of_library", reason=reason))
        yield []
        return
    written: list[str] = []
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(same_environment())
            os.environ["ONEDNN_VERBOSE_TIMESTAMP"] = "1"  # lines get start times; oneDNN reads this at its first line
            stack.callback(lambda: _write_lines(1, read_onednn_log("".join(written)).other_lines))
            stack.enter_context(_captured_descriptor(1, sys.stdout, written))
            stack.enter_context(torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON))
        except (OSError, RuntimeError) as error:
            reason = f"oneDNN's log could not be captured: {first_line(error)}"
            lacks.append(Lack(part="kernels_of_library", reason=reason))
        yield written


@contextlib.contextmanager
def _captured_descriptor(number: int, stream: Any, written: list[str]) -> Iterator[None]:
    """
    Redirects a file descriptor to a temporary file for a block. Then adds the captured text to ``written``.

    Raises:
        OSError: The descriptor is closed.
    """
    _flush(stream)
    saved = os.dup(number)
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), number)
            try:
                yield
            finally:
                _flush(stream)
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
    with contextlib.suppress(Exception):  # a closed or replaced stream has no text to write
        stream.flush()
    with contextlib.suppress(Exception):
        ctypes.CDLL(None).fflush(None)


@contextlib.contextmanager
def quiet_profiler() -> Iterator[None]:
    """
    Keeps the lines that the profiler prints at C level off standard error during a block.

    Other lines of standard error are written after the block.
    """
    written: list[str] = []
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # standard error is closed: there is nothing to keep clean
                stack.enter_context(_captured_descriptor(2, sys.stderr, written))
            yield
    finally:
        lines = "".join(written).splitlines()
        _write_lines(2, [line for line in lines if line.strip() and not any(noise in line for noise in _NOISE)])
