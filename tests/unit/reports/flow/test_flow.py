"""The layout flow: what is drawn around a pair or a conversion, and that nothing is drawn which was not recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import reviewed
from builders import (
    a_buffer,
    a_comparison,
    a_conversion,
    a_diagnosis,
    a_finding,
    a_graph,
    a_kernel,
    a_node,
    a_pair,
    a_placeholder,
    a_ratio,
    a_read,
    a_recommendation,
    a_trace,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    kernels,
    recorded,
)
from golden.stories import STORIES
from loops import for_each

from layoutdoctor.reports.flow.graph import format_of, format_words, layout_words
from layoutdoctor.reports.flow.scenes import Flow, build_flows

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, FxNode, Graph

CONVOLUTION = "aten.convolution.default"
WEIGHT = contiguous((64, 64, 3, 3))


def at(port: str, node: str, id_: str, **changes: object) -> Conversion:
    """A library conversion at a port of a node: of a result out of the blocked format, of an input into it."""
    is_result = port.startswith("output")
    layouts = (blocked(), contiguous()) if is_result else (contiguous(), blocked())
    direction = "from_blocked" if is_result else "to_blocked"
    fields = {"source": layouts[0], "target": layouts[1], "direction": direction, "graph": "eager"}
    return a_conversion(id_, node=node, port=port, **{**fields, **changes})


def in_eager(nodes: tuple[FxNode, ...], *conversions: Conversion, about: str = "", **changes: object) -> Diagnosis:
    """A graph that ran in eager with what libraries converted; ``about`` is the code of a finding that names it all."""
    changes = {"graphs": (a_graph(name="eager", nodes=nodes),), "kernels": kernels(*conversions), **changes}
    evidence = tuple(conversion.id for conversion in conversions)
    findings = (a_finding(about, configuration="eager", evidence=evidence),) if about else ()
    return a_diagnosis(a_trial("eager", **changes), findings=findings)


def eager_graph(count: int = 1) -> Graph:
    """Convolution, any number of pointwise operations, convolution."""
    names = [f"relu_{i}" for i in range(count)]
    nodes = [
        a_placeholder("x"),
        a_placeholder("w", WEIGHT, "weight"),
        a_node("convolution", CONVOLUTION, ("x", "w"), module="body.0"),
    ]
    nodes += [a_node(name, inputs=(before,)) for before, name in zip(["convolution", *names], names, strict=False)]
    nodes += [
        a_placeholder("w_1", WEIGHT, "weight"),
        a_node("convolution_1", CONVOLUTION, ((names or ["convolution"])[-1], "w_1"), module="body.1"),
    ]
    return a_graph(name="eager", nodes=tuple(nodes), output_names=("convolution_1",))


def eager_pair(count: int = 1) -> Diagnosis:
    conversions = (at("output 0", "convolution", "first"), at("input 0", "convolution_1", "second"))
    trial = a_trial(
        "eager",
        graphs=(eager_graph(count),),
        kernels=kernels(
            *conversions, kernels=(a_kernel(node="convolution", graph="eager", seconds=5e-3), a_kernel("reorder"))
        ),
        redundant_pairs=(a_pair("first", "second", graph="eager"),),
    )
    return a_diagnosis(trial)


def case_a_round_trip_in_eager_stands_between_its_convolutions() -> Diagnosis:
    return eager_pair()


def case_the_middle_of_a_long_way_is_one_box() -> Diagnosis:
    return eager_pair(20)


def case_a_way_that_is_not_recorded_is_not_drawn() -> Diagnosis:
    diagnosis = eager_pair()
    (trial,) = diagnosis.trials
    (graph,) = trial.graphs
    cut = tuple(node for node in graph.nodes if node.name != "relu_0")
    trial = msgspec.structs.replace(trial, graphs=(msgspec.structs.replace(graph, nodes=cut),))
    return msgspec.structs.replace(diagnosis, trials=(trial,))


def case_the_model_s_own_copy_is_the_conversion_itself() -> Diagnosis:
    last, plain = channels_last(), contiguous()
    nodes = (
        a_placeholder("x", last),
        a_node("convolution", CONVOLUTION, ("x",), layout=last),
        a_node("clone", "aten.clone.default", ("convolution",), layout=plain),
        a_node("convolution_1", CONVOLUTION, ("clone",), layout=last),
    )
    first = a_conversion("first", owner="user", node="clone", port="output 0", source=last, target=plain, graph="eager")
    second = a_conversion(
        "second", owner="framework", node="convolution_1", port="input 0", source=plain, target=last, graph="eager"
    )
    graph = a_graph(name="eager", nodes=nodes, conversions=(first, second))
    pair = a_pair("first", "second", kind="adjacent", between=(), graph="eager")
    return a_diagnosis(a_trial("eager", graphs=(graph,), redundant_pairs=(pair,)))


def case_results_of_an_operation_are_read_through_their_getitem() -> Diagnosis:
    nodes = (
        a_node("convolution", CONVOLUTION),
        a_node("native_batch_norm", "aten.native_batch_norm.default", ("convolution",)),
        a_node("getitem", "getitem", ("native_batch_norm",), result_index=0),
        a_node("convolution_1", CONVOLUTION, ("getitem",)),
    )
    conversions = (at("output 0", "convolution", "first"), at("input 0", "convolution_1", "second"))
    return in_eager(nodes, *conversions, redundant_pairs=(a_pair("first", "second", graph="eager"),))


def compiled() -> Graph:
    """Entry into channels-last, a convolution, a fused kernel kept in part in registers, and the way back out."""
    plain, last = contiguous(), channels_last()
    nodes = (
        a_placeholder("x"),
        a_placeholder("w", WEIGHT, "weight"),
        a_node("convolution", CONVOLUTION, ("x", "w"), module="body.0"),
        a_node("mul", "aten.mul.Tensor", ("convolution",)),
        a_node("relu", inputs=("mul",)),
        a_node("output", "output", ("relu",), op="output"),
    )
    buffers = (
        a_buffer("buf0", a_read("x", plain), origins=("convolution",)),
        a_buffer(
            "buf1", kernel="extern_kernels.convolution", is_extern=True, reads=("buf0", "w"), source_node="convolution"
        ),
        a_buffer("buf2", a_read("buf1", last), operations=("mul",), origins=("mul",), is_removed=True),
        a_buffer(
            "buf3",
            a_read("buf2", last),
            layout=plain,
            operations=("relu",),
            origins=("relu", "mul"),
            source_node="relu",
            kernel="cpp_fused_1",
            is_output=True,
        ),
    )
    entry = a_conversion(
        "entry",
        owner="compiler",
        node="convolution",
        source=plain,
        target=last,
        direction="to_channels_last",
        graph="graph 0",
        value="buf0",
        source_value="x",
    )
    leave = a_conversion(
        "leave",
        owner="compiler",
        node="relu",
        source=last,
        target=plain,
        direction="to_contiguous",
        graph="graph 0",
        value="buf3",
        source_value="buf1",
        fused=True,
    )
    return a_graph(nodes=nodes, buffers=buffers, conversions=(entry, leave))


def case_a_compiled_graph_is_drawn_by_its_buffers() -> Diagnosis:
    weight = at("input 1", "convolution", "weight", tensor="weight", source=WEIGHT, target=WEIGHT, graph="graph 0")
    trial = a_trial(graphs=(compiled(),), kernels=kernels(weight))
    entry = a_finding("LD105", evidence=("entry",))
    leave = a_finding("LD105", evidence=("leave",), message="other")
    into = a_finding("LD103", evidence=("weight",))
    return a_diagnosis(trial, findings=(entry, leave, into))


def case_a_pair_that_buffers_prove_goes_with_all_branches_of_its_concatenation() -> Diagnosis:
    last, plain = channels_last(), contiguous()
    buffers = (
        a_buffer("buf0", kernel="extern_kernels.convolution", is_extern=True, layout=plain, source_node="a"),
        a_buffer("buf1", kernel="extern_kernels.convolution", is_extern=True, layout=plain, source_node="b"),
        a_buffer("buf2", a_read("buf0", plain), alias_of="buf4"),
        a_buffer("buf3", a_read("buf1", plain), alias_of="buf4"),
        a_buffer("buf4", reads=("buf2", "buf3"), layout=last, source_node="cat"),
        a_buffer("buf5", a_read("buf4", last), layout=plain),
        a_buffer("buf6", kernel="extern_kernels.convolution", is_extern=True, reads=("buf5",), source_node="c"),
    )
    nodes = (
        a_node("a", CONVOLUTION),
        a_node("b", CONVOLUTION),
        a_node("cat", "aten.cat.default", ("a", "b")),
        a_node("c", CONVOLUTION, ("cat",)),
    )
    there = {"owner": "compiler", "source": plain, "target": last, "graph": "graph 0"}
    back = {"owner": "compiler", "source": last, "target": plain, "graph": "graph 0"}
    conversions = (
        a_conversion("one", node="cat", value="buf2", source_value="buf0", **there),
        a_conversion("two", node="cat", value="buf3", source_value="buf1", **there),
        a_conversion("back", node="c", value="buf5", source_value="buf4", **back),
    )
    pair = a_pair("one", "back", also=("two",), evidence="graph", graph="graph 0")
    graph = a_graph(nodes=nodes, buffers=buffers, conversions=conversions)
    return a_diagnosis(a_trial(graphs=(graph,), redundant_pairs=(pair,)))


def case_a_graph_whose_buffers_read_ahead_is_no_graph() -> Diagnosis:
    graph = compiled()
    (first, second, *rest) = graph.buffers
    circle = msgspec.structs.replace(first, reads=("buf1",), is_removed=True)
    graph = msgspec.structs.replace(graph, buffers=(circle, second, *rest))
    return a_diagnosis(a_trial(graphs=(graph,), kernels=None))


def case_a_trace_is_drawn_by_what_its_pair_names() -> Diagnosis:
    first = a_conversion("k1", source=channels_last(), target=contiguous(), op="aten::cudnn_convolution")
    second = a_conversion("k2", source=contiguous(), target=channels_last(), op="aten::cudnn_convolution")
    pair = a_pair("k1", "k2", between=("aten::add_", "aten::relu_"), confidence="shapes")
    return a_trace(recorded(first, second), redundant_pairs=(pair,))


def ranked(*findings: Finding, most: int = 9) -> list[tuple[str, str]]:
    """Three trials with one conversion each at a call; which of them are drawn, in which order."""
    trials = [
        a_trial(name, kernels=kernels(a_conversion(f"in {name}", port=f"input {i}", seconds=1e-3 * (i + 1))))
        for i, name in enumerate(("inductor", "inductor-channels-last", "eager"))
    ]
    diagnosis = a_diagnosis(
        *trials,
        comparison=a_comparison(a_ratio("eager", 0.5), a_ratio("inductor-channels-last", 1.2)),
        recommendation=a_recommendation("inductor-channels-last"),
        findings=findings,
    )
    return [(flow.title, flow.configuration) for flow in build_flows(diagnosis, most)]


def about(name: str, severity: str = "warning", code: str = "LD111") -> Finding:
    return a_finding(code, configuration=name, severity=severity, rule="r", evidence=(f"in {name}",))


def test_the_trials_that_matter_come_first_then_severity_then_the_cost() -> None:
    names = ("inductor", "inductor-channels-last", "eager")

    assert ranked(*map(about, names)) == [
        ("LD111 r", "inductor-channels-last"),
        ("LD111 r", "inductor"),
        ("LD111 r", "eager"),
    ]
    assert ranked(about("inductor", "note"), about("eager", "error"))[0] == ("LD111 r", "inductor")
    assert ranked(about("eager", "note"), about("eager", "error", code="LD102"))[0] == ("LD102 r", "eager")
    assert len(ranked(*map(about, names), most=2)) == 2
    assert ranked(about("eager"), about("eager", code="LD102")) == [("LD111 r", "eager")]  # one picture of a conversion


def case_round_trips_that_look_alike_are_one_picture_and_the_finding_that_is_closest_names_it() -> Diagnosis:
    diagnosis = eager_pair()
    (trial,) = diagnosis.trials
    more = tuple(a_pair("first", "second", graph="eager", seconds=seconds) for seconds in (1e-3, 5e-3, 2e-3))
    trial = msgspec.structs.replace(trial, redundant_pairs=more)
    findings = (
        a_finding("LD111", configuration="eager", evidence=("first", "second", "third")),
        a_finding("LD101", configuration="eager", evidence=("first", "second")),
    )
    return msgspec.structs.replace(diagnosis, trials=(trial,), findings=findings)


def case_an_estimated_time_is_called_so() -> Diagnosis:
    conversion = a_conversion("k", port="input 0", seconds_source="estimated", cause="asked for")
    return a_diagnosis(a_trial(kernels=kernels(conversion, a_conversion("other", seconds=1e-6))))


@for_each("story", STORIES)
def test_every_story_has_flows_of_a_readable_size_that_hang_together(story: str) -> None:
    for flow in build_flows(STORIES[story]()):
        keys = [node.key for node in flow.nodes]
        assert 2 <= len(keys) <= 15
        assert keys == [f"n{number}" for number in range(len(keys))]
        assert {key for edge in flow.edges for key in (edge.source, edge.target)} == set(keys)
        assert len({(edge.source, edge.target) for edge in flow.edges}) == len(flow.edges)
        assert all(
            text.isprintable() for node in flow.nodes for text in (node.label, node.detail or "", node.place or "")
        )
        assert any(node.kind == "conversion" for node in flow.nodes)


def case_a_layout_breaker_is_drawn_from_the_way_out_to_the_way_back() -> Diagnosis:
    graph = eager_graph(2)
    conversions = (at("input 0", "relu_0", "out", seconds=1e-3), at("input 0", "convolution_1", "back", seconds=2e-3))
    trial = a_trial("eager", graphs=(graph,), kernels=kernels(*conversions))
    finding = a_finding("LD104", configuration="eager", evidence=("out", "back"))
    return a_diagnosis(trial, findings=(finding,))


def case_two_conversions_of_one_value_are_drawn_side_by_side() -> Diagnosis:
    nodes = (
        a_node("convolution", CONVOLUTION),
        a_node("left", CONVOLUTION, ("convolution",)),
        a_node("right", CONVOLUTION, ("convolution",)),
    )
    conversions = (at("input 0", "left", "one", seconds=2e-3), at("input 0", "right", "two", seconds=1e-3))
    return in_eager(nodes, *conversions, about="LD102")


def case_a_conversion_of_another_value_is_not_drawn_beside_the_first_one() -> Diagnosis:
    nodes = (
        a_node("one", CONVOLUTION),
        a_node("two", CONVOLUTION),
        a_node("left", CONVOLUTION, ("one",)),
        a_node("right", CONVOLUTION, ("two",)),
    )
    conversions = (at("input 0", "left", "first", seconds=2e-3), at("input 0", "right", "second", seconds=1e-3))
    return in_eager(nodes, *conversions, about="LD102")


def case_conversions_of_one_tensor_of_a_trace_start_at_one_box() -> Diagnosis:
    value = {"port": "input 0", "source_value": "input of aten::conv2d (15)"}
    conversions = [a_conversion(f"k{i}", op=f"aten::conv{i}", seconds=1e-3 / (i + 1), **value) for i in range(3)]
    other = a_conversion("other", port="input 0", source_value="input of aten::conv2d (16)", seconds=1e-6)
    finding = a_finding("LD102", configuration=None, evidence=("other", "k2", "k1", "k0"))
    return a_trace(recorded(*conversions, other), findings=(finding,))


def case_of_a_finding_a_conversion_is_drawn_whose_place_is_known() -> Diagnosis:
    placed = a_conversion("placed", port="input 0", seconds=1e-6)
    finding = a_finding("LD111", configuration=None, evidence=("somewhere", "placed"))
    return a_trace(recorded(a_conversion("somewhere"), placed), findings=(finding,))


def case_what_a_library_converts_at_its_calls_stands_between_the_buffers() -> Diagnosis:
    """Layout optimization off: Inductor's buffers are contiguous, and the library converts around each convolution."""
    plain = contiguous()
    call = {"kernel": "extern_kernels.convolution", "is_extern": True, "layout": plain}
    loop = a_buffer(
        "buf1", a_read("buf0", plain), layout=plain, operations=("relu",), origins=("relu", "convolution_1")
    )
    ambiguous = contiguous((1, 1, 8, 1))
    nodes = (
        a_node("convolution", CONVOLUTION),
        a_node("relu", inputs=("convolution",)),
        a_node("convolution_1", CONVOLUTION, ("relu", "b")),
    )
    buffers = (
        a_buffer("buf0", reads=("b",), source_node="convolution", **{**call, "layout": ambiguous}),
        loop,
        a_buffer("buf2", reads=("buf1", "b"), source_node="convolution_1", **call),
    )
    there = at("output 0", "convolution", "first", graph="graph 0")
    back = at("input 0", "convolution_1", "second", graph="graph 0")
    graph = a_graph(nodes=nodes, buffers=buffers)
    pair = a_pair("first", "second", graph="graph 0")
    trial = a_trial(graphs=(graph,), kernels=kernels(there, back), redundant_pairs=(pair,))
    return a_diagnosis(trial)


