from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import (
    a_comparison,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_graph,
    a_location,
    a_ratio,
    a_trial,
)

from layoutdoctor.records import Finding, Trial
from layoutdoctor.rules.ld202_layout_optimization_vetoed import check

if TYPE_CHECKING:
    from layoutdoctor.records import Graph

GROUPED = a_convolution(
    "convolution_1", class_="grouped", module="body.1", weight_shape=(64, 16, 3, 3), groups=4, channels_last=False
)
VETO = a_decision(
    a_convolution(channels_last=False),
    GROUPED,
    applied=False,
    rule="grouped-convolution",
    explanation="1 of 2 convolutions is grouped with more than one input channel per group",
    deciding_nodes=("convolution_1",),
)
UNCOUNTED = a_decision(
    a_convolution("convolution_backward", channels_last=False),
    applied=False,
    rule="only-backward-convolutions",
    explanation="the graph has only backward convolutions",
)
ALL_MEASURES = "--configurations all measures what the veto costs (inductor-layout-opt-forced)"
BACKWARD_ADVICE = (
    "give the model and its input channels_last, which the backward keeps, or compile with "
    'options={"layout_optimization": False}; torch 2.15 counts backward convolutions'
)


def a_trial_of(*graphs: Graph, name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, graphs=graphs, **changes)


def findings(*trials: Trial, **changes: Any) -> list[Finding]:
    return list(check(a_diagnosis(*trials, **changes)))


def test_a_veto_names_its_rule_and_the_convolution_that_made_it() -> None:
    assert findings(a_trial_of(a_graph(VETO))) == [
        Finding(
            code="LD202",
            rule="layout-optimization-vetoed",
            severity="note",
            configuration="inductor",
            message="layout optimization vetoed by grouped-convolution: 1 of 2 convolutions is grouped with more than "
            "one input channel per group; decided by body.1 (model.py:9, weight 64x16x3x3, 4 groups)",
            suggestion=ALL_MEASURES,
            location=a_location(),
            module="body.1",
            evidence=("convolution_1",),
        )
    ]


@pytest.mark.parametrize("rule", ["config-off", "no-convolution", "set-from-outside", "not-recorded"])
def test_a_decision_that_no_convolution_made_is_no_veto(rule: str) -> None:
    assert findings(a_trial_of(a_graph(a_decision(applied=False, rule=rule)))) == []


@pytest.mark.parametrize("applied", [True, None])
def test_an_applied_or_unrecorded_decision_is_no_veto(applied: bool | None) -> None:
    assert findings(a_trial_of(a_graph(a_decision(applied=applied, rule="small-channels")), a_graph(None))) == []


@pytest.mark.parametrize("name", ["eager", "inductor-layout-opt-off", "inductor-layout-opt-forced"])
def test_a_configuration_that_does_not_leave_the_decision_to_inductor_is_excused(name: str) -> None:
    assert findings(a_trial_of(a_graph(VETO), name=name)) == []


def test_a_veto_is_told_once_though_every_configuration_repeats_it() -> None:
    last = a_trial_of(a_graph(VETO), name="inductor-channels-last")

    assert [f.configuration for f in findings(last, a_trial_of(a_graph(VETO), a_graph(VETO)))] == ["inductor"]


def test_what_was_not_recorded_of_a_convolution_is_left_out_and_long_lists_are_cut() -> None:
    convolutions = tuple(
        a_convolution(f"c{i}", module=None, location=None, weight_shape=None, groups=None) for i in range(8)
    )
    names = tuple(convolution.node for convolution in convolutions)
    decision = a_decision(
        *convolutions, applied=False, rule="small-channels", explanation="all are small", deciding_nodes=names
    )

    assert [(f.message, f.evidence) for f in findings(a_trial_of(a_graph(decision, direction="forward")))] == [
        (
            "layout optimization vetoed in the forward by small-channels: all are small; "
            "decided by c0, c1, c2, c3, c4, c5 and 2 more",
            names,
        )
    ]


def test_a_forward_that_is_applied_and_a_backward_that_is_not_are_a_mismatch() -> None:
    forward, backward = a_graph(a_decision(), direction="forward"), a_graph(UNCOUNTED, direction="backward")

    assert [(f.severity, f.message, f.suggestion) for f in findings(a_trial_of(forward, backward))] == [
        (
            "note",
            "layout optimization applied in the forward but not in the backward: Inductor does not count its "
            "1 backward convolution (pytorch issue #189239), so what the forward saved in channels-last is laid out "
            "anew",
            BACKWARD_ADVICE,
        )
    ]


def test_a_backward_that_follows_a_vetoed_forward_is_no_mismatch() -> None:
    forward, backward = a_graph(VETO, direction="forward"), a_graph(UNCOUNTED, direction="backward")

    assert [f.message[:60] for f in findings(a_trial_of(forward, backward))] == [
        "layout optimization vetoed in the forward by grouped-convolu"
    ]


def test_symbolic_sizes_are_answered_with_a_static_compile() -> None:
    decision = a_decision(applied=False, rule="dynamic-shape", explanation="the input of convolution has the size s77")

    assert [(f.message, f.suggestion) for f in findings(a_trial_of(a_graph(decision)))] == [
        (
            "layout optimization vetoed by dynamic-shape: the input of convolution has the size s77",
            "where the image size is fixed, compile with dynamic=False",
        )
    ]


def test_it_is_a_warning_where_forcing_was_measured_faster() -> None:
    found = findings(a_trial_of(a_graph(VETO)), comparison=a_comparison(a_ratio("inductor-layout-opt-forced", 1.2)))

    assert [(f.severity, f.suggestion) for f in found] == [
        (
            "warning",
            "inductor-layout-opt-forced runs at 1.20x the speed of inductor (99 % interval 1.17x to 1.23x)",
        )
    ]


def test_in_the_backward_the_measured_gain_of_channels_last_follows_the_advice() -> None:
    forward, backward = a_graph(a_decision(), direction="forward"), a_graph(UNCOUNTED, direction="backward")
    comparison = a_comparison(a_ratio("inductor-channels-last", 1.2))

    assert [(f.severity, f.suggestion) for f in findings(a_trial_of(forward, backward), comparison=comparison)] == [
        (
            "warning",
            f"{BACKWARD_ADVICE}; inductor-channels-last runs at 1.20x the speed of inductor "
            "(99 % interval 1.17x to 1.23x)",
        )
    ]


@pytest.mark.parametrize(
    ("median", "words"),
    [
        (
            0.8,
            "the veto is right here: inductor-layout-opt-forced runs at 0.80x the speed of inductor "
            "(99 % interval 0.77x to 0.83x)",
        ),
        (
            1.0,
            "the veto costs nothing here: inductor-layout-opt-forced runs at 1.00x the speed of inductor "
            "(99 % interval 0.97x to 1.03x)",
        ),
    ],
)
def test_a_veto_that_was_measured_to_be_right_says_so(median: float, words: str) -> None:
    comparison = a_comparison(a_ratio("inductor-layout-opt-forced", median))

    assert [(f.severity, f.suggestion) for f in findings(a_trial_of(a_graph(VETO)), comparison=comparison)] == [
        ("note", words)
    ]


def test_a_comparison_without_the_ways_around_leaves_the_veto_unjudged() -> None:
    assert [f.suggestion for f in findings(a_trial_of(a_graph(VETO)), comparison=a_comparison())] == [ALL_MEASURES]
