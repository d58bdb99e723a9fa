"""LD504: gradients that are in both formats at once."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Diagnosis, Finding, GradientLayout, Layout, Trial
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import count_of, listing, shown

_OFF = "inductor-layout-opt-off"


def ambiguous_formats(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding: the first trial with a gradient of the parameter's format, but other strides."""
    trials = evidence.own_trials(diagnosis)
    for trial, gradients in evidence.first_showing(trials, _ambiguous_gradients):
        pairs = [f"{g.parameter}: {_strides(g.layout)} and {_strides(g.gradient)}" for g in gradients]
        cause = _cause(diagnosis, trial, {g.parameter for g in gradients})
        yield LD504.finding(
            trial.name,
            f"{count_of(len(gradients), 'gradient')} in the order of the parameter, with other strides "
            f"({listing(pairs, 1)}): 'Grad strides do not match bucket view strides' is spurious "
            f"(pytorch #47163){cause}",
            None,
            evidence=[g.parameter for g in gradients],
        )


def _ambiguous_gradients(trial: Trial) -> list[GradientLayout]:
    return [
        entry
        for entry in trial.gradient_layouts
        if entry.layout.stride != entry.gradient.stride
        and entry.layout.shape == entry.gradient.shape
        and set(entry.layout.memory_formats) & set(entry.gradient.memory_formats)
    ]


def _cause(diagnosis: Diagnosis, trial: Trial, parameters: set[str]) -> str:
    """Names the configuration without layout optimization if it has no such gradients; else empty."""
    off = diagnosis.measured_trial(_OFF)
    applied = any(card.applied for card in trial.decisions)
    if not applied or off is None or off.status != "ok" or parameters & {one.parameter for one in off.gradient_layouts}:
        return ""
    return f"; not in {shown(_OFF)}"


def _strides(layout: Layout) -> str:
    return f"({', '.join(str(step) for step in layout.stride or ())})"


LD504 = Rule("LD504", "ambiguous-format", ambiguous_formats)
