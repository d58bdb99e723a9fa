"""What can be saved of damaged events, case by case; the good events around a damaged one always come out unchanged."""

from __future__ import annotations

import json

import pytest

from layoutdoctor.recording.event_stream import Saved, save_events

GOOD = b'{"ph": "X", "cat": "kernel", "name": "good", "pid": 0, "ts": 1.5, "dur": 2, "args": {"stream": 7}}'
BEFORE = b'{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "python"}}'
BETWEEN = b",\n  "


def between(damaged: bytes) -> Saved:
    """Puts the text between two good events, which have to come out verbatim."""
    saved = save_events(BEFORE + BETWEEN + damaged + BETWEEN + GOOD)
    assert (saved.events[0], saved.events[-1], saved.rest) == (BEFORE, GOOD, b"")
    return saved


@pytest.mark.parametrize(
    ("damaged", "mended", "kind"),
    [
        *(
            (b'{"ph": "X", "a": [1, %b], "b":%b}' % (word, word), b'{"ph": "X", "a": [1, null], "b":null}', number)
            for number in ["NaN or Infinity"]
            for word in (b"NaN", b"nan", b"-nan", b"-nan(ind)", b"Infinity", b"-Infinity", b"inf", b"-inf", b"+Inf")
        ),
        (b'{"ph": "X", "name": "nan, [inf]", "a": NaN}', b'{"ph": "X", "name": "nan, [inf]", "a": null}', None),
        (b'{"ph": "X", "name": "caf\xe9 \xff"}', '{"ph": "X", "name": "caf\ufffd \ufffd"}'.encode(), None),
        *(
            (
                b'{"ph": "X", "name": "%b", "pid": 1, "args": {"kernel": "%b"}}' % (text, text),
                b'{"ph": "X", "name": "%b", "pid": 1, "args": {"kernel": "%b"}}' % (escaped, escaped),
                "an unescaped quote",
            )
            for text, escaped in (
                (b'foo "bar" baz', rb"foo \"bar\" baz"),
                (b'"bar"', rb"\"bar\""),
                (b'f("a", "b")', rb"f(\"a\", \"b\")"),
                (b'a "b" \\"c\\" \\\\', rb"a \"b\" \"c\" " + b"\\\\"),
                (b'5" pipe', rb"5\" pipe"),
            )
        ),
    ],
)
def test_the_known_kinds_of_damage_are_mended_and_nothing_else_is_touched(
    damaged: bytes, mended: bytes, kind: str | None
) -> None:
    saved = between(damaged)

    assert (len(saved.events), saved.lost_count) == (3, 0)
    if kind is not None:
        assert saved.kinds == {kind: 1}
    assert saved.events[1] == mended
    assert isinstance(json.loads(mended), dict)


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"ph": "X", "name": "foo, "pid": 1, "cat": "x", "dur": 3}',
        b'{"ph": "X", "name": "a", "args": {"a": ["x "y", "z"]}}',
        b'{"ph": "X", "name": "{"b": 1, "c": 2}", "d": 2}',
        b'{"ph": "X", "name": "a\nb"}',
        rb'{"ph": "X", "name": "\ud800x"}',
        b'{"ph": "X", "name": "C:\\Users\\x"}',
        b'{"ph": "X", "dur": 01}',
        b'{"ph": "X", "dur": , "ts": 1}',
        b'{"ph": "X",, "pid": 1}',
        b'{"ph": "X" "pid": 1}',
        b"{\"ph\": 'X'}",
        b'{"ph": "X", "name": None}',
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
        for separator in (b"", b"\n", BETWEEN):
            saved = save_events(BEFORE + BETWEEN + whole[:cut] + separator + GOOD + BETWEEN + BEFORE)
            assert (saved.events, saved.rest) == ([BEFORE, GOOD, BEFORE], b"")
            assert saved.lost_count == 1

        saved = save_events(whole[cut:] + BETWEEN + GOOD)
        assert (saved.events, saved.rest) == ([GOOD], b"")

        assert save_events(GOOD + BETWEEN + whole[:cut]) == ([GOOD], 0, {}, whole[:cut])


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
