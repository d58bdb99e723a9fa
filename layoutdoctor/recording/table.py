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

import numpy as np

from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.errors import TraceError
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.recording import (
    NONE,
    FrameEvents,
    KernelEvents,
    KernelTotal,
    KernelTotals,
    LaunchEvents,
    OperationEvents,
    Problem,
    RecordedTrace,
    TransferEvents,
    sorted_events,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

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
        time: Title of the time that it took; if the title begins with "end", of the moment at which the kernel ended.
        count: Title of the number of launches; None where every row is one launch.
        operation: Title of the operation the kernels ran in.
        kernels: A title, and whether what stands under it is that of a kernel, where other things are listed as well.
        other: A title that makes it another table.
        unit: Of the time, where neither the title nor a row of units nor the value itself has it.
        start: When the kernel began, in a list of single launches, which is read as a recorded run.
        device: Title of the device, in such a list, as those that follow.
        grid: Sizes of the launch; of ROCm in work items, so that ``group``, the sizes of a work group, divide them.
    """

    source: str
    name: str
    time: str
    count: str | None = None
    operation: str | None = None
    kernels: tuple[str, Callable[[str], bool]] | None = None
    other: str | None = None
    unit: str | None = None
    start: str | None = None
    device: str = "device"
    stream: str = "stream"
    correlation: str = ""
    grid: tuple[str, ...] = ()
    group: tuple[str, ...] = ()

    def fits(self, titles: Sequence[str]) -> bool:
        """Whether a table with these titles is this one."""
        title = None if self.kernels is None else self.kernels[0]
        needed = {self.name, self.time, self.count, self.operation, title, self.start} - {None}
        return needed <= set(titles) and (self.other is None or self.other not in titles)


# rocprof sums up calls of the runtime and whole domains in tables of the same titles.
_ROCM_CALL = re.compile(
    r"^(?:__)?(?:hip|hsa)(?:[A-Z]|_[a-z])\w*$|^[A-Z]+(?:_[A-Z]+)*$|^(?:nccl|rocpx|rocTX|roctx)[A-Z]\w*$"
)
_TORCH = "table of torch.profiler's key_averages"


def _is_word(word: str) -> Callable[[str], bool]:
    return lambda cell: cell.lower() == word


def _is_no_time(cell: str) -> bool:
    return _nanoseconds(cell, None) == 0


_LAYOUTS = (
    _Layout("Nsight Systems kernel summary", "name", "total time", "instances", other="source", unit="ns"),
    _Layout(
        "Nsight Systems summary of kernels and copies",
        "operation",
        "total time",
        "instances",
        kernels=("category", _is_word("cuda_kernel")),
        unit="ns",
    ),
    _Layout(
        "Nsight Systems list of kernels",
        "name",
        "duration",
        kernels=("grdx", bool),
        unit="ns",
        start="start",
        stream="strm",
        correlation="corrid",
        grid=("grdx", "grdy", "grdz"),
    ),
    _Layout("Nsight Systems list of launches", "kernel name", "kernel dur", unit="ns"),
    _Layout("nvprof summary", "name", "time", "calls", kernels=("type", _is_word("gpu activities"))),
    _Layout(
        "nvprof list of kernels",
        "name",
        "duration",
        kernels=("grid x", bool),
        start="start",
        correlation="correlation_id",
        grid=("grid x", "grid y", "grid z"),
    ),
    _Layout(
        "rocprofv3 list of kernels",
        "kernel_name",
        "end_timestamp",
        kernels=("kind", _is_word("kernel_dispatch")),
        unit="ns",
        start="start_timestamp",
        device="agent_id",
        stream="queue_id",
        correlation="correlation_id",
        grid=("grid_size_x", "grid_size_y", "grid_size_z"),
        group=("workgroup_size_x", "workgroup_size_y", "workgroup_size_z"),
    ),
    _Layout(
        "rocprof list of kernels",
        "kernelname",
        "durationns",
        unit="ns",
        start="beginns",
        device="gpu-id",
        stream="queue-id",
    ),
    _Layout(
        "rocprof summary",
        "name",
        "totaldurationns",
        "calls",
        kernels=("name", lambda name: _ROCM_CALL.match(name) is None),
        unit="ns",
    ),
    _Layout(
        "TraceLens kernel summary",
        "kernel name",
        "kernel duration_sum",
        "kernel duration_count",
        operation="parent cpu_op",
    ),
    *(
        _Layout(_TORCH, "name", f"self {device}", "# of calls", kernels=("self cpu", _is_no_time))
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
_TRANSFERS = ("[CUDA mem", "Memcpy ", "Memset ")
_NOT_KERNELS = (*_TRANSFERS, "ProfilerStep", "## Call CompiledFxGraph")
"""Copies, fills and ranges on the device, which stand among the kernels in some of the tables."""
_CUT = ("...", "\u2026")
_DEVICE = re.compile(r"^(.*?)\s*\(?(\d{1,6})\)?$")
_KERNEL_COLUMNS = ("name", "start", "duration", "device", "stream", "correlation", "grid")


@dataclass
class _Table:
    """A table while it is read: sums by name and operation, or single kernels and copies."""

    layout: _Layout
    titles: list[str]
    units: dict[str, str]
    totals: dict[tuple[str, str | None], list[int]] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    grids: dict[tuple[int, int, int], int] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)
    kernels: list[tuple[int, ...]] = field(default_factory=list)
    transfers: list[tuple[int, ...]] = field(default_factory=list)
    unread_count: int = 0

    def add(self, cells: list[str]) -> None:
        """Takes the next row."""
        layout, width = self.layout, len(self.titles)
        if len(cells) > width and self.titles[-1] == layout.name:
            cells = [*cells[: width - 1], ",".join(cells[width - 1 :])]  # a name with commas and without quotes
        if len(cells) != width:
            self.unread_count += 1
            return
        row = dict(zip(self.titles, cells, strict=True))
        name = row[layout.name]
        is_kernel = layout.kernels is None or layout.kernels[1](row[layout.kernels[0]])
        if not is_kernel and not (layout.start is not None and name.startswith(_TRANSFERS)):
            return
        if layout.start is None and name.startswith(_NOT_KERNELS):
            return
        count = 1 if layout.count is None else _whole(row[layout.count])
        time = self._nanoseconds(row, layout.time)
        start = 0 if layout.start is None else self._nanoseconds(row, layout.start)
        if time is not None and start is not None and layout.time.startswith("end"):
            time -= start
        if not name or not count or time is None or start is None or time < 0:
            self.unread_count += 1
        elif layout.start is not None:
            self._add_event(row, name, start, time, is_kernel=is_kernel)
        elif time or layout.source != _TORCH:  # there, operations that ran on no device have rows as well
            sums = self.totals.setdefault((name, row[layout.operation] or None if layout.operation else None), [0, 0])
            sums[0] += count
            sums[1] += time

    def _nanoseconds(self, row: Mapping[str, str], title: str) -> int | None:
        return _nanoseconds(row[title], self.units.get(title) or self.layout.unit)

    def _add_event(self, row: Mapping[str, str], name: str, start: int, duration: int, *, is_kernel: bool) -> None:
        number = self.names.setdefault(name, len(self.names))
        layout = self.layout
        device, stream = self._device(row.get(layout.device, "")), _id(row.get(layout.stream, ""))
        if is_kernel:
            correlation = _id(row.get(layout.correlation, ""))
            self.kernels.append((number, start, duration, device, stream, correlation, self._grid(row)))
        else:
            self.transfers.append((number, start, duration, device, stream))

    def _device(self, text: str) -> int:
        """``NVIDIA A100 (0)``, ``Agent 2`` and ``2`` all end in a number; the only one of a list may have none."""
        found = _DEVICE.match(text)
        number, name = (int(found[2]), found[1]) if found is not None else (0 if text else NONE, text)
        self.devices.setdefault(number, "" if name == "Agent" else name)
        return number

    def _grid(self, row: Mapping[str, str]) -> int:
        sizes = [_id(row.get(title, "")) for title in self.layout.grid]
        groups = [_id(row.get(title, "")) for title in self.layout.group] or [1, 1, 1]
        if len(sizes) != 3 or min(*sizes, *groups) < 1:
            return NONE
        x, y, z = (-(-size // group) for size, group in zip(sizes, groups, strict=True))
        return self.grids.setdefault((x, y, z), len(self.grids))

    def sums(self) -> KernelTotals:
        """One row for each kernel and operation."""
        rows = [
            KernelTotal(name, count, nanoseconds, operation, is_cut=name.endswith(_CUT))
            for (name, operation), (count, nanoseconds) in self.totals.items()
        ]
        return KernelTotals(self.layout.source, rows=rows)

    def run(self) -> RecordedTrace:
        """The run that a list of single kernels is: starts, streams and launch grids, and nothing of the host."""
        kernels = np.array(self.kernels, np.int64).reshape(-1, 7)
        transfers = np.array(self.transfers, np.int64).reshape(-1, 5)
        base = int(min((part[:, 1].min() for part in (kernels, transfers) if len(part)), default=0))
        named = [{"id": number, "name": text} for number, text in sorted(self.devices.items()) if text]
        return RecordedTrace(
            source=self.layout.source,
            names=list(self.names),
            kernels=sorted_events(KernelEvents, dict(zip(_KERNEL_COLUMNS, kernels.T, strict=True)), base),
            transfers=sorted_events(TransferEvents, dict(zip(_KERNEL_COLUMNS, transfers.T, strict=False)), base),
            operations=sorted_events(OperationEvents),
            launches=sorted_events(LaunchEvents),
            frames=sorted_events(FrameEvents),
            annotations=sorted_events(FrameEvents),
            processes=["not recorded"],
            grids=list(self.grids),
            metadata={"deviceProperties": named} if named else {},
            event_count=len(kernels) + len(transfers),
            base_nanoseconds=base,
        )


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
    found = table.sums() if table.layout.start is None else table.run()
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
            here.add(cells)

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
        if layout.fits(titles):
            return _Table(layout, titles, units)
    return None


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


def _id(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else NONE


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
