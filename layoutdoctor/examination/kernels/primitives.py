"""
The direction of each oneDNN reorder, and the tensor that it converts, such as a convolution's input.

A reorder's log line has a shape and two formats but no name. Within one operation, a reorder runs before the primitive
that reads its target, or after the primitive whose result it reads; shape and format then identify the tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from layoutdoctor.diagnosis import ConversionDirection, Kernel, Layout, TensorKind
from layoutdoctor.diagnosis.layout import stride_order
from layoutdoctor.units import sum_if_all_known
from layoutdoctor.words import item_bytes

if TYPE_CHECKING:
    from layoutdoctor.recording.onednn import Primitive


@dataclass(frozen=True)
class AnnotatedPrimitive:
    """
    A primitive with the tensor that it converts; only reorders set the fields with a default.

    Attributes:
        bytes_moved: Bytes read plus bytes written, without padding.
        port: The argument or result of the ATen operation that is converted, such as ``input 0``.
    """

    primitive: Primitive
    tensor: TensorKind
    direction: ConversionDirection = "none"
    source: Layout | None = None
    target: Layout | None = None
    bytes_moved: int | None = None
    dtype: str | None = None
    port: str | None = None


class _Place(NamedTuple):
    """The tensor of an operation that a reorder converts."""

    tensor: TensorKind
    port: str | None


_UNKNOWN = _Place("unknown", None)


def stride_order_of(layout: Layout) -> tuple[int, ...] | None:
    """The dimensions larger than one, slowest first; None if the strides are unknown or symbolic."""
    return stride_order(layout.shape, layout.stride) if layout.stride is not None else None


def is_expanded(layout: Layout) -> bool:
    """Whether elements of a layout share memory along a dimension."""
    pairs = zip(layout.shape, layout.stride or (), strict=False)
    return any(size != 1 and step == 0 for size, step in pairs)


def conversion_direction(source: Layout | None, target: Layout | None) -> ConversionDirection:
    """
    The kind of change from one layout to another.

    Returns:
        ``none`` if nothing changes: equal blocked formats, or strides in the same order over dimensions larger than 1.
        ``other`` if a layout is not known, both are blocked differently, or the target satisfies no memory format.
    """
    if source is None or target is None:
        return "other"
    if source.is_blocked or target.is_blocked:
        if source.format == target.format:
            return "none"
        if target.is_blocked:
            return "other" if source.is_blocked else "to_blocked"
        return "from_blocked"
    if None in (source.stride, target.stride):
        return "other"
    before, after = stride_order_of(source), stride_order_of(target)
    if before is not None and before == after:
        return "none"
    if "contiguous_format" in target.memory_formats:
        return "to_contiguous"
    return "to_channels_last" if target.memory_formats else "other"


def annotate_sequence(primitives: Sequence[Primitive]) -> list[AnnotatedPrimitive]:
    """
    The primitives of one operation with the tensors that they convert, in the same order.

    Args:
        primitives: Primitives of one thread, in the order in which they ran.
    """
    places = _places(primitives)
    return [describe(primitive, places.get(index, _UNKNOWN)) for index, primitive in enumerate(primitives)]


def describe(primitive: Primitive, place: _Place = _UNKNOWN) -> AnnotatedPrimitive:
    """A primitive and, if it is a reorder, the change that it makes."""
    if primitive.kind != "reorder":
        return AnnotatedPrimitive(primitive, place.tensor)
    shape, source, target = primitive.shape, primitive.descriptor("src"), primitive.descriptor("dst")
    if shape is None or source is None or target is None:
        return AnnotatedPrimitive(primitive, place.tensor, "other")
    before, after = source.layout(shape), target.layout(shape)
    size = sum_if_all_known(item_bytes(source.dtype), item_bytes(target.dtype))
    moved = None if size is None else math.prod(shape) * size
    direction = conversion_direction(before, after) if len(shape) > 1 else "none"
    return AnnotatedPrimitive(primitive, place.tensor, direction, before, after, moved, source.dtype, place.port)


_ROLES: dict[str, dict[str, tuple[TensorKind, str]]] = {
    "forward": {
        "src": ("activation", "input 0"),
        "wei": ("weight", "input 1"),
        "bia": ("weight", "input 2"),
        "dst": ("activation", "output 0"),
    },
    "backward_data": {
        "dst": ("gradient", "input 0"),
        "wei": ("weight", "input 2"),
        "src": ("gradient", "output 0"),
    },
    "backward_weights": {
        "dst": ("gradient", "input 0"),
        "src": ("activation", "input 1"),
        "wei": ("gradient", "output 1"),
        "bia": ("gradient", "output 2"),
    },
}
"""
Kind and port of each oneDNN role. Ports count the arguments of ``aten.convolution(input, weight, bias, ...)`` and
``aten.convolution_backward(grad_output, input, weight, ...)``. Roles are in the order in which PyTorch converts them.
"""


def _roles(primitive: Primitive) -> dict[str, tuple[TensorKind, str]]:
    return _ROLES.get(primitive.prop_kind, _ROLES["forward"])


_RNN_WEIGHT_RANK = 5
"""Dimensions of oneDNN's weights of a recurrent layer: layers, directions, inputs, gates, outputs."""
_Candidate = tuple[int, str]
"""A tensor that a reorder may convert: index of the primitive that reads or writes it, and its role there."""


