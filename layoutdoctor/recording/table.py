"""
Reads a table that sums up kernels by name, or lists them, as ``nsys stats``, nvprof, TraceLens and torch.profiler do.

A sum has the time of the kernels of each name, without order and shapes. A list with starts is a recorded run. The file
may be CSV or the aligned text of a terminal, with other output and other tables around the kernels.

Source:
    Reports of ``nsys stats`` 2019 to 2026, ``nvprof --csv``, rocprof and rocprofv3, TraceLens 2026 and
    ``key_averages().table()``.
"""

from __future__ import annotations

import codecs
import csv
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.errors import TraceError
from layoutdoctor.recording.recording import (
    NONE,
    KernelTotal,
    KernelTotals,
    Problem,
    TraceBuilder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from layoutdoctor.recording.files import TraceFile
    from layoutdoctor.recording.recording import RecordedTrace

_LONGEST_LINE = 1 << 17
"""Characters that are kept of a line; the csv module takes no longer field."""

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True)
class _Layout:
    """
    The columns of one program's table; titles in lower case, without their units.

    Attributes:
        source: The table, in words.
        name: Title of the kernel's name.
        time: Title of the kernel's time; if the title begins with "end", of the moment at which the kernel ended.
        count: Title of the number of launches; None if every row is one launch.
        operation: Title of the operation the kernels ran in.
        kernels: A title, and whether a row with this value is a kernel, if other things are listed as well.
        other: A title that makes it another table.
        unit: Of the time, if neither the title nor a row of units nor the value itself has it.
        start: When the kernel began, in a list of single launches, which is read as a recorded run.
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

    def fits(self, titles: Sequence[str]) -> bool:
        """Whether a table with these titles is this one."""
        title = None if self.kernels is None else self.kernels[0]
        needed = {self.name, self.time, self.count, self.operation, title, self.start} - {None}
        return needed <= set(titles) and self.other not in titles


# rocprof sums up calls of the runtime and whole domains in tables of the same titles.
_ROCM_CALL = re.compile(
    r"^(?:__)?(?:hip|hsa)(?:[A-Z]|_[a-z])\w*$|^[A-Z]+(?:_[A-Z]+)*$|^(?:nccl|rocpx|rocTX|roctx)[A-Z]\w*$"
)
_TORCH = "table of torch.profiler's key_averages"


def _is_word(word: str) -> Callable[[str], bool]:
    return lambda cell: cell.lower() == word


def _is_no_time(cell: str) -> bool:
    return _nanoseconds(cell, None) == 0


_KERNEL_CATEGORY = ("category", _is_word("cuda_kernel"))
_GPU_ACTIVITY = ("type", _is_word("gpu activities"))
_ROCM_DISPATCH = ("kind", _is_word("kernel_dispatch"))
_NO_ROCM_CALL = ("name", lambda name: _ROCM_CALL.match(name) is None)

_LAYOUTS = (
    _Layout("Nsight Systems kernel summary", "name", "total time", "instances", other="source", unit="ns"),
    _Layout(
        "Nsight Systems summary of kernels and copies", "operation", "total time", "instances", None, _KERNEL_CATEGORY,
        unit="ns",
    ),
    _Layout("Nsight Systems list of kernels", "name", "duration", None, None, ("grdx", bool), unit="ns", start="start"),
    _Layout("Nsight Systems list of launches", "kernel name", "kernel dur", unit="ns"),
    _Layout("nvprof summary", "name", "time", "calls", None, _GPU_ACTIVITY),
    _Layout("nvprof list of kernels", "name", "duration", None, None, ("grid x", bool), start="start"),
    _Layout(
        "rocprofv3 list of kernels", "kernel_name", "end_timestamp", None, None, _ROCM_DISPATCH, None, "ns",
        "start_timestamp",
    ),
    _Layout("rocprof list of kernels", "kernelname", "durationns", unit="ns", start="beginns"),
    _Layout("rocprof summary", "name", "totaldurationns", "calls", None, _NO_ROCM_CALL, unit="ns"),
    _Layout("TraceLens kernel summary", "kernel name", "kernel duration_sum", "kernel duration_count", "parent cpu_op"),
    *(_Layout(_TORCH, "name", f"self {device}", "# of calls", None, ("self cpu", _is_no_time))
      for device in ("cuda", "device", "xpu", "privateuse1")),
)  # fmt: skip
"""If a file has several tables, the one that comes first here is read."""

_DEVICES = ("device", "agent_id", "gpu-id")
_STREAMS = ("strm", "stream", "queue_id", "queue-id")
_CORRELATIONS = ("corrid", "correlation_id")
_GRIDS = tuple((f"grd{axis}", f"grid {axis}", f"grid_size_{axis}") for axis in "xyz")
_GROUPS = tuple((f"workgroup_size_{axis}",) for axis in "xyz")
"""Titles in lists of kernels. ROCm gives a launch's size in work items, which a work group's size divides."""

_SPELLINGS = (("ns nsec", 1), ("us usec \u00b5s \u03bcs", 1_000), ("ms msec", 1_000_000), ("s sec", 1_000_000_000))
"""Units and their nanoseconds; micro is written with its sign or with the Greek letter too."""
_NANOSECONDS = {unit: nanoseconds for units, nanoseconds in _SPELLINGS for unit in units.split()}
_TIME_UNITS = {*_NANOSECONDS, "%"}
_UNITS = {*_TIME_UNITS, "", "b", "kb", "mb", "gb", "gb/s", "mb/s"}
_TITLE = re.compile(r"^(.*?)\s*\(([^()]*)\)(_\w+)?$")
_NUMBER = re.compile(
    r"^(\d{1,25}|\d{1,3}(?:,\d{3}){1,7})(\.\d{1,25})?(e[+-]?\d{1,2})?\s*([a-z\u00b5\u03bc]*)$", re.IGNORECASE
)
_RULE = re.compile(r"^\s*-{2,}(?:\s+-{2,})+\s*$")
_LARGEST = 1 << 62
_TRANSFERS = ("[CUDA mem", "Memcpy ", "Memset ")
_NOT_KERNELS = (*_TRANSFERS, "ProfilerStep", "## Call CompiledFxGraph")
"""Copies, fills and ranges on the device, which are among the kernels in some of the tables."""
_CUT = ("...", "\u2026")
_DEVICE = re.compile(r"^(.*?)\s*\(?(\d{1,6})\)?$")


class _Table:
    """A table while it is read: sums by name and operation, or single kernels and copies."""

    def __init__(self, layout: _Layout, titles: list[str], units: dict[str, str]) -> None:
        self.layout, self.titles, self.units = layout, titles, units
        self.sums: dict[tuple[str, str | None], list[int]] = {}
        self.run = TraceBuilder()
        self.devices: dict[int, str] = {}
        self.unread_count = 0

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
        if layout.start is None and (not is_kernel or name.startswith(_NOT_KERNELS)):
            return
        if not is_kernel and not name.startswith(_TRANSFERS):
            return
        count = 1 if layout.count is None else _whole(row[layout.count])
        time = self._nanoseconds(row, layout.time)
        start = 0 if layout.start is None else self._nanoseconds(row, layout.start)
        if time is not None and start is not None and layout.time.startswith("end"):
            time -= start
        if not name or count < 1 or time is None or start is None or time < 0:
            self.unread_count += 1
        elif layout.start is not None:
            self._add_event(row, name, start, time, is_kernel=is_kernel)
        elif time or layout.source != _TORCH:  # torch lists operations that ran on no device as well
            sums = self.sums.setdefault((name, row[layout.operation] or None if layout.operation else None), [0, 0])
            sums[0] += count
            sums[1] += time

    def _nanoseconds(self, row: Mapping[str, str], title: str) -> int | None:
        return _nanoseconds(row[title], self.units.get(title) or self.layout.unit)

    def _add_event(self, row: Mapping[str, str], name: str, start: int, duration: int, *, is_kernel: bool) -> None:
        event = {"name": self.run.names[name], "start": start, "duration": duration}
        event |= {"device": self._device(_cell(row, _DEVICES)), "stream": _whole(_cell(row, _STREAMS))}
        if is_kernel:
            event |= {"correlation": _whole(_cell(row, _CORRELATIONS)), "grid": self._grid(row)}
        self.run.add("kernels" if is_kernel else "transfers", **event)

    def _device(self, text: str) -> int:
        """``NVIDIA A100 (0)``, ``Agent 2`` and ``2`` all end in a number; the only one of a list may have none."""
        found = _DEVICE.match(text)
        number, name = (int(found[2]), found[1]) if found is not None else (0 if text else NONE, text)
        self.devices.setdefault(number, "" if name == "Agent" else name)
        return number

    def _grid(self, row: Mapping[str, str]) -> int:
        sizes = [_whole(_cell(row, titles)) for titles in _GRIDS]
        groups = [_whole(_cell(row, titles, "1")) for titles in _GROUPS]
        if min(*sizes, *groups) < 1:
            return NONE
        return self.run.grids[tuple(-(-size // group) for size, group in zip(sizes, groups, strict=True))]

    def result(self) -> KernelTotals | RecordedTrace:
        """The sums, or the run that a list of single kernels is, with nothing of the host."""
        if self.layout.start is None:
            rows = [
                KernelTotal(name, count, nanoseconds, operation, is_cut=name.endswith(_CUT))
                for (name, operation), (count, nanoseconds) in self.sums.items()
            ]
            return KernelTotals(self.layout.source, rows=rows)
        named = [{"id": number, "name": text} for number, text in sorted(self.devices.items()) if text]
        metadata = {"deviceProperties": named} if named else {}
        return self.run.trace(self.layout.source, processes=["not recorded"], metadata=metadata)


def _cell(row: Mapping[str, str], titles: Iterable[str], otherwise: str = "") -> str:
    return next((row[title] for title in titles if title in row), otherwise)


def read_kernel_csv(file: TraceFile) -> KernelTotals | RecordedTrace:
    """
    Reads the table of kernels in a file.

    Args:
        file: CSV or aligned text of ``nsys stats`` (``cuda_gpu_kern_sum``,
            ``cuda_gpu_sum``, ``cuda_gpu_trace``, ``cuda_kern_exec_trace``), of nvprof, TraceLens's ``kernel_summary``
            or torch.profiler's ``key_averages``; the kernel lists and summaries of rocprof and rocprofv3.

    Returns:
        One row per kernel name and operation, in the table's order; of a list with the start of each kernel, the run.

    Raises:
        TraceError: The file cannot be opened or read, is too large, or has no table of kernels.
    """
    tables = list(_tables(_lines(codecs.iterdecode(file.pieces(), text_encoding(file.head()), "replace"))))
    if not tables:
        raise TraceError(
            f"cannot read {str(file.path)!r}: it has no table of kernels; expected the CSV of nsys stats --report "
            "cuda_gpu_kern_sum --format csv, of nvprof, of TraceLens, or the text of torch.profiler's "
            "key_averages().table() of a GPU run"
        )
    table = min(tables, key=lambda table: _LAYOUTS.index(table.layout))
    found = table.result()
    counts = {
        "rows of the kernel table that could not be read": table.unread_count,
        "further tables of kernels in the same file, which were not read": len(tables) - 1,
        "the kernel table has no rows": int(not (table.sums or table.run.names or table.unread_count)),
        "the packed file ends before its data do": int(file.is_cut),
    }
    found.problems = [Problem(what, count) for what, count in counts.items() if count]
    return found


def has_kernel_table(text: str) -> bool:
    """Whether a text has the title line of a table that can be read here."""
    return any(True for _ in _tables(text.splitlines()))


def text_encoding(head: bytes) -> str:
    """The encoding by the byte order mark, UTF-8 without one. PowerShell's ``>`` writes UTF-16."""
    return next((name for mark, name in _MARKS if head.startswith(mark)), "utf-8")


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """The lines of a text without their ends; one that is too long for a table is cut."""
    rest = ""
    for piece in pieces:
        *whole, rest = (rest[:_LONGEST_LINE] + piece).split("\n")
        yield from (line[:_LONGEST_LINE].rstrip("\r") for line in whole)
    yield rest[:_LONGEST_LINE]


