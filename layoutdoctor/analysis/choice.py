"""
What to recommend: which trial is the baseline, which may win, and what the second measurement makes of the winner.

Faces doctor; no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.analysis.how_to_apply import how_to_apply
from layoutdoctor.configurations import BASELINE
from layoutdoctor.records import FASTER, Recommendation, Speedup
from layoutdoctor.units import format_ratio

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from layoutdoctor.records import Comparison, Configuration, Trial

Ranks = tuple[frozenset[int], frozenset[int]]
"""Ranks of the parameters and of the inputs, which decide how a memory format is written down."""


def choose_baseline(configurations: Sequence[Configuration], measurable: Collection[str]) -> str:
    """
    The configuration that ratios refer to: torch.compile's default where it ran, else the first that did.

    Args:
        configurations: In the order of the report.
        measurable: Names of those that ran; at least one.
    """
    if BASELINE in measurable:
        return BASELINE
    return next(configuration.name for configuration in configurations if configuration.name in measurable)


def eligible_names(trials: Sequence[Trial]) -> frozenset[str]:
    """
    The trials that may be recommended: those that ran and whose outputs are not known to differ.

    Args:
        trials: All of them.
    """
    return frozenset(
        trial.name
        for trial in trials
        if trial.status == "ok" and not (trial.equivalence is not None and trial.equivalence.status == "different")
    )


def recommend(
    trials: Sequence[Trial], comparison: Comparison | None, confirmed: Comparison | None, ranks: Ranks
) -> Recommendation:
    """
    The recommendation, from the comparison and from rounds measured after the choice was made.

    Args:
        trials: All trials.
        comparison: Of the first rounds; None where fewer than two trials were measured.
        confirmed: The chosen configuration against the baseline once more; None where there was nothing to confirm.
        ranks: Of parameters and inputs.
    """
    if comparison is None or not comparison.fastest:
        return _none(_why_nothing(trials, comparison))
    chosen = comparison.fastest[0]
    if chosen == comparison.baseline:
        return _none(_why_baseline(comparison))
    again = next((ratio for ratio in confirmed.ratios if ratio.name == chosen), None) if confirmed is not None else None
    if again is None:
        return _none(f"{chosen} led, but its gain could not be measured again")
    if again.coverage is None:
        return _none(f"{chosen} led, but {again.round_count} rounds are too few to confirm it; give a larger --budget")
    if again.verdict != FASTER:
        return _none(
            f"{chosen} led in the first rounds, but measured again no gain was sure "
            f"({format_ratio(again.low)} to {format_ratio(again.high)})"
        )
    trial = next(trial for trial in trials if trial.name == chosen)
    equal = trial.equivalence is not None and trial.equivalence.status == "equal"
    return Recommendation(
        configuration=chosen,
        speedup=Speedup(low=again.low, median=again.median, high=again.high),
        how=how_to_apply(trial.configuration, *ranks),
        verified=equal,
        reason=_why_chosen(comparison, chosen, equal=equal),
    )


def _none(reason: str) -> Recommendation:
    return Recommendation(configuration=None, speedup=None, how=None, verified=False, reason=reason)


def _why_nothing(trials: Sequence[Trial], comparison: Comparison | None) -> str:
    if comparison is not None:
        return "no configuration whose outputs are right was measured"
    measured = [trial.name for trial in trials if trial.measurement is not None]
    if not measured:
        return "nothing was measured"
    same = [trial.name for trial in trials if trial.same_as in measured]
    if same and len(measured) == 1:
        return f"all configurations are the same as {measured[0]} for this model"
    return f"only {measured[0]} was measured, so there is nothing to compare it with"


def _why_baseline(comparison: Comparison) -> str:
    unjudged = {ratio.name for ratio in comparison.unjudged}
    ties = [name for name in comparison.fastest if name != comparison.baseline and name not in unjudged]
    name = "torch.compile's default" if comparison.baseline == BASELINE else comparison.baseline
    if unjudged and not ties:
        return f"the rounds are too few to compare {name} with {', '.join(sorted(unjudged))}; give a larger --budget"
    if ties:
        return f"nothing is measurably faster than {name}; {', '.join(ties)} cannot be told from it"
    return f"nothing is measurably faster than {name}"


def _why_chosen(comparison: Comparison, chosen: str, *, equal: bool) -> str:
    ties = [name for name in comparison.fastest if name != chosen]
    reason = "it is the fastest measured"
    if ties:
        reason += f", together with {', '.join(ties)}, which cannot be told from it"
    return reason if equal else f"{reason}; its outputs were not checked against the reference"
