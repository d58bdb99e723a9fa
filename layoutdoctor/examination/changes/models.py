"""
Two diagnoses of models: the changes of each configuration's speed and conversions, of decisions and of findings.

Times of different runs cannot be judged: for one model, diagnosed twice in a row on an idle shared machine, they
differed by a factor of up to 3.3. The ratio of two configurations that ran side by side changed by at most 3 % in 99 of
100 pairs of diagnoses, and by 5 % in the worst pair. So ratios to the baseline are compared, and judged from 5 % on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from layoutdoctor.diagnosis import Account, Diagnosis, Finding, Ratio, Trial
from layoutdoctor.diagnosis.answer import FASTER, SEVERITIES, SLOWER
from layoutdoctor.diagnosis.comparison import (
    WITH_RESULT,
    ComparedModel,
    ComparedTrial,
    DecisionChange,
    FindingChange,
    GraphDecision,
    ModelComparison,
    Regression,
    TrialChange,
)
from layoutdoctor.examination.account import account
from layoutdoctor.examination.advice.choice import judge
from layoutdoctor.examination.changes.costs import (
    TIME_TOLERANCE,
    conversion_changes,
    costs_of,
    environment_changes,
    has_another_machine,
    more_than,
    recorded_by_one,
    round_trip_changes,
)
from layoutdoctor.units import format_ratio, sum_if_all_known
from layoutdoctor.words import STATUS_WORDS, shown

BETWEEN_RUNS = 0.05
"""The ratios of two diagnoses of one model may differ by this share; on a quiet machine they rarely do."""

RESTS_ON_TIMES = frozenset({"LD205", "LD303"})
"""Rules whose findings depend on measured times: a gain that is certain in one run may be uncertain in the other."""


def compare_models(old: Diagnosis, new: Diagnosis) -> ModelComparison:
    """The changes between two diagnoses of models."""
    not_comparable = _not_comparable(old, new)
    names = dict.fromkeys(trial.name for diagnosis in (new, old) for trial in diagnosis.trials)
    environment = environment_changes(old, new)
    trials = tuple(_trial_change(name, old, new, not_comparable, is_alike=not environment) for name in names)
    findings = _finding_changes(old, new)
    has_common = any(trial.has_both_results for trial in trials)
    if not_comparable is not None:
        regression = Regression(not_judged=not_comparable)
    else:
        unjudged = _unjudged_times(trials, old, new) if has_common else "no configuration has a result in both"
        default_loss = () if environment else _default_loss(trials, new)
        losses = (*default_loss, *_losses(trials, findings))
        regression = Regression(losses=losses, not_judged=unjudged)
    return ModelComparison(
        old=_compared_model(old),
        new=_compared_model(new),
        is_same=(old.trials, old.findings) == (new.trials, new.findings) and not environment and not not_comparable,
        is_empty=not has_common,
        environment=environment,
        trials=trials,
        findings=findings,
        regression=regression,
        notes=tuple(_notes(old, new)),
    )


def _compared_model(diagnosis: Diagnosis) -> ComparedModel:
    recommendation, comparison = diagnosis.recommendation, diagnosis.comparison
    return ComparedModel(
        name=diagnosis.subject.name,
        created_at=diagnosis.created_at,
        mode=diagnosis.subject.mode,
        device=diagnosis.subject.device,
        baseline=comparison.baseline if comparison is not None else None,
        recommended=recommendation.configuration if recommendation is not None else None,
        speedup=recommendation.speedup if recommendation is not None else None,
    )


def _not_comparable(old: Diagnosis, new: Diagnosis) -> str | None:
    """Why nothing may be called better or worse; None if it may. Names are not compared: files are renamed."""
    before, after = old.subject, new.subject
    if before.mode != after.mode:
        return f"not comparable: one is of {before.mode}, the other of {after.mode}"
    if before.inputs and after.inputs:
        for field in ("shape", "dtype", "stride"):
            values = [[getattr(tensor, field) for tensor in subject.inputs] for subject in (before, after)]
            if values[0] != values[1] and None not in (*values[0], *values[1]):
                return f"not comparable: inputs differ in {field}"
    counts = before.parameter_count, after.parameter_count
    if None not in counts and counts[0] != counts[1]:
        return f"not comparable: {counts[0]} parameters in the old model, {counts[1]} in the new one"
    if before.target != after.target:
        return "not comparable: they were lowered for different devices, or only one of them ran"
    for age, diagnosis in (("old", old), ("new", new)):
        if diagnosis.interrupted is not None:
            return f"the {age} one was not finished: {diagnosis.interrupted}"
    return None


def _trial_change(
    name: str, old: Diagnosis, new: Diagnosis, not_comparable: str | None, *, is_alike: bool
) -> TrialChange:
    before, after = old.find_trial(name), new.find_trial(name)
    change = TrialChange(name=name, old=_compared_trial(old, name), new=_compared_trial(new, name))
    if before is None or after is None:
        return change
    ratio, not_judged = _ratio_change(change, old, new, not_comparable)
    change = msgspec.structs.replace(
        change,
        change=ratio,
        not_judged=not_judged,
        conversions=conversion_changes(before, after),
        round_trips=round_trip_changes(before, after),
        decisions=tuple(_decision_changes(before, after)),
        account=_account(old, new, name),
    )
    losses = () if not_comparable is not None else tuple(_trial_losses(change, old, new, is_alike=is_alike))
    return msgspec.structs.replace(change, losses=losses)


def _compared_trial(diagnosis: Diagnosis, name: str) -> ComparedTrial | None:
    trial, measured = diagnosis.find_trial(name), diagnosis.measured_trial(name)
    if trial is None:
        return None
    ratios = diagnosis.comparison.ratios if diagnosis.comparison is not None else ()
    measurement = measured.measurement if measured is not None else None
    return ComparedTrial(
        status=trial.status,
        same_as=trial.same_as,
        seconds=measurement.median_seconds if measurement is not None else None,
        ratio=next((ratio for ratio in ratios if measured is not None and ratio.name == measured.name), None),
        costs=costs_of(trial) if trial.kernels is not None or trial.is_static else None,
        failure=trial.failure.message if trial.failure is not None else None,
    )


def _ratio_change(
    change: TrialChange, old: Diagnosis, new: Diagnosis, not_comparable: str | None
) -> tuple[Ratio | None, str | None]:
    """The change of the ratio to the baseline, or why it is not judged; neither for the baseline or without times."""
    trials = [diagnosis.measured_trial(change.name) for diagnosis in (old, new)]
    if any(trial is None or trial.measurement is None for trial in trials) or [old.baseline, new.baseline] == trials:
        return None, None
    problem = not_comparable or _problem_of(old, new, change.name)
    before, after = (trial.ratio if trial is not None else None for trial in (change.old, change.new))
    if problem is not None or before is None or after is None:
        return None, problem or "it has no ratio to the baseline in one of both"
    low, high = after.low / before.high, after.high / before.low
    verdict = judge(low, high, resolution=BETWEEN_RUNS, equality=BETWEEN_RUNS)
    return Ratio(name=after.name, low=low, median=after.median / before.median, high=high, verdict=verdict), None


def _problem_of(old: Diagnosis, new: Diagnosis, name: str) -> str | None:
    """Why the speed of a configuration cannot be judged."""
    if old.comparison is None or new.comparison is None or old.comparison.baseline != new.comparison.baseline:
        return "the two have no common baseline"
    named = [trial for trial in (old.find_trial(name), new.find_trial(name)) if trial is not None]
    if len({msgspec.json.encode(trial.configuration) for trial in named}) > 1:
        return "the configuration has other options"
    for age, diagnosis in (("old", old), ("new", new)):
        for trial in (diagnosis.measured_trial(name), diagnosis.baseline):
            if trial is not None and trial.equivalence is not None and trial.equivalence.status == "different":
                return f"the outputs of {trial.name} are wrong in the {age} one"
    return None


def _decision_changes(old: Trial, new: Trial) -> Iterator[DecisionChange]:
    before = {graph.name: graph.decision for graph in old.graphs}
    for graph in new.graphs:
        decisions = before.get(graph.name), graph.decision
        cards = [msgspec.convert(one, GraphDecision, from_attributes=True) for one in decisions if one is not None]
        if len(cards) == 2 and cards[0] != cards[1]:
            yield DecisionChange(graph=graph.name, old=cards[0], new=cards[1])


def _account(old: Diagnosis, new: Diagnosis, name: str) -> Account | None:
    """The account of a configuration's slower trial against its faster trial; None if times are missing or close."""
    aged = [
        (trial.measurement.median_seconds, trial, f"{trial.name} ({age})")
        for age, diagnosis in (("new", new), ("old", old))
        if (trial := diagnosis.measured_trial(name)) is not None and trial.measurement is not None
    ]
    if len(aged) < 2:
        return None
    (least, faster, faster_name), (most, slower, slower_name) = sorted(aged, key=lambda entry: entry[0])
    if most < (1 + BETWEEN_RUNS) * least:
        return None
    found = account(slower, faster)
    return found and msgspec.structs.replace(found, slower=slower_name, faster=faster_name)


