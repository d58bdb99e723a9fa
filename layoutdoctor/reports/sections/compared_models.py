"""What the report of two compared diagnoses of models says: the answer, what changed most, the tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.records import FASTER, SLOWER
from layoutdoctor.reports.sections.account import account_sentence, account_view
from layoutdoctor.reports.sections.compared import (
    ABSENT,
    MOST_NAMED,
    change_lines,
    environment_line,
    format_both,
    format_counts,
    format_difference,
)
from layoutdoctor.reports.sections.rows import Overview, Table, TableRow, format_interval
from layoutdoctor.reports.sections.wording import clean, clean_name, shown_name
from layoutdoctor.units import format_ratio, format_seconds
from layoutdoctor.words import STATUS_WORDS, SWITCH_WORDS, count_of, listing, ratio_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.comparison import (
        ComparedSubject,
        ComparedTrial,
        DecisionChange,
        FindingChange,
        GraphDecision,
        ModelComparison,
        TimeChange,
    )
    from layoutdoctor.diagnosis.records import Account, Ratio, Verdict

_FINDING_WORDS = {"came": "new", "went": "gone", "more": "more", "fewer": "fewer"}
MOST_CONFIGURATIONS = 6
MOST_FINDINGS = 4
NOTICEABLE = 1.05
"""A change of the default's own time that is mentioned."""
_WITH_RESULT = ("ok", "same_as")


def build_model_view(comparison: ModelComparison) -> Overview:
    """The report of two compared diagnoses of models, in sections."""
    return Overview(
        title=_title(comparison),
        headline=_headline(comparison),
        lines=tuple(_lines(comparison)),
        tables=tuple(_tables(comparison)),
        remarks=tuple(_remarks(comparison)),
    )


def _title(comparison: ModelComparison) -> tuple[str, ...]:
    old, new = comparison.old, comparison.new
    modes = clean_name(old.mode) if old.mode == new.mode else f"{clean_name(old.mode)} -> {clean_name(new.mode)}"
    return (
        f"layoutdoctor {clean_name(comparison.layoutdoctor_version)}",
        "comparison of diagnoses",
        f"{clean_name(old.name)} -> {clean_name(new.name)}",
        modes,
    )


def _headline(comparison: ModelComparison) -> str:
    regression = comparison.regression
    if comparison.is_empty:
        return "Cannot be judged: nothing in common, no configuration has a result in both"
    if comparison.is_same:
        return "No regression: the two say the same, number by number"
    if regression.losses:
        left = len(regression.losses) - MOST_NAMED
        named = "; ".join(clean(loss, 240) for loss in regression.losses[:MOST_NAMED])
        return f"Regression: {named}{f'; and {left} more' if left > 0 else ''}"
    if regression.not_judged is not None:
        return f"Cannot be judged: {clean(regression.not_judged)}"
    return f"No regression: {_good_news(comparison)}"


def _good_news(comparison: ModelComparison) -> str:
    faster = [f"{shown_name(trial.name)} {ratio_words(change)}" for trial, change in with_verdict(comparison, FASTER)]
    if faster:
        return listing(faster, MOST_NAMED)
    judged = [trial for trial in comparison.trials if trial.time is not None and trial.time.change is not None]
    if judged:
        return f"{count_of(len(judged), 'configuration')} as fast as before, compared with the default"
    return "no new round trip, failure, warning or error; times were not judged"


def _lines(comparison: ModelComparison) -> Iterator[str]:
    if comparison.is_same:
        return
    if comparison.regression.losses and comparison.regression.not_judged is not None and not comparison.is_empty:
        yield f"Not judged: {clean(comparison.regression.not_judged)}"
    yield from time_lines(comparison)
    yield from (f"Why: {account_sentence(account)}" for account in _accounts(comparison)[:1])
    yield from outcome_lines(comparison)


def _accounts(comparison: ModelComparison) -> list[Account]:
    """Where differences go: of the configurations that were judged first, then of the default."""
    judged = [trial for verdict in (SLOWER, FASTER) for trial, _ in with_verdict(comparison, verdict)]
    default = [trial for trial in comparison.trials if trial.name == comparison.new.baseline]
    rest = [trial for trial in comparison.trials if trial not in judged and trial not in default]
    return [trial.account for trial in (*judged, *default, *rest) if trial.account is not None]


def _remarks(comparison: ModelComparison) -> Iterator[str]:
    environment = environment_line(comparison.environment)
    if environment is not None:
        yield environment
    for note in comparison.notes:
        yield f"Note: {clean(note)}"


def _tables(comparison: ModelComparison) -> Iterator[Table]:
    rows = tuple(_trial_row(trial, comparison.new.baseline) for trial in comparison.trials)
    head = ("configuration", "per call", "ratio", "change", "conversions")
    yield Table(head, rows, title="Configurations")
    if comparison.is_same:
        return
    yield from _findings_table(comparison.findings)
    for account in _accounts(comparison)[:1]:
        yield replace(account_view(account).table, title="Where the difference goes", is_long=True)


