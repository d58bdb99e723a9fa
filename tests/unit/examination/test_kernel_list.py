from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import a_location, a_node
from recorded_builders import LOGGED_SECONDS as BASE
from recorded_builders import Recorder, logged

from layoutdoctor.examination.kernels.host import summarize_host
from layoutdoctor.examination.kernels.operations import HostOperation, nested, operation_tree
from layoutdoctor.examination.kernels.placing import place_primitives
from layoutdoctor.recording.onednn import OnednnLog, read_onednn_log
from layoutdoctor.recording.recording import Problem

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.kernel import KernelSummary

MICROSECOND = 1e-6
LOST = 2
TRACE = Recorder().trace(base_nanoseconds=int(BASE * 1e9), problems=[Problem("lost", LOST, is_loss=True)])


def operation(name: str, start: float, microseconds: float, **changes: Any) -> HostOperation:
    """An operation; times in microseconds."""
    fields: dict[str, Any] = {"thread": "1", "row": 0, **changes}
    return HostOperation(name, start * MICROSECOND, microseconds * MICROSECOND, **fields)


def reorder(source: str = "abcd", target: str = "aBcd16b", shape: str = "4x32x8x8", at: float | None = None) -> str:
    return line("reorder", shape, "undef", at, src=source, dst=target)


def convolution(at: float | None = None) -> str:
    problem = "mb4_ic32oc32_ih8oh8kh3sh1dh0ph1_iw8ow8kw3sw1dw0pw1"
    return line("convolution", problem, "forward_training", at, src="aBcd16b", wei="ABcd16b16a", dst="aBcd16b")


def line(kind: str, problem: str, prop_kind: str, at: float | None = None, **tags: str) -> str:
    """A line of 2 us; ``at`` in microseconds."""
    return logged(kind, problem, prop_kind, at=None if at is None else at * 1e-3, takes=0.002, **tags)


def log(*lines: str) -> OnednnLog:
    return read_onednn_log("\n".join(lines))


def summary(*operations: HostOperation, log: OnednnLog | None = None) -> KernelSummary:
    tree = nested(sorted(operations, key=lambda item: (item.start_seconds, -item.seconds)))
    for entry in tree:
        if entry.name == "aten::convolution":
            entry.node, entry.graph = a_node("conv", location=a_location(3), module="body.0"), "graph 0"
    unplaced = place_primitives(tree, log, BASE) if log is not None else []
    return summarize_host(tree, TRACE, log, unplaced, ())


def one_convolution() -> list[HostOperation]:
    return [
        operation("aten::conv2d", 0, 100),
        operation("aten::convolution", 5, 90),
        operation("aten::_convolution", 10, 80),
        operation("aten::mkldnn_convolution", 20, 60),
        operation("aten::empty", 21, 2),
    ]


ITS_LOG = (
    reorder(at=25),
    reorder("abcd", "ABcd16b16a", "32x32x3x3", 30),
    convolution(35),
    reorder("aBcd16b", "abcd", at=50),
)


def test_of_what_an_operation_was_given_only_tensors_have_sizes() -> None:
    record = Recorder()
    with record.operation("aten::cat", shapes=[[2, 3], [], "scalar", [[1], [2]]], strides=[[3, 1], [], "scalar"]):
        pass
    (found,) = operation_tree(record.trace())

    assert (found.shapes, found.strides) == (((2, 3), (), (), ()), ((3, 1), (), ()))


def test_a_primitive_belongs_to_the_innermost_operation_that_runs_when_it_starts() -> None:
    tree = nested(one_convolution())
    placed = log(*ITS_LOG, reorder(at=500))
    undated = log(reorder(), convolution())

    assert place_primitives(tree, placed, BASE) == placed.primitives[4:]
    assert [entry.primitives for entry in tree[:4]] == [[], [], [], placed.primitives[:4]]
    assert place_primitives(tree, undated, BASE) == undated.primitives


def test_a_convolution_of_another_library_is_a_kernel_that_may_convert_unless_its_primitive_was_logged() -> None:
    def quantised(start: float) -> list[HostOperation]:
        inner = [operation("aten::q_scale", start + 1, 1), operation("aten::_empty_affine_quantized", start + 3, 4)]
        return [operation("quantized::conv2d_relu", start, 100), *inner]

    opaque = summary(*quantised(0), *quantised(200), operation("quantized::conv2d_prepack", 400, 9))
    logged = summary(*quantised(0), log=log(reorder(at=20), convolution(at=30)))

    assert [(kernel.name, round((kernel.seconds or 0) / MICROSECOND)) for kernel in opaque.kernels] == [
        ("quantized::conv2d_relu", 95),
        ("quantized::conv2d_relu", 95),
        ("quantized::conv2d_prepack", 9),
    ]
    assert (opaque.undecided_count, opaque.not_understood_count) == (2, LOST)
    assert opaque.undecided_seconds == pytest.approx(190 * MICROSECOND)
    assert [lack.reason for lack in opaque.lacks] == [
        "conversions within quantized::conv2d_relu (2 calls, 190 us): no log of its library shows them"
    ]
    assert [kernel.name for kernel in logged.kernels] == ["reorder", "convolution"]
    assert (logged.conversion_count, logged.undecided_count, logged.lacks) == (1, 0, ())


