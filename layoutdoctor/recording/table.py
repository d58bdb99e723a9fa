"""
Reads a table that sums up kernels or operations by name, or lists kernels, as ``nsys stats``, rocprofv3, TraceLens and
torch.profiler print them.

A sum has the time of the kernels of each name, without order and shapes. A list with starts is a recorded run. The file
may be CSV or the text of a terminal, as people paste it: quoted, behind the words of a logger, with blanks squeezed,
with other output and other tables around it.

Source:
    Reports of ``nsys stats`` 2019 to 2026, rocprofv3, TraceLens 2026; ``key_averages().table()`` of torch 0.4 to 2.13.
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

    from layoutdoctor.diagnosis.kernel import SourceKind
    from layoutdoctor.recording.files import TraceFile
    from layoutdoctor.recording.recording import RecordedTrace

_LONGEST_LINE = 1 << 17
"""Characters that are kept of a line; the csv module takes no longer field."""

_LONGEST_TITLES = 2_000  # characters of a line that may have titles with single blanks between them

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
        name: Title of the kernel's name.
        time: Title of the kernel's time; if the title begins with "end", of the moment at which the kernel ended.
        count: Title of the number of launches; empty if every row is one launch.
        operation: Title of the operation the kernels ran in.
        kernels: A title, and whether a row with this value is a kernel, if other things are listed as well.
        further: One more title that the table has.
        other: A title that makes it another table.
        unit: Of the time, if neither the title nor the value itself has it.
        start: When the kernel began, in a list of single launches, which is read as a recorded run.
    """

    source: SourceKind
    name: str
    time: str
    count: str = ""
    operation: str = ""
    kernels: tuple[str, Callable[[str], bool]] = ("", lambda _: True)
    further: str = ""
    other: str = ""
    unit: str = ""
    start: str = ""

    def fits(self, titles: Sequence[str]) -> bool:
        """Whether a table with these titles is this one."""
        needed = {self.name, self.time, self.count, self.operation, self.further, self.kernels[0], self.start} - {""}
        return needed <= set(titles) and not (self.other and self.other in titles)


# rocprofv3 sums up calls of the runtime and whole domains in tables of the same titles.
_ROCM_CALL = re.compile(
    r"^(?:__)?(?:hip|hsa)(?:[A-Z]|_[a-z])\w*$|^[A-Z]+(?:_[A-Z]+)*$|^(?:nccl|rocpx|rocTX|roctx)[A-Z]\w*$"
)


def _is_word(word: str) -> Callable[[str], bool]:
    return lambda cell: cell.lower() == word


_KERNEL_CATEGORY = ("category", _is_word("cuda_kernel"))
_ROCM_DISPATCH = ("kind", _is_word("kernel_dispatch"))
_NO_ROCM_CALL = ("name", lambda name: _ROCM_CALL.match(name) is None)

_LAYOUTS = (
    _Layout("nsys_kernel_summary", "name", "total time", "instances", other="source", unit="ns"),
    _Layout(
        "nsys_summary_with_copies", "operation", "total time", "instances", "", _KERNEL_CATEGORY,
        unit="ns",
    ),
    _Layout("nsys_kernel_list", "name", "duration", "", "", ("grdx", bool), unit="ns", start="start"),
    _Layout("nsys_launch_list", "kernel name", "kernel dur", unit="ns"),
    _Layout(
        "rocprofv3_kernel_list", "kernel_name", "end_timestamp", "", "", _ROCM_DISPATCH, unit="ns",
        start="start_timestamp",
    ),
    _Layout("rocprofv3_summary", "name", "totaldurationns", "calls", "", _NO_ROCM_CALL, "minns", unit="ns"),
    _Layout("rocprofv3_summary", "name", "duration", "calls", "", ("domain", _is_word("kernel_dispatch")), unit="ns"),
    _Layout("tracelens_summary", "kernel name", "kernel duration_sum", "kernel duration_count", "parent cpu_op"),
    _Layout("key_averages", "name", "name", "# of calls"),
)  # fmt: skip
"""If a file has several tables, the one that comes first here is read."""

