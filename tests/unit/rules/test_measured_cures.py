"""What a finding says of a cure that was tried."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from builders import (
    a_comparison,
    a_configuration,
    a_diagnosis,
    a_failed_trial,
    a_measurement,
    a_recommendation,
    a_trial,
)

from layoutdoctor.diagnosis.records import Cure, Equivalence, Finding, Trial
from layoutdoctor.rules import Rule, run_rules

BASE = [10e-3 + index * 1e-6 for index in range(40)]
NAME = "inductor+flat-conv3d"
SAID = "compiled + flat-conv3d"
CURE = Cure(name="flat-conv3d", answers="LD503")

UNSURE = "measured 1.10x, 0.90x to 1.30x"


def a_rule(code: str = "LD503", configuration: str = "inductor") -> Rule:
    finding = Finding(
        code=code, rule="r", severity="note", configuration=configuration, message="m", suggestion="try something"
    )
    return Rule(code, "r", lambda diagnosis: iter((finding,)))


def cured(factor: float | None, **changes: Any) -> Trial:
    """A trial with the cure, so many times as fast as without; None where it was not timed."""
    measurement = None if factor is None else a_measurement(*(seconds / factor for seconds in BASE))
    configuration = a_configuration(NAME, cures=(CURE,))
    return a_trial(NAME, **{"configuration": configuration, "measurement": measurement, **changes})


def suggestion(*trials: Trial, code: str = "LD503") -> str | None:
    base = a_trial("inductor", measurement=a_measurement(*BASE))
    diagnosis = a_diagnosis(base, *trials, comparison=a_comparison())
    (finding,) = run_rules(diagnosis, (a_rule(code),))
    return finding.suggestion


def test_a_gain_that_was_measured_is_told_with_its_interval() -> None:
    assert suggestion(cured(1.25)) == f"{SAID}: measured 1.25x, 1.25x to 1.25x, against the default"


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (cured(1.0), "no faster, measured 1.00x, 1.00x to 1.00x"),
        (cured(0.8), "no faster, measured 0.80x, 0.80x to 0.80x"),
        (cured(None, measurement=a_measurement(*(s / f for s in BASE[:20] for f in (0.9, 1.3)))), UNSURE),
        (cured(1.25, equivalence=Equivalence(status="different")), "its outputs differ"),
        (cured(None, status="same_as", same_as="inductor"), "the compiled code is the same as of the default"),
        (cured(None, status="failed", failure=a_failed_trial().failure), "it failed (RuntimeError: boom)"),
        (cured(None), "it was not timed"),
    ],
)
def test_what_did_not_help_is_not_advised(trial: Trial, words: str) -> None:
    assert suggestion(trial) == f"{SAID} was tried: {words}"


def test_the_advice_stays_where_nothing_of_it_was_tried() -> None:
    assert suggestion() == "try something"
    assert suggestion(cured(1.25), code="LD501") == "try something"
    together = a_configuration("inductor+flat-conv3d+b", cures=(CURE, Cure(name="b", answers="LD501")))
    assert suggestion(cured(1.25, configuration=together)) == "try something"


def test_an_attempt_that_is_not_recommended_has_its_row_and_no_findings() -> None:
    base = a_trial("inductor", measurement=a_measurement(*BASE))
    attempt = a_diagnosis(base, cured(1.25), comparison=a_comparison())
    advised = msgspec.structs.replace(attempt, recommendation=a_recommendation(NAME))

    assert run_rules(attempt, (a_rule("LD209", NAME),)) == ()
    assert len(run_rules(attempt, (a_rule("LD402", NAME),))) == 1
    assert len(run_rules(advised, (a_rule("LD209", NAME),))) == 1
