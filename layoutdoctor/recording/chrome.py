"""
Reads Chrome traces that Kineto (since 2020) or torch's own exporter wrote, also if another tool rewrote them later.

Events are decoded in batches and kept as columns. Of a Python stack, only nn.Module calls and user functions are kept.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from layoutdoctor.diagnosis.saved import UNREADABLE
from layoutdoctor.recording.event_stream import EventStream, as_utf8
from layoutdoctor.recording.recording import (
    EVENT_TABLES,
    NONE,
    Numbered,
    OperationArguments,
    Problem,
    RecordedTrace,
    event_tables,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from layoutdoctor.recording.files import TraceFile
    from layoutdoctor.recording.recording import Column

MODULE_PREFIX = "nn.Module: "

FRAME = re.compile(r"^(?P<file>[^<>]+\.py)\((?P<line>\d{1,9})\): (?P<function>.+)$")
"""The name of a Python frame in a trace, such as ``models/unet.py(140): forward``."""

_LIBRARY_FILE = re.compile(
    r"(?:^|/)(?:torch|torchvision/ops|functorch|triton)/|^(?:threading|contextlib|runpy|asyncio/.*)\.py$"
    r"|^<frozen|/lib/python3\.\d+/(?!site-packages)|(?:^|/)torchinductor_[^/]*/"
    r"|(?:^|/)aiter/jit/|(?:^|/)torch_guard\.py$|(?:^|/)layoutdoctor/run/"
)

_NANOSECONDS_PER_MICROSECOND = 1000
_MOST_MICROSECONDS = float(1 << 53)  # above it a double cannot tell neighbouring microseconds apart
_LONGEST_MICROSECONDS = 7 * 24 * 3600 * 1e6  # no kernel runs for a week; overflowed CUPTI counters give years
_INT64 = 1 << 63
_DIGITS = re.compile(r"\d+")
_NO_JSON = b"\0"  # a byte that no JSON contains; it separates the texts of an operation's arguments

_TABLES = {
    "kernel": "kernels",
    **dict.fromkeys(("gpu_memcpy", "gpu_memset", "memcpy", "memset"), "transfers"),
    **dict.fromkeys(("cpu_op", "operator"), "operations"),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime"), "launches"),
    **dict.fromkeys(("privateuse1_runtime", "privateuse1_driver", "runtime"), "launches"),
    "python_function": "frames",
    "user_annotation": "annotations",
}
"""The table of each event category. The keys are in lower case; categories of 2020 began with a capital."""

# Event categories (Kineto's ActivityType) of devices that are not understood; their events are only counted.
_FOREIGN = re.compile(r"(?:mtia_(?:ccp|workload)|hpu_|glow_|gcu_|npu|mlu)\w*", re.IGNORECASE)

EventId = int | str | float | None
NO_TEXT = msgspec.Raw(b"")


class EventArguments(
    msgspec.Struct,
    gc=False,
    frozen=True,
    rename={
        "external": "External id",
        "external_2020": "external id",
        "sequence": "Sequence number",
        "forward_thread": "Fwd thread id",
        "shapes": "Input Dims",
        "shapes_2020": "Input dims",
        "strides": "Input Strides",
        "types": "Input type",
        "values": "Concrete Inputs",
        "kernel_options": "kernel_kwargs",
        "call_stack": "Call stack",
    },
):
    """
    The fields of an event's ``args`` that this reader uses. A ``Raw`` field holds the JSON text, not decoded.

    Torch 1.8 and 1.9 wrote the fields ``external_2020`` and ``shapes_2020`` in place of ``external`` and ``shapes``.
    """

    external: EventId = None
    external_2020: EventId = None
    correlation: EventId = None
    sequence: EventId = None
    forward_thread: EventId = None
    stream: EventId = None
    device: EventId = None
    grid: msgspec.Raw = NO_TEXT
    shapes: msgspec.Raw = NO_TEXT
    shapes_2020: msgspec.Raw = NO_TEXT
    strides: msgspec.Raw = NO_TEXT
    types: msgspec.Raw = NO_TEXT
    values: msgspec.Raw = NO_TEXT
    kernel_options: msgspec.Raw = NO_TEXT
    call_stack: msgspec.Raw = NO_TEXT


_NO_ARGUMENTS = EventArguments()
_NOT_A_NUMBER = float("nan")


class ChromeEvent(msgspec.Struct, gc=False):
    """An event of the trace. Times are microseconds on the trace's own clock, or NaN if they are missing."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: EventId = None
    tid: EventId = None
    ts: float = _NOT_A_NUMBER  # an event without its time counts as unreadable
    dur: float = _NOT_A_NUMBER
    args: EventArguments = _NO_ARGUMENTS


decode_events = msgspec.json.Decoder(list[ChromeEvent]).decode
_decode_one = msgspec.json.Decoder(ChromeEvent).decode


