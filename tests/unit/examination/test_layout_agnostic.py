from __future__ import annotations

import pytest
import torch
from builders import a_node

from layoutdoctor.examination.graphs.layout_agnostic import (
    ALIASES,
    PER_CHANNEL,
    POINTWISE,
    REDUCTIONS,
    base_name,
    is_layout_agnostic,
)

aten = torch.ops.aten
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
CHANNELS = 6
NORM = (torch.ones(CHANNELS), torch.zeros(CHANNELS), torch.zeros(CHANNELS), torch.ones(CHANNELS), 0.1, 1e-5)
UPSAMPLED, RESAMPLED, SMALLER = [16, 16], ([16, 16], False), ([2, 2],)
ARGUMENTS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("_adaptive_avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d"), ([4, 4],)),
    **dict.fromkeys(("_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa"), RESAMPLED),
    **dict.fromkeys(("upsample_bicubic2d", "upsample_bilinear2d"), RESAMPLED),
    **dict.fromkeys(("_upsample_nearest_exact2d", "upsample_nearest2d"), (UPSAMPLED,)),
    **dict.fromkeys(("_upsample_nearest_exact3d", "upsample_nearest3d"), ([16, 16, 16],)),
    **dict.fromkeys(("avg_pool2d", "max_pool2d", "max_pool2d_with_indices"), SMALLER),
    **dict.fromkeys(("max_pool3d", "max_pool3d_with_indices"), ([2, 2, 2],)),
    **dict.fromkeys(("reflection_pad2d", "replication_pad2d"), ([1] * 4,)),
    **dict.fromkeys(("reflection_pad3d", "replication_pad3d"), ([1] * 6,)),
    "_native_batch_norm_legit_no_training": NORM,
    "constant_pad_nd": ([1, 1, 2, 2],),
    "upsample_trilinear3d": ([16, 16, 16], False),
}
INDUCTORS_OWN = {"_low_memory_max_pool2d_with_offsets", "_low_memory_max_pool_with_offsets"}
"""Operations of Inductor's decompositions, which it computes in any layout; eager torch has none of these."""

WITH_GRADIENT = "copysign gelu_backward hardsigmoid_backward hardswish_backward mish_backward".split()
WITH_GRADIENT += "sigmoid_backward silu_backward tanh_backward".split()
POINTWISE_ARGUMENTS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(WITH_GRADIENT, (1,)),
    **dict.fromkeys(("addcdiv", "addcmul"), (2,)),
    **dict.fromkeys(("clamp_max", "clamp_min"), (0, 0.5)),
    "clamp": (0, -0.5, 0.5),
    "hardtanh_backward": (1, -1.0, 1.0),
    "leaky_relu_backward": (1, 0.1, False),
    "lerp": (1, 0.5),
    "native_dropout": (0, 0.5, True),
    "pow": (0, 2),
    "softplus_backward": (1, 1.0, 20.0),
    "threshold": (0, 0.1, 0.0),
    "threshold_backward": (1, 0.0),
}
BINARY = set(
    "add atan2 bitwise_and bitwise_or div eq fmod ge gt le lt logical_and logical_or maximum minimum mul ne "
    "remainder rsub sub xlogy".split()
)
BITWISE = {"bitwise_and", "bitwise_not", "bitwise_or"}
PRIMS = {"convert_element_type", "fma"}


def image(rank: int = 4) -> torch.Tensor:
    shape = (2, CHANNELS, 8, 8, 8)[:rank]
    return torch.rand(shape).to(memory_format=FORMATS[rank])


def is_only_channels_last(result: object) -> bool:
    tensor = result[0] if isinstance(result, tuple) else result
    assert isinstance(tensor, torch.Tensor)
    return tensor.is_contiguous(memory_format=FORMATS[tensor.dim()]) and not tensor.is_contiguous()


@pytest.mark.parametrize("name", sorted(PER_CHANNEL - INDUCTORS_OWN))
def test_an_operation_said_to_keep_the_layout_returns_channels_last_for_channels_last(name: str) -> None:
    result = getattr(aten, name)(image(5 if "3d" in name else 4), *ARGUMENTS[name])

    assert is_only_channels_last(result)


@pytest.mark.parametrize("name", sorted(POINTWISE - PRIMS - {"where", "elu_backward"}))
def test_a_pointwise_operation_keeps_the_operands_layout(name: str) -> None:
    function = getattr(aten, name)
    x, y = image(), image()
    if name in BITWISE:
        x, y = (x * 9).int(), (y * 9).int()
    if name in POINTWISE_ARGUMENTS:
        tensors, *rest = POINTWISE_ARGUMENTS[name]
        result = function(x, *([y] * int(str(tensors))), *rest)
    else:
        result = function(x, y) if name in BINARY else function(x)

    assert is_only_channels_last(result)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("aten.relu.default", "relu"),
        ("aten.relu_.default", "relu"),
        ("torch.ops.aten.add.Tensor", "add"),
        ("aten.__and__.Tensor", "__and__"),
        ("prims.convert_element_type.default", "convert_element_type"),
        ("<built-in function getitem>", "getitem"),
        ("mkldnn._convolution_pointwise_.binary", "_convolution_pointwise"),
        ("x", "x"),
        ("_", "_"),
    ],
)
def test_an_operation_is_called_by_its_name_without_library_and_overload(target: str, name: str) -> None:
    assert base_name(target) == name


def test_what_the_lists_do_not_run_by_name_alone() -> None:
    assert not is_only_channels_last(aten.log_sigmoid_forward(image()))
    assert not is_layout_agnostic(a_node("s", "aten.log_sigmoid_forward.default"))

    assert is_only_channels_last(aten.elu_backward(image(), 1.0, 1.0, 1.0, False, image()))
    assert is_only_channels_last(aten.where(image() > 0.5, image(), image()))

    lists = POINTWISE, PER_CHANNEL, ALIASES, REDUCTIONS

    assert sum(map(len, lists)) == len(frozenset().union(*lists))
