"""
One operation as one line: a function or method of torch that takes the same arguments, else a call of ``torch.ops``.

Faces the reproducer's layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from layoutdoctor.reports.reproducer.program import CONTIGUOUS, RESHAPE, Ref, Word, refs_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from layoutdoctor.records import FxNode
    from layoutdoctor.reports.reproducer.program import Operation, Value


@dataclass(frozen=True, slots=True)
class Step:
    """
    One line of the model's forward.

    Attributes:
        result: Name of its value in the record.
        inputs: Names of the values it reads, in the order of the call.
        call: How a function writes it, ``{0}``, ``{1}`` being the inputs; empty for a layer with weights.
        layer: How ``torch.nn`` makes it; None where there is no such layer.
        weights: The parameters and buffers that the layer owns, its weight first.
        is_evaluated: Whether the layer normalizes by its running statistics.
        position: Number of its operation in the program.
    """

    result: str
    inputs: tuple[str, ...]
    call: str
    layer: str | None = None
    weights: tuple[FxNode, ...] = ()
    is_evaluated: bool | None = None
    position: int = 0

    @property
    def owns_weights(self) -> bool:
        """Whether it is a layer with parameters or statistics of its own, which has to be made once and kept."""
        return not self.call


# How a function is called that takes the same arguments as the operation, and the layer that takes those after the
# first one. A call that starts with a dot is a method of the first argument.
_FUNCTIONS: Mapping[str, tuple[str, str | None]] = MappingProxyType(
    {
        "relu.default": ("torch.relu({0})", "nn.ReLU()"),
        "relu_.default": ("F.relu({0}, inplace=True)", "nn.ReLU(inplace=True)"),
        "sigmoid.default": ("torch.sigmoid({0})", "nn.Sigmoid()"),
        "tanh.default": ("torch.tanh({0})", "nn.Tanh()"),
        "silu.default": ("F.silu({0})", "nn.SiLU()"),
        "silu_.default": ("F.silu({0}, inplace=True)", "nn.SiLU(inplace=True)"),
        "hardswish.default": ("F.hardswish({0})", "nn.Hardswish()"),
        "hardswish_.default": ("F.hardswish({0}, inplace=True)", "nn.Hardswish(inplace=True)"),
        "mish.default": ("F.mish({0})", "nn.Mish()"),
        "gelu.default": ("F.gelu({0}...)", "nn.GELU(...)"),
        "leaky_relu.default": ("F.leaky_relu({0}...)", "nn.LeakyReLU(...)"),
        "max_pool2d_with_indices.default": ("F.max_pool2d({0}...)", "nn.MaxPool2d(...)"),
        "max_pool3d_with_indices.default": ("F.max_pool3d({0}...)", "nn.MaxPool3d(...)"),
        "avg_pool2d.default": ("F.avg_pool2d({0}...)", "nn.AvgPool2d(...)"),
        "avg_pool3d.default": ("F.avg_pool3d({0}...)", "nn.AvgPool3d(...)"),
        "_adaptive_avg_pool2d.default": ("F.adaptive_avg_pool2d({0}...)", "nn.AdaptiveAvgPool2d(...)"),
        "channel_shuffle.default": ("F.channel_shuffle({0}...)", "nn.ChannelShuffle(...)"),
        "pixel_shuffle.default": ("F.pixel_shuffle({0}...)", "nn.PixelShuffle(...)"),
        "constant_pad_nd.default": ("F.pad({0}...)", None),
        "cat.default": ("torch.cat({0}...)", None),
        "mean.dim": ("{0}.mean(...)", None),
        "amax.default": ("{0}.amax(...)", None),
        "transpose.int": ("{0}.transpose(...)", None),
        "permute.default": ("{0}.permute(...)", None),
        "roll.default": ("{0}.roll(...)", None),
        "exp.default": ("{0}.exp()", None),
        "sqrt.default": ("{0}.sqrt()", None),
        "t.default": ("{0}.t()", None),
        "unsqueeze.default": ("{0}.unsqueeze(...)", None),
        "squeeze.dim": ("{0}.squeeze(...)", None),
    }
)
_OPERATORS = MappingProxyType({"add.Tensor": "+", "sub.Tensor": "-", "mul.Tensor": "*", "div.Tensor": "/"})


def function_step(operation: Operation) -> Step:
    """
    The line of an operation as a function: of torch where one takes the same arguments, else of ``torch.ops``.

    Args:
        operation: Any operation of ATen.

    """
    inputs, args = operation.inputs, _arguments(operation)
    target = operation.target.removeprefix("aten.")
    layer = None
    if target == CONTIGUOUS:
        chosen = [written(value) for _, value in operation.kwargs if value != Word("torch.contiguous_format")]
        call = f"{args[0]}.contiguous({', '.join(f'memory_format={format_}' for format_ in chosen)})"
    elif target == RESHAPE:
        call = f"{args[0]}.reshape({args[1].strip('()').rstrip(',')})"
    elif target in _OPERATORS and len(args) == 2 and isinstance(operation.args[0], Ref):
        call = f"{args[0]} {_OPERATORS[target]} {args[1]}"
    elif target == "constant_pad_nd.default" and len(args) == 3:
        call = f"F.pad({args[0]}, {args[1]}, value={args[2]})"
    elif target in _FUNCTIONS:
        pattern, layer = _FUNCTIONS[target]
        rest = ", ".join(args[1:])
        call = pattern.replace("{0}", args[0]).replace("(...)", f"({rest})").replace("...", f", {rest}" if rest else "")
        layer = layer.replace("(...)", f"({rest})") if layer is not None else None
        layer = layer if layer is not None and len(inputs) == 1 and args[0] == "{0}" else None
    else:
        return operator_step(operation)
    return Step(operation.name, inputs, call, layer)


def operator_step(operation: Operation) -> Step:
    """
    The line of an operation as a call of ``torch.ops``, which returns all its results.

    Args:
        operation: Any operation of ATen.
    """
    target = operation.target.removeprefix("aten.")
    return Step(operation.name, operation.inputs, f"torch.ops.aten.{target}({', '.join(_arguments(operation))})")


def _arguments(operation: Operation) -> list[str]:
    """Its arguments as code, with ``{0}``, ``{1}`` for the values it reads."""
    numbers = iter(range(len(operation.inputs)))
    args = [_templated(value, numbers) for value in operation.args]
    return args + [f"{name}={_templated(value, numbers)}" for name, value in operation.kwargs]


def _templated(value: Value, numbers: Iterator[int]) -> str:
    if isinstance(value, Ref):
        return f"{{{next(numbers)}}}"
    if isinstance(value, tuple) and any(refs_in(value)):
        return f"[{', '.join(_templated(part, numbers) for part in value)}]"
    return written(value)


def written(value: Value) -> str:
    """
    A constant as Python.

    Args:
        value: No name, nor a list that holds one.
    """
    if isinstance(value, Word):
        return value.text
    if isinstance(value, tuple):
        parts = [written(part) for part in value]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    return repr(value)
