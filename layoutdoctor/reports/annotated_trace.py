"""Writes a recorded trace back with its layout conversions and round trips marked, for Perfetto (ui.perfetto.dev)."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.diagnosis.writing import printable, replacing
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.recording.chrome import read_chrome_trace
from layoutdoctor.recording.event_stream import EventStream, as_utf8
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.reading import recognize
from layoutdoctor.reports.sections.wording import direction_words, recorded_trial
from layoutdoctor.words import CONFIDENCE_WORDS, DIRECTION_WORDS, layout_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.layout import Size
    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, RedundantPair, Trial

    Arguments = Mapping[str, str | int | float | None]

OWN_PROCESS = 900_000_000
"""Far above process ids of Linux and device numbers, and within the 32 bits that Perfetto keeps of one."""

_OWN_EVENT = b'{"cat": "layoutdoctor", '
"""What every event that is written here begins with; the reader knows no such kind and passes over it."""

_NANOSECONDS = 1e9
_PACKING_LEVEL = 6


def write_annotated_trace(
    diagnosis: Diagnosis, source: str | Path, target: str | Path, *, max_bytes: int = DEFAULT_MOST_BYTES
) -> None:
    """
    Writes a Chrome trace, packed with gzip, with its conversions and round trips on a track of their own.

    What changes no layout (permuted copies, padding) is not marked. The events of the source stay as they are; what is
    damaged is written as it was understood, and a document that ends too early is closed. Marks that an earlier call
    wrote are replaced.

    Args:
        diagnosis: What ``examine_trace`` returned for the source.
        source: A Chrome trace, ``.json`` or ``.json.gz``.
        target: Where to; an existing file is replaced, a link stays a link.
        max_bytes: How many bytes of the source to read at the most, after unpacking.

    Raises:
        TraceError: The source cannot be read.
        UsageError: The source is no Chrome trace, or the diagnosis is not the source's.
        OSError: The target could not be written; it is as it was.
    """
    source = Path(source)
    file, cannot = TraceFile(source, max_bytes), f"cannot annotate {str(source)!r}"
    if recognize(file.head(), source.name) != "chrome":
        raise UsageError(
            f"{cannot}: expected a Chrome trace (.json, .json.gz), as only these can be written back with marks; "
            "write a report instead, such as --output report.md"
        )
    trial = recorded_trial(diagnosis)
    if trial is None:
        raise UsageError(f"{cannot}: its diagnosis holds no run; expected what examine_trace returned for this file")
    trace = read_chrome_trace(file)
    times = {
        times
        for events in (trace.kernels, trace.operations)
        for times in zip(events.start.tolist(), events.duration.tolist(), strict=True)
    }
    conversions = counted_conversions(trial)
    missing_count = sum(_times(conversion) not in times for conversion in conversions)
    if missing_count:
        raise UsageError(
            f"{cannot}: {missing_count} of {len(conversions)} conversions of the diagnosis are not "
            "in it; expected what examine_trace returned for this file; examine it again"
        )
    marks = _marks(trial, conversions, trace.base_nanoseconds)
    with (
        replacing(Path(target)) as stream,
        # Without a name or a time in it, so that the same trace is the same file.
        gzip.GzipFile(filename="", mode="wb", compresslevel=_PACKING_LEVEL, fileobj=stream, mtime=0) as packed,
    ):
        for piece in _document(file, [*_descriptions(marks), *(mark.event() for mark in marks)]):
            packed.write(piece)


def _document(file: TraceFile, added: Sequence[bytes]) -> Iterator[bytes]:
    """The trace as JSON, with further events in front of its own."""
    decode = msgspec.json.Decoder(list[msgspec.Raw]).decode
    stream = EventStream(file.pieces(), decode, msgspec.Raw, str(file.path))
    yield b'{"traceEvents": [\n' + b",\n".join(added)
    separator = b",\n" if added else b""
    for batch in stream.batches():
        events = [bytes(event) for event in batch]
        if own := b",\n".join(event for event in events if not event.startswith(_OWN_EVENT)):
            yield separator + as_utf8(own)
            separator = b",\n"
    yield b"\n]"
    for name, value in stream.metadata.items():
        if name != "traceEvents":  # another list of events: of two, most readers take the last
            yield b",\n" + msgspec.json.encode({name: value})[1:-1]  # what is no number of JSON's becomes null
    yield b"}\n"


@dataclass(slots=True)
class _Mark:
    """What is drawn: nanoseconds on the trace's own clock, and on which track, counted from 0."""

    start: int
    end: int
    name: str
    arguments: Arguments
    track: int = field(default=0, init=False)

    def event(self) -> bytes:
        known = {key: value for key, value in self.arguments.items() if value is not None}
        text = _event("X", self.name, self.track, known)
        return text[:-1] + f', "ts": {Decimal(self.start) / 1000:f}, "dur": {(self.end - self.start) / 1000}}}'.encode()


