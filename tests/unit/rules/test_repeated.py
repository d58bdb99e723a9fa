"""LD102: what counts as one value that is converted again, and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_comparison,
    a_conversion,
    a_graph,
    a_location,
    a_node,
    a_placeholder,
    a_ratio,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    finder,
    kernels,
)
from trace_builders import finder_in_trace, to_channels_last, to_contiguous

from layoutdoctor.diagnosis.graph import Buffer, FxNode, Graph
from layoutdoctor.rules.round_trips import LD102

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.trial import Trial

findings, in_trace = finder(LD102.check), finder_in_trace(LD102.check)

CONVOLUTION = "aten.convolution.default"
WEIGHT = a_placeholder("primals_1", contiguous((64, 64, 3, 3)), "weight")
RELU = a_node("relu", inputs=("x",))
READERS = tuple(a_node(f"convolution_{i}", CONVOLUTION, ("relu", "primals_1")) for i in (1, 2, 3))


def a_reading(id: str, node: str | None, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"source": contiguous(), "target": blocked(), "direction": "to_blocked", "node": node}
    return a_conversion(id, **{**fields, **changes})


def a_trial_of(conversions: tuple[Conversion, ...], *graphs: Graph, name: str = "inductor") -> Trial:
    return a_trial(name, kernels=kernels(*conversions), graphs=graphs)


def an_inference(*nodes: FxNode) -> Graph:
    return a_graph(nodes=(WEIGHT, RELU, *READERS, *nodes))


def two(**changes: Any) -> tuple[Conversion, ...]:
    return tuple(a_reading(f"r{i}", f"convolution_{i}", **changes) for i in (1, 2))


THREE = tuple(a_reading(f"r{i}", f"convolution_{i}", location=a_location(i), module=f"branch.{i}") for i in (1, 2, 3))
FORWARD = a_graph(
    name="forward", direction="forward", nodes=(WEIGHT, RELU, READERS[0]), output_names=("convolution_1", "relu")
)
SAVED, TANGENT = a_placeholder("relu"), a_placeholder("tangents_1", contiguous((4, 32, 56, 56)))
BACKWARD_NODE = a_node("convolution_backward", "aten.convolution_backward.default", ("tangents_1", "relu", "primals_1"))
BACKWARD = a_graph(name="backward", direction="backward", nodes=(SAVED, TANGENT, WEIGHT, BACKWARD_NODE))
IN_TRAINING = (THREE[0], a_reading("r9", "convolution_backward"))


def a_copy(id: str, node: str | None = None, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {"owner": "compiler", "graph": "graph 0", "source": contiguous(), "node": node}
    fields |= {"target": channels_last(), "direction": "to_channels_last", "source_value": "buf3"}
    return a_conversion(id, **{**fields, "value": f"{id} buffer", **changes})


def a_compiled(*copies: Conversion, nodes: tuple[FxNode, ...] = (RELU,)) -> Trial:
    held = Buffer(name="buf3", layout=contiguous(), dtype="float32", kernel="k0", source_node="relu")
    return a_trial(graphs=(a_graph(nodes=nodes, buffers=(held,), conversions=copies),))


def of_one_value(count: int = 2, **changes: Any) -> list[Conversion]:
    return [to_channels_last(f"k{i}", **{"source_value": "t1", **changes}) for i in range(count)]


def test_what_it_says(told: Told) -> None:
    told(
        "One activation converted for three readers is one finding about the two repetitions",
        findings(a_trial_of(THREE, an_inference())),
    )
    told(
        "Without times and bytes the repetition is told without a cost",
        findings(a_trial_of(two(seconds=None, bytes_moved=None), an_inference())),
    )
    told(
        "An activation converted in the forward and again in the backward is a repetition",
        findings(a_trial_of(IN_TRAINING, FORWARD, BACKWARD)),
    )
    told(
        "A buffer that the compiler copies twice is a repetition",
        findings(a_compiled(a_copy("c0", "convolution_1"), a_copy("c1", seconds=0.0005))),
    )
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
    told(
        "What is repeated in a channels last model is better converted once by hand",
        findings(a_trial_of(two(), an_inference(), name="inductor-channels-last")),
    )
    gradients = [to_contiguous(f"g{i}", source_value="t2", tensor="gradient", op=None, seconds=2e-4) for i in range(3)]
    told(
        "In a trace many tensors are one finding about the dearest and a loss together",
        in_trace(*of_one_value(), *gradients),
    )


def test_the_dearest_conversion_is_the_one_that_has_to_stay() -> None:
    conversions = (THREE[0], a_reading("r2", "convolution_2", seconds=5e-3, bytes_moved=8))
    assert [(f.seconds, f.bytes_moved) for f in findings(a_trial_of(conversions, an_inference()))] == [(1e-3, 8)]
    assert [f.severity for f in findings(a_trial_of(two(seconds=1e-4), an_inference()))] == ["note"]


def test_what_is_not_proved_to_be_one_value_is_no_repetition() -> None:
    other, reader = a_node("relu_1", inputs=("x",)), a_node("convolution_4", CONVOLUTION, ("relu_1", "primals_1"))
    adders = tuple(a_node(f"add_{i}", "aten.add.Tensor", ("relu", "x")) for i in (1, 2))
    added = tuple(a_reading(f"r{i}", f"add_{i}") for i in (1, 2))
    changed, twin = a_node("add_", "aten.add_.Tensor", ("relu", "x")), a_placeholder("tangents_1")
    of_one_shape = a_graph(name="backward", direction="backward", nodes=(SAVED, twin, WEIGHT, BACKWARD_NODE))
    for trial in (
        a_trial_of((THREE[0], a_reading("r2", "convolution_2", target=blocked(tag="aBcd8b"))), an_inference()),
        a_trial_of((THREE[0], a_reading("r4", "convolution_4")), an_inference(other, reader)),
        a_trial_of((a_reading("r1", None), a_reading("r2", None)), an_inference()),
        a_trial_of(THREE, an_inference(), a_graph(name="graph 1", nodes=an_inference().nodes)),
        a_trial_of(added, a_graph(nodes=(a_placeholder("x"), RELU, *adders))),
        a_trial_of(THREE, a_graph(nodes=(WEIGHT, a_node("relu", layout=None), *READERS))),
        a_trial_of(THREE, an_inference(changed)),  # changed in place between its readers
        *(a_trial_of(two(**changes), an_inference()) for changes in ({"tensor": "weight"}, {"source": None})),
        a_trial_of(two(direction="from_blocked"), an_inference()),
        a_trial_of(IN_TRAINING, FORWARD, of_one_shape),
        a_trial_of(IN_TRAINING, FORWARD, BACKWARD, a_graph(name="backward 1", direction="backward")),
        a_compiled(a_copy("c0"), a_copy("c1"), nodes=(RELU, changed)),
    ):
        assert findings(trial) == []
    copies: tuple[dict[str, Any], ...] = ({"source_value": "buf4"}, {"graph": "graph 1"}, {"target": blocked()})
    for changes in (*copies, {"fused": True}, {"owner": "framework"}, {"source_value": None}):
        assert findings(a_compiled(a_copy("c0"), a_copy("c1", **changes))) == []
    first = to_channels_last("k0", source_value="t1")
    for second in ({"source_value": "t2"}, {"source_value": "t1", "target": blocked()}):
        assert in_trace(first, to_channels_last("k1", **second)) == []
    for changes in ({"source_value": None}, {"source": None}, {"tensor": "weight"}, {"direction": "none"}):
        assert in_trace(*of_one_value(**changes)) == []
