"""The layout flow: what is drawn around a round trip or a conversion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from builders import (
    a_comparison,
    a_conversion,
    a_diagnosis,
    a_finding,
    a_pair,
    a_ratio,
    a_recommendation,
    a_trial,
    blocked,
    channels_last,
    contiguous,
    kernels,
)

from layoutdoctor.reports.charts import FlowChart, build_flows, format_of

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import Conversion, RedundantPair
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.trial import Trial

FIRST = a_conversion("first", port="output 0", op="aten::conv2d", source=blocked(), target=contiguous())
SECOND = a_conversion(
    "second", port="input 0", op="aten::conv2d", source=contiguous(), target=blocked(), required_by=("convolution_1",)
)


def with_pairs(*pairs: RedundantPair, name: str = "inductor") -> Trial:
    return a_trial(name, kernels=kernels(FIRST, SECOND), redundant_pairs=pairs)


def flow_of(diagnosis: Diagnosis) -> FlowChart:
    (flow,) = build_flows(diagnosis)
    return flow


def labels(flow: FlowChart) -> list[str]:
    return [box.label for box in flow.boxes]


def test_the_middle_of_a_long_way_is_one_box() -> None:
    between = tuple(f"op{number}" for number in range(9))
    flow = flow_of(a_diagnosis(with_pairs(a_pair("first", "second", between=between))))

    assert labels(flow)[2:7] == ["op0", "op1", "5 operations: op2, op3, op4, op5, op6", "op7", "op8"]


def test_pairs_that_look_alike_are_one_flow_and_the_finding_names_it() -> None:
    pairs = a_pair("first", "second"), a_pair("first", "second", module="body.1")
    finding = a_finding("LD101", evidence=("first", "second"))
    flow = flow_of(a_diagnosis(with_pairs(*pairs), findings=(finding,)))

    assert flow.title == "LD101 round-trip-conversion"
    assert flow.about.endswith("; 1 more round trip like it")


def test_the_recommended_configuration_comes_before_others() -> None:
    names = ("eager", "inductor", "inductor-channels-last")
    trials = [with_pairs(a_pair("first", "second"), name=name) for name in names]
    comparison = a_comparison(a_ratio(names[2], 1.3), fastest=(names[2],))
    diagnosis = a_diagnosis(*trials, comparison=comparison, recommendation=a_recommendation(names[2]))

    assert [flow.configuration for flow in build_flows(diagnosis)] == [
        "compiled (the default)",
        "compiled + channels_last",
        "eager",
    ]


@pytest.mark.parametrize(
    ("conversion", "expected"),
    [
        (SECOND, ["contiguous → blocked aBcd16b", "convolution_1"]),
        (FIRST, ["aten::conv2d", "blocked aBcd16b → contiguous"]),
        (
            a_conversion("c", owner="user", op=None, node="clone", source_value="buf0", source=None, target=None),
            ["buf0", "from blocked", "clone"],
        ),
    ],
)
def test_without_round_trips_the_costliest_conversion_is_drawn(conversion: Conversion, expected: list[str]) -> None:
    assert labels(flow_of(a_diagnosis(a_trial(kernels=kernels(conversion))))) == expected


def test_nothing_is_drawn_if_nothing_was_recorded() -> None:
    assert build_flows(a_diagnosis(a_trial())) == ()
    assert build_flows(a_diagnosis(a_trial(kernels=None, redundant_pairs=(a_pair("x", "y"),)))) == ()


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (None, "unknown"),
        (blocked(), "blocked"),
        (channels_last(), "channels_last"),
        (contiguous(), "contiguous"),
        (contiguous((1, 64, 1, 1)), "unknown"),
    ],
)
def test_a_format_is_named_only_if_it_is_the_only_one(layout: Layout | None, expected: str) -> None:
    assert format_of(layout) == expected