def _tables(lines: Iterable[str]) -> Iterator[_Table]:
    """The tables of kernels in a text; each is complete when the next one comes, or the text ends."""
    here: _Table | None = None
    spans: list[tuple[int, int | None]] | None = None  # of the columns of aligned text; None in CSV
    previous = ""
    for line in lines:
        begun: _Table | None = None
        if _RULE.match(line):  # under the titles (nsys), or above and under them and below the last row (torch)
            ends = [match.end() for match in re.finditer(r"-+", line)]
            spans = list(zip([0, *ends[:-1]], [*ends[:-1], None], strict=True))
            here = begun = _table_of(_cells(previous, spans))
        elif not line.strip():
            here = spans = None
        else:
            cells = _cells(line, spans)
            if spans is not None or (here is not None and any(map(_is_number, cells))):
                if here is not None:
                    here.add(cells)
            elif here is not None and any(cells) and all(cell.lower() in _UNITS for cell in cells):
                here.units.update(zip(here.titles, (cell.lower() for cell in cells), strict=False))
            elif (begun := _table_of(cells)) is not None or len(cells) == 1 or _are_titles(cells):
                here = begun
            elif here is not None:
                here.unread_count += 1
        if begun is not None:
            yield begun
        previous = line


def _cells(line: str, spans: list[tuple[int, int | None]] | None) -> list[str]:
    if spans is not None:
        return [line[start:end].strip() for start, end in spans]
    try:
        return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error:
        return [line]


