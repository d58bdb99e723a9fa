"""
``profile()``: records the layout conversions of a running program, in the program's own process.

Compiles inside the block are captured as in a diagnosis, and a few steps run under torch.profiler. Both are joined to
a recording. The program runs as it would without the block; any failure here becomes a line in the report.
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from layoutdoctor._version import __version__
from layoutdoctor.capture.compat import lowering_every_graph, notes_on_torch, on_compiles, profiler_runs, triton_version
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.diagnosis import Diagnosis, Failure, Lack, Observed, SourceLocation, Subject
from layoutdoctor.errors import TraceError, UsageError, first_line
from layoutdoctor.examination.counts import counted_conversions, sum_of_known, sum_seconds
from layoutdoctor.examination.kernels.operations import COMPILED_RANGES
from layoutdoctor.files.scratch import private_directory
from layoutdoctor.measure.environment import measure_copy_bandwidth, observed_environment
from layoutdoctor.measure.steps import StepRecorder
from layoutdoctor.measure.timing import kind_of
from layoutdoctor.recording.reading import RECORDED, device_of
from layoutdoctor.recording.recording import Head, Iteration, Recording
from layoutdoctor.recording.steps import single_steps
from layoutdoctor.run.recorded import diagnose_recordings
from layoutdoctor.run.watching import now
from layoutdoctor.units import sum_if_all_known
from layoutdoctor.words import count_of, line_words

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from layoutdoctor.recording.recording import RecordedTrace
    from layoutdoctor.units import Seconds

MOST_STEPS = 5
_MOST_SECONDS = 60.0
_MOST_SECONDS_OF_STEPS = 300.0
"""
Longest time of a recording in a block with steps. In a block without steps, ``_MOST_SECONDS`` is the limit.

