"""LD302 to LD307: kernels that are slower in one format, or than other code."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from builders import (
    Told,
    a_buffer,
    a_comparison,
    a_convolution,
    a_decision,
    a_graph,
    a_kernel,
    a_location,
    a_node,
    a_ratio,
    a_recommendation,
    a_speedup,
    a_subject,
    a_trial,
    an_environment,
    an_input,
    channels_last,
    contiguous,
    finder,
    kernels,
)
from rule_builders import with_graph

from layoutdoctor.diagnosis.answer import Account, AccountRow
from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.rules.ld302_batch_norm_input import LD302
from layoutdoctor.rules.ld303_slower_convolution import LD303
from layoutdoctor.rules.ld305_reference_kernel import LD305
from layoutdoctor.rules.ld306_generated_kernel import LD306
from layoutdoctor.rules.ld307_slower_operation import LD307

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.graph import FxNode
    from layoutdoctor.diagnosis.kernel import Kernel
    from layoutdoctor.diagnosis.trial import Trial

norms, convolutions = finder(LD302.check), finder(LD303.check)
replaced, operations = finder(LD306.check), finder(LD307.check)

LAST = "inductor-channels-last"

# ---------------------------------------------------------------------------------------------------------- LD302
SHAPE = (4, 16, 30, 30)


def a_norm(source: str, name: str = "norm", **changes: Any) -> FxNode:
    fields: dict[str, Any] = {"location": a_location(22), "module": "bn"}
    return a_node(name, "aten.native_batch_norm.default", (source, "weight", "bias"), **{**fields, **changes})


def unfolded(layout: Any = None) -> tuple[FxNode, ...]:
    """An unfolded convolution: the product's transpose, viewed as an image."""
    return (
        a_node("product", "aten.bmm.default", ("patches", "w")),
        a_node("transpose", "aten.transpose.int", ("product",)),
        a_node("view", "aten.view.default", ("transpose",), layout=layout or channels_last(SHAPE)),
    )


an_eager = partial(with_graph, name="eager", graph={"name": "eager"})


def test_a_batch_norm_on_another_layout_than_the_models_is_a_note(told: Told) -> None:
    told("A batch norm behind a transposed product is a note", norms(an_eager(*unfolded(), a_norm("view"))))
    layout = strided_layout(SHAPE, (14400, 1, 32, 480))
    ran = kernels(kernels=(a_kernel("aten::native_batch_norm", 3e-3, node="norm"),))
    told(
        "A layout in no format is given by its strides with the time of the norm",
        norms(an_eager(*unfolded(layout), a_norm("view", module=None), kernels=ran)),
    )
    relu = a_node("relu", "aten.relu.default", ("view",), layout=channels_last(SHAPE), dtype=None)
    told(
        "Operations that keep the layout are seen through and further norms counted",
        norms(an_eager(*unfolded(), relu, a_norm("relu"), a_norm("view", "norm_1"))),
    )


def test_a_batch_norm_behind_a_convolution_or_in_a_channels_last_model_is_not_reported() -> None:
    convolution = a_node("convolution", "aten.convolution.default", ("x", "w"), layout=channels_last(SHAPE))
    for nodes in (
        (convolution, a_norm("convolution")),
        (*unfolded(), a_norm("view", backward=True)),
        (*unfolded(contiguous(SHAPE)), a_norm("view")),
    ):
        assert norms(an_eager(*nodes)) == []
    assert norms(an_eager(*unfolded(), a_norm("view"), name="eager-channels-last")) == []
    formats = {"channels_last": 4, "contiguous_format": 1}
    for subject in (a_subject(inputs=(an_input(channels_last()),)), a_subject(parameter_formats=formats)):
        assert norms(an_eager(*unfolded(), a_norm("view")), subject=subject) == []


# ---------------------------------------------------------------------------------------------------------- LD303
GROUPED = "g32mb4_ic256oc256_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1"
NODE = a_node("convolution", "aten.convolution.default", module="body.1", location=a_location(17))
WIDE = a_convolution("c", class_="grouped", module="body.1", weight_shape=(64, 16, 3, 3), groups=4)


def ran(name: str, *conv: Kernel, seconds: float = 15e-3) -> Trial:
    return a_trial(name, graphs=(a_graph(nodes=(NODE,)),), kernels=kernels(seconds=seconds, kernels=conv))


def a_conv(seconds: float, implementation: str = "jit_dw:avx512_core", **changes: Any) -> Kernel:
    return a_kernel("convolution", seconds, **{"problem": GROUPED, "implementation": implementation, **changes})


