"""Events cut out of a stream of bytes: whole ones against Python's own JSON reader, and damage of every known kind."""

from __future__ import annotations

import contextlib
import json
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from layoutdoctor.errors import TraceError
from layoutdoctor.recording.event_stream import EventStream, recover_events

if TYPE_CHECKING:
    from collections.abc import Iterator

# Rich in what a cutter may take for the border between two events, or for the key of the events.
TEXTS = st.text('{}[],:"\\\n é😀', max_size=6) | st.sampled_from(
    [
        "},{",
        "}, {",
        '},\n  {"ph": "X"',
        "traceEvents",
        '"traceEvents": [',
        '}], "x": 1}',
        "]}",
        "\\",
        "\\u007b",
        "Spans",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
EVENTS = st.dictionaries(st.sampled_from(["ph", "cat", "name", "ts", "args"]) | TEXTS, VALUES, max_size=5)
FIELDS = st.dictionaries(TEXTS.filter(lambda key: key != "traceEvents"), VALUES, max_size=3)
STYLES: list[dict[str, Any]] = [
    {},
    {"separators": (",", ":")},
    {"indent": 2},
    {"indent": 4},
    {"indent": "\t"},
    {"separators": (" ,", " : ")},
    {"separators": ("\n, ", ":\n")},
]
DAMAGES = [b"", b'"', b"\\", b"\n", b"\0", b"\xff", b"NaN", b",", b"{", b"}", b"[", b"]", b"\\ud800"]
_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode


class Read(NamedTuple):
    events: list[dict[str, Any]]
    stream: EventStream[dict[str, Any]]


def read(data: bytes, batch_bytes: int = 1 << 20, piece_bytes: int | None = None) -> Read:
    """What the stream makes of a document that comes in pieces."""
    size = piece_bytes or max(1, len(data))
    pieces = (data[start : start + size] for start in range(0, len(data), size))
    stream = EventStream(pieces, _decode, _decode_loosely, "a.json", batch_bytes)
    return Read([event for batch in _none_empty(stream) for event in batch], stream)


def _none_empty(stream: EventStream[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for batch in stream.batches():
        assert batch
        yield batch


def _decode_loosely(text: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text.decode("utf-8", "replace"))
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """A trace in one of the ways in which JSON may be written."""
    events = draw(st.lists(EVENTS, max_size=8))
    whole: Any = {**draw(FIELDS), "traceEvents": events, **draw(FIELDS)} if draw(st.booleans()) else events
    text = json.dumps(whole, ensure_ascii=draw(st.booleans()), **draw(st.sampled_from(STYLES)))
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    mark = draw(st.sampled_from([b"", b"\xef\xbb\xbf", b" \n"]))
    return mark + text.encode() + draw(st.sampled_from([b"", b"\n", b" \r\n"]))


def expected_of(data: bytes) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    found = json.loads(data.decode("utf-8-sig"))
    if isinstance(found, list):
        return found, {}
    return found.pop("traceEvents"), found


@settings(max_examples=40, deadline=None)
@given(documents(), st.integers(1, 400), st.integers(1, 400))
@example(b'{"k": {"traceEvents": [{"ph": "no"}]}, "traceEvents": [{"ph": "X"}]}', 1, 1)
@example(b'{"traceEvents": [{"args": {"x": [' + b'{"a": 1}, ' * 40 + b'{"a": 1}]}}], "k": [{"a": 1}, {"a": 2}]}', 1, 1)
def test_what_is_read_does_not_depend_on_where_it_is_cut(data: bytes, batch_bytes: int, piece_bytes: int) -> None:
    events, fields = expected_of(data)
    for batch, piece in ((batch_bytes, piece_bytes), (batch_bytes, None), (1, 1), (1, None), (len(data), None)):
        found, stream = read(data, batch, piece)

        assert found == events
        assert stream.metadata == fields
        assert (stream.is_truncated, stream.lost_count, stream.damage) == (False, 0, {})


@st.composite
def written_events(draw: st.DrawFn) -> tuple[bytes, list[str], list[int]]:
    """A document, the text of each of its events, and where each ends."""
    texts = [json.dumps({"ph": "X", **event}) for event in draw(st.lists(EVENTS, min_size=1, max_size=8))]
    data, ends = draw(st.sampled_from([b'{"schemaVersion": 1, "traceEvents": [', b"["])), []
    for place, text in enumerate(texts):
        data += draw(st.sampled_from([b",", b", ", b",\n  ", b" ,"])) * (place > 0) + text.encode()
        ends.append(len(data))
    return data + (b'], "traceName": "a.json"}' if data[:1] == b"{" else b"]"), texts, ends


@settings(max_examples=40, deadline=None)
@given(written_events(), st.floats(0, 1), st.integers(1, 300), st.integers(1, 300))
def test_a_file_that_ends_too_early_keeps_every_event_that_is_whole(
    written: tuple[bytes, list[str], list[int]], share: float, batch_bytes: int, piece_bytes: int
) -> None:
    data, texts, ends = written
    first = data.index(b"[") + 1
    cut = first + math.floor(share * (len(data) - 1 - first))
    assume(not data[:cut].endswith(b"}]"))  # which may as well close the events, the last of them damaged
    whole = [json.loads(text) for text, end in zip(texts, ends, strict=True) if end <= cut]

    found, stream = read(data[:cut], batch_bytes, piece_bytes)

    assert found == whole
    assert (stream.lost_count, stream.damage) == (0, {})
    if data[:1] == b"{":
        assert stream.is_truncated


@settings(max_examples=40, deadline=None)
@given(
    documents(),
    st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 30), st.sampled_from(DAMAGES)),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 300),
)
def test_no_damage_ends_in_anything_but_events_or_a_trace_error(
    data: bytes, damages: list[tuple[float, int, bytes]], batch_bytes: int
) -> None:
    for share, deleted, inserted in damages:
        place = math.floor(share * len(data))
        data = data[:place] + inserted + data[place + deleted :]
    try:
        found, stream = read(data, batch_bytes)
    except TraceError:
        return
    assert all(isinstance(event, dict) for event in found)
    assert stream.lost_count >= 0


def test_no_trace_is_an_error_that_says_what_was_expected() -> None:
    for data, words in (
        (b"", "it does not start as JSON"),
        (b"hello", "it does not start as JSON"),
        (b"{}", "it is JSON without a list 'traceEvents'"),
        (b'{"traceEvents": null}', "it is JSON without a list 'traceEvents'"),
        (b'{"traceEvents": {"ph": "X"}}', "it is JSON without a list 'traceEvents'"),
        (b'{"traceEvents": "[]"}', "it is JSON without a list 'traceEvents'"),
        (b'{"a": "\\"traceEvents\\": [{}]"}', "it is JSON without a list 'traceEvents'"),
        (b'{"data": {"traceEvents": [{"ph": "X"}]}}', "it is JSON without a list 'traceEvents'"),
    ):
        for batch_bytes in (1, 1 << 20):
            with pytest.raises(TraceError, match=words):
                read(data, batch_bytes, 1)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"before": "%b", "traceEvents": []}' % (b"x" * 9_000), "its first 2.00 KiB hold no 'traceEvents'"),
        (b'[{"name": "%b"}]' % (b"x" * 9_000), "2.00 KiB in a row hold no whole event"),
    ],
)
def test_what_is_larger_than_memory_allows_is_refused(monkeypatch: pytest.MonkeyPatch, data: bytes, words: str) -> None:
    monkeypatch.setattr("layoutdoctor.recording.event_stream.MOST_PENDING_BYTES", 2048)

    with pytest.raises(TraceError, match=words):
        read(data, 64, 64)
    assert read(data.replace(b"x" * 8_000, b""), 64, 64).stream.damage == {}


