from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutdoctor.examination.kernels.shapes import (
    ARGUMENTS,
    convolution_tensors,
    cudnn_grid,
    miopen_fits,
    output_shape,
)
from layoutdoctor.recording.recording import OperationArguments

if TYPE_CHECKING:
    from collections.abc import Sequence

Shape = tuple[int, ...]

# Gone by torch 2.13; native_functions.yaml of 1.8 and 1.9 has them.
GONE = {
    "aten::cudnn_convolution_backward",
    "aten::cudnn_convolution_backward_input",
    "aten::cudnn_convolution_backward_weight",
    "aten::miopen_convolution_backward",
}


def arguments(shapes: Sequence[Shape], values: Sequence[str] = (), types: Sequence[str] = ()) -> OperationArguments:
    return OperationArguments(
        shapes=json.dumps(shapes).encode(),
        values=json.dumps(list(values)).encode() if values else b"",
        types=json.dumps(list(types)).encode() if types else b"",
    )


def schema_of(name: str) -> Any:
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    return getattr(packet, "default" if "default" in packet.overloads() else packet.overloads()[0])._schema


@pytest.mark.parametrize("name", sorted(set(ARGUMENTS) - GONE))
def test_arguments_stand_where_the_schema_of_torch_has_them(name: str) -> None:
    names = ["input" if argument.name == "self" else argument.name for argument in schema_of(name).arguments]

    assert names[: len(ARGUMENTS[name])] == ARGUMENTS[name]


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Shape, Shape, dict[str, Any]]:
    """Input, weight and the other arguments of a convolution of 1 to 3 dimensions that torch accepts."""
    rank = draw(st.integers(1, 3))
    sizes = st.integers(1, 3)
    some = st.lists(sizes, min_size=rank, max_size=rank)
    groups, transposed = draw(st.integers(1, 3)), draw(st.booleans())
    channels, per_group = groups * draw(sizes), draw(sizes)
    kernel, stride, dilation = draw(some), draw(some), draw(some)
    padding = [draw(st.integers(0, d * (k - 1))) for d, k in zip(dilation, kernel, strict=True)]
    spatial = draw(st.lists(st.integers(7, 9), min_size=rank, max_size=rank))
    extra = [draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)]
    weight = (channels, per_group, *kernel) if transposed else (groups * per_group, channels // groups, *kernel)
    batch = draw(st.sampled_from([(), (1,), (2,)]))
    fields = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "transposed": transposed,
        "output_padding": extra if transposed else [0] * rank,
        "groups": groups,
    }
    return (*batch, channels, *spatial), weight, fields


def values_of(name: str, fields: dict[str, Any]) -> list[str]:
    """``Concrete Inputs`` as the profiler writes them, at the places that torch's schema says."""
    return [str(fields[a.name]) if a.name in fields else "" for a in schema_of(name).arguments]


def real_output(input: Shape, weight: Shape, fields: dict[str, Any]) -> Shape:
    rank = len(weight) - 2
    x, w = torch.empty(input, device="meta"), torch.empty(weight, device="meta")
    plain = {key: fields[key] for key in ("stride", "padding", "dilation", "groups")}
    if fields["transposed"]:
        function = getattr(torch.nn.functional, f"conv_transpose{rank}d")
        return tuple(function(x, w, output_padding=fields["output_padding"], **plain).shape)
    return tuple(getattr(torch.nn.functional, f"conv{rank}d")(x, w, **plain).shape)


@pytest.mark.thorough
@given(convolutions())
@settings(max_examples=300, deadline=None)
def test_output_sizes_are_those_of_torch(case: tuple[Shape, Shape, dict[str, Any]]) -> None:
    input, weight, fields = case
    rank = len(weight) - 2
    expected = real_output(input, weight, fields)

    names = ["aten::convolution", "aten::_convolution"]
    names.append(f"aten::conv_transpose{rank}d" if fields["transposed"] else f"aten::conv{rank}d")
    names += ["aten::cudnn_convolution", "aten::miopen_convolution"] if not fields["transposed"] else []
    names += ["aten::cudnn_convolution_transpose", "aten::miopen_convolution_transpose"] if fields["transposed"] else []
    for name in names:
        assert output_shape(input, weight, ARGUMENTS[name], values_of(name, fields)) == expected, name


