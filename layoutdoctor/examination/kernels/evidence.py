"""
The facts about each kernel of a recorded trace: the layout conversions around convolutions, and the copies.

The direction of a conversion is in cuDNN's kernel names. If a name of MIOpen lacks the direction, it follows from the
position of the conversion before or after the kernel that computes. The converted tensor follows from the launch grid,
which both libraries derive from the tensor's sizes.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from layoutdoctor.diagnosis import Confidence, ConversionDirection, Layout
from layoutdoctor.examination.kernels.names import GENERATED_POINTWISE, KernelClass, kernel_class
from layoutdoctor.examination.kernels.primitives import conversion_direction, is_expanded, stride_order_of
from layoutdoctor.examination.kernels.shapes import (
    COPY,
    UNKNOWN_TENSOR,
    convolution_tensors,
    cudnn_grid,
    layouts_of_copy,
    miopen_fits,
    parse_shapes,
)
from layoutdoctor.recording.recording import NONE

if TYPE_CHECKING:
    from layoutdoctor.examination.kernels.attribution import Attribution
    from layoutdoctor.examination.kernels.shapes import ConvolutionTensor, ConvolutionTensors, Shape, TensorRole
    from layoutdoctor.recording.recording import OperationArguments


_ZERO_FILL = "SubTensorOpWithScalar"
_WEIGHT_GRADIENT = re.compile(r"wgrad|_wrw_|bwd_weight|Wrw")
_DATA_GRADIENT = re.compile(r"dgrad|_bwd_|bwd_data|Bwd")


@dataclass(frozen=True, slots=True)
class LibraryConversion:
    """
    One conversion kernel of a library.

    Attributes:
        group: The convolution that the kernel ran for, as in ``Evidence.groups``; ``NONE`` if not known.
        tensor: The converted tensor. If ``confidence`` is ``grid``, it may be interchanged with other converted tensors
            of the same size.
        dtype: Recorded element type of the convolution's input, or else of its weight; None if not recorded.
        is_result: Whether the kernel converts a result: it then runs after the kernel that computes. None if no kernel
            that computes is known.
        input_shape: Sizes of the convolution's input, whichever tensor is converted; empty if not recorded.
        of_batch: True if the launch grid shows an activation or its gradient, False if it shows a weight or its
            gradient. None if the grid shows neither, or if ``tensor`` is known.
    """

    row: int
    group: int
    direction: ConversionDirection
    confidence: Confidence | None
    tensor: ConvolutionTensor = UNKNOWN_TENSOR
    dtype: str | None = None
    is_result: bool | None = None
    input_shape: Shape = ()
    of_batch: bool | None = None


class Evidence:
    """
    The facts known about each kernel of a trace; all conclusions rest on them.

    Attributes:
        classes: The facts that each kernel name gives, by index into ``RecordedTrace.names``.
        groups: The convolution of each kernel, as the row of the convolution's operation. Consecutive convolution
            kernels without known operations share a number below ``NONE``. Other kernels have ``NONE``.
    """

    def __init__(self, attribution: Attribution) -> None:
        trace = attribution.trace
        self.trace, self.attribution = trace, attribution
        self.names: list[int] = trace.kernels.name.tolist()
        used = set(self.names)
        self.classes = [
            kernel_class(name) if index in used else KernelClass() for index, name in enumerate(trace.names)
        ]
        self.groups = _groups_of(self)
        self.conversions = _library_conversions(self)

    def name_of(self, row: int) -> str:
        """Name of a kernel."""
        return self.trace.names[self.names[row]]

    def class_of(self, row: int) -> KernelClass:
        """The facts that a kernel's name gives."""
        return self.classes[self.names[row]]

    def grid_of(self, row: int) -> tuple[int, int, int] | None:
        """Launch grid of a kernel; None if it was not recorded."""
        index = int(self.trace.kernels.grid[row])
        return self.trace.grids[index] if index != NONE else None

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Process, device and stream of each kernel."""
        kernels = self.trace.kernels
        return zip(kernels.process.tolist(), kernels.device.tolist(), kernels.stream.tolist(), strict=True)


def _groups_of(evidence: Evidence) -> list[int]:
    """The convolution of each kernel, as in ``Evidence.groups``; kernels in a row on one stream are consecutive."""
    groups: list[int] = evidence.attribution.convolution.tolist()
    last: dict[tuple[int, int, int], int] = {}
    next_group = NONE - 1
    operations = evidence.attribution.operation.tolist()
    for row, (operation, place) in enumerate(zip(operations, evidence.places(), strict=True)):
        known = evidence.class_of(row)
        if operation != NONE or not (known.is_conversion or known.is_main or known.is_helper):
            last.pop(place, None)
            continue
        if place not in last:
            last[place] = next_group
            next_group -= 1
        groups[row] = last[place]
    return groups


def _library_conversions(evidence: Evidence) -> list[LibraryConversion]:
    rows = [row for row in range(len(evidence.names)) if evidence.class_of(row).is_conversion]
    converting = {evidence.groups[row] for row in rows} - {NONE}
    members: dict[int, list[int]] = {}
    for row, group in enumerate(evidence.groups):
        if group in converting:
            members.setdefault(group, []).append(row)
    found = [c for group, own in members.items() for c in _Group(evidence, group, own).conversions()]
    found += [
        LibraryConversion(row, NONE, evidence.class_of(row).direction, None)
        for row in rows
        if evidence.groups[row] == NONE
    ]
    return _with_sides(evidence, sorted(found, key=lambda conversion: conversion.row))


def _with_sides(evidence: Evidence, found: list[LibraryConversion]) -> list[LibraryConversion]:
    """
    Sets ``of_batch`` of cuDNN's conversions whose tensor is not known, by the last number of their launch grid.

    The last number is the first size of the tensor: the batch size, unless the tensor is a weight. The batch size is
    taken from grids that are too large for any weight; these must agree. Nothing is set if a forward convolution would
    then read two weights.
    """
    grids = {
        conversion.row: grid
        for conversion in found
        if conversion.tensor is UNKNOWN_TENSOR
        and evidence.class_of(conversion.row).library == "cudnn"
        and (grid := evidence.grid_of(conversion.row)) is not None
    }
    batches = {grid[2] for grid in grids.values() if grid[0] >= _CERTAINLY_IMAGE}
    if len(batches) != 1:
        return found
    (batch,) = batches
    sides = {row: _side(grid, batch) for row, grid in grids.items()}
    reads = Counter(c.group for c in found if sides.get(c.row) is False and c.is_result is False)
    forward = [group for group in reads if group >= 0 and "backward" not in evidence.attribution.name_of(group)]
    if any(reads[group] > 1 for group in forward):
        return found
    return [replace(conversion, of_batch=sides.get(conversion.row)) for conversion in found]


def _side(grid: tuple[int, int, int], batch: int) -> bool | None:
    """The value of ``of_batch`` for a launch grid; a block has 32 positions and 32 channels."""
    positions, channels, first = grid
    if first != batch:
        return False if positions <= _LARGEST_KERNEL else None
    return True if positions > _LARGEST_KERNEL or (positions == _LARGEST_KERNEL and channels > 1) else None


_CERTAINLY_IMAGE = 16  # blocks of 32 positions: 22 x 22 or more
_LARGEST_KERNEL = 2  # 8 x 8 positions


class _Group:
    """The kernels of one convolution, in order."""

    def __init__(self, evidence: Evidence, group: int, rows: list[int]) -> None:
        self.evidence, self.group, self.rows = evidence, group, rows
        self.names = [evidence.name_of(row) for row in rows]
        self.classes = [evidence.class_of(row) for row in rows]
        self.mains = self._mains()

    def _mains(self) -> list[int]:
        """
        Indices of the kernels that compute, by their names.

        If no name shows such a kernel and the operation is known, the longest kernel whose name shows no role is taken.
        """
        mains = [place for place, known in enumerate(self.classes) if known.is_main]
        others = [
            place
            for place, known in enumerate(self.classes)
            if not known.is_conversion and not known.is_helper and not known.role
        ]
        if mains or not others or self.group < NONE:
            return mains
        return [max(others, key=lambda place: int(self.evidence.trace.kernels.duration[self.rows[place]]))]

    def conversions(self) -> Iterator[LibraryConversion]:
        """
        Yields the conversions of this convolution.

        The name of a ``batched_transpose`` shows no direction, so its position decides. Conversions to and from CNHW
        keep the direction ``other``, because CNHW is neither memory format.
        """
        taken: set[tuple[int, str]] = set()
        for place, row in enumerate(self.rows):
            if not self.classes[place].is_conversion:
                continue
            direction, is_result = self.classes[place].direction, self._is_result(place)
            confidence: Confidence | None = "grid" if self.evidence.grid_of(row) is not None else "order"
            if direction == "other":
                confidence = "order" if self.mains else None
                if is_result is not None and self.names[place].startswith("batched_transpose"):
                    direction = "to_contiguous" if is_result else "to_channels_last"
            conversion = LibraryConversion(row, self.group, direction, confidence, is_result=is_result)
            yield self._with_tensor(conversion, place, taken)

    def _is_result(self, place: int) -> bool | None:
        """Whether a conversion runs after the kernel whose result it converts; None if no computing kernel is known."""
        before = self._part(place)
        if not self.mains:
            return None
        if before in {0, len(self.mains)}:
            return before > 0
        named = self.classes[place].direction
        return self._is_next_to(self.mains[before - 1], place) if named == "other" else named != self._reading_direction

    def _part(self, place: int) -> int:
        """Number of computing kernels before a kernel, by bisection: a trace without operations may have a million."""
        return bisect_left(self.mains, place)

    @cached_property
    def _reading_direction(self) -> ConversionDirection:
        """The direction in which inputs are converted; a channels_last model may run a contiguous kernel."""
        first = next(iter(self.mains), 0)
        return next((known.direction for known in self.classes[:first] if known.is_conversion), "to_channels_last")

    def _is_next_to(self, main: int, place: int) -> bool:
        """
        Whether a conversion of MIOpen between two computing kernels converts the result of the first kernel.

        MIOpen launches at most one such conversion, directly after the first kernel, without a gap in correlation ids.
        A fill or such a gap shows that the next part of the operation has begun.
        """
        between = range(main + 1, place)
        if any(self.classes[i].is_conversion or self.names[i].startswith(_ZERO_FILL) for i in between):
            return False
        correlations = self.evidence.trace.kernels.correlation[self.rows[main : place + 1]].tolist()
        if NONE in correlations:
            return True
        return all(later - earlier <= 1 for earlier, later in pairwise(correlations))

    def _with_tensor(self, conversion: LibraryConversion, place: int, taken: set[tuple[int, str]]) -> LibraryConversion:
        """Adds the tensor that fits grid and position; of several, MIOpen's order or ``_of_one_size`` decides."""
        if conversion.direction not in ("to_channels_last", "to_contiguous"):
            return conversion
        tensors = self._tensors(int(self.evidence.attribution.operation[conversion.row]))
        if tensors is None:
            return conversion
        conversion = replace(conversion, dtype=tensors.dtype, input_shape=tensors.of_role("input").shape)
        part = self._part(place)
        is_miopen = self.classes[place].library == "miopen"
        roles = self._roles(tensors, conversion, place, is_miopen=is_miopen)
        candidates = [tensors.of_role(role) for role in roles if (part, role) not in taken]
        to_channels_last = conversion.direction == "to_channels_last"
        fitting = [tensor for tensor in candidates if self._fits(place, tensor, to_channels_last=to_channels_last)]
        if not fitting:
            return conversion
        if len(fitting) > 1 and not is_miopen:
            return self._of_one_size(conversion, place, fitting) if tensors.is_backward else conversion
        # MIOpen's forward converts input, weight and the output's buffer in this order. In its backward, the order of
        # the kernels is the only evidence.
        taken.add((part, fitting[0].role))
        is_proven = len(fitting) == 1 or not tensors.is_backward
        return replace(conversion, tensor=fitting[0], confidence="shapes" if is_proven else "order")

    def _of_one_size(
        self, conversion: LibraryConversion, place: int, fitting: Sequence[ConvolutionTensor]
    ) -> LibraryConversion:
        """
        Assigns one of several fitting tensors of a backward, if their sizes are equal and each is converted once.

        Each tensor is assigned once, so counts and bytes by kind of tensor are right in total. Which conversion reads
        which tensor is not known, so ``port`` has no index.
        """
        grid, direction = self.evidence.grid_of(conversion.row), self.classes[place].direction
        start = max((main for main in self.mains if main < place), default=-1) + 1
        end = min((main for main in self.mains if main > place), default=len(self.rows))
        around = [i for i in range(start, end) if self.classes[i].direction == direction]
        alike = [i for i in around if self.evidence.grid_of(self.rows[i]) == grid]
        if grid is None or len(alike) != len(fitting) or len({tensor.shape for tensor in fitting}) > 1:
            return conversion
        return replace(conversion, tensor=replace(fitting[alike.index(place)], port="input"))

    def _roles(
        self, tensors: ConvolutionTensors, conversion: LibraryConversion, place: int, *, is_miopen: bool
    ) -> tuple[TensorRole, ...]:
        """
        Roles of the tensors that the next computing kernel reads or the last one wrote, in MIOpen's order.

        Only MIOpen also converts the buffer of a result before the kernel writes this result.
        """
        is_result = conversion.is_result
        is_read = conversion.direction == "to_channels_last" if is_result is None else not is_result
        mains = [main for main in self.mains if (main > place if is_read else main < place)]
        name = self.names[mains[0] if is_read else mains[-1]] if mains else ""
        read: tuple[TensorRole, ...] = ("grad_output", "input", "weight")
        written: tuple[TensorRole, ...] = ("grad_input", "grad_weight")
        if not tensors.is_backward:
            read, written = ("input", "weight"), ("output",)
        elif _WEIGHT_GRADIENT.search(name):
            read, written = ("input", "grad_output"), ("grad_weight",)
        elif _DATA_GRADIENT.search(name):
            read, written = ("grad_output", "weight"), ("grad_input",)
        if not is_read:
            return written
        return (*read, *written) if is_miopen and len(written) == 1 else read

    def _tensors(self, operation: int) -> ConvolutionTensors | None:
        """Tensors of the innermost enclosing operation with known result sizes, or else with any known sizes."""
        attribution = self.evidence.attribution
        best: ConvolutionTensors | None = None
        while operation != NONE:
            found = convolution_tensors(attribution.name_of(operation), attribution.arguments_of(operation))
            if found is not None and found.written:
                return found
            best = best or found
            operation = int(attribution.parent[operation])
        return best

    def _fits(self, place: int, tensor: ConvolutionTensor, *, to_channels_last: bool) -> bool:
        """Whether a kernel can have converted a tensor, by its launch grid; an unknown grid fits every tensor."""
        if len(tensor.shape) < 3 or tensor.shape[1] == 1 or math.prod(tensor.shape[2:]) == 1:
            return False  # it satisfies both formats already
        grid = self.evidence.grid_of(self.rows[place])
        if grid is None:
            return True
        if self.classes[place].library == "cudnn":
            return cudnn_grid(tensor.shape) == grid
        return miopen_fits(self.names[place], tensor.shape, grid, to_channels_last=to_channels_last)


