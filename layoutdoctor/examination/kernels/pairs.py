"""
Round trips in a recorded trace: a convolution's result is converted, and converted back for the next convolution.

A trace does not identify tensors. The evidence that both conversions are of the same value is their equal sizes
(``shapes``), their equal launch grids (``grid``), or only that no operation between them needs a certain layout
(``order``).

A sibling can give the same evidence: a second convolution that reads the first convolution's input instead of its
result, if both have the same sizes. Examples are queries and keys of an attention, and branches of a reparametrized
block. If sizes allow a sibling, a round trip is reported only if an operation in between reads the value. If only norms
read the value, evidence counts less: ``shapes`` and ``grid`` count as ``order``, and ``order`` is not enough.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

from layoutdoctor.diagnosis import Confidence, ConversionDirection
from layoutdoctor.examination.graphs.layout_agnostic import PER_CHANNEL, POINTWISE, base_name
from layoutdoctor.examination.kernels.evidence import copied_layouts
from layoutdoctor.examination.kernels.primitives import stride_order_of
from layoutdoctor.examination.kernels.shapes import parse_shapes
from layoutdoctor.recording.recording import NONE

if TYPE_CHECKING:
    from layoutdoctor.examination.kernels.evidence import Evidence, LibraryConversion
    from layoutdoctor.examination.kernels.shapes import Shape

# Operations outside ATen that work in either memory format and keep it; add new ones here.
OTHER_OPERATIONS = frozenset({"aiter::_groupnorm_run", "apex::group_norm", "aiter::_groupnorm"})

_NORMS = frozenset(
    """
    batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm _batch_norm_impl_index _native_batch_norm_legit
    _batch_norm_with_update batch_norm_elemt batch_norm_gather_stats_with_counts batch_norm_stats
    group_norm native_group_norm
    """.split()
)
"""
Norms that accept and return either format, also in training, so that conversions around a norm can be removed. A norm
may be slower in one format; norms in ``CONTIGUOUS_NORMS`` compute in ``contiguous_format`` on a GPU.
"""

_RESIZING = frozenset(name for name in PER_CHANNEL if "norm" not in name)
"""Pooling, padding and resampling: their result sizes are not recorded, so values cannot be followed further."""

_OTHER_AGNOSTIC = frozenset({"dropout", "_fused_dropout", "fill", "zero"})
_COPIES = frozenset({"copy", "clone", "contiguous"})

_AGNOSTIC_KERNEL = re.compile(
    r"^(?:void )?(?:at::native::(?:\(anonymous namespace\)::)?"
    r"(?:vectorized_elementwise_kernel|unrolled_elementwise_kernel|elementwise_kernel(?:_manual_unroll|_with_index)?|"
    r"unrolled_elementwise_kernel_for_multi_outputs|batch_norm_(?!backward)\w+|fused_dropout_\w+)\b"
    r"|cudnn::(?:ops::)?bn_fw_\w+|MIOpenBatchNormFwd\w*)"
)
_COPY_KERNEL = re.compile(r"direct_copy_kernel|_backward")
_NORM_KERNEL = re.compile(r"batch_norm_|::bn_fw_|MIOpenBatchNorm")
_COUNTING_KERNEL = re.compile(r"\blong\b")  # such as the counting of num_batches_tracked
_GRADIENT = re.compile(r"dgrad|wgrad|_bwd_|_wrw_|bwd_weight|bwd_data|Bwd|Wrw")
_BACK: dict[ConversionDirection, ConversionDirection] = {
    "to_contiguous": "to_channels_last",
    "to_channels_last": "to_contiguous",
}


@dataclass(frozen=True, slots=True)
class TracePair:
    """
    A round trip.

    Attributes:
        first: Index of the conversion of a convolution's result in the list of library conversions.
        second: Index, in this list, of the conversion back of another convolution's input.
        between: Names of the operations between both conversions, in order, without immediate repeats.
        shape: Sizes of the value at the second conversion, or else at the first; empty if not known.
    """

    first: int
    second: int
    between: tuple[str, ...]
    confidence: Confidence
    shape: Shape


def find_pairs(evidence: Evidence) -> list[TracePair]:
    """Finds every round trip between two convolutions of one stream."""
    walks: defaultdict[tuple[int, int, int], _Walk] = defaultdict(_Walk)
    walker = _Walker(evidence)
    steps = (walker.step(walks[place], row) for row, place in enumerate(evidence.places()))
    return sorted((pair for pair in steps if pair is not None), key=lambda pair: pair.first)


@dataclass(slots=True)
class _Walk:
    """
    The open search on one stream.

    Attributes:
        first: Index of the conversion of a result whose counterpart is searched for; None if no search is open.
        rows: Rows of the kernels after the first conversion that belong to no convolution.
        reader: The next convolution, if it has begun to convert its inputs; else None.
    """

    first: int | None = None
    rows: list[int] = field(default_factory=list)
    reader: int | None = None


class _Walker:
    """Follows a stream from kernel to kernel."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence, self.attribution, self.conversions = evidence, evidence.attribution, evidence.conversions
        self.by_row = {conversion.row: index for index, conversion in enumerate(self.conversions)}
        self.operations: list[int] = self.attribution.operation.tolist()
        self.backward_groups = {
            group
            for row, group in enumerate(evidence.groups)
            if group < NONE and evidence.class_of(row).is_main and _GRADIENT.search(evidence.name_of(row))
        }

    def step(self, walk: _Walk, row: int) -> TracePair | None:
        """Processes the next kernel of a stream; returns the pair that this kernel completes, or else None."""
        group = self.evidence.groups[row]
        index = self.by_row.get(row)
        conversion = None if index is None else self.conversions[index]
        if walk.first is not None and group not in (NONE, self.conversions[walk.first].group):
            if walk.reader in (None, group) and index is not None:
                pair = self._pair(walk.first, walk.rows, index)
                if pair is not None:
                    walk.first = None
                    return pair
                walk.reader = group
            # Some kernels of a convolution only prepare its computation: a fill, or the cast of a weight or an input.
            prepares = self.evidence.class_of(row).is_helper or self._agnostic(row) is not None
            if conversion is None and not prepares:
                walk.first = None  # the next convolution computes
        if conversion is not None and conversion.direction in _BACK and self._may_be(conversion, "output"):
            walk.first, walk.rows, walk.reader = index, [], None
        elif walk.first is not None and group == NONE:
            if self._agnostic(row) is None or walk.reader is not None:
                walk.first = None
            else:
                walk.rows.append(row)
        return None

    def _may_be(self, conversion: LibraryConversion, role: Literal["input", "output"]) -> bool:
        """
        Whether a conversion's value can be the input or the output of a forward convolution; a gradient is neither.

        Backward operations also read tensors that the forward saved, in layouts that no trace holds, so nothing proves
        that they would accept the gradient in another layout.
        """
        group = conversion.group
        is_forward = (
            group not in self.backward_groups if group < 0 else "backward" not in self.attribution.name_of(group)
        )
        is_side = conversion.is_result is (role == "output")
        return is_side and conversion.tensor.role in (role, "unknown") and is_forward

    def _agnostic(self, row: int) -> str | None:
        """Name of a kernel's operation, or else of the kernel, if it works in either format; else None."""
        operation = self.operations[row]
        if operation == NONE:
            name = self.evidence.name_of(row)
            return name if _is_agnostic_kernel(name) else None
        name = self.attribution.name_of(operation)
        if base_name_of(name) in _COPIES:  # a copy whose recorded strides keep the layout
            copied = copied_layouts(self.attribution, operation)
            if copied is not None and stride_order_of(copied[0]) == stride_order_of(copied[1]):
                return name
        return name if is_agnostic_operation(name) else None

    def _pair(self, opened: int, rows: Sequence[int], second: int) -> TracePair | None:
        """Makes a pair of the open conversion and ``second``; None if the evidence contradicts it or is too weak."""
        first, other = self.conversions[opened], self.conversions[second]
        if other.direction != _BACK[first.direction] or not self._may_be(other, "input"):
            return None
        launched = [row for row in (first.row, other.row) if self.attribution.launch[row] != NONE]
        if len({int(self.attribution.step[row]) for row in launched}) > 1:
            return None  # they are of different profiler steps
        confidence, shape = self._agreement(first, other)
        if confidence is not None and self._reads_alike(first, other):
            taking = [row for row in rows if self._takes(row, shape if confidence == "shapes" else ())]
            if not taking:
                return None
            if all(self._is_norm(row) for row in taking):
                confidence = "order" if confidence != "order" else None
        if confidence is None:
            return None
        names = [self._agnostic(row) or "" for row in rows]
        between = [name for place, name in enumerate(names) if place == 0 or name != names[place - 1]]
        return TracePair(opened, second, tuple(between), confidence, shape)

    def _agreement(self, first: LibraryConversion, second: LibraryConversion) -> tuple[Confidence | None, Shape]:
        """The evidence that both conversions are of one value, and its sizes; None if sizes or grids contradict."""
        before, after = first.tensor.shape, second.tensor.shape
        if before and second.input_shape and before != second.input_shape:
            return None, ()
        if before and after:
            return "shapes", after
        if first.confidence == second.confidence == "grid":
            is_same = self.evidence.grid_of(first.row) == self.evidence.grid_of(second.row)
            return ("grid" if is_same else None), after or before
        return "order", after or before

    @cached_property
    def _reads(self) -> dict[int, list[LibraryConversion]]:
        """The conversions that each group's convolution runs before it computes."""
        found: dict[int, list[LibraryConversion]] = {}
        for conversion in self.conversions:
            if conversion.is_result is False:
                found.setdefault(conversion.group, []).append(conversion)
        return found

    def _reads_alike(self, first: LibraryConversion, second: LibraryConversion) -> bool:
        """Whether the second convolution may have read the first convolution's input, by sizes or grids."""
        if first.tensor.shape and first.input_shape:
            return first.input_shape == first.tensor.shape
        reads = self._reads.get(first.group, [])
        if first.confidence != "grid" or not reads:
            return True
        grid = self.evidence.grid_of(second.row)
        return any(self.evidence.grid_of(conversion.row) == grid for conversion in reads)

    def _takes(self, row: int, shape: Shape) -> bool:
        """Whether the operation of a kernel may read a value of this shape; unknown sizes do not exclude it."""
        shapes = parse_shapes(self.attribution.arguments_of(self.operations[row]).shapes)
        return not shape or not shapes or shape in shapes

    def _is_norm(self, row: int) -> bool:
        """Whether a kernel ran for a norm, or only counts the batches of a norm."""
        operation, kernel = self.operations[row], self.evidence.name_of(row)
        if _COUNTING_KERNEL.search(kernel):
            return True
        if operation == NONE:
            return _NORM_KERNEL.search(kernel) is not None
        name = self.attribution.name_of(operation)
        return name in OTHER_OPERATIONS or base_name_of(name) in _NORMS


@lru_cache(maxsize=4096)
def _is_agnostic_kernel(name: str) -> bool:
    return bool(_AGNOSTIC_KERNEL.match(name)) and not _COPY_KERNEL.search(name)


def base_name_of(name: str) -> str:
    """An operation's name without namespace and in-place underscore."""
    return base_name(name.replace("::", ".", 1))


@lru_cache(maxsize=4096)
def is_agnostic_operation(name: str) -> bool:
    """Whether a forward operation accepts a value in either memory format, and keeps its format and its sizes."""
    if name in OTHER_OPERATIONS:
        return True
    if not name.startswith("aten::"):
        return False
    base = base_name_of(name)
    if base in _RESIZING or base.endswith("_backward"):
        return False
    return base in POINTWISE or base in PER_CHANNEL or base in _NORMS or base in _OTHER_AGNOSTIC
