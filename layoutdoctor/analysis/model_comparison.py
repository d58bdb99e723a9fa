"""
Two diagnoses of models against each other, configuration by configuration.

The two were measured at different times, so their medians are put side by side and nothing is called faster or slower.
Faces ``layoutdoctor.compare``; a pure function of records.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from layoutdoctor.analysis.conversion_changes import (
    conversion_changes,
    cost_difference,
    cost_totals,
    recorded_by_one,
    round_trip_changes,
)
from layoutdoctor.analysis.environment_changes import environment_changes, has_another_device
from layoutdoctor.analysis.layout_regression import layout_losses
from layoutdoctor.comparison_records import (
    ComparedSubject,
    ComparedTrial,
    DecisionChange,
    FindingChange,
    GraphDecision,
    ModelComparison,
    Regression,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from layoutdoctor.comparison_records import CostTotals
    from layoutdoctor.records import Decision, Diagnosis, Finding, Trial

_SEVERITY_ORDER = ("error", "warning", "note")
_WITH_RESULT = ("ok", "same_as")
_DIFFERENT_MODELS = "the two seem to be of different models"


def compare_models(old: Diagnosis, new: Diagnosis) -> ModelComparison:
    """
    What changed between two diagnoses of models.

    Args:
        old: The earlier one.
        new: The later one.
    """
    names = dict.fromkeys(trial.name for diagnosis in (new, old) for trial in diagnosis.trials)
    different_subject = _different_subject(old, new)
    trials = tuple(_compared_trial(name, old, new, different_subject) for name in names)
    environment = environment_changes(old, new)
    return ModelComparison(
        old=_compared_subject(old),
        new=_compared_subject(new),
        is_same=(old.trials, old.findings) == (new.trials, new.findings) and not environment,
        is_empty=not any(trial.old_status in _WITH_RESULT and trial.new_status in _WITH_RESULT for trial in trials),
        different_subject=different_subject,
        environment=environment,
        trials=trials,
        findings=_finding_changes(old.findings, new.findings),
        regression=_regression(trials, different_subject),
        notes=tuple(_notes(old, new)),
    )


def _compared_subject(diagnosis: Diagnosis) -> ComparedSubject:
    recommendation = diagnosis.recommendation
    return ComparedSubject(
        name=diagnosis.subject.name,
        created_at=diagnosis.created_at,
        mode=diagnosis.subject.mode,
        device=diagnosis.subject.device,
        recommended=recommendation.configuration if recommendation is not None else None,
    )


def _different_subject(old: Diagnosis, new: Diagnosis) -> str | None:
    """By what the two are about different things; a name alone may change with the file's."""
    before, after = old.subject, new.subject
    if before.mode != after.mode:
        return f"one is of {before.mode}, the other of {after.mode}"
    counts = before.parameter_count, after.parameter_count
    if None not in counts and counts[0] != counts[1]:
        return f"{counts[0]} parameters in the old one, {counts[1]} in the new one"
    shapes = [tuple((tensor.shape, tensor.dtype) for tensor in subject.inputs) for subject in (before, after)]
    if all(shapes) and shapes[0] != shapes[1]:
        return "their inputs have other shapes or types"
    return None


def _compared_trial(name: str, old: Diagnosis, new: Diagnosis, different_subject: str | None) -> ComparedTrial:
    before, after = old.trial(name), new.trial(name)
    old_median, new_median = _median_seconds(old, name), _median_seconds(new, name)
    old_costs, new_costs = _costs_of(before), _costs_of(after)
    return ComparedTrial(
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
        decisions=tuple(_decision_changes(before, after)),
        regression=_judge(old, new, before, after, different_subject),
    )


def _costs_of(trial: Trial | None) -> CostTotals | None:
    """What one iteration spent; None where no kernels were recorded, unless the graphs alone were to tell."""
    if trial is None or (trial.kernels is None and not trial.is_static):
        return None
    return cost_totals(trial, 1)


