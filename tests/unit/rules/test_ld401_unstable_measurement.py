from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import Told, a_comparison, a_diagnosis, a_measurement, a_ratio, a_subject, a_trial

from layoutdoctor.rules.ld401_unstable_measurement import check

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Finding, Trial

LAST = "inductor-channels-last"
SCATTERED = (10e-3, 12e-3) * 6
WARMING = (*(10e-3,) * 6, *(12e-3,) * 3)


def findings(*trials: Trial, ratios: Any = (), **changes: Any) -> list[Finding]:
    return list(check(a_diagnosis(*trials, comparison=a_comparison(*ratios), **changes)))


def a_wide_ratio(name: str = LAST, high: float = 1.2) -> Any:
    return a_ratio(name, 1.1, low=1.0, high=high)


def test_how_severe_it_is() -> None:
    # Beyond twenty five percent it is a warning.
    assert [f.severity for f in findings(ratios=(a_wide_ratio(high=1.26),))] == ["warning"]

    # The worst doubt gives the severity.
    trial = a_trial(measurement=a_measurement(*SCATTERED))
    assert [f.severity for f in findings(trial, ratios=(a_wide_ratio(high=1.3),))] == ["warning"]


def test_what_it_says(told: Told) -> None:
    subject = a_subject(device="cuda")
    told("On a gpu the advice is about its clocks", findings(ratios=(a_wide_ratio(),), subject=subject))
    told("A wide interval is a note about the whole diagnosis", findings(ratios=(a_wide_ratio(),)))
    told("Rounds that scatter are told with their quartiles", findings(a_trial(measurement=a_measurement(*SCATTERED))))

    trials = (a_trial(measurement=a_measurement(*SCATTERED)), a_trial("eager", measurement=a_measurement(*WARMING)))
    told(
        "All doubts are one finding with the worst of each kind",
        findings(*trials, ratios=(a_wide_ratio("eager"), a_wide_ratio())),
    )
    for first, last in ((0.01, 0.012), (0.013, 0.01)):
        trial = a_trial(measurement=a_measurement(*(first,) * 3, *(last,) * 12))
        told("Rounds that become slower or faster are a drift", findings(trial))


def test_what_is_no_finding() -> None:
    # One slow round is neither scatter nor drift.
    assert findings(a_trial(measurement=a_measurement(20e-3, *(10e-3,) * 11))) == []

    # A configuration dropped early as clearly slower is excused.
    dropped = a_trial("eager", measurement=a_measurement(*SCATTERED, dropped_after_round=12))
    assert findings(a_trial(), dropped, ratios=(a_wide_ratio("eager"),)) == []

    # Too few rounds and times of zero are not judged.
    few = a_trial(measurement=a_measurement(10e-3, 20e-3, 30e-3, 10e-3, 20e-3))
    zero = a_trial("eager", measurement=a_measurement(0.0, *SCATTERED))
    assert findings(few, zero, a_trial(LAST, measurement=None), ratios=(a_ratio("eager", 1.1, low=0.0),)) == []

    # An interval of up to ten percent is good enough.
    for high in (1.05, 1.099):
        assert findings(ratios=(a_wide_ratio(high=high),)) == []
