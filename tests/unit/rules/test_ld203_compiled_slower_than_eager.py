from __future__ import annotations

from typing import Any

from builders import Told, a_comparison, a_diagnosis, a_ratio, a_recommendation, a_speedup, a_trial

from layoutdoctor.diagnosis.records import Equivalence, Finding, Trial
from layoutdoctor.rules.ld203_compiled_slower_than_eager import check

EAGER = a_ratio("eager", 1.25)
EAGER_LAST = a_ratio("eager-channels-last", 1.28)
BOTH = (a_trial("eager"), a_trial("eager-channels-last"))


def findings(*ratios: Any, trials: tuple[Trial, ...] = (), **changes: Any) -> list[Finding]:
    names = {trial.name for trial in trials}
    eager = [trial for trial in BOTH if trial.name not in names]
    return list(check(a_diagnosis(a_trial(), *eager, *trials, comparison=a_comparison(*ratios), **changes)))


def test_what_it_says(told: Told) -> None:
    last = (a_trial("inductor-channels-last"),)
    told("Eager faster than the baseline is a warning with the interval", findings(EAGER))
    told(
        "Eager in channels last is compared with what was compiled in channels last",
        findings(a_ratio("eager", 0.9), EAGER_LAST, a_ratio("inductor-channels-last", 1.1), trials=last),
    )

    cure = a_recommendation("inductor-channels-last", verified=True)
    measured_again = a_recommendation("inductor-channels-last", verified=True, speedup=a_speedup(1.4))
    small = a_recommendation("inductor-channels-last", verified=True, speedup=a_speedup(1.04))
    told(
        "It is an error where a verified configuration gains 5 percent",
        findings(EAGER, a_ratio("inductor-channels-last", 1.4), trials=last, recommendation=cure),
        findings(EAGER, trials=last, recommendation=measured_again),
        findings(EAGER, trials=last, recommendation=small),
    )
    told(
        "A recommendation of the baseline is no cure",
        findings(EAGER, recommendation=a_recommendation("inductor", verified=True)),
    )
    told("Less than 2 percent is a note", findings(a_ratio("eager", 1.015, 0.002)))


def test_which_facts_it_gives() -> None:
    # Both faster is one finding about eager.
    assert [f.evidence for f in findings(EAGER_LAST, EAGER)] == [("eager",)]

    # Without raw times of the baseline the loss in seconds is unknown.
    diagnosis = a_diagnosis(a_trial(measurement=None), *BOTH, comparison=a_comparison(EAGER))
    assert [f.seconds for f in check(diagnosis)] == [None]


def test_what_is_no_finding() -> None:
    # A difference that could be noise is no finding.
    assert findings(a_ratio("eager", 1.02)) == []

    # Eager in a format in which nothing was compiled, or something compiled is as fast, is the format's doing.
    last, off = a_trial("inductor-channels-last"), a_trial("inductor-layout-opt-off")
    assert findings(EAGER_LAST) == []
    assert findings(a_ratio("eager-channels-last", 0.9), a_ratio(last.name, 0.7), trials=(last,)) == []
    assert findings(EAGER_LAST, a_ratio(last.name, 1.27), trials=(last,)) == []
    assert findings(EAGER, a_ratio(off.name, 1.24), trials=(off,)) == []

    # A faster eager that computes something else is no finding.
    other = a_trial("eager-channels-last", equivalence=Equivalence(status="different"))
    assert findings(EAGER_LAST, a_ratio(last.name, 1.1), trials=(other, last)) == []

    # A baseline that is not compiled is excused.
    comparison = a_comparison(a_ratio("eager", 1.25), baseline="eager-channels-last")
    assert list(check(a_diagnosis(a_trial("eager-channels-last"), comparison=comparison))) == []