def case_a_part_is_joined_with_the_memory_it_is_written_into_and_an_unrecorded_input_is_not_drawn() -> Diagnosis:
    entry = a_conversion("entry", owner="compiler", node="cat", graph="graph 0", value="buf0", source_value="x")
    buffers = (
        a_buffer("buf0", a_read("x", contiguous()), alias_of="buf1"),
        a_buffer("buf1", reads=("unknown",), source_node="cat", is_output=True),
    )
    graph = a_graph(
        nodes=(a_placeholder("x"), a_node("cat", "aten.cat.default", ("x",))), buffers=buffers, conversions=(entry,)
    )
    return a_diagnosis(a_trial(graphs=(graph,), kernels=None), findings=(a_finding(evidence=("entry",)),))


def case_a_circle_of_results_is_not_followed_for_ever() -> Diagnosis:
    nodes = (
        a_node("getitem", "getitem", ("getitem_1",)),
        a_node("getitem_1", "getitem", ("getitem",)),
        a_node("convolution", CONVOLUTION, ("getitem",)),
    )
    return in_eager(nodes, at("input 0", "convolution", "in"))


def case_a_long_way_that_only_the_pair_names_is_cut_in_the_middle_too() -> Diagnosis:
    between = tuple(f"aten::op{i}" for i in range(9))
    conversions = (a_conversion("k1", op=None), a_conversion("k2", op=None))
    return a_trace(recorded(*conversions), redundant_pairs=(a_pair("k1", "k2", between=between),))


