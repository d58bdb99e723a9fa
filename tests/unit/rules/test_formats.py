"""LD205 and LD502: the formats that the user gives the model and its input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_comparison,
    a_conversion,
    a_convolution,
    a_decision,
    a_graph,
    a_location,
    a_node,
    a_placeholder,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_subject,
    a_trial,
    an_input,
    channels_last,
    contiguous,
    finder,
    kernels,
)
from rule_builders import a_parameter, with_graph

from layoutdoctor.diagnosis.trial import Equivalence, Trial
from layoutdoctor.rules.ld205_input_format import LD205
from layoutdoctor.rules.ld502_mixed_formats import LD502
from layoutdoctor.rules.wording import BY_RANK

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.graph import FxNode
    from layoutdoctor.diagnosis.layout import Layout

given, mixed = finder(LD205.check), finder(LD502.check)

LAST = "inductor-channels-last"
IMAGES = (an_input(),)
READERS = (
    a_placeholder("t", contiguous((4, 64)), "activation"),
    a_placeholder("w", contiguous((64, 64, 3, 3)), "weight"),
    a_placeholder("x", contiguous(), "activation"),
    a_node("c0", "aten.convolution.default", ("t", "w"), module="of_another_input"),
    a_node("cast", "prims.convert_element_type.default", ("x",)),
    a_node("c1", "aten.convolution.default", ("cast", "w"), module="body.0", location=a_location(9)),
    a_node("c2", "aten.convolution.default", ("c1", "w"), module="body.3", location=a_location(14)),
)


def compared(*trials: Trial, median: float = 1.25, inputs: Any = IMAGES, **changes: Any) -> list[Finding]:
    comparison = a_comparison(a_ratio(LAST, median), a_ratio("inductor-channels-last-opt-off", 0.9))
    return given(*trials, **{"comparison": comparison, "subject": a_subject(inputs=inputs), **changes})


def test_contiguous_input_is_reported_if_channels_last_was_measured_faster(told: Told) -> None:
    entry = a_conversion("copy 0", owner="compiler", seconds=None, bytes_moved=8, location=a_location(3), module="a")
    exit_ = a_conversion("reorder 1", location=a_location(14), module="body.3")
    weight, weight2 = (a_conversion(f"reorder {number}", tensor="weight") for number in (2, 3))
    told(
        "Contiguous input where channels last is faster is a warning with what is converted now",
        compared(a_trial(kernels=kernels(exit_, weight), graphs=(a_graph(conversions=(entry,)),))),
    )
    for other in (a_trial(LAST, kernels=kernels(weight)), a_trial(LAST, kernels=kernels())):
        told(
            "Weights count where fewer are converted then",
            compared(a_trial(kernels=kernels(exit_, weight, weight2)), other),
        )
    comparison = a_comparison(a_ratio(LAST, 1.01), a_ratio("inductor-channels-last-opt-off", 1.3))
    told("Only with layout optimization off is it faster", compared(a_trial(), comparison=comparison))
    for shapes in ([(4, 3, 8, 8), (4, 3, 9, 9)], [(4, 3, 8, 8), (2, 4, 8, 32, 32)]):
        inputs = tuple(an_input(contiguous(shape), name=None) for shape in shapes)
        told("Each rank has its own format", compared(inputs=inputs))
    both = a_graph(decision=a_decision(a_convolution(), a_convolution(rank=3)))
    told("One call does not convert a model with weights of both ranks", compared(a_trial(graphs=(both,))))
    dearest = a_conversion("reorder 1", location=a_location(14), module="body.3", node="c2")
    told(
        "The place is the first convolution that reads the input and not the dearest conversion",
        compared(a_trial(kernels=kernels(dearest), graphs=(a_graph(nodes=READERS),))),
    )
    advice = a_recommendation(LAST, verified=True, speedup=a_speedup(1.25, name=LAST))
    told(
        "It is an error where channels last input was verified",
        compared(a_trial(), a_trial(LAST), recommendation=advice),
    )


def test_input_is_not_reported_if_it_is_channels_last_or_nothing_right_is_faster() -> None:
    different = a_trial(LAST, equivalence=Equivalence(status="different"))
    assert compared(median=1.02) == compared(a_trial(), different) == []
    # One channel satisfies both formats at once.
    for layout in (channels_last((4, 3, 56, 56)), contiguous((4, 1, 56, 56)), contiguous((4, 128))):
        assert compared(inputs=(an_input(layout),)) == []


# ---------------------------------------------------------------------------------------------------------- LD502
WEIGHT = (64, 64, 3, 3)


def a_convolution_of(name: str, value: str, layout: Layout | None = None) -> FxNode:
    return a_node(name, "aten.convolution.default", (value, "w"), layout=layout or contiguous())


PERMUTE = a_node(
    "permute",
    "aten.permute.default",
    ("layer_norm",),
    layout=channels_last(),
    called="permute",
    location=a_location(7),
    module="n1",
)
NODES = (
    a_parameter("w"),
    a_placeholder("x"),
    a_convolution_of("stem", "x"),
    a_node("layer_norm", "aten.native_layer_norm.default", ("stem",), layout=contiguous((4, 56, 56, 64))),
    PERMUTE,
    a_convolution_of("c1", "permute", channels_last()),
    a_node("relu", inputs=("c1",), layout=channels_last()),
    a_convolution_of("c2", "relu", channels_last()),
)
COPIES = tuple(a_conversion(f"copy {i}", owner="framework", seconds=1e-3, bytes_moved=8) for i in range(3))


def an_eager(*nodes: FxNode, **changes: Any) -> Trial:
    seen = {"kernels": kernels(*COPIES, a_conversion("reorder 0")), **changes}
    return with_graph(*(nodes or NODES), name="eager", graph={"name": "eager"}, **seen)


def test_the_first_layer_that_makes_a_contiguous_model_channels_last_is_named(told: Told) -> None:
    told("The first flip is named with what follows it", mixed(an_eager()))
    told("Without times it is a note and without conversions there are none reported", mixed(an_eager(kernels=None)))
    for median in (1.2, 0.8):
        comparison = a_comparison(a_ratio("eager", 0.6), a_ratio("eager-channels-last", median))
        told(
            "What channels last was measured to do is reported",
            mixed(an_eager(), a_trial("eager-channels-last"), comparison=comparison),
        )
    # The flip is where the format began, not where a convolution first reads it.
    relu = a_node("relu_0", inputs=("permute",), layout=channels_last())
    added = a_node("add", "aten.add.Tensor", ("relu_0", "permute"), layout=channels_last())
    (finding,) = mixed(an_eager(*NODES[:5], relu, added, a_convolution_of("c1", "add", channels_last())))
    assert finding.evidence[:2] == ("permute", "c1")


def test_parameters_in_both_formats_are_converted_by_one_call_only_if_they_have_one_rank() -> None:
    last, volume = a_parameter("w2", channels_last(WEIGHT)), a_parameter("w3", contiguous((8, 8, 3, 3, 3)))
    (flat,), (both,) = (mixed(an_eager(*NODES[:2], last, *more)) for more in ((), (volume,)))

    assert flat.suggestion == "convert all of them to one format: model = model.to(memory_format=torch.channels_last)"
    assert both.suggestion == f"convert all of them to one format: each parameter {BY_RANK}"


def test_a_format_that_was_given_or_chosen_is_no_mixture() -> None:
    clone = a_node("clone", "aten.clone.default", ("x",), layout=channels_last())
    reader = a_convolution_of("c1", "clone", channels_last())
    asked = a_conversion("u0", owner="user", graph="eager", node="clone", direction="to_channels_last")
    called = a_node("clone", "aten.clone.default", ("x",), layout=channels_last(), called="contiguous")
    for trial in (
        an_eager(a_parameter("w"), a_placeholder("x", channels_last()), a_convolution_of("c1", "x")),
        an_eager(a_parameter("w", channels_last(WEIGHT)), *NODES[1:]),
        an_eager(*NODES[:2], called, reader),
        an_eager(*NODES[:2], clone, reader, kernels=kernels(asked)),
    ):
        assert mixed(trial) == []
    assert mixed(an_eager(), subject=a_subject(inputs=(an_input(channels_last()),))) == []
