"""Two examined traces against each other: what is said of the pair, and above all what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import a_conversion, a_pair, a_total, a_trace, channels_last, contiguous, recorded

from layoutdoctor.examination.changes.traces import compare_traces as compared
from layoutdoctor.examination.changes.traces import loose_name, match_names

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import Conversion, RedundantPair
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.kernel import Total


CONVOLUTION = "aten::cudnn_convolution"
OPERATIONS = ("aten::relu", "aten::add", "aten::batch_norm")


def to_nhwc(number: int = 0, **changes: Any) -> Conversion:
    fields: dict[str, Any] = {
        "kernel": "nchwToNhwcKernel",
        "op": CONVOLUTION,
        "module": None,
        "location": None,
        "source": contiguous(),
        "target": channels_last(),
        "direction": "to_channels_last",
        "seconds": 100.5e-6,
        "exposed_seconds": 50e-6,
        "confidence": "shapes",
    }
    return a_conversion(f"c{number}", **{**fields, **changes})


def several(count: int, **changes: Any) -> tuple[Conversion, ...]:
    return tuple(to_nhwc(number, **changes) for number in range(count))


def totals(*more: Total, count: int = 10, steps: int = 0) -> tuple[Total, ...]:
    """One convolution network: operations with as many kernels each, their kernels, and profiler steps."""
    names = (CONVOLUTION, *OPERATIONS)
    return (
        *(a_total("operation", name, count=count, seconds=count * 1e-3) for name in names),
        *(a_total("kernel", f"{name}_kernel", count=count, seconds=count * 1e-3) for name in names),
        *(a_total("step", f"ProfilerStep#{n}", count=4 * count // max(steps, 1), seconds=40e-3) for n in range(steps)),
        *more,
    )


def a_run(
    *conversions: Conversion,
    totals: tuple[Total, ...] = totals(),
    pairs: tuple[RedundantPair, ...] = (),
    seconds: float = 40e-3,
    environment: dict[str, Any] | None = None,
    **changes: Any,
) -> Diagnosis:
    summary = recorded(*conversions, seconds=seconds, totals=totals, **changes)
    return a_trace(summary, redundant_pairs=pairs, environment=environment or {})


@pytest.mark.parametrize(
    "other",
    [
        {"op": "aten::convolution_backward"},
        {"module": "layer2"},
        {"direction": "to_contiguous"},
        {"tensor": "weight"},
        {"source": contiguous((8, 3, 224, 224))},
        {"owner": "framework"},
    ],
)
def test_conversions_are_told_apart_by_each_of_what_names_them(other: dict[str, Any]) -> None:
    base = {"module": "layer1"}
    comparison = compared(a_run(to_nhwc(0, **base)), a_run(to_nhwc(0, **{**base, **other})))

    assert sorted(change.count_difference for change in comparison.conversions) == [-1, 1]


@pytest.mark.parametrize(("field", "word"), [("module", "modules"), ("op", "operations")])
def test_what_one_trace_never_recorded_does_not_make_everything_new(field: str, word: str) -> None:
    comparison = compared(a_run(*several(2, **{field: None})), a_run(*several(2, **{field: "known"})))

    assert [change.count_difference for change in comparison.conversions] == [0]
    assert [note for note in comparison.notes if note.startswith(f"{word} of conversions are recorded in one")]


def test_without_shapes_in_one_trace_round_trips_are_not_judged() -> None:
    without = several(2, source=None, target=None)
    comparison = compared(a_run(*without), a_run(*several(2), pairs=(a_pair("c0", "c1"),)))

    assert comparison.regression.losses == ()
    assert any("round trips cannot be compared" in note for note in comparison.notes)


def test_round_trips_come_and_go_by_what_names_them_and_each_conversion_is_paid_once() -> None:
    old = (a_pair("c0", "c1", module="layer1"), a_pair("c2", "c3", module="layer2"))
    new = (a_pair("c0", "c1", module="layer1"), a_pair("c2", "c3", module="layer2", between=("aten::add",)))
    comparison = compared(a_run(*several(4), pairs=old), a_run(*several(4), pairs=new))

    assert {(change.module, change.between, change.count_difference) for change in comparison.round_trips} == {
        ("layer1", ("aten.relu.default",), 0),
        ("layer2", ("aten.relu.default",), -1),
        ("layer2", ("aten::add",), 1),
    }

    pairs = (a_pair("c0", "c1", seconds=1.0), a_pair("c1", "c2", seconds=1.0))
    comparison = compared(a_run(*several(3), pairs=pairs), a_run(*several(3)))

    assert comparison.old.costs.redundant_pair_count == 2
    assert comparison.old.costs.redundant_pair_seconds == pytest.approx(3 * 100.5e-6)


PAIR = (a_pair("c0", "c1"),)
STEPS = totals(count=50, steps=5)
H200 = {"device_name": "NVIDIA H200"}


@pytest.mark.parametrize(
    ("why", "old", "new", "losses"),
    [
        (
            "more time than the tolerance",
            a_run(*several(10)),
            a_run(*several(12)),
            ("layout conversions take 1.21 ms instead of 1.01 ms",),
        ),
        ("another clock rate", a_run(*several(10)), a_run(*several(10, seconds=109.5e-6)), ()),
        ("nobody would miss it", a_run(seconds=1.0), a_run(to_nhwc(0, seconds=0.9e-3), seconds=1.0), ()),
        ("a longer kernel time alone", a_run(*several(10)), a_run(*several(10), seconds=90e-3), ()),
        ("one more round trip", a_run(*several(4)), a_run(*several(4), pairs=PAIR), ("1 round trip instead of 0",)),
        ("one less", a_run(*several(4), pairs=PAIR), a_run(*several(4)), ()),
        ("a step in part", a_run(*several(10), totals=STEPS), a_run(*several(10), totals=STEPS, pairs=PAIR), ()),
        ("other devices' times", a_run(*several(4)), a_run(*several(4, seconds=1.0), environment=H200), ()),
        (
            "other devices' counts",
            a_run(*several(4)),
            a_run(*several(6), environment=H200),
            ("6 layout conversions instead of 4",),
        ),
    ],
)
def test_a_regression_is_what_layouts_take_beyond_the_tolerance(
    why: str, old: Diagnosis, new: Diagnosis, losses: tuple[str, ...]
) -> None:
    found = compared(old, new).regression.losses

    assert len(found) == len(losses)
    assert all(said.startswith(start) for said, start in zip(found, losses, strict=True))


def counted(kind: str, **counts: int) -> tuple[Total, ...]:
    return tuple(a_total(kind, name, count=count) for name, count in counts.items())


OTHERS = {"relu": 10, "add": 10, "mul": 10, "sum": 10}


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (counted("operation", conv=10, **OTHERS), counted("operation", conv=18, **OTHERS), None),
        (counted("operation", conv=10), counted("operation", conv=18), "for operations in both traces, 10 kernels"),
        (counted("kernel", volta_conv_nn=10), counted("kernel", ampere_conv_nn=20), "for kernels"),
        (
            (a_total("operation", CONVOLUTION, count=30, conversion_count=20),),
            (a_total("operation", CONVOLUTION, count=10),),
            None,
        ),
        *(
            (
                counted(kind, **OTHERS),
                counted(kind, **dict.fromkeys(OTHERS, 20)),
                f"for {words} in both traces, 40 kernels",
            )
            for kind, words in (("operation", "operations"), ("kernel", "kernels"))
        ),
        (  # a capture with its operations against four replays of its graph, which have hardly any
            (*counted("operation", copy=1, conv=30), *counted("kernel", copy=1, gemm=400, norm=200, act=600)),
            (*counted("operation", copy=1), *counted("kernel", copy=1, gemm=1600, norm=800, act=2400)),
            None,
        ),
        (
            (*counted("operation", conv=1), *counted("kernel", copy=1, gemm=400, norm=200, act=600, a=5, b=5)),
            (*counted("operation", conv=1), *counted("kernel", copy=1, gemm=1600, norm=800, act=2400, a=20, b=20)),
            "for kernels in both traces, 1211 kernels ran in the old one and 4841",
        ),
        (  # fused: some ran less often, each by another factor
            (*counted("operation", conv=9), *counted("kernel", gemm=40, norm=20, act=60, copy=4)),
            (*counted("operation", conv=9), *counted("kernel", gemm=40, norm=10, act=6, copy=1)),
            None,
        ),
    ],
)
def test_work_is_unequal_if_nearly_all_ran_the_same_number_of_times_as_often(
    old: tuple[Total, ...], new: tuple[Total, ...], why: str | None
) -> None:
    said = compared(a_run(totals=old), a_run(totals=new)).unequal_work

    assert said is None if why is None else str(said).startswith(why)


def test_what_a_run_spent_is_of_what_was_recorded() -> None:
    copy = to_nhwc(9, owner="framework", exposed_seconds=7e-6)
    own = (*(to_nhwc(n, count=2) for n in range(4)), copy, to_nhwc(5, fused=True), to_nhwc(6, direction="none"))
    old = a_run(*own, exposed_conversion_seconds=30e-6, convolution_seconds=1.608e-3)
    comparison = compared(old, a_run(*several(2, seconds=None), conversion_seconds=None))

    assert comparison.old.costs.conversion_count == 9
    assert comparison.old.costs.exposed_conversion_seconds == pytest.approx(37e-6)
    assert comparison.new.costs.conversion_seconds is None


TO_NHWC = "nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)0>(cudnn::ops::nchw2nhwc_params_t)"


def matched(old: list[str], new: list[str]) -> dict[str, tuple[bool, int, int]]:
    return {m.name: (m.is_loose, len(m.old_names), len(m.new_names)) for m in match_names("kernel", old, new)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"void cudnn::ops::{TO_NHWC}", "nchwToNhwcKernel"),
        (f"void cudnn::engines_precompiled::{TO_NHWC}", "nchwToNhwcKernel"),
        (f"void {TO_NHWC}", "nchwToNhwcKernel"),
        ("triton_poi_fused_convolution_12d3", "triton_poi_fused_convolution"),
        ("cpp_fused_convolution_relu_3", "cpp_fused_convolution_relu"),
        ("triton_poi_fused_max_pool2d_with_indices_3", "triton_poi_fused_max_pool2d_with_indices"),
        ("volta_scudnn_128x64_relu_small_nn_v1", "scudnn_128x64_relu_small_nn_v1"),
        ("sm80_xmma_fprop_implicit_gemm_f32_nhwckrsc_nhwc", "xmma_fprop_implicit_gemm_f32_nhwckrsc_nhwc"),
        (
            "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int)",
            "at::native::max_pool_forward_nchw",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryF...",
            "at::native::vectorized_elementwise_kernel",
        ),
        ("<lambda>", "<lambda>"),
    ],
)
def test_a_loose_name_is_what_versions_and_gpus_share(name: str, expected: str) -> None:
    assert loose_name(name) == expected


def test_names_match_once_exactly_before_loosely_and_operations_exactly_only() -> None:
    nine = f"void cudnn::engines_precompiled::{TO_NHWC}"

    assert matched([nine], [f"void cudnn::ops::{TO_NHWC}", nine]) == {
        nine: (False, 1, 1),
        f"void cudnn::ops::{TO_NHWC}": (False, 0, 1),
    }

    old = ["triton_poi_fused_convolution_1", "triton_poi_fused_convolution_2", "triton_poi_fused_relu_3"]
    new = ["triton_poi_fused_convolution_1", "triton_poi_fused_relu_2"]

    assert matched(old, new) == {
        "triton_poi_fused_convolution": (True, 2, 1),
        "triton_poi_fused_relu": (True, 1, 1),
    }

    matches = match_names("operation", ["aten::add", "aten::relu_1"], ["aten::relu_2", "aten::add"])

    assert [match.name for match in matches if match.old_names and match.new_names] == ["aten::add"]
