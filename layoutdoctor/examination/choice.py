"""
How many times faster one configuration is than another, and which one is recommended.

Configurations take turns within a round, so their ratio is taken round by round: heat and other programs slow both.
The median over the rounds of one start is one value. The reported ratio is the geometric mean over the starts, because
memory addresses differ from process to process.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.answer import (
    EQUAL,
    FASTER,
    INCONCLUSIVE,
    SLOWER,
    Comparison,
    Ratio,
    Recommendation,
    Verdict,
    WithoutFreezing,
)
from layoutdoctor.diagnosis.configurations import BASELINE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.subject import Configuration
    from layoutdoctor.diagnosis.trial import Measurement, Trial
    from layoutdoctor.units import Seconds


COVERAGE = 0.95
RESOLUTION = 0.01
"""An interval must be this far from 1 for the verdict ``faster`` or ``slower``."""
EQUALITY = 0.03
"""An interval within this distance of 1 is ``equal``."""

# Quantiles of Student's t for a two-sided interval of 95 %, by the number of values.
_STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}


def ratio_of(name: str, baseline: Measurement, candidate: Measurement) -> Ratio | None:
    """
    The ratio of a configuration, over the further starts if both have two or more, else over the rounds.

    Returns:
        None if the two share neither two starts nor two rounds: no interval can be given.
    """
    rounds = round_ratios(baseline.round_seconds[candidate.first_round :], candidate.round_seconds)
    pairs = zip(baseline.starts, candidate.starts, strict=False)
    starts = tuple(statistics.median(round_ratios(mine, theirs)) for mine, theirs in pairs if mine and theirs)
    if len(starts) < 2:
        starts = ()
    if not starts and len(rounds) < 2:
        return None
    processes = starts
    if len(starts) == 2 and rounds:  # two values give no useful interval: the first process gives a third
        processes = (statistics.median(rounds), *starts)
    low, median, high = interval_over_starts(processes) if starts else interval_over_rounds(rounds)
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
    """The baseline's time over the candidate's, for every round that both have, in round order."""
    return [mine / theirs for mine, theirs in zip(baseline_seconds, candidate_seconds, strict=False)]


def interval_over_starts(ratios: Sequence[float]) -> tuple[float, float, float]:
    """
    Lower end, middle and upper end of the 95 % interval for the true ratio, from one ratio per start.

    Args:
        ratios: At least 2. Memory addresses make them differ between starts; the distribution is nearly normal. Their
            standard deviation is taken as at least ``_LEAST_SCATTER``: ratios that agree by chance are not exact.

    Source:
        Student's t on the logarithms.
    """
    logarithms = [math.log(ratio) for ratio in ratios]
    middle = statistics.fmean(logarithms)
    quantile = _STUDENT.get(len(ratios), _STUDENT[max(_STUDENT)])
    half = min(quantile * max(statistics.stdev(logarithms), _LEAST_SCATTER) / math.sqrt(len(ratios)), _WIDEST)
    return math.exp(middle - half), math.exp(middle), math.exp(middle + half)


_LEAST_SCATTER = 0.005
_WIDEST = 30.0  # half-width in logarithms: keeps the ends finite


def interval_over_rounds(ratios: Sequence[float]) -> tuple[float, float, float]:
    """
    As ``interval_over_starts``, for the true median of the rounds' ratios.

    Args:
        ratios: One per round, at least 2. For fewer than 6 rounds, no distribution-free interval covers 95 %, so
            Student's t on the logarithms is used.

    Source:
        Order-statistic interval for a median; for 20 rounds, the 6th smallest to the 6th largest covers 95.9 %.
    """
    ordered, count = sorted(ratios), len(ratios)
    rank = _left_out(count)
    if rank is None:
        return interval_over_starts(ratios)
    return ordered[rank], statistics.median(ordered), ordered[-1 - rank]


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
    """The trials with the times that reports show: the baseline's time of a call, or that time over the ratio."""
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