def case_a_value_that_is_read_twice_has_one_arrow() -> Diagnosis:
    nodes = (a_node("convolution", CONVOLUTION), a_node("mul", "aten.mul.Tensor", ("convolution", "convolution")))
    graph = a_graph(name="eager", nodes=nodes, output_names=("mul",))
    trial = a_trial("eager", graphs=(graph,), kernels=kernels(at("input 0", "mul", "in")))
    return a_diagnosis(trial)


def case_a_result_that_is_read_again_is_drawn_as_a_value_and_not_as_an_output() -> Diagnosis:
    graph = msgspec.structs.replace(eager_graph(), output_names=("relu_0", "gone", "convolution_1"))
    trial = a_trial("eager", graphs=(graph,), kernels=kernels(at("input 0", "convolution_1", "in")))
    return a_diagnosis(trial)


def case_branches_that_meet_again_are_one_way() -> Diagnosis:
    nodes = (
        a_node("convolution", CONVOLUTION),
        a_node("left", inputs=("convolution",)),
        a_node("right", "aten.sigmoid.default", ("convolution",)),
        a_node("add", "aten.add.Tensor", ("left", "right")),
        a_node("convolution_1", CONVOLUTION, ("add",)),
    )
    conversions = (at("output 0", "convolution", "first"), at("input 0", "convolution_1", "second"))
    return in_eager(nodes, *conversions, redundant_pairs=(a_pair("first", "second", graph="eager"),))


