"""Diagnoses saved recordings and compares diagnoses. Needs no torch, no model and no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis import Diagnosis
from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES, load
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.changes.models import compare_models
from layoutdoctor.examination.changes.traces import compare_traces
from layoutdoctor.examination.examine import diagnosis_of
from layoutdoctor.privacy import scrub
from layoutdoctor.recording.files import kind_of_file
from layoutdoctor.recording.reading import read_recorded
from layoutdoctor.rules import run_rules
from layoutdoctor.words import TORCH_TRACE_LOG

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.comparison import ModelComparison, TraceComparison
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.rules import Rule


def examine_trace(
    path: str | Path, *, max_bytes: int = DEFAULT_MOST_BYTES, rules: Sequence[Rule] | None = None
) -> Diagnosis:
    """
    Finds every layout conversion in a recorded run.

    Args:
        path: A Chrome trace of ``torch.profiler`` (``.json`` or ``.json.gz``, any version since 2020), an SQLite export
            of Nsight Systems (or a report, if ``nsys`` is installed), a table of kernels as CSV or text, a verbose log
            of oneDNN, or a log that ``TORCH_TRACE`` wrote.
        max_bytes: Largest number of bytes to read, after decompression.

    Returns:
        A diagnosis with one trial, ``recorded``: its conversions and round trips, with the evidence for each. It
        recommends no configuration, because it measures none.

    Raises:
        TraceError: The file cannot be read, or is not a recorded trace.
    """
    return diagnose_recordings([read_recorded(Path(path), max_bytes)], rules)


def diagnose_recordings(recordings: Sequence[Recording], rules: Sequence[Rule] | None = None) -> Diagnosis:
    """Makes the diagnosis of the recordings of one subject, findings included."""
    diagnosis = diagnosis_of(recordings)
    return msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis, rules))


def compare(old: Diagnosis | str | Path, new: Diagnosis | str | Path) -> TraceComparison | ModelComparison:
    """
    Finds the changes between two diagnoses.

    Args:
        old: The earlier diagnosis, the path of its file, or the path of a recorded trace, which is examined.
        new: The later diagnosis, or a path as for ``old``.

    Returns:
        A ``TraceComparison`` of two traces, else a ``ModelComparison``; ``print`` shows its report.
        ``regression.losses`` lists each loss. If losses could not be judged, ``regression.not_judged`` is the reason.

    Raises:
        UsageError: The kinds differ: a recorded trace, a log of ``TORCH_TRACE``, or a diagnosis of a model.
        RecordError: A file cannot be read, or is not a diagnosis.
        TraceError: A file is not a trace.
    """
    # A saved diagnosis is scrubbed. Both are scrubbed here, so that equal paths and settings stay equal.
    before, after = scrub(_as_diagnosis(old)), scrub(_as_diagnosis(new))
    kinds = [_kind(before), _kind(after)]
    if kinds[0] == kinds[1]:
        return compare_traces(before, after) if kinds[0] == "a recorded trace" else compare_models(before, after)
    one, other = sorted((before, after), key=lambda diagnosis: not diagnosis.is_recording)
    raise UsageError(
        f"cannot compare {one.subject.name!r}, {_kind(one)}, with {other.subject.name!r}, {_kind(other)}:"
        " expected two of the same kind; give two traces, or two diagnoses of models"
    )


def _kind(diagnosis: Diagnosis) -> str:
    if not diagnosis.is_recording:
        return "a diagnosis of a model"
    was_compiled = any(trial.kernels is None and trial.status == "ok" for trial in diagnosis.trials)
    return f"a {TORCH_TRACE_LOG}" if was_compiled else "a recorded trace"


def _as_diagnosis(given: Diagnosis | str | Path) -> Diagnosis:
    if isinstance(given, Diagnosis):
        return given
    path = Path(given)
    return load(path) if kind_of_file(path) == "diagnosis" else examine_trace(path)
