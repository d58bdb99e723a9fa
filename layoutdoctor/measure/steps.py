"""Records steps of a program in this process with torch.profiler; the steps themselves are not changed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.diagnosis import Lack
from layoutdoctor.measure.profiling import named_kernels, quiet_profiler
from layoutdoctor.recording.chrome import read_chrome_trace
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.steps import first_steps

if TYPE_CHECKING:
    from layoutdoctor.measure.profiling import GeneratedCode
    from layoutdoctor.recording.recording import RecordedTrace


class StepRecorder:
    """
    Records steps from its creation until ``stop``, in this thread and in the threads that autograd starts.

    Attributes:
        step_count: Number of completely recorded steps; -1 while a first step that is left out is running.
        lacks: Parts that could not be recorded, with reasons.

    Args:
        file: File for the profiler's own trace.
        generated: Compiled graphs that may run; on a CPU, generated kernels of other graphs have no names.
        skips_one: Whether to leave out the first step, which is slow because the profiler starts.
    """

    def __init__(self, file: Path, generated: Sequence[GeneratedCode], *, skips_one: bool) -> None:
        self.step_count = -1 if skips_one else 0
        self._file = file
        self._stack = contextlib.ExitStack()
        self.lacks: list[Lack] = self._stack.enter_context(named_kernels(generated))
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=1 << 30) if skips_one else None
        options: dict[str, Any] = {"activities": activities, "record_shapes": True, "with_stack": True}
        self._profiler = torch.profiler.profile(**options, schedule=schedule)
        try:
            with quiet_profiler():
                self._profiler.start()
        except BaseException:
            self._stack.close()
            raise

    def step(self) -> None:
        """Marks the end of a step and the begin of the next one."""
        with quiet_profiler() if self.step_count < 0 else contextlib.nullcontext():
            self._profiler.step()
        self.step_count += 1

    def stop(self, *, is_kept: bool = True) -> None:
        """Ends the recording; writes the trace unless ``is_kept`` is False."""
        try:
            with quiet_profiler():
                self._profiler.stop()
                if is_kept:
                    self._profiler.export_chrome_trace(str(self._file))
        finally:
            self._stack.close()

    def read(self) -> RecordedTrace:
        """Reads the trace of the recorded steps; if no step was marked, the whole trace."""
        trace = read_chrome_trace(TraceFile(self._file, self._file.stat().st_size))
        return first_steps(trace, self.step_count) if self.step_count else trace
