"""Two diagnoses of models against each other: decisions, findings, and each configuration's times and conversions."""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from layoutdoctor.diagnosis.comparison import (
    ComparedSubject,
    ComparedTrial,
    ConvolutionChange,
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
    RESOLUTION,
    WITH_RESULT,
    environment_changes,
    has_another_device,
    time_changes,
)
from layoutdoctor.examination.graphs.regions import known_sum
from layoutdoctor.units import format_significant

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from layoutdoctor.diagnosis.comparison import CostTotals, TimeChange, TimeSummary
    from layoutdoctor.diagnosis.records import Account, Convolution, Decision, Diagnosis, Finding, Severity, Trial


def decision_changes(old: Trial | None, new: Trial | None) -> tuple[DecisionChange, ...]:
    """The graphs of one configuration that have a decision card in both diagnoses, where the cards differ."""
    if old is None or new is None:
        return ()
    before = {graph.name: graph.decision for graph in old.graphs}
    changes = (
        _decision_change(graph.name, once, graph.decision)
        for graph in new.graphs
        if (once := before.get(graph.name)) is not None and graph.decision is not None
    )
    return tuple(change for change in changes if change.old != change.new or change.convolutions)


def _decision_change(name: str, old: Decision, new: Decision) -> DecisionChange:
    return DecisionChange(
        graph=name, old=_card(old), new=_card(new), convolutions=tuple(_convolution_changes(old, new))
    )


def _card(decision: Decision) -> GraphDecision:
    return msgspec.convert(decision, GraphDecision, from_attributes=True)


def _convolution_changes(old: Decision, new: Decision) -> Iterator[ConvolutionChange]:
    before = _by_place(old.convolutions)
    for place, convolution in _by_place(new.convolutions).items():
        once = before.get(place)
        if once is None:
            continue
        if (once.class_, once.channels_last) != (convolution.class_, convolution.channels_last):
            yield ConvolutionChange(
                module=convolution.module,
                node=convolution.node,
                old_class=once.class_,
                new_class=convolution.class_,
                old_channels_last=once.channels_last,
                new_channels_last=convolution.channels_last,
            )


def _by_place(convolutions: Iterable[Convolution]) -> dict[tuple[str, bool, int], Convolution]:
    """By module (by node where that was not recorded), direction, and which one there: node names move with edits."""
    seen: dict[tuple[str, bool], int] = defaultdict(int)
    places = {}
    for convolution in convolutions:
        name = convolution.module or convolution.node
        place = name, convolution.is_backward
        places[name, convolution.is_backward, seen[place]] = convolution
        seen[place] += 1
    return places


SEVERITY_ORDER: tuple[Severity, ...] = ("error", "warning", "note")


class _Key(NamedTuple):
    code: str
    configuration: str | None
    module: str | None
    file: str | None


_Keyed = tuple[_Key, "Finding"]

_NAMES: tuple[Callable[[_Key], Hashable], ...] = (
    lambda key: key,
    lambda key: (key.code, key.configuration, key.module),
    lambda key: (key.code, key.configuration, key.file),
    lambda key: (key.code, key.configuration),
)
"""By what findings are matched, the closest first."""


def finding_changes(old: Diagnosis, new: Diagnosis) -> tuple[tuple[FindingChange, ...], tuple[FindingChange, ...]]:
    """
    The findings of both, each matched with one of the other where there is one.

    Those of one rule and configuration are matched by module and file, then by either, then any with any: a finding
    that stands for several places names the costliest of them, and which one that is changes from run to run. The line
    has no part in it, since it moves with every edit above, nor has the folder; and the file that was diagnosed is the
    same file in both, also under another name. Of several findings at one module the number counts.

    Returns:
        Those of which there are more or fewer, and those that stayed; the most severe first.
    """
    before, after = ([(_key_of(finding, one), finding) for finding in one.findings] for one in (old, new))
    groups: dict[_Key, tuple[list[Finding], list[Finding]]] = defaultdict(lambda: ([], []))
    for name_of in _NAMES:
        before, after, matched = _matched(before, after, name_of)
        for key, once, now in matched:
            groups[_at_module(key)][0].append(once)
            groups[_at_module(key)][1].append(now)
    for age, left in enumerate((before, after)):
        for key, finding in left:
            groups[_at_module(key)][age].append(finding)
    changes = sorted(
        (_change_of(key, once, now) for key, (once, now) in groups.items()),
        key=lambda change: (SEVERITY_ORDER.index(change.severity), change.code, change.configuration or ""),
    )
    return (
        tuple(change for change in changes if change.change != "same"),
        tuple(change for change in changes if change.change == "same"),
    )


