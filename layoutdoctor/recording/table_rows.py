"""Reads the rows of a table of kernels, whose columns depend on the program that printed it."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis import SourceKind
from layoutdoctor.recording.recording import (
    NONE,
    KernelTotal,
    KernelTotals,
    TraceBuilder,
)
from layoutdoctor.recording.table_numbers import (
    NOTATIONS,
    PLAIN,
    Spent,
    agreeing,
    begins_with_a_number,
    contradictions,
    whole_nanoseconds,
)

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import RecordedTrace
    from layoutdoctor.recording.table_numbers import Notation


@dataclass(frozen=True)
class Columns:
    """
    The columns of one program's table; titles are in lower case, without their units.

    Attributes:
        name: Title of the column with the kernels' names.
        time: Title of the column with durations. If the title begins with "end", the column has end times instead.
        count: Title of the column with the numbers of launches; None if every row is one launch.
        operation: Title of the column with the operations that the kernels ran in; None without such a column.
        kernels: A title, and the test whether a cell below it belongs to a kernel; None if all rows are kernels.
        further: A further title that the table must have.
        other: A title that the table must not have.
        unit: Unit of a time if neither the title nor the cell has a unit; empty if there is no such time.
        start: Title of the column with start times. A table with this column lists single launches, and is read as a
            recorded run.
    """

    source: SourceKind
    name: str
    time: str
    count: str | None = None
    operation: str | None = None
    kernels: tuple[str, Callable[[str], bool]] | None = None
    further: str | None = None
    other: str | None = None
    unit: str = ""
    start: str | None = None

    def fits(self, titles: Sequence[str]) -> bool:
        """Whether a table with these titles is of this kind: it has all needed columns, and not ``other``."""
        title = None if self.kernels is None else self.kernels[0]
        needed = {self.name, self.time, self.count, self.operation, self.further, title, self.start} - {None}
        return needed <= set(titles) and self.other not in titles


# Names of runtime calls and whole domains, which rocprofv3 sums up in tables with the same titles as kernels.
_ROCM_CALL = re.compile(
    r"^(?:__)?(?:hip|hsa)(?:[A-Z]|_[a-z])\w*$|^[A-Z]+(?:_[A-Z]+)*$|^(?:nccl|rocpx|rocTX|roctx)[A-Z]\w*$"
)


def _is_word(word: str) -> Callable[[str], bool]:
    return lambda cell: cell.lower() == word


_KERNEL_CATEGORY = ("category", _is_word("cuda_kernel"))
_ROCM_DISPATCH = ("kind", _is_word("kernel_dispatch"))
_NO_ROCM_CALL = ("name", lambda name: _ROCM_CALL.match(name) is None)

LAYOUTS = (
    Columns("nsys_kernel_summary", "name", "total time", "instances", other="source", unit="ns"),
    Columns(
        "nsys_summary_with_copies", "operation", "total time", "instances", None, _KERNEL_CATEGORY,
        unit="ns",
    ),
    Columns("nsys_kernel_list", "name", "duration", None, None, ("grdx", bool), unit="ns", start="start"),
    Columns("nsys_launch_list", "kernel name", "kernel dur", unit="ns"),
    Columns(
        "rocprofv3_kernel_list", "kernel_name", "end_timestamp", None, None, _ROCM_DISPATCH, unit="ns",
        start="start_timestamp",
    ),
    Columns("rocprofv3_summary", "name", "totaldurationns", "calls", None, _NO_ROCM_CALL, "minns", unit="ns"),
    Columns("rocprofv3_summary", "name", "duration", "calls", None, ("domain", _is_word("kernel_dispatch")), unit="ns"),
    Columns("tracelens_summary", "kernel name", "kernel duration_sum", "kernel duration_count", "parent cpu_op"),
)  # fmt: skip
"""The tables that can be read. If a file has several of these tables, the table that is first in this list is read."""

_DEVICES = ("device", "agent_id")
_STREAMS = ("strm", "queue_id")
_CORRELATIONS = ("corrid", "correlation_id")
_GRIDS = tuple((f"grd{axis}", f"grid_size_{axis}") for axis in "xyz")
_GROUPS = tuple((f"workgroup_size_{axis}",) for axis in "xyz")
"""Titles in lists of kernels. ROCm's ``grid_size`` is in work items: the grid times the size of a work group."""
CELL_GAP = re.compile(r"\t|\s{2,}")
_ROW_NUMBER = re.compile(r"^\s*\d+\s+")
_MEMORY = re.compile(r"(\d) ([KMGT]?[bB])\b")
TRANSFERS = ("[CUDA mem", "Memcpy ", "Memset ")
"""Beginnings of the names of copies and fills, which some tables list among the kernels."""
_DEVICE = re.compile(r"^(?:(.*?)\s*\(|Agent |)(\d{1,6})\)?$")
_OF_NUMBERS = re.compile(
    r"(?!.*(?:mem\b|memory|throughput))(?:.*(?:time|total|%|percent|average|calls|duration)|"
    r"(?:avg|med|min|max|stddev|instances)\b)"
)
"""Titles whose cells are numbers. These cells show whether the table writes ``1,234.5`` or ``1.234,5``."""
_AVERAGE = re.compile(r"(?:avg|average)(?:ns)?$")
_SHARE = re.compile(r"time ?\(%\)$|percentage$|percent \(inc\)$|percent of kernels time \(%\)$")
_MOST_UNDECIDED = 1_000  # rows after which the notation of a table is decided


