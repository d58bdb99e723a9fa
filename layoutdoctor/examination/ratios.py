"""
Paired statistics: which configuration is faster than which, and when nothing may be said.

Times come in rounds; configurations took turns within each round, so the ratio of two of them is judged round by round
and what the machine did meanwhile (heat, other processes) falls out.
"""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from layoutdoctor.diagnosis.records import FASTER, NO_DIFFERENCE, SLOWER, Comparison, RatioInterval, Verdict

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from layoutdoctor.diagnosis.comparison import RatioBounds
    from layoutdoctor.units import Seconds

Word = Literal["faster", "slower", "equal", "undecided"]
EQUAL: Word = "equal"
UNDECIDED: Word = "undecided"

# All intervals of one comparison, at all looks, cover their true ratios together at least this often.
COVERAGE = 0.99
# What rests on few rounds and only shows times, or compares two runs, may promise this much.
LEAST_COVERAGE = 0.95
# Rounds after which one looks whether all is decided: few and fixed, and the error allowed is shared among them, so
# that stopping at what is decided makes no winner.
LOOKS = (16, 24, 36, 56, 88, 136, 216, 384)
# Two copies of one model differ by up to about 1 %, for as long as they live, through where their memory lies: a real
# difference that says nothing of the layout. benchmarks/README.md has the figures.
RESOLUTION = 0.01
# An interval that lies within this around 1 says that two are equal.
EQUALITY = 0.03
WITHIN_EQUALITY = f"within {100 * EQUALITY:.0f} %"
# Where the upper end is this many times the lower one, the noise is no constant factor of both sides any more.
_MOST_SPREAD = 2.0
# From here on a reader learns nothing from the numbers.
_NO_NUMBER = 4.0
# The machine is in another state where all together take this many times what they take else, and the two states are
# so many times their scatter apart.
_SLOW = 1.1
_STATES_APART = 5.0
COVERAGE_OF_STARTS = 0.95
FEWEST_STARTS = 3
MOST_STARTS = 5
"""Of those that met the machine as it is at its best."""
_ROUNDING = 1 + 1e-9
_STRONGEST_CHAIN = 0.98
# Of Student's t for that, two-sided, by the number of values.
_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}


