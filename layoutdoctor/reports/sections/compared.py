"""Makes the report of a comparison in sections. Two traces are compared, or two diagnoses of models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis import Account, Size
from layoutdoctor.diagnosis.answer import FASTER
from layoutdoctor.diagnosis.comparison import WITH_RESULT, TraceComparison
from layoutdoctor.examination.changes.costs import LEAST_COST_SHARE, TIME_TOLERANCE, format_count
from layoutdoctor.examination.changes.traces import KINDS, loose_name
from layoutdoctor.reports.sections.account import account_sentence, account_table
from layoutdoctor.reports.sections.rows import UNKNOWN_CELL, Overview, Table, TableRow, format_interval
from layoutdoctor.reports.sections.wording import clean, clean_name, shown_name
from layoutdoctor.units import format_ratio, format_seconds, format_share
from layoutdoctor.words import (
    DIRECTION_WORDS,
    NOT_RECORDED,
    STATUS_WORDS,
    SWITCH_WORDS,
    count_of,
    gain_words,
    joined,
    listing,
    phrase,
    plural,
)

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.comparison import (
        Amount,
        ComparedModel,
        ConversionChange,
        CostChange,
        DecisionChange,
        FindingChange,
        ModelComparison,
        RoundTripChange,
        TotalChange,
        TrialChange,
    )

LONGEST_NAME = 60
MOST_NAMED = 3
MOST_LISTED = 6
LEAST_SECONDS = 0.5e-9
"""Smallest difference shown. Recorders count nanoseconds; smaller differences come from a division by steps."""


def build_comparison_view(comparison: TraceComparison | ModelComparison) -> Overview:
    """Returns the report in sections."""
    if isinstance(comparison, TraceComparison):
        headline, lines, tables = _trace_headline(comparison), _trace_lines(comparison), _trace_tables(comparison)
    else:
        headline, lines, tables = _model_headline(comparison), _model_lines(comparison), _model_tables(comparison)
    return Overview(
        title=tuple(_title(comparison)),
        headline=headline,
        lines=() if comparison.is_same else tuple(lines),
        tables=tuple(tables),
        remarks=tuple(_remarks(comparison)),
    )


def _title(comparison: TraceComparison | ModelComparison) -> Iterator[str]:
    old, new = comparison.old, comparison.new
    yield f"layoutdoctor {clean_name(comparison.layoutdoctor_version)}"
    yield f"comparison of {'traces' if isinstance(comparison, TraceComparison) else 'diagnoses'}"
    yield f"{clean_name(old.name)} -> {clean_name(new.name)}"
    if not isinstance(comparison, TraceComparison):
        modes = dict.fromkeys((comparison.old.mode, comparison.new.mode))
        yield " -> ".join(map(clean_name, modes))
    elif comparison.basis == "step":
        yield f"per step ({comparison.old.step_count} and {count_of(comparison.new.step_count, 'step')})"
    else:
        yield "whole traces"


def _remarks(comparison: TraceComparison | ModelComparison) -> Iterator[str]:
    if isinstance(comparison, TraceComparison) and comparison.overlap.total_count and not comparison.overlap.is_small:
        time = phrase(", at least {} of each trace's kernel time", comparison.overlap.common_share, format_share)
        yield f"In common: {_overlap_words(comparison)}{time}"
    if comparison.environment:
        values = ((clean_name(change.name), change.old, change.new) for change in comparison.environment)
        changes = [f"{name} {' -> '.join(clean_name(one or NOT_RECORDED) for one in ends)}" for name, *ends in values]
        yield f"Differs: {listing(changes, 12)}"
    yield from (f"Note: {clean(note)}" for note in comparison.notes)
    if isinstance(comparison, TraceComparison):
        for age, run in (("old", comparison.old), ("new", comparison.new)):
            if run.lacks:
                yield f"Not recorded in the {age} trace: {listing(map(clean, run.lacks))}"


# ------------------------------------------------------------------------------------------------- two recorded traces
def _trace_headline(comparison: TraceComparison) -> str:
    empty = [age for age in ("old", "new") if not getattr(comparison, age).costs.kernel_count]
    if empty:
        return f"Nothing to compare: no kernels in {'either trace' if len(empty) == 2 else f'the {empty[0]} trace'}"
    if comparison.is_empty:
        return "Nothing in common: no operation, kernel or module is in both traces, so these are different runs"
    if comparison.overlap.is_small:
        return f"Apparently different runs: {_overlap_words(comparison)} in common"
    if comparison.is_same:
        return "No difference: all numbers of the two traces are equal"
    if comparison.unequal_work is not None:
        return f"The traces seem to have done different work: {clean(comparison.unequal_work)}"
    return _saved(comparison)


def _overlap_words(comparison: TraceComparison) -> str:
    overlap = comparison.overlap
    return f"{overlap.common_count} of {overlap.total_count} {plural(overlap.kind)}"


def _saved(comparison: TraceComparison) -> str:
    """Describes the change of conversions; calls it saved or lost time only for the same work on the same device."""
    old, new = comparison.old.costs, comparison.new.costs
    per_step = " per step" if comparison.basis == "step" else ""
    if not old.conversion_count and not new.conversion_count:
        return "No layout conversion in either trace"
    counts = _counts(old.conversion_count, new.conversion_count)
    figures = f"{counts} conversions, {_times(old.conversion_seconds, new.conversion_seconds)}"
    if all(not change.count_difference for change in comparison.conversions):
        return f"No layout conversion was added or removed: {figures}{per_step}"
    devices = [change for change in comparison.environment if change.name in ("device", "device_name")]
    is_same_device = not any(change.old is not None and change.new is not None for change in devices)
    is_same_work = comparison.unequal_work is None and not comparison.overlap.is_small
    if is_same_device and is_same_work and old.conversion_seconds is not None and new.conversion_seconds is not None:
        difference = new.conversion_seconds - old.conversion_seconds
        if abs(difference) >= LEAST_SECONDS:
            word = "Saved" if difference < 0 else "Lost"
            return f"{word}: {format_seconds(abs(difference))} of layout conversions{per_step} ({figures})"
    return f"Layout conversions: {figures}{per_step}"


def _trace_lines(comparison: TraceComparison) -> Iterator[str]:
    old, new = comparison.old.costs, comparison.new.costs
    if comparison.is_empty:
        return
    if comparison.overlap.is_small or comparison.unequal_work is not None:
        yield _saved(comparison)
    yield from _conversion_lines(comparison.conversions)
    if old.redundant_pair_count or new.redundant_pair_count:
        counts = _counts(old.redundant_pair_count, new.redundant_pair_count)
        yield f"Round trips: {counts}, {_times(old.redundant_pair_seconds, new.redundant_pair_seconds)}"
    if old.exposed_conversion_seconds is not None and new.exposed_conversion_seconds is not None:
        exposed = _times(old.exposed_conversion_seconds, new.exposed_conversion_seconds)
        yield f"Conversion time in which nothing else ran on the device: {exposed}"
    yield f"Kernel time: {_times(old.kernel_seconds, new.kernel_seconds)} (one recording each, so no verdict)"
    regression = comparison.regression
    if regression.not_judged is not None:
        yield f"Regression: not judged, as {clean(regression.not_judged)}"
    elif regression.losses:
        yield f"Regression: {listing(map(clean, regression.losses), MOST_NAMED)}"
    else:
        tolerances = format_share(TIME_TOLERANCE), format_share(LEAST_COST_SHARE)
        yield "Regression: none (tolerance: {} of the conversion time, {} of the kernel time)".format(*tolerances)


def _trace_tables(comparison: TraceComparison) -> Iterator[Table]:
    least = LEAST_COST_SHARE * max(run.costs.kernel_seconds or 0.0 for run in (comparison.old, comparison.new))
    heads = ("old", "new", "difference")
    conversions = tuple(
        TableRow((_conversion_words(change), _conversion_place(change), *_amount_cells(change)))
        for change in comparison.conversions
        if _is_shown(change, least)
    )
    trips = tuple(
        TableRow((_round_trip_words(change), clean_name(change.module or UNKNOWN_CELL), *_amount_cells(change)))
        for change in comparison.round_trips
        if _is_shown(change, least)
    )
    tables = [
        Table(("conversion", "where", *heads), conversions, title="Conversions"),
        Table(("round trip", "module", *heads), trips, title="Round trips"),
    ]
    for kind in KINDS:
        rows = tuple(
            TableRow(_total_cells(total))
            for total in comparison.totals
            if total.kind == kind and abs(total.seconds_difference or 0.0) > least
        )
        tables.append(Table((kind, *heads, "conversions"), rows, title=plural(kind).capitalize(), is_long=True))
    return (table for table in tables if table.rows)


def _total_cells(total: TotalChange) -> tuple[str, ...]:
    name = clean(total.name if len(total.name) <= LONGEST_NAME else loose_name(total.name), LONGEST_NAME)
    old, new = (one.conversion_count or 0 if one else 0 for one in (total.old, total.new))
    conversions = _counts(old, new) if old or new else UNKNOWN_CELL
    return f"{name} (similar names)" if total.is_loose else name, *_amount_cells(total), conversions


def _is_shown(change: CostChange, least: float) -> bool:
    """Whether the count changed, or the time changed by more than the tolerances of a regression."""
    if change.count_difference:
        return True
    most = max(amount.seconds or 0.0 for amount in (change.old, change.new) if amount is not None)
    return abs(change.seconds_difference or 0.0) > max(least, TIME_TOLERANCE * most)


# ------------------------------------------------------------------------------------------- two diagnoses of models
def _model_headline(comparison: ModelComparison) -> str:
    regression = comparison.regression
    if comparison.is_empty:
        return "Cannot be judged: no configuration has a result in both diagnoses"
    if comparison.is_same:
        return "No regression: all numbers of the two diagnoses are equal"
    if regression.losses:
        left = len(regression.losses[MOST_NAMED:]) or None
        named = "; ".join(clean(loss, 240) for loss in regression.losses[:MOST_NAMED])
        return f"Regression: {named}{phrase('; and {} more', left)}"
    if regression.not_judged is not None:
        return f"Cannot be judged: {clean(regression.not_judged)}"
    judged = [(trial, trial.change) for trial in comparison.trials if trial.change is not None]
    faster = [
        (change.median, f"{shown_name(trial.name)} {gain_words(change)}")
        for trial, change in judged
        if change.verdict == FASTER and trial.same_as_in_both is None
    ]
    if faster:
        return f"No regression: {listing([words for _, words in sorted(faster, reverse=True)], MOST_NAMED)}"
    if judged:
        count = count_of(len(judged), "configuration")
        return f"No regression: {count} as fast as before, compared with the default"
    return "No regression: no new round trip, failure, warning or error; times were not judged"


def _model_lines(comparison: ModelComparison) -> Iterator[str]:
    regression = comparison.regression
    if regression.losses and regression.not_judged is not None:
        yield f"Not judged: {clean(regression.not_judged)}"
    reasons: dict[str, list[str]] = {}
    for trial in comparison.trials:
        if trial.not_judged not in (None, regression.not_judged) and trial.same_as_in_both is None:
            reasons.setdefault(str(trial.not_judged), []).append(shown_name(trial.name))
    for reason, names in reasons.items():
        yield f"Times not judged: {clean(reason)}: {listing(names, MOST_LISTED)}"
    account = _largest_account(comparison)
    if account is not None:
        yield f"Why: {account_sentence(account)}"
    if comparison.old.recommended != comparison.new.recommended:
        yield f"Recommended: {_recommended(comparison.old)} -> {_recommended(comparison.new)}"
    distinct = [trial for trial in comparison.trials if trial.has_both_results and trial.same_as_in_both is None]
    trips = [
        f"{shown_name(trial.name)} {_counts(old.redundant_pair_count, new.redundant_pair_count)}"
        for trial in distinct
        if trial.old and trial.new and (old := trial.old.costs) and (new := trial.new.costs)
        if old.redundant_pair_count != new.redundant_pair_count
    ]
    if trips:
        yield f"Round trips: {listing(trips, MOST_LISTED)}"
    changed = [(trial, lines) for trial in distinct if (lines := list(_conversion_lines(trial.conversions)))]
    for trial, lines in changed[:MOST_NAMED]:
        yield f"{shown_name(trial.name)}: {'; '.join(line[0].lower() + line[1:] for line in lines)}"
    if len(changed) > MOST_NAMED:
        yield f"and conversions of {len(changed) - MOST_NAMED} more configurations, in the table"
    flips = [_decision_words(trial.name, change) for trial in comparison.trials for change in trial.decisions]
    if flips:
        yield f"Decision changed: {listing(flips, MOST_NAMED)}"


def _largest_account(comparison: ModelComparison) -> Account | None:
    accounts = [trial.account for trial in comparison.trials if trial.account is not None]
    return max(accounts, key=lambda one: one.slower_seconds - one.faster_seconds, default=None)


def _recommended(model: ComparedModel) -> str:
    name = shown_name(model.recommended or model.baseline or "none")
    if model.speedup is not None:
        return f"{name} ({format_ratio(model.speedup.median)} against the baseline)"
    return f"{name} (the baseline)" if model.recommended is None and model.baseline is not None else name


def _decision_words(name: str, change: DecisionChange) -> str:
    old, new = (
        f"{SWITCH_WORDS[card.applied]} ({clean_name(card.rule)}, {card.channels_last_convolution_count} of "
        f"{card.convolution_count} convs channels-last)"
        for card in (change.old, change.new)
    )
    return f"{shown_name(name)} {clean_name(change.graph)}: {old} -> {new}"


def _model_tables(comparison: ModelComparison) -> Iterator[Table]:
    rows = tuple(TableRow(*_trial_cells(trial, comparison.new.baseline)) for trial in comparison.trials)
    yield Table(("configuration", "per call", "ratio", "change", "conversions"), rows, title="Configurations")
    if comparison.is_same:
        return
    if comparison.findings:
        heads = ("finding", "count", "severity", "configuration", "at", "cost")
        yield Table(heads, tuple(map(_finding_row, comparison.findings)), title="Findings")
    account = _largest_account(comparison)
    if account is not None:
        yield replace(account_table(account), title="Where the difference goes", is_long=True)


def _finding_row(finding: FindingChange) -> TableRow:
    place = ", ".join(clean_name(part) for part in (finding.module, finding.place) if part)
    return TableRow(
        (
            f"{clean_name(finding.code)} {clean_name(finding.rule)}",
            _counts(finding.old_count, finding.new_count),
            finding.severity,
            shown_name(finding.configuration) if finding.configuration else UNKNOWN_CELL,
            place or UNKNOWN_CELL,
            phrase("{}", finding.seconds, format_seconds) or UNKNOWN_CELL,
        )
    )


def _trial_cells(trial: TrialChange, baseline: str | None) -> tuple[tuple[str, ...], str | None]:
    """Returns the cells of a configuration's row; or its name alone, and a clause in place of the other cells."""
    name, old, new = shown_name(trial.name), trial.old, trial.new
    if old is None or new is None:
        return (name,), f"only in the {'new' if old is None else 'old'} diagnosis"
    if not trial.has_both_results:
        outcomes = (
            f"{STATUS_WORDS[one.status]} in the {age} diagnosis{phrase(' ({})', clean(one.failure or '', 160))}"
            for age, one in (("old", old), ("new", new))
            if one.status not in WITH_RESULT
        )
        return (name,), "; ".join(outcomes)
    if trial.same_as_in_both is not None:
        return (name,), f"the same code as {shown_name(trial.same_as_in_both)} in both"
    conversions = NOT_RECORDED
    if old.costs is not None and new.costs is not None:
        conversions = _counts(old.costs.conversion_count, new.costs.conversion_count)
    medians = (phrase("{}", ratio, lambda one: format_ratio(one.median)) for ratio in (old.ratio, new.ratio))
    ratio = "1" if trial.name == baseline else " -> ".join(median or UNKNOWN_CELL for median in medians)
    change = "not judged" if trial.not_judged is not None else phrase("{}", trial.change, format_interval)
    return (name, _times(old.seconds, new.seconds), ratio, change or UNKNOWN_CELL, conversions), None