def decode_loosely(text: bytes) -> ChromeEvent | None:
    """Decodes an event; a field of an unexpected type keeps its default. Returns None if the text is no JSON object."""
    try:
        return _decode_one(text)
    except UNREADABLE:
        fields = _fitting_fields(ChromeEvent, as_utf8(text))
        return None if fields is None else ChromeEvent(**fields)


_FIELDS = {kind: msgspec.structs.fields(kind) for kind in (ChromeEvent, EventArguments)}
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _fitting_fields(kind: type[ChromeEvent | EventArguments], text: bytes | msgspec.Raw) -> dict[str, Any] | None:
    """Returns the fields of a JSON object whose values have the declared types; None if the text is no JSON object."""
    try:
        found = _decode_fields(text)
    except UNREADABLE:
        return None
    fitting: dict[str, Any] = {}
    for field in _FIELDS[kind]:
        value = found.get(field.encode_name, NO_TEXT)
        if field.type is EventArguments:
            fitting[field.name] = EventArguments(**(_fitting_fields(EventArguments, value) or {}))
        else:
            with contextlib.suppress(*UNREADABLE):  # a field that is missing or has another type keeps its default
                fitting[field.name] = msgspec.json.decode(value, type=field.type)
    return fitting


def read_chrome_trace(file: TraceFile) -> RecordedTrace:
    """
    Reads a Chrome trace.

    Raises:
        TraceError: The file cannot be read, or is no Chrome trace.
    """
    reader = _Reader()
    stream = EventStream(file.pieces(), decode_events, decode_loosely, str(file.path))
    for batch in stream.batches():
        reader.add(batch)
    trace = reader.finish()
    # The machine's name is left out: no report needs it, and a recording may be given to others.
    trace.metadata = {name: value for name, value in stream.metadata.items() if name != "host_name"}
    trace.problems = _problems(stream, reader, is_truncated=stream.is_truncated or file.is_cut)
    return trace


def _problems(stream: EventStream[ChromeEvent], reader: _Reader, *, is_truncated: bool) -> list[Problem]:
    found = [Problem(f"mended: {kind}", count) for kind, count in sorted(stream.damage.items())]
    lost = stream.lost_count + reader.unreadable_count
    if lost:
        found.append(Problem("events that could not be read", lost, is_loss=True))
    for category, count in sorted(reader.foreign.items()):
        what = f"events of a device that is not understood: {category}"
        found.append(Problem(what, count, is_loss=True, device=category))
    if is_truncated:
        found.append(Problem("the file is cut off; its complete events are kept"))
    return found


_NAME, _START, _DURATION = attrgetter("name"), attrgetter("ts"), attrgetter("dur")
_THREAD = attrgetter("pid", "tid")


def _numbers(numbered: Numbered, keys: Iterable[Any], count: int) -> Column:
    return np.fromiter(map(numbered.__getitem__, keys), np.int64, count)


