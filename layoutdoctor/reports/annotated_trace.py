"""
Writes a recorded trace back with its layout conversions and round trips marked, for Perfetto (ui.perfetto.dev).

Every stream that has conversions gets a track of its own beside it, and so have the round trips of a device; arrows
lead from the first conversion of a round trip to the second.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.diagnosis.writing import replacing
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.examination.kernels.host import OF_A_CPU
from layoutdoctor.recording.annotate import CATEGORY, annotated_pieces, assign_lanes, survey_trace
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.reading import recognize
from layoutdoctor.reports.sections.wording import direction_words, recorded_trial
from layoutdoctor.words import CONFIDENCE_WORDS, DIRECTION_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from layoutdoctor.diagnosis.layout import Layout, Size
    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, RedundantPair, Trial
    from layoutdoctor.recording.annotate import KernelEvent, Span, Survey

_NANOSECONDS = 1e9
_MICROSECONDS = 1e6
_ROUNDING_NANOSECONDS = 2
"""Starts count from the trace's first event in the diagnosis and from its first kernel here; both were rounded."""

_PACKING_LEVEL = 6


def write_annotated_trace(
    diagnosis: Diagnosis, source: str | Path, target: str | Path, *, max_bytes: int = DEFAULT_MOST_BYTES
) -> None:
    """
    Writes a Chrome trace, packed with gzip, with the conversions and round trips of its diagnosis as further tracks.

    What changes no layout (permuted copies, padding) is not marked. The events of the source stay as they are, byte for
    byte; what is damaged is written as it was understood, and a document that ends too early is closed.

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
    source, target = Path(source), Path(target)
    file, cannot = TraceFile(source, max_bytes), f"cannot annotate {str(source)!r}"
    if recognize(file.head(), source.name) != "chrome":
        raise UsageError(
            f"{cannot}: expected a Chrome trace (.json, .json.gz), as only these can be written back with marks; "
            "write a report instead, such as --output report.md"
        )
    trial = recorded_trial(diagnosis)
    if trial is None:
        raise UsageError(f"{cannot}: its diagnosis holds no run; expected what examine_trace returned for this file")
    conversions = counted_conversions(trial)
    survey = survey_trace(file, _names(trial, conversions), "cpu_op" if _is_of_a_cpu(trial) else "kernel")
    kernels = _find_kernels(trial, conversions, survey)
    if len(kernels) < len(conversions):
        raise UsageError(
            f"{cannot}: {len(conversions) - len(kernels)} of {len(conversions)} conversions of the diagnosis are not "
            "in it; expected what examine_trace returned for this file; examine it again"
        )
    marks = _Marks(trial, conversions, kernels, survey)
    _write_packed(target, annotated_pieces(file, marks.events()))


def _is_of_a_cpu(trial: Trial) -> bool:
    return trial.kernels is not None and OF_A_CPU in trial.kernels.sources


def _names(trial: Trial, conversions: Sequence[Conversion]) -> set[str]:
    """Of the kernels to look for in the source: the conversions and the first kernel, from which starts count."""
    first = _first_kernel(trial)
    return {conversion.kernel for conversion in conversions if conversion.kernel is not None} | (
        {first[0]} if first else set()
    )


def _first_kernel(trial: Trial) -> tuple[str, int, float] | None:
    """Name, nanoseconds and start in seconds of the earliest kernel."""
    listed = trial.kernels.kernels if trial.kernels is not None else ()
    known = [(kernel.start_seconds, kernel) for kernel in listed if kernel.start_seconds is not None]
    if not known:
        return None
    start, kernel = min(known, key=lambda item: item[0])
    return kernel.name, round((kernel.seconds or 0.0) * _NANOSECONDS), start


def _find_kernels(trial: Trial, conversions: Sequence[Conversion], survey: Survey) -> dict[str, KernelEvent]:
    """The kernel of each conversion by the conversion's id: the same name, duration and start."""
    candidates: dict[tuple[str, int], list[KernelEvent]] = defaultdict(list)
    for kernel in survey.kernels:
        candidates[kernel.name, round(float(kernel.span.duration) * 1000)].append(kernel)
    base, offset = survey.first_start, 0.0
    if not _is_of_a_cpu(trial):
        first = _first_kernel(trial)
        if first is None or first[:2] not in candidates:
            return {}
        base = min(float(kernel.span.start) for kernel in candidates[first[:2]])
        offset = first[2] * _NANOSECONDS
    wanted: dict[tuple[str, int], list[Conversion]] = defaultdict(list)
    for conversion in sorted(conversions, key=_start_seconds):
        if conversion.kernel is not None and conversion.seconds is not None:
            wanted[conversion.kernel, round(conversion.seconds * _NANOSECONDS)].append(conversion)
    found: dict[str, KernelEvent] = {}
    for key, asked in wanted.items():
        starts = sorted(((float(k.span.start) - base) * 1000 + offset, n) for n, k in enumerate(candidates[key]))
        for conversion, place in _by_start(asked, [start for start, _ in starts]):
            found[conversion.id] = candidates[key][starts[place][1]]
    return found


