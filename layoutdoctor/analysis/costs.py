"""
What the layout conversions of a trial cost, and whether layouts can matter to a model at all.

One place for these sums, so that rules and reports cannot disagree. Faces both; imports records and units only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutdoctor.records import FASTER, NO_DIFFERENCE
from layoutdoctor.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layoutdoctor.records import Conversion, Diagnosis, RatioInterval, Trial

IRRELEVANT_SHARE = 0.02
"""Conversions that take less of the kernel time than this cannot be worth a change of layout."""

HIDDEN_GAIN = 0.10
"""Where an interval reaches this far above 1, "no measurable difference" may hide a gain that matters."""

_CONVOLUTION_OPERATOR = re.compile(r"conv(olution|[123]d|_transpose)")


def counted_conversions(trial: Trial) -> tuple[Conversion, ...]:
    """
    The conversions of one iteration that run on their own and change a layout, each once.

    Args:
        trial: Any trial.

    Returns:
        Library conversions from the kernel list, then those of compiler, user and framework from the graphs. What is
        fused into a kernel that computes as well, or changes no layout, is left out.
    """
    recorded = [] if trial.kernels is None else list(trial.kernels.conversions)
    in_graphs = [c for graph in trial.graphs for c in graph.conversions if c.owner != "library"]
    found: dict[str, Conversion] = {}
    for conversion in (*recorded, *in_graphs):
        if conversion.direction != "none" and not conversion.fused:
            found.setdefault(conversion.id, conversion)
    return tuple(found.values())


def sum_seconds(conversions: Iterable[Conversion]) -> float | None:
    """
    Time of all; None where one of them was not measured.

    Args:
        conversions: Any conversions; the sum of none is zero.
    """
    total = 0.0
    for conversion in conversions:
        if conversion.seconds is None:
            return None
        total += conversion.seconds
    return total


def launch_count(conversions: Iterable[Conversion]) -> int:
    """
    How many launches conversions stand for: more than there are entries only where a table of totals was recorded.

    Args:
        conversions: Any conversions.
    """
    return sum(conversion.count for conversion in conversions)


def conversion_share(trial: Trial | None) -> float | None:
    """
    Time of all counted conversions over the time of all kernels.

    Args:
        trial: Any trial.

    Returns:
        None unless kernels were recorded in full and every counted conversion has a time: an unknown is no zero.
    """
    if trial is None or trial.kernels is None or not trial.kernels.seconds or trial.kernels.lacks:
        return None
    if trial.kernels.not_understood_count or any(graph.hook_failure or graph.not_understood for graph in trial.graphs):
        return None
    seconds = sum_seconds(counted_conversions(trial))
    return None if seconds is None else seconds / trial.kernels.seconds


def convolution_count(diagnosis: Diagnosis) -> int | None:
    """
    How many convolutions the model has, as far as was recorded: in a graph, else as modules.

    Args:
        diagnosis: Any diagnosis.

    Returns:
        The most that any trial shows; None where nothing was recorded that could tell.
    """
    counts = [count for trial in diagnosis.trials for count in _trial_convolution_counts(trial)]
    modules = diagnosis.subject.convolution_module_count
    if modules:
        counts.append(modules)
    return max(counts) if counts else None


def irrelevance(diagnosis: Diagnosis) -> str | None:
    """
    Why layouts do not matter to this model; None where they may, or where too little was recorded to say so.

    Args:
        diagnosis: Any diagnosis. With convolutions, times too noisy to exclude a gain say nothing either.
    """
    comparison = diagnosis.comparison
    if comparison is None or not comparison.ratios or any(ratio.verdict == FASTER for ratio in comparison.ratios):
        return None
    share = conversion_share(diagnosis.trial(comparison.baseline))
    if share is not None and share >= IRRELEVANT_SHARE:
        return None
    if convolution_count(diagnosis) == 0:
        return "it has no convolution"
    if share is None or any(may_hide_gain(ratio) for ratio in comparison.ratios):
        return None
    if any(trial.status in ("failed", "crashed", "timed_out") for trial in diagnosis.trials):
        return None  # what it would have gained is not known
    return (
        f"layout conversions take {format_share(share)} of the kernel time" if share else "it runs no layout conversion"
    )


def may_hide_gain(ratio: RatioInterval) -> bool:
    """
    Whether "no measurable difference" rests on times too noisy to exclude a gain that matters.

    Args:
        ratio: Against the baseline.
    """
    return ratio.verdict == NO_DIFFERENCE and ratio.high > 1 + HIDDEN_GAIN


def _trial_convolution_counts(trial: Trial) -> Iterable[int]:
    cards = [graph.decision for graph in trial.graphs if graph.decision is not None]
    if cards and len(cards) == len(trial.graphs):
        yield sum(card.convolution_count for card in cards)
    for graph in trial.graphs:
        if graph.nodes:
            yield sum(_CONVOLUTION_OPERATOR.search(node.target) is not None for node in graph.nodes)
