"""What to recommend: which trial is the baseline, which may win, and what fresh processes make of the winner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.diagnosis.records import FASTER, NO_DIFFERENCE, KeptMemory, Recommendation, Speedup, WithoutFreezing
from layoutdoctor.examination.ratios import (
    COVERAGE_OF_STARTS,
    EQUALITY,
    MOST_STARTS,
    RESOLUTION,
    UNDECIDED,
    WITHIN_EQUALITY,
    MedianInterval,
    interval_over_starts,
    is_equal,
    judge,
    open_among_fastest,
    word_of,
)
from layoutdoctor.units import format_ratio
from layoutdoctor.words import be, count_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from layoutdoctor.diagnosis.records import (
        Comparison,
        Configuration,
        Diagnosis,
        FreshProcesses,
        RatioInterval,
        Trial,
    )
    from layoutdoctor.units import Seconds

_ONE_PROCESS = "it was timed beside the other configurations in one process, not in fresh ones"
_ONE_START = "it was started once only"
_MOST_CONTENDERS = 3
_NEAR_THE_BEST = 1.15
"""One start tells two configurations apart that differ by more than this, whatever the rounds say."""
AGREEMENT = 0.05
"""What one process and fresh ones may differ by beyond their intervals and still mean the same."""
_WIDEST = 0.2
"""Width of an interval over starts, upper over lower end, from which on it is faster, but nobody can say how much."""
_FAR_OFF = 3.0
"""Times the tolerance."""
_TELLING_FAULTS = 100
"""Page faults of a call above which their number may explain a time."""
_FAULT_SECONDS = 0.5e-6
TELLING_SHARE = 0.05
"""Of a call, what mapping memory anew takes of it, from which on it is told."""
_HEAPS_SHARE = 0.1  # of a call, what the page faults of one start take more than those of another
KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_MAX_": "0"}
"""Environment variables with which glibc's allocator gives no memory back to the system."""
Demands = tuple[bool, bool, int]
"""Fixed weights, to give up torch.compile, and how many changes."""


def choose_baseline(configurations: Sequence[Configuration], measurable: Collection[str]) -> str:
    """The configuration that ratios refer to: torch.compile's default where it ran, else the first that did."""
    if BASELINE in measurable:
        return BASELINE
    return next(configuration.name for configuration in configurations if configuration.name in measurable)


def eligible_names(trials: Sequence[Trial]) -> frozenset[str]:
    """The trials that may be recommended: those that ran and whose outputs are not known to differ."""
    return frozenset(
        trial.name
        for trial in trials
        if trial.status == "ok" and not (trial.equivalence is not None and trial.equivalence.status == "different")
    )


def _is_right(name: str, trials: Sequence[Trial]) -> bool:
    return name in eligible_names(trials)


def wrong_baseline(diagnosis: Diagnosis) -> Trial | None:
    """
    The baseline where its outputs differ from the reference and those of the model in eager do not.

    Where eager was not tried its error is known all the same: what is allowed beside a float64 reference is ten times
    that at least.
    """
    baseline = diagnosis.comparison.baseline if diagnosis.comparison is not None else BASELINE
    trial = diagnosis.measured_trial(baseline)
    if trial is None or trial.equivalence is None or trial.equivalence.status != "different":
        return None
    eager = [t.equivalence for t in diagnosis.trials if t.configuration.backend == "eager"]
    is_right = any(e is not None and e.status == "equal" for e in eager)
    return trial if is_right or (not eager and trial.equivalence.reference == "float64") else None


def is_far_off(trial: Trial) -> bool:
    """Whether its outputs differ by more than another order of sums could make them."""
    seen = trial.equivalence
    if seen is None or seen.status != "different":
        return False
    has_figures = seen.max_abs_error is not None and seen.tolerance is not None
    return not has_figures or not (seen.max_abs_error or 0.0) <= _FAR_OFF * (seen.tolerance or 0.0)


def least_demanding_first(comparison: Comparison | None, configurations: Iterable[Configuration]) -> Comparison | None:
    """A comparison whose fastest are in order: of those within 3 % of the best first what demands least."""
    if comparison is None:
        return None
    wanted = {configuration.name: demands(configuration) for configuration in configurations}
    medians = dict.fromkeys(comparison.fastest, 1.0) | {ratio.name: ratio.median for ratio in comparison.ratios}
    best = max((medians[name] for name in comparison.fastest), default=1.0)

    def place(name: str) -> tuple[bool, bool, Demands]:
        return name != comparison.baseline, medians[name] * (1 + EQUALITY) < best, wanted[name]

    return msgspec.structs.replace(comparison, fastest=tuple(sorted(comparison.fastest, key=place)))


