"""Whether two lowerings that differ are found to differ, and what was compared is counted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import target_check
import torch
import two_lowerings
from builders import a_buffer, a_conversion, a_convolution, a_decision, a_graph, a_node, channels_last, contiguous
from graph_difference import (
    compare_lowerings,
    convolution_formats,
    layout_facts,
    loses_channels_last,
    summed,
)
from msgspec.structs import replace

from layoutdoctor.layout import dense_stride, strided_layout

if TYPE_CHECKING:
    from layoutdoctor.layout import Layout
    from layoutdoctor.records import Graph

VOLUME = (2, 8, 4, 6, 6)


def a_lowering(**changes: Any) -> Graph:
    """One graph: a convolution whose input is converted."""
    fields: dict[str, Any] = {
        "nodes": (a_node("relu"), a_node("convolution", "aten.convolution.default", ("relu",))),
        "buffers": (
            a_buffer("buf0", kernel="triton_poi_fused_relu_0", origins=("relu",)),
            a_buffer("buf1", kernel="extern_kernels.convolution", origins=("convolution",), is_extern=True),
        ),
        "conversions": (a_conversion("c", node="relu", owner="compiler", kernel="triton_poi_fused_relu_0"),),
        "kernel_names": ("triton_poi_fused_relu_0",),
    }
    return a_graph(a_decision(a_convolution()), **{**fields, **changes})


def test_a_lowering_agrees_with_itself_and_everything_of_it_was_compared() -> None:
    found = compare_lowerings([a_lowering()], [a_lowering()])

    assert found.is_none
    assert found.not_compared == []
    assert dict(found.compared) == {
        "graphs": 1,
        "decisions": 2,
        "nodes": 2,
        "buffers": 2,
        "conversions": 1,
        "kernel_names": 1,
    }


@pytest.mark.parametrize(
    ("kind", "what", "changes"),
    [
        ("nodes", "layout", {"nodes": (a_node("relu", layout=channels_last()), a_lowering().nodes[1])}),
        ("nodes", "operation", {"nodes": (a_node("relu", "aten.gelu.default"), a_lowering().nodes[1])}),
        ("nodes", "dtype", {"nodes": (a_node("relu", dtype="bfloat16"), a_lowering().nodes[1])}),
        ("nodes", "only on one side", {"nodes": (*a_lowering().nodes, a_node("relu_1"))}),
        (
            "buffers",
            "layout",
            {"buffers": (a_lowering().buffers[0], replace(a_lowering().buffers[1], layout=contiguous()))},
        ),
        ("buffers", "kernel", {"buffers": (a_lowering().buffers[0], replace(a_lowering().buffers[1], kernel="other"))}),
        ("buffers", "only on one side", {"buffers": a_lowering().buffers[:1]}),
        ("conversions", "only on one side", {"conversions": ()}),
        ("conversions", "fused", {"conversions": (replace(a_lowering().conversions[0], fused=True),)}),
        ("conversions", "target", {"conversions": (replace(a_lowering().conversions[0], target=None),)}),
        ("kernel_names", "only on one side", {"kernel_names": ("triton_poi_fused_relu_0", "triton_poi_fused_1")}),
    ],
)
def test_each_fact_that_differs_is_one_difference_of_its_kind(kind: str, what: str, changes: dict[str, Any]) -> None:
    found = compare_lowerings([a_lowering()], [a_lowering(**changes)])

    assert [(entry["kind"], entry["what"]) for entry in found.listed] == [(kind, what)]
    assert found.differing == {kind: 1}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"applied": False}, "applied"),
        ({"rule": "no convolution"}, "rule"),
        ({"convolutions": (a_convolution(channels_last=False),)}, "channels_last"),
        ({"convolutions": (a_convolution(class_="depthwise"),)}, "class"),
    ],
)
def test_another_decision_or_another_convolution_is_found(changes: dict[str, Any], what: str) -> None:
    decision = a_decision(a_convolution(channels_last=True))
    static, real = (replace(a_lowering(), decision=one) for one in (decision, replace(decision, **changes)))

    found = compare_lowerings([static], [real])

    assert [(entry["kind"], entry["what"]) for entry in found.listed] == [("decisions", what)]


def test_a_graph_that_one_side_lacks_is_a_difference() -> None:
    backward = replace(a_lowering(), direction="backward")

    found = compare_lowerings([a_lowering()], [a_lowering(), backward])

    assert [(entry["where"], entry["static"], entry["real"]) for entry in found.listed] == [("backward", 0, 1)]


def test_graphs_are_matched_by_direction_not_by_place() -> None:
    forward, backward = (replace(a_lowering(), direction=direction) for direction in ("forward", "backward"))

    assert compare_lowerings([forward, backward], [backward, forward]).is_none


def test_without_triton_names_of_kernels_are_not_compared_and_that_is_said() -> None:
    without = a_lowering(
        kernel_names=(),
        buffers=(replace(a_lowering().buffers[0], kernel=None), a_lowering().buffers[1]),
        conversions=(replace(a_lowering().conversions[0], kernel=None),),
    )

    found = compare_lowerings([without], [a_lowering()])

    assert found.is_none
    assert found.not_compared == ["inference 0: names of kernels: the static side has none"]


def test_strides_along_single_elements_do_not_count() -> None:
    one, other = strided_layout((1, 8, 4, 4), (128, 16, 4, 1)), strided_layout((1, 8, 4, 4), (1, 16, 4, 1))

    assert layout_facts(one) == layout_facts(other) == [[1, 8, 4, 4], [None, 16, 4, 1]]


def test_a_result_can_be_written_and_counts_configurations() -> None:
    same = compare_lowerings([a_lowering()], [a_lowering()])
    other = compare_lowerings([a_lowering()], [a_lowering(conversions=())])

    result = summed({"on": same, "off": other})

    assert json.loads(json.dumps(result)) == result
    assert result["agreeing_configurations"] == ["on"]
    assert result["differing_configurations"] == ["off"]
    assert (result["conversions_compared"], result["conversions_differing"], result["difference_count"]) == (2, 1, 1)
    assert "1 of 2 conversions" in target_check.summary_of(result, [], is_real=True)


def volume(*, is_last: bool) -> Layout:
    return strided_layout(VOLUME, dense_stride(VOLUME, (0, 2, 3, 4, 1) if is_last else range(5)))


@pytest.mark.parametrize(
    ("are_last", "answer"),
    [((True, False, False), True), ((True, True, False), True), ((True, True, True), False), ((False, False), False)],
)
def test_the_claim_is_read_from_what_the_convolutions_leave(are_last: tuple[bool, ...], answer: bool) -> None:
    buffers = tuple(
        a_buffer(f"buf{number}", kernel="extern_kernels.convolution", is_extern=True, layout=volume(is_last=is_last))
        for number, is_last in enumerate(are_last)
    )

    formats = convolution_formats(a_lowering(buffers=buffers))

    assert len(formats) == len(are_last)
    assert loses_channels_last(formats) is answer


@pytest.mark.parametrize(
    ("with_it", "without", "answer"),
    [
        ((True, False, False), (True, True, True), "yes"),
        ((True, True, True), (True, True, True), "no"),
        ((True, False, False), (True, False, False), "no"),
        ((True, False, False), (True,), "no"),
    ],
)
def test_the_claim_is_confirmed_where_both_halves_hold(
    with_it: tuple[bool, ...], without: tuple[bool, ...], answer: str
) -> None:
    graphs = {
        configuration.name: (
            a_lowering(
                buffers=tuple(
                    a_buffer(f"buf{i}", kernel="extern_kernels.convolution", is_extern=True, layout=volume(is_last=one))
                    for i, one in enumerate(are_last)
                )
            ),
        )
        for configuration, are_last in ((target_check.ON, with_it), (target_check.OFF, without))
    }

    confirmed, facts = target_check.claim_of("real", graphs)

    assert confirmed == answer
    assert facts["formats_real_on"][0] == "buf0: channels_last_3d"
    assert facts["applied_real_on"] is True
    assert facts["conversions_real_off"]


@pytest.mark.slow
def test_lowering_without_computing_is_the_lowering_of_a_static_diagnosis() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)
    )
    built = network, (torch.randn(2, 3, 12, 12),)
    target = two_lowerings.target_of("cpu")
    computed, uncomputed = (
        two_lowerings.Model(built, lambda: built, "training", (target_check.ON,), is_computed=is_computed)
        for is_computed in (True, False)
    )

    sides = [two_lowerings.lowered_statically(model, target_check.ON, target) for model in (computed, uncomputed)]

    assert [graph.direction for graph in sides[0]] == ["forward", "backward"]
    assert compare_lowerings(*sides).is_none


def test_every_item_names_a_model_that_is_known() -> None:
    names = target_check.item_names()

    assert names[:2] == list(target_check.CLAIMS)
    assert len(names) == len(set(names))
    for name in ("conv3d contiguous weights training at GPU size", "case-09-no-global-winner inference"):
        assert name in names
        model = target_check.model_of(name, "cpu", is_small=True)
        assert model.mode == ("training" if "training" in name else "inference")
        assert model.configurations
