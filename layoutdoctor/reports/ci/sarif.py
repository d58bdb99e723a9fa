"""
The SARIF report: findings at their source lines, for code scanning.

SARIF 2.1.0 as GitHub takes it. GitHub refuses a whole file in which one result has no place, so a finding without a
line stands on the subject's file, and one without any file becomes a notification of the run.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING
from urllib.parse import quote

from layoutdoctor.diagnosis.accepted import fingerprint_of
from layoutdoctor.reports.rules_page import passages_of, plain, rule_page
from layoutdoctor.reports.sections.wording import (
    clean,
    clean_name,
    failure_clause,
    finite,
    is_recording,
    project_path,
)
from layoutdoctor.rules import ALL_RULES
from layoutdoctor.words import STATUS_WORDS, count_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, SourceLocation
    from layoutdoctor.rules import Rule

JsonObject = dict[str, object]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
MOST_RESULTS = 5_000
"""GitHub shows no more of one run; findings are sorted, so that the least ones are left out."""

FINGERPRINT = "layoutdoctorFinding/v1"
_PYTHON_FILE = re.compile(r"^(?P<file>[^:]+\.py)(?::.*)?$")
_DESCRIPTION_LENGTH = 1_000  # GitHub takes 1,024 characters


def render_sarif(diagnosis: Diagnosis) -> str:
    """The findings as SARIF 2.1.0; accepted ones are there, as suppressed ones."""
    own_file = subject_file(diagnosis)
    index = {rule.code: position for position, rule in enumerate(_rules_of(diagnosis))}
    placed: list[JsonObject] = []
    homeless: list[Finding] = []
    for finding in diagnosis.findings:
        location = _location(finding, own_file)
        if location is None:
            homeless.append(finding)
        else:
            placed.append(_result(finding, location, index.get(finding.code)))
    run: JsonObject = {
        "tool": {"driver": _driver(diagnosis)},
        # The subject's name as a part of a path: analyses of several models stand side by side.
        "automationDetails": {"id": f"layoutdoctor/{quote(clean_name(diagnosis.subject.name), safe='') or 'subject'}/"},
        "invocations": [_invocation(diagnosis, homeless, len(placed) - MOST_RESULTS)],
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "The root of the source tree."}}},
        "columnKind": "unicodeCodePoints",
        "results": placed[:MOST_RESULTS],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _driver(diagnosis: Diagnosis) -> JsonObject:
    version = clean_name(diagnosis.layoutdoctor_version)
    return {"name": "layoutdoctor", "version": version, "rules": [_rule(rule) for rule in _rules_of(diagnosis)]}


def _rules_of(diagnosis: Diagnosis) -> list[Rule]:
    """The rules that found something; one of the user's own, or one that is gone, is not described."""
    codes = {finding.code for finding in diagnosis.findings}
    return [rule for rule in ALL_RULES if rule.code in codes]


def _rule(rule: Rule) -> JsonObject:
    what_it_finds = dict(passages_of(rule)).get("What it finds") or [rule.summary]
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": clean(what_it_finds[0], _DESCRIPTION_LENGTH).replace("`", "")},
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
        "partialFingerprints": {FINGERPRINT: fingerprint_of(finding)},
        "properties": {
            "configuration": clean_name(finding.configuration) if finding.configuration else None,
            "module": clean_name(finding.module) if finding.module else None,
            "seconds": finite(finding.seconds),
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
    parts = [_plain(finding.message)]
    if finding.configuration is not None:
        parts[0] += f" (configuration {_plain(finding.configuration)})"
    if finding.suggestion:
        parts.append(f"What to do: {_plain(finding.suggestion)}")
    return "\n".join(parts)


def _plain(text: str) -> str:
    """Text in which SARIF finds no link and no placeholder."""
    return re.sub(r"\{(?=\d+\})", "{ ", clean(text).replace("](", "] ("))


def _location(finding: Finding, own_file: str | None) -> JsonObject | None:
    path = project_path(finding.location.file) if finding.location is not None else None
    if finding.location is None or path is None:
        return None if own_file is None else _physical(own_file, 1, None)
    return _physical(path, max(finding.location.line, 1), finding.location.code)


def _physical(path: str, line: int, code: str | None) -> JsonObject:
    region: JsonObject = {"startLine": line}
    if code:
        region["snippet"] = {"text": clean(code, 300)}
    uri = quote(path, safe="/", errors="surrogatepass")
    return {
        "physicalLocation": {"artifactLocation": {"uri": uri, "uriBaseId": "%SRCROOT%"}, "region": region},
    }


def _invocation(diagnosis: Diagnosis, homeless: Sequence[Finding], left_out: int) -> JsonObject:
    notifications: list[JsonObject] = [
        {
            "level": finding.severity,
            "message": {"text": f"{clean_name(finding.code)}: {_message(finding)}"},
            "associatedRule": {"id": clean_name(finding.code)},
        }
        for finding in homeless[:MOST_RESULTS]
    ]
    left_out = max(left_out, 0) + max(len(homeless) - MOST_RESULTS, 0)
    if left_out:
        text = f"{count_of(left_out, 'finding')} left out: a run has at most {MOST_RESULTS} results"
        notifications.append({"level": "warning", "message": {"text": text}})
    for trial in diagnosis.trials:
        if trial.status in STATUS_WORDS:
            text = f"configuration {_plain(trial.name)} {_plain(failure_clause(trial))}"
            level = "note" if trial.status == "skipped" else "error"
            notifications.append({"level": level, "message": {"text": text}})
    if diagnosis.interrupted is not None:
        text = f"not finished: {_plain(diagnosis.interrupted)}"
        notifications.append({"level": "error", "message": {"text": text}})
    is_done = diagnosis.interrupted is None and any(trial.status == "ok" for trial in diagnosis.trials)
    return {"executionSuccessful": is_done, "toolExecutionNotifications": notifications}


def subject_file(diagnosis: Diagnosis) -> str | None:
    """
    The file to show a finding on that names no line: the subject's own, else the one most of its operations come from.

    Returns:
        A project path; None where none is known. For a trace without source lines it is the trace.
    """
    counted = Counter(
        path
        for location in _locations(diagnosis)
        if (path := project_path(location.file)) is not None
        and not path.startswith(("site-packages/", "dist-packages/"))
    )
    named = _PYTHON_FILE.match(diagnosis.subject.name)
    if named is not None:
        own = [path for path, _ in counted.most_common() if path.rsplit("/", 1)[-1] == named["file"]]
        return own[0] if own else project_path(named["file"])
    if counted:
        return max(counted.items(), key=lambda item: (item[1], item[0]))[0]
    return project_path(diagnosis.subject.name) if is_recording(diagnosis) else None


def _locations(diagnosis: Diagnosis) -> Iterator[SourceLocation]:
    graphs = [graph for trial in diagnosis.trials for graph in trial.graphs]
    found = [node.location for graph in graphs for node in graph.nodes]
    found += [conversion.location for graph in graphs for conversion in graph.conversions]
    found += [finding.location for finding in diagnosis.findings]
    yield from (location for location in found if location is not None)
