"""
Which redundant pairs and conversions are worth a picture, the worst first.

Faces ``flow``; a pure function of the diagnosis, no torch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import counted_conversions
from layoutdoctor.analysis.layout_agnostic import base_name
from layoutdoctor.reports.flow.parts import redundant_ids
from layoutdoctor.reports.sections.trace_wording import CONFIDENCE_WORDS
from layoutdoctor.reports.sections.wording import clean, clean_name, count_of
from layoutdoctor.rules.evidence import all_conversions_of, main_trial, own_trials
from layoutdoctor.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.records import Conversion, Diagnosis, Finding, RedundantPair, Trial

_SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Scene:
    """
    What one flow is about.

    Attributes:
        title: Which finding, pair or conversion.
        about: What is to be seen, in a sentence.
        trial: The trial it was recorded in.
        pair: The redundant pair; None where it is about a conversion.
        conversions: The conversion to draw, then others of the same finding; those of the pair where there is one.
        rank: By which scenes are sorted.
    """

    title: str
    about: str
    trial: Trial
    pair: RedundantPair | None
    conversions: tuple[Conversion, ...]
    rank: tuple[float, ...]

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the conversions that it is about."""
        if self.pair is not None:
            return frozenset((self.pair.first, *self.pair.also, self.pair.second))
        return frozenset(conversion.id for conversion in self.conversions[:1])


def choose_scenes(diagnosis: Diagnosis) -> tuple[Scene, ...]:
    """
    Everything worth a picture, the worst first, each conversion in one scene only.

    Args:
        diagnosis: Any diagnosis.
    """
    found: list[Scene] = []
    paired: set[int] = set()
    for trial in own_trials(diagnosis):
        for finding, pairs in _by_finding(diagnosis, trial):
            found += _of_pairs(diagnosis, trial, pairs, finding)
            paired.add(id(finding))
    for finding in diagnosis.findings:
        if id(finding) not in paired:
            found += _of_finding(diagnosis, finding)
    main = main_trial(diagnosis)
    if not found and main is not None:
        found += _of_conversions(diagnosis, main, counted_conversions(main), None)
    kept: list[Scene] = []
    drawn: set[tuple[str, str]] = set()
    for scene in sorted(found, key=lambda scene: scene.rank):
        ids = {(scene.trial.name, id_) for id_ in scene.ids}
        if not ids <= drawn:
            kept.append(scene)
            drawn |= ids
    return tuple(kept)


def _by_finding(diagnosis: Diagnosis, trial: Trial) -> Iterator[tuple[Finding | None, list[RedundantPair]]]:
    """A trial's pairs by the finding that speaks of them most closely: the one with the least other evidence."""
    about = [finding for finding in diagnosis.findings if _trial_of(diagnosis, finding) is trial]
    closest = sorted(about, key=lambda finding: len(finding.evidence))
    evidence = [frozenset(finding.evidence) for finding in closest]
    groups: dict[int, list[RedundantPair]] = {}
    for pair in trial.redundant_pairs:
        places = (place for place, ids in enumerate(evidence) if pair.first in ids and pair.second in ids)
        groups.setdefault(next(places, -1), []).append(pair)
    for place, pairs in sorted(groups.items()):
        yield (closest[place] if place >= 0 else None), pairs


def _trial_of(diagnosis: Diagnosis, finding: Finding) -> Trial | None:
    return diagnosis.measured_trial(finding.configuration) if finding.configuration else main_trial(diagnosis)


def _of_finding(diagnosis: Diagnosis, finding: Finding) -> Iterator[Scene]:
    """The conversions of a finding that is about no pair; those of pairs only where it has no others."""
    trial = _trial_of(diagnosis, finding)
    if trial is None or not finding.evidence:
        return
    ids = frozenset(finding.evidence)
    conversions = [conversion for conversion in all_conversions_of(trial) if conversion.id in ids]
    redundant = redundant_ids(trial)
    alone = [conversion for conversion in conversions if conversion.id not in redundant]
    yield from _of_conversions(diagnosis, trial, alone or conversions, finding)


