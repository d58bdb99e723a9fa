"""Two diagnoses of models against each other: trials by name, findings, decisions, and what counts as a regression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import (
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_finding,
    a_graph,
    a_kernel,
    a_location,
    a_measurement,
    a_node,
    a_pair,
    a_recommendation,
    a_subject,
    a_trial,
    an_environment,
    an_input,
    channels_last,
    contiguous,
    kernels,
)
from loops import for_each

from layoutdoctor.diagnosis.records import SourceLocation
from layoutdoctor.examination.changes.models import compare_models

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Account, Conversion, Decision, Diagnosis


def conversions(count: int) -> tuple[Conversion, ...]:
    return tuple(a_conversion(f"reorder {n}", seconds=1e-3) for n in range(count))


def with_conversions(count: int, **changes: Any) -> Diagnosis:
    return a_diagnosis(a_trial("inductor", kernels=kernels(*conversions(count)), **changes))


def test_round_trips_and_conversions_of_static_trials_that_came_are_regressions() -> None:
    old = with_conversions(2)
    new = with_conversions(2, redundant_pairs=(a_pair(),))
    comparison = compare_models(old, new)

    assert comparison.regression.losses == ("the default: 1 round trip instead of 0",)
    assert [change.change for change in comparison.trials[0].round_trips] == ["came"]

    shapeless = tuple(a_conversion(f"reorder {n}", source=None, target=None) for n in range(2))
    old = a_diagnosis(a_trial("inductor", kernels=kernels(*shapeless)))

    assert compare_models(old, with_conversions(2, redundant_pairs=(a_pair(),))).regression.losses == ()

    def static(count: int) -> Diagnosis:
        found = tuple(a_conversion(f"c{n}", owner="compiler", seconds=None) for n in range(count))
        trial = a_trial(kernels=None, measurement=None, is_static=True, graphs=(a_graph(conversions=found),))
        return a_diagnosis(trial, subject=a_subject(target="cuda:90"))

    assert compare_models(static(1), static(3)).regression.losses == ("the default: 3 layout conversions instead of 1",)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            {"location": SourceLocation(file="/a/model.py", line=9)},
            {"location": SourceLocation(file="/b/model.py", line=99)},
        ),
        ({"module": "body.3"}, {"module": "body.6"}),
        (
            {"location": SourceLocation(file="blocks.py", line=9)},
            {"location": SourceLocation(file="layers.py", line=9)},
        ),
        ({"severity": "note", "seconds": 1e-4}, {"severity": "warning", "seconds": 1e-2}),
    ],
    ids=["another line and folder", "another costliest module", "a renamed file", "another cost"],
)
def test_a_finding_stays_where_only_its_place_or_cost_changed(old: dict[str, Any], new: dict[str, Any]) -> None:
    comparison = compare_models(a_diagnosis(findings=(a_finding(**old),)), a_diagnosis(findings=(a_finding(**new),)))

    assert comparison.findings == ()
    assert not [loss for loss in comparison.regression.losses if "LD101" in loss]


def test_findings_are_counted_by_rule_and_configuration() -> None:
    old = a_diagnosis(findings=(a_finding(), a_finding(module="body.2")))
    new = a_diagnosis(findings=(a_finding(), a_finding(configuration="eager"), a_finding(configuration="eager")))

    comparison = compare_models(old, new)

    assert [(f.configuration, f.change, f.old_count, f.new_count) for f in comparison.findings] == [
        ("eager", "came", 0, 2),
        ("inductor", "fewer", 2, 1),
    ]


@for_each(
    ("finding", "counts"),
    [
        ({}, True),
        ({"configuration": None}, True),
        ({"severity": "error"}, True),
        ({"severity": "note"}, False),
        ({"accepted": "the input comes so"}, False),
        ({"code": "LD205"}, False),
        ({"configuration": "inductor-freezing"}, False),
    ],
)
def test_a_new_finding_is_a_regression_where_it_can_be_one(finding: dict[str, Any], *, counts: bool) -> None:
    new = a_diagnosis(a_trial(), a_trial("inductor-freezing"), findings=(a_finding(**finding),))
    losses = compare_models(a_diagnosis(), new).regression.losses

    assert bool(losses) is counts
    if counts:
        assert f"new {finding.get('severity', 'warning')} LD101 round-trip-conversion" in losses[0]


def test_the_same_code_has_one_median_and_what_one_trial_says_for_another_is_said_once() -> None:
    same = a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", measurement=None)
    diagnosis = a_diagnosis(a_trial("inductor", measurement=a_measurement(10e-3)), same)

    assert compare_models(diagnosis, diagnosis).trials[1].median_ratio == pytest.approx(1.0)

    def run(count: int) -> Diagnosis:
        pairs = tuple(a_pair(module=f"body.{n}") for n in range(count))
        trial = a_trial("inductor", redundant_pairs=pairs)
        same = a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", redundant_pairs=pairs)
        return a_diagnosis(trial, same)

    assert compare_models(run(0), run(1)).regression.losses == ("the default: 1 round trip instead of 0",)


def test_a_decision_that_changed_is_listed_by_its_graph() -> None:
    def run(decision: Decision) -> Diagnosis:
        return a_diagnosis(a_trial(graphs=(a_graph(decision),)))

    old, new = run(a_decision(a_convolution())), run(a_decision(a_convolution(), applied=False, rule="small-channels"))
    (change,) = compare_models(old, new).trials[0].decisions

    assert (change.graph, change.old.applied, change.new.applied) == ("graph 0", True, False)
    assert change.new.rule == "small-channels"
    assert compare_models(old, old).trials[0].decisions == ()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mode": "training"}, "one is of inference, the other of training"),
        ({"parameter_count": 5}, "the models differ: 112832 parameters in the old one, 5 in the new one"),
        ({"inputs": (an_input(contiguous((1, 3, 8, 8))),)}, "inputs differ in shape"),
        ({"inputs": (an_input(dtype="bfloat16"),)}, "inputs differ in dtype"),
        ({"inputs": (an_input(channels_last((4, 3, 56, 56))),)}, "inputs differ in strides"),
    ],
)
def test_other_models_are_called_so_and_not_judged(changes: dict[str, Any], why: str) -> None:
    comparison = compare_models(a_diagnosis(), a_diagnosis(subject=a_subject(**changes)))

    assert comparison.different_subject == why
    assert comparison.regression.not_judged == f"not comparable: {why}"
    assert comparison.regression.losses == ()


def test_what_is_not_the_same_around_them_is_noted_and_the_unfinished_not_judged() -> None:
    old = a_diagnosis(environment=an_environment(torch="2.12.0"), interrupted="interrupted from the keyboard")
    new = a_diagnosis(
        subject=a_subject(target="cuda:90", device="cuda"),
        recommendation=a_recommendation(),
        layoutdoctor_version="9.0",
    )
    comparison = compare_models(old, new)

    assert [change.name for change in comparison.environment] == ["device", "torch"]
    assert comparison.new.recommended == "inductor"
    assert comparison.old.recommended is None
    notes = " ".join(comparison.notes)
    for words in ("lowered for another device", "old one was not finished", "0.1.0 and 9.0"):
        assert words in notes

    comparison = compare_models(a_diagnosis(), with_conversions(2, redundant_pairs=(a_pair(),)))
    unfinished = msgspec.structs.replace(a_diagnosis(), interrupted="out of memory")

    assert comparison.regression.losses
    assert compare_models(unfinished, with_conversions(2, redundant_pairs=(a_pair(),))).regression.losses == ()
    assert compare_models(a_diagnosis(), unfinished).regression.not_judged == (
        "the new one was not finished: out of memory"
    )


def test_where_a_difference_of_times_goes_is_told_from_the_slower_one_to_the_faster() -> None:
    node = a_node("relu", inputs=("x",), location=a_location(3), module="act")

    def measured(takes: float) -> Diagnosis:
        kernel = a_kernel("aten::relu", takes - 1e-3, library="aten", node="relu", graph="graph 0")
        summary = kernels(kernels=(kernel,), seconds=takes - 1e-3)
        trial = a_trial(kernels=summary, measurement=a_measurement(takes), graphs=(a_graph(nodes=(node,)),))
        return a_diagnosis(trial)

    def told(old: float, new: float) -> Account | None:
        return compare_models(measured(old), measured(new)).trials[0].account

    slower, faster = told(4e-3, 5e-3), told(5e-3, 4e-3)

    assert slower is not None
    assert faster is not None
    assert (slower.slower, slower.faster) == ("inductor (new)", "inductor (old)")
    assert (faster.slower, faster.faster) == ("inductor (old)", "inductor (new)")
    assert slower.rows == faster.rows
    assert (slower.rows[0].operations, round(slower.rows[0].seconds, 9)) == (("relu",), 1e-3)
    assert told(4e-3, 4.1e-3) is None