_DEVICES = ("device", "agent_id")
_STREAMS = ("strm", "queue_id")
_CORRELATIONS = ("corrid", "correlation_id")
_GRIDS = tuple((f"grd{axis}", f"grid_size_{axis}") for axis in "xyz")
_GROUPS = tuple((f"workgroup_size_{axis}",) for axis in "xyz")
"""Titles in lists of kernels. ROCm gives a launch's size in work items, which a work group's size divides."""

_SPELLINGS = (("ns nsec", 1), ("us usec \u00b5s \u03bcs", 1_000), ("ms msec", 1_000_000), ("s sec", 1_000_000_000))
"""Units and their nanoseconds; micro is written with its sign or with the Greek letter too."""
_NANOSECONDS = {unit: nanoseconds for units, nanoseconds in _SPELLINGS for unit in units.split()}
_TITLE = re.compile(r"^(.*?)\s*\(([^()]*)\)(_\w+)?$")
_NUMBER = re.compile(
    r"^(\d{1,25}|\d{1,3}(?:,\d{3}){1,7})(\.\d{1,25})?(e[+-]?\d{1,2})?\s*([a-z\u00b5\u03bc]*)$", re.IGNORECASE
)
_QUOTED = re.compile(r"^(?:\s{0,3}>)+ ?")
_GAP = re.compile(r"\t|\s{2,}")
_MARKUP = re.compile(r"^(?:\*\*|`)+|(?:\*\*|`)+$")
_COLUMN = (
    r"(?:Overload Name|Name|(?:Self )?[A-Z]\w+ (?:total %|time total|time avg|total|time|Mem|%)|Self [A-Z]\w+|"
    r"(?:# of |Number of )?Calls|Node ID|Input Shapes|Source Location|Total [KMGTP]?FLOPs|Time ?\(%\)|"
    r"Instances|(?:Total Time|Avg|Med|Min|Max|StdDev)(?: \(\w+\))?|Average|Minimum|Maximum|Category|Operation|"
    r"GridXYZ|BlockXYZ)"
)
_SQUEEZED = re.compile(rf"(?:{_COLUMN}\s+)+{_COLUMN}\s*$")
"""Titles with single blanks between them, as a web page shows text that was not set as code."""
_COLUMNS = re.compile(_COLUMN)
_MEMORY = re.compile(r"(\d) ([KMGT]?[bB])\b")
_TOTAL = re.compile(r"\b(?:Self )?(\w+) time total:\s*([\d.]+ ?\w+)", re.IGNORECASE)
_LARGEST = 1 << 62
_TRANSFERS = ("[CUDA mem", "Memcpy ", "Memset ")
"""Copies and fills, which are among the kernels in some of the tables."""
_DEVICE = re.compile(r"^(?:(.*?)\s*\(|Agent |)(\d{1,6})\)?$")


