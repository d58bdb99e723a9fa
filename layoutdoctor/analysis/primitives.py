"""
What each oneDNN reorder converts: the direction, and which tensor of the convolution around it.

A reorder's log line has a shape and two formats but no name. Within one operation it stands before the primitive that
needs its target, or after the one whose result it reads; shape and format then say which tensor it is.
Faces ``kernel_list``; no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.layout import stride_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.layout import Layout
    from layoutdoctor.records import ConversionDirection, TensorKind
    from layoutdoctor.traces.kineto import Operation
    from layoutdoctor.traces.onednn import Primitive


@dataclass(frozen=True)
class AnnotatedPrimitive:
    """
    A primitive with what it converts; the last fields mean something for reorders only.

    Attributes:
        primitive: As read.
        tensor: Kind of the converted tensor.
        direction: What changes.
        source: Layout before.
        target: Layout after.
        bytes_moved: Bytes read plus bytes written, without padding.
        dtype: Element type before.
        port: Which argument or result of the ATen operation it is, such as ``input 0``.
    """

    primitive: Primitive
    tensor: TensorKind
    direction: ConversionDirection = "none"
    source: Layout | None = None
    target: Layout | None = None
    bytes_moved: int | None = None
    dtype: str | None = None
    port: str | None = None


@dataclass(frozen=True)
class _Place:
    """Which tensor of an operation a reorder converts."""

    tensor: TensorKind
    port: str | None


def conversion_direction(source: Layout | None, target: Layout | None) -> ConversionDirection:
    """
    What kind of change leads from one layout to another.

    Args:
        source: Before.
        target: After.

    Returns:
        ``none`` where nothing changes: equal formats, or strides that differ over size-1 dimensions only.
    """
    if source is None or target is None:
        return "other"
    if source.is_blocked or target.is_blocked:
        if source.format == target.format:
            return "none"
        if target.is_blocked:
            return "other" if source.is_blocked else "to_blocked"
        return "from_blocked"
    if _same_order(source, target):
        return "none"
    last = [name for name in target.memory_formats if name != "contiguous_format"]
    if last and "contiguous_format" not in target.memory_formats:
        return "to_channels_last"
    return "to_contiguous" if "contiguous_format" in target.memory_formats else "other"


def _same_order(source: Layout, target: Layout) -> bool:
    if source.stride is None or target.stride is None:
        return False
    before, after = stride_order(source.shape, source.stride), stride_order(target.shape, target.stride)
    return before is not None and before == after


def annotate_primitives(operations: Sequence[tuple[Operation, Sequence[Primitive]]]) -> list[AnnotatedPrimitive]:
    """
    Every primitive with what it converts, in the same order.

    Args:
        operations: Each operation with the primitives that ran in it, in order.
    """
    return [item for operation, primitives in operations for item in _annotate(operation, primitives)]


def _annotate(operation: Operation, primitives: Sequence[Primitive]) -> list[AnnotatedPrimitive]:
    taken: dict[int, set[str]] = {}
    found: list[AnnotatedPrimitive] = []
    for index, primitive in enumerate(primitives):
        if primitive.kind != "reorder":
            found.append(AnnotatedPrimitive(primitive, "unknown"))
            continue
        place = _place_after(primitives, index, taken) or _place_before(primitives, index, taken)
        found.append(_described(primitive, place or _Place("unknown", None)))
    return found


def _described(reorder: Primitive, place: _Place) -> AnnotatedPrimitive:
    shape, source, target = reorder.shape, reorder.descriptor("src"), reorder.descriptor("dst")
    if shape is None or source is None or target is None:
        return AnnotatedPrimitive(reorder, place.tensor, "other")
    before, after = source.layout(shape), target.layout(shape)
    elements = 1
    for size in shape:
        elements *= size
    sizes = (source.item_bytes(), target.item_bytes())
    moved = None if sizes[0] is None or sizes[1] is None else elements * (sizes[0] + sizes[1])
    direction = conversion_direction(before, after) if len(shape) > 1 else "none"
    return AnnotatedPrimitive(reorder, place.tensor, direction, before, after, moved, source.dtype, place.port)


_RESULTS: dict[str, tuple[str, ...]] = {"backward_data": ("src",), "backward_weights": ("wei", "bia")}
_ARGUMENTS: dict[str, tuple[str, ...]] = {"backward_data": ("dst", "wei"), "backward_weights": ("dst", "src")}
"""oneDNN's roles of what a backward primitive writes and reads, in the order PyTorch's bridge converts them."""


def _place_after(primitives: Sequence[Primitive], index: int, taken: dict[int, set[str]]) -> _Place | None:
    """The place of a reorder that reads the result of the primitive before it."""
    reorder = primitives[index]
    for position in range(index - 1, -1, -1):
        main = primitives[position]
        if main.kind == "reorder":
            continue
        roles = _RESULTS.get(main.prop_kind, ("dst",))
        return _match(reorder, main, roles, "src", taken.setdefault(-1 - position, set()))
    return None


def _place_before(primitives: Sequence[Primitive], index: int, taken: dict[int, set[str]]) -> _Place | None:
    """The place of a reorder that makes an argument of the primitive after it."""
    reorder = primitives[index]
    for position in range(index + 1, len(primitives)):
        main = primitives[position]
        if main.kind == "reorder":
            continue
        roles = _ARGUMENTS.get(main.prop_kind, ("src", "wei", "bia"))
        return _match(reorder, main, roles, "dst", taken.setdefault(position, set()))
    return None


def _match(reorder: Primitive, main: Primitive, roles: Sequence[str], side: str, taken: set[str]) -> _Place | None:
    """Which tensor of a primitive a reorder reads or makes: same sizes, same format, not already spoken for."""
    shapes = problem_shapes(main)
    own = reorder.descriptor(side)
    for role in roles:
        descriptor = main.descriptor(role)
        if role in taken or descriptor is None or own is None or descriptor.tag != own.tag:
            continue
        if shapes and reorder.shape is not None and not _same_size(shapes.get(role), reorder.shape):
            continue
        taken.add(role)
        return _place(main, role)
    return None


def _same_size(expected: tuple[int, ...] | None, shape: tuple[int, ...]) -> bool:
    """Equal sizes; grouped weights may stand with or without their group dimension, and padded ones are rejected."""
    if expected is None:
        return True
    return _without_ones(expected) == _without_ones(shape)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


_PLACES: dict[str, dict[str, _Place]] = {
    "backward_data": {
        "dst": _Place("gradient", "input 0"),
        "wei": _Place("weight", "input 2"),
        "src": _Place("gradient", "output 0"),
    },
    "backward_weights": {
        "dst": _Place("gradient", "input 0"),
        "src": _Place("activation", "input 1"),
        "wei": _Place("gradient", "output 1"),
        "bia": _Place("gradient", "output 2"),
    },
}
"""oneDNN's roles in terms of ``aten.convolution_backward(grad_output, input, weight, ...)``."""