NEAR_THE_BEST = 1.12
"""Configurations within this factor of the best are timed in more rounds and in further starts."""
MOST_CONTENDERS = 3
FEWEST_STARTS = 3
MOST_STARTS = 5
LESS_EXACT = 2.0
"""A trial whose error is more than this many times eager's error is reported as less exact."""
_FAR_OFF = 1.5
"""An error of more than this many times the tolerance is far off."""
KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_MAX_": "0"}
"""Environment variables that keep glibc's allocator from giving memory back to the system."""


def choose_baseline(configurations: Iterable[Configuration], measured: Collection[str]) -> str | None:
    """The configuration that ratios refer to: torch.compile's default if measured, else the first measured one."""
    if BASELINE in measured:
        return BASELINE
    return next((configuration.name for configuration in configurations if configuration.name in measured), None)


def eligible_names(trials: Iterable[Trial]) -> frozenset[str]:
    """The trials that may be recommended: those that ran and whose outputs are not known to differ."""
    return frozenset(
        trial.name
        for trial in trials
        if trial.status == "ok" and not (trial.equivalence is not None and trial.equivalence.status == "different")
    )


def demands(one: Configuration) -> tuple[bool, bool, int]:
    """
    The changes that a configuration demands of a user of torch.compile's default; fewer sort first.

    Returns:
        Whether it freezes weights, whether it gives up torch.compile, and the number of changes.
    """
    changes = (
        one.layout_optimization not in (None, "default"),
        one.model_format not in (None, "preserve"),
        one.input_format not in (None, "preserve"),
    )
    count = sum(changes) + len(one.inductor_options) + len(one.cures) + len(one.library_switches) + one.ahead_of_time
    return one.freezes, one.backend != "inductor" or one.ahead_of_time, count


def contenders(medians: Mapping[str, float], frozen: Collection[str]) -> tuple[str, ...]:
    """
    Configurations that may be the fastest, the best first: they are timed again in further starts.

    Args:
        medians: Ratio to the baseline, over the rounds, of every other configuration with right outputs.
        frozen: Configurations that freeze weights. The best other one is always included, if it beats the baseline.
    """
    ahead = sorted((name for name in medians if medians[name] > 1 + RESOLUTION), key=lambda name: -medians[name])
    near = [name for name in ahead if medians[name] * NEAR_THE_BEST >= medians[ahead[0]]][:MOST_CONTENDERS]
    free = [name for name in ahead if name not in frozen][:1]
    return tuple(dict.fromkeys((*near, *free)))


def compare(trials: Sequence[Trial], other_cores: float | None = None) -> Comparison | None:
    """
    All measured trials against the baseline.

    Returns:
        None if nothing can be compared: the baseline or all others have no times.
    """
    measured = {
        trial.name: trial.measurement for trial in trials if trial.measurement is not None and trial.status == "ok"
    }
    baseline = choose_baseline((trial.configuration for trial in trials), measured)
    if baseline is None or len(measured) < 2:
        return None
    found = (ratio_of(name, measured[baseline], measured[name]) for name in measured if name != baseline)
    ratios = tuple(ratio for ratio in found if ratio is not None)
    eligible = eligible_names(trials)
    medians = {baseline: 1.0, **{ratio.name: ratio.median for ratio in ratios}}
    best = max((medians[name] for name in medians if name in eligible), default=0.0)
    near = [name for name in medians if name in eligible and medians[name] * (1 + EQUALITY) >= best]
    chosen = _chosen(trials, baseline, ratios)
    fastest = sorted(near, key=lambda name: (name != chosen, -medians[name]))
    if chosen is not None and chosen not in fastest:
        fastest.insert(0, chosen)
    return Comparison(baseline=baseline, ratios=ratios, fastest=tuple(fastest), other_cores=other_cores)


