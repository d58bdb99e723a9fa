"""The rules as a set: their codes and documentation, and how run_rules puts findings together."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from builders import a_diagnosis, a_recommendation, a_trial
from loops import for_each

from layoutdoctor.diagnosis.records import Diagnosis, Finding
from layoutdoctor.rules import ALL_RULES, Rule, run_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.diagnosis.records import Severity


def test_which_facts_it_gives() -> None:
    # Rules stand in the order of their codes and no code or name stands twice.
    codes = [rule.code for rule in ALL_RULES]
    assert codes == sorted(set(codes))
    assert len({rule.name for rule in ALL_RULES}) == len(ALL_RULES)

    # Without a docstring the name documents the rule.
    rule = Rule("LD901", "some-pattern", _finds())
    assert (rule.summary, rule.documentation) == ("some-pattern", "some-pattern")

    # A quiet diagnosis has no finding.
    assert run_rules(a_diagnosis()) == ()

    # Those of the default and the recommended configuration stand first, then by severity, cost, code, configuration.
    wanted = [
        a_finding("LD205", "error"),
        a_finding("LD103", "warning", seconds=2e-3),
        a_finding("LD101", "warning", seconds=1e-3),
        a_finding("LD102", "warning", seconds=1e-3, configuration="inductor"),
        a_finding("LD401", "note"),
        a_finding("LD501", "note", configuration="inductor-channels-last"),
        a_finding("LD104", "error", configuration="eager"),
        a_finding("LD102", "warning", seconds=1e-3, configuration="eager"),
        a_finding("LD102", "warning", seconds=1e-3, configuration="eager-channels-last"),
    ]
    rules = [Rule("LD901", "some-pattern", _finds(finding)) for finding in reversed(wanted)]
    trials = (a_trial("eager"), a_trial(), a_trial("inductor-channels-last"))
    diagnosis = a_diagnosis(*trials, recommendation=a_recommendation("inductor-channels-last"))
    assert run_rules(diagnosis, rules) == tuple(wanted)

    # Rules run without torch.
    code = "import sys, layoutdoctor.rules; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@for_each("rule", ALL_RULES)
def test_a_record_in_which_nothing_was_recorded_gives_no_finding(rule: Rule) -> None:
    bare = a_diagnosis()
    trial = type(bare.trials[0])(configuration=bare.trials[0].configuration, status="ok")

    assert list(rule.check(a_diagnosis(trial))) == []


def test_a_rule_that_raises_is_a_note_and_loses_no_finding_of_the_others() -> None:
    def fail(diagnosis: Diagnosis) -> Iterator[Finding]:
        yield a_finding("LD901", "error")
        raise KeyError("buf3")

    sound = a_finding("LD101", "warning")
    rules = [Rule("LD901", "some-pattern", fail), Rule("LD101", "other", _finds(sound))]

    assert run_rules(a_diagnosis(), rules) == (
        sound,
        Finding(
            code="LD901",
            rule="some-pattern",
            severity="note",
            configuration=None,
            message="rule failed: KeyError: 'buf3'",
            suggestion="please report this with the saved diagnosis; the other findings are not affected",
        ),
    )


def a_finding(
    code: str, severity: Severity, seconds: float | None = None, configuration: str | None = "inductor"
) -> Finding:
    return Finding(
        code=code, rule="some-pattern", severity=severity, configuration=configuration, message="", seconds=seconds
    )


def _finds(*findings: Finding) -> Callable[[Diagnosis], Iterator[Finding]]:
    return lambda diagnosis: iter(findings)
