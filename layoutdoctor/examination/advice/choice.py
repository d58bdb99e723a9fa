"""
Computes how many times faster each configuration is than the baseline, and chooses the recommended configuration.

Configurations take turns within a round, and their ratio is computed round by round, because heat and other programs
slow all configurations. Each start, which is a process, gives one value: the median ratio over its rounds. With two or
more further starts, the reported ratio is the median over the starts, because memory addresses differ from process to
process.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis import (
    Comparison,
    Configuration,
    Diagnosis,
    Environment,
    Observed,
    Ratio,
    Recommendation,
    Rounds,
    Trial,
    Verdict,
    WithoutFreezing,
)
from layoutdoctor.diagnosis.answer import EQUAL, FASTER, INCONCLUSIVE, SLOWER
from layoutdoctor.diagnosis.configurations import BASELINE

if TYPE_CHECKING:
    from layoutdoctor.units import Seconds


COVERAGE = 0.95
RESOLUTION = 0.01
"""An interval must be this far from 1 for the verdict ``faster`` or ``slower``."""
EQUALITY = 0.03
"""An interval within this distance of 1 is ``equal``."""
WIDEST = 2.0
"""An interval whose ends differ by more than this factor is ``inconclusive``, wherever it lies."""

# Quantiles of Student's t for a two-sided interval of 95 %, by degrees of freedom from 1 on.
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
# Standard error of the median divided by standard error of the mean, by number of normally distributed values.
_OF_THE_MEDIAN = {2: 1.0, 3: 1.160, 4: 1.092, 5: 1.198, 6: 1.135, 7: 1.214, 8: 1.160}
_OF_A_LARGE_MEDIAN = math.sqrt(math.pi / 2)
_POOLED_FREEDOM = 4.0
"""The most degrees of freedom that other configurations' scatter adds to a configuration's own degrees of freedom."""
_LEAST_SCATTER = 0.005
_FEW_ROUNDS = 4
_WIDEST = 30.0  # half-width in logarithms: keeps the ends finite


def ratios_of(baseline: str, measured: Mapping[str, Rounds]) -> dict[str, Ratio]:
    """
    The ratio of every other configuration to the baseline.

    A configuration with two or more further starts is compared over these starts. If there are exactly two, the process
    that compiled the configuration gives a third value. Any other configuration is compared over the rounds, and its
    interval is widened by the scatter between other configurations' starts. It needs at least two rounds in common with
    the baseline; otherwise it has no ratio.
    """
    base = measured[baseline]
    others = {name: one for name, one in measured.items() if name != baseline}
    rounds = {
        name: round_ratios(base.round_seconds[one.first_round :], one.round_seconds) for name, one in others.items()
    }
    starts = {name: start_ratios(base.starts, one.starts) for name, one in others.items()}
    found = {}
    for name in others:
        own, processes = rounds[name], starts[name]
        if len(processes) >= 2:
            if len(processes) == 2 and own:  # two values give no useful interval: the first process gives a third
                processes = (statistics.median(own), *processes)
            beside = [ratios for other, ratios in starts.items() if other != name]
            low, median, high = interval_over_starts(processes, beside)
        elif len(own) >= 2:
            of_others = [ratios for other, ratios in rounds.items() if other != name]
            low, median, high = _of_one_start(interval_over_rounds(own, of_others), starts.values())
        else:
            continue
        found[name] = Ratio(
            name=name,
            low=low,
            median=median,
            high=high,
            verdict=judge(low, high),
            round_count=len(own),
            start_ratios=starts[name] if len(starts[name]) >= 2 else (),
        )
    return found


def ratio_of(name: str, baseline: Rounds, candidate: Rounds) -> Ratio | None:
    """The ratio of a candidate to a baseline, as in ``ratios_of``; None if they share too few starts and rounds."""
    return ratios_of("", {"": baseline, name: candidate}).get(name)


def start_ratios(
    baseline_starts: Iterable[Sequence[Seconds]], candidate_starts: Iterable[Sequence[Seconds]]
) -> tuple[float, ...]:
    """The ratio in each start in which both configurations were timed: the median over the rounds of the start."""
    pairs = zip(baseline_starts, candidate_starts, strict=False)
    return tuple(statistics.median(round_ratios(mine, theirs)) for mine, theirs in pairs if mine and theirs)


def round_ratios(baseline_seconds: Sequence[Seconds], candidate_seconds: Sequence[Seconds]) -> list[float]:
    """The baseline's time over the candidate's time, for each common round, in round order."""
    return [mine / theirs for mine, theirs in zip(baseline_seconds, candidate_seconds, strict=False)]


def interval_over_starts(
    ratios: Sequence[float], others: Collection[Sequence[float]] = ()
) -> tuple[float, float, float]:
    """
    Lower end, median and upper end of the 95 % interval for the true ratio, from one ratio per start.

    Args:
        ratios: Ratios of at least 2 starts. They differ because of memory addresses, and are nearly normally
            distributed. Their standard deviation is taken as at least ``_LEAST_SCATTER``, because ratios may agree by
            chance.
        others: Ratios of other configurations on the same machine. Their scatter is included, because three starts are
            too few for a good estimate. It counts with half of its degrees of freedom, at most ``_POOLED_FREEDOM``,
            because half of the scatter comes from the baseline, which all ratios share. A single ratio is not used.

    Source:
        Student's t on the logarithms, moderated as in G. K. Smyth, Linear models and empirical Bayes methods, 2004;
        standard error of the median of a normal sample.
    """
    logarithms = [math.log(ratio) for ratio in ratios]
    count, middle, freedom = len(logarithms), statistics.median(logarithms), len(logarithms) - 1.0
    squares = freedom * statistics.variance(logarithms)
    variance, freedom_of_others = _pooled(others)
    if freedom_of_others:
        beside = min(_POOLED_FREEDOM, freedom_of_others / 2)
        squares += beside * variance
        freedom += beside
    scatter = max(math.sqrt(squares / freedom), _LEAST_SCATTER)
    quantile = _STUDENT[min(int(freedom), len(_STUDENT)) - 1]
    error = _OF_THE_MEDIAN.get(count, _OF_A_LARGE_MEDIAN) * scatter / math.sqrt(count)
    half = min(quantile * error, _WIDEST)
    return math.exp(middle - half), math.exp(middle), math.exp(middle + half)


def interval_over_rounds(
    ratios: Sequence[float], others: Collection[Sequence[float]] = ()
) -> tuple[float, float, float]:
    """
    Lower end, median and upper end of the 95 % interval for the true median of the ratios of rounds.

    Args:
        ratios: One ratio per round, at least 2. For fewer than 6 rounds, no distribution-free interval covers 95 %, so
            Student's t on the logarithms is used, as in ``interval_over_starts``.
        others: Ratios of other configurations in each round. They count only if there are fewer than 4 ratios, which
            say little about their scatter.

    Source:
        Order-statistic interval for a median; for 20 rounds, the 6th smallest to the 6th largest covers 95.9 %.
    """
    ordered, count = sorted(ratios), len(ratios)
    rank = _left_out(count)
    if rank is None:
        return interval_over_starts(ratios, others if count < _FEW_ROUNDS else ())
    return ordered[rank], statistics.median(ordered), ordered[-1 - rank]


def _of_one_start(
    interval: tuple[float, float, float], others: Iterable[Sequence[float]]
) -> tuple[float, float, float]:
    """
    Widens an interval over the rounds of one start by the scatter between starts, whose memory addresses differ.

    Args:
        others: Ratios of the starts of other configurations.
    """
    variance, freedom = _pooled(others)
    if not freedom:
        return interval
    beside = _STUDENT[min(freedom, len(_STUDENT)) - 1] * math.sqrt(variance)
    low, median, high = interval
    below, above = (math.hypot(math.log(end / median), beside) for end in (low, high))
    return median * math.exp(-min(below, _WIDEST)), median, median * math.exp(min(above, _WIDEST))


def _pooled(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Variance of the logarithms of ratios within groups, and its degrees of freedom; 0 and 0 if no group has two."""
    logarithms = [[math.log(ratio) for ratio in group] for group in groups if len(group) >= 2]
    freedom = sum(len(group) - 1 for group in logarithms)
    squares = sum((len(group) - 1) * statistics.variance(group) for group in logarithms)
    return (squares / freedom if freedom else 0.0), freedom