def demands(one: Configuration) -> Demands:
    """What a configuration demands of who has torch.compile's default; the less comes first."""
    changes = (
        one.layout_optimization not in (None, "default"),
        one.model_format not in (None, "preserve"),
        one.input_format not in (None, "preserve"),
    )
    count = sum(changes) + len(one.inductor_options) + len(one.cures) + len(one.library_switches)
    return one.freezes, one.backend != "inductor", count


def recommend(
    trials: Sequence[Trial],
    comparison: Comparison | None,
    without_freezing: Comparison | None,
    how: Mapping[str, str],
) -> Recommendation:
    """
    What the rounds recommend; whether that holds is for further starts of processes to say.

    Args:
        comparison: None where fewer than two trials were measured. Where its baseline's outputs are wrong, the fastest
            of the others is recommended, be it slower.
        without_freezing: Of the same rounds, those of frozen weights left out; None where nothing is left to compare.
        how: Lines to paste, by configuration.
    """
    if comparison is None or not comparison.fastest:
        return _none(_why_nothing(trials, comparison))
    chosen = _surely_faster(trials, comparison)
    if chosen is None and not _is_right(comparison.baseline, trials):
        chosen = comparison.fastest[0]  # what is wrong is no alternative, however fast
    if chosen is None:
        return _none(_why_baseline(comparison, trials))
    by_name = {trial.name: trial for trial in trials}
    free: WithoutFreezing | None = None
    if by_name[chosen].configuration.freezes:
        name = _surely_faster(trials, without_freezing) or comparison.baseline
        free = WithoutFreezing(configuration=name, speedup=_speedup(comparison, name), how=how.get(name))
    return Recommendation(
        configuration=chosen,
        speedup=_speedup(comparison, chosen),
        how=how.get(chosen),
        verified=False,
        reason=_beside_wrong(comparison, trials, _ONE_START if comparison.own_processes else _ONE_PROCESS),
        without_freezing=free,
    )


def _surely_faster(trials: Sequence[Trial], comparison: Comparison | None) -> str | None:
    """The best that is faster than the baseline beyond doubt, be it told from what may be better still or not."""
    if comparison is None:
        return None
    eligible = eligible_names(trials)
    faster = [ratio for ratio in comparison.ratios if ratio.verdict == FASTER and ratio.name in eligible]
    names = {ratio.name for ratio in faster}
    best = max(faster, key=lambda ratio: ratio.median, default=None)
    return next((name for name in comparison.fastest if name in names), None if best is None else best.name)


def undecided(diagnosis: Diagnosis) -> tuple[RatioInterval, ...]:
    """
    What may be faster than the baseline though the times could not tell, where nothing is recommended.

    Returns:
        Ratios to the baseline, highest first; empty where there is a conclusion. Where some were started again, of
        these; where some look faster, those.
    """
    comparison, advice = diagnosis.comparison, diagnosis.recommendation
    if comparison is None or (advice is not None and advice.configuration not in (None, comparison.baseline)):
        return ()
    eligible = eligible_names(diagnosis.trials)
    ratios = [ratio for ratio in comparison.ratios if ratio.name in eligible]
    if any(ratio.verdict == FASTER for ratio in ratios):
        return ()  # it may not be recommended for another reason
    again = [ratio for ratio in ratios if ratio.start_count]
    found = [
        ratio
        for ratio in again or ratios
        if word_of(ratio) == UNDECIDED and (ratio.high > 1 + RESOLUTION or ratio.lacks_rounds)
    ]
    ahead = [ratio for ratio in found if ratio.median > 1]
    return tuple(sorted(ahead or found, key=lambda ratio: -ratio.median))


def has_open_questions(diagnosis: Diagnosis) -> bool:
    """Whether more rounds could say more: of what may be faster than the baseline, or as fast as the best."""
    open_among = () if diagnosis.comparison is None else diagnosis.comparison.undecided
    return bool(open_among or undecided(diagnosis))


def _speedup(comparison: Comparison, name: str) -> Speedup | None:
    ratio = next((ratio for ratio in comparison.ratios if ratio.name == name), None)
    return None if ratio is None else _bounds(ratio)


def _bounds(interval: RatioInterval | FreshProcesses) -> Speedup:
    return Speedup(low=interval.low, median=interval.median, high=interval.high)


