"""Writes a recorded trace back with its layout conversions and round trips marked, for Perfetto (ui.perfetto.dev)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path

import msgspec

from layoutdoctor.diagnosis import Conversion, Diagnosis, Layout, RedundantPair, SourceLocation, Trial
from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.counts import counted_conversions
from layoutdoctor.files.writing import printable, replacing
from layoutdoctor.recording.chrome import read_chrome_trace
from layoutdoctor.recording.event_stream import EventStream, as_utf8
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.reading import recognize
from layoutdoctor.reports.sections.wording import recorded_run
from layoutdoctor.words import DIRECTION_WORDS, layout_words, shape_words

OWN_PROCESS = 900_000_000
"""Process id of the marks: above all process ids of Linux and device numbers, and within Perfetto's 32 bits."""

_OWN_EVENT = b'{"cat": "layoutdoctor", '
"""First bytes of each mark. The reader of Chrome traces does not know this category and skips the event."""

_NANOSECONDS = 1e9
_PACKING_LEVEL = 6


def write_annotated_trace(
    diagnosis: Diagnosis, source: str | Path, target: str | Path, *, max_bytes: int = DEFAULT_MOST_BYTES
) -> None:
    """
    Writes a Chrome trace, packed with gzip, with its conversions and round trips on tracks of their own.

    Copies that change no layout (permuted copies, padding) are not marked. The events of the source are copied. Damaged
    events are mended, or left out if they cannot be read. JSON that ends too early is completed. Marks of an earlier
    call are replaced.

    Args:
        diagnosis: The result of ``examine_trace`` for the source.
        source: A Chrome trace, ``.json`` or ``.json.gz``.
        target: Path of the annotated trace. An existing file is replaced; so is a link, but not the file behind it.
        max_bytes: Largest number of bytes to read from the source, counted after unpacking.

    Raises:
        TraceError: The source cannot be read.
        UsageError: The source is no Chrome trace.
        OSError: The target could not be written; it has not changed.
    """
    source = Path(source)
    file = TraceFile(source, max_bytes)
    if recognize(file.head(), source.name) != "chrome":
        raise UsageError(
            f"cannot annotate {str(source)!r}: expected a Chrome trace (.json, .json.gz), as only these can be written "
            "back with marks; write a report instead, such as --output report.md"
        )
    run = recorded_run(diagnosis)
    base = read_chrome_trace(file).base_nanoseconds
    marks = [*_marks(run.trial, base)] if run is not None else []
    title = [_event("M", "process_name", {"name": "layoutdoctor"})] if marks else []
    with (
        replacing(Path(target)) as stream,
        # No file name and no time in the gzip header, so that the same trace gives the same bytes.
        gzip.GzipFile(filename="", mode="wb", compresslevel=_PACKING_LEVEL, fileobj=stream, mtime=0) as packed,
    ):
        for piece in _document(file, [*title, *marks]):
            packed.write(piece)


def _document(file: TraceFile, added: Sequence[bytes]) -> Iterator[bytes]:
    """Yields the trace as JSON, with the added events before its own."""
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
        if name != "traceEvents":  # a second list of events: most readers use the last one
            yield b",\n" + msgspec.json.encode({name: value})[1:-1]  # NaN becomes null
    yield b"}\n"


def _marks(trial: Trial, base: int) -> Iterator[bytes]:
    """
    Yields the begin and end events of every mark, as asynchronous events with an id for each mark.

    Round trips may overlap without being nested. Perfetto would drop ordinary events then (google/perfetto 928, 4280).
    """
    spans: dict[str, tuple[int, int]] = {}
    conversions = {conversion.id: conversion for conversion in counted_conversions(trial)}
    for conversion in conversions.values():
        if conversion.start_seconds is not None and conversion.seconds is not None:
            start = base + round(conversion.start_seconds * _NANOSECONDS)
            spans[conversion.id] = start, start + round(conversion.seconds * _NANOSECONDS)
            yield from _mark(spans[conversion.id], conversion.id, _conversion_name(conversion), conversion)
    for number, pair in enumerate(trial.redundant_pairs):
        if {pair.first, pair.second} <= spans.keys():
            (start, _), (_, end) = spans[pair.first], spans[pair.second]
            name = f"round trip: {_conversion_name(conversions[pair.first])} and back"
            yield from _mark((start, end), f"round trip {number}", name, pair)


def _mark(span: tuple[int, int], id_: str, name: str, record: Conversion | RedundantPair) -> Iterator[bytes]:
    """Yields the begin and end events of a mark; converts nanoseconds of the trace's clock to microseconds exactly."""
    for phase, nanoseconds in zip("be", span, strict=True):
        event = _event(phase, name, dict(_arguments(record)) if phase == "b" else {}, id=id_)
        yield event[:-1] + f', "ts": {Decimal(nanoseconds) / 1000:f}}}'.encode()


def _event(phase: str, name: str, arguments: Mapping[str, object], **more: object) -> bytes:
    fields = {"ph": phase, "name": name, "pid": OWN_PROCESS, "tid": 0, "args": arguments, **more}
    return _OWN_EVENT + json.dumps(printable(fields))[1:].encode()


def _conversion_name(conversion: Conversion) -> str:
    words = DIRECTION_WORDS[conversion.direction]
    name = "other layout conversion" if conversion.direction == "other" else words
    return name if conversion.tensor == "unknown" else f"{name} ({conversion.tensor})"


def _arguments(record: Conversion | RedundantPair) -> Iterator[tuple[str, object]]:
    """Yields the known fields of a record under their JSON names, with values as Perfetto shows them."""
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, Layout):
            value = f"{shape_words(value.shape)} {layout_words(value)}"
        elif isinstance(value, SourceLocation):
            value = str(value)
        elif isinstance(value, tuple):
            value = ", ".join(map(str, value))
        if value not in (None, "", False):
            yield name, value
