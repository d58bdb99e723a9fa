"""
Writes a Chrome trace back with events of our own in it: what these must not collide with, how they nest, the copy.

Every event of the source is passed on byte for byte; only what is no JSON is written as the reader understood it, and
a document that ends too early is closed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.recording.event_stream import as_utf8, events_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from layoutdoctor.recording.event_stream import EventStream
    from layoutdoctor.recording.files import TraceFile

CATEGORY = "layoutdoctor"
"""Of every event that is added; the reader knows no such kind and passes over them."""

FIRST_OWN_THREAD = 900_000_000
"""Far above thread ids of Linux and stream numbers, and within the 32 bits that Perfetto keeps of a thread id."""

_MOST_FLOW_ID = 1 << 52
_NOTHING = msgspec.Raw(b"")
_PLAIN_TIME = re.compile(r"-?\d{1,17}(?:\.\d{1,20})?")
_MOST_MICROSECONDS = 1e17
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Event(msgspec.Struct, gc=False):
    """What is looked at in an event; numbers stay as the file writes them."""

    ph: str = ""
    cat: str = ""
    name: msgspec.Raw = _NOTHING
    pid: msgspec.Raw = _NOTHING
    tid: msgspec.Raw = _NOTHING
    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING
    id: msgspec.Raw = _NOTHING
    args: msgspec.Raw = _NOTHING


_decode_events = msgspec.json.Decoder(list[_Event]).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_raw = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_anything = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Span:
    """
    When an event ran, to the digit as the file writes it: no viewer rounds it otherwise than the event it marks.

    Attributes:
        start: Microseconds on the trace's own clock, as a JSON number without exponent.
        duration: Microseconds, likewise.
    """

    start: str
    duration: str

    @property
    def nanoseconds(self) -> tuple[int, int]:
        """Start and end in whole nanoseconds."""
        start, duration = Decimal(self.start), Decimal(self.duration)
        return int(start * 1000), int((start + duration) * 1000)

    @property
    def slack_nanoseconds(self) -> int:
        """How far the end may be off in a viewer that computes in doubles; nothing in whole microseconds."""
        if "." not in self.start and "." not in self.duration:
            return 0
        return 1 + int(2000 * math.ulp(float(self.start)))

    def until(self, other: Span) -> Span:
        """From the start of this one to the end of another one; empty where that ended before."""
        duration = Decimal(other.start) + Decimal(other.duration) - Decimal(self.start)
        return Span(self.start, f"{max(duration, Decimal(0)):f}")


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """
    A kernel as the file writes it.

    Attributes:
        name: Its name.
        span: When it ran.
        process: Its ``pid``, as JSON.
        thread: Its ``tid``, as JSON.
    """

    name: str
    span: Span
    process: str
    thread: str


class Survey:
    """
    What must be known of a trace before events are added to it, collected event by event.

    Attributes:
        kernels: The kernels that were asked for, in the order of the file; of a CPU the operations.
        first_start: Microseconds at which the first event of their kind began; infinity where there is none.
        sort_indices: Where viewers put the track of a process and thread (both as JSON).
        last_flow: The highest id of a flow.
    """

    def __init__(self, names: Collection[str], category: str = "kernel") -> None:
        self.kernels: list[KernelEvent] = []
        self.first_start = math.inf
        self.sort_indices: dict[tuple[str, str], int] = {}
        self.last_flow = 0
        self._names, self._category = frozenset(names), category
        self._known_names: dict[bytes, str | None] = {}
        self._ids: set[bytes] = set()

    def free_threads(self) -> Iterator[int]:
        """Thread ids that nothing in the trace has."""
        taken = {_number(_value(text), 10) for text in self._ids}
        return (number for number in count(FIRST_OWN_THREAD) if number not in taken)

    def add(self, event: _Event) -> None:
        """Takes the next event."""
        self._ids |= {bytes(event.tid), bytes(event.pid)}
        if event.ph == "X":
            if event.cat.lower() == self._category:
                self._add_kernel(event)
        elif event.ph == "M":
            self._add_metadata(event)
        elif event.ph in ("s", "t", "f"):
            self._add_flow(event)

    def _add_kernel(self, event: _Event) -> None:
        name = self._wanted_name(bytes(event.name))
        start, duration = _time(event.ts), _time(event.dur)
        self.first_start = min(self.first_start, math.inf if start is None else float(start))
        if name is not None and start is not None and duration is not None:
            kernel = KernelEvent(name, Span(start, duration), _id_text(event.pid), _id_text(event.tid))
            self.kernels.append(kernel)

    def _wanted_name(self, text: bytes) -> str | None:
        if text not in self._known_names:
            value = _value(text)
            name = value if isinstance(value, str) else ""
            self._known_names[text] = name if name in self._names else None
        return self._known_names[text]

    def _add_metadata(self, event: _Event) -> None:
        if bytes(event.name) != b'"thread_sort_index"':
            return
        arguments = _value(event.args)
        index = arguments.get("sort_index") if isinstance(arguments, dict) else None
        if isinstance(index, int):
            self.sort_indices[_id_text(event.pid), _id_text(event.tid)] = index

    def _add_flow(self, event: _Event) -> None:
        number = _number(_value(event.id), 16)
        if number is not None and self.last_flow < number < _MOST_FLOW_ID:
            self.last_flow = number


def survey_trace(file: TraceFile, names: Collection[str], category: str = "kernel") -> Survey:
    """
    Looks through a Chrome trace.

    Args:
        names: Of the kernels that are asked for.
        category: Of their events.

    Raises:
        TraceError: It cannot be read, or is no Chrome trace.
    """
    survey = Survey(names, category)
    _, batches = events_of(file, _decode_events, _decode_loosely)
    for batch in batches:
        for event in batch:
            survey.add(event)
    return survey


def annotated_pieces(file: TraceFile, added: Iterable[bytes]) -> Iterator[bytes]:
    """
    The document with further events in front of its own; complete JSON, whatever the source's end looks like.

    Args:
        added: The further events, as JSON.

    Raises:
        TraceError: The source cannot be read, or is no Chrome trace.
    """
    stream, batches = events_of(file, _decode_raw, msgspec.Raw)
    first = next(batches, [])  # the head is known from here on
    opening = _opening(stream)
    known = frozenset(stream.metadata)
    yield opening
    separator = b"\n"
    for event in added:
        yield separator + event
        separator = b",\n"
    while first:
        yield separator + as_utf8(b",\n".join(first))
        separator = b",\n"
        first = next(batches, [])
    yield b"\n" + _closing(stream, known)


def _opening(stream: EventStream[msgspec.Raw]) -> bytes:
    """What stands before the first event: the source's own, where it is JSON."""
    if stream.is_list:
        return b"["
    if _is_json(stream.head + b"]}"):
        return stream.head
    return b'{%b"traceEvents": [' % b"".join(field + b", " for field in _encoded(stream.metadata))


