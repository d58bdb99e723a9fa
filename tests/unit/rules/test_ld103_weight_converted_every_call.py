from __future__ import annotations

from typing import Any

import msgspec
from builders import (
    a_comparison,
    a_conversion,
    a_graph,
    a_location,
    a_ratio,
    a_subject,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    finder,
    kernels,
)
from trace_builders import finder_in_trace, to_channels_last

from layoutdoctor.diagnosis.records import Conversion, Finding, Trial
from layoutdoctor.rules.ld103_weight_converted_every_call import check

in_trace = finder_in_trace(check)

findings = finder(check)

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


def test_how_severe_it_is() -> None:
    # From five percent on it is a warning.
    assert [f.severity for f in findings(a_trial_with(*DEAR))] == ["warning"]

    # In a trace from five percent on it is a warning unless only their order calls them weights.
    assert [f.severity for f in in_trace(a_recorded_weight("w0", seconds=7.5e-4))] == ["warning"]
    assert [f.severity for f in in_trace(a_recorded_weight("w0", seconds=9e-3, confidence="order"))] == ["note"]


def test_what_is_no_finding() -> None:
    # Activations and moves that change no layout are no weight conversions.
    assert findings(a_trial_with(a_conversion(), a_weight("w0", direction="none"), a_weight("w1", fused=True))) == []

    # Other configurations are not told.
    assert findings(a_trial(), a_trial_with(*FEW, name="inductor-layout-opt-off")) == []

    # In a trace without weights nothing is told.
    assert in_trace(to_channels_last("a0"), a_recorded_weight("w0", direction="none")) == []


def test_what_it_suggests() -> None:
    # In training it is expected and told only where it is dear.
    training = a_subject(mode="training")
    assert findings(a_trial_with(*FEW), subject=training) == []
    assert [(f.severity, f.suggestion) for f in findings(a_trial_with(*DEAR), subject=training)] == [
        ("note", "expected in training, where each step changes the weights; a larger batch makes it a smaller part")
    ]

    # A configuration with fewer that is as fast is the cure.
    comparison = a_comparison(a_ratio("inductor-freezing", 1.28))
    speed = "inductor-freezing runs at 1.28x the speed of inductor (99 % interval 1.25x to 1.31x)"
    trial = a_trial_with(*FEW)
    for left, words in (((), "no weight conversions"), (FEW[:1], "1 weight conversion")):
        found = findings(trial, a_trial_with(*left, name="inductor-freezing"), comparison=comparison)
        assert [f.suggestion for f in found] == [f"use inductor-freezing: it leaves {words}; {speed}"]

    # A configuration with as many is no cure.
    comparison = a_comparison(a_ratio("inductor-channels-last", 1.28))
    assert [
        f.suggestion
        for f in findings(a_trial_with(*FEW), a_trial_with(*FEW, name="inductor-channels-last"), comparison=comparison)
    ] == [FREEZE]

    # A trace with a backward in it is training and told only where it is dear.
    backward = to_channels_last("a0", op="aten::convolution_backward")
    assert in_trace(a_recorded_weight("w0", seconds=7.4e-4), backward) == []
    assert [(f.severity, f.suggestion) for f in in_trace(a_recorded_weight("w0", seconds=7.5e-4), backward)] == [
        (
            "note",
            f"{ONCE} before the optimizer is made, since a step changes their values and not their layout; "
            "record again",
        )
    ]

    # In a trace the cure follows what the library converts to.
    video = (64, 64, 3, 3, 3)
    back = a_recorded_weight("w0", source=channels_last(SHAPE), target=contiguous(SHAPE), direction="to_contiguous")
    flat = a_recorded_weight("w0", source=contiguous(video), target=channels_last(video))
    packed = a_recorded_weight("w0", target=blocked(SHAPE), direction="to_blocked", seconds=9e-4)
    gradient = to_channels_last("g0", tensor="gradient")
    assert [f.suggestion for f in in_trace(back)] == [
        f"{ONCE.replace('channels_last', 'contiguous_format')}; or freeze them: {PACKED}"
    ]
    assert [f.suggestion for f in in_trace(flat)] == [
        f"{ONCE.replace('channels_last', 'channels_last_3d')}; or freeze them: {PACKED}"
    ]
    assert [f.suggestion for f in in_trace(packed)] == [f"pack the weights once: {PACKED}"]
    assert [f.suggestion for f in in_trace(packed, gradient)] == [
        "expected in training, where each step changes the weights; a larger batch makes it a smaller part"
    ]

    # In a trace of an amd gpu the switch is named where channels last is what to convert to.
    kernel: dict[str, Any] = {"kernel": "batched_transpose_64x64_pack_4x4_ediv_2x2_half", "seconds": 9e-4}
    backward = to_channels_last("g0", tensor="gradient")
    switch = "only with PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment"

    def advice(*conversions: Conversion) -> str:
        return " ".join(found.suggestion or "" for found in in_trace(*conversions))

    assert advice(a_recorded_weight("w0", **kernel)).endswith(switch)
    assert advice(a_recorded_weight("w0", **kernel), backward).endswith(switch)
    assert switch not in advice(a_recorded_weight("w0", **kernel, direction="to_contiguous"))

    # On a gpu the parameters can have the librarys layout from the start.
    weights = tuple(
        to_channels_last(f"gpu {i}", tensor="weight", source=contiguous(SHAPE), seconds=1e-3) for i in (0, 1)
    )
    once = "convert the parameters once: model.to(memory_format=torch.channels_last)"
    training = {"subject": a_subject(mode="training")}
    (found,) = findings(a_trial_with(*weights))
    assert (found.severity, found.suggestion) == ("warning", f"{once}; and measure that")
    (found,) = findings(a_trial_with(*weights), **training)
    assert found.suggestion == f"{once}, since a step changes their values and not their layout; and measure that"
    back = tuple(msgspec.structs.replace(c, direction="to_contiguous") for c in weights)
    (found,) = findings(a_trial_with(*back))
    assert "memory_format=torch.contiguous_format" in str(found.suggestion)
    (found,) = findings(a_trial_with(*weights, *FEW))
    assert found.suggestion == FREEZE

    # In training on a gpu a measured configuration without them is named.
    weights = tuple(to_channels_last(f"w{i}", tensor="weight", seconds=1e-3) for i in (0, 1))
    name = "inductor-channels-last"
    (found,) = findings(
        a_trial_with(*weights),
        a_trial_with(name=name),
        subject=a_subject(mode="training"),
        comparison=a_comparison(a_ratio(name, 1.3)),
    )
    assert str(found.suggestion).startswith(f"use {name}: it leaves no weight conversions; ")


