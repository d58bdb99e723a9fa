"""
Two diagnoses of models against each other, configuration by configuration.

Times are judged in ``time_changes``, findings in ``finding_changes``, decisions in ``decision_changes``, and what
counts as a regression in ``model_regression``; here they are put together. Faces ``layoutdoctor.compare``; a pure
function of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.analysis.conversion_changes import (
    conversion_changes,
    cost_difference,
    cost_totals,
    round_trip_changes,
)
from layoutdoctor.analysis.decision_changes import decision_changes
from layoutdoctor.analysis.environment_changes import environment_changes, has_another_device
from layoutdoctor.analysis.finding_changes import finding_changes
from layoutdoctor.analysis.model_regression import model_regression, trial_regression
from layoutdoctor.analysis.time_changes import time_changes
from layoutdoctor.comparison_records import ComparedSubject, ComparedTrial, ModelComparison, Regression
from layoutdoctor.units import format_significant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.comparison_records import CostTotals, TimeChange, TimeSummary
    from layoutdoctor.records import Diagnosis, Trial

_WITH_RESULT = ("ok", "same_as")


def compare_models(old: Diagnosis, new: Diagnosis) -> ModelComparison:
    """
    What changed between two diagnoses of models.

    Args:
        old: The earlier one.
        new: The later one.
    """
    names = dict.fromkeys(trial.name for diagnosis in (new, old) for trial in diagnosis.trials)
    different_subject = _different_subject(old, new)
    not_comparable = _not_comparable(old, new, different_subject)
    times, summary = time_changes(old, new, not_comparable)
    trials = tuple(_compared_trial(name, old, new, not_comparable, times.get(name)) for name in names)
    environment = environment_changes(old, new)
    findings, stayed = finding_changes(old, new)
    subjects = _compared_subject(old), _compared_subject(new)
    is_same = (old.trials, old.findings) == (new.trials, new.findings) and not environment
    return ModelComparison(
        old=subjects[0],
        new=subjects[1],
        is_same=is_same and different_subject is None,
        is_empty=not any(trial.old_status in _WITH_RESULT and trial.new_status in _WITH_RESULT for trial in trials),
        different_subject=different_subject,
        environment=environment,
        trials=trials,
        findings=findings,
        stayed=stayed,
        times=summary,
        regression=model_regression(trials, findings, summary, subjects, not_comparable),
        notes=tuple(_notes(old, new, summary)),
    )


def _compared_subject(diagnosis: Diagnosis) -> ComparedSubject:
    recommendation, comparison = diagnosis.recommendation, diagnosis.comparison
    return ComparedSubject(
        name=diagnosis.subject.name,
        created_at=diagnosis.created_at,
        mode=diagnosis.subject.mode,
        device=diagnosis.subject.device,
        recommended=recommendation.configuration if recommendation is not None else None,
        speedup=recommendation.speedup if recommendation is not None else None,
        baseline=comparison.baseline if comparison is not None else None,
        fastest=comparison.fastest if comparison is not None else (),
        target=diagnosis.subject.target,
        reason=recommendation.reason if recommendation is not None else None,
    )


def _different_subject(old: Diagnosis, new: Diagnosis) -> str | None:
    """By what the two are about different things; a name alone may change with the file's."""
    before, after = old.subject, new.subject
    if before.mode != after.mode:
        return f"one is of {before.mode}, the other of {after.mode}"
    shapes, types, strides = (
        [tuple(getattr(tensor, field) for tensor in subject.inputs) for subject in (before, after)]
        for field in ("shape", "dtype", "stride")
    )
    if before.inputs and after.inputs:
        if shapes[0] != shapes[1]:
            return "inputs differ in shape"
        if types[0] != types[1]:
            return "inputs differ in dtype"
        if None not in (*strides[0], *strides[1]) and strides[0] != strides[1]:
            return "inputs differ in strides"
    counts = before.parameter_count, after.parameter_count
    if None not in counts and counts[0] != counts[1]:
        return f"the models differ: {counts[0]} parameters in the old one, {counts[1]} in the new one"
    return None