def on_target(*convolutions_: Any, target: str | None = "cuda:90", is_static: bool = True) -> list[Finding]:
    graph = a_graph(a_decision(*convolutions_))
    trial = a_trial(graphs=(graph,), kernels=None, measurement=None, equivalence=None, is_static=is_static)
    return convolutions(trial, subject=a_subject(device="cuda", target=target))


def test_a_grouped_convolution_that_another_kernel_runs_twice_as_long_is_reported(told: Told) -> None:
    told("A grouped convolution that would run channels last on cuda is a note", on_target(WIDE))
    there, here = a_conv(1e-3, node="convolution"), a_conv(5e-3, "gemm:ref", node="convolution")
    told(
        "A grouped convolution that falls back in channels last is reported with both times",
        convolutions(ran("eager", there), ran("eager-channels-last", here)),
    )
    card = a_decision(a_convolution("convolution", module="body.1", groups=8))
    kernel = {"library": "cudnn", "op": "aten::cudnn_convolution", "node": "convolution", "graph": "graph 0"}
    trials = [
        a_trial(
            name,
            graphs=(a_graph(card, nodes=(NODE,)),),
            kernels=kernels(kernels=(a_kernel(f"conv2d_grouped_{name}", seconds, **kernel),)),
        )
        for name, seconds in (("inductor", 1e-3), (LAST, 9e-3))
    ]
    told("A kernel of cudnn is matched by its module and takes its groups from the card", convolutions(*trials))
    twice = ran("eager", a_conv(1e-3, backward=True), a_conv(1e-3, backward=True))
    slow = ran("eager-channels-last", a_conv(2e-3, "a", backward=True), a_conv(3e-3, "b", backward=True))
    told(
        "Calls of one problem are taken together and only where they are as many",
        convolutions(twice, slow),
        convolutions(ran("eager", a_conv(1e-3, backward=True)), slow),
    )
    names = ("eager", "eager-channels-last", "inductor", LAST)
    each = [ran(name, a_conv(5e-3, "ref") if "channels-last" in name else a_conv(1e-3)) for name in names]
    assert [f.configuration for f in convolutions(*each)] == [LAST]


def test_a_grouped_convolution_in_the_same_kernel_or_with_a_small_loss_is_not_reported() -> None:
    for slow, fast, whole in (
        (1.9e-3, 1e-3, 15e-3),  # less than twice
        (250e-6, 100e-6, 1e-3),  # less than 200 us
        (2e-3, 0.5e-3, 60e-3),  # less than 5 %
        (1e-3, 0.0, 15e-3),
    ):
        here = ran("eager-channels-last", a_conv(slow, "ref"), seconds=whole)
        assert convolutions(ran("eager", a_conv(fast)), here) == []
    for other in (
        a_conv(1e-3, "ref"),  # the same kernel
        a_conv(1e-3, backward=True),
    ):
        assert convolutions(ran("eager", other), ran("eager-channels-last", a_conv(5e-3, "ref"))) == []
    depthwise = a_convolution("c", class_="small", weight_shape=(64, 1, 3, 3), groups=64)
    assert on_target(a_convolution("c", class_="grouped", groups=4, channels_last=False), depthwise) == []
    assert on_target(WIDE, target="cpu") == on_target(WIDE, is_static=False) == []


# ------------------------------------------------------------------------------------------------ LD306 and LD307
def a_row(milliseconds: float = 11.4, **changes: Any) -> AccountRow:
    fields: dict[str, Any] = {
        "kind": "generated_kernel",
        "seconds": milliseconds * 1e-3,
        "slower_seconds": (milliseconds + 0.9) * 1e-3,
        "faster_seconds": 0.9e-3,
        "operations": ("relu", "max_pool2d"),
        "module": "pool",
        "locations": (a_location(30), a_location(32)),
        "slower_kernels": ("cpp_fused_relu_2",),
        "faster_kernels": ("aten::clamp_min_", "aten::max_pool2d_with_indices"),
        "detail": "no loop of it uses vector instructions",
    }
    return AccountRow(**{**fields, **changes})


def slower_kernels(*rows: AccountRow) -> list[Finding]:
    """In an account for the same configuration twice."""
    times: dict[str, Any] = {"slower_seconds": 20e-3, "faster_seconds": 9e-3, "rows": rows}
    accounts = [Account(slower="inductor", faster=name, **times) for name in ("eager", LAST)]
    comparison = a_comparison(a_ratio("eager", 2.2))
    return replaced(a_trial(), a_trial("eager"), accounts=tuple(accounts), comparison=comparison)


