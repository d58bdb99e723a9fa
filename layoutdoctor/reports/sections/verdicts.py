"""What the rounds could tell and what they could not, what would, and what else the machine did meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.records import FASTER
from layoutdoctor.examination.ratios import WITHIN_EQUALITY, is_too_noisy, open_among_fastest
from layoutdoctor.reports.sections.wording import baseline_phrase, clean_name, find_ratio, interval_clause
from layoutdoctor.units import format_ratio, format_seconds
from layoutdoctor.words import be, count_of, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Comparison, Diagnosis, RatioInterval

MOST_NAMED = 6


def leader_text(diagnosis: Diagnosis, comparison: Comparison) -> str:
    """Which is fastest, or between which that is open."""
    fastest = [clean_name(name) for name in comparison.fastest]
    if len(fastest) > 1:
        is_open = bool(open_among_fastest(comparison))
        return f"{'Undecided between' if is_open else 'Equal:'} {listing(fastest, MOST_NAMED)}"
    return (
        f"Fastest measured: {fastest[0]}{against_clause(diagnosis, comparison, comparison.fastest[0])}"
        if fastest
        else ""
    )


_LONGEST_WAIT_SECONDS = 1800.0
"""What would take longer is nothing that anybody waits for, and hardly a number that can be trusted."""


def against_clause(diagnosis: Diagnosis, comparison: Comparison, name: str) -> str:
    """How much faster than the baseline, as the end of a sentence; empty where it is not surely faster."""
    ratio = find_ratio(diagnosis, name)
    if ratio is None or ratio.verdict != FASTER:
        return ""
    interval = interval_clause(ratio.low, ratio.high, ratio.coverage)
    return f", {format_ratio(ratio.median)} faster than {baseline_phrase(comparison.baseline)} ({interval})"


def undecided_headline(comparison: Comparison, open_ones: Sequence[RatioInterval]) -> str:
    """What may be faster than the baseline though the rounds could not tell, and what would tell."""
    named = [
        clean_name(ratio.name) + (f" ({_in_numbers(ratio)})" if is_worth_a_number(ratio) else "") for ratio in open_ones
    ]
    rounds = count_of(comparison.round_count or 0, "round")
    what = f"{listing(named, MOST_NAMED)} may be faster than {baseline_phrase(comparison.baseline)}"
    starts = max(ratio.start_count or 0 for ratio in open_ones)
    if starts:
        again = f"{count_of(starts, 'start')} of fresh processes"
        return f"Undecided after {rounds} and {again}: {what}, too close for these to tell"
    return f"Undecided after {rounds}: {what}{_what_would_tell(comparison)}"


def is_worth_a_number(ratio: RatioInterval) -> bool:
    """Whether a ratio is told in words with its number; elsewhere the rounds were too few, or too noisy."""
    return ratio.coverage is not None and not is_too_noisy(ratio)


def _in_numbers(ratio: RatioInterval) -> str:
    return f"{format_ratio(ratio.median)}, {interval_clause(ratio.low, ratio.high, ratio.coverage)}"


def rival_lines(comparison: Comparison, chosen: str) -> Iterator[str]:
    """Who is as fast as the one that is recommended, and of whom that is not known."""
    rivals = [name for name in comparison.fastest if name not in (chosen, comparison.baseline)]
    open_ones = [name for name in open_among_fastest(comparison) if name in rivals]
    equal = [clean_name(name) for name in rivals if name not in open_ones]
    if equal:
        yield f"Equal: {listing(equal, MOST_NAMED)} {be(len(equal))} as fast, {WITHIN_EQUALITY}"
    starts = {ratio.name: ratio.start_count for ratio in comparison.ratios if ratio.start_count}
    again = [name for name in open_ones if name in starts]
    once = [name for name in open_ones if name not in starts]
    if again:
        names = listing(map(clean_name, again), MOST_NAMED)
        told_by = f"{count_of(starts[again[0]], 'start')} of fresh processes"
        yield f"Undecided: {names} may be as fast, which {told_by} do not tell"
    if once:
        names = listing(map(clean_name, once), MOST_NAMED)
        yield f"Undecided: {names} may be as fast{_what_would_tell(comparison)}"


def _what_would_tell(comparison: Comparison) -> str:
    """What would decide what is open, as the end of a sentence; empty where nothing is known of that."""
    if comparison.is_too_busy:
        return "; other programs kept the machine busy, so measure again when it is quiet"
    if comparison.seconds_to_decide is None:
        return "; measure longer (--budget)"
    if comparison.seconds_to_decide > _LONGEST_WAIT_SECONDS:
        return ", too close for rounds to tell"
    return f"; about {format_seconds(comparison.seconds_to_decide)} more of rounds would tell (--budget)"


_WORTH_A_WORD = 0.1
"""Cores that others used; below that the machine was quiet."""


def load_clause(comparison: Comparison | None) -> str | None:
    """How busy others kept the machine while the configurations took turns; None where it was quiet, or not known."""
    load = comparison.load if comparison is not None else None
    if load is None or load.other_cores is None or load.other_cores < _WORTH_A_WORD:
        return None
    busy = ", too much for a verdict" if load.is_too_busy else ""
    return f"other programs used {load.other_cores:.1f} cores meanwhile{busy}"
