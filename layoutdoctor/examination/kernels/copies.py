"""
Copies in a recorded trace that no convolution library ran: eager ones, and those that Inductor generated.

A copy between memory formats is a layout conversion; one that permutes anything else, such as the heads of an
attention, is kept apart. Strides of size-1 dimensions say nothing and are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

from layoutdoctor.examination.kernels.primitives import conversion_direction, is_expanded, stride_order_of
from layoutdoctor.examination.kernels.shapes import COPY, layouts_of_copy, parse_shapes
from layoutdoctor.recording.recording import NONE

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.conversion import ConversionDirection
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.examination.kernels.attribution import Attribution
    from layoutdoctor.examination.kernels.convolutions import Evidence
    from layoutdoctor.recording.recording import OperationArguments

CopyKind = Literal["converted", "permuted", "generated"]

_TWO_DIMENSIONAL = re.compile(r"(?:^|[^A-Z])YBLOCK['\"]?\s*[=:]\s*['\"]?(\d+)")
# A reduction (red, per) computes: it is never a copy.
_GENERATED = re.compile(r"^triton_(?:poi|for)_")
# The operation and its strides decide; what a kernel of a copy is called differs from device to device.
_OF_A_COPY = ("strided_copy", "")


@dataclass(frozen=True, slots=True)
class TraceCopy:
    """
    One copying kernel, by its row.

    Attributes:
        kind: ``converted`` between memory formats, ``permuted`` otherwise, ``generated`` by Inductor in two dimensions.
        source: Layout before, and ``target`` after; None where not recorded.
        direction: Between memory formats; ``none`` for a permutation.
    """

    row: int
    kind: CopyKind
    source: Layout | None
    target: Layout | None
    direction: ConversionDirection


def copied_layouts(attribution: Attribution, operation: int) -> tuple[Layout, Layout] | None:
    """Layouts before and after an eager copy; None for another operation, and where strides were not recorded."""
    if attribution.name_of(operation) != COPY:
        return None
    arguments = attribution.arguments_of(operation)
    return layouts_of_copy(parse_shapes(arguments.shapes), parse_shapes(arguments.strides))


def find_copies(evidence: Evidence) -> list[TraceCopy]:
    """Every copy that changes strides, and every generated copy in two dimensions, in order."""
    found: list[TraceCopy] = []
    attribution = evidence.attribution
    layouts = cache(partial(copied_layouts, attribution))
    is_copy = _is_of_a_copy(attribution)
    is_generated = [_GENERATED.match(name) is not None for name in evidence.trace.names]
    for row, operation in enumerate(attribution.operation.tolist()):
        if operation == NONE:
            continue
        if is_generated[evidence.names[row]]:
            copy = _generated(attribution.arguments_of(operation), row)
        elif is_copy[row] and evidence.class_of(row).role in _OF_A_COPY:
            copy = _eager(row, layouts(operation))
        else:
            continue
        if copy is not None:
            found.append(copy)
    return found


def undecided_copies(evidence: Evidence) -> list[int]:
    """Rows of the kernels that copy, in eager mode, between strides that were not recorded."""
    attribution = evidence.attribution
    roles = (evidence.class_of(row).role for row in range(len(evidence.names)))
    columns = zip(roles, attribution.operation.tolist(), _is_of_a_copy(attribution), strict=True)
    return [
        row
        for row, (role, operation, is_copy) in enumerate(columns)
        if role == "strided_copy" or (is_copy and not role)
        if not is_copy or _may_convert(attribution.arguments_of(operation))
    ]


def _is_of_a_copy(attribution: Attribution) -> list[bool]:
    """Of each kernel, whether an eager copy launched it."""
    names, operations = attribution.trace.names, attribution.trace.operations.name.tolist()
    return [row != NONE and names[operations[row]] == COPY for row in attribution.operation.tolist()]


def _may_convert(recorded: OperationArguments) -> bool:
    """Whether a copy is of tensors that have memory formats, as far as is known, and its strides are not."""
    shapes = parse_shapes(recorded.shapes)
    return not parse_shapes(recorded.strides) and (not shapes or any(len(shape) in (4, 5) for shape in shapes))


def _eager(row: int, layouts: tuple[Layout, Layout] | None) -> TraceCopy | None:
    if layouts is None:
        return None
    source, target = layouts
    before, after = stride_order_of(source), stride_order_of(target)
    if before is None or before == after or is_expanded(source):
        return None
    has_formats = source.memory_formats and target.memory_formats
    direction = conversion_direction(source, target) if has_formats else "none"
    return TraceCopy(row, "permuted" if direction == "none" else "converted", source, target, direction)


def _generated(recorded: OperationArguments, row: int) -> TraceCopy | None:
    """A generated kernel that walks two dimensions apart, as one that reads and writes in different orders does."""
    block = _TWO_DIMENSIONAL.search(recorded.kernel_options)
    if block is None or int(block[1][:9]) < 2:
        return None
    return TraceCopy(row, "generated", None, None, "other")
