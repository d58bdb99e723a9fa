"""Which configuration is the baseline, which ones are timed again, and which one is recommended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.answer import FASTER, Comparison, Recommendation, WithoutFreezing
from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.examination.ratios import EQUALITY, RESOLUTION, ratio_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from layoutdoctor.diagnosis.answer import Ratio
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.subject import Configuration
    from layoutdoctor.diagnosis.trial import Trial

NEAR_THE_BEST = 1.12
"""Configurations within this factor of the best are timed in more rounds and in further starts."""
MOST_CONTENDERS = 3
FEWEST_STARTS = 3
MOST_STARTS = 5
_FAR_OFF = 1.5
"""Times the tolerance."""
KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "4294967296", "MALLOC_MMAP_MAX_": "0"}
"""Environment variables with which glibc's allocator gives no memory back to the system."""
Demands = tuple[bool, bool, int]
"""Frozen weights, giving up torch.compile, and the number of changes."""


def choose_baseline(configurations: Iterable[Configuration], measured: Collection[str]) -> str | None:
    """The configuration that ratios refer to: torch.compile's default if it ran, else the first that did."""
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


def demands(one: Configuration) -> Demands:
    """The changes that a configuration demands of a user of torch.compile's default; fewer sort first."""
    changes = (
        one.layout_optimization not in (None, "default"),
        one.model_format not in (None, "preserve"),
        one.input_format not in (None, "preserve"),
    )
    count = sum(changes) + len(one.inductor_options) + len(one.cures) + len(one.library_switches)
    return one.freezes, one.backend != "inductor", count


def contenders(medians: Mapping[str, float], frozen: Collection[str]) -> tuple[str, ...]:
    """
    Configurations that may be the fastest, the best first: they are timed again in further starts.

    Args:
        medians: Ratio to the baseline of every configuration with right outputs but the baseline, over the rounds.
        frozen: Those that freeze weights. The best without frozen weights is always among the contenders.
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

    Only what is faster than the baseline is recommended; of those within 3 % of the best the one that demands least. If
    the baseline's outputs differ from the reference, the fastest with right outputs is recommended, be it slower.

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


def _chosen(trials: Iterable[Trial], baseline: str, ratios: Sequence[Ratio]) -> str | None:
    """
    The configuration to recommend among some trials: the baseline if nothing is faster.

    A configuration that was started again is preferred to one that has its ratio over the rounds alone.
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
    """The baseline if its outputs differ from the reference and eager mode's are not known to differ, too."""
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
    has_figures = seen.relative_error is not None and seen.tolerance is not None
    return not has_figures or not (seen.relative_error or 0.0) <= _FAR_OFF * (seen.tolerance or 0.0)
