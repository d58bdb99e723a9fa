"""
Reads the SQLite file that ``nsys export --type sqlite`` makes of an Nsight Systems recording.

The file is somebody else's database: it is opened read-only, only plain tables are read, and every value is checked. A
table is read up to its first damaged page. ``torch.autograd.profiler.emit_nvtx`` writes the facts about an operation
into the text of a range; ``read_range_text`` takes this text apart.

Source:
    docs.nvidia.com/nsight-systems, exporter's SQLite schema; tables are made only if something was recorded, and
    columns were added over the years, so only ``start`` and ``end`` are required.
    torch 2.13, ``torch/csrc/profiler/util.cpp``, ``getNvtxStr``: the parts come in one order, each may be absent;
    before 1.13 there was no ``op_id`` and no ``input_op_ids``.
    sqlite.org, "Defense Against The Dark Arts", "URI Filenames".
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from layoutdoctor.errors import TraceError
from layoutdoctor.files.scratch import private_directory
from layoutdoctor.recording.recording import (
    NONE,
    OperationArguments,
    Problem,
    TraceBuilder,
)

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import RecordedTrace

_LONGEST_NAME = 1 << 16
"""Largest number of characters of a name that are kept; the longest kernel name seen has 5 160."""
_LARGEST = 1 << 62
"""Upper limit of a time, so that the difference of two times fits 64 bits."""
_MOST_DIGITS = 18
_SMALLEST_ROW_BYTES = 5
"""Lower limit of a row's size. If a table yields more rows than fit into the file, its damaged pages form a circle."""
_LONGEST_VALUE_BYTES = 16 << 20
_MOST_INFORMATION = 100

_KERNELS, _RUNTIME, _RANGES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_COPIES, _FILLS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS, _STRINGS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "StringIds"

_PROCESS_SHIFT = 24
_LOW_BITS = (1 << _PROCESS_SHIFT) - 1
"""A ``globalTid`` is machine, process (24 bits) and thread (24 bits) in one number; a ``globalPid`` has no thread."""

_RANGE_TYPES = (59, 60)
"""NVTX types of ranges: push/pop and start/end. Other types are marks, categories, names of threads and domains."""

_COPY_KINDS = dict(enumerate("HtoD DtoH HtoA AtoH AtoA AtoD DtoA DtoD HtoH PtoP".split(), start=1))
"""Names of copies by CUPTI's numbers; H is host, D device, A array, P peer."""

_VERSIONED = re.compile(r"_v\d{1,6}$")
_NO_NAME = "(name not recorded)"
_NO_KERNELS = f"no device kernels: the table {_KERNELS} is missing; record with nsys profile --trace=cuda,nvtx"
_WHOLE_GRAPH = "CUDA graph launches recorded without their kernels; record with --cuda-graph-trace=node"

_UNREADABLE = (sqlite3.Error, UnicodeError, OverflowError)
"""Errors that sqlite3 raises on damaged data. It raises a UnicodeError if its message would quote such data."""
_SIZES = msgspec.json.Decoder(list[list[int | list[int]]])


def read_nsys_export(path: Path) -> RecordedTrace:
    """
    Reads an Nsight Systems export: kernels, copies, runtime calls and NVTX ranges.

    Ranges that ``emit_nvtx`` made of PyTorch's operations become operations, all others annotations.

    Returns:
        The run. Its ``problems`` count the events that could not be read, and say if no kernels were recorded.

    Raises:
        TraceError: The file is no SQLite database, is damaged from its first page on, or holds none of the tables that
            Nsight Systems writes.
    """
    try:
        # Immutable: no lock, no journal, nothing is written beside the file.
        address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            reading = _Reading(connection, path.stat().st_size)
            if not {_KERNELS, _RUNTIME, _RANGES, _COPIES, _FILLS, _GRAPHS, _STRINGS} & reading.tables:
                raise TraceError(f"cannot read {str(path)!r}: {_instead(reading.tables)}")
            return reading.trace()
    except _UNREADABLE as error:
        raise TraceError(
            f"cannot read {str(path)!r}: its SQLite database is damaged ({str(error)[:200]}); "
            "make it again with nsys export --type sqlite"
        ) from error


def read_nsys_report(path: Path, nsys: str) -> RecordedTrace:
    """
    Reads a report of Nsight Systems: exports it into a temporary folder and reads the export.

    Args:
        nsys: Path of the program ``nsys``.

    Raises:
        TraceError: The report could not be exported, or the export could not be read.
        TransportError: The temporary folder cannot be made.
    """
    with private_directory() as folder:
        database = Path(folder) / "export.sqlite"
        options = ["--type", "sqlite", "--force-overwrite", "true", "--output", str(database)]
        command = [nsys, "export", *options, str(path.absolute())]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_EXPORT_SECONDS, check=False
            )
            said = " ".join(done.stderr.decode("utf-8", "replace").split())[-200:]
            why = f"exit status {done.returncode}: {said or 'no message'}"
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)[:300]
        if not database.is_file():
            raise TraceError(
                f"cannot examine {path.name!r}: nsys export made no database ({why}); "
                f"try nsys export --type sqlite {path.name}"
            )
        return read_nsys_export(database)