def test_a_generated_kernel_that_is_slower_than_what_it_replaces_is_reported(told: Told) -> None:
    told("A kernel that is slower than what it replaces", slower_kernels(a_row()))
    others = ("cpp_fused_0", False), ("cpp_fused_1", False), ("cpp_fused_2", False), ("cpp_fused_3", True)
    more = [
        a_row(2 + number, slower_kernels=(name,), operations=("cat",), module=None, backward=backward)
        for number, (name, backward) in enumerate(others)
    ]
    told("Several kernels are one finding, the worst in full", slower_kernels(*more[:1], a_row(), *more[1:]))
    source = "for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(64L); x0+=static_cast<int64_t>(16L))\n"
    told("Its source shows the cause", slower_kernels(a_row(source=source + "    #pragma omp parallel")))
    for row in (
        a_row(kind="layout"),
        a_row(0.3),  # less than 2 % of a call
        a_row(-5, slower_seconds=1e-3, faster_seconds=6e-3),
        a_row(1, slower_seconds=9e-3, faster_seconds=8e-3),  # hardly slower
        a_row(faster_seconds=0.0),  # nothing is known of what it replaces
    ):
        assert slower_kernels(row) == []


def test_a_slow_kernel_stands_at_the_operation_that_moves_most_elements() -> None:
    small, large = contiguous((3,)), contiguous((4, 9, 64))
    nodes = (
        a_node("iota", "prims.iota.default", layout=small, location=a_location(49)),
        a_node("mul", "aten.mul.Tensor", ("iota",), layout=large, location=a_location(75)),
        a_node("sum", "aten.sum.dim_IntList", ("mul",), layout=small, location=a_location(76)),
        a_node("view", "aten.view.default", ("mul",), layout=large, location=a_location(77)),
    )
    buffer = a_buffer("buf0", kernel="cpp_fused_relu_2", origins=("iota", "view", "mul", "sum"))
    default = a_trial(graphs=(a_graph(nodes=nodes, buffers=(buffer,)),))
    account = Account(slower="inductor", faster="eager", slower_seconds=20e-3, faster_seconds=9e-3, rows=(a_row(),))
    (finding,) = replaced(default, a_trial("eager"), accounts=(account,))
    assert finding.location == a_location(75)
    convolution = a_node("conv", "aten.convolution.default", ("mul",), location=a_location(78))
    prepares = a_buffer("buf1", kernel="cpp_fused_relu_2", origins=("conv",))  # the input of the convolution
    default = a_trial(graphs=(a_graph(nodes=(*nodes, convolution), buffers=(buffer, prepares)),))
    (finding,) = replaced(default, a_trial("eager"), accounts=(account,))
    assert finding.location == a_location(75)


def test_a_kernel_that_computes_more_than_the_faster_one_is_not_to_be_reported_to_pytorch(told: Told) -> None:
    nodes = (
        a_node("norm", "aten.native_batch_norm.default", ("x",), location=a_location(7)),
        a_node("add", "aten.add.Tensor", ("norm",), location=a_location(8)),
    )

    def fusing(name: str, kernel: str, *origins: str) -> Trial:
        return a_trial(
            name, graphs=(a_graph(nodes=nodes, buffers=(a_buffer("buf0", kernel=kernel, origins=origins),)),)
        )

    slower, faster = fusing("inductor", "cpp_fused_add_1", "norm", "add"), fusing(FROZEN, "cpp_fused_add_0", "add")
    names = {"slower_kernels": ("cpp_fused_add_1",), "faster_kernels": ("cpp_fused_add_0",)}
    row = a_row(operations=("native_batch_norm", "add"), **names)
    account = Account(slower="inductor", faster=FROZEN, slower_seconds=20e-3, faster_seconds=9e-3, rows=(row,))
    comparison = a_comparison(a_ratio(FROZEN, 2.2))
    told("The norm is folded there", replaced(slower, faster, accounts=(account,), comparison=comparison))


def assigning(name: str, milliseconds: float, count: int = 3) -> Trial:
    """A trial with a kernel that writes a tensor once for each of some slice assignments."""
    nodes = [a_node("copy", "aten.copy.default", location=a_location(16))]
    nodes += [a_node(f"scatter_{n}", "aten.select_scatter.default", ("copy",)) for n in range(count)]
    buffers = tuple(
        a_buffer(f"buf{n}", kernel="cpp_fused_copy_0", source_node=f"scatter_{n}", origins=(f"scatter_{n}", "copy"))
        for n in range(count)
    )
    kernel = a_kernel("cpp_fused_copy_0", milliseconds * 1e-3, library="inductor")
    graphs = (a_graph(nodes=tuple(nodes), buffers=buffers),)
    return a_trial(name, graphs=graphs, kernels=kernels(seconds=10e-3, kernels=(kernel,), count=1))


