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

from layoutdoctor.diagnosis.layout import Layout
from layoutdoctor.diagnosis.records import SourceLocation
from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.diagnosis.writing import printable, replacing
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.recording.chrome import read_chrome_trace
from layoutdoctor.recording.event_stream import as_utf8, events_of
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.reading import recognize
from layoutdoctor.reports.sections.wording import recorded_trial
from layoutdoctor.words import DIRECTION_WORDS, layout_words, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, RedundantPair, Trial

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

    Copies that change no layout (permuted copies, padding) are not marked. The events of the source stay as they are;
    a damaged event is written as it was understood, and a document that ends too early is closed. Marks that an
    earlier call wrote are replaced.

    Args:
        diagnosis: The result of ``examine_trace`` for the source.
        source: A Chrome trace, ``.json`` or ``.json.gz``.
        target: An existing file is replaced, a link stays a link.
        max_bytes: How many bytes of the source to read at the most, after unpacking.

    Raises:
        TraceError: The source cannot be read.
        UsageError: The source is no Chrome trace.
        OSError: The target could not be written; it is as it was.
    """
    source = Path(source)
    file = TraceFile(source, max_bytes)
    if recognize(file.head(), source.name) != "chrome":
        raise UsageError(
            f"cannot annotate {str(source)!r}: expected a Chrome trace (.json, .json.gz), as only these can be written "
            "back with marks; write a report instead, such as --output report.md"
        )
    trial = recorded_trial(diagnosis)
    base = read_chrome_trace(file).base_nanoseconds
    marks = _marks(trial, base) if trial is not None else []
    with (
        replacing(Path(target)) as stream,
        # Without a name or a time in it, so that the same trace is the same file.
        gzip.GzipFile(filename="", mode="wb", compresslevel=_PACKING_LEVEL, fileobj=stream, mtime=0) as packed,
    ):
        for piece in _document(file, [*_descriptions(marks), *(mark.event() for mark in marks)]):
            packed.write(piece)


def _document(file: TraceFile, added: Sequence[bytes]) -> Iterator[bytes]:
    """The trace as JSON, with further events in front of its own."""
    stream, batches = events_of(file, msgspec.json.Decoder(list[msgspec.Raw]).decode, msgspec.Raw)
    yield b'{"traceEvents": [\n' + b",\n".join(added)
    separator = b",\n" if added else b""
    for batch in batches:
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
    """One bar: nanoseconds on the trace's own clock, and its track, counted from 0."""

    start: int
    end: int
    name: str
    record: Conversion | RedundantPair
    track: int = field(default=0, init=False)

    def event(self) -> bytes:
        text = _event("X", self.name, self.track, dict(_arguments(self.record)))
        return text[:-1] + f', "ts": {Decimal(self.start) / 1000:f}, "dur": {(self.end - self.start) / 1000}}}'.encode()


def _marks(trial: Trial, base: int) -> list[_Mark]:
    """All marks in the order of their starts; the longer one of two first, as the other one is inside of it."""
    marks: dict[str, _Mark] = {}
    for conversion in counted_conversions(trial):
        if conversion.start_seconds is not None and conversion.seconds is not None:
            start = base + round(conversion.start_seconds * _NANOSECONDS)
            end = start + round(conversion.seconds * _NANOSECONDS)
            marks[conversion.id] = _Mark(start, end, _conversion_name(conversion), conversion)
    found = [*marks.values()]
    for pair in trial.redundant_pairs:
        if {pair.first, pair.second} <= marks.keys():
            first, second = marks[pair.first], marks[pair.second]
            end = max(first.end, second.end)
            end += _slack(end)  # so that every viewer has its second conversion inside of it
            found.append(_Mark(first.start, end, f"round trip: {first.name} and back", pair))
    found.sort(key=lambda mark: (mark.start, -mark.end))
    _choose_tracks(found)
    return found


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


def _conversion_name(conversion: Conversion) -> str:
    words = DIRECTION_WORDS[conversion.direction]
    name = "other layout conversion" if conversion.direction == "other" else words
    return name if conversion.tensor == "unknown" else f"{name} ({conversion.tensor})"


def _arguments(record: Conversion | RedundantPair) -> Iterator[tuple[str, object]]:
    """The fields that are known, under the names they have in JSON."""
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
