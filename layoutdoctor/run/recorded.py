"""Diagnoses of what was recorded before: read, examined, judged by the rules. Needs no torch, no model and no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.examination.diagnoses import diagnosis_of
from layoutdoctor.limits import DEFAULT_MOST_BYTES
from layoutdoctor.recording.reading import read_recorded
from layoutdoctor.rules import run_rules

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from layoutdoctor.examination.examine import Examined
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.records import Diagnosis
    from layoutdoctor.rules import Rule


def examine_trace(
    path: str | Path, *, max_bytes: int = DEFAULT_MOST_BYTES, rules: Sequence[Rule] | None = None
) -> Diagnosis:
    """
    Finds every layout conversion in a recorded run.

    Args:
        path: A Chrome trace of ``torch.profiler`` (``.json`` or ``.json.gz``, any version since 2020), an SQLite export
            or a kernel summary in CSV of Nsight Systems, or a verbose log of oneDNN.
        max_bytes: How many bytes to read at the most, after unpacking.
        rules: Which rules to run; None for all.

    Returns:
        A diagnosis with one trial, ``recorded``: conversions and round trips with what each claim rests on. Nothing in
        it was measured again, so it recommends no configuration.

    Raises:
        TraceError: The file cannot be read, or is no recorded trace.
    """
    return diagnose_recordings([read_recorded(Path(path), max_bytes)], rules)


def diagnose_recordings(
    recordings: Sequence[Recording],
    rules: Sequence[Rule] | None = None,
    known: MutableMapping[str, Examined] | None = None,
) -> Diagnosis:
    """
    The diagnosis that recordings are of, findings included.

    Args:
        recordings: Of one diagnosis.
        rules: Which rules to run; None for all.
        known: What was examined before, by configuration.
    """
    diagnosis = diagnosis_of(recordings, known)
    return msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis, rules))
