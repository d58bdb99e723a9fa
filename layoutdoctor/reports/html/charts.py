"""
What the charts of the HTML report draw: numbers of the record, names cleaned, nothing computed that a table lacks.

It goes into the page as JSON. Times are seconds, those of the timelines whole nanoseconds from the first kernel, so
that the page stays small.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.reports.sections.account import account_view, row_name, signed_seconds
from layoutdoctor.reports.sections.rows import format_interval
from layoutdoctor.reports.sections.wording import clean, clean_name, direction_words, find_ratio, place_of, shown_name
from layoutdoctor.units import format_seconds
from layoutdoctor.words import count_of, joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.answer import Account
    from layoutdoctor.diagnosis.conversion import Conversion, RedundantPair
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.kernel import Kernel
    from layoutdoctor.diagnosis.trial import Measurement, Trial

MOST_KERNELS = 20_000
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


class _Event(NamedTuple):
    """A kernel, or a conversion of which no kernel was listed; seconds."""

    start: float
    seconds: float
    stream: int | None
    name: str
    conversion: Conversion | None


def build_timelines(diagnosis: Diagnosis) -> tuple[Timeline, ...]:
    """A timeline of each trial that has kernels of its own; the baseline's first, then the recommended one's."""
    ordered = (diagnosis.baseline, diagnosis.fastest, *diagnosis.trials)
    own = {trial.name: trial for trial in ordered if trial is not None and trial.status != "same_as"}
    timelines = map(_timeline, own.values())
    return tuple(timeline for timeline in timelines if timeline is not None)


def _timeline(trial: Trial) -> Timeline | None:
    kernels = trial.kernels.kernels if trial.kernels is not None else ()
    if any(kernel.seconds is None or kernel.start_seconds is None for kernel in kernels):
        return None
    everything = _events(trial, kernels)
    if not everything:
        return None
    longest = sorted(everything, key=lambda event: (event.conversion is None, -event.seconds))[:MOST_KERNELS]
    kept = set(map(id, longest))
    events = sorted((event for event in everything if id(event) in kept), key=lambda event: event.start)
    streams = sorted({event.stream for event in events}, key=lambda stream: (stream is None, stream or 0))
    shown = {name: clean(name, _NAME_LENGTH) for name in dict.fromkeys(event.name for event in events)}
    names = list(dict.fromkeys(shown.values()))
    number_of = {name: names.index(text) for name, text in shown.items()}
    starts = tuple(round((event.start - events[0].start) * _NANOSECONDS) for event in events)
    lengths = tuple(max(0, round(event.seconds * _NANOSECONDS)) for event in events)
    conversions = {number: event.conversion for number, event in enumerate(events) if event.conversion is not None}
    place_of_id = {conversion.id: number for number, conversion in conversions.items()}
    members = {id_ for pair in trial.redundant_pairs for id_ in (pair.first, *pair.also, pair.second)}
    return Timeline(
        name=shown_name(trial.name),
        lanes=tuple("kernels" if stream is None else f"stream {stream}" for stream in streams),
        names=tuple(names),
        starts=starts,
        lengths=lengths,
        kernels=tuple(number_of[event.name] for event in events),
        kernel_lanes=tuple(streams.index(event.stream) for event in events),
        conversions=tuple((number, _describe(conversion)) for number, conversion in conversions.items()),
        in_pairs=tuple(sorted(place_of_id[id_] for id_ in members & place_of_id.keys())),
        pairs=tuple(
            {
                "start": starts[place_of_id[pair.first]],
                "end": starts[place_of_id[pair.second]] + lengths[place_of_id[pair.second]],
                "text": _describe_pair(pair),
            }
            for pair in trial.redundant_pairs
            if {pair.first, pair.second} <= place_of_id.keys()
        ),
        notes=tuple(_notes(trial, len(kernels), len(everything) - len(events), len(conversions))),
    )


def _events(trial: Trial, kernels: Sequence[Kernel]) -> list[_Event]:
    """Kernels, each with the conversion it is, and conversions that are no listed kernel."""
    waiting: dict[tuple[float | None, int | None], list[Conversion]] = defaultdict(list)
    for conversion in counted_conversions(trial):
        if conversion.count == 1:
            waiting[conversion.start_seconds, conversion.stream].append(conversion)
    events = []
    for kernel in kernels:  # a conversion and its kernel were read from one event: they start at the very same number
        same = waiting[kernel.start_seconds, kernel.stream]
        found = next((one for one in same if one.kernel is None or one.kernel.startswith(kernel.name)), None)
        if found is not None:
            same.remove(found)
        events.append(_Event(kernel.start_seconds or 0.0, kernel.seconds or 0.0, kernel.stream, kernel.name, found))
    events += [
        _Event(one.start_seconds, one.seconds, one.stream, one.kernel or one.op or one.id, one)
        for conversions in waiting.values()
        for one in conversions
        if one.start_seconds is not None and one.seconds is not None
    ]
    return events


def _notes(trial: Trial, kernel_count: int, dropped: int, drawn: int) -> Iterator[str]:
    """What a timeline does not show."""
    if trial.kernels is not None and 0 < kernel_count < trial.kernels.count:
        yield f"the record lists {kernel_count} of {trial.kernels.count} kernels"
    undrawn = sum(conversion.count == 1 for conversion in counted_conversions(trial)) - drawn
    if undrawn:
        yield f"{count_of(undrawn, 'conversion')} without a recorded start not drawn"
    if dropped:
        yield f"{count_of(dropped, 'shorter kernel')} not drawn; every conversion is"


def _describe(conversion: Conversion) -> str:
    time = None if conversion.seconds is None else format_seconds(conversion.seconds)
    place = place_of(conversion.location, conversion.module) or clean_name(conversion.op or "")
    what = f"{direction_words(conversion)}, {conversion.tensor}"
    return joined((clean_name(conversion.id), what, time, place), " · ")


def _describe_pair(pair: RedundantPair) -> str:
    cost = "" if pair.seconds is None else f", {format_seconds(pair.seconds)}"
    return f"round trip: {clean_name(pair.first)} and {clean_name(pair.second)}{cost}"
