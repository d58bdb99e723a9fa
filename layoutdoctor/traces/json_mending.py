"""
Saves the events of a stretch of a Chrome trace that is no valid JSON.

Four kinds of damage are mended, because profilers are known to write them: NaN and Infinity, bytes that are no UTF-8,
half a surrogate pair, and quotes in a name that nothing escapes. Any other damaged event is lost and counted, and
reading goes on with the next one. The time is in proportion to the text, whatever is in it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from itertools import islice
from typing import Any, NamedTuple

import msgspec

NOT_A_NUMBER = "NaN or Infinity"
NOT_UTF8 = "bytes that are no UTF-8"
HALF_PAIR = "half of a surrogate pair"
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
_HALVES = re.compile(
    rb"(?P<kept>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\[^u])"
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}",
    re.DOTALL,
)
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


def _as_utf8(event: bytes) -> bytes:
    return event.decode("utf-8", "replace").encode()


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
        parts += (event[done : start.end()], _ESCAPED_OR_QUOTE.sub(_escape, name))
        done = end.start()
    return b"".join((*parts, event[done:]))


def _escape(found: re.Match[bytes]) -> bytes:
    return b'\\"' if found[0] == b'"' else found[0]


def _without_halves(event: bytes) -> bytes:
    return _HALVES.sub(lambda found: found["kept"] or rb"\ufffd", event)


def _with_nulls(event: bytes) -> bytes:
    return _STRING_OR_NO_NUMBER.sub(lambda found: found["kept"] or b"null", event)


_MENDERS = (
    (NOT_UTF8, _as_utf8),
    (QUOTE, _with_escaped_quotes),
    (HALF_PAIR, _without_halves),
    (NOT_A_NUMBER, _with_nulls),
)