IMAGE, WEIGHT = (1, 3, 9, 9), (8, 3, 3, 3)


def test_a_convolution_has_its_tensors_forward_and_backward() -> None:
    found = convolution_tensors(
        "aten::cudnn_convolution",
        arguments(
            [(4, 3, 224, 224), (768, 3, 16, 16), (), (), (), (), (), (), ()],
            ["", "", "[0, 0]", "[16, 16]", "[1, 1]", "1", "False", "False", "True"],
            ["c10::BFloat16", "c10::BFloat16"],
        ),
    )

    assert found is not None
    assert not found.is_backward
    assert found.dtype == "c10::BFloat16"
    assert [(t.role, t.shape, t.kind, t.port) for t in (*found.read, *found.written)] == [
        ("input", (4, 3, 224, 224), "activation", "input 0"),
        ("weight", (768, 3, 16, 16), "weight", "input 1"),
        ("output", (4, 768, 14, 14), "activation", "output 0"),
    ]

    found = convolution_tensors(
        "aten::convolution_backward", arguments([(2, 8, 5, 5), (2, 3, 9, 9), (8, 3, 3, 3), (8,), (), (), ()])
    )

    assert found is not None
    assert found.is_backward
    assert [(t.role, t.shape, t.kind, t.port) for t in (*found.read, *found.written)] == [
        ("grad_output", (2, 8, 5, 5), "gradient", "input 0"),
        ("input", (2, 3, 9, 9), "activation", "input 1"),
        ("weight", (8, 3, 3, 3), "weight", "input 2"),
        ("grad_input", (2, 3, 9, 9), "gradient", "output 0"),
        ("grad_weight", (8, 3, 3, 3), "gradient", "output 1"),
    ]


# Recorded on H100 and V100: the input, weight and output of one convolution each.
@pytest.mark.parametrize(
    ("shape", "grid"),
    [
        ((4, 3, 224, 224), (1568, 1, 4)),
        ((768, 3, 16, 16), (8, 1, 768)),
        ((4, 768, 14, 14), (7, 24, 4)),
        ((32, 256, 28, 28), (25, 8, 32)),
        ((256, 256, 3, 3), (1, 8, 256)),
        ((32, 256, 14, 14), (7, 8, 32)),
    ],
)
def test_the_launch_grid_of_cudnn_is_made_from_the_sizes(shape: Shape, grid: tuple[int, int, int]) -> None:
    assert cudnn_grid(shape) == grid


# Recorded on MI300X: kernel, sizes, grid in threads, direction.
LAUNCHES = [
    ("batched_transpose_32x32_half", (1, 512, 128, 128), 2097152, True),
    ("batched_transpose_32x32_half", (1, 512, 128, 128), 2097152, False),
    ("batched_transpose_16x32_half", (512, 512, 3, 3), 2097152, True),
    ("batched_transpose_16x32_half", (128, 256, 3, 3), 262144, True),
    ("batched_transpose_256x4_half", (10, 3, 224, 224), 501760, True),
    ("batched_transpose_64x4_half", (64, 3, 7, 7), 16384, True),
    ("batched_transpose_32x32_half", (10, 64, 112, 112), 2007040, False),
    ("batched_transpose_32x32_half", (10, 64, 112 * 112), 2007040, False),  # of one dimension the same
]


@pytest.mark.parametrize(("name", "shape", "threads", "to_channels_last"), LAUNCHES)
def test_the_launch_grid_of_miopen_is_made_from_the_tile_and_the_sizes(
    name: str, shape: Shape, threads: int, to_channels_last: bool
) -> None:
    assert miopen_fits(name, shape, (threads, 1, 1), to_channels_last=to_channels_last) is True
    assert miopen_fits(name, shape, (threads // 256, 1, 1), to_channels_last=to_channels_last) is True  # as blocks
    assert miopen_fits(name, shape, (threads + 256, 1, 1), to_channels_last=to_channels_last) is False
