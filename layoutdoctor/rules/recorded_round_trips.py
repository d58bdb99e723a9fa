"""
The round trips of a recorded trace as one finding: how many each kind of proof stands for, and what they cost.

Faces LD101; pure functions of records.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from layoutdoctor.analysis.layout_agnostic import CONTIGUOUS_NORMS, base_name
from layoutdoctor.records import Finding
from layoutdoctor.rules import evidence, recorded
from layoutdoctor.units import format_bytes
from layoutdoctor.words import count_of, layout_words, listing, op_words, shape_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from layoutdoctor.records import Conversion, ConversionDirection, RedundantPair, Severity, Trial

_KINDS_NAMED = 3
_SHAPES_NAMED = 3
_PROVEN = ("shapes", "grid")
# A first conversion that goes out of the layout that the library computes in, and one that goes into it.
_OUT: tuple[ConversionDirection, ...] = ("to_contiguous", "from_blocked")
_INTO: tuple[ConversionDirection, ...] = ("to_channels_last", "to_blocked")
_OUT_AND_BACK: dict[ConversionDirection, str] = {
    "to_contiguous": "to contiguous and back",
    "to_channels_last": "to channels_last and back",
    "from_blocked": "out of a blocked layout and back",
    "to_blocked": "to a blocked layout and back",
}


def recorded_finding(trial: Trial, code: str, rule: str) -> Finding | None:
    """
    One finding for all round trips of a trace; None where it has none.

    Args:
        trial: The trial of a trace.
        code: The rule's code.
        rule: The rule's name.

    Returns:
        A warning where those that shapes or launch grids prove take 2 % of the kernel time or more, else a note.
    """
    pairs = trial.redundant_pairs
    if not pairs:
        return None
    conversions = {conversion.id: conversion for conversion in evidence.all_conversions_of(trial)}
    found = recorded.places((pair.module, pair.location, 1, pair.seconds) for pair in pairs)
    return Finding(
        code=code,
        rule=rule,
        severity=_severity(trial, pairs),
        configuration=trial.name,
        message=_message(trial, pairs, conversions, found),
        suggestion=_suggestion(pairs, conversions),
        location=found[0].location if found else None,
        module=found[0].module if found else None,
        seconds=evidence.sum_known(pair.seconds for pair in pairs),
        bytes_moved=evidence.sum_bytes(pair.bytes_moved for pair in pairs),
        evidence=tuple(dict.fromkeys(id for pair in pairs for id in _ids(pair))),
    )


def _ids(pair: RedundantPair) -> tuple[str, ...]:
    return (pair.first, *pair.also, pair.second)


def _severity(trial: Trial, pairs: Sequence[RedundantPair]) -> Severity:
    proven = evidence.sum_known(pair.seconds for pair in pairs if pair.confidence in _PROVEN)
    return evidence.severity_of_cost(trial, proven)


def _message(
    trial: Trial,
    pairs: Sequence[RedundantPair],
    conversions: Mapping[str, Conversion],
    found: Sequence[recorded.Place],
) -> str:
    seconds = evidence.sum_known(pair.seconds for pair in pairs)
    exposed = evidence.sum_known(pair.exposed_seconds for pair in pairs)
    moved = evidence.sum_bytes(pair.bytes_moved for pair in pairs)
    owners = {conversions[id].owner for pair in pairs for id in _ids(pair) if id in conversions}
    shapes = list(dict.fromkeys(shape_words(pair.tensor_shape) for pair in pairs if pair.tensor_shape))
    costs = [
        recorded.cost_words(trial, seconds, exposed, is_library=owners == {"library"}),
        f"{format_bytes(moved)} moved" if moved is not None else None,
    ]
    parts = [
        recorded.confidence_words((pair.confidence for pair in pairs), "round trip"),
        _kind_words(pairs, conversions),
        f"on {listing(shapes, _SHAPES_NAMED)}" if shapes else None,
        ", ".join(cost for cost in costs if cost is not None) or None,
        recorded.dearest_words(found),
        _group_norm_words(pairs),
    ]
    return "; ".join(part for part in parts if part is not None)


def _kind_words(pairs: Sequence[RedundantPair], conversions: Mapping[str, Conversion]) -> str:
    """Which way, and around what, the most frequent first; how often each where there are several."""
    ways = recorded.named_counts((way, 1) for pair in pairs if (way := _way(pair, conversions)) is not None)
    counts = Counter(_around(pair) for pair in pairs)
    if len(counts) == 1:
        return " ".join(part for part in (ways, *counts) if part is not None)
    around = [f"{count} {words}" for words, count in counts.most_common(_KINDS_NAMED)]
    if len(counts) > _KINDS_NAMED:
        around.append(f"{count_of(len(counts) - _KINDS_NAMED, 'more kind')}")
    return ": ".join(part for part in (ways, ", ".join(around)) if part is not None)


def _has_contiguous_norm(pair: RedundantPair) -> bool:
    return any(name in CONTIGUOUS_NORMS for name in pair.between)


def _group_norm_words(pairs: Sequence[RedundantPair]) -> str | None:
    """How many go through a group norm that would convert by itself if the library did not."""
    count = sum(map(_has_contiguous_norm, pairs))
    if not count:
        return None
    which = "all of them go" if count == len(pairs) else f"{count} of them {'goes' if count == 1 else 'go'}"
    return f"{which} through a group norm that runs in contiguous_format only"


def _way(pair: RedundantPair, conversions: Mapping[str, Conversion]) -> str | None:
    """``"channels_last -> contiguous -> channels_last"``; by the first one's direction where no layout is known."""
    first, second = conversions.get(pair.first), conversions.get(pair.second)
    if first is None or second is None:
        return None
    layouts = (first.source, first.target, second.target)
    if any(layout is None for layout in layouts):
        return _OUT_AND_BACK.get(first.direction)
    return " -> ".join(layout_words(layout) for layout in layouts)