def _of_pairs(
    diagnosis: Diagnosis, trial: Trial, pairs: Sequence[RedundantPair], finding: Finding | None
) -> Iterator[Scene]:
    """One scene for all pairs that look alike: the costliest of them."""
    conversions = {conversion.id: conversion for conversion in all_conversions_of(trial)}
    told: set[tuple[object, ...]] = set()
    counts = Counter(map(_pattern, pairs))
    ordered = sorted(pairs, key=lambda pair: _cost_rank(pair.seconds, pair.bytes_moved))
    for pair in ordered:
        own = [conversions.get(id_) for id_ in (pair.first, *pair.also, pair.second)]
        if _pattern(pair) in told or None in (own[0], own[-1]):
            continue
        told.add(_pattern(pair))
        yield Scene(
            title=_title(finding) or "Round trip",
            about=_about_pair(pair, counts[_pattern(pair)] - 1),
            trial=trial,
            pair=pair,
            conversions=tuple(conversion for conversion in own if conversion is not None),
            rank=_rank(diagnosis, trial, finding, len(told), pair.seconds, pair.bytes_moved),
        )


def _of_conversions(
    diagnosis: Diagnosis, trial: Trial, conversions: Sequence[Conversion], finding: Finding | None
) -> Iterator[Scene]:
    # What has no known place, or moves nothing of its own, is drawn only where there is nothing else.
    ordered = sorted(conversions, key=lambda c: (not _has_place(c), c.fused, *_cost_rank(c.seconds, c.bytes_moved)))
    if not ordered:
        return
    worst = ordered[0]
    yield Scene(
        title=_title(finding) or "Layout conversion",
        about=_about_conversion(worst, len(ordered) - 1),
        trial=trial,
        pair=None,
        conversions=tuple(ordered),
        rank=_rank(diagnosis, trial, finding, 1, worst.seconds, worst.bytes_moved),
    )


def _has_place(conversion: Conversion) -> bool:
    """Whether it is known which tensor of which operation was converted."""
    return conversion.node is not None or (conversion.op is not None and conversion.port is not None)


def _pattern(pair: RedundantPair) -> tuple[object, ...]:
    """What makes round trips look alike: the operations between them, in a row counted once."""
    return (pair.kind, tuple(dict.fromkeys(base_name(name) for name in pair.between)), len(pair.also))


def _title(finding: Finding | None) -> str | None:
    return f"{clean_name(finding.code)} {clean_name(finding.rule)}" if finding is not None else None


def _about_pair(pair: RedundantPair, more: int) -> str:
    parts = [*_cost_words(pair.seconds, pair.seconds_source, pair.bytes_moved)]
    cost = f": {', '.join(parts)}" if parts else ""
    first = ", ".join(clean_name(id_) for id_ in (pair.first, *pair.also))
    others = f"; {count_of(more, 'more round trip')} like it" if more else ""
    sure = f" (rests on {CONFIDENCE_WORDS[pair.confidence]})" if pair.confidence is not None else ""
    return f"{first} and {clean_name(pair.second)} undo each other{sure}{cost}{others}"


def _about_conversion(conversion: Conversion, more: int) -> str:
    parts = [*_cost_words(conversion.seconds, conversion.seconds_source, conversion.bytes_moved)]
    if conversion.cause:
        parts.append(clean(conversion.cause, 200))
    cost = f": {', '.join(parts)}" if parts else ""
    others = f"; {count_of(more, 'further conversion')} of this kind" if more else ""
    return f"{clean_name(conversion.id)}{cost}{others}"


def _cost_words(seconds: float | None, source: str | None, moved: int | None) -> Iterator[str]:
    if seconds is not None:
        yield format_seconds(seconds) + (" (estimated)" if source == "estimated" else "")
    if moved is not None:
        yield f"{format_bytes(moved)} moved"


def _cost_rank(seconds: float | None, moved: int | None) -> tuple[float, float]:
    return -(seconds or 0.0), -float(moved or 0)


def _rank(
    diagnosis: Diagnosis, trial: Trial, finding: Finding | None, number: int, seconds: float | None, moved: int | None
) -> tuple[float, ...]:
    """Severity, then one picture of each finding, then the trials the user has or is told to use, then the cost."""
    severity = _SEVERITIES.index(finding.severity if finding is not None else "note")
    advised = diagnosis.recommendation.configuration if diagnosis.recommendation is not None else None
    recommended = diagnosis.measured_trial(advised) if advised is not None else None
    is_other = trial is not main_trial(diagnosis) and trial is not recommended
    return severity, number, is_other, *_cost_rank(seconds, moved)
