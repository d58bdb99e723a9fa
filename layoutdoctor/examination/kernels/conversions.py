"""The facts that a recorded trace shows: conversions, round trips, the kernel list, sums by operation and module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from layoutdoctor.diagnosis import Conversion, KernelSummary, Lack, Layout, RedundantPair
from layoutdoctor.diagnosis.layout import contiguous_stride, dense_stride, strided_layout
from layoutdoctor.examination.graphs.conversions import tensor_bytes
from layoutdoctor.examination.graphs.layout_agnostic import CONTIGUOUS_NORMS
from layoutdoctor.examination.kernels.attribution import Places, attribute
from layoutdoctor.examination.kernels.evidence import Evidence, find_copies
from layoutdoctor.examination.kernels.host import with_operations_as_kernels
from layoutdoctor.examination.kernels.names import are_of_an_engine, dtypes_of, work_of
from layoutdoctor.examination.kernels.pairs import find_pairs
from layoutdoctor.examination.kernels.shapes import convolution_tensors
from layoutdoctor.examination.kernels.sums import lost_count
from layoutdoctor.examination.kernels.totals import kernel_records, totals_of, work_by_kind
from layoutdoctor.examination.kernels.waiting import exposed_nanoseconds, waiting_of
from layoutdoctor.recording.reading import launched_count
from layoutdoctor.recording.recording import NONE
from layoutdoctor.units import NANOSECONDS_PER_SECOND, format_seconds, sum_if_all_known
from layoutdoctor.words import DTYPES, count_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutdoctor.examination.kernels.evidence import CopyKind, LibraryConversion, TraceCopy
    from layoutdoctor.examination.kernels.pairs import TracePair
    from layoutdoctor.examination.kernels.shapes import Shape
    from layoutdoctor.recording.recording import RecordedTrace


# How to record each part of a trace, or why it is missing: with torch.profiler, and with Nsight Systems.
_HOW = {
    "kernels": ("ProfilerActivity.CUDA", "nsys profile --trace=cuda,nvtx"),
    "operations": ("ProfilerActivity.CPU", "torch.autograd.profiler.emit_nvtx(record_shapes=True)"),
    "strides": ("torch before 2.3", "a trace of torch.profiler holds them"),
    "stack": ("with_stack=True", "a trace of torch.profiler holds it, with_stack=True"),
}


def describe_lacks(places: Places, unsettled: Sequence[int]) -> Iterator[Lack]:
    """Yields the parts that a trace lacks; ``unsettled`` are rows of kernels, as in ``Records``."""
    trace, attribution = places.trace, places.attribution
    how = {part: ways[trace.source == "nsys_export"] for part, ways in _HOW.items()}
    if not len(trace.kernels):
        launched = launched_count(trace)
        if launched:
            reason = f"{count_of(launched, 'kernel was', 'kernels were')} launched, and none was recorded"
            yield Lack(part="launched_kernels", reason=reason)
        else:
            reason = f"device kernels were not recorded ({how['kernels']}), so nothing can be said of conversions"
            yield Lack(part="kernels", reason=reason)
        return
    is_of_a_cpu = trace.source == "kineto_operations"
    if is_of_a_cpu:
        reason = "what oneDNN converts within its operations is in its own log (ONEDNN_VERBOSE=1), not in a trace"
        yield Lack(part="kernels_of_library", reason=reason)
    if not len(trace.operations) and are_of_an_engine(trace.names[name] for name in trace.kernels.name.tolist()):
        reason = "a TensorRT engine names its layers only if it was built with ProfilingVerbosity.DETAILED"
        yield Lack(part="operations", reason=reason)
    elif not len(trace.operations):
        reason = (
            f"operations were not recorded ({how['operations']}), so kernels belong to no operation, module or line"
        )
        yield Lack(part="operations", reason=reason)
    else:
        yield from _about_operations(places, how)
    unlaunched = attribution.unlaunched_count if len(trace.operations) and not is_of_a_cpu else 0
    not_in_trace = "have no launch in the trace (queued before the recording began, or not recorded)"
    for own, why in ((attribution.replayed_count, "were launched by graph replays"), (unlaunched, not_in_trace)):
        if own:
            reason = f"{own} of {len(trace.kernels)} kernels {why}, so their operations are not known"
            yield Lack(part="launches", reason=reason)
    has_grid = trace.kernels.grid != NONE
    for open_, why in (
        ([row for row in unsettled if has_grid[row]], _FEW_CHANNELS),
        (
            [row for row in unsettled if not has_grid[row]],
            "nor their launch grids, so it is not known which of them convert",
        ),
    ):
        if open_:
            seconds = int(trace.kernels.duration[open_].sum()) / NANOSECONDS_PER_SECOND
            count = count_of(len(open_), "generated kernel")
            reason = f"the block sizes of {count} ({format_seconds(seconds)}) were not recorded, {why}"
            yield Lack(part="block_sizes", reason=reason)


_FEW_CHANNELS = "and a conversion of few channels has the same launch grid as other kernels"


def _about_operations(places: Places, how: dict[str, str]) -> Iterator[Lack]:
    if not any(recorded.shapes for recorded in places.trace.arguments):
        reason = (
            "shapes were not recorded (record_shapes=True), so only launch grids or the order of kernels show "
            "which tensor was converted"
        )
        yield Lack(part="shapes", reason=reason)
    elif not any(recorded.strides for recorded in places.trace.arguments):
        reason = f"strides were not recorded ({how['strides']}), so conversions by eager copies are not known"
        yield Lack(part="strides", reason=reason)
    if not places.has_frames:
        reason = f"the Python stack was not recorded ({how['stack']}), so no module and no line is named"
        yield Lack(part="stack", reason=reason)


_CALLED_FROM_PYTHON = frozenset({"aten::contiguous", "aten::to", "aten::clone", "aten::copy_"})

_PROOFS = {
    "shapes": "by their operations' arguments, both tensors have the same sizes, and only operations that work in "
    "either format ran between; another tensor of these sizes is possible",
    "grid": "both kernels had the same launch grid, and only operations that work in either format ran between; "
    "another tensor of similar sizes is possible",
    "order": "only operations that work in either format ran between; sizes were not recorded, so another value "
    "cannot be excluded",
}


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """
    The facts that a trace proves.

    Attributes:
        conversions: Eager and generated copies, but no conversions of libraries. A permutation has direction ``none``.
    """

    kernels: KernelSummary
    conversions: tuple[Conversion, ...]
    pairs: tuple[RedundantPair, ...]


def examine_recorded(trace: RecordedTrace, device: str | None = None) -> TraceFacts:
    """
    Derives everything that a trace proves about layouts.

    Args:
        device: The device of the trace; None if not known. On a CPU, operations count as kernels, unless compiled code
            ran; no trace shows the conversions of oneDNN inside them.
    """
    if device == "cpu":
        trace = with_operations_as_kernels(trace)
    evidence = Evidence(attribute(trace))
    copies = find_copies(evidence)
    records, listed = Records(evidence, Places(evidence.attribution), copies), [c for c in copies if c.kind in _CAUSES]
    conversions = [records.library(number, found) for number, found in enumerate(evidence.conversions)]
    padded = [records.padded(number, row) for number, row in enumerate(records.padding)]
    return TraceFacts(
        kernels=records.summary(conversions, padded),
        conversions=tuple(records.copy(number, copy) for number, copy in enumerate(listed)),
        pairs=tuple(records.pair(pair, conversions) for pair in find_pairs(evidence)),
    )


class Records:
    """
    Turns rows of a trace into records.

    Attributes:
        is_eager_copy: Whether each kernel is an eager copy between memory formats.
        is_undecided: Whether each kernel may convert a layout, without proof in the trace.
        unsettled: Rows of the generated kernels for which the trace does not show whether they may convert.
    """

    def __init__(self, evidence: Evidence, places: Places, copies: Sequence[TraceCopy], *, origin: int = 0) -> None:
        self.evidence, self.places, self.origin = evidence, places, origin
        trace, found = evidence.trace, evidence.conversions
        self.trace, self.attribution = trace, evidence.attribution
        self.is_of_a_cpu = trace.source == "kineto_operations"  # then everything ran on the host
        self.is_library = np.zeros(len(trace.kernels), bool)
        self.is_library[[conversion.row for conversion in found]] = True
        self.is_eager_copy = np.zeros(len(trace.kernels), bool)
        self.is_eager_copy[[copy.row for copy in copies if copy.kind == "converted"]] = True
        self.is_undecided = self._has_role("possible")
        self.is_undecided[[copy.row for copy in copies if copy.kind in ("undecided", "generated")]] = True
        self.unsettled = [copy.row for copy in copies if copy.kind == "unsettled"]
        is_copy = self.is_eager_copy.copy()
        is_copy[[copy.row for copy in copies if copy.kind == "generated"]] = True
        self.exposed_total, self.exposed = exposed_nanoseconds(trace, self.is_library)
        _, self.exposed_copies = exposed_nanoseconds(trace, is_copy)
        self.padding: list[int] = np.flatnonzero(self._has_role("padding")).tolist()
        rows = sorted({c.row for c in found} | {c.row for c in copies} | set(self.padding))
        self.locations = dict(zip(rows, self.places.locations(rows), strict=True))
        self.modules = self.places.modules(range(len(trace.kernels)))

    def summary(self, conversions: Sequence[Conversion], padded: Sequence[Conversion]) -> KernelSummary:
        """Makes the kernel list; its conversions are sorted by start."""
        trace = self.trace
        listed = sorted((*conversions, *padded), key=lambda conversion: conversion.start_seconds or 0.0)
        whole = int(trace.kernels.duration.sum()) / NANOSECONDS_PER_SECOND
        spent = self._seconds(self.is_library)
        is_main = np.array([own.is_main for own in self.evidence.classes] or [False])[trace.kernels.name]
        of_convolutions = (np.array(self.evidence.groups, np.int64) != NONE) | is_main
        may_convert = self.is_undecided | self.is_library | self.is_eager_copy
        done = work_by_kind(
            ((work_of(trace.names[name]), is_own) if is_asked else (None, False))
            for name, is_own, is_asked in zip(self.evidence.names, of_convolutions.tolist(), ~may_convert, strict=True)
        )
        done["possible"] = [
            trace.names[name] if self.is_undecided[n] else None for n, name in enumerate(self.evidence.names)
        ]
        return KernelSummary(
            count=len(trace.kernels),
            seconds=whole,
            conversion_count=int(self.is_library.sum()),
            conversion_seconds=spent,
            share=spent / whole if whole else None,
            conversions=tuple(listed),
            not_understood_count=lost_count(trace),
            kernels=kernel_records(self.attribution, self.origin),
            sources=(trace.source,),
            lacks=tuple(describe_lacks(self.places, self.unsettled)),
            undecided_count=int(self.is_undecided.sum()),
            undecided_seconds=self._seconds(self.is_undecided),
            exposed_conversion_seconds=None if self.is_of_a_cpu else self.exposed_total / NANOSECONDS_PER_SECOND,
            convolution_count=int(of_convolutions.sum()) if len(trace.kernels) else None,
            convolution_seconds=self._seconds(of_convolutions) if len(trace.kernels) else None,
            totals=totals_of(self.attribution, {"module": self.modules, **done}, self.is_library),
            waiting=None
            if self.is_of_a_cpu
            else waiting_of(self.attribution, exposed_nanoseconds(trace, may_convert)[0]),
        )

    def _seconds(self, is_asked: NDArray[np.bool_]) -> float:
        return int(self.trace.kernels.duration[is_asked].sum()) / NANOSECONDS_PER_SECOND

    def _has_role(self, role: str) -> NDArray[np.bool_]:
        has: NDArray[np.bool_] = np.array([own.role == role for own in self.evidence.classes] or [False])
        return has[self.trace.kernels.name]

    def _plain(self, id_: str, row: int, *, is_copy: bool = False) -> Conversion:
        """Makes a conversion of a kernel, without tensor, layouts and direction."""
        trace, attribution = self.trace, self.attribution
        step, operation = int(attribution.step[row]), int(attribution.operation[row])
        if is_copy and operation != NONE:
            operation = int(attribution.outermost[operation])
        exposed = int(self.exposed_copies[row] if is_copy else self.exposed[row])
        return Conversion(
            id=id_,
            owner="library",
            kernel=self.evidence.name_of(row),
            node=None,
            op=attribution.name_of(operation) if operation != NONE else None,
            location=self.locations.get(row),
            module=self.modules[row],
            source=None,
            target=None,
            direction="none",
            tensor="unknown",
            seconds=int(trace.kernels.duration[row]) / NANOSECONDS_PER_SECOND,
            bytes_moved=None,
            stream=None if self.is_of_a_cpu else int(trace.kernels.stream[row]),
            start_seconds=(int(trace.kernels.start[row]) - self.origin) / NANOSECONDS_PER_SECOND,
            seconds_source="measured",
            exposed_seconds=None if self.is_of_a_cpu else exposed / NANOSECONDS_PER_SECOND,
            step=attribution.step_names[step] if step != NONE else None,
        )

    def library(self, number: int, found: LibraryConversion) -> Conversion:
        """Makes the record of a library's conversion."""
        tensor = found.tensor
        source, target = _layouts(tensor.shape, found.direction)
        recorded = DTYPES.get(found.dtype or "")
        dtype, target_dtype = dtypes_of(self.evidence.name_of(found.row)) or (recorded, recorded)
        is_buffer = found.direction == "to_channels_last" and tensor.role in _WRITTEN
        return msgspec.structs.replace(
            self._plain(f"conversion {number}", found.row),
            source=source,
            target=target,
            direction=found.direction,
            tensor=tensor.kind,
            bytes_moved=tensor_bytes(source, dtype, target_dtype),
            dtype=dtype,
            target_dtype=target_dtype if target_dtype != dtype else None,
            port=tensor.port,
            cause="the library converts its output buffer before the result is in it" if is_buffer else None,
            source_value=self._value(found),
            confidence=found.confidence,
            of_batch=found.of_batch,
        )

    def _value(self, found: LibraryConversion) -> str | None:
        """A label that all conversions of one tensor share; None unless the sizes prove which tensor was read."""
        role, convolution = found.tensor.role, found.group
        if role in ("unknown", *_WRITTEN) or found.confidence != "shapes" or convolution < 0:
            return None
        if "backward" in self.attribution.name_of(convolution) and role in ("input", "weight"):
            forward = self.places.forward_of(convolution)
            convolution = int(self.attribution.convolution_of[forward]) if forward != NONE else NONE
            if convolution == NONE:
                return None
            arguments = self.attribution.arguments_of(convolution)
            tensors = convolution_tensors(self.attribution.name_of(convolution), arguments)
            if tensors is None or tensors.of_role(role).shape != found.tensor.shape:
                return None
        return f"{role} of {self.attribution.name_of(convolution)} ({convolution})"

    def padded(self, number: int, row: int) -> Conversion:
        """Makes the record of a kernel that only pads or folds channels."""
        cause = "channels are padded or folded, which changes no layout"
        return msgspec.structs.replace(self._plain(f"padding {number}", row), exposed_seconds=None, cause=cause)

    def copy(self, number: int, copy: TraceCopy) -> Conversion:
        """Makes the record of an eager or generated copy."""
        plain = self._plain(f"copy {number}", copy.row, is_copy=True)
        owner = "compiler" if copy.kind == "generated" else "framework"
        if copy.kind != "generated" and plain.op in _CALLED_FROM_PYTHON:
            owner = "user"
        return msgspec.structs.replace(
            plain,
            owner=owner,
            source=copy.source,
            target=copy.target,
            direction=copy.direction,
            cause=_CAUSES[copy.kind],
            confidence="shapes" if copy.source is not None else None,
            graph="recorded",
            exposed_seconds=plain.exposed_seconds if copy.direction != "none" else None,
        )

    def pair(self, pair: TracePair, conversions: Sequence[Conversion]) -> RedundantPair:
        """Makes the record of a round trip."""
        first, second = conversions[pair.first], conversions[pair.second]
        place = second if second.location or second.module else first
        proof = _PROOFS[pair.confidence]
        if norms := [name for name in pair.between if name in CONTIGUOUS_NORMS]:
            proof += f"; but {norms[0]} computes in contiguous_format on a GPU, so it has to be replaced as well"
        return RedundantPair(
            kind="through" if pair.between else "adjacent",
            evidence="kernels",
            first=first.id,
            second=second.id,
            between=tuple(_short(name) for name in pair.between),
            seconds=sum_if_all_known(first.seconds, second.seconds),
            bytes_moved=sum_if_all_known(first.bytes_moved, second.bytes_moved),
            location=place.location or first.location,
            module=place.module,
            proof=proof,
            tensor_shape=pair.shape or None,
            seconds_source="measured",
            confidence=pair.confidence,
            exposed_seconds=sum_if_all_known(first.exposed_seconds, second.exposed_seconds),
        )


_CAUSES: dict[CopyKind, str | None] = {
    "converted": None,
    "permuted": "permutes dimensions, which is no change between memory formats",
    "generated": "the generated kernel runs in two dimensions, as a layout conversion usually does",
}
"""The cause of a copy, by its kind; copies of other kinds are not listed as conversions."""

_WRITTEN = ("output", "grad_input", "grad_weight")


def _short(name: str) -> str:
    """An operation's name, or a kernel's name without return type, template arguments and parameters."""
    plain = name.removeprefix("void ")
    ends = [place for place in (plain.find("<"), plain.rfind("(")) if place > 0]
    return plain[: min(ends)] if ends and " " in name else plain


def _layouts(shape: Shape, direction: str) -> tuple[Layout | None, Layout | None]:
    """Layouts before and after a conversion between the two dense formats; None if sizes or direction are not known."""
    if not shape or direction not in ("to_channels_last", "to_contiguous"):
        return None, None
    contiguous = strided_layout(shape, contiguous_stride(shape))
    last = strided_layout(shape, dense_stride(shape, (0, *range(2, len(shape)), 1)))
    return (contiguous, last) if direction == "to_channels_last" else (last, contiguous)
