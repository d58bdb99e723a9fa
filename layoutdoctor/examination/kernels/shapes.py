"""
The tensors of a recorded convolution or copy: sizes of what it reads and writes, and which a launch grid fits.

Everything comes from the arguments that the profiler recorded with the operation; what was not recorded stays unknown.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from layoutdoctor.diagnosis.layout import strided_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import TensorKind
    from layoutdoctor.recording.recording import OperationArguments

Shape = tuple[int, ...]
Role = Literal["input", "weight", "output", "grad_output", "grad_input", "grad_weight"]

MOST_DIMENSIONS = 16
_LARGEST_SIZE = 1 << 48


@dataclass(frozen=True, slots=True)
class Signature:
    """
    Where an operation's arguments stand.

    Attributes:
        input: Index of the input; None where it is not an argument.
        weight: Index of the weight.
        grad_output: Index of the gradient of the output, in a backward operation.
        stride: Index of the list of strides; None where the operation has no such argument.
        padding: Likewise.
        dilation: Likewise.
        transposed: Index of the flag, or what the operation's name says.
        output_padding: Index of that list.
        groups: Index of the number of groups.
    """

    input: int | None
    weight: int
    stride: int | None
    padding: int | None
    dilation: int | None
    groups: int | None
    grad_output: int | None = None
    transposed: int | bool = False
    output_padding: int | None = None


_PLAIN = Signature(input=0, weight=1, stride=3, padding=4, dilation=5, groups=6)
_GENERAL = Signature(input=0, weight=1, stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8)
_LIBRARY = Signature(input=0, weight=1, padding=2, stride=3, dilation=4, groups=5)
_WITH_BIAS = Signature(input=0, weight=1, padding=3, stride=4, dilation=5, groups=6)
_TRANSPOSED = Signature(input=0, weight=1, stride=3, padding=4, output_padding=5, groups=6, dilation=7, transposed=True)
_BACKWARD = Signature(grad_output=1, input=0, weight=2, padding=3, stride=4, dilation=5, groups=6)

SIGNATURES: dict[str, Signature] = {
    "aten::conv1d": _PLAIN,
    "aten::conv2d": _PLAIN,
    "aten::conv3d": _PLAIN,
    "aten::convolution": _GENERAL,
    "aten::_convolution": _GENERAL,
    "aten::convolution_overrideable": _GENERAL,
    "aten::cudnn_convolution": _LIBRARY,
    "aten::cudnn_convolution_relu": _PLAIN,
    "aten::cudnn_convolution_transpose": Signature(
        input=0, weight=1, padding=2, output_padding=3, stride=4, dilation=5, groups=6, transposed=True
    ),
    "aten::miopen_convolution": _WITH_BIAS,
    "aten::miopen_depthwise_convolution": _WITH_BIAS,
    "aten::miopen_convolution_transpose": Signature(
        input=0, weight=1, padding=3, output_padding=4, stride=5, dilation=6, groups=7, transposed=True
    ),
    "aten::mkldnn_convolution": _WITH_BIAS,
    "aten::conv_transpose1d": _TRANSPOSED,
    "aten::conv_transpose2d": _TRANSPOSED,
    "aten::conv_transpose3d": _TRANSPOSED,
    "aten::convolution_backward": Signature(
        grad_output=0, input=1, weight=2, stride=4, padding=5, dilation=6, transposed=7, output_padding=8, groups=9
    ),
    "aten::cudnn_convolution_backward": _BACKWARD,
    "aten::miopen_convolution_backward": _BACKWARD,
    "aten::cudnn_convolution_backward_input": Signature(
        grad_output=1, input=None, weight=2, padding=3, stride=4, dilation=5, groups=6
    ),
    "aten::cudnn_convolution_backward_weight": Signature(
        grad_output=1, input=2, weight=0, padding=3, stride=4, dilation=5, groups=6
    ),
}
"""
Operations of ATen by name.

