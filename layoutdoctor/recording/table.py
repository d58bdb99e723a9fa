"""
Reads a table that sums up kernels by name, or lists them, as ``nsys stats``, nvprof, TraceLens and torch.profiler do.

A sum has no order and no shapes; all that can be had from it is how much time kernels of which name took. A list with
starts is a recorded run. The file may be CSV or the aligned text of a terminal, with other output and other tables
around the kernels.

Source:
    Reports of ``nsys stats`` 2019 to 2026, ``nvprof --csv``, rocprof and rocprofv3, TraceLens 2026 and
    ``key_averages().table()``.
"""

from __future__ import annotations

import codecs
import csv
import re
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.errors import TraceError
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.kernel_list import EventTitles, ListedEvents, is_transfer
from layoutdoctor.recording.recording import KernelTotal, KernelTotals, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from layoutdoctor.recording.recording import RecordedTrace

LONGEST_LINE = 1 << 17
"""Characters; the csv module takes no longer field either."""

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


@dataclass(frozen=True)
class _Layout:
    """
    How one program lays out its table; titles in lower case, without their units.

    Attributes:
        source: The table, in words.
        name: Title of the kernel's name.
        time: Title of the time.
        count: Title of the number of launches; None where every row is one launch.
        operation: Title of the operation the kernels ran in.
        kernels_only: A title and what stands under it for kernels, where other things are listed as well.
        grid: Title of a column that is empty for what is no kernel.
        host_time: Title of a column that is zero for what ran on the device only.
        other: Titles that make it another table.
        unit: Of the time, where neither the title nor a row of units nor the value itself has it.
        events: Where every row is a launch: what tells when and where.
        not_names: What stands under ``name`` in a table of something else that has the same titles.
    """

    source: str
    name: str
    time: str
    count: str | None = None
    operation: str | None = None
    kernels_only: tuple[str, str] | None = None
    grid: str | None = None
    host_time: str | None = None
    other: frozenset[str] = frozenset()
    unit: str | None = None
    events: EventTitles | None = None
    not_names: re.Pattern[str] | None = None

    def needed(self) -> set[str | None]:
        """The titles without which it is not this table."""
        only = self.kernels_only[0] if self.kernels_only is not None else None
        start = self.events.start if self.events is not None else None
        return {self.name, self.time, self.count, self.operation, only, self.grid, self.host_time, start} - {None}


# rocprof sums up calls of the runtime and whole domains in tables of the same titles.
_ROCM_CALL = re.compile(
    r"^(?:__)?(?:hip|hsa)(?:[A-Z]|_[a-z])\w*$|^[A-Z]+(?:_[A-Z]+)*$|^(?:nccl|rocpx|rocTX|roctx)[A-Z]\w*$"
)
_NSYS = "Nsight Systems"
_TORCH = "table of torch.profiler's key_averages"

_LAYOUTS = (
    _Layout(f"{_NSYS} kernel summary", "name", "total time", "instances", other=frozenset({"source"}), unit="ns"),
    _Layout(
        f"{_NSYS} summary of kernels and copies",
        "operation",
        "total time",
        "instances",
        kernels_only=("category", "cuda_kernel"),
        unit="ns",
    ),
    _Layout(
        f"{_NSYS} list of kernels",
        "name",
        "duration",
        grid="grdx",
        unit="ns",
        events=EventTitles("start", stream="strm", correlation="corrid", grid=("grdx", "grdy", "grdz")),
    ),
    _Layout(f"{_NSYS} list of launches", "kernel name", "kernel dur", unit="ns"),
    _Layout("nvprof summary", "name", "time", "calls", kernels_only=("type", "gpu activities")),
    _Layout(
        "nvprof list of kernels",
        "name",
        "duration",
        grid="grid x",
        events=EventTitles("start", correlation="correlation_id", grid=("grid x", "grid y", "grid z")),
    ),
    _Layout(
        "rocprofv3 list of kernels",
        "kernel_name",
        "end_timestamp",
        kernels_only=("kind", "kernel_dispatch"),
        unit="ns",
        events=EventTitles(
            "start_timestamp",
            end="end_timestamp",
            device="agent_id",
            stream="queue_id",
            correlation="correlation_id",
            grid=("grid_size_x", "grid_size_y", "grid_size_z"),
            group=("workgroup_size_x", "workgroup_size_y", "workgroup_size_z"),
        ),
    ),
    _Layout(
        "rocprof list of kernels",
        "kernelname",
        "durationns",
        unit="ns",
        events=EventTitles("beginns", device="gpu-id", stream="queue-id"),
    ),
    _Layout("rocprof summary", "name", "totaldurationns", "calls", unit="ns", not_names=_ROCM_CALL),
    _Layout(
        "TraceLens kernel summary",
        "kernel name",
        "kernel duration_sum",
        "kernel duration_count",
        operation="parent cpu_op",
    ),
    *(
        _Layout(_TORCH, "name", f"self {device}", "# of calls", host_time="self cpu")
        for device in ("cuda", "device", "xpu", "privateuse1")
    ),
)
"""Where a file has several of these tables, the one that stands first here is read."""

