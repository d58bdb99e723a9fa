"""LD209, LD402 and LD505: outputs in another memory format, or with other values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_breaker,
    a_graph,
    a_location,
    a_node,
    a_placeholder,
    a_trial,
    an_environment,
    channels_last,
    contiguous,
    finder,
)
from rule_builders import with_graph

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.diagnosis.trial import Equivalence, Trial
from layoutdoctor.rules.ld209_output_strides import LD209
from layoutdoctor.rules.ld402_outputs_differ import LD402
from layoutdoctor.rules.ld505_as_strided import LD505

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.graph import FxNode, GraphDirection
    from layoutdoctor.diagnosis.layout import Layout

strides, values, raw = finder(LD209.check), finder(LD402.check), finder(LD505.check)

LAST, EAGER_LAST = "inductor-channels-last", "eager-channels-last"


def returning(name: str, *layouts: Layout, status: Any = "equal", **changes: Any) -> Trial:
    return a_trial(name, equivalence=Equivalence(status=status, output_layouts=layouts), **changes)


def test_outputs_in_another_format_than_eagers_are_reported_together(told: Told) -> None:
    frozen = returning("inductor-freezing", channels_last())
    told(
        "A configuration that leaves the conversion back to its caller is named",
        strides(returning("eager", contiguous()), returning("inductor", contiguous()), frozen),
    )
    shape = (2, 5, 3, 7, 2)
    orders = (210, 1, 70, 10, 5), (210, 1, 14, 42, 7), (420, 1, 140, 20, 10)
    eager, permuted, same_order = (strided_layout(shape, stride) for stride in orders)
    told(
        "A layout in no memory format is compared by its stride order",
        strides(returning("eager", permuted), returning("inductor", eager)),
    )
    assert strides(returning("eager", same_order), returning("inductor", eager)) == []
    flat, small = contiguous((4, 8)), (4, 8, 6, 6)
    told(
        "Several outputs are reported together",
        strides(
            returning("eager", contiguous(), flat, contiguous(small)),
            returning("inductor", channels_last(), flat, channels_last(small)),
        ),
    )
    broken = a_breaker("clone", op="channel_shuffle", location=a_location(12), module="shuffle")
    told(
        "A format lost under the compiler is reported once with all configurations and the place",
        strides(
            returning(EAGER_LAST, channels_last()),
            returning(LAST, contiguous(), graphs=(a_graph(breakers=(broken,)),)),
            returning("inductor-channels-last-opt-off", contiguous()),
        ),
    )
    graph = a_graph(nodes=(a_node("relu", layout=channels_last()),), output_names=("relu",))  # 6.4 MB read and written
    trials = (returning("eager", contiguous()), returning("inductor", channels_last(), graphs=(graph,)))
    felt = strides(*trials, environment=an_environment(copy_bandwidth_bytes_per_second=3.2e9))
    told("A conversion back that can be felt is a warning with its cost", felt)


def test_only_equal_outputs_of_one_shape_whose_bytes_must_move_are_reported() -> None:
    different = returning("inductor", channels_last(), status="different")
    for other in (different, returning(LAST, channels_last()), returning(EAGER_LAST, channels_last())):
        assert strides(returning("eager", contiguous()), other) == []
    assert strides(a_trial("eager", equivalence=None), a_trial("inductor", equivalence=None)) == []
    pointwise = (4, 8, 1, 1)
    for expected, returned in (
        (contiguous(pointwise), channels_last(pointwise)),
        (contiguous((4, 8)), contiguous((4, 8))),
        (contiguous((4, 8, 8, 8)), contiguous((4, 16, 8, 8))),
    ):
        assert strides(returning("eager", expected), returning("inductor", returned)) == []


# ---------------------------------------------------------------------------------------------------------- LD402
def different(name: str, **changes: Any) -> Trial:
    fields = {"status": "different", "detail": "output: relative error 0.5, allowed 0.0001", "reference": "float64"}
    return a_trial(name, equivalence=Equivalence(**{**fields, **changes}))


def test_the_cause_of_other_values_follows_from_the_other_configurations(told: Told) -> None:
    bare = different("inductor", reference=None, detail=None)
    told("What was not recorded is left out", values(bare, different("inductor-layout-opt-off")))
    told(
        "The default that differs alone is an error and a bug to report",
        values(a_trial("eager"), different("inductor")),
    )
    failed = a_trial("eager", status="failed", measurement=None, kernels=None, equivalence=None)
    for eager, wrong in ((failed, different("inductor")), (a_trial("eager"), different(EAGER_LAST))):
        assert "compiling is the cause" not in values(eager, wrong)[0].message
    told(
        "What is right without layout optimization comes with it",
        values(a_trial("eager"), different("inductor"), a_trial("inductor-layout-opt-off")),
    )
    told(
        "Channels last that differs in eager as well is the models own doing",
        values(a_trial("eager"), different(EAGER_LAST), different(LAST)),
    )


# ---------------------------------------------------------------------------------------------------------- LD505
ROLL = a_node("roll", "aten.roll.default", ("x",), layout=contiguous((2, 5, 3, 4)))


def a_call(
    name: str = "as_strided", source: str = "roll", target: str = "aten.as_strided.default", **changes: Any
) -> FxNode:
    fields: dict[str, Any] = {"location": a_location(7), "called": "as_strided", "is_called_directly": True}
    return a_node(name, target, (source,), **{**fields, **changes})


def calling(*nodes: FxNode, name: str = "eager", direction: GraphDirection = "inference") -> Trial:
    return with_graph(*nodes, name=name, graph={"direction": direction})


def test_as_strided_on_an_activation_is_a_warning_with_its_lines(told: Told) -> None:
    told("As strided on an activation is a warning", raw(a_trial(), calling(ROLL, a_call())))
    calls = (a_call(), a_call("as_strided_1", location=a_location(9)))
    last = a_trial(EAGER_LAST, equivalence=Equivalence(status="different"))
    told("Several calls are one finding and configurations that differ are named", raw(calling(ROLL, *calls), last))
    unknown = a_call(called=None, is_called_directly=None, location=None)
    told("A compiled graph shows where eager was not recorded but only what the model called", raw(calling(unknown)))
    assert raw(calling(ROLL, unknown, name="inductor")) == []
    by_line = a_call(called=None, is_called_directly=None, location=a_location(7, code="return torch.as_strided(y, 8)"))
    for node in (by_line, a_call(), a_call(target="aten.as_strided_scatter.default")):
        assert [f.configuration for f in raw(calling(ROLL, node, name="inductor"))] == ["inductor"]


def test_as_strided_in_a_backward_by_torch_itself_or_on_a_parameter_is_not_reported() -> None:
    weight, turned = a_placeholder("w", contiguous((64, 64)), "weight"), a_node("t", "aten.t.default", ("w",))
    assert raw(calling(ROLL, a_call(), name="inductor", direction="backward")) == []
    assert raw(calling(weight, turned, a_call(source="t"))) == raw(calling(weight, a_call(source="w"))) == []
    for changes in (
        {"backward": True},
        {"called": "adaptive_avg_pool2d", "is_called_directly": False},
        {"called": None, "location": a_location(7, code="y = self.pool(x)")},
        {"target": "aten.view.default"},
    ):
        assert raw(calling(ROLL, a_call(**changes))) == []
