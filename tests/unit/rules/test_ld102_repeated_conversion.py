from __future__ import annotations

from typing import Any

from builders import (
    Told,
    a_comparison,
    a_conversion,
    a_graph,
    a_location,
    a_node,
    a_ratio,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    finder,
    kernels,
)
from trace_builders import finder_in_trace, to_channels_last, to_contiguous

from layoutdoctor.diagnosis.records import Buffer, Conversion, FxNode, Graph, Trial
from layoutdoctor.rules.repeated import LD102

in_trace = finder_in_trace(LD102.check)

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


findings = finder(LD102.check)


def test_what_it_says(told: Told) -> None:
    told(
        "One activation converted for three readers is one finding about the two repetitions",
        findings(a_trial_of(THREE, an_inference())),
    )
    conversions = tuple(a_reading(f"r{i}", f"convolution_{i}", seconds=None, bytes_moved=None) for i in (1, 2))
    told(
        "Without times and bytes the repetition is told without a cost",
        findings(a_trial_of(conversions, an_inference())),
    )
    told(
        "An activation converted in the forward and again in the backward is a repetition",
        findings(a_trial_of(IN_TRAINING, FORWARD, BACKWARD)),
    )
    nodes = (
        a_node("tangents_1", "tangents_1", op="placeholder"),
        *(a_node(f"convolution_{i}", CONVOLUTION, ("tangents_1",)) for i in (1, 2)),
    )
    backward = a_graph(name="backward", direction="backward", nodes=nodes)
    told("A backward input that no forward returns is a value of its own", findings(a_trial_of(THREE[:2], backward)))
    told(
        "A buffer that the compiler copies twice is a repetition",
        findings(a_compiled(a_copy("c0", "convolution_1"), a_copy("c1", seconds=0.0005))),
    )

    copies = tuple(a_copy(f"c{i}", source_value="arg0_1", value=None) for i in range(2))
    told("A graph input that is copied twice is one as well", findings(a_compiled(*copies)))
    cheap = (a_copy("a0", "convolution_1", seconds=1e-4), a_copy("a1", "convolution_2", seconds=1e-4))
    dear = tuple(a_copy(f"b{i}", f"convolution_{i}", source_value="arg0_1") for i in (1, 2, 3))
    told("Several repeated tensors are one finding about the dearest", findings(a_compiled(*cheap, *dear)))


def test_what_it_suggests(told: Told) -> None:
    forward = to_channels_last("k0", source_value="t1", module="conv_1")
    backward = to_channels_last(
        "k1", source_value="t1", op="aten::convolution_backward", seconds=3e-4, exposed_seconds=3e-4
    )
    told("In a trace what forward and backward convert of one tensor is repeated", in_trace(forward, backward))
    told(
        "A configuration that repeats nothing is the cure",
        findings(
            a_trial_of(THREE, an_inference()),
            a_trial("inductor-channels-last"),
            comparison=a_comparison(a_ratio("inductor-channels-last", 1.28)),
        ),
    )

    conversions = tuple(a_reading(f"r{i}", f"convolution_{i}") for i in (1, 2))
    told(
        "What is repeated in a channels last model is better converted once by hand",
        findings(a_trial_of(conversions, an_inference(), name="inductor-channels-last")),
    )

    gradients = [to_contiguous(f"g{i}", source_value="t2", tensor="gradient", op=None, seconds=2e-4) for i in range(3)]
    told(
        "In a trace many tensors are one finding about the dearest and a loss together",
        in_trace(*(to_channels_last(f"k{i}", source_value="t1") for i in range(2)), *gradients),
    )
    told(
        "In a trace a direction that is not known is answered by trying the other format",
        in_trace(*(to_channels_last(f"k{i}", source_value="t1", direction="other") for i in range(2))),
    )

    kernel = "batched_transpose_64x64_pack_4x4_ediv_2x2_half"
    told(
        "In a trace of an amd gpu the switch is named that channels last needs there",
        in_trace(*(to_channels_last(f"k{i}", source_value="t1", kernel=kernel) for i in range(2))),
    )


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

    # A small repetition is a note.
    conversions = tuple(a_reading(f"r{i}", f"convolution_{i}", seconds=1e-4) for i in (1, 2))
    assert [f.severity for f in findings(a_trial_of(conversions, an_inference()))] == ["note"]


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
