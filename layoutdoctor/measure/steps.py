"""Steps of a program that runs in this process, under torch.profiler: what they do stays as it is."""

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
    Records steps from the moment it is made until it is stopped, in this thread and in those that autograd starts.

    Attributes:
        step_count: Steps that were recorded from their begin to their end.
        lacks: What it could not record.

    Args:
        file: Where the profiler's own trace goes.
        generated: The compiled graphs that may run; on a CPU only their kernels' names are in the trace.
        skips_one: Whether the first step is not recorded: the profiler's start makes it slow.
    """

    def __init__(self, file: Path, generated: Sequence[GeneratedCode] = (), *, skips_one: bool = False) -> None:
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
        """A step ends, and the next one begins."""
        with quiet_profiler() if self.step_count < 0 else contextlib.nullcontext():
            self._profiler.step()
        self.step_count += 1

    def stop(self, *, is_kept: bool = True) -> None:
        """Ends the recording; without a step to keep nothing is left of it."""
        try:
            with quiet_profiler():
                self._profiler.stop()
                if is_kept:
                    self._profiler.export_chrome_trace(str(self._file))
        finally:
            self._stack.close()

    def read(self) -> RecordedTrace:
        """The steps that were recorded; if none was marked, all that was."""
        trace = read_chrome_trace(TraceFile(self._file, self._file.stat().st_size))
        return first_steps(trace, self.step_count) if self.step_count else trace
