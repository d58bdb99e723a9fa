"""
Cuts the JSON of a Chrome trace into batches of events, so that a file of any size is read in little memory.

A batch is cut between two events. A cut in a wrong place leaves brackets open, so a batch that decodes was cut right.
A batch that does not decode is read event by event: whole and mended events are kept, all others are counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from layoutdoctor.diagnosis.saved import UNREADABLE
from layoutdoctor.errors import TraceError
from layoutdoctor.units import format_bytes

NOT_UTF8 = "bytes that are no UTF-8"

BATCH_BYTES = 1 << 18
"""Size of the text that is decoded at a time; it fits a processor's cache."""
MOST_PENDING_BYTES = 64 << 20
"""Largest size of one event, and of the text before the first event."""

_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_INVALID = re.compile(r"invalid (?:number|character) \(byte (\d+)\)")
_ANY_VALUE = msgspec.json.Decoder(msgspec.Raw)

_MOST_CUTS_TRIED = 6
_CUT_WINDOW_BYTES = 1 << 14
_MOST_PLACES_TRIED = 100
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EVENTS_KEY = re.compile(rb'(?P<before>[{,])\s*"traceEvents"\s*:\s*\[')
_CUT = re.compile(rb"\}\s*(?:,\s*)?(?=\{)")
_CONTENT = re.compile(rb"[^\s,]")
_USUAL_START = re.compile(rb'\{\s*"ph"\s*:')
_START = re.compile(rb'\{\s*"ph"\s*:|(?<=\}),\s*(?=\{\s*"(?:args|cat|dur|name|pid|tid|ts)"\s*:)')
_CLOSED = re.compile(rb'\]\s*(?:,\s*(?:"|\Z)|\}|\]?\Z)')
_END_OF_EVENTS = re.compile(rb'\}\s*(?:,\s*)?\]\s*(?:,\s*"|\}\s*\Z|\Z)')

# Kineto did not escape names until July 2026 (pytorch/kineto 1459). ROCm's launches have the kernel's name in "kernel".
_NAME_STARTS = re.compile(rb'"(?:name|kernel)"\s*:\s*"')
_NAME_ENDS = re.compile(rb'"\s*(?:,\s*"[A-Za-z_][^"\\]{0,99}"\s*:|\})')
_MOST_NAMES = 4
_ESCAPED_OR_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
_KEY_WITHIN = re.compile(rb'"\s*:')
_STRING_OR_NO_NUMBER = re.compile(
    rb'(?P<kept>"[^"\\]*(?:\\(?:.|\Z)[^"\\]*)*(?:"|\Z))'
    rb"|(?<=[:\[,\s])[-+]?(?:nan(?:\([^()]{0,20}\))?|inf(?:inity)?)(?=[\s,\]}])",
    re.DOTALL | re.IGNORECASE,
)

EventType = TypeVar("EventType")