def contenders(comparison: Comparison, trials: Sequence[Trial]) -> tuple[str, ...]:
    """
    What may be the fastest by the rounds, the best first, and the best of those that freeze no weights.

    The rounds know one start of each: which of these it is, further starts tell. Beside them goes what would lead if
    all kept their memory, as its one process may have had bad luck.
    """
    if comparison.is_too_busy:
        return ()
    by_name = {trial.name: trial for trial in trials}
    eligible = eligible_names(trials)
    found = [
        ratio
        for ratio in sorted(comparison.ratios, key=lambda ratio: -ratio.median)
        if ratio.name in eligible
        and (ratio.verdict == FASTER or (word_of(ratio) == UNDECIDED and ratio.median > 1 + EQUALITY))
    ]
    near = [ratio.name for ratio in found if ratio.median * _NEAR_THE_BEST >= found[0].median][:_MOST_CONTENDERS]
    free = [ratio.name for ratio in found if not by_name[ratio.name].configuration.freezes]
    names = tuple(dict.fromkeys((*near, *free[:1])))
    return (*names, *_ahead_with_memory_kept(names, comparison.baseline, [by_name[name] for name in eligible]))


def _ahead_with_memory_kept(names: Collection[str], baseline: str, trials: Iterable[Trial]) -> tuple[str, ...]:
    """The one of some trials that leaves those named and the baseline behind where all keep their memory."""
    measured = {trial.name: trial.measurement for trial in trials if trial.measurement is not None}
    kept = {name: one.median_seconds - (one.memory_seconds or 0.0) for name, one in measured.items()}
    rivals = [kept[name] for name in (*names, baseline) if name in kept]
    best = min(kept, key=lambda name: (kept[name], name), default=None)
    return (best,) if best and names and rivals and kept[best] * (1 + AGREEMENT) < min(rivals) else ()


def page_faults_of(trial: Trial | None) -> float:
    """Page faults of a call, where they take 5 % of it or more: as measured, or half a microsecond each; else 0."""
    measured = trial.measurement if trial is not None else None
    faults = measured.usual_page_faults if measured is not None else None
    if measured is None or faults is None:
        return 0.0
    seconds = faults * _FAULT_SECONDS if measured.memory_seconds is None else measured.memory_seconds
    return faults if seconds >= TELLING_SHARE * measured.usual_seconds else 0.0


def memory_kept(trial: Trial) -> KeptMemory | None:
    """What becomes of the baseline where its memory is kept, by its one process; None where that tells nothing."""
    measured = trial.measurement
    if measured is None or not measured.memory_seconds or not page_faults_of(trial):
        return None
    return KeptMemory(baseline_ratio=measured.usual_seconds / (measured.usual_seconds - measured.memory_seconds))


def kept_memory_of(advice: Recommendation, baseline: str, kept: Mapping[str, KeptMemory]) -> KeptMemory | None:
    """
    What becomes of a recommendation where memory is kept, with what is surely faster than it there.

    Args:
        kept: What further starts showed, by configuration.
    """
    chosen = advice.configuration or baseline
    own = kept.get(chosen)
    speedup = advice.speedup if own is None else own.speedup
    level = 1.0 if speedup is None else speedup.median
    others = {name: one.speedup for name, one in kept.items() if one.speedup is not None and name != chosen}
    best = max(others, key=lambda name: others[name].median, default=None)
    if best is None or others[best].low <= level * (1 + EQUALITY):
        return own
    known = own or KeptMemory(baseline_ratio=kept[best].baseline_ratio)
    return msgspec.structs.replace(known, fastest=best, fastest_speedup=others[best])


def telling_faults(call_seconds: Seconds) -> float:
    """How many page faults take 5 % of a call, at half a microsecond each."""
    return TELLING_SHARE * call_seconds / _FAULT_SECONDS


