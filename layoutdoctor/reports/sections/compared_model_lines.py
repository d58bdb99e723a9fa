"""
What the reports of two compared diagnoses say of times, findings, decisions and failures, line by line.

Faces ``model_comparison_view``; pure functions of the comparison, every string out of a record cleaned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.records import FASTER, NO_DIFFERENCE, SLOWER
from layoutdoctor.reports.sections.compared import (
    MOST_NAMED,
    change_lines,
    format_counts,
    format_difference,
)
from layoutdoctor.reports.sections.wording import STATUS_WORDS, clean, clean_name, cut_list, in_words
from layoutdoctor.units import format_ratio, format_seconds, format_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.comparison_records import (
        ComparedSubject,
        ComparedTrial,
        DecisionChange,
        FindingChange,
        GraphDecision,
        ModelComparison,
        RatioBounds,
    )
    from layoutdoctor.records import Verdict

MOST_CONFIGURATIONS = 6
MOST_FINDINGS = 4

_WITH_RESULT = ("ok", "same_as")


def change_phrase(bounds: RatioBounds, verdict: Verdict) -> str:
    """
    A change of a time in words: ``"takes 1.30x as long (1.25x to 1.36x)"``.

    Args:
        bounds: Old over new.
        verdict: ``faster`` or ``slower``.
    """
    if verdict == SLOWER:
        ends = f"{format_ratio(1 / bounds.high)} to {format_ratio(1 / bounds.low)}"
        return f"takes {format_ratio(1 / bounds.median)} as long ({ends})"
    return f"is {format_ratio(bounds.median)} faster ({format_ratio(bounds.low)} to {format_ratio(bounds.high)})"


def with_verdict(comparison: ModelComparison, verdict: Verdict) -> tuple[tuple[ComparedTrial, RatioBounds], ...]:
    """
    The configurations of one verdict with their change, largest first; those measured as another are left to that one.

    Args:
        comparison: Any.
        verdict: Which.
    """
    found = [
        (trial, trial.time.change)
        for trial in comparison.trials
        if trial.time is not None and trial.time.change is not None and trial.time.verdict == verdict
    ]
    names = {trial.name for trial, _ in found}
    own = [(trial, change) for trial, change in found if trial.new_same_as not in names]
    return tuple(sorted(own, key=lambda entry: entry[1].median, reverse=verdict == FASTER))


def drift_line(comparison: ModelComparison) -> str | None:
    """
    What all configurations have in common, and what that says; None where the machine kept its pace.

    Args:
        comparison: Any.
    """
    times = comparison.times
    if not times.has_drifted or times.drift is None:
        return None
    ratio = times.drift.median
    pace = f"takes {format_ratio(1 / ratio)} as long" if ratio < 1 else f"is {format_ratio(ratio)} faster"
    others = [*with_verdict(comparison, FASTER), *with_verdict(comparison, SLOWER)]
    names = in_words([clean_name(name) for name in times.references[:MOST_NAMED]])
    if times.basis == "same code":
        why = f"the machine, not the layouts: {names} ran the same code under the same versions"
    else:
        why = f"the machine, {_versions(comparison)}or the model as a whole, not one of the layouts"
    return f"{'All the rest' if others else 'Everything'} {pace}: {why}"


def has_both(trial: ComparedTrial) -> bool:
    """
    Whether a configuration has a result in both, so that what is missing in one has gone.

    Args:
        trial: Any.
    """
    return trial.old_status in _WITH_RESULT and trial.new_status in _WITH_RESULT


def time_lines(comparison: ModelComparison) -> Iterator[str]:
    """
    What became faster, slower, moved with all the others, or was not judged.

    Args:
        comparison: Any that is neither empty nor the same twice.
    """
    is_good_news = not comparison.regression.losses and comparison.regression.not_judged is None
    for word, verdict in (("Slower", SLOWER), ("Faster", FASTER)):
        found = with_verdict(comparison, verdict)
        if is_good_news and len(found) <= MOST_NAMED:  # the headline names them
            continue
        for trial, change in found[:MOST_CONFIGURATIONS]:
            yield f"{word}: {clean_name(trial.name)} {change_phrase(change, verdict)}"
        if len(found) > MOST_CONFIGURATIONS:
            yield f"{word}: {len(found) - MOST_CONFIGURATIONS} more, in the table"
    drift = drift_line(comparison)
    if drift is not None:
        yield drift
    yield from _baseline_lines(comparison)
    yield from _not_judged_lines(comparison)


def outcome_lines(comparison: ModelComparison) -> Iterator[str]:
    """
    Failures, recommendations, findings, conversions, decisions: what came and went.

    Args:
        comparison: Any that is neither empty nor the same twice.
    """
    for trial in comparison.trials:
        if trial.old_status in _WITH_RESULT and trial.new_status in STATUS_WORDS:
            why = f": {clean(trial.new_failure, 160)}" if trial.new_failure else ""
            yield f"New failure: {clean_name(trial.name)} {STATUS_WORDS[trial.new_status]}{why}"
        if trial.old_status in STATUS_WORDS and trial.new_status in _WITH_RESULT:
            yield f"Failure gone: {clean_name(trial.name)} {STATUS_WORDS[trial.old_status]} in the old one"
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
        yield f"Decided otherwise: {cut_list(flips, MOST_NAMED)}"
    yield from _count_lines(comparison.trials)
    for age, status in (("new", "old_status"), ("old", "new_status")):
        only = [clean_name(trial.name) for trial in comparison.trials if getattr(trial, status) is None]
        if only:
            yield f"Only in the {age} one: {cut_list(only, MOST_CONFIGURATIONS)}"


def finding_words(finding: FindingChange) -> str:
    """
    A finding with its place and cost: ``"warning LD501 user-contiguous-call [inductor] at body.1 (1.20 ms)"``.

    Args:
        finding: Any.
    """
    about = f" [{clean_name(finding.configuration)}]" if finding.configuration else ""
    places = [clean_name(finding.module)] if finding.module else []
    places += [clean(finding.place, 160)] if finding.place else []
    where = f" at {', '.join(places)}" if places else ""
    seconds = finding.new_seconds if finding.new_count else finding.old_seconds
    cost = f" ({format_seconds(seconds)})" if seconds is not None else ""
    many = (
        ""
        if {finding.old_count, finding.new_count} <= {0, 1}
        else (f", {format_counts(finding.old_count, finding.new_count)} times")
    )
    return f"{finding.severity} {clean_name(finding.code)} {clean_name(finding.rule)}{about}{where}{cost}{many}"


def method_line(comparison: ModelComparison) -> str | None:
    """
    How times were judged, with the resolution; None where none was.

    Args:
        comparison: Any.
    """
    times = comparison.times
    if times.resolution is None:
        return None
    coverages = [
        bounds.coverage
        for trial in comparison.trials
        if trial.time is not None and trial.time.not_judged is None
        for bounds in (trial.time.change,)
        if bounds is not None and bounds.coverage is not None
    ]
    level = f"{format_share(min(coverages))} for all intervals together, " if coverages else ""
    against = ""
    if times.references:
        named = cut_list([clean_name(name) for name in times.references], MOST_NAMED)
        reason = {
            "same code": "which ran the same code",
            "steady": "whose own time did not change",
            "majority": "which moved alike",
        }[times.basis or "steady"]
        against = f"judged against {named}, {reason}; "
    return (
        f"Times: {against}{level}a change counts beyond {format_share(times.resolution)}, as two runs of the same thing"
        " may differ by that"
    )


def _versions(comparison: ModelComparison) -> str:
    changed = [
        f"{clean_name(change.name)} ({clean_name(change.old or '-')} -> {clean_name(change.new or '-')})"
        for change in comparison.environment
    ]
    return f"{cut_list(changed, MOST_NAMED)} " if changed else ""


def _baseline_lines(comparison: ModelComparison) -> Iterator[str]:
    """Ratios to the baseline that changed, where the time itself has no such verdict: the machine falls out of them."""
    shown = [
        (trial, trial.time.relative_to_baseline, trial.time.baseline_verdict)
        for trial in comparison.trials
        if trial.time is not None and trial.time.verdict in (None, NO_DIFFERENCE) and trial.new_same_as is None
    ]
    changed = [
        f"{clean_name(trial.name)} {change_phrase(bounds, verdict)}"
        for trial, bounds, verdict in shown
        if bounds is not None and verdict in (FASTER, SLOWER)
    ]
    if changed and comparison.new.baseline is not None:
        baseline = clean_name(comparison.new.baseline)
        yield f"Against {baseline}, each in its own run: {cut_list(changed, MOST_CONFIGURATIONS)}"


def _not_judged_lines(comparison: ModelComparison) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for trial in comparison.trials:
        if trial.time is not None and trial.time.not_judged is not None and trial.new_same_as is None:
            reasons.setdefault(trial.time.not_judged, []).append(clean_name(trial.name))
    reasons.pop(comparison.regression.not_judged or "", None)  # the headline says it
    if comparison.times.is_other_machine:  # a note says it
        return
    for reason, names in reasons.items():
        yield f"Times not judged: {clean(reason)}: {cut_list(names, MOST_CONFIGURATIONS)}"


def _recommended(subject: ComparedSubject) -> str:
    name = clean_name(subject.recommended or subject.baseline or "none")
    if subject.speedup is not None:
        return f"{name} ({format_ratio(subject.speedup.median)} against the baseline)"
    return f"{name} (the baseline)" if subject.recommended is None and subject.baseline is not None else name


def _conversion_lines(trials: Sequence[ComparedTrial]) -> Iterator[str]:
    distinct = [
        trial
        for trial in trials
        if has_both(trial) and (trial.new_same_as is None or trial.new_same_as != trial.old_same_as)
    ]
    pairs = [
        f"{clean_name(trial.name)} {format_counts(old.redundant_pair_count, new.redundant_pair_count)}"
        for trial in distinct
        if (old := trial.old_costs) is not None
        and (new := trial.new_costs) is not None
        and old.redundant_pair_count != new.redundant_pair_count
    ]
    if pairs:
        yield f"Round trips: {cut_list(pairs, MOST_CONFIGURATIONS)}"
    changed = [(trial, change_lines(trial.conversions)) for trial in distinct]
    changed = [(trial, lines) for trial, lines in changed if lines]
    for trial, lines in changed[:MOST_NAMED]:
        difference = trial.difference.conversion_seconds if trial.difference is not None else None
        in_all = f" (conversions in all {format_difference(difference)})" if difference is not None else ""
        yield f"{clean_name(trial.name)}: {'; '.join(line[0].lower() + line[1:] for line in lines)}{in_all}"
    if len(changed) > MOST_NAMED:
        yield f"and conversions of {len(changed) - MOST_NAMED} more configurations, in the table"


def _decision_words(trial: ComparedTrial, change: DecisionChange) -> str:
    words = f"{clean_name(trial.name)} {clean_name(change.graph)}: {_decision(change.old)} -> {_decision(change.new)}"
    places = [clean_name(convolution.module or convolution.node) for convolution in change.convolutions]
    return f"{words}, at {cut_list(places, MOST_NAMED)}" if places else words


def _decision(decision: GraphDecision) -> str:
    word = {True: "on", False: "off", None: "not recorded"}[decision.applied]
    forced = f"{decision.channels_last_convolution_count} of {decision.convolution_count}"
    return f"{word} ({clean_name(decision.rule)}, {forced} convs channels-last)"


def _count_lines(trials: Sequence[ComparedTrial]) -> Iterator[str]:
    counts = {
        "Graph breaks": [(t.name, t.old_graph_break_count, t.new_graph_break_count) for t in trials],
        "Recompiles": [(t.name, t.old_recompile_count, t.new_recompile_count) for t in trials],
    }
    for what, found in counts.items():
        changed = [
            f"{clean_name(name)} {old} -> {new}"
            for name, old, new in found
            if old is not None and new is not None and old != new
        ]
        if changed:
            yield f"{what}: {cut_list(changed, MOST_CONFIGURATIONS)}"
