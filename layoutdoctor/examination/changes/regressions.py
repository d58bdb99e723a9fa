"""
Whether one run loses more to layouts than another, beyond what two recordings of the same thing differ by.

Only conversions and round trips are judged: a longer kernel time alone may have any cause.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.comparison import Regression
from layoutdoctor.diagnosis.records import SLOWER
from layoutdoctor.examination.changes.conversions import recorded_by_one
from layoutdoctor.examination.changes.times import WITH_RESULT
from layoutdoctor.units import format_ratio, format_seconds, format_significant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from layoutdoctor.diagnosis.comparison import ComparedSubject, ComparedTrial, CostTotals, FindingChange, TimeSummary
    from layoutdoctor.diagnosis.records import Conversion, Diagnosis

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
        resolution_seconds: What the sum of all conversions may be off by, as the recorder's clock is no finer.
        judges_time: Whether seconds may be compared: False for two devices, where conversions are counted instead.
    """
    losses: list[str] = []
    if judges_time and old.conversion_seconds is not None and new.conversion_seconds is not None:
        least = max(TIME_TOLERANCE * old.conversion_seconds, LEAST_SHARE * (new.kernel_seconds or 0.0))
        if new.conversion_seconds - old.conversion_seconds > least + resolution_seconds:
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


def clock_resolution(conversions: Iterable[Conversion]) -> float:
    """Seconds that a sum over conversions may be off by where the recorder counts whole microseconds; else zero."""
    launches = 0
    for conversion in conversions:
        ticks = (conversion.seconds or 0.0) / CLOCK_TICK
        if abs(ticks - round(ticks)) > _TICK_PRECISION:
            return 0.0
        launches += conversion.count
    return launches * CLOCK_TICK


def format_count(count: float) -> str:
    """A count that may be one per step: ``"53"``, ``"17.7"``."""
    return str(round(count)) if float(count).is_integer() else format_significant(count)


RESTS_ON_TIMES = frozenset({"LD203", "LD204", "LD205", "LD303", "LD401", "LD403"})
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
    times: TimeSummary,
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
    losses = [f"{trial.name}: {loss}" for trial in told for loss in trial.regression.losses]
    losses += [
        _finding_words(change)
        for change in findings
        if change.change in ("came", "more")
        and change.new_severity in _SERIOUS
        and change.code not in RESTS_ON_TIMES
        and not change.is_accepted
        and (change.configuration is None or _may_differ(shared.get(change.configuration)))
    ]
    if not shared:
        return Regression(losses=tuple(losses), not_judged="no configuration has a result in both")
    return Regression(losses=tuple(losses), not_judged=_unjudged_times(shared, times, subjects))


def _model_losses(trial: ComparedTrial, old: Diagnosis, new: Diagnosis) -> Iterator[str]:
    time = trial.time
    if time is not None and time.verdict == SLOWER and time.change is not None:
        yield f"takes {format_ratio(1 / time.change.median)} as long (at least {format_ratio(1 / time.change.high)})"
    before, after = old.find_trial(trial.name), new.find_trial(trial.name)
    if trial.old_costs is None or trial.new_costs is None:
        return
    # The seconds of conversions are those of one profiled iteration, which has no interval: their number is judged.
    if all(one is not None and one.is_static for one in (before, after)):
        yield from _more("layout conversion", trial.old_costs.conversion_count, trial.new_costs.conversion_count)
    if "shape" not in recorded_by_one(before, after):
        yield from _more("round trip", trial.old_costs.redundant_pair_count, trial.new_costs.redundant_pair_count)


def _may_differ(trial: ComparedTrial | None) -> bool:
    """Whether a configuration has a result in both, and not by the same code."""
    return trial is not None and not (trial.time is not None and trial.time.has_same_code)


def _is_same_in_both(trial: ComparedTrial, shared: dict[str, ComparedTrial]) -> bool:
    """Whether another row says the same already."""
    return trial.new_same_as is not None and trial.old_same_as == trial.new_same_as and trial.new_same_as in shared


def _finding_words(change: FindingChange) -> str:
    about = "".join(f" [{name}]" for name in (change.configuration,) if name)
    where = next((f" at {place}" for place in (change.module, change.place) if place), "")
    number = "new" if change.change == "came" else f"{change.new_count} instead of {change.old_count}"
    return f"{number} {change.severity} {change.code} {change.rule}{about}{where}"


def _unjudged_times(
    shared: dict[str, ComparedTrial], times: TimeSummary, subjects: tuple[ComparedSubject, ComparedSubject]
) -> str | None:
    if all(trial.time is None for trial in shared.values()):
        is_static = all(subject.target is not None for subject in subjects)
        return None if is_static else "no configuration was timed in both"
    if times.is_other_machine:
        return None
    named = [name for subject in subjects for name in (subject.baseline, subject.recommended, *subject.fastest[:1])]
    for name in dict.fromkeys(name for name in named if name in shared):
        time = shared[name].time
        if time is None or time.not_judged is not None:
            return f"the time of {name} was not judged: {time.not_judged if time is not None else 'not timed in both'}"
    if not any(trial.time is not None and trial.time.not_judged is None for trial in shared.values()):
        return f"no time was judged: {times.not_judged}"
    drift = times.drift
    if times.basis == "majority" and times.has_drifted and drift is not None and drift.median < 1:
        return (
            f"everything takes {format_ratio(1 / drift.median)} as long, and times alone cannot tell the machine from"
            " the model; measure both again on a quiet machine"
        )
    return None
