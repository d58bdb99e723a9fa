"""
Collects the data that the charts of the HTML report draw: numbers of the record, with cleaned names.

The page has the data as JSON: bars of the configurations, a timeline of kernels for each trial, and the layout flow
around the costliest conversions. Seconds are floats. A timeline counts whole nanoseconds from its first kernel, so that
the page stays small.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from layoutdoctor.diagnosis import Conversion, Diagnosis, Kernel, Layout, RedundantPair, Trial
from layoutdoctor.examination.counts import all_conversions_of, counted_conversions
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.reports.sections.rows import format_interval
from layoutdoctor.reports.sections.wording import (
    clean,
    clean_name,
    costs,
    direction_words,
    place_of,
    shown_name,
)
from layoutdoctor.rules.evidence import main_trial, own_trials
from layoutdoctor.units import format_seconds
from layoutdoctor.words import CONFIDENCE_WORDS, OWNER_WORDS, count_of, joined, layout_words, phrase, shape_words

MOST_KERNELS = 20_000
MOST_FLOWS = 3
MOST_BETWEEN = 5
"""If there are more operations between two conversions, the middle ones share one box."""
_NAME_LENGTH = 160
_NANOSECONDS = 1e9

Drawn = dict[str, Any]
"""A part of a chart, as the page's script reads it."""
Format = Literal["channels_last", "contiguous", "blocked", "unknown"]
_MADE: dict[str, Format] = {"to_channels_last": "channels_last", "to_contiguous": "contiguous", "to_blocked": "blocked"}


def build_bars(diagnosis: Diagnosis) -> list[Drawn]:
    """Returns the measured configurations, fastest first, each with its ratio to the baseline if there is one."""
    roles = {diagnosis.compared_with: "baseline", diagnosis.recommended_name: "best"}
    bars: list[Drawn] = []
    for trial in diagnosis.trials:
        seconds, ratio = trial.seconds, diagnosis.ratios.get(trial.name)
        if seconds is not None:
            role = roles.get(trial.name, "other")
            bar = {"name": shown_name(trial.name), "role": role, "seconds": seconds, "ratio": None}
            if ratio is not None:
                ends = {"low": ratio.low, "median": ratio.median, "high": ratio.high}
                bar["ratio"] = {**ends, "text": format_interval(ratio), "verdict": ratio.verdict}
            bars.append({**bar, "text": format_seconds(seconds)})
    return sorted(bars, key=lambda bar: bar["seconds"])


# ---------------------------------------------------------------------------------------------- timelines
class _Event(NamedTuple):
    """A kernel, or a conversion whose kernel is not in the list; times are in seconds."""

    start: float
    seconds: float
    stream: int | None
    name: str
    conversion: Conversion | None


def build_timelines(diagnosis: Diagnosis) -> list[Drawn]:
    """Returns a timeline of each trial with its own kernels: first the baseline's, then the recommended trial's."""
    ordered = (diagnosis.baseline, diagnosis.fastest, *diagnosis.trials)
    own = {trial.name: trial for trial in ordered if trial is not None and trial.status != "same_as"}
    return [timeline for timeline in map(_timeline, own.values()) if timeline is not None]


def _timeline(trial: Trial) -> Drawn | None:
    """
    Returns the kernels of a trial; None if there is nothing to draw, or if a start or time of a kernel is not known.

    ``starts``, ``lengths``, ``kernels`` (indices into ``names``) and ``kernel_lanes`` have one entry per kernel. Each
    entry of ``conversions`` is the index of a kernel, with a description. ``in_pairs`` are the indices of conversions
    that are part of a round trip. ``pairs`` has start, end and text of each round trip.
    """
    kernels = trial.kernel_summary.kernels
    if any(kernel.seconds is None or kernel.start_seconds is None for kernel in kernels):
        return None
    everything = _events(trial, kernels)
    if not everything:
        return None
    longest = sorted(everything, key=lambda event: (event.conversion is None, -event.seconds))[:MOST_KERNELS]
    events = sorted(longest, key=lambda event: event.start)
    streams = sorted({event.stream for event in events}, key=lambda stream: (stream is None, stream or 0))
    shown = {event.name: clean(event.name, _NAME_LENGTH) for event in events}
    number_of = {text: number for number, text in enumerate(dict.fromkeys(shown.values()))}
    starts = [round((event.start - events[0].start) * _NANOSECONDS) for event in events]
    lengths = [max(0, round(event.seconds * _NANOSECONDS)) for event in events]
    conversions = {number: event.conversion for number, event in enumerate(events) if event.conversion is not None}
    place = {conversion.id: number for number, conversion in conversions.items()}
    members = {id_ for pair in trial.redundant_pairs for id_ in (pair.first, *pair.also, pair.second)}
    drawn = [pair for pair in trial.redundant_pairs if {pair.first, pair.second} <= place.keys()]
    return {
        "name": shown_name(trial.name),
        "lanes": ["kernels" if stream is None else f"stream {stream}" for stream in streams],
        "names": list(number_of),
        "starts": starts,
        "lengths": lengths,
        "kernels": [number_of[shown[event.name]] for event in events],
        "kernel_lanes": [streams.index(event.stream) for event in events],
        "conversions": [(number, _describe(conversion)) for number, conversion in conversions.items()],
        "in_pairs": sorted(place[id_] for id_ in members & place.keys()),
        "pairs": [
            {
                "start": starts[place[pair.first]],
                "end": starts[place[pair.second]] + lengths[place[pair.second]],
                "text": f"round trip: {clean_name(pair.first)} and {clean_name(pair.second)}"
                + phrase(", {}", pair.seconds, format_seconds),
            }
            for pair in drawn
        ],
        "notes": list(_notes(trial, len(kernels), len(everything) - len(events), len(conversions))),
    }