def _by_start(conversions: Sequence[Conversion], starts: Sequence[float]) -> Iterator[tuple[Conversion, int]]:
    """Each conversion with the place of its start; both are sorted, and no place is given twice."""
    place = 0
    for conversion in conversions:
        seconds = _start_seconds(conversion)
        tolerance = _ROUNDING_NANOSECONDS + 4 * math.ulp(seconds) * _NANOSECONDS
        while place < len(starts) and starts[place] < seconds * _NANOSECONDS - tolerance:
            place += 1
        if place < len(starts) and starts[place] <= seconds * _NANOSECONDS + tolerance:
            yield conversion, place
            place += 1


def _start_seconds(conversion: Conversion) -> float:
    return conversion.start_seconds if conversion.start_seconds is not None else math.inf


@dataclass(frozen=True, slots=True)
class _Track:
    """Where marks are drawn: a thread of our own in the process of the device."""

    title: str
    process: str
    number: int
    sort_index: int

    def event(self, phase: str, name: str, start: str, *further: str) -> bytes:
        """An event on it: ``ph``, name and ``ts``, and other fields, as JSON."""
        fields = (
            f'"ph": "{phase}", "cat": "{CATEGORY}", "name": {json.dumps(_plain(name))}',
            f'"pid": {self.process}, "tid": {self.number}, "ts": {start}',
            *further,
        )
        return f"{{{', '.join(fields)}}}".encode()

    def description(self) -> Iterator[bytes]:
        """What tells a viewer the track's title and its place below the others of the device."""
        for name, arguments in (
            ("thread_name", {"name": self.title}),
            ("thread_sort_index", {"sort_index": self.sort_index}),
        ):
            yield (
                f'{{"ph": "M", "name": "{name}", "pid": {self.process}, "tid": {self.number}, '
                f'"args": {json.dumps(arguments)}}}'
            ).encode()


class _Marks:
    """The events to add."""

    def __init__(
        self, trial: Trial, conversions: Sequence[Conversion], kernels: dict[str, KernelEvent], survey: Survey
    ) -> None:
        self.kernels, self.survey = kernels, survey
        self.conversions = sorted(conversions, key=lambda conversion: kernels[conversion.id].span.nanoseconds)
        self.by_id = {conversion.id: conversion for conversion in conversions}
        self.pairs = [pair for pair in trial.redundant_pairs if {pair.first, pair.second} <= kernels.keys()]
        self.spans = [kernels[pair.first].span.until(kernels[pair.second].span) for pair in self.pairs]
        self.free_threads = survey.free_threads()
        self.tracks: list[_Track] = []
        self.track_of = self._conversion_tracks()
        self.pair_tracks = self._pair_tracks()

    def _conversion_tracks(self) -> dict[str, _Track]:
        """The track of each conversion, by its id: one per process and stream, more where kernels overlap."""
        groups: dict[tuple[str, str], list[Conversion]] = defaultdict(list)
        for conversion in self.conversions:
            kernel = self.kernels[conversion.id]
            groups[kernel.process, kernel.thread].append(conversion)
        found: dict[str, _Track] = {}
        for (process, thread), members in groups.items():
            stream = members[0].stream
            where = f"stream {stream}" if stream is not None and stream >= 0 else ""
            index = self.survey.sort_indices.get((process, thread), max(stream or 0, 0))
            spans = [self.kernels[conversion.id].span for conversion in members]
            tracks = self._make_tracks("layout conversions", where, process, index, spans)
            found |= {conversion.id: track for conversion, track in zip(members, tracks, strict=True)}
        return found

    def _pair_tracks(self) -> list[_Track]:
        """The track of each round trip: one per process, more where round trips overlap."""
        groups: dict[str, list[int]] = defaultdict(list)
        for place, pair in enumerate(self.pairs):
            groups[self.kernels[pair.first].process].append(place)
        found: dict[int, _Track] = {}
        for process, places in groups.items():
            index = max(self.track_of[self.pairs[place].first].sort_index for place in places)
            tracks = self._make_tracks("round trips", "", process, index, [self.spans[place] for place in places])
            found |= dict(zip(places, tracks, strict=True))
        return [found[place] for place in range(len(self.pairs))]

    def _make_tracks(self, what: str, where: str, process: str, index: int, spans: Sequence[Span]) -> list[_Track]:
        """The track of each span; titles differ where one track is not enough."""
        lanes = assign_lanes(spans)
        made = []
        for lane in range(max(lanes) + 1):
            parts = ", ".join(part for part in (where, str(lane + 1) if lane else "") if part)
            title = f"layoutdoctor: {what} ({parts})" if parts else f"layoutdoctor: {what}"
            made.append(_Track(title, process, next(self.free_threads), index))
        self.tracks += made
        return [made[lane] for lane in lanes]

    def events(self) -> Iterator[bytes]:
        """All of them as JSON: tracks, conversions with the arrows that begin or end at them, round trips."""
        for track in self.tracks:
            yield from track.description()
        leaving, arriving = defaultdict(list), defaultdict(list)
        for flow, pair in enumerate(self.pairs, self.survey.last_flow + 1):
            leaving[pair.first].append(flow)
            arriving[pair.second].append(flow)
        for conversion in self.conversions:
            track, span = self.track_of[conversion.id], self.kernels[conversion.id].span
            yield _mark(track, _conversion_name(conversion), span, _conversion_arguments(conversion))
            # Right behind their conversion: a viewer binds an arrow to the event that began last.
            for flow in arriving[conversion.id]:
                yield track.event("f", "round trip", span.start, f'"id": {flow}, "bp": "e"')
            for flow in leaving[conversion.id]:
                yield track.event("s", "round trip", span.start, f'"id": {flow}')
        order = sorted(range(len(self.pairs)), key=lambda place: _outer_first(self.spans[place]))
        for place in order:
            pair = self.pairs[place]
            name = _pair_name(pair, self.by_id[pair.first])
            yield _mark(self.pair_tracks[place], name, self.spans[place], _pair_arguments(pair))