_SPELLINGS = (("ns nsec", 1), ("us usec \u00b5s \u03bcs", 1_000), ("ms msec", 1_000_000), ("s sec", 1_000_000_000))
"""Of units, with their nanoseconds; micro is written with its sign or with the Greek letter too."""
_NANOSECONDS = {unit: nanoseconds for units, nanoseconds in _SPELLINGS for unit in units.split()}
_TIME_UNITS = {*_NANOSECONDS, "%"}
_UNITS = {*_TIME_UNITS, "", "b", "kb", "mb", "gb", "gb/s", "mb/s"}
_TITLE = re.compile(r"^(.*?)\s*\(([^()]*)\)(_\w+)?$")
_NUMBER = re.compile(r"^(\d{1,25}|\d{1,3}(?:,\d{3}){1,7})(\.\d{1,25})?([eE][+-]?\d{1,2})?\s*([a-z\u00b5\u03bc]*)$")
_RULE = re.compile(r"^\s*-{2,}(?:\s+-{2,})+\s*$")
_LARGEST = 1 << 62
_NOT_KERNELS = ("[CUDA mem", "Memcpy ", "Memset ", "ProfilerStep", "## Call CompiledFxGraph")
"""Copies, fills and ranges on the device, which stand among the kernels in some of the tables."""
_CUT = ("...", "\u2026")


@dataclass
class _Table:
    """A table while it is read."""

    layout: _Layout
    titles: list[str]
    units: dict[str, str]
    totals: dict[tuple[str, str | None], list[int]] = field(default_factory=dict)
    listed: ListedEvents = field(default_factory=ListedEvents)
    unread_count: int = 0

    def at(self, title: str) -> int:
        return self.titles.index(title)


def read_kernel_csv(path: Path, most_bytes: int = DEFAULT_MOST_BYTES) -> KernelTotals | RecordedTrace:
    """
    Reads the table of kernels in a file.

    Args:
        path: A file, which may be gzipped: CSV or aligned text of ``nsys stats`` (``cuda_gpu_kern_sum``,
            ``cuda_gpu_sum``, ``cuda_gpu_trace``, ``cuda_kern_exec_trace``), of nvprof, TraceLens's ``kernel_summary``
            or torch.profiler's ``key_averages``; the kernel lists and summaries of rocprof and rocprofv3.

    Returns:
        One row per kernel name and operation, in the table's order; times are whole nanoseconds. Of a list that says
        when each kernel began: the run, without operations.

    Raises:
        TraceError: The file cannot be opened or read, is too large, or has no table of kernels.
    """
    file = TraceFile(path, most_bytes)
    reading = _Reading()
    too_long = 0
    for line in read_lines(file.pieces()):
        if line is None:
            too_long += 1
        else:
            reading.read(line)
    table = reading.best()
    if table is None:
        raise TraceError(f"cannot read {str(path)!r}: {reading.why_not()}")
    found = _rows(table) if table.layout.events is None else table.listed.trace(table.layout.source)
    is_empty = not (found.rows if isinstance(found, KernelTotals) else len(found.kernels))
    counts = {
        "rows of the kernel table that could not be read": table.unread_count,
        "lines that are too long for a table": too_long,
        "further tables of kernels in the same file, which were not read": len(reading.tables) - 1,
        "the kernel table has no rows": int(is_empty and not table.unread_count),
        "the packed file ends before its data do": int(file.is_cut),
    }
    found.problems = [Problem(what, count) for what, count in counts.items() if count]
    return found


def _rows(table: _Table) -> KernelTotals:
    rows = [
        KernelTotal(name, count, nanoseconds, operation, is_cut=name.endswith(_CUT))
        for (name, operation), (count, nanoseconds) in table.totals.items()
    ]
    return KernelTotals(table.layout.source, rows=rows)


