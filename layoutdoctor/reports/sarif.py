"""
Makes the SARIF report: findings at their source lines, for code scanning.

The format is SARIF 2.1.0 as GitHub accepts it. GitHub refuses a file if one of its results has no place. So a finding
without a line is placed at the subject's file, and a finding without any file becomes a notification of the run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from layoutdoctor.diagnosis import Diagnosis, Finding
from layoutdoctor.diagnosis.accepted import finding_fingerprint
from layoutdoctor.reports.rules_page import passages_of, plain, rule_page
from layoutdoctor.reports.sections.wording import clean, clean_name, failure_clause, project_path
from layoutdoctor.rules import ALL_RULES
from layoutdoctor.words import STATUS_WORDS, phrase

if TYPE_CHECKING:
    from layoutdoctor.rules import Rule

JsonObject = dict[str, object]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT = "layoutdoctorFinding/v1"
_PYTHON_FILE = re.compile(r"^(?P<file>[^:]+\.py)(?::.*)?$")
_DESCRIPTION_LENGTH = 1_000  # GitHub takes 1,024 characters


def render_sarif(diagnosis: Diagnosis) -> str:
    """Returns the findings as SARIF 2.1.0; accepted findings are marked as suppressed."""
    own_file = subject_file(diagnosis)
    rules = [rule for rule in ALL_RULES if any(finding.code == rule.code for finding in diagnosis.findings)]
    index = {rule.code: position for position, rule in enumerate(rules)}
    places = [(finding, _location(finding, own_file)) for finding in diagnosis.findings]
    results = [_result(finding, place, index.get(finding.code)) for finding, place in places if place is not None]
    unplaced = [finding for finding, place in places if place is None]
    version = clean_name(diagnosis.layoutdoctor_version)
    run: JsonObject = {
        "tool": {"driver": {"name": "layoutdoctor", "version": version, "rules": list(map(_rule, rules))}},
        # The subject's name is a part of the id, so that GitHub keeps the analyses of several models apart.
        "automationDetails": {"id": f"layoutdoctor/{quote(clean_name(diagnosis.subject.name), safe='') or 'subject'}/"},
        "invocations": [_invocation(diagnosis, unplaced)],
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "The root of the source tree."}}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    encoded = msgspec.json.encode({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})
    return msgspec.json.format(encoded, indent=1).decode() + "\n"


def _rule(rule: Rule) -> JsonObject:
    finds = dict(passages_of(rule)).get("What it finds") or [rule.summary]
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": clean(finds[0], _DESCRIPTION_LENGTH).replace("`", "")},
        "help": {"text": plain(rule.documentation), "markdown": rule_page(rule)},
        # The severity is judged for each finding, so every result carries its own level.
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["performance", "memory-layout"], "precision": "high"},
    }


def _result(finding: Finding, location: JsonObject, rule_index: int | None) -> JsonObject:
    result: JsonObject = {
        "ruleId": clean_name(finding.code),
        "level": finding.severity,
        "message": {"text": _message(finding)},
        "locations": [location],
        "partialFingerprints": {FINGERPRINT: finding_fingerprint(finding)},
        "properties": {
            "configuration": clean_name(finding.configuration) if finding.configuration else None,
            "module": clean_name(finding.module) if finding.module else None,
            "seconds": finding.seconds,
            "bytes_moved": finding.bytes_moved,
        },
    }
    if rule_index is not None:
        result["ruleIndex"] = rule_index
    if finding.accepted is not None:
        justification = clean(finding.accepted) or "accepted, no reason given"
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": justification}]
    return result


def _message(finding: Finding) -> str:
    about = phrase(" (configuration {})", finding.configuration, _plain)
    advice = phrase("\nWhat to do: {}", finding.suggestion, _plain)
    return f"{_plain(finding.message)}{about}{advice}"


def _plain(text: str) -> str:
    """Changes text so that SARIF finds no link and no placeholder in it."""
    return re.sub(r"\{(?=\d+\})", "{ ", clean(text).replace("](", "] ("))


def _location(finding: Finding, own_file: str | None) -> JsonObject | None:
    path = project_path(finding.location.file) if finding.location is not None else None
    if finding.location is None or path is None:
        path, region = own_file, JsonObject(startLine=1)
    else:
        region = JsonObject(startLine=max(finding.location.line, 1))
        if finding.location.code:
            region["snippet"] = {"text": clean(finding.location.code, 300)}
    if path is None:
        return None
    artifact = {"uri": quote(path, safe="/", errors="surrogatepass"), "uriBaseId": "%SRCROOT%"}
    return {"physicalLocation": {"artifactLocation": artifact, "region": region}}


def _invocation(diagnosis: Diagnosis, unplaced: Sequence[Finding]) -> JsonObject:
    notifications: list[JsonObject] = []

    def notify(level: str, text: str, **more: object) -> None:
        notifications.append({"level": level, "message": {"text": text}, **more})

    for finding in unplaced:
        code = clean_name(finding.code)
        notify(finding.severity, f"{code}: {_message(finding)}", associatedRule={"id": code})
    for trial in diagnosis.trials:
        if trial.status in STATUS_WORDS:
            text = f"configuration {_plain(trial.name)} {_plain(failure_clause(trial))}"
            notify("note" if trial.status == "skipped" else "error", text)
    if diagnosis.interrupted is not None:
        notify("error", f"not finished: {_plain(diagnosis.interrupted)}")
    is_done = diagnosis.interrupted is None and any(trial.status == "ok" for trial in diagnosis.trials)
    return {"executionSuccessful": is_done, "toolExecutionNotifications": notifications}


def subject_file(diagnosis: Diagnosis) -> str | None:
    """
    Returns the file for findings without a line: the subject's own file, else the first file that a finding names.

    Returns:
        A path within the project, not of an installed package. If there is none: for a recorded trace, the path of the
        trace itself; for a model, None.
    """
    named = _PYTHON_FILE.match(diagnosis.subject.name)
    places = (finding.location for finding in diagnosis.findings if finding.location is not None)
    files = [path for path in (project_path(place.file) for place in places) if path is not None]
    if named is not None:
        return next((file for file in files if PurePosixPath(file).name == named["file"]), project_path(named["file"]))
    own = [file for file in files if not file.startswith(("site-packages/", "dist-packages/"))]
    if own or not diagnosis.is_recording:
        return next(iter(own), None)
    return project_path(diagnosis.subject.name)
