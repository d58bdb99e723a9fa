"""
What counts as a regression between two diagnoses of models.

The new one is worse where, of a configuration with a result in both,

- the time became slower beyond noise (``time_changes`` says how that is judged),
- there are more redundant pairs,
- where nothing was timed (``--target``): more layout conversions;

or where

- a configuration that had a result failed, crashed or ran out of time,
- there is a new finding, warning or error, about a configuration with a result in both or about the whole diagnosis.
  A finding that only became more severe is none, nor is one of a configuration that runs the same code in both: the
  cost of one iteration crosses thresholds by itself. Accepted findings are not counted, nor those that rest on times
  (``RESTS_ON_TIMES``), as times are judged above.

It cannot be judged where the two are not about the same work, one was interrupted, or the time of a baseline, of a
recommended or of a fastest configuration could not be judged though both ran on the same machine; nor where everything
became slower by more than two runs of one thing may, and other code or versions ran: that may be the model or the
machine. A loss that was found counts also where something else could not be judged. Across machines times are not
asked for. Faces ``model_comparison``; pure functions of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.analysis.conversion_changes import recorded_by_one
from layoutdoctor.analysis.layout_regression import COUNT_TOLERANCE, format_count
from layoutdoctor.comparison_records import Regression
from layoutdoctor.records import SLOWER
from layoutdoctor.units import format_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.comparison_records import ComparedSubject, ComparedTrial, FindingChange, TimeSummary
    from layoutdoctor.records import Diagnosis

RESTS_ON_TIMES = frozenset({"LD203", "LD204", "LD205", "LD303", "LD401", "LD403"})
"""Findings that come and go with measured times: a gain that was sure in one run may be too unsure in the other."""

_WITH_RESULT = ("ok", "same_as")
_WITHOUT_RESULT = {"failed": "failed", "crashed": "crashed", "timed_out": "ran out of time"}
_SERIOUS = ("error", "warning")


def trial_regression(trial: ComparedTrial, old: Diagnosis, new: Diagnosis, not_comparable: str | None) -> Regression:
    """
    Whether one configuration is worse.

    Args:
        trial: It, compared; its own ``regression`` is not looked at.
        old: The earlier diagnosis.
        new: The later one.
        not_comparable: Why the two are not about the same work; None where they are.
    """
    if not_comparable is not None:
        return Regression(not_judged=not_comparable)
    if trial.old_status in _WITH_RESULT and trial.new_status in _WITHOUT_RESULT:
        why = f": {trial.new_failure}" if trial.new_failure else ""
        return Regression(losses=(f"{_WITHOUT_RESULT[trial.new_status]}, had a result before{why}",))
    if trial.old_status not in _WITH_RESULT or trial.new_status not in _WITH_RESULT:
        return Regression(not_judged="it has no result in both")
    return Regression(losses=tuple(_losses(trial, old, new)))


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
        trials: All of them, each with its regression.
        findings: Those of which there are more or fewer.
        times: How times were judged.
        subjects: What the old and the new one say first.
        not_comparable: Why the two are not about the same work; None where they are.
    """
    if not_comparable is not None:
        return Regression(not_judged=not_comparable)
    shared = {trial.name: trial for trial in trials if _has_both(trial)}
    losses = [f"{trial.name}: {loss}" for trial in trials if not _is_same_in_both(trial, shared) for loss in _of(trial)]
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


def _losses(trial: ComparedTrial, old: Diagnosis, new: Diagnosis) -> Iterator[str]:
    time = trial.time
    if time is not None and time.verdict == SLOWER and time.change is not None:
        yield f"takes {format_ratio(1 / time.change.median)} as long (at least {format_ratio(1 / time.change.high)})"
    before, after = old.trial(trial.name), new.trial(trial.name)
    if trial.old_costs is None or trial.new_costs is None:
        return
    # The seconds of conversions are those of one profiled iteration, which has no interval: their number is judged.
    counts = []
    if all(one is not None and one.is_static for one in (before, after)):
        counts.append(("layout conversion", trial.old_costs.conversion_count, trial.new_costs.conversion_count))
    if "shape" not in recorded_by_one(before, after):
        counts.append(("round trip", trial.old_costs.redundant_pair_count, trial.new_costs.redundant_pair_count))
    for what, once, now in counts:
        if now - once >= COUNT_TOLERANCE:
            yield f"{format_count(now)} {what}{'' if now == 1 else 's'} instead of {format_count(once)}"


def _has_both(trial: ComparedTrial) -> bool:
    return trial.old_status in _WITH_RESULT and trial.new_status in _WITH_RESULT


def _may_differ(trial: ComparedTrial | None) -> bool:
    """Whether a configuration has a result in both, and not by the same code."""
    return trial is not None and not (trial.time is not None and trial.time.has_same_code)


def _of(trial: ComparedTrial) -> tuple[str, ...]:
    return trial.regression.losses


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
