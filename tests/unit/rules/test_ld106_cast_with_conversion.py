from __future__ import annotations

from functools import partial
from typing import Any

from builders import (
    Told,
    a_conversion,
    a_diagnosis,
    a_graph,
    a_location,
    a_node,
    a_placeholder,
    a_subject,
    a_trial,
    channels_last,
    contiguous,
    kernels,
)
from trace_builders import finder_in_trace, to_channels_last

from layoutdoctor.diagnosis.records import Conversion, Finding, FxNode, Kernel, Trial
from layoutdoctor.rules.weights import LD106

in_trace = finder_in_trace(LD106.check)

WEIGHT = (64, 64, 3, 3)
TO_BFLOAT16 = (
    "convert the parameters once: model.to(torch.bfloat16), with an input of that dtype, instead of autocast; compare "
    "the outputs, since autocast keeps some operations in float32"
)


def a_weight(name: str) -> FxNode:
    return a_placeholder(name, contiguous(WEIGHT), "weight")


def a_cast(name: str, of: str, **changes: Any) -> FxNode:
    fields: dict[str, Any] = {"dtype": "bfloat16", "layout": contiguous(WEIGHT), "location": a_location(12)}
    return a_node(name, "prims.convert_element_type.default", (of,), **{**fields, **changes})


a_casting_conversion = partial(
    a_conversion,
    owner="compiler",
    graph="graph 0",
    tensor="weight",
    source=contiguous(WEIGHT),
    target=channels_last(WEIGHT),
    direction="to_channels_last",
    dtype="float32",
    target_dtype="bfloat16",
    seconds=5e-4,
    bytes_moved=221_184,
)


def a_trial_of(nodes: tuple[FxNode, ...], *conversions: Conversion, name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, **{"graphs": (a_graph(nodes=nodes, conversions=conversions),), **changes})


def findings(*trials: Trial, mode: str = "inference") -> list[Finding]:
    return list(LD106.check(a_diagnosis(*trials, subject=a_subject(mode=mode))))


TWO_WEIGHTS = (a_weight("w0"), a_weight("w1"))
TWO_CASTS = (*TWO_WEIGHTS, a_cast("c0", "w0"), a_cast("c1", "w1"))


def test_what_it_says(told: Told) -> None:
    casts = (
        a_recorded_cast("k0", seconds=2e-4, bytes_moved=10),
        a_recorded_cast("k1", tensor="weight", module="body.3", bytes_moved=10),
        a_recorded_cast("k2", tensor="weight", module="body.3", dtype="f32", target_dtype="bf16", bytes_moved=10),
    )
    told("In a trace kernels that cast and convert at once are told whatever the tensor", in_trace(*casts))
    conversions = (
        a_casting_conversion("k0", source_value="w0", location=a_location(7), module="conv_1"),
        a_casting_conversion("k1", source_value="w1", seconds=1e-4),
    )
    told("Parameters that are cast and re laid out are a warning", findings(a_trial_of(TWO_WEIGHTS, *conversions)))
    reader = a_node("convolution", "aten.convolution.default", ("x", "c0"))
    conversion = a_casting_conversion(
        "r0", dtype="bf16", target_dtype=None, node="convolution", owner="library", graph=None, seconds=None
    )
    nodes = (*TWO_CASTS, a_placeholder("x"), reader)
    told("A cast and a conversion of the same parameter belong together", findings(a_trial_of(nodes, conversion)))

    ran = tuple(Kernel(name="copy_", seconds=2e-4, node=name, graph="graph 0") for name in ("c0", "c1", "other"))
    trial = a_trial_of(TWO_CASTS, kernels=kernels(kernels=ran))
    told("Two casts alone are told in inference with their kernels", findings(trial))
    told("Casts in graphs that never ran are told without a time", findings(a_trial_of(TWO_CASTS, kernels=None)))

    conversion = a_casting_conversion("r0", dtype="f32", target_dtype="bf16", owner="library", graph=None, node=None)
    told("Onednn names of dtypes are those of torch", findings(a_trial(kernels=kernels(conversion))))

    # Both graphs call their parameter ``w0``: the conversion is that of the second one, whose cast it goes with.
    first = a_graph(nodes=TWO_CASTS)
    conversion = a_casting_conversion("k0", graph="graph 1", source_value="w0", target_dtype=None)
    second = a_graph(name="graph 1", nodes=(a_weight("w0"), a_cast("d0", "w0")), conversions=(conversion,))
    told("A conversion belongs to the parameter of its own graph", findings(a_trial(graphs=(first, second))))


def test_what_is_no_finding() -> None:
    # One cast alone is a detail.
    assert findings(a_trial_of((a_weight("w0"), a_cast("c0", "w0")))) == []

    # Casts of activations are not looked at.
    nodes = (a_placeholder("x"), a_placeholder("y"), a_cast("c0", "x"), a_cast("c1", "y"))
    conversion = a_casting_conversion("k0", tensor="activation", source_value="x")
    assert findings(a_trial_of(nodes, conversion)) == []

    # Conversions without a cast are not told.
    conversions = (a_casting_conversion("k0", target_dtype=None), a_casting_conversion("k1", target_dtype="f32"))
    assert findings(a_trial_of(TWO_WEIGHTS, *conversions)) == []

    # A cast in the backward or to the same dtype is no cast on every call.
    nodes = (*TWO_WEIGHTS, a_cast("c0", "w0", backward=True), a_cast("c1", "w1", dtype="float32"))
    assert findings(a_trial_of(nodes)) == []

    # In a trace a conversion of one dtype and a cast of one layout are none.
    same, unknown = a_recorded_cast("a", target_dtype="float32"), a_recorded_cast("b", target_dtype=None)
    assert in_trace(same, unknown, a_recorded_cast("c", direction="none")) == []


def test_what_it_suggests(told: Told) -> None:
    assert findings(a_trial_of(TWO_CASTS), mode="training") == []
    told(
        "In training casts alone are expected and with a conversion they are a note",
        findings(a_trial_of(TWO_CASTS, a_casting_conversion("k0", source_value="w0")), mode="training"),
    )

    conversions = (a_casting_conversion("k0"), a_casting_conversion("k1", target_dtype="float16", seconds=None))
    told("Two dtypes are both named", findings(a_trial_of((), *conversions)))

    # In a trace weights alone are better cast once.
    weight = a_recorded_cast("k0", tensor="weight", target_dtype="bfloat16", seconds=2.9e-4)
    assert [(f.severity, f.suggestion) for f in in_trace(weight)] == [("note", TO_BFLOAT16)]

    weight = a_recorded_cast("k0", tensor="weight", seconds=9e-3)
    told(
        "In a trace of training it is a note that expects the casts of weights",
        in_trace(weight, to_channels_last("k1", tensor="gradient")),
    )
    told(
        "In a trace a library that casts back to contiguous is met in that format",
        in_trace(a_recorded_cast("k0", direction="to_contiguous")),
    )

    # Eager is looked at where the baseline shows nothing.
    casts = tuple(a_node(f"c{i}", "aten._to_copy.default", (f"w{i}",), dtype="bfloat16") for i in range(2))
    assert [f.configuration for f in findings(a_trial(), a_trial_of((*TWO_WEIGHTS, *casts), name="eager"))] == ["eager"]


def a_recorded_cast(id: str, **changes: Any) -> Conversion:
    return to_channels_last(id, **{"dtype": "float32", "target_dtype": "float16", **changes})
