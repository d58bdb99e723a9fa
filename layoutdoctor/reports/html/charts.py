"""
What the charts of the HTML report draw: numbers of the record, names cleaned, nothing computed that a table lacks.

It goes into the page as JSON. Times are seconds, those of the timelines whole nanoseconds from the first kernel, so
that the page stays small; of a flow, each box stands in a row below all that it reads from.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeGuard

from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.examination.ratios import LEAST_COVERAGE, is_too_noisy, median_interval, word_of
from layoutdoctor.reports.sections.account import account_view, row_name, signed_seconds
from layoutdoctor.reports.sections.rows import format_interval
from layoutdoctor.reports.sections.wording import clean, clean_name, direction_words, find_ratio, place_of
from layoutdoctor.units import format_seconds
from layoutdoctor.words import count_of, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from layoutdoctor.diagnosis.records import Account, AccountRow, Conversion, Diagnosis, Kernel, Measurement, Trial
    from layoutdoctor.reports.flow.scenes import Flow

MOST_KERNELS = 20_000
MOST_TIMELINE_PAIRS = 2_000
_NAME_LENGTH = 160
_MODULE_LENGTH = 32
_NANOSECONDS = 1e9
_LONGEST_SECONDS = 1e9
"""Three decades: a time beyond has no place on an axis, whatever a record claims."""


Drawn = dict[str, Any]
"""A part of a chart, as the page's script reads it."""


@dataclass(frozen=True, slots=True)
class TimeBar:
    """
    One measured configuration.

    Attributes:
        role: ``best`` for the recommended one, ``baseline`` or ``other``.
        low_seconds: Lower end of an interval for the true median, from the round times.
        has_coverage: Whether that interval has the coverage that the chart names; else it is shortest to longest round.
        ratio: Against the baseline; None for the baseline itself and where not compared.
    """

    name: str
    role: str
    median_seconds: float
    low_seconds: float
    high_seconds: float
    has_coverage: bool
    text: str
    ratio: Drawn | None


@dataclass(frozen=True, slots=True)
class Rounds:
    """The round times of one configuration, in round order."""

    name: str
    median_seconds: float
    text: str
    seconds: tuple[float, ...]


def build_bars(diagnosis: Diagnosis) -> tuple[TimeBar, ...]:
    """The measured configurations, fastest first."""
    drawn = [_bar(diagnosis, trial, trial.measurement) for trial in diagnosis.trials if _is_drawable(trial.measurement)]
    return tuple(sorted(drawn, key=lambda bar: bar.median_seconds))


def _is_drawable(measurement: Measurement | None) -> TypeGuard[Measurement]:
    """A hand-edited record may hold anything; what is no positive number has no place on an axis."""
    if measurement is None:
        return False
    return all(0 < value < math.inf for value in (measurement.median_seconds, *measurement.round_seconds))


def _bar(diagnosis: Diagnosis, trial: Trial, measurement: Measurement) -> TimeBar:
    interval = median_interval(measurement.round_seconds or (measurement.median_seconds,), LEAST_COVERAGE)
    recommended = diagnosis.recommendation.configuration if diagnosis.recommendation else None
    is_baseline = diagnosis.comparison is not None and trial.name == diagnosis.comparison.baseline
    return TimeBar(
        name=clean_name(trial.name),
        role="best" if trial.name == recommended else "baseline" if is_baseline else "other",
        median_seconds=measurement.usual_seconds,
        low_seconds=min(interval.low, measurement.usual_seconds),
        high_seconds=max(interval.high, measurement.usual_seconds),
        has_coverage=interval.coverage is not None,
        text=format_seconds(measurement.usual_seconds),
        ratio=_ratio(diagnosis, trial),
    )


