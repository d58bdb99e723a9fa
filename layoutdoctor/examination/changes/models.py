"""Two diagnoses of models against each other: decisions, findings, and each configuration's times and conversions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.comparison import (
    ComparedSubject,
    ComparedTrial,
    DecisionChange,
    FindingChange,
    GraphDecision,
    ModelComparison,
    Regression,
)
from layoutdoctor.examination.account import account
from layoutdoctor.examination.changes.conversions import (
    change_of,
    conversion_changes,
    cost_difference,
    cost_totals,
    round_trip_changes,
)
from layoutdoctor.examination.changes.regressions import model_regression, trial_regression
from layoutdoctor.examination.changes.times import (
    BETWEEN_RUNS,
    WITH_RESULT,
    environment_changes,
    has_another_machine,
    time_change,
)
from layoutdoctor.examination.graphs.regions import known_sum

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.comparison import CostTotals
    from layoutdoctor.diagnosis.records import Account, Decision, Diagnosis, Finding, Severity, Trial


def decision_changes(old: Trial | None, new: Trial | None) -> tuple[DecisionChange, ...]:
    """The graphs of one configuration that have a decision card in both diagnoses, where the cards differ."""
    if old is None or new is None:
        return ()
    before = {graph.name: graph.decision for graph in old.graphs}
    changes = (
        DecisionChange(graph=graph.name, old=_card(once), new=_card(graph.decision))
        for graph in new.graphs
        if (once := before.get(graph.name)) is not None and graph.decision is not None
    )
    return tuple(change for change in changes if change.old != change.new)


def _card(decision: Decision) -> GraphDecision:
    return msgspec.convert(decision, GraphDecision, from_attributes=True)


SEVERITY_ORDER: tuple[Severity, ...] = ("error", "warning", "note")


def finding_changes(old: Diagnosis, new: Diagnosis) -> tuple[FindingChange, ...]:
    """
    The findings of which there are more or fewer, by rule and configuration; the most severe first.

    A finding names the costliest of several places, and which one that is changes from run to run.
    """
    groups: dict[tuple[str, str | None], tuple[list[Finding], list[Finding]]] = defaultdict(lambda: ([], []))
    for age, diagnosis in enumerate((old, new)):
        for finding in diagnosis.findings:
            groups[finding.code, finding.configuration][age].append(finding)
    changes = (_change_of(once, now) for once, now in groups.values() if len(once) != len(now))
    return tuple(
        sorted(
            changes,
            key=lambda change: (SEVERITY_ORDER.index(change.severity), change.code, change.configuration or ""),
        )
    )


def _change_of(old: Sequence[Finding], new: Sequence[Finding]) -> FindingChange:
    own = new or old
    return FindingChange(
        change=change_of(len(old), len(new)),
        code=own[0].code,
        rule=own[0].rule,
        severity=min((finding.severity for finding in own), key=SEVERITY_ORDER.index),
        configuration=own[0].configuration,
        module=own[0].module,
        message=own[0].message,
        old_count=len(old),
        new_count=len(new),
        place=str(own[0].location) if own[0].location is not None else None,
        seconds=known_sum(*(finding.seconds for finding in own)),
        is_accepted=bool(new) and all(finding.accepted is not None for finding in new),
    )


def compare_models(old: Diagnosis, new: Diagnosis) -> ModelComparison:
    """What changed between two diagnoses of models."""
    names = dict.fromkeys(trial.name for diagnosis in (new, old) for trial in diagnosis.trials)
    different_subject = _different_subject(old, new)
    not_comparable = _not_comparable(old, new, different_subject)
    trials = tuple(
        msgspec.structs.replace(
            _compared_trial(name, old, new, not_comparable),
            account=_account(old.measured_trial(name), new.measured_trial(name)) if different_subject is None else None,
        )
        for name in names
    )
    environment = environment_changes(old, new)
    findings = finding_changes(old, new)
    subjects = _compared_subject(old), _compared_subject(new)
    is_same = (old.trials, old.findings) == (new.trials, new.findings) and not environment
    return ModelComparison(
        old=subjects[0],
        new=subjects[1],
        is_same=is_same and different_subject is None,
        is_empty=not any(trial.old_status in WITH_RESULT and trial.new_status in WITH_RESULT for trial in trials),
        different_subject=different_subject,
        environment=environment,
        trials=trials,
        findings=findings,
        regression=model_regression(trials, findings, subjects, not_comparable),
        notes=tuple(_notes(old, new)),
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


def _account(old: Trial | None, new: Trial | None) -> Account | None:
    """Where the difference goes, from the one that took longer to the other."""
    if old is None or new is None or old.measurement is None or new.measurement is None:
        return None
    before, after = old.measurement.median_seconds, new.measurement.median_seconds
    if max(before, after) < (1 + BETWEEN_RUNS) * min(before, after):
        return None
    slower, faster = (new, old) if after >= before else (old, new)
    found = account(slower, faster)
    ages = ("new", "old") if after >= before else ("old", "new")
    names = (f"{trial.name} ({age})" for trial, age in zip((slower, faster), ages, strict=True))
    return found and msgspec.structs.replace(found, slower=next(names), faster=next(names))


def _compared_trial(name: str, old: Diagnosis, new: Diagnosis, not_comparable: str | None) -> ComparedTrial:
    before, after = old.find_trial(name), new.find_trial(name)
    old_median, new_median = _median_seconds(old, name), _median_seconds(new, name)
    old_costs, new_costs = _costs_of(before), _costs_of(after)
    has_same_pace = not_comparable is None and not environment_changes(old, new)
    trial = ComparedTrial(
        name=name,
        old_status=before.status if before is not None else None,
        new_status=after.status if after is not None else None,
        old_median_seconds=old_median,
        new_median_seconds=new_median,
        median_ratio=old_median / new_median if has_same_pace and old_median and new_median else None,
        old_costs=old_costs,
        new_costs=new_costs,
        difference=cost_difference(old_costs, new_costs) if old_costs is not None and new_costs is not None else None,
        conversions=conversion_changes(before, after) if before is not None and after is not None else (),
        round_trips=round_trip_changes(before, after) if before is not None and after is not None else (),
        decisions=decision_changes(before, after),
        regression=Regression(),
        time=time_change(name, old, new, not_comparable),
        old_same_as=before.same_as if before is not None else None,
        new_same_as=after.same_as if after is not None else None,
        old_failure=_failure_of(before),
        new_failure=_failure_of(after),
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


def _notes(old: Diagnosis, new: Diagnosis) -> Iterator[str]:
    if has_another_machine(old, new):
        yield "the two ran on different devices, processors or thread counts: only ratios to the baseline are compared"
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
