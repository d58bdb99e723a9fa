from __future__ import annotations

from typing import Any

import pytest
from builders import (
    a_comparison,
    a_conversion,
    a_diagnosis,
    a_graph,
    a_location,
    a_ratio,
    a_recommendation,
    a_subject,
    a_trial,
    an_input,
    channels_last,
    contiguous,
    kernels,
)

from layoutdoctor.diagnosis.records import Equivalence, Finding, InputTensor, Trial
from layoutdoctor.rules.ld205_input_format_mismatch import check

LAST = a_ratio("inductor-channels-last", 1.25)
SPEED = "inductor-channels-last runs at 1.25x the speed of inductor (99 % interval 1.22x to 1.28x)"
TO_2D = "model = model.to(memory_format=torch.channels_last); x = x.to(memory_format=torch.channels_last)"
TO_3D = "model = model.to(memory_format=torch.channels_last_3d); x = x.to(memory_format=torch.channels_last_3d)"


def findings(
    *ratios: Any,
    baseline: Trial | None = None,
    trials: tuple[Trial, ...] = (),
    inputs: tuple[InputTensor, ...] = (an_input(),),
    **changes: Any,
) -> list[Finding]:
    subject = a_subject(inputs=inputs)
    comparison = a_comparison(*ratios)
    return list(check(a_diagnosis(baseline or a_trial(), *trials, comparison=comparison, subject=subject, **changes)))


def test_contiguous_input_where_channels_last_is_faster_is_a_warning_with_what_is_converted_now() -> None:
    entry = a_conversion("copy 0", owner="compiler", seconds=None, bytes_moved=8, location=a_location(3), module="a")
    exit_ = a_conversion("reorder 1", location=a_location(14), module="body.3")
    weight = a_conversion("reorder 2", tensor="weight")
    baseline = a_trial(kernels=kernels(exit_, weight), graphs=(a_graph(conversions=(entry,)),))

    assert findings(LAST, baseline=baseline) == [
        Finding(
            code="LD205",
            rule="input-format-mismatch",
            severity="warning",
            configuration="inductor",
            message=f"x (4x3x56x56) is not channels_last, and {SPEED}; "
            "inductor has 2 conversions of activations, 1.00 ms of 15.0 ms kernel time (6.7 %)",
            suggestion=TO_2D,
            location=a_location(14),
            module="body.3",
            seconds=pytest.approx(2e-3),
            bytes_moved=6_422_536,
            evidence=("inductor-channels-last", "reorder 1", "copy 0"),
        )
    ]


def test_what_it_says() -> None:
    # Without recorded conversions the gain alone is told.
    assert [(f.message, f.location, f.module, f.bytes_moved) for f in findings(LAST)] == [
        (f"x (4x3x56x56) is not channels_last, and {SPEED}", None, None, None)
    ]

    # Conversions without times are counted.
    baseline = a_trial(kernels=kernels(a_conversion(seconds=None)))
    assert [f.message for f in findings(LAST, baseline=baseline)] == [
        f"x (4x3x56x56) is not channels_last, and {SPEED}; inductor has 1 conversion of activations"
    ]


def test_what_is_no_finding() -> None:
    # A gain that could be noise is no finding.
    assert findings(a_ratio("inductor-channels-last", 1.02)) == []

    # A model whose outputs differ is excused.
    other = a_trial("inductor-channels-last", equivalence=Equivalence(status="different"))
    assert findings(LAST, trials=(other,)) == []

    # An input that needs no conversion is excused.
    for layout in (
        channels_last((4, 3, 56, 56)),
        contiguous((4, 1, 56, 56)),  # one channel: both formats at once
        contiguous((4, 128)),
    ):
        assert findings(LAST, inputs=(an_input(layout),)) == []


def test_which_facts_it_gives() -> None:
    # Of both channels last configurations the faster one is named.
    found = findings(LAST, a_ratio("inductor-channels-last-opt-off", 1.5))
    assert [f.evidence for f in found] == [("inductor-channels-last-opt-off",)]

    # Without times the place is that of the conversion that moves most.
    small = a_conversion("a", seconds=None, bytes_moved=8, module="body.0")
    large = a_conversion("b", seconds=None, bytes_moved=16, module="body.1")
    assert [f.module for f in findings(LAST, baseline=a_trial(kernels=kernels(small, large)))] == ["body.1"]


def test_each_rank_has_its_own_format() -> None:
    for layouts, message, suggestion in (
        ([(2, 4, 8, 32, 32)], "an input (2x4x8x32x32) is not channels_last_3d", TO_3D),
        ([(4, 3, 8, 8), (4, 3, 9, 9)], "an input (4x3x8x8) and an input (4x3x9x9) are not channels_last", TO_2D),
        (
            [(4, 3, 8, 8), (2, 4, 8, 32, 32)],
            "an input (4x3x8x8) and an input (2x4x8x32x32) are not channels_last or channels_last_3d",
            "convert each input and each parameter to the channels-last format of its rank, the parameters once",
        ),
    ):
        inputs = tuple(an_input(contiguous(shape), name=None) for shape in layouts)
        assert [(f.message, f.suggestion) for f in findings(LAST, inputs=inputs)] == [
            (f"{message}, and {SPEED}", suggestion)
        ]


def test_it_is_an_error_where_channels_last_input_was_verified() -> None:
    for name, severity in (("inductor-channels-last", "error"), ("inductor-layout-opt-off", "warning")):
        trials = (a_trial("inductor-channels-last"), a_trial("inductor-layout-opt-off"))
        advice = a_recommendation(name, verified=True)
        assert [f.severity for f in findings(LAST, trials=trials, recommendation=advice)] == [severity]
