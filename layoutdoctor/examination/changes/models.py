"""
Compares two diagnoses of models: speed and conversions of each configuration, decisions, and findings.

Times of different runs cannot be judged: for one model, diagnosed twice in a row on an idle shared machine, the times
differed by a factor of up to 3.3. The ratio of two configurations that ran side by side changed by at most 3 % in 99 of
100 pairs of diagnoses, and by 5 % in the worst pair. So ratios to the baseline are compared, and changes of 5 % or more
are judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
from layoutdoctor.words import STATUS_WORDS, phrase, shown

BETWEEN_RUNS = 0.05
"""On a quiet machine, the ratios of two diagnoses of one model rarely differ by this share or more."""

RESTS_ON_TIMES = frozenset({"LD205", "LD303"})
"""Rules whose findings depend on measured times: a gain may be certain in one run and uncertain in another."""


def compare_models(old: Diagnosis, new: Diagnosis) -> ModelComparison:
    """Finds the changes between two diagnoses of models."""
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


class _Both(NamedTuple):
    """The two diagnoses, the old one first; a configuration's trials in them, and the trials with its measurements."""

    diagnoses: tuple[Diagnosis, Diagnosis]
    trials: tuple[Trial, Trial]
    measured: tuple[Trial, Trial]

    @property
    def by_age(self) -> tuple[tuple[str, Diagnosis, Trial], ...]:
        """The age of each diagnosis, the diagnosis, and the measured trial."""
        return tuple(zip(("old", "new"), self.diagnoses, self.measured, strict=True))


def _compared_model(diagnosis: Diagnosis) -> ComparedModel:
    return ComparedModel(
        name=diagnosis.subject.name,
        created_at=diagnosis.created_at,
        mode=diagnosis.subject.mode,
        device=diagnosis.subject.device,
        baseline=diagnosis.compared_with,
        recommended=diagnosis.recommended_name,
        speedup=diagnosis.speedup,
    )


def _not_comparable(old: Diagnosis, new: Diagnosis) -> str | None:
    """The reason why two diagnoses cannot be compared, or None. Models' names may differ: files are renamed."""
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
            return f"the {age} diagnosis was not finished: {diagnosis.interrupted}"
    return None


def _trial_change(
    name: str, old: Diagnosis, new: Diagnosis, not_comparable: str | None, *, is_alike: bool
) -> TrialChange:
    once, now = old.find_trial(name), new.find_trial(name)
    if once is None:
        return TrialChange(name=name, old=None, new=_compared_trial(new, new.trial(name)))
    if now is None:
        return TrialChange(name=name, old=_compared_trial(old, once), new=None)
    before, after = _compared_trial(old, once), _compared_trial(new, now)
    both = _Both((old, new), (once, now), (old.measured_trial(name) or once, new.measured_trial(name) or now))
    ratio, not_judged = _ratio_change(both, before.ratio, after.ratio, not_comparable)
    change = TrialChange(
        name=name,
        old=before,
        new=after,
        change=ratio,
        not_judged=not_judged,
        conversions=conversion_changes(once, now),
        round_trips=round_trip_changes(once, now),
        decisions=tuple(_decision_changes(once, now)),
        account=_account(both),
    )
    if not_comparable is not None or before.status not in WITH_RESULT:
        return change
    return msgspec.structs.replace(change, losses=tuple(_trial_losses(change, both, before, after, is_alike=is_alike)))


def _compared_trial(diagnosis: Diagnosis, trial: Trial) -> ComparedTrial:
    measured = diagnosis.measured_trial(trial.name) or trial
    return ComparedTrial(
        status=trial.status,
        same_as=trial.same_as,
        seconds=measured.seconds,
        ratio=diagnosis.ratios.get(measured.name),
        costs=costs_of(trial) if trial.kernels is not None or trial.is_static else None,
        failure=trial.failure.message if trial.failure is not None else None,
    )


def _ratio_change(
    both: _Both, before: Ratio | None, after: Ratio | None, not_comparable: str | None
) -> tuple[Ratio | None, str | None]:
    """The change of the ratio to the baseline, or why it is not judged; both None for the baseline or without times."""
    is_baseline = all(trial is diagnosis.baseline for _, diagnosis, trial in both.by_age)
    if is_baseline or any(trial.measurement is None for trial in both.measured):
        return None, None
    problem = not_comparable or _problem_of(both)
    if problem is not None or before is None or after is None:
        return None, problem or "no ratio to the baseline in one of the two"
    low, high = after.low / before.high, after.high / before.low
    verdict = judge(low, high, resolution=BETWEEN_RUNS, equality=BETWEEN_RUNS)
    return Ratio(name=after.name, low=low, median=after.median / before.median, high=high, verdict=verdict), None