class MedianInterval(NamedTuple):
    """Ends and median of some ratios, and how often such an interval covers the true median; None: too few ratios."""

    low: float
    median: float
    high: float
    coverage: float | None


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
        interval; rounds that hang together count for fewer. Too few rounds for the coverage: the interval is smallest
        to largest ratio, its coverage None, and nothing is decided.

    Raises:
        ValueError: No round is shared, or a time is not positive and finite.

    Source:
        Order-statistic interval for a median; for 20 rounds the 6th smallest to the 6th largest ratio covers 95.9 %.
    """
    ratios = round_ratios(baseline_seconds, candidate_seconds)
    interval = _cautious_interval(ratios, coverage)
    is_too_wide = interval.high / interval.low > _MOST_SPREAD
    verdict = NO_DIFFERENCE if is_too_wide else judge(interval, resolution) or NO_DIFFERENCE
    return RatioInterval(
        name=name,
        low=interval.low,
        median=interval.median,
        high=interval.high,
        verdict=verdict,
        coverage=interval.coverage,
        round_count=len(ratios),
        decided=verdict != NO_DIFFERENCE or is_equal(interval),
    )


def is_too_noisy(interval: MedianInterval | RatioInterval) -> bool:
    """Whether an interval is so wide that neither its ends nor its middle are worth a number."""
    return interval.high > _NO_NUMBER * interval.low


def _cautious_interval(ratios: Sequence[float], coverage: float) -> MedianInterval:
    """
    Where rounds that would suffice hang together too much for it, three times what they span, so that much is clear.

    Source:
        Simulation; benchmarks/README.md has the figures.
    """
    interval = median_interval(ratios, coverage, cautious_count(ratios))
    if interval.coverage is not None or ratios_left_out(len(ratios), coverage) is None:
        return interval
    span = interval.high / interval.low
    return MedianInterval(interval.low / span, interval.median, interval.high * span, coverage)


def is_equal(interval: MedianInterval | RatioBounds | RatioInterval) -> bool:
    """Whether an interval says that two are as good as equally fast, rather than nothing."""
    return interval.coverage is not None and _is_around_one(interval)


def _is_around_one(interval: MedianInterval | RatioBounds | RatioInterval) -> bool:
    """Reciprocal intervals are or are not alike."""
    return interval.low >= 1 - EQUALITY and interval.high * (1 - EQUALITY) <= 1


def word_of(ratio: RatioInterval) -> Word:
    """
    What may be said of a ratio, in a word.

    Old files have no ``decided``; what they call no measurable difference is told from noise by its interval here.
    """
    if ratio.verdict in (FASTER, SLOWER):
        return "faster" if ratio.verdict == FASTER else "slower"
    old = not ratio.lacks_rounds and _is_around_one(ratio)
    return EQUAL if (old if ratio.decided is None else ratio.decided) else UNDECIDED


def open_among_fastest(comparison: Comparison) -> tuple[str, ...]:
    """Those of the fastest that are not known to be equal to the others: told by the record, in old files by ratios."""
    fastest = comparison.fastest
    noisy = {ratio.name for ratio in comparison.ratios if word_of(ratio) == UNDECIDED}
    known = noisy if comparison.baseline in fastest else frozenset()
    return tuple(name for name in fastest if name in comparison.undecided or name in known)


def compare(
    times: Mapping[str, Sequence[Seconds]],
    baseline: str,
    *,
    eligible: Collection[str] | None = None,
    resolution: float = RESOLUTION,
    is_too_busy: bool = False,
) -> Comparison | None:
    """
    All configurations against the baseline, and which are fastest.

    All intervals, and the choice of the fastest, hold together with ``COVERAGE`` at all looks: the error allowed is
    divided by the number of pairs that could be compared and of looks (Bonferroni over all pairs, because which one is
    the best is itself read from the data). So in at most 1 % of comparisons is any verdict wrong. Where the rounds are
    too few for that, nothing is decided.

    Args:
        eligible: Those that may be recommended, because their outputs are right; None for all.
        is_too_busy: Whether so much else ran on the machine that nothing may be concluded: intervals do not cover
            what they promise then (benchmarks/README.md: 11 of 24 did).

    Returns:
        None where the baseline has no times or nothing else has. ``fastest`` holds the eligible configuration with the
        best median and those not measurably slower than it, judged against it and not against the baseline. First
        stands the baseline where it is among them (no reason to change), else the best; the others follow by median.
    """
    measured = {name: seconds for name, seconds in times.items() if len(seconds)}
    if baseline not in measured or len(measured) < 2:
        return None
    judging = _Judging(measured, resolution, is_too_busy)
    ratios = tuple(judging.ratio(baseline, name) for name in measured if name != baseline)
    speed = {baseline: 1.0, **{ratio.name: ratio.median for ratio in ratios}}
    allowed = [name for name in speed if eligible is None or name in eligible]
    by_speed = sorted(allowed, key=lambda name: -speed[name])
    ties = [ratio for ratio in (judging.ratio(by_speed[0], name) for name in by_speed[1:]) if ratio.verdict != SLOWER]
    tied = [*by_speed[:1], *(ratio.name for ratio in ties)]
    return Comparison(
        baseline=baseline,
        ratios=ratios,
        fastest=tuple(sorted(tied, key=lambda name: name != baseline)),
        resolution=resolution,
        round_count=max(len(seconds) for seconds in measured.values()),
        undecided=tuple(ratio.name for ratio in ties if not ratio.decided),
    )


def open_questions(
    times: Mapping[str, Sequence[Seconds]], baseline: str, choices: Iterable[Collection[str]] | None = None
) -> tuple[RatioInterval, ...]:
    """
    What a choice hangs on and the rounds have not decided: neither told apart nor equal.

    Args:
        times: Round times by configuration, the baseline's among them, none empty.
        choices: From each of these the best is wanted, and how it compares with the baseline; None for one of all.

    Returns:
        Ratios of the best of each choice to the baseline and to the others of it.
    """
    judging = _Judging(times, RESOLUTION)
    found = []
    for choice in [times] if choices is None else choices:
        names = [name for name in times if name in choice]
        if names:
            best = leader(times, names, baseline)
            ratios = [judging.ratio(best, name) for name in dict.fromkeys((baseline, *names)) if name != best]
            found += [ratio for ratio in ratios if not ratio.decided]
    return tuple(found)


def leader(times: Mapping[str, Sequence[Seconds]], names: Iterable[str], baseline: str) -> str:
    """The one with the best median, judged round by round against the baseline, which is there in every round."""
    return max(names, key=lambda name: median_ratio(times[baseline], times[name]))


def rounds_to_decide(ratio: RatioInterval, configuration_count: int) -> int:
    """
    About how many rounds in all would decide it, if they scatter as those there are: an interval narrows with the root.

    Args:
        ratio: One that is not decided.
        configuration_count: Configurations compared with each other, at least 2.
    """
    fewest = rounds_needed(COVERAGE, configuration_count)
    middle = abs(math.log(ratio.median))
    # Either it has to lie within what is equal, or clear of 1: whichever leaves it more room.
    room = max(-math.log1p(-EQUALITY) - middle, middle - math.log1p(RESOLUTION))
    half = math.log(ratio.high / ratio.low) / 2
    known = fewest if ratio.coverage is None else ratio.round_count or fewest
    return max(math.ceil(known * (half / room) ** 2), fewest)


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


def quiet_rounds(times: Collection[Sequence[Seconds]]) -> list[int]:
    """
    All rounds; but where they fall into two states of the machine, those of the faster one.

    Others on the same processor, or its clock, slow all configurations together, some more than others, and nothing
    else tells of it. Two of the same stay as likely to be the faster one in these rounds as in all.

    Args:
        times: Of each configuration one time per round, above 0; one that was dropped early has no say in later rounds.

    Source:
        Otsu's threshold on how much slower than at their best all are in a round; Ashman's D, which is 2.7 of normal
        and 3.5 of uniform values, so cut in two, tells states from scatter.
    """
    logarithms = [[math.log(value / min(seconds)) for value in seconds] for seconds in times]
    count = max(map(len, logarithms), default=0)
    slowed = [statistics.fmean(own[number] for own in logarithms if number < len(own)) for number in range(count)]
    ordered = sorted(slowed)
    cuts = [(ordered[:size], ordered[size:]) for size in range(1, count)]
    lower, upper = max(cuts, key=lambda cut: len(cut[0]) * len(cut[1]) * _between(*cut) ** 2, default=(ordered, []))
    scatter = math.hypot(statistics.pstdev(lower), statistics.pstdev(upper)) if upper else math.inf
    between = _between(lower, upper) if upper else 0.0
    if between < math.log(_SLOW) or math.sqrt(2) * between < _STATES_APART * scatter:
        return list(range(count))
    return [number for number, slowdown in enumerate(slowed) if slowdown <= lower[-1]]


def _between(lower: Sequence[float], upper: Sequence[float]) -> float:
    return statistics.fmean(upper) - statistics.fmean(lower)


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


def effective_count(values: Sequence[float]) -> int:
    """How many independent values tell as much about the median as these do, in the order of time; at least 1."""
    count = len(values)
    signs = _sides_of_median(values)
    noise = math.sqrt(2 / count) if count else 0.0  # what such a pair scatters by where nothing hangs together
    time = 1.0
    for lag in range(1, count - 1, 2):
        pair = _correlation(signs, lag) + _correlation(signs, lag + 1)
        if pair <= noise:
            break
        time += 2 * pair
    return max(min(int(count / time), count), 1)


def cautious_count(values: Sequence[float]) -> int:
    """
    The same where it is looked at early and again and again: a short series shows too little of what hangs together.

    So neighbours that visibly agree are taken to do so a little more, and ever less with the distance.

    Source:
        A sign's correlation s belongs to sin(s * pi / 2) of normal values; a chain of correlation r counts for the part
        (1 - r) / (1 + r) of its length. Checked by simulation: tests/unit/measure/test_timing.py.
    """
    count = effective_count(values)
    first = _correlation(_sides_of_median(values), 1)
    if first <= 0.5 / math.sqrt(len(values)):  # half of what it scatters by where nothing hangs together
        return count
    chain = min(math.sin(math.pi / 2 * min(first + 3 / len(values), 1.0)), _STRONGEST_CHAIN)
    return max(min(int(len(values) * (1 - chain) / (1 + chain)), count), 1)


def _sides_of_median(values: Sequence[float]) -> list[int]:
    """1 above, -1 below, 0 where it is the median but for rounding; reciprocals are on the other sides."""
    if not values:
        return []
    ordered = sorted(values)
    lower, upper = ordered[(len(values) - 1) // 2], ordered[len(values) // 2]
    median = lower * math.sqrt(upper / lower)
    return [(value > median * _ROUNDING) - (value * _ROUNDING < median) for value in values]


def _correlation(signs: Sequence[int], lag: int) -> float:
    """Of each with the one so many later; 0 where nothing scatters."""
    power = sum(sign * sign for sign in signs)
    return sum(map(operator.mul, signs, signs[lag:])) / power if power else 0.0


def family_coverage(coverage: float, configuration_count: int) -> float:
    """
    Coverage for one interval, so that those of all pairs hold together with it at all looks (Bonferroni).

    Args:
        coverage: Wanted for all together, between 0 and 1.
        configuration_count: Configurations compared with each other, at least 1.
    """
    return 1 - (1 - coverage) / (max(math.comb(configuration_count, 2), 1) * len(LOOKS))


def rounds_needed(coverage: float, configuration_count: int) -> int:
    """
    Rounds below which no interval can have the coverage, however steady the times.

    Args:
        coverage: Wanted for all pairs together, between 0 and 1.
        configuration_count: Configurations compared with each other, at least 1.
    """
    return fewest_rounds(family_coverage(coverage, configuration_count))


def fewest_rounds(coverage: float) -> int:
    """Rounds below which no single interval has the coverage."""
    return next(count for count in itertools.count(1) if ratios_left_out(count, coverage) is not None)


class _Judging:
    """Ratios of round times that hold together, whichever are asked for."""

    def __init__(self, times: Mapping[str, Sequence[Seconds]], resolution: float, is_too_busy: bool = False) -> None:
        self.times, self.resolution, self.is_too_busy = times, resolution, is_too_busy
        self.coverage = family_coverage(COVERAGE, len(times))

    def ratio(self, baseline: str, name: str) -> RatioInterval:
        ratio = paired_ratio(
            name, self.times[baseline], self.times[name], coverage=self.coverage, resolution=self.resolution
        )
        if self.is_too_busy:
            ratio = msgspec.structs.replace(ratio, verdict=NO_DIFFERENCE, decided=False, coverage=None)
        # What is promised is that all hold together; alone, each holds more often.
        return ratio if ratio.coverage is None else msgspec.structs.replace(ratio, coverage=COVERAGE)


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
