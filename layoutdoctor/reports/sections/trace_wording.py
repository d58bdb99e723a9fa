"""
What the reports of an examined trace share: how they call what the file holds, and the sums over its conversions.

Faces the other modules of reports for traces; imports records, units and the sums only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import counted_conversions, sum_seconds
from layoutdoctor.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutdoctor.records import Confidence, Conversion, ConversionDirection, Diagnosis, Trial

KINETO_TRACE = "Kineto trace"
TOTALS_TABLE = "table of kernel totals"
ONEDNN_LOG = "oneDNN verbose log"

DIRECTION_WORDS: dict[ConversionDirection, str] = {
    "to_channels_last": "to channels_last",
    "to_contiguous": "to contiguous",
    "to_blocked": "to a blocked layout",
    "from_blocked": "from a blocked layout",
    "other": "other",
    "none": "no layout change",
}
CONFIDENCE_WORDS: dict[Confidence | None, str] = {
    "shapes": "shapes",
    "grid": "launch grid",
    "order": "order of kernels",
    None: "kernel name",
}


@dataclass(frozen=True, slots=True)
class Terms:
    """
    How a report calls what a file holds.

    Attributes:
        file: The file: ``trace``, ``table`` or ``log``.
        kernel: One entry of its list: ``kernel`` or ``primitive``.
        time: The time of all of them together, as it stands behind a number: ``recorded GPU time``.
    """

    file: str
    kernel: str
    time: str


def terms_of(diagnosis: Diagnosis) -> Terms:
    """
    The words that fit the file a diagnosis was made from.

    Args:
        diagnosis: One of a trace.
    """
    sources = {source for trial in diagnosis.trials if trial.kernels for source in trial.kernels.sources}
    if ONEDNN_LOG in sources:
        return Terms("log", "primitive", "logged time")
    if TOTALS_TABLE in sources:
        return Terms("table", "kernel", "kernel time in the table")
    return Terms("trace", "kernel", "recorded kernel time" if is_on_cpu(diagnosis) else "recorded GPU time")


def is_on_cpu(diagnosis: Diagnosis) -> bool:
    """
    Whether the file says that it was recorded on a CPU.

    Args:
        diagnosis: One of a trace.
    """
    return diagnosis.subject.device == "cpu"


def recorded_trial(diagnosis: Diagnosis) -> Trial | None:
    """
    What was recorded; None where the file could not be examined.

    Args:
        diagnosis: One of a trace.
    """
    return next((trial for trial in diagnosis.trials if trial.status == "ok"), None)


def conversion_seconds(trial: Trial) -> float | None:
    """
    Time of all conversions that change a layout, whoever made them; None where one has no time.

    Args:
        trial: The recorded one.
    """
    return sum_seconds(counted_conversions(trial))


def exposed_seconds(trial: Trial) -> float | None:
    """
    The part of ``conversion_seconds`` in which nothing else ran on the device; None where not known for all.

    Args:
        trial: The recorded one.

    Returns:
        What libraries and others left exposed never overlaps, as each ran alone, so the two are added.
    """
    counted = counted_conversions(trial)
    parts = [conversion.exposed_seconds for conversion in counted if conversion.owner != "library"]
    if trial.kernels is not None and any(conversion.owner == "library" for conversion in counted):
        parts.append(trial.kernels.exposed_conversion_seconds)
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def alone_clause(exposed: float | None, whole: float | None) -> str:
    """
    How much of a time was spent with nothing else running, with a comma before it; empty where not known.

    Args:
        exposed: That part, in seconds.
        whole: The time, in seconds.
    """
    if exposed is None or not whole:
        return ""
    if exposed <= 0:
        return ", always with something else running"
    part = "all" if format_seconds(exposed) == format_seconds(whole) else f"{format_seconds(exposed)} of that"
    return f", {part} with nothing else running"


def precise_share(part: float, whole: float) -> str:
    """
    A share with one decimal, also where it is large: ``"26.6 %"``.

    Args:
        part: The part, in seconds.
        whole: The whole, in seconds, above zero.
    """
    return f"{100 * part / whole:.1f} %"


def seconds_clause(conversions: Iterable[Conversion]) -> str:
    """
    The time of some conversions with a comma before it; empty where one has no time.

    Args:
        conversions: Any.
    """
    seconds = sum_seconds(conversions)
    return "" if seconds is None else f", {format_seconds(seconds)}"