def _around(pair: RedundantPair) -> str:
    names = [_operation_words(op) for op in pair.between]
    return f"around {listing(names)}" if names else "with nothing between"


def _operation_words(name: str) -> str:
    """An operation or, where none was recorded, a kernel, without where it stands in torch's sources."""
    return op_words(base_name(name)).replace("(anonymous namespace)::", "").removeprefix("at::native::")


def _weight(
    pairs: Sequence[RedundantPair], conversions: Mapping[str, Conversion], directions: Sequence[ConversionDirection]
) -> tuple[float, int]:
    """Time, then number, of the pairs whose first conversion goes one of these ways."""
    own = [pair for pair in pairs if (first := conversions.get(pair.first)) and first.direction in directions]
    return (evidence.sum_known(pair.seconds for pair in own) or 0.0, len(own))


def _suggestion(pairs: Sequence[RedundantPair], conversions: Mapping[str, Conversion]) -> str:
    """By what the library wants, as the dearer way round says: a trace has no other run to compare with."""
    out, back = (_weight(pairs, conversions, directions) for directions in (_OUT, _INTO))
    if out == back:
        return f"nothing was tried here: {recorded.try_other_words()}"
    if back > out:
        return f"the library computes contiguous here: {recorded.try_words('torch.contiguous_format')}"
    wanted = recorded.channels_last_words(len(pair.tensor_shape) for pair in pairs if pair.tensor_shape)
    own = [conversions[pair.first] for pair in pairs if pair.first in conversions]
    norms = (
        "; around a group norm that is not enough in eager: it converts its input itself, unless torch.compile or a "
        "group norm for channels_last takes its place"
        if any(map(_has_contiguous_norm, pairs))
        else ""
    )
    return f"nothing was tried here: {recorded.try_words(wanted)}{norms}{recorded.miopen_words(own)}"
