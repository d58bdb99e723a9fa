from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch
from builders import a_location, a_node
from recorded_builders import LOGGED_SECONDS as BASE
from recorded_builders import logged

from layoutdoctor.examination.kernels.host import (
    Operation,
    ProfiledIteration,
    iteration_of,
    operation_tree,
    place_primitives,
    summarize_host,
)
from layoutdoctor.measure.profiling import record_iteration
from layoutdoctor.recording.onednn import OnednnLog, read_onednn_log

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import KernelSummary
    from layoutdoctor.examination.kernels.host import HostOperation

MICROSECOND = 1e-6


def operation(name: str, start: float, microseconds: float, **changes: Any) -> Operation:
    """An operation; times in microseconds."""
    return Operation(name, start * MICROSECOND, microseconds * MICROSECOND, changes.pop("thread", "1"), **changes)


def profile(*operations: Operation, failed: int = 0) -> ProfiledIteration:
    ordered = sorted(operations, key=lambda item: (item.start_seconds, -item.seconds))
    return ProfiledIteration(ordered, BASE, failed)


def reorder(source: str = "abcd", target: str = "aBcd16b", shape: str = "4x32x8x8", at: float | None = None) -> str:
    return line("reorder", shape, "undef", at, src=source, dst=target)


def convolution(at: float | None = None, prop_kind: str = "forward_training") -> str:
    weight = "ABcd16a16b" if prop_kind == "backward_data" else "ABcd16b16a"
    problem = "mb4_ic32oc32_ih8oh8kh3sh1dh0ph1_iw8ow8kw3sw1dw0pw1"
    return line("convolution", problem, prop_kind, at, src="aBcd16b", wei=weight, dst="aBcd16b")


def line(kind: str, problem: str, prop_kind: str = "forward", at: float | None = None, **tags: str) -> str:
    """A line of 2 us; ``at`` in microseconds."""
    return logged(kind, problem, prop_kind, at=None if at is None else at * 1e-3, takes=0.002, **tags)


def log(*lines: str) -> OnednnLog:
    return read_onednn_log("\n".join(lines))


def summary(
    profile: ProfiledIteration, log: OnednnLog | None = None, nodes: dict[str, str] | None = None, **changes: Any
) -> KernelSummary:
    tree = operation_tree(profile)
    for entry in tree:
        if entry.name in (nodes or {}):
            entry.node, entry.graph = (
                a_node((nodes or {})[entry.name], location=a_location(3), module="body.0"),
                "graph 0",
            )
    homeless = place_primitives(tree, log, profile.base_seconds) if log is not None else []
    return summarize_host(profile, log, tree, homeless, changes.pop("lacks", ()))


def nesting(tree: list[HostOperation]) -> dict[str, str | None]:
    return {entry.name: entry.parent.name if entry.parent is not None else None for entry in tree}


ONE_CONVOLUTION = (
    operation("aten::conv2d", 0, 100),
    operation("aten::convolution", 5, 90),
    operation("aten::_convolution", 10, 80),
    operation("aten::mkldnn_convolution", 20, 60),
    operation("aten::empty", 21, 2),
)
ITS_LOG = (
    reorder(at=25),
    reorder("abcd", "ABcd16b16a", "32x32x3x3", 30),
    convolution(35),
    reorder("aBcd16b", "abcd", at=50),
)


def test_operations_nest_by_time_on_each_thread() -> None:
    tree = operation_tree(
        profile(
            operation("a", 0, 10),
            operation("b", 1, 8),
            operation("c", 2, 2),
            operation("d", 4, 2),
            operation("other thread", 2, 50, thread="2"),
            operation("e", 10, 5),
        )
    )

    assert nesting(tree) == {"a": None, "b": "a", "c": "b", "d": "b", "other thread": None, "e": None}
    assert [child.name for child in tree[1].children] == ["c", "d"]


