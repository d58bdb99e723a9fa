"""LD103 and LD106: weights that are converted, or cast to another dtype, on every call."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_buffer,
    a_comparison,
    a_conversion,
    a_convolution,
    a_decision,
    a_failed_trial,
    a_graph,
    a_kernel,
    a_location,
    a_node,
    a_placeholder,
    a_ratio,
    a_subject,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    finder,
    kernels,
)
from rule_builders import a_compilers_copy, a_parameter, with_graph
from trace_builders import finder_in_trace, to_channels_last

from layoutdoctor.rules.ld103_weight_conversion import LD103
from layoutdoctor.rules.ld106_cast_with_conversion import LD106
from layoutdoctor.rules.wording import DIAGNOSE

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.graph import FxNode
    from layoutdoctor.diagnosis.trial import Trial

converted, converted_in_trace = finder(LD103.check), finder_in_trace(LD103.check)
cast = finder(LD106.check)

SHAPE = (64, 64, 3, 3)
TRAINING = {"subject": a_subject(mode="training")}
a_weight = partial(
    a_conversion,
    source=contiguous(SHAPE),
    target=blocked(SHAPE, "ABcd16b16a"),
    direction="to_blocked",
    tensor="weight",
    seconds=1e-4,
    bytes_moved=294_912,
)
a_recorded_weight = partial(to_channels_last, source=contiguous(SHAPE), target=channels_last(SHAPE), tensor="weight")
FEW = (a_weight("w0"), a_weight("w1", seconds=2e-4, location=a_location(12), module="body.3"))
DEAR = (a_weight("w0", seconds=7.5e-4),)
BACKWARD = to_channels_last("g0", tensor="gradient")


def a_trial_with(*weights: Conversion, name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, **{"kernels": kernels(*weights), **changes})


def test_weights_that_are_converted_on_every_call_are_counted_each_once(told: Told) -> None:
    told("Weights converted on every call are a note at the dearest ones place", converted(a_trial_with(*FEW)))
    weights = (
        a_recorded_weight("w0", step="ProfilerStep#1", seconds=2e-4, bytes_moved=10),
        a_recorded_weight("w1", step="ProfilerStep#2", confidence="order", module="body.3", bytes_moved=10),
    )
    told(
        "In a trace weights are counted with the steps they ran in and what only their order says",
        converted_in_trace(*weights, to_channels_last("a0")),
    )
    entry = a_weight("copy 0", owner="compiler", seconds=None, bytes_moved=None)
    trial = a_trial_with(a_weight("w0"), graphs=(a_graph(conversions=(entry, a_weight("w0"))),))
    told("The compilers and the librarys conversions are counted together each once", converted(trial))


def test_an_estimated_time_is_said_to_be_one(told: Told) -> None:
    estimated = a_weight("w0", seconds=7.5e-4, seconds_source="estimated")
    told("All times are estimates", converted(a_trial_with(estimated)))
    told("Some times are estimates", converted(a_trial_with(estimated, FEW[1])))


def test_converted_weights_are_a_loss_from_five_percent_on() -> None:
    eager = a_trial_with(*FEW, name="eager")
    assert [f.severity for f in converted(a_trial_with(*DEAR))] == ["warning"]
    assert [f.severity for f in converted_in_trace(a_recorded_weight("w0", seconds=7.5e-4))] == ["warning"]
    assert [f.severity for f in converted_in_trace(a_recorded_weight("w0", seconds=9e-3, confidence="order"))] == [
        "note"
    ]
    assert [f.configuration for f in converted(eager, a_trial_with(*FEW))] == ["inductor"]
    assert converted(a_trial_with(a_conversion(), a_weight("w0", direction="none"), a_weight("w1", fused=True))) == []
    assert converted(a_trial_with(*FEW), **TRAINING) == []
    assert converted_in_trace(to_channels_last("a0"), a_recorded_weight("w0", direction="none")) == []


def test_converted_weights_are_a_loss_if_another_configuration_has_fewer_and_is_faster() -> None:
    frozen, last = "inductor-freezing", "inductor-channels-last-freezing"
    trials = a_trial_with(*DEAR), a_trial_with(name=frozen), a_trial_with(name=last)
    for ratios, severity in (((1.01, 1.5), "warning"), ((1.01, 1.02), "note")):
        comparison = a_comparison(*(a_ratio(name, ratio) for name, ratio in zip((frozen, last), ratios, strict=True)))
        assert [f.severity for f in converted(*trials, comparison=comparison)] == [severity]


def test_frozen_weights_are_suggested_where_they_were_measured_to_help(told: Told) -> None:
    told("In training it is expected and reported only where it is dear", converted(a_trial_with(*DEAR), **TRAINING))
    trial, frozen, last = a_trial_with(*FEW), "inductor-freezing", "inductor-channels-last-freezing"
    comparison = a_comparison(a_ratio(frozen, 1.28), a_ratio(last, 1.65))
    for left in ((), FEW[:1]):
        told(
            "Freezing is the cure with what it brings on its own, whatever is faster still",
            converted(trial, a_trial_with(*left, name=frozen), a_trial_with(name=last), comparison=comparison),
        )
    told(
        "Where freezing was measured as no faster, left open or did not run it is no cure",
        converted(trial, a_trial_with(name=frozen), comparison=a_comparison(a_ratio(frozen, 1.0))),
        converted(trial, a_trial_with(name=frozen), comparison=a_comparison(a_ratio(frozen, 0.95, 0.09))),
        converted(trial, a_failed_trial(frozen, "boom"), comparison=a_comparison()),
    )
    told(
        "A configuration with fewer that is as fast is the cure",
        converted(trial, a_trial_with(name=last), comparison=comparison),
    )
    video = (64, 64, 3, 3, 3)
    back = a_recorded_weight("w0", source=channels_last(SHAPE), target=contiguous(SHAPE), direction="to_contiguous")
    packed = a_recorded_weight("w0", target=blocked(SHAPE), direction="to_blocked", seconds=9e-4)
    told(
        "In a trace the cure follows what the library converts to",
        converted_in_trace(back),
        converted_in_trace(a_recorded_weight("w0", source=contiguous(video), target=channels_last(video))),
        converted_in_trace(packed, BACKWARD),
    )
    assert [f.suggestion for f in converted_in_trace(packed)] == [
        "to find out whether packed weights help, " + DIAGNOSE
    ]
    weights = tuple(a_recorded_weight(f"gpu {i}", target=channels_last(), seconds=1e-3) for i in (0, 1))
    told(
        "On a gpu the parameters can have the librarys layout from the start",
        converted(a_trial_with(*weights)),
        converted(a_trial_with(*weights), **TRAINING),
        converted(a_trial_with(*weights, *FEW)),
    )
    both = a_graph(decision=a_decision(a_convolution(), a_convolution(rank=3)))
    told(
        "One call does not convert a model with weights of both ranks",
        converted(a_trial_with(*FEW, graphs=(both,), is_static=True, measurement=None)),
    )


# ---------------------------------------------------------------------------------------------------------- LD106
def a_cast(name: str, of: str, **changes: Any) -> FxNode:
    fields: dict[str, Any] = {"dtype": "bfloat16", "layout": contiguous(SHAPE), "location": a_location(12)}
    return a_node(name, "prims.convert_element_type.default", (of,), **{**fields, **changes})


a_casting_conversion = partial(
    a_compilers_copy,
    tensor="weight",
    source=contiguous(SHAPE),
    target=channels_last(SHAPE),
    dtype="float32",
    target_dtype="bfloat16",
    seconds=5e-4,
    bytes_moved=221_184,
)
TWO_WEIGHTS = (a_parameter("w0"), a_parameter("w1"))
TWO_CASTS = (*TWO_WEIGHTS, a_cast("c0", "w0"), a_cast("c1", "w1"))


def a_trial_of(nodes: tuple[FxNode, ...], *conversions: Conversion, name: str = "inductor", **changes: Any) -> Trial:
    return with_graph(*nodes, name=name, graph={"conversions": conversions}, **changes)


def test_parameters_that_are_cast_on_every_call_are_counted_with_their_conversions(told: Told) -> None:
    conversions = (
        a_casting_conversion("k0", source_value="w0", location=a_location(7), module="conv_1"),
        a_casting_conversion("k1", source_value="w1", seconds=1e-4),
    )
    told("Parameters that are cast and re laid out are a warning", cast(a_trial_of(TWO_WEIGHTS, *conversions)))
    conversion = a_casting_conversion(
        "r0", dtype="bf16", target_dtype=None, node="convolution", owner="library", graph=None, seconds=None
    )
    reader = a_node("convolution", "aten.convolution.default", ("x", "c0"))
    told(
        "A cast and a conversion of the same parameter belong together",
        cast(a_trial_of((*TWO_CASTS, a_placeholder("x"), reader), conversion)),
    )
    buffers = (
        a_buffer("buf0", kernel="cast_alone", source_node="c0"),
        a_buffer("buf1", kernel="cast_and_more", source_node="c1"),
        a_buffer("buf2", kernel="cast_and_more", source_node="x0"),
    )
    ran = tuple(a_kernel(name, 2e-4, graph="graph 0") for name in ("cast_alone", "cast_alone", "cast_and_more"))
    told(
        "A generated kernel that only casts parameters counts without naming a node",
        cast(a_trial_of(TWO_CASTS, graphs=(a_graph(nodes=TWO_CASTS, buffers=buffers),), kernels=kernels(kernels=ran))),
    )


def test_a_cast_of_one_parameter_or_of_an_activation_is_not_reported() -> None:
    activations = (a_placeholder("x"), a_placeholder("y"), a_cast("c0", "x"), a_cast("c1", "y"))
    same = (*TWO_WEIGHTS, a_cast("c0", "w0", backward=True), a_cast("c1", "w1", dtype="float32"))
    for trial in (
        a_trial_of((a_parameter("w0"), a_cast("c0", "w0"))),  # one alone is a detail
        a_trial_of(activations, a_casting_conversion("k0", tensor="activation", source_value="x")),
        a_trial_of(
            TWO_WEIGHTS, a_casting_conversion("k0", target_dtype=None), a_casting_conversion("k1", dtype="bf16")
        ),
        a_trial_of(same),
        a_trial_of(TWO_WEIGHTS, a_casting_conversion("k0", dtype="int8", target_dtype="float32")),  # dequantised
    ):
        assert cast(trial) == []
    assert cast(a_trial_of(TWO_CASTS), **TRAINING) == []
    squares = tuple(a_node(f"p{i}", "aten.pow.Tensor_Scalar", (f"c{i}",)) for i in (0, 1))  # of a norm in float32
    assert cast(a_trial_of((*TWO_CASTS, *squares))) == []
    flat = tuple(a_node(f"v{i}", "aten.view.default", (f"c{i}",)) for i in (0, 1))
    sums = tuple(a_node(f"s{i}", "aten.sum.dim_IntList", (f"v{i}",)) for i in (0, 1))
    assert cast(a_trial_of((*TWO_CASTS, *flat, *sums))) == []
    product = a_node("mm", "aten.mm.default", ("v0", "v1"))
    assert [f.code for f in cast(a_trial_of((*TWO_CASTS, *flat, *sums, product)))] == ["LD106"]
    eager = a_trial_of(TWO_CASTS, name="eager")
    assert [f.configuration for f in cast(a_trial(), eager)] == ["eager"]


def test_casts_are_expected_in_training(told: Told) -> None:
    told(
        "In training casts alone are expected and with a conversion they are a note",
        cast(a_trial_of(TWO_CASTS, a_casting_conversion("k0", source_value="w0")), **TRAINING),
    )
