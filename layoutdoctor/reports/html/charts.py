"""
What the charts of the HTML report draw: numbers of the record, names cleaned, nothing computed that a table lacks.

It goes into the page as JSON. Times are seconds, those of the timelines whole nanoseconds from the first kernel, so
that the page stays small.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.reports.sections.account import account_view, row_name, signed_seconds
from layoutdoctor.reports.sections.rows import format_interval
from layoutdoctor.reports.sections.wording import clean, clean_name, direction_words, find_ratio, place_of, shown_name
from layoutdoctor.units import format_seconds
from layoutdoctor.words import count_of, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.records import Account, Conversion, Diagnosis, Kernel, Measurement, Trial

MOST_KERNELS = 20_000
MOST_TIMELINE_PAIRS = 2_000
_NAME_LENGTH = 160
_NANOSECONDS = 1e9
Drawn = dict[str, Any]
"""A part of a chart, as the page's script reads it."""


@dataclass(frozen=True, slots=True)
class TimeBar:
    """
    One measured configuration.

    Attributes:
        role: ``best`` for the recommended one, ``baseline`` or ``other``.
        ratio: To the baseline; None for the baseline itself and if not compared.
    """

    name: str
    role: str
    seconds: float
    text: str
    ratio: Drawn | None


def build_bars(diagnosis: Diagnosis) -> tuple[TimeBar, ...]:
    """The measured configurations, fastest first."""
    drawn = [_bar(diagnosis, trial, trial.measurement) for trial in diagnosis.trials if trial.measurement is not None]
    return tuple(sorted(drawn, key=lambda bar: bar.seconds))


def _bar(diagnosis: Diagnosis, trial: Trial, measurement: Measurement) -> TimeBar:
    recommended = diagnosis.recommendation.configuration if diagnosis.recommendation else None
    is_baseline = diagnosis.comparison is not None and trial.name == diagnosis.comparison.baseline
    return TimeBar(
        name=shown_name(trial.name),
        role="best" if trial.name == recommended else "baseline" if is_baseline else "other",
        seconds=measurement.median_seconds,
        text=format_seconds(measurement.median_seconds),
        ratio=_ratio(diagnosis, trial),
    )


def _ratio(diagnosis: Diagnosis, trial: Trial) -> Drawn | None:
    """The ratio to the baseline with its interval; None if there is none."""
    ratio = find_ratio(diagnosis, trial.name)
    if ratio is None:
        return None
    ends = {"low": ratio.low, "median": ratio.median, "high": ratio.high}
    return {**ends, "text": format_interval(ratio), "verdict": ratio.verdict}


@dataclass(frozen=True, slots=True)
class Waterfall:
    """An account as steps from the slower configuration's time down to the faster one's."""

    title: str
    steps: tuple[WaterfallStep, ...]


@dataclass(frozen=True, slots=True)
class WaterfallStep:
    """
    One bar of a waterfall.

    Attributes:
        role: ``whole`` for a configuration, ``less`` for what the faster one saves, ``more`` for what it adds.
    """

    name: str
    role: str
    from_seconds: float
    to_seconds: float
    text: str


def build_waterfalls(diagnosis: Diagnosis) -> tuple[Waterfall, ...]:
    """Each account as a waterfall."""
    return tuple(_waterfall(account) for account in diagnosis.accounts if account.rows)


def _waterfall(account: Account) -> Waterfall:
    ends = tuple(accumulate((-row.seconds for row in account.rows), initial=account.slower_seconds))
    steps = [
        WaterfallStep(row_name(row), "less" if row.seconds >= 0 else "more", start, end, signed_seconds(-row.seconds))
        for row, start, end in zip(account.rows, ends, ends[1:], strict=False)
    ]
    first, last = (
        WaterfallStep(shown_name(name), "whole", 0.0, seconds, format_seconds(seconds))
        for name, seconds in ((account.slower, account.slower_seconds), (account.faster, account.faster_seconds))
    )
    return Waterfall(account_view(account).heading, (first, *steps, last))


