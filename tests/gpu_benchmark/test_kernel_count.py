"""The hand count agrees with the exact counts of recorded traces, and reads generated code for what it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernel_count import count_kernels, group_of, only_moves, short_name

TRACES = Path(__file__).parents[1] / "traces"

# As torch 2.13 generates them for a GPU, cut to what matters.
HEAD = "import triton\n\n@triton.jit\ndef triton_poi_fused_convolution_0(in_ptr0, out_ptr0, ynumel, xnumel):\n"
TRANSPOSE = """
    x2 = xindex
    y0 = (yindex % 8)
    tmp0 = tl.load(in_ptr0 + (x2 + 27*y3), xmask & ymask, eviction_policy='evict_last').to(tl.float32)
    tl.store(out_ptr0 + (y0 + 8*x2 + 216*y1), tmp0, xmask & ymask)
"""
TRANSPOSE_AND_CAST = """
    tmp0 = tl.load(in_ptr0 + (y0 + 64*x1), ymask)
    tmp1 = tmp0.to(tl.float32)
    tl.store(out_ptr0 + (x1 + 16384*y0), tmp1, ymask)
"""
SAME_PLACE = """
    tmp0 = tl.load(in_ptr0 + (x0), None)
    tl.store(out_ptr0 + (x0), tmp0, None)
"""
FUSED = """
    tmp0 = tl.load(in_ptr0 + (y0 + 64*x1), ymask).to(tl.float32)
    tmp1 = tl.full([1, 1], 0, tl.int32)
    tmp2 = triton_helpers.maximum(tmp1, tmp0)
    tl.store(out_ptr0 + (x1 + 16384*y0), tmp2, ymask)
"""
FILL = """
    tmp0 = 0.0
    tl.store(out_ptr0 + (x0), tmp0, xmask)
"""


def a_trace(*launches: tuple[str, Path | None]) -> bytes:
    """A trace of one microsecond for each kernel, with the host's event of its launch where its file is known."""
    events: list[dict[str, Any]] = []
    for number, (name, file) in enumerate(launches):
        arguments = {"External id": number}
        events.append({"ph": "X", "cat": "kernel", "name": name, "ts": number, "dur": 1, "args": arguments})
        if file is not None:
            launch = {**arguments, "kernel_file": str(file)}
            events.append({"ph": "X", "cat": "cpu_op", "name": name, "ts": number, "dur": 1, "args": launch})
    return json.dumps({"traceEvents": events}).encode()


@pytest.mark.parametrize(
    ("file", "kernels", "conversions"),
    [
        ("a100_alexnet", 79, {"nchwToNhwcKernel": 12}),
        ("a100_conv_training_nccl", 2700, {"nchwToNhwcKernel": 474, "nhwcToNchwKernel": 159}),
        ("h100_vit_patch_embed", 154, {"nchwToNhwcKernel": 2, "nhwcToNchwKernel": 1}),
        ("h100_bert_control", 60, {}),
    ],
)
def test_counts_of_recorded_traces(file: str, kernels: int, conversions: dict[str, int]) -> None:
    count = count_kernels(TRACES / f"{file}.json.gz")

    assert count.kernel_count == kernels
    assert dict(count.groups()) == conversions
    assert 0 <= count.seconds_of["library"] <= count.seconds


def test_miopens_conversions_are_counted_by_their_names() -> None:
    groups = count_kernels(TRACES / "mi300_resnet_act_checkpoint.json.gz").groups()

    assert groups.total() == 999
    assert groups["batched_transpose_16x32_half"] == 452
    assert groups["transpose_NCHW2CNHW_V2_2D_WG_off64"] == 28


def test_eager_copies_are_told_from_casts() -> None:
    assert count_kernels(TRACES / "h100_timesformer.json.gz").eager_copies == 122
    assert count_kernels(TRACES / "a100_particle_transformer_cast_decoy.json.gz").eager_copies == 42  # of 240 copies


def test_convolutions_with_a_layout_in_their_names_are_shown_and_not_counted() -> None:
    count = count_kernels(TRACES / "a100_alexnet.json.gz")

    assert count.library.total() == 12
    assert any("nhwc" in name for name in count.look_alikes)


@pytest.mark.parametrize(
    ("body", "moves"),
    [(TRANSPOSE, True), (TRANSPOSE_AND_CAST, True), (SAME_PLACE, False), (FUSED, False), (FILL, False)],
)
def test_what_a_generated_kernel_does_is_read_from_its_code(body: str, moves: bool) -> None:
    assert only_moves(HEAD + body) is moves


def test_what_holds_no_kernel_is_not_judged() -> None:
    assert only_moves("import torch\n") is None


def test_generated_kernels_are_joined_with_their_code(tmp_path: Path) -> None:
    moving, fused = tmp_path / "moving.py", tmp_path / "fused.py"
    moving.write_text(HEAD + TRANSPOSE, encoding="utf-8")
    fused.write_text(HEAD + FUSED, encoding="utf-8")
    gone = tmp_path / "gone.py"
    trace = a_trace(
        ("triton_poi_fused_0", moving),
        ("triton_poi_fused_0", moving),
        ("triton_poi_fused_0", fused),  # the backward graph has one of this name as well
        ("triton_poi_fused_1", fused),
        ("triton_poi_fused_2", gone),
        ("triton_poi_fused_3", None),
        ("triton_tem_fused_4", None),
    )

    count = count_kernels(trace)

    assert count.generated.total() == 6
    assert dict(count.moving) == {"triton_poi_fused_0": 2}
    assert count.unread == ("triton_poi_fused_2", "triton_poi_fused_3")
    assert count.seconds_of["moving"] == pytest.approx(2e-6)
    assert dict(count.groups()) == {"generated copy": 2}


def test_groups_have_the_same_names_for_kernels_and_conversions() -> None:
    kernel = "void cudnn::ops::nchwToNhwcKernel<__half, float, true>(cudnn::ops::nchw2nhwc_params_t<float>, int*)"
    mangled = "_ZN5cudnn3ops16nchwToNhwcKernelI6__halffLb1EEE"

    assert short_name(kernel) == short_name(mangled) == group_of(kernel) == "nchwToNhwcKernel"
    assert group_of("triton_poi_fused_convolution_3") == group_of("cpp_fused_0") == "generated copy"
    assert group_of("aten::copy_") == "aten copy"
    assert group_of(None) == "unknown"