def case_only_the_nearest_operations_before_a_conversion_are_drawn() -> Diagnosis:
    trial = a_trial("eager", graphs=(eager_graph(6),), kernels=kernels(at("input 0", "convolution_1", "in")))
    return a_diagnosis(trial)


def case_a_cast_in_a_compiled_graph_is_part_of_its_kernel() -> Diagnosis:
    cast = a_conversion(
        "cast", owner="compiler", node="relu", graph="graph 0", value="buf0", source_value="x", direction="none"
    )
    buffers = (
        a_buffer("buf0", a_read("x", channels_last()), source_node="relu"),
        a_buffer("buf1", a_read("buf0", channels_last()), layout=contiguous(), source_node="mul", is_output=True),
    )
    leave = a_conversion(
        "leave", owner="compiler", node="mul", graph="graph 0", value="buf1", source_value="buf0", fused=True
    )
    nodes = (a_placeholder("x"), a_node("relu", inputs=("x",)), a_node("mul", "aten.mul.Tensor", ("relu",)))
    graph = a_graph(nodes=nodes, buffers=buffers, conversions=(cast, leave))
    trial = a_trial(graphs=(graph,), kernels=None)
    return a_diagnosis(trial, findings=(a_finding(evidence=("leave",)),))


def case_a_conversion_whose_bytes_nobody_knows_has_its_time_only() -> Diagnosis:
    conversion = a_conversion("k", port="input 0", bytes_moved=None)
    return a_trace(recorded(conversion))