@dataclass(frozen=True, slots=True)
class Timeline:
    """
    The kernels of one trial. The four lists have one entry per kernel, in order of time.

    Attributes:
        conversions: Pairs of an index into the four lists and what that conversion is, in order of time.
        in_pairs: Those of the indices that are part of a round trip.
        pairs: Round trips on the time axis.
    """

    name: str
    lanes: tuple[str, ...]
    names: tuple[str, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    kernels: tuple[int, ...]
    kernel_lanes: tuple[int, ...]
    conversions: tuple[tuple[int, str], ...]
    in_pairs: tuple[int, ...]
    pairs: tuple[Drawn, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Event:
    """A kernel or a conversion on its way to the axis; seconds."""

    name: str
    start: float
    seconds: float
    stream: int | None
    conversion: Conversion | None


def build_timelines(diagnosis: Diagnosis) -> tuple[Timeline, ...]:
    """A timeline of each trial that has kernels of its own; the baseline's first, then the recommended one's."""
    ordered = (diagnosis.baseline, diagnosis.fastest, *diagnosis.trials)
    own = {trial.name: trial for trial in ordered if trial is not None and trial.status != "same_as"}
    timelines = map(_timeline, own.values())
    return tuple(timeline for timeline in timelines if timeline is not None)


def _timeline(trial: Trial) -> Timeline | None:
    events, notes = _events(trial)
    if not events:
        return None
    kept, dropped = _kept(events)
    if dropped:
        notes.append(f"{count_of(dropped, 'shorter kernel')} not drawn; every conversion is")
    origin = min(event.start for event in kept)
    streams = sorted({event.stream for event in kept}, key=lambda stream: (stream is None, stream or 0))
    lane_of = {stream: number for number, stream in enumerate(streams)}
    names: dict[str, int] = {}
    shown = {name: clean(name, _NAME_LENGTH) for name in dict.fromkeys(event.name for event in kept)}
    starts = [round((event.start - origin) * _NANOSECONDS) for event in kept]
    lengths = [max(0, round(event.seconds * _NANOSECONDS)) for event in kept]
    marked = {event.conversion.id: number for number, event in enumerate(kept) if event.conversion is not None}
    pairs, in_pairs = _pairs(trial, marked, starts, lengths)
    if len(pairs) == MOST_TIMELINE_PAIRS < len(trial.redundant_pairs):
        notes.append(f"the first {MOST_TIMELINE_PAIRS} of {len(trial.redundant_pairs)} round trips are drawn")
    return Timeline(
        name=shown_name(trial.name),
        lanes=tuple("kernels" if stream is None else f"stream {stream}" for stream in streams),
        starts=tuple(starts),
        lengths=tuple(lengths),
        kernels=tuple(names.setdefault(shown[event.name], len(names)) for event in kept),
        names=tuple(names),
        kernel_lanes=tuple(lane_of[event.stream] for event in kept),
        conversions=tuple(
            (number, _describe(event.conversion)) for number, event in enumerate(kept) if event.conversion is not None
        ),
        in_pairs=tuple(sorted(in_pairs)),
        pairs=pairs,
        notes=tuple(notes),
    )


def _events(trial: Trial) -> tuple[list[_Event], list[str]]:
    """Kernels in order of time, each with the conversion it is, and conversions that are no kernel of their own."""
    kernels = trial.kernels.kernels if trial.kernels is not None else ()
    if any(kernel.seconds is None or kernel.start_seconds is None for kernel in kernels):
        return [], []
    waiting: dict[tuple[float | None, int | None], list[Conversion]] = defaultdict(list)
    for conversion in counted_conversions(trial):
        if conversion.count == 1:
            waiting[conversion.start_seconds, conversion.stream].append(conversion)
    events, notes = [_event(kernel, waiting) for kernel in kernels], []
    if trial.kernels is not None and kernels and trial.kernels.count > len(kernels):
        notes.append(f"the record lists {len(kernels)} of {trial.kernels.count} kernels")
    left = [conversion for conversions in waiting.values() for conversion in conversions]
    added = [event for event in map(_alone, left) if event is not None]
    if len(added) < len(left) and (kernels or added):
        notes.append(f"{count_of(len(left) - len(added), 'conversion')} without a recorded start not drawn")
    return sorted((*events, *added), key=lambda event: event.start), notes


def _event(kernel: Kernel, waiting: dict[tuple[float | None, int | None], list[Conversion]]) -> _Event:
    """A conversion and its kernel were read from one event, so that they start at the very same number."""
    start = kernel.start_seconds or 0.0
    candidates = waiting.get((kernel.start_seconds, kernel.stream), [])
    found = next((c for c in candidates if c.kernel is None or c.kernel.startswith(kernel.name)), None)
    if found is not None:
        candidates.remove(found)
    return _Event(kernel.name, start, kernel.seconds or 0.0, kernel.stream, found)


def _alone(conversion: Conversion) -> _Event | None:
    if conversion.start_seconds is None or conversion.seconds is None:
        return None
    name = conversion.kernel or conversion.op or conversion.id
    return _Event(name, conversion.start_seconds, conversion.seconds, conversion.stream, conversion)


def _kept(events: list[_Event]) -> tuple[list[_Event], int]:
    """All conversions and the longest kernels, in order, and how many others there were."""
    if len(events) <= MOST_KERNELS:
        return events, 0
    order = sorted(range(len(events)), key=lambda n: (events[n].conversion is None, -events[n].seconds, n))
    kept = sorted(order[:MOST_KERNELS])
    return [events[number] for number in kept], len(events) - len(kept)


def _describe(conversion: Conversion) -> str:
    time = None if conversion.seconds is None else format_seconds(conversion.seconds)
    place = place_of(conversion.location, conversion.module) or clean_name(conversion.op or "")
    what = f"{direction_words(conversion)}, {conversion.tensor}"
    return joined((clean_name(conversion.id), what, time, place), " · ")


def _pairs(
    trial: Trial, marked: dict[str, int], starts: Sequence[int], lengths: Sequence[int]
) -> tuple[tuple[Drawn, ...], set[int]]:
    pairs: list[Drawn] = []
    members: set[int] = set()
    for pair in trial.redundant_pairs:
        ends = [marked.get(id_) for id_ in (pair.first, *pair.also, pair.second)]
        known = [number for number in ends if number is not None]
        members.update(known)
        first, second = marked.get(pair.first), marked.get(pair.second)
        if first is None or second is None or len(pairs) == MOST_TIMELINE_PAIRS:
            continue
        cost = "" if pair.seconds is None else f", {format_seconds(pair.seconds)}"
        text = f"round trip: {clean_name(pair.first)} and {clean_name(pair.second)}{cost}"
        pairs.append({"start": starts[first], "end": starts[second] + lengths[second], "text": text})
    return tuple(pairs), members
