"""
Reads the numbers of a printed table: marks of thousands and decimals, units, and contradictions between numbers.

A program may print for the language of its user: ``1,234.5``, ``1.234,5``, ``1 234,5`` or ``1'234.5``. A single number
can often be read in two ways, so one notation is chosen for a whole table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from layoutdoctor.recording.recording import NONE

_SPELLINGS = (("ns nsec", 1), ("us usec \u00b5s \u03bcs", 1_000), ("ms msec", 1_000_000), ("s sec", 1_000_000_000))
"""Spellings of each unit, and its nanoseconds; micro is also written with the micro sign or the Greek letter."""
NANOSECONDS = {unit: nanoseconds for units, nanoseconds in _SPELLINGS for unit in units.split()}
_LARGEST = 1 << 62
_MOST_DIGITS = 25
_MARKS = str.maketrans({**dict.fromkeys("\u00a0\u2009\u202f\ufffd", " "), "\u2019": "'", "\u2212": "-"})
"""Marks in numbers, each with a plain mark. U+FFFD replaces a no-break space of Windows, which is no UTF-8."""


@dataclass(frozen=True)
class Notation:
    """
    A way to write numbers.

    Attributes:
        decimal: The mark before the decimals.
        thousands: The mark between groups of three digits, which may be left out.
    """

    decimal: str
    thousands: str

    @cached_property
    def _number(self) -> re.Pattern[str]:
        group, decimal = re.escape(self.thousands), re.escape(self.decimal)
        return re.compile(
            rf"(-?)(\d{{1,25}}|[1-9]\d{{0,2}}(?:{group}\d{{3}}){{1,7}})({decimal}\d{{1,25}})?(e[+-]?\d{{1,2}})?"
            r"\s*([a-z\u00b5\u03bc]*|%)",
            re.IGNORECASE,
        )

    def parts(self, cell: str) -> tuple[str, str, str] | None:
        """Splits a cell into whole number, decimals with exponent, and unit; None if this notation cannot read it."""
        if cell.isascii() and cell.isdigit() and len(cell) <= _MOST_DIGITS:
            return cell, "", ""  # a short cut for most cells
        found = self._number.fullmatch(cell.translate(_MARKS))
        if found is None:
            return None
        decimals = "" if found[3] is None else f".{found[3][1:]}"
        return found[1] + found[2].replace(self.thousands, ""), decimals + (found[4] or ""), found[5]

    def whole(self, cell: str) -> int:
        """Reads a whole number; returns ``NONE`` for any other cell."""
        found = self.parts(cell)
        return max(int(found[0]), NONE) if found is not None and found[1:] == ("", "") and len(found[0]) < 19 else NONE

    def nanoseconds(self, cell: str, unit: str = "") -> float | None:
        """
        Reads a time and returns nanoseconds; None if the cell is no time, or if the time is negative or too large.

        Args:
            unit: Unit of a cell without a printed unit; empty if such a cell is no time.
        """
        found = self.parts(cell)
        if found is None or found[0].startswith("-") or (factor := NANOSECONDS.get(found[2] or unit)) is None:
            return None
        nanoseconds = float(f"{found[0]}{found[1]}") * factor if found[1] else int(found[0]) * factor
        return nanoseconds if nanoseconds < _LARGEST else None  # whole numbers stay int: a double has only 53 bits

    def share(self, cell: str) -> Percentage | None:
        """Reads a percentage and the value of its last digit; None if the cell is no percentage."""
        found = self.parts(cell)
        if found is None or found[2] not in ("", "%") or "e" in found[1]:
            return None
        return Percentage(float(f"{found[0]}{found[1]}"), float(10.0 ** -max(0, len(found[1]) - 1)))


class Percentage(NamedTuple):
    """A percentage, and the value of one unit in its last digit: ``46.8`` has the step 0.1."""

    percent: float
    step: float


NOTATIONS = tuple(Notation(*marks) for marks in (".,", ",.", ". ", ", ", ".'", ",'"))
"""All notations. Programs that print the same for users of any language use the first notation."""
PLAIN = NOTATIONS[0]


def is_number(cell: str) -> bool:
    """Whether a cell is a number in any notation, with or without a unit or a percent sign."""
    return any(notation.parts(cell) is not None for notation in NOTATIONS)


def begins_with_a_number(text: str) -> bool:
    """Whether the first word of a text is a number; names of kernels and operations never begin with a number."""
    return text[:1].isdigit() and is_number(text.split(" ", 1)[0].translate(_MARKS).split(" ", 1)[0])


def agreeing(cells: Iterable[str]) -> frozenset[Notation]:
    """Returns the notations in which every cell can be read; a cell that no notation can read is ignored."""
    found = frozenset(NOTATIONS)
    for cell in cells:
        can_read = frozenset(notation for notation in NOTATIONS if notation.parts(cell) is not None)
        found &= can_read or found
    return found


@dataclass(frozen=True, slots=True)
class Spent:
    """
    The numbers of a row that can be checked against each other.

    Attributes:
        nanoseconds: Total time of the row's launches.
        average: Mean time of a launch as printed, in nanoseconds; None if the row has no mean time.
        part: The row's percentage of the whole table's time; None if the row has no percentage.
    """

    count: int
    nanoseconds: float
    average: float | None
    part: Percentage | None


_ROUNDING = 1.002
"""Largest ratio of a time to its printed value, which has few digits."""


def contradictions(rows: Sequence[Spent]) -> int:
    """Counts the rows whose time does not fit their average, plus the rows whose time does not fit their percentage."""
    means = sum(
        row.average is not None
        and abs(row.average * row.count - row.nanoseconds) > max(0.01 * row.nanoseconds, 1.0 * row.count)
        for row in rows
    )
    return means + len(denying(rows))


def denying(rows: Sequence[Spent]) -> list[int]:
    """
    Returns the indices of the rows whose time and percentage contradict the other rows.

    Each row implies a total: its time divided by its percentage. The total that most rows imply counts as right.
    """
    steps = _steps(rows)
    wholes = {}
    for number, (row, step) in enumerate(zip(rows, steps, strict=True)):
        if row.part is not None and row.nanoseconds and row.part.percent >= 2 * step:
            low, high = (row.nanoseconds / (row.part.percent + sign * step) for sign in (1, -1))
            wholes[number] = (low / _ROUNDING, high * _ROUNDING)
    if not wholes:
        return []
    ends = sorted([(low, 0) for low, _ in wholes.values()] + [(high, 1) for _, high in wholes.values()])
    covering = accumulate(1 - 2 * is_high for _, is_high in ends)
    _, most = max(zip(covering, (end for end, _ in ends), strict=True), key=lambda found: found[0])
    return [number for number, (low, high) in wholes.items() if not low <= most <= high]


def _steps(rows: Sequence[Spent]) -> list[float]:
    """
    Returns the value of the last digit of each row's percentage.

    The value is 1 if all percentages are whole, because nsys of 2020 printed ``47.0`` for 46.8.
    """
    are_whole = all(row.part is None or row.part.percent % 1 == 0 for row in rows)
    return [1.0 if row.part is None or are_whole else row.part.step for row in rows]


def whole_nanoseconds(rows: Sequence[Spent]) -> float | None:
    """Returns the total time that percentages imply; None if they are missing, inexact, or contradict most rows."""
    wrong = set(denying(rows))
    known = [
        (row.nanoseconds, row.part.percent, step)
        for number, (row, step) in enumerate(zip(rows, _steps(rows), strict=True))
        if number not in wrong and row.part is not None and row.nanoseconds
    ]
    percent = sum(percent for _, percent, _ in known)
    if not percent or 2 * len(wrong) > len(rows) or percent < _EXACT * sum(step for *_, step in known):
        return None
    return 100 * sum(nanoseconds for nanoseconds, *_ in known) / percent


_EXACT = 10  # least ratio of the sum of the percentages to the sum of their steps; below it, a total is too inexact