def _ratio(diagnosis: Diagnosis, trial: Trial) -> Drawn | None:
    """How many times faster than the baseline; None where the rounds tell nothing, or are too noisy to be drawn."""
    ratio = find_ratio(diagnosis, trial.name)
    if ratio is None or ratio.lacks_rounds or is_too_noisy(ratio):
        return None
    ends = {"low": ratio.low, "median": ratio.median, "high": ratio.high}
    return {**ends, "text": format_interval(ratio), "verdict": word_of(ratio)}


def build_rounds(diagnosis: Diagnosis) -> tuple[Rounds, ...]:
    """The round times of every configuration measured in more than one round, in the order of the configurations."""
    measured = [(trial.name, trial.measurement) for trial in diagnosis.trials]
    return tuple(
        Rounds(clean_name(name), one.median_seconds, format_seconds(one.median_seconds), one.round_seconds)
        for name, one in measured
        if _is_drawable(one) and len(one.round_seconds) > 1
    )


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
    names = Counter(map(row_name, account.rows))
    steps = [
        WaterfallStep(
            _step_name(row, names), "less" if row.seconds >= 0 else "more", start, end, signed_seconds(-row.seconds)
        )
        for row, start, end in zip(account.rows, ends, ends[1:], strict=False)
    ]
    first, last = (
        WaterfallStep(clean_name(name), "whole", 0.0, seconds, format_seconds(seconds))
        for name, seconds in ((account.slower, account.slower_seconds), (account.faster, account.faster_seconds))
    )
    return Waterfall(account_view(account).heading, (first, *steps, last))


def _step_name(row: AccountRow, names: Mapping[str, int]) -> str:
    """What a row is about, with the end of its module's path where several rows are about the same."""
    name = row_name(row)
    if names[name] == 1 or row.module is None:
        return name
    path = row.module
    return f"{name}, {clean_name(path if len(path) <= _MODULE_LENGTH else f'...{path[-_MODULE_LENGTH:]}')}"


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
        name=clean_name(trial.name),
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
    """Kernels in order of time, each with the conversion it is; conversions that no kernel stands for are added."""
    if trial.kernels is None or any(kernel.seconds is None for kernel in trial.kernels.kernels):
        return [], []
    waiting: dict[tuple[float | None, int | None], list[Conversion]] = defaultdict(list)
    for conversion in counted_conversions(trial):
        if conversion.count == 1:
            waiting[conversion.start_seconds, conversion.stream].append(conversion)
    listed = [kernel for kernel in trial.kernels.kernels if _has_place(kernel.start_seconds, kernel.seconds)]
    notes = []
    impossible = len(trial.kernels.kernels) - len(listed)
    if impossible:
        notes.append(f"{count_of(impossible, 'kernel')} with an impossible time not drawn")
    if any(kernel.start_seconds is None for kernel in listed):
        notes.append("starts were not recorded: kernels stand one after the other, in order")
        events = _one_after_the_other(listed)
    else:
        events = [_event(kernel, waiting) for kernel in listed]
    if listed and trial.kernels.count > len(trial.kernels.kernels):
        notes.append(f"the record lists {len(trial.kernels.kernels)} of {trial.kernels.count} kernels")
    left = [conversion for conversions in waiting.values() for conversion in conversions]
    alone = [_alone(conversion) for conversion in left]
    added = [event for event in alone if event is not None]
    if added and not listed:
        notes.append("the record lists no kernels: only conversions are drawn")
    if len(added) < len(left) and (listed or added):
        notes.append(_unmarked([c for c, event in zip(left, alone, strict=True) if event is None]))
    return sorted((*events, *added), key=lambda event: event.start), notes


def _unmarked(conversions: Sequence[Conversion]) -> str:
    """A conversion in a generated kernel is a part of it: to mark the whole kernel would overstate it."""
    part = " (parts of compiled kernels)" if all(c.owner == "compiler" for c in conversions) else ""
    has = "has" if len(conversions) == 1 else "have"
    return f"{count_of(len(conversions), 'conversion')}{part} {has} no recorded start and no mark here"