def with_fresh_processes(
    recommendation: Recommendation,
    comparison: Comparison,
    trials: Sequence[Trial],
    fresh: Mapping[str, FreshProcesses],
    how: Mapping[str, str],
) -> tuple[Recommendation, Comparison]:
    """
    Recommendation and comparison once further starts have timed what may be the fastest: users will see their speed.

    Args:
        fresh: Of each configuration that was timed beside the baseline.
        how: Lines to paste, by configuration.
    """
    by_name = {trial.name: trial for trial in trials}
    chosen = _best_of(fresh, recommendation.configuration, by_name)
    if chosen is None and not _is_right(comparison.baseline, trials):
        chosen = max(fresh, key=lambda name: fresh[name].median)
    if chosen is None:
        first = recommendation.configuration
        refuted = first if first in fresh else None
        why = recommendation.reason if refuted is None else _why_not_in_fresh_processes(refuted, comparison, fresh)
        seen = None if refuted is None else fresh[refuted]
        nothing = msgspec.structs.replace(_none(why or ""), fresh_processes=seen)
        return nothing, _with_starts(comparison, None, fresh, trials)
    seen, trial = fresh[chosen], by_name[chosen]
    free: WithoutFreezing | None = None
    if trial.configuration.freezes:
        others = {name: of for name, of in fresh.items() if not by_name[name].configuration.freezes}
        name = _best_of(others, None, by_name)
        free = WithoutFreezing(
            configuration=name or comparison.baseline,
            speedup=None if name is None else _bounds(fresh[name]),
            how=None if name is None else how.get(name),
            fresh_processes=None if name is None else fresh[name],
        )
    equal = trial.equivalence is not None and trial.equivalence.status == "equal"
    doubt = _scatter(seen, by_name.get(comparison.baseline), trial, _baseline_phrase(comparison))
    doubt = doubt or _disagreement(comparison, chosen, seen)
    comparison = _with_starts(comparison, chosen, fresh, trials)
    advice = Recommendation(
        configuration=chosen,
        speedup=_bounds(seen),
        how=how.get(chosen),
        verified=equal and doubt is None,
        reason=_beside_wrong(comparison, trials, doubt or _why_chosen(comparison, chosen, equal=equal)),
        fresh_processes=seen,
        without_freezing=free,
    )
    return advice, comparison


def _with_starts(
    comparison: Comparison, chosen: str | None, fresh: Mapping[str, FreshProcesses], trials: Sequence[Trial]
) -> Comparison:
    """
    The comparison with what further starts showed in the place of what the rounds had said of the same configurations.

    Args:
        chosen: What is recommended; None where the baseline stays.
    """
    best = 1.0 if chosen is None else fresh[chosen].median
    near = [name for name, seen in fresh.items() if seen.median * (1 + EQUALITY) >= best]
    once = [name for name in comparison.fastest if name not in fresh and name != comparison.baseline]
    # What one start saw far behind, though its rounds told nothing, is no rival of what was started again.
    medians = {ratio.name: ratio.median for ratio in comparison.ratios}
    leading = max((medians[name] for name in fresh), default=1.0)
    rivals = [name for name in once if medians[name] * _NEAR_THE_BEST >= leading]
    first = chosen or comparison.baseline
    is_level = best <= 1 + EQUALITY and _is_right(comparison.baseline, trials)
    names = [first, *near, *rivals, *((comparison.baseline,) if is_level else ())]
    open_ones = tuple(name for name in comparison.undecided if name in rivals)
    untold = tuple(name for name in near if name != first and not _are_equal(fresh[name], fresh.get(first)))
    link = max(fresh, key=lambda name: (name == chosen, fresh[name].median))
    within = next(ratio for ratio in comparison.ratios if ratio.name == link)
    return msgspec.structs.replace(
        comparison,
        ratios=tuple(
            _from_starts(ratio, fresh[ratio.name]) if ratio.name in fresh else _by_way_of(ratio, within, fresh[link])
            for ratio in comparison.ratios
        ),
        fastest=tuple(dict.fromkeys(names)),
        undecided=(*untold, *open_ones),
        seconds_to_decide=comparison.seconds_to_decide if open_ones else None,
    )


def _are_equal(one: FreshProcesses, other: FreshProcesses | None) -> bool:
    """Whether the same starts say that two are as good as equally fast; None for the baseline."""
    others = [1.0] * len(one.start_ratios) if other is None else other.start_ratios
    ratios = [ratio / another for ratio, another in zip(one.start_ratios, others, strict=True)]
    return len(ratios) > 1 and is_equal(MedianInterval(*interval_over_starts(ratios), COVERAGE_OF_STARTS))


def _from_starts(ratio: RatioInterval, seen: FreshProcesses) -> RatioInterval:
    interval = MedianInterval(seen.low, seen.median, seen.high, COVERAGE_OF_STARTS)
    return _with_interval(ratio, interval, seen.starts)


