"""
The tensors of a recorded convolution or copy: their sizes, and the launch grids of their conversions.

All sizes come from the arguments that the profiler recorded with the operation; sizes not recorded stay unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from layoutdoctor.diagnosis import Layout, TensorKind
from layoutdoctor.diagnosis.layout import strided_layout

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import OperationArguments

Shape = tuple[int, ...]
TensorRole = Literal["input", "weight", "output", "grad_output", "grad_input", "grad_weight", "unknown"]

MOST_DIMENSIONS = 16
_LARGEST_SIZE = 1 << 48


_PLAIN = "input weight bias stride padding dilation groups"
_GENERAL = "input weight bias stride padding dilation transposed output_padding groups"
_OF_MIOPEN = "input weight bias padding stride dilation groups"
_TRANSPOSED = "input weight bias stride padding output_padding groups dilation"
_BACKWARD = "input grad_output weight padding stride dilation groups"

ARGUMENTS: dict[str, list[str]] = {
    f"aten::{name}": arguments.split()
    for name, arguments in {
        "conv1d": _PLAIN,
        "conv2d": _PLAIN,
        "conv3d": _PLAIN,
        "convolution": _GENERAL,
        "_convolution": _GENERAL,
        "convolution_overrideable": _GENERAL,
        "cudnn_convolution": "input weight padding stride dilation groups",
        "cudnn_convolution_relu": _PLAIN,
        "cudnn_convolution_transpose": "input weight padding output_padding stride dilation groups",
        "miopen_convolution": _OF_MIOPEN,
        "miopen_depthwise_convolution": _OF_MIOPEN,
        "miopen_convolution_transpose": "input weight bias padding output_padding stride dilation groups",
        "mkldnn_convolution": _OF_MIOPEN,
        "conv_transpose1d": _TRANSPOSED,
        "conv_transpose2d": _TRANSPOSED,
        "conv_transpose3d": _TRANSPOSED,
        "convolution_backward": "grad_output input weight bias_sizes stride padding dilation transposed output_padding "
        "groups",
        "cudnn_convolution_backward": _BACKWARD,
        "miopen_convolution_backward": _BACKWARD,
        "cudnn_convolution_backward_input": "self_size grad_output weight padding stride dilation groups",
        "cudnn_convolution_backward_weight": "weight grad_output input padding stride dilation groups",
    }.items()
}
"""
The arguments of ATen's convolutions, in order, as far as they are needed here.

Source:
    ``aten/src/ATen/native/native_functions.yaml`` of torch 1.8 to 2.13.
