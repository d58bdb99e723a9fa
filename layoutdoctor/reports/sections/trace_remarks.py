"""
What stands around the tables of a recorded trace: facts about the file, what it lacks, how well its times are known.

Faces the view; imports records and units only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import counted_conversions
from layoutdoctor.reports.sections.trace_wording import KINETO_TRACE, recorded_trial, terms_of
from layoutdoctor.reports.sections.wording import clean, clean_name, count_of

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis

_TIME_WORDS = {
    "trace": "kernel times from the profiler, which slows small kernels",
    "table": "times added up as the table has them",
    "log": "times from oneDNN's own log",
}


def build_trace_remarks(diagnosis: Diagnosis) -> tuple[str, ...]:
    """
    Facts about the file that the answer and the tables have no room for.

    Args:
        diagnosis: One of a trace.
    """
    notes = [*diagnosis.subject.notes, *(note for trial in diagnosis.trials for note in trial.notes)]
    return tuple(clean(note) for note in notes)


def build_trace_not_understood(diagnosis: Diagnosis) -> tuple[str, ...]:
    """
    What the file lacks and what in it could not be read; "nothing" is said only where there is no such thing.

    Args:
        diagnosis: One of a trace.

    Returns:
        At least one line.
    """
    trial = recorded_trial(diagnosis)
    if trial is None:
        return ("nothing was read, so nothing is known",)
    if trial.kernels is None:
        return ("the kernel list was not recorded",)
    lines = []
    if trial.kernels.not_understood_count and not (trial.kernels.lacks or diagnosis.subject.notes):
        what = count_of(trial.kernels.not_understood_count, "event or conversion", "events or conversions")
        lines.append(f"{what} could not be read or described")
    lines += [clean(lack, 300) for lack in trial.kernels.lacks]
    lines += dict.fromkeys(clean(what, 200) for graph in trial.graphs for what in graph.not_understood)
    return tuple(lines) or ("nothing",)


def build_trace_measurement(diagnosis: Diagnosis) -> tuple[str, ...]:
    """
    Where the times come from, and what they are not good for.

    Args:
        diagnosis: One of a trace.
    """
    trial = recorded_trial(diagnosis)
    if trial is None or trial.kernels is None or not trial.kernels.count:
        return ("none, as no kernel was read",)
    return ("one recorded run", _TIME_WORDS[terms_of(diagnosis).file], "nothing was compared")


def build_trace_hints(diagnosis: Diagnosis) -> tuple[str, ...]:
    """
    Where to go on from the report of a trace.

    Args:
        diagnosis: One of a trace.
    """
    explain = f"layoutdoctor explain {clean_name(diagnosis.findings[0].code)}" if diagnosis.findings else ""
    trial = recorded_trial(diagnosis)
    can_mark = trial is not None and trial.kernels is not None and KINETO_TRACE in trial.kernels.sources
    hints = [explain or "layoutdoctor explain"]
    if trial is not None and can_mark and counted_conversions(trial):
        hints.append("--output annotated.json.gz marks them for Perfetto")
    return (*hints, "layoutdoctor compare OLD NEW")
