"""Damaged events against what was written: random events, one damage of a known kind, or any bytes at all."""

from __future__ import annotations

import json
import random
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutdoctor.traces import json_repair
from layoutdoctor.traces.json_mending import EventReading, read_event
from layoutdoctor.traces.json_repair import repair_events

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12) | st.sampled_from(
    ("aten::conv2d", '{"ph": "X"}', '", "pid": 1', "}, {", '\\"', "C:\\dir\\", "[1, 2]", "a\nb", "x: y", "[", '"]')
)
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.sampled_from(("name", "ts", "id")), inner),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {"ph": st.sampled_from("XiMsf"), "name": TEXTS, "pid": st.integers(0, 9) | TEXTS, "ts": NUMBERS},
    optional={"cat": TEXTS, "dur": NUMBERS, "args": st.dictionaries(TEXTS, VALUES, max_size=4), "s": VALUES},
)


@st.composite
def written(draw: st.DrawFn) -> str:
    """An event in one of the four styles, its keys in any order."""
    fields = draw(FIELDS)
    event = {key: fields[key] for key in draw(st.permutations(sorted(fields)))}
    is_ascii = draw(st.booleans())
    style = draw(st.sampled_from(("kineto", "streaming", "one line", "indented")))
    if style == "kineto":
        parts = [f'"{key}": {json.dumps(value, ensure_ascii=is_ascii)}' for key, value in event.items()]
        return "{\n    " + ",\n    ".join((", ".join(parts[:3]), *parts[3:])) + "\n  }"
    if style == "streaming":
        return json.dumps(event, ensure_ascii=is_ascii, separators=(",", ":"))
    return json.dumps(event, ensure_ascii=is_ascii, indent=2 if style == "indented" else None)


EVENTS = written().map(str.encode)
BETWEEN = st.sampled_from((b",", b", ", b",\n", b",\n  ", b" , "))


@settings(max_examples=50, deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=5), BETWEEN)
def test_events_that_are_not_damaged_come_out_verbatim(events: list[bytes], between: bytes) -> None:
    repaired = repair_events(between.join(events))

    assert repaired.events == events
    assert (repaired.repaired_count, repaired.lost_count, repaired.kinds, repaired.rest) == (0, 0, {}, b"")


# What stands in the place of a value that was written as "@name" or 77, and what may be read from it.
DAMAGED_TEXTS = {
    b'"foo "bar" baz"': 'foo "bar" baz',
    b'"5" pipe"': '5" pipe',
    b'"f("a", "b")"': 'f("a", "b")',
    b'"a\nb\tc\x01"': "a\nb\tc\x01",
    rb'"C:\Users\x"': r"C:\Users\x",
    b'"C:\\dir\\"': "C:\\dir\\",
    b'"caf\xe9 \xff"': "caf\ufffd \ufffd",
    rb'"\ud800x"': "\ufffdx",
    b'""': "",
    b"'a'": "",
    b"None": "",
    b'"a': "",
    b"": None,
}
DAMAGED_NUMBERS = [
    b"NaN",
    b"-inf",
    b"01",
    b"+1",
    b".5",
    b"1.",
    b"0x10",
    b"",
    b"1e999",
    b"12abc",
    b"1 2",
    b"'1'",
    b"--1",
]


@settings(max_examples=50, deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=4), BETWEEN, st.integers(0, 3), st.data())
def test_one_damaged_value_harms_nothing_else(
    events: list[bytes], between: bytes, place: int, data: st.DataObject
) -> None:
    fields: dict[str, Any] = {"ph": "X", "cat": "cpu_op", "ts": 1.5, "args": {"b": [1, [2]], "c": 'x "y"'}}
    where = data.draw(st.sampled_from((fields, fields["args"])))
    key, marker = data.draw(st.sampled_from((("name", "@name"), ("dur", 77))))
    where[key] = marker
    order = data.draw(st.permutations(sorted(fields)))
    indent = data.draw(st.sampled_from((None, 2)))
    text = json.dumps({key: fields[key] for key in order}, indent=indent).encode()
    new = data.draw(st.sampled_from(sorted(DAMAGED_TEXTS) if key == "name" else DAMAGED_NUMBERS))
    damaged = text.replace(json.dumps(marker).encode(), new)
    place = min(place, len(events) - 1)  # some damage shows only by what follows the event

    repaired = repair_events(between.join((*events[:place], damaged, *events[place:])))

    others = [*repaired.events[:place], *repaired.events[len(repaired.events) - len(events) + place :]]
    assert others == events
    assert repaired.rest == b""
    if repaired.lost_count:
        assert len(repaired.events) == len(events)
        assert repaired.lost_count == 1
    else:
        where[key] = DAMAGED_TEXTS[new] if key == "name" else None
        assert json.loads(repaired.events[place]) == fields


@settings(max_examples=50, deadline=None)
@given(EVENTS, EVENTS, EVENTS, st.data())
def test_an_event_cut_anywhere_loses_itself_only(first: bytes, cut: bytes, last: bytes, data: st.DataObject) -> None:
    end = data.draw(st.integers(1, len(cut) - 1))

    repaired = repair_events(first + b",\n" + cut[:end] + b"\n" + last)

    assert repaired.events == [first, last]
    assert repaired.rest == b""