def _matched(
    old: list[_Keyed], new: list[_Keyed], name_of: Callable[[_Key], Hashable]
) -> tuple[list[_Keyed], list[_Keyed], list[tuple[_Key, Finding, Finding]]]:
    """What is left of both, in order, and the pairs under the new one's key."""
    waiting: dict[Hashable, list[_Keyed]] = defaultdict(list)
    for entry in old:
        waiting[name_of(entry[0])].append(entry)
    left, matched = [], []
    for key, finding in new:
        same = waiting[name_of(key)]
        if same:
            matched.append((key, same.pop(0)[1], finding))
        else:
            left.append((key, finding))
    taken = {id(once) for _, once, _ in matched}
    return [entry for entry in old if id(entry[1]) not in taken], left, matched


def _at_module(key: _Key) -> _Key:
    return key._replace(file=None)


def _key_of(finding: Finding, diagnosis: Diagnosis) -> _Key:
    file = _base_name(finding.location.file) if finding.location is not None else None
    if file is not None and file == _base_name(diagnosis.subject.name.partition(":")[0]):
        file = ""  # the diagnosed file itself, whatever it is called
    return _Key(finding.code, finding.configuration, finding.module, file)


def _base_name(path: str) -> str:
    return PurePath(path.replace("\\", "/")).name


def _change_of(key: _Key, old: Sequence[Finding], new: Sequence[Finding]) -> FindingChange:
    first = (new or old)[0]
    before, after = _most_severe(old), _most_severe(new)
    return FindingChange(
        change=change_of(len(old), len(new)),
        code=key.code,
        rule=first.rule,
        severity=after or before or first.severity,
        configuration=key.configuration,
        module=key.module,
        old_module=old[0].module if old else None,
        message=first.message,
        old_count=len(old),
        new_count=len(new),
        place=str(first.location) if first.location is not None else None,
        old_severity=before,
        new_severity=after,
        old_seconds=known_sum(*(finding.seconds for finding in old)),
        new_seconds=known_sum(*(finding.seconds for finding in new)),
        suggestion=first.suggestion,
        is_accepted=bool(new) and all(finding.accepted is not None for finding in new),
    )


def _most_severe(findings: Sequence[Finding]) -> Severity | None:
    return min((finding.severity for finding in findings), key=SEVERITY_ORDER.index, default=None)


def compare_models(old: Diagnosis, new: Diagnosis) -> ModelComparison:
    """What changed between two diagnoses of models."""
    names = dict.fromkeys(trial.name for diagnosis in (new, old) for trial in diagnosis.trials)
    different_subject = _different_subject(old, new)
    not_comparable = _not_comparable(old, new, different_subject)
    times, summary = time_changes(old, new, not_comparable)
    is_same_model = different_subject is None
    trials = tuple(
        msgspec.structs.replace(
            _compared_trial(name, old, new, not_comparable, times.get(name)),
            account=_account(old.measured_trial(name), new.measured_trial(name), is_same_model=is_same_model),
        )
        for name in names
    )
    environment = environment_changes(old, new)
    findings, stayed = finding_changes(old, new)
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


def _account(old: Trial | None, new: Trial | None, *, is_same_model: bool) -> Account | None:
    """Where the difference goes, from the one that took longer to the other."""
    if old is None or new is None or old.measurement is None or new.measurement is None:
        return None
    before, after = old.measurement.usual_seconds, new.measurement.usual_seconds
    if max(before, after) < (1 + RESOLUTION) * min(before, after):
        return None
    slower, faster = (new, old) if after >= before else (old, new)
    found = account(slower, faster, is_same_model=is_same_model)
    ages = ("new", "old") if after >= before else ("old", "new")
    names = (f"{trial.name} ({age})" for trial, age in zip((slower, faster), ages, strict=True))
    return found and msgspec.structs.replace(found, slower=next(names), faster=next(names))


def _compared_trial(
    name: str, old: Diagnosis, new: Diagnosis, not_comparable: str | None, time: TimeChange | None
) -> ComparedTrial:
    before, after = old.find_trial(name), new.find_trial(name)
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
    if trial is None or trial.status not in WITH_RESULT:
        return None
    # Every graph carries the number of the whole model.
    return max((graph.graph_breaks for graph in trial.graphs), default=len(trial.graph_break_reasons))


def _recompiles(trial: Trial | None) -> int | None:
    return trial.recompile_count if trial is not None and trial.status in WITH_RESULT else None


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
