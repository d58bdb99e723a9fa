"""
How findings say things: ratios with their interval, costs with what they are a part of, layouts and places in words.

Faces the rules; pure functions of records and numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.rules.evidence import is_baseline, ratio_of, share_of_kernels, sum_bytes, sum_known
from layoutdoctor.units import format_bytes, format_ratio, format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutdoctor.records import (
        Conversion,
        CostSource,
        Diagnosis,
        RatioInterval,
        Speedup,
        Trial,
    )


def speed_words(ratio: RatioInterval, baseline: str) -> str:
    """
    What was measured: ``"eager runs at 0.61x the speed of inductor (99 % interval 0.60x to 0.62x)"``.

    Args:
        ratio: Against the baseline.
        baseline: Name of the baseline.
    """
    ends = f"{format_ratio(ratio.low)} to {format_ratio(ratio.high)}"
    kind = "range" if ratio.coverage is None else f"{format_share(ratio.coverage)} interval"
    return f"{ratio.name} runs at {format_ratio(ratio.median)} the speed of {baseline} ({kind} {ends})"


def speedup_words(speedup: Speedup) -> str:
    """
    A gain that was measured again after the choice: ``"1.28x faster (1.25x to 1.31x)"``.

    Args:
        speedup: Against the baseline.
    """
    return f"{format_ratio(speedup.median)} faster ({format_ratio(speedup.low)} to {format_ratio(speedup.high)})"


def cost_words(trial: Trial, seconds: float | None, source: str | None = None) -> str | None:
    """
    A cost and what it is a part of: ``"6.00 ms of 15.0 ms kernel time (40 %)"``; None where it was not measured.

    Args:
        trial: The trial it was measured in.
        seconds: The cost.
        source: Where the number is from, in words, such as ``"estimated"``; it is said beside the share.
    """
    if seconds is None:
        return None
    share = share_of_kernels(trial, seconds)
    if share is None or trial.kernels is None or trial.kernels.seconds is None:
        return format_seconds(seconds) + (f" ({source})" if source else "")
    remarks = ", ".join(part for part in (format_share(share), source) if part)
    return f"{format_seconds(seconds)} of {format_seconds(trial.kernels.seconds)} kernel time ({remarks})"


def source_words(sources: Iterable[CostSource | None]) -> str | None:
    """
    Whether a sum of costs is ``"measured"``, ``"estimated"`` or ``"partly estimated"``; None where that is not known.

    Args:
        sources: Those of its parts.
    """
    known = set(sources)
    if known == {"estimated"}:
        return "estimated"
    if "estimated" in known:
        return "partly estimated"
    return "measured" if known == {"measured"} else None


def estimate_words(conversions: Iterable[Conversion]) -> str | None:
    """
    Whether what conversions cost is an estimate, in part or as a whole; None where nothing says so.

    Args:
        conversions: Any.
    """
    words = source_words(c.seconds_source for c in conversions if c.seconds is not None)
    return None if words == "measured" else words


def conversion_cost_words(trial: Trial, conversions: Sequence[Conversion]) -> str | None:
    """
    What conversions cost: their time where recorded, else what they move; None where neither is known.

    Args:
        trial: The trial they are in.
        conversions: Any.
    """
    seconds = sum_known(conversion.seconds for conversion in conversions)
    if seconds is not None:
        return cost_words(trial, seconds, estimate_words(conversions))
    moved = sum_bytes(conversion.bytes_moved for conversion in conversions)
    return None if moved is None else f"{format_bytes(moved)} moved"


def alternative_words(diagnosis: Diagnosis, trial: Trial, other: Trial) -> str:
    """
    What was measured of a better trial, beside the one a finding is about.

    Args:
        diagnosis: A diagnosis with a comparison.
        trial: The trial the finding is about.
        other: The better one.
    """
    baseline = diagnosis.comparison.baseline if diagnosis.comparison is not None else ""
    names = [name for name in (other.name, trial.name) if not is_baseline(diagnosis, name)]
    ratios = [ratio for name in names if (ratio := ratio_of(diagnosis, name)) is not None]
    return " and ".join(speed_words(ratio, baseline) for ratio in ratios)