def _problem_of(both: _Both) -> str | None:
    """The reason why the speed of a configuration cannot be judged; None if it can be judged."""
    baselines = {diagnosis.compared_with for diagnosis in both.diagnoses}
    if None in baselines or len(baselines) > 1:
        return "the two diagnoses have no common baseline"
    if len({msgspec.json.encode(trial.configuration) for trial in both.trials}) > 1:
        return "the configuration has other options"
    for age, diagnosis, measured in both.by_age:
        for trial in (measured, diagnosis.baseline):
            if trial is not None and trial.is_wrong:
                return f"the outputs of {trial.name} are wrong in the {age} diagnosis"
    return None


def _decision_changes(old: Trial, new: Trial) -> Iterator[DecisionChange]:
    before = {graph.name: graph.decision for graph in old.graphs}
    for graph in new.graphs:
        decisions = before.get(graph.name), graph.decision
        cards = [msgspec.convert(one, GraphDecision, from_attributes=True) for one in decisions if one is not None]
        if len(cards) == 2 and cards[0] != cards[1]:
            yield DecisionChange(graph=graph.name, old=cards[0], new=cards[1])


def _account(both: _Both) -> Account | None:
    """The account of a configuration's slower trial against its faster trial; None if times are missing or close."""
    aged = [(trial.seconds, trial, age) for age, _, trial in reversed(both.by_age) if trial.seconds is not None]
    if len(aged) < 2:
        return None
    (least, faster, of_faster), (most, slower, of_slower) = sorted(aged, key=lambda entry: entry[0])
    found = account(slower, faster) if most >= (1 + BETWEEN_RUNS) * least else None
    names = {"slower": f"{slower.name} ({of_slower})", "faster": f"{faster.name} ({of_faster})"}
    return found and msgspec.structs.replace(found, **names)


def _trial_losses(
    change: TrialChange, both: _Both, before: ComparedTrial, after: ComparedTrial, *, is_alike: bool
) -> Iterator[str]:
    if after.status in STATUS_WORDS and after.status != "skipped":
        yield f"{STATUS_WORDS[after.status]}, had a result before{phrase(': {}', after.failure)}"
    if after.status not in WITH_RESULT:
        return
    took = change.own_ratio if is_alike else None
    # The ratio also falls if only the baseline became faster; in an equal environment, the times show this.
    if change.change is not None and change.change.verdict == SLOWER and (took is None or took < 1):
        ratios = [format_ratio(ratio.median) for ratio in (after.ratio, before.ratio) if ratio is not None]
        yield f"runs at {ratios[0]} the speed of {shown(both.diagnoses[1].baseline_name)} instead of {ratios[-1]}"
    if before.costs is None or after.costs is None:
        return
    # The seconds of conversions come from the profiler and have no confidence interval: counts are judged instead.
    if all(trial.is_static for trial in both.trials):
        yield from more_than("layout conversion", before.costs.conversion_count, after.costs.conversion_count)
    if "shape" not in recorded_by_one(*both.trials):
        yield from more_than("round trip", before.costs.redundant_pair_count, after.costs.redundant_pair_count)


def _losses(trials: Sequence[TrialChange], findings: Sequence[FindingChange]) -> Iterator[str]:
    names = {trial.name for trial in trials if trial.has_both_results}
    for trial in trials:
        if trial.same_as_in_both not in names:
            yield from (f"{shown(trial.name)}: {loss}" for loss in trial.losses)
    for change in findings:
        is_worse = change.new_count > change.old_count and change.severity != "note" and not change.is_accepted
        if is_worse and change.code not in RESTS_ON_TIMES and change.configuration in (None, *names):
            about, where = phrase(" [{}]", change.configuration, shown), phrase(" at {}", change.module or change.place)
            number = f"{change.new_count} instead of {change.old_count}" if change.old_count else "new"
            yield f"{number} {change.severity} {change.code} {change.rule}{about}{where}"


def _default_loss(trials: Sequence[TrialChange], new: Diagnosis) -> Iterator[str]:
    """Yields a clause if the baseline became slower and most ratios to it rose: then the machine is not the cause."""
    took = next((trial.own_ratio for trial in trials if trial.name == new.compared_with), None)
    verdicts = [trial.change.verdict for trial in trials if trial.change is not None]
    if took and took * (1 + TIME_TOLERANCE) < 1 and 2 * verdicts.count(FASTER) > len(verdicts):
        name = shown(new.baseline_name)
        yield f"{name}: takes {format_ratio(1 / took)} as long, and most other configurations do not"


def _unjudged_times(trials: Sequence[TrialChange], old: Diagnosis, new: Diagnosis) -> str | None:
    """The reason why the speed of the baseline or of a recommended configuration was not judged; else None."""
    shared = {trial.name: trial for trial in trials if trial.has_both_results}
    timed = {name for name, trial in shared.items() if trial.own_ratio}
    if not timed:
        return None if old.subject.target is not None else "no configuration was timed in both"
    for diagnosis in (old, new):
        for name in (diagnosis.compared_with, diagnosis.recommended_name):
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