def _marks(trial: Trial, conversions: Sequence[Conversion], base: int) -> list[_Mark]:
    """All marks in the order of their starts; the longer one of two first, as the other one is inside of it."""
    spans: dict[str, tuple[int, int]] = {}
    marks: list[_Mark] = []
    for conversion in conversions:
        start, duration = _times(conversion)
        spans[conversion.id] = base + start, base + start + duration
        marks.append(_Mark(*spans[conversion.id], _conversion_name(conversion), _conversion_arguments(conversion)))
    by_id = {conversion.id: conversion for conversion in conversions}
    for pair in trial.redundant_pairs:
        if {pair.first, pair.second} <= spans.keys():
            start, end = spans[pair.first][0], max(spans[pair.first][1], spans[pair.second][1])
            end += _slack(end)  # so that every viewer has its second conversion inside of it
            marks.append(_Mark(start, end, _pair_name(pair, by_id[pair.first]), _pair_arguments(pair)))
    marks.sort(key=lambda mark: (mark.start, -mark.end))
    _choose_tracks(marks)
    return marks


def _choose_tracks(marks: Sequence[_Mark]) -> None:
    """
    Puts what overlaps without being nested on further tracks.

    Source:
        google/perfetto issues 928 and 4280: an event that begins within another one of its track and outlasts it is
        dropped.
    """
    running: list[list[int]] = []  # of each track, the ends of what has not ended, innermost last
    for mark in marks:
        slack = _slack(mark.end)
        for ends in running:
            while ends and ends[-1] + slack <= mark.start:
                ends.pop()
        fitting = (track for track, ends in enumerate(running) if not ends or mark.end + slack <= ends[-1])
        mark.track = next(fitting, len(running))
        if mark.track == len(running):
            running.append([])
        running[mark.track].append(mark.end)


def _slack(end: int) -> int:
    """By how many nanoseconds an end may be off in a viewer that computes in doubles."""
    return 1 + int(2000 * math.ulp(end / 1000))


def _descriptions(marks: Sequence[_Mark]) -> Iterator[bytes]:
    """The titles of the process and its tracks."""
    if marks:
        yield _event("M", "process_name", 0, {"name": "layoutdoctor"})
    for track in range(max((mark.track for mark in marks), default=-1) + 1):
        title = "conversions and round trips" + (f" ({track + 1})" if track else "")
        yield _event("M", "thread_name", track, {"name": title})


def _event(phase: str, name: str, track: int, arguments: Mapping[str, object]) -> bytes:
    fields = {"ph": phase, "name": name, "pid": OWN_PROCESS, "tid": track, "args": arguments}
    return _OWN_EVENT + json.dumps(printable(fields))[1:].encode()


def _times(conversion: Conversion) -> tuple[int, int]:
    """Start and duration in nanoseconds, as the trace's reader has them; -1 for what is not known."""
    start, duration = conversion.start_seconds, conversion.seconds
    return (
        -1 if start is None else round(start * _NANOSECONDS),
        -1 if duration is None else round(duration * _NANOSECONDS),
    )


def _conversion_name(conversion: Conversion) -> str:
    words = DIRECTION_WORDS[conversion.direction]
    name = "other layout conversion" if conversion.direction == "other" else words
    return name if conversion.tensor == "unknown" else f"{name} ({conversion.tensor})"


def _conversion_arguments(conversion: Conversion) -> Arguments:
    stream = conversion.stream
    return {
        "conversion": conversion.id,
        "kernel": conversion.kernel,
        "stream": None if stream is None or stream < 0 else stream,
        "direction": direction_words(conversion),
        "tensor": conversion.tensor,
        "shape": None if conversion.source is None else _sizes(conversion.source.shape),
        "from": None if conversion.source is None else layout_words(conversion.source),
        "to": None if conversion.target is None else layout_words(conversion.target),
        "owner": conversion.owner,
        "operation": conversion.op,
        "module": conversion.module,
        "source line": str(conversion.location) if conversion.location is not None else None,
        "cause": conversion.cause,
        "confidence": CONFIDENCE_WORDS[conversion.confidence],
        "exposed us": _microseconds(conversion.exposed_seconds),
        "bytes": conversion.bytes_moved,
    }


def _pair_name(pair: RedundantPair, first: Conversion) -> str:
    is_named = first.direction in ("to_channels_last", "to_contiguous", "to_blocked")
    way = f"{DIRECTION_WORDS[first.direction].removeprefix('to ')} and back" if is_named else "another layout and back"
    return f"round trip: {way}" + (f", {_sizes(pair.tensor_shape)}" if pair.tensor_shape is not None else "")


def _pair_arguments(pair: RedundantPair) -> Arguments:
    return {
        "first conversion": pair.first,
        "second conversion": pair.second,
        "also": ", ".join(pair.also) or None,
        "confidence": CONFIDENCE_WORDS[pair.confidence],
        "between": ", ".join(pair.between) or "nothing",
        "proof": pair.proof,
        "microseconds": _microseconds(pair.seconds),
        "exposed us": _microseconds(pair.exposed_seconds),
        "bytes": pair.bytes_moved,
        "module": pair.module,
        "source line": str(pair.location) if pair.location is not None else None,
    }


def _sizes(sizes: Sequence[Size]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _microseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e6, 3)