_FORWARD_PLACES = {
    "src": _Place("activation", "input 0"),
    "wei": _Place("weight", "input 1"),
    "bia": _Place("weight", "input 2"),
    "dst": _Place("activation", "output 0"),
}
"""The same for ``aten.convolution(input, weight, bias, ...)``."""


def _place(main: Primitive, role: str) -> _Place | None:
    if main.kind not in ("convolution", "deconvolution"):
        return _Place(_FORWARD_PLACES[role].tensor, None) if role in _FORWARD_PLACES else None
    return _PLACES.get(main.prop_kind, _FORWARD_PLACES).get(role)


def problem_shapes(primitive: Primitive) -> dict[str, tuple[int, ...]]:
    """
    Sizes of a convolution's tensors from oneDNN's problem text, by role; empty where the text is of another kind.

    Args:
        primitive: Such as one with ``mb4_g2ic16oc32_ih56oh56kh3sh1dh0ph1_iw56ow56kw3sw1dw0pw1``.
    """
    if primitive.kind not in ("convolution", "deconvolution"):
        return {}
    values = _problem_values(primitive.problem)
    if not {"mb", "ic", "oc"} <= values.keys():
        return {}
    axes = [axis for axis in "dhw" if f"i{axis}" in values]
    groups, ic, oc = values.get("g", 1), values["ic"], values["oc"]
    weight = [groups, oc // groups, ic // groups] if groups > 1 else [oc, ic]
    return {
        "src": (values["mb"], ic, *(values[f"i{axis}"] for axis in axes)),
        "dst": (values["mb"], oc, *(values[f"o{axis}"] for axis in axes)),
        "wei": (*weight, *(values[f"k{axis}"] for axis in axes)),
        "bia": (oc,),
    }


def _problem_values(problem: str) -> dict[str, int]:
    """``mb4_ic3oc64_...`` as {"mb": 4, "ic": 3, "oc": 64, ...}."""
    values: dict[str, int] = {}
    name, digits = "", ""
    for character in problem + "_":
        if character.isdigit() and name:
            digits += character
            continue
        if digits:
            values[name] = int(digits)
            name, digits = "", ""
        name = name + character if character.isalpha() else ""
    return values