def test_the_list_has_each_primitive_and_conversion_sorted_by_start() -> None:
    early, unread = operation("aten::relu", -1000, 8), "onednn_verbose,v1,something new"
    lines = (*ITS_LOG, reorder(at=500), reorder("abcd", "abc", at=60), unread)
    found = summary(early, *one_convolution(), log=log(*lines))

    assert [(kernel.name, kernel.library, kernel.op) for kernel in found.kernels] == [
        ("aten::relu", "aten", "aten::relu"),
        *((name, "onednn", "aten::mkldnn_convolution") for name in ("reorder", "reorder", "convolution", "reorder")),
        ("reorder", "onednn", "aten::mkldnn_convolution"),
        ("reorder", "onednn", None),
    ]
    starts = [round((kernel.start_seconds or 0) / MICROSECOND) for kernel in found.kernels]
    assert starts == pytest.approx([0, 1025, 1030, 1035, 1050, 1060, 1500], abs=2)
    assert [(c.id, c.port, c.direction) for c in found.conversions] == [
        ("reorder 0", "input 0", "to_blocked"),
        ("reorder 1", "input 1", "to_blocked"),
        ("reorder 2", "output 0", "from_blocked"),
        ("reorder 3", None, "other"),
        ("reorder 4", None, "to_blocked"),
    ]
    first, last = found.conversions[0], found.conversions[-1]
    assert (first.node, first.graph, first.module, first.location) == ("conv", "graph 0", "body.0", a_location(3))
    assert (first.owner, first.op, first.kernel) == ("library", "aten::mkldnn_convolution", "reorder jit:any")
    assert (last.op, last.tensor) == (None, "unknown")
    assert [c.tensor for c in found.conversions[:3]] == ["activation", "weight", "activation"]
    modulated = one_convolution()
    modulated[1].has_computed_weight = True
    assert [c.tensor for c in summary(*modulated, log=log(*ITS_LOG)).conversions] == ["activation"] * 3
    assert (found.count, found.conversion_count) == (7, 5)
    assert found.sources == ("profiler", "onednn_log")
    assert found.not_understood_count == 2 + 1 + 1  # lost events, a line, a conversion of unknown layouts


RANGE = {"row": None}


@pytest.mark.parametrize(
    ("why", "operations", "expected"),
    [
        (
            "an operation that computes and calls none that does, called after the outermost one",
            [("aten::batch_norm", 0, 50), ("aten::native_batch_norm", 10, 30), ("aten::empty", 11, 4)],
            [("aten::native_batch_norm", "aten::batch_norm", 26)],
        ),
        (
            "what describes a tensor, and ranges, are none",
            [
                ("aten::view", 0, 5),
                ("aten::transpose", 20, 9),
                ("aten::as_strided", 21, 5),
                ("my step", 30, 50, RANGE),
                ("autograd::engine::evaluate_function: ReluBackward0", 80, 5, RANGE),
                ("torch::autograd::AccumulateGrad", 90, 5),
                ("c10d::allreduce_", 100, 5),
            ],
            [],
        ),
        (
            "operators of whatever library, which may call ATen's",
            [("mkl::_mkl_linear", 0, 9), ("mine::norm", 20, 10), ("aten::mul", 21, 5)],
            [("mkl::_mkl_linear", "mkl::_mkl_linear", 9), ("aten::mul", "mine::norm", 5)],
        ),
        ("a generated kernel", [("layoutdoctor::graph 0::cpp_fused_0", 0, 7, RANGE)], [("cpp_fused_0", None, 7)]),
        (
            "what fills, or lays out again what it reads, before it computes, and what only does that",
            [
                ("aten::upsample_bilinear2d_backward", 0, 40),
                ("aten::contiguous", 1, 9),
                ("aten::clone", 2, 7),
                ("aten::copy_", 3, 5),
                ("aten::zero_", 11, 4),
                ("aten::fill_", 12, 2),
                ("aten::mul", 50, 10),
                ("aten::to", 51, 1),
                ("aten::constant_pad_nd", 70, 30),
                ("aten::fill_", 71, 5),
                ("aten::copy_", 80, 6),
                ("aten::contiguous", 110, 2),
            ],
            [
                ("aten::upsample_bilinear2d_backward", "aten::upsample_bilinear2d_backward", 27),
                ("aten::copy_", "aten::upsample_bilinear2d_backward", 5),
                ("aten::fill_", "aten::upsample_bilinear2d_backward", 2),
                ("aten::mul", "aten::mul", 9),
                ("aten::fill_", "aten::constant_pad_nd", 5),
                ("aten::copy_", "aten::constant_pad_nd", 6),
            ],
        ),
        (
            "ATen's own code for gradients, and what only calls it",
            [
                ("aten::convolution_backward", 0, 90),
                ("aten::resize_as_", 1, 8),
                ("aten::sum", 10, 20),
                ("aten::fill_", 11, 3),
                ("aten::convolution_backward", 100, 90),
                ("aten::_slow_conv2d_backward", 110, 60),
                ("aten::sum", 175, 5),
            ],
            [
                ("aten::convolution_backward", "aten::convolution_backward", 62),
                ("aten::sum", "aten::convolution_backward", 17),
                ("aten::fill_", "aten::convolution_backward", 3),
                ("aten::_slow_conv2d_backward", "aten::convolution_backward", 60),
                ("aten::sum", "aten::convolution_backward", 5),
            ],
        ),
    ],
)
def test_an_operation_is_a_kernel_for_the_time_of_its_own_code(
    why: str, operations: list[tuple[Any, ...]], expected: list[tuple[str, str | None, int]]
) -> None:
    made = [operation(*each[:3], **(each[3] if len(each) > 3 else {})) for each in operations]
    found = summary(*made).kernels

    assert [(k.name, k.op, round((k.seconds or 0) / MICROSECOND)) for k in found] == expected, why