# The text in the place of a name or of 77, how often which damage is counted, and what is read from it.
QUOTED = {
    b'"foo "bar" baz"': 'foo "bar" baz',
    b'"5" pipe"': '5" pipe',
    b'"f("a", "b")"': 'f("a", "b")',
    b'""bar""': '"bar"',
    b'"a "b" \\"c\\" \\\\"': 'a "b" "c" \\',
}
LOST_NAMES = [rb'"\ud800x"', b'"a\nb"', rb'"C:\Users\x"', b"'a'", b"None", b'"a', b""]
NULLS = [b"NaN", b"nan", b"-nan", b"-nan(ind)", b"Infinity", b"-Infinity", b"inf", b"-inf", b"+Inf"]
LOST_NUMBERS = [b"01", b"+1", b".5", b"1.", b"0x10", b"", b"12abc", b"1 2", b"'1'"]
DAMAGED_VALUES: list[tuple[str, Any, bytes, dict[str, int], Any]] = [
    *((key, "@name", new, {"an unescaped quote": 1}, QUOTED[new]) for new in QUOTED for key in ("name", "kernel")),
    ("name", "@name", b'"caf\xe9 \xff"', {"bytes that are no UTF-8": 1}, "caf\ufffd \ufffd"),
    *(("name", "@name", new, {}, None) for new in LOST_NAMES),
    *(("dur", 77, new, {"NaN or Infinity": 1}, None) for new in NULLS),
    *(("dur", 77, new, {}, None) for new in LOST_NUMBERS),
]


