"""LD201, LD202, LD206, LD207, LD208 and LD210: what Inductor decided about layouts, and what came of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_breaker,
    a_comparison,
    a_configuration,
    a_conversion,
    a_convolution,
    a_decision,
    a_failed_trial,
    a_graph,
    a_location,
    a_node,
    a_placeholder,
    a_ratio,
    a_subject,
    a_trial,
    an_input,
    channels_last,
    contiguous,
    finder,
    kernels,
)
from rule_builders import against

from layoutdoctor.diagnosis.layout import Layout, strided_layout
from layoutdoctor.rules.decisions import leaves_out_backward
from layoutdoctor.rules.ld201_without_effect import LD201
from layoutdoctor.rules.ld202_vetoed import LD202
from layoutdoctor.rules.ld206_forward_backward import LD206
from layoutdoctor.rules.ld207_vetoed_by_one import LD207
from layoutdoctor.rules.ld208_dynamic_shapes import LD208
from layoutdoctor.rules.ld210_conv1d import LD210

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.graph import Convolution, Decision
    from layoutdoctor.diagnosis.trial import Trial

idle, vetoed, mismatched = finder(LD201.check), finder(LD202.check), finder(LD206.check)
vetoed_by_one, symbolic, one_dimensional = finder(LD207.check), finder(LD208.check), finder(LD210.check)

LAST, OFF, FORCED = "inductor-channels-last", "inductor-layout-opt-off", "inductor-layout-opt-forced"
LAST_OFF = "inductor-channels-last-opt-off"
STATIC: dict[str, Any] = {"is_static": True, "kernels": None, "measurement": None, "equivalence": None}


def with_cards(*decisions: Decision | None, name: str = "inductor", **changes: Any) -> Trial:
    graphs = tuple(a_graph(d, name=f"graph {i}") for i, d in enumerate(decisions))
    return a_trial(name, **{"graphs": graphs, **changes})


# ---------------------------------------------------------------------------------------------------------- LD201
def volumes(count: int = 4, rank: int | None = 3) -> tuple[Convolution, ...]:
    return tuple(a_convolution(f"convolution_{i}", rank=rank, channels_last=False) for i in range(count))


IDLE, ACTIVE = a_decision(*volumes()), a_decision(a_convolution())
SHAPE = (2, 16, 8, 32, 32)
RETURNED = a_conversion(
    "buf3",
    owner="compiler",
    source=channels_last(SHAPE),
    target=contiguous(SHAPE),
    direction="to_contiguous",
    role="interior",
    bytes_moved=2_097_152,
)
LEFT = a_conversion(
    "buf5",
    owner="compiler",
    source=contiguous(SHAPE),
    target=channels_last(SHAPE),
    direction="to_channels_last",
    role="exit",
    bytes_moved=4_194_304,
)


def test_an_optimization_that_reaches_no_convolution_is_reported_with_what_it_costs(told: Told) -> None:
    told("Conv3d left alone by an applied optimization is a note that says why", idle(with_cards(IDLE)))
    told(
        "What the compiler brings back from channels last 3d is counted where it does so",
        idle(with_cards(IDLE), a_trial(LAST, graphs=(a_graph(IDLE, conversions=(RETURNED,)),))),
    )
    ended = a_graph(IDLE, conversions=(RETURNED,), breakers=(a_breaker(op="repeat"), a_breaker(op="repeat")))
    told("The line that ends the format is named", idle(with_cards(IDLE), a_trial(LAST, graphs=(ended,))))
    last, off = (a_graph(IDLE, conversions=of) for of in ((RETURNED, LEFT), ()))
    library = kernels(a_conversion("reorder 0"))
    measured = a_comparison(a_ratio(LAST, 0.96), a_ratio(LAST_OFF, 1.4))
    told(
        "What layout optimization costs in channels last 3d is said with what was measured of it",
        idle(
            with_cards(IDLE),
            a_trial(LAST, graphs=(last,), kernels=library),
            a_trial(LAST_OFF, graphs=(off,), kernels=kernels()),
            comparison=measured,
        ),
        idle(
            with_cards(IDLE, **STATIC),
            a_trial(LAST, graphs=(last,), **STATIC),
            a_trial(LAST_OFF, graphs=(off,), **STATIC),
        ),
    )
    told(
        "No format is advised that converts more in a table without times",
        idle(with_cards(IDLE, **STATIC), *(a_trial(name, graphs=(last,), **STATIC) for name in (LAST, LAST_OFF))),
        idle(with_cards(IDLE, **STATIC), *(a_trial(name, graphs=(off,), **STATIC) for name in (LAST, LAST_OFF))),
    )
    for ranks in ((1, 3), (2, 3)):
        decision = a_decision(*(volumes(1, rank)[0] for rank in ranks))
        told("The reason is given only where the ranks explain it", idle(with_cards(decision)))


def test_an_optimization_that_reaches_a_convolution_or_has_1_d_ones_only_is_not_reported() -> None:
    for trials in (
        (with_cards(a_decision(a_convolution(), *volumes(3))),),
        (with_cards(ACTIVE),),
        (with_cards(a_decision(*volumes(rank=1))),),  # a matter of LD210
    ):
        assert idle(*trials) == []


def test_the_model_is_to_be_converted_by_hand_unless_that_was_measured_as_no_faster(told: Told) -> None:
    told(
        "It is a warning where channels last by hand was measured faster", idle(with_cards(IDLE), **against(LAST, 1.52))
    )
    subject = a_subject(parameter_formats={"channels_last_3d": 4})
    for conversions in ((), (RETURNED,)):
        trial = a_trial(graphs=(a_graph(IDLE, conversions=conversions),))
        told("Parameters in channels last 3d need nothing unless the compiler undoes it", idle(trial, subject=subject))
    subject = a_subject(parameter_formats={"channels_last_3d": 3})
    graph = a_graph(IDLE, conversions=(RETURNED, RETURNED))
    inductor = a_trial(graphs=(graph,), is_static=True, measurement=None)
    for left in ((), (RETURNED,), (RETURNED, RETURNED)):
        off = a_trial(OFF, graphs=(a_graph(None, conversions=left),), measurement=None)
        told("The conversions without layout optimization are counted", idle(inductor, off, subject=subject))
    off = a_trial(OFF, graphs=(a_graph(None),))
    found = idle(inductor, off, subject=subject, **against(OFF, 0.8))
    told("It is not suggested if it was measured as slower", found)


# ------------------------------------------------------------------------------------------ LD202, LD207 and LD208
SMALL = a_convolution("convolution_1", module="body.1", weight_shape=(64, 16, 3, 3), groups=4, channels_last=False)
VETO = a_decision(
    SMALL,
    applied=False,
    rule="small-channels",
    explanation="all convolutions have at most 64 input and output channels",
    deciding_nodes=("convolution_1",),
)
ALL_MEASURES = "measure the cost of the veto with --configurations all (inductor-layout-opt-forced)"


def test_a_veto_by_all_convolutions_names_its_rule_and_those_that_decided(told: Told) -> None:
    told("A veto names its rule and the convolution that made it", vetoed(with_cards(VETO)))
    repeated = vetoed(with_cards(VETO, name=LAST), with_cards(VETO, VETO))
    assert [f.configuration for f in repeated] == ["inductor"]


def test_a_veto_by_other_rules_or_of_other_configurations_is_no_veto_by_all() -> None:
    both = (a_graph(a_decision(), direction="forward"), a_graph(VETO, name="graph 1", direction="backward"))
    assert vetoed(a_trial(graphs=both)) == []
    for rule in ("config-off", "not-recorded", "grouped-convolution", "dynamic-shape", "only-backward-convolutions"):
        assert vetoed(with_cards(a_decision(applied=False, rule=rule))) == []
    for name in ("eager", OFF, FORCED):
        assert vetoed(with_cards(VETO, name=name)) == []
    # Forcing changes 2-D convolutions only.
    assert vetoed(with_cards(a_decision(*volumes(), applied=False, rule=VETO.rule))) == []


def test_the_suggestion_for_a_veto_is_what_was_measured_of_it(told: Told) -> None:
    told("It is a warning where forcing was measured faster", vetoed(with_cards(VETO), **against(FORCED, 1.2)))
    for median, width in ((0.8, 0.03), (1.0, 0.03), (1.0, 0.5)):
        told("What was measured of a veto is said", vetoed(with_cards(VETO), **against(FORCED, median, width)))
    for trials, changes, words in (
        ((with_cards(VETO),), {"comparison": a_comparison()}, ALL_MEASURES),
        ((with_cards(VETO, **STATIC),), {}, f"on the device itself, {ALL_MEASURES}"),
    ):
        assert [(f.severity, f.suggestion) for f in vetoed(*trials, **changes)] == [("note", words)]


NARROWING = a_convolution(
    "convolution_4",
    class_="in_out",
    module="d2.0",
    weight_shape=(64, 192, 3, 3),
    is_transposed=False,
    channels_last=False,
    location=a_location(31),
)
GROUPED = a_convolution("convolution_1", class_="grouped", weight_shape=(64, 16, 3, 3), groups=4, is_transposed=False)
OTHERS = tuple(a_convolution(f"other_{i}", channels_last=False) for i in range(5))


def by_one(*deciding: Convolution, others: tuple[Convolution, ...] = OTHERS, **changes: Any) -> Trial:
    rule = "grouped-convolution" if deciding and deciding[0].class_ == "grouped" else "smaller-out-channels"
    names = tuple(convolution.node for convolution in deciding)
    fields = {"applied": False, "rule": rule, "explanation": "torch says so", "deciding_nodes": names}
    decision = a_decision(*others, *deciding, **{**fields, **changes})
    return a_trial(graphs=(a_graph(decision, direction="forward"),))


def test_a_veto_by_one_convolution_names_it_and_counts_the_others(told: Told) -> None:
    told("The convolution that vetoed is named with the others that suffer from it", vetoed_by_one(by_one(NARROWING)))
    upwards = a_convolution("c", module="up", weight_shape=(64, 128, 2, 2), is_transposed=True)
    for deciding, others in (((GROUPED,), OTHERS[:1]), ((NARROWING, upwards), OTHERS), ((GROUPED,), ())):
        told("What is known of the deciding convolutions is said", vetoed_by_one(by_one(*deciding, others=others)))
    told("Without a deciding node torchs own reason is given", vetoed_by_one(by_one()))
    for changes in ({"rule": "small-channels"}, {"rule": "dynamic-shape"}, {"applied": True}):
        assert vetoed_by_one(by_one(NARROWING, **changes)) == []


def test_a_veto_by_symbolic_sizes_names_the_dimensions(told: Told) -> None:
    def with_inputs(*nodes: Any) -> Trial:
        decision = a_decision(
            a_convolution("convolution_1", channels_last=False),
            a_convolution("convolution_2"),
            applied=False,
            rule="dynamic-shape",
            explanation="a convolution has symbolic sizes (body.0)",
            deciding_nodes=("convolution_1",),
        )
        return a_trial(graphs=(a_graph(decision, nodes=nodes),))

    image = a_placeholder("arg3_1", Layout(("s77", 3, "s27", 56), ("s77", 3, "s27", 56), ()))
    told("The symbolic dimensions of the input are named", symbolic(with_inputs(a_placeholder("arg1_1"), image)))
    told("It is a warning where a way around was measured faster", symbolic(with_inputs(image), **against(LAST, 1.2)))
    assert symbolic(with_cards(a_decision(), VETO)) == []


# ---------------------------------------------------------------------------------------------------------- LD206
BACKWARD = tuple(f"convolution_backward_{i}" for i in range(4))
UNCOUNTED = a_decision(
    *(a_convolution(name, channels_last=False, is_backward=True) for name in BACKWARD),
    applied=False,
    rule="only-backward-convolutions",
    explanation="the graph has only backward convolutions",
)
GROUPED_VETO = a_decision(applied=False, rule="grouped-convolution", explanation="a grouped convolution vetoes it")
TRAINING = a_subject(mode="training")
laid_out_anew = partial(
    a_conversion,
    owner="compiler",
    kernel="cpp_fused_3",
    graph="graph 1",
    source=channels_last(),
    target=contiguous(),
    direction="to_contiguous",
    tensor="gradient",
    seconds=None,
    bytes_moved=1_048_576,
    required_by=(BACKWARD[0],),
    role="interior",
)


def a_step(
    *conversions: Conversion,
    library: tuple[Conversion, ...] = (),
    forward: Decision | None = None,
    backward: Decision = UNCOUNTED,
    name: str = "inductor",
    **changes: Any,
) -> Trial:
    graphs = (
        a_graph(forward or a_decision(), direction="forward"),
        a_graph(backward, name="graph 1", direction="backward", conversions=conversions),
    )
    return a_trial(name, graphs=graphs, **{"kernels": kernels(*library), **changes})


def in_training(*trials: Trial, **changes: Any) -> list[Finding]:
    return mismatched(*trials, **{"subject": TRAINING, **changes})


def test_a_backward_without_layout_optimization_is_reported_with_what_is_converted_for_it(told: Told) -> None:
    fused = laid_out_anew("buf1", fused=True)
    reorder = laid_out_anew("reorder 7", owner="library", seconds=1.5e-3, location=a_location(12), module="dw")
    told(
        "A backward without layout optimization is reported with what is converted for it",
        in_training(a_step(fused, laid_out_anew("buf2"), library=(reorder,))),
    )


def test_conversions_of_parameters_at_edges_or_kept_by_channels_last_input_do_not_follow_from_a_mismatch() -> None:
    of_parameter = {"owner": "library", "port": "output 1"}
    for changes in (
        {"tensor": "weight"},
        {"role": "exit"},
        of_parameter,
        {"required_by": ("mm",)},
    ):
        assert [f.evidence for f in in_training(a_step(laid_out_anew("buf1", **changes)))] == [("graph 1",)]
    # What channels_last input leaves as it is, such as gradients of transposed convolutions, is not counted.
    kept = laid_out_anew("reorder 7", owner="library", port="output 0")
    assert [f.evidence for f in in_training(a_step(library=(kept,)))] == [("reorder 7",)]
    assert [f.evidence for f in in_training(a_step(library=(kept,)), a_step(library=(kept,), name=LAST))] == [
        ("graph 1",)
    ]


def test_a_mismatch_without_conversions_or_between_halves_decided_alike_is_not_reported() -> None:
    given, one = a_subject(mode="training", inputs=(an_input(channels_last((4, 3, 56, 56))),)), laid_out_anew("buf1")
    off = a_configuration("other", layout_optimization="off")
    assert in_training(a_step(), subject=given) == in_training(a_step(name=LAST)) == []
    for trial in (
        a_step(one, forward=GROUPED_VETO),
        a_step(one, backward=a_decision()),
        a_step(one, configuration=off),
    ):
        assert in_training(trial) == []
    assert leaves_out_backward(a_step().graphs)
    for other in (a_step(forward=GROUPED_VETO), a_step(backward=GROUPED_VETO), a_step(backward=a_decision())):
        assert not leaves_out_backward(other.graphs)


def test_ways_around_a_mismatch_that_failed_or_are_no_faster_are_not_suggested(told: Told) -> None:
    told(
        "A measured gain of channels last makes it a warning and follows the advice",
        in_training(a_step(), **against(LAST, 1.2)),
    )
    step, slower, compared = a_step(laid_out_anew("buf1")), a_trial(OFF), against(OFF, 0.9)
    told(
        "Nothing is suggested that was measured as no faster or that failed",
        in_training(step, slower, a_failed_trial(FORCED), **compared),
        in_training(step, slower, a_failed_trial(LAST), a_failed_trial(FORCED), **compared),
    )


# ---------------------------------------------------------------------------------------------------------- LD210
SEQUENCE = (4, 16, 100)


def flat(count: int = 3, rank: int = 1) -> tuple[Convolution, ...]:
    return tuple(a_convolution(f"c{rank}_{i}", rank=rank, module=f"m{i}", channels_last=False) for i in range(count))


ONE_D = a_decision(*flat())
TURNED = a_conversion(
    "buf0",
    owner="compiler",
    node="c1_0",
    module="m0",
    source=strided_layout(SEQUENCE, (1600, 1, 16)),
    target=contiguous(SEQUENCE),
    direction="to_contiguous",
)


def eager_with(*conversions: Conversion) -> Trial:
    node = a_node("convolution", "aten.convolution.default", layout=contiguous(SEQUENCE))
    return a_trial("eager", graphs=(a_graph(name="eager", nodes=(node,)),), kernels=kernels(*conversions))


def test_one_dimensional_convolutions_are_counted_and_a_needed_copy_is_called_so(told: Told) -> None:
    told(
        "A graph of 1 d convolutions beside one of 2 d is a part of all",
        one_dimensional(with_cards(a_decision(*flat(1)), a_decision(*flat(3, rank=2)))),
    )
    turned = a_trial(graphs=(a_graph(ONE_D, conversions=(TURNED,)),))
    for others in ((), (eager_with(),), (eager_with(a_conversion(module="elsewhere")),)):
        told("A copy that eager does not make is not called needed", one_dimensional(turned, *others))
    off = a_configuration("other", layout_optimization="off")
    assert one_dimensional(with_cards(ONE_D, configuration=off)) == []
