from __future__ import annotations

from typing import Any

from builders import (
    Told,
    a_comparison,
    a_graph,
    a_kernel,
    a_location,
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

from layoutdoctor.rules.fallbacks import LD305

findings = finder(LD305.check)


def ran(*seen: Any, name: str = "inductor", **changes: Any) -> Any:
    return a_trial(name, kernels=kernels(seconds=10e-3, kernels=seen, count=len(seen)), **changes)


def a_convolution(seconds: Any, implementation: str, name: str = "convolution") -> Any:
    return a_kernel(name, seconds, library="onednn", implementation=implementation, node="conv")


def test_what_is_no_finding() -> None:
    for kernel in (
        a_convolution(9e-3, "brgconv:avx512_core"),
        a_convolution(9e-3, "jit_uni_reference_free:any"),  # the word alone
        a_convolution(9e-3, "ref:any", "pooling"),  # no arithmetic to be tuned
        a_convolution(0.9e-3, "ref:any"),  # too little of the time
        a_convolution(None, "ref:any"),
        a_kernel("aten::convolution", 9e-3, library="aten"),
    ):
        assert findings(ran(kernel)) == []
    assert findings(a_trial(kernels=None)) == []


def test_what_it_says(told: Told) -> None:
    nodes = (a_node("conv", "aten.convolution.default", location=a_location(9), module="net.0", dtype="bfloat16"),)
    reference = a_convolution(6e-3, "ref:any")
    told("A reference implementation of oneDNN is a warning", findings(ran(reference, graphs=(a_graph(nodes=nodes),))))
    told(
        "Where all run the same it is not the layout",
        findings(ran(reference), ran(reference, name="inductor-freezing")),
    )
    fallbacks = (
        a_kernel("aten::slow_conv_dilated2d", 3e-3, library="aten"),
        a_kernel("aten::_slow_conv2d_forward", 1e-3, library="aten", op="aten::thnn_conv2d"),
    )
    told("Fallbacks of ATen are a note", findings(ran(*fallbacks)))
    one = a_node("conv", "aten.convolution.default", layout=contiguous((1, 8, 16, 16)))
    alone = a_kernel("aten::slow_conv_dilated2d", 3e-3, library="aten", node="conv")
    told("At batch 1 a larger one is worth a try", findings(ran(alone, graphs=(a_graph(nodes=(one,)),))))
    unfolding = a_kernel("void vol2col_kernel<float>(int)", 4e-3)
    told("On a GPU the kernel's name says it", findings(ran(unfolding), subject=a_subject(device="cuda")))
    unknown = a_trial("inductor-freezing", kernels=kernels(kernels=(), seconds=0.0))
    told(
        "A faster configuration whose kernels have no times is not said to run other code",
        findings(ran(*fallbacks), unknown, comparison=a_comparison(a_ratio("inductor-freezing", 3.4))),
    )
    fast = (a_kernel("mkldnn::_convolution_pointwise", 1e-3, library="onednn", implementation="brgconv:avx512_core"),)
    for verified in (False, True):
        told(
            f"A configuration that runs other code is named, {'verified' if verified else 'not verified'}",
            findings(
                ran(*fallbacks),
                ran(*fast, name="inductor-freezing"),
                comparison=a_comparison(a_ratio("inductor-freezing", 3.4)),
                recommendation=a_recommendation("inductor-freezing", verified=verified, speedup=a_speedup(3.4)),
            ),
        )
    frozen = ran(*fast, name="inductor-freezing")
    open_ = a_ratio("inductor-freezing", 0.99, low=0.5, high=5.5)
    for title, ratio in (
        ("Other code whose ratio is inconclusive is not called irrelevant", open_),
        ("Other code that is slower is no advice", a_ratio("inductor-freezing", 0.61)),
    ):
        told(title, findings(ran(*fallbacks), frozen, comparison=a_comparison(ratio)))
    own = a_kernel("aten::convolution_backward", 6e-3, library="aten", backward=True)
    for sources, count in ((("torch.profiler",), 0), (("torch.profiler", "oneDNN verbose log"), 1)):
        logged = a_trial(kernels=kernels(seconds=10e-3, kernels=(own,), count=1, sources=sources))
        assert len(findings(logged)) == count
    # The default first; eager where it has none.
    assert [f.configuration for f in findings(ran(), ran(*fallbacks, name="eager"))] == ["eager"]
    assert len(findings(ran(*fallbacks), ran(*fallbacks, name="eager"))) == 1
    assert findings(ran(a_convolution(6e-3, "gemm:ref")))[0].severity == "warning"
