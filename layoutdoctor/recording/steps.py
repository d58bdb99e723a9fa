"""Cuts a recorded run into the steps that torch.profiler marked."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from layoutdoctor.recording.recording import EVENT_TABLES, NONE, FrameEvents, RecordedTrace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutdoctor.recording.recording import Column, KernelEvents, LaunchEvents

STEP_PREFIX = "ProfilerStep#"
"""Prefix of the name of the range that the profiler records around a step."""


def without_steps(trace: RecordedTrace) -> RecordedTrace:
    """Returns a run without the ranges around its steps; these ranges do no work of their own."""
    return dataclasses.replace(trace, annotations=_rows(trace.annotations, ~_is_step(trace)))


def first_steps(trace: RecordedTrace, count: int) -> RecordedTrace:
    """Returns a run up to the end of step number ``count``, with the steps' ranges; without steps, the whole run."""
    ends = _ends(trace)[:count]
    return _between(trace, np.iinfo(np.int64).min, ends[-1][1]) if ends else trace


def single_steps(trace: RecordedTrace, count: int) -> list[RecordedTrace]:
    """Returns each of the first ``count`` steps as a run; a kernel belongs to the step that launched it."""
    return [without_steps(_between(trace, begin, end)) for begin, end in _ends(trace)[:count]]


def _is_step(trace: RecordedTrace) -> NDArray[np.bool_]:
    of_names = np.array([name.startswith(STEP_PREFIX) for name in trace.names] or [False])
    found: NDArray[np.bool_] = of_names[trace.annotations.name]
    return found


def _ends(trace: RecordedTrace) -> list[tuple[int, int]]:
    """Returns the begin and end of each step on the host."""
    steps: FrameEvents = _rows(trace.annotations, _is_step(trace))
    return [(int(start), int(start + length)) for start, length in zip(steps.start, steps.duration, strict=True)]


def _between(trace: RecordedTrace, begin: int, end: int) -> RecordedTrace:
    tables = {name: getattr(trace, name) for name in EVENT_TABLES}
    moments = {name: table.start for name, table in tables.items()}
    moments["kernels"] = _launched_at(trace.kernels, trace.launches)
    kept = {name: _rows(table, (begin <= moments[name]) & (moments[name] < end)) for name, table in tables.items()}
    return dataclasses.replace(trace, **kept)


def _launched_at(kernels: KernelEvents, launches: LaunchEvents) -> Column:
    """Returns the time of each kernel's launch; the kernel's start if the launch is not known."""
    known = dict(zip(launches.correlation.tolist(), launches.start.tolist(), strict=True))
    known.pop(NONE, None)
    found = zip(kernels.correlation.tolist(), kernels.start.tolist(), strict=True)
    return np.array([known.get(correlation, start) for correlation, start in found], np.int64)


def _rows(table: Any, is_kept: NDArray[np.bool_]) -> Any:
    return type(table)(**{column: getattr(table, column)[is_kept] for column in type(table).__slots__})