def _table_of(cells: Sequence[str]) -> _Table | None:
    """The table that a line of titles begins; None if it is none of kernels."""
    titles: list[str] = []
    units: dict[str, str] = {}
    for cell in cells:
        found = _TITLE.match(cell.lower())
        title, unit = (found[1] + (found[3] or ""), found[2]) if found else (cell.lower(), "")
        # "Time (%)" beside "Time": the share is never used.
        titles.append(title if unit != "%" and title not in titles else cell.lower())
        if unit in _NANOSECONDS:
            units[titles[-1]] = unit
    layout = next((layout for layout in _LAYOUTS if layout.fits(titles)), None)
    return None if layout is None else _Table(layout, titles, units)


def _are_titles(cells: Sequence[str]) -> bool:
    """Whether a line without numbers names columns: some of them have a unit."""
    found = (_TITLE.match(cell.lower()) for cell in cells)
    return any(title is not None and title[2] in _TIME_UNITS for title in found)


def _is_number(cell: str) -> bool:
    return _NUMBER.match(cell.rstrip("%")) is not None


def _whole(cell: str) -> int:
    """A whole number; ``NONE`` for anything else."""
    return int(text) if (text := cell.replace(",", "")).isdecimal() and len(text) < 19 else NONE


def _nanoseconds(cell: str, unit: str | None) -> int | None:
    found = _NUMBER.match(cell)
    factor = _NANOSECONDS.get((found[4] if found is not None else "") or unit or "")
    if found is None or factor is None:
        return None
    whole, rest = int(found[1].replace(",", "")), f"{found[2] or ''}{found[3] or ''}"
    nanoseconds = round(float(f"{whole}{rest}") * factor) if rest else whole * factor  # a double has 53 bits only
    return nanoseconds if nanoseconds < _LARGEST else None
