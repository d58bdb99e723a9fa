"""What can be saved of damaged events: random ones, one damage of a known kind, a missing end, any bytes at all."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutdoctor.recording.event_stream import Saved, save_events

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
def written(draw: st.DrawFn) -> bytes:
    """An event in one of the styles of JSON, its keys in any order."""
    fields = draw(FIELDS)
    event = {key: fields[key] for key in draw(st.permutations(sorted(fields)))}
    style: dict[str, Any] = draw(st.sampled_from(({}, {"separators": (",", ":")}, {"indent": 2})))
    return json.dumps(event, ensure_ascii=draw(st.booleans()), **style).encode()


BETWEEN = st.sampled_from((b",", b", ", b",\n", b",\n  ", b" , "))


@settings(max_examples=30, deadline=None)
@given(st.lists(written(), min_size=1, max_size=5), BETWEEN, st.data())
def test_events_that_are_not_damaged_come_out_verbatim_in_one_part_or_two(
    events: list[bytes], between: bytes, data: st.DataObject
) -> None:
    text = between.join(events)
    assert save_events(text) == (events, 0, {}, b"")

    cut = data.draw(st.integers(0, len(text)))
    first = save_events(text[:cut])
    second = save_events(first.rest + text[cut:])

    assert first.events + second.events == events
    assert (first.lost_count, second.lost_count, second.rest) == (0, 0, b"")


# What stands in the place of a name or of 77, and what may be read from it.
QUOTED = {
    b'"foo "bar" baz"': 'foo "bar" baz',
    b'"5" pipe"': '5" pipe',
    b'"f("a", "b")"': 'f("a", "b")',
    b'""bar""': '"bar"',
    b'"a "b" \\"c\\" \\\\"': 'a "b" "c" \\',
}
NO_UTF8 = {b'"caf\xe9 \xff"': "caf\ufffd \ufffd"}
LOST_NAMES = [rb'"\ud800x"', b'"a\nb"', rb'"C:\Users\x"', b"'a'", b"None", b'"a', b""]
NULLS = [b"NaN", b"nan", b"-nan", b"-nan(ind)", b"Infinity", b"-Infinity", b"inf", b"-inf", b"+Inf"]
LOST_NUMBERS = [b"01", b"+1", b".5", b"1.", b"0x10", b"", b"12abc", b"1 2", b"'1'"]
DAMAGES = [
    *((key, "@name", new, {"an unescaped quote": 1}, QUOTED[new]) for new in QUOTED for key in ("name", "kernel")),
    *(("name", "@name", new, {"bytes that are no UTF-8": 1}, value) for new, value in NO_UTF8.items()),
    *(("name", "@name", new, {}, None) for new in LOST_NAMES),
    *(("dur", 77, new, {"NaN or Infinity": 1}, None) for new in NULLS),
    *(("dur", 77, new, {}, None) for new in LOST_NUMBERS),
]


@settings(max_examples=5, deadline=None)
@given(st.lists(written(), min_size=1, max_size=4), BETWEEN, st.integers(0, 3), st.data())
def test_one_damaged_value_harms_nothing_else(
    events: list[bytes], between: bytes, place: int, data: st.DataObject
) -> None:
    place = min(place, len(events) - 1)  # some damage shows only by what follows the event
    for key, marker, new, kinds, value in DAMAGES:
        fields: dict[str, Any] = {"ph": "X", "cat": "nan, [inf]", "ts": 1.5, "args": {"b": [1, [2]], "c": 'x "y"'}}
        where = data.draw(st.sampled_from((fields, fields["args"])))
        where[key] = marker
        order = data.draw(st.permutations(sorted(fields)))
        text = json.dumps({key: fields[key] for key in order}, indent=data.draw(st.sampled_from((None, 2)))).encode()
        damaged = text.replace(json.dumps(marker).encode(), new)

        saved = save_events(between.join((*events[:place], damaged, *events[place:])))

        assert [*saved.events[:place], *saved.events[len(saved.events) - len(events) + place :]] == events
        assert (saved.rest, saved.lost_count, saved.kinds) == (b"", not kinds, kinds), new
        if kinds:
            where[key] = value
            assert json.loads(saved.events[place]) == fields


SEPARATOR = b",\n  "
GOOD = b'{"ph": "X", "cat": "kernel", "name": "good", "pid": 0, "ts": 1.5, "dur": 2, "args": {"stream": 7}}'
BEFORE = b'{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "python"}}'


def between(damaged: bytes) -> Saved:
    """Puts the text between two good events, which have to come out verbatim."""
    saved = save_events(BEFORE + SEPARATOR + damaged + SEPARATOR + GOOD)
    assert (saved.events[0], saved.events[-1], saved.rest) == (BEFORE, GOOD, b"")
    return saved


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"ph": "X", "name": "foo, "pid": 1, "cat": "x", "dur": 3}',
        b'{"ph": "X", "name": "a", "args": {"a": ["x "y", "z"]}}',
        b'{"ph": "X", "name": "{"b": 1, "c": 2}", "d": 2}',
        b'{"ph": "X",, "pid": 1}',
        b'{"ph": "X" "pid": 1}',
        b"{\"ph\": 'X'}",
        b'{"ph": "X", "name": "a\0\0b", "ts": 1}',
        b'{"ph": "X", "args": {"a": [1, 2}}',
        b'{"ph": "X", "ts": ' + b"9" * 5000 + b"}",
        b'{"ph": "X", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"ph": "X", "name": "a"}, "dur": 5}',
        b'{"ph": "X", "args": {"a": 1}, "b": 2}}, "dur": 5}',
    ],
)
def test_any_other_damaged_event_is_lost_alone(damaged: bytes) -> None:
    assert between(damaged) == ([BEFORE, GOOD], 1, {}, b"")


def test_an_event_of_which_the_start_or_the_end_is_missing_harms_no_other() -> None:
    whole = b'{"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "ts": 1.25, "args": {"Input Dims": [[2, 3], []]}}'
    for cut in range(1, len(whole)):
        for separator in (b"", b"\n", SEPARATOR):
            saved = save_events(BEFORE + SEPARATOR + whole[:cut] + separator + GOOD + SEPARATOR + BEFORE)
            assert (saved.events, saved.rest) == ([BEFORE, GOOD, BEFORE], b"")
            assert saved.lost_count == 1

        saved = save_events(whole[cut:] + SEPARATOR + GOOD)
        assert (saved.events, saved.rest) == ([GOOD], b"")

        assert save_events(GOOD + SEPARATOR + whole[:cut]) == ([GOOD], 0, {}, whole[:cut])


def test_a_damaged_event_is_mended_the_same_wherever_the_stretch_was_cut() -> None:
    damaged = b'{"ph": "X", "name": "a "b" c", "dur": nan, "args": {"g": "\xff"}, "ts": 3}'
    text = GOOD + b", " + damaged + b", " + GOOD
    whole = save_events(text)
    for cut in range(len(GOOD), len(GOOD) + len(damaged) + 4):
        first = save_events(text[:cut])
        second = save_events(first.rest + text[cut:])

        assert first.events + second.events == whole.events
        assert first.lost_count == second.lost_count == 0


def test_thousands_of_unreadable_events_hide_no_good_one() -> None:
    saved = save_events(b'{"ph": abc},' * 6_000 + GOOD + b"," + BEFORE + b', {"ph": NaN}')

    assert saved == ([GOOD, BEFORE, b'{"ph": null}'], 6_000, {"NaN or Infinity": 1}, b"")


TOKENS = b'{ } [ ] " , : \\ \\" \n \0 \xff 0 1 - . e NaN null "ph": "name":" {"ph": }, {"ts":1,'.split(b" ")


@settings(max_examples=50, deadline=None)
@given(st.lists(written(), max_size=4), st.integers(0, 2**32), st.integers(1, 12))
def test_whatever_the_bytes_every_event_that_comes_out_is_an_object(
    events: list[bytes], seed: int, change_count: int
) -> None:
    generator = random.Random(seed)
    text = bytearray(b",\n".join(events))
    for _ in range(change_count):
        start = generator.randrange(len(text) + 1)
        end = start + generator.choice((0, 0, 1, 1, 2, 20))
        text[start:end] = generator.choice((b"", generator.choice(TOKENS), generator.randbytes(2), text[start:end] * 2))

    saved = save_events(bytes(text))

    assert all(isinstance(json.loads(event), dict) for event in saved.events)
    assert saved.rest in bytes(text)
    if not saved.kinds:
        assert all(event in bytes(text) for event in saved.events)


SIZE = 400_000
UGLY = [
    (b"", b'"'), (b"", b"{"), (b"", b"}"), (b"", b"["), (b"", b"\\"), (b"", b" "), (b"", b"\0"), (b"", b","),
    (b'{"a":"', b'"'), (b'{"ph":"', b"\\"), (b'{"ph":', b"["), (b"", b'{"ph":'), (b"", b',{"ph":1'), (b"", b'{"ph":1,'),
    (b"", b'{"ph":[0,'), (b"", b'{"ph":"'), (b"", b'{"ph":"a",'), (b'{"ph":"', b'\\"}'), (b'{"ph":"', b'\\",'),
    (b"", b'{"ph":"x"},"'), (b"", b'{"ph":NaN},'), (b'{"ph":"', b'"}'), (b'{"ph":["', b'","'), (b'{"ph":"', b'","a":'),
    (b'{"ph":"a"', b" "), (b"", b"}" + b" " * 99), (b"", b"{" + b" " * 99), (b'{"ph":[', b"1,"),
    (b'{"ph":1,', b'"a":1,'),
    (b'{"ph":"X","a":[', b'{"ph":"X","ts":1},'), (b"", b'{"\\"'), (b"", b'{"id":{"ph":"X","ts":1},'),
    (b"", b'{"ph":[{"ph":1},'), (b'{"ph":1,"', b"\\u"), (b'{"ph":"\\d', b"\\u00"), (b'{"ph":"\xff', b"\xc3"),
    (b'{"id":[' * 20, b'{"a":1},'), (b'{"ph":', b'"name":"'), (b'{"ph":', b'"name":"a"b '), (b"}", b"{ "),
    (b'{"ph":"X","name":"', b'",\n"'), (b'{"ph":nan,"b":"', b'\\"'), (b'{"ph":nan', b",nan("), (b"", b'{"ph":1}\n"a'),
]  # fmt: skip


@pytest.mark.slow
def test_no_text_takes_time_out_of_proportion() -> None:
    """A walk that goes back and forth takes minutes for this size; one in proportion takes less than a second."""
    for start, unit in UGLY:
        text = start + unit * (SIZE // len(unit)) + b"!}"
        began = time.process_time()

        save_events(text)

        assert time.process_time() - began < 5, (start, unit)


def test_one_damaged_event_among_thousands_is_the_only_one_that_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    event = json.dumps({"ph": "X", "name": "n", "ts": 1, "dur": 2, "args": {"name": "a", "b": [[1, 2]]}}).encode()
    events = [event] * 20_000
    events[12_345] = event.replace(b'"n"', b'"a "b" c"')
    mended: list[bytes] = []
    monkeypatch.setattr(
        "layoutdoctor.recording.event_stream._mended", lambda text: (mended.append(text), (b'{"ph": "i"}', []))[1]
    )

    saved = save_events(b",\n".join(events))

    assert [text.rstrip(b",\n") for text in mended] == [events[12_345]]
    assert len(saved.events) == 20_000
