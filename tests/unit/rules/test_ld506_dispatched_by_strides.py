from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from builders import Told, a_conversion, a_decision, a_graph, a_location, a_node, a_placeholder, a_trial, finder

from layoutdoctor.diagnosis.layout import dense_stride, strided_layout
from layoutdoctor.rules.ld502_mixed_formats_in_model import check as mixed_formats
from layoutdoctor.rules.ld504_ambiguous_format import check as ambiguous_format
from layoutdoctor.rules.ld506_dispatched_by_strides import check

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import FxNode, Trial

findings = finder(check)

CONTIGUOUS, LAST = (0, 1, 2, 3), (0, 2, 3, 1)


def layout(*shape: int, order: tuple[int, ...] = CONTIGUOUS) -> Any:
    return strided_layout(shape, dense_stride(shape, order))


# One of a channels_last batch, and gray images whose channels were moved in front.
SLICE = strided_layout((1, 3, 32, 32), (3, 1, 96, 3))
GRAY = strided_layout((4, 1, 32, 32), (1024, 1, 32, 1))
W = a_placeholder("w", layout(8, 3, 3, 3), "weight")
GRAY_W = a_placeholder("w", strided_layout((8, 1, 3, 3), (9, 9, 3, 1)), "weight")


def conv(*inputs: str, returned: Any) -> FxNode:
    return a_node("conv", "aten.convolution.default", inputs, layout=returned, location=a_location(7), module="stem")


LOST = (W, a_placeholder("x", SLICE), conv("x", "w", returned=layout(1, 8, 30, 30)))
GAINED = (GRAY_W, a_placeholder("x", GRAY), conv("x", "w", returned=layout(4, 8, 30, 30, order=LAST)))


def eager(*nodes: FxNode, **changes: Any) -> Trial:
    return a_trial("eager", graphs=(a_graph(name="eager", nodes=nodes),), **changes)


def test_what_is_no_finding() -> None:
    exact = layout(1, 3, 32, 32, order=LAST)
    for nodes in (
        (W, a_placeholder("x", exact), conv("x", "w", returned=layout(1, 8, 30, 30, order=LAST))),
        # The weight is channels_last, and so is the result.
        (W, a_placeholder("x", SLICE), conv("x", "w", returned=layout(1, 8, 30, 30, order=LAST))),
        # An operation that returns contiguous whatever it is given.
        (a_placeholder("x", SLICE), a_node("norm", "aten.softmax.int", ("x",), layout=layout(1, 3, 32, 32))),
        # In the backward nobody can change it.
        tuple(msgspec.structs.replace(node, backward=True) for node in LOST),
        # The caller asked for the format of the weight.
        (a_placeholder("w", layout(8, 1, 3, 3, order=LAST), "weight"), *GAINED[1:]),
        (GRAY_W, a_node("x", "aten._to_copy.default", layout=GRAY, called="to"), GAINED[2]),
        (a_placeholder("x"), conv("x", returned=layout(4, 8, 30, 30))),
    ):
        assert findings(eager(*nodes)) == []
    # Layout optimization makes it channels-last anyway.
    assert findings(a_trial(graphs=(a_graph(a_decision(applied=True), nodes=LOST),))) == []


def test_what_it_says(told: Told) -> None:
    told("A slice of a channels_last batch is read as contiguous", findings(eager(*LOST)))
    told("Gray images are read as channels_last", findings(eager(*GAINED)))
    pooled = a_node("pool", "aten.avg_pool2d.default", ("x",), layout=layout(1, 3, 16, 16))
    up = a_node("up", "aten.upsample_nearest2d.vec", ("y",), layout=layout(1, 3, 64, 64))
    told("Several tensors are one finding", findings(eager(*LOST, pooled, a_placeholder("y", SLICE), up)))
    assert [f.configuration for f in findings(eager(*LOST), a_trial("eager-channels-last", graphs=()))] == ["eager"]


def test_what_it_costs_is_what_is_converted_there() -> None:
    conversion = a_conversion("c1", node="conv", seconds=2e-3, graph="eager")
    graph = a_graph(name="eager", nodes=LOST, conversions=(conversion,))
    (finding,) = findings(a_trial("eager", graphs=(graph,)))

    assert finding.evidence == ("x", "c1")
    assert finding.location == a_location(7)


def test_other_rules_leave_it_to_this_one() -> None:
    again = a_node("next", "aten.convolution.default", ("conv", "w"), layout=layout(4, 8, 28, 28, order=LAST))
    trial = eager(*GAINED, again)

    assert finder(ambiguous_format)(trial) == []
    assert finder(mixed_formats)(trial) == []
    assert len(findings(trial)) == 1
