"""Events are added to a Chrome trace: the source's own stay as they are, and what comes out is always JSON."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from layoutdoctor.errors import TraceError
from layoutdoctor.recording.annotate import (
    FIRST_OWN_THREAD,
    Span,
    _encoded,
    annotated_pieces,
    assign_lanes,
    survey_trace,
)
from layoutdoctor.recording.files import TraceFile

if TYPE_CHECKING:
    from pathlib import Path

MARK = b'{"ph": "X", "cat": "layoutdoctor", "name": "mark", "pid": 0, "tid": 1, "ts": 1, "dur": 1}'
FIRST = b'{ "ph" : "X", "cat":"kernel", "name":"gemm \\u00e9","pid":0,"tid":7,"ts":12.500,"dur":1e1}'
SECOND = b'{\n  "ph": "M",\n  "name": "thread_name",\n  "args": {"name": "caf\xc3\xa9", "x": [1, {"y": 2}]}\n}'


def a_file(folder: Path, data: bytes, name: str = "trace.json") -> TraceFile:
    path = folder / name
    path.write_bytes(data)
    return TraceFile(path)


def annotated(folder: Path, data: bytes, *added: bytes) -> bytes:
    return b"".join(annotated_pieces(a_file(folder, data), added or (MARK,)))


def strictly(text: bytes) -> Any:
    """The document, where it is JSON to the letter."""

    def refuse(constant: str) -> object:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text.decode("utf-8"), parse_constant=refuse)


def a_kernel(name: str, start: str = "1.0", duration: str = "2.0", **others: str) -> str:
    fields = {"ph": '"X"', "cat": '"kernel"', "name": json.dumps(name), "pid": "0", "tid": "7"}
    fields |= {"ts": start, "dur": duration} | others
    return "{" + ", ".join(f'"{key}": {value}' for key, value in fields.items()) + "}"


@pytest.mark.parametrize(
    ("opening", "between", "closing"),
    [
        (b'{"schemaVersion": 1, "traceEvents": [', b", ", b'], "traceName": "/tmp/x.json"}'),
        (b'\n{\n  "traceEvents": [\n', b",\n  ", b'\n  ]\n, "deviceProperties": [{"id": 0}]}\n'),
        (b'{"traceEvents":[', b",", b"]}"),
        (b"[", b",", b"]"),
        (b"  [\n", b"\n,\n", b"\n]\n"),
    ],
)
def test_the_events_of_the_source_stay_as_they_are_byte_for_byte(
    tmp_path: Path, opening: bytes, between: bytes, closing: bytes
) -> None:
    source = opening + FIRST + between + SECOND + closing

    text = annotated(tmp_path, source)

    assert text.index(MARK) < text.index(FIRST) < text.index(SECOND)
    before, after = strictly(source), strictly(text)
    if isinstance(before, dict):
        assert {**after, "traceEvents": after["traceEvents"][1:]} == before
    else:
        assert after[1:] == before


@pytest.mark.parametrize(
    "end", [b"", b",", b', {"ph": "X", "cat": "ker', b', {"ph": "X", "args": {"a": [', b"]", b'], "traceName": "/tm']
)
@pytest.mark.parametrize("opening", [b'{"schemaVersion": 1, "traceEvents": [', b"["])
def test_a_trace_that_ends_too_early_is_closed_with_its_complete_events(
    tmp_path: Path, opening: bytes, end: bytes
) -> None:
    document = strictly(annotated(tmp_path, opening + FIRST + b", " + SECOND + end))

    events = document if opening == b"[" else document["traceEvents"]
    assert events == [strictly(MARK), strictly(FIRST), strictly(SECOND)]
    assert opening == b"[" or document["schemaVersion"] == 1


def test_what_is_no_json_in_an_event_is_written_as_it_was_understood(tmp_path: Path) -> None:
    source = (
        b'{"traceEvents": [' + FIRST + b', {"ph": "X", "name": "a "quoted" word", "ts": NaN},' + SECOND + b'], "x": 1}'
    )

    text = annotated(tmp_path, source)

    assert strictly(text)["traceEvents"][1:] == [
        strictly(FIRST),
        {"ph": "X", "name": 'a "quoted" word', "ts": None},
        strictly(SECOND),
    ]
    assert FIRST in text
    assert strictly(text)["x"] == 1


@pytest.mark.parametrize(
    "source",
    [
        b'{"a": NaN, "b": 1, "traceEvents": [%b], "c": 2}',
        b'{"b": 1, "traceEvents": [%b], "c": 2, "d": [Infinity, 1e999], "e": "\\ud800"}',
        b'{"b": 1, "traceEvents": [%b], "c": 2, "d": -Infinity, "traceEvents": []}',
    ],
)
def test_fields_of_the_document_that_json_cannot_hold_do_not_spoil_it(tmp_path: Path, source: bytes) -> None:
    document = strictly(annotated(tmp_path, source % FIRST))

    assert (document["b"], document["c"]) == (1, 2)
    assert document["traceEvents"] == [strictly(MARK), strictly(FIRST)]
    assert document.get("a") is None
    assert document.get("e") in (None, "?")  # the reader replaces half a surrogate pair


def test_no_damage_makes_anything_but_json(tmp_path: Path) -> None:
    rng = random.Random(7)
    whole = b'{"schemaVersion": 1, "traceEvents": [' + b", ".join((FIRST, SECOND) * 4) + b'], "traceName": "C:/x"}'
    read_count = 0
    for _ in range(300):
        source = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 4))):
            place = rng.randrange(len(source))
            source[place : place + rng.choice((0, 1, 20))] = rng.choice(
                (b'"', b"\\", b"{", b"}", b"[", b"]", b",", b"\xff", b"NaN", b"\0", b"1e999", b"\\ud800", b"")
            )
        try:
            text = annotated(tmp_path, bytes(source))
        except TraceError:
            continue
        document = strictly(text)
        events = document["traceEvents"] if isinstance(document, dict) else document
        assert events[0] == strictly(MARK)
        read_count += 1
    assert read_count > 200


def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path: Path) -> None:
    file = a_file(tmp_path, b'{"traceEvents": 3}', "none.json")

    with pytest.raises(TraceError, match=r"^cannot read '.*none\.json': it is JSON without a list 'traceEvents'"):
        list(annotated_pieces(file, ()))
    with pytest.raises(TraceError, match=r"^cannot read '.*none\.json'"):
        survey_trace(file, ())


def test_a_survey_has_the_wanted_kernels_with_their_numbers_to_the_digit(tmp_path: Path) -> None:
    events = [
        a_kernel("wanted", "1735000000000123.457", "3.250"),
        a_kernel("other"),
        a_kernel("wanted", "2.5e1", "1", pid='"GPU é"', tid='"stream 7"', cat='"Kernel"'),
        a_kernel("wanted", '"text"'),
        a_kernel("wanted", "1e300"),
        a_kernel("wanted", cat='"gpu_memcpy"'),
        a_kernel("wanted", ph='"B"'),
    ]

    survey = survey_trace(a_file(tmp_path, f'{{"traceEvents": [{", ".join(events)}]}}'.encode()), {"wanted"})

    assert [(kernel.span, kernel.process, kernel.thread) for kernel in survey.kernels] == [
        (Span("1735000000000123.457", "3.250"), "0", "7"),
        (Span("25.000", "1"), '"GPU é"', '"stream 7"'),
    ]

    # A kernel without name process or thread is found as the reader reads it.
    source = (
        b'[{"ph": "X", "cat": "kernel", "ts": 1, "dur": 2}, {"ph": "X", "cat": "kernel", "name": 3, "ts": 4, "dur": 5}]'
    )

    survey = survey_trace(a_file(tmp_path, source), {""})

    assert [(kernel.span.start, kernel.process, kernel.thread) for kernel in survey.kernels] == [
        ("1", "0", "0"),
        ("4", "0", "0"),
    ]


def test_a_field_that_cannot_be_written_costs_itself_only() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]

    assert list(_encoded({"deep": deep, "half": "\ud800", "x": 1, "y": float("nan")})) == [b'"x":1', b'"y":null']


def test_threads_that_are_free_collide_with_no_id_of_the_trace(tmp_path: Path) -> None:
    taken = [FIRST_OWN_THREAD, f'"{FIRST_OWN_THREAD + 1}"', f"{FIRST_OWN_THREAD + 3}.0", '"main"', "[1]"]
    events = [a_kernel("k", tid=str(tid)) for tid in taken] + [a_kernel("k", pid=str(FIRST_OWN_THREAD + 4))]

    free = survey_trace(a_file(tmp_path, f"[{', '.join(events)}]".encode()), ()).free_threads()

    assert [next(free), next(free)] == [FIRST_OWN_THREAD + 2, FIRST_OWN_THREAD + 5]

    # A survey knows the last flow and the places of tracks.
    events = [
        '{"ph": "s", "id": 41, "cat": "ac2g", "name": "ac2g"}',
        '{"ph": "f", "id": "0x2a"}',
        '{"ph": "f", "id": "no number"}',
        '{"ph": "t", "id": 18446744073709551615}',
        '{"ph": "X", "id": 99}',
        '{"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": 7, "args": {"sort_index": 5}}',
        '{"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": 8, "args": {"sort_index": "x"}}',
        '{"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": 9, "args": 3}',
        '{"ph": "M", "name": "process_sort_index", "pid": 0, "tid": 10, "args": {"sort_index": 6}}',
    ]

    survey = survey_trace(a_file(tmp_path, f"[{', '.join(events)}]".encode()), ())

    assert (survey.last_flow, survey.sort_indices) == (42, {("0", "7"): 5})


def test_a_span_keeps_digits_that_a_double_loses() -> None:
    first, second = Span("1735000000000123.457", "3.250"), Span("1735000000000130.001", "0.002")

    assert first.until(second) == Span("1735000000000123.457", "6.546")
    assert first.nanoseconds == (1735000000000123457, 1735000000000126707)
    assert second.until(first).duration == "0"


@pytest.mark.parametrize(
    ("spans", "lanes"),
    [
        ([], []),
        ([("1", "2"), ("3", "2")], [0, 0]),  # whole microseconds: one ends where the next begins
        ([("1", "10"), ("2", "3"), ("6", "5")], [0, 0, 0]),  # one in the other, ends included
        ([("1", "10"), ("2", "10")], [0, 1]),
        ([("2", "10"), ("1", "10"), ("11", "5"), ("12", "1")], [1, 0, 0, 0]),
        ([("1", "2"), ("1", "5")], [0, 0]),
        ([("1", "10"), ("5", "10"), ("8", "10")], [0, 1, 2]),
        ([("1.000", "2.000"), ("3.002", "2.000")], [0, 0]),
        ([("1.000", "2.000"), ("3.000", "2.000")], [0, 1]),  # a viewer may round the end up
        ([("1735000000000000.5", "2.0"), ("1735000000000002.6", "2.0")], [0, 1]),  # doubles are 0.25 us apart here
    ],
)
def test_events_of_one_track_are_apart_or_nested(spans: list[tuple[str, str]], lanes: list[int]) -> None:
    assert assign_lanes([Span(*span) for span in spans]) == lanes


def overlaps(spans: list[tuple[int, int]]) -> int:
    """How many events Perfetto would drop from a track: those that outlast an event that they began in."""
    dropped, running = 0, list[int]()
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while running and running[-1] <= start:
            running.pop()
        if running and end > running[-1]:
            dropped += 1
        else:
            running.append(end)
    return dropped


@pytest.mark.parametrize("base", ["0", "2915995397672", "1735000000000000"])
def test_no_event_of_a_lane_is_dropped_however_a_viewer_computes(base: str) -> None:
    rng = random.Random(base)
    spans = [
        Span(f"{Decimal(base) + Decimal(rng.randrange(40_000)) / 1000}", f"{Decimal(rng.randrange(3000)) / 1000}")
        for _ in range(300)
    ]
    lanes = assign_lanes(spans)

    assert max(lanes) < 60
    for lane in set(lanes):
        chosen = [span for span, own in zip(spans, lanes, strict=True) if own == lane]
        exact = [(int(Decimal(s.start) * 1000), int(Decimal(s.duration) * 1000)) for s in chosen]
        doubles = [(int(float(s.start) * 1000), int(float(s.duration) * 1000)) for s in chosen]
        for times in (exact, doubles):
            assert overlaps([(start, start + duration) for start, duration in times]) == 0
