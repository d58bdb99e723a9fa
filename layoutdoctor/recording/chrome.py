"""
Reads a Chrome trace as profilers of PyTorch write it: Kineto's since 2020, torch's own exporter, what tools re-dump.

One pass, typed, batch by batch; what is kept are columns of numbers. Of a recorded Python stack only
the frames that name a place are kept: calls of nn.Modules, and functions that are not torch's own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from layoutdoctor.recording.event_stream import events_of
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
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from layoutdoctor.recording.event_stream import EventStream
    from layoutdoctor.recording.files import TraceFile
    from layoutdoctor.recording.recording import Column

MODULE_PREFIX = "nn.Module: "

FRAME = re.compile(r"^(?P<file>[^<>]+\.py)\((?P<line>\d{1,9})\): (?P<function>.+)$")
"""A frame as the profiler names it: ``models/unet.py(140): forward``."""

_LIBRARY_FILE = re.compile(
    r"(?:^|/)(?:torch|torchvision/ops|functorch|triton)/|^(?:threading|contextlib|runpy|asyncio/.*)\.py$"
    r"|^<frozen|/lib/python3\.\d+/(?!site-packages)|(?:^|/)torchinductor_[^/]*/"
    r"|(?:^|/)aiter/jit/|(?:^|/)torch_guard\.py$"
)

_NANOSECONDS_PER_MICROSECOND = 1000
_MOST_MICROSECONDS = float(1 << 53)  # beyond it a double cannot tell neighbouring microseconds apart
_LONGEST_MICROSECONDS = 7 * 24 * 3600 * 1e6  # CUPTI's counters overflow into years; no kernel runs for a week
_INT64 = 1 << 63
_DIGITS = re.compile(r"\d+")
_NO_JSON = b"\0"  # stands in no JSON, so it can stand between the texts of an operation's arguments
_NO_ARGUMENT_TEXTS = _NO_JSON * 7

_KERNEL, _TRANSFER, _OPERATION, _LAUNCH, _FRAME, _ANNOTATION = range(6)
_KINDS = {
    "kernel": _KERNEL,
    "gpu_memcpy": _TRANSFER,
    "gpu_memset": _TRANSFER,
    "memcpy": _TRANSFER,
    "memset": _TRANSFER,
    "cpu_op": _OPERATION,
    "operator": _OPERATION,
    "cuda_runtime": _LAUNCH,
    "cuda_driver": _LAUNCH,
    "xpu_runtime": _LAUNCH,
    "xpu_driver": _LAUNCH,
    "mtia_runtime": _LAUNCH,
    "privateuse1_runtime": _LAUNCH,
    "privateuse1_driver": _LAUNCH,
    "runtime": _LAUNCH,
    "python_function": _FRAME,
    "user_annotation": _ANNOTATION,
}
"""Categories, in lower case: those of 2020 began with a capital."""

FOREIGN_EVENTS = "events of a device that is not understood: "
# Of devices whose events have other names and meanings; Kineto's ActivityType.
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
    What is read of an event's ``args``; texts that are not always needed stay JSON.

    Names with ``_2020`` are those of torch 1.8 and 1.9.
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
    kernel_file: msgspec.Raw = NO_TEXT
    kernel_options: msgspec.Raw = NO_TEXT
    call_stack: msgspec.Raw = NO_TEXT


_NO_ARGUMENTS = EventArguments()
_NOT_A_NUMBER = float("nan")


class ChromeEvent(msgspec.Struct, gc=False):
    """An event; times are microseconds on the trace's own clock, and not a number where they are missing."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: EventId = None
    tid: EventId = None
    ts: float | int = _NOT_A_NUMBER  # an event without its time is not understood
    dur: float | int = _NOT_A_NUMBER
    args: EventArguments = _NO_ARGUMENTS


decode_events = msgspec.json.Decoder(list[ChromeEvent]).decode
_decode_one = msgspec.json.Decoder(ChromeEvent).decode
_ANYTHING = msgspec.json.Decoder()


