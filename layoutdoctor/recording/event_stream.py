"""
Cuts the JSON of a Chrome trace into batches of events, so that a file of any size is read in little memory.

An event may be written in any style: on many lines, on one, without a space. A batch is cut where an event ends and
the next one begins, and is right if it decodes: a cut in the wrong place leaves brackets open. What does not decode
is taken apart event by event: what is whole or can be mended is kept, the rest counted.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter, deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec

from layoutdoctor.errors import TraceError
from layoutdoctor.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.recording.files import TraceFile

NOT_A_NUMBER = "NaN or Infinity"
NOT_UTF8 = "bytes that are no UTF-8"
QUOTE = "an unescaped quote"

_MOST_NESTED_STARTS = 8
"""So many objects within an event may look like the start of another one; more lose an event near a damaged one."""

_MOST_NAMES = 4

_USUAL_START = re.compile(rb'\{\s*"ph"\s*:')
_START = re.compile(rb'(?P<usual>\{\s*"ph"\s*:)|(?:\A|(?<=[},\]\x00]))\s*(?P<other>\{\s*(?:"[^"\\]{0,100}"\s*:|\}))')
_SEPARATORS = b" \t\r\n,]["
_GOES_ON = re.compile(rb'\s*,?\s*["}]')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_OBJECT = msgspec.json.Decoder(dict[str, Any])

# Kineto escaped nothing in names until July 2026 (pytorch/kineto 1459); ROCm's launches hold the kernel's as "kernel".
_NAME_STARTS = re.compile(rb'"(?:name|kernel)"\s*:\s*"')
_NAME_ENDS = re.compile(rb'"\s*(?:,\s*"[A-Za-z_][^"\\]{0,99}"\s*:|\})')
_ESCAPED_OR_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
_KEY_WITHIN = re.compile(rb'"\s*:')
_STRING_OR_NO_NUMBER = re.compile(
    rb'(?P<kept>"[^"\\]*(?:\\(?:.|\Z)[^"\\]*)*(?:"|\Z))'
    rb"|(?<=[:\[,\s])[-+]?(?:nan(?:\([^()]{0,20}\))?|inf(?:inity)?)(?=[\s,\]}])",
    re.DOTALL | re.IGNORECASE,
)


class Saved(NamedTuple):
    """
    What could be saved of a stretch.

    Attributes:
        events: The text of each event, a JSON object each, in order; what was not damaged stands as it was.
        lost_count: Pieces that look like events and could not be read.
        kinds: How many events were mended of each kind of damage, in words.
        rest: The event at the end of the stretch that is not complete; empty where there is none.
    """

    events: list[bytes]
    lost_count: int
    kinds: Counter[str]
    rest: bytes


def save_events(stretch: bytes) -> Saved:
    """
    Saves what is whole or can be mended.

    Args:
        stretch: Events with commas between, from the inside of an array; any bytes.
    """
    starts = [max(match.start("usual"), match.start("other")) for match in _START.finditer(stretch)]
    view = memoryview(stretch)
    events: list[bytes] = []
    kinds: Counter[str] = Counter()
    before = stretch[: _at(starts, 0, stretch)].lstrip(_SEPARATORS)
    if not starts and before.startswith(b"{"):
        return Saved(events, 0, kinds, before)
    lost_count = int(bool(before))
    place, is_certain = 0, True  # behind what was lost, an object may be a part of it
    while place < len(starts):
        start, following = starts[place], _at(starts, place + 1, stretch)
        event, found = stretch[start:following], list[str]()
        end = _end_of_object(view[start : _at(starts, place + _MOST_NESTED_STARTS, stretch)])
        if end is None:
            event, found = _mended(event)
            end = _end_of_object(event)
        elif start + end > following:  # objects within the event look like events
            place = bisect_left(starts, start + end) - 1
            event = stretch[start : _at(starts, place + 1, stretch)]
        place += 1
        behind = b"" if end is None else event[end:]
        if end is None or _GOES_ON.match(behind):
            is_last = place == len(starts)
            if _is_open(event) if is_last else place + _MOST_NESTED_STARTS > len(starts) and _is_cut(stretch[start:]):
                return Saved(events, lost_count, kinds, stretch[start:])
            lost_count += is_certain or b'"ph"' in event
            is_certain = False
            continue
        is_certain |= b'"ph"' in event[:end]
        if is_certain:
            events.append(event[:end].rstrip())
            kinds.update(found)
        behind = behind.lstrip(_SEPARATORS)
        if place == len(starts) and behind.startswith(b"{"):
            return Saved(events, lost_count, kinds, behind)
        lost_count += bool(behind)
    return Saved(events, lost_count, kinds, b"")


def _at(starts: list[int], place: int, stretch: bytes) -> int:
    return starts[place] if place < len(starts) else len(stretch)


def _end_of_object(text: bytes | memoryview) -> int | None:
    """Behind the JSON object that a text begins with; None where it begins with none."""
    try:
        _OBJECT.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found = _TRAILING.search(str(error))
        return int(found[1]) - 1 if found else None  # msgspec counts the first character that follows as read
    return len(text)


def _is_open(event: bytes) -> bool:
    """Whether an event that cannot be read may go on behind its stretch."""
    return _is_cut(event) or not event.rstrip(_SEPARATORS).endswith(b"}")


def _is_cut(text: bytes) -> bool:
    """Whether nothing is wrong with an event but that it ends too early."""
    try:
        _OBJECT.decode(text)
    except msgspec.DecodeError as error:
        return "truncated" in str(error) and _USUAL_START.search(text, 1) is None
    except (UnicodeDecodeError, RecursionError):
        return False
    return False


def _mended(event: bytes) -> tuple[bytes, list[str]]:
    """An event with the known kinds of damage mended, and the kinds."""
    kinds: list[str] = []
    for kind, mend in _MENDERS:
        mended = mend(event)
        if mended != event:
            kinds.append(kind)
            event = mended
    return event, kinds


def as_utf8(text: bytes) -> bytes:
    """The text itself where it is UTF-8, which is all of JSON that decoding does not check everywhere."""
    return text.decode("utf-8", "replace").encode()


def _with_escaped_quotes(event: bytes) -> bytes:
    """A name ends at the first quote behind which a key or the end of the object stands."""
    parts: list[bytes] = []
    done = 0
    for start in islice(_NAME_STARTS.finditer(event), _MOST_NAMES):
        end = _NAME_ENDS.search(event, start.end())
        if end is None or start.start() < done:
            continue
        name = event[start.end() : end.start()]
        if _KEY_WITHIN.search(name):  # it may as well be several fields
            continue
        name = _ESCAPED_OR_QUOTE.sub(lambda found: b'\\"' if found[0] == b'"' else found[0], name)
        parts += (event[done : start.end()], name)
        done = end.start()
    return b"".join((*parts, event[done:]))


_MENDERS: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    (NOT_UTF8, as_utf8),
    (QUOTE, _with_escaped_quotes),
    (NOT_A_NUMBER, lambda event: _STRING_OR_NO_NUMBER.sub(lambda found: found["kept"] or b"null", event)),
)


BATCH_BYTES = 1 << 18
"""What is decoded at a time stays in a processor's cache: a seventh quicker than 1 MiB."""
MOST_PENDING_BYTES = 64 << 20
"""An event, or what stands before the first one, may not be larger."""

