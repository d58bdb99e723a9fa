"""
The JUnit report: one test case for each configuration and each rule, for a CI server.

- A configuration passes where it ran; one that failed, timed out or crashed is an error. Its time is that of one
  call, so that a server's graphs show how the model's speed moves.
- A rule fails where it has an error or a warning that is not accepted; its notes are text of the case, and no failure.
  Its time is what its findings cost in one step.
- A rule is skipped where all it found is accepted, and where nothing was recorded that it could look at: nothing found
  is no pass there.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from layoutdoctor.examination.gaps import examination_of
from layoutdoctor.reports.sections.wording import clean, clean_line, clean_name, is_recording, project_path
from layoutdoctor.rules import ALL_RULES
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, Trial

_RULE_FAILED = "rule failed: "  # how `run_rules` says that a rule raised
_ASKS_FOR_A_MODEL = tuple(
    "LD104 LD105 LD2 LD302 LD303 LD304 LD306 LD307 LD308 LD4 LD502 LD503 LD504 LD505 LD507".split()
)
"""Rules and families that ask what a compiler decided, how steps were timed, how a model is written: no trace says."""

_NOT_IN_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(diagnosis: Diagnosis) -> str:
    """The findings as JUnit XML, in the form that Jenkins reads."""
    suite = ET.Element("testsuite")
    _add_properties(suite, diagnosis)
    cases = [_configuration_case(trial) for trial in diagnosis.trials]
    known = {rule.code: rule.name for rule in ALL_RULES}
    others = dict.fromkeys((f.code, f.rule) for f in diagnosis.findings if f.code not in known)
    cases += [_rule_case(diagnosis, code, name) for code, name in (*known.items(), *others)]
    if diagnosis.interrupted is not None:
        cases.append(_case("configurations", "ran to its end", None))
        _add(cases[-1], "error", clean(f"not finished: {diagnosis.interrupted}"), "interrupted")
    suite.extend(cases)
    counts = {tag: sum(case.find(tag) is not None for case in cases) for tag in ("failure", "error", "skipped")}
    subject = clean_name(diagnosis.subject.name)
    suite.attrib.update(
        {
            "name": _text(f"layoutdoctor {subject}"),
            "tests": str(len(cases)),
            "failures": str(counts["failure"]),
            "errors": str(counts["error"]),
            "skipped": str(counts["skipped"]),
            "time": f"{sum(float(case.attrib['time']) for case in cases):.3f}",  # the form takes no more digits here
            "timestamp": _timestamp(diagnosis.created_at),
        }
    )
    for case in cases:
        case.attrib["classname"] = _text(f"layoutdoctor.{subject.replace('.', '_')}.{case.attrib['classname']}")
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _text(text: str) -> str:
    """What XML 1.0 can hold: control characters and lone surrogates are shown as their escapes."""
    return _NOT_IN_XML.sub(lambda match: ascii(match[0])[1:-1], text)


def _time(seconds: float | None) -> str:
    known = seconds if seconds is not None and math.isfinite(seconds) else 0.0
    return f"{max(known, 0.0):.9f}"


def _timestamp(created_at: str) -> str:
    """UTC without an offset, as the form wants it; the epoch where the record holds no time."""
    match = re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", created_at)
    return match[0] if match else "1970-01-01T00:00:00"


def _add_properties(suite: ET.Element, diagnosis: Diagnosis) -> None:
    environment, subject = diagnosis.environment, diagnosis.subject
    known = {
        "layoutdoctor": diagnosis.layoutdoctor_version,
        "mode": subject.mode,
        "device": subject.device,
        "target": subject.target,
        "torch": environment.torch,
        "device_name": environment.device_name,
    }
    properties = ET.SubElement(suite, "properties")
    for name, value in known.items():
        if value is not None:
            ET.SubElement(properties, "property", name=name, value=_text(clean_name(value)))


def _case(group: str, name: str, seconds: float | None) -> ET.Element:
    return ET.Element("testcase", classname=group, name=_text(name), time=_time(seconds))


def _add(case: ET.Element, tag: str, message: str, kind: str, text: str = "") -> None:
    part = ET.SubElement(case, tag, message=_text(message), type=kind)
    part.text = _text(text) or None


def _configuration_case(trial: Trial) -> ET.Element:
    seconds = trial.measurement.median_seconds if trial.measurement is not None else None
    case = _case("configurations", clean_name(trial.name), seconds)
    if trial.status == "skipped":
        reason = trial.failure.message if trial.failure is not None else "not tried"
        ET.SubElement(case, "skipped", message=_text(clean(reason)))
    elif trial.status not in ("ok", "same_as") or trial.failure is not None:
        failure = trial.failure
        message = failure.message if failure is not None else trial.status.replace("_", " ")
        lines = failure.log.splitlines() if failure is not None and failure.log else []
        log = "\n".join(clean_line(line, 300) for line in lines)
        _add(case, "error", clean(message), failure.kind if failure is not None else trial.status, log)
    elif trial.same_as is not None:
        ET.SubElement(case, "system-out").text = _text(f"the same as {clean_name(trial.same_as)}, measured there")
    return case


def _rule_case(diagnosis: Diagnosis, code: str, name: str) -> ET.Element:
    findings = [finding for finding in diagnosis.findings if finding.code == code]
    broken = [finding for finding in findings if finding.message.startswith(_RULE_FAILED)]
    known = [finding.seconds for finding in findings if finding.seconds is not None]
    case = _case("rules", f"{clean_name(code)} {clean_name(name)}", sum(known))
    failing = [f for f in findings if f.accepted is None and f.severity != "note"]
    accepted = [f for f in findings if f.accepted is not None]
    notes = [f for f in findings if f.accepted is None and f not in failing and f not in broken]
    if broken:
        _add(case, "error", clean(broken[0].message), "rule", _listing(broken))
    elif failing:
        severity = "error" if any(f.severity == "error" for f in failing) else "warning"
        more = f" (and {count_of(len(failing) - 1, 'more finding')})" if len(failing) > 1 else ""
        _add(case, "failure", _message(failing[0]) + more, severity, _listing(failing))
    elif accepted and not notes:
        ET.SubElement(case, "skipped", message=_text(f"accepted: {_reasons(accepted)}"))
    elif not findings:
        reason = _why_not_judged(diagnosis, code)
        if reason is not None:
            ET.SubElement(case, "skipped", message=_text(reason))
    if notes or accepted:
        ET.SubElement(case, "system-out").text = _text(_listing([*notes, *accepted]))
    return case


def _reasons(accepted: Sequence[Finding]) -> str:
    given = list(dict.fromkeys(clean(finding.accepted or "") for finding in accepted))
    return "; ".join(reason for reason in given if reason) or "no reason given"


def _message(finding: Finding) -> str:
    where = f"[{clean_name(finding.configuration)}] " if finding.configuration is not None else ""
    return f"{where}{clean(finding.message)}"


def _listing(findings: Sequence[Finding]) -> str:
    """One paragraph for each finding: what, where, and what to do."""
    return "\n\n".join("\n".join(_paragraph(finding)) for finding in findings)


def _paragraph(finding: Finding) -> list[str]:
    accepted = "accepted " if finding.accepted is not None else ""
    lines = [f"{accepted}{finding.severity}: {_message(finding)}"]
    path = project_path(finding.location.file) if finding.location is not None else None
    if finding.location is not None and path is not None:
        code = f": {clean(finding.location.code, 200)}" if finding.location.code else ""
        lines.append(f"at {clean(path, 200)}:{finding.location.line}{code}")
    if finding.module:
        lines.append(f"in module {clean_name(finding.module)}")
    if finding.suggestion:
        lines.append(f"what to do: {clean(finding.suggestion)}")
    return lines


def _why_not_judged(diagnosis: Diagnosis, code: str) -> str | None:
    """Why a rule without findings does not pass; None where it does."""
    if diagnosis.interrupted is not None:
        return "not judged: the diagnosis did not run to its end"
    if not any(trial.status == "ok" for trial in diagnosis.trials):
        return "not judged: no configuration ran"
    if is_recording(diagnosis) and code.startswith(_ASKS_FOR_A_MODEL):
        return "not judged: a recorded trace does not say"
    if diagnosis.subject.target is not None and code.startswith("LD4"):
        return "not judged: nothing was measured"
    if code.startswith("LD1"):
        ran = [trial for trial in diagnosis.trials if trial.status == "ok" and not trial.is_static]
        blockers = [examination_of(diagnosis, trial.name).blockers for trial in ran]
        if ran and all(blockers):
            return f"not judged: {clean(blockers[0][0])}"
    return None