# ------------------------------------------------------------------------------------------------------------ wording
def _conversion_lines(changes: Sequence[ConversionChange]) -> Iterator[str]:
    """Yields a line about removed and a line about added conversions; the first few are named."""
    for word, sign in (("Removed conversions", -1), ("Added conversions", 1)):
        chosen = [change for change in changes if change.count_difference * sign > 0]
        named = [_conversion_change_words(change) for change in chosen[:MOST_NAMED]]
        if len(chosen) > MOST_NAMED:
            named.append(f"and {len(chosen) - MOST_NAMED} more")
        if named:
            yield f"{word}: {'; '.join(named)}"


def _conversion_change_words(change: ConversionChange) -> str:
    whole, count = change.old if change.count_difference < 0 else change.new, abs(change.count_difference)
    part = phrase(" of {}", whole.count if whole is not None and whole.count != count else None, format_count)
    seconds = phrase(" ({})", change.seconds_difference, _difference)
    return f"{format_count(count)}{part} {_conversion_words(change)}, {_conversion_place(change)}{seconds}"


def _conversion_words(change: ConversionChange) -> str:
    tensor = change.tensor if change.tensor != "unknown" else "tensor"
    return joined((f"{DIRECTION_WORDS[change.direction]}, {tensor}", _shape_words(change.shape)), " ")


