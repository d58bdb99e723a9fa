"""
Whether one run loses more to layouts than another, beyond what two recordings of the same thing differ by.

Only conversions and round trips are judged: a longer kernel time alone may have any cause. Faces ``trace_comparison``
and ``model_comparison``; pure functions of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.units import format_seconds, format_significant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from layoutdoctor.comparison_records import CostTotals
    from layoutdoctor.records import Conversion

TIME_TOLERANCE = 0.10
"""Conversions that take longer by less than this part may be the same ones at another clock rate of the device."""

LEAST_SHARE = 0.001
"""Further conversion time below this part of the kernel time is nothing that a run could be worse by."""

COUNT_TOLERANCE = 0.5
"""More round trips, or conversions, per step by less than this are those of a step that was recorded in part."""

CLOCK_TICK = 1e-6
"""Where a trace has whole microseconds only, each of its durations may be off by as much."""

_TICK_PRECISION = 1e-3  # of a microsecond; a duration nearer than this to a whole one counts as whole


def layout_losses(
    old: CostTotals, new: CostTotals, *, resolution_seconds: float, judges_time: bool, judges_round_trips: bool
) -> tuple[str, ...]:
    """
    What the new run loses more to layouts than the old one, one sentence each.

    Args:
        old: What the old run spent, per step, per iteration or in all.
        new: The same of the new run.
        resolution_seconds: What the sum of all conversions may be off by, as the recorder's clock is no finer.
        judges_time: Whether seconds may be compared: False for two devices, where conversions are counted instead.
        judges_round_trips: Whether both runs recorded what round trips are found by.
    """
    return tuple(
        _losses(
            old,
            new,
            resolution_seconds=resolution_seconds,
            judges_time=judges_time,
            judges_round_trips=judges_round_trips,
        )
    )


def _losses(
    old: CostTotals, new: CostTotals, *, resolution_seconds: float, judges_time: bool, judges_round_trips: bool
) -> Iterator[str]:
    if judges_time and old.conversion_seconds is not None and new.conversion_seconds is not None:
        least = max(TIME_TOLERANCE * old.conversion_seconds, LEAST_SHARE * (new.kernel_seconds or 0.0))
        if new.conversion_seconds - old.conversion_seconds > least + resolution_seconds:
            yield (
                f"layout conversions take {format_seconds(new.conversion_seconds)} instead of "
                f"{format_seconds(old.conversion_seconds)}"
            )
    elif _is_more(old.conversion_count, new.conversion_count):
        yield _more("layout conversion", old.conversion_count, new.conversion_count)
    if judges_round_trips and _is_more(old.redundant_pair_count, new.redundant_pair_count):
        yield _more("round trip", old.redundant_pair_count, new.redundant_pair_count)


def _more(what: str, old: float, new: float) -> str:
    return f"{format_count(new)} {what}{'' if new == 1 else 's'} instead of {format_count(old)}"


def clock_resolution(conversions: Iterable[Conversion]) -> float:
    """
    What the summed seconds of conversions may be off by, as their recorder's clock is no finer.

    Args:
        conversions: Those of one run.

    Returns:
        Seconds; zero where any duration is no whole number of microseconds.
    """
    launches = 0
    for conversion in conversions:
        ticks = (conversion.seconds or 0.0) / CLOCK_TICK
        if abs(ticks - round(ticks)) > _TICK_PRECISION:
            return 0.0
        launches += conversion.count
    return launches * CLOCK_TICK


def format_count(count: float) -> str:
    """
    A count that may be one per step: ``"53"``, ``"17.7"``.

    Args:
        count: Zero or more.
    """
    return str(round(count)) if float(count).is_integer() else format_significant(count)


def _is_more(old: float, new: float) -> bool:
    return new - old >= COUNT_TOLERANCE
