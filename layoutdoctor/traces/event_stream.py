"""
Cuts the JSON of a Chrome trace into batches of events, so that a file of any size is read in little memory.

An event may be written in any style: on many lines, on one, without a space. A batch is cut where an event ends and
the next one begins, and is right if it decodes: a cut in the wrong place leaves brackets open. What does not decode
is handed to ``json_repair``. Faces ``chrome``; no torch.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from layoutdoctor.errors import TraceError
from layoutdoctor.traces.json_repair import repair_events
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH_BYTES = 1 << 20
MOST_PENDING_BYTES = 64 << 20
"""An event, or what stands before the first one, may not be larger."""

_MOST_CUTS_TRIED = 6
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_HEAD_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_NEXT_EVENT = re.compile(rb"\s*\{")
_BETWEEN_EVENTS = re.compile(rb"\}\s*(?:,\s*)?\{")
_BEHIND_EVENTS = re.compile(rb'\s*(?:,\s*"|\}|\])')
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_WHERE = re.compile(r"\(byte (\d+)\)")
_RAW_EVENTS = msgspec.json.Decoder(list[msgspec.Raw])

EventType = TypeVar("EventType")


class EventStream(Generic[EventType]):
    """
    The events of one document, batch by batch.

    Attributes:
        metadata: The document's fields beside the events; complete once ``batches`` has ended.
        damage: How often each kind of damage was met and mended, in words.
        lost_count: Pieces that look like events and could not be read.
        is_truncated: Whether the document ends in the middle; known once ``batches`` has ended.
    """

    def __init__(
        self,
        pieces: Iterator[bytes],
        decode: Callable[[bytes], list[EventType]],
        decode_loosely: Callable[[bytes], EventType | None],
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        """
        Args:
            pieces: The document's bytes.
            decode: Events from the text of a JSON array; raises ``msgspec.DecodeError`` on what it does not accept.
            decode_loosely: One event from its JSON text, whatever the types of its fields; None where it is no event.
            batch_bytes: How much text a batch is made of, at least; what is read does not depend on it.
        """
        self.metadata: dict[str, Any] = {}
        self.damage: Counter[str] = Counter()
        self.lost_count = 0
        self.is_truncated = False
        self._pieces = pieces
        self._decode = decode
        self._decode_loosely = decode_loosely
        self._batch_bytes = batch_bytes
        self._buffer = b""
        self._has_ended = False
        self._is_array_closed = False
        self._is_damaged = False
        self._is_list = False

    def batches(self) -> Iterator[list[EventType]]:
        """
        The events in order; no batch is empty.

        Raises:
            TraceError: The document is no Chrome trace, or one event is larger than memory allows.
        """
        self._skip_head()
        while not self._is_array_closed:
            self._fill(self._batch_bytes)
            batch = self._last_batch() if self._has_ended else self._next_batch()
            if batch:
                yield batch
        self._read_tail()

    def _fill(self, wanted: int) -> None:
        """Reads until the buffer holds that much, or the file ends."""
        if len(self._buffer) >= wanted:
            return
        parts = [self._buffer]
        size = len(self._buffer)
        while size < wanted:
            piece = next(self._pieces, None)
            if piece is None:
                self._has_ended = True
                break
            parts.append(piece)
            size += len(piece)
        self._buffer = b"".join(parts)

    def _skip_head(self) -> None:
        """Moves behind the bracket that opens the events."""
        start = b""
        while not start and not self._has_ended:
            self._fill(max(self._batch_bytes, 2 * len(self._buffer), len(_BYTE_ORDER_MARK)))
            start = self._buffer.removeprefix(_BYTE_ORDER_MARK).lstrip()
        if start[:1] == b"[":
            self._buffer = start[1:]
            self._is_list = True
            return
        if start[:1] != b"{":
            raise TraceError("it does not start as JSON; expected a Chrome trace, which starts with '{' or '['")
        self._buffer = start
        while True:
            found = self._find_events()
            if found is not None:
                self._buffer = self._buffer[found:]
                return
            if self._has_ended:
                raise TraceError("it is JSON without 'traceEvents'; expected a Chrome trace from a profiler")
            if len(self._buffer) > MOST_PENDING_BYTES:
                raise TraceError(
                    f"its first {format_bytes(MOST_PENDING_BYTES)} hold no 'traceEvents'; expected a Chrome trace"
                )
            self._fill(2 * len(self._buffer))

    def _find_events(self) -> int | None:
        """Where the array of events starts: the key at the document's own level, else the first one of that name."""
        first: int | None = None
        for match in _EVENTS_KEY.finditer(self._buffer):
            first = match.end() if first is None else first
            try:
                self.metadata = json.loads(self._buffer[: match.start()].decode("utf-8", "replace") + '"_":0}')
            except (ValueError, RecursionError):
                continue
            self.metadata.pop("_", None)
            return match.end()
        if first is not None:
            self.damage["a head that is no JSON"] += 1
        return first

    def _next_batch(self) -> list[EventType]:
        """Events up to the last place in the buffer where one ends and another begins."""
        cuts = self._cuts()
        for cut in cuts:
            batch = self._decode_array(b"".join((b"[", memoryview(self._buffer)[:cut], b"]")), self._buffer[cut:])
            if batch is not None:
                return batch
            if self._is_damaged:
                break
        if cuts:
            return self._repair(self._buffer[: cuts[0]], self._buffer[cuts[0] :])
        closed = self._decode_array(b"[" + self._buffer + b"]", None)
        if closed is not None:
            return closed
        if len(self._buffer) > MOST_PENDING_BYTES:
            raise TraceError(
                f"{format_bytes(MOST_PENDING_BYTES)} of it hold no whole event; expected a Chrome trace, "
                "whose events are small"
            )
        self._fill(2 * len(self._buffer))
        return []

    def _cuts(self) -> list[int]:
        """Ends of events behind which another one begins, the last one first."""
        found: list[int] = []
        at = len(self._buffer)
        while len(found) < _MOST_CUTS_TRIED:
            at = self._buffer.rfind(b"},", 0, at)
            if at < 0:
                break
            if _NEXT_EVENT.match(self._buffer, at + 2):
                found.append(at + 1)
        return found

    def _last_batch(self) -> list[EventType]:
        """What is left when the file has ended."""
        batch = self._decode_array(b"[" + self._buffer + b"]", b"")
        if batch is None:
            batch = self._repair(self._buffer, b"")
        elif not self._is_array_closed:  # complete events, but nothing closes the array
            self.is_truncated = not self._is_list
        self._is_array_closed = True
        return batch

    def _decode_array(self, text: bytes, further: bytes | None) -> list[EventType] | None:
        """
        The events of an array's text, or of the part of it at which the array ends.

        Args:
            text: Text with brackets put around it.
            further: What stands behind the text in the buffer; None where the text has to hold the array's own end.

        Returns:
            None where the text is no array: it was cut in the wrong place, or is damaged.
        """
        self._is_damaged = False
        try:
            events = self._decode(text)
        except _UNREADABLE as error:
            end = _end_of_array(error, text)
        else:
            return self._moved_on(events, further)
        if end is None:
            try:
                raws = _RAW_EVENTS.decode(text)
            except _UNREADABLE as error:
                end = _end_of_array(error, text)
                place = _place_of(error)
                self._is_damaged = end is None and place is not None and place < len(text) - 1
            else:
                return self._moved_on(self._decode_each([bytes(raw) for raw in raws]), further)
        if end is None:
            return None
        self._is_array_closed = True
        self._buffer = text[end:-1] + (further or b"")
        return self._decode_whole(text[:end])

    def _moved_on(self, events: list[EventType], further: bytes | None) -> list[EventType] | None:
        if further is None:
            return None
        self._buffer = further.lstrip().removeprefix(b",")
        return events

    def _decode_whole(self, array: bytes) -> list[EventType]:
        try:
            return self._decode(array)
        except _UNREADABLE:
            return self._decode_each([bytes(raw) for raw in _RAW_EVENTS.decode(array)])

    def _decode_each(self, texts: list[bytes]) -> list[EventType]:
        """Events one by one, for a batch in which some field has an unusual type."""
        events: list[EventType] = []
        for text in texts:
            event = self._decode_loosely(text)
            if event is None:
                self.lost_count += 1
            else:
                events.append(event)
        return events

    def _repair(self, stretch: bytes, further: bytes) -> list[EventType]:
        repaired = repair_events(stretch)
        self.lost_count += repaired.lost_count
        self.damage.update(repaired.kinds)
        if self._has_ended and not further:
            self.is_truncated = bool(repaired.rest.strip(b", \t\r\n"))
            self._buffer = b""
        else:
            self._buffer = repaired.rest + further
        return self._decode_each(repaired.events)

    def _read_tail(self) -> None:
        """The document's fields behind the events."""
        self._fill(MOST_PENDING_BYTES)
        tail = self._buffer.strip()
        self._buffer = b""
        if self._is_list or not tail or self.is_truncated:
            return
        try:
            found = json.loads("{" + tail.lstrip(b", \t\r\n").decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            self.is_truncated = not tail.endswith(b"}")
            return
        self.metadata.update(found)


def _place_of(error: Exception) -> int | None:
    found = _WHERE.search(str(error))
    return int(found[1]) if found else None


def _end_of_array(error: Exception, text: bytes) -> int | None:
    """Behind the bracket that closes the array, where an error says that something follows it and it may do so."""
    place = _place_of(error)  # msgspec counts the first character that follows as read
    if place is None or "trailing characters" not in str(error) or not _BEHIND_EVENTS.match(text, place - 1):
        return None
    return place - 1