def _conversion_place(change: ConversionChange) -> str:
    parts = [clean_name(part) for part in (change.op, change.module) if part]
    return "  ".join(parts) or f"by the {change.owner}"


def _round_trip_words(change: RoundTripChange) -> str:
    between = listing([clean_name(name) for name in change.between])
    return joined((f"around {between}" if between else "nothing between", _shape_words(change.shape)), ", ")


def _shape_words(shape: tuple[Size, ...] | None) -> str:
    return phrase("{}", shape, lambda sizes: "x".join(clean_name(str(size)) for size in sizes))


def _amount_cells(change: CostChange) -> tuple[str, str, str]:
    difference = phrase("{}", change.seconds_difference, _difference) or UNKNOWN_CELL
    return _amount_cell(change.old), _amount_cell(change.new), difference


def _amount_cell(amount: Amount | None) -> str:
    return phrase("{}", amount, lambda one: f"{format_count(one.count)}  {_seconds(one.seconds)}") or UNKNOWN_CELL


def _difference(seconds: float) -> str:
    if abs(seconds) < LEAST_SECONDS:
        return format_seconds(0)
    return f"{'+' if seconds > 0 else '-'}{format_seconds(abs(seconds))}"


def _times(old: float | None, new: float | None) -> str:
    """Formats two times, with one unit if it is the same: ``"24.9 -> 25.0 ms"``."""
    before, after = _seconds(old), _seconds(new)
    if old is not None and new is not None and before.split()[1] == after.split()[1]:
        before = before.split()[0]
    return f"{before} -> {after}"


def _counts(old: float, new: float) -> str:
    return format_count(old) if old == new else f"{format_count(old)} -> {format_count(new)}"


def _seconds(seconds: float | None) -> str:
    return phrase("{}", seconds, format_seconds) or NOT_RECORDED