def _findings_table(findings: tuple[FindingChange, ...]) -> Iterator[Table]:
    if not findings:
        return
    rows = tuple(
        TableRow(
            (
                f"{clean_name(finding.code)} {clean_name(finding.rule)}",
                _FINDING_WORDS[finding.change],
                finding.severity,
                shown_name(finding.configuration) if finding.configuration else ABSENT,
                clean_name(finding.module or ABSENT),
                ABSENT if finding.seconds is None else format_seconds(finding.seconds),
            )
        )
        for finding in findings
    )
    heads = ("finding", "change", "severity", "configuration", "module", "cost")
    yield Table(heads, rows, title="Findings")


def _trial_row(trial: ComparedTrial, baseline: str | None) -> TableRow:
    name = shown_name(trial.name)
    if trial.old_status is None or trial.new_status is None:
        return TableRow((name,), f"in the {'new' if trial.old_status is None else 'old'} one only")
    without = {
        age: STATUS_WORDS[status]
        for age, status in (("old", trial.old_status), ("new", trial.new_status))
        if status in STATUS_WORDS
    }
    if without:
        words = set(without.values())
        if len(without) > 1 and len(words) == 1:
            return TableRow((name,), f"{words.pop()} in both")
        return TableRow((name,), "; ".join(f"{word} in the {age} one" for age, word in without.items()))
    if trial.new_same_as is not None and trial.new_same_as == trial.old_same_as:
        return TableRow((name,), f"the same as {shown_name(trial.new_same_as)} in both")
    old, new = trial.old_costs, trial.new_costs
    conversions = "not recorded"
    if old is not None and new is not None:
        conversions = format_counts(old.conversion_count, new.conversion_count)
    ratios = "1" if trial.name == baseline else _ratios(trial.time)
    return TableRow((name, _times(trial), ratios, _change(trial.time), conversions))


def _times(trial: ComparedTrial) -> str:
    """Both times, the unit once if it is the same."""
    old, new = trial.old_median_seconds, trial.new_median_seconds
    if old is None or new is None:
        return format_both(old, new)
    (first, unit), (second, other) = format_seconds(old).split(), format_seconds(new).split()
    return f"{first} -> {second} {unit}" if unit == other else format_both(old, new)


def _ratios(time: TimeChange | None) -> str:
    ratios = (time.old_ratio, time.new_ratio) if time is not None else (None, None)
    return " -> ".join(ABSENT if ratio is None else format_ratio(ratio.median) for ratio in ratios)


def _change(time: TimeChange | None) -> str:
    if time is None or time.change is None:
        return "not judged" if time is not None and time.not_judged is not None else ABSENT
    return format_interval(time.change)


def with_verdict(comparison: ModelComparison, verdict: Verdict) -> tuple[tuple[ComparedTrial, Ratio], ...]:
    """Configurations of one verdict with their change, largest first; those measured as another are left to it."""
    found = [
        (trial, trial.time.change)
        for trial in comparison.trials
        if trial.time is not None and trial.time.change is not None and trial.time.change.verdict == verdict
    ]
    names = {trial.name for trial, _ in found}
    own = [(trial, change) for trial, change in found if trial.new_same_as not in names]
    return tuple(sorted(own, key=lambda entry: entry[1].median, reverse=verdict == FASTER))


def has_both(trial: ComparedTrial) -> bool:
    """Whether a configuration has a result in both, so that what is missing in one has gone."""
    return trial.old_status in _WITH_RESULT and trial.new_status in _WITH_RESULT


def time_lines(comparison: ModelComparison) -> Iterator[str]:
    """What became faster or slower compared with the default, and what was not judged."""
    is_good_news = not comparison.regression.losses and comparison.regression.not_judged is None
    for word, verdict in (("Slower", SLOWER), ("Faster", FASTER)):
        found = with_verdict(comparison, verdict)
        if is_good_news and len(found) <= MOST_NAMED:  # the headline names them
            continue
        for trial, change in found[:MOST_CONFIGURATIONS]:
            yield f"{word}: {shown_name(trial.name)} {ratio_words(change)}, compared with the default"
        if len(found) > MOST_CONFIGURATIONS:
            yield f"{word}: {len(found) - MOST_CONFIGURATIONS} more, in the table"
    default = next((trial for trial in comparison.trials if trial.name == comparison.new.baseline), None)
    ratio = default.median_ratio if default is not None else None
    if default is not None and ratio is not None and max(ratio, 1 / ratio) > NOTICEABLE:
        yield f"{shown_name(default.name)}: {_times(default)}, measured at two different times, so without a verdict"
    yield from _not_judged_lines(comparison)