def test_without_timestamps_a_log_is_assigned_by_its_order_where_counts_fit() -> None:
    tree = operation_tree(profile(operation("aten::mkldnn_convolution", 0, 100)))
    twice = log(reorder(), convolution(), reorder(), convolution())

    assert place_primitives(tree, twice, BASE) == twice.primitives
    assert tree[0].primitives == []
    more = operation_tree(profile(*(operation("aten::mkldnn_convolution", start, 9) for start in (0, 10, 20))))
    assert place_primitives(more, twice, BASE) == twice.primitives
    assert all(entry.primitives == [] for entry in more)

    # The backward of the first layer, whose input needs no gradient.
    forward = operation("aten::mkldnn_convolution", 0, 9)
    backward = [operation("aten::convolution_backward", start, 9) for start in (10, 20)]
    tree = operation_tree(profile(forward, *backward))
    weights = convolution(prop_kind="backward_weights")
    lines = log(convolution(), convolution(prop_kind="backward_data"), weights, reorder("ABcd16b16a", "abcd"), weights)

    assert place_primitives(tree, lines, BASE) == []
    assert [[p.line_number for p in entry.primitives] for entry in tree] == [[1], [2, 3, 4], [5]]

    tree = operation_tree(profile(operation("aten::mkldnn_convolution", 0, 9), operation("aten::linear", 10, 9)))
    product = line("inner_product", "mb4ic64oc32", src="ab")
    homeless = place_primitives(tree, log(reorder("ab", "AB16b64a", "32x64"), product, reorder(), convolution()), BASE)

    assert [item.line_number for item in homeless] == [1, 2]
    assert [item.line_number for item in tree[0].primitives] == [3, 4]

    tree = operation_tree(profile(operation("aten::mkldnn_convolution", 0, 9)))
    transposed = line("deconvolution", "mb4_ic32oc32", src="acdb")

    assert len(place_primitives(tree, log(transposed, convolution()), BASE)) == 2
    assert tree[0].primitives == []


def test_both_ways_to_place_agree_on_a_real_training_step() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1)
    )
    x = torch.randn(2, 3, 16, 16)

    def step() -> None:
        model(x).sum().backward()

    step()
    recording = record_iteration(step, "cpu")
    recorded = iteration_of(recording.events)
    assert recording.log is not None
    if not recording.log.primitives:
        pytest.skip("this processor runs no convolution through oneDNN")
    assert recording.log.has_timestamps
    by_time, by_order = operation_tree(recorded), operation_tree(recorded)
    undated = OnednnLog([dataclasses.replace(item, start_seconds=None) for item in recording.log.primitives])

    assert place_primitives(by_time, recording.log, recorded.base_seconds) == []
    assert place_primitives(by_order, undated, recorded.base_seconds) == []
    placed = [[[item.line_number for item in entry.primitives] for entry in tree] for tree in (by_time, by_order)]
    assert placed[0] == placed[1]
    assert sum(map(len, placed[0])) == len(recording.log.primitives)


@pytest.mark.parametrize(
    ("convolution", "rank"),
    [(torch.nn.Conv3d(4, 4, 3), 3), (torch.nn.Conv2d(4, 4, 3, dilation=2), 2), (torch.nn.ConvTranspose3d(4, 4, 2), 3)],
    ids=["conv3d", "dilated", "transposed"],
)
def test_gradients_in_code_of_atens_own_are_in_the_list(convolution: torch.nn.Module, rank: int) -> None:
    convolution = convolution.double()  # which oneDNN takes none of
    x = torch.randn(2, 4, *[8] * rank, dtype=torch.float64, requires_grad=True)

    def step() -> None:
        convolution(x).sum().backward()

    step()
    recorded = iteration_of(record_iteration(step, "cpu").events)

    assert [kernel.name for kernel in summary(recorded).kernels].count("aten::convolution_backward") == 1


def test_the_list_has_each_primitive_and_conversion_sorted_by_start() -> None:
    found = summary(profile(*ONE_CONVOLUTION), log(*ITS_LOG), {"aten::convolution": "conv"})

    assert [kernel.name for kernel in found.kernels] == ["reorder", "reorder", "convolution", "reorder"]
    assert {kernel.library for kernel in found.kernels} == {"onednn"}
    assert {kernel.op for kernel in found.kernels} == {"aten::mkldnn_convolution"}
    assert [c.id for c in found.conversions] == ["reorder 0", "reorder 1", "reorder 2"]
    assert [c.port for c in found.conversions] == ["input 0", "input 1", "output 0"]
    assert [c.direction for c in found.conversions] == ["to_blocked", "to_blocked", "from_blocked"]
    first = found.conversions[0]
    assert (first.node, first.graph, first.module, first.location) == ("conv", "graph 0", "body.0", a_location(3))
    assert (first.owner, first.op, first.kernel) == ("library", "aten::mkldnn_convolution", "reorder jit:any")
    assert found.sources == ("torch.profiler", "oneDNN verbose log")

    early = operation("aten::relu", 1000, 8)
    later = [dataclasses.replace(item, start_seconds=item.start_seconds + 1010e-6) for item in ONE_CONVOLUTION]
    found = summary(profile(early, *later), log(*(reorder(at=1035), convolution(1045))))
    starts = [kernel.start_seconds for kernel in found.kernels]

    assert [kernel.name for kernel in found.kernels] == ["aten::relu", "reorder", "convolution"]
    assert starts == sorted(starts, key=lambda start: start or 0)
    assert starts == pytest.approx([0, 35e-6, 45e-6], abs=2e-6)  # a Unix time in milliseconds keeps microseconds
    assert found.conversions[0].start_seconds == pytest.approx(35e-6, abs=2e-6)