def _trial_losses(change: TrialChange, old: Diagnosis, new: Diagnosis, *, is_alike: bool) -> Iterator[str]:
    if change.old is None or change.new is None or change.old.status not in WITH_RESULT:
        return
    if change.new.status in STATUS_WORDS and change.new.status != "skipped":
        why = f": {change.new.failure}" if change.new.failure else ""
        yield f"{STATUS_WORDS[change.new.status]}, had a result before{why}"
    if change.new.status not in WITH_RESULT:
        return
    took = own_ratio(change) if is_alike else None
    # The ratio also falls if only the baseline became faster; in an equal environment, the times show it.
    if change.change is not None and change.change.verdict == SLOWER and (took is None or took < 1):
        ratios = [format_ratio(ratio.median) for ratio in (change.new.ratio, change.old.ratio) if ratio is not None]
        baseline = shown(new.comparison.baseline) if new.comparison is not None else ""
        yield f"runs at {ratios[0]} the speed of {baseline} instead of {ratios[-1]}"
    before, after = change.old.costs, change.new.costs
    if before is None or after is None:
        return
    # The seconds of conversions come from the profiler and have no confidence interval: counts are judged instead.
    trials = old.find_trial(change.name), new.find_trial(change.name)
    if all(trial is not None and trial.is_static for trial in trials):
        yield from more_than("layout conversion", before.conversion_count, after.conversion_count)
    if "shape" not in recorded_by_one(*trials):
        yield from more_than("round trip", before.redundant_pair_count, after.redundant_pair_count)


