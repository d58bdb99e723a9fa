"""LD101 and LD102: conversions that undo each other, and tensors that are converted more than once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from builders import (
    Told,
    a_comparison,
    a_conversion,
    a_convolution,
    a_decision,
    a_graph,
    a_location,
    a_node,
    a_pair,
    a_placeholder,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    finder,
    kernels,
)
from rule_builders import a_compilers_copy, a_parameter
from trace_builders import (
    a_recorded_pair,
    a_recorded_trial,
    a_trace_diagnosis,
    finder_in_trace,
    to_channels_last,
    to_contiguous,
)

from layoutdoctor.diagnosis.graph import Buffer, FxNode, Graph
from layoutdoctor.rules.ld101_round_trip import LD101
from layoutdoctor.rules.ld102_repeated_conversion import LD102

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.conversion import Conversion, RedundantPair
    from layoutdoctor.diagnosis.trial import Trial

findings = finder(LD101.check)
THERE = a_conversion("reorder 0", source=blocked(), target=contiguous())
BACK = a_conversion("reorder 1", source=contiguous(), target=blocked(), direction="to_blocked")
SLOWER_OFF = a_ratio("inductor-layout-opt-off", 0.94)
FASTER_LAST = a_ratio("inductor-channels-last", 1.28)


def with_pairs(name: str = "inductor", *pairs: RedundantPair, **changes: Any) -> Trial:
    return a_trial(name, **{"kernels": kernels(THERE, BACK), "redundant_pairs": pairs or (a_pair(),), **changes})


def verified(cure: Trial) -> list[Finding]:
    advice = a_recommendation("inductor-channels-last", verified=True, speedup=a_speedup())
    return findings(with_pairs(), cure, comparison=a_comparison(FASTER_LAST), recommendation=advice)


def test_round_trips_of_one_kind_are_one_finding_of_the_default(told: Told) -> None:
    told("A round trip is a warning with its layouts what is between its cost and its place", findings(with_pairs()))
    pairs = (
        a_pair("a0", "a1", seconds=1e-3, between=(), kind="adjacent", bytes_moved=8, tensor_shape=None),
        a_pair("b0", "b1", location=a_location(20), module="body.2"),
        a_pair("c0", "c1", seconds=3e-3, location=a_location(30), module="body.3", tensor_shape=(4, 128, 28, 28)),
    )
    told(
        "Pairs of one kind are one finding and the costliest kind comes first",
        findings(with_pairs("inductor", *pairs)),
    )
    pairs = tuple(a_pair(f"a{i}", f"b{i}", between=(f"aten.op{i}.default",)) for i in range(5))
    told(
        "In a trial other than the baseline all round trips are one finding after the baselines",
        findings(with_pairs("eager", *pairs), with_pairs(), comparison=a_comparison(a_ratio("eager", 0.6))),
    )
    told(
        "Branches that meet in a concatenation are reported as such with an estimated cost", findings(a_concatenation())
    )


def test_a_round_trip_is_a_warning_from_two_percent_on_unless_it_pays() -> None:
    def severities(*trials: Trial, **changes: Any) -> list[str]:
        return [finding.severity for finding in findings(*trials, **changes)]

    off, compared = a_trial("inductor-layout-opt-off"), a_comparison(SLOWER_OFF)
    many = (a_pair(f"a{i}", f"b{i}", seconds=2e-4, between=(f"aten.op{i}.default",)) for i in range(2))
    of_eager = with_pairs(kernels=kernels(THERE, msgspec.structs.replace(BACK, owner="framework")))
    assert severities(with_pairs("inductor", a_pair(seconds=2.9e-4))) == ["note"]  # below 2 %
    assert severities(with_pairs("inductor", *many)) == ["warning"] * 2  # many small ones are a loss together
    assert severities(with_pairs(), off, comparison=compared) == ["note"]  # whatever is without them is slower
    assert severities(with_pairs(), off, comparison=a_comparison()) == ["warning"]  # nothing was measured of it
    assert severities(of_eager, off, comparison=compared) == ["warning"]  # no library made them all
    assert [finding.severity for finding in verified(with_pairs("inductor-channels-last"))] == ["warning"] * 2
    assert severities(a_trial(kernels=kernels(THERE, BACK))) == []


def test_the_cure_of_a_round_trip_follows_from_the_configuration(told: Told) -> None:
    told(
        "The baseline is an error where a verified configuration has no round trip",
        verified(a_trial("inductor-channels-last")),
    )
    called = a_pair(location=a_location(code="x = self.norm(x.contiguous())"))
    told(
        "A call of contiguous between the layers is named as the thing to remove",
        findings(with_pairs("inductor", called)),
    )
    told(
        "Only the round trips at the call of contiguous have the advice to remove it",
        findings(with_pairs("inductor", called, a_pair(between=(), location=a_location(14)))),
    )
    told(
        "A channels last model with the optimization off is advised to leave it on",
        findings(with_pairs("inductor-channels-last-opt-off")),
    )
    vetoed = a_graph(a_decision(applied=False, rule="grouped-convolution"))
    told(
        "A channels last model that inductor vetoed is reported how to force it",
        findings(with_pairs("inductor-channels-last", a_pair(graph=vetoed.name), graphs=(vetoed,))),
    )
    volumes = a_graph(a_decision(a_convolution(rank=3), applied=False, rule="small-channels"))
    told(
        "Of 3 D convolutions it is not which forcing does not change",
        findings(with_pairs("inductor-channels-last", a_pair(graph=volumes.name), graphs=(volumes,))),
    )
    there = a_conversion("reorder 0", source=contiguous(), target=channels_last(), direction="to_channels_last")
    back = a_conversion("reorder 1", source=channels_last(), target=contiguous(), direction="to_contiguous")
    told(
        "Where the library computes contiguous channels last is to be left away",
        findings(with_pairs(kernels=kernels(there, back))),
    )


def a_concatenation(**changes: Any) -> Trial:
    written: dict[str, Any] = {"owner": "compiler", "graph": "graph 0"}
    layouts = channels_last((2, 32, 48, 48)), contiguous((2, 32, 48, 48))
    joint = contiguous((2, 128, 48, 48)), channels_last((2, 128, 48, 48))
    out = {"source": layouts[0], "target": layouts[1], "direction": "to_contiguous", "seconds": None, "fused": True}
    into = {"source": joint[0], "target": joint[1], "direction": "to_channels_last", "node": "convolution_5"}
    branches = tuple(a_conversion(f"branch {i}", **written, **out) for i in range(4))
    graph = a_graph(
        conversions=(*branches, a_conversion("again", **written, **into)),
        nodes=(a_node("convolution_5", "aten.convolution.default"),),
    )
    fields: dict[str, Any] = {
        "evidence": "graph",
        "between": ("aten.cat.default",),
        "also": ("branch 1", "branch 2", "branch 3"),
        "tensor_shape": (2, 128, 48, 48),
        "seconds": 1.2e-3,
        "seconds_source": "estimated",
        "bytes_moved": 4_718_592,
        "graph": "graph 0",
    }
    return a_trial(graphs=(graph,), redundant_pairs=(a_pair("branch 0", "again", **{**fields, **changes}),))


# ---------------------------------------------------------------------------------------------------- in a trace
OUT, INTO = to_contiguous("k1"), to_channels_last("k2")


def in_trace(*pairs: RedundantPair, of: tuple[Any, ...] = (OUT, INTO)) -> list[Finding]:
    """Findings of a trace in which each pair has conversions of its own, like those of ``of``."""
    conversions, own = [*of], [*pairs[:1]]
    for number, pair in enumerate(pairs[1:], start=2):
        ids = {one.id: f"{one.id}-{number}" for one in of}
        conversions += [msgspec.structs.replace(one, id=ids[one.id]) for one in of]
        own.append(msgspec.structs.replace(pair, first=ids[pair.first], second=ids[pair.second]))
    return list(LD101.check(a_trace_diagnosis(a_recorded_trial(*conversions, redundant_pairs=tuple(own)))))


def proved_by(confidence: str | None, seconds: float | None = 4e-4, **changes: Any) -> RedundantPair:
    return a_recorded_pair("k1", "k2", confidence=confidence, seconds=seconds, **changes)


def test_round_trips_of_a_trace_are_one_finding_with_their_proof(told: Told) -> None:
    told(
        "A round trip that shapes prove is reported with its costs and what to record next",
        in_trace(proved_by("shapes", exposed_seconds=0.00016)),
    )
    pairs = (
        *(proved_by("shapes", 9e-5) for _ in range(7)),
        *(proved_by("order", 9e-5, between=()) for _ in range(2)),
    )
    told("All round trips are one finding that counts them by what proves them", in_trace(*pairs))
    assert in_trace() == []


def test_it_is_a_warning_where_shapes_or_grids_prove_two_percent(told: Told) -> None:
    for confidence, seconds in (("grid", 0.0003), ("shapes", 0.00029), ("order", 0.009)):
        told("It is a warning where shapes or grids prove two percent", in_trace(proved_by(confidence, seconds)))
    (finding,) = in_trace(proved_by("shapes", 2e-4), proved_by("order", 2e-4))
    assert (finding.severity, finding.seconds) == ("note", 4e-4)


def test_the_format_that_the_library_wants_is_to_be_recorded_next(told: Told) -> None:
    told("A library that computes contiguous is met with a contiguous model", in_trace(a_recorded_pair("k2", "k1")))
    told("Five dimensions are channels last 3d", in_trace(proved_by("shapes", tensor_shape=(1, 64, 8, 56, 56))))
    miopen = {"kernel": "batched_transpose_64x64_pack_4x4_ediv_2x2_half"}
    told(
        "An amd gpu is reported of the switch that channels last needs there",
        in_trace(proved_by("shapes"), of=(to_contiguous("k1", **miopen), to_channels_last("k2", **miopen))),
    )
    norm = proved_by("shapes", between=("aten::native_group_norm", "aten::silu"))
    told("A group norm that converts by itself is named", in_trace(norm, proved_by("shapes")))


repeated, repeated_in_trace = finder(LD102.check), finder_in_trace(LD102.check)

CONVOLUTION = "aten.convolution.default"
WEIGHT = a_parameter("primals_1")
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
    return a_compilers_copy(id, **{"node": node, "source_value": "buf3", "value": f"{id} buffer", **changes})


def a_compiled(*copies: Conversion, nodes: tuple[FxNode, ...] = (RELU,)) -> Trial:
    held = Buffer(name="buf3", layout=contiguous(), dtype="float32", kernel="k0", source_node="relu")
    return a_trial(graphs=(a_graph(nodes=nodes, buffers=(held,), conversions=copies),))


def of_one_value(count: int = 2, **changes: Any) -> list[Conversion]:
    return [to_channels_last(f"k{i}", **{"source_value": "t1", **changes}) for i in range(count)]


def test_a_value_that_is_converted_twice_alike_is_a_repetition(told: Told) -> None:
    told(
        "One activation converted for three readers is one finding about the two repetitions",
        repeated(a_trial_of(THREE, an_inference())),
    )
    told(
        "An activation converted in the forward and again in the backward is a repetition",
        repeated(a_trial_of(IN_TRAINING, FORWARD, BACKWARD)),
    )
    told(
        "A buffer that the compiler copies twice is a repetition",
        repeated(a_compiled(a_copy("c0", "convolution_1"), a_copy("c1", seconds=0.0005))),
    )


def test_the_producer_is_to_write_the_layout_that_its_readers_want(told: Told) -> None:
    forward = to_channels_last("k0", source_value="t1", module="conv_1")
    backward = to_channels_last(
        "k1", source_value="t1", op="aten::convolution_backward", seconds=3e-4, exposed_seconds=3e-4
    )
    told("In a trace what forward and backward convert of one tensor is repeated", repeated_in_trace(forward, backward))
    told(
        "A configuration that repeats nothing is the cure",
        repeated(
            a_trial_of(THREE, an_inference()),
            a_trial("inductor-channels-last"),
            comparison=a_comparison(a_ratio("inductor-channels-last", 1.28)),
        ),
    )


def test_the_dearest_conversion_is_the_one_that_has_to_stay() -> None:
    conversions = (THREE[0], a_reading("r2", "convolution_2", seconds=5e-3, bytes_moved=8))
    assert [(f.seconds, f.bytes_moved) for f in repeated(a_trial_of(conversions, an_inference()))] == [(1e-3, 8)]
    assert [f.severity for f in repeated(a_trial_of(two(seconds=1e-4), an_inference()))] == ["note"]


def test_what_is_not_proved_to_be_one_value_is_no_repetition() -> None:
    other, reader = a_node("relu_1", inputs=("x",)), a_node("convolution_4", CONVOLUTION, ("relu_1", "primals_1"))
    changed = a_node("add_", "aten.add_.Tensor", ("relu", "x"))
    for trial in (
        a_trial_of((THREE[0], a_reading("r2", "convolution_2", target=blocked(tag="aBcd8b"))), an_inference()),
        a_trial_of((THREE[0], a_reading("r4", "convolution_4")), an_inference(other, reader)),
        a_trial_of(THREE, an_inference(changed)),  # changed in place between its readers
        *(a_trial_of(two(**changes), an_inference()) for changes in ({"tensor": "weight"}, {"source": None})),
        a_trial_of(IN_TRAINING, FORWARD, BACKWARD, a_graph(name="backward 1", direction="backward")),
        a_compiled(a_copy("c0"), a_copy("c1"), nodes=(RELU, changed)),
    ):
        assert repeated(trial) == []
    copies: tuple[dict[str, Any], ...] = ({"source_value": "buf4"}, {"graph": "graph 1"}, {"target": blocked()})
    for changes in (*copies, {"fused": True}, {"owner": "framework"}, {"source_value": None}):
        assert repeated(a_compiled(a_copy("c0"), a_copy("c1", **changes))) == []
    first = to_channels_last("k0", source_value="t1")
    for second in ({"source_value": "t2"}, {"source_value": "t1", "target": blocked()}):
        assert repeated_in_trace(first, to_channels_last("k1", **second)) == []
    for changes in ({"source_value": None}, {"source": None}, {"tensor": "weight"}, {"direction": "none"}):
        assert repeated_in_trace(*of_one_value(**changes)) == []
