"""Two diagnoses of models against each other: trials by name, and no verdict on times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import (
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_failed_trial,
    a_graph,
    a_measurement,
    a_pair,
    a_recommendation,
    a_subject,
    a_trial,
    an_environment,
    an_input,
    contiguous,
    kernels,
)

from layoutdoctor.analysis.model_comparison import compare_models
from layoutdoctor.comparison_records import ModelComparison, comparison_to_json
from layoutdoctor.records import Finding

if TYPE_CHECKING:
    from layoutdoctor.records import Conversion, Diagnosis


def conversions(count: int) -> tuple[Conversion, ...]:
    return tuple(a_conversion(f"reorder {n}", seconds=1e-3) for n in range(count))


def with_conversions(count: int, **changes: Any) -> Diagnosis:
    return a_diagnosis(a_trial("inductor", kernels=kernels(*conversions(count)), **changes))


def a_finding(code: str = "LD101", **changes: Any) -> Finding:
    fields: dict[str, Any] = {
        "rule": "round-trip-conversion",
        "severity": "warning",
        "configuration": "inductor",
        "message": "there and back",
        "module": "body.1",
    }
    return Finding(code=code, **{**fields, **changes})


def test_trials_are_matched_by_the_name_of_their_configuration() -> None:
    old = a_diagnosis(a_trial("eager"), a_trial("inductor"))
    new = a_diagnosis(a_trial("inductor"), a_trial("inductor-freezing"))

    assert [(trial.name, trial.old_status, trial.new_status) for trial in compare_models(old, new).trials] == [
        ("inductor", "ok", "ok"),
        ("inductor-freezing", None, "ok"),
        ("eager", "ok", None),
    ]


def test_medians_stand_side_by_side_with_their_ratio_and_no_verdict() -> None:
    old = a_diagnosis(a_trial(measurement=a_measurement(10e-3)))
    new = a_diagnosis(a_trial(measurement=a_measurement(5e-3)))
    comparison = compare_models(old, new)
    (trial,) = comparison.trials

    assert (trial.old_median_seconds, trial.new_median_seconds) == (10e-3, 5e-3)
    assert trial.median_ratio == pytest.approx(2.0)
    assert not any(word in comparison_to_json(comparison).decode() for word in ("faster", "slower"))


def test_a_configuration_that_is_the_same_as_another_has_that_ones_median() -> None:
    same = a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", measurement=None)
    diagnosis = a_diagnosis(a_trial("inductor", measurement=a_measurement(10e-3)), same)

    assert compare_models(diagnosis, diagnosis).trials[1].median_ratio == pytest.approx(1.0)


def test_what_was_not_measured_has_no_ratio() -> None:
    comparison = compare_models(a_diagnosis(a_trial(measurement=None)), a_diagnosis(a_trial()))

    assert comparison.trials[0].old_median_seconds is None
    assert comparison.trials[0].median_ratio is None


def test_conversions_of_a_trial_come_and_go() -> None:
    (trial,) = compare_models(with_conversions(3), with_conversions(1)).trials

    assert trial.difference is not None
    assert trial.difference.conversion_count == -2
    assert trial.difference.conversion_seconds == pytest.approx(-2e-3)
    assert [change.change for change in trial.conversions] == ["fewer"]


def test_conversions_in_graphs_count_as_in_the_report() -> None:
    reorder = a_conversion("graph 0 buf3", owner="compiler", op=None)
    old = a_diagnosis(a_trial(graphs=(a_graph(conversions=(reorder,)),)))

    assert [change.owner for change in compare_models(old, a_diagnosis(a_trial())).trials[0].conversions] == [
        "compiler"
    ]


def test_round_trips_that_came_are_a_regression_of_their_configuration() -> None:
    old = with_conversions(2)
    new = with_conversions(2, redundant_pairs=(a_pair(),))
    comparison = compare_models(old, new)

    assert comparison.regression.losses == ("inductor: 1 round trip instead of 0",)
    assert [change.change for change in comparison.trials[0].round_trips] == ["came"]


def test_a_longer_median_alone_is_no_regression_of_layouts() -> None:
    old = with_conversions(2, measurement=a_measurement(1e-3))

    assert compare_models(old, with_conversions(2, measurement=a_measurement(9e-3))).regression.losses == ()


def test_static_trials_are_judged_by_the_conversions_of_their_graphs() -> None:
    def static(count: int) -> Diagnosis:
        found = tuple(a_conversion(f"c{n}", owner="compiler", seconds=None) for n in range(count))
        trial = a_trial(kernels=None, measurement=None, is_static=True, graphs=(a_graph(conversions=found),))
        return a_diagnosis(trial, subject=a_subject(target="cuda:90"))

    assert compare_models(static(1), static(3)).regression.losses == ("inductor: 3 layout conversions instead of 1",)


def test_without_kernels_in_both_nothing_is_judged() -> None:
    comparison = compare_models(a_diagnosis(a_trial(kernels=None)), a_diagnosis(a_trial()))

    assert comparison.regression.not_judged == "no configuration has its conversions recorded in both"
    assert comparison.trials[0].difference is None


def test_a_decision_that_flipped_is_listed_with_both_rules() -> None:
    on = a_graph(a_decision(applied=True))
    off = a_graph(a_decision(a_convolution(channels_last=False), applied=False, rule="grouped-convolution"))
    old, new = a_diagnosis(a_trial(graphs=(on,))), a_diagnosis(a_trial(graphs=(off,)))
    (change,) = compare_models(old, new).trials[0].decisions

    assert (change.old.applied, change.new.applied, change.new.rule) == (True, False, "grouped-convolution")
    assert (change.old.channels_last_convolution_count, change.new.channels_last_convolution_count) == (1, 0)
    assert compare_models(old, old).trials[0].decisions == ()


def test_findings_come_and_go_by_code_configuration_and_module() -> None:
    old = a_diagnosis(
        findings=(a_finding(), a_finding("LD205", severity="error"), a_finding("LD103"), a_finding("LD103"))
    )
    new = a_diagnosis(findings=(a_finding(module="body.2"), a_finding("LD103", message="moved to line 12")))

    assert [(f.code, f.module, f.change, f.old_count, f.new_count) for f in compare_models(old, new).findings] == [
        ("LD205", "body.1", "went", 1, 0),
        ("LD101", "body.1", "went", 1, 0),
        ("LD101", "body.2", "came", 0, 1),
        ("LD103", "body.1", "fewer", 2, 1),
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mode": "training"}, "one is of inference, the other of training"),
        ({"parameter_count": 5}, "112832 parameters in the old one, 5 in the new one"),
        ({"inputs": (an_input(contiguous((1, 3, 8, 8))),)}, "their inputs have other shapes or types"),
    ],
)
def test_other_models_are_called_so_and_not_judged(changes: dict[str, Any], why: str) -> None:
    comparison = compare_models(a_diagnosis(), a_diagnosis(subject=a_subject(**changes)))

    assert comparison.different_subject == why
    assert comparison.regression.not_judged == "the two seem to be of different models"


def test_another_file_name_is_no_other_model() -> None:
    assert compare_models(a_diagnosis(), a_diagnosis(subject=a_subject(name="b.py"))).different_subject is None


def test_nothing_with_a_result_in_both_is_empty() -> None:
    old = a_diagnosis(a_trial("eager"), a_failed_trial("inductor"))

    assert compare_models(old, a_diagnosis(a_trial("inductor"))).is_empty
    assert not compare_models(old, a_diagnosis(a_trial("eager"))).is_empty


def test_the_same_diagnosis_twice_is_the_same_and_one_finding_is_a_difference() -> None:
    diagnosis = a_diagnosis(a_trial(), findings=(a_finding(),))

    assert compare_models(diagnosis, diagnosis).is_same
    assert not compare_models(diagnosis, msgspec.structs.replace(diagnosis, findings=())).is_same


def test_what_is_not_the_same_around_them_is_noted() -> None:
    old = a_diagnosis(environment=an_environment(torch="2.12.0"), interrupted="interrupted from the keyboard")
    new = a_diagnosis(subject=a_subject(target="cuda:90", device="cuda"), recommendation=a_recommendation())
    comparison = compare_models(old, new)

    assert [change.name for change in comparison.environment] == ["device", "torch"]
    assert comparison.new.recommended == "inductor"
    assert comparison.old.recommended is None
    notes = " ".join(comparison.notes)
    for words in ("different times", "different devices", "lowered for another device", "old one was not finished"):
        assert words in notes


def test_the_json_has_its_kind_and_every_number() -> None:
    comparison = compare_models(with_conversions(3), with_conversions(1))
    data = comparison_to_json(comparison)

    assert msgspec.json.decode(data)["kind"] == "model-comparison"
    assert msgspec.json.decode(data, type=ModelComparison) == comparison
