"""
The times scatter or drift too much for small differences to be seen.

What it finds:
    An interval of a ratio wider than 10 % (high over low, less 1), rounds of a configuration that scatter by more than
    10 % (interquartile range over median), or a drift of more than 10 % between the first and the last third of the
    rounds. One finding for the whole diagnosis: a note up to 25 %, a warning beyond.

Why it costs:
    The wider the interval, the larger a gain has to be before it can be told from noise; a real one may be missed.

Example:
    A laptop that gets warm while it measures: the last third of the rounds is 15 % slower than the first.

What to do:
    Close other programs; use fewer threads than there are cores; measure longer (``--budget``); on a GPU, fix its
    clocks.

When it is fine:
    The gain is far larger than the interval is wide: a verdict of "faster" or "slower" holds in spite of it, since it
    was judged with the noise in view. A configuration dropped early as clearly slower is not looked at.

Source:
    Ratios are judged round by round with an order-statistic interval, so scatter widens it and drift mostly cancels.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import starmap
from typing import TYPE_CHECKING

from layoutdoctor.rules.base import document_rule
from layoutdoctor.units import format_ratio, format_share
from layoutdoctor.words import listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, Trial

_NOTE_ABOVE = 0.10
_WARNING_ABOVE = 0.25
# Fewer rounds than this give neither quartiles nor thirds worth the name.
_MINIMUM_ROUNDS = 6


@dataclass(frozen=True)
class _Doubt:
    """One thing that is off: how much, of which configuration, and how to say it."""

    amount: float
    name: str
    words: str


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most, for the whole diagnosis."""
    measured = list(_measured(diagnosis))
    kinds = (_wide_intervals(diagnosis), starmap(_scatter, measured), starmap(_drift, measured))
    felt = [sorted((doubt for doubt in kind if doubt.amount > _NOTE_ABOVE), key=lambda d: -d.amount) for kind in kinds]
    doubts = [kind for kind in felt if kind]
    if doubts:
        worst = max(kind[0].amount for kind in doubts)
        yield RULE.finding(
            None,
            "; ".join((kind[0].words + (f" (and {len(kind) - 1} more)" if len(kind) > 1 else "")) for kind in doubts),
            _suggestion(diagnosis.subject.device),
            severity="warning" if worst > _WARNING_ABOVE else "note",
            evidence=[doubt.name for kind in doubts for doubt in kind],
        )


def _was_dropped(trial: Trial) -> bool:
    return trial.measurement is not None and trial.measurement.dropped_after_round is not None


def _wide_intervals(diagnosis: Diagnosis) -> Iterator[_Doubt]:
    for ratio in diagnosis.comparison.ratios if diagnosis.comparison is not None else ():
        trial = diagnosis.measured_trial(ratio.name)
        if ratio.low <= 0 or (trial is not None and _was_dropped(trial)):
            continue
        width, ends = ratio.high / ratio.low - 1, f"{format_ratio(ratio.low)} to {format_ratio(ratio.high)}"
        wide = f"is {format_share(width)} wide ({ends})" if width <= 1 else f"reaches from {ends}"
        yield _Doubt(width, ratio.name, f"the interval of {ratio.name} {wide}")


def _scatter(name: str, rounds: Sequence[float]) -> _Doubt:
    low, median, high = statistics.quantiles(rounds, n=4)
    scatter = (high - low) / median
    words = f"the rounds of {name} scatter by {format_share(scatter)} (interquartile range over median)"
    return _Doubt(scatter, name, words)


def _drift(name: str, rounds: Sequence[float]) -> _Doubt:
    third = len(rounds) // 3
    first, last = statistics.median(rounds[:third]), statistics.median(rounds[-third:])
    drift, way = abs(last / first - 1), "slower" if last > first else "faster"
    words = f"{name} became {format_share(drift)} {way} from the first third of its rounds to the last"
    return _Doubt(drift, name, words)


def _measured(diagnosis: Diagnosis) -> Iterator[tuple[str, tuple[float, ...]]]:
    for trial in diagnosis.trials:
        rounds = trial.measurement.round_seconds if trial.measurement is not None else ()
        if len(rounds) >= _MINIMUM_ROUNDS and min(rounds) > 0 and not _was_dropped(trial):
            yield trial.name, rounds


def _suggestion(device: str | None) -> str:
    first = ("leave the device to this run alone", "fix its clocks")
    if device == "cpu":
        first = ("close other programs", "use fewer threads than there are cores")
    return listing((*first, "measure longer (--budget)"))


RULE = document_rule("LD401", "unstable-measurement", check, __doc__)
