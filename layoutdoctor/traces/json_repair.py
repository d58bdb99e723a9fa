"""
Saves what can be saved of a damaged stretch of a Chrome trace: the events that are whole, and those that can be mended.

Profilers have written names with quotes in them, Windows paths, NaN and bytes in other encodings, and processes that
died have left events cut in the middle. Events are found one behind the other; where one cannot be read to its end,
the search goes on at the next thing that looks like the start of one. The time is in proportion to the text, whatever
is in it. Faces ``event_stream``; no torch.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from layoutdoctor.traces.json_mending import (
    ENDS_EARLY,
    EXTRA_COMMA,
    MISSING_COMMA,
    NO_VALUE,
    NUL,
    WHOLE_TRACE,
    EventReading,
    read_event,
)

OTHER_TEXT = "text between events"
IN_RUINS = "an event in the middle of thousands that cannot be read"

_LONGEST_UNSETTLED = 1 << 18
"""How much of the end of a stretch may be left for later because what follows may explain it; bytes."""
_LEAST_CREDIT = 1 << 16
_MOST_LOST_IN_A_ROW = 5_000
"""Behind so many unreadable events, only those that are valid as they stand are looked for."""

_LONGEST_IN_RUINS = 1 << 14
"""And only as long ones; bytes."""

_LONGEST_BEHIND = 2_000

_WS = rb"[ \t\r\n]*"
_FIRST_KEYS = rb"ph|cat|name|pid|tid|ts|dur|args|id|bp|s|tts|tdur|cname|sf|esf|stack|scope|id2"
_START = re.compile(rb"\{" + _WS + rb'"(?:' + _FIRST_KEYS + rb')"' + _WS + rb":")
_UNFINISHED_START = re.compile(rb"\{" + _WS + rb'(?:"[a-z0-9]{0,5}(?:"' + _WS + rb")?)?\Z")
_BEHIND_EVENT = re.compile(rb"[ \t\r\n,\[\]\x00]*")
_FOLLOWS_EVENT = re.compile(rb"[ \t\r\n]*(?:\Z|[{\[\]\x00]|,[ \t\r\n,]*(?:\Z|[^ \t\r\n,\"}:]|[\"}:][ \t\r\n,]*\{))")
_ONCE_IN_EVENT = re.compile(rb'"(ph|pid|tid|ts)"' + _WS + rb":")
_ENDS_LIKE_AN_EVENT = re.compile(rb"\}[ \t\r\n,\]\x00]*\Z")
_BOUNDARY = re.compile(rb"\}(?=[ \t\r\n,]*\{)")
_FIELD = re.compile(rb'"(?:' + _FIRST_KEYS + rb')"' + _WS + rb":")
_ANY_OBJECT = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Repaired:
    """
    What could be saved of a stretch.

    Attributes:
        events: The text of each event, one JSON object each, in order; what was not damaged stands as it was.
        repaired_count: How many of them had to be mended.
        lost_count: Pieces that look like events and could not be mended.
        kinds: How many events, mended or lost, show each kind of damage, in words; kinds between events count by place.
        rest: The event at the end of the stretch that is not complete; empty where there is none.
    """

    events: list[bytes]
    repaired_count: int
    lost_count: int
    kinds: dict[str, int]
    rest: bytes


def repair_events(stretch: bytes) -> Repaired:
    """
    Saves the events of a stretch that is no valid JSON.

    An event is mended only where its text leaves one reading; a value that is no number of JSON's becomes null, and
    what two readings are possible for is lost.

    Args:
        stretch: Events with commas between, from the inside of an array; any bytes.

    Returns:
        The events, what was done to them and what was lost; each event decodes as an object.
    """
    return _Repair(stretch).run()


class _Repair:
    """One pass over a stretch."""

    def __init__(self, stretch: bytes) -> None:
        self._text = stretch
        self._view = memoryview(stretch)
        self._boundaries = _BOUNDARY.finditer(stretch)
        self._boundary = 0
        self._last_end = len(stretch.rstrip(b" \t\r\n,]\0"))
        # Text may be read twice where an event within an unreadable one is looked for, in all no more than this.
        self._credit = _LEAST_CREDIT + len(stretch) // 4
        self._events: list[bytes] = []
        self._kinds: Counter[str] = Counter()
        self._repaired_count = 0
        self._lost_count = 0
        self._lost_in_a_row = 0

    @cached_property
    def _starts(self) -> list[int]:
        """Where something stands that looks like the start of an event; some are objects within one."""
        return [match.start() for match in _START.finditer(self._text)]

    def run(self) -> Repaired:
        """Reads event by event; ``is_certain`` says that one must start here, as the one before was read to its end."""
        rest = b""
        at, is_certain = self._next_event(0)
        while at < len(self._text):
            reading, event = self._read(at)
            if reading.outcome == "incomplete" or (
                reading.outcome == "unreadable" and self._is_unsettled(at, is_certain)
            ):
                rest = self._text[at:]
                break
            if reading.outcome == "unreadable":
                self._lost_in_a_row += 1
                if is_certain or not self._is_value(at):
                    self._lose(reading)
                at, is_certain = self._start_behind(at, reading.end), False
            elif is_certain or "ph" in event:
                self._keep(reading)
                at, is_certain = self._next_event(reading.end)
            else:  # an object within an event that was lost
                at = self._next_start(reading.end)
        else:
            unfinished = _UNFINISHED_START.search(self._text, max(0, len(self._text) - 100))
            rest = unfinished[0] if unfinished else b""
        return Repaired(self._events, self._repaired_count, self._lost_count, dict(self._kinds), rest)

    def _read(self, at: int) -> tuple[EventReading, dict[str, Any]]:
        """The event that starts here: as it stands where it is valid up to the next one, mended else."""
        end = self._end_if_valid(at)
        is_in_ruins = self._lost_in_a_row > _MOST_LOST_IN_A_ROW and self._next_start(at + 1) < len(self._text)
        if not is_in_ruins or end - at <= _LONGEST_IN_RUINS:
            event = _decoded(self._view[at:end])
            if event is not None and "traceEvents" not in event:
                return EventReading("whole", end, self._text[at:end]), event
        if is_in_ruins:
            return EventReading("unreadable", at + 1, kinds=(IN_RUINS,)), {}
        reading = read_event(self._text, at, self._starts)
        if reading.outcome != "whole":
            return reading, {}
        event = _decoded(reading.text)
        if event is None:
            return EventReading("unreadable", reading.end, kinds=(NO_VALUE,)), {}
        if not self._is_followed_well(reading.end, event):
            return EventReading("unreadable", reading.end, kinds=(ENDS_EARLY,)), {}
        return reading, event

    def _is_followed_well(self, end: int, event: dict[str, Any]) -> bool:
        """Whether the event is over here; else a brace in its middle ended it, or one of its objects."""
        if _FOLLOWS_EVENT.match(self._text, end):
            return True
        # What comes once in an event and was in this one already is of the next one, whose start is damaged.
        behind = _ONCE_IN_EVENT.finditer(self._text, end, min(end + _LONGEST_BEHIND, self._next_start(end)))
        return any(match[1].decode() in event for match in behind)

    def _end_if_valid(self, at: int) -> int:
        """Behind the first brace that is followed by another object."""
        while self._boundary <= at:
            match = next(self._boundaries, None)
            self._boundary = match.end() if match else max(self._last_end, at + 1)
        return self._boundary

    def _keep(self, reading: EventReading) -> None:
        self._lost_in_a_row = 0
        self._events.append(reading.text)
        self._repaired_count += bool(reading.kinds)
        self._kinds.update(reading.kinds)

    def _lose(self, reading: EventReading) -> None:
        self._kinds.update(reading.kinds)
        self._lost_count += WHOLE_TRACE not in reading.kinds

    def _is_value(self, at: int) -> bool:
        """Whether an object is likely to be a value within an event rather than an event."""
        return self._text[max(0, at - 100) : at].rstrip().endswith((b":", b"[", b'"'))

    def _is_unsettled(self, at: int, is_certain: bool) -> bool:
        """Whether an unreadable event reaches to the end of the stretch, and may go on behind it."""
        return (
            len(self._text) - at <= _LONGEST_UNSETTLED
            and self._next_start(at + 1) == len(self._text)
            and (is_certain or not self._is_value(at))
            and not _ENDS_LIKE_AN_EVENT.search(self._text, max(at, len(self._text) - 100))
        )

    def _next_event(self, at: int) -> tuple[int, bool]:
        """Where the event behind this place starts, and whether that is certain."""
        behind = _BEHIND_EVENT.match(self._text, at).end()  # type: ignore[union-attr]  # it matches everywhere
        between = self._text[at:behind]
        if behind == len(self._text):
            return behind, True
        if self._text[behind : behind + 1] == b"{":
            self._judge_between(between, is_first=at == 0)
            return behind, True
        start = self._next_start(behind)
        if start < len(self._text) or b"]" not in between:  # behind the array's end, text is not between events
            self._kinds[OTHER_TEXT] += 1
            self._lost_count += _FIELD.search(self._text, behind, start) is not None
        return start, False

    def _judge_between(self, between: bytes, *, is_first: bool) -> None:
        comma_count = between.count(b",")
        if comma_count == 0 and not is_first:
            self._kinds[MISSING_COMMA] += 1
        if comma_count > 1:
            self._kinds[EXTRA_COMMA] += 1
        if b"\0" in between:
            self._kinds[NUL] += 1
        if b"[" in between or b"]" in between:
            self._kinds[OTHER_TEXT] += 1

    def _next_start(self, at: int) -> int:
        """The next place that looks like the start of an event; the end of the text where there is none."""
        place = bisect_left(self._starts, at)
        return self._starts[place] if place < len(self._starts) else len(self._text)

    def _start_behind(self, at: int, end: int) -> int:
        """Where to go on behind an unreadable event: within it, as long as not too much text was read twice."""
        place = bisect_right(self._starts, at)
        start = self._starts[place] if place < len(self._starts) else len(self._text)
        self._credit -= max(0, end - start)
        return start if self._credit >= 0 or start >= end else self._next_start(max(end, at + 1))


def _decoded(text: bytes | memoryview) -> dict[str, Any] | None:
    """The object in a text; None where that is no valid JSON."""
    try:
        return _ANY_OBJECT.decode(text)
    except (ValueError, RecursionError):  # msgspec's errors and that of bytes that are no UTF-8 are ValueErrors
        return None
