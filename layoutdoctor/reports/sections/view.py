"""
The sections of a report and everything that stands in them, shared by all formats, so that no two formats can disagree.

A pure function of the diagnosis. Every string here is printable and on one line; a format only arranges and escapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.reports.sections.answer import Answer, build_answer
from layoutdoctor.reports.sections.facts import is_recording, sources_of
from layoutdoctor.reports.sections.remarks import build_hints, build_measurement, build_not_understood, build_remarks
from layoutdoctor.reports.sections.rows import Table, build_tables
from layoutdoctor.reports.sections.wording import clean, clean_name, place_of
from layoutdoctor.words import count_of, listing

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis, Finding


@dataclass(frozen=True, slots=True)
class FindingEntry:
    """
    One finding as a report shows it.

    Attributes:
        configuration: The trial it is about, unless that is the baseline, the recorded one, or the whole diagnosis.
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
        findings: What the rules found, most severe first.
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
    """The report of a diagnosis, also of an interrupted one, in sections."""
    return View(
        title=_title(diagnosis),
        interrupted=_interruption(diagnosis),
        answer=build_answer(diagnosis),
        tables=build_tables(diagnosis),
        remarks=build_remarks(diagnosis),
        findings=tuple(_finding_entry(diagnosis, finding) for finding in diagnosis.findings),
        not_understood=build_not_understood(diagnosis),
        measurement=build_measurement(diagnosis),
        hints=build_hints(diagnosis),
    )


def _title(diagnosis: Diagnosis) -> tuple[str, ...]:
    """With the mode, or what wrote the file; torch's version only where the file says it, as hardly any does."""
    mode: str = diagnosis.subject.mode
    torch = f"torch {clean_name(diagnosis.environment.torch)}" if diagnosis.environment.torch else None
    if is_recording(diagnosis):
        mode = listing(map(clean_name, sources_of(diagnosis)), None) or mode
    else:
        torch = torch or "torch version not recorded"
    return (
        f"layoutdoctor {clean_name(diagnosis.layoutdoctor_version)}",
        clean_name(diagnosis.subject.name),
        mode,
        _device(diagnosis),
        *([torch] if torch else []),
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
    about = finding.configuration if finding.configuration != baseline and not is_recording(diagnosis) else None
    return FindingEntry(
        code=clean_name(finding.code),
        severity=finding.severity,
        rule=clean_name(finding.rule),
        configuration=clean_name(about) if about else None,
        message=clean(finding.message),
        place=place_of(finding.location, finding.module),
        suggestion=clean(finding.suggestion) if finding.suggestion else None,
    )
