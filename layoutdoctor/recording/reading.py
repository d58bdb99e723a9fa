"""A recorded run from elsewhere as a recording: a trace, a table of kernels, or a log of oneDNN."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from layoutdoctor._version import __version__
from layoutdoctor.limits import DEFAULT_MOST_BYTES
from layoutdoctor.recording.environment import describe_environment, device_of
from layoutdoctor.recording.recording import Head, Iteration, Recording
from layoutdoctor.records import Configuration, Environment, Subject, Trial
from layoutdoctor.traces import read_trace
from layoutdoctor.traces.recorded import KernelTotals, RecordedTrace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from layoutdoctor.traces.recorded import Problem

RECORDED = Configuration(
    name="recorded",
    backend="recorded",
    layout_optimization=None,
    model_format=None,
    input_format=None,
)


def read_recorded(path: Path, most_bytes: int = DEFAULT_MOST_BYTES) -> Recording:
    """
    Reads a recorded run of any known kind.

    Args:
        path: The file.
        most_bytes: How many bytes to read at the most, after unpacking.

    Raises:
        TraceError: The file cannot be read, or is none of the known kinds.
    """
    found = read_trace(path, most_bytes)
    trial = Trial(configuration=RECORDED, status="ok")
    if isinstance(found, RecordedTrace):
        device = device_of(found)
        head = _head(path.name, describe_environment(found), device, found.problems)
        return Recording(head=head, trial=trial, source="trace", iterations=(Iteration(events=found, device=device),))
    if isinstance(found, KernelTotals):
        head = _head(path.name, Environment(torch=None), "cuda", found.problems)
        return Recording(head=head, trial=trial, source="table", totals=found)
    environment = Environment(torch=None, onednn=found.version, onednn_isa=found.isa)
    return Recording(head=_head(path.name, environment, "cpu", ()), trial=trial, source="log", log=found)


def _head(name: str, environment: Environment, device: str | None, problems: Sequence[Problem]) -> Head:
    notes = tuple(f"{problem.what} ({problem.count})" if problem.count > 1 else problem.what for problem in problems)
    return Head(
        layoutdoctor_version=__version__,
        created_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        environment=environment,
        subject=Subject(name=name, mode="trace", device=device, inputs=(), notes=notes),
        configurations=(RECORDED.name,),
    )