class _Table:
    """
    A table while it is read: sums by name and operation, or single kernels and copies.

    Attributes:
        separator: ``,`` of CSV, ``|`` of a frame, a blank of aligned text.
        offset: How many characters are in front of the titles, and so of each row.
    """

    def __init__(self, layout: _Layout, titles: list[str], units: dict[str, str], separator: str, offset: int) -> None:
        self.layout, self.titles, self.units, self.separator, self.offset = layout, titles, units, separator, offset
        self.sums: dict[tuple[str, str | None], list[int]] = {}
        self.run = TraceBuilder()
        self.devices: dict[int, str] = {}
        self.spans: list[tuple[int, int | None]] = []
        self.row_count = self.unread_count = 0

    def take(self, line: str) -> bool:
        """Takes the next line; False if it is no row of this table."""
        if self.separator != " ":
            return self.add(_cells(line, self.separator))
        if line[: self.offset].strip():
            line = line[self.offset :]
        return any(self.add(cells) for cells in self._readings(line))

    def _readings(self, line: str) -> Iterator[list[str]]:
        """The cells of a line, in each way in which they can be taken apart; a row is one in which numbers fit."""
        width = len(self.titles)
        if self.spans and not any(line[end : end + 1].strip() for _, end in self.spans[:-1] if end is not None):
            yield [line[start:end].strip() for start, end in self.spans]
        cells = _GAP.split(line.strip(), width - 1)
        yield cells + [""] * (width - len(cells))
        if self.layout.start:
            return  # cells are empty, and single blanks do not show which
        squeezed = _MEMORY.sub(r"\1\2", line)
        split = squeezed.split if self.titles[-1] == self.layout.name else squeezed.rsplit
        yield split(None, width - 1)

    def add(self, cells: list[str]) -> bool:
        """Takes the cells of a row; False if they are none."""
        layout, width = self.layout, len(self.titles)
        if len(cells) > width and self.titles[-1] == layout.name:
            cells = [*cells[: width - 1], ",".join(cells[width - 1 :])]  # a name with commas and without quotes
        if len(cells) != width:
            return False
        row = dict(zip(self.titles, cells, strict=True))
        is_row = self._add(row, row[layout.name])
        self.row_count += is_row
        return is_row

    def _add(self, row: Mapping[str, str], name: str) -> bool:
        layout = self.layout
        title, is_one = layout.kernels
        is_kernel = is_one(row.get(title, ""))
        count = _whole(row[layout.count]) if layout.count else 1
        time = self._nanoseconds(row, layout.time)
        start = self._nanoseconds(row, layout.start) if layout.start else 0
        if not name or count < 1 or time is None or start is None:
            return False
        time -= start if layout.time.startswith("end") else 0
        if time < 0:
            return False
        if layout.start:
            if is_kernel or name.startswith(_TRANSFERS):
                self._add_event(row, name, start, time, is_kernel=is_kernel)
        elif is_kernel and not name.startswith(_TRANSFERS):
            sums = self.sums.setdefault((name, row.get(layout.operation) or None), [0, 0])
            sums[0] += count
            sums[1] += time
        return True

    def _nanoseconds(self, row: Mapping[str, str], title: str) -> int | None:
        return _nanoseconds(row[title], self.units.get(title) or self.layout.unit)

    def _add_event(self, row: Mapping[str, str], name: str, start: int, duration: int, *, is_kernel: bool) -> None:
        event = {"name": self.run.names[name], "start": start, "duration": duration}
        event |= {"device": self._device(_cell(row, _DEVICES)), "stream": _whole(_cell(row, _STREAMS))}
        if is_kernel:
            event |= {"correlation": _whole(_cell(row, _CORRELATIONS)), "grid": self._grid(row)}
        self.run.add("kernels" if is_kernel else "transfers", **event)

    def _device(self, text: str) -> int:
        """The number in ``NVIDIA A100 (0)``, ``Agent 2`` or ``2``; 0 for a name whose number is cut off."""
        found = _DEVICE.match(text)
        number, name = (int(found[2]), found[1]) if found is not None else (0 if text else NONE, text)
        self.devices.setdefault(number, name or "")
        return number

    def _grid(self, row: Mapping[str, str]) -> int:
        sizes = [_whole(_cell(row, titles)) for titles in _GRIDS]
        groups = [_whole(_cell(row, titles, "1")) for titles in _GROUPS]
        if min(*sizes, *groups) < 1:
            return NONE
        return self.run.grids[tuple(-(-size // group) for size, group in zip(sizes, groups, strict=True))]

    @property
    def has_kernels(self) -> bool:
        """Whether a kernel is in it."""
        return bool(self.sums or (self.layout.start and self.row_count))

    def result(self) -> KernelTotals | RecordedTrace:
        """The sums, or the run that a list of single kernels is, with nothing of the host."""
        if not self.layout.start:
            rows = [
                KernelTotal(name, count, nanoseconds, operation)
                for (name, operation), (count, nanoseconds) in self.sums.items()
            ]
            return KernelTotals(self.layout.source, rows=rows)
        named = [{"id": number, "name": text} for number, text in sorted(self.devices.items()) if text]
        metadata = {"deviceProperties": named} if named else {}
        return self.run.trace(self.layout.source, metadata=metadata)


class _KeyAverages(_Table):
    """
    A table of torch.profiler: operations and ranges of the host, and from torch 1.8.1 on what ran on the device.

    Attributes:
        rows: By name and by whether the row has time on the host: calls, own time on the host and on the device.
        host, on_device: Titles of the own time of a row; before torch 1.6 of its time with all that it called.
        device: As the titles name it; empty if there is only the host.
        totals: The lines below the table, by device.
    """

    def __init__(self, layout: _Layout, titles: list[str], separator: str, offset: int) -> None:
        super().__init__(layout, titles, {}, separator, offset)
        self.rows: dict[tuple[str, bool], list[int]] = {}
        self.totals: dict[str, int | None] = {}
        times = [title for title in titles if re.fullmatch(r"self \w+", title)]
        times += [title for title in titles if re.fullmatch(r"\w+ total", title)]
        self.host = next((title for title in times if "cpu" in title), "")
        self.on_device = next((title for title in times if "cpu" not in title), "")
        self.device = self.on_device.removeprefix("self ").removesuffix(" total")

    def _add(self, row: Mapping[str, str], name: str) -> bool:
        count = _whole(row[self.layout.count])
        host = _nanoseconds(re.sub(r"^-[\d.]+", "0", row[self.host])) if self.host else 0
        device = _nanoseconds(row[self.on_device]) if self.on_device else 0
        if not name or count < 1 or host is None or device is None:
            return False
        known = self.rows.setdefault((name, host > 0), [0, 0, 0])
        for place, value in enumerate((count, host, device)):
            known[place] += value
        return True

    @property
    def has_kernels(self) -> bool:
        return bool(self.kernels())

    def kernels(self) -> list[KernelTotal]:
        """What ran on the device itself, copies as well: it took no time on the host, and is no range of the host."""
        found = [
            KernelTotal(name, count, device)
            for (name, on_host), (count, _, device) in self.rows.items()
            if device and not on_host and (name, True) not in self.rows and not _IS_OF_THE_HOST.match(name)
        ]
        total = self.totals.get(self.device)  # less than the rows add up to, if the host's row of a range is not listed
        for row in sorted(found, key=lambda row: -row.nanoseconds):
            is_too_much = total is not None and sum(row.nanoseconds for row in found) > _ROUNDED * total
            if is_too_much and _MAY_BE_A_RANGE.match(row.name):
                found.remove(row)
        return found

    def result(self) -> KernelTotals | RecordedTrace:
        """The kernels without copies; of a table without any kernel the operations, with their own time."""
        ran = self.kernels()
        kernels = [row for row in ran if not row.name.startswith(_TRANSFERS)]
        place = 2 if any(times[2] for times in self.rows.values()) else 1
        device = "cpu" if place == 1 else _DEVICE_TYPES.get(self.device, self.device)
        total = self.totals.get(self.device if place == 2 else "cpu")
        if kernels:
            transferred = sum(row.nanoseconds for row in ran if row not in kernels)
            total = None if total is None else max(0, total - transferred)
            count, _, time = self.rows.get(("aten::copy_", True), (0, 0, 0))
            copies = KernelTotal("aten::copy_", count, time) if time else None
            return KernelTotals("key_averages", kernels, [], device, total, copies=copies)
        is_old = not any("::" in name for name, _ in self.rows)  # before torch 1.7 operations had no namespace
        sums: dict[str, list[int]] = {}
        for (name, _), times in self.rows.items():
            called = f"aten::{name}" if is_old and name.isidentifier() else name
            if times[place] and _OPERATION.match(called):
                known = sums.setdefault(called, [0, 0])
                known[0] += times[0]
                known[1] += times[place]
        if place == 1 and any(map(OF_A_GPU.match, sums)):  # the host only launches them
            device, sums = "cuda", {}
        operations = [KernelTotal(name, count, time, name) for name, (count, time) in sums.items()]
        is_nested = not (self.on_device if place == 2 else self.host).startswith("self ")
        return KernelTotals("operation_averages", operations, [], device, total, is_nested)


OF_A_GPU = re.compile(r"aten::_?(?:cudnn|miopen)_(?!is_acceptable)")
"""Operations that run on a GPU alone, though only their host's part may have been recorded; native_functions.yaml."""
_ROUNDED = 1.001  # each row is printed with three decimals
_MAY_BE_A_RANGE = re.compile(r"(?i)(?!.*(?:kernel|gemm|conv|triton|cutlass|cudnn|nccl|sm\d\d_|mem))[\w .#:/*-]+$")
_DEVICE_TYPES = {"device": "cuda", "none": "cuda"}
_IS_OF_THE_HOST = re.compile(
    r"(?:aten|prims?|mkldnn|mkl|quantized|torchvision|autograd)::|nccl:|(?:Optimizer|Torch-Compiled|ProfilerStep)\b|"
    r"## Call Compiled|\[pl\]"
)
_OPERATION = re.compile(r"(?!(?:autograd|torch|profiler|prim|c10d|nccl)\b)[A-Za-z_]\w*::[\w.:]+$")


def _cell(row: Mapping[str, str], titles: Iterable[str], otherwise: str = "") -> str:
    return next((row[title] for title in titles if title in row), otherwise)


def read_kernel_csv(file: TraceFile) -> KernelTotals | RecordedTrace:
    """
    Reads the table of kernels in a file: one row per name and operation, in its order; of a list with starts, the run.

    Raises:
        TraceError: The file cannot be opened or read, is too large, or has no table of kernels.
    """
    tables = list(_tables(_lines(codecs.iterdecode(file.pieces(), text_encoding(file.head()), "replace"))))
    if not tables:
        raise TraceError(
            f"cannot read {str(file.path)!r}: it has no table of kernels; expected the CSV of nsys stats --report "
            "cuda_gpu_kern_sum --format csv, of rocprofv3, of TraceLens, or the text of torch.profiler's "
            "key_averages().table() of a GPU run"
        )
    # A table of torch.profiler that is sorted by time on the host is cut; rocprofv3 begins with other tables.
    table = min(tables, key=lambda t: (not t.has_kernels, _LAYOUTS.index(t.layout)))
    found = table.result()
    counts = {
        "rows of the kernel table that could not be read": table.unread_count,
        "further tables of kernels in the same file, which were not read": len(tables) - 1,
        "the kernel table has no rows": int(not (table.row_count or table.unread_count)),
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
    """The tables in a text; each is complete when the next one comes, or the text ends."""
    here: _Table | None = None
    last: _Table | None = None
    was_blank = False
    for raw in lines:
        line = _QUOTED.sub("", raw)
        is_rule, is_framed = _is_rule(line), not line.strip(" +-|:=")
        is_blank = not line.strip() or line.lstrip().startswith(("```", "~~~"))
        begun = None if is_rule or is_framed or is_blank else _table_at(line)
        if begun is not None:
            here = last = begun
            yield begun
        elif totals := _TOTAL.findall(line):
            if isinstance(last, _KeyAverages):
                last.totals = {device.lower(): _nanoseconds(time) for device, time in totals} | last.totals
            here = None
        elif is_rule and here is not None and here.separator == " ":
            if here.row_count:
                here = None
            else:
                ends = [match.end() for match in re.finditer(r"-+", line[here.offset :])]
                here.spans = list(zip([0, *ends[:-1]], [*ends[:-1], None], strict=True))
        elif is_blank:
            # The stacks of torch.profiler's rows end with a blank line each, and text between tables does as well.
            here = here if isinstance(here, _KeyAverages) else None
        elif here is not None and not is_framed and not here.take(line):
            here = None if was_blank and "source location" not in here.titles else _after(line, here)
        was_blank = is_blank


def _is_rule(line: str) -> bool:
    """Whether a line ends in strokes for several columns: under the titles, above them, or below the last row."""
    strokes = line[len(line.rstrip("- \t")) :].split()
    return len(strokes) > 1 and all(len(stroke) > 1 for stroke in strokes)


def _after(line: str, table: _Table) -> _Table | None:
    """The table, if a line that is no row of it may be a damaged one, or belongs to the row above it; else None."""
    cells = _cells(line, table.separator)
    units = {title[2] for title in map(_TITLE.match, map(str.lower, cells)) if title is not None}
    is_other = not units.isdisjoint((*_NANOSECONDS, "%")) or (table.separator == "," and len(cells) == 1)
    if is_other and not any(_NUMBER.match(cell.rstrip("%")) for cell in cells):
        return None
    if not ("source location" in table.titles and len(_GAP.split(line.strip())) == 1):
        table.unread_count += 1
    return table


def _cells(line: str, separator: str) -> list[str]:
    if separator == "|":
        return [_MARKUP.sub("", cell.strip()) for cell in line.strip().strip("|").split("|")]
    if separator == " ":
        return _GAP.split(line.strip())
    try:
        return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error:
        return [line]


def _table_at(line: str) -> _Table | None:
    """The table that a line of titles begins; None if it is none of kernels or operations."""
    if not _MAY_BE_TITLES.search(line):
        return None
    if line.lstrip().startswith("|"):
        return _table_of(_cells(line, "|"), "|")
    if "," in line and (found := _table_of(_cells(line, ","))) is not None:
        return found
    if len(line) < _LONGEST_TITLES and (squeezed := _SQUEEZED.search(line)) is not None:
        offset = len(line[: squeezed.start()].rstrip())
        if (found := _table_of(_COLUMNS.findall(squeezed[0]), " ", offset)) is not None:
            return found
    return _table_of(_cells(line, " "), " ")


_MAY_BE_TITLES = re.compile(r"(?:name|operation)\b", re.IGNORECASE)
_SAME_TITLES = {"number of calls": "# of calls", "calls": "# of calls"}


def _table_of(cells: Sequence[str], separator: str = ",", offset: int = 0) -> _Table | None:
    lower = [cell.lower() for cell in cells]
    if "name" in lower and not {"self cpu", "self cpu total", "cpu total"}.isdisjoint(lower):
        titles = [re.sub(r"^(self \w+) total", r"\1", _SAME_TITLES.get(title, title)) for title in lower]
        is_whole = "# of calls" in titles and len(set(titles)) == len(titles)
        return _KeyAverages(_LAYOUTS[-1], titles, separator, offset) if is_whole else None
    titles, units = [], {}
    for cell in lower:
        found = _TITLE.match(cell)
        title, unit = (found[1] + (found[3] or ""), found[2]) if found else (cell, "")
        # "Time (%)" beside "Time": the share is never used.
        titles.append(title if unit != "%" and title not in titles else cell)
        if unit in _NANOSECONDS:
            units[titles[-1]] = unit
    layout = next((layout for layout in _LAYOUTS[:-1] if layout.fits(titles)), None)
    return None if layout is None else _Table(layout, titles, units, separator, offset)


def _whole(cell: str) -> int:
    """A whole number; ``NONE`` for anything else."""
    return int(text) if (text := cell.replace(",", "")).isdecimal() and len(text) < 19 else NONE


def _nanoseconds(cell: str, unit: str = "") -> int | None:
    found = _NUMBER.match(cell)
    factor = None if found is None else _NANOSECONDS.get(found[4] or unit)
    if found is None or factor is None:
        return None
    whole, rest = int(found[1].replace(",", "")), f"{found[2] or ''}{found[3] or ''}"
    nanoseconds = round(float(f"{whole}{rest}") * factor) if rest else whole * factor  # a double has 53 bits only
    return nanoseconds if nanoseconds < _LARGEST else None