"""

_READ: dict[TensorRole, TensorKind] = {"grad_output": "gradient", "input": "activation", "weight": "weight"}


@dataclass(frozen=True, slots=True)
class ConvolutionTensor:
    """One tensor of a convolution: its role, sizes, kind and port."""

    role: TensorRole
    shape: Shape
    kind: TensorKind
    port: str | None


UNKNOWN_TENSOR = ConvolutionTensor("unknown", (), "unknown", None)


@dataclass(frozen=True, slots=True)
class ConvolutionTensors:
    """
    The tensors of one recorded convolution.

    Attributes:
        written: The tensors that it writes; empty if their sizes cannot be computed.
        dtype: Element type of its input, or else its weight, as recorded, such as ``c10::BFloat16``; None if not
            recorded.
    """

    is_backward: bool
    read: tuple[ConvolutionTensor, ...]
    written: tuple[ConvolutionTensor, ...]
    dtype: str | None

    def of_role(self, role: TensorRole) -> ConvolutionTensor:
        """The tensor of a role; ``UNKNOWN_TENSOR`` if its sizes are not known."""
        return next((tensor for tensor in (*self.read, *self.written) if tensor.role == role), UNKNOWN_TENSOR)


def parse_shapes(text: bytes) -> tuple[Shape, ...]:
    """
    Reads the sizes or strides of all arguments.

    Returns:
        One entry for each argument; ``()`` unless the argument is a single tensor of at least one dimension. Empty if
        the text is no list.
    """
    return tuple(_shape(item) for item in _list(text))


COPY = "aten::copy_"


def layouts_of_copy(shapes: Sequence[Shape], strides: Sequence[Shape]) -> tuple[Layout, Layout] | None:
    """Layouts before and after ``aten::copy_``, whose first argument is the target; None if unknown or sizes differ."""
    if len(shapes) < 2 or len(strides) < 2 or shapes[0] != shapes[1] or not shapes[0]:
        return None
    if len(strides[0]) != len(shapes[0]) or len(strides[1]) != len(shapes[1]):
        return None
    return strided_layout(shapes[1], strides[1]), strided_layout(shapes[0], strides[0])


def _list(text: bytes) -> list[object]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _shape(item: object) -> Shape:
    if not isinstance(item, list) or len(item) > MOST_DIMENSIONS:
        return ()
    sizes = [
        size for size in item if isinstance(size, int) and not isinstance(size, bool) and 0 <= size < _LARGEST_SIZE
    ]
    return tuple(sizes) if len(sizes) == len(item) else ()


def parse_texts(text: bytes) -> tuple[str, ...]:
    """
    Reads a list of texts, such as the profiler's ``Concrete Inputs`` or ``Input type``.

    Returns:
        The texts, with an empty text for an entry that is no text. Empty if ``text`` is no list.
    """
    return tuple(item if isinstance(item, str) else "" for item in _list(text))


def convolution_tensors(name: str, arguments: OperationArguments) -> ConvolutionTensors | None:
    """
    The tensors of a convolution.

    Returns:
        None if the operation is not known here, or its sizes were not recorded.
    """
    names = ARGUMENTS.get(name)
    shapes = parse_shapes(arguments.shapes)
    if names is None or not shapes:
        return None
    places = {role: names.index(role) for role in _READ if role in names}
    known = {role: shapes[place] for role, place in places.items() if place < len(shapes) and shapes[place]}
    types = parse_texts(arguments.types)
    dtype = next((types[place] for role, place in places.items() if role != "grad_output" and place < len(types)), None)
    read = tuple(ConvolutionTensor(role, shape, _READ[role], f"input {places[role]}") for role, shape in known.items())
    if "grad_output" in known:
        of_results: tuple[tuple[TensorRole, TensorRole, str], ...] = (
            ("input", "grad_input", "output 0"),
            ("weight", "grad_weight", "output 1"),
        )
        written = tuple(
            ConvolutionTensor(own, known[role], "gradient", port) for role, own, port in of_results if role in known
        )
        return ConvolutionTensors(True, read, written, dtype)
    if "grad_output" in names or len(known) < 2:
        return None
    output = output_shape(known["input"], known["weight"], names, parse_texts(arguments.values))
    return ConvolutionTensors(
        False, read, (ConvolutionTensor("output", output, "activation", "output 0"),) if output else (), dtype
    )


def output_shape(input_: Shape, weight: Shape, names: Sequence[str], values: Sequence[str]) -> Shape:
    """
    Sizes of a convolution's output.

    Args:
        input_: Sizes of the input, ``[N, C, ...]``.
        weight: Sizes of the weight, ``[C_out, C_in / groups, ...]``, or ``[C_in, C_out / groups, ...]`` if transposed.
        values: The recorded texts of the arguments in ``names``, in the same order.

    Returns:
        The sizes; empty if a needed value was not recorded, or the values do not fit together.

    Source:
        ``conv_output_size`` and ``conv_input_size`` in ``aten/src/ATen/native/ConvUtils.h``.
    """
    rank = len(weight) - 2
    if rank < 1 or len(input_) not in (rank + 1, rank + 2):
        return ()
    given = dict(zip(names, values, strict=False))
    stride, padding, dilation = (_numbers(given.get(name, ""), rank) for name in ("stride", "padding", "dilation"))
    groups = _numbers(given.get("groups", ""), 1)
    extra = _numbers(given.get("output_padding", ""), rank) if "output_padding" in names else (0,) * rank
    if not (stride and padding and dilation and groups and extra) or 0 in stride:
        return ()
    reach = [d * (k - 1) for d, k in zip(dilation, weight[2:], strict=True)]
    terms = list(zip(input_[-rank:], stride, padding, reach, extra, strict=True))
    is_transposed = given.get("transposed") == "True" if "transposed" in names else "output_padding" in names
    if is_transposed:
        channels, sizes = weight[1] * groups[0], [(n - 1) * s - 2 * p + r + e + 1 for n, s, p, r, e in terms]
    else:
        channels, sizes = weight[0], [(n + 2 * p - r - 1) // s + 1 for n, s, p, r, e in terms]
    return (*input_[: -rank - 1], channels, *sizes) if min(sizes) > 0 else ()


def _numbers(text: str, count: int) -> tuple[int, ...]:
    """Reads ``count`` numbers; a single number counts for all dimensions. Empty for a list of another length."""
    found = [int(number[:12]) for number in re.findall(r"\d+", text)]
    if len(found) == 1:
        return tuple(found * count)
    return tuple(found) if len(found) == count else ()


def cudnn_grid(shape: Shape) -> tuple[int, int, int]:
    """
    The grid with which cuDNN launches a layout conversion of a tensor.

    Args:
        shape: Sizes of the tensor, ``[N, C, ...]``, or ``[K, C, ...]`` for a weight.

    Source:
        Recorded on V100, A100 and H100 (cuDNN 7 to 9): ``[ceil(spatial / 32), ceil(C / 32), N]``.
    """
    spatial = math.prod(shape[2:])
    return (-(-spatial // 32), -(-shape[1] // 32), shape[0])


_BATCHED_TRANSPOSE = re.compile(r"^batched_transpose_(\d{1,4})x(\d{1,4})_")
_MIOPEN_BLOCK = 256


def miopen_fits(name: str, shape: Shape, grid: tuple[int, int, int], *, to_channels_last: bool) -> bool:
    """
    Whether the launch grid of a kernel of MIOpen fits the conversion of a tensor in a direction.

    Args:
        shape: Sizes of the tensor, ``[N, C, ...]``.
        grid: The launch grid as recorded; ROCm counts threads, not blocks.

    Returns:
        True also if the name has no tile, as only the name of a ``batched_transpose`` has.

    Source:
        Recorded on MI300X: a tile ``a x b`` covers ``a`` elements of the source's fastest dimension, ``b`` of the next.
    """
    tile = _BATCHED_TRANSPOSE.match(name)
    wide, high = (int(tile[1]), int(tile[2])) if tile else (0, 0)
    if not wide or not high:
        return True
    spatial, channels = math.prod(shape[2:]), shape[1]
    fast, slow = (spatial, channels) if to_channels_last else (channels, spatial)
    blocks = shape[0] * -(-fast // wide) * -(-slow // high)
    return math.prod(grid) in (blocks, blocks * _MIOPEN_BLOCK)
