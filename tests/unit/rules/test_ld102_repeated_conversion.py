from __future__ import annotations

from typing import Any

import pytest
from builders import (
    a_comparison,
    a_conversion,
    a_diagnosis,
    a_graph,
    a_location,
    a_node,
    a_ratio,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    kernels,
)
from trace_builders import finder_in_trace, to_channels_last, to_contiguous

from layoutdoctor.diagnosis.records import Buffer, Conversion, Diagnosis, Finding, FxNode, Graph, Trial
from layoutdoctor.rules.ld102_repeated_conversion import check

in_trace = finder_in_trace(check)

CONVOLUTION = "aten.convolution.default"
WEIGHT = a_node("primals_1", "primals_1", op="placeholder", layout=contiguous((64, 64, 3, 3)), tensor="weight")
RELU = a_node("relu", inputs=("x",))
READERS = tuple(a_node(f"convolution_{i}", CONVOLUTION, ("relu", "primals_1")) for i in (1, 2, 3))


def a_reading(id: str, node: str | None, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"source": contiguous(), "target": blocked(), "direction": "to_blocked", "node": node}
    return a_conversion(id, **{**fields, **changes})


def a_trial_of(conversions: tuple[Conversion, ...], *graphs: Graph, name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, **{"kernels": kernels(*conversions), "graphs": graphs, **changes})


def an_inference(*nodes: FxNode) -> Graph:
    return a_graph(nodes=(WEIGHT, RELU, *READERS, *nodes))


THREE = tuple(a_reading(f"r{i}", f"convolution_{i}", location=a_location(i), module=f"branch.{i}") for i in (1, 2, 3))


def findings(*trials: Trial, **changes: Any) -> list[Finding]:
    diagnosis: Diagnosis = a_diagnosis(*trials, **changes)
    return list(check(diagnosis))


def test_one_activation_converted_for_three_readers_is_one_finding_about_the_two_repetitions() -> None:
    assert findings(a_trial_of(THREE, an_inference())) == [
        Finding(
            code="LD102",
            rule="repeated-conversion",
            severity="warning",
            configuration="inductor",
            message="relu (4x64x56x56, made by relu) is converted 3 times from contiguous to blocked aBcd16b, for "
            "convolution_1, convolution_2 and convolution_3; all but one is repetition: "
            "2.00 ms of 15.0 ms kernel time (13 %), 12.2 MiB",
            suggestion="let the producer write the layout its readers want: give the model and its input channels_last",
            location=a_location(2),
            module="branch.2",
            seconds=2e-3,
            bytes_moved=12_845_056,
            evidence=("r1", "r2", "r3"),
        )
    ]


def test_a_small_repetition_is_a_note() -> None:
    conversions = tuple(a_reading(f"r{i}", f"convolution_{i}", seconds=1e-4) for i in (1, 2))

    assert [f.severity for f in findings(a_trial_of(conversions, an_inference()))] == ["note"]