Source:
    ``aten/src/ATen/native/native_functions.yaml`` of torch 1.8 to 2.13.
"""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a convolution: its role, its sizes and what kind it is."""

    role: Role
    shape: Shape
    kind: TensorKind
    port: str


@dataclass(frozen=True, slots=True)
class ConvolutionTensors:
    """
    The tensors of one recorded convolution.

    Attributes:
        is_backward: Whether it is a backward one.
        read: What it reads.
        written: What it writes; empty where the sizes cannot be computed.
        dtype: Element type of what it reads, as recorded, such as ``c10::BFloat16``; None where not recorded.
    """

    is_backward: bool
    read: tuple[Tensor, ...]
    written: tuple[Tensor, ...]
    dtype: str | None = None

    def of_role(self, role: Role) -> Tensor | None:
        """The tensor of a role; None where its sizes are not known."""
        return next((tensor for tensor in (*self.read, *self.written) if tensor.role == role), None)

    def shape_of(self, role: Role) -> Shape | None:
        """Its sizes."""
        tensor = self.of_role(role)
        return tensor.shape if tensor is not None else None


def parse_shapes(text: bytes) -> tuple[Shape, ...]:
    """
    Sizes or strides of every argument, ``()`` for what is no tensor, or a list of tensors.

    Returns:
        Empty where the text is no such list.
    """
    return tuple(_shape(item) for item in _list(text))


COPY = "aten::copy_"


