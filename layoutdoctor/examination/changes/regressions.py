"""
Whether one run loses more to layouts than another, beyond what two recordings of the same thing differ by.

Only conversions and round trips are judged: a longer kernel time alone may have any cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.comparison import Regression
from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.diagnosis.records import FASTER, SLOWER
from layoutdoctor.examination.changes.conversions import recorded_by_one
from layoutdoctor.examination.changes.times import WITH_RESULT
from layoutdoctor.units import format_ratio, format_seconds, format_significant
from layoutdoctor.words import name_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.comparison import ComparedSubject, ComparedTrial, CostTotals, FindingChange
    from layoutdoctor.diagnosis.records import Diagnosis

TIME_TOLERANCE = 0.10
"""Conversions that take longer by less than this part may be the same ones at another clock rate of the device."""

LEAST_SHARE = 0.001
"""Further conversion time below this part of the kernel time is nothing that a run could be worse by."""

COUNT_TOLERANCE = 0.5
"""More round trips, or conversions, per step by less than this are those of a step that was recorded in part."""


def layout_losses(old: CostTotals, new: CostTotals, *, judges_time: bool, judges_round_trips: bool) -> tuple[str, ...]:
    """
    What the new run loses more to layouts than the old one, one sentence each.

    Args:
        judges_time: Whether seconds may be compared: False for two devices, where conversions are counted instead.
    """
    losses: list[str] = []
    if judges_time and old.conversion_seconds is not None and new.conversion_seconds is not None:
        least = max(TIME_TOLERANCE * old.conversion_seconds, LEAST_SHARE * (new.kernel_seconds or 0.0))
        if new.conversion_seconds - old.conversion_seconds > least:
            losses.append(
                f"layout conversions take {format_seconds(new.conversion_seconds)} instead of "
                f"{format_seconds(old.conversion_seconds)}"
            )
    else:
        losses += _more("layout conversion", old.conversion_count, new.conversion_count)
    if judges_round_trips:
        losses += _more("round trip", old.redundant_pair_count, new.redundant_pair_count)
    return tuple(losses)


def _more(what: str, old: float, new: float) -> Iterator[str]:
    if new - old >= COUNT_TOLERANCE:
        yield f"{format_count(new)} {what}{'' if new == 1 else 's'} instead of {format_count(old)}"


def format_count(count: float) -> str:
    """A count that may be one per step: ``"53"``, ``"17.7"``."""
    return str(round(count)) if float(count).is_integer() else format_significant(count)


RESTS_ON_TIMES = frozenset({"LD205", "LD303", "LD308"})
"""Findings that come and go with measured times: a gain that was sure in one run may be too unsure in the other."""

_WITHOUT_RESULT = {"failed": "failed", "crashed": "crashed", "timed_out": "ran out of time"}
_SERIOUS = ("error", "warning")


def trial_regression(trial: ComparedTrial, old: Diagnosis, new: Diagnosis, not_comparable: str | None) -> Regression:
    """
    Whether one configuration is worse.

    Args:
        not_comparable: Why the two are not about the same work; None where they are.
    """
    if not_comparable is not None:
        return Regression(not_judged=not_comparable)
    if trial.old_status in WITH_RESULT and trial.new_status in _WITHOUT_RESULT:
        why = f": {trial.new_failure}" if trial.new_failure else ""
        return Regression(losses=(f"{_WITHOUT_RESULT[trial.new_status]}, had a result before{why}",))
    if trial.old_status not in WITH_RESULT or trial.new_status not in WITH_RESULT:
        return Regression(not_judged="it has no result in both")
    return Regression(losses=tuple(_model_losses(trial, old, new)))


def model_regression(
    trials: Sequence[ComparedTrial],
    findings: Sequence[FindingChange],
    subjects: tuple[ComparedSubject, ComparedSubject],
    not_comparable: str | None,
) -> Regression:
    """
    Whether the new diagnosis as a whole is worse.

    Args:
        not_comparable: Why the two are not about the same work; None where they are.
    """
    if not_comparable is not None:
        return Regression(not_judged=not_comparable)
    shared = {trial.name: trial for trial in trials if {trial.old_status, trial.new_status} <= {*WITH_RESULT}}
    told = [trial for trial in trials if not _is_same_in_both(trial, shared)]
    losses = [*_baseline_losses(told, subjects[1].baseline)]
    losses += [f"{_shown(trial.name)}: {loss}" for trial in told for loss in trial.regression.losses]
    losses += [
        _finding_words(change)
        for change in findings
        if change.change in ("came", "more")
        and change.severity in _SERIOUS
        and change.code not in RESTS_ON_TIMES
        and not change.is_accepted
        and (change.configuration is None or change.configuration in shared)
    ]
    if not shared:
        return Regression(losses=tuple(losses), not_judged="no configuration has a result in both")
    return Regression(losses=tuple(losses), not_judged=_unjudged_times(shared, subjects))


def _model_losses(trial: ComparedTrial, old: Diagnosis, new: Diagnosis) -> Iterator[str]:
    yield from _time_losses(trial, new.comparison.baseline if new.comparison is not None else "")
    before, after = old.find_trial(trial.name), new.find_trial(trial.name)
    if trial.old_costs is None or trial.new_costs is None:
        return
    # The seconds of conversions are those of one profiled iteration, which has no interval: their number is judged.
    if all(one is not None and one.is_static for one in (before, after)):
        yield from _more("layout conversion", trial.old_costs.conversion_count, trial.new_costs.conversion_count)
    if "shape" not in recorded_by_one(before, after):
        yield from _more("round trip", trial.old_costs.redundant_pair_count, trial.new_costs.redundant_pair_count)


def _time_losses(trial: ComparedTrial, baseline: str) -> Iterator[str]:
    time = trial.time
    if time is None or time.change is None or time.change.verdict != SLOWER or time.old_ratio is None:
        return
    # It may be the baseline that became faster, which times of one machine show.
    if trial.median_ratio is None or trial.median_ratio < 1:
        ratios = [format_ratio(ratio.median) for ratio in (time.old_ratio, time.new_ratio) if ratio is not None]
        yield f"runs at {ratios[-1]} the speed of {_shown(baseline)} instead of {ratios[0]}"


def _baseline_losses(trials: Sequence[ComparedTrial], baseline: str | None) -> Iterator[str]:
    """That the baseline became slower and most others did not: their ratios to it rose, and its own time as well."""
    took = next((trial.median_ratio for trial in trials if trial.name == baseline), None)
    changes = [trial.time.change for trial in trials if trial.time is not None and trial.time.change is not None]
    is_behind = 2 * sum(change.verdict == FASTER for change in changes) > len(changes)
    if baseline is not None and is_behind and took is not None and took * (1 + TIME_TOLERANCE) < 1:
        yield f"{_shown(baseline)}: takes {format_ratio(1 / took)} as long, and most other configurations do not"


def _is_same_in_both(trial: ComparedTrial, shared: dict[str, ComparedTrial]) -> bool:
    """Whether another row says the same already."""
    return trial.new_same_as is not None and trial.old_same_as == trial.new_same_as and trial.new_same_as in shared


def _shown(name: str) -> str:
    return "the default" if name == BASELINE else name_in_words(name)


def _finding_words(change: FindingChange) -> str:
    about = f" [{_shown(change.configuration)}]" if change.configuration else ""
    where = next((f" at {place}" for place in (change.module, change.place) if place), "")
    number = "new" if change.change == "came" else f"{change.new_count} instead of {change.old_count}"
    return f"{number} {change.severity} {change.code} {change.rule}{about}{where}"


def _unjudged_times(shared: dict[str, ComparedTrial], subjects: tuple[ComparedSubject, ComparedSubject]) -> str | None:
    """Why the speed of a configuration that matters was not judged."""
    if all(trial.time is None for trial in shared.values()):
        is_static = all(subject.target is not None for subject in subjects)
        return None if is_static else "no configuration was timed in both"
    named = [name for subject in subjects for name in (subject.baseline, subject.recommended)]
    for name in dict.fromkeys(name for name in named if name in shared):
        time = shared[name].time
        if time is None or time.not_judged is not None:
            why = "not timed in both" if time is None else time.not_judged
            return f"the time of {_shown(name)} was not judged: {why}"
    return None
