"""
The JUnit report: one test case for each configuration and each rule, for a CI server.

- A configuration passes if it ran; one that failed, timed out or crashed is an error. Its time is that of one call, so
  that a server's graphs show how the model's speed moves.
- A rule fails if it has an error or a warning that is not accepted; its notes are text of the case, and no failure. Its
  time is the cost of its findings in one step.
- A rule is skipped if all its findings are accepted, and if nothing was recorded that it could look at: no finding is
  no pass there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from layoutdoctor.examination.gaps import examination_of
from layoutdoctor.reports.sections.wording import clean, clean_log, clean_name, is_recording, place_of
from layoutdoctor.rules import ALL_RULES
from layoutdoctor.words import count_of, distinct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.trial import Trial

_RULE_FAILED = "rule failed: "  # how `run_rules` says that a rule raised
_NOT_IN_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(diagnosis: Diagnosis) -> str:
    """The findings as JUnit XML, in the form that Jenkins reads."""
    subject = clean_name(diagnosis.subject.name)
    cases = [_configuration_case(trial) for trial in diagnosis.trials]
    known = {rule.code: rule.name for rule in ALL_RULES}
    own = {finding.code: finding.rule for finding in diagnosis.findings if finding.code not in known}
    cases += [_rule_case(diagnosis, code, name) for code, name in {**known, **own}.items()]
    if diagnosis.interrupted is not None:
        cases.append(_case("configurations", "ran to its end", None))
        _add(cases[-1], "error", clean(f"not finished: {diagnosis.interrupted}"), "interrupted")
    for case in cases:
        case.attrib["classname"] = f"layoutdoctor.{subject.replace('.', '_')}.{case.attrib['classname']}"
    suite = ET.Element(
        "testsuite",
        name=f"layoutdoctor {subject}",
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors=str(sum(case.find("error") is not None for case in cases)),
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
        time=f"{sum(float(case.attrib['time']) for case in cases):.3f}",  # the form takes no more digits here
        timestamp=diagnosis.created_at[:19],  # UTC without an offset, as the form wants it
    )
    _add_properties(suite, diagnosis)
    suite.extend(cases)
    suites = ET.Element("testsuites")
    suites.append(suite)
    for element in suites.iter():
        element.text = _printable(element.text) if element.text else None
        element.attrib = {name: _printable(value) for name, value in element.attrib.items()}
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _printable(text: str) -> str:
    """Text that XML 1.0 can hold: control characters and lone surrogates are shown as their escapes."""
    return _NOT_IN_XML.sub(lambda match: ascii(match[0])[1:-1], text)


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
            ET.SubElement(properties, "property", name=name, value=clean_name(value))


def _case(group: str, name: str, seconds: float | None) -> ET.Element:
    return ET.Element("testcase", classname=group, name=name, time=f"{seconds or 0.0:.9f}")


def _add(case: ET.Element, tag: str, message: str, kind: str, text: str = "") -> None:
    part = ET.SubElement(case, tag, message=message, type=kind)
    part.text = text


def _configuration_case(trial: Trial) -> ET.Element:
    seconds = trial.measurement.median_seconds if trial.measurement is not None else None
    case, failure = _case("configurations", clean_name(trial.name), seconds), trial.failure
    message = clean(failure.message) if failure is not None else trial.status.replace("_", " ")
    if trial.status == "skipped":
        ET.SubElement(case, "skipped", message=message)
    elif trial.status not in ("ok", "same_as") or failure is not None:
        log = clean_log(failure.log) if failure is not None and failure.log else ""
        _add(case, "error", message, failure.kind if failure is not None else trial.status, log)
    elif trial.same_as is not None:
        ET.SubElement(case, "system-out").text = f"the same as {clean_name(trial.same_as)}, measured there"
    return case


def _rule_case(diagnosis: Diagnosis, code: str, name: str) -> ET.Element:
    findings = [finding for finding in diagnosis.findings if finding.code == code]
    case = _case("rules", f"{clean_name(code)} {clean_name(name)}", sum(one.seconds or 0.0 for one in findings))
    broken = [finding for finding in findings if finding.message.startswith(_RULE_FAILED)]
    accepted = [finding for finding in findings if finding.accepted is not None]
    failing = [one for one in findings if one.severity != "note" and one not in accepted]
    notes = [one for one in findings if one not in (*broken, *accepted, *failing)]
    reason = None if findings else _why_not_judged(diagnosis, code)
    if broken:
        _add(case, "error", clean(broken[0].message), "rule", _listing(broken))
    elif failing:
        severity = "error" if any(one.severity == "error" for one in failing) else "warning"
        more = f" (and {count_of(len(failing) - 1, 'more finding')})" if len(failing) > 1 else ""
        _add(case, "failure", _message(failing[0]) + more, severity, _listing(failing))
    elif accepted and not notes:
        reasons = "; ".join(filter(None, distinct(clean(one.accepted or "") for one in accepted)))
        ET.SubElement(case, "skipped", message=f"accepted: {reasons or 'no reason given'}")
    elif reason is not None:
        ET.SubElement(case, "skipped", message=f"not judged: {reason}")
    if notes or accepted:
        ET.SubElement(case, "system-out").text = _listing([*notes, *accepted])
    return case


def _message(finding: Finding) -> str:
    where = f"[{clean_name(finding.configuration)}] " if finding.configuration is not None else ""
    return f"{where}{clean(finding.message)}"


def _listing(findings: Sequence[Finding]) -> str:
    """One paragraph for each finding: message, place and suggestion."""
    return "\n\n".join(map(_paragraph, findings))


def _paragraph(finding: Finding) -> str:
    accepted = "accepted " if finding.accepted is not None else ""
    place = place_of(finding.location, finding.module)
    at = f"\nat {place}" if place else ""
    advice = f"\nwhat to do: {clean(finding.suggestion)}" if finding.suggestion else ""
    return f"{accepted}{finding.severity}: {_message(finding)}{at}{advice}"


def _why_not_judged(diagnosis: Diagnosis, code: str) -> str | None:
    """Why a rule without findings does not pass; None if it does."""
    if diagnosis.interrupted is not None:
        return "the diagnosis did not run to its end"
    ran = [trial for trial in diagnosis.trials if trial.status == "ok"]
    if not ran:
        return "no configuration ran"
    if is_recording(diagnosis) and not code.startswith("LD1"):
        return "a recorded trace does not say"
    if diagnosis.subject.target is not None and code.startswith("LD4"):
        return "nothing was measured"
    blockers = [() if trial.is_static else examination_of(diagnosis, trial.name).blockers for trial in ran]
    return clean(blockers[0][0]) if code.startswith("LD1") and all(blockers) else None