def test_what_counts_as_a_kernel_whose_it_is_and_what_is_only_counted() -> None:
    found = summary(
        profile(
            operation("aten::batch_norm", 0, 50),
            operation("aten::native_batch_norm", 10, 30),
            operation("aten::empty", 11, 4),
        )
    )

    assert [(kernel.name, kernel.op) for kernel in found.kernels] == [("aten::native_batch_norm", "aten::batch_norm")]
    assert found.kernels[0].seconds == pytest.approx(26e-6)
    assert found.kernels[0].library == "aten"

    found = summary(
        profile(
            operation("aten::view", 0, 5),
            operation("aten::empty", 10, 5),
            operation("aten::transpose", 20, 9),
            operation("aten::as_strided", 21, 5),
            operation("my step", 30, 50, is_annotation=True),
            operation("autograd::engine::evaluate_function: ReluBackward0", 80, 5),
        )
    )

    assert (found.count, found.kernels, found.share) == (0, (), None)

    found = summary(  # an operator of whatever library, which may call ATen's
        profile(
            operation("mkl::_mkl_linear", 0, 9),
            operation("mine::norm", 20, 10),
            operation("aten::mul", 21, 5),
            operation("torch::autograd::AccumulateGrad", 40, 5),
            operation("c10d::allreduce_", 50, 5),
        )
    )

    assert [(kernel.name, kernel.op) for kernel in found.kernels] == [
        ("mkl::_mkl_linear", "mkl::_mkl_linear"),
        ("aten::mul", "mine::norm"),
    ]

    found = summary(profile(operation("layoutdoctor::graph 0::cpp_fused_relu_0", 0, 7, is_annotation=True)))

    assert [(k.name, k.library, k.op) for k in found.kernels] == [("cpp_fused_relu_0", "inductor", None)]
    assert found.kernels[0].seconds == pytest.approx(7e-6)

    found = summary(
        profile(
            operation("aten::relu", 0, 5),
            operation("autograd::engine::evaluate_function: ReluBackward0", 10, 20),
            operation("ReluBackward0", 11, 18),
            operation("aten::threshold_backward", 12, 10),
        )
    )

    assert [(k.name, k.backward) for k in found.kernels] == [("aten::relu", False), ("aten::threshold_backward", True)]

    found = summary(  # what fills, or lays out anew what it reads, before it computes, and what only does that
        profile(
            operation("aten::upsample_bilinear2d_backward", 0, 40),
            operation("aten::contiguous", 1, 9),
            operation("aten::clone", 2, 7),
            operation("aten::copy_", 3, 5),
            operation("aten::zero_", 11, 4),
            operation("aten::fill_", 12, 2),
            operation("aten::mul", 50, 10),
            operation("aten::to", 51, 1),
            operation("aten::constant_pad_nd", 70, 30),
            operation("aten::fill_", 71, 5),
            operation("aten::copy_", 80, 6),
            operation("aten::contiguous", 110, 2),
        )
    )

    assert [(kernel.name, round((kernel.seconds or 0) / MICROSECOND)) for kernel in found.kernels] == [
        ("aten::upsample_bilinear2d_backward", 27),
        ("aten::copy_", 5),
        ("aten::fill_", 2),
        ("aten::mul", 9),
        ("aten::fill_", 5),
        ("aten::copy_", 6),
    ]

    found = summary(  # ATen's own code for gradients, and what only calls it
        profile(
            operation("aten::convolution_backward", 0, 90),
            operation("aten::resize_as_", 1, 8),
            operation("aten::sum", 10, 20),
            operation("aten::fill_", 11, 3),
            operation("aten::convolution_backward", 100, 90),
            operation("aten::_slow_conv2d_backward", 110, 60),
            operation("aten::sum", 175, 5),
        )
    )

    assert [(kernel.name, round((kernel.seconds or 0) / MICROSECOND)) for kernel in found.kernels] == [
        ("aten::convolution_backward", 62),
        ("aten::sum", 17),
        ("aten::fill_", 3),
        ("aten::_slow_conv2d_backward", 60),
        ("aten::sum", 5),
    ]

    found = summary(profile(*ONE_CONVOLUTION), log(*ITS_LOG, reorder(at=500)))

    assert (found.count, found.conversion_count) == (5, 4)
    assert found.conversions[-1].op is None
    assert found.conversions[-1].direction == "to_blocked"
    assert (found.conversions[-1].tensor, found.conversions[-1].port) == ("unknown", None)

    lines = (*ITS_LOG, "onednn_verbose,v1,something new", reorder("abcd", "abc", at=60))
    found = summary(profile(*ONE_CONVOLUTION, failed=2), log(*lines))

    assert found.not_understood_count == 2 + 1 + 1
