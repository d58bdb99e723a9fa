"""What can be saved of damaged events, case by case; the good events around a damaged one always come out unchanged."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from layoutdoctor.traces.json_repair import Repaired, repair_events

GOOD = b'{"ph": "X", "cat": "kernel", "name": "good", "pid": 0, "ts": 1.5, "dur": 2, "args": {"stream": 7}}'
BEFORE = b'{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "python"}}'
BETWEEN = b",\n  "


def repaired_between(damaged: bytes) -> Repaired:
    """Puts the text between two good events, which have to come out verbatim."""
    repaired = repair_events(BEFORE + BETWEEN + damaged + BETWEEN + GOOD)
    assert repaired.events[0] == BEFORE
    assert repaired.events[-1] == GOOD
    assert repaired.rest == b""
    return repaired


def mended(damaged: bytes) -> tuple[dict[str, Any], dict[str, int]]:
    """The damaged event as it came out, and the kinds of damage."""
    repaired = repaired_between(damaged)
    assert len(repaired.events) == 3
    assert (repaired.repaired_count, repaired.lost_count) == (1, 0)
    return msgspec.json.decode(repaired.events[1], type=dict[str, Any]), repaired.kinds


def lost(damaged: bytes) -> dict[str, int]:
    """The kinds of damage of an event that must not come out."""
    repaired = repaired_between(damaged)
    assert len(repaired.events) == 2
    assert (repaired.repaired_count, repaired.lost_count) == (0, 1)
    return repaired.kinds


EVENT = {"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1.5, "dur": 2, "args": {"Input Dims": [[2, 3], []], "b": "c"}}
STYLES = {
    "kineto": (
        '{\n    "ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 2,\n    "ts": 1.5, "dur": 2,\n'
        '    "args": {\n      "External id": 1,"Input Dims": [[2, 3], []]\n    }\n  }'
    ),
    "streaming": json.dumps(EVENT, separators=(",", ":")),
    "one line": json.dumps(EVENT),
    "indented": json.dumps(EVENT, indent=4),
}


@pytest.mark.parametrize("style", STYLES)
def test_undamaged_events_come_out_as_they_stand(style: str) -> None:
    event = STYLES[style].encode()

    assert repair_events(b",\n  ".join([event] * 3)) == Repaired([event] * 3, 0, 0, {}, b"")


@pytest.mark.parametrize(
    "event",
    [
        b"{}",
        b'{"": 1, "0": [{"name": 1}, {"name": 2}], "\xc3\xa9": "\\u00e9\\ud83d\\ude00", "ph": "X"}',
        b'{"ph": "X", "args": {"list": [{"ph": "X", "ts": 1}, {"ph": "X", "ts": 2}]}}',
        b'{"ph": "X", "name": "a \\"b\\", \\"c\\": }", "args": ["x\\"]", "\\\\"], "ts": -1.5e-3}',
        b'{"unknown": {"first": "key"}}',
        b'{"ph": "X", "ts": 1, "ts": 2}',
        b'{"args": {"Comms Id": 10159970886766084423000000000000}}',
    ],
)
def test_an_unusual_event_that_is_valid_comes_out_as_it_stands(event: bytes) -> None:
    assert repair_events(b",".join((GOOD, event, BEFORE, event))) == Repaired(
        [GOOD, event, BEFORE, event], 0, 0, {}, b""
    )


@pytest.mark.parametrize(
    "word", ["NaN", "nan", "-nan", "Infinity", "-Infinity", "inf", "-inf", "+Inf", "1e999", "-1.#IND"]
)
def test_a_value_that_is_not_finite_becomes_null(word: str) -> None:
    event, kinds = mended(b'{"ph": "X", "dur": %b, "args": {"a": [1, %b], "b": %b}}' % ((word.encode(),) * 3))

    assert event == {"ph": "X", "dur": None, "args": {"a": [1, None], "b": None}}
    assert kinds == {"NaN or Infinity": 1}


@pytest.mark.parametrize("word", ["01", "+1", ".5", "1.", "0x10", "-.5", "00.121"])
def test_a_number_in_another_spelling_becomes_null_because_its_digits_may_be_incomplete(word: str) -> None:
    event, kinds = mended(b'{"ph": "X", "dur": %b, "ts": 3}' % word.encode())

    assert event == {"ph": "X", "dur": None, "ts": 3}
    assert kinds == {"a number that JSON does not know": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('foo "bar" baz', 'foo "bar" baz'),
        ('"bar"', '"bar"'),
        ('f("a", "b")', 'f("a", "b")'),
        ('a "b" \\"c\\"', 'a "b" "c"'),
        ('File "x.py", line 3, in <module>', 'File "x.py", line 3, in <module>'),
    ],
)
def test_a_quote_within_a_string_is_told_from_the_one_that_ends_it(text: str, value: str) -> None:
    event, kinds = mended(f'{{"ph": "X", "name": "{text}", "pid": 1, "args": {{"a": "{text}"}}}}'.encode())

    assert event == {"ph": "X", "name": value, "pid": 1, "args": {"a": value}}
    assert kinds == {"an unescaped quote": 1}


def test_one_lone_quote_in_an_event_is_a_part_of_its_string() -> None:
    event, kinds = mended(b'{"ph": "X", "name": "5" pipe", "pid": 1}')

    assert event == {"ph": "X", "name": '5" pipe', "pid": 1}
    assert kinds == {"an unescaped quote": 1}


def test_quotes_within_the_strings_of_a_list_leave_the_number_of_items_as_it_is() -> None:
    event, _ = mended(b'{"ph": "X", "args": {"Concrete Inputs": ["", ""none"", "[1, 2]", "a "b" c"]}}')

    assert event["args"]["Concrete Inputs"] == ["", '"none"', "[1, 2]", 'a "b" c']


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b'{"ph": "X", "name": "foo, "pid": 1, "cat": "x", "dur": 3}', id="a string without its end"),
        pytest.param(b'{"ph": "X", "args": {"a": ["x "y", "z"]}}', id="one item or two"),
        pytest.param(b'{"ph": "X", "args": {"a": ["x" "y"]}}', id="a list without a comma"),
        pytest.param(b'{"ph": "X", "args": {"a": "{"b": "x", "c": "y"}", "d": 2}}', id="JSON in a string"),
        pytest.param(b'{"ph": "X", "args": {"a": "{"b": 1, "c": 2}", "d": 2}}', id="JSON in a string, quotes in pairs"),
        pytest.param(b'{"ph": "X", "args": {"a": "{"name": "x"}", "d": 2}}', id="something like an event in a string"),
        pytest.param(b'{"ph": "X", "name": "a "b", "cat": "c" d", "ts": 1}', id="one field or two"),
        pytest.param(b'{"ph": "X", "name": "a "b"c", "pid": 1, "pid": 2}', id="a key comes twice"),
    ],
)
def test_quotes_that_leave_two_readings_lose_the_event(damaged: bytes) -> None:
    assert lost(damaged) == {"an unescaped quote": 1}


def test_control_characters_in_a_string_are_escaped() -> None:
    event, kinds = mended(b'{"ph": "X", "name": "a\nb\tc\x01d", "dur": 1}')

    assert event == {"ph": "X", "name": "a\nb\tc\x01d", "dur": 1}
    assert kinds == {"a control character": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb"C:\Users\x", r"C:\Users\x"),
        (rb"C:\Users\new\table", r"C:\Users\new\table"),  # what escapes nothing once was not written as JSON at all
        (rb"C:\\dir\x", r"C:\dir\x"),
        (b"C:\\dir\\", "C:\\dir\\"),
        (rb"\u12 \u1234", r"\u12 \u1234"),
        (rb"a \"b\" \d", r'a "b" \d'),
    ],
)
def test_a_backslash_that_escapes_nothing_stands_for_itself(text: bytes, value: str) -> None:
    event, kinds = mended(b'{"ph": "X", "name": "%b", "pid": 1, "args": {"file": "%b"}}' % (text, text))

    assert event == {"ph": "X", "name": value, "pid": 1, "args": {"file": value}}
    assert kinds == {"a backslash that escapes nothing": 1}


def test_two_backslashes_before_the_last_quote_do_not_escape_it() -> None:
    event, kinds = mended(b'{"ph": "X", "name": "a "b" c\\\\"}')

    assert event == {"ph": "X", "name": 'a "b" c\\'}
    assert kinds == {"an unescaped quote": 1}


@pytest.mark.parametrize("path", [b"C:\\new\\", b"dir\\sub\\"])
def test_a_backslash_before_the_last_quote_of_an_object_is_judged_by_what_follows_the_event(path: bytes) -> None:
    event = b'{"ph": "X", "args": {"file": "%b"}}' % path

    assert mended(event)[0]["args"]["file"].encode() == path
    assert repair_events(GOOD + b"," + event) == Repaired([GOOD], 0, 0, {}, event)


def test_an_escaped_quote_at_which_an_event_was_cut_does_not_end_its_string() -> None:
    assert lost(b'{"ph": "X", "name": "say \\"hi\\"}') == {"an event that ends too early": 1}
    assert lost(b'{"ph": "X", "name": "a\\"}') == {"an event that ends too early": 1}


def test_a_backslash_before_the_last_quote_of_a_list_item_stands_for_itself() -> None:
    event, _ = mended(b'{"ph": "X", "args": {"a": ["C:\\a\\", "C:\\b\\"], "c": 1}}')

    assert event["args"] == {"a": ["C:\\a\\", "C:\\b\\"], "c": 1}


def test_escaped_quotes_stay_escaped_in_an_event_that_is_damaged_elsewhere() -> None:
    text = r'{"ph": "X", "name": "{\"a\": [\"b\"]}", "args": {"a": ["[\"x\", \"y\"]"]}, "dur": NaN}'

    assert repaired_between(text.encode()).events[1].decode() == text.replace("NaN", "null")


@pytest.mark.parametrize("text", [b"\xff\xfe", b"\xed\xa0\x80", b"caf\xe9"])
def test_bytes_that_are_no_utf8_are_replaced(text: bytes) -> None:
    event, kinds = mended(b'{"ph": "X", "name": "%b", "dur": 1}' % text)

    assert event == {"ph": "X", "name": text.decode("utf-8", "replace"), "dur": 1}
    assert kinds == {"bytes that are no UTF-8": 1}


def test_a_key_with_bytes_that_are_no_utf8_loses_the_event_because_the_field_is_unknown() -> None:
    assert lost(b'{"ph": "X", "d\xffr": 1}') == {"bytes that are no UTF-8": 1}


@pytest.mark.parametrize("text", [rb"\ud800", rb"\udc00", rb"\ud83d \ude00"])
def test_half_of_a_surrogate_pair_is_replaced(text: bytes) -> None:
    event, kinds = mended(b'{"ph": "X", "name": "%b", "dur": 1}' % text)

    assert event["name"].strip("\N{REPLACEMENT CHARACTER} ") == ""
    assert kinds == {"half of a surrogate pair": 1}


@pytest.mark.parametrize(
    ("damaged", "event"),
    [
        (b'{"ph": "X", "pid": 1,}', {"ph": "X", "pid": 1}),
        (b'{"ph": "X", "args": {"a": 1,\n}, }', {"ph": "X", "args": {"a": 1}}),
        (b'{"ph": "X",, "pid": 1}', {"ph": "X", "pid": 1}),
        (b'{"ph": "X", "args": {} , ,,}', {"ph": "X", "args": {}}),
    ],
)
def test_commas_too_many_are_left_out(damaged: bytes, event: dict[str, Any]) -> None:
    assert mended(damaged) == (event, {"a comma too many": 1})


def test_commas_that_are_missing_behind_strings_and_brackets_are_put_in() -> None:
    event, kinds = mended(b'{"ph": "X" "name": "a"\n"args": {"a": [1] "b": null "c": "x"} "dur": 1}')

    assert event == {"ph": "X", "name": "a", "args": {"a": [1], "b": None, "c": "x"}, "dur": 1}
    assert kinds == {"a missing comma": 1}


@pytest.mark.parametrize("damaged", [b'{"ph": "X", "dur": 1 "tid": 2}', b'{"ph":"X","dur":1"tid":2}'])
def test_a_comma_missing_behind_a_number_loses_the_event_because_digits_may_be_missing_too(damaged: bytes) -> None:
    assert lost(damaged) == {"a missing comma": 1}


def test_a_second_comma_behind_a_number_loses_the_event_because_it_may_stand_for_a_digit() -> None:
    assert lost(b'{"ph": "X", "dur": 4.80,, "tid": 2}') == {"a comma too many": 1}


def test_empty_values_become_null() -> None:
    assert mended(b'{"ph": "X", "dur": , "ts":}') == ({"ph": "X", "dur": None, "ts": None}, {"an empty value": 1})


@pytest.mark.parametrize(
    "damaged",
    [
        b"{'ph': 'X'}",
        b'{"ph": "X", "name": \'a\'}',
        b'{"ph": "X", "name": None}',
        b'{"ph": "X", "dur": 5 7}',
        b'{"ph": "X", "dur": 12abc}',
        b'{"ph": "X", "dur": 1.2.3}',
        b'{"ph": "X", "dur":: 5}',
        b'{"ph": "X", "args": {"a": [1, 2}}',
        b'{"ph": "X", "args": {"a": [1 2]}}',
        b'{"ph": "X", "args": {"a": [1,, 2]}}',
        b'{"ph": "X", "args": {"a": [1, 2,]}}',
        b'{"ph": "X", "dur": 1e}',
        b'{"ph": "X", "name": foo", "pid": 1, "dur": 3}',
    ],
)
def test_what_is_no_value_loses_the_event(damaged: bytes) -> None:
    assert lost(damaged) == {"a value that is no JSON": 1}


@pytest.mark.parametrize("damaged", [b'{"ph": "X", "d\nur": 5}', b'{"ph": "X", "dur" 5}', b'{"ph": "X"; "dur": 5}'])
def test_a_damaged_key_loses_the_event(damaged: bytes) -> None:
    assert sum(lost(damaged).values()) == 1


@pytest.mark.parametrize("damaged", [b'{"ph": "X", "name": "a\0\0b", "ts": 1}', b'{"ph": "X", "ts": \x001}'])
def test_nul_bytes_lose_the_event_because_what_they_cover_may_be_the_start_of_another(damaged: bytes) -> None:
    assert lost(damaged) == {"NUL bytes": 1}


def test_a_number_that_no_reader_takes_loses_the_event() -> None:
    assert lost(b'{"ph": "X", "ts": ' + b"9" * 5000 + b"}") == {"a value that is no JSON": 1}


@pytest.mark.parametrize(
    "damaged", [b'{"ph": "X", "name": "aten::co', b'{"ph": "X", "args": {"a": 1},', b'{"ph": "X", "ts": 12']
)
def test_an_event_that_ends_early_is_called_so(damaged: bytes) -> None:
    assert lost(damaged) == {"an event that ends too early": 1}


WHOLE = b'{"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "ts": 1.25, "args": {"Input Dims": [[2, 3], []]}}'


@pytest.mark.parametrize("end", range(1, len(WHOLE)))
@pytest.mark.parametrize("between", [b"", b"\n", b",\n  "])
def test_an_event_that_ends_anywhere_does_not_harm_the_one_behind_it(end: int, between: bytes) -> None:
    repaired = repair_events(BEFORE + BETWEEN + WHOLE[:end] + between + GOOD + BETWEEN + BEFORE)

    assert repaired.events == [BEFORE, GOOD, BEFORE]
    assert repaired.lost_count == 1
    assert repaired.rest == b""


@pytest.mark.parametrize("start", range(1, len(WHOLE)))
def test_an_event_without_its_start_does_not_come_out(start: int) -> None:
    repaired = repair_events(WHOLE[start:] + BETWEEN + GOOD)

    assert repaired.events == [GOOD]
    assert repaired.rest == b""


@pytest.mark.parametrize("end", range(1, len(WHOLE)))
def test_an_event_that_is_not_complete_is_the_rest(end: int) -> None:
    assert repair_events(GOOD + BETWEEN + WHOLE[:end]) == Repaired([GOOD], 0, 0, {}, WHOLE[:end])


NESTED = b'{"args": {"name": "python"}, "ph": "M", "events": [{"ph": "X", "ts": 1}] "pid": 1, "na'


@pytest.mark.parametrize("end", range(1, len(NESTED)))
def test_an_event_with_objects_that_look_like_events_is_the_rest_too_unless_one_was_complete(end: int) -> None:
    repaired = repair_events(GOOD + BETWEEN + NESTED[:end])

    if end <= NESTED.index(b"}]"):
        assert repaired == Repaired([GOOD], 0, 0, {}, NESTED[:end])
    else:  # cut behind the bracket and followed by the events of another process: the inner one counts
        assert repaired.events == [GOOD, b'{"ph": "X", "ts": 1}']


def test_an_event_cut_where_a_comma_is_missing_is_the_rest() -> None:
    cut = b'{"ph": "M", "args": {"name": 1} "pi'

    assert repair_events(GOOD + BETWEEN + cut) == Repaired([GOOD], 0, 0, {}, cut)


@pytest.mark.parametrize("end", [b"{", b'{ "', b'{"p', b'{\n "ph"', b'{"name" '])
def test_the_start_of_an_event_behind_other_text_is_the_rest(end: bytes) -> None:
    assert repair_events(GOOD + b", what? " + end).rest == end


DAMAGED = b'{"ph": "X", "name": "a "b" c\n", "dur": nan, "args": {"f": "C:\\x\\", "g": "\xff"}, "ts": 3}'


@pytest.mark.parametrize("cut", range(len(DAMAGED) + 4))
def test_a_damaged_event_is_mended_the_same_wherever_the_stretch_was_cut(cut: int) -> None:
    text = GOOD + b", " + DAMAGED + b", " + GOOD
    place = len(GOOD) + cut
    first = repair_events(text[:place])
    second = repair_events(first.rest + text[place:])
    whole = repair_events(text)

    assert first.events + second.events == whole.events
    assert first.repaired_count + second.repaired_count == whole.repaired_count == 1
    assert first.lost_count + second.lost_count == whole.lost_count == 0


def test_an_unreadable_event_at_the_end_is_lost_where_it_ends_and_kept_for_later_where_it_may_go_on() -> None:
    ended, cut = b'{"ph": "X", "dur": abc, "ts": 3}', b'{"ph": "X", "dur": abc, "ts'

    assert repair_events(GOOD + b"," + ended) == Repaired([GOOD], 0, 1, {"a value that is no JSON": 1}, b"")
    assert repair_events(GOOD + b"," + cut) == Repaired([GOOD], 0, 0, {}, cut)


def test_a_brace_in_the_middle_of_an_event_loses_it_rather_than_half_of_it() -> None:
    assert lost(b'{"ph": "X", "name": "a"}, "dur": 5}') == {"an event that ends too early": 1}
    assert lost(b'{"ph": "X", "args": {"a": 1}, "b": 2}}, "dur": 5}')["an event that ends too early"] == 1


def test_an_event_without_its_brace_does_not_harm_the_one_before_it() -> None:
    assert lost(b'"ph": "X", "name": "a", "ts": 1}') == {"text between events": 1}


def test_events_in_a_list_of_their_own_come_out() -> None:
    repaired = repair_events(b"[" + GOOD + b",\n" + BEFORE + b"], [" + GOOD + b"]")

    assert repaired == Repaired([GOOD, BEFORE, GOOD], 0, 0, {"text between events": 2}, b"")


def test_a_trace_appended_to_another_gives_its_events_and_nothing_of_its_head() -> None:
    head = b'{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "A100"}], "traceEvents": ['
    repaired = repair_events(GOOD + b",\n" + head + BEFORE + b", " + GOOD + b"]}")

    assert repaired.events == [GOOD, BEFORE, GOOD]
    assert repaired.lost_count == 0
    assert repaired.kinds["a whole trace among its own events"] == 1


def test_a_whole_trace_within_the_list_gives_its_events() -> None:
    several = repair_events(GOOD + b', {"traceEvents": [' + BEFORE + b", " + GOOD + b"]}, " + BEFORE)
    one = repair_events(GOOD + b', {"traceEvents": [' + BEFORE + b"]}, " + GOOD)

    assert several.events == [GOOD, BEFORE, GOOD, BEFORE]
    assert one.events == [GOOD, BEFORE, GOOD]
    assert several.lost_count == one.lost_count == 0


def test_a_missing_comma_between_events_and_one_too_many_are_told() -> None:
    repaired = repair_events(GOOD + b"\n" + BEFORE + b",," + GOOD)

    assert repaired == Repaired([GOOD, BEFORE, GOOD], 0, 0, {"a missing comma": 1, "a comma too many": 1}, b"")


def test_what_stands_behind_the_list_of_events_is_no_damage() -> None:
    assert repair_events(GOOD + b'\n  ],\n  "traceName": "x.json"\n}') == Repaired([GOOD], 0, 0, {}, b"")


def test_nul_bytes_between_events_are_told() -> None:
    repaired = repair_events(GOOD + b"," + b"\0" * 4096 + b"\n" + BEFORE)

    assert repaired == Repaired([GOOD, BEFORE], 0, 0, {"NUL bytes": 1}, b"")


@pytest.mark.parametrize("text", [b"", b" \n", b",", b"hello", b"\0\0", b"}}}]", b'"', b"\\", b"\xff\xfe"])
def test_text_without_events_gives_none(text: bytes) -> None:
    repaired = repair_events(text)

    assert (repaired.events, repaired.lost_count, repaired.rest) == ([], 0, b"")


def test_brackets_nested_beyond_all_sense_lose_the_event_only() -> None:
    kinds = lost(b'{"ph": "X", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")

    assert kinds == {"brackets nested too deeply": 1}


def test_behind_thousands_of_unreadable_events_valid_ones_are_still_found() -> None:
    repaired = repair_events(b'{"ph": abc},' * 6_000 + GOOD + b"," + BEFORE + b', {"ph": NaN}')

    assert repaired.events == [GOOD, BEFORE, b'{"ph": null}']
    assert repaired.lost_count == 6_000
    assert repaired.kinds["an event in the middle of thousands that cannot be read"] == 999
    assert sum(repaired.kinds.values()) == 6_001


def test_one_event_that_can_be_read_among_thousands_ends_their_row() -> None:
    repaired = repair_events(
        b",".join([*[b'{"ph": abc}'] * 3_000, GOOD, *[b'{"ph": abc}'] * 3_000, b'{"ph": NaN}', GOOD])
    )

    assert repaired.events == [GOOD, b'{"ph": null}', GOOD]
    assert repaired.kinds == {"a value that is no JSON": 6_000, "NaN or Infinity": 1}


def test_a_mended_event_keeps_everything_else_to_the_byte() -> None:
    text = b'{\n    "ph": "X",  "name": "a "b"",\t"dur": 1.50,\n    "args": {\n      "Ev Idx": 7\n    }\n  }'

    assert repaired_between(text).events[1] == text.replace(b'"a "b""', b'"a \\"b\\""')


def test_the_kinds_count_events_not_places() -> None:
    repaired = repair_events(b",".join([b'{"ph": "X", "a": nan, "b": nan, "c": "x\ty"}'] * 3))

    assert repaired.kinds == {"NaN or Infinity": 3, "a control character": 3}
    assert [json.loads(event) for event in repaired.events] == [{"ph": "X", "a": None, "b": None, "c": "x\ty"}] * 3
