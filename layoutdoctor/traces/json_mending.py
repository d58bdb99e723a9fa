"""
Reads one event of a damaged trace the way a careful person would, and writes it down as JSON.

A quote ends a string if what follows it can only follow a string: a comma and the next key, or the bracket that closes
the object. Only what leaves one reading is mended; a number is never put together from pieces. Every look ahead is
bounded, so reading takes time in proportion to the text. Faces ``json_repair``; no torch.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from typing import TYPE_CHECKING, Literal, NamedTuple

from layoutdoctor.traces.json_strings import (
    BACKSLASH,
    NOT_UTF8,
    QUOTE,
    has_quoted_words,
    looks_like_fields,
    looks_like_path,
    mended_string,
    unescaped_quote_count,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

NOT_A_NUMBER = "NaN or Infinity"
ODD_NUMBER = "a number that JSON does not know"
EMPTY_VALUE = "an empty value"
MISSING_COMMA = "a missing comma"
EXTRA_COMMA = "a comma too many"
ENDS_EARLY = "an event that ends too early"
NUL = "NUL bytes"
NO_VALUE = "a value that is no JSON"
TOO_DEEP = "brackets nested too deeply"
WHOLE_TRACE = "a whole trace among its own events"

_DEEPEST = 48
# Where these were mended, a key that comes twice in one object shows that the event was read wrongly.
_OPEN_TO_DOUBT = {QUOTE, BACKSLASH, MISSING_COMMA, EXTRA_COMMA}

# In the patterns, "~" stands for any white space and "<name>" for one of these parts.
_PARTS = {
    "number": r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?",
    "key": r'"(?:[^"\\\x00-\x1f]|\\.){0,200}"~:',
    "likely key": r'"[A-Za-z_][^"\\\x00-\x1f]{0,99}"~:',
    "value starts": r'["\-0-9\[{tfnNI]',
    "plain text": r'"[^"\\\x00-\x1f\x7f-\xff]*"',
    "commas": r"~,[ \t\r\n,]*",
    "object closes": r"~\}~(?:[,}\]{\x00]|\Z|<likely key>)",
    "list closes": r"~\]~(?:[,}\]]|\Z|<likely key>)",
    "behind value": r"(?:<commas>(?:<key>|\})|<object closes>|~<likely key>~<value starts>)",
    "behind item": r"(?:~,~(?:<value starts>|\])|<list closes>)",
}


def _pattern(text: str, flags: int = 0) -> re.Pattern[bytes]:
    while "<" in text:
        text = re.sub("<([a-z ]+)>", lambda part: _PARTS[part[1]], text)
    return re.compile(text.replace("~", r"[ \t\r\n]*").encode(), flags)


_SPACE = _pattern("~")
_COMMAS = _pattern("<commas>")
_KEY = _pattern(r'"((?:[^"\\\x00-\x1f]|\\.){0,200})"~:~')
_UNFINISHED_KEY = _pattern(r'(?:"(?:[^"\\\x00-\x1f]|\\.){0,200}(?:\\|"~)?)?\Z')
_UNFINISHED_MEMBER = _pattern(r'"[^"\\\x00-\x1f]{0,100}(?:"~(?::~)?)?\Z')
_MISSING_COMMA = _pattern("<likely key>~<value starts>")
# Most members and items are plain; these are only quicker ways to read them.
_PLAIN_MEMBER = _pattern(
    r'"([A-Za-z_][^"\\\x00-\x1f\x7f-\xff]{0,99})"~:~'
    r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]{1,30})?|true|false|null|<plain text>)(?:~,~(?=<likely key>)|(?=<object closes>))"
)
_PLAIN_ITEMS = _pattern(r"(?:-?(?:0|[1-9][0-9]*)~,~)*(?=[-0-9])")
_STRING = _pattern(r'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BEHIND_VALUE = _pattern("<behind value>")
_BEHIND_ITEM = _pattern("<behind item>")
_QUOTE_BEHIND_VALUE = _pattern(r'"(?=<commas>(?:<likely key>|\})|<object closes>)')
_QUOTE_BEHIND_ITEM = _pattern('"(?=<behind item>)')
_COMMA_AND_KEY = _pattern("~,~<likely key>")
_WORD = _pattern(r'[^ \t\r\n,\[\]{}":]*')
_WHOLE_NUMBER = _pattern("<number>")
_NO_NUMBER = _pattern(r"[-+]?(?:nan(?:\(\w*\))?|inf(?:inity)?|1\.#(?:inf|ind|qnan|snan)0*)", re.IGNORECASE)
_ODD_NUMBER = _pattern(r"[-+]?(?:0[xX][0-9a-fA-F]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)")
_COMMA, _OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST, _MARK, _ESCAPE, _BLANK = b',{}[]"\\ '


class EventReading(NamedTuple):
    """
    What came of reading one event.

    Attributes:
        outcome: ``whole``; ``incomplete`` where the text ends within the event; ``unreadable``.
        end: Behind the event, or where an unreadable one could not be followed any more.
        text: A whole event as JSON, with only what was mended written anew; empty else.
        kinds: Kinds of damage, each once, in words; of an unreadable event the one that could not be mended.
    """

    outcome: Literal["whole", "incomplete", "unreadable"]
    end: int
    text: bytes = b""
    kinds: tuple[str, ...] = ()


def read_event(text: bytes, at: int, starts: Sequence[int]) -> EventReading:
    """
    Reads the event that starts at a brace.

    Args:
        text: A stretch of a trace.
        at: Where the event's ``{`` stands.
        starts: Sorted places where something stands that looks like the start of an event; no string goes beyond one.
    """
    reader = _EventReader(text, starts)
    try:
        end = reader.read(at)
    except _UnreadableError as failure:
        return EventReading("unreadable", failure.at, kinds=(failure.kind,))
    except _IncompleteError:
        if reader.holds_events:  # the array of all other events stands within this one: it was cut before them
            return EventReading("unreadable", len(text), kinds=(ENDS_EARLY,))
        return EventReading("incomplete", len(text))
    return EventReading("whole", end, reader.mended(at, end), tuple(dict.fromkeys(reader.kinds)))


class _UnreadableError(Exception):
    def __init__(self, kind: str, at: int) -> None:
        super().__init__(kind)
        self.kind = kind
        self.at = at


class _IncompleteError(Exception):
    pass


class _EventReader:
    """Walks through one event; what has to be written anew is kept as patches of the text."""

    __slots__ = ("_has_key_twice", "_has_lone_quote", "_patches", "holds_events", "kinds", "starts", "text")

    def __init__(self, text: bytes, starts: Sequence[int]) -> None:
        self.text = text
        self.starts = starts
        self.kinds: list[str] = []
        self.holds_events = False
        self._patches: list[tuple[int, int, bytes]] = []
        self._has_key_twice = False
        # One string with a lone quote in it has one reading; two may be one string with a comma and a key in it.
        self._has_lone_quote = False

    def read(self, at: int) -> int:
        """Where the event that starts at the brace ends."""
        end = self._object(at + 1, 0)
        if not self._patches:
            return end
        if self._has_key_twice and not _OPEN_TO_DOUBT.isdisjoint(self.kinds):
            raise _UnreadableError(next(kind for kind in self.kinds if kind in _OPEN_TO_DOUBT), end)
        return end

    def mended(self, start: int, end: int) -> bytes:
        """The text between, with the patches applied."""
        parts: list[bytes] = []
        for first, last, new in self._patches:
            parts += (self.text[start:first], new)
            start = last
        parts.append(self.text[start:end])
        return b"".join(parts)

    def _patch(self, start: int, end: int, new: bytes, kind: str) -> None:
        self._patches.append((start, end, new))
        self.kinds.append(kind)

    def _next(self, at: int) -> tuple[int, int]:
        """Where the next character stands that is no white space, and which it is."""
        try:
            if self.text[at] <= _BLANK:
                at = _SPACE.match(self.text, at).end()  # type: ignore[union-attr]  # it matches everywhere
            return at, self.text[at]
        except IndexError:
            raise _IncompleteError from None

    def _object(self, at: int, depth: int) -> int:
        """Reads from behind an object's brace to behind the one that closes it."""
        keys: set[bytes] = set()
        while True:
            at, character = self._next(at)
            if character == _CLOSE:
                break
            plain = _PLAIN_MEMBER.match(self.text, at)
            if plain is None:
                key, at = self._member(at, depth)
            else:
                key, at = plain[1], plain.end()
            self._has_key_twice |= key in keys
            keys.add(key)
        if depth > 0 and b"ph" in keys and not keys.isdisjoint((b"ts", b"pid")):
            self.holds_events = True
        return at + 1

    def _member(self, at: int, depth: int) -> tuple[bytes, int]:
        """Reads a key, its value and the comma behind it; returns the key and the place."""
        key = _KEY.match(self.text, at)
        if key is None:
            if _UNFINISHED_KEY.match(self.text, at):
                raise _IncompleteError
            raise self._failure(NO_VALUE, at)
        name = key[1]
        if depth == 0 and name == b"traceEvents":
            raise _UnreadableError(WHOLE_TRACE, key.end())
        if not name.isascii() and mended_string(name)[0] != name:  # which field it is cannot be known
            raise _UnreadableError(NOT_UTF8, at)
        at = self._value(key.end(), depth, in_list=False)
        behind = at
        at, character = self._next(at)
        if character == _COMMA:
            comma = at
            at, character = self._next(_COMMAS.match(self.text, at).end())  # type: ignore[union-attr]
            if character == _CLOSE:
                self._patch(comma, at, b"", EXTRA_COMMA)
            elif b"," in self.text[comma + 1 : at]:
                if self.text[comma - 1 : comma].isdigit():  # the second one may stand for a digit
                    raise _UnreadableError(EXTRA_COMMA, at)
                self._patch(comma + 1, at, b" ", EXTRA_COMMA)
        elif character == _MARK:
            self._add_comma(behind, at)
        elif character != _CLOSE:
            raise self._failure(NO_VALUE, at)
        return name, at

    def _add_comma(self, behind: int, key: int) -> None:
        """Puts a comma between a value and the key that follows, where that is what is missing."""
        if _UNFINISHED_MEMBER.match(self.text, key):
            raise _IncompleteError
        if not _MISSING_COMMA.match(self.text, key):
            raise _UnreadableError(NO_VALUE, key)
        if self.text[behind - 1 : behind].isdigit():  # the number may have lost its last digits with the comma
            raise _UnreadableError(MISSING_COMMA, key)
        self._patch(behind, behind, b",", MISSING_COMMA)

    def _list(self, at: int, depth: int) -> int:
        """Reads from behind a list's bracket to behind the one that closes it."""
        at, character = self._next(at)
        if character == _CLOSE_LIST:
            return at + 1
        while True:
            at = _PLAIN_ITEMS.match(self.text, at).end() if character in b"-0123456789" else at  # type: ignore[union-attr]
            at, character = self._next(self._value(at, depth, in_list=True))
            if character == _CLOSE_LIST:
                return at + 1
            if character != _COMMA:  # how many sizes "[1 2]" has, and "[1, 2,]", cannot be known
                raise self._failure(NO_VALUE, at)
            at, character = self._next(at + 1)

    def _value(self, at: int, depth: int, *, in_list: bool) -> int:
        """Reads a value; returns the place behind it."""
        at, character = self._next(at)
        if character == _MARK:
            return self._string(at + 1, in_list=in_list)
        if character not in (_OPEN, _OPEN_LIST):
            return self._word(at, in_list=in_list)
        if depth >= _DEEPEST:
            raise _UnreadableError(TOO_DEEP, at)
        return self._object(at + 1, depth + 1) if character == _OPEN else self._list(at + 1, depth + 1)

    def _word(self, at: int, *, in_list: bool) -> int:
        """Reads a value without quotes or brackets."""
        end = _WORD.match(self.text, at).end()  # type: ignore[union-attr]  # it matches everywhere
        if end >= len(self.text):
            raise _IncompleteError
        word = self.text[at:end]
        if word in (b"true", b"false", b"null") or (_WHOLE_NUMBER.fullmatch(word) and not _is_too_large(word)):
            return end
        if not word and not in_list and self.text[end] in (_COMMA, _CLOSE):
            self._patch(at, end, b"null", EMPTY_VALUE)
        elif _NO_NUMBER.fullmatch(word) or _WHOLE_NUMBER.fullmatch(word):
            self._patch(at, end, b"null", NOT_A_NUMBER)
        elif _ODD_NUMBER.fullmatch(word):
            self._patch(at, end, b"null", ODD_NUMBER)
        else:
            raise self._failure(NUL if b"\0" in word else NO_VALUE, at)
        return end

    def _string(self, at: int, *, in_list: bool) -> int:
        """Reads a string from behind its first quote to behind the one that closes it."""
        next_start = bisect_left(self.starts, at)
        # The brace of the next start is still seen, as what may follow a string.
        limit = self.starts[next_start] + 1 if next_start < len(self.starts) else len(self.text)
        whole = _STRING.match(self.text, at, limit)
        if whole and (_BEHIND_ITEM if in_list else _BEHIND_VALUE).match(self.text, whole.end(), limit):
            self._mend_string(at, whole.end() - 1)
            return whole.end()
        quote = self._closing_quote(at, limit, in_list=in_list)
        inner = unescaped_quote_count(self.text[at:quote])
        if inner:
            self._judge_inner_quotes(at, quote, inner, in_list=in_list)
        self._mend_string(at, quote)
        return quote + 1

    def _closing_quote(self, at: int, limit: int, *, in_list: bool) -> int:
        """Where a string ends that does not end at its first quote, or has none."""
        closing = _QUOTE_BEHIND_ITEM if in_list else _QUOTE_BEHIND_VALUE
        escaped: int | None = None  # a quote behind a backslash that may close the string all the same
        found = closing.search(self.text, at, limit)
        while found is not None and self._is_escaped(found.start(), at):
            if _COMMA_AND_KEY.match(self.text, found.end()):
                return found.start()
            escaped = found.start() if escaped is None else escaped
            found = closing.search(self.text, found.end(), limit)
        if escaped is not None and (found or limit < len(self.text)):
            before = self.text[at : escaped - 1]  # without the backslash in front of the quote
            if looks_like_path(before) and not unescaped_quote_count(before):
                return escaped
        if found is not None:
            return found.start()
        if limit == len(self.text):
            raise _IncompleteError
        is_quoted = self.text[limit - 2] == _MARK  # JSON within a string, its quotes not escaped
        raise _UnreadableError(QUOTE if is_quoted else ENDS_EARLY, limit - 1)

    def _is_escaped(self, quote: int, start: int) -> bool:
        before = quote
        while before > start and self.text[before - 1] == _ESCAPE:
            before -= 1
        return (quote - before) % 2 == 1

    def _judge_inner_quotes(self, start: int, end: int, inner: int, *, in_list: bool) -> None:
        """Refuses a string that may as well be several fields or items."""
        content = self.text[start:end]
        if looks_like_fields(content):
            raise _UnreadableError(QUOTE, end)
        if inner == 1 and not in_list and not self._has_lone_quote:
            self._has_lone_quote = True
        elif not has_quoted_words(content):
            raise _UnreadableError(QUOTE, end)

    def _mend_string(self, start: int, end: int) -> None:
        content = self.text[start:end]
        mended, kinds = mended_string(content)
        if b"\0" in content:  # a block that was never written: what follows may belong to another event
            raise _UnreadableError(NUL, end)
        if mended != content:
            self._patch(start, end, mended, kinds[0])
            self.kinds.extend(kinds[1:])

    def _failure(self, kind: str, at: int) -> _UnreadableError:
        """The event's end came too early where another one starts here; else the kind that is given."""
        if self.text[at] == 0:
            return _UnreadableError(NUL, at)
        place = bisect_left(self.starts, at)
        is_start = place < len(self.starts) and self.starts[place] == at
        return _UnreadableError(ENDS_EARLY if is_start else kind, at)


def _is_too_large(word: bytes) -> bool:
    """Whether a number is infinite to every reader, such as 1e999."""
    return len(word) > 4 and math.isinf(float(word)) and not word.isdigit()
