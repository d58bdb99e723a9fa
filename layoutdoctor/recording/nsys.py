"""
Reads the SQLite file that ``nsys export --type sqlite`` makes of an Nsight Systems recording.

The file is somebody else's database: it is opened read-only, only plain tables are read, every value is checked, and a
damaged page ends a table instead of the reading. ``torch.autograd.profiler.emit_nvtx`` puts all it knows of an
operation into the text of a range, which is taken apart here.

Source:
    docs.nvidia.com/nsight-systems, exporter's SQLite schema; tables are made only where something was recorded, and
    columns came over the years, so nothing but ``start`` and ``end`` is taken for granted.
    torch 2.13, ``torch/csrc/profiler/util.cpp``, ``getNvtxStr``: the parts come in one order, each may be absent;
    before 1.13 there was no ``op_id`` and no ``input_op_ids``.
    sqlite.org, "Defense Against The Dark Arts", "URI Filenames", "The SQLite Database File Format".
"""

from __future__ import annotations

import re
import sqlite3
import sys
from array import array
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from layoutdoctor.errors import TraceError
from layoutdoctor.recording.recording import (
    NONE,
    FrameEvents,
    KernelEvents,
    LaunchEvents,
    OperationArguments,
    OperationEvents,
    Problem,
    RecordedTrace,
    TransferEvents,
    sorted_events,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from layoutdoctor.recording.recording import Column, Events

LONGEST_NAME = 1 << 16
"""Characters of a name that are kept; the longest kernel name seen has 5 160."""

_MOST_DIGITS = 18
_LARGEST = 1 << 62
"""Differences of two times below it fit 64 bits."""

_Sizes = list[list[int | list[int]]]

_KERNELS, _RUNTIME, _RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_COPIES, _FILLS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS, _STRINGS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "StringIds"
_OURS = (_KERNELS, _RUNTIME, _RANGES, _COPIES, _FILLS, _GRAPHS, _STRINGS)

_PROCESS_SHIFT = 24
_LOW_BITS = (1 << _PROCESS_SHIFT) - 1
"""A ``globalTid`` is machine, process (24 bits) and thread (24 bits) in one number; a ``globalPid`` has no thread."""

_RANGE_TYPES = (59, 60)
"""NVTX ranges: pushed and popped, started and ended. Others are marks, categories, names of threads and domains."""

_COPY_KINDS = dict(enumerate("HtoD DtoH HtoA AtoH AtoA AtoD DtoA DtoD HtoH PtoP".split(), start=1))
"""CUPTI's numbers: host, device, array, peer."""

_VERSIONED = re.compile(r"_v\d{1,6}$")
_NO_NAME = "(name not recorded)"
_NO_TEXT = "NVTX ranges without a text"
_NO_KERNELS = f"no device kernels: the table {_KERNELS} is missing; record with nsys profile --trace=cuda,nvtx"
_WHOLE_GRAPH = "CUDA graph launches recorded without their kernels; record with --cuda-graph-trace=node"
_MOST_INFORMATION = 100


def read_nsys_export(path: Path) -> RecordedTrace:
    """
    Reads an Nsight Systems export: kernels, copies, runtime calls and NVTX ranges.

    Ranges that ``emit_nvtx`` made of PyTorch's operations become operations, all others annotations.

    Returns:
        The run. What could not be read is counted in ``problems``; where no kernels were recorded that is one of them.

    Raises:
        TraceError: The file cannot be opened, is no SQLite database, is damaged from its first page on, or holds none
            of the tables that Nsight Systems writes.
    """
    with closing(open_database(path)) as database:
        tables = database.tables()
        if not any(name in tables for name in _OURS):
            raise TraceError(f"cannot read {str(path)!r}: {_instead(tables)}")
        return _Reading(database, tables).trace()


def _instead(tables: Iterable[str]) -> str:
    """What a database without any table of ours seems to be."""
    names = sorted(tables)
    expected = "expected the tables of an Nsight Systems export (nsys export --type sqlite)"
    if any(name.startswith("rocpd_") for name in names):
        return f"it is a rocprofiler database (rocpd), which is not read; {expected}, or a Kineto trace of the same run"
    if "StringTable" in names:
        return f"it is a database of nvprof or the Visual Profiler, which is not read; {expected}"
    found = ", ".join(name[:40] for name in names[:5]) or "none"
    return f"it is an SQLite database of something else (its tables: {found}); {expected}"


class _Columns:
    """Columns while they grow, by name; 8 bytes for each value."""

    def __init__(self, *names: str) -> None:
        self.values = {name: array("q") for name in names}

    def add(self, **row: int) -> None:
        for name, value in row.items():
            self.values[name].append(value)

    def column(self, name: str) -> Column:
        return np.array(self.values[name], dtype=np.int64)


class _Reading:
    """One export while it is read; names, threads and processes are interned on the way."""

    def __init__(self, database: Database, tables: Iterable[str]) -> None:
        self.database = database
        self.tables = frozenset(tables)
        self.names: dict[str, int] = {}
        self.processes: dict[int, int] = {}
        self.threads: dict[tuple[int, int], int] = {}
        self.grids: dict[tuple[int, int, int], int] = {}
        self.arguments: dict[bytes, int] = {}
        self.problems: Counter[str] = Counter()

    def trace(self) -> RecordedTrace:
        kernels, launches, transfers = self._kernels(), self._launches(), self._transfers()
        ranges, text_ids = self._ranges()
        for start, end in self._rows(_GRAPHS, ("start", "end")):
            if self._is_span(start, end, "CUDA graph launches"):
                self.problems[_WHOLE_GRAPH] += 1
        event_count = self.database.row_count
        self._resolve(kernels, launches, ranges, text_ids)
        base = min(min(part.values["start"], default=_LARGEST) for part in (kernels, launches, transfers, ranges))
        base = 0 if base == _LARGEST else base
        are_operations = ranges.column("is_operation") == 1
        processes = [str(key & _LOW_BITS) for key in self.processes] or ["not recorded"]
        trace = RecordedTrace(
            source="Nsight Systems export",
            names=list(self.names),
            kernels=self._events(KernelEvents, kernels, base),
            transfers=self._events(TransferEvents, transfers, base),
            operations=self._events(OperationEvents, ranges, base, are_operations),
            launches=self._events(LaunchEvents, launches, base),
            frames=sorted_events(FrameEvents),
            annotations=self._events(FrameEvents, ranges, base, ~are_operations),
            threads=[(str(process & _LOW_BITS), str(thread)) for process, thread in self.threads],
            processes=processes,
            grids=list(self.grids),
            arguments=[OperationArguments(shapes=shapes) for shapes in self.arguments],
            metadata=self._metadata(),
            event_count=event_count,
            base_nanoseconds=base,
        )
        trace.is_truncated = bool(self.database.damaged)
        trace.problems = [Problem(what, count) for what, count in self.problems.items()]
        trace.problems += [Problem(f"the table {name} is damaged and ends early") for name in self.database.damaged]
        return trace

    def _kernels(self) -> _Columns:
        kernels = _Columns(*KernelEvents.__slots__)
        if _KERNELS not in self.tables:
            self.problems[_NO_KERNELS] += 1
            return kernels
        wanted = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
        names = ("demangledName", "shortName", "mangledName")
        for row in self.database.rows(_KERNELS, (*wanted, "gridX", "gridY", "gridZ", *names)):
            start, end, device, stream, correlation, process = row[:6]
            if not self._is_span(start, end, "device kernels"):
                continue
            name = next((item for item in map(_whole_number, row[9:]) if item != NONE), NONE)
            kernels.add(
                name=name,
                start=start,
                duration=end - start,
                device=_whole_number(device),
                stream=_whole_number(stream),
                correlation=_whole_number(correlation),
                external=NONE,
                grid=self._grid(row[6:9]),
                process=self._process(process),
            )
        return kernels

    def _launches(self) -> _Columns:
        launches = _Columns(*LaunchEvents.__slots__)
        wanted = ("start", "end", "globalTid", "correlationId", "nameId")
        for start, end, thread, correlation, name in self._rows(_RUNTIME, wanted):
            if self._is_span(start, end, "runtime calls") and _whole_number(correlation) != NONE:
                launches.add(
                    name=_whole_number(name),
                    start=start,
                    thread=self._thread(thread),
                    correlation=correlation,
                    external=NONE,
                    process=self._process(thread),
                )
        return launches

    def _transfers(self) -> _Columns:
        transfers = _Columns(*TransferEvents.__slots__)
        wanted = ("start", "end", "deviceId", "streamId", "globalPid")
        for table, what in ((_COPIES, "copies"), (_FILLS, "fills")):
            for start, end, device, stream, process, kind in self._rows(table, (*wanted, "copyKind")):
                if not self._is_span(start, end, what):
                    continue
                copy = f"Memcpy {_COPY_KINDS.get(_whole_number(kind), 'of unknown direction')}"
                transfers.add(
                    name=self._name(copy if table == _COPIES else "Memset (Device)"),
                    start=start,
                    duration=end - start,
                    device=_whole_number(device),
                    stream=_whole_number(stream),
                    process=self._process(process),
                )
        return transfers

    def _ranges(self) -> tuple[_Columns, array[int]]:
        """All NVTX ranges, and for each the id of its text; ``NONE`` where the text stood beside it."""
        ranges = _Columns(*OperationEvents.__slots__, "is_operation")
        text_ids = array("q")
        wanted = ("start", "end", "eventType", "globalTid", "text", "textId")
        for start, end, kind, thread, text, text_id in self._rows(_RANGES, wanted):
            if kind not in (*_RANGE_TYPES, None) or (kind is None and end is None):
                continue
            if end is None:
                self.problems["NVTX ranges that were not closed"] += 1
            elif self._is_span(start, end, "NVTX ranges"):
                is_here = isinstance(text, str)
                ranges.add(start=start, duration=end - start, thread=self._thread(thread), external=NONE)
                ranges.add(forward_thread=NONE, **self._said(text if is_here else None))
                text_ids.append(NONE if is_here else _whole_number(text_id))
                if not is_here and text_ids[-1] == NONE:
                    self.problems[_NO_TEXT] += 1
        return ranges, text_ids

    def _said(self, text: str | None) -> dict[str, int]:
        """What a range's text says, as values of columns."""
        said = read_range_text(_NO_NAME if text is None else text)
        if said.has_unread_sizes:
            self.problems["operations whose sizes could not be read"] += 1
        return {
            "name": self._name(said.name),
            "sequence": said.sequence,
            "arguments": self.arguments.setdefault(said.shapes, len(self.arguments)) if said.shapes else NONE,
            "is_operation": int(said.is_operation),
        }

    def _resolve(self, kernels: _Columns, launches: _Columns, ranges: _Columns, text_ids: array[int]) -> None:
        """Puts names in the place of ids of strings; a string that nothing refers to is never kept."""
        wanted_names = set(kernels.values["name"]) | set(launches.values["name"])
        wanted_texts = set(text_ids) - {NONE}
        strings: dict[int, str] = {}
        said: dict[int, dict[str, int]] = {}
        for number, text in self._rows(_STRINGS, ("id", "value")):
            if not isinstance(text, str):
                continue
            if number in wanted_names:
                strings.setdefault(number, text[:LONGEST_NAME])
            if number in wanted_texts and number not in said:
                said[number] = self._said(text)
        self._replace(kernels, strings, "device kernels without a name")
        self._replace(launches, {number: _VERSIONED.sub("", text) for number, text in strings.items()}, None)
        for row, number in enumerate(text_ids):
            if number != NONE and number not in said:
                self.problems[_NO_TEXT] += 1
            for name, value in said.get(number, {}).items():
                ranges.values[name][row] = value

    def _replace(self, columns: _Columns, strings: dict[int, str], problem: str | None) -> None:
        values = columns.values["name"]
        for row, number in enumerate(values):
            text = strings.get(number)
            if text is None and problem is not None:
                self.problems[problem] += 1
            values[row] = self._name(_NO_NAME if text is None else text)

    def _events(
        self, kind: type[Events], columns: _Columns, base: int, chosen: NDArray[np.bool_] | None = None
    ) -> Events:
        found = {name: columns.column(name) for name in kind.__slots__}
        if chosen is not None:
            found = {name: values[chosen] for name, values in found.items()}
        if len(self.processes) <= 1:
            found.pop("process", None)
        return sorted_events(kind, found, base)

    def _metadata(self) -> dict[str, Any]:
        devices = {
            number: text
            for number, text in self._information("TARGET_INFO_GPU", "id", "name")
            if isinstance(number, int) and isinstance(text, str)
        }
        numbered = {
            cuda: gpu
            for cuda, gpu in self._information("TARGET_INFO_CUDA_DEVICE", "cudaId", "gpuId")
            if isinstance(cuda, int) and gpu in devices
        }
        shown = {cuda: devices[gpu] for cuda, gpu in numbered.items()} or devices
        versions = {
            key: value
            for key, value in self._information("META_DATA_EXPORT", "name", "value")
            if isinstance(key, str) and isinstance(value, str) and "VERSION" in key
        }
        found: dict[str, Any] = {"nsysExport": versions} if versions else {}
        if shown:
            found["deviceProperties"] = [{"id": number, "name": shown[number]} for number in sorted(shown)]
        return found

    def _information(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """The first rows of a small table that describes the machine; its text cut where it is too long."""
        rows = zip(range(_MOST_INFORMATION), self._rows(table, columns), strict=False)
        return [tuple(item[:200] if isinstance(item, str) else item for item in row) for _, row in rows]

    def _rows(self, table: str, columns: tuple[str, ...]) -> Iterable[tuple[Any, ...]]:
        return self.database.rows(table, columns) if table in self.tables else ()

    def _is_span(self, start: object, end: object, what: str) -> bool:
        if type(start) is not int or type(end) is not int:
            wrong = "whose times are no whole numbers"
        elif not (-_LARGEST < start < _LARGEST and -_LARGEST < end < _LARGEST):
            wrong = "whose times are too large"
        elif end < start:
            wrong = "that end before they start"
        else:
            return True
        self.problems[f"{what} {wrong}"] += 1
        return False

    def _name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def _grid(self, sizes: Iterable[object]) -> int:
        x, y, z = map(_whole_number, sizes)
        return NONE if NONE in (x, y, z) else self.grids.setdefault((x, y, z), len(self.grids))

    def _process(self, number: object) -> int:
        key = _whole_number(number)
        return NONE if key == NONE else self.processes.setdefault(key >> _PROCESS_SHIFT, len(self.processes))

    def _thread(self, number: object) -> int:
        key = _whole_number(number)
        if key == NONE:
            return NONE
        return self.threads.setdefault((key >> _PROCESS_SHIFT, key & _LOW_BITS), len(self.threads))


@dataclass(frozen=True, slots=True)
class RangeText:
    """
    The parts of a range's text.

    Attributes:
        name: Such as ``aten::conv2d``.
        is_operation: Whether torch wrote it for an operation; False for a range that a person or a library named.
        sequence: Links an operation with the autograd node it made; ``NONE`` where the text has none.
        shapes: Sizes of the arguments as JSON; empty where the text has none.
        has_unread_sizes: Whether there are sizes that could not be read, as in a text that was cut.
    """

    name: str
    is_operation: bool
    sequence: int = NONE
    shapes: bytes = b""
    has_unread_sizes: bool = False


def read_range_text(text: str) -> RangeText:
    """
    Takes a range's text apart.

    Args:
        text: Such as ``aten::conv2d, seq = 5, op_id = 12, sizes = [[1, 3, 8, 8], [4, 3, 1, 1]], input_op_ids = []``.
    """
    rest = _before(text, ", input_op_ids = ")[0]
    rest, sizes = _before(rest, ", sizes = ")
    rest, operation_id = _number_behind(rest, ", op_id = ")
    name, sequence = _number_behind(rest, ", seq = ")
    shapes = b"" if sizes is None else _shapes(sizes)
    # record_function ranges carry an op_id as well, but no sequence number, no sizes and no namespace.
    has_own_id = operation_id != NONE and "::" in name
    is_operation = sizes is not None or sequence != NONE or name.startswith("aten::") or has_own_id
    return RangeText(name[:LONGEST_NAME], is_operation, sequence, shapes, sizes is not None and not shapes)


def _before(text: str, mark: str) -> tuple[str, str | None]:
    """What stands before the last mark, and what behind it; None where there is no mark."""
    head, found, tail = text.rpartition(mark)
    return (head, tail) if found else (text, None)


def _number_behind(text: str, mark: str) -> tuple[str, int]:
    head, tail = _before(text, mark)
    if tail is None or not (tail.isascii() and tail.isdigit()) or len(tail) > _MOST_DIGITS:
        return text, NONE
    return head, int(tail)


@lru_cache(maxsize=4096)  # a model's operations have the same sizes in every step
def _shapes(text: str) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(text, type=_Sizes))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return b""


_HEADER_BYTES = 100
_SMALLEST_ROW_BYTES = 5
"""A row needs more than that in a file. One with more rows than that allows reads its pages over and over."""

_LONGEST_VALUE_BYTES = 16 << 20

_UNREADABLE = (sqlite3.Error, UnicodeError, OverflowError)
"""What sqlite3 raises on damaged data; UnicodeError where its own message quotes them."""


def _whole_number(value: object) -> int:
    """A whole number from a database; ``NONE`` for anything else."""
    return value if type(value) is int and 0 <= value < _LARGEST else NONE


def open_database(path: Path) -> Database:
    """
    Opens a database for reading.

    Raises:
        TraceError: It cannot be opened, is damaged, or is shorter than its header says.
    """
    with path.open("rb") as stream:
        expected = _size_in_header(stream.read(_HEADER_BYTES))
    size = path.stat().st_size
    if size < expected:
        raise TraceError(
            f"cannot read {str(path)!r}: it has {size} bytes and its header says {expected}, so it was cut off; "
            "copy or export it again"
        )
    return Database(path, path.absolute().as_uri(), size)


def _size_in_header(header: bytes) -> int:
    """Bytes a database should have; 0 where its header does not say."""
    if len(header) < _HEADER_BYTES:
        return _HEADER_BYTES
    page = int.from_bytes(header[16:18], "big")
    is_counted = header[24:28] == header[92:96]  # else an old program wrote last, and left the count as it was
    return (1 << 16 if page == 1 else page) * int.from_bytes(header[28:32], "big") if is_counted else 0


class Database:
    """
    An open database.

    Attributes:
        row_count: Rows of events read so far.
        damaged: Tables that ended in damage, in the order they were read.
    """

    def __init__(self, path: Path, address: str, size_bytes: int) -> None:
        self.row_count = 0
        self.damaged: list[str] = []
        self._path = path
        self._most_rows = size_bytes // _SMALLEST_ROW_BYTES
        try:
            # Immutable: no lock, no journal, nothing is written beside the file.
            self._connection = sqlite3.connect(f"{address}?mode=ro&immutable=1", uri=True)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error
        self._connection.text_factory = lambda data: data.decode("utf-8", "replace")
        if sys.version_info >= (3, 11):  # a column may be computed by an expression of the file's
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE_BYTES)

    def tables(self) -> frozenset[str]:
        """
        The names of the plain tables: no views, which would run a statement of the file's, and no virtual ones.

        Raises:
            TraceError: The schema cannot be read.
        """
        try:
            for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
                self._connection.execute(f"PRAGMA {pragma}")
            found = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
            return frozenset(name for (name,) in found if isinstance(name, str))
        except _UNREADABLE as error:
            self.close()
            raise self._unreadable(error) from error

    def rows(self, table: str, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
        """
        The rows of a table in the order they are stored, up to the first damaged page.

        Args:
            columns: What is wanted; a column that the table does not have is None in every row.
        """
        try:
            there = {row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")')}
            chosen = ", ".join(f'"{name}"' if name in there else "NULL" for name in columns)
            for count, row in enumerate(self._connection.execute(f'SELECT {chosen} FROM "{table}"')):
                if count > self._most_rows:
                    self.damaged.append(table)
                    return
                self.row_count += 1
                yield row
        except _UNREADABLE:
            self.damaged.append(table)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def _unreadable(self, error: Exception) -> TraceError:
        return TraceError(
            f"cannot read {str(self._path)!r}: its SQLite database is damaged ({str(error)[:200]}); "
            "make it again with nsys export --type sqlite"
        )