_EXPORT_SECONDS = 600


def _instead(tables: Iterable[str]) -> str:
    """Describes what a database without any table of Nsight Systems seems to be."""
    names = sorted(tables)
    expected = "expected the tables of an Nsight Systems export (nsys export --type sqlite)"
    if any(name.startswith("rocpd_") for name in names):
        expected += ", or a Kineto trace of the same run"
        return f"it is a rocprofiler database (rocpd), which is not supported; {expected}"
    if "StringTable" in names:
        return f"it is a database of nvprof or the Visual Profiler, which is not supported; {expected}"
    found = ", ".join(name[:40] for name in names[:5]) or "none"
    return f"it is an SQLite database of something else (its tables: {found}); {expected}"


class _Reading:
    """One export while it is read."""

    def __init__(self, connection: sqlite3.Connection, size_bytes: int) -> None:
        self.connection = connection
        self.most_rows = size_bytes // _SMALLEST_ROW_BYTES
        self.run = TraceBuilder()
        self.problems: Counter[str] = Counter()
        self.damaged: list[str] = []
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        if sys.version_info >= (3, 11):  # limits what an expression in the file can compute
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE_BYTES)
        for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
            connection.execute(f"PRAGMA {pragma}")
        # Views, which would run a statement in the file, and virtual tables are left out.
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        self.tables = frozenset(name for (name,) in found if isinstance(name, str))
        texts = self._rows(_STRINGS, "id", "value")
        self.strings = {number: text[:_LONGEST_NAME] for number, text in texts if isinstance(text, str)}

    def trace(self) -> RecordedTrace:
        self._read_kernels()
        self._read_launches()
        self._read_transfers()
        self._read_ranges()
        self.problems[_WHOLE_GRAPH] += sum(1 for _ in self._spans(_GRAPHS, "CUDA graph launches"))
        return self.run.trace(
            "nsys_export",
            threads=[(str(process & _LOW_BITS), str(thread)) for process, thread in self.run.threads],
            arguments=[OperationArguments(shapes=shapes) for shapes in self.run.arguments],
            metadata=self._metadata(),
            problems=[
                *(Problem(what, count) for what, count in self.problems.items() if count),
                *(Problem(f"the table {name} is damaged and ends early") for name in self.damaged),
            ],
        )

    def _read_kernels(self) -> None:
        self.problems[_NO_KERNELS] += _KERNELS not in self.tables
        columns = ("correlationId", "gridX", "gridY", "gridZ", "demangledName", "shortName", "mangledName")
        for row, (correlation, x, y, z, *ids) in self._on_device(_KERNELS, "device kernels", *columns):
            name = next((self.strings.get(number, _NO_NAME) for number in ids if _whole(number) != NONE), _NO_NAME)
            self.problems["device kernels without a name"] += name == _NO_NAME
            grid = (_whole(x), _whole(y), _whole(z))
            number = NONE if NONE in grid else self.run.grids[grid]
            self.run.add("kernels", name=self.run.names[name], correlation=_whole(correlation), grid=number, **row)

    def _read_transfers(self) -> None:
        for table, what in ((_COPIES, "copies"), (_FILLS, "fills")):
            for row, (kind,) in self._on_device(table, what, "copyKind"):
                copy = f"Memcpy {_COPY_KINDS.get(_whole(kind), 'of unknown direction')}"
                name = self.run.names[copy if table == _COPIES else "Memset (Device)"]
                self.run.add("transfers", name=name, **row)

    def _on_device(self, table: str, what: str, *columns: str) -> Iterator[tuple[dict[str, int], list[Any]]]:
        place = ("deviceId", "streamId", "globalPid")
        for span, (device, stream, process, *rest) in self._spans(table, what, *place, *columns):
            row = {"device": _whole(device), "stream": _whole(stream), "process": self._process(process)}
            yield span | row, rest

    def _read_launches(self) -> None:
        columns = ("globalTid", "correlationId", "nameId")
        for span, (thread, correlation, name) in self._spans(_RUNTIME, "runtime calls", *columns):
            if _whole(correlation) != NONE:
                self.run.add(
                    "launches",
                    name=self.run.names[_VERSIONED.sub("", self.strings.get(name, _NO_NAME))],
                    start=span["start"],
                    thread=self._thread(thread),
                    correlation=correlation,
                    process=self._process(thread),
                )

    def _read_ranges(self) -> None:
        wanted = ("start", "end", "eventType", "globalTid", "text", "textId")
        for start, end, kind, thread, text, text_id in self._rows(_RANGES, *wanted):
            if kind not in (*_RANGE_TYPES, None) or (kind is None and end is None):
                continue
            if end is None:
                self.problems["NVTX ranges that were not closed"] += 1
            elif self._is_span(start, end, "NVTX ranges"):
                known = text if isinstance(text, str) else self.strings.get(text_id, _NO_NAME)
                self.problems["NVTX ranges without a text"] += known == _NO_NAME
                said = read_range_text(known)
                row = {"start": start, "duration": end - start, "thread": self._thread(thread)}
                row["name"] = self.run.names[said.name]
                if said.is_operation:
                    self.problems["operations whose sizes could not be read"] += said.has_unread_sizes
                    number = self.run.arguments[said.shapes] if said.shapes else NONE
                    row |= {"sequence": said.sequence, "arguments": number}
                self.run.add("operations" if said.is_operation else "annotations", **row)

    def _metadata(self) -> dict[str, Any]:
        devices = dict(self._information("TARGET_INFO_GPU", "id", "name"))
        numbered = dict(self._information("TARGET_INFO_CUDA_DEVICE", "cudaId", "gpuId"))
        shown = {cuda: devices[gpu] for cuda, gpu in numbered.items() if gpu in devices} or devices
        names = {key: name for key, name in shown.items() if isinstance(key, int) and isinstance(name, str)}
        listed = [{"id": number, "name": names[number]} for number in sorted(names)]
        return {"deviceProperties": listed} if listed else {}

    def _information(self, table: str, *columns: str) -> list[tuple[Any, Any]]:
        """Reads the first rows of a small table that describes the machine; long texts are cut."""
        rows = islice(self._rows(table, *columns), _MOST_INFORMATION)
        return [(key, value[:200] if isinstance(value, str) else value) for key, value in rows]

    def _spans(self, table: str, what: str, *columns: str) -> Iterator[tuple[dict[str, int], list[Any]]]:
        """Yields the start and duration, and the values of ``columns``, for each row with a readable start and end."""
        for start, end, *values in self._rows(table, "start", "end", *columns):
            if self._is_span(start, end, what):
                yield {"start": start, "duration": end - start}, values

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """
        Yields the rows of a table as they are stored, up to the first damaged page; nothing if the table is missing.

        Args:
            columns: Names of the columns. A column that the table does not have is None in every row.
        """
        if table not in self.tables:
            return
        try:
            there = {row[1] for row in self.connection.execute(f'PRAGMA table_info("{table}")')}
            chosen = ", ".join(f'"{name}"' if name in there else "NULL" for name in columns)
            for count, row in enumerate(self.connection.execute(f'SELECT {chosen} FROM "{table}"')):
                if count > self.most_rows:
                    self.damaged.append(table)
                    return
                yield row
        except _UNREADABLE:
            self.damaged.append(table)

    def _is_span(self, start: object, end: object, what: str) -> bool:
        if type(start) is type(end) is int and -_LARGEST < start <= end < _LARGEST:
            return True
        self.problems[f"{what} whose times could not be read"] += 1
        return False

    def _process(self, number: object) -> int:
        key = _whole(number)
        return NONE if key == NONE else self.run.processes[key >> _PROCESS_SHIFT]

    def _thread(self, number: object) -> int:
        key = _whole(number)
        return NONE if key == NONE else self.run.threads[key >> _PROCESS_SHIFT, key & _LOW_BITS]