class EventStream(Generic[EventType]):
    """
    The events of one document, in batches.

    Attributes:
        metadata: The document's fields other than the events; complete once ``batches`` has ended.
        damage: Count of each kind of damage that was mended, such as ``{"an unescaped quote": 2}``.
        lost_count: Number of events that could not be read.
        is_truncated: Whether the document ends in the middle; known once ``batches`` has ended.
    """

    def __init__(
        self,
        pieces: Iterator[bytes],
        decode: Callable[[bytes], list[EventType]],
        decode_loosely: Callable[[bytes], EventType | None],
        name: str,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        """
        Args:
            pieces: The document's bytes; no piece is empty.
            decode: Decodes the text of a JSON array to events; raises one of ``UNREADABLE`` if it cannot.
            decode_loosely: Decodes one event, whatever the types of its fields; returns None if the text is no event.
            name: Name of the document, for errors.
            batch_bytes: Least size of the text that a batch is cut from. The events do not depend on this size.
        """
        self.metadata: dict[str, Any] = {}
        self.damage: Counter[str] = Counter()
        self.lost_count = 0
        self.is_truncated = False
        self._pieces = pieces
        self._decode = decode
        self._decode_loosely = decode_loosely
        self._name = name
        self._batch_bytes = batch_bytes
        self._buffer = b""
        self._has_ended = False
        self._is_closed = False
        self._has_fields = True

    def batches(self) -> Iterator[list[EventType]]:
        """
        Yields the events in order, in batches that are never empty.

        Raises:
            TraceError: The document is no Chrome trace, or ``MOST_PENDING_BYTES`` of it hold no whole event.
        """
        self._skip_head()
        while not self._is_closed:
            self._fill(self._batch_bytes)
            if batch := self._next_batch():
                yield batch
        self._read_tail()

    def _fill(self, wanted: int) -> None:
        """Reads until the buffer holds ``wanted`` bytes, or the file ends."""
        parts, size = [self._buffer], len(self._buffer)
        while size < wanted and not self._has_ended:
            piece = next(self._pieces, b"")
            self._has_ended = not piece
            parts.append(piece)
            size += len(piece)
        self._buffer = b"".join(parts)

    def _skip_head(self) -> None:
        """Drops the beginning of the document, up to and including the bracket that opens the array of events."""
        start = b""
        while not start and not self._has_ended:
            self._fill(max(self._batch_bytes, 2 * len(self._buffer), len(_BYTE_ORDER_MARK)))
            start = self._buffer.removeprefix(_BYTE_ORDER_MARK).lstrip()
        if start[:1] == b"[":
            self._buffer = start[1:]
            self._has_fields = False
            return
        if start[:1] != b"{":
            raise self._refusal("it does not start as JSON; expected a Chrome trace, which starts with '{' or '['")
        self._buffer = start
        while (found := self._find_events()) is None:
            if self._has_ended:
                raise self._refusal("it is JSON without a list 'traceEvents'; expected a Chrome trace from a profiler")
            if len(self._buffer) > MOST_PENDING_BYTES:
                raise self._refusal(
                    f"its first {format_bytes(MOST_PENDING_BYTES)} hold no 'traceEvents'; expected a Chrome trace"
                )
            self._fill(2 * len(self._buffer))
        self._buffer = self._buffer[found:]

    def _refusal(self, what: str) -> TraceError:
        return TraceError(f"cannot read {self._name!r}: {what}")

    def _find_events(self) -> int | None:
        """Returns the position where the array of events begins; None if the array does not begin in this buffer."""
        for match in islice(_EVENTS_KEY.finditer(self._buffer), _MOST_PLACES_TRIED):
            is_first = match["before"] == b"{"
            head = self._buffer[: match.start()] + (b"{}" if is_first else b"}")
            try:
                self.metadata = _object(head)
            except (ValueError, RecursionError):
                if is_first or _end_of_object(head)[1]:  # this key is within another value
                    continue
                self.damage["invalid JSON before the events"] += 1
            return match.end()
        return None

    def _next_batch(self) -> list[EventType]:
        """Returns the complete events at the beginning of the buffer; an empty list if more bytes are needed."""
        buffer = self._buffer
        size = len(buffer)
        for cut in (size,) if self._has_ended else (*_cuts(buffer), size):
            bracket = b"]" if self._has_ended or cut < size else b""
            text = b"".join((b"[", memoryview(buffer)[:cut], bracket))
            try:
                events, end = self._array(text)
            except UNREADABLE as error:
                if not _is_cut_off(error, text):
                    return self._recover()
                continue
            if end < len(text) or not bracket:
                self._close(text[end:].removesuffix(bracket) + buffer[cut:])
            elif self._has_ended:
                self._close(None)
            else:
                self._buffer = buffer[cut:].lstrip().removeprefix(b",")
            return events
        if self._has_ended or size > MOST_PENDING_BYTES:
            return self._recover()
        self._fill(2 * size)
        return []

    def _array(self, text: bytes) -> tuple[list[EventType], int]:
        """Decodes the array at the beginning of a text; returns its events and the place behind the array."""
        try:
            return self._decode(text), len(text)
        except UNREADABLE as error:
            end = _end_before_trailing(error)
            if end is None or _CLOSED.match(text, text.rindex(b"]", 0, end)) is None:
                raise
            return self._decode(text[:end]), end

    def _close(self, tail: bytes | None) -> None:
        """Notes the end of the events; ``tail`` is the text behind their array, None if the array was never closed."""
        self._is_closed = True
        self.is_truncated = tail is None and self._has_fields
        self._buffer = tail or b""

    def _recover(self) -> list[EventType]:
        """Returns the events of a buffer that does not decode as a whole."""
        self._fill(len(self._buffer) + 1)  # to know whether the file ends here
        text, size = self._buffer, len(self._buffer)
        end = _end_of_events(text) if self._has_ended else None
        found = recover_events(text[:end], has_ended=self._has_ended)
        self.lost_count += found.lost_count + (end is not None and bool(found.rest))
        self.damage.update(found.kinds)
        self._buffer = found.rest
        if end is not None:
            self._close(text[end + 1 :])
        elif found.is_closed:
            self._close(found.rest)
        elif self._has_ended:
            self._close(None)
            self.is_truncated |= bool(found.rest)
        elif len(found.rest) == size:
            if size > MOST_PENDING_BYTES:
                raise self._refusal(
                    f"{format_bytes(MOST_PENDING_BYTES)} in a row hold no whole event; expected a Chrome trace, "
                    "whose events are small"
                )
            self._fill(2 * size)
        decoded = [self._decode_loosely(event) for event in found.events]
        events = [event for event in decoded if event is not None]
        self.lost_count += len(decoded) - len(events)
        return events

    def _read_tail(self) -> None:
        """Reads the document's fields behind the events."""
        self._fill(MOST_PENDING_BYTES)
        if not self._has_fields or self.is_truncated or not self._has_ended:
            return
        try:
            self.metadata.update(_fields(self._buffer))
        except (ValueError, RecursionError):
            self.is_truncated = _end_of_object(b"{" + self._buffer.lstrip(b", \t\r\n"))[1]
            if not self.is_truncated:
                self.damage["invalid JSON after the events"] += 1


def _cuts(buffer: bytes) -> Iterator[int]:
    """Yields a few positions between two events in the buffer, beginning with the last position."""
    found = list(_CUT.finditer(buffer, max(0, len(buffer) - _CUT_WINDOW_BYTES))) or list(_CUT.finditer(buffer))
    for match in reversed(found[-_MOST_CUTS_TRIED:]):
        yield match.start() + 1


def _is_cut_off(error: Exception, text: bytes | memoryview) -> bool:
    """Whether the only fault of a JSON text is that it ends too early, possibly within a number."""
    found = _INVALID.search(str(error))
    return "truncated" in str(error) or (found is not None and int(found[1]) >= len(text))


def _end_before_trailing(error: Exception) -> int | None:
    """Returns the end of a JSON value if the only fault of the text is that something follows the value; else None."""
    found = _TRAILING.search(str(error))
    return int(found[1]) - 1 if found else None  # msgspec counts the first character that follows as read


class Recovered(NamedTuple):
    """
    The events of a damaged text.

    Attributes:
        events: The JSON text of each event, in order.
        lost_count: Number of events that could not be read.
        kinds: Number of mended events, by kind of damage, such as ``{"an unescaped quote": 2}``.
        rest: An incomplete event at the end, or the text behind the array's end.
        is_closed: Whether the array ends in the text.
    """

    events: list[bytes]
    lost_count: int
    kinds: Counter[str]
    rest: bytes = b""
    is_closed: bool = False


def recover_events(text: bytes, *, has_ended: bool = False) -> Recovered:
    """
    Reads events one by one; a damaged event is mended or left out.

    Args:
        text: Part of an array of events, without the opening bracket; any bytes.
        has_ended: Whether the document ends with the text. If False, a damaged last event may only be incomplete.
    """
    view = memoryview(text)
    events: list[bytes] = []
    kinds: Counter[str] = Counter()
    lost_count, place = 0, 0
    while content := _CONTENT.search(text, place):
        place = content.start()
        if _CLOSED.match(text, place):
            return Recovered(events, lost_count, kinds, text[place + 1 :], is_closed=True)
        end, is_cut_off = _end_of_object(view[place:])
        if end is not None:
            event = text[place : place + end].rstrip()
            kinds.update([NOT_UTF8] * (as_utf8(event) != event))
            events.append(event)
            place += end
            continue
        border = (_USUAL_START if is_cut_off else _START).search(text, place + 1)
        if border is None and (is_cut_off or not has_ended):
            return Recovered(events, lost_count, kinds, text[place:])
        piece = text[place : None if border is None else border.start()]
        mended, found = _mended(piece)
        end, _ = _end_of_object(mended)
        if end is not None and not mended[end:].strip(b", \t\r\n"):
            events.append(mended[:end].rstrip())
            kinds.update(found)
        else:
            lost_count += 1
        place += len(piece)
    return Recovered(events, lost_count, kinds)


def _end_of_object(text: bytes | memoryview) -> tuple[int | None, bool]:
    """
    Finds the end of the JSON object at the beginning of a text.

    Returns:
        A pair: the object's end, None without a whole object; and whether the text's only fault is a missing end.
    """
    if text[:1] != b"{":
        return None, False
    try:
        _ANY_VALUE.decode(text)
    except UNREADABLE as error:
        return _end_before_trailing(error), _is_cut_off(error, text)
    return len(text), False


def _mended(event: bytes) -> tuple[bytes, list[str]]:
    """Mends the known kinds of damage in an event; returns the event and the kinds that were found."""
    kinds: list[str] = []
    for kind, mend in _MENDERS:
        mended = mend(event)
        if mended != event:
            kinds.append(kind)
            event = mended
    return event, kinds


def as_utf8(text: bytes) -> bytes:
    """Replaces the bytes that are no UTF-8, because msgspec does not check all bytes."""
    return text.decode("utf-8", "replace").encode()


def _with_escaped_quotes(event: bytes) -> bytes:
    """Escapes the quotes in names. A name ends at the first quote before a key or the end of the object."""
    parts: list[bytes] = []
    done = 0
    for start in islice(_NAME_STARTS.finditer(event), _MOST_NAMES):
        end = _NAME_ENDS.search(event, start.end())
        if end is None or start.start() < done:
            continue
        name = event[start.end() : end.start()]
        if _KEY_WITHIN.search(name):  # the text may be several fields
            continue
        name = _ESCAPED_OR_QUOTE.sub(lambda found: b'\\"' if found[0] == b'"' else found[0], name)
        parts += (event[done : start.end()], name)
        done = end.start()
    return b"".join((*parts, event[done:]))


_MENDERS: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    (NOT_UTF8, as_utf8),
    ("an unescaped quote", _with_escaped_quotes),
    ("NaN or Infinity", lambda event: _STRING_OR_NO_NUMBER.sub(lambda found: found["kept"] or b"null", event)),
)


def _end_of_events(text: bytes) -> int | None:
    """Finds the bracket that closes the array of events in a damaged document; None if no bracket is certain."""
    for match in list(_END_OF_EVENTS.finditer(text))[-_MOST_PLACES_TRIED:]:
        end = match.start() + match[0].index(b"]")
        try:
            if text[end + 1 :].strip():
                _fields(text[end + 1 :])
        except (ValueError, RecursionError):
            continue
        return end
    return None


def _fields(tail: bytes) -> dict[str, Any]:
    """Decodes the fields behind the events, up to the brace that closes the document."""
    return _object(b"{" + tail.lstrip(b", \t\r\n"))


def _object(text: bytes) -> dict[str, Any]:
    """Decodes an object. Half a surrogate pair, which no report could contain, becomes a question mark."""
    found: dict[str, Any] = json.loads(text.decode("utf-8", "replace"))
    if b"\\u" in text:
        found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
    return found
