"""
What the report of two compared diagnoses of models says, in sections: the answer, what changed most, the tables.

Faces ``reports.comparison``; a pure function of the comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.records import FASTER, NO_DIFFERENCE, SLOWER
from layoutdoctor.reports.sections.compared import (
    ABSENT,
    MOST_NAMED,
    ComparisonView,
    TitledTable,
    amount_cell,
    conversion_place,
    conversion_words,
    environment_line,
    format_both,
    format_counts,
    format_difference,
    round_trip_words,
)
from layoutdoctor.reports.sections.compared_model_lines import (
    change_phrase,
    drift_line,
    has_both,
    method_line,
    outcome_lines,
    time_lines,
    with_verdict,
)
from layoutdoctor.reports.sections.rows import Table, TableRow
from layoutdoctor.reports.sections.wording import STATUS_WORDS, clean, clean_name, count_of, cut_list
from layoutdoctor.units import format_ratio, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.comparison_records import (
        ComparedTrial,
        ConversionAmount,
        FindingChange,
        ModelComparison,
        RatioBounds,
    )

_FINDING_WORDS = {"came": "new", "went": "gone", "more": "more", "fewer": "fewer", "same": "stayed"}


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
    faster = [
        f"{clean_name(trial.name)} {change_phrase(change, FASTER)}"
        for trial, change in with_verdict(comparison, FASTER)
    ]
    if faster:
        return cut_list(faster, MOST_NAMED)
    judged = [trial for trial in comparison.trials if trial.time is not None and trial.time.verdict == NO_DIFFERENCE]
    if judged and drift_line(comparison) is not None:
        return f"{count_of(len(judged), 'configuration')} moved alike, and nothing else became slower"
    if judged:
        return f"no measurable difference in the time of {count_of(len(judged), 'configuration')}"
    return "no new round trip, failure, warning or error; times were not judged"


def _lines(comparison: ModelComparison) -> Iterator[str]:
    if comparison.is_same:
        return
    if comparison.regression.losses and comparison.regression.not_judged is not None and not comparison.is_empty:
        yield f"Not judged: {clean(comparison.regression.not_judged)}"
    yield from time_lines(comparison)
    yield from outcome_lines(comparison)


def _remarks(comparison: ModelComparison) -> Iterator[str]:
    environment = environment_line(comparison.environment)
    if environment is not None:
        yield environment
    method = method_line(comparison)
    if method is not None and not comparison.is_same:
        yield method
    for note in comparison.notes:
        yield f"Note: {clean(note)}"


def _tables(comparison: ModelComparison) -> Iterator[TitledTable]:
    head = ("configuration", "old", "new", "old / new", "own change", "conversions", "round trips")
    yield TitledTable("Configurations", Table(head, tuple(_trial_row(trial) for trial in comparison.trials)))
    if comparison.is_same:
        return
    reworded = tuple(finding for finding in comparison.stayed if finding.old_severity != finding.new_severity)
    yield from _findings_table("Findings", (*comparison.findings, *reworded), is_long=False)
    stayed = tuple(finding for finding in comparison.stayed if finding not in reworded)
    yield from _findings_table("Findings that stayed", stayed, is_long=True)
    yield from _layout_tables(comparison)


def _findings_table(title: str, findings: tuple[FindingChange, ...], *, is_long: bool) -> Iterator[TitledTable]:
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
    yield TitledTable(title, Table(heads, rows), is_long=is_long)


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


def _layout_tables(comparison: ModelComparison) -> Iterator[TitledTable]:
    """What came and went in each configuration: conversions, round trips, convolutions."""
    conversions, round_trips, convolutions = [], [], []
    for trial in filter(has_both, comparison.trials):
        name = clean_name(trial.name)
        for change in trial.conversions:
            if change.change != "same":
                amounts = _amounts(change.old, change.new, change.seconds_difference)
                conversions.append(TableRow((name, conversion_words(change), conversion_place(change), *amounts)))
        for trip in trial.round_trips:
            if trip.change != "same":
                amounts = _amounts(trip.old, trip.new, trip.seconds_difference)
                round_trips.append(
                    TableRow((name, round_trip_words(trip), clean_name(trip.module or ABSENT), *amounts))
                )
        for decision in trial.decisions:
            for convolution in decision.convolutions:
                place = clean_name(convolution.module or convolution.node)
                formats = _before_and_now(
                    _format_words(convolution.old_channels_last), _format_words(convolution.new_channels_last)
                )
                classes = _before_and_now(convolution.old_class, convolution.new_class)
                convolutions.append(TableRow((name, clean_name(decision.graph), place, classes, formats)))
    amounts_head = ("old", "new", "difference")
    tables = (
        ("Conversions", ("configuration", "conversion", "where", *amounts_head), conversions),
        ("Round trips", ("configuration", "round trip", "module", *amounts_head), round_trips),
        ("Convolutions", ("configuration", "graph", "module", "class", "output"), convolutions),
    )
    for title, head, rows in tables:
        if rows:
            yield TitledTable(title, Table(head, tuple(rows)), is_long=True)


def _amounts(old: ConversionAmount | None, new: ConversionAmount | None, difference: float | None) -> tuple[str, ...]:
    return amount_cell(old), amount_cell(new), format_difference(difference)


def _format_words(channels_last: bool | None) -> str:
    return {True: "channels-last", False: "contiguous", None: "not recorded"}[channels_last]


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
    return TableRow(
        (
            name,
            _median(trial.old_median_seconds),
            _median(trial.new_median_seconds),
            _absolute(trial),
            _own_change(trial),
            conversions,
            round_trips,
        )
    )


def _absolute(trial: ComparedTrial) -> str:
    if trial.time is not None and trial.time.absolute is not None:
        return _bounds(trial.time.absolute)
    return format_ratio(trial.median_ratio) if trial.median_ratio is not None else ABSENT


def _own_change(trial: ComparedTrial) -> str:
    time = trial.time
    if time is None or time.not_judged is not None or time.verdict is None:
        return "not judged" if time is not None else ABSENT
    if time.verdict in (FASTER, SLOWER) and time.change is not None:
        return f"{time.verdict}  {format_ratio(time.change.median)}"
    return "none"


def _bounds(bounds: RatioBounds) -> str:
    if bounds.coverage is None:
        return format_ratio(bounds.median)
    return f"{format_ratio(bounds.median)}  {bounds.low:.2f}..{bounds.high:.2f}"


def _median(seconds: float | None) -> str:
    return "not measured" if seconds is None else format_seconds(seconds)
