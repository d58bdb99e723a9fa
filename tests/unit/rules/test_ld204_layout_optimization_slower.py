from __future__ import annotations

from typing import Any

from builders import Told, a_comparison, a_decision, a_diagnosis, a_graph, a_ratio, a_recommendation, a_trial

from layoutdoctor.diagnosis.records import Equivalence, Finding, Trial
from layoutdoctor.rules.ld204_layout_optimization_slower import check

OFF = a_ratio("inductor-layout-opt-off", 1.25)
SWITCH_OFF = 'switch it off for this model: torch.compile(model, options={"layout_optimization": False})'
BASELINE = a_trial(graphs=(a_graph(a_decision()),))


def findings(*ratios: Any, baseline: Trial = BASELINE, trials: tuple[Trial, ...] = (), **changes: Any) -> list[Finding]:
    return list(check(a_diagnosis(baseline, *trials, comparison=a_comparison(*ratios), **changes)))


def test_what_is_no_finding() -> None:
    # A difference that could be noise is no finding.
    assert findings(a_ratio("inductor-layout-opt-off", 1.02)) == []

    # An optimization applied to no convolution cannot be to blame.
    none = a_decision(convolution_count=0, channels_last_convolution_count=0, convolutions=())
    assert findings(OFF, baseline=a_trial(graphs=(a_graph(none),))) == []

    # An optimization that was not applied cannot be to blame.
    for graphs in ((), (a_graph(None),), (a_graph(a_decision(applied=False)),)):
        assert findings(OFF, baseline=a_trial(graphs=graphs)) == []


def test_what_it_says(told: Told) -> None:
    for name in ("inductor-layout-opt-off", "inductor-channels-last"):
        trials = (a_trial("inductor-layout-opt-off"), a_trial("inductor-channels-last"))
        advice = a_recommendation(name, verified=True)
        told("It is an error where switching it off was verified", findings(OFF, trials=trials, recommendation=advice))
    told("Faster without the optimization that was applied is a warning", findings(OFF))
    off = a_trial("inductor-layout-opt-off", equivalence=Equivalence(status="equal", output_layouts_differ=True))
    told("An output left in another layout is told as part of the gain", findings(OFF, trials=(off,)))

    # An output whose layout was not compared is not suspected.
    off = a_trial("inductor-layout-opt-off", equivalence=None)
    assert [f.message for f in findings(OFF, trials=(off,))] == [f.message for f in findings(OFF)]


def test_what_it_suggests(told: Told) -> None:
    told("Channels last is advised where it gains clearly more", findings(OFF, a_ratio("inductor-channels-last", 1.5)))

    # A gain of channels last that could be the same is not advised.
    assert [f.suggestion for f in findings(OFF, a_ratio("inductor-channels-last", 1.27))] == [SWITCH_OFF]