def test_what_it_says() -> None:
    # Without times and bytes the repetition is told without a cost.
    conversions = tuple(a_reading(f"r{i}", f"convolution_{i}", seconds=None, bytes_moved=None) for i in (1, 2))
    assert [(f.severity, f.message) for f in findings(a_trial_of(conversions, an_inference()))] == [
        (
            "warning",
            "relu (4x64x56x56, made by relu) is converted 2 times from contiguous to blocked aBcd16b, for "
            "convolution_1 and convolution_2; all but one is repetition",
        )
    ]

    # An activation converted in the forward and again in the backward is a repetition.
    assert [f.message for f in findings(a_trial_of(IN_TRAINING, FORWARD, BACKWARD))] == [
        "relu (4x64x56x56, made by relu) is converted 2 times from contiguous to blocked aBcd16b, for "
        "convolution_1 and convolution_backward; all but one is repetition: "
        "1.00 ms of 15.0 ms kernel time (6.7 %), 6.12 MiB"
    ]

    # A backward input that no forward returns is a value of its own.
    nodes = (
        a_node("tangents_1", "tangents_1", op="placeholder"),
        *(a_node(f"convolution_{i}", CONVOLUTION, ("tangents_1",)) for i in (1, 2)),
    )
    backward = a_graph(name="backward", direction="backward", nodes=nodes)
    assert [f.message for f in findings(a_trial_of(THREE[:2], backward))] == [
        "tangents_1 (4x64x56x56) is converted 2 times from contiguous to blocked aBcd16b, for "
        "convolution_1 and convolution_2; all but one is repetition: "
        "1.00 ms of 15.0 ms kernel time (6.7 %), 6.12 MiB"
    ]

    # A buffer that the compiler copies twice is a repetition.
    found = findings(a_compiled(a_copy("c0", "convolution_1"), a_copy("c1", seconds=5e-4)))
    assert [(f.message, f.evidence) for f in found] == [
        (
            "buf3 (4x64x56x56, made by relu) is converted 2 times from contiguous to channels_last, for convolution_1 "
            "and c1 buffer; all but one is repetition: 500 us of 15.0 ms kernel time (3.3 %), 6.12 MiB",
            ("c0", "c1"),
        )
    ]

    # A graph input that is copied twice is one as well.
    copies = tuple(a_copy(f"c{i}", source_value="arg0_1", value=None) for i in range(2))
    assert findings(a_compiled(*copies))[0].message.startswith(
        "arg0_1 (4x64x56x56) is converted 2 times from contiguous to channels_last; all but one is repetition"
    )

    # Several repeated tensors are one finding about the dearest.
    cheap = (a_copy("a0", "convolution_1", seconds=1e-4), a_copy("a1", "convolution_2", seconds=1e-4))
    dear = tuple(a_copy(f"b{i}", f"convolution_{i}", source_value="arg0_1") for i in (1, 2, 3))
    assert [(f.message, f.evidence, f.seconds) for f in findings(a_compiled(*cheap, *dear))] == [
        (
            "2 tensors are converted 5 times, where 2 would do: 2.10 ms of 15.0 ms kernel time (14 %), 18.4 MiB; "
            "the dearest: arg0_1 (4x64x56x56) is converted 3 times from contiguous to channels_last, for "
            "convolution_1, convolution_2 and convolution_3",
            ("b1", "b2", "b3", "a0", "a1"),
            pytest.approx(2.1e-3),
        )
    ]


def test_what_it_suggests() -> None:
    # A configuration that repeats nothing is the cure.
    found = findings(
        a_trial_of(THREE, an_inference()),
        a_trial("inductor-channels-last"),
        comparison=a_comparison(a_ratio("inductor-channels-last", 1.28)),
    )
    assert [f.suggestion for f in found] == [
        "use inductor-channels-last: it repeats no conversion; "
        "inductor-channels-last runs at 1.28x the speed of inductor (99 % interval 1.25x to 1.31x)"
    ]

    # What is repeated in a channels last model is better converted once by hand.
    conversions = tuple(a_reading(f"r{i}", f"convolution_{i}") for i in (1, 2))
    assert [f.suggestion for f in findings(a_trial_of(conversions, an_inference(), name="inductor-channels-last"))] == [
        "convert the value once by hand, in front of its readers, and give them the copy"
    ]

    # In a trace many tensors are one finding about the dearest and a loss together.
    gradients = [to_contiguous(f"g{i}", source_value="t2", tensor="gradient", op=None, seconds=2e-4) for i in range(3)]
    (found,) = in_trace(*(to_channels_last(f"k{i}", source_value="t1") for i in range(2)), *gradients)
    assert (found.severity, found.seconds) == ("warning", pytest.approx(5e-4))
    assert found.message == (
        "2 tensors are converted 5 times, where 2 would do: 500 us of 15.0 ms kernel time (3.3 %, 12 % of the "
        "convolution time), 120 us of it while nothing else ran, 18.4 MiB; the dearest: a gradient (4x64x56x56) is "
        "converted 3 times from channels_last to contiguous"
    )
    assert found.suggestion is not None
    assert "model.to(memory_format=torch.contiguous_format)" in found.suggestion

    # In a trace a direction that is not known is answered by trying the other format.
    (found,) = in_trace(*(to_channels_last(f"k{i}", source_value="t1", direction="other") for i in range(2)))
    assert found.suggestion is not None
    assert "with model and input in the other memory format" in found.suggestion

    # In a trace of an amd gpu the switch is named that channels last needs there.
    kernel = "batched_transpose_64x64_pack_4x4_ediv_2x2_half"
    (found,) = in_trace(*(to_channels_last(f"k{i}", source_value="t1", kernel=kernel) for i in range(2)))
    assert found.suggestion is not None
    assert "memory_format=torch.channels_last); " in found.suggestion
    assert found.suggestion.endswith("only with PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment")


