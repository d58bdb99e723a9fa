"""
Operations in the words of ``torch.nn``: layers with the weights they own; functions of torch for the rest.

A layer stands for an operation only where it runs exactly that operation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from layoutdoctor.reports.reproducer.program import (
    CONTIGUOUS,
    POOL_TO_ONE,
    RESHAPE,
    CannotWriteError,
    Ref,
    Word,
    refs_in,
    sizes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.records import FxNode
    from layoutdoctor.reports.reproducer.program import Operation, Program, Value

_UPSAMPLING = ("nearest1d", "nearest2d", "nearest3d", "bilinear2d", "trilinear3d", "bicubic2d", "linear1d")
_WITH_RESULTS = frozenset(
    f"aten.{name}.default"
    for name in "native_batch_norm cudnn_batch_norm miopen_batch_norm native_group_norm native_layer_norm "
    "max_pool2d_with_indices max_pool3d_with_indices".split()
)
"""Operations with several results whose layer or function returns the first one."""

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
        **{
            target: (f"{{0}}.{target.partition('.')[0]}(...)", None)
            for target in "mean.dim amax.default transpose.int permute.default roll.default exp.default sqrt.default "
            "t.default unsqueeze.default squeeze.dim".split()
        },
    }
)
_OPERATORS = MappingProxyType({"add.Tensor": "+", "sub.Tensor": "-", "mul.Tensor": "*", "div.Tensor": "/"})


def steps_of(program: Program) -> list[Step]:
    """
    The lines of a program's forward.

    Args:
        program: Simplified.

    Raises:
        CannotWriteError: An operation has no line.
    """
    return _Writer(program).write()


class _Writer:
    """Writes the operations of one program, one after the other."""

    def __init__(self, program: Program) -> None:
        self.operations = program.operations
        self.made = {operation.name: operation for operation in program.operations}
        self.placeholders = program.placeholders
        self.outputs = program.outputs
        self.readers: dict[str, list[Operation]] = {}
        for operation in program.operations:
            for name in operation.inputs:
                self.readers.setdefault(name, []).append(operation)
        self.same: dict[str, str] = {}
        self.absorbed: set[str] = set()

    def write(self) -> list[Step]:
        steps = [step for step in map(self._step, self.operations) if step is not None]
        steps = [replace(step, inputs=tuple(self.same.get(name, name) for name in step.inputs)) for step in steps]
        return [step for step in steps if step.result not in self.absorbed]

    def _step(self, operation: Operation) -> Step | None:
        if operation.name in self.same:  # part of a layer already
            return None
        if operation.target == "getitem":
            source = operation.inputs[0]
            if source in self.same:  # a layer, or a function that returns its first result only
                self.same[operation.name] = self.same[source]
                return None
            index = operation.args[1]
            if type(index) is not int or not 0 <= index < 1000:
                raise CannotWriteError("an operation takes a result that does not exist")
            return Step(operation.name, (source,), f"{{0}}[{index}]")
        if not self._first_result_only(operation):
            return operator_step(operation)
        writer = _LAYERS.get(operation.target) if not operation.kwargs else None
        step = (writer(self, operation) if writer is not None else None) or function_step(operation)
        if step is None:
            return operator_step(operation)
        if operation.target in _WITH_RESULTS:
            self.same[operation.name] = operation.name
        return step

    def _first_result_only(self, operation: Operation) -> bool:
        """Whether nothing reads more than the first result of an operation with several."""
        if operation.target not in _WITH_RESULTS:
            return True
        readers = self.readers.get(operation.name, ())
        only_first = all(reader.target == "getitem" and reader.args[1] == 0 for reader in readers)
        return only_first and operation.name not in self.outputs

    def is_read_once(self, name: str) -> bool:
        """Whether one operation reads a value and nothing else does, so that a layer may swallow it."""
        return len(self.readers.get(name, ())) == 1 and name not in self.outputs

    def parameter(self, value: Value) -> FxNode | None:
        """The placeholder that an argument is; None where it is the result of an operation, or nothing."""
        return self.placeholders.get(value.name) if isinstance(value, Ref) else None

    def shape_of(self, value: Value) -> tuple[int, ...]:
        """Sizes of an argument; empty where they are not known."""
        if not isinstance(value, Ref):
            return ()
        node = self.made[value.name].node if value.name in self.made else self.placeholders.get(value.name)
        return sizes(node.layout.shape) if node is not None and node.layout is not None else ()

    def layer(
        self,
        operation: Operation,
        x: str,
        name: str,
        arguments: Sequence[object],
        *owned: Value,
        is_evaluated: bool | None = None,
    ) -> Step | None:
        """The step of a layer; None where what it would own is no placeholder, or differs in dtype."""
        nodes = [self.parameter(value) for value in owned if value is not None]
        found = tuple(node for node in nodes if node is not None)
        if len(found) < len(nodes) or len({node.dtype for node in found}) > 1:
            return None
        return Step(operation.name, (x,), "", f"nn.{name}({', '.join(map(str, arguments))})", found, is_evaluated)


def _convolution(writer: _Writer, operation: Operation) -> Step | None:
    match operation.args:
        case (Ref(x), weight, bias, *numbers, bool(turned), more, int(groups)) if len(numbers) == 3:
            shape, (stride, padding, dilation) = writer.shape_of(weight), numbers
        case _:
            return None
    rank = len(shape) - 2
    is_whole = all(isinstance(value, tuple) and len(value) in (1, rank) for value in (*numbers, more))
    if rank not in (1, 2, 3) or not is_whole:
        return None
    options = _options(
        stride=(stride, 1), padding=(padding, 0), output_padding=(more, 0), groups=(groups, 1), dilation=(dilation, 1),
        bias=(bias is not None, True),
    )  # fmt: skip
    ends = (shape[1] * groups, shape[0])
    name = f"Conv{'Transpose' if turned else ''}{rank}d"
    arguments = [*(ends[::-1] if turned else ends), _short(shape[2:]), *options]
    return writer.layer(operation, x, name, arguments, weight, bias)


def _batch_norm(writer: _Writer, operation: Operation) -> Step | None:
    match operation.args:
        case (Ref() as x, weight, bias, mean, variance, bool(training), momentum, eps) if _both(weight, bias):
            options = _options(eps=(eps, 1e-5), momentum=(momentum, 0.1))
        case _:
            return None
    folded = _instance_norm(writer, operation, x, (weight, bias), options) if mean is None and training else None
    shape = writer.shape_of(x)
    if folded is not None or len(shape) not in (2, 3, 4, 5) or not _both(mean, variance):
        return folded
    if mean is None and not training:
        return None
    options += _options(affine=(weight is not None, True), track_running_stats=(mean is not None, True))
    name, is_evaluated = f"BatchNorm{max(len(shape) - 2, 1)}d", None if mean is None else not training
    owned = (weight, bias, mean, variance)
    return writer.layer(operation, x.name, name, [shape[1], *options], *owned, is_evaluated=is_evaluated)


def _instance_norm(
    writer: _Writer, operation: Operation, x: Ref, affine: tuple[Value, Value], options: Sequence[str]
) -> Step | None:
    """The layer for what an instance norm runs: a batch norm over images times channels, on a contiguous copy."""
    view = writer.made.get(x.name)
    items = [item for item in writer.readers.get(operation.name, ()) if writer.is_read_once(item.name)]
    back = [reader for item in items for reader in writer.readers[item.name]]
    if view is None or view.target != RESHAPE or len(back) != 1 or back[0].target != RESHAPE:
        return None
    inner = [view]
    copy = writer.made.get(view.inputs[0])
    if copy is not None and copy.target == CONTIGUOUS and writer.is_read_once(copy.name):
        inner.append(copy)
    source = inner[-1].inputs[0]
    shape = writer.shape_of(Ref(source))
    if len(shape) not in (3, 4, 5) or writer.shape_of(x) != (1, shape[0] * shape[1], *shape[2:]):
        return None
    repeats = [writer.made[value.name] for value in affine if isinstance(value, Ref) and value.name in writer.made]
    if any(r.target != "aten.repeat.default" or r.args[1] != (shape[0],) for r in repeats):
        return None
    inner += repeats
    if (
        back[0].shape != shape
        or len(repeats) != 2 * (affine[0] is not None)
        or not all(writer.is_read_once(part.name) for part in inner)
    ):
        return None
    arguments = [shape[1], *options, *_options(affine=(bool(repeats), False))]
    step = writer.layer(
        operation, source, f"InstanceNorm{len(shape) - 2}d", arguments, *(repeat.args[0] for repeat in repeats)
    )
    if step is not None:
        writer.absorbed.update(part.name for part in inner)
        writer.same[back[0].name] = operation.name
    return step


def _group_norm(writer: _Writer, operation: Operation) -> Step | None:
    match operation.args:
        case (Ref(x), weight, bias, _, int(channels), _, int(groups), eps) if _both(weight, bias):
            options = _options(eps=(eps, 1e-5), affine=(weight is not None, True))
            return writer.layer(operation, x, "GroupNorm", [groups, channels, *options], weight, bias)
    return None


def _layer_norm(writer: _Writer, operation: Operation) -> Step | None:
    match operation.args:
        case (Ref(x), tuple(shape), weight, bias, eps) if _both(weight, bias):
            options = _options(eps=(eps, 1e-5), elementwise_affine=(weight is not None, True))
            return writer.layer(operation, x, "LayerNorm", [_short(shape), *options], weight, bias)
    return None


def _linear(writer: _Writer, operation: Operation) -> Step | None:
    """``addmm`` or ``mm`` with a transposed weight, which is what a linear layer runs on a matrix."""
    match (None, *operation.args)[-3:]:
        case (bias, Ref() as x, Ref(second)) if len(writer.shape_of(x)) == 2:
            turned = writer.made.get(second)
        case _:
            return None
    if turned is None or turned.target != "aten.t.default" or not writer.is_read_once(turned.name):
        return None
    weight = writer.parameter(turned.args[0])
    shape = writer.shape_of(turned.args[0])
    if weight is None or weight.tensor != "weight" or (bias is not None and writer.shape_of(bias) != shape[:1]):
        return None
    arguments = [shape[1], shape[0], *_options(bias=(bias is not None, True))]
    step = writer.layer(operation, x.name, "Linear", arguments, turned.args[0], bias)
    writer.absorbed.update([turned.name] if step is not None else [])
    return step


def _reshape(writer: _Writer, operation: Operation) -> Step | None:
    x, target = operation.args[0], operation.args[1]
    shape = writer.shape_of(x)
    if not isinstance(x, Ref) or len(shape) <= 2 or target != (shape[0], prod(shape[1:])):
        return None
    return Step(operation.name, (x.name,), "{0}.flatten(1)", "nn.Flatten()")


def _interpolate(_writer: _Writer, operation: Operation) -> Step | None:
    """``F.interpolate`` with scale factors that reach the recorded size, else with that size."""
    mode = operation.target.removeprefix("aten.upsample_").removesuffix(".default")
    kind, rank = mode[:-2], int(mode[-2])
    x, size, *scales = operation.args
    aligned = scales.pop(0) if kind != "nearest" and scales else None
    if not isinstance(x, Ref) or not isinstance(size, tuple) or isinstance(aligned, bool) != (kind != "nearest"):
        return None
    corners = "" if aligned is None else f", align_corners={aligned}"
    if len(scales) == rank and all(isinstance(scale, float) for scale in scales):
        how = f"scale_factor={_short(scales)}"
    elif all(scale is None for scale in scales):
        how = f"size={_short(size)}"
    else:
        return None
    options = f'{how}, mode="{kind}"{corners}'
    return Step(operation.name, (x.name,), f"F.interpolate({{0}}, {options})", f"nn.Upsample({options})")


def _pad(_writer: _Writer, operation: Operation) -> Step | None:
    mode, name = ("reflect", "Reflection") if "reflection" in operation.target else ("replicate", "Replication")
    x, pad = operation.args
    if not isinstance(x, Ref) or not isinstance(pad, tuple):
        return None
    layer = f"nn.{name}Pad{len(pad) // 2}d({_short(pad)})"
    return Step(operation.name, (x.name,), f'F.pad({{0}}, {written(pad)}, mode="{mode}")', layer)


def _clamped(_writer: _Writer, operation: Operation) -> Step | None:
    inplace = "inplace=True" if operation.target == "aten.hardtanh_.default" else ""
    x, *bounds = operation.args
    if not isinstance(x, Ref) or bounds != [0, 6]:
        return None
    return Step(operation.name, (x.name,), f"F.relu6({{0}}{inplace and ', '}{inplace})", f"nn.ReLU6({inplace})")


def _pool_to_one(_writer: _Writer, operation: Operation) -> Step | None:
    return Step(operation.name, operation.inputs, "F.adaptive_avg_pool2d({0}, 1)", "nn.AdaptiveAvgPool2d(1)")


def _both(one: Value, other: Value) -> bool:
    """Whether both are given, or neither, as layers have it."""
    return (one is None) == (other is None)


_LAYERS: Mapping[str, Callable[[_Writer, Operation], Step | None]] = MappingProxyType(
    {
        RESHAPE: _reshape,
        POOL_TO_ONE: _pool_to_one,
        **{f"aten.upsample_{kind}.default": _interpolate for kind in _UPSAMPLING},
        **{
            f"aten.{name}.default": writer
            for writer, names in (
                (_convolution, "convolution"),
                (_batch_norm, "native_batch_norm cudnn_batch_norm miopen_batch_norm"),
                (_group_norm, "native_group_norm"),
                (_layer_norm, "native_layer_norm"),
                (_linear, "addmm mm"),
                (_pad, "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad2d replication_pad3d"),
                (_clamped, "hardtanh hardtanh_"),
            )
            for name in names.split()
        },
    }
)


def _short(values: Sequence[Value]) -> str:
    """One number for a list of equal ones, as layers take it."""
    listed = tuple(values)
    return written(listed[0]) if len(set(map(written, listed))) == 1 else written(listed)


def _options(**options: tuple[Value, float]) -> list[str]:
    """Keyword arguments of a layer, without those that are its default."""
    found = []
    for name, (value, default) in options.items():
        text = _short(value) if isinstance(value, tuple) else written(value)
        if text != written(default):
            found.append(f"{name}={text}")
    return found


def free_placeholders(program: Program, steps: Sequence[Step]) -> list[FxNode]:
    """What a program reads that no layer of it owns: the model's inputs, and parameters that it uses on its own."""
    read = {name for step in steps for name in step.inputs} | set(program.outputs)
    owned = {node.name for step in steps for node in step.weights}
    return [node for name, node in program.placeholders.items() if name in read and name not in owned]


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
    """

    result: str
    inputs: tuple[str, ...]
    call: str
    layer: str | None = None
    weights: tuple[FxNode, ...] = ()
    is_evaluated: bool | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for two calls of one layer."""
        return (str(self.layer), *(node.name for node in self.weights)) if self.weights else (self.result,)

    @property
    def owns_weights(self) -> bool:
        """Whether it is a layer with parameters or statistics of its own, which has to be made once and kept."""
        return not self.call


def function_step(operation: Operation) -> Step | None:
    """The line of an operation as a function of torch that takes the same arguments; None where there is none."""
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
        return None
    return Step(operation.name, inputs, call, layer)


def operator_step(operation: Operation) -> Step:
    """The line of an operation as a call of ``torch.ops``, which returns all its results."""
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
    """A constant as Python: no name, nor a list that holds one."""
    if isinstance(value, Word):
        return value.text
    if isinstance(value, tuple):
        parts = [written(part) for part in value]
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"
    return repr(value)
