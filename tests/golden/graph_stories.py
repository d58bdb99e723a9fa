"""Stories with whole graphs: round trips that a picture of the flow can be drawn of, and a script can be made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from builders import (
    a_breaker,
    a_comparison,
    a_conversion,
    a_convolution,
    a_decision,
    a_diagnosis,
    a_graph,
    a_location,
    a_measurement,
    a_node,
    a_pair,
    a_placeholder,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_subject,
    a_trial,
    an_input,
    blocked,
    channels_last,
    contiguous,
    kernels,
)

from layoutdoctor.diagnosis.records import (
    Conversion,
    Diagnosis,
    Equivalence,
    Finding,
    FxNode,
    Graph,
    Measurement,
    Trial,
)

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.layout import Layout

IMAGE = (4, 3, 56, 56)
ACTIVATION = (4, 64, 56, 56)
FILE = "small_cnn.py"
CONVOLUTION = "None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1"
EQUAL = Equivalence(
    status="equal", max_abs_error=3e-7, tolerance=1e-4, reference="float64", output_layouts=(contiguous(),)
)
HOW = "model = model.to(memory_format=torch.channels_last)\nx = x.to(memory_format=torch.channels_last)"


def rounds(seconds: float) -> Measurement:
    return a_measurement(*(seconds, seconds * 1.01, seconds * 0.99) * 20)


def a_call(name: str, target: str, inputs: tuple[str, ...], arguments: str, **changes: object) -> FxNode:
    """A call with its arguments as text, at the line of its layer."""
    fields = {"location": a_location(9, FILE, "return self.body(x)"), "is_called_directly": False}
    return a_node(name, target, inputs, arguments=arguments, **(fields | changes))


def a_weight(name: str, shape: tuple[int, ...]) -> FxNode:
    return a_placeholder(name, contiguous(shape), "weight")


def conv_bn_relu(layers: int = 4) -> tuple[FxNode, ...]:
    """Convolution, batch norm and ReLU, several times over, as an eager run records them."""
    nodes: list[FxNode] = [a_placeholder("value", contiguous(IMAGE))]
    last = "value"
    for i in range(layers):
        end = f"_{i}" if i else ""
        module = f"body.{3 * i}", f"body.{3 * i + 1}", f"body.{3 * i + 2}"
        statistics = [f"value_{4 * i + k + 1}" for k in range(4)]
        nodes += [
            a_weight(f"weight{end}", (64, 64 if i else 3, 3, 3)),
            a_call(
                f"convolution{end}",
                "aten.convolution.default",
                (last, f"weight{end}"),
                f"{last}, weight{end}, {CONVOLUTION}",
                called="conv2d",
                module=module[0],
            ),
            *(a_placeholder(name, contiguous((64,))) for name in statistics),
            a_call(
                f"native_batch_norm{end}",
                "aten.native_batch_norm.default",
                (f"convolution{end}", *statistics),
                f"convolution{end}, {', '.join(statistics)}, False, 0.1, 1e-05",
                called="batch_norm",
                module=module[1],
                uses_running_statistics=True,
            ),
            a_call(
                f"getitem{end}",
                "getitem",
                (f"native_batch_norm{end}",),
                f"native_batch_norm{end}, 0",
                module=module[1],
                result_index=0,
            ),
            a_call(f"relu{end}", "aten.relu.default", (f"getitem{end}",), f"getitem{end}", module=module[2]),
        ]
        last = f"relu{end}"
    return tuple(nodes)


def reorders(graph: str, layers: int = 4, seconds: float = 4.8e-4) -> tuple[Conversion, ...]:
    """What oneDNN does around those convolutions: a weight each, and activations out of and into its own format."""
    found: list[Conversion] = []
    for i in range(layers):
        fields = {
            "node": f"convolution_{i}" if i else "convolution",
            "location": a_location(9, FILE, "return self.body(x)"),
            "module": f"body.{3 * i}",
            "graph": graph,
            "cause": "aten::mkldnn_convolution runs in a format of its own",
            "required_by": (f"convolution_{i}" if i else "convolution",),
            "seconds_source": "measured",
            "bandwidth_share": 0.6,
            "dtype": "f32",
        }
        shape = (64, 64 if i else 3, 3, 3)
        there = {"source": contiguous(), "target": blocked(), "direction": "to_blocked", "port": "input 0"}
        weight = {"source": contiguous(shape), "target": blocked(shape, "ABcd8b8a"), "direction": "to_blocked"}
        if i:
            found.append(a_conversion(f"reorder {len(found)}", **(fields | there), seconds=seconds))
        found += [
            a_conversion(
                f"reorder {len(found)}", **(fields | weight), tensor="weight", port="input 1", bytes_moved=294_912
            ),
            a_conversion(f"reorder {len(found) + 1}", **fields, port="output 0", seconds=seconds),
        ]
    return tuple(
        msgspec.structs.replace(conversion, start_seconds=1e-3 * number) for number, conversion in enumerate(found)
    )


def reproducible_round_trips() -> Diagnosis:
    """Eager and the graph without layout optimization convert around every batch norm; every call can be written."""
    names = ["reorder 1", "reorder 2", "reorder 4", "reorder 5", "reorder 7", "reorder 8"]
    between = ("aten.native_batch_norm.default", "aten.relu.default")

    def trial(name: str, graph: str, seconds: float) -> Trial:
        pairs = tuple(
            a_pair(
                names[2 * i],
                names[2 * i + 1],
                between=between,
                seconds=9.6e-4,
                seconds_source="measured",
                graph=graph,
                location=a_location(9, FILE, "return self.body(x)"),
                module=f"body.{3 * i + 3}",
                proof="the result goes through aten.native_batch_norm.default and aten.relu.default only",
            )
            for i in range(3)
        )
        decision = None if graph == "eager" else off_card()
        return a_trial(
            name,
            measurement=rounds(seconds),
            graphs=(a_graph(decision, name=graph, nodes=conv_bn_relu(), output_names=("relu_3",)),),
            kernels=kernels(*reorders(graph), seconds=seconds * 0.96),
            redundant_pairs=pairs,
            equivalence=EQUAL,
        )

    return a_diagnosis(
        trial("eager", "eager", 25e-3),
        trial("inductor", "graph 0", 16e-3),
        a_trial("inductor-channels-last", measurement=rounds(12e-3), graphs=(a_graph(card()),)),
        subject=a_subject(name=FILE, model="SmallCnn", inputs=(an_input(contiguous(IMAGE)),)),
        comparison=a_comparison(
            a_ratio("eager", 0.64), a_ratio("inductor-channels-last", 1.33), fastest=("inductor-channels-last",)
        ),
        recommendation=a_recommendation(
            "inductor-channels-last", speedup=a_speedup(1.33), how=HOW, verified=True, reason="measured again"
        ),
        findings=(
            Finding(
                code="LD101",
                rule="round-trip-conversion",
                severity="error",
                configuration="inductor",
                message="3 round trips: aBcd16b -> contiguous -> aBcd16b around native_batch_norm and relu, on "
                "4x64x56x56, 2.88 ms (19 % of kernel time), 36.8 MiB moved, inserted by the library",
                suggestion="use inductor-channels-last: it has no round trip; 1.33x faster (1.30 to 1.36)",
                location=a_location(9, FILE, "return self.body(x)"),
                module="body.3",
                seconds=2.88e-3,
                bytes_moved=38_535_168,
                evidence=tuple(names),
            ),
        ),
    )


def card() -> object:
    return a_decision(*(a_convolution(f"convolution_{i}", module=f"body.{3 * i}") for i in range(4)))


def off_card() -> object:
    cards = (a_convolution(f"convolution_{i}", module=f"body.{3 * i}", channels_last=False) for i in range(4))
    return a_decision(*cards, applied=False, rule="config-off", explanation="layout optimization is switched off")


def by_hand_graph() -> Graph:
    """A channels_last network whose own code makes the value contiguous for a ReLU and takes it back."""
    last, first = channels_last(ACTIVATION), contiguous(ACTIVATION)
    weight = channels_last((64, 64, 3, 3))
    here = {"location": a_location(21, "net.py", "x = x.contiguous()"), "module": "neck", "is_called_directly": True}

    def converted(name: str, source: str, target: Layout, memory_format: str) -> FxNode:
        arguments = f"{source}, memory_format=torch.{memory_format}"
        return a_call(name, "aten.clone.default", (source,), arguments, layout=target, called="contiguous", **here)

    def convolution(name: str, source: str, weight: str, module: str) -> FxNode:
        arguments = f"{source}, {weight}, {CONVOLUTION}"
        target = "aten.convolution.default"
        return a_call(name, target, (source, weight), arguments, layout=last, called="conv2d", module=module)

    nodes = (
        a_placeholder("x", last),
        a_placeholder("weight", weight, "weight"),
        a_placeholder("weight_1", weight, "weight"),
        convolution("convolution", "x", "weight", "stem"),
        converted("clone", "convolution", first, "contiguous_format"),
        a_call("relu", "aten.relu.default", ("clone",), "clone", layout=first, module="neck"),
        converted("clone_1", "relu", last, "channels_last"),
        convolution("convolution_1", "clone_1", "weight_1", "head"),
    )
    common = {"owner": "user", "kernel": "cpp_fused_clone_0", "op": "aten.clone.default", "graph": "graph 0"}
    place = {"location": here["location"], "module": "neck", "seconds_source": "measured", "seconds": 6e-4}
    there = {"source": last, "target": first, "direction": "to_contiguous", "value": "buf1", "source_value": "buf0"}
    back = {"source": first, "target": last, "direction": "to_channels_last", "value": "buf3", "source_value": "buf2"}
    conversions = (
        a_conversion("graph 0 conversion 0", node="clone", cause="net.py:21 asks for it", **common, **place, **there),
        a_conversion("graph 0 conversion 1", node="clone_1", required_by=("convolution_1",), **common, **place, **back),
    )
    breaker = a_breaker(
        "clone",
        op="contiguous",
        reason="the model's own code asks for a contiguous tensor",
        location=here["location"],
        module="neck",
        conversions=("graph 0 conversion 0", "graph 0 conversion 1"),
        seconds=1.2e-3,
        bytes_moved=12_845_056,
    )
    decision = a_decision(a_convolution("convolution"), a_convolution("convolution_1", module="head"))
    return a_graph(decision, nodes=nodes, conversions=conversions, breakers=(breaker,), output_names=("convolution_1",))


def round_trip_by_hand() -> Diagnosis:
    """One configuration, one finding: the model itself converts there and back, as its compiled graph proves."""
    pair = a_pair(
        "graph 0 conversion 0",
        "graph 0 conversion 1",
        evidence="graph",
        graph="graph 0",
        seconds=1.2e-3,
        seconds_source="measured",
        location=a_location(21, "net.py", "x = x.contiguous()"),
        module="neck",
        proof="the value between is read by aten.relu.default only",
    )
    finding = Finding(
        code="LD501",
        rule="user-contiguous-call",
        severity="warning",
        configuration=None,
        message="net.py:21 calls .contiguous() on a channels_last tensor, 1.20 ms with the way back (12 %)",
        suggestion="remove the call: relu works in any layout",
        location=a_location(21, "net.py", "x = x.contiguous()"),
        module="neck",
        seconds=1.2e-3,
        bytes_moved=12_845_056,
        evidence=("graph 0 conversion 0", "graph 0 conversion 1"),
    )
    return a_diagnosis(
        a_trial("inductor", graphs=(by_hand_graph(),), kernels=kernels(seconds=10e-3), redundant_pairs=(pair,)),
        subject=a_subject(name="net.py", inputs=(an_input(channels_last(ACTIVATION)),)),
        findings=(finding,),
    )


GRAPH_STORIES = {story.__name__: story for story in (reproducible_round_trips, round_trip_by_hand)}