def _not_comparable(old: Diagnosis, new: Diagnosis, different_subject: str | None) -> str | None:
    """Why nothing may be called better or worse; findings and decisions are listed all the same."""
    if different_subject is not None:
        return f"not comparable: {different_subject}"
    if old.subject.target != new.subject.target:
        return "not comparable: they were lowered for different devices, or only one of them ran"
    for age, diagnosis in (("old", old), ("new", new)):
        if diagnosis.interrupted is not None:
            return f"the {age} one was not finished: {diagnosis.interrupted}"
    return None


def _compared_trial(
    name: str, old: Diagnosis, new: Diagnosis, not_comparable: str | None, time: TimeChange | None
) -> ComparedTrial:
    before, after = old.trial(name), new.trial(name)
    old_median, new_median = _median_seconds(old, name), _median_seconds(new, name)
    old_costs, new_costs = _costs_of(before), _costs_of(after)
    trial = ComparedTrial(
        name=name,
        old_status=before.status if before is not None else None,
        new_status=after.status if after is not None else None,
        old_median_seconds=old_median,
        new_median_seconds=new_median,
        median_ratio=old_median / new_median if old_median and new_median else None,
        old_costs=old_costs,
        new_costs=new_costs,
        difference=cost_difference(old_costs, new_costs) if old_costs is not None and new_costs is not None else None,
        conversions=conversion_changes(before, after) if before is not None and after is not None else (),
        round_trips=round_trip_changes(before, after) if before is not None and after is not None else (),
        decisions=decision_changes(before, after),
        regression=Regression(),
        time=time,
        old_same_as=before.same_as if before is not None else None,
        new_same_as=after.same_as if after is not None else None,
        old_failure=_failure_of(before),
        new_failure=_failure_of(after),
        old_graph_break_count=_graph_breaks(before),
        new_graph_break_count=_graph_breaks(after),
        old_recompile_count=_recompiles(before),
        new_recompile_count=_recompiles(after),
    )
    return msgspec.structs.replace(trial, regression=trial_regression(trial, old, new, not_comparable))


def _costs_of(trial: Trial | None) -> CostTotals | None:
    """What one iteration spent; None where no kernels were recorded, unless the graphs alone were to tell."""
    if trial is None or (trial.kernels is None and not trial.is_static):
        return None
    return cost_totals(trial, 1)


def _median_seconds(diagnosis: Diagnosis, name: str) -> float | None:
    trial = diagnosis.measured_trial(name)
    return trial.measurement.median_seconds if trial is not None and trial.measurement is not None else None


def _failure_of(trial: Trial | None) -> str | None:
    return trial.failure.message if trial is not None and trial.failure is not None else None


def _graph_breaks(trial: Trial | None) -> int | None:
    if trial is None or trial.status not in _WITH_RESULT:
        return None
    # Every graph carries the number of the whole model.
    return max((graph.graph_breaks for graph in trial.graphs), default=len(trial.graph_break_reasons))


def _recompiles(trial: Trial | None) -> int | None:
    return trial.recompile_count if trial is not None and trial.status in _WITH_RESULT else None


def _notes(old: Diagnosis, new: Diagnosis, times: TimeSummary) -> Iterator[str]:
    if times.is_other_machine:
        what = "on different devices" if has_another_device(old, new) else "on different processors or thread counts"
        yield f"the two ran {what}: times are shown and not judged"
    if old.subject.target != new.subject.target:
        yield "one of the two was lowered for another device and did not run the same way"
    if old.layoutdoctor_version != new.layoutdoctor_version:
        yield (
            f"written by layoutdoctor {old.layoutdoctor_version} and {new.layoutdoctor_version}: findings may have come"
            " and gone with the rules; diagnose both with one version"
        )
    for age, diagnosis in (("old", old), ("new", new)):
        if diagnosis.interrupted is not None:
            yield f"the {age} one was not finished: {diagnosis.interrupted}"
    bandwidths = [diagnosis.environment.copy_bandwidth_bytes_per_second for diagnosis in (old, new)]
    if times.has_drifted and bandwidths[0] and bandwidths[1]:
        rates = [f"{format_significant(bandwidth / 1e9)} GB/s" for bandwidth in bandwidths if bandwidth]
        yield f"copying a large tensor reached {rates[0]} in the old run and {rates[1]} in the new one"
