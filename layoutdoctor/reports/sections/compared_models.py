"""What the report of two compared diagnoses of models says: the answer, what changed most, the tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.records import FASTER, NO_DIFFERENCE, SLOWER
from layoutdoctor.examination.ratios import UNDECIDED, is_equal
from layoutdoctor.reports.sections.account import account_lines, account_view
from layoutdoctor.reports.sections.compared import (
    ABSENT,
    AMOUNT_HEADS,
    MOST_NAMED,
    change_lines,
    conversion_cells,
    environment_line,
    format_both,
    format_counts,
    format_difference,
    round_trip_cells,
)
from layoutdoctor.reports.sections.rows import Overview, Table, TableRow
from layoutdoctor.reports.sections.wording import clean, clean_name
from layoutdoctor.units import format_ratio, format_seconds, format_share
from layoutdoctor.words import STATUS_WORDS, SWITCH_WORDS, count_of, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.comparison import (
        ComparedSubject,
        ComparedTrial,
        DecisionChange,
        FindingChange,
        GraphDecision,
        ModelComparison,
        RatioBounds,
    )
    from layoutdoctor.diagnosis.records import Account, Verdict

_FINDING_WORDS = {"came": "new", "went": "gone", "more": "more", "fewer": "fewer", "same": "stayed"}
_FORMAT_WORDS = {True: "channels-last", False: "contiguous", None: "not recorded"}
_BASIS_WORDS = {
    "same code": "which ran the same code",
    "steady": "whose own time did not change",
    "majority": "which moved alike",
}
MOST_CONFIGURATIONS = 6
MOST_FINDINGS = 4
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
    found = with_verdict(comparison, FASTER)
    faster = [f"{clean_name(trial.name)} {change_phrase(change, FASTER)}" for trial, change in found]
    if faster:
        return listing(faster, MOST_NAMED)
    judged = [trial for trial in comparison.trials if trial.time is not None and trial.time.verdict == NO_DIFFERENCE]
    if judged and drift_line(comparison) is not None:
        return f"{count_of(len(judged), 'configuration')} moved alike, and nothing else became slower"
    if judged:
        noisy = sum(map(_is_undecided, judged))
        but = f", {noisy} of them {UNDECIDED}" if noisy else ""
        return f"no measurable difference in the time of {count_of(len(judged), 'configuration')}{but}"
    return "no new round trip, failure, warning or error; times were not judged"


def _lines(comparison: ModelComparison) -> Iterator[str]:
    if comparison.is_same:
        return
    if comparison.regression.losses and comparison.regression.not_judged is not None and not comparison.is_empty:
        yield f"Not judged: {clean(comparison.regression.not_judged)}"
    yield from time_lines(comparison)
    yield from account_lines(_accounts(comparison)[:1])
    yield from outcome_lines(comparison)


def _accounts(comparison: ModelComparison) -> list[Account]:
    """Where differences go: of the configurations that were judged first, then of the default."""
    judged = [trial for verdict in (SLOWER, FASTER) for trial, _ in with_verdict(comparison, verdict)]
    default = [trial for trial in comparison.trials if trial.name == comparison.new.baseline]
    rest = [trial for trial in comparison.trials if trial not in judged and trial not in default]
    return [trial.account for trial in (*judged, *default, *rest) if trial.account is not None]


def _remarks(comparison: ModelComparison) -> Iterator[str]:
    method = None if comparison.is_same else method_line(comparison)
    yield from (line for line in (environment_line(comparison.environment), method) if line is not None)
    for note in comparison.notes:
        yield f"Note: {clean(note)}"


def _tables(comparison: ModelComparison) -> Iterator[Table]:
    head = ("configuration", "old", "new", "old / new", "own change", "conversions", "round trips")
    yield Table(head, tuple(map(_trial_row, comparison.trials)), title="Configurations")
    if comparison.is_same:
        return
    reworded = tuple(finding for finding in comparison.stayed if finding.old_severity != finding.new_severity)
    yield from _findings_table("Findings", (*comparison.findings, *reworded), is_long=False)
    stayed = tuple(finding for finding in comparison.stayed if finding not in reworded)
    yield from _findings_table("Findings that stayed", stayed, is_long=True)
    for account in _accounts(comparison)[:1]:
        yield replace(account_view(account).table, title="Where the difference goes", is_long=True)
    yield from _layout_tables(comparison)


def _findings_table(title: str, findings: tuple[FindingChange, ...], *, is_long: bool) -> Iterator[Table]:
    if not findings:
        return
    rows = tuple(
        TableRow(
            (
                f"{clean_name(finding.code)} {clean_name(finding.rule)}",
                _FINDING_WORDS[finding.change],
                _before_and_now(finding.old_severity, finding.new_severity),
                clean_name(finding.configuration) if finding.configuration else ABSENT,
                _before_and_now(finding.old_module if finding.old_count else None, finding.module),
                _cost(finding),
            )
        )
        for finding in findings
    )
    heads = ("finding", "change", "severity", "configuration", "module", "cost")
    yield Table(heads, rows, title=title, is_long=is_long)


def _before_and_now(old: str | None, new: str | None) -> str:
    if old is None or new is None or old == new:
        return clean_name(new or old or ABSENT)
    return f"{clean_name(old)} -> {clean_name(new)}"


def _cost(finding: FindingChange) -> str:
    if finding.old_count and finding.new_count:
        if finding.old_seconds is None and finding.new_seconds is None:
            return ABSENT
        return format_both(finding.old_seconds, finding.new_seconds)
    seconds = finding.new_seconds if finding.new_count else finding.old_seconds
    return ABSENT if seconds is None else format_seconds(seconds)


def _layout_tables(comparison: ModelComparison) -> Iterator[Table]:
    """What came and went in each configuration: conversions, round trips, convolutions."""
    conversions, round_trips, convolutions = [], [], []
    for trial in filter(has_both, comparison.trials):
        name = clean_name(trial.name)
        changes = [change for change in trial.conversions if change.change != "same"]
        conversions += [TableRow((name, *conversion_cells(change))) for change in changes]
        trips = [trip for trip in trial.round_trips if trip.change != "same"]
        round_trips += [TableRow((name, *round_trip_cells(trip))) for trip in trips]
        for decision in trial.decisions:
            for convolution in decision.convolutions:
                place = clean_name(convolution.module or convolution.node)
                old, new = convolution.old_channels_last, convolution.new_channels_last
                formats = _before_and_now(_FORMAT_WORDS[old], _FORMAT_WORDS[new])
                classes = _before_and_now(convolution.old_class, convolution.new_class)
                convolutions.append(TableRow((name, clean_name(decision.graph), place, classes, formats)))
    tables = (
        ("Conversions", ("configuration", "conversion", "where", *AMOUNT_HEADS), conversions),
        ("Round trips", ("configuration", "round trip", "module", *AMOUNT_HEADS), round_trips),
        ("Convolutions", ("configuration", "graph", "module", "class", "output"), convolutions),
    )
    for title, head, rows in tables:
        if rows:
            yield Table(head, tuple(rows), title=title, is_long=True)


def _trial_row(trial: ComparedTrial) -> TableRow:
    name = clean_name(trial.name)
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
        return TableRow((name,), f"the same as {clean_name(trial.new_same_as)} in both")
    old, new = trial.old_costs, trial.new_costs
    conversions = round_trips = "not recorded"
    if old is not None and new is not None:
        conversions = format_counts(old.conversion_count, new.conversion_count)
        round_trips = format_counts(old.redundant_pair_count, new.redundant_pair_count)
    times = (_median(trial.old_median_seconds), _median(trial.new_median_seconds))
    return TableRow((name, *times, _absolute(trial), _own_change(trial), conversions, round_trips))


def _absolute(trial: ComparedTrial) -> str:
    bounds = trial.time.absolute if trial.time is not None else None
    if bounds is None:
        return ABSENT if trial.median_ratio is None else format_ratio(trial.median_ratio)
    ends = "" if bounds.coverage is None else f"  {bounds.low:.2f}..{bounds.high:.2f}"
    return format_ratio(bounds.median) + ends


def _own_change(trial: ComparedTrial) -> str:
    time = trial.time
    if time is None or time.not_judged is not None or time.verdict is None:
        return "not judged" if time is not None else ABSENT
    if time.verdict in (FASTER, SLOWER) and time.change is not None:
        return f"{time.verdict}  {format_ratio(time.change.median)}"
    return UNDECIDED if _is_undecided(trial) else "none"


def _is_undecided(trial: ComparedTrial) -> bool:
    return trial.time is not None and trial.time.change is not None and not is_equal(trial.time.change)


def _median(seconds: float | None) -> str:
    return "not measured" if seconds is None else format_seconds(seconds)


def change_phrase(bounds: RatioBounds, verdict: Verdict) -> str:
    """A change of a time, old over new, in words: ``"takes 1.30x as long (1.25x to 1.36x)"``."""
    if verdict == SLOWER:
        ends = f"{format_ratio(1 / bounds.high)} to {format_ratio(1 / bounds.low)}"
        return f"takes {format_ratio(1 / bounds.median)} as long ({ends})"
    return f"is {format_ratio(bounds.median)} faster ({format_ratio(bounds.low)} to {format_ratio(bounds.high)})"


def with_verdict(comparison: ModelComparison, verdict: Verdict) -> tuple[tuple[ComparedTrial, RatioBounds], ...]:
    """Configurations of one verdict with their change, largest first; those measured as another are left to it."""
    found = [
        (trial, trial.time.change)
        for trial in comparison.trials
        if trial.time is not None and trial.time.change is not None and trial.time.verdict == verdict
    ]
    names = {trial.name for trial, _ in found}
    own = [(trial, change) for trial, change in found if trial.new_same_as not in names]
    return tuple(sorted(own, key=lambda entry: entry[1].median, reverse=verdict == FASTER))


def drift_line(comparison: ModelComparison) -> str | None:
    """What all configurations have in common, and what that says; None where the machine kept its pace."""
    times = comparison.times
    if not times.has_drifted or times.drift is None:
        return None
    ratio = times.drift.median
    pace = f"takes {format_ratio(1 / ratio)} as long" if ratio < 1 else f"is {format_ratio(ratio)} faster"
    others = [*with_verdict(comparison, FASTER), *with_verdict(comparison, SLOWER)]
    names = listing([clean_name(name) for name in times.references[:MOST_NAMED]], None)
    if times.basis == "same code":
        why = f"the machine, not the layouts: {names} ran the same code under the same versions"
    else:
        why = f"the machine, {_versions(comparison)}or the model as a whole, not one of the layouts"
    return f"{'All the rest' if others else 'Everything'} {pace}: {why}"


def has_both(trial: ComparedTrial) -> bool:
    """Whether a configuration has a result in both, so that what is missing in one has gone."""
    return trial.old_status in _WITH_RESULT and trial.new_status in _WITH_RESULT


def time_lines(comparison: ModelComparison) -> Iterator[str]:
    """What became faster, slower, moved with all the others, or was not judged."""
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
    """Failures, recommendations, findings, conversions, decisions: what came and went."""
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
        yield f"Decided otherwise: {listing(flips, MOST_NAMED)}"
    yield from _count_lines(comparison.trials)
    for age, status in (("new", "old_status"), ("old", "new_status")):
        only = [clean_name(trial.name) for trial in comparison.trials if getattr(trial, status) is None]
        if only:
            yield f"Only in the {age} one: {listing(only, MOST_CONFIGURATIONS)}"


def finding_words(finding: FindingChange) -> str:
    """A finding with its place and cost: ``"warning LD501 user-contiguous-call [inductor] at body.1 (1.20 ms)"``."""
    about = f" [{clean_name(finding.configuration)}]" if finding.configuration else ""
    places = [clean_name(finding.module)] if finding.module else []
    places += [clean(finding.place, 160)] if finding.place else []
    where = f" at {', '.join(places)}" if places else ""
    seconds = finding.new_seconds if finding.new_count else finding.old_seconds
    cost = f" ({format_seconds(seconds)})" if seconds is not None else ""
    is_one = {finding.old_count, finding.new_count} <= {0, 1}
    many = "" if is_one else f", {format_counts(finding.old_count, finding.new_count)} times"
    return f"{finding.severity} {clean_name(finding.code)} {clean_name(finding.rule)}{about}{where}{cost}{many}"


def method_line(comparison: ModelComparison) -> str | None:
    """How times were judged, with the resolution; None where none was."""
    times = comparison.times
    if times.resolution is None:
        return None
    changes = [time.change for trial in comparison.trials if (time := trial.time) and time.not_judged is None]
    coverages = [change.coverage for change in changes if change is not None and change.coverage is not None]
    level = f"{format_share(min(coverages))} for all intervals together, " if coverages else ""
    against = ""
    if times.references:
        named = listing([clean_name(name) for name in times.references], MOST_NAMED)
        against = f"judged against {named}, {_BASIS_WORDS[times.basis or 'steady']}; "
    return (
        f"Times: {against}{level}a change counts beyond {format_share(times.resolution)}, as two runs of the same thing"
        " may differ by that"
    )


def _versions(comparison: ModelComparison) -> str:
    changed = [
        f"{clean_name(change.name)} ({clean_name(change.old or '-')} -> {clean_name(change.new or '-')})"
        for change in comparison.environment
    ]
    return f"{listing(changed, MOST_NAMED)} " if changed else ""


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
        yield f"Against {baseline}, each in its own run: {listing(changed, MOST_CONFIGURATIONS)}"


def _not_judged_lines(comparison: ModelComparison) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for trial in comparison.trials:
        if trial.time is not None and trial.time.not_judged is not None and trial.new_same_as is None:
            reasons.setdefault(trial.time.not_judged, []).append(clean_name(trial.name))
    reasons.pop(comparison.regression.not_judged or "", None)  # the headline says it
    if comparison.times.is_other_machine:  # a note says it
        return
    for reason, names in reasons.items():
        yield f"Times not judged: {clean(reason)}: {listing(names, MOST_CONFIGURATIONS)}"


def _recommended(subject: ComparedSubject) -> str:
    name = clean_name(subject.recommended or subject.baseline or "none")
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
    pairs = [f"{clean_name(name)} {format_counts(old, new)}" for name, old, new in counts if old != new]
    if pairs:
        yield f"Round trips: {listing(pairs, MOST_CONFIGURATIONS)}"
    changed = [(trial, lines) for trial in distinct if (lines := change_lines(trial.conversions))]
    for trial, lines in changed[:MOST_NAMED]:
        difference = trial.difference.conversion_seconds if trial.difference is not None else None
        in_all = f" (conversions in all {format_difference(difference)})" if difference is not None else ""
        yield f"{clean_name(trial.name)}: {'; '.join(line[0].lower() + line[1:] for line in lines)}{in_all}"
    if len(changed) > MOST_NAMED:
        yield f"and conversions of {len(changed) - MOST_NAMED} more configurations, in the table"


def _decision_words(trial: ComparedTrial, change: DecisionChange) -> str:
    words = f"{clean_name(trial.name)} {clean_name(change.graph)}: {_decision(change.old)} -> {_decision(change.new)}"
    places = [clean_name(convolution.module or convolution.node) for convolution in change.convolutions]
    return f"{words}, at {listing(places, MOST_NAMED)}" if places else words


def _decision(decision: GraphDecision) -> str:
    word = SWITCH_WORDS[decision.applied]
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
            yield f"{what}: {listing(changed, MOST_CONFIGURATIONS)}"