def decode_loosely(text: bytes) -> ChromeEvent | None:
    """An event some of whose fields are of another type than profilers write; None where it is no event."""
    try:
        return _decode_one(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        cleaned = _cleaned(_ANYTHING.decode(text.decode("utf-8", "replace")))
        return _decode_one(msgspec.json.encode(cleaned)) if cleaned is not None else None
    except (msgspec.MsgspecError, OverflowError, RecursionError, UnicodeEncodeError):
        return None


def _cleaned(found: Any) -> dict[str, Any] | None:
    """The fields of an event that have the types that profilers write; None where it is no event."""
    if not isinstance(found, dict):
        return None
    cleaned = {key: value for key, value in found.items() if _fits(key, value)}
    arguments = found.get("args")
    if isinstance(arguments, dict):
        cleaned["args"] = {key: value for key, value in arguments.items() if key not in _IDS or _is_id(value)}
    if cleaned.get("ph") == "X" and not cleaned.keys() >= _TIMES:
        return None  # an event whose time is not known
    return cleaned


_TIMES = {"ts", "dur"}
_IDS = {"External id", "external id", "correlation", "Sequence number", "Fwd thread id", "stream", "device"}


def _fits(key: str, value: object) -> bool:
    if key in ("ph", "cat", "name"):
        return isinstance(value, str)
    if key in _TIMES:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return key in ("pid", "tid") and _is_id(value)


def _is_id(value: object) -> bool:
    return isinstance(value, (int, str, float)) and not isinstance(value, bool)


def read_chrome_trace(file: TraceFile) -> RecordedTrace:
    """
    Reads a Chrome trace.

    Raises:
        TraceError: It cannot be read, or is no Chrome trace.
    """
    reader = _Reader()
    stream, batches = events_of(file, decode_events, decode_loosely)
    for batch in batches:
        reader.add(batch)
    trace = reader.finish()
    # Recordings are given to others, and nothing asks for the name of the machine.
    trace.metadata = {name: value for name, value in stream.metadata.items() if name != "host_name"}
    trace.is_truncated = stream.is_truncated or file.is_cut
    trace.problems = _problems(stream, reader, trace)
    return trace


def _problems(stream: EventStream[ChromeEvent], reader: _Reader, trace: RecordedTrace) -> list[Problem]:
    found = [Problem(f"mended: {kind}", count) for kind, count in sorted(stream.damage.items())]
    lost = stream.lost_count + reader.unreadable_count
    if lost:
        found.append(Problem("events that could not be read", lost, is_loss=True))
    for category, count in sorted(reader.foreign.items()):
        found.append(Problem(f"{FOREIGN_EVENTS}{category}", count, is_loss=True))
    if trace.is_truncated:
        found.append(Problem("the file ends before its document does; what was complete is kept"))
    return found


_Column = Callable[[list[ChromeEvent], list[EventArguments]], "Column"]
_NAME, _START, _DURATION = attrgetter("name"), attrgetter("ts"), attrgetter("dur")
_THREAD = attrgetter("pid", "tid")


class _Interned(dict[Any, int]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number


class _Takers(dict[str, "Callable[[ChromeEvent], None]"]):
    """What to do with an event of a category; nothing with those of no kind."""

    def __init__(self, kinds: dict[int, list[ChromeEvent]], foreign: dict[str, list[ChromeEvent]]) -> None:
        super().__init__()
        self.kinds, self.foreign = kinds, foreign

    def __missing__(self, category: str) -> Callable[[ChromeEvent], None]:
        kind = _KINDS.get(category.lower())
        if kind is None and _FOREIGN.fullmatch(category):
            take = self.foreign.setdefault(category, []).append
        else:
            take = self.kinds[kind].append if kind is not None else _pass_over
        self[category] = take
        return take


def _pass_over(event: ChromeEvent) -> None:
    """Of a category that nothing is read of."""


class _NamesPlace(dict[str, bool]):
    """Whether a frame's name is that of a place in the user's program; asked once per name."""

    def __missing__(self, name: str) -> bool:
        found = self[name] = is_module_call(name) or is_user_function(name)
        return found


class _Reader:
    """Collects the columns of a trace."""

    def __init__(self) -> None:
        self.event_count = 0
        self.unreadable_count = 0
        self.foreign: Counter[str] = Counter()
        self.names = _Interned()
        self.threads = _Interned()
        self.grids = _Interned()
        self.arguments = _Interned({_NO_ARGUMENT_TEXTS: 0})  # its number less one is NONE
        self.names_place = _NamesPlace()
        self.has_stack = False
        threads, external, correlation = self._threads_of, _external, _ids_of("correlation")
        place = (_devices, _streams)
        self.further: dict[int, tuple[_Column, ...]] = {
            _KERNEL: (*place, correlation, external, self._grids_of),
            _TRANSFER: place,
            _OPERATION: (threads, external, _ids_of("sequence"), _ids_of("forward_thread"), self._arguments_of),
            _LAUNCH: (threads, correlation, external),
            _FRAME: (threads,),
            _ANNOTATION: (threads,),
        }
        """Columns of each table behind name, start and duration."""
        self.tables: dict[int, list[list[Column]]] = {kind: [] for kind in self.further}
        """Columns of each batch."""

    def add(self, batch: list[ChromeEvent]) -> None:
        """Takes the events of one batch that matter."""
        self.event_count += len(batch)
        kinds: dict[int, list[ChromeEvent]] = {kind: [] for kind in self.tables}
        foreign: dict[str, list[ChromeEvent]] = {}
        take = _Takers(kinds, foreign)
        for event in batch:
            if event.ph == "X":
                take[event.cat](event)
        if kinds[_FRAME]:
            self.has_stack = True
            names_place = self.names_place
            kinds[_FRAME] = [event for event in kinds[_FRAME] if names_place[event.name]]
        for kind, events in kinds.items():
            if events:
                self._add_kind(kind, events)
        self.foreign.update({category: len(events) for category, events in foreign.items()})

    def _add_kind(self, kind: int, events: list[ChromeEvent]) -> None:
        start, duration = _microseconds(_START, events), _microseconds(_DURATION, events)
        with np.errstate(invalid="ignore"):
            good = (np.abs(start) < _MOST_MICROSECONDS) & (duration >= 0) & (duration < _LONGEST_MICROSECONDS)
        if not good.all():
            self.unreadable_count += int(len(events) - good.sum())
            events = [event for event, is_good in zip(events, good, strict=True) if is_good]
            start, duration = start[good], duration[good]
        if not events:
            return
        name = np.fromiter(map(self.names.__getitem__, map(_NAME, events)), np.int64, len(events))
        arguments = [event.args for event in events]
        further = [column(events, arguments) for column in self.further[kind]]
        self.tables[kind].append([name, _nanoseconds(start), _nanoseconds(duration), *further])

    def _threads_of(self, events: list[ChromeEvent], arguments: list[EventArguments]) -> Column:
        return np.fromiter(map(self.threads.__getitem__, map(_THREAD, events)), np.int64, len(events))

    def _grids_of(self, events: list[ChromeEvent], arguments: list[EventArguments]) -> Column:
        grids = self.grids
        return np.array([grids[bytes(a.grid)] if a.grid is not NO_TEXT else NONE for a in arguments], np.int64)

    def _arguments_of(self, events: list[ChromeEvent], arguments: list[EventArguments]) -> Column:
        keys = (
            _NO_JSON.join(
                (a.shapes, a.shapes_2020, a.strides, a.types, a.values, a.kernel_file, a.kernel_options, a.call_stack)
            )
            for a in arguments
        )
        return np.fromiter(map(self.arguments.__getitem__, keys), np.int64, len(arguments)) - 1

    def _sorted(self, kind: int, *, longest_first: bool = False) -> list[Column]:
        """The columns of a table by start, and where asked by falling duration."""
        batches = self.tables.pop(kind)
        width = 3 + len(self.further[kind])
        joined = [
            np.concatenate([batch[place] for batch in batches]) if batches else np.zeros(0, np.int64)
            for place in range(width)
        ]
        order = np.lexsort((-joined[2], joined[1])) if longest_first else np.argsort(joined[1], kind="stable")
        return [values[order] for values in joined]

    def finish(self) -> RecordedTrace:
        """The trace, sorted, with its times from its first event on."""
        kernels, transfers, launches = (self._sorted(kind) for kind in (_KERNEL, _TRANSFER, _LAUNCH))
        operations, frames, annotations = (
            self._sorted(kind, longest_first=True) for kind in (_OPERATION, _FRAME, _ANNOTATION)
        )
        first = min((int(table[1][0]) for table in (kernels, operations, launches) if len(table[1])), default=0)
        for table in (kernels, transfers, operations, launches, frames, annotations):
            table[1] -= first
        processes = _Interned()
        of_thread = np.array([processes[str(pid)] for pid, _ in self.threads] or [0], np.int64)
        for table in (kernels, transfers):
            table.append(np.zeros_like(table[0]))  # of which process: one wrote the file
        launches[2:] = [*launches[3:], of_thread[launches[3]]]  # how long a launch took is not kept
        return RecordedTrace(
            source="Kineto trace",
            names=list(self.names),
            kernels=KernelEvents(*kernels),
            transfers=TransferEvents(*transfers),
            operations=OperationEvents(*operations),
            launches=LaunchEvents(*launches),
            frames=FrameEvents(*frames),
            annotations=FrameEvents(*annotations),
            threads=[(str(pid), str(tid)) for pid, tid in self.threads],
            processes=list(processes),
            grids=[_grid(text) for text in self.grids],
            arguments=[_operation_arguments(key) for key in islice(self.arguments, 1, None)],
            event_count=self.event_count,
            has_stack=self.has_stack,
            base_nanoseconds=first,
        )


def _microseconds(time_of: attrgetter[float | int], events: Sequence[ChromeEvent]) -> NDArray[np.float64]:
    try:
        return np.fromiter(map(time_of, events), np.float64, len(events))
    except OverflowError:  # a number of hundreds of digits
        times = (time_of(event) for event in events)
        return np.array([time if abs(time) < _MOST_MICROSECONDS else np.nan for time in times], np.float64)


def _nanoseconds(microseconds: NDArray[np.float64]) -> Column:
    """Whole nanoseconds; in one number, those of a whole clock are more than a double can tell apart."""
    whole = np.floor(microseconds)
    parts = np.rint((microseconds - whole) * _NANOSECONDS_PER_MICROSECOND)
    return whole.astype(np.int64) * _NANOSECONDS_PER_MICROSECOND + parts.astype(np.int64)


def _ids(values: Sequence[EventId]) -> Column:
    """A column of identifiers, ``NONE`` for what is missing or no number."""
    try:
        return np.array([NONE if value is None else value for value in values], np.int64)
    except (ValueError, TypeError, OverflowError):
        return np.array([_id(value) for value in values], np.int64)


def _id(value: EventId) -> int:
    if isinstance(value, str):
        digits = _DIGITS.search(value)
        value = int(digits[0][:19]) if digits else None
    if value is None or not -_INT64 <= value < _INT64:  # also where it is not a number
        return NONE
    return int(value)


def _ids_of(name: str) -> _Column:
    of = attrgetter(name)
    return lambda events, arguments: _ids(list(map(of, arguments)))


def _devices(events: list[ChromeEvent], arguments: list[EventArguments]) -> Column:
    return _ids([event.pid if a.device is None else a.device for event, a in zip(events, arguments, strict=True)])


def _streams(events: list[ChromeEvent], arguments: list[EventArguments]) -> Column:
    return _ids([event.tid if a.stream is None else a.stream for event, a in zip(events, arguments, strict=True)])


def _external(events: list[ChromeEvent], arguments: list[EventArguments]) -> Column:
    return _ids([a.external_2020 if a.external is None else a.external for a in arguments])


def _grid(text: bytes) -> tuple[int, int, int]:
    numbers = [int(number[:18]) for number in re.findall(r"\d+", text.decode("utf-8", "replace"))[:3]]
    x, y, z = (*numbers, *([1] * (3 - len(numbers))))
    return (x, y, z)


def _operation_arguments(key: bytes) -> OperationArguments:
    shapes, shapes_2020, strides, types, values, *texts = key.split(_NO_JSON)
    return OperationArguments(shapes or shapes_2020, strides, types, values, *(_text(text) for text in texts))


def _text(text: bytes) -> str:
    """What a JSON string says; empty where there is none."""
    if not text:
        return ""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return value if isinstance(value, str) else ""


def is_module_call(name: str) -> bool:
    """Whether a frame is the call of an nn.Module."""
    return name.startswith(MODULE_PREFIX)


def is_user_function(name: str) -> bool:
    """Whether a frame is a function in a Python file that is neither torch's nor Python's own, nor generated."""
    frame = FRAME.match(name)
    return frame is not None and _LIBRARY_FILE.search(frame["file"]) is None
