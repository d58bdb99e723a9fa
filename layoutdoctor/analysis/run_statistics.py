"""
Statistics between two runs: rounds are paired within a run, never across two of them.

Two diagnoses were measured in different processes, perhaps on different days. What stands here is one interval for the
ratio of two medians, from two independent samples, that needs no assumption on how times are distributed:

- each median gets its order-statistic interval at half of the error, and the two are divided end by end, so that the
  ratio is covered at least as often as asked for (Bonferroni on the log scale);
- rounds that hang together count for fewer than they are: neighbours do not tell as much as strangers.

Exchanging old and new gives exactly the reciprocal interval. Faces ``time_changes``; pure functions of numbers.

Source:
    Order-statistic interval of a median: David and Nagaraja, Order Statistics, 3rd edition, 7.1. The variance of the
    median of dependent values is that of independent ones times the integrated autocorrelation time of the signs
    (above or below the median), as the median's influence function is that sign; its estimate sums autocorrelations up
    to where a pair of neighbours is lost in their noise (after Geyer, Practical Markov Chain Monte Carlo, 1992, 3.3,
    who sums to where it is no longer positive: in a few dozen independent rounds that halves their number by chance).
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

from layoutdoctor.analysis.comparison import COVERAGE, LEAST_COVERAGE, ratios_left_out
from layoutdoctor.comparison_records import RatioBounds
from layoutdoctor.records import FASTER, NO_DIFFERENCE, SLOWER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.records import Verdict

_SIDES = 2  # both medians have an interval, and either may miss


class _MedianBounds(NamedTuple):
    low: float
    median: float
    high: float
    coverage: float | None


def ratio_of_medians(old: Sequence[float], new: Sequence[float], *, interval_count: int) -> RatioBounds:
    """
    The median of one run over that of another, with an interval for the true ratio.

    Args:
        old: Positive values of the old run, in round order, at least one.
        new: Positive values of the new run, likewise.
        interval_count: Intervals that are to hold together; the error allowed is shared among them.

    Returns:
        Ends that hold together with ``COVERAGE``, with ``LEAST_COVERAGE`` where the rounds are too few for that; with
        coverage None, and ends from smallest over largest to largest over smallest, where they are too few for either.

    Raises:
        ValueError: A run has no value, or one that is not positive and finite.
    """
    for values in (old, new):
        if not values or not all(0 < value < math.inf for value in values):
            raise ValueError("cannot compare medians of values that are none, or not positive and finite")
    for coverage in (COVERAGE, LEAST_COVERAGE):
        single = 1 - (1 - coverage) / (_SIDES * interval_count)
        before, after = median_bounds(old, single), median_bounds(new, single)
        if before.coverage is not None and after.coverage is not None:
            return _quotient(before, after, coverage)
    return _quotient(before, after, None)


def rounds_needed_between_runs(interval_count: int) -> int:
    """
    Rounds of each run below which no interval for a ratio of medians can be had, however steady the times.

    Args:
        interval_count: Intervals that are to hold together.
    """
    single = 1 - (1 - LEAST_COVERAGE) / (_SIDES * interval_count)
    count = 1
    while ratios_left_out(count, single) is None:
        count += 1
    return count


def median_bounds(values: Sequence[float], coverage: float) -> _MedianBounds:
    """
    A distribution-free interval for the median that values in time order were drawn around.

    Args:
        values: Positive numbers in round order, at least one.
        coverage: How often the interval is to cover the true median, at least.

    Returns:
        Smallest to largest with coverage None where there are too few values, or they hang together too much.
    """
    ordered = sorted(values)
    count, effective = len(ordered), effective_count(values)
    # The geometric middle of the two middle values: its reciprocal is the middle of the reciprocals.
    lower, upper = ordered[(count - 1) // 2], ordered[count // 2]
    median = lower * math.sqrt(upper / lower)
    left_out = ratios_left_out(effective, coverage)
    if left_out is None:
        return _MedianBounds(ordered[0], median, ordered[-1], None)
    # The same share of the values is left out as of so many independent ones.
    rank = left_out * count // effective
    return _MedianBounds(ordered[rank], median, ordered[-1 - rank], coverage)


def effective_count(values: Sequence[float]) -> int:
    """
    How many independent values tell as much about the median as these do.

    Args:
        values: Numbers in the order of time.

    Returns:
        At least 1, at most as many as there are.
    """
    count = len(values)
    if count < 2:
        return count
    median = statistics.median(values)
    signs = [(value > median) - (value < median) for value in values]
    power = sum(sign * sign for sign in signs)
    if not power:  # all values are equal: nothing hangs together, nothing scatters
        return count

    def correlation(lag: int) -> float:
        return sum(signs[index] * signs[index + lag] for index in range(count - lag)) / power

    noise = math.sqrt(2 / count)  # what such a pair scatters by where nothing hangs together
    time = 1.0
    for lag in range(1, count - 1, 2):
        pair = correlation(lag) + correlation(lag + 1)
        if pair <= noise:
            break
        time += 2 * pair
    return max(min(int(count / time), count), 1)


def mean_of_bounds(ratios: Sequence[RatioBounds]) -> RatioBounds:
    """
    The geometric mean of several ratios whose intervals hold together: it lies between the means of their ends then.

    Args:
        ratios: At least one.

    Returns:
        With the lowest coverage among them; None where one of them has none.
    """
    coverages = [ratio.coverage for ratio in ratios if ratio.coverage is not None]
    return RatioBounds(
        low=statistics.geometric_mean(ratio.low for ratio in ratios),
        median=statistics.geometric_mean(ratio.median for ratio in ratios),
        high=statistics.geometric_mean(ratio.high for ratio in ratios),
        coverage=min(coverages) if len(coverages) == len(ratios) else None,
    )


def judge(bounds: RatioBounds, resolution: float) -> Verdict | None:
    """
    What may be said of a ratio: its interval has to be clear of 1 by the resolution.

    Args:
        bounds: Old over new: above 1 is faster.
        resolution: Smallest relative difference that is called one; 0.05 is 5 %.

    Returns:
        None where there were too few rounds for any verdict.
    """
    if bounds.coverage is None:
        return None
    if bounds.low > 1 + resolution:
        return FASTER
    # The mirror image of the line above, so that exchanging old and new exchanges the verdicts.
    return SLOWER if 1 / bounds.high > 1 + resolution else NO_DIFFERENCE


def _quotient(old: _MedianBounds, new: _MedianBounds, coverage: float | None) -> RatioBounds:
    return RatioBounds(
        low=old.low / new.high, median=old.median / new.median, high=old.high / new.low, coverage=coverage
    )