def test_what_is_no_finding() -> None:
    # Two targets are two conversions that are both needed.
    conversions = (THREE[0], a_reading("r2", "convolution_2", target=blocked(tag="aBcd8b")))
    assert findings(a_trial_of(conversions, an_inference())) == []

    # Two tensors of one shape are not one tensor.
    other = a_node("relu_1", inputs=("x",))
    reader = a_node("convolution_4", CONVOLUTION, ("relu_1", "primals_1"))
    conversions = (THREE[0], a_reading("r4", "convolution_4"))
    assert findings(a_trial_of(conversions, an_inference(other, reader))) == []

    # Without a node there is no proof.
    assert findings(a_trial_of((a_reading("r1", None), a_reading("r2", None)), an_inference())) == []

    # A node of that name in two graphs is no proof.
    second = a_graph(name="graph 1", nodes=an_inference().nodes)
    assert findings(a_trial_of(THREE, an_inference(), second)) == []

    # An operation that reads two values of the shape is no proof.
    readers = tuple(a_node(f"add_{i}", "aten.add.Tensor", ("relu", "x")) for i in (1, 2))
    nodes = (a_node("x", "x", op="placeholder"), RELU, *readers)
    conversions = tuple(a_reading(f"r{i}", f"add_{i}") for i in (1, 2))
    assert findings(a_trial_of(conversions, a_graph(nodes=nodes))) == []

    # A value whose layout was not recorded is no proof.
    nodes = (WEIGHT, a_node("relu", layout=None), *READERS)
    assert findings(a_trial_of(THREE, a_graph(nodes=nodes))) == []

    # A value changed in place between its readers is excused.
    assert findings(a_trial_of(THREE, an_inference(a_node("add_", "aten.add_.Tensor", ("relu", "x"))))) == []

    # Weights outputs and conversions without layouts are not looked at.
    for changes in ({"tensor": "weight"}, {"direction": "from_blocked"}, {"source": None}, {"target": None}):
        conversions = tuple(a_reading(f"r{i}", f"convolution_{i}", **changes) for i in (1, 2))
        assert findings(a_trial_of(conversions, an_inference())) == []

    # With a gradient of the same shape the backward proves nothing.
    twin = a_node("tangents_1", "tangents_1", op="placeholder")
    backward = a_graph(name="backward", direction="backward", nodes=(SAVED, twin, WEIGHT, BACKWARD_NODE))
    assert findings(a_trial_of(IN_TRAINING, FORWARD, backward)) == []

    # Two pairs of graphs leave open which forward a saved value is from.
    second = a_graph(name="backward 1", direction="backward")
    assert findings(a_trial_of(IN_TRAINING, FORWARD, BACKWARD, second)) == []

    # Copies of other buffers graphs targets or in fused kernels are no repetition.
    for changes in (
        {"source_value": "buf4"},
        {"graph": "graph 1"},
        {"target": blocked()},
        {"fused": True},
        {"tensor": "weight"},
        {"owner": "framework"},
        {"source_value": None},
    ):
        assert findings(a_compiled(a_copy("c0"), a_copy("c1", **changes))) == []

    # A buffer of a value that is changed in place is excused.
    nodes = (RELU, a_node("add_", "aten.add_.Tensor", ("relu", "x")))
    assert findings(a_compiled(a_copy("c0"), a_copy("c1"), nodes=nodes)) == []

    # In a trace only the same value in the same two layouts is proven to be one tensor.
    first = to_channels_last("k0", source_value="t1")
    assert in_trace(first, to_channels_last("k1", source_value="t2")) == []
    assert in_trace(first, to_channels_last("k1", source_value="t1", target=blocked())) == []
    assert in_trace(to_channels_last("k0", source_value=None), to_channels_last("k1", source_value=None)) == []
    assert in_trace(*(to_channels_last(f"k{i}", source_value="t1", source=None) for i in range(2))) == []

    # In a trace weights and what changes no layout are told elsewhere.
    assert in_trace(*(to_channels_last(f"k{i}", source_value="t1", tensor="weight") for i in range(2))) == []
    assert in_trace(*(to_channels_last(f"k{i}", source_value="t1", direction="none") for i in range(2))) == []