def _event(kernel: Kernel, waiting: dict[tuple[float | None, int | None], list[Conversion]]) -> _Event:
    """A conversion and its kernel were read from one event, so that they start at the very same number."""
    start = kernel.start_seconds or 0.0
    candidates = waiting.get((kernel.start_seconds, kernel.stream), [])
    found = next((c for c in candidates if c.kernel is None or c.kernel.startswith(kernel.name)), None)
    if found is not None:
        candidates.remove(found)
    return _Event(kernel.name, start, kernel.seconds or 0.0, kernel.stream, found)


def _one_after_the_other(kernels: Sequence[Kernel]) -> list[_Event]:
    starts = accumulate((kernel.seconds or 0.0 for kernel in kernels), initial=0.0)
    return [_Event(k.name, start, k.seconds or 0.0, k.stream, None) for k, start in zip(kernels, starts, strict=False)]


def _alone(conversion: Conversion) -> _Event | None:
    if conversion.start_seconds is None or not _has_place(conversion.start_seconds, conversion.seconds):
        return None
    name = conversion.kernel or conversion.op or conversion.id
    return _Event(name, conversion.start_seconds, conversion.seconds or 0.0, conversion.stream, conversion)


def _has_place(start: float | None, seconds: float | None) -> bool:
    """Whether something can be drawn; without a start it can, after what stands before it."""
    return seconds is not None and 0 <= seconds < _LONGEST_SECONDS and abs(start or 0.0) < _LONGEST_SECONDS


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


def build_placed_flows(diagnosis: Diagnosis) -> tuple[Drawn, ...]:
    """
    The flows around the worst that was found, worst first.

    An edge is the index of the box that makes a value, of the one that reads it, and its layout; ``steps`` says the
    same in words, a line for each box.
    """
    from layoutdoctor.reports.flow.scenes import build_flows  # late: needed for pages with a graph only

    return tuple(_place(flow) for flow in build_flows(diagnosis) if flow.nodes)


def _place(flow: Flow) -> Drawn:
    number = {node.key: place for place, node in enumerate(flow.nodes)}
    edges = [(number[edge.source], number[edge.target], clean(edge.label)) for edge in flow.edges]
    widths: Counter[int] = Counter()
    boxes: list[Drawn] = []
    for node, row in zip(flow.nodes, _rows(len(flow.nodes), edges), strict=True):
        box = {
            "row": row,
            "column": widths[row],
            "label": clean(node.label, 120),
            "detail": clean(node.detail, 160) if node.detail else "",
            "time": "" if node.seconds is None else format_seconds(node.seconds),
            "kind": node.kind,
            "memory_format": node.memory_format,
            "is_redundant": node.is_redundant,
        }
        widths[row] += 1
        boxes.append(box)
    return {
        "title": clean(flow.title),
        "configuration": clean(flow.configuration),
        "about": clean(flow.about),
        "boxes": boxes,
        "edges": edges,
        "row_widths": [widths[row] for row in sorted(widths)],
        "steps": [_step(place, boxes, edges) for place in range(len(boxes))],
        "left_out": flow.left_out,
    }


def _rows(count: int, edges: Iterable[tuple[int, int, str]]) -> list[int]:
    """The longest way from the top to each box; an edge that leads back to an earlier box moves nothing."""
    rows = [0] * count
    for source, target in sorted((source, target) for source, target, _ in edges if source < target):
        rows[target] = max(rows[target], rows[source] + 1)
    return rows


def _step(place: int, boxes: Sequence[Drawn], edges: Iterable[tuple[int, int, str]]) -> str:
    box = boxes[place]
    read = [(boxes[source]["label"], label) for source, target, label in edges if target == place]
    names = ", ".join(f"{name} ({label})" if label else name for name, label in read)
    trip = "part of a round trip" if box["is_redundant"] else None
    return joined((box["label"], box["detail"], box["time"], trip, f"reads {names}" if read else None), " · ")