def _median_seconds(diagnosis: Diagnosis, name: str) -> float | None:
    trial = diagnosis.measured_trial(name)
    return trial.measurement.median_seconds if trial is not None and trial.measurement is not None else None


def _decision_changes(old: Trial | None, new: Trial | None) -> Iterator[DecisionChange]:
    if old is None or new is None:
        return
    before = {graph.name: graph.decision for graph in old.graphs}
    for graph in new.graphs:
        once, now = before.get(graph.name), graph.decision
        if once is None or now is None:
            continue
        if _graph_decision(once) != _graph_decision(now):
            yield DecisionChange(
                graph=graph.name,
                old=_graph_decision(once),
                new=_graph_decision(now),
            )


def _graph_decision(decision: Decision) -> GraphDecision:
    return GraphDecision(
        applied=decision.applied,
        rule=decision.rule,
        channels_last_convolution_count=decision.channels_last_convolution_count,
        convolution_count=decision.convolution_count,
    )


def _judge(
    old: Diagnosis, new: Diagnosis, before: Trial | None, after: Trial | None, different_subject: str | None
) -> Regression:
    old_costs, new_costs = _costs_of(before), _costs_of(after)
    if old_costs is None or new_costs is None:
        return Regression(not_judged="its conversions are not recorded in both")
    if different_subject is not None:
        return Regression(not_judged=_DIFFERENT_MODELS)
    losses = layout_losses(
        old_costs,
        new_costs,
        resolution_seconds=0.0,  # one iteration is profiled in nanoseconds
        judges_time=not has_another_device(old, new),
        judges_round_trips="shape" not in recorded_by_one(before, after),
    )
    return Regression(losses=losses)


def _regression(trials: Iterable[ComparedTrial], different_subject: str | None) -> Regression:
    """Of the whole: every loss with its configuration; not judged where no trial could be."""
    if different_subject is not None:
        return Regression(not_judged=_DIFFERENT_MODELS)
    compared = [trial for trial in trials if trial.regression.not_judged is None]
    if not compared:
        return Regression(not_judged="no configuration has its conversions recorded in both")
    return Regression(losses=tuple(f"{trial.name}: {loss}" for trial in compared for loss in trial.regression.losses))


def _finding_changes(old: Iterable[Finding], new: Iterable[Finding]) -> tuple[FindingChange, ...]:
    """By code, configuration and module, not by line: a line moves with every edit above it."""
    groups: dict[tuple[str, str | None, str | None], tuple[list[Finding], list[Finding]]] = defaultdict(
        lambda: ([], [])
    )
    for age, findings in enumerate((old, new)):
        for finding in findings:
            groups[finding.code, finding.configuration, finding.module][age].append(finding)
    changes = [
        FindingChange(
            change="came" if not before else "went" if not after else "more" if len(after) > len(before) else "fewer",
            code=code,
            rule=(after or before)[0].rule,
            severity=min((finding.severity for finding in (*before, *after)), key=_SEVERITY_ORDER.index),
            configuration=configuration,
            module=module,
            message=(after or before)[0].message,
            old_count=len(before),
            new_count=len(after),
        )
        for (code, configuration, module), (before, after) in groups.items()
        if len(before) != len(after)
    ]
    return tuple(sorted(changes, key=lambda change: (_SEVERITY_ORDER.index(change.severity), change.code)))


def _notes(old: Diagnosis, new: Diagnosis) -> Iterator[str]:
    yield "the two were measured at different times: medians and their ratio are given, and no verdict"
    if has_another_device(old, new):
        yield "the two ran on different devices: their times differ for that reason as well"
    if old.subject.target != new.subject.target:
        yield "one of the two was lowered for another device and did not run the same way"
    for age, diagnosis in (("old", old), ("new", new)):
        if diagnosis.interrupted is not None:
            yield f"the {age} one was not finished: {diagnosis.interrupted}"
