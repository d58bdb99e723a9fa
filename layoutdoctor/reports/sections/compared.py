"""How the reports of a comparison say an amount, a difference, a conversion; every string out of a record cleaned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.examination.changes.regressions import LEAST_SHARE, TIME_TOLERANCE, format_count
from layoutdoctor.examination.changes.traces import loose_name
from layoutdoctor.reports.sections.rows import Overview, Table, TableRow
from layoutdoctor.reports.sections.wording import clean, clean_name
from layoutdoctor.units import format_seconds, format_share
from layoutdoctor.words import DIRECTION_WORDS, count_of, joined, listing, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from layoutdoctor.diagnosis.comparison import (
        Amount,
        Change,
        ComparedTotal,
        ConversionAmount,
        ConversionChange,
        EnvironmentDifference,
        Overlap,
        Regression,
        RoundTripChange,
        TraceComparison,
    )
    from layoutdoctor.diagnosis.layout import Size

ABSENT = "-"
AMOUNT_HEADS = ("old", "new", "difference")
MOST_NAMED = 3
MOST_NAMES_BETWEEN = 4
MOST_DIFFERENCES = 12
LEAST_SECONDS = 0.5e-9  # recorders count nanoseconds: what is less comes from dividing by steps

_CHANGE_WORDS: dict[Change, str] = {"went": "Went", "came": "Came", "fewer": "Fewer", "more": "More"}


def format_difference(seconds: float | None) -> str:
    """A difference of times, new minus old, with its sign: ``"-1.20 ms"``."""
    if seconds is None:
        return ABSENT
    if not is_difference(seconds):
        return format_seconds(0)
    return f"{'+' if seconds > 0 else '-'}{format_seconds(abs(seconds))}"


def is_difference(seconds: float | None) -> bool:
    """Whether a difference of times is one at all; None where it is not known."""
    return seconds is not None and abs(seconds) >= LEAST_SECONDS


def format_both(old: float | None, new: float | None) -> str:
    """Two times: ``"5.64 ms -> 4.44 ms"``."""
    return f"{_seconds_or_absent(old)} -> {_seconds_or_absent(new)}"


def format_counts(old: float, new: float) -> str:
    """Two counts: ``"999 -> 800"``; one where they are equal."""
    return format_count(old) if old == new else f"{format_count(old)} -> {format_count(new)}"


def _amount_cell(amount: Amount | ConversionAmount | None) -> str:
    """How many and how long, for a cell: ``"53  1.20 ms"``."""
    return ABSENT if amount is None else f"{format_count(amount.count)}  {_seconds_or_absent(amount.seconds)}"


def amount_cells(change: ConversionChange | RoundTripChange | ComparedTotal) -> tuple[str, str, str]:
    """What there was, what there is and the difference, under ``AMOUNT_HEADS``."""
    return _amount_cell(change.old), _amount_cell(change.new), format_difference(change.seconds_difference)


def conversion_cells(change: ConversionChange) -> tuple[str, ...]:
    """What it is, where it is, and the amounts."""
    return _conversion_words(change), _conversion_place(change), *amount_cells(change)


def round_trip_cells(change: RoundTripChange) -> tuple[str, ...]:
    """What it is, its module, and the amounts."""
    return _round_trip_words(change), clean_name(change.module or ABSENT), *amount_cells(change)


def _conversion_words(change: ConversionChange) -> str:
    """What kind of conversion it is: ``"to channels_last, activation 8x64x56x56"``."""
    tensor = change.tensor if change.tensor != "unknown" else "tensor"
    return f"{DIRECTION_WORDS[change.direction]}, {tensor}{_shape_words(change.shape)}"


def _conversion_place(change: ConversionChange) -> str:
    """Where it is: operation and module, as far as recorded."""
    parts = [clean_name(part) for part in (change.op, change.module) if part]
    return "  ".join(parts) or f"by the {change.owner}"


def _round_trip_words(change: RoundTripChange) -> str:
    """What is between the two conversions: ``"around aten::relu, 8x64x56x56"``."""
    between = listing([clean_name(name) for name in change.between], MOST_NAMES_BETWEEN)
    words = f"around {between}" if between else "nothing between"
    return joined((words, _shape_words(change.shape)), ",")


def change_lines(changes: Sequence[ConversionChange]) -> tuple[str, ...]:
    """Which conversions went and came, a line for each kind of change, the costliest named."""
    kinds = {word: [change for change in changes if change.change == kind] for kind, word in _CHANGE_WORDS.items()}
    return tuple(
        f"{word}: {'; '.join(map(_named_change, chosen[:MOST_NAMED]))}{_more(chosen)}"
        for word, chosen in kinds.items()
        if chosen
    )


def _named_change(change: ConversionChange) -> str:
    known = [amount.count for amount in (change.old, change.new) if amount is not None]
    counts = format_count(known[-1]) if change.change in ("came", "went") else format_counts(known[0], known[-1])
    seconds = "" if change.seconds_difference is None else f" ({format_difference(change.seconds_difference)})"
    return f"{counts} {_conversion_words(change)}, {_conversion_place(change)}{seconds}"


def _more(chosen: Sequence[ConversionChange]) -> str:
    left = len(chosen) - MOST_NAMED
    return f"; and {left} more {'kind' if left == 1 else 'kinds'}" if left > 0 else ""


def environment_line(changes: Iterable[EnvironmentDifference]) -> str | None:
    """What is not the same around the two; None where all is."""
    parts = [
        f"{clean_name(change.name)} {clean_name(change.old or 'not recorded')} -> "
        f"{clean_name(change.new or 'not recorded')}"
        for change in changes
    ]
    return f"Differs: {listing(parts, MOST_DIFFERENCES)}" if parts else None


def regression_line(regression: Regression) -> str:
    """Whether the new one loses more to layouts, in one line."""
    if regression.not_judged is not None:
        return f"Regression: not judged, as {clean(regression.not_judged)}"
    if regression.losses:
        return f"Regression: {listing([clean(loss) for loss in regression.losses], MOST_NAMED)}"
    return (
        f"Regression: none (tolerance: {format_share(TIME_TOLERANCE)} of the conversion time, "
        f"{format_share(LEAST_SHARE)} of the kernel time)"
    )


def _shape_words(shape: tuple[Size, ...] | None) -> str:
    return "" if shape is None else f" {'x'.join(clean_name(str(size)) for size in shape)}"


def _seconds_or_absent(seconds: float | None) -> str:
    return "not recorded" if seconds is None else format_seconds(seconds)


LONGEST_NAME = 60
MOST_LACKS = 4


def build_trace_view(comparison: TraceComparison) -> Overview:
    """The report of two compared traces, in sections."""
    return Overview(
        title=_title(comparison),
        headline=_headline(comparison),
        lines=tuple(_lines(comparison)),
        tables=tuple(_tables(comparison)),
        remarks=tuple(_remarks(comparison)),
    )


def _title(comparison: TraceComparison) -> tuple[str, ...]:
    old, new = comparison.old, comparison.new
    per_step = f"per step ({old.step_count} and {count_of(new.step_count, 'step')})"
    return (
        f"layoutdoctor {clean_name(comparison.layoutdoctor_version)}",
        "comparison of traces",
        f"{clean_name(old.name)} -> {clean_name(new.name)}",
        per_step if comparison.basis == "step" else "whole traces",
    )


def _headline(comparison: TraceComparison) -> str:
    runs = ("old", comparison.old), ("new", comparison.new)
    empty = [age for age, run in runs if not run.costs.kernel_count]
    if empty:
        return f"Nothing to compare: no kernels in {'either of the two' if len(empty) == 2 else f'the {empty[0]} one'}"
    if comparison.overlap.is_empty:
        return "Nothing in common: no operation, kernel or module of one is in the other, so these are different runs"
    if comparison.overlap.is_small:
        return f"These two seem to be different runs: {_overlap_words(comparison.overlap)} in common"
    if comparison.is_same:
        return "No difference: the two say the same, number by number"
    if comparison.unequal_work is not None:
        return f"These two seem not to have done the same work: {clean(comparison.unequal_work)}"
    return _saved(comparison)


def _overlap_words(overlap: Overlap) -> str:
    return f"{overlap.common_count} of {overlap.total_count} {plural(overlap.kind)}"


def _saved(comparison: TraceComparison) -> str:
    """What happened to the conversions; a difference is called saved or lost only where conversions went or came."""
    old, new, difference = comparison.old.costs, comparison.new.costs, comparison.difference.conversion_seconds
    per_step = " per step" if comparison.basis == "step" else ""
    if not old.conversion_count and not new.conversion_count:
        return "No layout conversion in either of the two"
    counts = format_counts(old.conversion_count, new.conversion_count)
    figures = f"{counts} conversions, {format_both(old.conversion_seconds, new.conversion_seconds)}"
    if all(change.change == "same" for change in comparison.conversions):
        return f"No layout conversion came or went: {figures}{per_step}"
    if difference is not None and is_difference(difference) and _is_like_with_like(comparison):
        word = "Saved" if difference < 0 else "Lost"
        return f"{word}: {format_seconds(abs(difference))} of layout conversions{per_step} ({figures})"
    return f"Layout conversions: {figures}{per_step}"


def _is_like_with_like(comparison: TraceComparison) -> bool:
    """Whether a difference of times may be called saved or lost: the same work on the same device."""
    devices = [change for change in comparison.environment if change.name in ("device", "device_name")]
    another_device = any(change.old is not None and change.new is not None for change in devices)
    return not another_device and comparison.unequal_work is None and not comparison.overlap.is_small


def _lines(comparison: TraceComparison) -> Iterator[str]:
    old, new = comparison.old.costs, comparison.new.costs
    if comparison.overlap.is_empty or comparison.is_same:
        return
    if comparison.overlap.is_small or comparison.unequal_work is not None:
        yield _saved(comparison)
    if comparison.overlap.is_small and comparison.unequal_work is not None:
        yield f"Not the same work: {clean(comparison.unequal_work)}"
    yield from change_lines(comparison.conversions)
    yield _round_trips(comparison)
    if old.exposed_conversion_seconds is not None and new.exposed_conversion_seconds is not None:
        exposed = format_both(old.exposed_conversion_seconds, new.exposed_conversion_seconds)
        yield f"Conversions with nothing else running: {exposed}"
    if old.convolution_share is not None and new.convolution_share is not None:
        shares = f"{format_share(old.convolution_share)} -> {format_share(new.convolution_share)}"
        yield f"Conversions in convolution time: {shares}"
    yield (
        f"Kernel time: {format_both(old.kernel_seconds, new.kernel_seconds)}"
        f"{' per step' if comparison.basis == 'step' else ''} (one recording each, so no verdict)"
    )
    yield regression_line(comparison.regression)


def _round_trips(comparison: TraceComparison) -> str:
    old, new = comparison.old.costs, comparison.new.costs
    if not old.redundant_pair_count and not new.redundant_pair_count:
        return "Round trips: none found in either of the two"
    exposed = old.exposed_redundant_pair_seconds, new.exposed_redundant_pair_seconds
    alone = f", {format_both(*exposed)} of it with nothing else running" if None not in exposed else ""
    return (
        f"Round trips: {format_counts(old.redundant_pair_count, new.redundant_pair_count)}, "
        f"{format_both(old.redundant_pair_seconds, new.redundant_pair_seconds)}{alone}"
    )


def _remarks(comparison: TraceComparison) -> Iterator[str]:
    if comparison.overlap.total_count and not comparison.overlap.is_small:
        yield f"In common: {_overlap_words(comparison.overlap)}{_time_in_common(comparison.overlap)}"
    environment = environment_line(comparison.environment)
    if environment is not None:
        yield environment
    for note in comparison.notes:
        yield f"Note: {clean(note)}"
    for age, run in (("old", comparison.old), ("new", comparison.new)):
        if run.lacks:
            more = f"; and {len(run.lacks) - MOST_LACKS} more" if len(run.lacks) > MOST_LACKS else ""
            yield f"Not recorded in the {age} one: {'; '.join(map(clean, run.lacks[:MOST_LACKS]))}{more}"
    loose = sum(entry.match == "loose" for entry in comparison.kernels)
    if loose:
        yield f"Kernels matched loosely, by names without template arguments, numbers and versions: {loose}"


def _time_in_common(overlap: Overlap) -> str:
    if overlap.old_share is None or overlap.new_share is None:
        return ""
    old, new = format_share(overlap.old_share), format_share(overlap.new_share)
    return f", {old} of the old and {new} of the new kernel time"


def _tables(comparison: TraceComparison) -> Iterator[Table]:
    least = LEAST_SHARE * max(run.costs.kernel_seconds or 0.0 for run in (comparison.old, comparison.new))
    conversions = [TableRow(conversion_cells(change)) for change in comparison.conversions if _is_shown(change, least)]
    if conversions:
        head = ("conversion", "where", *AMOUNT_HEADS)
        yield Table(head, tuple(conversions), title="Conversions")
    trips = [TableRow(round_trip_cells(change)) for change in comparison.round_trips if _is_shown(change, least)]
    if trips:
        head = ("round trip", "module", *AMOUNT_HEADS)
        yield Table(head, tuple(trips), title="Round trips")
    yield from _totals_table("operation", comparison.operations, least)
    yield from _totals_table("module", comparison.modules, least)
    yield from _totals_table("kernel", comparison.kernels, least)


def _is_shown(change: ConversionChange | RoundTripChange, least: float) -> bool:
    """What came or went; of what both have, no scatter of the clock: the tolerances of a regression."""
    if change.change != "same":
        return True
    times = [amount.seconds or 0.0 if amount is not None else 0.0 for amount in (change.old, change.new)]
    difference = abs(times[1] - times[0])
    return difference > least and difference > TIME_TOLERANCE * max(times)


def _totals_table(kind: str, entries: Iterable[ComparedTotal], least: float) -> Iterator[Table]:
    changed = [entry for entry in entries if abs(entry.seconds_difference) > least]
    if not changed:
        return
    rows = tuple(TableRow((_shown_name(entry), *amount_cells(entry), _conversions_of(entry))) for entry in changed)
    head = (kind, *AMOUNT_HEADS, "conversions")
    yield Table(head, rows, title=plural(kind).capitalize(), is_long=True)


def _conversions_of(entry: ComparedTotal) -> str:
    old = entry.old.conversion_count if entry.old is not None else 0
    new = entry.new.conversion_count if entry.new is not None else 0
    return format_counts(old, new) if old or new else ABSENT


def _shown_name(entry: ComparedTotal) -> str:
    """A name that fits into a table; a long one of a kernel loses its template arguments first."""
    name = entry.name if len(entry.name) <= LONGEST_NAME else loose_name(entry.name)
    return clean(name, LONGEST_NAME) + (" (loosely)" if entry.match == "loose" else "")