def _outer_first(span: Span) -> tuple[int, int]:
    start, end = span.nanoseconds
    return start, -end


def _mark(track: _Track, name: str, span: Span, arguments: dict[str, str | int | float]) -> bytes:
    texts = {key: _plain(value) if isinstance(value, str) else value for key, value in arguments.items()}
    return track.event("X", name, span.start, f'"dur": {span.duration}', f'"args": {json.dumps(texts)}')


def _plain(text: str) -> str:
    """Text that any JSON reader takes: half of a surrogate pair is none."""
    return text.encode("utf-8", "replace").decode()


def _conversion_name(conversion: Conversion) -> str:
    words = DIRECTION_WORDS[conversion.direction]
    name = "other layout conversion" if conversion.direction == "other" else words
    return name if conversion.tensor == "unknown" else f"{name} ({conversion.tensor})"


def _conversion_arguments(conversion: Conversion) -> dict[str, str | int | float]:
    place = str(conversion.location) if conversion.location is not None else None
    return _known(
        {
            "conversion": conversion.id,
            "kernel": conversion.kernel,
            "direction": direction_words(conversion),
            "tensor": conversion.tensor,
            "port": conversion.port,
            **_layout_arguments("source", conversion.source),
            **_layout_arguments("target", conversion.target),
            "element type": conversion.dtype,
            "target element type": conversion.target_dtype,
            "owner": conversion.owner,
            "operation": conversion.op,
            "module": conversion.module,
            "source line": place,
            "cause": conversion.cause,
            "confidence": CONFIDENCE_WORDS[conversion.confidence],
            "step": conversion.step,
            "exposed us": _microseconds(conversion.exposed_seconds),
            "bytes": conversion.bytes_moved,
        }
    )


def _layout_arguments(which: str, layout: Layout | None) -> dict[str, str | None]:
    if layout is None:
        return {}
    return {
        f"{which} shape": _sizes(layout.shape),
        f"{which} stride": None if layout.stride is None else _sizes(layout.stride),
        f"{which} format": layout.format,
    }


def _pair_name(pair: RedundantPair, first: Conversion) -> str:
    is_named = first.direction in ("to_channels_last", "to_contiguous", "to_blocked")
    way = f"{DIRECTION_WORDS[first.direction].removeprefix('to ')} and back" if is_named else "another layout and back"
    return f"round trip: {way}" + (f", {_sizes(pair.tensor_shape)}" if pair.tensor_shape is not None else "")


def _pair_arguments(pair: RedundantPair) -> dict[str, str | int | float]:
    return _known(
        {
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
    )


def _known(arguments: dict[str, str | int | float | None]) -> dict[str, str | int | float]:
    return {key: value for key, value in arguments.items() if value is not None}


def _sizes(sizes: Sequence[Size]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _microseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * _MICROSECONDS, 3)


def _write_packed(target: Path, pieces: Iterable[bytes]) -> None:
    """Without a name or a time in it, so that the same trace is the same file."""
    with (
        replacing(target) as stream,
        gzip.GzipFile(filename="", mode="wb", compresslevel=_PACKING_LEVEL, fileobj=stream, mtime=0) as packed,
    ):
        for piece in pieces:
            packed.write(piece)
