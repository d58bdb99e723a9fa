"""Counts and sums of a kernel list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis import Conversion, Kernel, KernelSummary, Lack, SourceKind

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import KernelTotals, RecordedTrace


def lost_count(events: RecordedTrace | KernelTotals) -> int:
    """The number of events or lines that could not be read."""
    return sum(problem.count for problem in events.problems if problem.is_loss)


def summarize(
    kernels: Sequence[Kernel],
    conversions: Sequence[Conversion],
    not_understood: int,
    sources: Sequence[SourceKind],
    lacks: Sequence[Lack],
) -> KernelSummary:
    """
    Makes the summary of a kernel list, with its counts and sums.

    Args:
        conversions: The conversions among the kernels, including conversions that change no layout.
        not_understood: Number of lines and events that could not be read; conversions of unknown layouts are added.
    """
    not_understood += sum(conversion.source is None or conversion.target is None for conversion in conversions)
    real = [conversion for conversion in conversions if conversion.direction != "none"]
    seconds = sum(kernel.seconds or 0.0 for kernel in kernels)
    spent = sum(conversion.seconds or 0.0 for conversion in real)
    return KernelSummary(
        count=len(kernels),
        seconds=seconds,
        conversion_count=len(real),
        conversion_seconds=spent,
        share=min(1.0, spent / seconds) if seconds > 0 else None,
        conversions=tuple(conversions),
        not_understood_count=not_understood,
        kernels=tuple(kernels),
        sources=tuple(sources),
        lacks=tuple(lacks),
    )