def _left_out(count: int) -> int | None:
    """Number of values that the interval for a median leaves out on each side; None if there are too few values."""
    beyond, found = 0.0, None
    for rank in range(count // 2):
        beyond += 2 * math.comb(count, rank) * 0.5**count
        if beyond > 1 - COVERAGE:
            break
        found = rank
    return found


def judge(low: float, high: float, resolution: float = RESOLUTION, equality: float = EQUALITY) -> Verdict:
    """The verdict of an interval of ratios; an interval and its reciprocal get opposite verdicts."""
    if high > WIDEST * low:
        return INCONCLUSIVE
    if low > 1 + resolution:
        return FASTER
    if 1 / high > 1 + resolution:
        return SLOWER
    return EQUAL if low >= 1 - equality and high * (1 - equality) <= 1 else INCONCLUSIVE


def call_seconds(measurement: Rounds) -> Seconds:
    """
    Time of a call while the machine was fast: the median of rounds at most 15 % longer than the lower quartile.

    If the machine's speed did not change, nearly all rounds are counted.
    """
    rounds = _all_rounds(measurement)
    fast = rounds[len(rounds) // 4]
    return statistics.median(seconds for seconds in rounds if seconds <= _FAST_PHASE * fast)


def speed_change(measurement: Rounds) -> float:
    """The upper quartile of the times of all rounds over their lower quartile; about 1 if the speed was steady."""
    rounds = _all_rounds(measurement)
    return rounds[-1 - len(rounds) // 4] / rounds[len(rounds) // 4]


def _all_rounds(measurement: Rounds) -> list[Seconds]:
    """The times of the rounds of all processes, the shortest first."""
    return sorted([*measurement.round_seconds, *(seconds for start in measurement.starts for seconds in start)])


_FAST_PHASE = 1.15


def shown_seconds(trials: Iterable[Observed], comparison: Comparison | None) -> dict[str, Seconds]:
    """Time of a call of each measured trial, as reports show it: with a ratio, the baseline's time over the ratio."""
    shown = {trial.name: call_seconds(trial.measurement) for trial in trials if trial.measurement is not None}
    if comparison is not None:
        base = shown[comparison.baseline]
        shown |= {ratio.name: base / ratio.median for ratio in comparison.ratios}
    return shown


NEAR_THE_BEST = 1.12
"""Configurations within this factor of the best are timed in more rounds."""
MAY_BE_RECOMMENDED = 1.05
"""Configurations whose ratio over the rounds is within this factor of the best are timed in further starts."""
FAR_BEHIND = 2.5
"""If the fastest other configuration is this much slower than the baseline, no configuration gets further starts."""
MOST_CONTENDERS = 6
_LEAST_OF_ITS_CORES = 1 / 2
FEWEST_STARTS = 3
LESS_EXACT = 2.0
"""A trial whose error is more than this many times eager's error is reported as less exact."""
_NOTICED = 0.01
"""An error of less than this share of the tolerance is not reported."""
_FAR_OFF = 1.5
"""An error of more than this many times the tolerance is far off."""


def choose_baseline(configurations: Iterable[Configuration], measured: Collection[str]) -> str | None:
    """The configuration that ratios refer to: torch.compile's default, or else the first measured configuration."""
    if BASELINE in measured:
        return BASELINE
    return next((configuration.name for configuration in configurations if configuration.name in measured), None)


def eligible_names(trials: Iterable[Observed]) -> frozenset[str]:
    """Names of the trials that may be recommended: they ran, and their outputs are not known to differ."""
    return frozenset(trial.name for trial in trials if trial.status == "ok" and not trial.is_wrong)


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


def contenders(medians: Mapping[str, float], configurations: Mapping[str, Configuration]) -> tuple[str, ...]:
    """
    Chooses at most ``MOST_CONTENDERS`` configurations that could be recommended, to be timed in further starts.

    Only configurations faster than the baseline are candidates. The best one, and the best one without frozen weights,
    are always chosen. Other candidates within ``MAY_BE_RECOMMENDED`` of the best follow, the least demanding first. If
    there is no candidate, the best configuration is chosen unless it is ``FAR_BEHIND``: its one start may have been
    slow, and further starts show how much starts scatter.

    Args:
        medians: The ratio of every other configuration to the baseline, over the rounds, by name. Configurations with
            wrong outputs are left out.
    """
    in_order = sorted(medians, key=lambda name: -medians[name])
    ahead = [name for name in in_order if medians[name] > 1 + RESOLUTION]
    ahead = ahead or [name for name in in_order[:1] if medians[name] * FAR_BEHIND >= 1]
    free = [name for name in ahead if not configurations[name].freezes]
    needed = dict.fromkeys((*ahead[:1], *free[:1]))
    near = [name for name in ahead if medians[name] * MAY_BE_RECOMMENDED >= medians[ahead[0]]]
    near.sort(key=lambda name: demands(configurations[name]))
    rest = [name for name in near if name not in needed][: MOST_CONTENDERS - len(needed)]
    return tuple(sorted((*needed, *rest), key=lambda name: -medians[name]))


def left_standing(trials: Sequence[Observed]) -> tuple[str, ...]:
    """
    Finds configurations that contradict the advice but had no further starts yet, so that they need further starts.

    A configuration contradicts the advice if it is at least as fast as the recommended configuration and demands no
    more, or if it demands least within ``EQUALITY`` of the fastest. Both conditions are also checked among the
    configurations without frozen weights alone.
    """
    comparison = compare_trials(trials)
    if comparison is None:
        return ()
    by_name = {trial.name: trial for trial in trials}
    medians = _medians(comparison.baseline, comparison.ratios, trials)
    started = {ratio.name for ratio in comparison.ratios if ratio.start_ratios} | {comparison.baseline}
    found: list[str] = []
    for asked in filter(None, (medians, _unfrozen(by_name, medians))):
        best = _least_demanding(by_name, asked)
        chosen = _chosen(by_name, asked, comparison.baseline, comparison.ratios)
        found += [best] if best not in started else []
        found += [name for name in asked if name not in started and _stands_above(by_name, asked, name, chosen)]
    return tuple(dict.fromkeys(found))


def undecided(trials: Iterable[Observed], comparison: Comparison) -> tuple[str, ...]:
    """
    Finds two configurations whose times leave open which configuration to recommend.

    Returns:
        The configuration that demands least within ``EQUALITY`` of the fastest, and the fastest. Empty unless the
        fastest is certainly faster than the baseline and the other configuration is not.
    """
    by_name = {trial.name: trial for trial in trials}
    medians = _medians(comparison.baseline, comparison.ratios, by_name.values())
    if not medians:
        return ()
    certain = _certainly_faster(comparison.ratios)
    best, fastest = _least_demanding(by_name, medians), max(medians, key=lambda name: medians[name])
    is_open = fastest in certain and best not in certain and best != comparison.baseline
    return (best, fastest) if is_open else ()


def _certainly_faster(ratios: Sequence[Ratio]) -> set[str]:
    """Names with the verdict ``faster``. If any configuration has further starts, verdicts over rounds do not count."""
    was_started = any(ratio.start_ratios for ratio in ratios)
    return {ratio.name for ratio in ratios if ratio.verdict == FASTER and (ratio.start_ratios or not was_started)}


def _stands_above(by_name: Mapping[str, Observed], medians: Mapping[str, float], name: str, chosen: str) -> bool:
    """Whether ``name`` is faster than ``chosen`` and demands no more, or is as fast and demands less."""
    own, other = (demands(by_name[one].configuration) for one in (name, chosen))
    return own <= other and (medians[name], other) > (medians[chosen], own)


def _medians(baseline: str, ratios: Iterable[Ratio], trials: Iterable[Observed]) -> dict[str, float]:
    """Ratio to the baseline of every configuration that may be recommended, including the baseline's own 1."""
    eligible = eligible_names(trials)
    return {name: of for name, of in ((baseline, 1.0), *((one.name, one.median) for one in ratios)) if name in eligible}


def _unfrozen(by_name: Mapping[str, Observed], medians: Mapping[str, float]) -> dict[str, float]:
    return {name: median for name, median in medians.items() if not by_name[name].configuration.freezes}


def _near_the_fastest(medians: Mapping[str, float]) -> list[str]:
    """The configurations within ``EQUALITY`` of the fastest, including the fastest."""
    best = max(medians.values(), default=0.0)
    return [name for name in medians if medians[name] * (1 + EQUALITY) >= best]


def _least_demanding(by_name: Mapping[str, Observed], medians: Mapping[str, float]) -> str:
    """The configuration that demands least within ``EQUALITY`` of the fastest; among equal demands, the fastest."""
    return min(_near_the_fastest(medians), key=lambda name: (demands(by_name[name].configuration), -medians[name]))


def is_crowded(device: str | None, environment: Environment, other_cores: float | None) -> bool:
    """
    Whether other programs left less than half of the cores that the threads of a call want.

    Then a call waits whole time slices for its threads, and a configuration with fewer parallel regions looks faster. A
    detection network was certainly 1.47 times faster beside 1.1 busy cores of two, and 1.05 times on the quiet machine.
    """
    cores, threads = environment.cpu_count, environment.thread_count
    if device != "cpu" or other_cores is None or not cores or not threads:
        return False
    return _LEAST_OF_ITS_CORES * min(threads, cores) > cores - other_cores


def compare_trials(
    trials: Sequence[Observed], other_cores: float | None = None, *, crowded: bool = False
) -> Comparison | None:
    """
    Compares all measured trials with the baseline.

    Args:
        other_cores: Average number of cores that other programs used meanwhile.
        crowded: Whether all verdicts are to be ``inconclusive``, because the machine was crowded.

    Returns:
        The comparison; None if fewer than two trials have times.
    """
    measured = {
        trial.name: trial.measurement for trial in trials if trial.measurement is not None and trial.status == "ok"
    }
    baseline = choose_baseline((trial.configuration for trial in trials), measured)
    if baseline is None or len(measured) < 2:
        return None
    ratios = tuple(ratios_of(baseline, measured).values())
    if crowded:
        ratios = tuple(msgspec.structs.replace(ratio, verdict=INCONCLUSIVE) for ratio in ratios)
    medians = _medians(baseline, ratios, trials)
    fastest = sorted(_near_the_fastest(medians), key=lambda name: -medians[name])
    if medians:
        fastest.insert(0, _chosen({trial.name: trial for trial in trials}, medians, baseline, ratios))
    return Comparison(baseline=baseline, ratios=ratios, fastest=tuple(dict.fromkeys(fastest)), other_cores=other_cores)


def recommend(
    trials: Sequence[Observed], comparison: Comparison | None, how: Mapping[str, str | None]
) -> Recommendation | None:
    """
    Chooses the configuration to use.

    The first choice is the configuration that demands least within ``EQUALITY`` of the fastest. It is recommended if it
    is certainly faster than the baseline, or if the baseline's outputs are wrong. The second choice is the fastest
    configuration that demands less than the first choice and is certainly faster than the baseline. There must be no
    other configuration that is at least as fast as the second choice and demands no more. Without a second choice, the
    baseline is recommended.

    Returns:
        The recommendation; None if nothing was compared.
    """
    if comparison is None:
        return None
    by_name = {trial.name: trial for trial in trials}
    medians = _medians(comparison.baseline, comparison.ratios, trials)
    if not medians:
        return Recommendation(configuration=None)
    chosen = _chosen(by_name, medians, comparison.baseline, comparison.ratios)
    ratios = {ratio.name: ratio for ratio in comparison.ratios}
    free: WithoutFreezing | None = None
    unfrozen = _unfrozen(by_name, medians)
    if unfrozen and by_name[chosen].configuration.freezes:
        name = _without_freezing(by_name, unfrozen, comparison)
        free = WithoutFreezing(configuration=name, speedup=ratios.get(name), how=how.get(name))
    speedup = ratios.get(chosen)
    return Recommendation(
        configuration=chosen,
        speedup=speedup,
        how=None if chosen == comparison.baseline else how.get(chosen),
        verified=speedup is not None
        and len(speedup.start_ratios) > 1
        and speedup.verdict == FASTER
        and by_name[chosen].is_right,
        without_freezing=free,
    )


def _without_freezing(by_name: Mapping[str, Observed], medians: Mapping[str, float], comparison: Comparison) -> str:
    """The configuration that demands least near the fastest; if it is not certainly faster, one of those that are."""
    name = _least_demanding(by_name, medians)
    faster = _certainly_faster(comparison.ratios)
    certain = {near: medians[near] for near in _near_the_fastest(medians) if near in faster}
    return _least_demanding(by_name, certain) if certain and name not in (comparison.baseline, *faster) else name


def package_to_keep(diagnosis: Diagnosis) -> str | None:
    """The recommended configuration if AOTInductor made it; else AOTInductor's fastest one without wrong outputs."""
    eligible = eligible_names(diagnosis.trials)
    made = [trial.name for trial in diagnosis.trials if trial.configuration.ahead_of_time and trial.name in eligible]
    if diagnosis.recommended_name in made:
        return diagnosis.recommended_name
    ratios = diagnosis.ratios
    return max(made, key=lambda name: ratios[name].median if name in ratios else 0.0, default=None)


def _chosen(
    by_name: Mapping[str, Observed], medians: Mapping[str, float], baseline: str, ratios: Sequence[Ratio]
) -> str:
    """The configuration to recommend among those of ``medians``, as in ``recommend``."""
    faster = _certainly_faster(ratios) & medians.keys()
    best = _least_demanding(by_name, medians)
    if best in faster:
        return best
    if baseline not in medians:
        return best
    certain = [
        name
        for name in faster
        if demands(by_name[name].configuration) < demands(by_name[best].configuration)
        and not any(_stands_above(by_name, medians, other, name) for other in medians)
    ]
    return max(certain, key=lambda name: medians[name], default=baseline)


def wrong_baseline(diagnosis: Diagnosis) -> Trial | None:
    """
    The baseline if its outputs are certainly wrong; else None.

    The outputs are wrong if they differ from the reference, and eager's outputs equal the reference. Without an
    eager configuration, the reference must be in float64.
    """
    trial = diagnosis.measured_trial(diagnosis.baseline_name)
    if trial is None or trial.equivalence is None or not trial.is_wrong:
        return None
    eager = [one.is_right for one in diagnosis.trials if one.configuration.backend == "eager"]
    return trial if any(eager) or (not eager and trial.equivalence.reference == "float64") else None


def times_less_exact(trial: Trial) -> float | None:
    """
    A trial's error over eager's error; None if not known or not reported.

    An error is not reported if another order of sums may explain it (``LESS_EXACT``), or if it is far below the
    tolerance.
    """
    seen = trial.equivalence
    if seen is None or seen.relative_error is None or not seen.eager_relative_error:
        return None
    error, own = seen.relative_error, seen.eager_relative_error
    return error / own if error > LESS_EXACT * own and error >= _NOTICED * (seen.tolerance or 0.0) else None


def is_far_off(trial: Trial) -> bool:
    """Whether the outputs of a trial differ by more than another order of sums can explain, or by an unknown amount."""
    seen = trial.equivalence
    if seen is None or seen.status != "different":
        return False
    if seen.relative_error is None or seen.tolerance is None:
        return True
    return not seen.relative_error <= _FAR_OFF * seen.tolerance