def _places(primitives: Sequence[Primitive]) -> dict[int, _Place]:
    """
    The tensor that each reorder of an operation converts, by the reorder's index.

    If several tensors fit, only their kind is given, or ``unknown`` if their kinds differ. Reorders that fit the same
    arguments of one primitive are distinguished by their order if there is one reorder for each argument.
    """
    open_: dict[int, tuple[_Candidate, ...]] = {
        index: _candidates(primitives, index) for index, item in enumerate(primitives) if item.kind == "reorder"
    }
    chosen: dict[int, _Candidate] = {}
    while (group := next((found for found in _groups(open_) if _is_decided(*found)), None)) is not None:
        indices, candidates = group
        chosen.update(zip(indices, candidates, strict=True))
        open_ = {
            index: tuple(item for item in items if item not in candidates)
            for index, items in open_.items()
            if index not in indices
        }
    found = {index: _place(primitives[main], role) for index, (main, role) in chosen.items()}
    for index, items in open_.items():
        kinds = {_place(primitives[main], role).tensor for main, role in items}
        found[index] = _Place(kinds.pop(), None) if len(kinds) == 1 else _UNKNOWN
        if _is_weight_of_rnn(primitives, index):
            found[index] = _Place("weight", None)
    return found


def _is_weight_of_rnn(primitives: Sequence[Primitive], index: int) -> bool:
    """Whether a reorder packs weights for the recurrent layer after it: only these have five dimensions there."""
    own = primitives[index]
    after = next((item for item in primitives[index:] if item.kind != "reorder"), None)
    is_of_rnn = after is not None and after.kind == "rnn"
    return is_of_rnn and len(own.shape or ()) == _RNN_WEIGHT_RANK and describe(own).direction == "to_blocked"


def _groups(open_: dict[int, tuple[_Candidate, ...]]) -> Iterator[tuple[list[int], tuple[_Candidate, ...]]]:
    """Yields groups of reorders that fit exactly the same tensors, with these tensors."""
    for candidates in dict.fromkeys(items for items in open_.values() if items):
        yield [index for index, items in open_.items() if items == candidates], candidates


def _is_decided(indices: Sequence[int], candidates: tuple[_Candidate, ...]) -> bool:
    """Whether there is one reorder for one tensor, or one reorder for each argument, in PyTorch's order."""
    if len(indices) != len(candidates):
        return False
    return len(indices) == 1 or all(main == candidates[0][0] and main > indices[-1] for main, _ in candidates)


def _candidates(primitives: Sequence[Primitive], index: int) -> tuple[_Candidate, ...]:
    """Tensors with a reorder's sizes and format: results of the primitive before, arguments of the primitive after."""
    found: list[_Candidate] = []
    before = next((i for i in range(index - 1, -1, -1) if primitives[i].kind != "reorder"), None)
    after = next((i for i in range(index + 1, len(primitives)) if primitives[i].kind != "reorder"), None)
    for position, wanted, side in ((before, "output", "src"), (after, "input", "dst")):
        if position is not None:
            main = primitives[position]
            roles = [role for role, (_, port) in _roles(main).items() if port.startswith(wanted)]
            found += [(position, role) for role in roles if _fits(primitives[index], main, role, side)]
    if len({position for position, _ in found}) > 1:
        side_of: dict[str, int | None] = {"from_blocked": before, "to_blocked": after}  # torch's tensors are strided
        only = side_of.get(describe(primitives[index]).direction)
        found = [item for item in found if only in (None, item[0])]
    return tuple(found)


def _fits(reorder: Primitive, main: Primitive, role: str, side: str) -> bool:
    """Whether a reorder reads or writes (``side``) a primitive's tensor: same format, and same sizes if known."""
    own, descriptor = reorder.descriptor(side), main.descriptor(role)
    if own is None or descriptor is None or own.tag != descriptor.tag:
        return False
    shapes = problem_shapes(main)
    if not shapes or reorder.shape is None:
        return True
    # Depthwise weights may be written with or without their group dimension. Padded weights do not fit.
    expected, found = ([size for size in shape if size != 1] for shape in (shapes[role], reorder.shape))
    return expected == found


def _place(main: Primitive, role: str) -> _Place:
    if main.kind not in ("convolution", "deconvolution"):
        return _Place(_ROLES["forward"][role][0], None)
    return _Place(*_roles(main)[role])


def ranks_of_problems(kernels: Iterable[Kernel]) -> set[int]:
    """The numbers of dimensions of the inputs of oneDNN's convolutions, from their problem texts."""
    problems = (kernel.problem for kernel in kernels if kernel.problem is not None and "convolution" in kernel.name)
    axes = ({axis for axis in "dhw" if f"_i{axis}" in problem} for problem in problems)
    return {2 + len(found) for found in axes if found}


def problem_shapes(primitive: Primitive) -> dict[str, tuple[int, ...]]:
    """
    Sizes of a convolution's tensors from oneDNN's problem text, by role; empty for other primitives or texts.

    Args:
        primitive: A primitive whose problem is like ``mb4_g2ic16oc32_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1``.
    """
    if primitive.kind not in ("convolution", "deconvolution"):
        return {}
    found = _VALUE.findall(primitive.problem)
    values = {name: int(digits) for name, digits in found if len(digits) <= _MOST_DIGITS}
    if not {"mb", "ic", "oc"} <= values.keys():
        return {}
    axes = [axis for axis in "dhw" if f"i{axis}" in values]
    if not {f"{role}{axis}" for role in "ok" for axis in axes} <= values.keys():
        return {}
    groups, ic, oc = values.get("g", 1), values["ic"], values["oc"]
    weight = [groups, oc // groups, ic // groups] if groups > 1 else [oc, ic]
    return {
        "src": (values["mb"], ic, *(values[f"i{axis}"] for axis in axes)),
        "dst": (values["mb"], oc, *(values[f"o{axis}"] for axis in axes)),
        "wei": (*weight, *(values[f"k{axis}"] for axis in axes)),
        "bia": (oc,),
    }


_VALUE = re.compile(r"([^\W\d_]+)([0-9]+)")
_MOST_DIGITS = 18
"""Largest number of digits of a size; a longer number comes from a damaged line."""
