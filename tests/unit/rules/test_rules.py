"""The rules as a set, and how run_rules puts findings together."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from builders import a_diagnosis, a_finding, a_recommendation, a_trial

import layoutdoctor.rules
from layoutdoctor.diagnosis.answer import Finding
from layoutdoctor.rules import ALL_RULES, Rule, run_rules

LONGEST_MESSAGE = 220
"""Characters, with short names: under three lines of a text report."""

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.diagnosis.diagnosis import Diagnosis


def test_the_rules_are_a_set_in_the_order_of_their_codes() -> None:
    codes = [rule.code for rule in ALL_RULES]
    assert codes == sorted(set(codes))
    assert len({rule.name for rule in ALL_RULES}) == len(ALL_RULES)
    # A rule without a page, such as a user's own, is documented by its name.
    rule = Rule("LD901", "some-pattern", _finds())
    assert (rule.summary, rule.documentation) == ("some-pattern", "some-pattern")
    assert run_rules(a_diagnosis()) == ()


def test_findings_of_the_default_and_the_recommended_come_first_then_by_severity_cost_code_and_configuration() -> None:
    wanted = [
        a_finding("LD205", severity="error"),
        a_finding("LD103", severity="warning", seconds=2e-3),
        a_finding("LD101", severity="warning", seconds=1e-3),
        a_finding("LD102", severity="warning", seconds=1e-3, configuration="inductor"),
        a_finding("LD401", severity="note"),
        a_finding("LD501", severity="note", configuration="inductor-channels-last"),
        a_finding("LD104", severity="error", configuration="eager"),
        a_finding("LD102", severity="warning", seconds=1e-3, configuration="eager"),
        a_finding("LD102", severity="warning", seconds=1e-3, configuration="eager-channels-last"),
    ]
    rules = [Rule("LD901", "some-pattern", _finds(finding)) for finding in reversed(wanted)]
    trials = (a_trial("eager"), a_trial(), a_trial("inductor-channels-last"))
    diagnosis = a_diagnosis(*trials, recommendation=a_recommendation("inductor-channels-last"))
    assert run_rules(diagnosis, rules) == tuple(wanted)


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.code)
def test_a_record_in_which_nothing_was_recorded_gives_no_finding(rule: Rule) -> None:
    bare = a_diagnosis()
    trial = type(bare.trials[0])(configuration=bare.trials[0].configuration, status="ok")

    assert list(rule.check(a_diagnosis(trial))) == []


def test_no_message_of_a_reviewed_finding_is_longer_than_a_reader_takes_in_at_once() -> None:
    reviewed = sorted((Path(__file__).parents[2] / "golden" / "findings").glob("*.txt"))
    lines = [line.strip() for path in reviewed for line in path.read_text(encoding="utf-8").splitlines()]
    messages = [
        line for before, line in itertools.pairwise(lines) if re.match(r"LD\d{3} (error|warning|note) ", before)
    ]

    assert len(messages) > 100
    assert [message for message in messages if len(message) > LONGEST_MESSAGE] == []


def test_a_rule_that_raises_is_a_note_and_loses_no_finding_of_the_others() -> None:
    def fail(diagnosis: Diagnosis) -> Iterator[Finding]:
        yield a_finding("LD901", severity="error")
        raise KeyError("buf3")

    sound = a_finding("LD101", severity="warning")
    failed = Finding(
        code="LD901",
        rule="some-pattern",
        severity="note",
        configuration=None,
        message="rule failed: KeyError: 'buf3'",
        suggestion="please report this with the saved diagnosis; the other findings are not affected",
    )
    rules = [Rule("LD901", "some-pattern", fail), Rule("LD101", "other", _finds(sound))]
    assert run_rules(a_diagnosis(), rules) == (sound, failed)


def test_advice_that_raises_costs_no_finding_of_the_other_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    def advised(diagnosis: Diagnosis, finding: Finding) -> Finding:
        if finding.code == "LD901":
            raise KeyError("buf3")
        return finding

    monkeypatch.setattr(layoutdoctor.rules, "with_measured_cure", advised)
    sound = a_finding("LD101", severity="warning")
    rules = [Rule("LD901", "some", _finds(a_finding("LD901", severity="error"))), Rule("LD101", "other", _finds(sound))]
    first, second = run_rules(a_diagnosis(), rules)
    assert (first, second.message) == (sound, "rule failed: KeyError: 'buf3'")


def _finds(*findings: Finding) -> Callable[[Diagnosis], Iterator[Finding]]:
    return lambda diagnosis: iter(findings)
