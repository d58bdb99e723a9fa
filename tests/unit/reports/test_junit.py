"""The JUnit report: what passes, what fails, what is skipped, and that it is XML whatever the names are."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import builders
import pytest
from builders import a_diagnosis, a_failed_trial, a_graph, a_location, a_node, a_subject, a_trial
from golden.stories import STORIES
from loops import for_each

from layoutdoctor.reports.junit import render_junit
from layoutdoctor.rules import ALL_RULES

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.trial import Trial

OUTCOMES = ("failure", "error", "skipped")
PLACE = a_location(9, "net/model.py", "x = f(x)")
a_finding = partial(builders.a_finding, suggestion="give it channels_last", location=PLACE, seconds=2e-3)


def an_examined_trial(name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, graphs=(a_graph(nodes=(a_node("relu"),)),), **changes)


def suite_of(diagnosis: Diagnosis) -> ET.Element:
    (suite,) = ET.fromstring(render_junit(diagnosis))
    return suite


def case_of(diagnosis: Diagnosis, name: str = "LD101") -> ET.Element:
    (case,) = [one for one in suite_of(diagnosis).iter("testcase") if one.attrib["name"].split()[0] == name]
    return case


@for_each("story", STORIES)
def test_every_report_has_the_form_that_jenkins_reads(story: str) -> None:
    suite = suite_of(STORIES[story]())

    cases = list(suite.iter("testcase"))
    assert [child.tag for child in suite] == ["properties", *["testcase"] * len(cases)]
    assert int(suite.attrib["tests"]) == len(cases)
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.attrib[attribute]) == sum(case.find(tag) is not None for case in cases)
    assert re.fullmatch(r"\d+\.\d{3}", suite.attrib["time"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.attrib["timestamp"])
    for case in cases:
        assert case.attrib["classname"].startswith("layoutdoctor.")
        assert float(case.attrib["time"]) >= 0
        assert sum(case.find(tag) is not None for tag in OUTCOMES) <= 1
    names = [case.attrib["name"] for case in cases]
    assert len(set(names)) == len(names)
    assert {rule.code for rule in ALL_RULES} <= {name.split()[0] for name in names}


@for_each(
    ("finding", "outcome"),
    [
        (a_finding(severity="error"), "failure"),
        (a_finding(severity="note"), None),
        (a_finding(accepted="known"), "skipped"),
        (a_finding(severity="note", message="rule failed: KeyError: 'x'"), "error"),
        (a_finding(code="XY001"), "failure"),
    ],
)
def test_a_finding_decides_the_outcome_of_its_rule(finding: Finding, outcome: str | None) -> None:
    case = case_of(a_diagnosis(an_examined_trial(), findings=(finding,)), finding.code)

    assert next((tag for tag in OUTCOMES if case.find(tag) is not None), None) == outcome


def test_a_rule_fails_if_one_of_its_findings_is_not_accepted() -> None:
    accepted, new, note = a_finding(accepted="known"), a_finding(severity="error"), a_finding(severity="note")

    case = case_of(a_diagnosis(an_examined_trial(), findings=(accepted, new, note, a_finding())))

    failure = case.find("failure")
    assert failure is not None
    assert failure.attrib == {"message": "[inductor] 3 round trips (and 1 more finding)", "type": "error"}
    assert failure.text == "\n\n".join(
        f"{severity}: [inductor] 3 round trips\nat net/model.py:9  body.1\nwhat to do: give it channels_last"
        for severity in ("error", "warning")
    )
    output = case.findtext("system-out") or ""
    assert output.startswith("note: [inductor] 3 round trips")
    assert "accepted warning: [inductor] 3 round trips" in output
    assert float(case.attrib["time"]) == pytest.approx(8e-3)


@for_each(
    ("diagnosis", "name", "reason"),
    [
        (a_diagnosis(an_examined_trial(kernels=None)), "LD101", "its kernel list was not recorded"),
        (a_diagnosis(an_examined_trial(), interrupted="x"), "LD101", "the diagnosis did not run to its end"),
    ],
)
def test_no_finding_is_no_pass_if_nothing_could_be_found(diagnosis: Diagnosis, name: str, reason: str) -> None:
    skipped = case_of(diagnosis, name).find("skipped")

    assert skipped is not None
    assert skipped.attrib["message"] == f"not judged: {reason}"


HOSTILE = '\x00\x0b\x1b[31m\ud800\udfff\ufffe"<&>]]>\n\u202e'


def test_it_is_xml_whatever_the_names_are() -> None:
    names = dict.fromkeys(("code", "rule", "configuration", "message", "suggestion", "module"), HOSTILE)
    finding = a_finding(**names, accepted=None, location=a_location(3, HOSTILE, HOSTILE))
    diagnosis = a_diagnosis(
        a_failed_trial("inductor", HOSTILE),
        subject=a_subject(name=HOSTILE),
        findings=(finding, a_finding(accepted=HOSTILE)),
    )

    render_junit(diagnosis).encode("utf-8")
    suite = suite_of(diagnosis)
    assert "\\x1b[31m\\ud800" in suite.attrib["name"]