def test_a_kernel_that_writes_a_tensor_once_for_each_slice_is_reported(told: Told) -> None:
    comparison, advice = a_comparison(a_ratio(FROZEN, 2.3)), a_recommendation(FROZEN)
    both = assigning("inductor", 6), assigning(FROZEN, 6)
    told("In the recommended configuration", replaced(*both, comparison=comparison, recommendation=advice))
    default = assigning("inductor", 6), a_trial(FROZEN)
    told("In the default alone", replaced(*default, comparison=comparison, recommendation=advice))
    advice = a_recommendation(FROZEN, verified=True, speedup=a_speedup(2.3))
    for recommended, severity in ((a_trial(FROZEN), "error"), (assigning(FROZEN, 0), "warning")):
        trials = assigning("inductor", 6), recommended
        (finding,) = replaced(*trials, comparison=comparison, recommendation=advice)
        assert (finding.configuration, finding.severity) == ("inductor", severity)
    for trial in (assigning("inductor", 0.9), assigning("inductor", 6, count=1)):
        assert replaced(trial) == []


def a_slow_operation(milliseconds: float = 4, **changes: Any) -> AccountRow:
    fields: dict[str, Any] = {
        "kind": "layout",
        "seconds": milliseconds * 1e-3,
        "slower_seconds": (milliseconds + 1) * 1e-3,
        "faster_seconds": 1e-3,
        "operations": ("upsample_bilinear2d",),
        "module": "up",
        "locations": (a_location(12),),
        "slower_kernels": ("aten::upsample_bilinear2d",),
        "faster_kernels": ("aten::upsample_bilinear2d",),
        "slower_layout": contiguous(),
        "faster_layout": channels_last(),
    }
    return AccountRow(**{**fields, **changes})


def slow_operations(*rows: AccountRow) -> list[Finding]:
    account = Account(slower="eager", faster="eager-channels-last", slower_seconds=9e-3, faster_seconds=5e-3, rows=rows)
    environment = an_environment(copy_bandwidth_bytes_per_second=10e9)
    trials = a_trial(), a_trial("eager"), a_trial("eager-channels-last")
    comparison = a_comparison(a_ratio("eager", 1.1), a_ratio("eager-channels-last", 2.0))
    return operations(*trials, accounts=(account, account), comparison=comparison, environment=environment)


def test_an_operation_that_one_format_makes_slower_is_reported_once(told: Told) -> None:
    told("An operation that one format makes slower, once for two accounts", slow_operations(a_slow_operation()))
    for title, size in (
        ("Converting around it costs less", 10_000_000),
        ("Converting around it costs more", 30_000_000),
    ):
        told(title, slow_operations(a_slow_operation(tensor_bytes=size)))
    for row in (a_slow_operation(0.1), a_slow_operation(kind="operation"), a_slow_operation(count=40)):
        assert slow_operations(row) == []


slow_code = finder(LD305.check)
FROZEN = "inductor-freezing"


def test_an_input_that_has_the_faster_format_already_is_not_to_be_converted(told: Told) -> None:
    row = a_slow_operation(slower_kernels=("cpp_fused_upsample_1",))
    for number, layout in enumerate((channels_last(), contiguous())):
        buffers = (
            a_buffer("buf0", layout=layout),
            a_buffer("buf1", kernel="cpp_fused_upsample_1", layout=contiguous(), reads=("buf0",)),
        )
        trial = a_trial(graphs=(a_graph(buffers=buffers),))
        account = Account(slower="inductor", faster="eager", slower_seconds=20e-3, faster_seconds=9e-3, rows=(row,))
        words = "its input has the format", "its input has another format"
        told(f"An operation is slower in a format: {words[number]}", operations(trial, accounts=(account,)))


def run_of(*seen: Kernel, name: str = "inductor", **changes: Any) -> Trial:
    return a_trial(name, kernels=kernels(seconds=10e-3, kernels=seen, count=len(seen)), **changes)


def a_primitive(seconds: Any, implementation: str, name: str = "convolution") -> Kernel:
    return a_kernel(name, seconds, library="onednn", implementation=implementation, node="conv")


