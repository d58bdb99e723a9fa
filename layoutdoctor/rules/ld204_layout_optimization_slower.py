"""
Inductor's layout optimization makes this model slower.

What it finds:
    ``inductor-layout-opt-off`` measurably faster than the baseline, in which the optimization was applied.

Why it costs:
    Making the convolutions channels-last costs conversions: at the entry, at the exit, and wherever an operation
    keeps the contiguous format. Where the convolutions gain less than that, the whole loses.

Example:
    Branches that are channels-last and meet in a ``torch.cat``, which is written in the contiguous format and converted
    back for the next convolution.

What to do:
    ``torch.compile(model, options={"layout_optimization": False})``, for this model only; or give model and input
    channels_last, which keeps the gain and drops the conversions, where that was measured to be faster still.

When it is fine:
    With the optimization off the output keeps another layout than eager's: the conversion it seems to save is then
    done by whoever reads the output.

Source:
    The decision is a heuristic fitted on other hardware (``GraphLowering.decide_layout_opt``,
    torch/_inductor/graph.py, torch 2.13; "TODO - get different values per hardware").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import other_cure, severity_by_cure
from layoutdoctor.rules.base import document_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, RatioInterval, Trial

_OFF = "inductor-layout-opt-off"


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most, about the baseline."""
    baseline, ratio = evidence.main_trial(diagnosis), evidence.faster_ratio(diagnosis, _OFF)
    if baseline is None or diagnosis.comparison is None or ratio is None:
        return
    applied = [g.name for g in baseline.graphs if g.decision and g.decision.applied and g.decision.convolution_count]
    if applied:
        yield RULE.finding(
            baseline.name,
            (
                "layout optimization was applied and costs more than it gains: "
                + evidence.speed_words(ratio, diagnosis.comparison.baseline)
                + _caution(diagnosis)
            ),
            other_cure(diagnosis, baseline, lambda cure: cure.layout_optimization == "off")
            or _suggestion(diagnosis, ratio, diagnosis.comparison.baseline),
            severity=severity_by_cure(diagnosis, ratio, lambda cure: cure.layout_optimization == "off"),
            evidence=applied,
            seconds=evidence.seconds_lost(diagnosis, ratio.name),
        )


def _caution(diagnosis: Diagnosis) -> str:
    off: Trial | None = diagnosis.measured_trial(_OFF)
    if off is None or off.equivalence is None or not off.equivalence.output_layouts_differ:
        return ""
    return "; part of that may be a conversion left to the reader of the output, which has another layout than eager's"


def _suggestion(diagnosis: Diagnosis, ratio: RatioInterval, baseline: str) -> str:
    best = evidence.fastest_of(diagnosis, evidence.CHANNELS_LAST_CONFIGURATIONS)
    if best is not None and best.low > ratio.high:
        return f"give the model and its input channels_last: {evidence.speed_words(best, baseline)}"
    return 'switch it off for this model: torch.compile(model, options={"layout_optimization": False})'


RULE = document_rule("LD204", "layout-optimization-slower", check, __doc__)
