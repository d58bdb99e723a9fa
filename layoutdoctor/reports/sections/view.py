"""
The sections of a report and everything that stands in them, shared by all formats, so that no two formats can disagree.

A pure function of the diagnosis. Every string here is printable and on one line; a format only arranges and escapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.reports.sections.answer import Answer, build_answer
from layoutdoctor.reports.sections.remarks import build_hints, build_measurement, build_not_understood, build_remarks
from layoutdoctor.reports.sections.rows import Table, build_table
from layoutdoctor.reports.sections.static_answer import build_static_answer
from layoutdoctor.reports.sections.trace_answer import build_trace_answer
from layoutdoctor.reports.sections.trace_remarks import (
    build_trace_hints,
    build_trace_measurement,
    build_trace_not_understood,
    build_trace_remarks,
)
from layoutdoctor.reports.sections.trace_rows import build_trace_tables
from layoutdoctor.reports.sections.wording import clean, clean_name, count_of, in_words, place_of

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis, Finding


@dataclass(frozen=True, slots=True)
class FindingEntry:
    """
    One finding as a report shows it.

    Attributes:
        code: The rule's code.
        severity: ``error``, ``warning`` or ``note``.
        rule: The rule's name.
        configuration: The trial it is about, unless that is the baseline, the recorded one, or the whole diagnosis.
        message: The fact.
        place: File, line and module, where known.
        suggestion: What to do.
    """

    code: str
    severity: str
    rule: str
    configuration: str | None
    message: str
    place: str | None
    suggestion: str | None


@dataclass(frozen=True, slots=True)
class View:
    """
    A report before it is laid out.

    Attributes:
        title: What was diagnosed where, in parts.
        interrupted: What stopped the diagnosis, as a sentence; None where it ran to its end.
        answer: The first lines.
        tables: The configurations; of a trace, the places where conversions cost most, and the steps.
        remarks: Facts about the subject and single trials.
        findings: What the rules found, most severe first.
        not_understood: What could not be recorded or read.
        measurement: How well it was measured.
        hints: Where to go on.
    """

    title: tuple[str, ...]
    interrupted: str | None
    answer: Answer
    tables: tuple[Table, ...]
    remarks: tuple[str, ...]
    findings: tuple[FindingEntry, ...]
    not_understood: tuple[str, ...]
    measurement: tuple[str, ...]
    hints: tuple[str, ...]


def build_view(diagnosis: Diagnosis) -> View:
    """
    The report of a diagnosis, in sections.

    Args:
        diagnosis: Any diagnosis, also an interrupted one.
    """
    if diagnosis.subject.mode == "trace":
        return _trace_view(diagnosis)
    return View(
        title=_title(diagnosis),
        interrupted=_interruption(diagnosis),
        answer=build_answer(diagnosis) if diagnosis.subject.target is None else build_static_answer(diagnosis),
        tables=(build_table(diagnosis),),
        remarks=build_remarks(diagnosis),
        findings=tuple(_finding_entry(diagnosis, finding) for finding in diagnosis.findings),
        not_understood=build_not_understood(diagnosis),
        measurement=build_measurement(diagnosis),
        hints=build_hints(diagnosis),
    )


def _trace_view(diagnosis: Diagnosis) -> View:
    return View(
        title=_trace_title(diagnosis),
        interrupted=_interruption(diagnosis),
        answer=build_trace_answer(diagnosis),
        tables=build_trace_tables(diagnosis),
        remarks=build_trace_remarks(diagnosis),
        findings=tuple(_finding_entry(diagnosis, finding) for finding in diagnosis.findings),
        not_understood=build_trace_not_understood(diagnosis),
        measurement=build_trace_measurement(diagnosis),
        hints=build_trace_hints(diagnosis),
    )


def _trace_title(diagnosis: Diagnosis) -> tuple[str, ...]:
    """As for a model, with what wrote the file; torch's version only where the file says it, as hardly any does."""
    sources = dict.fromkeys(source for trial in diagnosis.trials if trial.kernels for source in trial.kernels.sources)
    torch = diagnosis.environment.torch
    return (
        f"layoutdoctor {clean_name(diagnosis.layoutdoctor_version)}",
        clean_name(diagnosis.subject.name),
        in_words(clean_name(source) for source in sources) or diagnosis.subject.mode,
        _device(diagnosis),
        *([f"torch {clean_name(torch)}"] if torch else []),
    )


def _title(diagnosis: Diagnosis) -> tuple[str, ...]:
    torch = diagnosis.environment.torch
    return (
        f"layoutdoctor {clean_name(diagnosis.layoutdoctor_version)}",
        clean_name(diagnosis.subject.name),
        diagnosis.subject.mode,
        _device(diagnosis),
        f"torch {clean_name(torch)}" if torch else "torch version not recorded",
    )


def _device(diagnosis: Diagnosis) -> str:
    device, environment = diagnosis.subject.device, diagnosis.environment
    if diagnosis.subject.target is not None:
        return f"static, {clean_name(diagnosis.subject.target)}"
    if device is None:
        return "device not recorded"
    if device == "cpu":
        return f"cpu ({count_of(environment.thread_count, 'thread')})" if environment.thread_count else "cpu"
    return clean_name(device) + (f" ({clean_name(environment.device_name)})" if environment.device_name else "")


def _interruption(diagnosis: Diagnosis) -> str | None:
    if diagnosis.interrupted is None:
        return None
    return f"Not finished: {clean(diagnosis.interrupted)}. What follows rests on what was recorded until then"


def _finding_entry(diagnosis: Diagnosis, finding: Finding) -> FindingEntry:
    baseline = diagnosis.comparison.baseline if diagnosis.comparison else None
    only_one = diagnosis.subject.mode == "trace"
    about = finding.configuration if finding.configuration != baseline and not only_one else None
    return FindingEntry(
        code=clean_name(finding.code),
        severity=finding.severity,
        rule=clean_name(finding.rule),
        configuration=clean_name(about) if about else None,
        message=clean(finding.message),
        place=place_of(finding.location, finding.module),
        suggestion=clean(finding.suggestion) if finding.suggestion else None,
    )
