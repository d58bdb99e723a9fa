"""
Paired statistics: which configuration is faster than which, and when nothing may be said.

Times come in rounds; configurations took turns within each round, so the ratio of two of them is judged round by round
and what the machine did meanwhile (heat, other processes) falls out.
"""

from __future__ import annotations

import itertools
import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from layoutdoctor.diagnosis.records import FASTER, NO_DIFFERENCE, SLOWER, Comparison, RatioInterval, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from layoutdoctor.diagnosis.comparison import RatioBounds
    from layoutdoctor.units import Seconds

# All intervals of one comparison cover their true ratios together at least this often (1 % error for the family)...
COVERAGE = 0.99
# ...or, where the rounds are too few for that, at least this often: below it, no verdict.
LEAST_COVERAGE = 0.95
# Two copies of one model differ by up to about 1 %, for as long as they live, through where their memory lies: a real
# difference that says nothing of the layout. benchmarks/README.md has the figures.
RESOLUTION = 0.01
COVERAGE_OF_STARTS = 0.95
# Of Student's t for that, two-sided, by the number of values.
_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}


class MedianInterval(NamedTuple):
    """Ends and median of some ratios, and how often such an interval covers the true median; None: too few ratios."""

    low: float
    median: float
    high: float
    coverage: float | None

    @property
    def relative_width(self) -> float:
        """How far the upper end is above the lower one, as a share of the lower one."""
        return self.high / self.low - 1


def paired_ratio(
    name: str,
    baseline_seconds: Sequence[Seconds],
    candidate_seconds: Sequence[Seconds],
    *,
    coverage: float = COVERAGE,
    resolution: float = RESOLUTION,
) -> RatioInterval:
    """
    How many times faster than the baseline a candidate is, judged round by round.

    Args:
        baseline_seconds: One time per round, in round order; seconds, above 0.
        candidate_seconds: The same rounds for the candidate; where it was dropped early, the rounds both share count.
        coverage: How often the interval is to cover the true median, at least; between 0 and 1.

    Returns:
        Median of the ratios baseline / candidate, above 1 where the candidate is faster, with a distribution-free
        interval. Too few rounds for the coverage: the interval is smallest to largest ratio, its coverage None, and the
        verdict "no measurable difference".

    Raises:
        ValueError: No round is shared, or a time is not positive and finite.

    Source:
        Order-statistic interval for a median; for 20 rounds the 6th smallest to the 6th largest ratio covers 95.9 %.
    """
    interval = median_interval(round_ratios(baseline_seconds, candidate_seconds), coverage)
    return RatioInterval(
        name=name,
        low=interval.low,
        median=interval.median,
        high=interval.high,
        verdict=judge(interval, resolution) or NO_DIFFERENCE,
        coverage=interval.coverage,
        round_count=min(len(baseline_seconds), len(candidate_seconds)),
    )


def compare(
    times: Mapping[str, Sequence[Seconds]],
    baseline: str,
    *,
    eligible: Collection[str] | None = None,
    resolution: float = RESOLUTION,
) -> Comparison | None:
    """
    All configurations against the baseline, and which are fastest.

    All intervals, and the choice of the fastest, hold together with ``COVERAGE``: the error allowed is divided by
    the number of pairs that could be compared (Bonferroni over all pairs, because which one is the best is itself read
    from the data). So in at most 1 % of comparisons is any verdict wrong; in at most 5 % where the rounds are too few
    for that. Where they are too few for that as well, all are tied.

    Args:
        eligible: Those that may be recommended, because their outputs are right; None for all.

    Returns:
        None where the baseline has no times or nothing else has. ``fastest`` holds the eligible configuration with the
        best median and those not measurably slower than it, judged against it and not against the baseline. First
        stands the baseline where it is among them (no reason to change), else the best; the others follow by median.
    """
    measured = {name: seconds for name, seconds in times.items() if len(seconds)}
    if baseline not in measured or len(measured) < 2:
        return None
    ratios = tuple(
        _family_ratio(name, measured[baseline], seconds, len(measured), resolution)
        for name, seconds in measured.items()
        if name != baseline
    )
    speed = {baseline: 1.0, **{ratio.name: ratio.median for ratio in ratios}}
    allowed = [name for name in speed if eligible is None or name in eligible]
    return Comparison(
        baseline=baseline,
        ratios=ratios,
        fastest=_fastest(measured, sorted(allowed, key=lambda name: -speed[name]), baseline, resolution),
        resolution=resolution,
        round_count=max(len(seconds) for seconds in measured.values()),
    )


def round_ratios(baseline_seconds: Sequence[Seconds], candidate_seconds: Sequence[Seconds]) -> list[float]:
    """
    Baseline over candidate for every round both have, in round order.

    Args:
        baseline_seconds: One time per round; seconds, above 0.
        candidate_seconds: The same rounds for the candidate.

    Raises:
        ValueError: No round is shared, or a time is not a positive finite number.
    """
    shared = min(len(baseline_seconds), len(candidate_seconds))
    if shared == 0:
        raise ValueError("cannot compare two configurations that share no round; measure both in the same rounds")
    for seconds in (*baseline_seconds[:shared], *candidate_seconds[:shared]):
        if not 0 < seconds < math.inf:
            raise ValueError(f"cannot compare times that hold {seconds!r} s: expected positive, finite seconds")
    return [b / c for b, c in zip(baseline_seconds[:shared], candidate_seconds[:shared], strict=True)]


