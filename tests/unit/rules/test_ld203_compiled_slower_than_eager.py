from __future__ import annotations

from typing import Any

from builders import Told, a_comparison, a_diagnosis, a_ratio, a_recommendation, a_speedup, a_trial

from layoutdoctor.diagnosis.records import Equivalence, Finding, Trial
from layoutdoctor.rules.ld203_compiled_slower_than_eager import check

EAGER = a_ratio("eager", 1.25)
EAGER_LAST = a_ratio("eager-channels-last", 1.28)


def findings(*ratios: Any, trials: tuple[Trial, ...] = (), **changes: Any) -> list[Finding]:
    return list(check(a_diagnosis(a_trial(), *trials, comparison=a_comparison(*ratios), **changes)))


def test_what_it_says(told: Told) -> None:
    told("Eager faster than the baseline is a warning with the interval", findings(EAGER))
    told(
        "Only eager in channels last faster is worded as a matter of layout",
        findings(a_ratio("eager", 0.9), EAGER_LAST),
    )

    trials = (a_trial("inductor-channels-last"),)
    cure = a_recommendation("inductor-channels-last", verified=True)
    measured_again = a_recommendation("inductor-channels-last", verified=True, speedup=a_speedup(1.4))
    told(
        "It is an error where a verified configuration is faster",
        findings(EAGER, trials=trials, recommendation=cure),
        findings(EAGER, trials=trials, recommendation=measured_again),
    )
    told(
        "A recommendation of the baseline is no cure",
        findings(EAGER, recommendation=a_recommendation("inductor", verified=True)),
    )


def test_which_facts_it_gives() -> None:
    # Both faster is one finding about eager.
    assert [f.evidence for f in findings(EAGER_LAST, EAGER)] == [("eager",)]

    # Without raw times of the baseline the loss in seconds is unknown.
    diagnosis = a_diagnosis(a_trial(measurement=None), comparison=a_comparison(EAGER))
    assert [f.seconds for f in check(diagnosis)] == [None]


def test_what_is_no_finding() -> None:
    # A difference that could be noise is no finding.
    assert findings(a_ratio("eager", 1.02)) == []

    # A faster eager that computes something else is no finding.
    other = a_trial("eager-channels-last", equivalence=Equivalence(status="different"))
    assert findings(EAGER_LAST, trials=(other,)) == []

    # A baseline that is not compiled is excused.
    comparison = a_comparison(a_ratio("eager", 1.25), baseline="eager-channels-last")
    assert list(check(a_diagnosis(a_trial("eager-channels-last"), comparison=comparison))) == []
