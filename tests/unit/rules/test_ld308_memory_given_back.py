from __future__ import annotations

from typing import Any

from builders import Told, a_comparison, a_measurement, a_ratio, a_recommendation, a_trial, finder

from layoutdoctor.rules.fallbacks import LD308

findings = finder(LD308.check)
FROZEN = "inductor-freezing"


def a_run(*factors: float | None, recommended: str = FROZEN) -> list[Any]:
    """What is said of the default and of frozen weights, by how many times as long a call takes in fresh processes."""
    trials = []
    for name, factor in zip(("inductor", FROZEN), factors, strict=True):
        unkept = () if factor is None else (20e-3 * factor, 21e-3 * factor, 19e-3 * factor)
        trials.append(a_trial(name, measurement=a_measurement(20e-3, unkept_seconds=unkept)))
    comparison = a_comparison(a_ratio(FROZEN, 1.5), fastest=(FROZEN,))
    return findings(*trials, comparison=comparison, recommendation=a_recommendation(recommended))


def test_what_is_no_finding() -> None:
    assert a_run(None, None) == []
    assert a_run(1.04, 1.0) == []
    assert a_run(1.0, 1.6, recommended="inductor") == []  # nobody is told to use it
    assert findings(a_trial(measurement=a_measurement(20e-3, unkept_seconds=(40e-3,)))) == []  # nothing was compared


def test_what_it_says(told: Told) -> None:
    told("The default and the recommended configuration", a_run(1.64, 1.02))
    told("The recommended one loses most", a_run(1.02, 1.2))
    told("A note below 10 %", a_run(1.07, None))