def median_ratio(baseline_seconds: Sequence[Seconds], candidate_seconds: Sequence[Seconds]) -> float:
    """The middle of ``round_ratios``."""
    return median_interval(round_ratios(baseline_seconds, candidate_seconds), COVERAGE).median


def interval_over_starts(ratios: Sequence[float]) -> tuple[float, float, float]:
    """
    Low end, geometric middle and high end of what several starts showed, covering the true one 95 times of 100.

    Args:
        ratios: One per start, 2 to 6 of them, above 0. From start to start they scatter by where memory happens to lie,
            which is as good as normal; too few for an interval without that assumption.

    Source:
        Student's t on the logarithms.
    """
    logarithms = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logarithms)
    half = _STUDENT[len(ratios)] * statistics.stdev(logarithms) / math.sqrt(len(ratios))
    return math.exp(middle - half), math.exp(middle), math.exp(middle + half)


def median_interval(ratios: Sequence[float], coverage: float, effective_count: int | None = None) -> MedianInterval:
    """
    A distribution-free interval for the median the ratios were drawn around.

    Args:
        ratios: Positive numbers, at least one, one per round.
        coverage: How often the interval is to cover the true median, at least.
        effective_count: As how many independent ones they count; None where they do not hang together.

    Returns:
        Smallest to largest with coverage None where the ratios are too few. Exchanging the two sides of every ratio
        gives exactly the reciprocal interval, so no comparison depends on which side is called the baseline.
    """
    ordered = sorted(ratios)
    count = len(ordered)
    # The geometric middle of the two middle ratios: its reciprocal is the middle of the reciprocals.
    lower, upper = ordered[(count - 1) // 2], ordered[count // 2]
    median = lower * math.sqrt(upper / lower)
    effective = count if effective_count is None else effective_count
    left_out = ratios_left_out(effective, coverage)
    if left_out is None:
        return MedianInterval(ordered[0], median, ordered[-1], None)
    # The same share of the values is left out as of so many independent ones.
    rank = left_out * count // effective
    return MedianInterval(ordered[rank], median, ordered[-1 - rank], coverage)


def family_coverage(coverage: float, configuration_count: int) -> float:
    """
    Coverage for one interval, so that those of all pairs hold together with the given coverage (Bonferroni).

    Args:
        coverage: Wanted for all pairs together, between 0 and 1.
        configuration_count: Configurations compared with each other, at least 2.
    """
    return 1 - (1 - coverage) / math.comb(configuration_count, 2)


def rounds_needed(coverage: float, configuration_count: int) -> int:
    """
    Rounds below which no interval can have the coverage, however steady the times.

    Args:
        coverage: Wanted for all pairs together, between 0 and 1.
        configuration_count: Configurations compared with each other, at least 2.
    """
    return fewest_rounds(family_coverage(coverage, configuration_count))


def fewest_rounds(coverage: float) -> int:
    """Rounds below which no single interval has the coverage."""
    return next(count for count in itertools.count(1) if ratios_left_out(count, coverage) is not None)


def _family_ratio(
    name: str,
    baseline_seconds: Sequence[Seconds],
    candidate_seconds: Sequence[Seconds],
    configuration_count: int,
    resolution: float,
) -> RatioInterval:
    # How far to lower the demand depends on the number of rounds alone, never on what they say.
    shared = min(len(baseline_seconds), len(candidate_seconds))
    wanted = COVERAGE if shared >= rounds_needed(COVERAGE, configuration_count) else LEAST_COVERAGE
    single = family_coverage(wanted, configuration_count)
    ratio = paired_ratio(name, baseline_seconds, candidate_seconds, coverage=single, resolution=resolution)
    # What is promised is that all hold together; alone, each holds more often.
    return ratio if ratio.coverage is None else msgspec.structs.replace(ratio, coverage=wanted)


def _fastest(
    measured: Mapping[str, Sequence[Seconds]],
    by_speed: Sequence[str],
    baseline: str,
    resolution: float,
) -> tuple[str, ...]:
    if not by_speed:
        return ()
    best, *others = by_speed
    ratios = (_family_ratio(name, measured[best], measured[name], len(measured), resolution) for name in others)
    tied = [best, *(ratio.name for ratio in ratios if ratio.verdict != SLOWER)]
    return tuple(sorted(tied, key=lambda name: name != baseline))


def judge(interval: MedianInterval | RatioBounds, resolution: float) -> Verdict | None:
    """
    What may be said of a ratio: its interval has to be clear of 1 by the resolution.

    Args:
        interval: Of ratios that are above 1 where the candidate is faster.
        resolution: Smallest relative difference that is called one; 0.05 is 5 %.

    Returns:
        None where there were too few rounds for any verdict.
    """
    if interval.coverage is None:
        return None
    if interval.low > 1 + resolution:
        return FASTER
    # The mirror image of the line above, so that exchanging the two sides exchanges the verdicts.
    return SLOWER if 1 / interval.high > 1 + resolution else NO_DIFFERENCE


def ratios_left_out(count: int, coverage: float) -> int | None:
    """
    How many extreme values may be dropped on each side of an order-statistic interval for a median.

    Args:
        coverage: How often the interval is to cover the true median, at least.

    Returns:
        None where even smallest to largest covers too little.
    """
    error = 1 - coverage
    # Each true median lies outside the interval when too few of the coin flips "above or below" fall on one side.
    beyond = 2 * 0.5**count
    if beyond > error:
        return None
    left_out = 0
    while beyond + 2 * math.comb(count, left_out + 1) * 0.5**count <= error:
        left_out += 1
        beyond += 2 * math.comb(count, left_out) * 0.5**count
    return left_out