def _by_way_of(ratio: RatioInterval, within: RatioInterval, seen: FreshProcesses) -> RatioInterval:
    """
    The ratio of what was started once, without the luck that this one process of the baseline had.

    Args:
        within: What the same rounds said of a configuration that was started again.
        seen: What its further starts showed: by so much the baseline was luckier or not than in those.
    """
    if ratio.coverage is None or within.coverage is None:
        return ratio
    low, middle, high = (end / within.median for end in (seen.low, seen.median, seen.high))
    coverage = min(ratio.coverage, COVERAGE_OF_STARTS)
    interval = MedianInterval(ratio.low * low, ratio.median * middle, ratio.high * high, coverage)
    return _with_interval(ratio, interval, 0)


def _with_interval(ratio: RatioInterval, interval: MedianInterval, starts: int) -> RatioInterval:
    verdict = judge(interval, RESOLUTION) or NO_DIFFERENCE
    return msgspec.structs.replace(
        ratio,
        low=interval.low,
        median=interval.median,
        high=interval.high,
        coverage=interval.coverage,
        start_count=starts,
        verdict=verdict,
        decided=verdict != NO_DIFFERENCE or is_equal(interval),
    )


def _best_of(fresh: Mapping[str, FreshProcesses], preferred: str | None, trials: Mapping[str, Trial]) -> str | None:
    """The fastest that is surely faster than the baseline; of those equal to it what demands least, or is preferred."""
    faster = {name: seen.median for name, seen in fresh.items() if _is_faster(seen)}
    best = max(faster.values(), default=1.0)
    near = [name for name in faster if faster[name] * (1 + EQUALITY) >= best]

    def place(name: str) -> tuple[Demands, bool, float]:
        return demands(trials[name].configuration), name != preferred, -faster[name]

    return min(near, key=place, default=None)


def _is_faster(seen: FreshProcesses) -> bool:
    return seen.low > 1 + RESOLUTION


def scatters(seen: FreshProcesses, baseline: Trial | None, trial: Trial | None) -> bool:
    """
    Whether the starts differ too much among themselves to promise any one speed.

    By their ratios, or by the pages that they map: a few starts show a few heaps, and what a user's process has may be
    another one.
    """
    shares = _heap_share(baseline, seen.baseline_start_page_faults), _heap_share(trial, seen.start_page_faults)
    return seen.high / seen.low > 1 + _WIDEST or max(shares) >= _HEAPS_SHARE


def _heap_share(trial: Trial | None, faults: Sequence[float], fault_seconds: Seconds = _FAULT_SECONDS) -> float:
    """How much of a call the page faults of one start take more than those of another."""
    if trial is None or trial.measurement is None or not faults:
        return 0.0
    # The median of the rounds stays what it is when a usual start takes the place of their process.
    return (max(faults) - min(faults)) * fault_seconds / trial.measurement.median_seconds


def _fault_seconds(*trials: Trial | None) -> Seconds:
    """What mapping one page took, in the one of some trials that has most of it; else what is usual."""
    measured = [trial.measurement for trial in trials if trial is not None and trial.measurement is not None]
    dearest = max(measured, key=lambda one: one.memory_seconds or 0.0, default=None)
    if dearest is None or not dearest.memory_seconds or not dearest.usual_page_faults:
        return _FAULT_SECONDS
    return dearest.memory_seconds / dearest.usual_page_faults


def _scatter(seen: FreshProcesses, baseline: Trial | None, trial: Trial, phrase: str) -> str | None:
    """
    Where the starts differ too much among themselves to promise any one speed; None where they do not.

    Args:
        phrase: What the baseline is called.
    """
    if not scatters(seen, baseline, trial):
        return None
    least, most = format_ratio(min(seen.start_ratios)), format_ratio(max(seen.start_ratios))
    scatter = f"its {seen.starts} starts scatter from {least} to {most}"
    fault_seconds = _fault_seconds(baseline, trial)
    mapped = [
        f"{who} maps {min(faults):.0f} to {max(faults):.0f} pages anew in a call"
        for who, one, faults in (
            (phrase, baseline, seen.baseline_start_page_faults),
            (trial.name, trial, seen.start_page_faults),
        )
        if _heap_share(one, faults, fault_seconds) >= TELLING_SHARE
    ]
    if mapped:
        return f"{scatter}, where {' and '.join(mapped)}, by what else lies on the heap of a process"
    if seen.starts < MOST_STARTS:
        return f"{scatter}; up to {MOST_STARTS} are made without --quick and with a larger --budget"
    return f"{scatter}; measure on a machine that does nothing else"