_MOST_CUTS_TRIED = 6
_MOST_ENDS_TRIED = 100
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BRACKET_OR_STRING = re.compile(rb'[\[\]{}]|"[^"\\]*(?:\\(?:.|\Z)[^"\\]*)*(?:"|\Z)', re.DOTALL)
_NEXT_EVENT = re.compile(rb"\s*\{")
_BETWEEN_EVENTS = re.compile(rb"\}\s*(?:,\s*)?\{")
_BEHIND_EVENTS = re.compile(rb'\s*(?:,\s*(?:"|\]\Z)|\}|\])')
_END_OF_EVENTS = re.compile(rb'\}\s*(?:,\s*)?\]\s*(?:,\s*"|\}\s*\Z)')
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
        self._is_list = False
        self._pieces = pieces
        self._decode = decode
        self._decode_loosely = decode_loosely
        self._batch_bytes = batch_bytes
        self._buffer = b""
        self._has_ended = False
        self._is_array_closed = False
        self._is_damaged = False
        self._is_nested = False

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
                raise TraceError("it is JSON without a list 'traceEvents'; expected a Chrome trace from a profiler")
            if len(self._buffer) > MOST_PENDING_BYTES:
                raise TraceError(
                    f"its first {format_bytes(MOST_PENDING_BYTES)} hold no 'traceEvents'; expected a Chrome trace"
                )
            self._fill(2 * len(self._buffer))

    def _find_events(self) -> int | None:
        """Where the array of events starts: the key at the document's own level, else the first one of that name."""
        nested: int | None = None
        depth = 0
        tokens = _BRACKET_OR_STRING.finditer(self._buffer)
        for match in _EVENTS_KEY.finditer(self._buffer):
            while (token := next(tokens, match)).start() < match.start():
                depth += _step(token)
            if token.start() == match.start() and depth > 1:
                nested = nested or match.end()
                continue
            try:
                self.metadata = _object(self._buffer[: match.start()].decode("utf-8", "replace") + '"_":0}')
                self.metadata.pop("_", None)
            except (ValueError, RecursionError):
                self.damage["a head that is no JSON"] += 1
            return match.end()
        if nested is not None and (self._has_ended or len(self._buffer) > MOST_PENDING_BYTES):
            self.damage["events that stand within another object"] += 1
            self._is_nested = True
            return nested
        return None

    def _next_batch(self) -> list[EventType]:
        """Events up to the last place in the buffer where one ends and another begins; none where more is needed."""
        batch, cuts = self._whole_events()
        if batch is not None:
            return batch
        is_damaged = self._is_damaged
        if not is_damaged:  # each cut was in the middle of an event
            closed = self._decode_array(b"[" + self._buffer + b"]", None)
            if closed is not None:
                return closed
        size = len(self._buffer)
        is_too_large = size > MOST_PENDING_BYTES
        if is_damaged or is_too_large:
            cut = cuts[0] if cuts else size
            batch = self._repair(self._buffer[:cut], self._buffer[cut:])
            if len(self._buffer) < size:
                return batch
        if is_too_large:
            raise TraceError(
                f"{format_bytes(MOST_PENDING_BYTES)} of it hold no whole event; expected a Chrome trace, "
                "whose events are small"
            )
        self._fill(2 * size)
        return []

    def _whole_events(self) -> tuple[list[EventType] | None, list[int]]:
        """The events up to the first cut that is right, and the cuts tried; None where none is, or there is damage."""
        self._is_damaged = False
        tried: list[int] = []
        for cut in chain(self._usual_cuts(), self._other_cuts()):
            if cut in tried:
                continue
            tried.append(cut)
            batch = self._decode_array(b"".join((b"[", memoryview(self._buffer)[:cut], b"]")), self._buffer[cut:])
            if batch is not None or self._is_damaged:
                return batch, tried
        return None, tried

    def _usual_cuts(self) -> Iterator[int]:
        """Ends of events behind which a comma and another one follow, the last one first."""
        at = len(self._buffer)
        count = 0
        while count < _MOST_CUTS_TRIED:
            at = self._buffer.rfind(b"},", 0, at)
            if at < 0:
                return
            if _NEXT_EVENT.match(self._buffer, at + 2):
                count += 1
                yield at + 1

    def _other_cuts(self) -> Iterator[int]:
        """The same where there may be white space before the comma, or none of the two."""
        for match in reversed(deque(_BETWEEN_EVENTS.finditer(self._buffer), maxlen=_MOST_CUTS_TRIED)):
            yield match.start() + 1

    def _last_batch(self) -> list[EventType]:
        """What is left when the file has ended, without the event in whose middle it ends."""
        batch = self._decode_array(b"[" + self._buffer + b"]", b"")
        if batch is not None:
            self.is_truncated = not self._is_array_closed and not self._is_list
        elif not self._is_damaged:
            end = _end_of_last_event(self._buffer)
            rest = self._buffer[end:].strip(b", \t\r\n")
            batch = self._decode_array(b"[" + self._buffer[:end] + b"]", b"")
            self.is_truncated = batch is not None and bool(rest or not self._is_list)
        self._is_array_closed = True
        return self._repair_end() if batch is None else batch

    def _decode_array(self, text: bytes, further: bytes | None) -> list[EventType] | None:
        """
        The events of an array's text, or of the part of it at which the array ends.

        Args:
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
                is_inside = place is not None and place < len(text) - 1
                self._is_damaged = end is None and (is_inside or isinstance(error, RecursionError))
            else:
                texts = [bytes(raw) for raw in raws]
                return None if further is None else self._moved_on(self._decode_each(texts), further)
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
            if as_utf8(text) != text:
                self.damage[NOT_UTF8] += 1
            event = self._decode_loosely(text)
            if event is None:
                self.lost_count += 1
            else:
                events.append(event)
        return events

    def _repair(self, stretch: bytes, further: bytes) -> list[EventType]:
        saved = save_events(stretch)
        self.lost_count += saved.lost_count
        self.damage.update(saved.kinds)
        self._buffer = saved.rest + further
        return self._decode_each(saved.events)

    def _repair_end(self) -> list[EventType]:
        """The events of a damaged end, without taking the document's fields behind them for events."""
        text = self._buffer
        end = None if self._is_list else _end_of_events(text)
        batch = self._repair(text if end is None else text[:end], b"")
        self.is_truncated = end is None and (not self._is_list or bool(self._buffer.strip(b", \t\r\n")))
        self._buffer = b"" if end is None else text[end + 1 :]
        return batch

    def _read_tail(self) -> None:
        """The document's fields behind the events."""
        self._fill(MOST_PENDING_BYTES)
        tail = self._buffer.strip()
        self._buffer = b""
        if self._is_list or self._is_nested or self.is_truncated or not self._has_ended:
            return
        found = _fields(tail)
        if found is not None:
            self.metadata.update(found)
        elif sum(map(_step, _BRACKET_OR_STRING.finditer(tail))) < 0:  # the document's own brace is closed
            self.damage["an end that is no JSON"] += 1
        else:
            self.is_truncated = True