CopyKind = Literal["converted", "permuted", "undecided", "generated", "unsettled"]

_TWO_DIMENSIONAL = re.compile(r"(?:^|[^A-Z])YBLOCK['\"]?\s*[=:]\s*['\"]?(\d+)")
# Roles of the kernels of a copy. Its strides decide whether it converts; kernel names differ between devices.
_OF_A_COPY = ("strided_copy", "")


@dataclass(frozen=True, slots=True)
class TraceCopy:
    """
    One copying kernel, by its row.

    Attributes:
        kind: An eager copy is ``converted`` if it changes the memory format, ``permuted`` if it only changes other
            strides, ``undecided`` if its strides are not known. A kernel generated by Inductor is ``generated`` if it
            runs in two dimensions, ``unsettled`` if the number of dimensions is not known.
        source: Layout before the copy; None if not recorded.
        target: Layout after the copy; None if not recorded.
        direction: The change of memory format; ``none`` for a permutation, ``other`` if not known.
    """

    row: int
    kind: CopyKind
    source: Layout | None = None
    target: Layout | None = None
    direction: ConversionDirection = "other"


def copied_layouts(attribution: Attribution, operation: int) -> tuple[Layout, Layout] | None:
    """Layouts before and after an eager copy; None for another operation, unknown strides, or sizes that differ."""
    if attribution.name_of(operation) != COPY:
        return None
    arguments = attribution.arguments_of(operation)
    return layouts_of_copy(parse_shapes(arguments.shapes), parse_shapes(arguments.strides))