def _closing(stream: EventStream[msgspec.Raw], known: frozenset[str]) -> bytes:
    """What stands behind the last event, likewise; nothing closes a document that was cut off."""
    if stream.is_list:
        return b"]\n"
    if _is_json(b'{"_": []' + stream.tail):
        return b"]" + stream.tail + b"\n"
    further = {key: value for key, value in stream.metadata.items() if key not in known}
    return b"]%b}\n" % b"".join(b", " + field for field in _encoded(further))


def _encoded(fields: dict[str, Any]) -> Iterator[bytes]:
    """Fields of a damaged document that JSON can hold; what is no number of JSON's becomes null."""
    for key, value in fields.items():
        if key == "traceEvents":  # another list of events: of two, most readers take the last
            continue
        try:
            yield msgspec.json.encode({key: value})[1:-1]
        except (ValueError, RecursionError):  # half of a surrogate pair, or too deep
            continue


def _is_json(text: bytes) -> bool:
    try:
        _decode_anything(text)
    except _UNREADABLE:
        return False
    return True


def _decode_loosely(text: bytes) -> _Event | None:
    try:
        return _decode_event(text)
    except _UNREADABLE:
        return None


def _value(text: msgspec.Raw | bytes) -> Any:
    """What a piece of JSON says; None where it is missing or cannot be read."""
    try:
        return _decode_anything(bytes(text).decode("utf-8", "replace"))
    except _UNREADABLE:
        return None


def _number(value: Any, base: int) -> int | None:
    """A number, also one in a text; None for what is none."""
    try:
        return int(value, base) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _id_text(text: msgspec.Raw) -> str:
    """A process or thread id as JSON; viewers take a missing one for 0."""
    return bytes(text).decode("utf-8", "replace") or "0"


def _time(text: msgspec.Raw) -> str | None:
    """A time as the file writes it, without exponent; None where it is no number."""
    written = bytes(text).decode("utf-8", "replace")
    if _PLAIN_TIME.fullmatch(written):
        return written
    try:
        number = float(written)
    except ValueError:
        return None
    return f"{number:.3f}" if abs(number) < _MOST_MICROSECONDS else None


def assign_lanes(spans: Sequence[Span]) -> list[int]:
    """
    Spreads events over as few tracks as possible such that on each they are apart or nested.

    Perfetto drops an event that begins within another one of its track and ends behind it.

    Returns:
        The track of each, from 0.

    Source:
        google/perfetto issues 928 and 4280: complete events of one thread must nest.
    """
    times = [(*span.nanoseconds, span.slack_nanoseconds) for span in spans]
    lanes = [0] * len(spans)
    running: list[list[int]] = []  # of each lane, the ends of what has not ended, innermost last
    for place in sorted(range(len(spans)), key=lambda place: (times[place][0], -times[place][1])):
        start, end, slack = times[place]
        lane = next((lane for lane, ends in enumerate(running) if _has_room(ends, start, end, slack)), len(running))
        if lane == len(running):
            running.append([])
        running[lane].append(end)
        lanes[place] = lane
    return lanes


def _has_room(ends: list[int], start: int, end: int, slack: int) -> bool:
    """Whether a track is free for an event, or what runs on it lasts longer; what has ended is taken off."""
    while ends and ends[-1] + slack <= start:
        ends.pop()
    return not ends or end + slack <= ends[-1]
