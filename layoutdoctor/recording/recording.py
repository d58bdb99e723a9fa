"""
What was seen of one trial of a diagnosis, or of a recorded run: the value that ``examine`` makes facts of.

A live run on a CPU or a GPU, a lowering for a GPU that is not there, a trace file, a table of kernels and a log of
oneDNN all end in this value. It needs no torch, and nothing in it was proved by looking at it.
"""

from __future__ import annotations

from typing import Literal

from layoutdoctor.records import Comparison, Environment, Recommendation, Record, Subject, Trial
from layoutdoctor.traces.onednn import OnednnLog
from layoutdoctor.traces.recorded import KernelTotals, RecordedTrace

Source = Literal["live", "static", "trace", "table", "log"]


class Head(Record, frozen=True, kw_only=True):
    """
    What all recordings of one diagnosis share; each holds it, so that any of them can be examined alone.

    Attributes:
        layoutdoctor_version: What recorded it.
        created_at: UTC, ISO 8601.
        environment: The machine and versions, the device's copy bandwidth among them.
        subject: What was diagnosed.
        configurations: Names of all trials, in the order of the report.
        comparison: None where fewer than two trials were measured.
        recommendation: What to do; None where nothing was concluded.
        interrupted: What stopped the diagnosis; None where it came to its end.
    """

    layoutdoctor_version: str
    created_at: str
    environment: Environment
    subject: Subject
    configurations: tuple[str, ...]
    comparison: Comparison | None = None
    recommendation: Recommendation | None = None
    interrupted: str | None = None


class Iteration(Record, frozen=True, kw_only=True):
    """
    One profiled iteration, or the whole of a trace file.

    Attributes:
        events: Everything the profiler recorded.
        device: Where its kernels ran: ``cpu``, ``cuda``...; None where a trace does not say.
        log: oneDNN's log of it; None where it was not asked for or could not be had.
        lacks: What is missing, and why.
    """

    events: RecordedTrace
    device: str | None
    log: OnednnLog | None = None
    lacks: tuple[str, ...] = ()


class Recording(Record, frozen=True, kw_only=True):
    """
    What was seen of one trial.

    Attributes:
        head: The diagnosis it is a part of.
        trial: The trial as it was observed: its graphs as the compiler had them, without conversions and breakers; no
            kernels, no round trips.
        source: Where it comes from; what a source cannot know is not asked of it.
        iterations: Profiled iterations; of a trace file the only one.
        totals: A table of kernels, where that is all there is.
        log: A log of oneDNN, where that is all there is.
        was_profiled: Whether it came as far as its profile, or was lowered: round trips are looked for then.
    """

    head: Head
    trial: Trial
    source: Source
    iterations: tuple[Iteration, ...] = ()
    totals: KernelTotals | None = None
    log: OnednnLog | None = None
    was_profiled: bool = False

    @property
    def name(self) -> str:
        """The configuration's name."""
        return self.trial.configuration.name


def busy_nanoseconds(events: RecordedTrace) -> int:
    """
    Time of the kernels on a GPU, else of the operations and annotated ranges that no other one called.

    Args:
        events: An iteration.
    """
    if len(events.kernels):
        return int(events.kernels.duration.sum())
    tables = (events.annotations, events.operations)
    spans = [span for table in tables for span in zip(table.start.tolist(), table.duration.tolist(), strict=True)]
    total, end = 0, min((start for start, _ in spans), default=0)
    for start, duration in sorted(spans, key=_longest_first):
        if start >= end:
            total += duration
            end = start + duration
    return total


def _longest_first(span: tuple[int, int]) -> tuple[int, int]:
    return span[0], -span[1]


def unrest(iteration: Iteration) -> tuple[bool, int]:
    """
    What the quietest of several iterations has least of; one of a GPU whose kernels were not recorded comes last.

    Args:
        iteration: Any.
    """
    kernels_are_missing = iteration.device != "cpu" and not len(iteration.events.kernels)
    return kernels_are_missing, busy_nanoseconds(iteration.events)
