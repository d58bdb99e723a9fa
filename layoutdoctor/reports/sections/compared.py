"""How the reports of a comparison say an amount, a difference, a conversion; every string out of a record cleaned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.analysis.layout_regression import LEAST_SHARE, TIME_TOLERANCE, format_count
from layoutdoctor.reports.sections.wording import clean, clean_name
from layoutdoctor.units import format_seconds, format_share
from layoutdoctor.words import DIRECTION_WORDS, listing

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layoutdoctor.comparison_records import (
        Amount,
        Change,
        ComparedTotal,
        ConversionAmount,
        ConversionChange,
        EnvironmentDifference,
        Regression,
        RoundTripChange,
    )
    from layoutdoctor.layout import Size
    from layoutdoctor.reports.sections.rows import Table

ABSENT = "-"
AMOUNT_HEADS = ("old", "new", "difference")
MOST_NAMED = 3
MOST_NAMES_BETWEEN = 4
MOST_DIFFERENCES = 12
LEAST_SECONDS = 0.5e-9  # recorders count nanoseconds: what is less comes from dividing by steps

_CHANGE_WORDS: dict[Change, str] = {"went": "Went", "came": "Came", "fewer": "Fewer", "more": "More"}


@dataclass(frozen=True, slots=True)
class TitledTable:
    """
    A table of a comparison with its title, rows with the largest difference first.

    Attributes:
        table: The table, whole; a format may show its first rows only.
        is_long: Whether it lists everything both runs have, so that a format may fold it away.
    """

    title: str
    table: Table
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class ComparisonView:
    """A comparison before it is laid out."""

    title: tuple[str, ...]
    headline: str
    lines: tuple[str, ...]
    tables: tuple[TitledTable, ...]
    remarks: tuple[str, ...]


def format_difference(seconds: float | None) -> str:
    """
    A difference of times with its sign: ``"-1.20 ms"``.

    Args:
        seconds: New minus old; None where not known.
    """
    if seconds is None:
        return ABSENT
    if not is_difference(seconds):
        return format_seconds(0)
    return f"{'+' if seconds > 0 else '-'}{format_seconds(abs(seconds))}"


def is_difference(seconds: float | None) -> bool:
    """
    Whether a difference of times is one at all.

    Args:
        seconds: New minus old; None where not known.
    """
    return seconds is not None and abs(seconds) >= LEAST_SECONDS


def format_both(old: float | None, new: float | None) -> str:
    """Two times: ``"5.64 ms -> 4.44 ms"``."""
    return f"{_seconds_or_absent(old)} -> {_seconds_or_absent(new)}"


def format_counts(old: float, new: float) -> str:
    """Two counts: ``"999 -> 800"``; one where they are equal."""
    return format_count(old) if old == new else f"{format_count(old)} -> {format_count(new)}"


def _amount_cell(amount: Amount | ConversionAmount | None) -> str:
    """How many and how long, for a cell: ``"53  1.20 ms"``."""
    if amount is None:
        return ABSENT
    return f"{format_count(amount.count)}  {_seconds_or_absent(amount.seconds)}"


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
    shape = _shape_words(change.shape)
    return (
        f"around {between}{',' if shape else ''}{shape}" if between else f"nothing between{',' if shape else ''}{shape}"
    )


def change_lines(changes: Sequence[ConversionChange]) -> tuple[str, ...]:
    """Which conversions went and came, a line for each kind of change, the costliest named."""
    lines = []
    for change_kind, word in _CHANGE_WORDS.items():
        chosen = [change for change in changes if change.change == change_kind]
        if chosen:
            lines.append(f"{word}: {'; '.join(map(_named_change, chosen[:MOST_NAMED]))}{_more(chosen)}")
    return tuple(lines)


def _named_change(change: ConversionChange) -> str:
    amount = change.new or change.old
    counts = format_counts(
        change.old.count if change.old is not None else 0, change.new.count if change.new is not None else 0
    )
    if change.change in ("came", "went") and amount is not None:
        counts = format_count(amount.count)
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