class _Reader:
    """Collects the columns of a trace."""

    def __init__(self) -> None:
        self.unreadable_count = 0
        self.foreign: Counter[str] = Counter()
        self.names, self.threads, self.grids = Numbered(), Numbered(), Numbered()
        self.arguments = Numbered({_argument_texts(_NO_ARGUMENTS): 0})  # columns hold number - 1: NONE is no arguments
        self.has_stack = False
        self.columns: dict[str, dict[str, list[Column]]] = {name: defaultdict(list) for name in EVENT_TABLES}
        """The parts of each column, one part per batch; by table and column name."""

    def add(self, batch: list[ChromeEvent]) -> None:
        """Adds the events of one batch to the columns, and counts the events of devices that are not understood."""
        by_category: defaultdict[str, list[ChromeEvent]] = defaultdict(list)
        for event in batch:
            if event.ph == "X":
                by_category[event.cat].append(event)
        for category, events in by_category.items():
            table = _TABLES.get(category.lower())
            if table is not None:
                self._add_events(table, events)
            elif _FOREIGN.fullmatch(category):
                self.foreign[category] += len(events)

    def _add_events(self, table: str, events: list[ChromeEvent]) -> None:
        if table == "frames":
            self.has_stack = True
            places = {name for name in set(map(_NAME, events)) if _is_place(name)}
            events = [event for event in events if event.name in places]
        start = np.fromiter(map(_START, events), np.float64, len(events))
        duration = np.fromiter(map(_DURATION, events), np.float64, len(events))
        with np.errstate(invalid="ignore"):
            good = (np.abs(start) < _MOST_MICROSECONDS) & (duration >= 0) & (duration < _LONGEST_MICROSECONDS)
        if not good.all():
            self.unreadable_count += int(len(events) - good.sum())
            events = [event for event, is_good in zip(events, good, strict=True) if is_good]
            start, duration = start[good], duration[good]
        if not events:
            return
        columns = {"start": _nanoseconds(start), "duration": _nanoseconds(duration)}
        columns["name"] = _numbers(self.names, map(_NAME, events), len(events))
        columns |= self._further_columns(table, events, [event.args for event in events])
        for name, column in columns.items():
            self.columns[table][name].append(column)

    def _further_columns(
        self, table: str, events: list[ChromeEvent], arguments: list[EventArguments]
    ) -> dict[str, Column]:
        found: dict[str, Column] = {}
        if table in ("kernels", "transfers"):
            pairs = list(zip(events, arguments, strict=True))
            found["device"] = _ids([event.pid if a.device is None else a.device for event, a in pairs])
            found["stream"] = _ids([event.tid if a.stream is None else a.stream for event, a in pairs])
        else:
            found["thread"] = _numbers(self.threads, map(_THREAD, events), len(events))
        if table in ("kernels", "launches"):
            found["correlation"] = _ids([a.correlation for a in arguments])
        if table in ("kernels", "operations"):
            found["external"] = _ids([a.external_2020 if a.external is None else a.external for a in arguments])
        if table == "kernels":
            grids = self.grids
            of_each = [grids[bytes(a.grid)] if a.grid is not NO_TEXT else NONE for a in arguments]
            found["grid"] = np.array(of_each, np.int64)
        if table == "operations":
            found["sequence"] = _ids([a.sequence for a in arguments])
            found["forward_thread"] = _ids([a.forward_thread for a in arguments])
            found["arguments"] = _numbers(self.arguments, map(_argument_texts, arguments), len(arguments)) - 1
        return found

    def finish(self) -> RecordedTrace:
        """Returns the trace. Its tables are sorted, and times count from the first kernel, operation or launch."""
        columns = {
            table: {name: np.concatenate(parts) for name, parts in of_table.items()}
            for table, of_table in self.columns.items()
        }
        starts = [columns[table]["start"] for table in ("kernels", "operations", "launches") if columns[table]]
        first = min((int(column.min()) for column in starts), default=0)
        processes = Numbered()
        of_thread = np.array([processes[str(pid)] for pid, _ in self.threads] or [0], np.int64)
        if launches := columns["launches"]:
            launches["process"] = of_thread[launches["thread"]]
        return RecordedTrace(
            source="kineto_trace",
            names=list(self.names),
            **event_tables(columns, first),
            threads=[(str(pid), str(tid)) for pid, tid in self.threads],
            grids=[_grid(text) for text in self.grids],
            arguments=[_operation_arguments(key) for key in islice(self.arguments, 1, None)],
            has_stack=self.has_stack,
            base_nanoseconds=first,
        )


def _nanoseconds(microseconds: NDArray[np.float64]) -> Column:
    """Converts whole and fractional microseconds separately: a double cannot hold a clock time in nanoseconds."""
    whole = np.floor(microseconds)
    parts = np.rint((microseconds - whole) * _NANOSECONDS_PER_MICROSECOND)
    return whole.astype(np.int64) * _NANOSECONDS_PER_MICROSECOND + parts.astype(np.int64)


def _ids(values: Sequence[EventId]) -> Column:
    """Makes a column of identifiers. ``"stream 7"`` becomes 7; an identifier without a number becomes ``NONE``."""
    try:
        return np.array([NONE if value is None else value for value in values], np.int64)
    except (ValueError, TypeError, OverflowError):
        return np.array([_id(value) for value in values], np.int64)


def _id(value: EventId) -> int:
    if isinstance(value, str):
        digits = _DIGITS.search(value)
        value = int(digits[0][:19]) if digits else None
    if value is None or not -_INT64 <= value < _INT64:  # also true for NaN
        return NONE
    return int(value)


def _grid(text: bytes) -> tuple[int, int, int]:
    numbers = [int(number[:18]) for number in re.findall(r"\d+", text.decode("utf-8", "replace"))[:3]]
    x, y, z = (*numbers, *([1] * (3 - len(numbers))))
    return (x, y, z)


def _argument_texts(a: EventArguments) -> bytes:
    texts = (a.shapes, a.shapes_2020, a.strides, a.types, a.values, a.kernel_options, a.call_stack)
    return _NO_JSON.join(texts)


def _operation_arguments(key: bytes) -> OperationArguments:
    shapes, shapes_2020, strides, types, values, *texts = key.split(_NO_JSON)
    return OperationArguments(shapes or shapes_2020, strides, types, values, *(_text(text) for text in texts))


def _text(text: bytes) -> str:
    """Returns the value of a JSON string; an empty string if the text is no JSON string."""
    try:
        return msgspec.json.decode(text, type=str)
    except UNREADABLE:
        return ""


@cache
def _is_place(name: str) -> bool:
    return is_module_call(name) or is_user_function(name)


def is_module_call(name: str) -> bool:
    """Whether a frame is the call of an nn.Module."""
    return name.startswith(MODULE_PREFIX)


def is_user_function(name: str) -> bool:
    """Whether a frame's function is outside torch, Triton, Python's own library, layoutdoctor and generated code."""
    frame = FRAME.match(name)
    return frame is not None and _LIBRARY_FILE.search(frame["file"]) is None
