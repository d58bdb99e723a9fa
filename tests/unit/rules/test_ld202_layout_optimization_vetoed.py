from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import Told, a_comparison, a_convolution, a_decision, a_graph, a_ratio, a_trial, finder

from layoutdoctor.rules.decisions import LD202

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Graph, Trial

findings = finder(LD202.check)

SMALL = a_convolution("convolution_1", module="body.1", weight_shape=(64, 16, 3, 3), groups=4, channels_last=False)
VETO = a_decision(
    SMALL,
    applied=False,
    rule="small-channels",
    explanation="all convolutions have at most 64 input and output channels",
    deciding_nodes=("convolution_1",),
)
ALL_MEASURES = "--configurations all measures what the veto costs (inductor-layout-opt-forced)"


def a_trial_of(*graphs: Graph, name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, graphs=graphs, **changes)


def test_what_it_says(told: Told) -> None:
    told("A veto names its rule and the convolution that made it", findings(a_trial_of(a_graph(VETO))))
    convolutions = tuple(
        a_convolution(f"c{i}", module=None, location=None, weight_shape=None, groups=None) for i in range(8)
    )
    names = tuple(convolution.node for convolution in convolutions)
    decision = a_decision(
        *convolutions, applied=False, rule="small-channels", explanation="all are small", deciding_nodes=names
    )
    told(
        "What was not recorded of a convolution is left out and long lists are cut",
        findings(a_trial_of(a_graph(decision, direction="forward"))),
    )

    # A rule that vetoed forward and backward is told once.
    graphs = (a_graph(VETO, direction="forward"), a_graph(VETO, name="graph 1", direction="backward"))
    assert [f.message[:46] for f in findings(a_trial_of(*graphs))] == ["layout optimization vetoed in the forward by s"]

    # A rule about the whole graph is told.
    for rule in ("few-convolutions", "small-channels", "weighted-flops", "not-said"):
        decision = a_decision(applied=False, rule=rule, explanation="so torch says")
        assert [f.message for f in findings(a_trial_of(a_graph(decision)))] == [
            f"layout optimization vetoed by {rule}: so torch says"
        ]


def test_what_it_suggests(told: Told) -> None:
    told(
        "It is a warning where forcing was measured faster",
        findings(a_trial_of(a_graph(VETO)), comparison=a_comparison(a_ratio("inductor-layout-opt-forced", 1.2))),
    )

    # A comparison without the ways around leaves the veto unjudged.
    assert [f.suggestion for f in findings(a_trial_of(a_graph(VETO)), comparison=a_comparison())] == [ALL_MEASURES]

    # On a device that is not there the device itself has to measure.
    trial = a_trial_of(a_graph(VETO), is_static=True, kernels=None, measurement=None, equivalence=None)
    assert [(f.severity, f.suggestion) for f in findings(trial)] == [("note", f"on the device itself, {ALL_MEASURES}")]
    for median, width in ((0.8, 0.03), (1.0, 0.03), (1.0, 0.5)):
        comparison = a_comparison(a_ratio("inductor-layout-opt-forced", median, width))
        told("What was measured of a veto is said", findings(a_trial_of(a_graph(VETO)), comparison=comparison))

    # A veto is told once though every configuration repeats it.
    last = a_trial_of(a_graph(VETO), name="inductor-channels-last")
    assert [f.configuration for f in findings(last, a_trial_of(a_graph(VETO), a_graph(VETO)))] == ["inductor"]


def test_what_is_no_finding() -> None:
    # Convolutions that are all 1 d had nothing to lose.
    decision = a_decision(a_convolution(rank=1), applied=False, rule="small-channels")
    assert findings(a_trial_of(a_graph(decision))) == []

    # A backward under an applied forward is a mismatch and no veto.
    graphs = (a_graph(a_decision(), direction="forward"), a_graph(VETO, name="graph 1", direction="backward"))
    assert findings(a_trial_of(*graphs)) == []

    # A decision that no convolution made is no veto.
    for rule in ("config-off", "no-convolution", "packed", "set-from-outside", "not-recorded"):
        assert findings(a_trial_of(a_graph(a_decision(applied=False, rule=rule)))) == []

    # An applied or unrecorded decision is no veto.
    for applied in (True, None):
        assert findings(a_trial_of(a_graph(a_decision(applied=applied, rule="small-channels")), a_graph(None))) == []

    # A configuration that does not leave the decision to inductor is excused.
    for name in ("eager", "inductor-layout-opt-off", "inductor-layout-opt-forced"):
        assert findings(a_trial_of(a_graph(VETO), name=name)) == []

    # A rule that has its own finding is left to it.
    for rule in ("grouped-convolution", "smaller-out-channels", "dynamic-shape", "only-backward-convolutions"):
        assert findings(a_trial_of(a_graph(a_decision(applied=False, rule=rule)))) == []