def layouts_of_copy(shapes: Sequence[Shape], strides: Sequence[Shape]) -> tuple[Layout, Layout] | None:
    """Layouts before and after ``aten::copy_`` by its arguments, target first; None where not known or not alike."""
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
    A list of texts: ``Concrete Inputs`` or ``Input type``.

    Returns:
        Empty where it is no list; an entry that is no text is empty.
    """
    return tuple(item if isinstance(item, str) else "" for item in _list(text))


def convolution_tensors(name: str, arguments: OperationArguments) -> ConvolutionTensors | None:
    """
    The tensors of a convolution.

    Returns:
        None where the operation is not known here, or its sizes were not recorded.
    """
    signature = SIGNATURES.get(name)
    shapes = parse_shapes(arguments.shapes)
    if signature is None or not shapes:
        return None
    values = parse_texts(arguments.values)
    types = parse_texts(arguments.types)
    input_, weight = _at(shapes, signature.input), _at(shapes, signature.weight)
    grad_output = _at(shapes, signature.grad_output)
    dtype = next((types[i] for i in (signature.input, signature.weight) if i is not None and i < len(types)), None)
    if grad_output:
        read = [_tensor("grad_output", grad_output, "gradient", signature.grad_output)]
        read += [_tensor("input", input_, "activation", signature.input)] if input_ else []
        read += [_tensor("weight", weight, "weight", signature.weight)] if weight else []
        written = [Tensor("grad_input", input_, "gradient", "output 0")] if input_ else []
        written += [Tensor("grad_weight", weight, "gradient", "output 1")] if weight else []
        return ConvolutionTensors(True, tuple(read), tuple(written), dtype)
    if not input_ or not weight or signature.grad_output is not None:
        return None
    read = [_tensor("input", input_, "activation", signature.input)]
    read += [_tensor("weight", weight, "weight", signature.weight)]
    output = output_shape(input_, weight, signature, values)
    written = [Tensor("output", output, "activation", "output 0")] if output else []
    return ConvolutionTensors(False, tuple(read), tuple(written), dtype)


def _tensor(role: Role, shape: Shape, kind: TensorKind, index: int | None) -> Tensor:
    return Tensor(role, shape, kind, f"input {index}")


def _at(shapes: Sequence[Shape], index: int | None) -> Shape:
    return shapes[index] if index is not None and index < len(shapes) else ()


def output_shape(input_: Shape, weight: Shape, signature: Signature, values: Sequence[str]) -> Shape:
    """
    Sizes of a convolution's output.

    Args:
        input_: ``[N, C, ...]``.
        weight: ``[C_out, C_in / groups, ...]``, or ``[C_in, C_out / groups, ...]`` where transposed.

    Returns:
        Empty where a value is needed that was not recorded.

    Source:
        ``conv_output_size`` and ``conv_input_size`` in ``aten/src/ATen/native/ConvUtils.h``.
    """
    rank = len(weight) - 2
    if rank < 1 or len(input_) not in (rank + 1, rank + 2):
        return ()
    batch = input_[: -rank - 1]
    spatial = input_[-rank:]
    stride, padding = _numbers(values, signature.stride, rank), _numbers(values, signature.padding, rank)
    dilation, groups = _numbers(values, signature.dilation, rank), _numbers(values, signature.groups, 1)
    extra = _numbers(values, signature.output_padding, rank) if signature.output_padding is not None else (0,) * rank
    if stride is None or padding is None or dilation is None or groups is None or extra is None or 0 in stride:
        return ()
    reach = [d * (k - 1) for d, k in zip(dilation, weight[2:], strict=True)]
    terms = list(zip(spatial, stride, padding, reach, extra, strict=True))
    flag = signature.transposed
    if flag if isinstance(flag, bool) else flag < len(values) and values[flag] == "True":
        sizes = [(n - 1) * s - 2 * p + r + e + 1 for n, s, p, r, e in terms]
        return (*batch, weight[1] * groups[0], *sizes) if min(sizes) > 0 else ()
    sizes = [(n + 2 * p - r - 1) // s + 1 for n, s, p, r, e in terms]
    return (*batch, weight[0], *sizes) if min(sizes) > 0 else ()


def _numbers(values: Sequence[str], index: int | None, count: int) -> tuple[int, ...] | None:
    """A list of numbers, one for each dimension; one number alone stands for all."""
    if index is None or index >= len(values):
        return None
    found = [int(number[:12]) for number in re.findall(r"\d+", values[index])]
    if len(found) == 1:
        return tuple(found * count)
    return tuple(found) if len(found) == count else None


def cudnn_grid(shape: Shape) -> tuple[int, int, int]:
    """
    The grid with which cuDNN launches a layout conversion of a tensor.

    Args:
        shape: ``[N, C, ...]``; for a weight ``[K, C, ...]``.

    Source:
        Recorded on V100, A100 and H100 (cuDNN 7 to 9): ``[ceil(spatial / 32), ceil(C / 32), N]``.
    """
    spatial = math.prod(shape[2:])
    return (-(-spatial // 32), -(-shape[1] // 32), shape[0])


_BATCHED_TRANSPOSE = re.compile(r"^batched_transpose_(\d{1,4})x(\d{1,4})_")
_MIOPEN_BLOCK = 256


def miopen_fits(name: str, shape: Shape, grid: tuple[int, int, int], *, to_channels_last: bool) -> bool | None:
    """
    Whether the grid of one of MIOpen's ``batched_transpose`` kernels is that of a tensor, in a direction.

    Args:
        shape: ``[N, C, ...]``.
        grid: As recorded: threads on ROCm.

    Returns:
        None where the name holds no tile.

    Source:
        Recorded on MI300X: a tile ``a x b`` covers ``a`` of the source's fastest dimension and ``b`` of the next.
    """
    tile = _BATCHED_TRANSPOSE.match(name)
    if tile is None:
        return None
    wide, high = int(tile[1]), int(tile[2])
    if not wide or not high or len(shape) < 3:
        return None
    spatial, channels = math.prod(shape[2:]), shape[1]
    fast, slow = (spatial, channels) if to_channels_last else (channels, spatial)
    blocks = shape[0] * -(-fast // wide) * -(-slow // high)
    return math.prod(grid) in (blocks, blocks * _MIOPEN_BLOCK)