def find_copies(evidence: Evidence) -> list[TraceCopy]:
    """Finds copies that may change strides, and generated kernels that may run in two dimensions, in order."""
    found: list[TraceCopy] = []
    attribution = evidence.attribution
    layouts, tiled = cache(partial(copied_layouts, attribution)), _tiled(evidence)
    for row, operation in enumerate(attribution.operation.tolist()):
        role, copy = evidence.class_of(row).role, None
        is_copy = operation != NONE and attribution.name_of(operation) == COPY
        if row in tiled:
            if tiled[row] is not False:
                copy = TraceCopy(row, "generated" if tiled[row] else "unsettled")
        elif is_copy and role in _OF_A_COPY and not _may_convert(attribution.arguments_of(operation)):
            copy = _eager(row, layouts(operation))
        elif role == "strided_copy" or (is_copy and not role):
            copy = TraceCopy(row, "undecided")
        if copy is not None:
            found.append(copy)
    return found


def _tiled(evidence: Evidence) -> dict[int, bool | None]:
    """
    Finds generated kernels that run in two dimensions, as kernels that read and write in different orders do.

    Returns:
        Whether each generated kernel runs in two dimensions, by row; None if not known. The block sizes of the launch
        decide, or else its grid, or else the block sizes of other launches with the same name. The grid may leave it
        open, because a kernel for few channels needs only one block.

    Source:
        ``candidate_tilings`` and ``Grid2D`` of torch 2.0 to 2.13: a pointwise kernel gets a second dimension if two of
        its tensors are dense along different dimensions; a large one-dimensional grid stays one-dimensional.
    """
    names, is_generated = evidence.trace.names, cache(lambda name: GENERATED_POINTWISE.match(names[name]) is not None)
    found: dict[int, bool | None] = {}
    by_name: dict[int, bool] = {}
    for row, (name, operation) in enumerate(zip(evidence.names, evidence.attribution.operation.tolist(), strict=True)):
        if is_generated(name):
            options = evidence.attribution.arguments_of(operation).kernel_options
            block, grid = _TWO_DIMENSIONAL.search(options), evidence.grid_of(row)
            is_list = names[name].startswith("triton_for")  # loops over several tensors, as in an optimizer
            found[row] = False if is_list else None
            if grid is not None and grid[1] * grid[2] > 1:
                found[row] = True
            if options:
                found[row] = block is not None and int(block[1][:9]) > 1
                by_name[name] = by_name.get(name, False) or found[row] is True
    return {row: by_name.get(evidence.names[row]) if tiled is None else tiled for row, tiled in found.items()}


def _may_convert(recorded: OperationArguments) -> bool:
    """Whether a copy's strides are not known, and its tensors are 4-D, 5-D or of unknown sizes."""
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