def recommend(
    trials: Sequence[Trial], comparison: Comparison | None, how: Mapping[str, str | None]
) -> Recommendation | None:
    """
    The configuration to use.

    Of the configurations that are faster than the baseline and within ``EQUALITY`` of the best, the one that demands
    least is recommended. If none is faster, the baseline is recommended, or, if the baseline's outputs differ from the
    reference, the fastest configuration with right outputs.

    Returns:
        None if nothing was compared.
    """
    if comparison is None:
        return None
    chosen = _chosen(trials, comparison.baseline, comparison.ratios)
    if chosen is None:
        return Recommendation(configuration=None)
    by_name = {trial.name: trial for trial in trials}
    ratios = {ratio.name: ratio for ratio in comparison.ratios}
    free: WithoutFreezing | None = None
    if by_name[chosen].configuration.freezes:
        others = [trial for trial in trials if not trial.configuration.freezes]
        name = _chosen(others, comparison.baseline, comparison.ratios) or comparison.baseline
        if not by_name[name].configuration.freezes:
            free = WithoutFreezing(configuration=name, speedup=ratios.get(name), how=how.get(name))
    speedup, checked = ratios.get(chosen), by_name[chosen].equivalence
    return Recommendation(
        configuration=chosen,
        speedup=speedup,
        how=None if chosen == comparison.baseline else how.get(chosen),
        verified=speedup is not None
        and len(speedup.start_ratios) > 1
        and speedup.verdict == FASTER
        and checked is not None
        and checked.status == "equal",
        without_freezing=free,
    )


def package_to_keep(diagnosis: Diagnosis) -> str | None:
    """The recommended configuration if AOTInductor compiled it, else AOTInductor's fastest with right outputs."""
    eligible = eligible_names(diagnosis.trials)
    made = [trial.name for trial in diagnosis.trials if trial.configuration.ahead_of_time and trial.name in eligible]
    advice = diagnosis.recommendation
    if advice is not None and advice.configuration in made:
        return advice.configuration
    medians = {} if diagnosis.comparison is None else {one.name: one.median for one in diagnosis.comparison.ratios}
    return max(made, key=lambda name: medians.get(name, 0.0), default=None)


def _chosen(trials: Iterable[Trial], baseline: str, ratios: Sequence[Ratio]) -> str | None:
    """
    The configuration to recommend among some trials: the baseline if nothing is faster.

    Configurations that were timed in further starts are preferred to those that were timed in one process only.
    """
    by_name = {trial.name: trial for trial in trials}
    eligible = eligible_names(by_name.values())
    faster = [ratio for ratio in ratios if ratio.verdict == FASTER and ratio.name in eligible]
    if not faster and baseline in eligible:
        return baseline
    if not faster:
        others = [ratio for ratio in ratios if ratio.name in eligible]
        return max(others, key=lambda ratio: ratio.median).name if others else None
    again = [ratio for ratio in faster if ratio.start_ratios] or faster
    best = max(ratio.median for ratio in again)
    near = [ratio for ratio in again if ratio.median * (1 + EQUALITY) >= best]
    return min(near, key=lambda ratio: (demands(by_name[ratio.name].configuration), -ratio.median)).name


def wrong_baseline(diagnosis: Diagnosis) -> Trial | None:
    """The baseline if its outputs differ from a reference that eager's outputs equal; without eager, from float64."""
    baseline = diagnosis.comparison.baseline if diagnosis.comparison is not None else BASELINE
    trial = diagnosis.measured_trial(baseline)
    if trial is None or trial.equivalence is None or trial.equivalence.status != "different":
        return None
    eager = [t.equivalence for t in diagnosis.trials if t.configuration.backend == "eager"]
    is_right = any(e is not None and e.status == "equal" for e in eager)
    return trial if is_right or (not eager and trial.equivalence.reference == "float64") else None


def times_less_exact(trial: Trial) -> float | None:
    """A trial's error over eager's; None if another order of sums may explain it (``LESS_EXACT``), or if not known."""
    seen = trial.equivalence
    error, own = (None, None) if seen is None else (seen.relative_error, seen.eager_relative_error)
    return error / own if error is not None and own and error > LESS_EXACT * own else None


def is_far_off(trial: Trial) -> bool:
    """Whether the outputs of a trial differ by more than another order of sums can explain."""
    seen = trial.equivalence
    if seen is None or seen.status != "different":
        return False
    has_figures = seen.relative_error is not None and seen.tolerance is not None
    return not has_figures or not (seen.relative_error or 0.0) <= _FAR_OFF * (seen.tolerance or 0.0)
