from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from builders import (
    Told,
    a_comparison,
    a_conversion,
    a_failed_trial,
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

from layoutdoctor.rules.weights import LD103
from layoutdoctor.rules.wording import DIAGNOSE

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Conversion, Trial

in_trace = finder_in_trace(LD103.check)

findings = finder(LD103.check)

SHAPE = (64, 64, 3, 3)


a_weight = partial(
    a_conversion,
    source=contiguous(SHAPE),
    target=blocked(SHAPE, "ABcd16b16a"),
    direction="to_blocked",
    tensor="weight",
    seconds=1e-4,
    bytes_moved=294_912,
)


def a_trial_with(*weights: Conversion, name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, **{"kernels": kernels(*weights), **changes})


FEW = (a_weight("w0"), a_weight("w1", seconds=2e-4, location=a_location(12), module="body.3"))
DEAR = (a_weight("w0", seconds=7.5e-4),)


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


def test_what_it_suggests(told: Told) -> None:
    training = a_subject(mode="training")
    assert findings(a_trial_with(*FEW), subject=training) == []
    told("In training it is expected and told only where it is dear", findings(a_trial_with(*DEAR), subject=training))

    trial, frozen, last = a_trial_with(*FEW), "inductor-freezing", "inductor-channels-last-freezing"
    comparison = a_comparison(a_ratio(frozen, 1.28), a_ratio(last, 1.65))
    for left in ((), FEW[:1]):
        told(
            "Freezing is the cure with what it brings on its own, whatever is faster still",
            findings(trial, a_trial_with(*left, name=frozen), a_trial_with(name=last), comparison=comparison),
        )
    told(
        "Where freezing was measured as no faster, left open or did not run it is no cure",
        findings(trial, a_trial_with(name=frozen), comparison=a_comparison(a_ratio(frozen, 1.0))),
        findings(trial, a_trial_with(name=frozen), comparison=a_comparison(a_ratio(frozen, 0.95, 0.09))),
        findings(trial, a_failed_trial(frozen, "boom"), comparison=a_comparison()),
    )
    told(
        "A configuration with fewer that is as fast is the cure",
        findings(trial, a_trial_with(name=last), comparison=comparison),
    )

    comparison = a_comparison(a_ratio("inductor-channels-last", 1.28))
    told(
        "A configuration with as many is no cure",
        findings(a_trial_with(*FEW), a_trial_with(*FEW, name="inductor-channels-last"), comparison=comparison),
    )

    backward = to_channels_last("a0", op="aten::convolution_backward")
    assert in_trace(a_recorded_weight("w0", seconds=7.4e-4), backward) == []
    told(
        "A trace with a backward in it is training and told only where it is dear",
        in_trace(a_recorded_weight("w0", seconds=0.00075), backward),
    )

    video = (64, 64, 3, 3, 3)
    back = a_recorded_weight("w0", source=channels_last(SHAPE), target=contiguous(SHAPE), direction="to_contiguous")
    flat = a_recorded_weight("w0", source=contiguous(video), target=channels_last(video))
    packed = a_recorded_weight("w0", target=blocked(SHAPE), direction="to_blocked", seconds=9e-4)
    gradient = to_channels_last("g0", tensor="gradient")
    told("In a trace the cure follows what the library converts to", in_trace(back), in_trace(flat))
    assert [f.suggestion for f in in_trace(packed)] == ["to find out whether packed weights help, " + DIAGNOSE]
    told("In a trace the cure follows what the library converts to", in_trace(packed, gradient))

    # In a trace of an amd gpu the switch is named where channels last is what to convert to.
    kernel: dict[str, Any] = {"kernel": "batched_transpose_64x64_pack_4x4_ediv_2x2_half", "seconds": 9e-4}
    backward = to_channels_last("g0", tensor="gradient")
    switch = "only with PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment"

    def advice(*conversions: Conversion) -> str:
        return " ".join(found.suggestion or "" for found in in_trace(*conversions))

    assert advice(a_recorded_weight("w0", **kernel)).endswith(switch)
    assert advice(a_recorded_weight("w0", **kernel), backward).endswith(switch)
    assert switch not in advice(a_recorded_weight("w0", **kernel, direction="to_contiguous"))

    weights = tuple(
        to_channels_last(f"gpu {i}", tensor="weight", source=contiguous(SHAPE), seconds=1e-3) for i in (0, 1)
    )
    training = {"subject": a_subject(mode="training")}
    told(
        "On a gpu the parameters can have the librarys layout from the start",
        findings(a_trial_with(*weights)),
        findings(a_trial_with(*weights), **training),
    )
    back = tuple(msgspec.structs.replace(c, direction="to_contiguous") for c in weights)
    told(
        "On a gpu the parameters can have the librarys layout from the start",
        findings(a_trial_with(*back)),
        findings(a_trial_with(*weights, *FEW)),
    )

    weights = tuple(to_channels_last(f"w{i}", tensor="weight", seconds=1e-3) for i in (0, 1))
    name = "inductor-channels-last"
    told(
        "In training on a gpu a measured configuration without them is named",
        findings(
            a_trial_with(*weights),
            a_trial_with(name=name),
            subject=a_subject(mode="training"),
            comparison=a_comparison(a_ratio(name, 1.3)),
        ),
    )


def test_which_facts_it_gives() -> None:
    # Eager is told only where the baseline has none.
    eager = a_trial_with(*FEW, name="eager")
    assert [f.configuration for f in findings(eager, a_trial_with(*FEW))] == ["inductor"]
    assert [f.configuration for f in findings(eager, a_trial())] == ["eager"]

    # Without times the place is that of the weight that moves most.
    small = a_weight("a", seconds=None, bytes_moved=8, module="body.0")
    large = a_weight("b", seconds=None, bytes_moved=16, module="body.1")
    assert [f.module for f in findings(a_trial_with(small, large))] == ["body.1"]


def test_what_it_says(told: Told) -> None:
    weights = (
        a_recorded_weight("w0", step="ProfilerStep#1", seconds=2e-4, bytes_moved=10),
        a_recorded_weight("w1", step="ProfilerStep#2", confidence="order", module="body.3", bytes_moved=10),
    )
    told(
        "In a trace weights are counted with the steps they ran in and what only their order says",
        in_trace(*weights, to_channels_last("a0")),
    )
    told("Weights converted on every call are a note at the dearest ones place", findings(a_trial_with(*FEW)))
    entry = a_weight("copy 0", owner="compiler", seconds=None, bytes_moved=None)
    trial = a_trial_with(a_weight("w0"), graphs=(a_graph(conversions=(entry, a_weight("w0"))),))
    told("The compilers and the librarys conversions are counted together each once", findings(trial))
    told("Without times the message has no cost", findings(a_trial_with(a_weight("w0", seconds=None))))
    told("In a trace without times the message has no cost", in_trace(a_recorded_weight("w0", seconds=None)))


a_recorded_weight = partial(to_channels_last, source=contiguous(SHAPE), target=channels_last(SHAPE), tensor="weight")
