"""
Copies in a recorded trace that no convolution library ran: eager ones, and those that Inductor generated.

A copy between memory formats is a layout conversion; one that permutes anything else, such as the heads of an
attention, is kept apart. Strides of size-1 dimensions say nothing and are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from layoutdoctor.diagnosis.layout import Layout, stride_order, strided_layout
from layoutdoctor.examination.kernels.shapes import parse_shapes
from layoutdoctor.recording.recording import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.records import ConversionDirection
    from layoutdoctor.examination.kernels.attribution import Attribution
    from layoutdoctor.examination.kernels.convolutions import KernelClass
    from layoutdoctor.recording.recording import RecordedTrace

CopyKind = Literal["converted", "permuted", "generated"]

_COPY = re.compile(r"^aten::(?:copy_|clone|contiguous|_to_copy|to)$")
_DESTINATION_FIRST = "aten::copy_"
_TWO_DIMENSIONAL = re.compile(r"(?:^|[^A-Z])YBLOCK['\"]?\s*[=:]\s*['\"]?(\d+)")
_GENERATED = re.compile(r"^triton_(?:poi|red|per|for)_")


@dataclass(frozen=True, slots=True)
class TraceCopy:
    """
    One copying kernel.

    Attributes:
        row: The kernel's row.
        kind: ``converted`` between memory formats, ``permuted`` otherwise, ``generated`` by Inductor in two dimensions.
        source: Layout before; None where not recorded.
        target: Layout after; None where not recorded.
        direction: Between memory formats; ``none`` for a permutation.
    """

    row: int
    kind: CopyKind
    source: Layout | None
    target: Layout | None
    direction: ConversionDirection


def stride_order_of(layout: Layout) -> tuple[int, ...] | None:
    """The dimensions larger than one, slowest first."""
    return stride_order(layout.shape, layout.stride) if layout.stride is not None else None


def copied_layouts(trace: RecordedTrace, operation: int) -> tuple[Layout, Layout] | None:
    """
    Layouts before and after an eager copy.

    Args:
        operation: Row of an ``aten::copy_``.

    Returns:
        None where it is another operation, its strides were not recorded, or its sizes are broadcast.
    """
    operations = trace.operations
    arguments = int(operations.arguments[operation])
    if arguments == NONE or trace.names[int(operations.name[operation])] != _DESTINATION_FIRST:
        return None
    shapes = parse_shapes(trace.arguments[arguments].shapes)[:2]
    strides = parse_shapes(trace.arguments[arguments].strides)[:2]
    if len(shapes) < 2 or len(strides) < 2 or shapes[0] != shapes[1] or not shapes[0]:
        return None
    if len(strides[0]) != len(shapes[0]) or len(strides[1]) != len(shapes[1]):
        return None
    target, source = strided_layout(shapes[0], strides[0]), strided_layout(shapes[1], strides[1])
    return source, target


def find_copies(trace: RecordedTrace, attribution: Attribution, classes: Sequence[KernelClass]) -> list[TraceCopy]:
    """Every copy that changes strides, and every generated copy in two dimensions, in order."""
    found: list[TraceCopy] = []
    known: dict[int, tuple[Layout, Layout] | None] = {}
    operations = attribution.operation.tolist()
    arguments = trace.operations.arguments.tolist()
    is_generated = [_GENERATED.match(name) is not None for name in trace.names]
    for row, (name, operation) in enumerate(zip(trace.kernels.name.tolist(), operations, strict=True)):
        if operation == NONE:
            continue
        if is_generated[name]:
            copy = _generated(trace, row, arguments[operation])
        elif classes[name].role == "strided_copy":
            if operation not in known:
                known[operation] = copied_layouts(trace, operation)
            copy = _eager(row, known[operation])
        else:
            continue
        if copy is not None:
            found.append(copy)
    return found


def _eager(row: int, layouts: tuple[Layout, Layout] | None) -> TraceCopy | None:
    if layouts is None:
        return None
    source, target = layouts
    before, after = stride_order_of(source), stride_order_of(target)
    if before is None or before == after or _is_expanded(source):
        return None
    direction = format_change(source, target)
    return TraceCopy(row, "permuted" if direction == "none" else "converted", source, target, direction)


def _is_expanded(layout: Layout) -> bool:
    pairs = zip(layout.shape, layout.stride or (), strict=False)
    return any(stride == 0 and isinstance(size, int) and size > 1 for size, stride in pairs)


def format_change(source: Layout, target: Layout) -> ConversionDirection:
    """The direction of a copy between the memory formats of 4-D and 5-D tensors; ``none`` for any other permutation."""
    before, after = set(source.memory_formats), set(target.memory_formats)
    last = {"channels_last", "channels_last_3d"}
    if before & after:
        return "none"
    if after & last and "contiguous_format" in before:
        return "to_channels_last"
    if before & last and "contiguous_format" in after:
        return "to_contiguous"
    return "none"


def _generated(trace: RecordedTrace, row: int, arguments: int) -> TraceCopy | None:
    """A generated kernel that walks two dimensions apart, as one that reads and writes in different orders does."""
    if arguments == NONE:
        return None
    recorded = trace.arguments[arguments]
    block = _TWO_DIMENSIONAL.search(recorded.kernel_options)
    if block is None or int(block[1][:9]) < 2:
        return None
    source, target = _distinct_orders(parse_shapes(recorded.shapes), parse_shapes(recorded.strides))
    direction = format_change(source, target) if source is not None and target is not None else "other"
    return TraceCopy(row, "generated", source, target, "other" if direction == "none" else direction)


def _distinct_orders(
    shapes: Sequence[tuple[int, ...]], strides: Sequence[tuple[int, ...]]
) -> tuple[Layout | None, Layout | None]:
    """The first and the last tensor, of equal sizes, where their memory formats differ: what it reads and writes."""
    layouts = [
        strided_layout(shape, stride)
        for shape, stride in zip(shapes, strides, strict=False)
        if len(shape) == len(stride) and len(shape) in (4, 5)
    ]
    if len(layouts) < 2 or layouts[0].shape != layouts[-1].shape:
        return None, None
    if set(layouts[0].memory_formats) & set(layouts[-1].memory_formats):
        return None, None
    return layouts[0], layouts[-1]
