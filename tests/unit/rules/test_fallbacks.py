"""LD305 and LD308: code made for every case, and memory that the system gives again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import (
    Told,
    a_comparison,
    a_graph,
    a_kernel,
    a_location,
    a_measurement,
    a_node,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_subject,
    a_trial,
    contiguous,
    finder,
    kernels,
)

from layoutdoctor.rules.slower import LD305, LD308

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.kernel import Kernel
    from layoutdoctor.diagnosis.trial import Trial

slow_code, given_back = finder(LD305.check), finder(LD308.check)
FROZEN = "inductor-freezing"


def ran(*seen: Kernel, name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, kernels=kernels(seconds=10e-3, kernels=seen, count=len(seen)), **changes)


def a_convolution(seconds: Any, implementation: str, name: str = "convolution") -> Kernel:
    return a_kernel(name, seconds, library="onednn", implementation=implementation, node="conv")


FALLBACKS = (
    a_kernel("aten::slow_conv_dilated2d", 3e-3, library="aten"),
    a_kernel("aten::_slow_conv2d_forward", 1e-3, library="aten", op="aten::thnn_conv2d"),
)


def test_what_is_said_of_slow_code(told: Told) -> None:
    nodes = (a_node("conv", "aten.convolution.default", location=a_location(9), module="net.0", dtype="bfloat16"),)
    reference = a_convolution(6e-3, "ref:any")
    told("A reference implementation of oneDNN is a warning", slow_code(ran(reference, graphs=(a_graph(nodes=nodes),))))
    told("Where all run the same it is not the layout", slow_code(ran(reference), ran(reference, name=FROZEN)))
    told("Fallbacks of ATen are a note", slow_code(ran(*FALLBACKS)))
    one = a_node("conv", "aten.convolution.default", layout=contiguous((1, 8, 16, 16)))
    alone = a_kernel("aten::slow_conv_dilated2d", 3e-3, library="aten", node="conv")
    told("At batch 1 a larger one is worth a try", slow_code(ran(alone, graphs=(a_graph(nodes=(one,)),))))
    unfolding = a_kernel("void vol2col_kernel<float>(int)", 4e-3)
    told("On a GPU the kernel's name says it", slow_code(ran(unfolding), subject=a_subject(device="cuda")))
    fast = a_kernel("mkldnn::_convolution_pointwise", 1e-3, library="onednn", implementation="brgconv:avx512_core")
    frozen = ran(fast, name=FROZEN)
    for verified in (False, True):
        advice = a_recommendation(FROZEN, verified=verified, speedup=a_speedup(3.4))
        told(
            f"A configuration that runs other code is named, {'verified' if verified else 'not verified'}",
            slow_code(ran(*FALLBACKS), frozen, comparison=a_comparison(a_ratio(FROZEN, 3.4)), recommendation=advice),
        )
    told(
        "Other code that is slower is no advice",
        slow_code(ran(*FALLBACKS), frozen, comparison=a_comparison(a_ratio(FROZEN, 0.61))),
    )


def test_what_is_no_slow_code() -> None:
    for kernel in (
        a_convolution(9e-3, "brgconv:avx512_core"),
        a_convolution(9e-3, "jit_uni_reference_free:any"),  # the word alone
        a_convolution(9e-3, "ref:any", "pooling"),  # no arithmetic to be tuned
        a_convolution(0.9e-3, "ref:any"),  # too little of the time
        a_convolution(None, "ref:any"),
    ):
        assert slow_code(ran(kernel)) == []
    assert slow_code(a_trial(kernels=None)) == []
    # Without oneDNN's log its primitives may run in there.
    own = a_kernel("aten::convolution_backward", 6e-3, library="aten", backward=True)
    for sources, count in ((("torch.profiler",), 0), (("torch.profiler", "oneDNN verbose log"), 1)):
        logged = a_trial(kernels=kernels(seconds=10e-3, kernels=(own,), count=1, sources=sources))
        assert len(slow_code(logged)) == count
    for default, name in ((ran(), "eager"), (ran(*FALLBACKS), "inductor")):
        assert [f.configuration for f in slow_code(default, ran(*FALLBACKS, name="eager"))] == [name]


def in_fresh_processes(*factors: float | None, recommended: str = FROZEN) -> list[Finding]:
    """The default and frozen weights, by how many times as long a call takes in fresh processes."""
    trials = []
    for name, factor in zip(("inductor", FROZEN), factors, strict=True):
        unkept = () if factor is None else (20e-3 * factor, 21e-3 * factor, 19e-3 * factor)
        trials.append(a_trial(name, measurement=a_measurement(20e-3, unkept_seconds=unkept)))
    comparison = a_comparison(a_ratio(FROZEN, 1.5), fastest=(FROZEN,))
    return given_back(*trials, comparison=comparison, recommendation=a_recommendation(recommended))


def test_what_is_said_of_memory_given_back(told: Told) -> None:
    told("The default and the recommended configuration", in_fresh_processes(1.64, 1.02))
    told("The recommended one loses most", in_fresh_processes(1.02, 1.2))
    told("A note below 10 %", in_fresh_processes(1.07, None))
    assert in_fresh_processes(None, None) == in_fresh_processes(1.04, 1.0) == []
    assert in_fresh_processes(1.0, 1.6, recommended="inductor") == []  # it is not recommended
