"""
Makes a kernel list of a oneDNN log.

The log names no operations. A reorder belongs to the convolution before or after it if a tensor of this convolution has
the reorder's sizes and format. For other reorders, layouts and times are known, but not the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis import Conversion, Creations, Kernel, KernelSummary, Lack
from layoutdoctor.examination.kernels.placing import add_primitive
from layoutdoctor.examination.kernels.primitives import annotate_sequence, describe, problem_shapes
from layoutdoctor.examination.kernels.sums import summarize
from layoutdoctor.examination.kernels.totals import added_up
from layoutdoctor.recording.onednn import is_engine
from layoutdoctor.units import format_seconds
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from layoutdoctor.examination.kernels.primitives import AnnotatedPrimitive
    from layoutdoctor.recording.onednn import OnednnLog, Primitive

_CONVOLUTIONS = ("convolution", "deconvolution")


_MOST_REORDERS_OF_TWO_CONVOLUTIONS = 8
"""The most reorders in a row between two convolutions: for results of the first and arguments of the second."""


def summarize_log(log: OnednnLog) -> KernelSummary:
    """
    Makes the kernel list of a log: each executed primitive is a kernel, each reorder also a conversion.

    Returns:
        The kernel list. Its ``totals`` are by kind of primitive. Its ``convolution_seconds`` is a lower bound: the time
        of convolutions, and of the reorders that are known to belong to a convolution.
    """
    annotated, of_convolutions = _placed(log.primitives)
    origin = min((item.start_seconds for item in log.primitives if item.start_seconds is not None), default=0.0)
    kernels: list[Kernel] = []
    conversions: list[Conversion] = []
    for item in annotated:
        add_primitive(kernels, conversions, item, None, origin)
    # A log line has the sizes and both formats: if they could be read, they prove the direction.
    conversions = [
        msgspec.structs.replace(c, confidence="shapes" if c.source and c.target else None) for c in conversions
    ]
    if log.has_timestamps:
        kernels.sort(key=lambda kernel: kernel.start_seconds or 0.0)
    own = [primitive for primitive, is_own in zip(log.primitives, of_convolutions, strict=True) if is_own]
    unplaced = sum(conversion.tensor == "unknown" and conversion.direction != "none" for conversion in conversions)
    lacks = tuple(_logged_lacks(log, unplaced))
    summary = summarize(kernels, conversions, len(log.not_understood), ("onednn_log",), lacks)
    spent = [(1, item.primitive.seconds, item.direction != "none") for item in annotated]
    totals = added_up({"kernel": [item.primitive.kind for item in annotated]}, spent, unit=1.0)
    return msgspec.structs.replace(
        summary,
        convolution_count=len(own),
        convolution_seconds=sum(primitive.seconds for primitive in own),
        totals=tuple(msgspec.structs.replace(total, library="onednn") for total in totals),
        creations=_creations(log),
    )


def _creations(log: OnednnLog) -> Creations | None:
    whole = [creation for creation in log.creations if not creation.how.startswith("create_nested")]
    if not whole:
        return None
    missed = [creation for creation in whole if not creation.how.endswith("cache_hit")]
    longest = max(whole, key=lambda creation: creation.seconds)
    fields = longest.primitive.split(",")
    return Creations(
        count=len(missed),
        distinct_count=len({creation.primitive for creation in missed}),
        hit_count=len(whole) - len(missed),
        seconds=sum(creation.seconds for creation in whole),
        longest=f"{next((text for text in fields if not is_engine(text)), '')} {fields[-1]}",
        longest_seconds=longest.seconds,
    )


def _logged_lacks(log: OnednnLog, unplaced: int) -> Iterator[Lack]:
    reason = "a oneDNN log names no operations, modules or lines; record with torch.profiler for those"
    yield Lack(part="operations", reason=reason)
    if unplaced:
        reason = (
            f"the tensors that {unplaced} of the reorders convert are not known: no convolution beside them in the "
            "log has a tensor of that size and format"
        )
        yield Lack(part="tensors", reason=reason)
    if log.primitives and not log.has_timestamps:
        yield Lack(part="times", reason="when each primitive ran; log with ONEDNN_VERBOSE_TIMESTAMP=1")
    if log.partition_seconds:
        seconds = format_seconds(sum(log.partition_seconds))
        count = count_of(len(log.partition_seconds), "partition")
        reason = f"what ran inside {count} of oneDNN Graph ({seconds}), unless the log lists it separately"
        yield Lack(part="kernels_of_library", reason=reason)
    if log.errors:
        reason = f"oneDNN reports {count_of(len(log.errors), 'error')}, first: {log.errors[0]}"
        yield Lack(part="kernels_of_library", reason=reason)


def _placed(primitives: Sequence[Primitive]) -> tuple[list[AnnotatedPrimitive], list[bool]]:
    """Every primitive with the tensor that it converts, and whether each primitive ran for a convolution."""
    annotated = [describe(primitive) for primitive in primitives]
    of_convolutions = [primitive.kind in _CONVOLUTIONS for primitive in primitives]
    for is_reorder, run in groupby(range(len(primitives)), lambda index: primitives[index].kind == "reorder"):
        own = list(run)
        if not is_reorder or len(own) > _MOST_REORDERS_OF_TWO_CONVOLUTIONS:
            continue
        # Without the sizes of a convolution, a reorder would be matched by format alone, which is not enough.
        beside = [i for i in (own[0] - 1, own[-1] + 1) if 0 <= i < len(primitives) and problem_shapes(primitives[i])]
        chosen = sorted((*own, *beside))
        for index, item in zip(chosen, annotate_sequence([primitives[i] for i in chosen]), strict=True):
            if item.tensor != "unknown" and item.primitive.shape is not None:
                annotated[index], of_convolutions[index] = item, True
    return annotated, of_convolutions
