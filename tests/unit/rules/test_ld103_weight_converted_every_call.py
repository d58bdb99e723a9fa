from __future__ import annotations

from typing import Any

from builders import (
    a_comparison,
    a_conversion,
    a_diagnosis,
    a_graph,
    a_location,
    a_ratio,
    a_subject,
    a_trial,
    blocked,
    contiguous,
    kernels,
)

from layoutdoctor.records import Conversion, Finding, Trial
from layoutdoctor.rules.ld103_weight_converted_every_call import check

SHAPE = (64, 64, 3, 3)
FREEZE = (
    "freeze the model: set torch._inductor.config.freezing = True before the first compiled call, under "
    "torch.no_grad() (given as an option of torch.compile it has no effect); "
    "--configurations all measures it as inductor-freezing"
)


def a_weight(id: str, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {
        "source": contiguous(SHAPE),
        "target": blocked(SHAPE, "ABcd16b16a"),
        "direction": "to_blocked",
        "tensor": "weight",
        "seconds": 1e-4,
        "bytes_moved": 294_912,
    }
    return a_conversion(id, **{**fields, **changes})


def a_trial_with(*weights: Conversion, name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, **{"kernels": kernels(*weights), **changes})


FEW = (a_weight("w0"), a_weight("w1", seconds=2e-4, location=a_location(12), module="body.3"))
DEAR = (a_weight("w0", seconds=7.5e-4),)


def findings(*trials: Trial, **changes: Any) -> list[Finding]:
    return list(check(a_diagnosis(*trials, **changes)))


def test_weights_converted_on_every_call_are_a_note_at_the_dearest_ones_place() -> None:
    assert findings(a_trial_with(*FEW)) == [
        Finding(
            code="LD103",
            rule="weight-converted-every-call",
            severity="note",
            configuration="inductor",
            message="2 weight conversions on every call, inserted by the library: "
            "300 us of 15.0 ms kernel time (2.0 %)",
            suggestion=FREEZE,
            location=a_location(12),
            module="body.3",
            seconds=1e-4 + 2e-4,
            bytes_moved=589_824,
            evidence=("w0", "w1"),
        )
    ]


def test_from_five_percent_on_it_is_a_warning() -> None:
    assert [f.severity for f in findings(a_trial_with(*DEAR))] == ["warning"]


def test_activations_and_moves_that_change_no_layout_are_no_weight_conversions() -> None:
    assert findings(a_trial_with(a_conversion(), a_weight("w0", direction="none"), a_weight("w1", fused=True))) == []


def test_in_training_it_is_expected_and_told_only_where_it_is_dear() -> None:
    training = a_subject(mode="training")

    assert findings(a_trial_with(*FEW), subject=training) == []
    assert [(f.severity, f.suggestion) for f in findings(a_trial_with(*DEAR), subject=training)] == [
        ("note", "expected in training, where each step changes the weights; a larger batch makes it a smaller part")
    ]


def test_eager_is_told_only_where_the_baseline_has_none() -> None:
    eager = a_trial_with(*FEW, name="eager")

    assert [f.configuration for f in findings(eager, a_trial_with(*FEW))] == ["inductor"]
    assert [f.configuration for f in findings(eager, a_trial())] == ["eager"]


def test_other_configurations_are_not_told() -> None:
    assert findings(a_trial(), a_trial_with(*FEW, name="inductor-layout-opt-off")) == []


def test_the_compilers_and_the_librarys_conversions_are_counted_together_each_once() -> None:
    entry = a_weight("copy 0", owner="compiler", seconds=None, bytes_moved=None)
    trial = a_trial_with(a_weight("w0"), graphs=(a_graph(conversions=(entry, a_weight("w0"))),))

    assert [(f.message, f.evidence) for f in findings(trial)] == [
        (
            "2 weight conversions on every call, inserted by the compiler and library: "
            "100 us of 15.0 ms kernel time (0.7 %)",
            ("w0", "copy 0"),
        )
    ]


def test_without_times_the_message_has_no_cost() -> None:
    assert [(f.severity, f.message) for f in findings(a_trial_with(a_weight("w0", seconds=None)))] == [
        ("note", "1 weight conversion on every call, inserted by the library")
    ]


def test_a_configuration_with_fewer_that_is_as_fast_is_the_cure() -> None:
    comparison = a_comparison(a_ratio("inductor-freezing", 1.28))
    speed = "inductor-freezing runs at 1.28x the speed of inductor (99 % interval 1.25x to 1.31x)"
    trial = a_trial_with(*FEW)

    for left, words in (((), "no weight conversions"), (FEW[:1], "1 weight conversion")):
        found = findings(trial, a_trial_with(*left, name="inductor-freezing"), comparison=comparison)

        assert [f.suggestion for f in found] == [f"use inductor-freezing: it leaves {words}; {speed}"]


def test_a_configuration_with_as_many_is_no_cure() -> None:
    comparison = a_comparison(a_ratio("inductor-channels-last", 1.28))

    assert [
        f.suggestion
        for f in findings(a_trial_with(*FEW), a_trial_with(*FEW, name="inductor-channels-last"), comparison=comparison)
    ] == [FREEZE]


def test_without_times_the_place_is_that_of_the_weight_that_moves_most() -> None:
    small = a_weight("a", seconds=None, bytes_moved=8, module="body.0")
    large = a_weight("b", seconds=None, bytes_moved=16, module="body.1")

    assert [f.module for f in findings(a_trial_with(small, large))] == ["body.1"]