def _events(trial: Trial, kernels: Sequence[Kernel]) -> list[_Event]:
    """Returns the kernels, each with its conversion or None, and then the conversions without a listed kernel."""
    waiting: dict[tuple[float | None, int | None], list[Conversion]] = defaultdict(list)
    for conversion in counted_conversions(trial):
        if conversion.count == 1:
            waiting[conversion.start_seconds, conversion.stream].append(conversion)
    events = []
    for kernel in kernels:  # a conversion and its kernel were read from one event: their start times are equal
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
    """Yields a phrase about everything that a timeline does not show."""
    if 0 < kernel_count < trial.kernel_summary.count:
        yield f"the record lists {kernel_count} of {trial.kernel_summary.count} kernels"
    undrawn = sum(conversion.count == 1 for conversion in counted_conversions(trial)) - drawn
    if undrawn:
        yield f"{count_of(undrawn, 'conversion')} not drawn, because no start time was recorded"
    if dropped:
        yield f"{count_of(dropped, 'shorter kernel')} not drawn; all conversions are drawn"


def _describe(conversion: Conversion) -> str:
    time = phrase("{}", conversion.seconds, format_seconds)
    place = place_of(conversion.location, conversion.module) or clean_name(conversion.op or "")
    what = f"{direction_words(conversion)}, {conversion.tensor}"
    return joined((clean_name(conversion.id), what, time, place), " · ")


# ---------------------------------------------------------------------------------------------- flows
@dataclass(frozen=True, slots=True)
class Box:
    """
    One box of a flow, for an operation or a conversion; the next box reads the value that this box makes.

    Attributes:
        detail: A conversion's id, tensor and owner; empty for an operation.
        memory_format: Format of the value; ``unknown`` also if it fits several named formats, or no named format.
        layout: Layout of the value, such as ``2x64x56x56 channels_last``; empty if not known.
        time: Time that the box takes in one iteration; empty if not known.
    """

    label: str
    detail: str = ""
    memory_format: Format = "unknown"
    layout: str = ""
    time: str = ""
    is_conversion: bool = False
    is_redundant: bool = False

    @property
    def in_words(self) -> str:
        """The text of the box on one line."""
        trip = "part of a round trip" if self.is_redundant else None
        return joined((self.label, self.detail, self.time, trip), " · ")


@dataclass(frozen=True, slots=True)
class FlowChart:
    """
    The boxes around one round trip or conversion, in their order.

    Attributes:
        about: Ids of the drawn conversions, and their cost.
    """

    title: str
    configuration: str
    about: str
    boxes: tuple[Box, ...]


def build_flows(diagnosis: Diagnosis) -> tuple[FlowChart, ...]:
    """
    Builds the flows around the costliest conversions, first for the baseline and the recommended configuration.

    Returns:
        One flow for each group of similar round trips, at most ``MOST_FLOWS``. Without round trips, the flow around the
        baseline's costliest conversion.
    """
    main = main_trial(diagnosis)
    mains = (main, diagnosis.measured_trial(diagnosis.recommended_name))
    trials = sorted(own_trials(diagnosis), key=lambda trial: trial not in mains)
    flows = [flow for trial in trials for flow in _of_pairs(diagnosis, trial)]
    if not flows and main is not None:
        flows = list(_of_conversion(main))
    return tuple(flows[:MOST_FLOWS])


def _of_pairs(diagnosis: Diagnosis, trial: Trial) -> Iterator[FlowChart]:
    """Yields one flow for each group of similar round trips; the flow shows the costliest round trip of the group."""
    conversions = {conversion.id: conversion for conversion in all_conversions_of(trial)}
    alike: dict[tuple[object, ...], list[RedundantPair]] = {}
    for pair in sorted(trial.redundant_pairs, key=lambda pair: (-(pair.seconds or 0.0), -(pair.bytes_moved or 0))):
        if {pair.first, pair.second} <= conversions.keys():
            operations = tuple(dict.fromkeys(base_name(name) for name in pair.between))  # repeated names count once
            alike.setdefault((pair.kind, operations, len(pair.also)), []).append(pair)
    for pair, *others in alike.values():
        first, second = conversions[pair.first], conversions[pair.second]
        between = list(_between(pair))
        if between:
            between[-1] = replace(between[-1], layout=_layout_text(second.source))
        one, other = (replace(_box(conversion), is_redundant=True) for conversion in (first, second))
        boxes = (*_maker(first), one, *between, other, *_reader(second))
        yield FlowChart(_title_of(diagnosis, pair), shown_name(trial.name), _about_pair(pair, len(others)), boxes)