def _disagreement(comparison: Comparison, name: str, seen: FreshProcesses) -> str | None:
    """Where the rounds and further starts differ by more than their intervals and a little; None where they agree."""
    within = _speedup(comparison, name)
    if within is None or max(within.low / seen.high, seen.low / within.high) <= 1 + AGREEMENT:
        return None
    where = _where(comparison)
    return (
        f"{where} it was {format_ratio(within.median)}, over {count_of(seen.starts, 'start')} of processes "
        f"of its own {format_ratio(seen.median)}{_faults_text(seen)}"
    )


def _where(comparison: Comparison) -> str:
    return "in its first start" if comparison.own_processes else "beside the other configurations in one process"


def _why_not_in_fresh_processes(name: str, comparison: Comparison, fresh: Mapping[str, FreshProcesses]) -> str:
    seen, within = fresh[name], _speedup(comparison, name)
    gain = "" if within is None else f" {_where(comparison)} ({format_ratio(within.median)})"
    interval = f"{format_ratio(seen.median)}, {format_ratio(seen.low)} to {format_ratio(seen.high)}"
    what = "slower" if seen.high < 1 else "not surely faster"
    return f"{name} led{gain}, but in fresh processes it is {what} ({interval}){_faults_text(seen)}"


def _faults_text(seen: FreshProcesses) -> str:
    """Page faults, where those explain a difference between processes."""
    mine, theirs = seen.page_faults_per_call, seen.baseline_page_faults_per_call
    if mine is None or theirs is None or max(mine, theirs) < _TELLING_FAULTS:
        return ""
    return f", with {mine:.0f} page faults a call against {theirs:.0f}"


def _none(reason: str) -> Recommendation:
    return Recommendation(configuration=None, speedup=None, how=None, verified=False, reason=reason)


def _why_nothing(trials: Sequence[Trial], comparison: Comparison | None) -> str:
    if comparison is not None:
        return "no configuration whose outputs are right was measured"
    measured = [trial.name for trial in trials if trial.measurement is not None]
    if not measured:
        return "nothing was measured"
    same = [trial.name for trial in trials if trial.same_as in measured]
    if same and len(measured) == 1:
        return f"all configurations are the same as {measured[0]} for this model"
    return f"only {measured[0]} was measured, so there is nothing to compare it with"


def _baseline_phrase(comparison: Comparison) -> str:
    return "torch.compile's default" if comparison.baseline == BASELINE else comparison.baseline


def _beside_wrong(comparison: Comparison, trials: Sequence[Trial], reason: str) -> str:
    """A reason, behind the one that stands above all where the baseline may not be chosen."""
    is_right = _is_right(comparison.baseline, trials)
    return reason if is_right else f"the outputs of {_baseline_phrase(comparison)} are not right; {reason}"


def _why_baseline(comparison: Comparison, trials: Sequence[Trial]) -> str:
    name = _baseline_phrase(comparison)
    ties = [name for name in comparison.fastest if name != comparison.baseline]
    noisy = [ratio.name for ratio in comparison.ratios if word_of(ratio) == UNDECIDED]
    open_ones, equal = ([name for name in ties if (name in noisy) is is_noisy] for is_noisy in (True, False))
    eligible = eligible_names(trials)
    is_beaten = any(ratio.verdict == FASTER and ratio.name not in eligible for ratio in comparison.ratios)
    reasons = [f"nothing {'whose outputs are right ' if is_beaten else ''}is measurably faster than {name}"]
    if equal:
        reasons.append(f"{', '.join(equal)} {be(len(equal))} equal to it {WITHIN_EQUALITY}")
    if open_ones:
        reasons.append(f"{', '.join(open_ones)} {be(len(open_ones))} undecided")
    return "; ".join(reasons)


def _why_chosen(comparison: Comparison, chosen: str, *, equal: bool) -> str:
    ties = [name for name in comparison.fastest if name not in (chosen, comparison.baseline)]
    open_ones = [name for name in open_among_fastest(comparison) if name in ties]
    as_fast = [name for name in ties if name not in open_ones and chosen in comparison.fastest]
    reason = "it is the fastest measured" if chosen in comparison.fastest else "it is the fastest of which that is sure"
    if as_fast:
        reason += f", together with {', '.join(as_fast)}, equal to it {WITHIN_EQUALITY}"
    if open_ones:
        reason += f"; whether {', '.join(open_ones)} may be as fast is undecided"
    return reason if equal else f"{reason}; its outputs were not checked against the reference"
