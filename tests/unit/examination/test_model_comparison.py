"""Two diagnoses of models against each other: ratios, findings, decisions, and which changes are regressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import (
    a_comparison,
    a_configuration,
    a_conversion,
    a_diagnosis,
    a_finding,
    a_graph,
    a_kernel,
    a_location,
    a_measurement,
    a_node,
    a_pair,
    a_ratio,
    a_recommendation,
    a_subject,
    a_trial,
    an_environment,
    an_input,
    channels_last,
    contiguous,
    kernels,
)

from layoutdoctor.diagnosis.answer import EQUAL, FASTER, INCONCLUSIVE, SLOWER
from layoutdoctor.diagnosis.subject import SourceLocation
from layoutdoctor.diagnosis.trial import Equivalence
from layoutdoctor.examination.changes.models import compare_models

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Account
    from layoutdoctor.diagnosis.comparison import TrialChange
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

LAST = "inductor-channels-last"


def a_run(median: float = 1.3, width: float = 0.01, *, machine: float = 1.0, **changes: Any) -> Diagnosis:
    """A diagnosis in which channels_last is so many times faster than the default, which takes 10 ms."""
    trials = [
        a_trial(name, measurement=a_measurement(10e-3 * machine / factor))
        for name, factor in (("inductor", 1.0), (LAST, median))
    ]
    fields: dict[str, Any] = {
        "comparison": a_comparison(a_ratio(LAST, median, width), fastest=(LAST,)),
        "recommendation": a_recommendation(LAST),
    }
    return a_diagnosis(*trials, **{**fields, **changes})


def other_last(**changes: Any) -> Diagnosis:
    return msgspec.structs.replace(a_run(), trials=(a_run().trials[0], a_trial(LAST, **changes)))


def change_of(old: Diagnosis, new: Diagnosis, name: str = LAST) -> TrialChange:
    return next(trial for trial in compare_models(old, new).trials if trial.name == name)


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (a_run(1.3), a_run(1.3), EQUAL),
        (a_run(1.3), a_run(1.34), EQUAL),
        (a_run(1.3), a_run(1.38), INCONCLUSIVE),
        (a_run(1.3), a_run(1.1), SLOWER),
        (a_run(1.1), a_run(1.3), FASTER),
        (a_run(1.3), a_run(1.1, 0.3), INCONCLUSIVE),
        (a_run(1.3), a_run(1.3, machine=3.3), EQUAL),
    ],
)
def test_a_change_is_that_of_the_ratio_to_the_baseline(old: Diagnosis, new: Diagnosis, verdict: str) -> None:
    change = change_of(old, new)
    assert change.change is not None
    assert change.change.verdict == verdict
    assert change.change.low <= change.change.median <= change.change.high
    assert (change_of(old, new, "inductor").change, change_of(old, new, "inductor").not_judged) == (None, None)


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (a_run(comparison=None), "the two diagnoses have no common baseline"),
        (a_run(comparison=a_comparison()), "no ratio to the baseline in one of the two"),
        (
            other_last(equivalence=Equivalence(status="different")),
            f"the outputs of {LAST} are wrong in the new diagnosis",
        ),
        (
            other_last(configuration=a_configuration(LAST, inductor_options={"a": 1})),
            "the configuration has other options",
        ),
        (a_run(subject=a_subject(mode="training")), "not comparable: one is of inference, the other of training"),
        (other_last(measurement=None), None),
    ],
)
def test_a_change_that_is_not_judged_says_why(new: Diagnosis, why: str | None) -> None:
    assert (change_of(a_run(), new).change, change_of(a_run(), new).not_judged) == (None, why)


@pytest.mark.parametrize(
    ("new", "losses", "not_judged"),
    [
        (a_run(), (), None),
        (a_run(1.1), ("compiled + channels_last: runs at 1.10x the speed of the default instead of 1.30x",), None),
        (a_run(1.1, machine=0.7), (), None),  # the default became faster
        (a_run(1.95, machine=1.5), ("the default: takes 1.50x as long, and most other configurations do not",), None),
        (a_run(1.95, machine=1.5, environment=an_environment(torch="9.9")), (), None),  # that may be torch
        (a_run(machine=2), (), None),  # all are slower: that may be the machine
        (
            a_run(comparison=None, recommendation=None),
            (),
            "the time of the default was not judged: the two diagnoses have no common baseline",
        ),
    ],
)
def test_a_change_of_times_is_a_regression_unless_torch_or_the_machine_may_have_made_it(
    new: Diagnosis, losses: tuple[str, ...], not_judged: str | None
) -> None:
    regression = compare_models(a_run(), new).regression
    assert (regression.losses, regression.not_judged) == (losses, not_judged)


def with_pairs(count: int, **changes: Any) -> Diagnosis:
    reorders = kernels(*(a_conversion(f"reorder {n}", seconds=1e-3, **changes) for n in range(2)))
    pairs = tuple(a_pair(module=f"body.{n}") for n in range(count))
    same = a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", redundant_pairs=pairs)
    return a_diagnosis(a_trial("inductor", kernels=reorders, redundant_pairs=pairs), same)


def test_round_trips_and_conversions_of_static_trials_that_came_are_regressions() -> None:
    comparison = compare_models(with_pairs(0), with_pairs(1))

    assert comparison.regression.losses == ("the default: 1 round trip instead of 0",)
    assert [(change.old, change.count_difference) for change in comparison.trials[0].round_trips] == [(None, 1)]
    assert compare_models(with_pairs(0, source=None, target=None), with_pairs(1)).regression.losses == ()

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
            {"location": SourceLocation(file="/b/other.py", line=99)},
        ),
        ({"module": "body.3"}, {"module": "body.6"}),
        ({"severity": "note", "seconds": 1e-4}, {"severity": "warning", "seconds": 1e-2}),
    ],
)
def test_a_finding_stays_where_only_its_place_or_cost_changed(old: dict[str, Any], new: dict[str, Any]) -> None:
    comparison = compare_models(a_diagnosis(findings=(a_finding(**old),)), a_diagnosis(findings=(a_finding(**new),)))

    assert comparison.findings == ()
    assert not [loss for loss in comparison.regression.losses if "LD101" in loss]


def test_findings_are_counted_by_rule_and_configuration() -> None:
    old = a_diagnosis(findings=(a_finding(), a_finding(module="body.2")))
    new = a_diagnosis(findings=(a_finding(), a_finding(configuration="eager"), a_finding(configuration="eager")))

    assert [(f.configuration, f.old_count, f.new_count) for f in compare_models(old, new).findings] == [
        ("eager", 0, 2),
        ("inductor", 2, 1),
    ]


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mode": "training"}, "not comparable: one is of inference, the other of training"),
        ({"parameter_count": 5}, "not comparable: 112832 parameters in the old model, 5 in the new one"),
        ({"inputs": (an_input(contiguous((1, 3, 8, 8))),)}, "not comparable: inputs differ in shape"),
        ({"inputs": (an_input(dtype="bfloat16"),)}, "not comparable: inputs differ in dtype"),
        ({"inputs": (an_input(channels_last((4, 3, 56, 56))),)}, "not comparable: inputs differ in stride"),
        ({"target": "cuda:90"}, "not comparable: they were lowered for different devices, or only one of them ran"),
    ],
)
def test_other_models_are_called_so_and_not_judged(changes: dict[str, Any], why: str) -> None:
    regression = compare_models(
        with_pairs(0), msgspec.structs.replace(with_pairs(1), subject=a_subject(**changes))
    ).regression

    assert (regression.losses, regression.not_judged) == ((), why)


def test_the_account_of_a_difference_goes_from_the_slower_one_to_the_faster() -> None:
    node = a_node("relu", inputs=("x",), location=a_location(3), module="act")

    def measured(takes: float) -> Diagnosis:
        kernel = a_kernel("aten::relu", takes - 1e-3, library="aten", node="relu", graph="graph 0")
        summary = kernels(kernels=(kernel,), seconds=takes - 1e-3)
        return a_diagnosis(a_trial(kernels=summary, measurement=a_measurement(takes), graphs=(a_graph(nodes=(node,)),)))

    def account_of(old: float, new: float) -> Account | None:
        return compare_models(measured(old), measured(new)).trials[0].account

    slower, faster = account_of(4e-3, 5e-3), account_of(5e-3, 4e-3)

    assert slower is not None
    assert faster is not None
    assert (slower.slower, slower.faster) == ("inductor (new)", "inductor (old)")
    assert (faster.slower, faster.faster) == ("inductor (old)", "inductor (new)")
    assert slower.rows == faster.rows
    assert (slower.rows[0].operations, round(slower.rows[0].seconds, 9)) == (("relu",), 1e-3)
    assert account_of(4e-3, 4.1e-3) is None