def _whole(value: object) -> int:
    """Returns the value if it is a whole number from 0 on; else ``NONE``."""
    return value if type(value) is int and 0 <= value < _LARGEST else NONE


class RangeText(NamedTuple):
    """
    The parts of the text of an NVTX range.

    Attributes:
        name: Name of the operation or range, such as ``aten::conv2d``.
        is_operation: Whether torch made the range for an operation; False if a person or a library named the range.
        sequence: Number that links an operation with the autograd node it made; ``NONE`` if the text has no number.
        shapes: Sizes of the arguments as JSON; empty if the text has no sizes.
        has_unread_sizes: Whether the text has sizes that could not be read, for example because it was cut.
    """

    name: str
    is_operation: bool
    sequence: int = NONE
    shapes: bytes = b""
    has_unread_sizes: bool = False


def read_range_text(text: str) -> RangeText:
    """
    Takes the text of a range apart.

    Args:
        text: The whole text, for example
            ``aten::conv2d, seq = 5, op_id = 12, sizes = [[1, 3, 8, 8], [4, 3, 1, 1]], input_op_ids = []``.
    """
    rest, _, _ = text.partition(", input_op_ids = ")
    rest, has_sizes, sizes = rest.partition(", sizes = ")
    rest, operation_id = _number_behind(rest, ", op_id = ")
    name, sequence = _number_behind(rest, ", seq = ")
    shapes = _shapes(sizes) if has_sizes else b""
    # record_function ranges carry an op_id as well, but no sequence number, no sizes and no namespace.
    has_own_id = operation_id != NONE and "::" in name
    is_operation = bool(has_sizes) or sequence != NONE or name.startswith("aten::") or has_own_id
    return RangeText(name[:_LONGEST_NAME], is_operation, sequence, shapes, bool(has_sizes) and not shapes)


def _number_behind(text: str, mark: str) -> tuple[str, int]:
    head, _, tail = text.rpartition(mark)
    if not (head and tail.isascii() and tail.isdigit()) or len(tail) > _MOST_DIGITS:
        return text, NONE
    return head, int(tail)


@lru_cache(maxsize=4096)  # a model's operations have the same sizes in every step
def _shapes(text: str) -> bytes:
    try:
        return msgspec.json.encode(_SIZES.decode(text))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return b""