The recording ends with the step that exceeds the limit. The limit saves memory: each recorded operation takes a
kilobyte or two.
"""

_ROOM_BYTES = 4 << 30

_COMPILED_BEFORE = (
    "the block ran code that was compiled before the block, so the graphs and conversions of this code are not known: "
    "call torch._dynamo.reset() at the beginning of the block, or record the run with TORCH_TRACE"
)
_COMPILED_WITHIN = (
    "the block compiled while it ran, so no kernels were recorded: mark at least three steps (seen.step() after "
    "each), or run the model once before the block, so that it compiles there"
)

_NOTHING = "nothing ran in the block"
_UNNAMED = "this process"
_NO_OPERATION = (
    "no operation of torch ran in the thread of the block, and other threads are not recorded: open the block in the "
    "thread that runs the model"
)

_ELSEWHERE = "step() was called in another thread or process than the block's, and was ignored"

_turn = threading.Lock()


class Profile:
    """
    A ``with`` block of a program, and its recording; ``print`` shows the report.

    Attributes:
        step_count: Number of steps that have ended, recorded or not.
        diagnosis: The diagnosis of the block, made at the first access. Its one trial, ``recorded``, has the graphs
            that were compiled in the block, and the kernels, conversions and round trips of the recorded steps.
    """

    def __init__(self, steps: object, name: str | None = None) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise UsageError(f"cannot record {steps!r} steps: expected a number from 1 on")
        self._most_steps = steps
        self._capture = CompileCapture()
        self._stack = contextlib.ExitStack()
        self._folder: Path | None = None
        self._recorder: StepRecorder | None = None
        self._recorded: list[StepRecorder] = []
        self._seen: Recording | None = None
        self._recorded_seconds: list[Seconds] = []
        self._later_seconds: list[Seconds] = []  # steps after the recorded steps, equally warm
        self.step_count = self._dropped_count = 0
        self._began = self._recording_since = 0.0
        self._is_open = self._compiled = self._compiles = self._is_left_out = False
        self._owner = (os.getpid(), threading.get_ident())
        self._broken: str | None = None
        self._name, self._notes, self._problems = name, list[str](), list[str]()

    # ------------------------------------------------------------------------------------------ the block
    def __enter__(self) -> Profile:
        if self._is_open or self._is_over:
            raise UsageError("cannot enter a block of profile() twice: make a new one with layoutdoctor.profile()")
        self._is_open = True
        self._name, self._owner = self._name or _name_of(sys._getframe(1)), (os.getpid(), threading.get_ident())
        with self._noting("the block"):
            self._begin()
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_open = False
        if kind is not None:
            self._notes.append(f"{kind.__name__} ended the block")
        with self._noting("the end of the block"):
            self._stop(is_kept=self.step_count > 0 or not self._compiled)
        traces: list[tuple[int, RecordedTrace]] = []
        with self._noting("the profiler's trace"):
            traces = [(recorder.step_count, recorder.read()) for recorder in self._recorded]
        with self._noting("the end of the block"):
            self._stack.close()
        try:
            self._seen = self._recording_of(traces)
        except Exception as error:  # the program goes on without a report
            self._broken = first_line(error)

    @property
    def _is_over(self) -> bool:
        return self._seen is not None or self._broken is not None

    @property
    def is_here(self) -> bool:
        """Whether the caller is in the thread of the block, and not in a process that was forked within the block."""
        return self._owner == (os.getpid(), threading.get_ident())

    def step(self) -> None:
        """
        Ends a step of the program, and begins the next one.

        The first two steps warm up. Then the requested number of steps is recorded. A step that compiles does not
        count, nor does the step after it. A call in another thread or process than the block's only adds a note.
        """
        elapsed = time.perf_counter() - self._began
        if not self._is_open or self._folder is None:
            return
        if not self.is_here:
            if _ELSEWHERE not in self._problems:
                self._problems.append(_ELSEWHERE)
            return
        with self._noting("a step"):
            self._end_step(elapsed)
        self._began = time.perf_counter()

    def leave_out(self) -> None:
        """Excludes the present step from the recording, because it is not a whole step."""
        self._is_left_out = True

    def _begin(self) -> None:
        if not _turn.acquire(blocking=False):
            self._problems.append("another block of layoutdoctor.profile() is open in this process")
            return
        self._stack.callback(_turn.release)
        self._folder = Path(self._stack.enter_context(private_directory()))
        with self._noting("compiled code"):
            self._notes += notes_on_torch()
            self._stack.enter_context(lowering_every_graph())
            self._stack.enter_context(self._capture)
            self._stack.enter_context(on_compiles(self._on_compile))
        if profiler_runs():
            self._problems.append(
                "another profiler records this thread, and torch allows only one: end the other one first"
            )
            self._most_steps = 0
            return
        gc.callbacks.append(self._on_collection)
        self._stack.callback(gc.callbacks.remove, self._on_collection)
        self._record()

    def _end_step(self, elapsed: Seconds) -> None:
        self.step_count += 1
        compiled, self._compiles = self._compiles, False
        recorder = self._recorder
        is_partial, self._is_left_out = self._is_left_out, False
        if self.step_count == 1 or compiled or is_partial:
            self._dropped_count += compiled and recorder is not None and self.step_count > 1
            self._stop(is_kept=self.step_count > 1 or not compiled)
        elif recorder is None:
            self._later_seconds.append(elapsed)
        else:
            if recorder.step_count >= 0:
                self._recorded_seconds.append(elapsed)
            recorder.step()
            if self.kept_count >= self._most_steps or (recorder.step_count > 0 and self._is_late()):
                self._stop()
        if self._recorder is None and self.kept_count < self._most_steps:
            self._record()

    def _record(self) -> None:
        assert self._folder is not None
        generated = [(graph.name, graph.kernel_names, module) for graph, module in self._capture.captured]
        file = self._folder / f"{len(self._recorded)}.json"
        self._recording_since = time.perf_counter()
        self._recorder = StepRecorder(file, generated, skips_one=self.step_count > 0)

    def _stop(self, *, is_kept: bool = True) -> None:
        """Ends the recording; a step that has not ended is not part of it."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            is_kept = is_kept and (self.step_count <= 1 or recorder.step_count > 0)
            recorder.stop(is_kept=is_kept)
            if is_kept:
                self._recorded.append(recorder)

    @property
    def kept_count(self) -> int:
        """Number of recorded steps."""
        running = [] if self._recorder is None else [self._recorder]
        return sum(max(0, recorder.step_count) for recorder in (*self._recorded, *running))

    def _is_late(self) -> bool:
        limit = _MOST_SECONDS_OF_STEPS if self.step_count else _MOST_SECONDS
        if time.perf_counter() - self._recording_since < limit:
            return False
        self._most_steps = 0
        self._notes.append(f"recording ended after {limit:.0f} s, to save memory")
        return True

    def _on_compile(self) -> None:
        self._compiled = self._compiles = True
        if self._recorder is not None and self.is_here:
            with self._noting("a compile"):
                self._dropped_count += self._recorder.step_count >= 0 and self.step_count > 0
                self._stop(is_kept=self.step_count > 0)

    def _on_collection(self, phase: str, _: object) -> None:
        """Ends the recording of a block without steps after its longest time; runs at each garbage collection."""
        is_due = phase == "stop" and self._recorder is not None and self.step_count == 0
        if is_due and self.is_here and self._is_late():
            with self._noting("the end of the recording"):
                self._stop()

    @contextlib.contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """Turns any failure of layoutdoctor in the block into a note, so that the program goes on."""
        try:
            yield
        except Exception as error:
            self._problems.append(f"{what} could not be recorded: {first_line(error)}")

    # ------------------------------------------------------------------------------------------ the recording
    def _recording_of(self, traces: list[tuple[int, RecordedTrace]]) -> Recording:
        graphs = self._capture.graphs
        steps = [step for count, trace in traces for step in single_steps(trace, count)]
        whole = max(traces, key=lambda one: one[0], default=(0, None))[1]
        device = ("cuda" if torch.cuda.is_initialized() else "cpu") if whole is None else device_of(whole)
        iterations = [Iteration(events=step, device=device) for step in steps] if graphs else []
        if not graphs and whole is not None:
            iterations = [Iteration(events=whole, device=device)]
        lacks = [*self._lacks(whole, has_kernels=bool(iterations)), *(one for r in self._recorded for one in r.lacks)]
        trial = Observed(
            configuration=RECORDED,
            status="ok",
            graphs=graphs,
            recompile_count=len(self._capture.recompile_reasons),
            graph_break_reasons=self._capture.graph_break_reasons,
            recompile_reasons=self._capture.recompile_reasons,
            lacks=tuple(lacks),
            ran_as_eager=self._compiled and self._capture.lowered_count == 0,
        )
        if not graphs and not iterations:
            failure = Failure(kind="profile", message="; ".join(dict.fromkeys(self._problems)) or _NOTHING)
            trial = msgspec.structs.replace(trial, status="failed", failure=failure)
        environment = observed_environment(device or "cpu", triton=triton_version(), command=None)
        if iterations and graphs and _has_room(device or "cpu"):  # the bandwidth gives times to parts of kernels
            bandwidth = measure_copy_bandwidth(device or "cpu")
            environment = msgspec.structs.replace(environment, copy_bandwidth_bytes_per_second=bandwidth)
        notes = (*self._step_notes(), *dict.fromkeys((*self._notes, *self._problems)))
        head = Head(
            layoutdoctor_version=__version__,
            created_at=now(),
            environment=environment,
            subject=Subject(name=self._name or _UNNAMED, mode="trace", device=device, inputs=(), notes=notes),
            configurations=(RECORDED.name,),
        )
        return Recording(head=head, trial=trial, iterations=tuple(iterations), was_profiled=bool(graphs))

    def _lacks(self, whole: RecordedTrace | None, *, has_kernels: bool) -> Iterator[Lack]:
        yield from self._capture.lacks
        if whole is not None and not self._compiled and any(name.startswith(COMPILED_RANGES) for name in whole.names):
            yield Lack(part="graphs", reason=_COMPILED_BEFORE)
        if whole is not None and not len(whole.operations):
            yield Lack(part="operations", reason=_NO_OPERATION)
        if not has_kernels and self._compiled and self._most_steps:
            yield Lack(part="kernels", reason=_COMPILED_WITHIN)

    def _step_notes(self) -> Iterator[str]:
        """Yields notes on the number of recorded steps, the cost of recording, and the steps that were left out."""
        rank = _rank()
        if rank is not None:
            yield f"rank {rank} of {torch.distributed.get_world_size()}"
        if self.step_count and self.kept_count:
            recorded, later, cost = self._recorded_seconds, self._later_seconds, ""
            if recorded and len(later) > 1:
                slower = statistics.median(recorded) / statistics.median(later)
                cost = f", and took {slower:.2f} times as long as later steps"
            yield f"{self.kept_count} of {count_of(self.step_count, 'step')} were recorded{cost}"
        elif self.step_count and self._recorded:
            yield "there were too few steps, so the first step was recorded with its warm-up"
        if self._dropped_count:
            yield f"left out: {count_of(self._dropped_count, 'step')} in which something was compiled"

    @property
    def recording(self) -> Recording:
        """
        The recording of the block, before it is examined.

        Raises:
            UsageError: The block has not ended.
            TraceError: The graphs and the trace could not be joined to a recording.
        """
        if self._broken is not None:
            raise TraceError(f"cannot diagnose the block of layoutdoctor.profile(): {self._broken}")
        if self._seen is None:
            why = "has not ended" if self._is_open else "was not entered"
            raise UsageError(f"cannot diagnose yet: the block of layoutdoctor.profile() {why}")
        return self._seen

    @property
    def has_enough(self) -> bool:
        """Whether no further step will be recorded: all requested steps are recorded, or recording was given up."""
        return self._recorder is None and self.kept_count >= self._most_steps

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis of the recording; raises as ``recording`` does."""
        return diagnose_recordings([self.recording])

    @property
    def summary(self) -> dict[str, float]:
        """
        Numbers for a logger by name; a number that was not recorded is left out.

        Numbers of one step: ``step_seconds`` (median of the steps after the recorded steps),
        ``kernel_seconds_per_step``, ``conversion_count_per_step``, ``conversion_seconds_per_step``,
        ``conversion_mib_per_step``, ``round_trip_count``, ``round_trip_seconds_per_step``. Others:
        ``recorded_step_count``, ``conversion_share`` (share of the kernels' time), ``finding_count``.
        """
        diagnosis, trial = self.diagnosis, self.diagnosis.trials[0]
        found: dict[str, float | None] = {
            "step_seconds": statistics.median(self._later_seconds) if self._later_seconds else None,
            "recorded_step_count": self.kept_count,
            "finding_count": len(diagnosis.findings),
        }
        if trial.status == "ok":
            steps = 1 if self.recording.trial.graphs else max(1, self.kept_count)
            counted = counted_conversions(trial)
            kernels, spent = trial.kernel_seconds, sum_seconds(counted)
            moved = sum_of_known(conversion.bytes_moved for conversion in counted)
            in_trips = sum_if_all_known(*(pair.seconds for pair in trial.redundant_pairs))
            found |= {
                "kernel_seconds_per_step": None if kernels is None else kernels / steps,
                "conversion_count_per_step": len(counted) / steps,
                "conversion_seconds_per_step": None if spent is None else spent / steps,
                "conversion_mib_per_step": None if moved is None else moved / steps / (1 << 20),
                "conversion_share": spent / kernels if kernels and spent is not None else None,
                "round_trip_count": len(trial.redundant_pairs) / steps,
                "round_trip_seconds_per_step": None if in_trips is None else in_trips / steps,
            }
        return {name: float(value) for name, value in found.items() if value is not None}

    def save(self, path: str | Path) -> None:
        """
        Writes the report, as ``Diagnosis.save`` does.

        In a process group each rank writes its own file: rank 1 writes ``report.rank1.html`` for ``report.html``.
        """
        rank, path = _rank(), Path(path)
        self.diagnosis.save(path if rank is None else path.with_name(f"{path.stem}.rank{rank}{path.suffix}"))

    def __str__(self) -> str:
        return str(self.diagnosis) if self._seen is not None else self._broken or repr(self)

    def __repr__(self) -> str:
        state = "open" if self._is_open else "over" if self._is_over else "not entered"
        return f"<layoutdoctor.profile of {self._name or _UNNAMED}: {state}, {count_of(self.step_count, 'step')}>"

    def _repr_html_(self) -> str:
        return self.diagnosis._repr_html_()


def profile(*, steps: int = MOST_STEPS) -> Profile:
    """
    Makes a ``with`` block that records a few steps of any code of this process, and diagnoses them.

    The block yields a ``Profile``. Call its ``step()`` after each step of a loop; without any call, the whole block is
    one step. The code runs as it would without the block, except that graphs are compiled again instead of taken from
    Inductor's caches.

    Args:
        steps: Number of steps to record, after the first two; steps that compile and the step after each do not count.

    Raises:
        UsageError: The number of steps is not an integer from 1 on.
    """
    return Profile(steps)


def _name_of(frame: FrameType) -> str:
    """Returns the file and line of the block; ``this process`` if its code is in no file."""
    file = frame.f_code.co_filename
    return _UNNAMED if file.startswith("<") else line_words(SourceLocation(file=file, line=frame.f_lineno))


def _has_room(device: str) -> bool:
    """Whether the device has enough free memory for a large copy; on a CPU always True."""
    return kind_of(device) == "cpu" or torch.cuda.mem_get_info(device)[0] > _ROOM_BYTES


def _rank() -> int | None:
    """Returns the rank in a process group of several processes; None without such a group."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return int(distributed.get_rank())
    return None
