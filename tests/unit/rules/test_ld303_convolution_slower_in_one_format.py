from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import (
    Told,
    a_comparison,
    a_convolution,
    a_decision,
    a_graph,
    a_kernel,
    a_location,
    a_measurement,
    a_node,
    a_ratio,
    a_subject,
    a_trial,
    finder,
    kernels,
)

from layoutdoctor.examination.examine import without_kernel_seconds
from layoutdoctor.rules.slower import LD303

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Finding, Kernel, Trial

findings = finder(LD303.check)

GROUPED = "g32mb4_ic256oc256_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1"
PLAIN = "mb4_ic64oc64_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1"
NODE = a_node("convolution", "aten.convolution.default", module="body.1", location=a_location(17))


def ran(name: str, *conv: Kernel, seconds: float = 15e-3) -> Trial:
    return a_trial(name, graphs=(a_graph(nodes=(NODE,)),), kernels=kernels(seconds=seconds, kernels=conv))


def a_conv(seconds: float, implementation: str = "jit_dw:avx512_core", **changes: Any) -> Kernel:
    return a_kernel("convolution", seconds, **{"problem": GROUPED, "implementation": implementation, **changes})


def test_what_it_says(told: Told) -> None:
    told("A grouped convolution that would run channels last on cuda is a note", a_static(WIDE))
    told(
        "It may be the contiguous format and the module unknown",
        findings(ran("inductor", a_conv(0.004, "ref:any")), ran("inductor-channels-last", a_conv(0.001))),
    )

    there = ran("eager", a_conv(1e-3, backward=True), a_conv(1e-3, backward=True))
    here = ran("eager-channels-last", a_conv(2e-3, "a", backward=True), a_conv(3e-3, "b", backward=True))
    told("Calls of one problem are taken together and only where they are as many", findings(there, here))
    assert findings(ran("eager", a_conv(1e-3, backward=True)), here) == []

    card = a_decision(a_convolution("convolution", module="body.1", groups=8))
    kernel = {"library": "cudnn", "op": "aten::cudnn_convolution", "node": "convolution", "graph": "graph 0"}
    trials = [
        a_trial(
            name,
            graphs=(a_graph(card, nodes=(NODE,)),),
            kernels=kernels(kernels=(a_kernel(f"conv2d_grouped_{name}", seconds, **kernel),)),
        )
        for name, seconds in (("inductor", 1e-3), ("inductor-channels-last", 9e-3))
    ]
    told("A kernel of cudnn is matched by its module and takes its groups from the card", findings(*trials))

    there = ran("eager", a_conv(1e-3, node="convolution"))
    here = ran("eager-channels-last", a_conv(5e-3, "gemm:ref", node="convolution"))
    told("A grouped convolution that falls back in channels last is told with both times", findings(there, here))


@pytest.mark.parametrize(
    ("slow", "fast", "whole"),
    [
        (1.9e-3, 1e-3, 15e-3),  # less than twice
        (250e-6, 100e-6, 1e-3),  # less than 200 us
        (2e-3, 0.5e-3, 60e-3),  # less than 5 %
        (1e-3, 0.0, 15e-3),
    ],
)
def test_a_difference_that_noise_could_make_is_no_finding(slow: float, fast: float, whole: float) -> None:
    measurement = a_measurement(whole, whole, whole)
    here = a_trial(
        "eager-channels-last", kernels=kernels(seconds=whole, kernels=(a_conv(slow, "ref"),)), measurement=measurement
    )

    assert findings(ran("eager", a_conv(fast)), here) == []


def test_what_is_no_finding() -> None:
    # The same kernel in both formats is noise.
    assert findings(ran("eager", a_conv(1e-3)), ran("eager-channels-last", a_conv(9e-3))) == []

    # A single trial or one without kernels is not compared.
    assert findings(ran("eager", a_conv(1e-3))) == []
    assert findings(ran("eager", a_conv(1e-3)), a_trial("eager-channels-last", kernels=None)) == []

    # A grouped convolution left alone or a depthwise one or another device is fine.
    left = a_convolution("c", class_="grouped", groups=4, channels_last=False)
    depthwise = a_convolution("c", class_="small", weight_shape=(64, 1, 3, 3), groups=64)
    assert a_static(left, depthwise) == []
    assert a_static(WIDE, target="cpu") == []
    assert a_static(WIDE, target=None) == []
    assert a_static(WIDE, is_static=False) == []

    # A plain convolution is the usual case.
    for first, second in ((5e-3, 1e-3), (1e-3, 5e-3)):
        there, here = a_conv(first, "a", problem=PLAIN), a_conv(second, "b", problem=PLAIN)
        assert findings(ran("eager", there), ran("eager-channels-last", here)) == []

    # Another problem is not compared.
    for other in (
        a_conv(1e-3, problem=GROUPED.replace("mb4", "mb8")),
        a_conv(1e-3, backward=True),
        a_kernel("reorder", 1e-3, problem=GROUPED),
        a_conv(1e-3, library="aten"),
        a_conv(1e-3, problem=None),
    ):
        assert findings(ran("eager", other), ran("eager-channels-last", a_conv(5e-3, "ref"))) == []


def test_which_facts_it_gives() -> None:
    # Kernels without times are not compared.
    slow = ran("eager-channels-last", a_conv(5e-3, "ref"))
    assert findings(ran("eager", a_conv(1e-3)), without_kernel_seconds(slow)) == []
    assert len(findings(ran("eager", a_conv(1e-3)), slow)) == 1

    # The same problem in eager and compiled is told once.
    trials = [
        ran(name, a_conv(5e-3, "ref") if "channels-last" in name else a_conv(1e-3))
        for name in ("eager", "eager-channels-last", "inductor", "inductor-channels-last")
    ]
    assert [f.configuration for f in findings(*trials)] == ["inductor-channels-last"]


@pytest.mark.parametrize(
    ("speed", "width", "severity"),
    [
        (0.9, 0.03, "warning"),
        (0.985, 0.01, "note"),  # slower, by what cannot be felt
        (0.95, 0.06, "note"),  # not surely slower
        (1.2, 0.03, "note"),  # the whole is faster in spite of it
    ],
)
def test_it_is_a_warning_where_the_whole_was_measured_to_lose(speed: float, width: float, severity: str) -> None:
    there, here = ran("inductor", a_conv(1e-3)), ran("inductor-channels-last", a_conv(5e-3, "ref"))

    found = findings(there, here, comparison=a_comparison(a_ratio("inductor-channels-last", speed, width)))

    assert [f.severity for f in found] == [severity]
    assert [f.severity for f in findings(there, here)] == ["note"]  # nothing was timed


def a_static(*convolutions: Any, target: str | None = "cuda:90", is_static: bool = True) -> list[Finding]:
    graph = a_graph(a_decision(*convolutions))
    trial = a_trial(graphs=(graph,), kernels=None, measurement=None, equivalence=None, is_static=is_static)
    return findings(trial, subject=a_subject(device="cuda", target=target))


WIDE = a_convolution("c", class_="grouped", module="body.1", weight_shape=(64, 16, 3, 3), groups=4)