@settings(max_examples=50, deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=4), st.data())
def test_a_stretch_in_two_parts_gives_the_same_events(events: list[bytes], data: st.DataObject) -> None:
    text = b",\n".join(events)
    cut = data.draw(st.integers(0, len(text)))

    first = repair_events(text[:cut])
    second = repair_events(first.rest + text[cut:])

    assert first.events + second.events == events
    assert (first.lost_count, second.lost_count, second.rest) == (0, 0, b"")


TOKENS = b'{ } [ ] " , : \\ \\" \n \0 \xff 0 1 - . e NaN null "ph": "name":" {"ph": }, {"ts":1,'.split(b" ")


@settings(max_examples=50, deadline=None)
@given(st.lists(EVENTS, max_size=4), st.integers(0, 2**32), st.integers(1, 12))
def test_whatever_the_bytes_every_event_that_comes_out_is_an_object(
    events: list[bytes], seed: int, change_count: int
) -> None:
    generator = random.Random(seed)
    text = bytearray(b",\n".join(events))
    for _ in range(change_count):
        start = generator.randrange(len(text) + 1)
        end = start + generator.choice((0, 0, 1, 1, 2, 20))
        text[start:end] = generator.choice((b"", generator.choice(TOKENS), generator.randbytes(2), text[start:end] * 2))

    repaired = repair_events(bytes(text))

    assert all(isinstance(msgspec.json.decode(event), dict) for event in repaired.events)
    assert bytes(text).endswith(repaired.rest)
    assert repaired.repaired_count <= len(repaired.events)
    assert sum(map(len, repaired.events)) <= 6 * len(text) + 10  # a control character becomes six


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=60).map(b"".join) | st.binary(max_size=200))
def test_nothing_raises_and_nothing_unmended_is_changed(text: bytes) -> None:
    repaired = repair_events(text)

    if repaired.repaired_count == 0:
        assert all(event in text for event in repaired.events)
    assert all(isinstance(msgspec.json.decode(event), dict) for event in repaired.events)


SIZE = 400_000
UGLY = [
    (b"", b'"'), (b"", b"{"), (b"", b"}"), (b"", b"["), (b"", b"\\"), (b"", b" "), (b"", b"\0"), (b"", b","),
    (b'{"a":"', b'"'), (b'{"ph":"', b"\\"), (b'{"ph":', b"["), (b"", b'{"ph":'), (b"", b',{"ph":1'), (b"", b'{"ph":1,'),
    (b"", b'{"ph":[0,'), (b"", b'{"ph":"'), (b"", b'{"ph":"a",'), (b'{"ph":"', b'\\"}'), (b'{"ph":"', b'\\",'),
    (b"", b'{"ph":"x"},"'), (b"", b'{"ph":NaN},'), (b'{"ph":"', b'"}'), (b'{"ph":["', b'","'), (b'{"ph":"', b'","a":'),
    (b'{"ph":"a"', b" "), (b'{"ph":"a"', b","), (b"", b"}" + b" " * 99), (b"", b"{" + b" " * 99), (b'{"ph":', b"1"),
    (b'{"ph":[', b"1,"), (b'{"ph":1,', b'"a":1,'), (b'{"ph":"X","a":[', b'{"ph":"X","ts":1},'), (b"", b'{"\\"'),
    (b"", b'{"id":{"ph":"X","ts":1},'), (b"", b'{"ph":[{"ph":1},'), (b'{"ph":1,"', b"\\u"), (b'{"ph":"\\d', b"\\u00"),
    (b'{"ph":"a","b":"x" ', b'"c":'), (b'{"ph":"\xff', b"\xc3"), (b"", b'{"ph":1}]}{"traceEvents":['),
    (b'{"id":[' * 20, b'{"a":1},'),
]  # fmt: skip


@pytest.mark.parametrize(("start", "unit"), UGLY)
def test_no_text_takes_time_out_of_proportion(start: bytes, unit: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A walk that goes back and forth takes minutes for this size; one in proportion takes less than a second."""
    text = start + unit * (SIZE // len(unit)) + b"!}"
    walked = 0

    def counted(stretch: bytes, at: int, starts: Sequence[int]) -> EventReading:
        nonlocal walked
        reading = read_event(stretch, at, starts)
        walked += reading.end - at
        return reading

    monkeypatch.setattr(json_repair, "read_event", counted)
    began = time.process_time()

    repair_events(text)

    assert walked <= 2 * len(text)
    assert time.process_time() - began < 10


def test_one_damaged_event_among_thousands_is_the_only_one_that_is_read_with_care(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    careful: list[int] = []

    def counted(text: bytes, at: int, starts: Sequence[int]) -> EventReading:
        careful.append(at)
        return read_event(text, at, starts)

    monkeypatch.setattr(json_repair, "read_event", counted)
    event = json.dumps({"ph": "X", "name": "n", "ts": 1, "dur": 2, "args": {"name": "a", "b": [[1, 2]]}}).encode()
    events = [event] * 20_000
    events[12_345] = event.replace(b'"n"', b'"a "b" c"')

    repaired = repair_events(b",\n".join(events))

    assert careful == [12_345 * (len(event) + 2)]
    assert repaired.repaired_count == 1
    assert len(repaired.events) == 20_000