def outcome_lines(comparison: ModelComparison) -> Iterator[str]:
    """Failures, recommendations, findings, conversions, decisions: what came and went."""
    for trial in comparison.trials:
        if trial.old_status in _WITH_RESULT and trial.new_status in STATUS_WORDS:
            why = f": {clean(trial.new_failure, 160)}" if trial.new_failure else ""
            yield f"New failure: {shown_name(trial.name)} {STATUS_WORDS[trial.new_status]}{why}"
        if trial.old_status in STATUS_WORDS and trial.new_status in _WITH_RESULT:
            yield f"Failure gone: {shown_name(trial.name)} {STATUS_WORDS[trial.old_status]} in the old one"
    if comparison.old.recommended != comparison.new.recommended:
        yield f"Recommended: {_recommended(comparison.old)} -> {_recommended(comparison.new)}"
    for change, words in (("came", "New finding"), ("more", "More findings"), ("went", "Gone"), ("fewer", "Fewer")):
        found = [finding for finding in comparison.findings if finding.change == change]
        for finding in found[:MOST_FINDINGS]:
            yield f"{words}: {finding_words(finding)}"
        if len(found) > MOST_FINDINGS:
            yield f"{words}: {len(found) - MOST_FINDINGS} more, in the table"
    yield from _conversion_lines(comparison.trials)
    flips = [_decision_words(trial, change) for trial in comparison.trials for change in trial.decisions]
    if flips:
        yield f"Decided otherwise: {listing(flips, MOST_NAMED)}"
    for age, status in (("new", "old_status"), ("old", "new_status")):
        only = [shown_name(trial.name) for trial in comparison.trials if getattr(trial, status) is None]
        if only:
            yield f"Only in the {age} one: {listing(only, MOST_CONFIGURATIONS)}"


def finding_words(finding: FindingChange) -> str:
    """A finding with its place and cost: ``"warning LD501 user-contiguous-call [inductor] at body.1 (1.20 ms)"``."""
    about = f" [{shown_name(finding.configuration)}]" if finding.configuration else ""
    places = [clean_name(finding.module)] if finding.module else []
    places += [clean(finding.place, 160)] if finding.place else []
    where = f" at {', '.join(places)}" if places else ""
    cost = f" ({format_seconds(finding.seconds)})" if finding.seconds is not None else ""
    is_one = {finding.old_count, finding.new_count} <= {0, 1}
    many = "" if is_one else f", {format_counts(finding.old_count, finding.new_count)} times"
    return f"{finding.severity} {clean_name(finding.code)} {clean_name(finding.rule)}{about}{where}{cost}{many}"


def _not_judged_lines(comparison: ModelComparison) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for trial in comparison.trials:
        if trial.time is not None and trial.time.not_judged is not None and trial.new_same_as is None:
            reasons.setdefault(trial.time.not_judged, []).append(shown_name(trial.name))
    reasons.pop(comparison.regression.not_judged or "", None)  # the headline says it
    for reason, names in reasons.items():
        yield f"Times not judged: {clean(reason)}: {listing(names, MOST_CONFIGURATIONS)}"


def _recommended(subject: ComparedSubject) -> str:
    name = shown_name(subject.recommended or subject.baseline or "none")
    if subject.speedup is not None:
        return f"{name} ({format_ratio(subject.speedup.median)} against the baseline)"
    return f"{name} (the baseline)" if subject.recommended is None and subject.baseline is not None else name


def _conversion_lines(trials: Sequence[ComparedTrial]) -> Iterator[str]:
    distinct = [t for t in filter(has_both, trials) if t.new_same_as is None or t.new_same_as != t.old_same_as]
    counts = [
        (trial.name, trial.old_costs.redundant_pair_count, trial.new_costs.redundant_pair_count)
        for trial in distinct
        if trial.old_costs is not None and trial.new_costs is not None
    ]
    pairs = [f"{shown_name(name)} {format_counts(old, new)}" for name, old, new in counts if old != new]
    if pairs:
        yield f"Round trips: {listing(pairs, MOST_CONFIGURATIONS)}"
    changed = [(trial, lines) for trial in distinct if (lines := change_lines(trial.conversions))]
    for trial, lines in changed[:MOST_NAMED]:
        difference = trial.difference.conversion_seconds if trial.difference is not None else None
        in_all = f" (conversions in all {format_difference(difference)})" if difference is not None else ""
        yield f"{shown_name(trial.name)}: {'; '.join(line[0].lower() + line[1:] for line in lines)}{in_all}"
    if len(changed) > MOST_NAMED:
        yield f"and conversions of {len(changed) - MOST_NAMED} more configurations, in the table"


def _decision_words(trial: ComparedTrial, change: DecisionChange) -> str:
    return f"{shown_name(trial.name)} {clean_name(change.graph)}: {_decision(change.old)} -> {_decision(change.new)}"


def _decision(decision: GraphDecision) -> str:
    word = SWITCH_WORDS[decision.applied]
    forced = f"{decision.channels_last_convolution_count} of {decision.convolution_count}"
    return f"{word} ({clean_name(decision.rule)}, {forced} convs channels-last)"