@settings(max_examples=3, deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=4), st.integers(0, 3), st.sampled_from((1, 1 << 20)), st.data())
def test_one_damaged_value_harms_nothing_else(
    events: list[dict[str, Any]], place: int, batch_bytes: int, data: st.DataObject
) -> None:
    place = min(place, len(events) - 1)  # some damage is found only by what follows the event
    others = [{"ph": "X", **event} for event in events]
    for key, marker, new, damage, value in DAMAGED_VALUES:
        fields: dict[str, Any] = {"ph": "X", "cat": "nan, [inf]", "ts": 1.5, "args": {"b": [1, [2]], "c": 'x "y"'}}
        where = data.draw(st.sampled_from((fields, fields["args"])))
        where[key] = marker
        order = data.draw(st.permutations(sorted(fields)))
        damaged = json.dumps({key: fields[key] for key in order}, indent=data.draw(st.sampled_from((None, 2))))
        texts = [json.dumps(event).encode() for event in others]
        texts.insert(place, damaged.encode().replace(json.dumps(marker).encode(), new))

        found, stream = read(b'{"traceEvents": [' + b", ".join(texts) + b'], "k": [{"a": 1}]}', batch_bytes, 64)

        where[key] = value
        assert found == [*others[:place], *([fields] if damage else []), *others[place:]], new
        assert (stream.damage, stream.lost_count) == (damage, int(not damage)), new
        assert (stream.metadata, stream.is_truncated) == ({"k": [{"a": 1}]}, False)


SEPARATOR = b",\n  "
GOOD = b'{"ph": "X", "cat": "kernel", "name": "good", "pid": 0, "ts": 1.5, "dur": 2, "args": {"stream": 7}}'
BEFORE = b'{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "python"}}'


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"ph": "X", "name": "foo, "pid": 1, "cat": "x", "dur": 3}',
        b'{"ph": "X", "name": "a", "args": {"a": ["x "y", "z"]}}',
        b'{"ph": "X", "name": "{"b": 1, "c": 2}", "d": 2}',
        b'{"ph": "X",, "pid": 1}',
        b'{"ph": "X", "args": {"a": [1, 2}}',
        b'{"ph": "X", "ts": ' + b"9" * 5000 + b"a}",
        b'{"ph": "X", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"ph": "X", "a": bad, "args": {"b": [{"c": 1}, {"d": 2}], "e": 3}}',
    ],
)
def test_any_other_damaged_event_is_lost_alone(damaged: bytes) -> None:
    found = recover_events(BEFORE + SEPARATOR + damaged + SEPARATOR + GOOD)

    assert found == ([BEFORE, GOOD], 1, {}, b"", False)


def test_an_event_without_its_end_harms_no_other() -> None:
    whole = b'{"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "ts": 1.25, "args": {"Input Dims": [[2, 3], []]}}'
    for cut in range(1, len(whole)):
        for separator in (b"", SEPARATOR):
            found = recover_events(BEFORE + SEPARATOR + whole[:cut] + separator + GOOD + SEPARATOR + BEFORE)
            assert found == ([BEFORE, GOOD, BEFORE], 1, {}, b"", False)

        assert recover_events(GOOD + SEPARATOR + whole[:cut]) == ([GOOD], 0, {}, whole[:cut], False)


UGLY = [
    (b"", b'"'), (b"", b"{"), (b"", b"}"), (b"", b"["), (b"", b"\\"), (b"", b" "), (b"", b","), (b'{"a":"', b'"'),
    (b"", b'{"ph":'), (b"", b',{"ph":1'), (b"", b'{"ph":1,'), (b"", b'{"ph":[0,'), (b"", b'{"ph":"a",'),
    (b"", b'{"ph":"x"},"'), (b"", b'{"ph":NaN},'), (b'{"ph":["', b'","'), (b"", b"}" + b" " * 99),
    (b'{"ph":"X","a":[', b'{"ph":"X","ts":1},'), (b"", b'{"id":{"ph":"X","ts":1},'), (b"", b'{"ph":[{"ph":1},'),
    (b'{"id":[' * 20, b'{"a":1},'), (b'{"ph":', b'"name":"'), (b'{"ph":', b'"name":"a"b '), (b"}", b"{ "),
    (b'{"ph":nan,"b":"', b'\\"'), (b'{"ph":nan', b",nan("), (b"", b'{"ph":1}\n"a'), (b"", b'{"traceEvents": ['),
    (b"", b'{"a":1,"traceEvents":['),
]  # fmt: skip


@pytest.mark.slow
def test_no_text_takes_time_out_of_proportion() -> None:
    """A walk that goes back and forth takes minutes for this size; one in proportion takes less than a second."""
    for start, unit in UGLY:
        text = start + unit * (400_000 // len(unit)) + b"!}"
        for head in (b"[", b'{"traceEvents": [', b'{"a": '):
            began = time.process_time()

            with contextlib.suppress(TraceError):
                read(head + text)

            assert time.process_time() - began < 5, (head, start, unit)