def _of_conversion(trial: Trial) -> Iterator[FlowChart]:
    known = [one for one in counted_conversions(trial) if one.op is not None or one.node is not None]
    if known:
        worst = max(known, key=lambda one: (not one.fused, one.seconds or 0.0, one.bytes_moved or 0))
        about = clean_name(worst.id) + _cost(worst.seconds, worst.bytes_moved, clean(worst.cause or "", 200))
        is_of_output = (worst.port or "").startswith("output")
        reader = _reader(worst) if worst.required_by or not is_of_output else ()
        boxes = (*_maker(worst), _box(worst), *reader)
        yield FlowChart("Layout conversion", shown_name(trial.name), about, boxes)


def _title_of(diagnosis: Diagnosis, pair: RedundantPair) -> str:
    """Returns code and rule of the finding about a round trip; of several findings, the one with the least evidence."""
    about = [f for f in diagnosis.findings if {pair.first, pair.second} <= set(f.evidence)]
    finding = min(about, key=lambda finding: len(finding.evidence), default=None)
    return "Round trip" if finding is None else f"{clean_name(finding.code)} {clean_name(finding.rule)}"


def _about_pair(pair: RedundantPair, more: int) -> str:
    first = ", ".join(clean_name(id_) for id_ in (pair.first, *pair.also))
    others = f"; {count_of(more, 'more round trip')} like it" if more else ""
    sure = phrase(" (evidence: {})", pair.confidence, lambda confidence: CONFIDENCE_WORDS[confidence])
    cost = _cost(pair.seconds, pair.bytes_moved)
    return f"{first} and {clean_name(pair.second)} undo each other{sure}{cost}{others}"


def _cost(seconds: float | None, moved: int | None, cause: str = "") -> str:
    return phrase(": {}", joined((*costs(seconds, moved), cause), ", "))


def _box(conversion: Conversion) -> Box:
    if conversion.source is not None and conversion.target is not None:
        change = f"{layout_words(conversion.source)} → {layout_words(conversion.target)}"
    else:
        change = conversion.direction.replace("_", " ", 1) if conversion.direction != "other" else "another layout"
    owner = "fused into a kernel that computes" if conversion.fused else OWNER_WORDS[conversion.owner]
    tensor = conversion.tensor if conversion.tensor != "unknown" else None
    count = f"{conversion.count} launches" if conversion.count > 1 else None
    return Box(
        clean(change, 120),
        detail=joined((clean_name(conversion.id), tensor, owner, count), ", "),
        memory_format=format_of(conversion.target) if conversion.target else _MADE.get(conversion.direction, "unknown"),
        layout=_layout_text(conversion.target),
        time=phrase("{}", conversion.seconds, format_seconds),
        is_conversion=True,
    )


def format_of(layout: Layout | None) -> Format:
    """Returns the kind of memory format of a layout; ``unknown`` if several formats fit, or no format."""
    if layout is None:
        return "unknown"
    if layout.is_blocked:
        return "blocked"
    if len(layout.memory_formats) != 1:
        return "unknown"
    return "contiguous" if layout.memory_formats[0] == "contiguous_format" else "channels_last"


def _between(pair: RedundantPair) -> Iterator[Box]:
    names = [clean_name(name) for name in pair.between]
    if len(names) > MOST_BETWEEN:
        middle = names[2:-2]
        names = [*names[:2], clean(f"{count_of(len(middle), 'operation')}: {', '.join(middle)}", 120), *names[-2:]]
    yield from map(Box, names)


def _maker(conversion: Conversion) -> tuple[Box, ...]:
    """Returns a box for the operation that makes the converted value; empty if it is not known."""
    is_inside = conversion.owner == "library" and not (conversion.port or "").startswith("input")
    name = _call(conversion) if is_inside else conversion.source_value
    source = conversion.source
    return (Box(clean_name(name), memory_format=format_of(source), layout=_layout_text(source)),) if name else ()


def _reader(conversion: Conversion) -> tuple[Box, ...]:
    """Returns a box for the operation that reads the converted value; empty if it is not known."""
    name = next(iter(conversion.required_by), None) or _call(conversion) or conversion.node
    return (Box(clean_name(name)),) if name else ()


def _call(conversion: Conversion) -> str | None:
    """Returns the operation in which a conversion ran, if models can call it (``aten::conv2d``); else None."""
    op = conversion.op
    return op if op is not None and ("::" in op or "." in op) else None


def _layout_text(layout: Layout | None) -> str:
    return phrase("{}", layout, lambda one: clean(f"{shape_words(one.shape)} {layout_words(one)}", 80))
