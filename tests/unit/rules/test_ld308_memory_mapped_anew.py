from __future__ import annotations

from typing import Any

from builders import Told, a_comparison, a_measurement, a_ratio, a_recommendation, a_speedup, a_trial, finder

from layoutdoctor.diagnosis.records import KeptMemory
from layoutdoctor.rules.ld308_memory_mapped_anew import check

findings = finder(check)
FROZEN = "inductor-freezing"


def a_run(
    *faults: float | None, own_processes: bool = True, seconds: float = 20e-3, kept: KeptMemory | None = None
) -> list[Any]:
    """What is said of the default and of frozen weights, which are recommended, by page faults of a call of each."""
    trials = [
        a_trial(name, measurement=a_measurement(seconds, page_faults_per_call=count))
        for name, count in zip(("inductor", FROZEN), faults, strict=True)
    ]
    comparison = a_comparison(a_ratio(FROZEN, 1.5), fastest=(FROZEN,), own_processes=own_processes)
    return findings(*trials, comparison=comparison, recommendation=a_recommendation(FROZEN, kept_memory=kept))


def test_what_is_no_finding() -> None:
    assert a_run(None, 0.0) == []
    assert a_run(1900.0, 0.0) == []  # 4.75 % of the call
    assert a_run(4400.0, 0.0, own_processes=False) == []  # a heap that all configurations shared
    assert findings(a_trial(measurement=a_measurement(page_faults_per_call=4e6))) == []  # nothing was compared


def test_what_keeping_the_memory_was_seen_to_save_counts_more_than_the_number_of_faults() -> None:
    for mapping, count in ((0.9e-3, 0), (1.1e-3, 1)):
        measured = a_measurement(20e-3, page_faults_per_call=4400.0, memory_seconds=mapping)
        trials = [a_trial("inductor", measurement=measured), a_trial(FROZEN)]
        comparison = a_comparison(a_ratio(FROZEN, 1.5), own_processes=True)
        assert len(findings(*trials, comparison=comparison)) == count


def test_what_it_says(told: Told) -> None:
    told("Of what is recommended", a_run(4400.0, 4400.0))
    told("Else of the default", a_run(20_000.0, 0.0))
    kept = KeptMemory(baseline_ratio=1.2, speedup=a_speedup(1.5))
    told("With what it brings, of what is recommended", a_run(4400.0, 4400.0, kept=kept))
    told("With what it brings, of the default", a_run(20_000.0, 0.0, kept=kept))
    other = KeptMemory(baseline_ratio=1.0, fastest="inductor-layout-opt-off", fastest_speedup=a_speedup(2.0))
    told("What is known is of another configuration", a_run(4400.0, 4400.0, kept=other))