def test_formats_in_words() -> None:
    both = contiguous((1, 1, 8, 1))
    odd = msgspec.structs.replace(contiguous(), stride=(1, 2, 3, 4), memory_formats=())

    assert (format_of(both), format_words(both)) == ("unknown", "contiguous or channels_last")
    assert (format_of(odd), format_words(odd)) == ("unknown", "other strides")
    assert (format_of(None), format_words(None), layout_words(None)) == ("unknown", "", "")
    assert layout_words(channels_last((2, 3, 4, 5, 6))) == "2x3x4x5x6 channels_last_3d"
    assert layout_words(blocked()) == "4x64x56x56 blocked aBcd16b"


CASES = {
    **{name.removeprefix("case_").replace("_", " "): case() for name, case in globals().items() if name[:5] == "case_"},
    "without trials": msgspec.structs.replace(a_diagnosis(), trials=()),
    "one operand of a trace": a_trace(recorded(a_conversion("k", port="input 1"))),
    "one result of a trace": a_trace(recorded(a_conversion("k", port="output 0"))),
    "no port": a_trace(recorded(a_conversion("k"))),
    "no operation": a_trace(recorded(a_conversion("k", op=None, port="input 0"))),
    "no call": a_trace(recorded(a_conversion("k", op="reorder", port="x"))),
    "no call in a model": a_diagnosis(a_trial(kernels=kernels(a_conversion("k", op="reorder", port="x")))),
}


def drawn(flow: Flow) -> str:
    """A flow in words: its boxes, then its arrows."""
    lines = [f"{flow.heading}: {flow.about}; {flow.left_out} left out"]
    for node in flow.nodes:
        more = f" {node.seconds:g} s" if node.seconds is not None else ""
        kind = f"{'redundant ' if node.is_redundant else ''}{node.kind}, {node.memory_format}"
        lines.append(f"  {node.key} {node.label} ({kind}): {node.detail or '-'}; {node.place or '-'}{more}")
    return "\n".join([*lines, *(f"  {edge.source} -> {edge.target} {edge.label}".rstrip() for edge in flow.edges)])


def test_every_case_is_drawn_as_reviewed(update_golden: bool) -> None:
    said = {name: "\n".join(map(drawn, build_flows(case))) for name, case in CASES.items()}

    reviewed.check("flows", said, update=update_golden)