def test_which_facts_it_gives() -> None:
    # Eager is told only where the baseline has none.
    eager = a_trial_with(*FEW, name="eager")
    assert [f.configuration for f in findings(eager, a_trial_with(*FEW))] == ["inductor"]
    assert [f.configuration for f in findings(eager, a_trial())] == ["eager"]

    # Without times the place is that of the weight that moves most.
    small = a_weight("a", seconds=None, bytes_moved=8, module="body.0")
    large = a_weight("b", seconds=None, bytes_moved=16, module="body.1")
    assert [f.module for f in findings(a_trial_with(small, large))] == ["body.1"]


def test_what_it_says() -> None:
    # The compilers and the librarys conversions are counted together each once.
    entry = a_weight("copy 0", owner="compiler", seconds=None, bytes_moved=None)
    trial = a_trial_with(a_weight("w0"), graphs=(a_graph(conversions=(entry, a_weight("w0"))),))
    assert [(f.message, f.evidence) for f in findings(trial)] == [
        (
            "2 weight conversions on every call, inserted by the compiler and library: "
            "100 us of 15.0 ms kernel time (0.7 %)",
            ("w0", "copy 0"),
        )
    ]

    # Without times the message has no cost.
    assert [(f.severity, f.message) for f in findings(a_trial_with(a_weight("w0", seconds=None)))] == [
        ("note", "1 weight conversion on every call, inserted by the library")
    ]

    # In a trace without times the message has no cost.
    assert [f.message for f in in_trace(a_recorded_weight("w0", seconds=None))] == [
        "1 weight conversion, inserted by the library: 6.12 MiB moved"
    ]


ONCE = "convert the parameters once: model.to(memory_format=torch.channels_last)"
PACKED = (
    "torch.compile with torch._inductor.config.freezing = True, set before the first compiled call, under "
    "torch.no_grad()"
)


def a_recorded_weight(id: str, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"source": contiguous(SHAPE), "target": channels_last(SHAPE), "tensor": "weight"}
    return to_channels_last(id, **{**fields, **changes})


def test_in_a_trace_weights_are_counted_with_the_steps_they_ran_in_and_what_only_their_order_says() -> None:
    weights = (
        a_recorded_weight("w0", step="ProfilerStep#1", seconds=2e-4, bytes_moved=10),
        a_recorded_weight("w1", step="ProfilerStep#2", confidence="order", module="body.3", bytes_moved=10),
    )

    assert in_trace(*weights, to_channels_last("a0")) == [
        Finding(
            code="LD103",
            rule="weight-converted-every-call",
            severity="note",
            configuration="recorded",
            message="2 weight conversions, 1 in each of 2 recorded steps, 1 of them known by the order of kernels "
            "only, inserted by the library: 300 us of 15.0 ms kernel time (2.0 %, 7.5 % of the convolution time), "
            "80.0 us of it while nothing else ran; most in body.0.0 (model.py:9): 1 of them, 200 us",
            suggestion=f"{ONCE}; or freeze them: {PACKED}",
            location=a_location(),
            module="body.0.0",
            seconds=2e-4 + 1e-4,
            bytes_moved=20,
            evidence=("w0", "w1"),
        )
    ]