def own_ratio(change: TrialChange) -> float | None:
    """The old time over the new one; meaningful only if devices, thread counts and versions are equal."""
    if change.old is None or change.new is None:
        return None
    before, after = change.old.seconds, change.new.seconds
    return before / after if before and after else None


def _losses(trials: Sequence[TrialChange], findings: Sequence[FindingChange]) -> Iterator[str]:
    names = {trial.name for trial in trials if trial.has_both_results}
    for trial in trials:
        if trial.same_as_in_both not in names:
            yield from (f"{shown(trial.name)}: {loss}" for loss in trial.losses)
    for change in findings:
        is_worse = change.new_count > change.old_count and change.severity != "note" and not change.is_accepted
        if is_worse and change.code not in RESTS_ON_TIMES and change.configuration in (None, *names):
            about = f" [{shown(change.configuration)}]" if change.configuration else ""
            where = next((f" at {place}" for place in (change.module, change.place) if place), "")
            number = f"{change.new_count} instead of {change.old_count}" if change.old_count else "new"
            yield f"{number} {change.severity} {change.code} {change.rule}{about}{where}"


def _default_loss(trials: Sequence[TrialChange], new: Diagnosis) -> Iterator[str]:
    """A clause if the baseline became slower and most ratios to it rose: then the machine is not the cause."""
    baseline = next((trial for trial in trials if new.comparison and trial.name == new.comparison.baseline), None)
    took = own_ratio(baseline) if baseline is not None else None
    verdicts = [trial.change.verdict for trial in trials if trial.change is not None]
    if baseline is not None and took and took * (1 + TIME_TOLERANCE) < 1 and 2 * verdicts.count(FASTER) > len(verdicts):
        yield f"{shown(baseline.name)}: takes {format_ratio(1 / took)} as long, and most other configurations do not"


def _unjudged_times(trials: Sequence[TrialChange], old: Diagnosis, new: Diagnosis) -> str | None:
    """Why the speed of the baseline or of a recommended configuration was not judged."""
    shared = {trial.name: trial for trial in trials if trial.has_both_results}
    timed = {name for name, trial in shared.items() if own_ratio(trial)}
    if not timed:
        return None if old.subject.target is not None else "no configuration was timed in both"
    for diagnosis in (old, new):
        recommended = diagnosis.recommendation.configuration if diagnosis.recommendation is not None else None
        for name in (diagnosis.comparison.baseline if diagnosis.comparison is not None else None, recommended):
            if name in shared and (name not in timed or shared[name].not_judged is not None):
                why = shared[name].not_judged or "not timed in both"
                return f"the time of {shown(name)} was not judged: {why}"
    return None


def _finding_changes(old: Diagnosis, new: Diagnosis) -> tuple[FindingChange, ...]:
    """
    Changes in the number of findings, by rule and configuration; the most severe first.

    Places are not compared: a finding names the costliest of several places, which may change from run to run.
    """
    groups: dict[tuple[str, str | None], tuple[list[Finding], list[Finding]]] = defaultdict(lambda: ([], []))
    for age, diagnosis in enumerate((old, new)):
        for finding in diagnosis.findings:
            groups[finding.code, finding.configuration][age].append(finding)
    changes = [_finding_change(once, now) for once, now in groups.values() if len(once) != len(now)]
    return tuple(sorted(changes, key=lambda c: (SEVERITIES.index(c.severity), c.code, c.configuration or "")))


def _finding_change(old: Sequence[Finding], new: Sequence[Finding]) -> FindingChange:
    own = new or old
    return FindingChange(
        code=own[0].code,
        rule=own[0].rule,
        severity=min((finding.severity for finding in own), key=SEVERITIES.index),
        configuration=own[0].configuration,
        module=own[0].module,
        place=str(own[0].location) if own[0].location is not None else None,
        old_count=len(old),
        new_count=len(new),
        seconds=sum_if_all_known(*(finding.seconds for finding in own)),
        is_accepted=bool(new) and all(finding.accepted is not None for finding in new),
    )


def _notes(old: Diagnosis, new: Diagnosis) -> Iterator[str]:
    if has_another_machine(old, new):
        yield "the two ran on different devices, processors or thread counts: only ratios to the baseline are compared"
    if old.layoutdoctor_version != new.layoutdoctor_version:
        yield (
            f"written by layoutdoctor {old.layoutdoctor_version} and {new.layoutdoctor_version}: findings may have come"
            " and gone with the rules; diagnose both with one version"
        )
