"""
How many times faster one configuration is than another, with an interval and one verdict.

Configurations take turns within a round, so the ratio of two is taken round by round: what the machine did meanwhile
(heat, other programs) slows both. The median over the rounds of one start is one value; the reported ratio is the
geometric mean of the starts, because where memory happens to lie differs from process to process.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from layoutdoctor.diagnosis.answer import EQUAL, FASTER, INCONCLUSIVE, SLOWER, Ratio, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutdoctor.diagnosis.trial import Measurement, Trial
    from layoutdoctor.units import Seconds

COVERAGE = 0.95
RESOLUTION = 0.01
"""An interval has to be beyond 1 by this much for a verdict of ``faster`` or ``slower``."""
EQUALITY = 0.03
"""An interval that lies within this around 1 is ``equal``."""

# Quantiles of Student's t for a two-sided interval of 95 %, by the number of values.
_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}


class Interval(NamedTuple):
    """Ends and middle of some ratios; the interval covers the true ratio 95 times of 100."""

    low: float
    median: float
    high: float


def ratio_of(name: str, baseline: Measurement, candidate: Measurement) -> Ratio | None:
    """
    The ratio of a configuration, over the further starts if both have two or more, else over the rounds.

    Returns:
        None if fewer than two rounds are shared: no interval can be given.
    """
    rounds = round_ratios(baseline.round_seconds[candidate.first_round :], candidate.round_seconds)
    pairs = zip(baseline.starts, candidate.starts, strict=False)
    starts = tuple(statistics.median(round_ratios(mine, theirs)) for mine, theirs in pairs if mine and theirs)
    if len(starts) < 2:
        starts = ()
    if not starts and len(rounds) < 2:
        return None
    low, median, high = interval_over_starts(starts) if starts else interval_over_rounds(rounds)
    return Ratio(
        name=name,
        low=low,
        median=median,
        high=high,
        verdict=judge(low, high),
        round_count=len(rounds),
        start_ratios=starts,
    )


def round_ratios(baseline_seconds: Sequence[Seconds], candidate_seconds: Sequence[Seconds]) -> list[float]:
    """Baseline over candidate for every round that both have, in round order."""
    return [mine / theirs for mine, theirs in zip(baseline_seconds, candidate_seconds, strict=False)]


def interval_over_starts(ratios: Sequence[float]) -> Interval:
    """
    Interval for the true ratio, from one ratio per start.

    Args:
        ratios: At least 2. From start to start they scatter by where memory lies, which is nearly normal. They are
            taken to scatter by half a percent at least: three that are alike by chance are not exact.

    Source:
        Student's t on the logarithms.
    """
    logarithms = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logarithms)
    quantile = _STUDENT.get(len(ratios), _STUDENT[max(_STUDENT)])
    half = min(quantile * max(statistics.stdev(logarithms), _LEAST_SCATTER) / math.sqrt(len(ratios)), _WIDEST)
    return Interval(math.exp(middle - half), math.exp(middle), math.exp(middle + half))


_LEAST_SCATTER = 0.005
_WIDEST = 30.0  # of a logarithm: keeps the ends finite


def interval_over_rounds(ratios: Sequence[float]) -> Interval:
    """
    Interval for the true median of the rounds' ratios.

    Args:
        ratios: One per round, at least 2. Of fewer than 6 rounds no distribution-free interval covers 95 %, and
            Student's t on the logarithms is used.

    Source:
        Order-statistic interval for a median; of 20 rounds the 6th smallest to the 6th largest covers 95.9 %.
    """
    ordered, count = sorted(ratios), len(ratios)
    rank = _left_out(count)
    if rank is None:
        return interval_over_starts(ratios)
    return Interval(ordered[rank], statistics.median(ordered), ordered[-1 - rank])


def _left_out(count: int) -> int | None:
    """How many values the interval for a median leaves out on each side; None if there are too few values."""
    beyond, found = 0.0, None
    for rank in range(count // 2):
        beyond += 2 * math.comb(count, rank) * 0.5**count
        if beyond > 1 - COVERAGE:
            break
        found = rank
    return found


def judge(low: float, high: float, resolution: float = RESOLUTION, equality: float = EQUALITY) -> Verdict:
    """The verdict of an interval of ratios; an interval and its reciprocal get opposite verdicts."""
    if low > 1 + resolution:
        return FASTER
    if 1 / high > 1 + resolution:
        return SLOWER
    return EQUAL if low >= 1 - equality and high * (1 - equality) <= 1 else INCONCLUSIVE


def call_seconds(measurement: Measurement) -> Seconds:
    """Median time of a call: over the medians of the further starts if there are any, else over the rounds."""
    starts = [statistics.median(rounds) for rounds in measurement.starts if rounds]
    return statistics.median(starts or measurement.round_seconds)


def with_shown_times(trials: Sequence[Trial], baseline: str, ratios: Mapping[str, Ratio]) -> tuple[Trial, ...]:
    """The trials with the time of a call that reports show: the baseline's time over the ratio."""
    known = {trial.name: trial.measurement for trial in trials}
    measured = known.get(baseline)
    if measured is None:
        return tuple(trials)
    base = call_seconds(measured)
    shown = []
    for trial in trials:
        if trial.measurement is not None and (trial.name == baseline or trial.name in ratios):
            seconds = base if trial.name == baseline else base / ratios[trial.name].median
            trial = msgspec.structs.replace(
                trial, measurement=msgspec.structs.replace(trial.measurement, median_seconds=seconds)
            )
        shown.append(trial)
    return tuple(shown)