def has_kernel_table(text: str) -> bool:
    """Whether the title line of a table that can be read here stands in a text."""
    reading = _Reading()
    for line in text.splitlines():
        reading.read(line)
        if reading.best() is not None:
            return True
    return False


class _Reading:
    """A file while it is read, line by line."""

    def __init__(self) -> None:
        self.tables: list[_Table] = []
        self._here: _Table | None = None
        self._spans: list[tuple[int, int]] | None = None  # of aligned text; None in CSV
        self._previous = ""
        self._titles_seen: list[str] = []

    def read(self, line: str) -> None:
        """Takes the next line."""
        if _RULE.match(line):
            self._read_rule(line)
        elif not line.strip():
            self._end()
        else:
            self._read_cells(self._cells(line))
        self._previous = line

    def best(self) -> _Table | None:
        """The table to believe: the first of the best layout."""
        return min(self.tables, key=lambda table: _LAYOUTS.index(table.layout), default=None)

    def why_not(self) -> str:
        expected = (
            "expected the CSV of nsys stats --report cuda_gpu_kern_sum --format csv, of nvprof, of TraceLens, "
            "or the text of torch.profiler's key_averages().table() of a GPU run"
        )
        seen = ", ".join(title[:40] for title in self._titles_seen[:8])
        return f"it has no table of kernels{f' (a table in it has the columns {seen})' if seen else ''}; {expected}"

    def _read_rule(self, line: str) -> None:
        """Dashes under the titles (nsys), or above and under them and below the last row (torch)."""
        if self._here is not None and not self._here.totals:
            return
        titles_above = self._previous.strip() and not _RULE.match(self._previous)
        is_last = self._here is not None
        self._end()
        if is_last:
            return
        self._spans = [match.span() for match in re.finditer(r"-+", line)]
        if titles_above:
            self._begin(self._cells(self._previous))

    def _read_cells(self, cells: list[str]) -> None:
        here = self._here
        if here is None or _are_titles(cells) or (len(cells) == 1 and not _is_number(cells[0])):
            self._begin(cells)
        elif not here.totals and any(cells) and all(cell.lower() in _UNITS for cell in cells):
            here.units.update(zip(here.titles, (cell.lower() for cell in cells), strict=False))
        else:
            _read_row(here, cells)

    def _begin(self, cells: Sequence[str]) -> None:
        """A line that is no row: perhaps the titles of the next table."""
        self._here = None
        table = _table(cells)
        if table is not None:
            self._here = table
            self.tables.append(table)
        elif len(cells) > 2 and not self._titles_seen and not any(map(_is_number, cells)):
            self._titles_seen = list(cells)

    def _end(self) -> None:
        self._here = None
        self._spans = None

    def _cells(self, line: str) -> list[str]:
        if self._spans is not None:
            ends = [end for _, end in self._spans[:-1]] + [len(line)]
            starts = [0] + [end for _, end in self._spans[:-1]]
            return [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        try:
            return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
        except csv.Error:
            return [line]


def _table(cells: Iterable[str]) -> _Table | None:
    """The table that a line of titles begins; None where it is none of kernels."""
    titles: list[str] = []
    units: dict[str, str] = {}
    for cell in cells:
        found = _TITLE.match(cell.lower())
        title, unit = (found[1] + (found[3] or ""), found[2]) if found else (cell.lower(), "")
        # "Time (%)" beside "Time": the share is never what is looked for.
        titles.append(title if unit != "%" and title not in titles else cell.lower())
        if unit in _NANOSECONDS:
            units[titles[-1]] = unit
    for layout in _LAYOUTS:
        if layout.needed() <= set(titles) and not layout.other & set(titles):
            return _Table(layout, titles, units)
    return None


def _read_row(table: _Table, cells: list[str]) -> None:
    layout, width = table.layout, len(table.titles)
    if len(cells) > width and table.at(layout.name) == width - 1:
        cells = [*cells[: width - 1], ",".join(cells[width - 1 :])]  # a name with commas and without quotes
    if len(cells) != width:
        table.unread_count += 1
        return
    name = cells[table.at(layout.name)]
    if layout.events is not None:
        _read_event(table, layout.events, name, cells)
        return
    if name.startswith(_NOT_KERNELS) or not _is_kernel(table, cells):
        return
    count = 1 if layout.count is None else _whole(cells[table.at(layout.count)])
    unit = table.units.get(layout.time) or layout.unit
    nanoseconds = _nanoseconds(cells[table.at(layout.time)], unit)
    if not name or not count or nanoseconds is None:
        table.unread_count += 1
        return
    operation = cells[table.at(layout.operation)] or None if layout.operation is not None else None
    sums = table.totals.setdefault((name, operation), [0, 0])
    sums[0] += count
    sums[1] += nanoseconds


def _read_event(table: _Table, titles: EventTitles, name: str, cells: Sequence[str]) -> None:
    """A row of a list: a kernel, a copy, or something else."""
    layout = table.layout
    moments = [
        _nanoseconds(cells[table.at(title)], table.units.get(title) or layout.unit)
        for title in (titles.start, layout.time)
    ]
    start, duration = moments
    if start is not None and duration is not None and titles.end is not None:
        duration -= start
    is_kernel = _is_kernel(table, cells)
    if not is_kernel and not is_transfer(name):
        return
    if not name or start is None or duration is None or duration < 0:
        table.unread_count += 1
        return
    own = dict(zip(table.titles, cells, strict=True))
    table.listed.add(titles, name, start, duration, lambda title: own.get(title, ""), is_kernel=is_kernel)


def _is_kernel(table: _Table, cells: Sequence[str]) -> bool:
    """Whether a row is of a kernel, in a table that lists other things as well."""
    layout = table.layout
    if layout.kernels_only is not None:
        title, kind = layout.kernels_only
        return cells[table.at(title)].lower() == kind
    if layout.not_names is not None:
        return layout.not_names.match(cells[table.at(layout.name)]) is None
    if layout.grid is not None:
        return bool(cells[table.at(layout.grid)])
    if layout.host_time is not None:
        times = [_nanoseconds(cells[table.at(title)], None) for title in (layout.host_time, layout.time)]
        return times[0] == 0 and times[1] != 0
    return True


def _are_titles(cells: Sequence[str]) -> bool:
    """Whether a line names columns: some of them have a unit, and none is a number."""
    found = (_TITLE.match(cell.lower()) for cell in cells)
    return any(title is not None and title[2] in _TIME_UNITS for title in found) and not any(map(_is_number, cells))


def _is_number(cell: str) -> bool:
    return _NUMBER.match(cell.rstrip("%")) is not None


def _value(cell: str) -> tuple[Decimal, str] | None:
    """A number and the unit behind it."""
    found = _NUMBER.match(cell)
    if found is None:
        return None
    return Decimal(found[1].replace(",", "") + (found[2] or "") + (found[3] or "")), found[4]


def _whole(cell: str) -> int | None:
    value = _value(cell)
    if value is None or value[1] or value[0] >= _LARGEST or value[0] != int(value[0]):
        return None
    return int(value[0])


def _nanoseconds(cell: str, unit: str | None) -> int | None:
    value = _value(cell)
    factor = _NANOSECONDS.get((value[1] if value is not None else "") or unit or "")
    if value is None or factor is None or value[0] * factor >= _LARGEST:
        return None
    return round(value[0] * factor)


def text_encoding(head: bytes) -> tuple[str, int]:
    """
    The encoding a byte order mark stands for, and the mark's length; UTF-8 where there is none.

    Args:
        head: First bytes of a file. PowerShell's ``>`` writes UTF-16.
    """
    return next(((name, len(mark)) for mark, name in _MARKS if head.startswith(mark)), ("utf-8", 0))


def read_lines(pieces: Iterable[bytes]) -> Iterator[str | None]:
    """
    The lines of a text, without their ends; None for one that is longer than ``LONGEST_LINE``.

    Args:
        pieces: The bytes, in order. What is no text of the encoding becomes a replacement character.
    """
    remaining = iter(pieces)
    head = b""
    while len(head) < len(codecs.BOM_UTF8) and (piece := next(remaining, b"")):
        head += piece
    encoding, skipped = text_encoding(head)
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    rest, is_too_long = "", False
    for piece in chain([head[skipped:]], remaining):
        *whole, rest = (rest + decoder.decode(piece)).split("\n")
        for line in whole:
            yield None if is_too_long or len(line) > LONGEST_LINE else line.rstrip("\r")
            is_too_long = False
        if len(rest) > LONGEST_LINE:
            rest, is_too_long = "", True
    if rest or is_too_long:
        yield None if is_too_long else rest.rstrip("\r")