FALLBACKS = (
    a_kernel("aten::slow_conv_dilated2d", 3e-3, library="aten"),
    a_kernel("aten::_slow_conv2d_forward", 1e-3, library="aten", op="aten::thnn_conv2d"),
)


def test_reference_code_and_fallbacks_are_reported_with_what_else_runs_there(told: Told) -> None:
    nodes = (a_node("conv", "aten.convolution.default", location=a_location(9), module="net.0", dtype="bfloat16"),)
    reference = a_primitive(6e-3, "ref:any")
    told(
        "A reference implementation of oneDNN is a warning",
        slow_code(run_of(reference, graphs=(a_graph(nodes=nodes),))),
    )
    told(
        "Where all run the same it is not the layout",
        slow_code(run_of(reference), run_of(reference, name=FROZEN)),
    )
    told("Fallbacks of ATen are a note", slow_code(run_of(*FALLBACKS)))
    one = a_node("conv", "aten.convolution.default", layout=contiguous((1, 8, 16, 16)))
    alone = a_kernel("aten::slow_conv_dilated2d", 3e-3, library="aten", node="conv")
    told("At batch 1 a larger one is worth a try", slow_code(run_of(alone, graphs=(a_graph(nodes=(one,)),))))
    unfolding = a_kernel("void vol2col_kernel<float>(int)", 4e-3)
    told("On a GPU the kernel's name says it", slow_code(run_of(unfolding), subject=a_subject(device="cuda")))
    fast = a_kernel("mkldnn::_convolution_pointwise", 1e-3, library="onednn", implementation="brgconv:avx512_core")
    frozen = run_of(fast, name=FROZEN)
    for verified in (False, True):
        advice = a_recommendation(FROZEN, verified=verified, speedup=a_speedup(3.4))
        told(
            f"A configuration that runs other code is named, {'verified' if verified else 'not verified'}",
            slow_code(run_of(*FALLBACKS), frozen, comparison=a_comparison(a_ratio(FROZEN, 3.4)), recommendation=advice),
        )


def test_a_configuration_with_half_as_much_of_such_code_is_named(told: Told) -> None:
    calls = [a_kernel("aten::slow_conv3d_forward", seconds, library="aten") for seconds in (3e-3, 3e-3, 1e-3)]
    comparison = a_comparison(a_ratio(FROZEN, 2.0))
    told("Most of it is gone", slow_code(run_of(*calls), run_of(*calls[:1], name=FROZEN), comparison=comparison))
    told("As many calls that take less time", slow_code(run_of(*calls), run_of(*[calls[2]] * 3, name=FROZEN)))
    told(
        "It runs other code but has no ratio", slow_code(run_of(*calls), run_of(a_primitive(1e-3, "jit"), name=FROZEN))
    )


def test_a_configuration_whose_times_are_not_reliable_runs_other_code_if_none_of_its_kernels_is_slow_code() -> None:
    default, comparison = run_of(*FALLBACKS), a_comparison(a_ratio(FROZEN, 3.4))
    advice = a_recommendation(FROZEN, verified=True, speedup=a_speedup(3.4))
    for kernel, severity in ((a_kernel("convolution", 1e-3), "error"), (FALLBACKS[0], "note")):
        untimed = msgspec.structs.replace(kernel, seconds=None)
        frozen = a_trial(FROZEN, kernels=kernels(seconds=None, kernels=(untimed,), count=1))
        (finding,) = slow_code(default, frozen, comparison=comparison, recommendation=advice)
        assert finding.severity == severity


def test_fast_code_and_slow_code_that_takes_little_are_not_reported() -> None:
    for kernel in (
        a_primitive(9e-3, "brgconv:avx512_core"),
        a_primitive(9e-3, "ref:any", "pooling"),  # no arithmetic to be tuned
        a_primitive(0.9e-3, "ref:any"),  # too little of the time
    ):
        assert slow_code(run_of(kernel)) == []
    assert slow_code(a_trial(kernels=None)) == []
    # Without oneDNN's log its primitives may run in there.
    own = a_kernel("aten::convolution_backward", 6e-3, library="aten", backward=True)
    for sources, count in ((("profiler",), 0), (("profiler", "onednn_log"), 1)):
        logged = a_trial(kernels=kernels(seconds=10e-3, kernels=(own,), count=1, sources=sources))
        assert len(slow_code(logged)) == count
    for default, name in ((run_of(), "eager"), (run_of(*FALLBACKS), "inductor")):
        assert [f.configuration for f in slow_code(default, run_of(*FALLBACKS, name="eager"))] == [name]
