"""Whether ``launch_grid`` notices a wrong rule, a wrong name and a wrong element type: on grids that cuDNN chose."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import grid_comparison
import launch_grid
import msgspec
import pytest
import torch
from convolution_cases import Case, families
from grid_comparison import Call, Comparison, compare_calls, judge_name, unmatched
from parts import Part

from layoutdoctor.records import Conversion
from layoutdoctor.traces import RecordedTrace, read_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

TRACES = Path(__file__).parents[1] / "traces"
PATCHES = {"input": (4, 3, 224, 224), "weight": (768, 3, 16, 16), "output": (4, 768, 14, 14)}


def a_trace(name: str) -> RecordedTrace:
    trace = read_trace(TRACES / name)
    assert isinstance(trace, RecordedTrace)
    return trace


def calls_in(
    trace: RecordedTrace,
    shapes: dict[str, tuple[int, ...]],
    dtype: str,
    sizes: bytes,
    *,
    is_channels_last: bool = False,
) -> list[Call]:
    """The recorded convolutions of these sizes, as calls of known tensors."""
    operations = trace.operations
    rows = [
        row
        for row, name in enumerate(operations.name.tolist())
        if trace.names[name] == "aten::cudnn_convolution"
        and trace.arguments[int(operations.arguments[row])]
        .shapes.replace(b" ", b"")
        .replace(b"\n", b"")
        .startswith(sizes)
    ]
    return [
        Call(
            f"call {number}",
            "forward",
            int(operations.start[row]),
            int(operations.start[row] + operations.duration[row]),
            shapes,
            is_channels_last,
            dtype,
        )
        for number, row in enumerate(rows)
    ]


def patch_embedding(shapes: dict[str, tuple[int, ...]] = PATCHES, dtype: str = "bfloat16") -> Comparison:
    trace = a_trace("h100_vit_patch_embed.json.gz")
    calls = calls_in(trace, shapes, dtype, b"[[4,3,224,224],[768,3,16,16]")
    assert len(calls) == 1
    return compare_calls(trace, calls)


def test_the_three_conversions_around_a_convolution_on_h100_agree() -> None:
    found = patch_embedding()

    assert found.mismatches == []
    assert found.counts["conversion_kernels"] == found.counts["grids_as_expected"] == found.counts["named_right"] == 3
    assert found.counts["conversion_kernels_outside_calls"] == found.counts["calls_without_kernels"] == 0
    assert found.calls[0].startswith("call 0 forward: to_channels_last x2, to_contiguous x1; ")


def test_grids_of_another_rule_are_told_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_comparison, "cudnn_grid", lambda shape: (1, 1, shape[0]))

    found = patch_embedding()

    assert found.counts["grids_as_expected"] == 0
    assert found.counts["grids_of_no_tensor"] == 3
    first = found.mismatches[0]
    assert first["grid"] == (1568, 1, 4)
    assert first["expected_grids"] == {"input": (1, 1, 4), "weight": (1, 1, 768)}


def test_a_tensor_of_other_sizes_than_the_named_one_is_a_wrong_name() -> None:
    # 228 x 220 has as many blocks of 32 as 224 x 224: the grid fits, the sizes do not.
    found = patch_embedding({**PATCHES, "input": (4, 3, 228, 220)})

    assert found.counts["grids_as_expected"] == 3
    assert found.counts["named_wrong"] == 1
    assert found.mismatches[0]["named"] == "input"
    assert found.mismatches[0]["named_shape"] == (4, 3, 224, 224)


def test_another_element_type_is_told() -> None:
    assert patch_embedding(dtype="float16").counts["dtypes_wrong"] == 3


def test_a_call_in_channels_last_would_have_to_convert_the_other_way() -> None:
    trace = a_trace("h100_vit_patch_embed.json.gz")
    calls = calls_in(trace, PATCHES, "bfloat16", b"[[4,3,224,224]", is_channels_last=True)

    found = compare_calls(trace, calls)

    assert found.counts["grids_as_expected"] == 0
    assert found.counts["grids_of_no_tensor"] == 3


def test_a_call_whose_kernels_the_profiler_lost_is_counted() -> None:
    trace = a_trace("h100_vit_patch_embed.json.gz")
    calls = calls_in(trace, PATCHES, "bfloat16", b"[[4,3,224,224]")
    later = dataclasses.replace(calls[0], start=calls[0].end + 10**12, end=calls[0].end + 2 * 10**12)

    found = compare_calls(trace, [*calls, later])
    result = grid_comparison.result_of(found, [], [], has_kernels=True)

    assert result["calls_without_kernels"] == 1
    assert result["summary"].endswith("1 calls of which the profiler recorded no kernel")


def test_kernels_outside_of_all_calls_are_counted() -> None:
    found = compare_calls(a_trace("h100_vit_patch_embed.json.gz"), [])

    assert found.counts["conversion_kernels"] == found.counts["conversion_kernels_outside_calls"] == 3


def test_results_whose_sizes_were_not_recorded_on_v100_are_gaps_and_no_faults() -> None:
    trace = a_trace("v100_resnet50_2021_06.json.gz")
    shapes = {"input": (32, 256, 28, 28), "weight": (256, 256, 3, 3), "output": (32, 256, 14, 14)}
    calls = calls_in(trace, shapes, "float32", b"[[32,256,28,28],[256,256,3,3]")

    found = compare_calls(trace, calls)

    assert found.counts["forward_calls"] == found.counts["forward_calls_converting"] == 6
    assert found.counts["grids_as_expected"] == 18
    assert found.counts["named_right"] == 12
    assert found.counts["not_named"] == 6
    assert {mismatch["what"] for mismatch in found.mismatches} == {"not_named"}


@pytest.mark.parametrize(
    ("fitting", "left_over"),
    [
        ([("input",), ("weight",)], 0),
        ([("input", "weight"), ("input",)], 0),  # the first has to make room
        ([("input",), ("input",)], 1),
        ([("grad_output",), ("grad_output",)], 0),
        ([("grad_output",), ("grad_output",), ("grad_output", "input")], 0),
        ([()], 1),
    ],
)
def test_each_tensor_is_converted_so_often_at_the_most(fitting: Sequence[tuple[str, ...]], left_over: int) -> None:
    assert len(unmatched(fitting, {"grad_output": 2, "input": 1, "weight": 1})) == left_over


def a_record(tensor: str, port: str | None, shape: tuple[int, ...] | None) -> Conversion:
    source = None if shape is None else {"shape": shape, "stride": None, "memory_formats": ()}
    fields = {"id": "conversion 0", "owner": "library", "kernel": "nchwToNhwcKernel", "node": None, "op": None}
    fields |= {"location": None, "module": None, "source": source, "target": None, "direction": "to_channels_last"}
    return msgspec.convert({**fields, "tensor": tensor, "port": port, "seconds": None, "bytes_moved": None}, Conversion)


@pytest.mark.parametrize(
    ("record", "fits", "verdict"),
    [
        (a_record("gradient", "input 0", (2, 8, 5, 5)), ("grad_output",), "named_right"),
        (a_record("gradient", "input 0", (2, 8, 5, 5)), ("grad_output", "input"), "named_one_of_several"),
        (a_record("gradient", "output 0", (2, 8, 5, 5)), ("grad_output",), "named_wrong"),
        (a_record("weight", "input 2", (8, 8, 3, 3)), ("weight",), "named_right"),
        (a_record("weight", "input 2", (8, 8, 1, 1)), ("weight",), "named_wrong"),
        (a_record("unknown", None, None), ("weight",), "not_named"),
        (a_record("unknown", None, None), ("weight", "input"), "not_named_several_fit"),
        (a_record("unknown", None, None), (), "not_named_none_fits"),
    ],
)
def test_what_a_name_is_worth(record: Conversion, fits: Sequence[str], verdict: str) -> None:
    shapes = {"grad_output": (2, 8, 5, 5), "input": (2, 8, 5, 5), "weight": (8, 8, 3, 3)}

    assert judge_name(Call("call", "backward", 0, 1, shapes, False, "float16"), record, fits) == verdict


def test_a_1d_convolution_recorded_as_2d_has_the_same_sizes() -> None:
    call = Call("call", "forward", 0, 1, {"input": (8, 80, 1, 400)}, False, "float16")

    assert judge_name(call, a_record("activation", "input 0", (8, 80, 400)), ("input",)) == "named_right"


def test_tensors_that_satisfy_both_formats_are_no_candidates() -> None:
    shapes = {"input": (1, 1, 8, 8), "weight": (8, 1, 3, 3), "output": (1, 8, 8, 8)}
    call = Call("call", "forward", 0, 1, shapes, False, "float16")

    assert call.candidates("to_channels_last") == {}
    assert call.candidates("to_contiguous") == {"output": 1}
    assert dataclasses.replace(call, is_channels_last=True).candidates("to_channels_last") == {"output": 1}


@pytest.mark.parametrize("family", families(is_small=False))
def test_every_case_is_a_convolution_that_torch_takes(family: str) -> None:
    for case in families(is_small=False)[family]:
        given, weight = (torch.empty(sizes, device="meta") for sizes in (case.input, case.weight))
        sizes = [case.stride] * case.rank, [case.padding] * case.rank, [case.dilation] * case.rank
        result = torch.ops.aten.convolution(
            given, weight, None, *sizes, case.is_transposed, [0] * case.rank, case.groups
        )
        assert result.shape[:2] == (case.input[0], case.channels)


def test_a_run_on_the_processor_finds_no_conversion_and_says_so(tmp_path: Path) -> None:
    part = Part("launch_grid", tmp_path, "cpu", True, 0.0)

    result = launch_grid.examine("odd 2d in float32", part)

    assert result["summary"] == "no conversion kernels on this device: 6 calls ran"
    assert result["forward_calls"] == result["backward_calls"] == 3
    assert result["calls_without_kernels"] == 6


def test_the_format_of_a_call_is_that_of_its_result_where_the_strides_say_so() -> None:
    volume, last = torch.empty(2, 3, 4, 4, 4), torch.empty(2, 3, 4, 4, 4).to(memory_format=torch.channels_last_3d)
    either = torch.empty(2, 1, 4, 4)

    assert [launch_grid.looks_channels_last(one, default=True) for one in (volume, last, either)] == [False, True, True]
    assert not launch_grid.looks_channels_last(either, default=False)
    assert not launch_grid.looks_channels_last(torch.empty(2, 3, 4), default=True)


def test_a_case_knows_its_weight() -> None:
    assert Case((4, 64, 28, 28), 96, groups=4).weight == (96, 16, 3, 3)
    assert Case((4, 64, 28, 28), 96, groups=4, is_transposed=True).weight == (64, 24, 3, 3)