FORWARD = a_graph(
    name="forward", direction="forward", nodes=(WEIGHT, RELU, READERS[0]), output_names=("convolution_1", "relu")
)
SAVED = a_node("relu", "relu", op="placeholder")
TANGENT = a_node("tangents_1", "tangents_1", op="placeholder", layout=contiguous((4, 32, 56, 56)))
BACKWARD_NODE = a_node("convolution_backward", "aten.convolution_backward.default", ("tangents_1", "relu", "primals_1"))
BACKWARD = a_graph(name="backward", direction="backward", nodes=(SAVED, TANGENT, WEIGHT, BACKWARD_NODE))
IN_TRAINING = (THREE[0], a_reading("r9", "convolution_backward"))


def test_which_facts_it_gives() -> None:
    # A move to channels last counts as well.
    conversions = tuple(
        a_reading(f"r{i}", f"convolution_{i}", target=channels_last(), direction="to_channels_last") for i in (1, 2)
    )
    assert [f.evidence for f in findings(a_trial_of(conversions, an_inference()))] == [("r1", "r2")]

    # The dearest conversion counts as the one that has to stay.
    conversions = (THREE[0], a_reading("r2", "convolution_2", seconds=5e-3, bytes_moved=8))
    assert [(f.seconds, f.bytes_moved) for f in findings(a_trial_of(conversions, an_inference()))] == [(1e-3, 8)]


HELD = Buffer(name="buf3", layout=contiguous(), dtype="float32", kernel="k0", source_node="relu")


def a_copy(id: str, node: str | None = None, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {
        "owner": "compiler",
        "graph": "graph 0",
        "source": contiguous(),
        "target": channels_last(),
        "direction": "to_channels_last",
        "node": node,
        "value": f"{id} buffer",
        "source_value": "buf3",
    }
    return a_conversion(id, **{**fields, **changes})


def a_compiled(*copies: Conversion, nodes: tuple[FxNode, ...] = (RELU,)) -> Trial:
    return a_trial(graphs=(a_graph(nodes=nodes, buffers=(HELD,), conversions=copies),))


def test_in_a_trace_what_forward_and_backward_convert_of_one_tensor_is_repeated() -> None:
    forward = to_channels_last("k0", source_value="t1", module="conv_1")
    backward = to_channels_last(
        "k1", source_value="t1", op="aten::convolution_backward", seconds=3e-4, exposed_seconds=3e-4
    )

    assert in_trace(forward, backward) == [
        Finding(
            code="LD102",
            rule="repeated-conversion",
            severity="note",
            configuration="recorded",
            message="an activation (4x64x56x56) is converted 2 times from contiguous to channels_last, for "
            "convolution_backward and cudnn_convolution; all but one is repetition: 100 us of 15.0 ms kernel time "
            "(0.7 %, 2.5 % of the convolution time), 40.0 us of it while nothing else ran, 6.12 MiB",
            suggestion="let the producer write the layout its readers want: record it again with model = "
            "model.to(memory_format=torch.channels_last) and x = x.to(memory_format=torch.channels_last); "
            "or diagnose the model itself, which measures: python -m layoutdoctor model.py",
            location=a_location(),
            module="conv_1",
            seconds=1e-4,
            bytes_moved=6_422_528,
            evidence=("k1", "k0"),
        )
    ]