@dataclass(frozen=True, slots=True)
class Entry:
    """A row: its cells by title, and the numbers in them. ``start`` is in nanoseconds; it is 0 in a table of sums."""

    row: Mapping[str, str]
    name: str
    count: int
    nanoseconds: float
    start: int


class TextTable:
    """
    A table while it is read. It has sums by kernel and operation, or it lists single launches and copies.

    Attributes:
        separator: Separator of cells: ``,`` or ``;`` in CSV, ``|`` in a framed table, a blank in aligned text.
        offset: Number of characters in front of the titles and of each row.
        heading: The line of text above the table; empty if there is no such line.
        is_elided: Whether somebody replaced rows by dots.
        is_ambiguous: Whether the table's numbers can be read in several ways, as ``1,234`` can be 1234 or 1.234.
    """

    def __init__(self, layout: Columns, titles: list[str], units: dict[str, str], separator: str, offset: int) -> None:
        self.layout, self.titles, self.units, self.separator, self.offset = layout, titles, units, separator, offset
        self.heading = ""
        self.sums: dict[tuple[str, str | None], list[float]] = {}
        self.run = TraceBuilder()
        self.devices: dict[int, str] = {}
        self.spans: list[tuple[int, int | None]] = []
        self.row_count = self.unread_count = 0
        self.is_elided = self.is_ambiguous = False
        self.first_unread = ""
        self.spent: list[Spent] = []
        self.others = 0.0
        self._number_titles = [title for title in titles if _OF_NUMBERS.match(title)]
        self._average = next((title for title in titles if _AVERAGE.match(title)), None)
        self.share_title = next((title for title in titles if _SHARE.match(title)), None)
        self._notations: tuple[Notation, ...] = NOTATIONS
        self._pending: list[dict[str, str]] = []

    def take(self, line: str) -> bool:
        """Adds the row in a line; returns False if the line is no row of this table."""
        if self.separator != " ":
            return self.add(cells_in(line, self.separator))
        if line[: self.offset].strip():
            line = line[self.offset :]
        return any(self.add(cells) for cells in self._readings(line))

    def _readings(self, line: str) -> Iterator[list[str]]:
        """Yields each way to split a line into cells. The first way in which all numbers can be read is taken."""
        width = len(self.titles)
        if self.spans and not any(line[end:after].strip() for (_, end), (after, _) in pairwise(self.spans)):
            ends = [after for after, _ in self.spans[1:]]
            yield [line[start:end].strip() for start, end in zip([0, *ends], [*ends, None], strict=True)]
        if "..." in self.titles:  # pandas leaves columns out, and numbers the rows
            line = _ROW_NUMBER.sub("", line)
        cells = CELL_GAP.split(line.strip(), width - 1)
        yield cells + [""] * (width - len(cells))
        if self.layout.start is not None:
            return  # some cells are empty, and single blanks do not show which cells
        squeezed = _MEMORY.sub(r"\1\2", line)
        split = squeezed.split if self.titles[-1] == self.layout.name else squeezed.rsplit
        yield split(None, width - 1)

    def add(self, cells: list[str]) -> bool:
        """Adds a row; returns False if the cells are no row of this table."""
        layout, width = self.layout, len(self.titles)
        if len(cells) > width and self.titles[-1] == layout.name:
            cells = [*cells[: width - 1], ",".join(cells[width - 1 :])]  # an unquoted name with commas
        if len(cells) != width:
            return False
        row = dict(zip(self.titles, cells, strict=True))
        if begins_with_a_number(row[layout.name]):
            return False  # the line was split at the marks within numbers
        entries = (self.entry(row, notation) for notation in self._notations)
        entry = next((entry for entry in entries if entry is not None), None)
        if entry is None:
            return False
        if len(self._notations) == 1:
            self._take(entry)
        else:
            self._pending.append(row)
            if len(self._pending) >= _MOST_UNDECIDED:
                self.decide()
        return True

    def decide(self) -> None:
        """Chooses the notation of numbers (``1,234.5`` or ``1.234,5``) from all rows so far, and adds these rows."""
        if not self._pending:
            return
        self._notations = (self._notation(),)
        for row in self._pending:
            if (entry := self.entry(row, self._notations[0])) is None:
                self.unread(" ".join(row.values()))
            else:
                self._take(entry)
        self._pending.clear()

    def _take(self, entry: Entry) -> None:
        self.row_count += 1
        self.take_entry(entry)

    def _notation(self) -> Notation:
        """Returns the notation that reads most rows. A tie goes to the first; for nsys, to the least contradictory."""
        agree = [agreeing(row[title] for title in self._number_titles) for row in self._pending]
        read = {
            notation: [
                self.entry(row, notation) if notation in own else None
                for row, own in zip(self._pending, agree, strict=True)
            ]
            for notation in NOTATIONS
        }
        most = max(sum(entry is not None for entry in entries) for entries in read.values())
        left = [notation for notation, entries in read.items() if sum(map(bool, entries)) == most]
        is_same = len({tuple(_numbers(entries)) for entries in map(read.__getitem__, left)}) == 1
        if is_same or not self.layout.source.startswith("nsys"):
            return left[0]  # the other programs print the same for users of any language
        wrong = {
            notation: contradictions([self._spent(entry, notation) for entry in read[notation] if entry is not None])
            + sum(entry is not None and entry.nanoseconds % 1 > 0 for entry in read[notation])
            for notation in left
        }
        best = [notation for notation in left if wrong[notation] == min(wrong.values())]
        self.is_ambiguous = len({tuple(_numbers(read[notation])) for notation in best}) > 1
        return best[0]

    def entry(self, row: Mapping[str, str], notation: Notation) -> Entry | None:
        """Reads the numbers of a row; returns None if a number cannot be read."""
        layout = self.layout
        count = 1 if layout.count is None else notation.whole(row[layout.count])
        time = self._nanoseconds(row, layout.time, notation)
        start = 0 if layout.start is None else self._nanoseconds(row, layout.start, notation)
        if time is not None and start is not None and layout.time.startswith("end"):
            time -= start
        if not row[layout.name] or count < 1 or time is None or start is None or time < 0:
            return None
        return Entry(row, row[layout.name], count, time, round(start))

    def _nanoseconds(self, row: Mapping[str, str], title: str, notation: Notation) -> float | None:
        return notation.nanoseconds(row[title], self.units.get(title) or self.layout.unit)

    def _spent(self, entry: Entry, notation: Notation) -> Spent:
        average = None if self._average is None else self._nanoseconds(entry.row, self._average, notation)
        part = None if self.share_title is None else notation.share(entry.row[self.share_title])
        return Spent(entry.count, entry.nanoseconds, average, part)

    def take_entry(self, entry: Entry) -> None:
        """Adds a row to the sums; in a list of single launches, adds it as an event."""
        layout, row, name = self.layout, entry.row, entry.name
        is_kernel = layout.kernels is None or layout.kernels[1](row[layout.kernels[0]])
        if layout.start is not None:
            if is_kernel or name.startswith(TRANSFERS):
                self._add_event(row, name, entry.start, round(entry.nanoseconds), is_kernel=is_kernel)
            return
        self.spent.append(self._spent(entry, self._notations[0]))
        if is_kernel and not name.startswith(TRANSFERS):
            sums = self.sums.setdefault((name, row[layout.operation] or None if layout.operation else None), [0, 0])
            sums[0] += entry.count
            sums[1] += entry.nanoseconds
        else:
            self.others += entry.nanoseconds

    def unread(self, line: str) -> None:
        """Counts a row that cannot be read."""
        self.unread_count += 1
        self.first_unread = self.first_unread or line

    def _add_event(self, row: Mapping[str, str], name: str, start: int, duration: int, *, is_kernel: bool) -> None:
        event = {"name": self.run.names[name], "start": start, "duration": duration}
        event |= {"device": self._device(_cell(row, _DEVICES)), "stream": PLAIN.whole(_cell(row, _STREAMS))}
        if is_kernel:
            event |= {"correlation": PLAIN.whole(_cell(row, _CORRELATIONS)), "grid": self._grid(row)}
        self.run.add("kernels" if is_kernel else "transfers", **event)

    def _device(self, text: str) -> int:
        """Reads the number in ``NVIDIA A100 (0)``, ``Agent 2`` or ``2``; 0 for another text, ``NONE`` without text."""
        found = _DEVICE.match(text)
        number, name = (int(found[2]), found[1]) if found is not None else (0 if text else NONE, text)
        self.devices.setdefault(number, name or "")
        return number

    def _grid(self, row: Mapping[str, str]) -> int:
        sizes = [PLAIN.whole(_cell(row, titles)) for titles in _GRIDS]
        groups = [PLAIN.whole(_cell(row, titles, "1")) for titles in _GROUPS]
        if min(*sizes, *groups) < 1:
            return NONE
        return self.run.grids[tuple(-(-size // group) for size, group in zip(sizes, groups, strict=True))]

    @property
    def has_rows(self) -> bool:
        """Whether a row was added."""
        return bool(self.row_count or self._pending)

    @property
    def has_kernels(self) -> bool:
        """Whether the table lists a kernel; for a list of single launches, whether it has a row."""
        return bool(self.sums) or (self.layout.start is not None and self.row_count > 0)

    def result(self) -> KernelTotals | RecordedTrace:
        """Returns the sums; for a list of single kernels, a recorded run without events of the host."""
        if self.layout.start is None:
            rows = [
                KernelTotal(name, round(count), round(nanoseconds), operation)
                for (name, operation), (count, nanoseconds) in self.sums.items()
            ]
            whole, listed = whole_nanoseconds(self.spent) or 0, sum(row.nanoseconds for row in self.spent)
            has_more = whole > listed * (1 + _MOST_MISSING)
            return KernelTotals(self.layout.source, rows, nanoseconds=round(whole - self.others) if has_more else None)
        named = [{"id": number, "name": text} for number, text in sorted(self.devices.items()) if text]
        metadata = {"deviceProperties": named} if named else {}
        return self.run.trace(self.layout.source, metadata=metadata)


_MOST_MISSING = 0.01  # a smaller difference comes from percentages with few digits


def _numbers(entries: Iterable[Entry | None]) -> Iterator[object]:
    """Yields the numbers of rows, for comparison."""
    return ((entry.count, entry.nanoseconds, entry.start) for entry in entries if entry is not None)


def _cell(row: Mapping[str, str], titles: Iterable[str], otherwise: str = "") -> str:
    return next((row[title] for title in titles if title in row), otherwise)


def cells_in(line: str, separator: str) -> list[str]:
    """Splits a line into cells: a line of CSV, of a table framed with ``|``, or of columns with wide gaps."""
    if separator == "|":
        return [_MARKUP.sub("", cell.strip()) for cell in line.strip().strip("|").split("|")]
    if separator == " ":
        return CELL_GAP.split(line.strip())
    try:
        return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True, delimiter=separator), [])]
    except csv.Error:
        return [line]


_MARKUP = re.compile(r"^(?:\*\*|`)+|(?:\*\*|`)+$")
