"""The SARIF report: a file that GitHub takes, without private paths."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import builders
import msgspec
import pytest
from builders import a_diagnosis, a_failed_trial, a_location, a_subject, a_trial
from golden.stories import STORIES

from layoutdoctor.diagnosis.trial import Failure
from layoutdoctor.reports.sarif import render_sarif, subject_file
from layoutdoctor.reports.sections.wording import project_path

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

LEVELS = {"error", "warning", "note", "none"}


PLACE = a_location(9, "net/model.py", "x = f(x)")
a_finding = partial(builders.a_finding, location=PLACE, seconds=2e-3, bytes_moved=1024)


def run_of(diagnosis: Diagnosis) -> dict[str, Any]:
    log = json.loads(render_sarif(diagnosis))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert isinstance(run, dict)
    return run


def result_of(finding: Finding) -> dict[str, Any]:
    (result,) = run_of(a_diagnosis(a_trial(), findings=(finding,)))["results"]
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("story", STORIES)
def test_every_report_has_what_code_scanning_asks_for(story: str) -> None:
    diagnosis = STORIES[story]()
    run = run_of(diagnosis)

    driver = run["tool"]["driver"]
    assert driver["name"] == "layoutdoctor"
    for rule in driver["rules"]:
        assert 0 < len(rule["shortDescription"]["text"]) <= 1024
        assert 0 < len(rule["fullDescription"]["text"]) <= 1024
        assert rule["help"]["text"]
        assert rule["help"]["markdown"].startswith(f"# {rule['id']} {rule['name']}\n")
        assert rule["defaultConfiguration"]["level"] in LEVELS
    notifications = run["invocations"][0]["toolExecutionNotifications"]
    named = [note["associatedRule"]["id"] for note in notifications if "associatedRule" in note]
    assert len(run["results"]) + len(named) == len(diagnosis.findings)
    for result in run["results"]:
        assert result["level"] in LEVELS
        assert result["message"]["text"]
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        assert physical["artifactLocation"]["uriBaseId"] == "%SRCROOT%"
        assert not physical["artifactLocation"]["uri"].startswith(("/", "file:"))
        assert physical["region"]["startLine"] >= 1


def test_an_accepted_finding_is_suppressed_with_its_reason() -> None:
    (with_reason,) = result_of(a_finding(accepted="waits for torch 2.14"))["suppressions"]
    (without_reason,) = result_of(a_finding(accepted=""))["suppressions"]

    assert with_reason == {"kind": "external", "status": "accepted", "justification": "waits for torch 2.14"}
    assert without_reason["justification"] == "accepted, no reason given"
    assert "suppressions" not in result_of(a_finding())


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("net/model.py", "net/model.py"),
        ("net\\model.py", "net/model.py"),
        ("/home/ada/net/model.py", "model.py"),
        ("<path>/model.py", "model.py"),
        ("~/net/model.py", "model.py"),
        ("../../net/model.py", "model.py"),
        ("/x/.venv/lib/python3.11/site-packages/timm/layers/a b.py", "site-packages/timm/layers/a%20b.py"),
        ("net/mödel#1%.py", "net/m%C3%B6del%231%25.py"),
        ("a:b.py", "b.py"),
        ("net/\udc80.py", "net/%ED%B2%80.py"),
        (f"{Path.cwd()}/net/model.py", "net/model.py"),
    ],
)
def test_a_path_is_a_relative_uri_without_folders_of_this_machine(file: str, uri: str) -> None:
    result = result_of(a_finding(location=a_location(3, file)))

    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == uri


@pytest.mark.parametrize("file", ["", "<string>", "<eval_with_key>.7", "net/", "..", "/", ".", "net/.."])
def test_what_is_no_file_is_no_path(file: str) -> None:
    assert project_path(file) is None


def test_a_finding_without_a_line_is_placed_on_the_subjects_own_file_or_on_that_of_another_finding() -> None:
    places = [a_location(3, file) for file in ("/v/site-packages/timm/n.py", "a/net.py", "main.py")]
    findings = tuple(a_finding(location=place) for place in places)

    for name, file in (("Net", "a/net.py"), ("main.py", "main.py"), ("net.py", "a/net.py"), ("other.py:N", "other.py")):
        assert subject_file(a_diagnosis(a_trial(), subject=a_subject(name=name), findings=findings)) == file
    assert subject_file(a_diagnosis(a_trial(), subject=a_subject(name="timm:resnet18"))) is None
    assert subject_file(a_diagnosis(a_trial(), subject=a_subject(name="t.json.gz", mode="trace"))) == "t.json.gz"


def test_without_any_file_a_finding_is_a_notification_as_one_without_a_place_costs_the_whole_upload() -> None:
    finding = a_finding(location=None)

    run = run_of(a_diagnosis(a_trial(), subject=a_subject(name="timm:resnet18"), findings=(finding,)))

    assert run["results"] == []
    (notification,) = run["invocations"][0]["toolExecutionNotifications"]
    assert notification["associatedRule"] == {"id": "LD101"}
    assert notification["level"] == "warning"
    assert notification["message"]["text"].startswith("LD101: 3 round trips")


def test_each_configuration_without_a_result_is_a_notification_with_its_reason() -> None:
    crashed = Failure(kind="run", message="the process died of signal 11")
    trials = (
        msgspec.structs.replace(a_failed_trial("a"), status="crashed", failure=crashed),
        msgspec.structs.replace(a_failed_trial("b"), status="timed_out", failure=None),
        msgspec.structs.replace(a_failed_trial("c", "interrupted before its turn"), status="skipped"),
    )
    (invocation,) = run_of(a_diagnosis(a_trial(), *trials))["invocations"]

    assert [(one["level"], one["message"]["text"]) for one in invocation["toolExecutionNotifications"]] == [
        ("error", "configuration a crashed (run): the process died of signal 11"),
        ("error", "configuration b timed out: the reason was not recorded"),
        ("note", "configuration c skipped: interrupted before its turn"),
    ]
    assert invocation["executionSuccessful"] is True


def test_hostile_text_makes_no_link_no_placeholder_and_no_broken_json() -> None:
    finding = a_finding(message="[click](http://e.vil) {0} \x1b[31m\ud800", module="m\ud800", seconds=float("inf"))

    result = result_of(finding)

    assert result["message"]["text"].startswith("[click] (http://e.vil) { 0} \\x1b[31m\\ud800")
    assert result["properties"]["seconds"] is None


def test_analyses_of_several_models_stand_side_by_side() -> None:
    first, second = (run_of(a_diagnosis(a_trial(), subject=a_subject(name=name))) for name in ("a.py", "b/c.py"))

    assert first["automationDetails"]["id"] == "layoutdoctor/a.py/"
    assert second["automationDetails"]["id"] == "layoutdoctor/b%2Fc.py/"