def events_of(
    file: TraceFile, decode: Callable[[bytes], list[EventType]], decode_loosely: Callable[[bytes], EventType | None]
) -> tuple[EventStream[EventType], Iterator[list[EventType]]]:
    """The stream of a file and its batches, with the file's name in what they refuse."""
    stream = EventStream(file.pieces(), decode, decode_loosely)
    return stream, _named_batches(stream, file)


def _named_batches(stream: EventStream[EventType], file: TraceFile) -> Iterator[list[EventType]]:
    try:
        yield from stream.batches()
    except TraceError as error:
        known = str(error)
        raise TraceError(
            known if known.startswith("cannot read") else f"cannot read {str(file.path)!r}: {known}"
        ) from error


def _step(token: re.Match[bytes]) -> int:
    """How much deeper the text stands behind a bracket or a string."""
    return (token[0] in b"{[") - (token[0] in b"}]")


def _end_of_last_event(text: bytes) -> int:
    depth = end = 0
    for token in _BRACKET_OR_STRING.finditer(text):
        depth += _step(token)
        if depth == 0:
            end = token.end()
    return end


def _fields(tail: bytes) -> dict[str, Any] | None:
    """The fields behind the events, up to the brace that closes the document; None where that is no JSON."""
    try:
        return _object("{" + tail.lstrip(b", \t\r\n").decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _object(text: str) -> dict[str, Any]:
    """What the text of an object says; half a surrogate pair, which no report could be written with, becomes a mark."""
    found: dict[str, Any] = json.loads(text)
    if "\\u" in text:
        found = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
    return found


def _end_of_events(text: bytes) -> int | None:
    """The bracket that closes the events of a damaged text; None where there is none, or none that is certain."""
    ends = [match.start() + match[0].index(b"]") for match in _END_OF_EVENTS.finditer(text)][:_MOST_ENDS_TRIED]
    likely = [end for end in ends if _fields(text[end + 1 :]) is not None][:1]
    if not likely and text.rstrip().endswith(b"}") and ends and b'"ph"' not in text[ends[-1] :]:
        likely = ends[-1:]
    return next((end for end in likely if not save_events(text[:end]).rest.strip(b", \t\r\n")), None)


def _place_of(error: Exception) -> int | None:
    found = _WHERE.search(str(error))
    return int(found[1]) if found else None


def _end_of_array(error: Exception, text: bytes) -> int | None:
    """Behind the bracket that closes the array, where an error says that something follows it and it may do so."""
    place = _place_of(error)  # msgspec counts the first character that follows as read
    if place is None or "trailing characters" not in str(error) or not _BEHIND_EVENTS.match(text, place - 1):
        return None
    return place - 1
