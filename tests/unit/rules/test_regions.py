"""LD104, LD105 and LD212: where a channels-last region ends inside the model, at its edges, or at a graph break."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import (
    Told,
    a_breaker,
    a_comparison,
    a_conversion,
    a_convolution,
    a_decision,
    a_graph,
    a_location,
    a_node,
    a_ratio,
    a_subject,
    a_trial,
    channels_last,
    contiguous,
    finder,
    kernels,
)
from rule_builders import a_compilers_copy, with_graph

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.examination.graphs.buffers import densified
from layoutdoctor.rules.ld104_layout_breaker import LD104
from layoutdoctor.rules.ld105_entry_exit import LD105
from layoutdoctor.rules.ld212_graph_break import LD212

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.graph import FxNode, Graph, LayoutBreaker
    from layoutdoctor.diagnosis.trial import Trial

broken, edges, cut = finder(LD104.check), finder(LD105.check), finder(LD212.check)

# ---------------------------------------------------------------------------------------------------------- LD104
NODE = a_node("convolution", "aten.convolution.default")
OF_VIDEOS = a_node("convolution_9", "aten.convolution.default", layout=contiguous((2, 8, 4, 16, 16)))
out = partial(
    a_conversion,
    owner="framework",
    graph="eager",
    source=channels_last(),
    target=contiguous(),
    direction="to_contiguous",
)
back = partial(out, direction="to_channels_last", source=contiguous(), target=channels_last())
PAID = (out("e0"), back("e1"), out("e2"), back("e3"), out("e4"))
NORMS = (
    a_breaker("instance_norm", conversions=("e0", "e1")),
    a_breaker("instance_norm_1", module="net.4", conversions=("e2", "e3"), seconds=2e-3),
    a_breaker("instance_norm_2", module="net.7", conversions=("e4",), seconds=1e-3),
)


def a_broken_trial(
    *breakers: LayoutBreaker,
    name: str = "eager-channels-last",
    conversions: tuple[Conversion, ...] = PAID,
    nodes: tuple[FxNode, ...] = (NODE, OF_VIDEOS),
    **changes: Any,
) -> Trial:
    graph = {"name": "eager", "breakers": breakers, "conversions": conversions}
    return with_graph(*nodes, name=name, graph=graph, **{"kernels": kernels(seconds=25e-3), **changes})


def test_breakers_of_one_kind_are_one_finding_with_places_reason_and_cost(told: Told) -> None:
    told("Three norms are one finding with places reason and price", broken(a_trial(), a_broken_trial(*NORMS)))
    paid = (out("e0", seconds=None), back("e1", seconds=None, fused=True))
    told("Without times the bytes are the price", broken(a_broken_trial(NORMS[0], conversions=paid)))


def test_the_models_own_calls_and_what_the_default_has_shown_are_not_reported_as_breakers() -> None:
    own, called = a_breaker("clone", op="contiguous"), a_breaker("clone_1", op="reshape", conversions=("e0",))
    for trial in (
        a_broken_trial(),
        a_broken_trial(own, called, conversions=(out("e0", owner="user", node="clone_1"),)),  # a matter of LD501
        a_broken_trial(*NORMS, name="inductor-channels-last"),
    ):
        assert broken(a_trial(), trial) == []
    shuffle = a_breaker("view", op="channel_shuffle", module=None, location=a_location(16))
    both = a_broken_trial(shuffle), a_broken_trial(shuffle, name="inductor")
    assert [f.configuration for f in broken(*both)] == ["inductor"]


def test_each_kind_of_breaker_has_its_advice(told: Told) -> None:
    shuffles = tuple(
        a_breaker(f"view_{i}", op="channel_shuffle", module=None, location=a_location(i), reason="") for i in (16, 17)
    )
    told(
        "Operations without a module are calls with their lines",
        broken(a_broken_trial(*shuffles, name="inductor", conversions=())),
    )
    comparison = a_comparison(a_ratio("eager-channels-last", 0.5))
    for case, decision in (("without the breaker", a_decision()), ("that never has the format, not", None)):
        main = a_trial(graphs=(a_graph(decision, nodes=(NODE,)),))
        told(
            f"A measured configuration {case} is named",
            broken(main, a_broken_trial(*NORMS), comparison=comparison),
        )
    for op in ("aten::_unsafe_view", "bmm", "native_channel_shuffle", "avg_pool3d"):
        told("Each kind has its advice", broken(a_broken_trial(a_breaker(op=op))))


def test_a_format_that_no_convolution_uses_is_no_loss() -> None:
    frame = {"source": densified(strided_layout((2, 8, 1, 24, 24), (27648, 1, 4608, 192, 8)))}  # of a clip
    breaker = a_breaker("new_zeros", op="new_zeros", target=contiguous((2, 8, 24, 24)), **frame)
    assert broken(a_trial(), a_broken_trial(breaker, nodes=(NODE,))) == []
    for nodes in ((), (OF_VIDEOS,)):
        assert len(broken(a_trial(), a_broken_trial(breaker, nodes=nodes))) == 1


@pytest.mark.parametrize("op", ["repeat", "repeat_interleave"])
def test_a_first_frame_of_several_videos_is_known_as_channels_last(op: str) -> None:
    frame = densified(strided_layout((2, 8, 1, 24, 24), (27648, 1, 4608, 192, 8)))  # x[:, :, :1] of six frames
    video = {"source": frame, "target": contiguous((2, 8, 2, 24, 24))}
    (finding,) = broken(a_trial(), a_broken_trial(a_breaker(op, op=op, **video)))
    assert (finding.suggestion or "").startswith("instead of repeat, list the slice several times in cat")


def test_the_parts_of_one_call_in_a_compiled_graph_are_one_call() -> None:
    parts = [a_breaker(node, op="interpolate", module="up", conversions=("e0",)) for node in ("mul_21", "mul_25")]
    again = a_breaker("mul_37", op="interpolate", module="up", conversions=("e1",))
    paid = (back("e0"), back("e1"))
    once, twice = (a_broken_trial(*some, conversions=paid) for some in (parts, (*parts, again)))
    (one,), (two,) = broken(once), broken(twice)
    assert one.message.startswith("channels_last lost at 1 interpolate layer (up): ")
    assert two.message.startswith("channels_last lost at 2 interpolate calls (up): ")


VIDEO = (2, 4, 5, 6, 6)
VOLUMES = {"source": channels_last(VIDEO), "target": contiguous(VIDEO), "reason": "", "module": None}


def test_weights_that_are_made_contiguous_behind_a_breaker_are_counted_apart(told: Told) -> None:
    weights = tuple(out(f"w{number}", tensor="weight", seconds=None) for number in range(2))
    breaker = a_breaker("repeat", op="repeat", conversions=("w0", "w1", "e0"), **VOLUMES)
    for conversions in (weights, (*weights, out("e0", seconds=None))):
        told("Weights are counted apart", broken(a_broken_trial(breaker, conversions=conversions)))
    for layout in (channels_last(VIDEO), contiguous((1, 1, 6, 6, 6))):
        small = a_breaker("conv_1", **{**VOLUMES, "op": "conv3d", "source": layout})
        told("A convolution has advice of its own", broken(a_broken_trial(small), subject=a_subject(device="cpu")))


def test_a_compiled_channels_last_trial_shows_what_the_model_does_to_channels_last_3d(told: Told) -> None:
    for layout in (contiguous(VIDEO), channels_last(VIDEO)):
        node = a_node("cat", "aten.cat.default", layout=layout)
        graph = a_graph(nodes=(node,), breakers=(a_breaker("cat", op="cat", **VOLUMES),), conversions=())
        told("The model, or Inductor against it", broken(a_trial(), a_trial("inductor-channels-last", graphs=(graph,))))


def test_an_operator_that_is_not_torchs_own_is_to_keep_the_format(told: Told) -> None:
    operators = (
        a_breaker("stem", op="conv2d", conversions=("e0",), bytes_moved=1, module="stem"),
        a_breaker("lif", op="mine::lif", conversions=("e1",), bytes_moved=9, module="lif"),
    )
    inside = a_copy("e1", "interior")
    main = a_broken_trial(*operators, name="inductor", conversions=(inside,))
    off = a_trial("inductor-layout-opt-off", graphs=(a_graph(conversions=(a_copy("x", "entry"),)),))
    also = a_trial("inductor-channels-last", graphs=(a_graph(conversions=(inside,)),))
    ratios = a_comparison(a_ratio(off.name, 0.92), a_ratio(also.name, 1.5))
    told("The dearest first, with the speed of what converts nothing", broken(main, off, also, comparison=ratios))
    static = [msgspec.structs.replace(trial, is_static=True, measurement=None) for trial in (main, off, also)]
    told("Of a GPU that is not there, what to measure", broken(*static))
    kernel = a_breaker("silu", op="triton::silu", conversions=("e1",), bytes_moved=9, module="silu")
    told("A Triton kernel of the model's own", broken(a_broken_trial(kernel, name="inductor", conversions=(inside,))))


# ---------------------------------------------------------------------------------------------------------- LD105
DECISION = a_decision(*(a_convolution(f"convolution_{i}") for i in range(4)))


def a_copy(id: str, role: str | None, **changes: Any) -> Conversion:
    return a_compilers_copy(id, **{"role": role, "seconds": None, "bytes_moved": 1 << 20, **changes})


ENTRY = a_copy("in", "entry", location=a_location(3), module="body.0")
EXIT = a_copy("out", "exit", direction="to_contiguous", fused=True)
WEIGHTS = tuple(a_copy(f"w{i}", "entry", tensor="weight") for i in range(4))


def at_edges(*conversions: Conversion, decision: Any = DECISION, **changes: Any) -> list[Finding]:
    return edges(a_trial(graphs=(a_graph(decision, conversions=conversions),)), **changes)


def test_conversions_at_the_edges_of_a_region_are_a_note(told: Told) -> None:
    told("One in and one out are named as such and not accused", at_edges(ENTRY, EXIT, *WEIGHTS))
    forward = a_graph(DECISION, name="forward", direction="forward", conversions=(ENTRY,))
    backward = a_graph(DECISION, name="backward", direction="backward", conversions=(EXIT, WEIGHTS[0]))
    training = a_subject(mode="training")
    told("The backward graph is left out", edges(a_trial(graphs=(forward, backward)), subject=training))


def test_a_graph_without_channels_last_convolutions_or_with_a_measured_gain_has_no_finding_about_its_edges() -> None:
    idle = a_decision(a_convolution(channels_last=False))
    assert at_edges(*WEIGHTS) == at_edges(ENTRY, decision=idle) == at_edges(ENTRY, decision=None) == []
    for median, count in ((1.25, 0), (1.0, 1)):  # a gain of channels_last input is a matter of LD205
        assert len(at_edges(ENTRY, comparison=a_comparison(a_ratio("inductor-channels-last", median)))) == count
    for readers, count in ((("mm",), 0), (("mm", "convolution_1"), 1)):
        assert len(at_edges(a_copy("in", "entry", required_by=readers))) == count


# ---------------------------------------------------------------------------------------------------------- LD212
def at_break(first: dict[str, Any], second: dict[str, Any], **changes: Any) -> tuple[Graph, ...]:
    exit_ = a_copy("out", **{"role": "exit", "source": channels_last(), "target": contiguous(), **TIMED, **first})
    entry = a_copy("in", **{"role": "entry", "module": "body.0.0", **TIMED, **second})
    later: dict[str, Any] = {"decision": a_decision(), "name": "graph 1", "conversions": (entry,)}
    return (a_graph(a_decision(), conversions=(exit_,)), a_graph(**{**later, **changes}))


TIMED = {"seconds": 1e-3, "graph": None, "module": "body.2"}


def cuts(*graphs: Graph, name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, graphs=graphs, **{"graph_break_reasons": ("call to print at model.py:20",), **changes})


def test_a_graph_break_in_a_channels_last_region_is_reported_with_its_cost(told: Told) -> None:
    told("A region left and entered again at a break is reported with what it costs", cut(cuts(*at_break({}, {}))))
    fused = {"fused": True, "seconds": None, "location": None, "module": None}
    told(
        "Fused conversions on a device that is not there are a note",
        cut(
            cuts(*at_break({**fused, "node": "relu_3"}, fused), kernels=None, measurement=None, is_static=True),
        ),
    )
    slight = at_break({"seconds": 1e-5}, {"seconds": 1e-5})
    found = cut(cuts(*slight, name="inductor-layout-opt-on"), cuts(*slight))
    assert [(f.configuration, f.severity) for f in found] == [("inductor", "note")]
    small = {"source": contiguous((4, 8, 6, 6)), "target": channels_last((4, 8, 6, 6))}
    for first, second in (
        ({}, small),
        ({"source": contiguous((4, 1, 6, 6))}, {}),
    ):
        assert cut(cuts(*at_break(first, second))) == []
    for changes in ({"decision": None}, {"direction": "backward"}):
        assert cut(cuts(*at_break({}, {}, **changes))) == []
    assert cut(cuts(*at_break({}, {}), graph_break_reasons=())) == []
