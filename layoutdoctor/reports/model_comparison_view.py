"""
What the report of two compared diagnoses of models says, configuration by configuration.

Faces ``reports.comparison``; a pure function of the comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.reports.comparison_wording import (
    ABSENT,
    MOST_NAMED,
    ComparisonView,
    TitledTable,
    amount_cell,
    change_lines,
    conversion_place,
    conversion_words,
    environment_line,
    format_both,
    format_counts,
    format_difference,
    regression_line,
)
from layoutdoctor.reports.rows import Table, TableRow
from layoutdoctor.reports.wording import clean, clean_name, count_of, cut_list
from layoutdoctor.units import format_ratio, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.comparison_records import (
        ComparedTrial,
        DecisionChange,
        FindingChange,
        GraphDecision,
        ModelComparison,
    )

MOST_CONFIGURATIONS = 6

_STATUS_WORDS = {"failed": "failed", "timed_out": "timed out", "crashed": "crashed", "skipped": "skipped"}
_FINDING_WORDS = {"came": "new", "went": "gone", "more": "more", "fewer": "fewer"}


def build_model_view(comparison: ModelComparison) -> ComparisonView:
    """
    The report of two compared diagnoses of models, in sections.

    Args:
        comparison: Any.
    """
    return ComparisonView(
        title=_title(comparison),
        headline=_headline(comparison),
        lines=tuple(_lines(comparison)),
        tables=tuple(_tables(comparison)),
        remarks=tuple(_remarks(comparison)),
    )


def _title(comparison: ModelComparison) -> tuple[str, ...]:
    return (
        f"layoutdoctor {clean_name(comparison.layoutdoctor_version)}",
        "comparison of diagnoses",
        f"{clean_name(comparison.old.name)} -> {clean_name(comparison.new.name)}",
    )


def _headline(comparison: ModelComparison) -> str:
    if comparison.is_empty:
        return "Nothing in common: no configuration has a result in both"
    if comparison.different_subject is not None:
        return f"These two seem to be of different models: {clean(comparison.different_subject)}"
    if comparison.is_same:
        return "No difference: the two say the same, number by number"
    return _changed_conversions(comparison)


def _changed_conversions(comparison: ModelComparison) -> str:
    """What came and went, or that nothing did; about kernels only where both recorded them."""
    compared = [trial for trial in comparison.trials if trial.difference is not None or trial.conversions]
    if not compared:
        return "No configuration has its conversions recorded in both"
    changed = [trial for trial in compared if any(change.change != "same" for change in trial.conversions)]
    pairs = [trial for trial in compared if any(change.change != "same" for change in trial.round_trips)]
    if not changed and not pairs:
        configurations = count_of(len(compared), "configuration")
        return f"No layout conversion or round trip came or went ({configurations} with conversions recorded in both)"
    where = f"{len(changed or pairs)} of {count_of(len(compared), 'configuration')}"
    named = [f"{clean_name(trial.name)} {_conversion_figures(trial)}" for trial in changed or pairs]
    what = "Layout conversions" if changed else "Round trips"
    return f"{what} changed in {where}: {cut_list(named, MOST_NAMED)}"


def _conversion_figures(trial: ComparedTrial) -> str:
    if trial.old_costs is None or trial.new_costs is None:
        return "(in its graphs)"
    old, new = trial.old_costs, trial.new_costs
    return (
        f"{format_counts(old.conversion_count, new.conversion_count)} "
        f"({format_both(old.conversion_seconds, new.conversion_seconds)})"
    )


def _lines(comparison: ModelComparison) -> Iterator[str]:
    if comparison.is_empty or comparison.is_same:
        return
    if comparison.different_subject is not None:
        yield _changed_conversions(comparison)
    if comparison.old.recommended != comparison.new.recommended:
        recommended = [clean_name(name or "none") for name in (comparison.old.recommended, comparison.new.recommended)]
        yield f"Recommended: {' -> '.join(recommended)}"
    changed = [(trial, change_lines(trial.conversions)) for trial in comparison.trials]
    changed = [(trial, lines) for trial, lines in changed if lines]
    for trial, lines in changed[:MOST_CONFIGURATIONS]:
        for line in lines:
            yield f"{clean_name(trial.name)}: {line[0].lower()}{line[1:]}"
    if len(changed) > MOST_CONFIGURATIONS:
        yield f"and conversions of {len(changed) - MOST_CONFIGURATIONS} more configurations"
    flips = [_decision_words(trial, change) for trial in comparison.trials for change in trial.decisions]
    if flips:
        yield f"Decided otherwise: {cut_list(flips, MOST_NAMED)}"
    for change, words in (("came", "New findings"), ("went", "Gone")):
        found = [_finding_words(finding) for finding in comparison.findings if finding.change == change]
        if found:
            yield f"{words}: {cut_list(found, MOST_NAMED)}"
    yield regression_line(comparison.regression)


def _decision_words(trial: ComparedTrial, change: DecisionChange) -> str:
    decided = f"{_decision(change.old)} -> {_decision(change.new)}"
    return f"{clean_name(trial.name)} {clean_name(change.graph)}: {decided}"


def _decision(decision: GraphDecision) -> str:
    word = {True: "on", False: "off", None: "not recorded"}[decision.applied]
    forced = f"{decision.channels_last_convolution_count} of {decision.convolution_count}"
    return f"{word} ({clean_name(decision.rule)}, {forced} convs channels-last)"


def _finding_words(finding: FindingChange) -> str:
    about = f" [{clean_name(finding.configuration)}]" if finding.configuration else ""
    return f"{clean_name(finding.code)} {clean_name(finding.rule)}{about}"


def _remarks(comparison: ModelComparison) -> Iterator[str]:
    environment = environment_line(comparison.environment)
    if environment is not None:
        yield environment
    for note in comparison.notes:
        yield f"Note: {clean(note)}"


def _tables(comparison: ModelComparison) -> Iterator[TitledTable]:
    head = ("configuration", "old median", "new median", "old / new", "conversions", "round trips")
    yield TitledTable("Configurations", Table(head, tuple(_trial_row(trial) for trial in comparison.trials)))
    rows = [
        TableRow(
            (
                clean_name(trial.name),
                conversion_words(change),
                conversion_place(change),
                amount_cell(change.old),
                amount_cell(change.new),
                format_difference(change.seconds_difference),
            )
        )
        for trial in comparison.trials
        for change in trial.conversions
        if change.change != "same"
    ]
    if rows:
        columns = ("configuration", "conversion", "where", "old", "new", "difference")
        yield TitledTable("Conversions", Table(columns, tuple(rows)), is_long=True)
    if comparison.findings:
        found = tuple(
            TableRow(
                (
                    f"{clean_name(finding.code)} {clean_name(finding.rule)}",
                    _FINDING_WORDS[finding.change],
                    clean_name(finding.configuration) if finding.configuration else ABSENT,
                    clean_name(finding.module) if finding.module else ABSENT,
                    format_counts(finding.old_count, finding.new_count),
                )
            )
            for finding in comparison.findings
        )
        heads = ("finding", "change", "configuration", "module", "how many")
        yield TitledTable("Findings", Table(heads, found))


def _trial_row(trial: ComparedTrial) -> TableRow:
    name = clean_name(trial.name)
    if trial.old_status is None or trial.new_status is None:
        return TableRow((name,), f"in the {'new' if trial.old_status is None else 'old'} one only")
    without = {
        age: _STATUS_WORDS[status]
        for age, status in (("old", trial.old_status), ("new", trial.new_status))
        if status in _STATUS_WORDS
    }
    if without:
        return TableRow((name,), "; ".join(f"{word} in the {age} one" for age, word in without.items()))
    old, new = trial.old_costs, trial.new_costs
    conversions = round_trips = "not recorded"
    if old is not None and new is not None:
        conversions = format_counts(old.conversion_count, new.conversion_count)
        round_trips = format_counts(old.redundant_pair_count, new.redundant_pair_count)
    return TableRow(
        (
            name,
            _median(trial.old_median_seconds),
            _median(trial.new_median_seconds),
            format_ratio(trial.median_ratio) if trial.median_ratio is not None else ABSENT,
            conversions,
            round_trips,
        )
    )


def _median(seconds: float | None) -> str:
    return "not measured" if seconds is None else format_seconds(seconds)
